"""What an ended attempt amounts to: completed, failed or interrupted, the cause, and the reason in one line."""

import errno
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.errors import WORKER_INTERRUPTED
from harness.plan import Cause, Step, Task
from harness.state import State, Verdict

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
LACKS_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|database or disk is full"
    r"|PytorchStreamWriter failed writing"
)
LACKS_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|\bMemoryError\b"
    r"|std::bad_alloc|Cannot allocate memory|can't allocate memory|[Oo]ut of memory"
)
Result = dict[str, Any]


class Said(BaseModel):
    """What a command may write to $HARNESS_RESULT; seals and deletions are not for it to tell."""

    values: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """`result` is what the tool returned: values, metrics, note, freed, seals. `cause` is None unless it failed."""

    state: State
    reason: str = ""
    result: Result = field(default_factory=dict)
    cause: Cause | None = None


@dataclass(frozen=True)
class Ended:
    """An attempt that ended well and whose outputs are being sealed."""

    step: Step
    verdict: Verdict
    outcome: Outcome


def judge(verdict: Verdict, result: Result | None, log_tail: list[str], task: Task) -> Outcome:
    """Judge an attempt from the shim's verdict, the worker's result (None: it left none) and its last log lines."""
    if verdict.stop == "timeout":
        return Outcome(State.FAILED, f"stopped at its time limit{_of(task.timeout_s)}", cause="timeout")
    if verdict.stop == "stalled":
        reason = f"stopped: it made no progress{_of(task.stall_s, 'for')}; its log has the stacks"
        return Outcome(State.FAILED, reason, cause="stalled")
    if verdict.exit_code == 0:
        if result is None and task.tool != "shell":
            return Outcome(State.FAILED, "its process ended well, but without a result", cause="fault")
        if task.tool != "shell":
            return Outcome(State.COMPLETED, result=result or {})
        return _of_shell(result or {})
    if verdict.stop or verdict.exit_code == WORKER_INTERRUPTED:
        return Outcome(State.INTERRUPTED, "stopped as asked")
    reason = _reason(verdict, result, log_tail)
    return Outcome(State.FAILED, reason, cause=_cause(verdict, result, [reason, *log_tail]))


def _of_shell(result: Result) -> Outcome:
    """What a command wrote into its result counts only as far as a command may say it."""
    try:
        said = Said.model_validate(result)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"what it wrote to $HARNESS_RESULT doesn't fit: {where}: {first['msg']}"
        return Outcome(State.FAILED, reason, cause="output")
    return Outcome(State.COMPLETED, result=said.model_dump())


def _of(limit_s: float | None, word: str = "of") -> str:
    return f" {word} {limit_s:g} s" if limit_s else ""


def _reason(verdict: Verdict, result: Result | None, log_tail: list[str]) -> str:
    if verdict.error:
        return f"could not be started: {verdict.error}"
    if error := (result or {}).get("error"):
        return sentence(error)
    peak = f"peak memory {verdict.peak_rss_bytes / 2**30:.2f} GiB"
    if verdict.oom_kills:
        return f"killed by the kernel, which had run out of memory ({peak})"
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "")
    cause = f"exit code {verdict.exit_code}"
    if verdict.signal:
        cause = f"killed by {signal_name(verdict.signal)}"
    if verdict.signal == signal.SIGKILL:
        cause += f" ({peak}; the kernel tells of no lack of memory)"
    return f"{cause}: {last}" if last else cause


def _cause(verdict: Verdict, result: Result | None, lines: list[str]) -> Cause:
    """Of what kind a failure is. What the system says counts before what the task says."""
    error = (result or {}).get("error") or {}
    if verdict.errno in NO_ROOM or error.get("code") == "disk":
        return "disk"
    if verdict.oom_kills or error.get("code") == "oom":
        return "oom"
    if verdict.error:
        return "start"
    if error.get("code") == "task_failed":  # the tool knows what was wrong
        return "error"
    said = "\n".join(lines)
    if LACKS_ROOM.search(said):
        return "disk"
    if LACKS_MEMORY.search(said):
        return "oom"
    if verdict.signal:
        return "signal"
    return "fault" if error else "exit"


def sentence(error: dict[str, str]) -> str:
    """The parts of an error that a worker reported, as one line."""
    parts = [f"{error['where']}: {error['what']}" if error.get("where") else error["what"]]
    if error.get("found"):
        parts.append(f"found {error['found']}")
    line = "; ".join(parts)
    return f"{line}. {error['do']}" if error.get("do") else line


def signal_name(number: int) -> str:
    """The name of a signal, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
