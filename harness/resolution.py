"""Resolves the tasks of a plan to steps: references, implied needs, parameters, outputs."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from harness import order, references, validation
from harness.contract import Tool
from harness.errors import nearest
from harness.plan import Step, Task
from harness.references import Reference

Place = tuple[str | int, ...]
SHELL = "shell"  # the one tool whose parameters become a command line


class Reporter(Protocol):
    """Where mistakes go, by their path in the document."""

    def mistake(self, path: Place, what: str, *, found: str = "", do: str = "") -> None: ...


@dataclass(frozen=True)
class Scope:
    """What tasks may refer to beside each other: the plan's variables with their values, secrets and environments."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    secrets: Collection[str] = ()
    envs: Collection[str] = ()


class Resolver:
    """Resolves tasks, each with its place in the file; `doubtful` are ids of tasks that have mistakes of their own."""

    def __init__(
        self, reporter: Reporter, scope: Scope, tools: Mapping[str, Tool], *, doubtful: Collection[str] = ()
    ) -> None:
        self.reporter, self.scope, self.tools, self.doubtful = reporter, scope, tools, doubtful
        self.tasks: dict[str, Task] = {}
        self.places: dict[str, Place] = {}
        self.resolved: dict[str, Step] = {}

    def steps(self, tasks: list[tuple[Task, int]]) -> dict[str, Step]:
        """The steps in plan order. Complete only if no mistake was reported."""
        doubles = []
        for task, position in tasks:
            if task.id in self.tasks:
                doubles.append((task, ("tasks", position)))
            else:
                self.tasks[task.id], self.places[task.id] = task, ("tasks", position)
        needs = {name: self._needs(task, self.places[name]) for name, task in self.tasks.items()}
        while looped := order.cycle(needs):
            path = " -> ".join(looped)
            place = (*self.places[looped[0]], "needs")
            self.reporter.mistake(place, "the tasks need each other in a circle", found=path)
            for name in set(looped):  # cut it, to find what else is wrong
                needs[name] = tuple(need for need in needs[name] if need not in looped)
        for name in order.prerequisites_first(needs):
            self.resolved[name] = self._step(self.tasks[name], needs[name], self.places[name])
        for task, place in doubles:
            self._step(task, self._needs(task, place), place)
        self._distinct_outputs()
        return {name: self.resolved[name] for name in self.tasks}

    # -- needs and references ---------------------------------------------------------------------------------------

    def _needs(self, task: Task, place: Place) -> tuple[str, ...]:
        """The task's needs, explicit and implied; those that don't exist are reported and left out."""
        found: dict[str, None] = {}
        for index, need in enumerate(task.needs):
            if need == task.id:
                self.reporter.mistake((*place, "needs", index), f"task '{task.id}' needs itself")
            elif need in self.tasks:
                found[need] = None
            elif need not in self.doubtful:
                do = nearest(need, self.tasks)
                self.reporter.mistake(
                    (*place, "needs", index), f"task '{task.id}' needs '{need}', which is no task", do=do
                )
        texts = task.decision.model_dump() if task.decision else None
        for value in (task.content, task.with_, task.outputs, task.when, texts):
            for reference in _references(value):
                if reference.task in self.tasks and reference.task != task.id:
                    found[str(reference.task)] = None
        return tuple(found)

    def _substituted(self, value: Any, place: Place) -> Any:
        """`value` with variables and paths put in, every wrong reference reported at the value that holds it."""
        if isinstance(value, Mapping):
            return {
                str(self._substituted(key, (*place, key, "key"))): self._substituted(item, (*place, key))
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._substituted(item, (*place, index)) for index, item in enumerate(value)]
        if isinstance(value, str) and "${" not in value:
            return value
        try:
            return references.substitute(value, lambda reference: self._replacement(reference, place))
        except ValueError as error:
            self.reporter.mistake(place, str(error))
            return value

    def _replacement(self, reference: Reference, place: Place) -> Any:
        """What a reference stands for, or itself while that is known only at run time."""
        if reference.task is None:
            return self._of_the_plan(reference, place)
        if reference.task in self.doubtful:
            return reference
        if reference.task not in self.tasks:
            do = nearest(reference.task, self.tasks)
            self.reporter.mistake(place, f"'{reference.text}' refers to '{reference.task}', which is no task", do=do)
            return reference
        step = self.resolved.get(reference.task)
        if step is None:  # itself, or in a circle, and that is reported already
            if place[:2] == self.places[reference.task]:
                self.reporter.mistake(place, f"'{reference.text}' refers to the task that it stands in")
            return reference
        if reference.name in step.outputs:
            return step.outputs[reference.name]
        if step.tool is not None and reference.name in step.tool.outputs:
            return reference  # its parameters are wrong, and that is reported there
        known = _run_time_values(step)
        if known is not None and reference.name not in known:
            names = [*step.outputs, *known]
            self.reporter.mistake(
                place,
                f"'{reference.text}': task '{reference.task}' has no output '{reference.name}'",
                found=f"outputs {', '.join(names)}" if names else "no outputs",
                do=nearest(reference.name, names),
            )
        return reference

    def _of_the_plan(self, reference: Reference, place: Place) -> Any:
        """What a variable stands for; a secret stays as it is."""
        if reference.secret:
            self._check_secret(reference, place)
        elif reference.name in self.scope.variables:
            return self.scope.variables[reference.name]
        else:
            do = nearest(reference.name, self.scope.variables)
            self.reporter.mistake(place, f"'{reference.text}' refers to no variable of the plan", do=do)
        return reference

    def _check_secret(self, reference: Reference, place: Place) -> None:
        """A secret has to exist, and may stand only where its value is seen by nobody but the task."""
        if reference.name not in self.scope.secrets:
            do = nearest(reference.name, self.scope.secrets)
            self.reporter.mistake(place, f"'{reference.text}' refers to no secret of the plan", do=do)
        elif place[2:3] != ("with",):
            self.reporter.mistake(place, f"'{reference.text}' would be seen here", do="Use it in a parameter only")
        elif self._tool_name(place) == SHELL and place[3:4] != ("env",):
            what = f"'{reference.text}' would be seen by everybody who lists processes"
            self.reporter.mistake(place, what, do="Put it into the command's env, and use $NAME")

    def _tool_name(self, place: Place) -> str | None:
        return next((task.tool for name, task in self.tasks.items() if self.places[name] == place[:2]), None)

    # -- one task ---------------------------------------------------------------------------------------------------

    def _step(self, task: Task, needs: tuple[str, ...], place: Place) -> Step:
        tool = self._tool(task, place)
        params = self._substituted(task.with_, (*place, "with"))
        deferred = frozenset(name for name, value in params.items() if any(each.task for each in _references(value)))
        outputs: dict[str, str] = {}
        inputs: tuple[str, ...] = ()
        if tool is not None:
            full = {**_defaults(tool.params), **params}
            if self._fits(tool, params, deferred, place=(*place, "with")):
                outputs = {name: _path(template.format_map(full)) for name, template in tool.outputs.items()}
                inputs = tuple(_path(path) for name in tool.inputs for path in _paths(full.get(name)))
            self._check_rules(task, tool, place, full=full)
        elif task.with_ and task.tool is None:
            self.reporter.mistake((*place, "with"), f"task '{task.id}' has parameters but no tool")
        declared = self._substituted(dict(task.outputs), (*place, "outputs"))
        outputs.update({name: _path(path) for name, path in declared.items()})
        self._check_outputs(outputs, task, place)
        task = task.model_copy(update=self._texts(task, place))
        return Step(task, needs, tool, params, outputs, inputs, deferred)

    def _check_rules(self, task: Task, tool: Tool, place: Place, *, full: Mapping[str, Any]) -> None:
        """The parameters that a rule for retries changes have to be the tool's."""
        for index, rule in enumerate(task.retries.rules):
            for key, changes in (("with", rule.with_), ("scale", rule.scale)):
                for name in changes:
                    at = (*place, "retries", "rules", index, key, name, "key")
                    if name not in tool.params.model_fields:
                        do = nearest(name, tool.params.model_fields)
                        self.reporter.mistake(at, f"tool '{tool.name}' has no parameter '{name}'", do=do)
                    elif key == "scale" and not _may_scale(full.get(name)):
                        what = f"parameter '{name}' is no number that could be scaled"
                        self.reporter.mistake(at, what, found=validation.shown(full.get(name)))

    def _tool(self, task: Task, place: Place) -> Tool | None:
        if task.env is not None and task.env not in {
            "engine",
            *self.scope.envs,
            *(tool.env for tool in self.tools.values()),
        }:
            do = nearest(task.env, self.scope.envs)
            self.reporter.mistake((*place, "env"), f"'{task.env}' is no environment of the plan", do=do)
        if task.tool is None:
            return None
        if task.decision is not None:
            self.reporter.mistake((*place, "decision"), f"task '{task.id}' has both a tool and a decision")
        if task.tool not in self.tools:
            do = nearest(task.tool, self.tools)
            self.reporter.mistake((*place, "tool"), f"'{task.tool}' is no tool", do=do or "See: harness tools")
            return None
        return self.tools[task.tool]

    def _fits(self, tool: Tool, params: Mapping[str, Any], deferred: Collection[str], *, place: Place) -> bool:
        """Whether the parameters fit the tool's model, those apart that are known only at run time."""
        try:
            tool.params.model_validate(params)
        except ValidationError as error:
            found = validation.faults(error, tool.params, params, name=tool.name)
            wrong = [fault for fault in found if not fault.path or fault.path[0] not in deferred]
            for fault in wrong:
                self.reporter.mistake((*place, *fault.path), fault.what, found=fault.found, do=fault.do)
            return not wrong
        return True

    def _check_outputs(self, outputs: Mapping[str, str], task: Task, place: Place) -> None:
        """No output's path may wait for a value, or be a folder that holds the whole project."""
        for name, path in outputs.items():
            at = _output_place(task, name, place)
            late = next((each for each in _references(path) if self._is_late(each)), None)
            if late:
                what = f"the path of output '{name}' has to be known before anything runs"
                self.reporter.mistake(at, what, found=f"'{late.text}'", do="Use a variable or the path of an output")
            elif any(each.secret for each in _references(path)):
                self.reporter.mistake(
                    at, f"the path of output '{name}' holds a secret", do="Everybody can see it there"
                )
            elif set(path.split("/")) <= {".", "..", ""}:
                what = f"output '{name}' would be the folder that holds everything"
                self.reporter.mistake(at, what, found=f"'{path}'", do="Give it a path of its own")

    def _texts(self, task: Task, place: Place) -> dict[str, Any]:
        """The sentence, the question and the condition with variables put in."""
        changed: dict[str, Any] = {"content": self._substituted(task.content, (*place, "content"))}
        if task.decision is not None:
            texts = self._substituted(task.decision.model_dump(), (*place, "decision"))
            changed["decision"] = task.decision.model_validate(texts)
        if task.when is not None:

            def quoted(reference: Reference) -> Any:
                found = self._replacement(reference, (*place, "when"))
                return found if isinstance(found, Reference) else repr(found)

            try:
                references.condition(task.when)
                changed["when"] = references.substitute(task.when, quoted)
            except ValueError as error:
                self.reporter.mistake((*place, "when"), str(error))
        return changed

    def _is_late(self, reference: Reference) -> bool:
        """Whether the reference is to a value that its task makes while it runs."""
        step = self.resolved.get(reference.task or "")
        if step is None or step.task.id in self.doubtful:
            return False
        known = _run_time_values(step)
        return known is None or reference.name in known

    def _distinct_outputs(self) -> None:
        """No output may be, or lie inside, another task's output."""
        owners = {
            path: (name, output)
            for name, step in reversed(self.resolved.items())
            for output, path in step.outputs.items()
        }
        for name, step in self.resolved.items():
            for output, path in step.outputs.items():
                for candidate in (path, *_above(path)):
                    other, their = owners.get(candidate, (name, output))
                    if other != name:
                        what = f"output '{output}' of '{name}' is or lies inside output '{their}' of '{other}'"
                        at = _output_place(step.task, output, self.places[name])
                        self.reporter.mistake(at, what, found=f"'{path}'", do="Give each its own path")
                        break


