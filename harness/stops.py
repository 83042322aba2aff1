"""The stop signals that a run has received: Ctrl-C, SIGTERM, and SIGHUP of a lost terminal."""

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Self

from harness.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """Counts stop signals while it is entered, and wakes a selector that watches it."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int = 0
        self.asked = False

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._received) for number in WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number

    def ask(self) -> None:
        """Somebody asked for the stop by `harness stop`: it counts as a signal, and detaches nothing."""
        self.asked = True
        self._received(signal.SIGTERM, None)

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._read

    def drain(self) -> None:
        """Take what woke the selector."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 512)

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.first == signal.SIGINT else EXIT_TERMINATED
