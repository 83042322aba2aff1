"""Attention of unrolled draft steps over packed samples: causal over step 0, the same position only in later steps."""

from collections.abc import Sequence
from typing import Any

import torch

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def unrolled_attention(
    query: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    later: Sequence[tuple[torch.Tensor, torch.Tensor]],
    lengths: Sequence[int],
) -> torch.Tensor:
    """Attention output [N, heads, d] of one draft step over N packed tokens.

    `query` [N, heads, d]; `first` holds the keys and values of step 0 and each of `later` those of one later step,
    all [N, kv_heads, d]; `lengths` are the samples' lengths, N in all. Position t sees step 0 up to t within its
    sample, and position t alone in each later step (training-time test, arXiv 2503.01840). With k later steps a
    sample of T tokens costs T^2 / 2 + k T products; no mask is made.
    """
    groups = query.shape[1] // first[0].shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in first)
    keys = values = query.new_empty(0)
    if later:
        keys, values = (torch.stack(part).repeat_interleave(groups, 2) for part in zip(*later, strict=True))
    return _Unrolled.apply(tuple(lengths), query, key, value, keys, values)  # type: ignore[no-any-return, no-untyped-call]


class _Unrolled(torch.autograd.Function):
    """Joins the causal part and the diagonals through their log-sum-exp.

    Backward hands the joint output and log-sum-exp to the causal kernel's own backward: its probabilities
    exp(score - lse) and its row sums of gradient times output are then those of the joint softmax, so its gradients
    are exact and the causal scores are never stored.
    """

    @staticmethod
    def forward(ctx: Any, lengths: tuple[int, ...], *tensors: torch.Tensor) -> torch.Tensor:
        query, key, value, keys, values = tensors
        parts = [_causal(*qkv) for qkv in _samples(lengths, query, key, value)]
        out, lse = (torch.cat(part) for part in zip(*parts, strict=True))  # [N, heads, d], [N, heads]
        if keys.numel():
            scores = (keys * query).sum(-1) * query.shape[-1] ** -0.5  # [k, N, heads]
            total = torch.logaddexp(lse, scores.logsumexp(0))
            weights = torch.exp(scores - total)
            out = torch.exp(lse - total)[..., None] * out + (weights[..., None] * values).sum(0)
            lse = total
        ctx.save_for_backward(query, key, value, keys, values, out, lse)
        ctx.lengths = lengths
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, keys, values, out, lse = ctx.saved_tensors
        grad = grads[0].contiguous()
        parts = [_causal_backward(part) for part in _samples(ctx.lengths, grad, query, key, value, out, lse)]
        grad_query, grad_key, grad_value = (torch.cat(part) for part in zip(*parts, strict=True))
        if not keys.numel():
            return None, grad_query, grad_key, grad_value, None, None
        scale = query.shape[-1] ** -0.5
        weights = torch.exp((keys * query).sum(-1) * scale - lse)  # [k, N, heads]
        delta = (grad * out).sum(-1)
        grad_scores = (weights * ((values * grad).sum(-1) - delta) * scale)[..., None]
        grad_query = grad_query + (grad_scores * keys).sum(0)
        return None, grad_query, grad_key, grad_value, grad_scores * query, weights[..., None] * grad


def _samples(lengths: tuple[int, ...], *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(torch.split(tensor, list(lengths)) for tensor in tensors), strict=True))


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [T, heads, d] and log-sum-exp [T, heads] of one sample."""
    if query.device.type == "cpu":
        out, lse = FLASH(*(part.transpose(0, 1)[None] for part in (query, key, value)), 0.0, True)
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    scores = _scores(query, key)
    lse = scores.logsumexp(-1)
    return torch.einsum("hts,shd->thd", torch.exp(scores - lse[..., None]), value), lse.transpose(0, 1)


def _causal_backward(sample: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Gradients of query, key and value for (gradient of the output, query, key, value, output, log-sum-exp)."""
    grad, query, key, value, out, lse = sample
    if query.device.type == "cpu":
        heads_first = [part.transpose(0, 1)[None] for part in sample]
        return tuple(part[0].transpose(0, 1) for part in FLASH_BACKWARD(*heads_first, 0.0, True))
    weights = torch.exp(_scores(query, key) - lse.transpose(0, 1)[..., None])  # [heads, T, T]
    delta = (grad * out).sum(-1).transpose(0, 1)[..., None]
    grad_scores = weights * (torch.einsum("thd,shd->hts", grad, value) - delta) * query.shape[-1] ** -0.5
    return (
        torch.einsum("hts,shd->thd", grad_scores, key),
        torch.einsum("hts,thd->shd", grad_scores, query),
        torch.einsum("hts,thd->shd", weights, grad),
    )


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = torch.einsum("thd,shd->hts", query, key) * query.shape[-1] ** -0.5
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill(future, -torch.inf)
