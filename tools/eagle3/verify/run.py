"""The work of `verify`: every file against the sample set and its digest, some against a reference forward."""

import random
from pathlib import Path
from typing import Any

import torch

from eagle3.extraction import extract
from eagle3.features import (
    CONFIG,
    LENGTHS,
    MANIFEST,
    FeatureSet,
    FeatureWriter,
    file_name,
    load_features,
    read_config,
    read_manifest,
)
from eagle3.samples import SampleSet, open_samples
from eagle3.target import Target, load_target
from eagle3.verify.recomputation import compare
from eagle3.verify.spec import VerifyParams
from harness.contract import Context, Result, ToolError, digest_file, write_json

NAMED = 10  # bad samples that the error itself names; the report has them all


def main(params: VerifyParams, context: Context) -> Result:
    """Verify the set, repair it where asked, and write the report."""
    context.catch_stop()
    torch.set_num_threads(params.threads)
    samples = open_samples(params.samples)
    folder = Path(params.features)
    features = FeatureSet(folder, read_config(folder), read_manifest(folder))
    target = load_target(params.target, dtype=features.config["target_dtype"], device=params.device)
    _check_origin(features, samples, target)
    bad = _check_all(features, samples, params, context)
    surplus = _surplus(features)
    recomputed = _recompute(features, samples, target, params, bad=bad, context=context)
    repaired = []
    if params.repair and (bad or surplus):
        repaired = _repair(features, samples, target, bad=bad, context=context)
    report = {
        "num_samples": len(samples),
        "bad": {str(index): reason for index, reason in sorted(bad.items())},
        "surplus": surplus,
        "recomputed": recomputed,
        "repaired": repaired,
        "layers": features.layers,
    }
    write_json(context.outputs["report"], report)
    if (bad or surplus) and not params.repair:
        raise ToolError(
            f"{len(bad)} bad samples, {len(surplus)} surplus files",
            where=str(folder),
            found=_listed(bad, surplus),
            do="Run 'verify' with repair: true",
        )
    worst = max((layer["relative"] for each in recomputed for layer in each["layers"]), default=0.0)
    note = f"{len(samples)} samples good, {len(recomputed)} recomputed (largest relative difference {worst:.2g})"
    return Result(
        values={"num_samples": len(samples), "num_repaired": len(repaired)},
        metrics={"largest_relative_difference": worst},
        note=note + (f", {len(repaired)} repaired" if repaired else ""),
    )


def _listed(bad: dict[int, str], surplus: list[str]) -> str:
    lines = [f"sample {index}: {reason}" for index, reason in sorted(bad.items())]
    lines += [f"'{name}': belongs to no sample" for name in surplus]
    more = f"; and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return "; ".join(lines[:NAMED]) + more


def _check_origin(features: FeatureSet, samples: SampleSet, target: Target) -> None:
    """Raise ToolError when the features are of another target or another sample set: none of them is right then."""
    pairs = [
        ("target", features.target_fingerprint, target.fingerprint),
        ("sample set", features.samples_digest, samples.digest),
    ]
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise ToolError(
                f"the features were extracted from another {what}",
                where=str(features.path),
                found=f"'{theirs[:12]}' where the {what} has '{ours[:12]}'",
                do="Run 'extract' with these.",
            )


def _check_all(features: FeatureSet, samples: SampleSet, params: VerifyParams, context: Context) -> dict[int, str]:
    """What is wrong with each bad sample, by index."""
    bad = {}
    for index in range(len(samples)):
        reason = _fault(features, samples, index, largest=params.largest)
        if reason:
            bad[index] = reason
            context.say(f"sample {index}: {reason}")
        context.progress(index + 1, len(samples), unit="samples")
        context.stop_point()
    return bad


