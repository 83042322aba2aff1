"""A sample set keeps ids and masks exactly, and never opens half of one."""

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3.samples import Sample, SampleSet, check_tokenizer, open_samples, write_samples
from harness.errors import ToolError

SAMPLES = [
    Sample("a", "x.jsonl:1", [5, 6, 7], [False, True, True]),
    Sample("b", "x.jsonl:2", [163_839], [True]),
    Sample("c", "y.jsonl:9", [1, 2, 3, 4, 5], [False] * 4 + [True]),
]


def written(path: Path, samples: list[Sample] = SAMPLES) -> SampleSet:
    return write_samples(path, samples, tokenizer_fingerprint="f" * 64, max_length=8, facts={"dropped": {"bad": 2}})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    opened = written(tmp_path / "set")
    assert len(opened) == 3
    assert opened.lengths.tolist() == [3, 1, 5]
    for sample, (ids, mask) in zip(SAMPLES, opened, strict=True):
        assert (ids.tolist(), mask.tolist()) == (sample.input_ids, sample.loss_mask)
        assert (ids.dtype, mask.dtype) == (np.int64, np.bool_)
    assert (opened.max_length, opened.tokenizer_fingerprint, opened.num_tokens) == (8, "f" * 64, 9)
    assert [record["source"] for record in opened.records()] == ["x.jsonl:1", "x.jsonl:2", "y.jsonl:9"]
    assert opened.facts["dropped"] == {"bad": 2}


def test_the_digest_follows_ids_masks_and_borders(tmp_path: Path) -> None:
    other_mask = [Sample("a", "", [5, 6, 7], [True, True, True]), *SAMPLES[1:]]
    other_border = [Sample("a", "", [5, 6], [False, True]), Sample("b", "", [7, 163_839], [True, True]), SAMPLES[2]]
    digests = {written(tmp_path / str(i), s).digest for i, s in enumerate((SAMPLES, other_mask, other_border))}
    assert len(digests) == 3
    assert written(tmp_path / "again").digest in digests


def test_a_changed_copy_of_a_sample_leaves_the_set_alone(tmp_path: Path) -> None:
    opened = written(tmp_path / "set")
    ids, mask = opened[0]
    ids[:], mask[:] = 0, False
    assert open_samples(tmp_path / "set")[0][0].tolist() == [5, 6, 7]
    assert opened[0][1].tolist() == [False, True, True]


def test_an_index_beyond_the_end_is_an_index_error(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        written(tmp_path / "set")[3]


@pytest.mark.parametrize("name", ["tokens.npy", "loss_mask.npy", "offsets.npy", "dataset.json"])
def test_a_missing_part_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path / "set")
    (tmp_path / "set" / name).unlink()
    with pytest.raises(ToolError, match=f"no sample set there; found no '{name}'"):
        open_samples(tmp_path / "set")


@pytest.mark.parametrize("name", ["tokens.npy", "loss_mask.npy", "offsets.npy", "dataset.json"])
def test_a_truncated_part_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path / "set")
    file = tmp_path / "set" / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ToolError, match="damaged"):
        open_samples(tmp_path / "set")


def test_parts_of_two_sets_dont_pass_for_one(tmp_path: Path) -> None:
    written(tmp_path / "set")
    np.save(tmp_path / "set" / "tokens.npy", np.arange(8, dtype=np.int32))
    with pytest.raises(ToolError, match="8 ids, 9 mask entries, offsets to 9 for 3 samples"):
        open_samples(tmp_path / "set")


def test_a_set_of_a_later_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "set")
    file = tmp_path / "set" / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(ToolError, match="unknown format; found 99"):
        open_samples(tmp_path / "set")


def test_no_samples_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no samples"):
        written(tmp_path / "set", [])
    assert list(tmp_path.iterdir()) == []


def test_a_mask_of_another_length_or_a_sample_over_the_limit_is_a_fault(tmp_path: Path) -> None:
    for wrong in (Sample("w", "", [1, 2], [True]), Sample("w", "", [1] * 9, [True] * 9)):
        with pytest.raises(ValueError, match="sample 'w'"):
            written(tmp_path / "set", [wrong])


def test_samples_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    opened = written(tmp_path / "set")
    check_tokenizer(opened, "f" * 64)
    with pytest.raises(ToolError, match=r"another tokenizer.*'ffffffffffff' where the target has 'eeeeeeeeeeee'"):
        check_tokenizer(opened, "e" * 64)
