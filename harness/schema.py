"""The tables of the state database, and the migrations that lead to them from every released schema."""

import sqlite3

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

migrations = Migrations("drafter-harness")

FIRST: dict[str, tuple[dict[str, type], tuple[str, ...]]] = {  # table -> columns, primary key
    "plan": ({"name": str, "path": str, "digest": str, "changed_at": float}, ("name",)),
    "run": (
        {"id": str, "pid": int, "host": str, "boot_id": str, "plan_digest": str}
        | {"started_at": float, "ended_at": float, "exit_code": int},
        ("id",),
    ),
    "task": (
        {"id": str, "position": int, "content": str, "priority": str, "tool": str, "needs": str, "removed": int}
        | {"state": str, "attempt": int, "tries_used": int, "reason": str}
        | {"started_at": float, "ended_at": float, "retry_at": float},
        ("id",),
    ),
    "attempt": (
        {"task": str, "number": int, "run": str, "state": str, "reason": str, "fingerprint": str, "parts": str}
        | {"started_at": float, "ended_at": float}
        | {"exit_code": int, "signal": int, "stop": str, "cpu_s": float, "peak_rss_bytes": int},
        ("task", "number"),
    ),
    "checkpoint": (
        {"task": str, "attempt": int, "fingerprint": str, "content": str, "note": str, "ended_at": float},
        ("task",),
    ),
    "decision": ({"task": str, "choice": str, "because": str, "decided_by": str, "at": float}, ("task",)),
    "seen": ({"path": str, "stamp": str, "digest": str}, ("path",)),
}


@migrations()
def m001_first(db: Database) -> None:
    """Plan, runs, tasks, attempts, checkpoints, decisions, digests of inputs, and the events of them all."""
    for name, (columns, key) in FIRST.items():
        db.table(name).create(columns, pk="".join(key) if len(key) == 1 else key)
    db.execute(
        "CREATE TABLE event (seq INTEGER PRIMARY KEY AUTOINCREMENT, ts REAL NOT NULL, run TEXT, task TEXT, "
        "attempt INTEGER, type TEXT NOT NULL, data TEXT NOT NULL)"
    )


@migrations()
def m002_requests(db: Database) -> None:
    """What people ask of a run; what retry rules changed; why attempts failed; a digest of each task's definition."""
    db.execute(
        "CREATE TABLE request (seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, verb TEXT NOT NULL, task TEXT, "
        "by TEXT NOT NULL, answer TEXT, answered_at REAL)"
    )
    db.execute("ALTER TABLE task ADD COLUMN changes TEXT")
    db.execute("ALTER TABLE task ADD COLUMN definition TEXT")
    db.execute("ALTER TABLE attempt ADD COLUMN cause TEXT")
    db.execute("ALTER TABLE attempt ADD COLUMN oom_kills INTEGER")


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the database to the newest schema; `version` becomes its user_version.

    To be called within one immediate transaction: then of two processes that open an old database at once, the second
    finds the work done.
    """
    migrations.apply(Database(connection))
    connection.execute(f"PRAGMA user_version = {version}")
