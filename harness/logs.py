"""Reads the log of an attempt, and follows it while the attempt lives."""

import time
from collections import deque
from collections.abc import Iterator

from harness.errors import NotFoundError
from harness.ownership import held
from harness.paths import PlanPaths

POLL_S = 0.2


def read(paths: PlanPaths, task: str, *, attempt: int | None, tail: int | None, follow: bool) -> Iterator[str]:
    """Yield the log in pieces. Raises NotFoundError when there is no such attempt."""
    folder = paths.task(task)
    numbers = sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []
    if not numbers:
        raise NotFoundError(f"task '{task}' has no attempt yet")
    number = attempt or numbers[-1]
    if number not in numbers:
        raise NotFoundError(f"task '{task}' has no attempt {number}", found=f"attempts {numbers[0]} to {numbers[-1]}")
    files = paths.attempt(task, number)
    if not files.log.exists():
        return
    with files.log.open(encoding="utf-8", errors="replace") as log:
        if tail is not None:
            yield "".join(deque(log, maxlen=tail))
        while True:
            alive = follow and held(files.lock)  # asked first, so that the last words are never missed
            while piece := log.read(65536):
                yield piece
            if not alive:
                return
            time.sleep(POLL_S)
