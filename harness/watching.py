"""Notices what others change while a run goes on: the plan's file, and answers and requests in the store."""

import time
from collections.abc import Callable

from harness.errors import HarnessError, PlanError
from harness.plan import LoadedPlan
from harness.store import Store

EVERY_S = 0.5
Stamp = tuple[int, int, int] | None


class Watch:
    """`load` reads the plan's file anew."""

    def __init__(self, loaded: LoadedPlan, store: Store, load: Callable[[], LoadedPlan]) -> None:
        self._loaded, self._store, self._load = loaded, store, load
        self._stamp = self._look()
        self._version = store.data_version()
        self._next_at = 0.0

    def due(self) -> bool:
        """Whether it is time to look again."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + EVERY_S
        return True

    def store_changed(self) -> bool:
        """Whether somebody else has written to the store since the last time."""
        before, self._version = self._version, self._store.data_version()
        return self._version != before

    def new_plan(self) -> LoadedPlan | str | None:
        """The plan, when its file has changed; or why that can't be taken in, in a sentence; else None."""
        stamp = self._look()
        if stamp == self._stamp or stamp is None:
            return None
        self._stamp = stamp
        try:
            loaded = self._load()
        except PlanError as error:
            return f"The plan's file has changed and is wrong now, so this run goes on without the change: {error}"
        except HarnessError as error:
            return f"The plan's file can't be read any more, so this run goes on without it: {error}"
        if loaded.plan.name != self._loaded.plan.name:
            return f"The plan's file is that of another plan now, '{loaded.plan.name}'; this run goes on without it"
        if loaded.digest == self._loaded.digest:
            return None
        self._loaded = loaded
        return loaded

    def _look(self) -> Stamp:
        try:
            status = self._loaded.path.stat()
        except OSError:
            return None  # an editor replaces it just now
        return (status.st_size, status.st_mtime_ns, status.st_ino)
