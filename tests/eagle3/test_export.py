"""The tool `export`: what SGLang reads is there, named and numbered as it reads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from workshop import make_target

from eagle3.export.run import check
from eagle3.export.spec import TOOL
from eagle3.model import Shape, unrolled_states
from eagle3.target import Target
from eagle3.vocabulary import Vocabulary
from eagle3.weights import load_drafter, new_drafter, save_drafter
from harness.contract import Result, ToolError

Run = Callable[..., Result]


@pytest.fixture
def asked(root: Path, target: Target, vocabulary: Vocabulary) -> dict[str, Any]:
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=3)
    facts = {
        "layers": [2, 3, 4],
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
    }
    save_drafter(root / "drafter", drafter, facts)
    return {"out": "export", "drafter": "drafter", "target": str(target.path)}


def test_the_folder_holds_exactly_the_tensors_of_the_loader(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    tensors = load_file(root / "export" / "model.safetensors")
    layer = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    layer += [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    weights = {*(f"midlayer.{name}.weight" for name in layer), "fc.weight", "norm.weight", "lm_head.weight"}
    assert tensors.keys() == weights | {"d2t", "t2d"}
    assert {tensors[name].dtype for name in weights} == {torch.bfloat16}
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert {file.name for file in (root / "export").iterdir()} == {"config.json", "model.safetensors"}


def test_the_config_says_what_the_engine_asks_for(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    result = run_tool(TOOL, **asked)
    config = json.loads((root / "export" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "use_aux_hidden_state": True}
    assert (config["vocab_size"], config["draft_vocab_size"], config["num_hidden_layers"]) == (400, 60, 1)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["tie_word_embeddings"] is False
    assert config["eos_token_id"] == 4
    assert "norm_output" not in config, "engines disagree on what it means"
    assert result.values["layer_ids"] == [2, 3, 4]


def test_layer_ids_follow_the_engine_and_the_targets_outer_class(
    run_tool: Run, asked: dict[str, Any], root: Path, target: Target
) -> None:
    assert run_tool(TOOL, **asked, engine="vllm").values["layer_ids"] == [3, 4, 5]
    config = json.loads((target.path / "config.json").read_text())
    kimi = Path(shutil.copytree(target.path, root / "kimi"))
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": config}
    (kimi / "config.json").write_text(json.dumps(outer))
    from eagle3.target import target_fingerprint

    facts = json.loads((root / "drafter" / "drafter.json").read_text())
    facts["target_fingerprint"] = target_fingerprint(kimi)
    (root / "drafter" / "drafter.json").write_text(json.dumps(facts))
    assert run_tool(TOOL, **asked | {"target": "kimi"}).values["layer_ids"] == [3, 4, 5]


class Reader:
    """The draft forward as an engine does it for one sample, from the exported folder alone."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")

    def project(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + self.config["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        head = self.config["head_dim"]
        frequencies = self.config["rope_theta"] ** (-torch.arange(0, head, 2) / head)
        angles = (torch.arange(len(x))[:, None] * frequencies).repeat(1, 2)[:, None]
        turned = torch.cat([-x[..., head // 2 :], x[..., : head // 2]], -1)
        return x * angles.cos() + turned * angles.sin()

    def tokens(self, aux: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """Target ids drafted at each position [T], from aux [T, 3H] and the embedded next tokens [T, H]."""
        state, layer = self.project("fc", aux), "midlayer."
        both = torch.cat([self.norm(layer + "input_layernorm", embeds), self.norm(layer + "hidden_norm", state)], -1)
        heads, head = self.config["num_attention_heads"], self.config["head_dim"]
        query, key, value = (
            self.project(f"{layer}self_attn.{name}_proj", both).view(len(both), -1, head) for name in "qkv"
        )
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
        parts = (x.transpose(0, 1) for x in (self.rope(query), self.rope(key), value))
        attended = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1).flatten(1)
        state = state + self.project(layer + "self_attn.o_proj", attended)
        x = self.norm(layer + "post_attention_layernorm", state)
        inner = F.silu(self.project(layer + "mlp.gate_proj", x)) * self.project(layer + "mlp.up_proj", x)
        state = state + self.project(layer + "mlp.down_proj", inner)
        best = self.project("lm_head", self.norm("norm", state)).argmax(-1)
        return best + self.tensors["d2t"][best]


@torch.no_grad()
def test_an_engine_drafts_the_same_tokens_from_the_exported_folder_alone(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    run_tool(TOOL, **asked, dtype="float32")
    drafter, _ = load_drafter("drafter")
    torch.manual_seed(0)
    aux, embeds = torch.randn(30, 96), torch.randn(30, 32)
    [state] = unrolled_states(drafter, aux, embeds, lengths=[30], unroll=1)
    ours = drafter.target_ids[drafter.logits(state).argmax(-1)]
    theirs = Reader(root / "export").tokens(aux[:-1], embeds[1:])
    assert ours[:-1].tolist() == theirs.tolist()
    assert len(set(theirs.tolist())) > 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tensors: tensors.pop("fc.weight"), "'fc.weight' missing"),
        (lambda tensors: tensors.update({"midlayer.extra.weight": torch.zeros(1)}), "'midlayer.extra.weight' never"),
        (lambda tensors: tensors.update({"norm.weight": torch.zeros(7)}), r"'norm.weight' \[7\] for \[32\]"),
        (lambda tensors: tensors["d2t"].add_(1), "name different tokens"),
    ],
)
def test_a_folder_that_the_engine_would_load_in_part_is_refused(
    run_tool: Run, asked: dict[str, Any], root: Path, change: Callable[[dict[str, torch.Tensor]], Any], found: str
) -> None:
    run_tool(TOOL, **asked)
    check(root / "export")
    file = root / "export" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ToolError, match=found):
        check(root / "export")


def test_another_targets_drafter_is_not_exported(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    make_target(root / "other", seed=1)
    with pytest.raises(ToolError, match="trained for another target"):
        run_tool(TOOL, **asked | {"target": "other"})
