"""Which layers of the target are features, and how each serving engine numbers them."""

from collections.abc import Sequence

from harness.contract import ToolError

SGLANG_INPUT_ARCHITECTURES = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)


def default_layers(num_layers: int) -> list[int]:
    """The layers to extract by default, by output index: three auxiliary ones and the last, four numbers ascending.

    [2, n // 2, n - 3, n - 1], as in speculators; below seven layers the outer two move so that all four differ.
    Raises ToolError below five layers.
    """
    if num_layers < 5:
        raise ToolError("too few layers for three auxiliary states and a final one", found=str(num_layers))
    middle = num_layers // 2
    return [min(2, middle - 1), middle, max(num_layers - 3, middle + 1), num_layers - 1]


def engine_layer_ids(layers: Sequence[int], engine: str, architecture: str) -> list[int]:
    """The numbers that `engine` ("sglang" or "vllm") wants in `eagle_aux_hidden_state_layer_ids`.

    `layers` are the auxiliary layers by output index (layer k's output; no final one); `architecture` is the target's,
    as its config.json spells it. SGLang adds one to what it reads for most targets, so it gets output indices; for its
    DeepSeek, Kimi and GLM-Lite classes it reads input indices (k + 1), unless the first is 1. vLLM reads input indices.
    A wrong number raises no error there, it only costs acceptance.

    Raises ToolError for an unknown engine, or for layers that the engine has no numbers for.
    """
    if engine not in ("sglang", "vllm"):
        raise ToolError("unknown serving engine", found=repr(engine), do="Known are 'sglang' and 'vllm'.")
    if engine == "sglang" and architecture not in SGLANG_INPUT_ARCHITECTURES:
        return list(layers)
    ids = [layer + 1 for layer in layers]
    if engine == "sglang" and ids[0] == 1:
        raise ToolError(
            "SGLang can't capture the output of layer 0 first: it would read the ids as output indices",
            where=architecture,
            found=str(list(layers)),
            do="Extract and train with a first layer of 1 or more.",
        )
    return ids
