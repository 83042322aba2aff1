"""What lies in a plan's folder: attempts, progress checkpoints, unfinished files, and the room that each takes."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.paths import PlanPaths

STALE_S = 86400.0
UNFINISHED = re.compile(r"\..+\.(\d+)\.(?:partial|old)")  # as harness.files names them, with the writer's pid


@dataclass(frozen=True)
class Holding:
    """A folder of a task: one attempt, or the progress checkpoints of one fingerprint.

    `size_bytes` is what it takes on the disk; `changed_at` is when anything in it changed last, in seconds since the
    epoch.
    """

    task: str
    path: Path
    size_bytes: int
    changed_at: float

    @property
    def number(self) -> int | None:
        """The attempt's number, None for progress checkpoints."""
        return int(self.path.name) if self.path.name.isdecimal() else None

    def __str__(self) -> str:
        what = "progress checkpoints" if self.number is None else f"attempt {self.number}"
        return f"{what} of '{self.task}'"


@dataclass(frozen=True)
class Unfinished:
    """A file or folder that was being written under a temporary name. `pid` is that of its writer."""

    path: Path
    pid: int
    size_bytes: int
    changed_at: float

    @property
    def stale(self) -> bool:
        """Whether nobody can be writing it any more: it is old, and no process has its writer's number."""
        return time.time() - self.changed_at > STALE_S and not Path(f"/proc/{self.pid}").exists()


def holdings(paths: PlanPaths) -> list[Holding]:
    """The folders of all tasks, by task and name; what is no attempt and no progress is left out."""
    found = []
    for task in _folders(paths.tasks):
        progress = set(paths.scratches(task.name))
        found += [
            Holding(task.name, folder, *measure(folder))
            for folder in _folders(task)
            if folder.name.isdecimal() or folder in progress
        ]
    return sorted(found, key=lambda each: (each.task, each.number is None, each.number or 0, each.path.name))


def unfinished(paths: PlanPaths) -> list[Unfinished]:
    """What was never renamed to its final name, anywhere in the plan's folder."""
    found = []
    for folder, folders, files in os.walk(paths.folder):
        for name in [*folders, *files]:
            if match := UNFINISHED.fullmatch(name):
                path = Path(folder) / name
                found.append(Unfinished(path, int(match[1]), *measure(path)))
        folders[:] = [name for name in folders if not UNFINISHED.fullmatch(name)]
    return sorted(found, key=lambda each: each.path)


def measure(path: Path) -> tuple[int, float]:
    """Bytes on the disk of the file or of all that is in the folder, and the latest time of a change in it."""
    size_bytes, changed_at = 0, 0.0
    for each in _all(path):
        try:
            status = each.lstat()
        except OSError:
            continue  # it has just gone, or can't be seen
        size_bytes += status.st_blocks * 512
        changed_at = max(changed_at, status.st_mtime)
    return size_bytes, changed_at


def _all(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            yield Path(folder) / name


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, no links; none where it isn't there or can't be read."""
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return []
