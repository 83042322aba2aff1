"""Looks at every sample's file: what was written, of that sample, with sane values."""

from dataclasses import dataclass
from typing import Any

import torch

from eagle3.features import FeatureSet, file_name, load_features
from eagle3.samples import SampleSet
from harness.contract import ToolError, digest_file


@dataclass
class Range:
    """Of all states of one layer seen so far: the least and the largest value, and the sum of the absolute ones."""

    least: float = float("inf")
    largest: float = float("-inf")
    sum_absolute: float = 0.0
    num_values: int = 0

    def take(self, states: torch.Tensor) -> None:
        least, largest = states.aminmax()
        self.least, self.largest = min(self.least, float(least)), max(self.largest, float(largest))
        self.sum_absolute += float(states.abs().sum(dtype=torch.float64))
        self.num_values += states.numel()

    def to_dict(self) -> dict[str, Any]:
        if not self.num_values:
            return {"least": None, "largest": None, "mean_absolute": None}
        mean_absolute = self.sum_absolute / self.num_values
        return {"least": self.least, "largest": self.largest, "mean_absolute": mean_absolute}


class Inspection:
    """Compares feature files with manifest and sample set; `ranges` tells of the good ones, layer by layer.

    A state of the absolute value `largest` or more is no sane one.
    """

    def __init__(self, features: FeatureSet, samples: SampleSet, *, largest: float) -> None:
        self.features, self.samples, self.largest = features, samples, largest
        self.ranges = {layer: Range() for layer in features.layers}

    def fault(self, index: int) -> str:
        """The first thing wrong with a sample's file, "" for a good one."""
        reason = self._file_fault(index)
        if reason:
            return reason
        try:
            sample = load_features(self.features.path / file_name(index))
        except ToolError as error:
            return f"its file can't be read: {error.found}"
        input_ids, loss_mask = self.samples[index]
        if {sample.input_ids.dtype, sample.loss_mask.dtype} != {torch.int64}:
            return f"its ids and mask are {sample.input_ids.dtype} and {sample.loss_mask.dtype}, not torch.int64"
        if sample.input_ids.tolist() != input_ids.tolist():
            return f"its {len(sample.input_ids)} token ids are not the sample's {len(input_ids)}"
        if self.features.entries[index].num_tokens != len(input_ids):
            said = self.features.entries[index].num_tokens
            return f"the manifest says {said} tokens, the sample has {len(input_ids)}"
        if sample.loss_mask.tolist() != loss_mask.tolist():
            return "its loss mask is not the sample's"
        return self._states_fault(sample.hidden_states, len(input_ids))

    def _file_fault(self, index: int) -> str:
        """What is wrong with a file as such, against the manifest."""
        file, entry = self.features.path / file_name(index), self.features.entries.get(index)
        if not file.is_file():
            return "its file is missing"
        if entry is None:
            return "the manifest has no line for it"
        if file.stat().st_size != entry.size:
            return f"its file has {file.stat().st_size} bytes, the manifest says {entry.size}"
        if digest_file(file) != entry.sha256:
            return "its bytes are not those that were written (digest differs)"
        return ""

    def _states_fault(self, states: list[torch.Tensor], num_tokens: int) -> str:
        """What is wrong with the states, a tensor [T, H] a layer; good ones go into the ranges."""
        layers = self.features.layers
        if len(states) != len(layers):
            return f"it has {len(states)} layers, the set has {len(layers)}"
        shape, dtype = (num_tokens, int(self.features.config["hidden_size"])), self.features.dtype
        for layer, state in zip(layers, states, strict=True):
            if tuple(state.shape) != shape or state.dtype != dtype:
                return f"layer {layer} is {state.dtype} {tuple(state.shape)}, not {dtype} {shape}"
            reason = _value_fault(state.float(), self.largest)
            if reason:
                return f"layer {layer} {reason}"
        for layer, state in zip(layers, states, strict=True):
            self.ranges[layer].take(state.float())
        return ""


def _value_fault(states: torch.Tensor, largest: float) -> str:
    """What is wrong with the values of one layer [T, H]."""
    top = float(states.abs().max())
    if not top < largest:  # also where it is NaN
        return f"holds values that aren't finite or sane (largest {top:g})"
    zero = (states == 0).all(-1)
    if zero.all() or zero[1:].any():  # the first position alone has no context: a token embedded as zero stays zero
        return f"is all zero at {int(zero.sum())} of {len(zero)} positions"
    return ""
