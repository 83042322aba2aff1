"""One drafter in training: its steps, its validation, and all that the next attempt needs of it."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from eagle3.losses import Acceptance, Batch, Objective, Outcome, teach, unrolled_outcome
from eagle3.model import Drafter
from eagle3.target import Target
from eagle3.train.spec import TrainParams


def learning_rate(step: int, num_steps: int, *, peak: float, warmup_ratio: float) -> float:
    """The rate of `step`, from 0: up in a straight line to `peak`, then down to 0 along half a cosine."""
    num_warmup = math.ceil(num_steps * warmup_ratio)
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))


class Trainer:
    """Drafter, optimizer and step number, taught by `target` (whose features are `normed` or raw)."""

    def __init__(self, params: TrainParams, drafter: Drafter, target: Target, *, normed: bool, num_steps: int) -> None:
        self.params, self.drafter = params, drafter
        self.num_steps = num_steps
        self.next_step = 0
        self._target, self._normed = target, normed
        self._embedding: torch.Tensor = target.model.get_input_embeddings().weight
        self._objective = Objective(
            unroll=params.unroll,
            step_decay=params.step_decay,
            kind=params.loss,
            mask_out_of_vocabulary=params.mask_out_of_vocabulary,
        )
        drafter.lm_head.requires_grad_(requires_grad=not params.freeze_lm_head)
        self._trained = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in self._trained if p.ndim > 1], "weight_decay": params.weight_decay},
            {"params": [p for p in self._trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=params.learning_rate, betas=params.betas, fused=True)

    @property
    def rate(self) -> float:
        """Learning rate of the next step."""
        peak, warmup_ratio = self.params.learning_rate, self.params.warmup_ratio
        return learning_rate(self.next_step, self.num_steps, peak=peak, warmup_ratio=warmup_ratio)

    def step(self, batch: Batch) -> tuple[Outcome, float]:
        """Take one step on `batch`; returns the outcome and the gradient's norm before clipping.

        Neither weights nor step number change when the two aren't finite.
        """
        outcome = self._outcome(batch)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self.params.grad_clip))
        if math.isfinite(norm) and math.isfinite(float(outcome.loss.detach())):
            for group in self._optimizer.param_groups:
                group["lr"] = self.rate
            self._optimizer.step()
            self.next_step += 1
        self._optimizer.zero_grad()
        return outcome, norm

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> tuple[Acceptance, float]:
        """Acceptance over `batches`, and the mean of their losses weighted by the positions that count."""
        acceptance = Acceptance(self.params.unroll)
        total, count = 0.0, 0
        for batch in batches:
            outcome = self._outcome(batch)
            acceptance.add(outcome)
            num_counted = int(outcome.counted.sum())
            total += float(outcome.loss) * num_counted
            count += num_counted
        return acceptance, total / max(1, count)

    def state(self) -> dict[str, Any]:
        """Everything that the steps to come depend on, as tensors and numbers; the data follow from the step number."""
        return {
            "drafter": self.drafter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "next_step": self.next_step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.drafter.load_state_dict(state["drafter"])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.next_step = state["next_step"]

    def _outcome(self, batch: Batch) -> Outcome:
        teacher = teach(self._target, batch.final, self.drafter.target_ids, normed=self._normed)
        return unrolled_outcome(self.drafter, batch, teacher, embedding=self._embedding, objective=self._objective)
