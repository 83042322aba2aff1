"""The work of `extract`: every missing sample through the target, resumed at the exact sample."""

import platform

import torch
import transformers

from eagle3.extract.spec import ExtractParams
from eagle3.extraction import extract, identity
from eagle3.features import FeatureWriter
from eagle3.layers import default_layers
from eagle3.samples import check_tokenizer, open_samples
from eagle3.target import load_target
from harness.contract import Context, Result, ToolError


def main(params: ExtractParams, context: Context) -> Result:
    """Extract what is missing of the feature set."""
    context.catch_stop()
    torch.set_num_threads(params.threads)
    samples = open_samples(params.samples)
    target = load_target(params.target, dtype=params.target_dtype, device=params.device)
    check_tokenizer(samples, target.tokenizer_fingerprint)
    layers = _layers(params.layers, target.num_layers)
    known = identity(target, samples, layers=layers, dtype=params.dtype, target_dtype=params.target_dtype)
    facts = {
        "engine": params.engine,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "batch_tokens": params.batch_tokens,
        "model": {"target_model_path": params.target, "hidden_size": target.hidden_size},
        "num_tokens": samples.num_tokens,
    }
    writer = FeatureWriter(context.outputs["features"], known, facts)
    missing = writer.missing(len(samples))
    if len(missing) < len(samples):
        context.say(f"{len(samples) - len(missing)} of {len(samples)} samples are there already")

    done = len(samples) - len(missing)

    def after_sample() -> None:
        nonlocal done
        done += 1
        context.progress(done, len(samples), unit="samples")
        context.stop_point()

    extract(target, samples, writer, missing, config={**facts, **known}, after_sample=after_sample)
    writer.finish()
    context.progress(len(samples), len(samples), unit="samples")
    size_bytes = writer.size_bytes
    return Result(
        values={"num_samples": len(samples), "num_tokens": samples.num_tokens, "size_bytes": size_bytes},
        note=f"{len(samples)} samples, {samples.num_tokens} tokens, {size_bytes / 2**20:.1f} MiB, layers {layers}",
    )


def _layers(asked: list[int] | None, num_layers: int) -> list[int]:
    """The layers to extract. Raises ToolError for layers out of order, doubled or beyond the target's."""
    if asked is None:
        return default_layers(num_layers)
    if (
        asked != sorted(set(asked))
        or not all(0 <= layer < num_layers for layer in asked)
        or asked[-1] != num_layers - 1
    ):
        raise ToolError(
            "layers are output indices in ascending order, the target's last layer at the end",
            found=str(asked),
            do=f"Write for example {default_layers(num_layers)}",
        )
    return asked
