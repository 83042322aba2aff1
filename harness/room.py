"""Where room has run out, what uses it, what could be freed, and when there is room again."""

import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from harness import protection
from harness.machine import SHM, file_system
from harness.plan import Step
from harness.preflight import FileSystem, size
from harness.state import Checkpoint, State

FIRST_S, LONGEST_S = 10.0, 600.0  # where no place is short of room now, it is tried again after twice as long each time
LOOK_S = 2.0
SHOWN = 3


def little(place: FileSystem) -> int:
    """How many bytes are next to nothing on a file system of its size."""
    return max(1 << 20, min(64 << 20, place.size_bytes // 50))


def lack(place: FileSystem) -> str:
    """What a file system has run out of, in a few words; "" where it has room."""
    if not place.writable:
        return "can't be written"
    if place.free_bytes < little(place):
        return f"has {size(place.free_bytes)} free"
    return "has no inodes left" if place.free_inodes == 0 and place.num_inodes else ""


class Shortage:
    """The file systems of `folders`, and of temporary files, when a task ran out of room for the `count`-th time."""

    def __init__(self, folders: Iterable[str], count: int) -> None:
        found = (file_system(Path(each)) for each in (*folders, tempfile.gettempdir(), str(SHM)))
        self.then = {place.device: place for place in reversed(list(found))}
        self.lacking = {device: place for device, place in self.then.items() if lack(place)}
        self._until = time.monotonic() + min(LONGEST_S, FIRST_S * 2 ** min(count - 1, 10))
        self._next_at = time.monotonic() + LOOK_S

    def over(self) -> bool:
        """Whether there is room now where there was none; looks every few seconds."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + LOOK_S
        if self.lacking:
            return not any(lack(file_system(Path(place.path))) for place in self.lacking.values())
        more = (file_system(Path(place.path)).free_bytes - place.free_bytes for place in self.then.values())
        return now > self._until or any(
            gained > little(place) for gained, place in zip(more, self.then.values(), strict=True)
        )

    def __str__(self) -> str:
        """Where room is lacking."""
        places = [f"'{place.path}' {lack(place)}" for place in self.lacking.values()]
        return ", ".join(places) or "there is room now, after the task has tidied up"


class Shortages:
    """The tasks that wait for room, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Shortage] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def lacking(self) -> bool:
        """Whether any place is short of room: whatever starts now may run out of it too."""
        return any(each.lacking for each in self._open.values())

    def note(self, name: str, folders: Iterable[str]) -> Shortage:
        """The task has run out of room, below one of these folders."""
        self._counts[name] += 1
        self._open[name] = Shortage(folders, self._counts[name])
        return self._open[name]

    def drop(self, name: str) -> None:
        """The task waits for room no more."""
        self._open.pop(name, None)

    def over(self) -> list[str]:
        """The tasks for which there is room again; they wait no more."""
        found = [name for name, each in self._open.items() if each.over()]
        for name in found:
            del self._open[name]
        return found


class Known(Protocol):
    """What is known of tasks, by id."""

    checkpoints: dict[str, Checkpoint]
    states: dict[str, State]


def users(steps: Mapping[str, Step], known: Known, devices: Collection[int]) -> str:
    """The biggest outputs on these devices and what of them nothing needs any more, in a sentence."""
    needed = protection.protected(steps, "", known.states, known.checkpoints)
    found = []
    for name, checkpoint in known.checkpoints.items():
        for output, seal in checkpoint.seals.items():
            path = steps[name].outputs.get(output) if name in steps else None
            if path and output not in checkpoint.freed and file_system(Path(path)).device in devices:
                found.append((seal.size_bytes, path))
    found.sort(reverse=True)
    biggest = ", ".join(f"'{path}' {size(count)}" for count, path in found[:SHOWN])
    free = ", ".join(f"'{path}'" for _, path in found if path not in needed)
    parts = [f"biggest outputs there: {biggest}"] if biggest else []
    parts += [f"nothing needs {free} any more: clean-disk frees it"] if free else []
    return "; ".join([*parts, "harness gc frees old attempts"])
