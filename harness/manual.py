"""What `harness tools` tells of the tools: parameters, needs, outputs and values."""

from collections.abc import Sequence
from typing import Any

from harness.contract import Tool


def index(tools: Sequence[Tool]) -> list[str]:
    """One line a tool."""
    width = max(len(tool.name) for tool in tools)
    return [f"{tool.name:<{width}}  {tool.summary}" for tool in tools]


def page(tool: Tool) -> list[str]:
    """All about one tool."""
    lines = [f"{tool.name} (version {tool.version}, environment '{tool.env}')", f"  {tool.summary}", "", "with:"]
    for name, about in _parameters(tool):
        lines.append(f"  {name}: {about}")
    for title, entries in (("outputs", tool.outputs), ("values", tool.values)):
        if entries:
            lines += ["", f"{title}:", *(f"  {name}: {about}" for name, about in entries.items())]
    return lines


def _parameters(tool: Tool) -> list[tuple[str, str]]:
    """Name and one-line description of each parameter."""
    found = []
    for name, field in tool.params.model_fields.items():
        kind = getattr(field.annotation, "__name__", None) if not _is_union(field.annotation) else None
        kind = kind or str(field.annotation).replace("typing.", "")
        default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
        found.append((name, f"{kind}, {default}" + (f". {field.description}" if field.description else "")))
    return found


def _is_union(annotation: Any) -> bool:
    return hasattr(annotation, "__args__")


def document(tool: Tool) -> dict[str, Any]:
    """The tool as JSON data, its parameters as a JSON schema."""
    return {
        "name": tool.name,
        "version": tool.version,
        "summary": tool.summary,
        "env": tool.env,
        "parameters": tool.params.model_json_schema(),
        "outputs": dict(tool.outputs),
        "values": dict(tool.values),
    }
