"""The draft vocabulary: which D of the target's V tokens are drafted, bound to one tokenizer."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from harness.contract import ToolError, digest_json, write_json, writing_folder

T2D, D2T, FACTS = "t2d.npy", "d2t.npy", "vocabulary.json"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`t2d` bool [V]: is this target id drafted; `d2t` int64 [D]: offset, target id of draft id j is j + d2t[j]."""

    t2d: NDArray[np.bool_]
    d2t: NDArray[np.int64]
    tokenizer_fingerprint: str

    @classmethod
    def from_counts(
        cls, counts: NDArray[np.int64], size: int, required_ids: Iterable[int], tokenizer_fingerprint: str
    ) -> Self:
        """The `size` most frequent ids by `counts` int64 [V], `required_ids` always among them, ascending.

        Ties go to the lower id; so do ids that never occur. Raises ToolError when `size` is no possible size.
        """
        required = sorted(set(required_ids))
        if not max(1, len(required)) <= size <= len(counts):
            raise ToolError(
                "no possible size of a draft vocabulary",
                found=f"{size}",
                do=f"Choose from {max(1, len(required))} (the special tokens) to {len(counts)} (the target's size).",
            )
        rank = counts.astype(np.int64).copy()
        rank[required] = np.iinfo(np.int64).max
        chosen = np.sort(np.argsort(-rank, kind="stable")[:size]).astype(np.int64)
        t2d = np.zeros(len(counts), np.bool_)
        t2d[chosen] = True
        return cls(t2d, chosen - np.arange(size), tokenizer_fingerprint)

    @property
    def size(self) -> int:
        """D"""
        return len(self.d2t)

    @property
    def target_size(self) -> int:
        """V"""
        return len(self.t2d)

    @property
    def target_ids(self) -> NDArray[np.int64]:
        """Target id of each draft id, int64 [D], ascending."""
        return self.d2t + np.arange(self.size)

    @property
    def digest(self) -> str:
        """SHA-256 of the mapping and the tokenizer it belongs to."""
        return digest_json([self.target_ids.tolist(), self.target_size, self.tokenizer_fingerprint])

    def coverage_percent(self, counts: NDArray[np.int64]) -> float:
        """How many of the counted tokens are drafted, in percent."""
        return 100.0 * int(counts[self.t2d].sum()) / max(1, int(counts.sum()))

    def save(self, path: Path | str, **facts: float | str) -> None:
        """Write the folder `path`, all or nothing; `facts` go into vocabulary.json."""
        with writing_folder(Path(path)) as folder:
            np.save(folder / T2D, self.t2d)
            np.save(folder / D2T, self.d2t)
            sizes = {"size": self.size, "target_size": self.target_size}
            identity = {"tokenizer_fingerprint": self.tokenizer_fingerprint, "digest": self.digest}
            write_json(folder / FACTS, {**facts, **sizes, **identity})


def open_vocabulary(path: Path | str, tokenizer_fingerprint: str) -> Vocabulary:
    """Open the vocabulary at `path`. Raises ToolError if it is missing, damaged, or another tokenizer's."""
    folder = Path(path)
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        vocabulary = Vocabulary(np.load(folder / T2D), np.load(folder / D2T), facts["tokenizer_fingerprint"])
    except FileNotFoundError as error:
        raise ToolError(
            "no draft vocabulary there", where=str(folder), found=f"no '{Path(error.filename).name}'", do="Run 'vocab'."
        ) from None
    except (ValueError, KeyError) as error:
        raise ToolError("the vocabulary is damaged", where=str(folder), found=str(error), do="Run 'vocab'.") from None
    selected = np.flatnonzero(vocabulary.t2d)
    if not np.array_equal(selected, vocabulary.target_ids) or vocabulary.digest != facts.get("digest"):
        raise ToolError(
            "the vocabulary is damaged",
            where=str(folder),
            found=f"{len(selected)} ids in '{T2D}', {vocabulary.size} in '{D2T}', not the ones in '{FACTS}'",
            do="Run 'vocab' again.",
        )
    if vocabulary.tokenizer_fingerprint != tokenizer_fingerprint:
        raise ToolError(
            "the draft vocabulary belongs to another tokenizer",
            where=str(folder),
            found=f"'{vocabulary.tokenizer_fingerprint[:12]}' where the target has '{tokenizer_fingerprint[:12]}'",
            do="Run 'vocab' with this target.",
        )
    return vocabulary
