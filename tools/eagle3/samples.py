"""A sample set: token ids and loss masks of tokenised conversations, memory-mapped."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.contract import ToolError, digest_json, write_json, writing_folder

TOKENS, LOSS_MASK, OFFSETS = "tokens.npy", "loss_mask.npy", "offsets.npy"
RECORDS, DATASET = "samples.jsonl", "dataset.json"
FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """One tokenised conversation: `input_ids` and `loss_mask` of one length T; the mask is true on assistant tokens."""

    id: str
    source: str  # file:line it came from
    input_ids: list[int]
    loss_mask: list[bool]


@dataclass(frozen=True)
class SampleSet:
    """An opened sample set; `samples[i]` is (input_ids int64 [T], loss_mask bool [T]), copies of its own."""

    path: Path
    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return np.array(self.tokens[part], np.int64), np.array(self.mask[part], np.bool_)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def max_length(self) -> int:
        """The length limit that the set was made with, in tokens."""
        return int(self.facts["max_length"])

    @property
    def tokenizer_fingerprint(self) -> str:
        return str(self.facts["tokenizer_fingerprint"])

    @property
    def digest(self) -> str:
        """SHA-256 of ids, masks and offsets."""
        return str(self.facts["digest"])

    def records(self) -> list[dict[str, Any]]:
        """Id, source, lengths and text digest of each sample."""
        return [json.loads(line) for line in (self.path / RECORDS).read_text(encoding="utf-8").splitlines()]


def write_samples(
    path: Path | str,
    samples: Iterable[Sample],
    *,
    tokenizer_fingerprint: str,
    max_length: int,
    facts: Mapping[str, Any] | None = None,
) -> SampleSet:
    """Write a sample set at `path`, all or nothing, and open it; `facts` go into dataset.json as they are.

    Raises ToolError for an empty set, and ValueError for a sample whose mask has another length than its ids.
    """
    kept = list(samples)
    if not kept:
        raise ToolError("no samples to write", where=str(path), do="Look at what was dropped, and why.")
    for sample in kept:
        if not len(sample.input_ids) == len(sample.loss_mask) <= max_length:
            raise ValueError(f"sample {sample.id!r}: {len(sample.input_ids)} ids, {len(sample.loss_mask)} mask entries")
    tokens = np.concatenate([np.asarray(sample.input_ids, np.int32) for sample in kept])
    mask = np.concatenate([np.asarray(sample.loss_mask, np.bool_) for sample in kept])
    offsets = np.cumsum([0, *(len(sample.input_ids) for sample in kept)], dtype=np.int64)
    with writing_folder(Path(path)) as folder:
        for name, array in ((TOKENS, tokens), (LOSS_MASK, mask), (OFFSETS, offsets)):
            np.save(folder / name, array)
        with (folder / RECORDS).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(_record(sample), ensure_ascii=False) + "\n" for sample in kept)
        dataset = {
            **(facts or {}),
            "format": FORMAT,
            "num_samples": len(kept),
            "num_tokens": len(tokens),
            "num_loss_tokens": int(mask.sum()),
            "max_length": max_length,
            "tokenizer_fingerprint": tokenizer_fingerprint,
            "digest": _digest(tokens, mask, offsets),
        }
        write_json(folder / DATASET, dataset)
    return open_samples(path)


def _record(sample: Sample) -> dict[str, Any]:
    return {
        "id": sample.id,
        "source": sample.source,
        "num_tokens": len(sample.input_ids),
        "num_loss_tokens": sum(sample.loss_mask),
        "digest": digest_json(sample.input_ids),
    }


def _digest(tokens: NDArray[np.int32], mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> str:
    digest = hashlib.sha256()
    for array in (tokens, mask, offsets):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def open_samples(path: Path | str) -> SampleSet:
    """Open the sample set at `path`, memory-mapped. Raises ToolError when it is missing, torn or of another format."""
    folder = Path(path)
    try:
        facts = json.loads((folder / DATASET).read_text(encoding="utf-8"))
        tokens, mask, offsets = (np.load(folder / name, mmap_mode="r") for name in (TOKENS, LOSS_MASK, OFFSETS))
    except FileNotFoundError as error:
        raise ToolError(
            "no sample set there", where=str(folder), found=f"no '{Path(error.filename).name}'", do="Run 'prepare'."
        ) from None
    except ValueError as error:  # of numpy and of json
        raise ToolError("the sample set is damaged", where=str(folder), found=str(error), do="Run 'prepare'.") from None
    if facts.get("format") != FORMAT:
        raise ToolError("unknown format", where=str(folder / DATASET), found=repr(facts.get("format")))
    shapes = (len(tokens), len(mask), int(offsets[-1]), len(offsets) - 1)
    if shapes != (facts["num_tokens"],) * 3 + (facts["num_samples"],):
        raise ToolError(
            "the parts of the sample set don't fit together",
            where=str(folder),
            found=f"{shapes[0]} ids, {shapes[1]} mask entries, offsets to {shapes[2]} for {shapes[3]} samples",
            do="Run 'prepare' again.",
        )
    return SampleSet(folder, tokens, mask, np.asarray(offsets), facts)


def check_tokenizer(samples: SampleSet, fingerprint: str) -> None:
    """Raise ToolError unless `samples` were tokenised by the tokenizer with this fingerprint."""
    if samples.tokenizer_fingerprint != fingerprint:
        raise ToolError(
            "the samples were made with another tokenizer",
            where=str(samples.path),
            found=f"'{samples.tokenizer_fingerprint[:12]}' where the target has '{fingerprint[:12]}'",
            do="Run 'prepare' with this target.",
        )
