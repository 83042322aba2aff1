"""A terminal for tests: a program in a pty, and the screen that somebody would see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte


class Terminal:
    """Runs a command in a pty; `screen` is what its user sees, `raw` all that it has written."""

    def __init__(self, command: list[str], cwd: Path, *, columns: int = 100, lines: int = 24, **env: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self._descriptor, inner = pty.openpty()
        self.resize(columns, lines)
        left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env},
        )
        os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._descriptor)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    @property
    def lines(self) -> list[str]:
        """The screen's lines, without the empty ones."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Show what the program writes until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"it did not happen; the screen shows:\n{self.text}"
            self._show(0.05)

    def ended(self) -> int:
        """Show everything to the end; the exit code."""
        while self._show(30):
            pass
        return self.process.wait(30)

    def _show(self, seconds: float) -> bool:
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._descriptor, 65536)
        except OSError:  # Linux says so when nobody has the other end open any more
            return False
        self.raw += piece
        self._stream.feed(piece)
        return bool(piece)
