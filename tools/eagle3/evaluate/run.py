"""Answers prompts three times, plainly, with the drafter and with an untrained one, and compares."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eagle3.chat import open_chat
from eagle3.conversations import BadLine, read_conversations
from eagle3.decoding import Decoding, decode
from eagle3.evaluate.comparison import Comparison
from eagle3.evaluate.spec import EvaluateParams
from eagle3.losses import Acceptance, Batch, Objective, teach, unrolled_outcome
from eagle3.model import Drafter
from eagle3.target import Target, load_target
from eagle3.vocabulary import Vocabulary
from eagle3.weights import load_drafter, new_drafter
from harness.contract import Context, Result, ToolError, write_json

TIE_RATIO = 1e-4  # of the largest logit: what float32 may round away between reading one token and several


@dataclass(frozen=True)
class Bench:
    """What is compared: one target, two drafters with the same shape."""

    params: EvaluateParams
    target: Target
    trained: Drafter
    untrained: Drafter
    layers: list[int]

    def answer(self, prompt: Sequence[int]) -> dict[str, Any]:
        """The three decodings of one prompt, and the target's own doubt where they differ."""
        plain = self._decode(prompt, None)
        record: dict[str, Any] = {"prompt": list(prompt), "plain": asdict(plain), "differences": []}
        for name, drafter in (("trained", self.trained), ("untrained", self.untrained)):
            drafted = self._decode(prompt, drafter)
            record[name] = asdict(drafted)
            if drafted.tokens != plain.tokens:
                record["differences"].append(
                    {"drafter": name, **self._difference(prompt, plain.tokens, drafted.tokens)}
                )
        return record

    def warm_up(self, prompt: Sequence[int]) -> None:
        """The first calls into torch cost what no later one does."""
        decode(self.target, prompt, max_new_tokens=4, drafter=self.trained, layers=self.layers, draft_tokens=2)

    def foretold(self, records: Sequence[dict[str, Any]]) -> Acceptance:
        """Training-time test over the plain answers."""
        acceptance = Acceptance(self.params.draft_tokens)
        embedding = self.target.model.get_input_embeddings().weight
        for record in records:
            batch = self._batch(record["prompt"], record["plain"]["tokens"])
            teacher = teach(self.target, batch.final, self.trained.target_ids)
            objective = Objective(unroll=self.params.draft_tokens)
            with torch.no_grad():
                acceptance.add(unrolled_outcome(self.trained, batch, teacher, embedding=embedding, objective=objective))
        return acceptance

    def _decode(self, prompt: Sequence[int], drafter: Drafter | None) -> Decoding:
        return decode(
            self.target,
            prompt,
            max_new_tokens=self.params.max_new_tokens,
            drafter=drafter,
            layers=self.layers,
            draft_tokens=self.params.draft_tokens,
        )

    def _batch(self, prompt: list[int], answer: list[int]) -> Batch:
        ids = torch.tensor([prompt + answer])
        *aux, final = self.target.states(ids, None, [*self.layers, self.target.num_layers - 1])
        said = torch.arange(ids.shape[1]) >= len(prompt)
        return Batch([0], [ids.shape[1]], ids[0], said, torch.cat(aux, -1)[0].clone(), final[0].clone())

    @torch.no_grad()
    def _difference(self, prompt: Sequence[int], plain: list[int], drafted: list[int]) -> dict[str, float]:
        """Where two answers part, and how far apart the target's two choices were there, in parts of its top logit."""
        pairs = zip(plain, drafted, strict=False)
        place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(plain), len(drafted)))
        logits = self.target.model(torch.tensor([[*prompt, *plain[:place]]])).logits[0, -1]
        best = logits.topk(2).values
        return {"place": place, "gap": float((best[0] - best[1]) / logits.abs().max())}


def main(params: EvaluateParams, context: Context) -> Result:
    """Decode prompt after prompt, each kept as soon as it is there, and write the report."""
    torch.set_num_threads(params.threads)
    context.catch_stop()
    bench = _bench(params)
    prompts = _prompts(params, bench.target)
    bench.warm_up(prompts[0])
    records = list(_records(bench, prompts, context))
    comparison = Comparison.of(records, params.draft_tokens)
    simulated = bench.foretold(records)
    wrong = [d for record in records for d in record["differences"] if d["gap"] > TIE_RATIO]
    report = {
        **asdict(comparison),
        "simulated_acceptance_length": simulated.length,
        "num_prompts": len(records),
        "num_near_ties": sum(len(record["differences"]) for record in records) - len(wrong),
        "params": params.model_dump(mode="json"),
    }
    write_json(context.outputs["report"], report)
    if wrong:
        raise ToolError(
            "drafted answers differ from plain greedy decoding",
            where=str(context.outputs["report"]),
            found=f"{len(wrong)} answers, the first at token {wrong[0]['place']}, gap {wrong[0]['gap']:.2g}",
            do="This is a fault of the decoder, not of the drafter: report it with the plan.",
        )
    names = ("acceptance_length", "untrained_acceptance_length", "acceptance", "speedup", "lossless")
    values = {name: report[name] for name in names} | {"simulated_acceptance_length": simulated.length}
    return Result(
        values=values,
        metrics={name: float(value) for name, value in values.items() if name != "acceptance"},
        note=f"acceptance length {comparison.acceptance_length:.2f}, "
        f"untrained {comparison.untrained_acceptance_length:.2f}; "
        f"{comparison.speedup:.2f} x the speed; {'lossless' if comparison.lossless else 'near ties decided otherwise'}",
    )


def _bench(params: EvaluateParams) -> Bench:
    target = load_target(params.target)
    trained, facts = load_drafter(params.drafter)
    if facts["target_fingerprint"] != target.fingerprint:
        raise ToolError(
            "the drafter was trained for another target",
            where=params.drafter,
            found=f"'{facts['target_fingerprint'][:12]}' where the target has '{target.fingerprint[:12]}'",
            do="Run 'train' with this target.",
        )
    vocabulary = Vocabulary(trained.t2d.numpy(), trained.d2t.numpy(), target.tokenizer_fingerprint)
    untrained = new_drafter(trained.shape, vocabulary, target, seed=params.seed)
    return Bench(params, target, trained, untrained, facts["layers"])


def _prompts(params: EvaluateParams, target: Target) -> list[list[int]]:
    chat = open_chat(target.tokenizer, target.stop_ids, params.target)
    talks = [talk for talk in read_conversations(params.prompts) if not isinstance(talk, BadLine) and talk.questions]
    if not talks:
        raise ToolError("no prompts there", where=params.prompts, do="Run 'prepare' with heldout above 0.")
    return [chat.prompt_ids(talk.questions[0]) for talk in talks[: params.num_prompts]]


def _records(bench: Bench, prompts: list[list[int]], context: Context) -> Iterator[dict[str, Any]]:
    """One record a prompt; those that an earlier attempt has kept are not made again."""
    kept = context.scratch / "answers.jsonl"
    with kept.open("ab+") as file:
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)  # a kill may have cut off the last line
        done = [json.loads(line) for line in content[:whole].splitlines()]
        for number, prompt in enumerate(prompts):
            if number < len(done):
                yield done[number]
                continue
            record = bench.answer(prompt)
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            yield record
            context.progress(number + 1, len(prompts), unit="prompts")
            context.stop_point()
