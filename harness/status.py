"""Reads where a plan stands, without touching it: the database read-only, and the last words of running tasks."""

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from harness import faults
from harness.database import reading
from harness.errors import StoreError
from harness.ownership import held, owner
from harness.paths import PlanPaths
from harness.progress import Progress, last_words
from harness.state import SETTLED, State, shown_as

STARTABLE = frozenset({State.PENDING, State.INTERRUPTED, State.LOST, State.BLOCKED})
HOPELESS = frozenset({State.FAILED, State.BLOCKED, State.CANCELLED})  # no run goes on with it as things are
BLOCKING = frozenset({State.FAILED, State.WAITING_DECISION, State.WAITING_RESOURCES, State.WAITING_DISK})
RUN = "SELECT id, pid, host, started_at, ended_at, exit_code FROM run ORDER BY id DESC LIMIT 1"
EVENT = "SELECT seq, ts FROM event ORDER BY seq DESC LIMIT 1"
REMOVED = "SELECT id, state FROM task WHERE removed = 1 AND attempt > 0 ORDER BY position, id"
TASKS = """
SELECT t.id, t.content, t.priority, t.tool, t.needs, t.state, t.attempt, t.reason, t.started_at, t.ended_at, t.retry_at,
    c.note,
    (SELECT a.ended_at - a.started_at FROM attempt a WHERE a.task = t.id AND a.state = 'completed'
        ORDER BY a.number DESC LIMIT 1)
FROM task t LEFT JOIN checkpoint c ON c.task = t.id WHERE t.removed = 0 ORDER BY t.position
"""


@dataclass(frozen=True)
class Row:
    """One task. Times are seconds since the epoch; `note` is its result, or why it is in its state.

    `process` tells of a task in state running: "alive", or, with no run there to see it, "ended" or "gone".
    `past_s` is how long it took when it completed last.
    """

    id: str
    content: str
    priority: str
    tool: str | None
    needs: tuple[str, ...]
    state: State
    attempt: int
    note: str
    started_at: float | None = None
    ended_at: float | None = None
    retry_at: float | None = None
    past_s: float | None = None
    process: str | None = None
    progress: Progress | None = None

    @property
    def settled(self) -> bool:
        return self.state in SETTLED

    def left_s(self, now: float) -> float | None:
        """Seconds that it still takes: as its progress says, else as long as last time; None where neither is known."""
        if self.progress and self.progress.eta_s is not None:
            return self.progress.eta_s
        if self.past_s is None or self.state != State.RUNNING or self.started_at is None:
            return self.past_s
        return max(0.0, self.past_s - (now - self.started_at))


@dataclass(frozen=True)
class Snapshot:
    """Where a plan stands at the time `now`.

    `run` is the id of the latest run, "" before the first; `cursor` and `changed_at` are the number and the time of
    the last event; `removed` has the id and state of tasks that were executed and that the plan no longer has.
    """

    plan: str
    path: str = ""
    run: str = ""
    pid: int = 0
    host: str = ""
    alive: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    cursor: int = 0
    changed_at: float | None = None
    now: float = 0.0
    rows: list[Row] = field(default_factory=list)
    removed: list[tuple[str, State]] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """How long the latest run has taken, or took: until its last event, where it was killed."""
        if self.started_at is None:
            return 0.0
        end = self.now if self.alive else self.ended_at or self.changed_at or self.started_at
        return max(0.0, end - self.started_at)

    @property
    def ready(self) -> list[Row]:
        """What could run next: all that it needs is settled."""
        settled = {row.id for row in self.rows if row.settled}
        return [row for row in self.rows if row.state in STARTABLE and settled.issuperset(row.needs)]

    @property
    def blocking(self) -> list[Row]:
        """What the plan can't get past without somebody's help, failed tasks first."""
        found = [row for row in self.rows if row.state in BLOCKING]
        return sorted(found, key=lambda row: row.state != State.FAILED)

    def eta(self) -> tuple[float, int]:
        """Seconds that the rest takes, as many tasks at a time as run now; and for how many none are known."""
        running = [row for row in self.rows if row.state == State.RUNNING]
        left = [row.left_s(self.now) for row in self.rows if not row.settled and row.state not in HOPELESS]
        longest = max((row.left_s(self.now) or 0.0 for row in running), default=0.0)
        known = [each for each in left if each is not None]
        return max(longest, sum(known) / max(1, len(running))), len(left) - len(known)


