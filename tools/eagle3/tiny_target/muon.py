"""Muon, an optimizer that takes steps of equal size in every direction of a weight matrix."""

from collections.abc import Iterable
from typing import Any

import torch

MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton-Schulz (Jordan et al. 2024), for the matrices of a network's inner layers.

    The step is scaled by 0.2 sqrt(larger side) (Moonlight, arXiv 2502.16982), so that AdamW's learning rates fit.
    In float32, and matrices of one shape at once: torch's own works in bfloat16, which is slow on many CPUs.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move each matrix that has a gradient."""
        del closure
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Any]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    shapes.setdefault(param.shape, []).append(param)
            for (rows, columns), params in shapes.items():
                updates = orthogonal(torch.stack([self._momentum(param) for param in params]))
                for param, update in zip(params, updates, strict=True):
                    param.mul_(1 - group["lr"] * WEIGHT_DECAY)
                    param.add_(update, alpha=-group["lr"] * 0.2 * max(rows, columns) ** 0.5)

    def _momentum(self, param: Any) -> torch.Tensor:
        """Nesterov's: the gradient, pulled towards the running mean."""
        state = self.state[param]
        if not state:
            state["mean"] = torch.zeros_like(param)
        mean: torch.Tensor = state["mean"]
        mean.lerp_(param.grad, 1 - MOMENTUM)
        pulled: torch.Tensor = torch.lerp(param.grad, mean, MOMENTUM)
        return pulled


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Each of `matrices` [N, R, C] with its singular values brought near 1, between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: torch.Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
