"""Answers of the target itself, turn by turn, each kept as soon as it is there."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.chat import Chat, TemplateError
from eagle3.conversations import Conversation
from eagle3.target import Target
from harness.contract import digest_json


@dataclass(frozen=True)
class Limits:
    """How long an answer and a whole talk may get, in tokens, and how answers are drawn."""

    max_length: int
    max_new_tokens: int
    temperature: float
    seed: int
    batch_size: int


@dataclass
class Talk:
    """A conversation in the making: `ids` and `mask` are exactly what the target has read and said."""

    questions: list[list[dict[str, str]]]
    messages: list[dict[str, str]] = field(default_factory=list)
    text: str = ""
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turn: int = 0
    dropped: str = ""  # why nothing can be learnt from it

    def ask(self, chat: Chat, max_length: int) -> bool:
        """Put the next question. False when there is none, when it doesn't fit, or when it would change the past."""
        if self.turn == len(self.questions):
            return False
        asked = [*self.messages, *self.questions[self.turn]]
        try:
            text = chat.text(asked, answer_next=True)
        except TemplateError as error:
            self.dropped = self.dropped or f"refused by the template ({error})"
            return False
        new = chat.ids(text.removeprefix(self.text)) if text.startswith(self.text) else []
        if not new or len(self.ids) + len(new) >= max_length:
            self.dropped = "" if self.turn else "prompt too long"
            return False
        self.messages, self.text = asked, text
        self.ids += new
        self.mask += [False] * len(new)
        return True

    def hear(self, answer: list[int], target: Target) -> None:
        """Take in the target's answer, its stop token included."""
        said = answer[:-1] if answer[-1] in target.stop_ids else answer
        content, whole = (
            target.tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for part in (said, answer)
        )
        self.ids += answer
        self.mask += [True] * len(answer)
        self.text += whole
        self.messages.append({"role": "assistant", "content": content})
        self.turn += 1
        if not said and self.turn == 1:
            self.dropped = "empty answer"

    def record(self) -> dict[str, Any]:
        if self.dropped:
            return {"dropped": self.dropped}
        return {"ids": self.ids, "mask": [int(bit) for bit in self.mask], "messages": self.messages}


def answered(
    conversations: Sequence[Conversation], target: Target, chat: Chat, *, limits: Limits, kept: Path
) -> Iterator[dict[str, Any]]:
    """The record of each conversation in order, {"ids", "mask", "messages"} or {"dropped"}.

    Records are kept in the file `kept` and read from there first, so a second call goes on at the next conversation.
    Batches are cut at the same places every time: beside other rows, logits may round otherwise.
    """
    done = _kept_records(kept)
    yield from done
    count = len(done)
    with kept.open("ab") as file:
        for start in range(count - count % limits.batch_size, len(conversations), limits.batch_size):
            batch = conversations[start : start + limits.batch_size]
            records = [talk.record() for talk in _talks(batch, target, chat, limits)]
            for record in records[max(0, count - start) :]:
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            yield from records[max(0, count - start) :]


def _kept_records(kept: Path) -> list[dict[str, Any]]:
    """Records kept so far; a last line that was cut off by a kill is cut off the file too."""
    if not kept.exists():
        return []
    content = kept.read_bytes()
    whole = content.rfind(b"\n") + 1
    os.truncate(kept, whole)
    return [json.loads(line) for line in content[:whole].splitlines()]


def _talks(batch: Sequence[Conversation], target: Target, chat: Chat, limits: Limits) -> list[Talk]:
    """Hold the conversations of one batch, all first turns together, then all second turns, and so on."""
    talks = [Talk(conversation.questions) for conversation in batch]
    while asked := [talk for talk in talks if not talk.dropped and talk.ask(chat, limits.max_length)]:
        answers = target.generate(
            [talk.ids for talk in asked],
            max_new_tokens=[min(limits.max_new_tokens, limits.max_length - len(talk.ids)) for talk in asked],
            temperature=limits.temperature,
            seeds=[int(digest_json([limits.seed, talk.messages])[:15], 16) for talk in asked],
        )
        for talk, answer in zip(asked, answers, strict=True):
            talk.hear(answer, target)
    return talks
