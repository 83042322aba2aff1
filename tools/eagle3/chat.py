"""A model's own chat template: prompts, and token ids with a loss mask on what the assistant said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.contract import ToolError, digest_json

Message = dict[str, str]  # {"role": ..., "content": ...}

PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "A first question?"},
    {"role": "assistant", "content": "A first answer."},
    {"role": "user", "content": "Another question?"},
    {"role": "assistant", "content": "Another answer."},
)


class TemplateError(Exception):
    """The template refuses a conversation, for example because of its order of roles."""


@dataclass(frozen=True)
class Chat:
    """The chat template of a tokenizer; made by `open_chat`."""

    tokenizer: Any
    stop_ids: frozenset[int]

    @property
    def digest(self) -> str:
        return digest_json(self.tokenizer.chat_template)

    def text(self, messages: Sequence[Message], *, answer_next: bool = False) -> str:
        """The conversation as text, with the head of the assistant's next turn if `answer_next`."""
        from jinja2.exceptions import TemplateError as JinjaError  # noqa: PLC0415 - only the train environment has it

        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=answer_next
            )
        except JinjaError as error:
            raise TemplateError(str(error)) from None
        return text

    def ids(self, text: str) -> list[int]:
        """Token ids of rendered text; the template has put the special tokens in already."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of what the target reads before it answers: `messages` without a last answer."""
        asked = list(messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages)
        return self.ids(self.text(asked, answer_next=True))

    def encode(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Token ids and loss mask, both of length T, of a conversation up to its last answer.

        True on the tokens that the assistant itself says, its end-of-turn token included, nothing after it.
        All false if there is no answer. What is read and what is said are tokenised apart, as in serving, where no
        token reaches from the prompt into the answer. Raises TemplateError.
        """
        end = max((i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
        full = self.text(messages[:end]) if end else ""
        ids: list[int] = []
        mask: list[bool] = []
        done = 0
        for start, stop in self._spans(messages[:end], full):
            said = self.ids(full[start:stop])
            last = max((i for i, token in enumerate(said) if token in self.stop_ids), default=len(said))
            heard = self.ids(full[done:start])
            ids += heard + said
            mask += [False] * len(heard) + [i <= last for i in range(len(said))]
            done = stop
        rest = self.ids(full[done:])
        return ids + rest, mask + [False] * len(rest)

    def _spans(self, messages: Sequence[Message], full: str) -> list[tuple[int, int]]:
        """Where in `full` each answer stands, in characters.

        An answer is what the conversation up to it adds to the conversation before it, rendered with the head of an
        assistant's turn. A template that shows an answer otherwise once the talk has gone on (thinking left out) gets
        no loss there: at that place the model would have said something else.
        """
        spans = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.text(messages[:i], answer_next=True)
            if not full.startswith(before):  # the head holds more than an answer without thinking shows
                if not full.startswith(self.text(messages[:i])):
                    continue
                before = _common(full, before)
            upto = self.text(messages[: i + 1])
            if full.startswith(upto):
                spans.append((len(before), len(upto)))
        return spans


def _common(one: str, other: str) -> str:
    """What both begin with."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return one[:length]


def open_chat(tokenizer: Any, stop_ids: Sequence[int], where: str) -> Chat:
    """The chat of `tokenizer`, tried on a short talk.

    Raises ToolError when the template is missing, or when its loss mask would be all zero or all one: a drafter would
    train on nothing, or on the questions, and nobody would be told.
    """
    do = "Give a model whose chat template renders turn after turn."
    if not tokenizer.chat_template:
        raise ToolError("the tokenizer has no chat template", where=where, do=do)
    chat = Chat(tokenizer, frozenset(stop_ids))
    try:
        ids, mask = chat.encode(PROBE)
    except TemplateError as error:
        raise ToolError("the chat template fails on a plain talk", where=where, found=f"'{error}'", do=do) from None
    back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if back != chat.text(PROBE):
        raise ToolError("the tokenizer doesn't keep text that it is given in parts", where=where, found=repr(back))
    if not any(mask) or all(mask):
        word = "zero" if not any(mask) else "one"
        found = f"{len(ids)} tokens for {len(PROBE)} messages"
        raise ToolError(f"the chat template gives an all-{word} loss mask", where=where, found=found, do=do)
    return chat
