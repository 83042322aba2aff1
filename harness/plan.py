"""The models of a plan: tasks, decisions, retries, and the steps that they resolve to."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from harness.contract import Tool

Priority = Literal["high", "medium", "low"]
OnInterrupt = Literal["stop", "detach"]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


def seconds(value: object) -> object:
    """`90`, "90s", "30m", "2h", "1h30m" or "2d" as seconds; anything else is handed on for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", value.strip())
    if not match or not value.strip():
        raise ValueError("a duration is seconds or like 90s, 30m, 2h, 1h30m, 2d")
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + rest


Pause = Annotated[float, BeforeValidator(seconds), Field(ge=0, allow_inf_nan=False, description="seconds")]
Duration = Annotated[float, BeforeValidator(seconds), Field(gt=0, allow_inf_nan=False, description="seconds")]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Cause = Literal["oom", "timeout", "stalled", "signal", "exit", "error", "fault", "disk", "start", "output"]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


class Rule(Model):
    """What to do after failures of one kind; every condition that is given has to hold.

    `log` is searched for in the last lines of the log. `count`, `backoff` stand in place of those of `retries`, where
    a count of 0 means never again; `with` sets parameters of the next try, `scale` multiplies them.
    """

    cause: Cause | None = None
    exit_codes: list[int] = []
    log: Annotated[str, AfterValidator(_regex)] | None = None
    count: int | None = Field(default=None, ge=0, le=100)
    backoff_s: Pause | None = Field(default=None, alias="backoff")
    with_: dict[str, Any] = Field(default={}, alias="with")
    scale: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if self.cause is None and not self.exit_codes and self.log is None:
            raise ValueError("a rule says when it holds, by cause, exit_codes or log")
        return self


class Retries(Model):
    """Try a failed task again `count` times, waiting `backoff_s`, then twice that, and so on up to `backoff_max_s`.

    Of `rules` the first that fits the failure counts.
    """

    count: int = Field(default=0, ge=0, le=100)
    backoff_s: Pause = Field(default=5.0, alias="backoff")
    backoff_max_s: Pause = Field(default=600.0, alias="backoff_max")
    rules: tuple[Rule, ...] = ()


class Option(Model):
    """One answer to a decision, and what it would mean."""

    key: Name
    title: str = ""
    consequence: str = ""


def _distinct(options: list[Option]) -> list[Option]:
    keys = [option.key for option in options]
    if len(set(keys)) < len(keys):
        raise ValueError("two options have the same key")
    return options


def _among(recommended: str | None, info: ValidationInfo) -> str | None:
    keys = [option.key for option in info.data.get("options", [])]
    if recommended is not None and keys and recommended not in keys:
        raise ValueError(f"no option has this key, only {', '.join(keys)} do")
    return recommended


class Decision(Model):
    """A question that a person answers with `harness decide`; the tasks that need it wait for the answer."""

    question: str
    options: Annotated[list[Option], Field(min_length=2), AfterValidator(_distinct)]
    recommended: Annotated[Name | None, AfterValidator(_among)] = None


class Task(Model):
    """One todo item. A task has a tool, or a decision, or (in a draft) neither."""

    id: Name
    content: str = Field(min_length=1)
    priority: Priority = "medium"
    needs: list[Name] = []
    tool: str | None = None
    with_: dict[str, Any] = Field(default={}, alias="with")
    outputs: dict[Name, str] = {}
    decision: Decision | None = None
    retries: Retries = Retries()
    timeout_s: Duration | None = Field(default=None, alias="timeout")
    stall_s: Duration | None = Field(default=None, alias="stall_timeout")  # without any progress
    on_interrupt: OnInterrupt | None = None  # else the plan's
    when: str | None = None
    env: str | None = None
    note: str = ""  # kept from an imported todo list, for example an agent's claim that it is done


class Secret(Model):
    """Where a value comes from that nothing may keep: a variable of the environment, or a file."""

    env: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret comes from env or from file, and from one of them")
        return self


class Plan(Model):
    """A todo list with dependencies and priorities. `count`, where stated, must equal the number of tasks."""

    name: Name
    content: str = ""
    count: Annotated[int, Field(strict=True)] | None = None
    vars: dict[Name, str | int | float | bool] = {}
    envs: dict[Name, str] = {}
    secrets: dict[Name, Secret] = {}
    grace_s: Duration = 30.0  # between asking a task to stop and killing it
    on_interrupt: OnInterrupt = "stop"
    tasks: list[Task] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Step:
    """A task, resolved as far as it can be before anything runs.

    `needs` holds the explicit ones and those that references imply; `params` is `with` after substitution, where the
    names in `deferred` still refer to values that are known only at run time; `outputs` and `inputs` are paths
    relative to the root.
    """

    task: Task
    needs: tuple[str, ...]
    tool: Tool | None
    params: dict[str, Any]
    outputs: dict[str, str]
    inputs: tuple[str, ...]
    deferred: frozenset[str]


@dataclass(frozen=True)
class LoadedPlan:
    """A valid plan with its steps in plan order; `digest` is the SHA-256 of the file's bytes."""

    plan: Plan
    path: Path
    digest: str
    steps: dict[str, Step]
