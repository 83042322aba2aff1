"""Compares stored states with a reference forward, layer by layer, and explains a difference where it can."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from eagle3.features import Features
from eagle3.target import Target


def compare(target: Target, features: Features, layers: Sequence[int], *, tolerance: float) -> dict[str, Any]:
    """Errors of each stored layer against the target's own states of that sample by itself.

    `relative` is the largest difference as a share of the largest state of the layer. `explanation` is "" while every
    layer is within `tolerance`, else it says which layer is off, by how much, and what would explain it.
    """
    ids = features.input_ids[None].to(target.device)
    every = target.states(ids, None, list(range(target.num_layers)))
    own = [state[0].float().cpu() for state in every]
    found, explanation = [], ""
    for layer, stored in zip(layers, features.hidden_states, strict=True):
        state = stored.float()
        facts = {"layer": layer, **_errors(state, own[layer])}
        found.append(facts)
        if facts["relative"] > tolerance and not explanation:
            why = _why(state, own, layer, target, tolerance=tolerance)
            explanation = f"layer {layer} is off by {facts['relative']:.2g} of its largest state{why}"
    return {"layers": found, "explanation": explanation}


def _errors(stored: torch.Tensor, own: torch.Tensor) -> dict[str, float]:
    """Largest absolute and relative difference, and the least cosine over positions; both [T, H]."""
    largest = float((stored - own).abs().max())
    return {
        "absolute": largest,
        "relative": largest / max(float(own.abs().max()), 1e-12),
        "cosine": float(F.cosine_similarity(stored, own, dim=-1).min()),
    }


def _why(stored: torch.Tensor, own: Sequence[torch.Tensor], layer: int, target: Target, *, tolerance: float) -> str:
    """What would explain stored states that are not the layer's: another layer, or the final norm."""
    for other, state in enumerate(own):
        if other != layer and _errors(stored, state)["relative"] <= tolerance:
            return f"; it holds the output of layer {other} (shifted by {other - layer:+d})"
    norm = target.model.get_decoder().norm
    with torch.inference_mode():
        normed = norm(own[layer].to(target.device, target.model.dtype)).float().cpu()
    if _errors(stored, normed)["relative"] <= tolerance:
        return "; it holds the state after the final norm, not before"
    return ""
