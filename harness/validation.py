"""Pydantic's errors in the words of a plan file, one for each thing that is wrong."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from harness.errors import nearest
from harness.plan import NAME_PATTERN

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing wrong; `path` leads to it from the value that was validated, "key" at its end to a mapping's key."""

    path: Path
    what: str
    found: str = ""
    do: str = ""


def faults(error: ValidationError, model: type[BaseModel], value: Any, *, name: str) -> list[Fault]:
    """The faults of `value`, which is called `name` itself and was to be a `model`.

    Pydantic tells of a union once for each of its members: here the member that got furthest speaks, or all as one.
    """
    found: list[Fault] = []
    unions: dict[Path, list[tuple[Path, Any]]] = {}
    for each in error.errors():
        path, union = _path(each, value)
        if union is None:
            found.append(_fault(each, path, model, name))
        else:
            unions.setdefault(union, []).append((path, each))
    for members in unions.values():
        furthest = max(len(path) for path, _ in members)
        best = {path: each for path, each in reversed(members) if len(path) == furthest}
        faulty = [_fault(each, path, model, name) for path, each in best.items()]
        same = [_said(each) for path, each in members if path in best]
        if len(faulty) == 1 and len(same) > 1:
            path, each = next(iter(best.items()))
            what = " or ".join(dict.fromkeys(text.removeprefix("input should be ") for text in same))
            faulty = [Fault(path, f"'{_name(path, name)}': input should be {what}", shown(each["input"]))]
        found.extend(faulty)
    return found


def shown(value: Any) -> str:
    """A value as an error shows it, short."""
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'}"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _path(error: Any, value: Any) -> tuple[Path, Path | None]:
    """Where the error is in `value`, and the place of the union that it is about, if it is about one.

    Pydantic puts the names of union members among the keys; what `value` doesn't hold is such a name.
    """
    path: list[str | int] = []
    union = None
    for position, step in enumerate(error["loc"], 1):
        held = isinstance(value, Mapping) and step in value
        if held or (isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)):
            path.append(step)
            value = value[step]
        elif step == "[key]":
            path.append("key")
        elif error["type"] == "missing" and position == len(error["loc"]):
            path.append(step)
        elif union is None:
            union = tuple(path)
    return tuple(path), union


def _fault(error: Any, path: Path, model: type[BaseModel], name: str) -> Fault:
    last = _name(path, name)
    if error["type"] == "extra_forbidden":
        return Fault((*path, "key"), f"unknown key '{last}'", do=nearest(last, _names(model, path[:-1])))
    if error["type"] == "missing":
        return Fault(path[:-1], f"'{last}' is missing")
    return Fault(path, f"'{last}': {_said(error)}", shown(error["input"]) if path else "")


def _name(path: Path, whole: str) -> str:
    """What stands at the end of the path, as people call it: a key, or "layers[1]" for an item of a list."""
    if path[-1:] == ("key",) and len(path) > 1:
        path = path[:-1]
    start = next((place for place in range(len(path) - 1, -1, -1) if isinstance(path[place], str)), None)
    key = whole if start is None else str(path[start])
    return key + "".join(f"[{place}]" for place in path[0 if start is None else start + 1 :])


def _said(error: Any) -> str:
    if error.get("ctx", {}).get("pattern") == NAME_PATTERN:
        return "only letters, digits, - and _ can stand in a name, 64 at most"
    what = error["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return f"{what[:1].lower()}{what[1:]}"


def _names(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that may stand at `path` in a value of `model`."""
    for step in path:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if isinstance(step, str) and step in fields:
            inner = next(_models(fields[step].annotation), None)
            if inner is None:
                return []
            model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
