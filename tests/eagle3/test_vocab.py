"""The tool `vocab` counts what is learnt and binds the mapping to the tokenizer."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from workshop import make_target

from eagle3.samples import Sample, SampleSet, write_samples
from eagle3.target import Target
from eagle3.vocab.spec import TOOL
from eagle3.vocabulary import open_vocabulary
from harness.contract import Result
from harness.errors import ToolError

Run = Callable[..., Result]


def test_it_drafts_the_special_tokens_and_the_most_frequent_ones_of_the_answers(
    run_tool: Run, samples_path: Path, samples: SampleSet, target: Target
) -> None:
    result = run_tool(TOOL, out="vocab", samples=str(samples_path), target=str(target.path), size=20)
    counts: Counter[int] = Counter()
    for ids, mask in samples:
        counts.update(ids[mask].tolist())
    required = {0, 4}  # pad and end
    by_rank = sorted(set(counts) - required, key=lambda token: (-counts[token], token))
    vocabulary = open_vocabulary("vocab", target.tokenizer_fingerprint)
    assert set(vocabulary.target_ids.tolist()) == required | set(by_rank[:18])
    covered = sum(counts[token] for token in vocabulary.target_ids.tolist())
    assert result.values == {"size": 20, "coverage_percent": pytest.approx(100 * covered / counts.total())}
    assert vocabulary.target_size == target.vocab_size


def test_questions_dont_count(run_tool: Run, root: Path, target: Target) -> None:
    sample = Sample("s", "", [9, 9, 9, 9, 7], [False, False, False, False, True])
    write_samples(root / "set", [sample], tokenizer_fingerprint=target.tokenizer_fingerprint, max_length=8)
    result = run_tool(TOOL, out="vocab", samples="set", target=str(target.path), size=3)
    assert open_vocabulary("vocab", target.tokenizer_fingerprint).target_ids.tolist() == [0, 4, 7]
    assert result.values["coverage_percent"] == 100.0


def test_samples_of_another_tokenizer_are_refused(run_tool: Run, samples_path: Path, root: Path) -> None:
    other = make_target(root / "other", size=300)
    with pytest.raises(ToolError, match="made with another tokenizer"):
        run_tool(TOOL, out="vocab", samples=str(samples_path), target=str(other), size=20)


def test_ids_beyond_the_targets_vocabulary_are_refused(run_tool: Run, root: Path, target: Target) -> None:
    sample = Sample("s", "", [1, 400], [True, True])
    write_samples(root / "set", [sample], tokenizer_fingerprint=target.tokenizer_fingerprint, max_length=8)
    with pytest.raises(ToolError, match="beyond the target's vocabulary; found id 400"):
        run_tool(TOOL, out="vocab", samples="set", target=str(target.path), size=20)


def test_a_size_beyond_the_targets_is_refused(run_tool: Run, samples_path: Path, target: Target) -> None:
    with pytest.raises(ToolError, match="found 401"):
        run_tool(TOOL, out="vocab", samples=str(samples_path), target=str(target.path), size=401)
