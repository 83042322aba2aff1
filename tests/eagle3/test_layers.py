"""Which layers are extracted by default, and what each engine calls them."""

import pytest

from eagle3.layers import default_layers, engine_layer_ids
from harness.contract import ToolError

LLAMA, KIMI = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(61, [2, 30, 58, 60]), (32, [2, 16, 29, 31]), (8, [2, 4, 5, 7]), (6, [2, 3, 4, 5]), (5, [1, 2, 3, 4])],
)
def test_the_default_layers_are_speculators_and_always_four_different_ones(num_layers: int, layers: list[int]) -> None:
    assert default_layers(num_layers) == layers


def test_a_target_with_too_few_layers_is_refused() -> None:
    with pytest.raises(ToolError, match="too few layers"):
        default_layers(4)


@pytest.mark.parametrize(
    ("engine", "architecture", "ids"),
    [
        ("sglang", LLAMA, [2, 30, 58]),
        ("sglang", "Qwen3ForCausalLM", [2, 30, 58]),
        ("sglang", "Glm4MoeForCausalLM", [2, 30, 58]),
        ("sglang", KIMI, [3, 31, 59]),
        ("sglang", "DeepseekV2ForCausalLM", [3, 31, 59]),
        ("sglang", "DeepseekV3ForCausalLM", [3, 31, 59]),
        ("sglang", "DeepseekV32ForCausalLM", [3, 31, 59]),
        ("sglang", "Glm4MoeLiteForCausalLM", [3, 31, 59]),
        ("vllm", LLAMA, [3, 31, 59]),
        ("vllm", KIMI, [3, 31, 59]),
    ],
)
def test_each_engine_gets_its_own_numbers_for_the_same_layers(engine: str, architecture: str, ids: list[int]) -> None:
    assert engine_layer_ids([2, 30, 58], engine, architecture) == ids


def test_ids_that_sglang_would_shift_once_more_are_refused() -> None:
    with pytest.raises(ToolError, match="output of layer 0"):
        engine_layer_ids([0, 30, 58], "sglang", KIMI)
    assert engine_layer_ids([0, 30, 58], "vllm", KIMI) == [1, 31, 59]


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(ToolError, match="'trt'"):
        engine_layer_ids([2, 30, 58], "trt", LLAMA)
