"""Measures and deletes what lies at a place, one opened folder at a time and never through a symlink."""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.contract import ToolError

PASSING = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW  # O_PATH: a folder on the way need not be readable


def measure(place: Path) -> dict[str, Any]:
    """Bytes of the disk that deleting `place` frees, and files there; nothing there counts nothing.

    A file with several names counts once, and only if all of them are there: else its bytes stay.
    """
    names: Counter[tuple[int, int]] = Counter()
    total = files = 0
    for status in _statuses(place):
        files += 1
        names[status.st_dev, status.st_ino] += 1
        if names[status.st_dev, status.st_ino] == status.st_nlink:
            total += status.st_blocks * 512
    return {"bytes": total, "files": files}


def _statuses(place: Path) -> Iterator[os.stat_result]:
    """The status of every file at `place`, links as themselves."""
    try:
        status = place.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        yield status
    for folder, folders, files in os.walk(place):
        for name in (*files, *folders):
            status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - a million files
            if not stat.S_ISDIR(status.st_mode):
                yield status


def delete(place: Path) -> None:
    """Delete the file or folder at `place`, an absolute path without links, if it is there.

    From the root folder on each folder is opened in the one before, so that a link put into the path since it was
    checked leads nowhere. Raises ToolError for it and for all else that can't be deleted.
    """
    *parents, name = place.parts[1:]
    folder = os.open(place.anchor, PASSING)
    try:
        for part in parents:
            below = os.open(part, PASSING, dir_fd=folder)
            os.close(folder)
            folder = below
        if _is_folder(name, folder):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
        _make_durable(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(place):
            return
        raise ToolError("could not be deleted", where=str(place), found=str(error)) from error
    finally:
        os.close(folder)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _make_durable(folder: int) -> None:
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)
