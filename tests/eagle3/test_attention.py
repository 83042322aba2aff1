"""Attention of unrolled steps against the plain masked softmax that it stands for."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3.attention import unrolled_attention

LENGTHS = [5, 1, 9]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pairs(count: int, device: str = "cpu") -> list[tuple[torch.Tensor, torch.Tensor]]:
    shape = (sum(LENGTHS), 2, 8)
    made = [
        [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for _ in "kv"] for _ in range(count)
    ]
    return [(key, value) for key, value in made]


def reference(query: torch.Tensor, seen: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """One softmax over the keys of all steps, side by side, under the mask written out."""
    num_tokens = len(query)
    sample = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    causal = (sample[:, None] == sample) & torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    mask = torch.cat([causal, *[torch.eye(num_tokens, dtype=torch.bool)] * (len(seen) - 1)], 1).to(query.device)
    keys, values = (torch.cat(part).repeat_interleave(2, 1) for part in zip(*seen, strict=True))
    scores = torch.einsum("thd,shd->hts", query, keys) / query.shape[-1] ** 0.5
    return torch.einsum("hts,shd->thd", scores.masked_fill(~mask, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_later", [0, 1, 3])
def test_output_and_gradients_are_those_of_the_masked_softmax(num_later: int, device: str) -> None:
    torch.manual_seed(num_later)
    query = torch.randn(sum(LENGTHS), 4, 8, dtype=torch.float64, device=device, requires_grad=True)
    seen = pairs(num_later + 1, device)
    leaves = [query, *(tensor for pair in seen for tensor in pair)]
    weight = torch.randn_like(query)
    ours, plain = unrolled_attention(query, seen[0], seen[1:], LENGTHS), reference(query, seen)
    assert torch.allclose(ours, plain, atol=1e-12)
    gradients = torch.autograd.grad((ours * weight).sum(), leaves)
    expected = torch.autograd.grad((plain * weight).sum(), leaves)
    for found, wanted in zip(gradients, expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-12)


def test_a_position_sees_neither_other_samples_nor_the_future_nor_other_positions_of_later_steps() -> None:
    torch.manual_seed(0)
    query, seen = torch.randn(sum(LENGTHS), 4, 8, dtype=torch.float64), pairs(3)
    place = 9  # the fourth token of the third sample
    out = unrolled_attention(query, seen[0], seen[1:], LENGTHS)[place].sum()
    first, *later = torch.autograd.grad(out, [value for _, value in seen])
    assert first.abs().sum((1, 2)).nonzero()[:, 0].tolist() == [6, 7, 8, 9]
    assert all(gradient.abs().sum((1, 2)).nonzero()[:, 0].tolist() == [place] for gradient in later)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_neither_scores_nor_mask_are_ever_held_whole() -> None:
    tokens, steps, width = 512, 4, 4
    tensors = [torch.randn(tokens, 1, width, requires_grad=True) for _ in range(2 * steps + 1)]
    query, *rest = tensors
    seen = list(zip(rest[::2], rest[1::2], strict=True))
    with Largest() as largest:
        unrolled_attention(query, seen[0], seen[1:], [tokens]).sum().backward()
    assert largest.numel <= steps * tokens * width < tokens**2
