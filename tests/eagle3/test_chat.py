"""The loss mask covers what the assistant says and nothing else, whatever the template looks like."""

from typing import Any

import pytest
from workshop import TEMPLATE

from eagle3.chat import Chat, TemplateError, open_chat
from eagle3.target import Target
from harness.errors import ToolError

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
INSTRUCT = (
    "{% for m in messages %}{% if m.role == 'user' %}[Q] {{ m.content }} [/Q]"
    "{% else %} {{ m.content }}<|end|>{% endif %}{% endfor %}"
)
# thoughts are shown in the last answer only, and the head of an answer may open them
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</t>')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPENING = TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><t>{% endif %}")
TALK = [
    {"role": "system", "content": "Be quick."},
    {"role": "user", "content": "the quick fox?"},
    {"role": "assistant", "content": "  a lazy dog\n"},
    {"role": "user", "content": "while seven wizards?"},
    {"role": "assistant", "content": "mix straße 🦊 potions"},
]


@pytest.fixture
def tokenizer(target: Target) -> Any:
    """The target's tokenizer, its template put back afterwards."""
    yield target.tokenizer
    target.tokenizer.chat_template = TEMPLATE


def chat_of(tokenizer: Any, template: str) -> Chat:
    tokenizer.chat_template = template
    return open_chat(tokenizer, [tokenizer.eos_token_id], "a model")


def learnt(chat: Chat, talk: list[dict[str, str]]) -> str:
    """The text under the mask, a bar between separate stretches."""
    ids, mask = chat.encode(talk)
    stretches: list[list[int]] = [[]]
    for token, bit in zip(ids, mask, strict=True):
        if bit:
            stretches[-1].append(token)
        elif stretches[-1]:
            stretches.append([])
    return "¦".join(chat.tokenizer.decode(stretch) for stretch in stretches if stretch)


@pytest.mark.parametrize("template", [TEMPLATE, CHATML])
def test_every_answer_is_learnt_to_its_end_of_turn_and_no_further(tokenizer: Any, template: str) -> None:
    assert learnt(chat_of(tokenizer, template), TALK) == "  a lazy dog\n<|end|>¦mix straße 🦊 potions<|end|>"


def test_a_template_without_a_head_for_the_assistant_works_too(tokenizer: Any) -> None:
    talk = [message for message in TALK if message["role"] != "system"]
    assert learnt(chat_of(tokenizer, INSTRUCT), talk) == "   a lazy dog\n<|end|>¦ mix straße 🦊 potions<|end|>"


@pytest.mark.parametrize("template", [TEMPLATE, CHATML, INSTRUCT])
def test_the_ids_are_those_of_the_rendered_talk(tokenizer: Any, template: str) -> None:
    chat = chat_of(tokenizer, template)
    talk = TALK[1:]
    ids, mask = chat.encode(talk)
    assert len(ids) == len(mask)
    assert tokenizer.decode(ids) == chat.text(talk)


def test_an_answer_that_the_template_rewrites_later_carries_no_loss(tokenizer: Any) -> None:
    talk = [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "hm</t>yes"},
        {"role": "user", "content": "two?"},
        {"role": "assistant", "content": "well</t>no"},
    ]
    assert learnt(chat_of(tokenizer, THINKING), talk) == "well</t>no<|end|>"


def test_a_head_that_opens_thoughts_is_not_demanded_of_answers_without_them(tokenizer: Any) -> None:
    assert learnt(chat_of(tokenizer, OPENING), TALK) == "  a lazy dog\n<|end|>¦mix straße 🦊 potions<|end|>"


def test_what_comes_after_the_last_answer_is_left_out(tokenizer: Any) -> None:
    chat = chat_of(tokenizer, TEMPLATE)
    assert chat.encode([*TALK, {"role": "user", "content": "more?"}]) == chat.encode(TALK)


def test_a_talk_without_answer_has_nothing_to_learn(tokenizer: Any) -> None:
    assert chat_of(tokenizer, TEMPLATE).encode(TALK[:2]) == ([], [])


def test_the_prompt_is_what_stands_before_the_first_learnt_token(tokenizer: Any) -> None:
    chat = chat_of(tokenizer, CHATML)
    ids, mask = chat.encode(TALK[:3])
    assert chat.prompt_ids(TALK[:3]) == chat.prompt_ids(TALK[:2]) == ids[: mask.index(True)]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "all-zero"),
        ("{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}", "all-one"),
        ("{% for m in messages %}{{ m.content | upper }}{{ messages | length }}{% endfor %}", "all-zero"),
        ("{{ raise_exception('never') }}", "fails on a plain talk.*never"),
        ("", "no chat template"),
    ],
)
def test_a_template_that_gives_no_mask_is_refused(tokenizer: Any, template: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        chat_of(tokenizer, template)


def test_a_talk_that_the_template_refuses_says_why(tokenizer: Any) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + TEMPLATE
    with pytest.raises(TemplateError, match="no system turn"):
        chat_of(tokenizer, strict).encode(TALK)


def test_the_digest_follows_the_template(tokenizer: Any) -> None:
    assert chat_of(tokenizer, CHATML).digest != chat_of(tokenizer, TEMPLATE).digest
