"""Runs samples through the target in fixed batches, so that a resumed feature set has the same bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from eagle3.features import Features, FeatureWriter
from eagle3.samples import SampleSet
from eagle3.target import Target


def identity(
    target: Target, samples: SampleSet, *, layers: Sequence[int], dtype: str, target_dtype: str
) -> dict[str, Any]:
    """All that the states of a feature set depend on."""
    return {
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
        "samples_digest": samples.digest,
        "num_samples": len(samples),
        "layers": list(layers),
        "final": "raw",
        "dtype": dtype,
        "target_dtype": target_dtype,
        "hidden_size": target.hidden_size,
    }


def batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Groups of samples of like length, at most `batch_tokens` tokens each with padding; one sample at least.

    They depend on nothing but the lengths: the rounding of a batched product may depend on the batch's shape.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    found: list[list[int]] = []
    for index in order:
        if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= batch_tokens:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def extract(
    target: Target,
    samples: SampleSet,
    writer: FeatureWriter,
    wanted: Iterable[int],
    *,
    config: dict[str, Any],
    after_sample: Callable[[], None],
) -> None:
    """Write the features of the `wanted` samples; `config` holds layers, dtype and batch_tokens."""
    still = set(wanted)
    for batch in batches([int(length) for length in samples.lengths], config["batch_tokens"]):
        if still.isdisjoint(batch):
            continue
        features = _states(target, samples, batch, config["layers"], dtype=getattr(torch, config["dtype"]))
        for index, each in zip(batch, features, strict=True):
            if index in still:
                writer.write(index, each)
                still.discard(index)
                after_sample()


def _states(
    target: Target, samples: SampleSet, batch: Sequence[int], layers: Sequence[int], *, dtype: torch.dtype
) -> list[Features]:
    """The features of the samples of one batch, padded on the right for the forward."""
    pairs = [samples[index] for index in batch]
    width = max(len(ids) for ids, _ in pairs)
    input_ids = torch.full((len(pairs), width), target.pad_id, dtype=torch.int64)
    attention_mask = torch.zeros((len(pairs), width), dtype=torch.int64)
    for row, (ids, _) in enumerate(pairs):
        input_ids[row, : len(ids)] = torch.from_numpy(ids)
        attention_mask[row, : len(ids)] = 1
    states = target.states(input_ids.to(target.device), attention_mask.to(target.device), layers)
    found = []
    for row, (ids, mask) in enumerate(pairs):
        own = [state[row, : len(ids)].to("cpu", dtype) for state in states]
        found.append(Features(torch.from_numpy(ids), torch.from_numpy(mask).long(), own))
    return found
