"""All that a tool may import: parameters, needs, progress, result."""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.errors import Interrupted, ToolError
from harness.files import digest_file, digest_json, fsync_folder, write_json, write_text, writing, writing_folder

__all__ = [
    "Context",
    "Interrupted",
    "Needs",
    "Params",
    "Result",
    "Tool",
    "ToolError",
    "digest_file",
    "digest_json",
    "fsync_folder",
    "write_json",
    "write_text",
    "writing",
    "writing_folder",
]


class Params(BaseModel):
    """Base of every tool's parameter model: unknown names are mistakes, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Needs(BaseModel):
    """What a task asks of the machine, in bytes; `disk_bytes` maps a path to what will be written below it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: int = 0  # 0: it doesn't say
    gpus: int = 0
    gpu_free_bytes: int = 0
    ram_bytes: int = 0
    shm_bytes: int = 0
    disk_bytes: dict[str, int] = {}
    ports: list[int] = []
    files: list[str] = []


class Result(BaseModel):
    """What a tool's `main` returns.

    `values` are the named values that other tasks may refer to; `metrics` are numbers worth keeping;
    `note` is the one line that the status table shows; `freed` lists paths that were deleted on purpose.
    """

    model_config = ConfigDict(extra="forbid")

    values: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    note: str = ""
    freed: list[str] = []


def _no_needs(_params: Any) -> Needs:
    return Needs()


@dataclass(frozen=True)
class Tool:
    """A kind of step.

    `run` names the function that does the work, "package.module:function", called as `function(params, context)`
    in the environment `env` and never imported by the engine. `outputs` maps a name to a path template over the
    parameters ("{out}/model"); `values` names what `Result.values` will hold; `inputs` names the parameters that
    are paths to read; `neutral` names parameters that can't change the outputs (they stay out of the fingerprint).
    A tool that `deletes` is told which paths the plan still needs.
    """

    name: str
    version: int
    summary: str
    params: type[Params]
    run: str
    env: str = "engine"
    outputs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    needs: Callable[[Any], Needs] = _no_needs
    deletes: bool = False


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` without the secrets, as they are and as JSON has them; the longest first, for one may hold another."""
    forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "[secret]")
    return text


class Context:
    """A tool's line to the engine: where it works, and what it reports.

    `root` is the folder that relative paths start from (the process's current folder); `folder` is this attempt's
    own; `scratch`, for progress checkpoints, is kept from one attempt to the next while the fingerprint is the same.
    `protected` maps each path that must not be deleted to the reason (only for a tool that deletes).
    """

    def __init__(self, request: Mapping[str, Any], secrets: Collection[str] = ()) -> None:
        self.task: str = request["task"]
        self.attempt: int = request["attempt"]
        self.root = Path(request["root"])
        self.folder = Path(request["folder"])
        self.scratch = Path(request["scratch"])
        self.fingerprint: str = request["fingerprint"]
        self.outputs: dict[str, Path] = {name: Path(path) for name, path in request["outputs"].items()}
        self.protected: dict[str, str] = request.get("protected", {})
        self.stop_requested = False
        self._secrets = secrets
        self._events = (self.folder / "events.jsonl").open("a", encoding="utf-8", buffering=1)
        self._last_progress_s = 0.0

    def close(self) -> None:
        """No more will be reported."""
        with contextlib.suppress(OSError):
            self._events.close()

    def _event(self, kind: str, **data: Any) -> None:
        line = self.hidden(json.dumps({"t": time.time(), "type": kind, **data}))
        with contextlib.suppress(OSError):  # a full disk costs the report, not the task
            self._events.write(line + "\n")

    def hidden(self, text: str) -> str:
        """`text` without the secrets of the plan."""
        return redacted(text, self._secrets)

    def progress(self, done: int, total: int, *, unit: str = "") -> None:
        """Report that `done` of `total` units are done; at most ten reports a second are kept, and always the last."""
        now = time.monotonic()
        if done < total and now - self._last_progress_s < 0.1:
            return
        self._last_progress_s = now
        self._event("progress", done=done, total=total, unit=unit)

    def metric(self, **values: float) -> None:
        """Report numbers of this moment, for example `loss=2.1, step=300`."""
        self._event("metric", values=values)

    def say(self, text: str) -> None:
        """Put one line into the log and the events."""
        with contextlib.suppress(OSError):
            print(text, flush=True)  # noqa: T201 - a worker's stdout is its log
        self._event("say", text=text)

    def catch_stop(self) -> None:
        """From now on SIGTERM and SIGINT only set `stop_requested`, for a tool that calls `stop_point` in its loop."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.stop_requested = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def stop_point(self, save: Callable[[], None] | None = None) -> None:
        """Raise Interrupted if a stop was asked for, after `save()` has kept the progress."""
        if self.stop_requested:
            if save:
                save()
            raise Interrupted("stopped as asked, progress kept")
