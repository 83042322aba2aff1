"""Parameters of `export`, which writes what a serving engine loads."""

from typing import Literal

from harness.contract import Params, Tool


class ExportParams(Params):
    out: str
    drafter: str
    target: str
    engine: Literal["sglang", "vllm"] = "sglang"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"


TOOL = Tool(
    name="export",
    version=1,
    summary="Write the drafter as SGLang's LlamaForCausalLMEagle3 reads it, with its layer numbers",
    params=ExportParams,
    run="eagle3.export.run:main",
    env="train",
    outputs={"model": "{out}"},
    values={"layer_ids": "auxiliary layers in the engine's own numbers", "size_bytes": "size of the weights"},
    inputs=("drafter", "target"),
)
