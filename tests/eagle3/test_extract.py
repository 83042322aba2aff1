"""Feature sets: extracted, resumed after a kill, read back."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.extract.spec import TOOL, needs
from eagle3.extraction import batches
from eagle3.features import FeatureSet, file_name, open_features
from eagle3.layers import default_layers
from eagle3.samples import SampleSet
from eagle3.target import Target
from harness.contract import Result, ToolError

Run = Callable[..., Result]


@pytest.fixture
def asked(samples_path: Path, target_path: Path) -> dict[str, Any]:
    return {"out": "f", "samples": str(samples_path), "target": str(target_path), "dtype": "float32", "threads": 1}


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.glob("*/*.pt"))}


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("*/*.pt")}


def test_batched_states_are_those_of_each_sample_by_itself(
    run_tool: Run, asked: dict[str, Any], root: Path, target: Target, samples: SampleSet
) -> None:
    mixed = [batch for batch in batches(samples.lengths.tolist(), 400) if len({*samples.lengths[batch].tolist()}) > 1]
    assert mixed, "some rows must be padded"
    result = run_tool(TOOL, **asked, batch_tokens=400)
    features = open_features(root / "f")
    assert result.values["num_samples"] == len(features) == len(samples)
    assert features.layers == default_layers(target.num_layers)
    assert features.final == "raw"
    for index in range(len(samples)):
        ids, mask = samples[index]
        sample = features[index]
        assert sample.input_ids.tolist() == ids.tolist()
        assert sample.loss_mask.bool().tolist() == mask.tolist()
        own = target.states(torch.from_numpy(ids)[None], None, features.layers)
        for stored, state in zip(sample.hidden_states, own, strict=True):
            assert stored.shape == (len(ids), target.hidden_size)
            assert torch.allclose(stored, state[0], atol=1e-5), f"sample {index}"


def test_the_final_state_gives_the_targets_own_logits(
    run_tool: Run, asked: dict[str, Any], root: Path, target: Target, samples: SampleSet
) -> None:
    run_tool(TOOL, **asked)
    ids, _ = samples[0]
    with torch.inference_mode():
        own = target.model(torch.from_numpy(ids)[None]).logits[0]
        ours = target.head(open_features(root / "f")[0].hidden_states[-1])
    assert torch.allclose(own, ours, atol=1e-4)


def test_the_default_dtype_halves_the_bytes_and_the_forecast_counts_them(run_tool: Run, asked: dict[str, Any]) -> None:
    asked.pop("dtype")
    result = run_tool(TOOL, **asked)
    (forecast,) = needs(TOOL.params(**asked)).disk_bytes.values()
    assert forecast == result.values["num_tokens"] * 4 * 32 * 2
    assert forecast < result.values["size_bytes"] < forecast * 3  # small files, so the headers weigh


def test_batches_hold_each_sample_once_within_the_budget() -> None:
    lengths = [5, 900, 3, 40, 41, 40, 7]
    found = batches(lengths, 100)
    assert sorted(index for batch in found for index in batch) == list(range(7))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 100 for batch in found if len(batch) > 1)


def wait_for_files(process: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    end = time.monotonic() + 60
    while len(list(folder.glob("*/data_*.pt"))) < count:
        assert process.poll() is None, "the tool ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_on_at_the_exact_sample_with_the_same_bytes(
    run_tool: Run, start_tool: Callable[..., Any], asked: dict[str, Any], root: Path, number: signal.Signals
) -> None:
    run_tool(TOOL, **{**asked, "out": "whole"}, batch_tokens=100)
    process = start_tool(TOOL, **asked, batch_tokens=100)
    wait_for_files(process, root / "f", 4)
    os.kill(process.pid, number)
    code = process.wait(30)
    assert code == (-9 if number == signal.SIGKILL else 75)
    before = times(root / "f")
    assert 4 <= len(before) < 24, "it was not killed in the middle"
    (root / "f" / "00000" / ".data_23.pt.1.partial").write_bytes(b"left by the kill")
    with (root / "f" / "manifest.jsonl").open("a") as manifest:
        manifest.write('{"index": 3, "pa')
    run_tool(TOOL, **asked, batch_tokens=100)
    after = times(root / "f")
    redone = [name for name in before if before[name] != after[name]]
    assert len(redone) <= 1, "only the sample that was being noted may be written again"
    assert content(root / "f") == content(root / "whole")
    assert not list((root / "f").glob("*/.*"))
    lines = (root / "f" / "manifest.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(24))


def test_another_layer_choice_starts_anew_and_a_rerun_writes_nothing(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    run_tool(TOOL, **asked)
    before = times(root / "f")
    run_tool(TOOL, **asked)
    assert times(root / "f") == before
    run_tool(TOOL, **asked, layers=[1, 2, 3, 5])
    assert open_features(root / "f").layers == [1, 2, 3, 5]
    assert all(times(root / "f")[name] != before[name] for name in before)


@pytest.mark.parametrize("layers", [[2, 1, 3, 5], [1, 2, 3, 4], [1, 2, 3, 6], [1, 1, 5]])
def test_layers_out_of_order_or_without_the_last_are_refused(
    run_tool: Run, asked: dict[str, Any], layers: list[int]
) -> None:
    with pytest.raises(ToolError, match="ascending order"):
        run_tool(TOOL, **asked, layers=layers)


def test_an_incomplete_or_missing_set_is_not_opened(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    with pytest.raises(ToolError, match="no feature set there"):
        open_features(root / "f")
    run_tool(TOOL, **asked)
    manifest = root / "f" / "manifest.jsonl"
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(ToolError, match="2 of 24 samples missing, the first is 22"):
        open_features(root / "f")


def test_a_damaged_file_says_so_when_it_is_read(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    features: FeatureSet = open_features(root / "f")
    file = root / "f" / file_name(3)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ToolError, match="damaged"):
        features[3]
    file.unlink()
    with pytest.raises(ToolError, match="missing"):
        features[3]


def test_an_extraction_made_anew_is_the_same_to_the_byte(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    run_tool(TOOL, **{**asked, "out": "again"})
    for name in ("data_config.json", "sample_lengths.json"):
        assert (root / "f" / name).read_bytes() == (root / "again" / name).read_bytes()
    assert content(root / "f") == content(root / "again")
