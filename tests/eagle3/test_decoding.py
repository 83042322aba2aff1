"""Draft and verify: the same tokens as plain greedy decoding, and a cache that agrees with training."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from workshop import talk

from eagle3.chat import open_chat
from eagle3.decoding import DraftCache, TargetReader, decode
from eagle3.features import open_features
from eagle3.losses import Acceptance, Batch, Objective, Outcome, teach, unrolled_outcome
from eagle3.model import Drafter, Shape, unrolled_states
from eagle3.target import Target
from eagle3.train.run import load_batch
from eagle3.vocabulary import Vocabulary
from eagle3.weights import new_drafter

LAYERS = [2, 3, 4]
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    chat = open_chat(target.tokenizer, target.stop_ids, "target")
    return [chat.prompt_ids(talk(number)) for number in range(16)]


@pytest.fixture(scope="module")
def untrained(target: Target, vocabulary: Vocabulary) -> Drafter:
    return new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=5).eval()


def greedy(target: Target, prompt: list[int], count: int) -> Iterator[int]:
    """The arg max of a whole forward without any cache, again and again."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
        yield ids[-1]
        if ids[-1] in target.stop_ids:
            return


@pytest.mark.parametrize("draft_tokens", [1, 2, 5])
def test_the_answer_is_the_greedy_one_token_for_token_with_any_drafter(
    target: Target, prompts: list[list[int]], trained: Drafter, untrained: Drafter, draft_tokens: int
) -> None:
    accepted = 0
    for prompt in prompts[:8]:
        wanted = list(greedy(target, prompt, NUM_TOKENS))
        assert decode(target, prompt, max_new_tokens=NUM_TOKENS).tokens == wanted
        for drafter in (trained, untrained):
            found = decode(
                target,
                prompt,
                max_new_tokens=NUM_TOKENS,
                drafter=drafter,
                layers=LAYERS,
                draft_tokens=draft_tokens,
            )
            assert found.tokens == wanted
            accepted += sum(found.accepted) if drafter is trained else 0
    assert accepted > 20, "a test of acceptance needs drafts that are accepted"


@torch.inference_mode()
def test_the_draft_cache_gives_the_states_of_the_unrolled_training_forward(
    target: Target, trained: Drafter, features_path: Path
) -> None:
    batch = load_batch(open_features(features_path), [5])
    embeds = target.model.get_input_embeddings()(batch.input_ids)
    length, unroll = len(embeds), 4
    steps = list(unrolled_states(trained, batch.aux, embeds, lengths=[length], unroll=unroll))
    cache = DraftCache(trained)
    fused = trained.fuse(batch.aux)
    for start, stop in ((0, 5), (5, 6), (6, length - unroll)):  # in pieces, as confirmed tokens come
        state = cache.step(fused[start:stop], embeds[start + 1 : stop + 1])
        assert torch.allclose(state, steps[0][start:stop], atol=1e-5)
        confirmed = len(cache)
        for k in range(1, unroll):
            state = cache.step(state[-1:], embeds[stop + k : stop + k + 1])
            assert torch.allclose(state[0], steps[k][stop - 1], atol=1e-5)
        cache.truncate(confirmed)


@torch.inference_mode()
def test_the_target_forgets_what_was_not_confirmed(target: Target, prompts: list[list[int]]) -> None:
    reader, other = TargetReader(target, LAYERS), TargetReader(target, LAYERS)
    reader.read(prompts[0])
    reader.read([9, 8, 7])
    reader.forget(2)
    other.read([*prompts[0], 9])
    for found, wanted in zip(reader.read([5, 6]), other.read([5, 6]), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_an_answer_ends_with_its_stop_token_or_at_the_limit(
    target: Target, prompts: list[list[int]], trained: Drafter
) -> None:
    def answer(limit: int) -> list[int]:
        options = {"drafter": trained, "layers": LAYERS, "draft_tokens": 5}
        return decode(target, prompts[0], max_new_tokens=limit, **options).tokens  # type: ignore[arg-type]

    free = answer(NUM_TOKENS)
    assert [answer(limit) for limit in (1, 2, 7)] == [free[:1], free[:2], free[:7]]
    stop = free[6]
    target.stop_ids.append(stop)
    try:
        assert answer(NUM_TOKENS) == free[: free.index(stop) + 1]
    finally:
        target.stop_ids.remove(stop)


@torch.inference_mode()
def foretold(target: Target, drafter: Drafter, prompt: list[int], answer: list[int], unroll: int) -> Outcome:
    """Training-time test over a given answer."""
    ids = torch.tensor([*prompt, *answer])
    *aux, final = target.states(ids[None], None, [*LAYERS, 5])
    said = torch.arange(len(ids)) >= len(prompt)
    batch = Batch([0], [len(ids)], ids, said, torch.cat(aux, -1)[0], final[0])
    teacher = teach(target, batch.final, drafter.target_ids)
    embedding = target.model.get_input_embeddings().weight
    return unrolled_outcome(drafter, batch, teacher, embedding=embedding, objective=Objective(unroll=unroll))


def test_training_time_test_foretells_every_round_of_decoding(
    target: Target, prompts: list[list[int]], trained: Drafter
) -> None:
    draft_tokens, rounds = 3, []
    simulated = Acceptance(draft_tokens)
    for prompt in prompts:
        options = {"drafter": trained, "layers": LAYERS, "draft_tokens": draft_tokens}
        answer = decode(target, prompt, max_new_tokens=NUM_TOKENS, **options)  # type: ignore[arg-type]
        outcome = foretold(target, trained, prompt, answer.tokens, draft_tokens)
        simulated.add(outcome)
        joint = (outcome.hits & outcome.counted).cumprod(0).sum(0).tolist()
        place = len(prompt) - 1  # what was read when the first round drafted
        for accepted in answer.accepted[:-1]:  # the last round may draft beyond the answer's end
            assert joint[place] == accepted
            place += accepted + 1
        rounds += answer.accepted
    measured = 1 + sum(rounds) / len(rounds)
    assert measured > 1.5
    assert simulated.length == pytest.approx(measured, rel=0.1)
