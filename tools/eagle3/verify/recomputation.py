"""Compares stored states with a reference forward, layer by layer, and explains a difference where it can."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from eagle3.features import Features
from eagle3.target import Target

NORMED = -1  # in place of a layer: the final norm's output


def compare(
    target: Target, features: Features, layers: Sequence[int], *, final: str, tolerance: float
) -> dict[str, Any]:
    """Errors of each stored layer against the target's own states of that sample by itself.

    `relative` is the largest difference as a share of the largest state of the layer. `explanation` is "" while every
    layer is good, else it says which layer is off, by how much, and what would explain it. A layer is good when
    `relative` and 1 - `cosine` are within `tolerance` and no other states of the target are nearer: a few huge
    states, which large models have, hide any difference behind the first two.
    """
    own = _own_states(target, features.input_ids)
    last = target.num_layers - 1
    found, explanation = [], ""
    for layer, stored in zip(layers, features.hidden_states, strict=True):
        state, right = stored.float(), NORMED if (layer, final) == (last, "normed") else layer
        errors = {name: _errors(state, each) for name, each in own.items()}
        facts = errors[right]
        found.append({"layer": layer, **facts})
        nearest = min(errors, key=lambda name: (errors[name]["mean"], name != right))
        if (nearest != right or not _fits(facts, tolerance)) and not explanation:
            why = _why(nearest, layer, last) if nearest != right and _fits(errors[nearest], tolerance) else ""
            explanation = f"layer {layer} is off by {facts['relative']:.2g} of its largest state{why}"
    return {"layers": found, "explanation": explanation}


@torch.inference_mode()
def _own_states(target: Target, input_ids: torch.Tensor) -> dict[int, torch.Tensor]:
    """The raw states [T, H] after every layer, and as `NORMED` the last one's after the final norm; float32."""
    layers = list(range(target.num_layers))
    states = [state[0] for state in target.states(input_ids[None].to(target.device), None, layers)]
    own = {layer: state.float().cpu() for layer, state in zip(layers, states, strict=True)}
    return {**own, NORMED: target.model.get_decoder().norm(states[-1]).float().cpu()}


def _fits(errors: dict[str, float], tolerance: float) -> bool:
    return errors["relative"] <= tolerance and 1 - errors["cosine"] <= tolerance


def _errors(stored: torch.Tensor, own: torch.Tensor) -> dict[str, float]:
    """Largest and mean absolute and largest relative difference, the least cosine over positions; both [T, H]."""
    difference = (stored - own).abs()
    largest = float(difference.max())
    return {
        "absolute": largest,
        "mean": float(difference.mean()),
        "relative": largest / max(float(own.abs().max()), 1e-12),
        "cosine": float(F.cosine_similarity(stored, own, dim=-1).min()),
    }


def _why(nearest: int, layer: int, last: int) -> str:
    """What the stored states of `layer` are instead."""
    if nearest == NORMED:
        return "; it holds the last layer's state after the final norm, not before"
    if nearest == layer == last:
        return "; it holds the state before the final norm, not after"
    return f"; it holds the output of layer {nearest} (shifted by {nearest - layer:+d})"
