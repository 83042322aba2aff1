"""The target as the other tools see it: states, head, generation, fingerprints."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GraniteConfig, GraniteForCausalLM
from workshop import make_target

from eagle3.target import Target, load_target, target_fingerprint, tokenizer_fingerprint
from eagle3.tokenizer import stop_ids
from harness.errors import ToolError

IDS = torch.tensor([[2, 20, 295, 310, 316, 4, 3, 283, 314]])


@pytest.fixture
def copied(target_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(target_path, tmp_path / "model"))


def test_states_are_the_outputs_of_the_asked_layers_in_the_asked_order(target: Target) -> None:
    reference = target.model(input_ids=IDS, output_hidden_states=True).hidden_states
    first, third, second = target.states(IDS, None, [0, 4, 2])
    assert torch.equal(first, reference[1])
    assert torch.equal(third, reference[5])
    assert torch.equal(second, reference[3])


def test_the_last_state_is_raw_and_the_head_norms_it(target: Target) -> None:
    normed = target.model(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    [raw] = target.states(IDS, None, [target.num_layers - 1])
    assert not torch.allclose(raw, normed, atol=1e-3)
    assert torch.allclose(target.model.get_decoder().norm(raw), normed, atol=1e-6)
    assert torch.allclose(target.head(raw), target.model(input_ids=IDS).logits, atol=1e-5)


def test_the_head_of_chosen_rows_is_those_columns_of_the_whole_head(target: Target) -> None:
    [raw] = target.states(IDS, None, [5])
    rows = torch.tensor([3, 0, 399])
    assert torch.allclose(target.head(raw, rows), target.head(raw)[..., rows], atol=1e-6)


def test_padding_on_the_right_leaves_the_states_of_the_tokens_alone(target: Target) -> None:
    padded = torch.cat([IDS, torch.zeros(1, 5, dtype=torch.long)], dim=1)
    mask = (torch.arange(padded.shape[1]) < IDS.shape[1]).long()[None]
    [alone], [beside] = target.states(IDS, None, [5]), target.states(padded, mask, [5])
    assert torch.allclose(alone, beside[:, : IDS.shape[1]], atol=1e-5)


def test_a_layer_that_is_not_there_is_refused_by_number(target: Target) -> None:
    with pytest.raises(ToolError, match=r"no such layer.*found 6.*from 0 to 5"):
        target.states(IDS, None, [2, 6])


def test_greedy_generation_is_step_by_step_arg_max_in_a_batch_of_unequal_prompts(target: Target) -> None:
    prompts = [[2, 20, 295], [2, 310, 316, 4, 3, 283, 314], [5]]
    answers = target.generate(prompts, max_new_tokens=9)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for token in answer:
            assert int(target.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        assert len(answer) == 9 or answer[-1] in target.stop_ids


def test_generation_stops_with_the_stop_id_or_at_each_rows_own_limit(target_path: Path, copied: Path) -> None:
    prompt = [2, 20, 295]
    free = load_target(target_path).generate([prompt], max_new_tokens=6)[0]
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, free[2]]}))
    stopped = load_target(copied).generate([prompt, prompt, prompt], max_new_tokens=[6, 1, 0])
    assert stopped == [free[: free.index(free[2]) + 1], free[:1], []]


def test_a_row_draws_the_same_whatever_stands_beside_it_and_another_seed_draws_otherwise(target: Target) -> None:
    alone = target.generate([[2, 20]], max_new_tokens=12, temperature=1.0, seeds=[7])
    beside = target.generate([[2, 9, 33, 8], [2, 20]], max_new_tokens=12, temperature=1.0, seeds=[1, 7])
    other = target.generate([[2, 20]], max_new_tokens=12, temperature=1.0, seeds=[8])
    assert beside[1] == alone[0] != other[0]


def test_temperature_draws_in_proportion_to_the_softmax(target: Target) -> None:
    logits = target.model(input_ids=torch.tensor([[2, 20]])).logits[0, -1]
    expected = torch.softmax(logits / 0.05, -1)
    drawn = target.generate([[2, 20]] * 2000, max_new_tokens=1, temperature=0.05, seeds=range(2000))
    found = torch.bincount(torch.tensor(drawn).flatten(), minlength=target.vocab_size) / 2000
    assert float((found - expected).abs().max()) < 0.05


def test_the_fingerprint_names_the_weights_and_the_config_but_not_the_place(target_path: Path, copied: Path) -> None:
    before = target_fingerprint(target_path)
    assert target_fingerprint(copied) == before
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert target_fingerprint(copied) != before


def test_the_tokenizers_fingerprint_follows_its_vocabulary_and_not_its_truncation(copied: Path, tmp_path: Path) -> None:
    before = tokenizer_fingerprint(copied)
    settings = json.loads((copied / "tokenizer.json").read_text())
    settings["truncation"] = {"max_length": 5, "direction": "Right", "strategy": "LongestFirst", "stride": 0}
    (copied / "tokenizer.json").write_text(json.dumps(settings))
    assert tokenizer_fingerprint(copied) == before
    assert tokenizer_fingerprint(make_target(tmp_path / "other", size=300)) != before


def test_stop_ids_are_those_of_the_tokenizer_and_of_the_generation_config(copied: Path, target: Target) -> None:
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert stop_ids(copied, target.tokenizer) == [4, 9]


def test_a_folder_that_is_no_model_is_told_apart_from_one_without_tokenizer(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="found no config"):
        load_target(tmp_path)
    (copied / "tokenizer.json").unlink()
    (copied / "tokenizer_config.json").unlink()
    with pytest.raises(ToolError, match="no tokenizer there"):
        load_target(copied)


def test_a_target_whose_logits_are_scaled_behind_the_head_is_refused(copied: Path) -> None:
    shape = json.loads((copied / "config.json").read_text())
    keep = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    model = GraniteForCausalLM(GraniteConfig(**{key: shape[key] for key in keep}, logits_scaling=8.0, eos_token_id=4))
    model.save_pretrained(copied)
    with pytest.raises(ToolError, match="not norm \\+ head"):
        load_target(copied)
