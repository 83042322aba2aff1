"""Teacher, loss and acceptance, each against the definition written out."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from eagle3.features import open_features
from eagle3.losses import (
    Acceptance,
    Batch,
    Objective,
    Outcome,
    counted_positions,
    teach,
    unrolled_outcome,
)
from eagle3.model import Drafter, Shape, unrolled_states
from eagle3.target import Target
from eagle3.train.run import load_batch
from eagle3.vocabulary import Vocabulary
from eagle3.weights import new_drafter

UNROLL = 3


@pytest.fixture
def drafter(target: Target, vocabulary: Vocabulary) -> Drafter:
    return new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=5)


@pytest.fixture
def batch(features_path: Path) -> Batch:
    return load_batch(open_features(features_path), [3, 0, 7])


def outcome_of(drafter: Drafter, batch: Batch, target: Target, objective: Objective) -> Outcome:
    teacher = teach(target, batch.final, drafter.target_ids)
    embedding = target.model.get_input_embeddings().weight
    return unrolled_outcome(drafter, batch, teacher, embedding=embedding, objective=objective)


def plain_losses(drafter: Drafter, batch: Batch, target: Target, *, shift: int = 0) -> list[float]:
    """Each step's divergence, position by position, from the target's logits over all V tokens."""
    embeds = target.model.get_input_embeddings()(batch.input_ids)
    steps = unrolled_states(drafter, batch.aux, embeds, lengths=batch.lengths, unroll=UNROLL)
    losses = []
    for k, state in enumerate(steps):
        found = []
        start = 0
        for length in batch.lengths:
            for place in range(length - 2 - k):
                answered = batch.loss_mask[start + place + 1 : start + place + 3 + k]  # x_{t+1} to x_{t+2+k}
                logits = target.head(batch.final[start + place + 1 + k + shift])
                if answered.all() and int(logits.argmax()) in drafter.target_ids:
                    wanted = F.softmax(logits[drafter.target_ids], -1)
                    drafted = F.log_softmax(drafter.logits(state[start + place]), -1)
                    found.append(float((wanted * (wanted.log() - drafted)).sum()))
            start += length
        losses.append(sum(found) / len(found))
    return losses


@torch.no_grad()
def test_each_step_learns_the_targets_distribution_for_the_token_after_the_next(
    drafter: Drafter, batch: Batch, target: Target
) -> None:
    outcome = outcome_of(drafter, batch, target, Objective(unroll=UNROLL))
    wanted = plain_losses(drafter, batch, target)
    assert [float(loss) for loss in outcome.step_losses] == pytest.approx(wanted, rel=1e-5)
    for shift in (-1, 1):  # an error of one would still train, to a useless drafter
        wrong = plain_losses(drafter, batch, target, shift=shift)
        assert all(abs(one - other) > 1e-3 * one for one, other in zip(wanted, wrong, strict=True))


@torch.no_grad()
def test_steps_weigh_by_their_decay(drafter: Drafter, batch: Batch, target: Target) -> None:
    outcome = outcome_of(drafter, batch, target, Objective(unroll=UNROLL, step_decay=0.5))
    first, second, third = (float(loss) for loss in outcome.step_losses)
    assert float(outcome.loss) == pytest.approx((first + second / 2 + third / 4) / 1.75)


@torch.no_grad()
def test_packing_changes_nothing_but_the_mean(
    drafter: Drafter, batch: Batch, target: Target, features_path: Path
) -> None:
    together = outcome_of(drafter, batch, target, Objective(unroll=UNROLL))
    alone = [
        outcome_of(drafter, load_batch(open_features(features_path), [index]), target, Objective(unroll=UNROLL))
        for index in (3, 0, 7)
    ]
    assert torch.equal(together.hits, torch.cat([outcome.hits for outcome in alone], 1))
    assert torch.equal(together.counted, torch.cat([outcome.counted for outcome in alone], 1))


@torch.no_grad()
def test_the_teacher_is_the_targets_softmax_restricted_to_the_draft_vocabulary(
    batch: Batch, target: Target, drafter: Drafter
) -> None:
    teacher = teach(target, batch.final, drafter.target_ids)
    whole = target.head(batch.final).softmax(-1)
    drafted = whole[:, drafter.target_ids]
    assert torch.allclose(teacher.logits.softmax(-1), drafted / drafted.sum(-1, keepdim=True), atol=1e-6)
    best = whole.argmax(-1)
    for mine, token in zip(teacher.best.tolist(), best.tolist(), strict=True):
        assert mine == (drafter.target_ids.tolist().index(token) if token in drafter.target_ids else -1)
    assert (teacher.best < 0).any(), "the fixture's vocabulary lacks something that the target says"


@torch.no_grad()
def test_a_final_state_that_is_normed_already_is_not_normed_again(
    batch: Batch, target: Target, drafter: Drafter
) -> None:
    raw = teach(target, batch.final, drafter.target_ids)
    normed = teach(target, target.model.get_decoder().norm(batch.final), drafter.target_ids, normed=True)
    assert torch.equal(raw.best, normed.best)
    assert torch.allclose(raw.logits, normed.logits, atol=1e-6)


def test_a_prediction_counts_when_everything_from_the_drafts_first_token_on_is_answer() -> None:
    #                     sample one: question, answer, question, answer; sample two: all answer
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1], dtype=torch.bool)
    counted = counted_positions(mask, [8, 3], 3).int().tolist()
    assert counted[0] == [0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0]  # x_{t+1}, x_{t+2}
    assert counted[1] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]  # and x_{t+3}
    assert counted[2] == [0] * 11


@torch.no_grad()
def test_positions_whose_token_isnt_drafted_teach_only_if_asked_and_never_hit(
    drafter: Drafter, batch: Batch, target: Target
) -> None:
    masked = outcome_of(drafter, batch, target, Objective(unroll=1))
    unmasked = outcome_of(drafter, batch, target, Objective(unroll=1, mask_out_of_vocabulary=False))
    teacher = teach(target, batch.final, drafter.target_ids)
    outside = torch.cat([teacher.best[1:], teacher.best[-1:]]) < 0
    assert (masked.counted[0] & outside).any()
    assert float(masked.loss) != float(unmasked.loss)
    assert torch.equal(masked.counted, unmasked.counted)
    assert not (masked.hits[0] & outside).any()
    assert not (unmasked.hits[0] & outside).any()


@torch.no_grad()
def test_cross_entropy_is_that_of_the_targets_first_choice(drafter: Drafter, batch: Batch, target: Target) -> None:
    outcome = outcome_of(drafter, batch, target, Objective(unroll=1, kind="cross_entropy"))
    embeds = target.model.get_input_embeddings()(batch.input_ids)
    [state] = unrolled_states(drafter, batch.aux, embeds, lengths=batch.lengths, unroll=1)
    best = teach(target, batch.final, drafter.target_ids).best.roll(-1)
    rows = outcome.counted[0] & (best >= 0)
    assert float(outcome.loss) == pytest.approx(float(F.cross_entropy(drafter.logits(state[rows]), best[rows])))


def test_a_batch_without_a_single_answer_costs_nothing_and_breaks_nothing(
    drafter: Drafter, batch: Batch, target: Target
) -> None:
    silent = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    for kind in ("kl", "cross_entropy"):
        outcome = outcome_of(drafter, silent, target, Objective(unroll=2, kind=kind))  # type: ignore[arg-type]
        outcome.loss.backward()
        assert outcome.loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in drafter.parameters() if p.grad is not None)


def test_acceptance_length_is_one_and_the_share_of_positions_accepted_this_far() -> None:
    hits = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, 0]], dtype=torch.bool)
    counted = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    acceptance = Acceptance(3)
    acceptance.add(Outcome(torch.tensor(0.0), [], hits, counted))
    assert acceptance.accuracy == pytest.approx([3 / 4, 2 / 3, 1.0])
    assert acceptance.accepted == pytest.approx([3 / 4, 1 / 3, 1.0])  # the third column's later hits come too late
    assert acceptance.length == pytest.approx(1 + 3 / 4 + 1 / 3 + 1.0)
