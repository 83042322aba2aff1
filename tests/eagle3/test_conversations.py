"""Conversations of three kinds are read alike; a bad line is named with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.conversations import BadLine, Conversation, read_conversations, refuse
from harness.errors import ToolError

ASKED = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]


def read(path: Path, *lines: Any) -> list[Conversation | BadLine]:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return list(read_conversations(path))


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ({"messages": ASKED, "extra": 1}, ASKED),
        ({"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]}, ASKED),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]}]},
            ASKED[:1],
        ),
        ({"text": "a?"}, ASKED[:1]),
        ({"prompt": "a?"}, ASKED[:1]),
        ("a?", ASKED[:1]),
    ],
)
def test_each_form_of_a_conversation_is_read(tmp_path: Path, line: Any, messages: list[dict[str, str]]) -> None:
    [found] = read(tmp_path / "x.jsonl", line)
    assert isinstance(found, Conversation)
    assert found.messages == messages


def test_a_conversation_knows_its_own_id_or_is_named_by_its_line(tmp_path: Path) -> None:
    named, unnamed = read(tmp_path / "x.jsonl", {"id": "q7", "text": "a"}, {"text": "b"})
    assert isinstance(named, Conversation)
    assert isinstance(unnamed, Conversation)
    assert (named.id, unnamed.id, unnamed.source) == ("q7", "x.jsonl:2", f"{tmp_path}/x.jsonl:2")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "a', r"not JSON \(Unterminated string.*, column 10\)"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 10"),
        (b'{"text": "\\ud800"}', "surrogates not allowed"),
        ([1], "a list where an object is wanted"),
        (7, "a int where an object is wanted"),
        ({"mesages": []}, "none of 'messages'.* found 'mesages'"),
        ({}, "found nothing"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["a"]}, "message 1 is a str"),
        ({"messages": [*ASKED, {"role": "wizard", "content": "x"}]}, "message 3 has the unknown role 'wizard'"),
        ({"messages": [{"role": "user"}]}, "message 1 is not text but NoneType"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "message 1 is not text but list"),
        ({"text": "  "}, "'text' is empty"),
    ],
)
def test_a_bad_line_is_named_and_the_next_one_still_read(tmp_path: Path, line: Any, what: str) -> None:
    first, bad, last = read(tmp_path / "x.jsonl", "one", line, "three")
    assert isinstance(bad, BadLine)
    assert bad.source == f"{tmp_path}/x.jsonl:2"
    with pytest.raises(ToolError, match=f"1 line can't be read as a conversation; found \n  {bad.source}: .*{what}"):
        refuse([bad])
    assert isinstance(first, Conversation)
    assert isinstance(last, Conversation)


def test_blank_lines_count_but_say_nothing(tmp_path: Path) -> None:
    [found] = read(tmp_path / "x.jsonl", b"", b"  \r", "a")
    assert found.source.endswith(":3")


def test_a_thousand_bad_lines_are_told_in_twenty(tmp_path: Path) -> None:
    bad = [line for line in read(tmp_path / "x.jsonl", *[{}] * 1000) if isinstance(line, BadLine)]
    with pytest.raises(ToolError, match=r"1000 lines(?s:.*)x.jsonl:20: (?s:.*)and 980 more") as caught:
        refuse(bad)
    assert "x.jsonl:21:" not in str(caught.value)


def test_no_bad_lines_are_no_error() -> None:
    refuse([])


def test_a_missing_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"none.jsonl: can't be read; found No such file"):
        list(read_conversations(tmp_path / "none.jsonl"))


def test_questions_are_what_stands_before_each_answer() -> None:
    user, assistant, system = ({"role": role, "content": "x"} for role in ("user", "assistant", "system"))
    talk = Conversation("i", "s", [assistant, system, user, assistant, assistant, user, user])
    assert talk.questions == [[system, user], [user, user]]
    assert Conversation("i", "s", [assistant]).questions == []