def snapshot(paths: PlanPaths) -> Snapshot:
    """Read the plan's state. Raises StoreError when the database can't be read."""
    now = time.time()
    owned = owner(paths.lock) is not None  # before the database: a run that begins meanwhile isn't taken for dead
    try:
        with closing(reading(paths.database)) as db:
            db.execute("BEGIN")  # all that follows is of one moment
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:  # the first run is about to make its tables
                if paths.tasks.exists():
                    raise faults.store_error(faults.EMPTY, paths.database)
                return Snapshot(paths.folder.name, alive=owned, now=now)
            plan = db.execute("SELECT name, path FROM plan").fetchone() or (paths.folder.name, "")
            run = db.execute(RUN).fetchone() or ("", 0, "", None, None, None)
            event = db.execute(EVENT).fetchone() or (0, None)
            tasks = db.execute(TASKS).fetchall()
            removed = [(name, State(state)) for name, state in db.execute(REMOVED)]
    except (sqlite3.Error, OSError) as error:
        do = "Look at its permissions; if it is damaged, restore a copy"
        raise StoreError("the state can't be read", where=str(paths.database), found=str(error), do=do) from error
    rows = [_row(paths, task, now=now, owned=owned) for task in tasks]
    return Snapshot(
        plan=plan[0], path=plan[1], cursor=event[0], changed_at=event[1], now=now, rows=rows, removed=removed,
        alive=owned and run[4] is None, run=run[0],
        pid=run[1], host=run[2], started_at=run[3], ended_at=run[4], exit_code=run[5],
    )  # fmt: skip


def _row(paths: PlanPaths, task: tuple[Any, ...], *, now: float, owned: bool) -> Row:
    name, content, priority, tool, needs, state, attempt, reason, started_at, ended_at, retry_at, result, past_s = task
    note, process, progress = (result or reason if state == State.COMPLETED else reason), None, None
    if state == State.RUNNING:
        place = paths.attempt(name, attempt)
        if owned or held(place.lock):
            process = "alive"
            progress, note = last_words(place.events, now)
        else:
            process = "ended" if place.verdict.exists() else "gone"
    return Row(
        name, content, priority, tool, tuple(json.loads(needs)), State(state), attempt, note,
        started_at, ended_at, retry_at, past_s, process, progress,
    )  # fmt: skip


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON data, as docs/schemas/status.json describes it."""
    known_s, unknown = snapshot.eta()
    run = {
        "id": snapshot.run,
        "pid": snapshot.pid,
        "host": snapshot.host,
        "alive": snapshot.alive,
        "started_at": snapshot.started_at,
        "ended_at": snapshot.ended_at,
        "exit_code": snapshot.exit_code,
        "elapsed_s": round(snapshot.elapsed_s, 3),
    }
    counts: dict[str, int] = {}
    for row in snapshot.rows:
        counts[shown_as(row.state)] = counts.get(shown_as(row.state), 0) + 1
    data = {
        "plan": snapshot.plan,
        "path": snapshot.path,
        "run": run if snapshot.run else None,
        "counts": counts,
        "eta_s": None if unknown else round(known_s, 1),
        "next": [row.id for row in snapshot.ready],
        "blocking": [row.id for row in snapshot.blocking],
        "tasks": [_task(row) for row in snapshot.rows],
        "removed": [{"id": name, "state": state} for name, state in snapshot.removed],
    }
    return {"schema": "harness.status/1", "ok": True, "cursor": snapshot.cursor, "data": data}


def _task(row: Row) -> dict[str, Any]:
    facts = dict(vars(row))  # dataclasses.asdict copies deeply, and takes ten times as long
    facts["needs"] = list(row.needs)
    facts["status"] = shown_as(row.state)
    facts["progress"] = vars(row.progress) if row.progress else None
    return facts
