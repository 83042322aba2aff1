"""The tool `train`: it learns, it is resumed to the bit, it refuses what doesn't belong together."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from workshop import lines_of, make_target

from eagle3.features import Features, FeatureWriter, open_features
from eagle3.losses import Acceptance, Outcome
from eagle3.model import Shape
from eagle3.target import Target
from eagle3.train.kept import Kept
from eagle3.train.packing import Schedule, packed, split
from eagle3.train.spec import TOOL
from eagle3.train.trainer import Trainer, learning_rate
from eagle3.vocabulary import Vocabulary
from eagle3.weights import load_drafter, load_weights, new_drafter, save_drafter
from harness.contract import Result, ToolError

Run = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def asked(features_path: Path, vocabulary_path: Path, target_path: Path) -> dict[str, Any]:
    return {
        "out": "drafter",
        "features": str(features_path),
        "vocab": str(vocabulary_path),
        "target": str(target_path),
        "steps": 12,
        "batch_tokens": 200,
        "unroll": 3,
        "learning_rate": 3e-3,
        "threads": 1,
    }


def metrics(root: Path, name: str) -> list[float]:
    events = [event["values"] for event in lines_of(root) if event["type"] == "metric"]
    return [values[name] for values in events if name in values]


def test_it_learns_what_it_is_taught_and_keeps_the_drafter_with_the_best_acceptance(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    result = run_tool(TOOL, **asked | {"steps": 150, "validate_every": 25, "validation_fraction": 0.2})
    losses, lengths = metrics(root, "loss"), metrics(root, "validation_acceptance_length")
    assert losses[-1] < losses[0] / 2
    assert len(lengths) == 6
    assert result.values["acceptance_length"] == max(lengths)
    assert result.values["step"] == 25 * (1 + lengths.index(max(lengths)))
    _, facts = load_drafter(root / "drafter")
    assert facts["layers"] == [2, 3, 4]
    assert facts["acceptance_length"] == result.values["acceptance_length"]


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the tool ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_training_ends_with_the_same_bytes_as_one_left_alone(
    run_tool: Run, start_tool: Start, asked: dict[str, Any], root: Path, number: signal.Signals
) -> None:
    asked |= {"steps": 60, "checkpoint_every": 7, "validate_every": 5}
    run_tool(TOOL, **asked | {"out": "alone"})
    shutil.rmtree(root / ".scratch")
    (root / ".attempt" / "events.jsonl").unlink()

    def steps_done() -> int:
        file = root / ".attempt" / "events.jsonl"
        return file.read_text().count('"learning_rate"') if file.exists() else 0

    process = start_tool(TOOL, **asked, log_every=1)
    wait_for(process, lambda: steps_done() >= 10)
    os.kill(process.pid, number)
    assert process.wait(30) == (-9 if number == signal.SIGKILL else 75)
    reached = torch.load(root / ".scratch" / "progress.pt", weights_only=True)["next_step"]
    assert 7 <= reached < 60
    assert reached % 7 == 0 or number == signal.SIGTERM, "SIGTERM saves at once"
    assert not (root / "drafter").exists()
    run_tool(TOOL, **asked)
    said = [event["text"] for event in lines_of(root) if event["type"] == "say"]
    assert f"going on at step {reached}" in said[-1]
    assert (root / "drafter" / "model.safetensors").read_bytes() == (root / "alone" / "model.safetensors").read_bytes()


def test_the_best_drafter_stays_when_a_later_one_is_worse(
    root: Path, target: Target, vocabulary: Vocabulary, asked: dict[str, Any]
) -> None:
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=1)
    trainer = Trainer(TOOL.params(**asked), drafter, target, normed=False, num_steps=12)
    kept = Kept(root)
    for step, accepted in enumerate((2, 5, 4, 5)):
        hits = (torch.arange(10) < accepted)[None]
        acceptance = Acceptance(1)
        acceptance.add(Outcome(torch.tensor(0.0), [], hits, torch.ones_like(hits)))
        trainer.next_step = step
        torch.nn.init.constant_(drafter.norm.weight, float(step))
        kept.judge(trainer, acceptance, loss=1.0)
    best = kept.best()
    assert (best["step"], best["acceptance_length"]) == (1, 1.5)
    assert best["drafter"]["norm.weight"].unique().tolist() == [1.0]


def test_features_and_vocabulary_of_another_model_are_refused(
    run_tool: Run, asked: dict[str, Any], root: Path, target_path: Path
) -> None:
    other = make_target(root / "other", seed=1)
    with pytest.raises(ToolError, match="extracted from another target"):
        run_tool(TOOL, **asked | {"target": str(other)})
    facts = Path(asked["vocab"]) / "vocabulary.json"
    foreign = root / "vocabulary"
    shutil.copytree(facts.parent, foreign)
    vocabulary = Vocabulary(np.load(foreign / "t2d.npy"), np.load(foreign / "d2t.npy"), "another")
    vocabulary.save(foreign)
    with pytest.raises(ToolError, match="another tokenizer"):
        run_tool(TOOL, **asked | {"vocab": str(foreign)})


def test_samples_that_break_the_loss_are_named(
    run_tool: Run, asked: dict[str, Any], root: Path, features_path: Path
) -> None:
    shutil.copytree(features_path, root / "features")
    features = open_features(root / "features")
    bad = features[9]
    bad.hidden_states[1][3, 0] = torch.nan
    writer = FeatureWriter(root / "features", features.config, {})
    writer.write(9, Features(bad.input_ids, bad.loss_mask, bad.hidden_states))
    with pytest.raises(ToolError, match=r"not finite.*samples \d+.*\b9\b"):
        run_tool(TOOL, **asked | {"features": "features", "validation_fraction": 0.01, "steps": 200})


@pytest.mark.parametrize("frozen", [True, False])
def test_the_head_is_trained_unless_it_is_frozen(
    run_tool: Run, asked: dict[str, Any], root: Path, target: Target, frozen: bool
) -> None:
    run_tool(TOOL, **asked, freeze_lm_head=frozen)
    drafter, _ = load_drafter(root / "drafter")
    rows = target.model.get_output_embeddings().weight[drafter.target_ids]
    assert torch.equal(drafter.lm_head.weight, rows) == frozen


def test_it_goes_on_from_a_checkpoint_of_another_vocabulary_row_by_target_id(
    run_tool: Run, asked: dict[str, Any], root: Path, target: Target, vocabulary: Vocabulary
) -> None:
    ids = [5, *vocabulary.target_ids[10:].tolist()]
    counts = np.zeros(target.vocab_size, np.int64)
    counts[ids] = 1
    theirs = Vocabulary.from_counts(counts, len(ids), [], target.tokenizer_fingerprint)
    source = new_drafter(Shape.of(target, theirs, 3), theirs, target, seed=9)
    torch.nn.init.normal_(source.lm_head.weight)
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in source.state_dict().items()}
    (root / "theirs").mkdir()
    save_file(tensors, root / "theirs" / "model.safetensors")
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=1)
    untouched = drafter.lm_head.weight[:10].clone()
    shared = len(set(ids) & set(vocabulary.target_ids.tolist()))
    assert load_weights(drafter, root / "theirs") == shared
    assert torch.equal(drafter.midlayer.mlp.up_proj.weight, source.midlayer.mlp.up_proj.weight)
    rows = dict(zip(source.target_ids.tolist(), source.lm_head.weight, strict=True))
    for token, row in zip(drafter.target_ids.tolist(), drafter.lm_head.weight, strict=True):
        if token in rows:
            assert torch.equal(row, rows[token])
    lost = [i for i, token in enumerate(drafter.target_ids[:10].tolist()) if token not in rows]
    assert torch.equal(drafter.lm_head.weight[lost], untouched[lost])
    run_tool(TOOL, **asked | {"init_from": "theirs", "steps": 1, "learning_rate": 1e-9})
    trained, _ = load_drafter(root / "drafter")
    assert torch.allclose(trained.fc.weight, source.fc.weight, atol=1e-6)


def test_a_checkpoint_of_another_shape_is_refused_tensor_by_tensor(
    root: Path, target: Target, vocabulary: Vocabulary
) -> None:
    wide = new_drafter(Shape.of(target, vocabulary, 3, intermediate_size=80), vocabulary, target, seed=0)
    save_drafter(root / "wide", wide, {})
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=0)
    with pytest.raises(ToolError, match=r"'midlayer.mlp.up_proj.weight' \[80, 32\]"):
        load_weights(drafter, root / "wide")
    with pytest.raises(ToolError, match=r"no 'model.safetensors'"):
        load_weights(drafter, root)


def test_a_drafter_comes_back_from_disk_as_it_was_and_a_damaged_one_is_told(
    root: Path, target: Target, vocabulary: Vocabulary
) -> None:
    drafter = new_drafter(Shape.of(target, vocabulary, 3), vocabulary, target, seed=0)
    save_drafter(root / "d", drafter, {"tokenizer_fingerprint": "t", "layers": [2, 3, 4]})
    loaded, facts = load_drafter(root / "d")
    assert facts["layers"] == [2, 3, 4]
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in drafter.state_dict().items())
    tensors = load_file(root / "d" / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, root / "d" / "model.safetensors")
    with pytest.raises(ToolError, match="damaged"):
        load_drafter(root / "d")
    (root / "d" / "drafter.json").unlink()
    with pytest.raises(ToolError, match="no drafter there"):
        load_drafter(root / "d")


def test_steps_or_epochs_but_one_of_them(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="steps or epochs"):
        TOOL.params(**asked, epochs=2)
    asked.pop("steps")
    with pytest.raises(ValueError, match="steps or epochs"):
        TOOL.params(**asked)


def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine() -> None:
    rates = [learning_rate(step, 100, peak=2.0, warmup_ratio=0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.001
    assert learning_rate(0, 1, peak=2.0, warmup_ratio=0.0) == 2.0


def test_every_epoch_reads_every_sample_once_in_its_own_order_within_the_budget() -> None:
    lengths = np.array([30, 90, 20, 50, 300, 10, 60, 40])
    schedule = Schedule(np.arange(8), lengths, batch_tokens=100, seed=3)
    epochs = []
    for epoch in range(3):
        steps = range(schedule.num_steps(epoch), schedule.num_steps(epoch + 1))
        batches = [schedule.samples(step) for step in steps]
        assert all(lengths[batch].sum() <= 100 or len(batch) == 1 for batch in batches)
        assert [schedule.ends_epoch(step) for step in steps] == [False] * (len(steps) - 1) + [True]
        epochs.append([sample for batch in batches for sample in batch])
        assert sorted(epochs[-1]) == list(range(8))
    assert epochs[0] != epochs[1] != epochs[2]
    again = Schedule(np.arange(8), lengths, batch_tokens=100, seed=3)
    last = schedule.num_steps(3) - 1
    assert again.samples(last) == schedule.samples(last), "a resumed run finds its place from the step's number alone"
    assert [len(group) for group in packed([4, 0, 2], lengths, 100)] == [1, 2]


def test_the_validation_samples_are_never_trained_on() -> None:
    training, validation = split(100, 0.1, seed=1)
    assert len(validation) == 10
    assert sorted([*training, *validation]) == list(range(100))
    assert [len(part) for part in split(2, 0.001, seed=1)] == [1, 1]
    assert [part.tolist() for part in split(1, 0.5, seed=1)] == [[0], [0]]


def test_the_drafter_names_what_it_was_made_from(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    facts = json.loads((root / "drafter" / "drafter.json").read_text())
    assert facts["training"]["steps"] == 12
    assert facts["target_fingerprint"] == open_features(asked["features"]).target_fingerprint
