"""Text of the machine, cut into questions (the first part of a piece of code) and answers (the rest)."""

import os
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.contract import ToolError

SUFFIXES = (".py", ".md", ".rst", ".txt")
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "encodings"}
SMALLEST_FILE_BYTES = 200
LARGEST_FILE_BYTES = 400_000  # a larger one is a table, not prose or code


@dataclass(frozen=True)
class Piece:
    """A piece of one file: `question` goes to the user, `answer` to the assistant; together they are the text."""

    question: str
    answer: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]


def text_files(source: str | None, seed: int) -> list[Path]:
    """The text files below the folder `source` (the running Python's library), in an order drawn from `seed`.

    Raises ToolError when there are fewer than two: one part is trained on, the other held back.
    """
    folder = Path(source or sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(place, name) for name in names if Path(name).suffix in SUFFIXES]
    files = [path for path in sorted(found) if SMALLEST_FILE_BYTES <= path.stat().st_size <= LARGEST_FILE_BYTES]
    if len(files) < 2:
        raise ToolError(
            "not enough text to train on",
            where=str(folder),
            found=f"{len(files)} files of {', '.join(SUFFIXES)} from {SMALLEST_FILE_BYTES} bytes on",
            do="Name a folder of source code or prose as 'source'.",
        )
    random.Random(seed).shuffle(files)  # noqa: S311 - an order, not a secret
    return files


def pieces(path: Path, size: int) -> Iterator[Piece]:
    """The text of `path` in pieces of about `size` characters, cut at a blank line where there is one late enough."""
    lines = path.read_text(encoding="utf-8", errors="ignore").expandtabs(4).splitlines()
    start = 0
    while start < len(lines):
        end, length, blank = start, 0, 0
        while end < len(lines) and length < size:
            length += len(lines[end]) + 1
            end += 1
            if length > size // 2 and end < len(lines) and not lines[end].strip():
                blank = end
        end = blank if blank and end < len(lines) else end
        piece = _piece(lines[start:end])
        if piece:
            yield piece
        start = end


def _piece(lines: list[str]) -> Piece | None:
    """The question is about the first third of the lines; None where there is too little to ask or answer."""
    cut = max(1, len(lines) // 3)
    question, answer = "\n".join(lines[:cut]).strip("\n"), "\n".join(lines[cut:]).strip("\n")
    return Piece(question, answer) if question.strip() and answer.strip() else None
