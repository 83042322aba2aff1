"""A plan of one task, from a tool's name and command line options."""

from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from harness import planfile
from harness.contract import Tool
from harness.errors import UsageError
from harness.files import write_json
from harness.paths import Root
from harness.plan import LoadedPlan
from harness.store import Store


def plan_of(tool: Tool, arguments: Sequence[str], root: Root) -> LoadedPlan:
    """Write and load the plan `tool-NAME` whose only task runs the tool with `--name value` arguments, afresh.

    Raises UsageError for arguments that are no options, PlanError for parameters that the tool doesn't take.
    """
    name = f"tool-{tool.name}"
    paths = root.plan(name)
    content = {"name": name, "tasks": [{"id": tool.name, "content": tool.summary, "tool": tool.name, "with": {}}]}
    content["tasks"][0]["with"] = options(arguments)  # type: ignore[index]
    file = paths.folder / "plan.yaml"  # JSON is YAML
    write_json(file, content)
    loaded = planfile.load(file, {tool.name: tool})
    with Store(paths) as store:
        if tool.name in store.records():
            store.forget(tool.name)
    return loaded


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value` and `--flag` as a dict; values are read as YAML scalars or lists."""
    found: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise UsageError("a tool's parameters are options", found=f"'{word}'", do="Write --name value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            text = pending.pop(0) if pending and not pending[0].startswith("--") else "true"
        try:
            found[name.replace("-", "_")] = YAML(typ="safe", pure=True).load(text)
        except YAMLError as error:
            raise UsageError(f"the value of '--{name}' can't be read", found=f"'{text}'") from error
    return found
