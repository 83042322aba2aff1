"""The view of a run while it runs: the live table on a terminal, dated lines anywhere else."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from harness import status, table
from harness.paths import PlanPaths
from harness.state import State

HEARTBEAT_S = 60.0
REFRESH_S = 0.25


class Live:
    """Shows transitions as they come. `interactive` says whether somebody looks at a terminal."""

    def __init__(self, paths: PlanPaths, console: Console | None = None) -> None:
        self.paths = paths
        self.console = console or Console(highlight=False)
        self.interactive = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = (
            RichLive(console=self.console, auto_refresh=False, vertical_overflow="crop") if self.interactive else None
        )
        self._next_at = 0.0
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._draw()
            self._live.stop()

    def transition(self, task: str, state: State, text: str) -> None:
        """A task has changed its state."""
        self._next_at = 0.0
        if not self.interactive:
            self._line(f"{task}  {table.word(state)}" + (f"  {text}" if text else ""))

    def say(self, text: str) -> None:
        """Something for whoever looks, above the table."""
        if self._live:
            self.console.print(Text(text))
        else:
            self._line(text)

    def refresh(self) -> None:
        """Bring the view up to date, at most four times a second."""
        now = time.monotonic()
        if self._live and now >= self._next_at:
            self._draw()
            spent_s = time.monotonic() - now
            self._next_at = now + max(REFRESH_S, 10 * spent_s)
        elif not self.interactive and now - self._said_at >= HEARTBEAT_S:
            self._heartbeat()

    def _draw(self) -> None:
        assert self._live
        size = self.console.size
        snapshot = status.snapshot(self.paths)
        view = table.render(snapshot, size.width, ascii_only=table.ascii_wanted(), height=size.height)
        self._live.update(view, refresh=True)

    def _heartbeat(self) -> None:
        snapshot = status.snapshot(self.paths)
        for row in snapshot.rows:
            if row.state == State.RUNNING:
                done = f"  {row.progress.done}/{row.progress.total} {row.progress.unit}" if row.progress else ""
                self._line(f"{row.id}  still running{done}  {row.note}".rstrip())

    def _line(self, text: str) -> None:
        self._said_at = time.monotonic()
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        sys.stdout.flush()
