"""Conversations in JSONL: OpenAI messages, ShareGPT conversations, or plain text as a prompt."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contract import ToolError

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
}
SHOWN_MISTAKES = 20


@dataclass(frozen=True)
class Conversation:
    """Messages {"role", "content"} of user, assistant and system, and where they came from."""

    id: str
    source: str  # file:line
    messages: list[dict[str, str]]

    @property
    def questions(self) -> list[list[dict[str, str]]]:
        """What stands before each answer, in order; the last may have none. Only what isn't the assistant's."""
        groups: list[list[dict[str, str]]] = [[]]
        for message in self.messages:
            if message["role"] != "assistant":
                groups[-1].append(message)
            elif groups[-1]:
                groups.append([])
        return [group for group in groups if group]

    @property
    def has_answer(self) -> bool:
        return any(message["role"] == "assistant" for message in self.messages)


@dataclass(frozen=True)
class BadLine:
    """A line that is no conversation."""

    source: str
    what: str

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


def read_conversations(path: Path | str) -> Iterator[Conversation | BadLine]:
    """Each line of the JSONL file `path` in order; blank lines count but say nothing.

    A line is {"messages": [{"role", "content"}]}, {"conversations": [{"from", "value"}]}, {"text": …}, {"prompt": …}
    or a JSON string; the last three are a user's single message. Raises ToolError when the file can't be read.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                source = f"{path}:{number}"
                try:
                    value = json.loads(line.strip())
                    identity = value.get("id") if isinstance(value, dict) else None
                    yield Conversation(str(identity or f"{Path(path).name}:{number}"), source, _messages(value))
                except json.JSONDecodeError as error:
                    yield BadLine(source, f"not JSON ({error.msg}, column {error.colno})")
                except UnicodeDecodeError as error:
                    yield BadLine(source, f"not UTF-8 at byte {error.start}")
                except ValueError as error:
                    yield BadLine(source, str(error))
    except OSError as error:
        raise ToolError("can't be read", where=str(path), found=error.strerror or "") from None


def _messages(value: Any) -> list[dict[str, str]]:
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} where an object is wanted")
    if "messages" in value:
        return _turns(value["messages"], "role", "content")
    if "conversations" in value:
        return _turns(value["conversations"], "from", "value")
    for key in ("text", "prompt"):
        if key in value:
            return [{"role": "user", "content": _content(value[key], f"'{key}'")}]
    keys = ", ".join(f"'{key}'" for key in list(value)[:6]) or "nothing"
    raise ValueError(f"none of 'messages', 'conversations', 'text' and 'prompt'; found {keys}")


def _turns(turns: Any, role_key: str, content_key: str) -> list[dict[str, str]]:
    if not isinstance(turns, list) or not turns:
        raise ValueError("a conversation is a list with at least one message")
    messages = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise ValueError(f"message {number} is a {type(turn).__name__} where an object is wanted")
        role = ROLES.get(str(turn.get(role_key)).lower())
        if role is None:
            raise ValueError(f"message {number} has the unknown {role_key} {turn.get(role_key)!r}")
        messages.append({"role": role, "content": _content(turn.get(content_key), f"message {number}")})
    return messages


def _content(value: Any, where: str) -> str:
    """Text, or the joined text of OpenAI's content parts."""
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
        value = "".join(str(part.get("text", "")) for part in value)
    if not isinstance(value, str):
        raise ValueError(f"{where} is not text but {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{where} is empty")
    if not value.isascii():
        value.encode()  # half a surrogate pair is no text; UnicodeEncodeError is a ValueError
    return value


def refuse(bad: list[BadLine]) -> None:
    """Raise ToolError naming bad lines, if there are any."""
    if bad:
        shown = "".join(f"\n  {line}" for line in bad[:SHOWN_MISTAKES])
        more = f"\n  and {len(bad) - SHOWN_MISTAKES} more" if len(bad) > SHOWN_MISTAKES else ""
        raise ToolError(
            f"{len(bad)} line{'s' * (len(bad) != 1)} can't be read as a conversation",
            found=f"{shown}{more}",
            do='Mend them, or leave them out with bad_lines: "drop".',
        )
