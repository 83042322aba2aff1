"""Reads a plan file, YAML or a todo list in JSON, and tells every mistake in it at once."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness import document, todo, validation
from harness.contract import Tool
from harness.document import Document
from harness.errors import Mistake, NotFoundError, PlanError
from harness.plan import LoadedPlan, Plan, Task
from harness.resolution import Resolver, Scope
from harness.validation import shown

SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def load(path: Path, tools: Mapping[str, Tool]) -> LoadedPlan:
    """Read, check and resolve a plan. Raises PlanError with every mistake, NotFoundError when there is no file."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("there is no such plan file", found=f"'{path}'") from None
    except IsADirectoryError:
        raise NotFoundError("a plan is a file, this is a folder", found=f"'{path}'") from None
    except OSError as error:
        raise NotFoundError("the plan file can't be read", found=f"'{path}': {error.strerror}") from error
    file = _File(str(path), content)
    plan = file.plan(path.stem)
    if plan is None or file.mistakes:
        file.check_resolution(tools)
        raise PlanError(file.mistakes)
    steps = file.resolve(plan, tools)
    if file.mistakes:
        raise PlanError(file.mistakes)
    plan = plan.model_copy(update={"tasks": [step.task for step in steps.values()]})  # with variables put in
    return LoadedPlan(plan, path.absolute(), hashlib.sha256(content).hexdigest(), steps)


M = TypeVar("M", bound=BaseModel)


class _File:
    """One plan file on its way to a plan, with the mistakes met so far."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.mistakes: list[Mistake] = []
        self.tasks: list[Task | None] = []
        self.mended: set[str] = set()  # tasks of which only what is right was kept
        self.above_items: document.Path | None = None  # where a todo list has its items, when the file is one
        self.document = self._read(content)

    def mistake(self, path: document.Path, what: str, *, found: str = "", do: str = "") -> None:
        """Note a mistake at the place of `path`."""
        if self.above_items is not None and path[:1] == ("tasks",):
            path = (*self.above_items, *path[1:])
        line, column = self.document.place(path)
        self.mistakes.append(Mistake(self.name, line, column, what, found, do))

    def _read(self, content: bytes) -> Document:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - content.rfind(b"\n", 0, error.start)
            self.mistakes.append(Mistake(self.name, line, column, "not UTF-8", f"byte 0x{content[error.start]:02x}"))
            return Document(None)
        read = document.read(_as_yaml(text) if self.name.endswith(".json") else text)
        self.mistakes += [Mistake(self.name, each.line, each.column, each.what, do=each.do) for each in read.problems]
        return read

    def plan(self, stem: str) -> Plan | None:
        """The plan as a model, or None when it has mistakes; every task is looked at."""
        value = self.document.value
        if todo.is_list(value):
            self.above_items = ("todos",) if isinstance(value, dict) else ()
            value = todo.as_plan(value, stem)
        if value is None:
            if not self.mistakes:
                self.mistake((), "the file is empty", do="A plan has a name and tasks")
            return None
        if not isinstance(value, dict):
            self.mistake((), "a plan is a mapping with a name and tasks", found=shown(value))
            return None
        tasks = value.get("tasks")
        if not isinstance(tasks, list):
            self._validated(Plan, value, ())
            return None
        self.tasks = [self._task(task, ("tasks", place)) for place, task in enumerate(tasks)]
        count = value.get("count")
        if isinstance(count, int) and count != len(tasks):
            more = "the file may be cut off" if len(tasks) < count else "correct the count"
            self.mistake(
                ("count",), f"the plan says that it has {count} tasks", found=str(len(tasks)), do=more.capitalize()
            )
        self._distinct_ids()
        rest = {key: item for key, item in value.items() if key != "tasks"}
        sound = [task for task in self.tasks if task is not None]
        placeholder = sound[:1] or [Task(id="x", content="x")]
        plan = self._validated(Plan, {**rest, "tasks": placeholder if tasks else []}, ())
        self.scope = Scope(plan.vars, plan.secrets, plan.envs) if plan else Scope()
        return None if plan is None else plan.model_copy(update={"tasks": sound})

    def _task(self, value: Any, path: document.Path) -> Task | None:
        """A task; of one with mistakes what is right, so that the rest of it can still be checked."""
        if not isinstance(value, dict):
            self.mistake(path, "a task is a mapping with id and content", found=shown(value))
            return None
        task = self._validated(Task, value, path)
        if task is not None:
            return task
        try:
            Task.model_validate(value)
        except ValidationError as error:
            wrong = {str(each["loc"][0]) for each in error.errors() if each["loc"]}
            mended = _or_none({"content": "?", **{key: item for key, item in value.items() if key not in wrong}})
            self.mended |= {mended.id} if mended else set()
            return mended
        return None

    def _distinct_ids(self) -> None:
        first: dict[str, int] = {}
        for place, task in enumerate(self.tasks):
            if task is None:
                continue
            if task.id in first:
                line = self.document.place(("tasks", first[task.id], "id"))[0]
                self.mistake(("tasks", place, "id"), f"task '{task.id}' stands twice, first in line {line}")
            else:
                first[task.id] = place

    def _validated(self, model: type[M], value: Any, path: document.Path) -> M | None:
        """`value` as `model`; pydantic's errors become mistakes."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            name = "task" if model is Task else "plan"
            for fault in validation.faults(error, model, value, name=name):
                self.mistake((*path, *fault.path), fault.what, found=fault.found, do=fault.do)
            return None

    def resolve(self, plan: Plan, tools: Mapping[str, Tool]) -> dict[str, Any]:
        """The steps of a plan whose tasks are sound in themselves; what doesn't fit together becomes mistakes."""
        return Resolver(self, self.scope, tools).steps([(task, place) for place, task in enumerate(plan.tasks)])

    def check_resolution(self, tools: Mapping[str, Tool]) -> None:
        """Look for the other mistakes of a plan that has some already, among the tasks that are sound."""
        if not self.tasks:
            return
        sound = [(task, place) for place, task in enumerate(self.tasks) if task is not None]
        ids = {task.id for task, _ in sound}
        raw = self.document.value.get("tasks", []) if isinstance(self.document.value, dict) else []
        broken = {str(each.get("id")) for each in raw if isinstance(each, dict)} - ids
        Resolver(self, self.scope, tools, doubtful=broken | self.mended).steps(sound)


def _or_none(value: dict[str, Any]) -> Task | None:
    try:
        return Task.model_validate(value)
    except ValidationError:
        return None


def _as_yaml(text: str) -> str:
    """JSON as YAML can read it, every character in its place but for those behind a surrogate pair in a line.

    JSON may be indented with tabs, and writes 🚀 as \\ud83d\\ude80.
    """

    def joined(match: re.Match[str]) -> str:
        high, low = (int(part, 16) for part in match.groups())
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"

    return SURROGATES.sub(joined, text.replace("\t", " "))
