"""What a state database of any schema records, as far as files and processes must agree with it."""

import json
from dataclasses import dataclass

from harness.database import Database
from harness.state import State

STATES = frozenset(State)
MEANT = {"forgotten": State.PENDING, "retried": State.PENDING}  # events that are no states, and the state after them


@dataclass(frozen=True)
class TaskRow:
    state: str
    attempt: int
    tool: str | None
    removed: bool


@dataclass(frozen=True)
class AttemptRow:
    """`has_verdict` says that its process ended by itself or was ended, so that it had a folder."""

    state: str
    fingerprint: str
    ended_at: float | None
    has_verdict: bool


@dataclass(frozen=True)
class Records:
    """By task, or by task and attempt number. `disposed` are the attempts whose folders `harness gc` has removed."""

    schema: int
    tasks: dict[str, TaskRow]
    attempts: dict[tuple[str, int], AttemptRow]
    checkpoints: dict[str, int]
    last_events: dict[str, str]
    num_missing_events: int
    disposed: set[tuple[str, int]]
    fingerprints: dict[str, set[str]]


def read(database: Database) -> Records:
    """Read a database. Raises StoreError when it can't be read."""
    rows = database.rows
    schema = int(rows("PRAGMA user_version")[0][0])
    if not schema:
        return Records(0, {}, {}, {}, {}, 0, set(), {})
    attempts = rows(
        "SELECT task, number, state, fingerprint, ended_at, exit_code IS NOT NULL OR signal IS NOT NULL FROM attempt"
    )
    fingerprints: dict[str, set[str]] = {}
    for task, _, _, fingerprint, *_ in attempts:
        fingerprints.setdefault(task, set()).add(fingerprint)
    tasks = rows("SELECT id, state, attempt, tool, removed FROM task")
    states = rows("SELECT task, type FROM event WHERE task IS NOT NULL ORDER BY seq")
    last_events = {task: str(MEANT.get(kind, kind)) for task, kind in states if kind in STATES or kind in MEANT}
    num_events, last = rows("SELECT count(*), coalesce(max(seq), 0) FROM event")[0]
    disposals = [json.loads(row[0])["attempts"] for row in rows("SELECT data FROM event WHERE type = 'disposed'")]
    return Records(
        schema=schema,
        tasks={r[0]: TaskRow(r[1], r[2], r[3], bool(r[4])) for r in tasks},
        attempts={(r[0], r[1]): AttemptRow(r[2], r[3], r[4], bool(r[5])) for r in attempts},
        checkpoints={task: number for task, number in rows("SELECT task, attempt FROM checkpoint")},  # noqa: C416
        last_events=last_events,
        num_missing_events=last - num_events,
        disposed={(task, number) for each in disposals for task, numbers in each.items() for number in numbers},
        fingerprints=fingerprints,
    )
