"""The view of a run while it runs: the live table on a terminal, dated lines anywhere else."""

import os
import sys
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from harness import status, table, wording
from harness.errors import StoreError
from harness.paths import PlanPaths
from harness.state import State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live as RichLive

HEARTBEAT_S = 60.0
REFRESH_S = 0.25
SHARE = 10  # a drawing that takes long is made less often: at most a tenth of the time goes into it


class Live:
    """Shows transitions as they come. `interactive` says whether somebody looks at a terminal.

    A run outlives whoever looks at it: when nobody reads any more, the rest is written nowhere.
    """

    def __init__(self, paths: PlanPaths, console: "Console | None" = None, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.paths = paths
        self.file: IO[str] = console.file if console else sys.stdout
        self.heartbeat_s = heartbeat_s
        self.interactive = False
        self._live: RichLive | None = None
        if self.file.isatty():
            from rich.console import Console  # noqa: PLC0415 - a pipe needn't pay for rich

            self.console = console or Console(highlight=False)
            self.interactive = self.console.is_terminal and not self.console.is_dumb_terminal
        self._next_at = 0.0
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.interactive:
            from rich.live import Live as RichLive  # noqa: PLC0415

            self._live = RichLive(console=self.console, auto_refresh=False, vertical_overflow="crop")
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
        if not self.interactive:
            self._line(f"{task}  {wording.word(state)}" + (f"  {text}" if text else ""))

    def say(self, text: str) -> None:
        """Something for whoever looks, above the table."""
        if self._live:
            self._print(self._spelled(text))
        else:
            self._line(text)

    def refresh(self) -> None:
        """Bring the view up to date, at most four times a second."""
        now = time.monotonic()
        if self._live and now >= self._next_at:
            self._draw()
            self._next_at = now + max(REFRESH_S, SHARE * (time.monotonic() - now))
        elif not self.interactive and now - self._said_at >= self.heartbeat_s:
            self._heartbeat()

    def _snapshot(self) -> status.Snapshot | None:
        """Where the plan stands; None where that can't be read just now: it is shown the next time."""
        try:
            return status.snapshot(self.paths)
        except StoreError:
            return None

    def _draw(self) -> None:
        assert self._live
        size = self.console.size
        snapshot = self._snapshot()
        if snapshot is None:
            return
        view = table.render(snapshot, size.width, ascii=self._ascii, height=size.height)
        try:
            self._live.update(view, refresh=True)
        except OSError:
            self._look_away()

    def _heartbeat(self) -> None:
        """Say that the run is alive, and what it is at."""
        snapshot = self._snapshot()
        if snapshot is None:
            return
        running = [row for row in snapshot.rows if row.state == State.RUNNING]
        for row in running:
            facts = (wording.fraction(row), wording.rate(row), wording.note(row, snapshot.now))
            self._line("  ".join([row.id, "still running", *(fact for fact in facts if fact)]))
        if not running:
            waiting = [f"{row.id} {wording.word(row.state)}" for row in snapshot.rows if not row.settled]
            self._line(f"nothing runs; {', '.join(waiting[:4]) or 'all is done'}")

    @property
    def _ascii(self) -> bool:
        return table.ascii_wanted(self.file)

    def _spelled(self, text: str) -> str:
        return table.Spelling(self._ascii)(wording.one_line(text))

    def _line(self, text: str) -> None:
        self._said_at = time.monotonic()
        try:
            self.file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self._spelled(text)}\n")
            self.file.flush()
        except OSError:
            self._look_away()

    def _print(self, text: str) -> None:
        try:
            self.console.print(text, markup=False, highlight=False, emoji=False)
        except OSError:
            self._look_away()

    def _look_away(self) -> None:
        """The pipe or the terminal is gone."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
