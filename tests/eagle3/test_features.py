"""The feature set's files: written once, trusted only while they are what was written, refused when they are not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.features import Features, FeatureWriter, file_name, load_features, open_features, read_manifest
from harness.contract import ToolError
from harness.files import seal

IDENTITY = {
    "target_fingerprint": "t" * 64,
    "tokenizer_fingerprint": "k" * 64,
    "samples_digest": "s" * 64,
    "num_samples": 5,
    "layers": [1, 2, 3, 5],
    "final": "raw",
    "dtype": "bfloat16",
    "target_dtype": "float32",
    "hidden_size": 8,
}
FACTS = {"batch_tokens": 64}


def sample(index: int) -> Features:
    """Sample `index` has `index + 2` tokens."""
    generator = torch.Generator().manual_seed(index)
    length = index + 2
    states = [torch.randn(length, 8, generator=generator).bfloat16() for _ in range(4)]
    return Features(torch.arange(length), torch.ones(length, dtype=torch.int64), states)


def write(folder: Path, **other: Any) -> FeatureWriter:
    writer = FeatureWriter(folder, {**IDENTITY, **other}, FACTS)
    for index in writer.missing(5):
        writer.write(index, sample(index))
    writer.finish()
    return writer


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("*/*.pt")}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path)
    features = open_features(tmp_path)
    assert (len(features), features.layers, features.final, features.dtype) == (5, [1, 2, 3, 5], "raw", torch.bfloat16)
    assert features.lengths.tolist() == [2, 3, 4, 5, 6]
    assert features.target_fingerprint == "t" * 64
    for index in range(5):
        read, written = features[index], sample(index)
        assert torch.equal(read.input_ids, written.input_ids)
        assert torch.equal(read.loss_mask, written.loss_mask)
        assert all(torch.equal(*pair) for pair in zip(read.hidden_states, written.hidden_states, strict=True))
    with pytest.raises(IndexError):
        features[5]


def test_the_files_are_those_of_the_speculators_format(tmp_path: Path) -> None:
    write(tmp_path)
    content = torch.load(tmp_path / "00000" / "data_4.pt", weights_only=True)
    assert {name: type(value) for name, value in content.items()} == {
        "input_ids": torch.Tensor,
        "loss_mask": torch.Tensor,
        "hidden_states": list,
    }
    assert content["input_ids"].dtype == content["loss_mask"].dtype == torch.int64
    assert [tuple(state.shape) for state in content["hidden_states"]] == [(6, 8)] * 4
    assert json.loads((tmp_path / "sample_lengths.json").read_text()) == {str(i): i + 2 for i in range(5)}
    config = json.loads((tmp_path / "data_config.json").read_text())
    assert config["hidden_states"]["layer_ids"] == [1, 2, 3, 5]


def test_a_file_holds_no_more_than_its_own_part_of_a_batch(tmp_path: Path) -> None:
    batch = torch.randn(64, 100, 8).bfloat16()
    writer = FeatureWriter(tmp_path, IDENTITY, FACTS)
    writer.write(0, Features(torch.arange(2), torch.ones(2), [state[:2] for state in batch[:4]]))
    assert (tmp_path / file_name(0)).stat().st_size < 10_000


def test_the_1000th_sample_opens_another_folder() -> None:
    assert [file_name(index) for index in (999, 1000)] == ["00000/data_999.pt", "00001/data_1000.pt"]


def test_the_same_states_make_the_same_bytes_wherever_they_are_written(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    first, second = (read_manifest(tmp_path / name) for name in ("one", "two"))
    assert {i: entry.sha256 for i, entry in first.items()} == {i: entry.sha256 for i, entry in second.items()}


def test_a_set_that_is_complete_is_not_written_again(tmp_path: Path) -> None:
    write(tmp_path)
    before = times(tmp_path)
    write(tmp_path)
    assert times(tmp_path) == before


def test_a_file_with_another_time_is_trusted_only_if_its_digest_holds(tmp_path: Path) -> None:
    write(tmp_path)
    os.utime(tmp_path / file_name(1), ns=(1, 1))
    (tmp_path / file_name(2)).write_bytes((tmp_path / file_name(2)).read_bytes()[::-1])
    (tmp_path / file_name(3)).unlink()
    writer = FeatureWriter(tmp_path, IDENTITY, FACTS)
    assert writer.missing(5) == [2, 3]
    assert writer.missing(5) == [2, 3]
    assert read_manifest(tmp_path)[1].mtime_ns == 1, "its new time is noted"


def test_a_torn_manifest_line_costs_its_sample_only(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(manifest.read_text()[:-20])
    writer = FeatureWriter(tmp_path, IDENTITY, FACTS)
    assert writer.missing(5) == [4]
    writer.write(4, sample(4))
    assert sorted(read_manifest(tmp_path)) == [0, 1, 2, 3, 4], "the torn line must not swallow the next one"


def test_a_manifest_line_beyond_the_set_has_no_length(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = tmp_path / "manifest.jsonl"
    with manifest.open("a") as file:
        file.write(json.dumps({**vars(read_manifest(tmp_path)[4]), "index": 9}) + "\n")
    write(tmp_path)
    assert list(json.loads((tmp_path / "sample_lengths.json").read_text())) == ["0", "1", "2", "3", "4"]
    assert len(manifest.read_text().splitlines()) == 5


@pytest.mark.parametrize("name", list(IDENTITY))
def test_with_another_identity_every_sample_is_written_anew(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    other = {"layers": [0, 2, 3, 5], "num_samples": 6, "hidden_size": 9}.get(name, "other")
    writer = FeatureWriter(tmp_path, {**IDENTITY, name: other}, FACTS)
    assert writer.missing(5) == [0, 1, 2, 3, 4]
    assert times(tmp_path) == {}
    with pytest.raises(ToolError, match="incomplete"):
        open_features(tmp_path)


def test_files_whose_identity_is_lost_are_not_trusted(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "data_config.json").unlink()
    assert FeatureWriter(tmp_path, IDENTITY, FACTS).missing(5) == [0, 1, 2, 3, 4]


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    write(tmp_path)
    left = [tmp_path / "00000" / ".data_3.pt.77.partial", tmp_path / ".manifest.jsonl.77.partial"]
    for file in left:
        file.write_bytes(b"half")
    FeatureWriter(tmp_path, IDENTITY, FACTS)
    assert not any(file.exists() for file in left)


def test_the_engine_takes_the_manifests_digests_for_its_seal(tmp_path: Path) -> None:
    write(tmp_path)
    before = seal(tmp_path).digest
    (tmp_path / "manifest.jsonl").unlink()
    assert seal(tmp_path).digest == before, "the digests are those of the files"


def test_a_file_that_is_no_sample_is_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "data_0.pt"
    states = [torch.zeros(2, 8)] * 3
    wrong: list[Any] = [
        [1, 2, 3],
        {"input_ids": torch.arange(2)},
        {"input_ids": torch.arange(2), "loss_mask": torch.ones(2), "hidden_states": [*states, "no tensor"]},
        {"input_ids": torch.arange(2), "loss_mask": torch.ones(2), "hidden_states": states, "other": Path("x")},
    ]
    for content in wrong:
        torch.save(content, file)
        with pytest.raises(ToolError, match="damaged"):
            load_features(file)
    for data in (b"", b"no zip file"):
        file.write_bytes(data)
        with pytest.raises(ToolError, match="damaged"):
            load_features(file)


def test_a_set_of_another_maker_or_with_a_damaged_config_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "data_config.json"
    config.write_text('{"num_samples": 5}')
    with pytest.raises(ToolError, match=r"no feature set of 'extract'; found no 'layers'"):
        open_features(tmp_path)
    config.write_text('{"num_samples": ')
    with pytest.raises(ToolError, match="the feature set is damaged"):
        open_features(tmp_path)