def _fault(features: FeatureSet, samples: SampleSet, index: int, *, largest: float) -> str:
    """The first thing wrong with a sample's file, "" for a good one."""
    reason = _file_fault(features, index)
    if reason:
        return reason
    try:
        sample = load_features(features.path / file_name(index))
    except ToolError as error:
        return f"its file can't be read: {error.found}"
    input_ids, loss_mask = samples[index]
    if {sample.input_ids.dtype, sample.loss_mask.dtype} != {torch.int64}:
        return f"its ids and mask are {sample.input_ids.dtype} and {sample.loss_mask.dtype}, not torch.int64"
    if sample.input_ids.tolist() != input_ids.tolist():
        return f"its {len(sample.input_ids)} token ids are not the sample's {len(input_ids)}"
    if features.entries[index].num_tokens != len(input_ids):
        return f"the manifest says {features.entries[index].num_tokens} tokens, the sample has {len(input_ids)}"
    if sample.loss_mask.tolist() != loss_mask.tolist():
        return "its loss mask is not the sample's"
    if len(sample.hidden_states) != len(features.layers):
        return f"it has {len(sample.hidden_states)} layers, the set has {len(features.layers)}"
    shape = (len(input_ids), int(features.config["hidden_size"]))
    faults = (
        _state_fault(layer, state, shape=shape, dtype=features.dtype, largest=largest)
        for layer, state in zip(features.layers, sample.hidden_states, strict=True)
    )
    return next(filter(None, faults), "")


def _file_fault(features: FeatureSet, index: int) -> str:
    """What is wrong with a file as such, against the manifest."""
    file, entry = features.path / file_name(index), features.entries.get(index)
    if not file.is_file():
        return "its file is missing"
    if entry is None:
        return "the manifest has no line for it"
    if file.stat().st_size != entry.size:
        return f"its file has {file.stat().st_size} bytes, the manifest says {entry.size}"
    if digest_file(file) != entry.sha256:
        return "its bytes are not those that were written (digest differs)"
    return ""


def _state_fault(layer: int, state: torch.Tensor, *, shape: tuple[int, int], dtype: torch.dtype, largest: float) -> str:
    """What is wrong with one layer's states [T, H]."""
    if tuple(state.shape) != shape or state.dtype != dtype:
        return f"layer {layer} is {state.dtype} {tuple(state.shape)}, not {dtype} {shape}"
    top = float(state.float().abs().max())
    if not top < largest:  # also where it is NaN
        return f"layer {layer} holds values that aren't finite or sane (largest {top:g})"
    return f"layer {layer} is all zero" if top == 0 else ""


def _surplus(features: FeatureSet) -> list[str]:
    """Files that belong to no sample."""
    expected = {CONFIG, LENGTHS, MANIFEST, *(file_name(index) for index in range(len(features)))}
    found = (str(file.relative_to(features.path)) for file in features.path.rglob("*") if not file.is_dir())
    return sorted(name for name in found if name not in expected)


def _recompute(
    features: FeatureSet,
    samples: SampleSet,
    target: Target,
    params: VerifyParams,
    *,
    bad: dict[int, str],
    context: Context,
) -> list[dict[str, Any]]:
    """Compare random good samples with a forward of each by itself; those that differ become bad.

    States that are wrong under a right digest were extracted wrongly, and then hardly alone: if there are any, every
    sample is compared.
    """
    good = [index for index in range(len(samples)) if index not in bad]
    order = random.Random(params.seed).sample(good, len(good))  # noqa: S311
    found: list[dict[str, Any]] = []
    for index in order:
        if len(found) >= params.recompute and not any(each["explanation"] for each in found):
            break
        context.stop_point()
        comparison = compare(target, features[index], features.layers, final=features.final, tolerance=params.tolerance)
        if comparison["explanation"]:
            bad[index] = comparison["explanation"]
        found.append({"sample": index, **comparison})
    return sorted(found, key=lambda each: each["sample"])


def _repair(
    features: FeatureSet, samples: SampleSet, target: Target, *, bad: dict[int, str], context: Context
) -> list[int]:
    """Extract the bad samples anew, remove the surplus files; returns what was extracted."""
    if features.final != "raw":
        raise ToolError("only raw final states can be extracted anew", where=str(features.path), found=features.final)
    for name in _surplus(features):
        (features.path / name).unlink()
    writer = FeatureWriter(features.path, features.config, {})
    extract(target, samples, writer, bad, config=features.config, after_sample=context.stop_point)
    writer.finish()
    again = FeatureSet(features.path, features.config, read_manifest(features.path))
    still = {index: reason for index in bad if (reason := _fault(again, samples, index, largest=float("inf")))}
    if still:
        raise ToolError("repaired samples are bad again", where=str(features.path), found=_listed(still, []))
    return sorted(bad)
