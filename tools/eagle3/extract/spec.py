"""Parameters of `extract`, which makes the features."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.contract import Needs, Params, Tool

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class ExtractParams(Params):
    """`layers` are output indices, the final one last; nothing said: three auxiliary layers and the last."""

    out: str
    samples: str
    target: str
    engine: Literal["transformers"] = "transformers"
    layers: list[int] | None = Field(None, min_length=2)
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    target_dtype: Literal["bfloat16", "float16", "float32"] = "float32"  # in which the target computes
    device: str = "cpu"
    batch_tokens: int = Field(4096, ge=1)
    threads: int = Field(2, ge=1)


def needs(params: ExtractParams) -> Needs:
    """Disk for tokens x layers x hidden size x bytes of the dtype, where samples and target exist already."""
    try:
        num_tokens = json.loads((Path(params.samples) / "dataset.json").read_text(encoding="utf-8"))["num_tokens"]
        config = json.loads((Path(params.target) / "config.json").read_text(encoding="utf-8"))
        hidden_size = (config.get("text_config") or config)["hidden_size"]
    except (OSError, ValueError, KeyError):
        return Needs(cpus=params.threads)
    num_layers = len(params.layers) if params.layers else 4
    size_bytes = num_tokens * num_layers * hidden_size * DTYPE_BYTES[params.dtype]
    return Needs(cpus=params.threads, disk_bytes={params.out: size_bytes})


TOOL = Tool(
    name="extract",
    version=1,
    summary="Extract the target's hidden states of the asked layers for every sample",
    params=ExtractParams,
    run="eagle3.extract.run:main",
    env="train",
    outputs={"features": "{out}"},
    values={
        "num_samples": "samples extracted",
        "num_tokens": "their tokens",
        "size_bytes": "bytes of the feature files",
    },
    inputs=("samples", "target"),
    neutral=("batch_tokens",),
    needs=needs,
)
