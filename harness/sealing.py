"""Seals the outputs of ended tasks on threads of its own, so that the loop never waits for a big file."""

import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from harness import files
from harness.files import Seal

Seals = dict[str, Seal]


def seal_outputs(outputs: Mapping[str, Path]) -> Seals:
    """Seal each declared output. Raises FileNotFoundError, whose filename is the first one that is missing."""
    return {name: files.seal(path) for name, path in outputs.items()}


class Sealer:
    """Outputs go in by task name; seals come out when `fileno()` is readable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="seal")
        self._pending: dict[str, Future[Seals]] = {}
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self._pending)

    def fileno(self) -> int:
        return self._read

    def submit(self, task: str, outputs: Mapping[str, str]) -> None:
        future = self._pool.submit(seal_outputs, {name: self.root / path for name, path in outputs.items()})
        self._pending[task] = future
        future.add_done_callback(lambda _: os.write(self._write, b"."))

    def done(self) -> list[tuple[str, Seals | OSError]]:
        """The tasks whose outputs are sealed now, each with its seals or with what went wrong."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        found: list[tuple[str, Seals | OSError]] = []
        for task in [task for task, future in self._pending.items() if future.done()]:
            try:
                found.append((task, self._pending.pop(task).result()))
            except OSError as error:
                found.append((task, error))
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        os.close(self._read)
        os.close(self._write)
