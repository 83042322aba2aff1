"""Follows a run that somebody else owns, or attempts that go on without one, until they end."""

import time

from harness import status
from harness.errors import EXIT_INTERRUPTED, EXIT_OK
from harness.live import Live
from harness.paths import PlanPaths
from harness.state import State
from harness.status import Snapshot

LOOK_S = 0.5


def follow(paths: PlanPaths) -> int:
    """Show what goes on until nothing does; returns the exit code of the run, that of an interruption if it has none.

    Whoever follows owns nothing: to leave (Ctrl-C) changes nothing.
    """
    with Live(paths) as live:
        before: Snapshot | None = None
        while True:
            now = status.snapshot(paths)
            _tell(live, before, now)
            live.refresh()
            going = [row.id for row in now.rows if row.process == "alive"]
            if not now.alive and not going:
                break
            before = now
            time.sleep(LOOK_S)
        if now.exit_code is None and now.run:
            live.say(f"The run was killed. Go on with: harness resume {now.plan}")
            return EXIT_INTERRUPTED
        unsettled = [row.id for row in now.rows if row.process in ("ended", "gone")]
        if unsettled:
            live.say(f"Ended: {', '.join(unsettled)}. Take it in and go on with: harness resume {now.plan}")
        return now.exit_code or EXIT_OK


def _tell(live: Live, before: Snapshot | None, now: Snapshot) -> None:
    """What has changed since the last look, where no table shows it."""
    known = {row.id: (row.state, row.attempt) for row in before.rows} if before else {}
    for row in now.rows:
        begun = before is None and row.state == State.RUNNING
        if begun or (before and known.get(row.id) != (row.state, row.attempt)):
            live.transition(row.id, row.state, row.note)
