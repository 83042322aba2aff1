"""Whether a task's completion checkpoint still holds, and if not, why."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from harness import files, fingerprint, references
from harness.contract import Params, ToolError
from harness.errors import StoreError
from harness.plan import Step
from harness.references import Reference
from harness.state import Checkpoint
from harness.store import Store


@cache
def defaults(model: type[Params]) -> dict[str, Any]:
    """The values of those parameters that have a default, as JSON has them: a tuple is a list."""
    empty = model.model_construct()
    fields = [name for name, field in model.model_fields.items() if not field.is_required()]
    return {name: json.loads(json.dumps(getattr(empty, name))) for name in fields}


def checked_params(step: Step, params: Mapping[str, Any]) -> Params:
    """The parameters as the tool's model. Raises ToolError where a value known only now doesn't fit."""
    assert step.tool is not None
    try:
        return step.tool.params.model_validate(params)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ToolError(f"parameter '{name}': {first['msg']}", found=repr(first["input"])) from error


@dataclass(frozen=True, slots=True)
class Appraisal:
    """What a task would run with now, and why its checkpoint doesn't hold (None: it holds)."""

    params: dict[str, Any]
    parts: dict[str, Any]
    fingerprint: str
    stale: str | None


class Known(Protocol):
    """What is known of tasks, by id: completion checkpoints, answers to decisions, parameters that retries changed."""

    checkpoints: dict[str, Checkpoint]
    choices: dict[str, str]
    changes: dict[str, dict[str, Any]]


class Appraiser:
    """Compares steps with their checkpoints; it sees every later change of what is `known`."""

    def __init__(self, steps: Mapping[str, Step], root: Path, store: Store, *, known: Known) -> None:
        self.steps, self.root, self.store = steps, root, store
        self.checkpoints, self.choices, self.changes = known.checkpoints, known.choices, known.changes

    def value(self, task: str, name: str) -> Any:
        """The value of `${tasks.<task>.outputs.<name>}` now; None where the task was skipped or made no such value."""
        if name == "choice" and task in self.choices:
            return self.choices[task]
        path = self.steps[task].outputs.get(name)
        if path is not None:
            return path
        checkpoint = self.checkpoints.get(task)
        return checkpoint.values.get(name) if checkpoint else None

    def filled(self, reference: Reference) -> Any:
        """What a reference in a text stands for now."""
        return reference if reference.task is None else self.value(reference.task, reference.name)

    def wanted(self, step: Step) -> bool:
        """Whether the step's `when` holds. Raises ToolError when it compares what can't be compared."""
        when = step.task.when
        try:
            return when is None or references.evaluate(when, self.value)
        except TypeError as error:
            raise ToolError(f"'when' can't be decided: {error}", found=f"'{when}'") from error

    def params(self, step: Step) -> dict[str, Any]:
        """The step's parameters with every reference replaced and defaults filled in."""
        assert step.tool is not None
        params = references.resolve(step.params, self.value) if step.deferred else step.params
        for name in step.deferred:
            if params.get(name) is None:
                raise ToolError(
                    f"parameter '{name}' refers to a value that was never made",
                    found=f"'{step.params[name]}'",
                    do="The task that should make it was skipped",
                )
        changed = self.changes.get(step.task.id)
        if changed and changed["base"] == files.digest_json(step.params):  # else the plan itself says something new
            params = {**params, **changed["with"]}
        return {**defaults(step.tool.params), **params}

    def appraise(self, step: Step) -> Appraisal:
        """Appraise a step whose needs are all settled."""
        params = self.params(step)
        upstream = {need: self.checkpoints[need] for need in step.needs if need in self.checkpoints}
        parts = fingerprint.parts(step, params, self._input_digests(step), upstream)
        checkpoint = self.checkpoints.get(step.task.id)
        held = {}
        if checkpoint:
            held = {
                name: name in checkpoint.freed or _holds(os.path.join(self.root, step.outputs[name]), seal)  # noqa: PTH118 - see files.stamp
                for name, seal in checkpoint.seals.items()
                if name in step.outputs
            }
        now = fingerprint.fingerprint(parts)
        changed = None
        if checkpoint and checkpoint.fingerprint != now:
            name, attempt = step.task.id, checkpoint.attempt
            changed = lambda: fingerprint.difference(self.store.parts(name, attempt), parts)  # noqa: E731
        return Appraisal(params, parts, now, fingerprint.staleness(step, checkpoint, held, changed=changed))

    def freed_needs(self, step: Step) -> dict[str, str]:
        """The needs of `step` whose outputs were freed on purpose and are wanted again, with the reason."""
        found = {}
        for need in step.needs:
            checkpoint = self.checkpoints.get(need)
            for name, by in (checkpoint.freed if checkpoint else {}).items():
                path = self.steps[need].outputs.get(name)
                if path and any(path in text for text in references.strings(step.params)):
                    found[need] = f"output '{name}' was freed by '{by}' and is needed again by '{step.task.id}'"
        return found

    def _input_digests(self, step: Step) -> dict[str, str]:
        """Digests of the step's inputs that no upstream step makes; "missing" where nothing is there."""
        if not step.inputs:
            return {}
        made = [Path(path) for need in step.needs for path in self.steps[need].outputs.values()]
        digests = {}
        for name in step.inputs:
            path = Path(name)
            if any(path == output or output in path.parents for output in made):
                continue
            digests[name] = self._digest(self.root / path)
        return digests

    def _digest(self, path: Path) -> str:
        """The digest of an input. Raises ToolError where it can't be read."""
        try:
            now = files.stamp(path)
            if now is None:
                return "missing"
            known = self.store.seen_digest(str(path), now)
            if known is None:
                known = files.seal(path).digest
        except OSError as error:
            raise ToolError("an input can't be read", found=f"'{error.filename or path}': {error.strerror}") from error
        with contextlib.suppress(StoreError):  # a full disk costs reading it once more
            self.store.remember_digest(str(path), now, known)
        return known


def _holds(path: str, seal: files.Seal) -> bool:
    """Whether an output is what was sealed; one that can't be read isn't."""
    try:
        return files.holds(path, seal)
    except OSError:
        return False
