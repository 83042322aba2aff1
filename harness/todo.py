"""Todo lists as agents write them, as the tasks of a plan."""

import re
from typing import Any


def is_list(value: Any) -> bool:
    """Whether this is a todo list: a list of items with `content`, or {"todos": such a list}."""
    items = value.get("todos") if isinstance(value, dict) and "tasks" not in value else value
    return isinstance(items, list)


def as_plan(value: Any, name: str) -> dict[str, Any]:
    """The todo list as a plan's content. What an item claims of its status becomes its note, never a state."""
    items = value["todos"] if isinstance(value, dict) else value
    rest = {key: field for key, field in value.items() if key != "todos"} if isinstance(value, dict) else {}
    taken = {str(item["id"]) for item in items if isinstance(item, dict) and "id" in item}
    return {
        "name": re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "todo",
        **rest,
        "tasks": [_task(item, taken) if isinstance(item, dict) else item for item in items],
    }


def _task(item: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    task = {key: field for key, field in item.items() if key not in {"status", "activeForm"}}
    status = item.get("status")
    if status not in (None, "pending"):
        task["note"] = f"claimed {status}"
    if "id" not in task:
        task["id"] = _name(str(item.get("content", "")), taken)
    elif isinstance(task["id"], int):
        task["id"] = str(task["id"])
    return task


def _name(content: str, taken: set[str]) -> str:
    """An id from an item's sentence: its first words, with a number where that is taken."""
    words = re.findall(r"[a-z0-9]+", content.lower())[:5]
    stem = "-".join(words)[:48].strip("-") or "item"
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    taken.add(name)
    return name
