"""Reads where a plan stands, without touching it: the database read-only, and the last words of running tasks."""

import json
import os
import sqlite3
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import StoreError
from harness.ownership import owner
from harness.paths import PlanPaths
from harness.state import SETTLED, State, shown_as

TAIL_BYTES = 32768


@dataclass(frozen=True)
class Progress:
    """`rate` is in units a second over the last reports; `eta_s` is None before there are three of them."""

    done: int
    total: int
    unit: str
    rate: float | None
    eta_s: float | None
    age_s: float


@dataclass(frozen=True)
class Row:
    """One task. Times are seconds since the epoch; `note` is its result, or why it is in its state."""

    id: str
    content: str
    priority: str
    tool: str | None
    needs: tuple[str, ...]
    state: State
    attempt: int
    note: str
    started_at: float | None
    ended_at: float | None
    retry_at: float | None
    past_s: float | None
    progress: Progress | None = None

    @property
    def settled(self) -> bool:
        return self.state in SETTLED


@dataclass(frozen=True)
class Snapshot:
    """Where a plan stands at the time `now`; `cursor` is the number of the last event."""

    plan: str
    path: str
    run: str
    pid: int
    host: str
    alive: bool
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    cursor: int
    now: float
    rows: list[Row] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """How long the latest run has taken, or took."""
        if self.started_at is None:
            return 0.0
        return (self.now if self.alive else self.ended_at or self.started_at) - self.started_at

    @property
    def ready(self) -> list[Row]:
        """What could run next: all that it needs is settled."""
        settled = {row.id for row in self.rows if row.settled}
        waiting = (State.PENDING, State.INTERRUPTED, State.LOST, State.BLOCKED)
        return [row for row in self.rows if row.state in waiting and settled.issuperset(row.needs)]

    def eta(self) -> tuple[float, int]:
        """Seconds that the rest takes one after the other, and for how many tasks nothing is known of that."""
        known, unknown = 0.0, 0
        for row in self.rows:
            if row.settled:
                continue
            left_s = row.progress.eta_s if row.progress else row.past_s
            known += left_s or 0.0
            unknown += left_s is None
        return known, unknown


def snapshot(paths: PlanPaths) -> Snapshot:
    """Read the plan's state. Raises StoreError when the database can't be read."""
    now = time.time()
    try:
        connection = sqlite3.connect(f"{paths.database.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        try:
            plan = connection.execute("SELECT name, path FROM plan").fetchone()
            run = connection.execute(
                "SELECT id, pid, host, started_at, ended_at, exit_code FROM run ORDER BY id DESC LIMIT 1"
            ).fetchone()
            cursor = connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0]
            tasks = connection.execute(
                "SELECT t.id, t.content, t.priority, t.tool, t.needs, t.state, t.attempt, t.reason, t.started_at, "
                "t.ended_at, t.retry_at, c.note, "
                "(SELECT max(ended_at - started_at) FROM attempt a WHERE a.task = t.id AND a.state = 'completed') "
                "FROM task t LEFT JOIN checkpoint c ON c.task = t.id WHERE t.removed = 0 ORDER BY t.position"
            ).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError("the state database can't be read", where=str(paths.database), found=str(error)) from error
    owned = owner(paths.lock)
    name, path = plan or (paths.folder.name, "")
    run = run or ("", 0, "", None, None, None)
    rows = [_row(paths, task, now) for task in tasks]
    alive = owned is not None
    return Snapshot(name, path, run[0], run[1], run[2], alive, run[3], run[4], run[5], cursor, now, rows)


def _row(paths: PlanPaths, task: tuple[Any, ...], now: float) -> Row:
    name, content, priority, tool, needs, state_text, attempt, reason, started_at, ended_at, retry_at, note, past_s = (
        task
    )
    state = State(state_text)
    progress = None
    if state == State.RUNNING:
        progress, note = _last_words(paths.attempt(name, attempt).events, now)
    shown = (note or "") if state in (State.COMPLETED, State.RUNNING) else reason
    return Row(
        name, content, priority, tool, tuple(json.loads(needs)), state, attempt, shown, started_at, ended_at, retry_at,
        past_s, progress,
    )  # fmt: skip


def _last_words(events: Path, now: float) -> tuple[Progress | None, str]:
    """The progress of a running attempt, and its latest numbers or line, from the end of its events."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None, ""
    reports: list[dict[str, Any]] = []
    words = ""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the first or last line of the piece, cut through
        if event["type"] == "progress":
            reports.append(event)
        elif event["type"] == "metric":
            words = " · ".join(f"{name} {_number(value)}" for name, value in list(event["values"].items())[:4])
        elif event["type"] == "say":
            words = event["text"]
    return (_progress(reports, now) if reports else None), words


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _progress(reports: list[dict[str, Any]], now: float) -> Progress:
    last = reports[-1]
    recent = [each for each in reports if each["total"] == last["total"]][-40:]
    first = recent[0]
    spent_s, gained = last["t"] - first["t"], last["done"] - first["done"]
    rate = gained / spent_s if len(recent) >= 3 and spent_s > 0 and gained > 0 else None
    eta_s = (last["total"] - last["done"]) / rate if rate else None
    return Progress(last["done"], last["total"], last["unit"], rate, eta_s, now - last["t"])


def document(snapshot_: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON data, as docs/schemas/status.json describes it."""
    known_s, unknown = snapshot_.eta()
    tasks = []
    for row in snapshot_.rows:
        facts = asdict(row)
        facts.pop("past_s")
        tasks.append({**facts, "status": shown_as(row.state), "needs": list(row.needs)})
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task["status"]] = counts.get(task["status"], 0) + 1
    run = {
        "id": snapshot_.run,
        "pid": snapshot_.pid,
        "host": snapshot_.host,
        "alive": snapshot_.alive,
        "started_at": snapshot_.started_at,
        "ended_at": snapshot_.ended_at,
        "exit_code": snapshot_.exit_code,
        "elapsed_s": round(snapshot_.elapsed_s, 3),
    }
    data = {
        "plan": snapshot_.plan,
        "path": snapshot_.path,
        "run": run if snapshot_.run else None,
        "counts": counts,
        "eta_s": round(known_s, 1) if not unknown else None,
        "next": [row.id for row in snapshot_.ready],
        "tasks": tasks,
    }
    return {"schema": "harness.status/1", "ok": True, "cursor": snapshot_.cursor, "data": data}
