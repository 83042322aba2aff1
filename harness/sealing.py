"""Seals the outputs of ended tasks on threads of its own, so that the loop never waits for a big file."""

import contextlib
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from harness import files
from harness.files import Seal

Seals = dict[str, Seal]
THREADS = 2


def seal_outputs(outputs: Mapping[str, Path]) -> Seals:
    """Seal each declared output. Raises OSError, whose filename is the first that is missing or can't be read."""
    return {name: files.seal(path) for name, path in outputs.items()}


def unsealed(error: OSError) -> str:
    """Why outputs could not be sealed, in a sentence."""
    return f"it ended well, but a declared output can't be sealed: '{error.filename}' ({error.strerror})"


class Sealer:
    """Outputs go in by task name; seals come out when `fileno()` is readable.

    Its threads are daemons: a run that is told to leave doesn't wait for them, and the next one seals anew.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._wanted: queue.SimpleQueue[tuple[str, dict[str, Path]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Seals | OSError]] = queue.SimpleQueue()
        self._pending: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self._pending)

    def fileno(self) -> int:
        return self._read

    def submit(self, task: str, outputs: Mapping[str, str]) -> None:
        self._pending.add(task)
        self._wanted.put((task, {name: self.root / path for name, path in outputs.items()}))
        if len(self._threads) < THREADS:
            self._threads.append(threading.Thread(target=self._work, name="seal", daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while True:
            task, outputs = self._wanted.get()
            try:
                self._done.put((task, seal_outputs(outputs)))
            except OSError as error:
                self._done.put((task, error))
            with contextlib.suppress(OSError):  # closed meanwhile, or so full that it is readable anyway
                os.write(self._write, b".")

    def done(self) -> list[tuple[str, Seals | OSError]]:
        """The tasks whose outputs are sealed now, each with its seals or with what went wrong."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        found: list[tuple[str, Seals | OSError]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._done.get_nowait())
        self._pending.difference_update(task for task, _ in found)
        return found

    def close(self) -> None:
        os.close(self._read)
