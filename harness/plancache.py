"""Big plans as they were resolved, kept so that an unchanged file is not read and checked again."""

import contextlib
import gc
import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.contract import Tool
from harness.errors import NotFoundError
from harness.files import digest_json, write_text
from harness.paths import Root
from harness.plan import LoadedPlan, Plan, Step, Task

FORMAT = 2
MIN_BYTES = 64 * 1024  # a smaller plan is read anew in a few hundredths of a second
TASKS = TypeAdapter(list[Task])


def load(path: Path, tools: Mapping[str, Tool], root: Root) -> LoadedPlan:
    """What planfile.load returns and raises, a big plan from what was kept below the root if nothing has changed."""
    with _uncollected():
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        if size < MIN_BYTES:
            return _read(path, tools)
        kept = root.kept_plan(path.absolute())
        try:
            found = from_json(kept.read_text(encoding="utf-8"), tools)
            if found and found.path == path.absolute() and found.digest == _digest(path):
                return found
        except (OSError, UnicodeDecodeError):
            pass  # nothing kept, or nothing readable
        loaded = _read(path, tools)
        with contextlib.suppress(OSError):  # a read-only or full disk only costs the time
            write_text(kept, to_json(loaded, tools))
        return loaded


def _read(path: Path, tools: Mapping[str, Tool]) -> LoadedPlan:
    from harness import planfile  # noqa: PLC0415 - a kept plan needn't pay for the reading of YAML

    return planfile.load(path, tools)


def to_json(loaded: LoadedPlan, tools: Mapping[str, Tool]) -> str:
    """The plan in four lines: what has to be unchanged, then plan, tasks and steps."""
    steps = loaded.steps.values()
    used = sorted({step.tool.name for step in steps if step.tool})
    head = {
        "tools": used,
        "identity": _identity([tools[name] for name in used]),
        "path": str(loaded.path),
        "digest": loaded.digest,
    }
    plan = loaded.plan.model_dump(by_alias=True, exclude_defaults=True, exclude={"tasks"})
    tasks = TASKS.dump_python([step.task for step in steps], by_alias=True, exclude_defaults=True)
    rest = [
        [step.needs, step.tool and step.tool.name, step.params, step.outputs, step.inputs, sorted(step.deferred)]
        for step in steps
    ]
    return "\n".join(json.dumps(part, ensure_ascii=False) for part in (head, plan, tasks, rest))


def from_json(text: str, tools: Mapping[str, Tool]) -> LoadedPlan | None:
    """The plan that `to_json` wrote, or None when it was written for other tools or can't be read."""
    try:
        head_line, plan_line, tasks_line, steps_line = text.split("\n")
        head = json.loads(head_line)
        if head["identity"] != _identity([tools[name] for name in head["tools"]]):
            return None
        tasks = TASKS.validate_json(tasks_line)
        plan = Plan.model_validate({**json.loads(plan_line), "tasks": tasks})
        steps = {
            task.id: Step(
                task, tuple(needs), tools[tool] if tool else None, params, outputs, tuple(inputs), frozenset(late)
            )
            for task, (needs, tool, params, outputs, inputs, late) in zip(tasks, json.loads(steps_line), strict=True)
        }
        return LoadedPlan(plan, Path(head["path"]), head["digest"], steps)
    except (ValueError, KeyError, TypeError):
        return None


def _identity(tools: Collection[Tool]) -> str:
    """Changes with all that a resolved plan depends on but its file: us, Python, the tools and their parameters."""
    ours = [_stamp(path) for path in sorted(Path(__file__).parent.glob("*.py"))]
    theirs = [
        [tool.name, tool.version, tool.env, dict(tool.outputs), list(tool.values), tool.inputs, _sources(tool.params)]
        for tool in tools
    ]
    return digest_json([FORMAT, sys.version, ours, theirs])


def _sources(params: type[Any]) -> list[list[Any]]:
    """The parameter model and its bases, each with what its source file looks like."""
    found = []
    for model in params.__mro__:
        file = getattr(sys.modules.get(model.__module__), "__file__", None)
        found.append([model.__module__, model.__qualname__, *(_stamp(Path(file)) if file else [])])
    return found


def _stamp(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_size, status.st_mtime_ns]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NotFoundError("the plan file can't be read", found=f"'{path}': {error.strerror}") from error


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: it would look at all the new objects time and again, and find none to free."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
