"""The work of `verify`: every file against the sample set and its digest, some against a reference forward."""

import json
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
    read_config,
    read_manifest,
)
from eagle3.samples import SampleSet, open_samples
from eagle3.target import Target, load_target
from eagle3.verify.inspection import Inspection
from eagle3.verify.recomputation import compare
from eagle3.verify.spec import VerifyParams
from harness.contract import Context, Result, ToolError, write_json

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
    inspection = Inspection(features, samples, largest=params.largest)
    bad, others = _check_all(inspection, context), _check_others(features, samples)
    recomputed = _recompute(features, samples, target, params, bad=bad, context=context)
    repaired = []
    if params.repair and (bad or others):
        repaired = _repair(features, samples, target, bad=bad, others=others, context=context)
    report = {
        "num_samples": len(samples),
        "bad": {str(index): reason for index, reason in sorted(bad.items())},
        "others": others,
        "ranges": [{"layer": layer, **each.to_dict()} for layer, each in inspection.ranges.items()],
        "recomputed": recomputed,
        "repaired": repaired,
        "layers": features.layers,
    }
    write_json(context.outputs["report"], report)
    if (bad or others) and not params.repair:
        raise ToolError(
            f"{len(bad)} bad samples, {len(others)} other bad files",
            where=str(folder),
            found=_listed(bad, others),
            do="Run 'verify' with repair: true",
        )
    fitting = [layer["relative"] for each in recomputed if not each["explanation"] for layer in each["layers"]]
    worst = max(fitting, default=0.0)
    note = f"{len(samples)} samples good, {len(recomputed)} recomputed (largest relative difference {worst:.2g})"
    return Result(
        values={"num_samples": len(samples), "num_repaired": len(repaired)},
        metrics={"largest_relative_difference": worst},
        note=note + (f", {len(repaired)} repaired" if repaired else ""),
    )


def _listed(bad: dict[int, str], others: dict[str, str]) -> str:
    lines = [f"sample {index}: {reason}" for index, reason in sorted(bad.items())]
    lines += [f"'{name}' {reason}" for name, reason in others.items()]
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


def _check_all(inspection: Inspection, context: Context) -> dict[int, str]:
    """What is wrong with each bad sample, by index."""
    bad, num_samples = {}, len(inspection.samples)
    for index in range(num_samples):
        reason = inspection.fault(index)
        if reason:
            bad[index] = reason
            context.say(f"sample {index}: {reason}")
        context.progress(index + 1, num_samples, unit="samples")
        context.stop_point()
    return bad


def _check_others(features: FeatureSet, samples: SampleSet) -> dict[str, str]:
    """What is wrong with the files that are no sample's, by name."""
    expected = {CONFIG, LENGTHS, MANIFEST, *(file_name(index) for index in range(len(samples)))}
    found = (str(file.relative_to(features.path)) for file in features.path.rglob("*") if not file.is_dir())
    bad = {name: "belongs to no sample" for name in sorted(found) if name not in expected}
    try:
        lengths = json.loads((features.path / LENGTHS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {**bad, LENGTHS: "is missing"}
    except ValueError:
        lengths = None
    if lengths != {str(index): int(length) for index, length in enumerate(samples.lengths)}:
        bad[LENGTHS] = "holds other lengths than the sample set"
    return bad


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
    features: FeatureSet,
    samples: SampleSet,
    target: Target,
    *,
    bad: dict[int, str],
    others: dict[str, str],
    context: Context,
) -> list[int]:
    """Extract the bad samples anew, remove the surplus files; returns what was extracted."""
    if features.final != "raw":
        raise ToolError("only raw final states can be extracted anew", where=str(features.path), found=features.final)
    for name in others:
        (features.path / name).unlink(missing_ok=True)
    writer = FeatureWriter(features.path, features.config, {})
    extract(target, samples, writer, bad, config=features.config, after_sample=context.stop_point)
    writer.finish()
    again = FeatureSet(features.path, features.config, read_manifest(features.path))
    inspection = Inspection(again, samples, largest=float("inf"))
    still = {index: reason for index in bad if (reason := inspection.fault(index))}
    if still:
        raise ToolError("repaired samples are bad again", where=str(features.path), found=_listed(still, {}))
    return sorted(bad)
