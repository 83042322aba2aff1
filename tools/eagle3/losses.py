"""What the drafter is taught and how well it does: teacher, loss, hits, simulated acceptance length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from eagle3.model import Drafter, ahead, unrolled_states
from eagle3.target import Target

Kind = Literal["kl", "cross_entropy"]
CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class Batch:
    """Packed samples, N tokens in all: what was extracted at each token x_t."""

    indices: list[int]  # the samples' numbers, to name them
    lengths: list[int]
    input_ids: torch.Tensor  # int64 [N]
    loss_mask: torch.Tensor  # bool [N], true on answer tokens
    aux: torch.Tensor  # [N, num_aux_layers x H]
    final: torch.Tensor  # [N, H]


@dataclass(frozen=True)
class Teacher:
    """The target's next-token distribution at each of N positions, as far as the draft vocabulary reaches."""

    logits: torch.Tensor  # [N, D]; the softmax over D is the target's, restricted and renormalised
    best: torch.Tensor  # int64 [N]: draft id of the target's most likely token, -1 when that isn't drafted


@dataclass(frozen=True)
class Objective:
    """What training minimises over `unroll` draft steps; step k weighs step_decay^k.

    "kl" is the Kullback-Leibler divergence from the teacher's distribution over the draft vocabulary to the drafter's,
    "cross_entropy" that from the teacher's first choice. With `mask_out_of_vocabulary` a position whose best token
    isn't drafted teaches nothing: the draft is rejected there whatever it is, and what is left of the distribution is
    mostly noise. (First choices that aren't drafted teach nothing in cross entropy either way.)
    """

    unroll: int
    step_decay: float = 1.0
    kind: Kind = "kl"
    mask_out_of_vocabulary: bool = True

    @property
    def masks(self) -> bool:
        return self.mask_out_of_vocabulary or self.kind == "cross_entropy"


@dataclass(frozen=True)
class Outcome:
    """How one unrolled forward did, by draft step.

    `hits[k, t]`: the drafter's first choice is the target's; `counted[k, t]`: an answer token is predicted from answer
    tokens there. A miss because the token isn't drafted is a miss.
    """

    loss: torch.Tensor  # scalar, nats per token, averaged over the steps by their weights
    step_losses: list[torch.Tensor]
    hits: torch.Tensor  # bool [K, N]
    counted: torch.Tensor  # bool [K, N]


@torch.no_grad()
def teach(target: Target, final: torch.Tensor, target_ids: torch.Tensor, *, normed: bool = False) -> Teacher:
    """The teacher at each position of `final` [N, H]: the target's last state, raw or already `normed`.

    Computed in chunks, so that logits over all V tokens never exist for more than a few thousand positions.
    """
    drafted = torch.full((target.vocab_size,), -1, device=final.device)
    drafted[target_ids] = torch.arange(len(target_ids), device=final.device)
    parts = []
    for chunk in torch.split(final, CHUNK_TOKENS):
        logits = target.model.get_output_embeddings()(chunk) if normed else target.head(chunk)
        parts.append((logits[:, target_ids], drafted[logits.argmax(-1)]))
    return Teacher(*(torch.cat(part) for part in zip(*parts, strict=True)))


def counted_positions(loss_mask: torch.Tensor, lengths: Sequence[int], unroll: int) -> torch.Tensor:
    """Where step k's prediction counts, bool [K, N]: x_{t+1} up to the predicted x_{t+2+k} are all answer tokens.

    These are the predictions that serving makes: a draft starts from an answer token that the target has chosen.
    """
    said = []
    for by in range(1, unroll + 2):
        index, inside = ahead(lengths, by)
        said.append(loss_mask[index.to(loss_mask.device)] & inside.to(loss_mask.device))
    return torch.stack(said).cumprod(0)[1:].bool()


def unrolled_outcome(
    drafter: Drafter, batch: Batch, teacher: Teacher, *, embedding: torch.Tensor, objective: Objective
) -> Outcome:
    """Run the draft steps over `batch` and compare step k at position t with the teacher at t + 1 + k.

    `embedding` [V, H] is the target's. Each step's loss is the mean over the positions that count, so that neither
    padding nor prompts dilute it.
    """
    counted = counted_positions(batch.loss_mask, batch.lengths, objective.unroll)
    hits = torch.zeros_like(counted)
    losses = []
    embeds = F.embedding(batch.input_ids, embedding)
    asked = counted[0].nonzero()[:, 0]  # where step 0 doesn't count, no later step does
    states = unrolled_states(drafter, batch.aux, embeds, lengths=batch.lengths, unroll=objective.unroll, rows=asked)
    for k, state in enumerate(states):
        index = ahead(batch.lengths, 1 + k)[0].to(state.device)
        use = counted[k] & (teacher.best[index] >= 0) if objective.masks else counted[k]
        rows = use.nonzero()[:, 0]
        logits = drafter.logits(state[use[asked]])
        losses.append(_loss(logits, teacher.logits[index[rows]], teacher.best[index[rows]], objective.kind))
        hits[k, rows] = logits.detach().argmax(-1) == teacher.best[index[rows]]
    weights = [objective.step_decay**k for k in range(objective.unroll)]
    total = torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)
    return Outcome(total, [loss.detach() for loss in losses], hits, counted)


def _loss(logits: torch.Tensor, teacher_logits: torch.Tensor, best: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Mean over the rows [R, D], in nats; 0 where there is no row."""
    if kind == "cross_entropy":
        return F.cross_entropy(logits.float(), best, reduction="sum") / max(1, len(best))
    drafted, taught = F.log_softmax(logits.float(), -1), F.log_softmax(teacher_logits.float(), -1)
    return F.kl_div(drafted, taught, reduction="sum", log_target=True) / max(1, len(best))


class Acceptance:
    """Hits by draft step, gathered over batches."""

    def __init__(self, unroll: int) -> None:
        self.hits = torch.zeros(unroll, dtype=torch.int64)
        self.joint = torch.zeros(unroll, dtype=torch.int64)
        self.counted = torch.zeros(unroll, dtype=torch.int64)

    def add(self, outcome: Outcome) -> None:
        hits = outcome.hits & outcome.counted
        self.hits += hits.sum(1).cpu()
        self.joint += hits.cumprod(0).sum(1).cpu()
        self.counted += outcome.counted.sum(1).cpu()

    @property
    def accuracy(self) -> list[float]:
        """Share of hits at each step, whatever came before."""
        return (self.hits / self.counted.clamp(min=1)).tolist()

    @property
    def accepted(self) -> list[float]:
        """Share of positions where this step and all before it hit: the draft is accepted this far."""
        return (self.joint / self.counted.clamp(min=1)).tolist()

    @property
    def length(self) -> float:
        """Simulated acceptance length: tokens a round of greedy drafting yields, 1 (the target's own) and more."""
        return 1.0 + sum(self.accepted)
