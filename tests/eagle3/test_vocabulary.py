"""The draft vocabulary: the right tokens, the right offsets, the right tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3.vocabulary import Vocabulary, open_vocabulary
from harness.errors import ToolError

COUNTS = np.array([0, 7, 0, 7, 9, 0, 1, 7], np.int64)


def test_the_most_frequent_are_in_ties_go_to_the_lower_id() -> None:
    assert Vocabulary.from_counts(COUNTS, 3, [], "f").target_ids.tolist() == [1, 3, 4]


def test_required_ids_are_in_although_they_never_occur() -> None:
    assert Vocabulary.from_counts(COUNTS, 3, [5, 0], "f").target_ids.tolist() == [0, 4, 5]


def test_room_that_no_token_fills_goes_to_the_lowest_unused_ids() -> None:
    assert Vocabulary.from_counts(COUNTS, 6, [], "f").target_ids.tolist() == [0, 1, 3, 4, 6, 7]


def test_d2t_is_the_offset_from_draft_to_target_id() -> None:
    vocabulary = Vocabulary.from_counts(COUNTS, 3, [7], "f")
    assert vocabulary.target_ids.tolist() == [1, 4, 7]
    assert vocabulary.d2t.tolist() == [1, 3, 5]
    assert vocabulary.t2d.tolist() == [False, True, False, False, True, False, False, True]
    assert (vocabulary.size, vocabulary.target_size) == (3, 8)
    assert (vocabulary.d2t.dtype, vocabulary.t2d.dtype) == (np.int64, np.bool_)


def test_coverage_is_the_part_of_counted_tokens_that_is_drafted() -> None:
    assert Vocabulary.from_counts(COUNTS, 2, [], "f").coverage_percent(COUNTS) == pytest.approx(100 * 16 / 31)


@pytest.mark.parametrize(("size", "required"), [(0, []), (9, []), (2, [0, 1, 2])])
def test_a_size_that_cant_be_is_refused_with_the_sizes_that_can(size: int, required: list[int]) -> None:
    with pytest.raises(ToolError, match=rf"found {size}.*from {max(1, len(required))} .*to 8"):
        Vocabulary.from_counts(COUNTS, size, required, "f")


def test_what_was_saved_is_opened_as_it_was(tmp_path: Path) -> None:
    saved = Vocabulary.from_counts(COUNTS, 4, [0], "f" * 64)
    saved.save(tmp_path / "v", coverage_percent=99.5)
    opened = open_vocabulary(tmp_path / "v", "f" * 64)
    assert np.array_equal(opened.t2d, saved.t2d)
    assert np.array_equal(opened.d2t, saved.d2t)
    assert json.loads((tmp_path / "v" / "vocabulary.json").read_text())["coverage_percent"] == 99.5


def test_the_vocabulary_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    Vocabulary.from_counts(COUNTS, 4, [], "f" * 64).save(tmp_path / "v")
    with pytest.raises(ToolError, match="another tokenizer; found 'ffffffffffff' where the target has 'eeeeeeeeeeee'"):
        open_vocabulary(tmp_path / "v", "e" * 64)


def test_mappings_that_dont_fit_together_are_refused(tmp_path: Path) -> None:
    Vocabulary.from_counts(COUNTS, 4, [], "f").save(tmp_path / "v")
    np.save(tmp_path / "v" / "d2t.npy", np.array([1, 2, 3, 4]))
    with pytest.raises(ToolError, match="damaged"):
        open_vocabulary(tmp_path / "v", "f")


def test_another_vocabularys_mapping_under_this_ones_name_is_refused(tmp_path: Path) -> None:
    Vocabulary.from_counts(COUNTS, 4, [], "f").save(tmp_path / "v")
    Vocabulary.from_counts(COUNTS, 4, [0], "f").save(tmp_path / "w")
    for name in ("t2d.npy", "d2t.npy"):
        (tmp_path / "w" / name).replace(tmp_path / "v" / name)
    with pytest.raises(ToolError, match="damaged"):
        open_vocabulary(tmp_path / "v", "f")


def test_a_folder_without_vocabulary_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no draft vocabulary there"):
        open_vocabulary(tmp_path, "f")
