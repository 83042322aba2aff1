"""The tools that plans can name: our generic ones and those of installed packs."""

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness import generic
from harness.contract import Tool
from harness.errors import NotFoundError, UsageError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "harness.tools"
OURS = {tool.name: tool for tool in generic.TOOLS}
# What somebody else's module may raise when it is imported, pydantic's and syntax errors among them.
BROKEN = (
    ImportError,
    AttributeError,
    TypeError,
    ValueError,
    NameError,
    SyntaxError,
    LookupError,
    OSError,
    RuntimeError,
)


class Catalog(Mapping[str, Tool]):
    """Every tool by name. The packs are loaded when one of our own tools is not what is asked for."""

    def __getitem__(self, name: str) -> Tool:
        return OURS[name] if name in OURS else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Tool]:
        return _every_tool()


def tools() -> Catalog:
    """The catalog. Whoever looks into it may get a UsageError that names a pack which can't be used."""
    return Catalog()


def _every_tool() -> dict[str, Tool]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - costs more than all our own tools

    found = dict(OURS)
    owners = dict.fromkeys(found, "harness itself")
    for pack in entry_points(group=GROUP):
        for tool in _load(pack):
            if tool.name in found:
                raise UsageError(
                    f"two tools are called '{tool.name}'", found=f"in {owners[tool.name]} and in pack '{pack.name}'"
                )
            found[tool.name], owners[tool.name] = tool, f"pack '{pack.name}'"
    return found


def _load(pack: "EntryPoint") -> list[Tool]:
    try:
        content = list(pack.load())
    except BROKEN as error:
        found = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"tool pack '{pack.name}' can't be loaded", found=found, do="Install it anew, or uninstall it"
        ) from error
    wrong = next((each for each in content if not isinstance(each, Tool)), None)
    if wrong is not None:
        raise UsageError(f"tool pack '{pack.name}' holds something that is no tool", found=repr(wrong))
    return content


def unknown_tool(name: str, known: Mapping[str, Tool]) -> NotFoundError:
    """The error for a tool that doesn't exist."""
    return NotFoundError(f"'{name}' is no tool", do=nearest(name, known) or "See: harness tools")


def package_folders(tool: Tool) -> dict[str, Path]:
    """The top-level packages that the tool's worker imports, by name: harness and the tool's own pack."""
    found = {}
    for name in dict.fromkeys(("harness", tool.run.split(".")[0], tool.params.__module__.split(".")[0])):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = Path(next(iter(spec.submodule_search_locations)))
    return found
