"""Damage of every kind, found by name and repaired alone."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from workshop import make_target

from eagle3.extract.spec import TOOL as EXTRACT
from eagle3.features import Features, FeatureWriter, file_name, open_features
from eagle3.target import load_target
from eagle3.verify.spec import TOOL
from harness.contract import Result, ToolError

Run = Callable[..., Result]


@pytest.fixture
def asked(run_tool: Run, samples_path: Path, target_path: Path) -> dict[str, Any]:
    """A good feature set in `f`, and what `verify` is asked."""
    run_tool(EXTRACT, out="f", samples=str(samples_path), target=str(target_path), threads=1)
    return {"out": "v", "features": "f", "samples": str(samples_path), "target": str(target_path), "threads": 1}


def times(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.glob("*/*.pt")}


def rewrite(root: Path, index: int, change: Callable[[Features], Features]) -> None:
    """Write a sample anew as a wrong extraction would have: with a manifest line that fits it."""
    features = open_features(root / "f")
    FeatureWriter(features.path, features.config, {}).write(index, change(features[index]))


def test_a_good_set_passes_and_the_report_has_its_figures(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    result = run_tool(TOOL, **asked, recompute=5)
    report = json.loads((root / "v" / "report.json").read_text())
    assert (report["num_samples"], report["bad"], len(report["recomputed"])) == (24, {}, 5)
    for sample in report["recomputed"]:
        assert [layer["layer"] for layer in sample["layers"]] == report["layers"]
        assert all(layer["cosine"] > 0.999 and layer["relative"] < 0.01 for layer in sample["layers"])
    assert result.values["num_repaired"] == 0


def test_the_report_has_the_range_of_every_layer(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    ranges = json.loads((root / "v" / "report.json").read_text())["ranges"]
    features = open_features(root / "f")
    for position, layer in enumerate(features.layers):
        states = torch.cat([features[index].hidden_states[position].float() for index in range(24)])
        assert ranges[position]["layer"] == layer
        assert (ranges[position]["least"], ranges[position]["largest"]) == (float(states.min()), float(states.max()))
        assert ranges[position]["mean_absolute"] == pytest.approx(float(states.abs().mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_text("{"), "holds other lengths"),
        (lambda file: file.write_text('{"0": 3}'), "holds other lengths"),
    ],
)
def test_wrong_lengths_beside_good_samples_are_named_and_written_anew(
    run_tool: Run, asked: dict[str, Any], root: Path, change: Callable[[Path], Any], says: str
) -> None:
    lengths = root / "f" / "sample_lengths.json"
    whole, before = lengths.read_text(), times(root / "f")
    change(lengths)
    with pytest.raises(ToolError, match=f"'sample_lengths.json' {says}"):
        run_tool(TOOL, **asked)
    assert run_tool(TOOL, **asked, repair=True).values["num_repaired"] == 0
    assert lengths.read_text() == whole
    assert times(root / "f") == before


def test_a_flipped_byte_a_removed_and_a_truncated_file_are_named_and_only_they_are_repaired(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    whole = {file: (root / "f" / file).read_bytes() for file in times(root / "f")}
    flipped = root / "f" / file_name(3)
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    (root / "f" / file_name(9)).unlink()
    truncated = root / "f" / file_name(20)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    with pytest.raises(ToolError) as refused:
        run_tool(TOOL, **asked)
    assert refused.value.what == "3 bad samples, 0 other bad files"
    for part in ("sample 3: its bytes are not those", "sample 9: its file is missing", "sample 20: its file has"):
        assert part in refused.value.found
    assert set(json.loads((root / "v" / "report.json").read_text())["bad"]) == {"3", "9", "20"}
    before = times(root / "f")
    result = run_tool(TOOL, **asked, repair=True)
    assert result.values["num_repaired"] == 3
    after = times(root / "f")
    assert {name for name in after if before.get(name) != after[name]} == {file_name(i) for i in (3, 9, 20)}
    assert {file: (root / "f" / file).read_bytes() for file in after} == whole
    assert run_tool(TOOL, **asked).values["num_repaired"] == 0


def test_a_surplus_file_is_named_and_removed(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    surplus = [root / "f" / name for name in ("00000/data_77.pt", "data_3.pt", "00000/more/data_3.pt")]
    (root / "f" / "00000" / "more").mkdir()
    for file in surplus:
        file.write_bytes(b"x")
    with pytest.raises(ToolError, match="0 bad samples, 3 other bad files") as refused:
        run_tool(TOOL, **asked)
    assert "'00000/data_77.pt' belongs to no sample" in refused.value.found
    run_tool(TOOL, **asked, repair=True)
    assert not any(file.exists() for file in surplus)
    assert run_tool(TOOL, **asked).values["num_repaired"] == 0


def with_states(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Callable[[Features], Features]:
    return lambda sample: Features(
        sample.input_ids, sample.loss_mask, change([state.clone() for state in sample.hidden_states])
    )


def hollow(states: list[torch.Tensor]) -> list[torch.Tensor]:
    states[3][4] = 0
    return states


def spoilt(states: list[torch.Tensor], value: float) -> list[torch.Tensor]:
    states[1][0, 0] = value
    return states


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_states(lambda s: spoilt(s, float("nan"))), "aren't finite or sane"),
        (with_states(lambda s: spoilt(s, 1e9)), "aren't finite or sane"),
        (with_states(lambda s: [torch.zeros_like(s[0]), *s[1:]]), "is all zero"),
        (with_states(hollow), "is all zero at 1 of"),
        (with_states(lambda s: s[:-1]), "it has 3 layers, the set has 4"),
        (with_states(lambda s: [state[:-1] for state in s]), "not torch.bfloat16"),
        (with_states(lambda s: [state.float() for state in s]), "torch.float32"),
        (lambda sample: Features(sample.input_ids + 1, sample.loss_mask, sample.hidden_states), "token ids are not"),
        (lambda sample: Features(sample.input_ids, 1 - sample.loss_mask, sample.hidden_states), "loss mask is not"),
    ],
)
def test_a_wrong_sample_with_a_right_digest_is_found(
    run_tool: Run, asked: dict[str, Any], root: Path, change: Callable[[Features], Features], says: str
) -> None:
    rewrite(root, 5, change)
    with pytest.raises(ToolError) as refused:
        run_tool(TOOL, **asked)
    assert "sample 5: " in refused.value.found
    assert says in refused.value.found


def test_states_of_the_wrong_layer_are_explained(
    run_tool: Run, asked: dict[str, Any], root: Path, target_path: Path
) -> None:
    target = load_target(target_path)
    features = open_features(root / "f")
    shifted = [layer - 1 for layer in features.layers[:-1]] + [features.layers[-1]]
    for index in range(len(features)):
        states = target.states(features[index].input_ids[None], None, shifted)
        rewrite(root, index, lambda sample, states=states: Features(  # type: ignore[misc]
            sample.input_ids, sample.loss_mask, [state[0].bfloat16() for state in states]))  # fmt: skip
    with pytest.raises(ToolError) as refused:
        run_tool(TOOL, **asked, recompute=2, tolerance=10)  # however wide: another layer's states are nearer
    assert "(shifted by -1)" in refused.value.found
    assert refused.value.what.startswith("24 bad samples"), "one that is wrong makes all of them suspect"
    assert run_tool(TOOL, **asked, recompute=2, repair=True).values["num_repaired"] == 24
    assert run_tool(TOOL, **asked, recompute=24).values["num_repaired"] == 0


def test_a_normed_final_state_is_explained(run_tool: Run, asked: dict[str, Any], root: Path, target_path: Path) -> None:
    norm = load_target(target_path).model.get_decoder().norm

    def normed(states: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [*states[:-1], norm(states[-1].float()).bfloat16()]

    for index in range(24):
        rewrite(root, index, with_states(normed))
    with pytest.raises(ToolError) as refused:
        run_tool(TOOL, **asked, recompute=1, tolerance=0.05)
    assert "it holds the last layer's state after the final norm, not before" in refused.value.found


def test_a_raw_final_state_is_explained_where_normed_ones_are_promised(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    config = root / "f" / "data_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "final": "normed"}))
    with pytest.raises(ToolError) as refused:
        run_tool(TOOL, **asked, recompute=1)
    assert "it holds the state before the final norm, not after" in refused.value.found


def test_a_killed_repair_is_taken_up(
    run_tool: Run, start_tool: Callable[..., subprocess.Popen[bytes]], asked: dict[str, Any], root: Path
) -> None:
    whole = {file: (root / "f" / file).read_bytes() for file in times(root / "f")}
    for file in whole:
        (root / "f" / file).unlink()
    process = start_tool(TOOL, **asked, repair=True)
    end = time.monotonic() + 60
    while len(times(root / "f")) < 3:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)
    process.kill()
    assert process.wait(30) == -9
    assert len(times(root / "f")) < 24, "it was not killed in the middle"
    run_tool(TOOL, **asked, repair=True)
    assert {file: (root / "f" / file).read_bytes() for file in times(root / "f")} == whole


def test_features_of_another_target_are_refused(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    make_target(root / "other", seed=7)
    with pytest.raises(ToolError, match="another target"):
        run_tool(TOOL, **{**asked, "target": "other"})
