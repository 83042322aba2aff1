"""Greedy decoding with a drafter: draft a chain, verify it with the target in one forward, keep what both agree on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from eagle3.model import Drafter
from eagle3.target import Target


@dataclass
class Decoding:
    """One answer: `tokens` up to a stop id or the limit, and the drafts accepted in each round of verification."""

    tokens: list[int]
    accepted: list[int] = field(default_factory=list)
    seconds: float = 0.0


class TargetReader:
    """The target reading a growing text, with its cache."""

    def __init__(self, target: Target, layers: Sequence[int]) -> None:
        self._target = target
        self._layers = [*layers, target.num_layers - 1]
        self._cache = DynamicCache(config=target.config)

    def read(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read M more tokens: auxiliary states side by side [M, num_aux_layers x H], and the raw final state [M, H]."""
        tokens = torch.tensor([list(ids)], device=self._target.device)
        *aux, final = self._target.states(tokens, None, self._layers, cache=self._cache)
        return torch.cat(aux, -1)[0] if aux else final[0, :, :0], final[0]

    def forget(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` tokens."""
        if num_tokens:
            self._cache.crop(-num_tokens)


class DraftCache:
    """Keys and values [L, kv_heads, d] of what the drafter has read."""

    def __init__(self, drafter: Drafter) -> None:
        shape = drafter.shape
        self._drafter = drafter
        self._key = drafter.fc.weight.new_empty(0, shape.num_kv_heads, shape.head_dim)
        self._value = self._key

    def __len__(self) -> int:
        return len(self._key)

    def step(self, state: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """Drafter states [M, H] of M more positions, which see what was read before and each other causally."""
        positions = torch.arange(len(self), len(self) + len(state), device=state.device)
        return self._drafter.step(state, embeds, positions, self._attend)

    def truncate(self, length: int) -> None:
        self._key, self._value = self._key[:length], self._value[:length]

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self._key, self._value = torch.cat([self._key, key]), torch.cat([self._value, value])
        groups = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(groups, 1).transpose(0, 1) for part in (self._key, self._value))
        seen = torch.ones(len(query), len(self), dtype=torch.bool, device=query.device).tril(len(self) - len(query))
        return F.scaled_dot_product_attention(query.transpose(0, 1), keys, values, attn_mask=seen).transpose(0, 1)


class ChainDrafter:
    """Drafts a chain of tokens after what the target has confirmed."""

    def __init__(self, drafter: Drafter, embedding: torch.Tensor) -> None:
        self._drafter = drafter
        self._embedding = embedding
        self._cache = DraftCache(drafter)

    def draft(self, aux: torch.Tensor, next_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Read M confirmed positions, `aux` [M, ..] of x_t with `next_ids` x_{t+1}, then guess `num_tokens` more.

        The guesses leave no trace in the cache: the target's states of those that it confirms come with the next call.
        """
        state = self._cache.step(self._drafter.fuse(aux), self._embed(next_ids))[-1:]
        confirmed = len(self._cache)
        guesses = [self._choose(state)]
        while len(guesses) < num_tokens:
            state = self._cache.step(state, self._embed(guesses[-1:]))
            guesses.append(self._choose(state))
        self._cache.truncate(confirmed)
        return guesses

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        return F.embedding(torch.tensor(list(ids), device=self._embedding.device), self._embedding)

    def _choose(self, state: torch.Tensor) -> int:
        draft_id = self._drafter.logits(state[0]).argmax()
        return int(draft_id + self._drafter.d2t[draft_id])


@torch.inference_mode()
def decode(
    target: Target,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    drafter: Drafter | None = None,
    layers: Sequence[int] = (),
    draft_tokens: int = 0,
) -> Decoding:
    """The target's greedy answer to `prompt`, by draft and verify; without `drafter`, token by token.

    `layers` are the auxiliary layers that the drafter was trained on, by output index. The answer is the same with any
    drafter, but for rounding: the target reads several tokens at once where it otherwise reads one.
    """
    start_s = time.perf_counter()
    reader = TargetReader(target, layers if drafter else ())
    chain = ChainDrafter(drafter, target.model.get_input_embeddings().weight) if drafter else None
    aux, final = reader.read(prompt)
    answer = Decoding([int(target.head(final[-1]).argmax())])
    confirmed = [*prompt[1:], answer.tokens[-1]]  # tokens one to the right of `aux`
    while len(answer.tokens) < max_new_tokens and answer.tokens[-1] not in target.stop_ids:
        drafts = chain.draft(aux, confirmed, draft_tokens) if chain else []
        aux, final = reader.read([answer.tokens[-1], *drafts])
        chosen = target.head(final).argmax(-1).tolist()
        num_accepted = next((i for i, token in enumerate(drafts) if token != chosen[i]), len(drafts))
        confirmed = _until_stop(chosen[: num_accepted + 1], target.stop_ids)
        reader.forget(len(drafts) - num_accepted)
        aux = aux[: num_accepted + 1]
        answer.accepted.append(min(num_accepted, len(confirmed)))
        answer.tokens += confirmed
    answer.tokens = answer.tokens[:max_new_tokens]
    answer.seconds = time.perf_counter() - start_s
    return answer


def _until_stop(tokens: list[int], stop_ids: Sequence[int]) -> list[int]:
    end = next((i for i, token in enumerate(tokens) if token in stop_ids), len(tokens) - 1)
    return tokens[: end + 1]