def _may_scale(value: Any) -> bool:
    """Whether a parameter is a number, or may turn out to be one."""
    return (isinstance(value, int | float) and not isinstance(value, bool)) or bool(_references(value))


def _output_place(task: Task, output: str, place: Place) -> Place:
    """Where the file says the output's path: itself, or the parameters that it is made of."""
    return (*place, "outputs", output) if output in task.outputs else (*place, "with")


def _references(value: Any) -> list[Reference]:
    """References inside `value`; none where one is malformed, which substitution reports."""
    try:
        return references.find(value)
    except ValueError:
        return []


def _run_time_values(step: Step) -> list[str] | None:
    """Names of the values that a step makes while it runs; None when any name may be one."""
    if step.task.decision:
        return ["choice"]
    if step.tool is None:
        return []
    return None if "*" in step.tool.values else list(step.tool.values)


@cache
def _defaults(params: type[BaseModel]) -> dict[str, Any]:
    """The parameters that have defaults, by name; pydantic inspects each factory anew, so it is asked once."""
    fields = params.model_fields.items()
    return {name: field.get_default(call_default_factory=True) for name, field in fields if not field.is_required()}


def _paths(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _path(text: str) -> str:
    return os.path.normpath(text)


def _above(path: str) -> list[str]:
    """The folders above a path."""
    found = []
    while (parent := os.path.dirname(path)) and parent != path:  # noqa: PTH120 - strings, ten thousand of them
        found.append(parent)
        path = parent
    return found
