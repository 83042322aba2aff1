"""Small file systems for tests: they fill up for real, and are mounted read-only for real."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a tmpfs")
NOBODY = 65534


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs mounted on the folder, such as "size=4m" or "nr_inodes=20"."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def ext4(folder: Path, image: Path, size_bytes: int) -> Iterator[Path]:
    """An ext4 file system in a file, mounted on the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Use up all room but `leave_bytes`; returns the file that takes it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        os.ftruncate(file.fileno(), max(0, file.tell() - leave_bytes))
    return filler


def fill_inodes(folder: Path) -> list[Path]:
    """Make files until there may be no more; returns them."""
    made: list[Path] = []
    try:
        while True:
            path = folder / f"filler-{len(made)}"
            path.touch()
            made.append(path)
    except OSError:
        return made


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder that everybody may write, for code that runs without root's rights; root's rights are back after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        was = os.geteuid()
        if was == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(was)
