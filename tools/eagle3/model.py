"""The EAGLE-3 drafter: one decoder layer over fused target states, with the tensor names that SGLang loads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from eagle3.attention import unrolled_attention
from eagle3.target import Target
from eagle3.vocabulary import Vocabulary
from harness.contract import ToolError

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """The drafter's sizes; `hidden_size` is the target's, whose embedding it reads."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    num_aux_layers: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @classmethod
    def of(cls, target: Target, vocabulary: Vocabulary, num_aux_layers: int, **sizes: int | None) -> "Shape":
        """The target's own layer shape, where `sizes` doesn't say otherwise (None says nothing).

        Raises ToolError when the heads don't fit.
        """
        config = target.config
        num_heads = int(sizes.get("num_heads") or config.num_attention_heads)
        default_kv_heads = num_heads if sizes.get("num_heads") else config.num_key_value_heads
        num_kv_heads = int(sizes.get("num_kv_heads") or default_kv_heads)
        if target.hidden_size % (2 * num_heads) or num_heads % num_kv_heads:
            raise ToolError(
                "the heads don't fit the drafter",
                found=f"{num_heads} heads, {num_kv_heads} key-value heads, hidden size {target.hidden_size}",
                do="Set num_heads and num_kv_heads so that both divide, with an even number of values a head.",
            )
        return cls(
            hidden_size=target.hidden_size,
            intermediate_size=int(sizes.get("intermediate_size") or config.intermediate_size),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=target.hidden_size // num_heads,
            vocab_size=target.vocab_size,
            draft_vocab_size=vocabulary.size,
            num_aux_layers=num_aux_layers,
            rms_norm_eps=float(config.rms_norm_eps),
            rope_theta=_rope_theta(config),
            max_position_embeddings=int(config.max_position_embeddings),
        )


def _rope_theta(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None) or {}  # transformers 5; before that, an attribute
    return float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0)


class SelfAttention(nn.Module):
    """Projections and rotary positions; what is attended to is the caller's affair."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)

    def forward(self, both: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """[N, 2H] -> [N, H]"""
        query, key, value = (
            projection(both).unflatten(-1, (-1, self.shape.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self._angles(positions)
        out: torch.Tensor = self.o_proj(attend(_rotate(query, cos, sin), _rotate(key, cos, sin), value).flatten(-2))
        return out

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine [N, 1, d / 2] of the rotary angles, in Llama's halves."""
        half = torch.arange(0, self.shape.head_dim, 2, device=positions.device) / self.shape.head_dim
        angles = (positions[:, None] * self.shape.rope_theta**-half)[:, None]
        dtype = self.q_proj.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(state)) * self.up_proj(state))
        return out


class DecoderLayer(nn.Module):
    """A Llama layer whose attention reads embedding and state side by side; the residual is the state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = partial(nn.RMSNorm, shape.hidden_size, eps=shape.rms_norm_eps)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = norm(), norm(), norm()
        self.self_attn = SelfAttention(shape)
        self.mlp = MLP(shape)

    def forward(
        self, state: torch.Tensor, embeds: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(state)], -1)
        state = state + self.self_attn(both, positions, attend)
        out: torch.Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


class Drafter(nn.Module):
    """EAGLE-3's drafter (arXiv 2503.01840). Its state dict is what SGLang's `LlamaForCausalLMEagle3` reads.

    The embedding is the target's and not in here: callers pass embedded tokens.
    """

    t2d: torch.Tensor
    d2t: torch.Tensor

    def __init__(self, shape: Shape, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_aux_layers * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = DecoderLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self.register_buffer("t2d", torch.from_numpy(vocabulary.t2d.copy()))
        self.register_buffer("d2t", torch.from_numpy(vocabulary.d2t.copy()))

    @property
    def target_ids(self) -> torch.Tensor:
        """Target id of each draft id, int64 [D]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """State before step 0, [N, H], of the auxiliary target states side by side, [N, num_aux_layers x H]."""
        state: torch.Tensor = self.fc(aux)
        return state

    def step(self, state: torch.Tensor, embeds: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """State [N, H] after one draft step; it goes into `logits`, and as it is into the next step.

        `embeds` [N, H] are the embedded next tokens, `positions` [N] count from 0;
        `attend(query, key, value)` [N, heads, d] -> [N, heads, d] decides what is seen.
        """
        out: torch.Tensor = self.midlayer(state, embeds, positions, attend)
        return out

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., D]"""
        out: torch.Tensor = self.lm_head(self.norm(state))
        return out


def ahead(lengths: Sequence[int], by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of N packed positions, the one `by` further on in its sample: (index int64 [N], inside bool [N]).

    Where the sample ends before that, `inside` is false and the index is the sample's last.
    """
    sizes = torch.as_tensor(lengths)
    last = torch.repeat_interleave(sizes.cumsum(0) - 1, sizes)
    index = torch.arange(len(last)) + by
    return torch.minimum(index, last), index <= last


def unrolled_states(
    drafter: Drafter,
    aux: torch.Tensor,
    embeds: torch.Tensor,
    *,
    lengths: Sequence[int],
    unroll: int,
    rows: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """States [R, H] of `unroll` draft steps over packed samples (training-time test, arXiv 2503.01840, section 3).

    `aux` [N, num_aux_layers x H] and `embeds` [N, H] belong to the same tokens x_t. Step k at position t reads the
    embedding of x_{t+1+k}, which the samples hold, and the state that step k - 1 left there (step 0: the fused aux
    state of x_t); its logits are for x_{t+2+k}. What runs off a sample's end means nothing and is seen by nobody.
    `rows` int64 [R] are the positions that are asked for, all N if left out: no other position reads what a later
    step leaves, so later steps are computed for these alone.
    """
    sizes = torch.as_tensor(lengths)
    start = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    positions = (torch.arange(len(start)) - start).to(aux.device)
    everywhere = torch.arange(len(start), device=aux.device)
    asked = everywhere if rows is None else rows
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(*heads: torch.Tensor) -> torch.Tensor:
        places = asked if seen else everywhere
        query, key, value = (part.new_zeros(len(start), *part.shape[1:]).index_copy(0, places, part) for part in heads)
        seen.append((key, value))
        return unrolled_attention(query, seen[0], seen[1:], lengths).index_select(0, places)

    state = drafter.step(drafter.fuse(aux), embeds[ahead(lengths, 1)[0].to(aux.device)], positions, attend)
    state = state.index_select(0, asked)
    yield state
    for k in range(1, unroll):
        next_embeds = embeds[ahead(lengths, 1 + k)[0].to(aux.device)[asked]]
        state = drafter.step(state, next_embeds, positions[asked] + k, attend)
        yield state
