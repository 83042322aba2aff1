"""Reads, orders and tokenises conversations, and says what was dropped and why."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from eagle3.chat import Chat, TemplateError, open_chat
from eagle3.conversations import BadLine, Conversation, read_conversations, refuse
from eagle3.prepare.answers import Limits, answered
from eagle3.prepare.spec import PrepareParams
from eagle3.samples import Sample, SampleSet, write_samples
from eagle3.target import load_target
from eagle3.tokenizer import load_tokenizer, stop_ids, tokenizer_fingerprint
from harness.contract import Context, Result, ToolError, digest_json, writing


@dataclass
class Account:
    """What became of the lines of the source."""

    lines: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cut: int = 0

    def __str__(self) -> str:
        parts = [f"{count} {reason}" for reason, count in sorted(self.dropped.items())]
        return f"{self.lines} lines, dropped: {', '.join(parts) or 'none'}; cut at the length limit: {self.cut}"


def main(params: PrepareParams, context: Context) -> Result:
    """Write the sample set and the conversations held out."""
    torch.set_num_threads(params.threads)
    context.catch_stop()
    account = Account()
    conversations = _ordered(_read(params, account), params, account)
    tokenizer = load_tokenizer(params.target)
    chat = open_chat(tokenizer, stop_ids(params.target, tokenizer), params.target)
    heldout, rest = _hold_out(conversations, chat, params, account)
    facts: dict[str, Any] = {"answers": params.answers, "template_digest": chat.digest}
    if params.answers == "keep":
        found = _kept(rest, chat, params, account)
    else:
        found = _regenerated(rest, chat, params, context=context, facts=facts, account=account)
    samples: list[Sample] = []
    while len(samples) < params.num_samples and (sample := next(found, None)):
        samples.append(sample)
        context.progress(len(samples), params.num_samples, unit="samples")
        context.stop_point()
    context.say(f"asks for {params.num_samples} samples, has {len(samples)}; {len(heldout)} held out; {account}")
    _check_shortage(len(samples), len(heldout), params, account)
    facts |= {"asked_for": params.num_samples, "num_lines": account.lines, "num_heldout": len(heldout)}
    facts |= {"dropped": dict(account.dropped), "num_cut": account.cut}
    with writing(context.outputs["heldout"]) as path, path.open("w", encoding="utf-8") as file:
        for talk in heldout:
            line = {"id": talk.id, "source": talk.source, "messages": talk.messages}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    written = write_samples(
        context.outputs["samples"],
        samples,
        tokenizer_fingerprint=tokenizer_fingerprint(params.target),
        max_length=params.max_length,
        facts=facts,
    )
    return _result(written, params, account)


def _read(params: PrepareParams, account: Account) -> list[Conversation]:
    sources = [params.source] if isinstance(params.source, str) else params.source
    good: list[Conversation] = []
    bad: list[BadLine] = []
    for source in sources:
        for line in read_conversations(source):
            if isinstance(line, BadLine):
                bad.append(line)
            else:
                good.append(line)
    account.lines = len(good) + len(bad)
    if params.bad_lines == "fail":
        refuse(bad)
    account.dropped.update(["bad line"] * len(bad))
    return good


def _ordered(conversations: list[Conversation], params: PrepareParams, account: Account) -> list[Conversation]:
    """Those with something to learn, once each, in an order drawn from the seed that added lines don't shuffle."""
    regenerate = params.answers == "regenerate"
    unique: dict[str, Conversation] = {}
    for talk in conversations:
        if not talk.questions:
            account.dropped["no question"] += 1
        elif not regenerate and not talk.has_answer:
            account.dropped["no answer"] += 1
        else:
            key = digest_json([params.seed, talk.questions if regenerate else talk.messages])
            if key in unique:
                account.dropped["duplicate"] += 1
            unique.setdefault(key, talk)
    return [unique[key] for key in sorted(unique)]


def _hold_out(
    conversations: list[Conversation], chat: Chat, params: PrepareParams, account: Account
) -> tuple[list[Conversation], list[Conversation]]:
    """The first conversations whose first question can be asked, and those that come after them."""
    heldout: list[Conversation] = []
    for place, talk in enumerate(conversations):
        if len(heldout) == params.heldout:
            return heldout, conversations[place:]
        try:
            fits = len(chat.prompt_ids(talk.questions[0])) < params.max_length
        except TemplateError as error:
            account.dropped[f"refused by the template ({error})"] += 1
            continue
        if fits:
            heldout.append(talk)
        else:
            account.dropped["prompt too long"] += 1
    return heldout, []


def _kept(conversations: list[Conversation], chat: Chat, params: PrepareParams, account: Account) -> Iterator[Sample]:
    for talk in conversations:
        try:
            ids, mask = chat.encode(talk.messages)
        except TemplateError as error:
            account.dropped[f"refused by the template ({error})"] += 1
            continue
        if not any(mask[: params.max_length]):
            account.dropped["prompt too long" if any(mask) else "no answer that the template keeps"] += 1
            continue
        account.cut += len(ids) > params.max_length
        yield Sample(talk.id, talk.source, ids[: params.max_length], mask[: params.max_length])


def _regenerated(
    conversations: list[Conversation],
    chat: Chat,
    params: PrepareParams,
    *,
    context: Context,
    facts: dict[str, Any],
    account: Account,
) -> Iterator[Sample]:
    target = load_target(params.target)
    facts |= {"target_fingerprint": target.fingerprint, "temperature": params.temperature}
    limits = Limits(params.max_length, params.max_new_tokens, params.temperature, params.seed, params.batch_size)
    records = answered(conversations, target, chat, limits=limits, kept=context.scratch / "answers.jsonl")
    for talk, record in zip(conversations, records, strict=True):
        if "dropped" in record:
            account.dropped[record["dropped"]] += 1
            continue
        account.cut += len(record["ids"]) == params.max_length
        yield Sample(talk.id, talk.source, record["ids"], [bool(bit) for bit in record["mask"]])


def _check_shortage(has: int, num_heldout: int, params: PrepareParams, account: Account) -> None:
    """Raise ToolError when there are fewer samples than asked for, unless a warning is enough; none never is."""
    short = has < params.num_samples or num_heldout < params.heldout
    if short and (params.shortage == "fail" or not has):
        heldout = f" beside {num_heldout} of {params.heldout} held out" if params.heldout else ""
        raise ToolError(
            f"asks for {params.num_samples} samples, has {has}{heldout}",
            where=params.source if isinstance(params.source, str) else ", ".join(params.source),
            found=str(account),
            do='Ask for fewer, add a source, or take what there is with shortage: "warn".',
        )


def _result(samples: SampleSet, params: PrepareParams, account: Account) -> Result:
    note = f"{len(samples)} samples, {samples.num_tokens:,} tokens"
    if len(samples) < params.num_samples:
        note = f"asks for {params.num_samples} samples, has {len(samples)}; {samples.num_tokens:,} tokens"
    num_loss_tokens = int(samples.facts["num_loss_tokens"])
    return Result(
        values={"num_samples": len(samples), "num_tokens": samples.num_tokens},
        metrics={
            "loss_percent": 100.0 * num_loss_tokens / samples.num_tokens,
            "num_dropped": float(account.dropped.total()),
            "num_cut": float(account.cut),
        },
        note=note,
    )
