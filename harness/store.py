"""The only writer of a plan's state database: one transaction for each transition, with its event."""

import json
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.errors import Mistake, NotFoundError, PlanError, StoreError
from harness.files import Seal
from harness.paths import PlanPaths
from harness.plan import LoadedPlan
from harness.state import Checkpoint, State, TaskRecord, Verdict

SCHEMA_VERSION = 1
UNSAFE_FOR_WAL = ("nfs", "cifs", "smb", "9p", "fuse", "lustre", "gpfs", "ceph", "afs")


@dataclass(frozen=True)
class AttemptRecord:
    """One execution of a task, as stored."""

    number: int
    state: State
    reason: str
    fingerprint: str
    parts: dict[str, Any]
    started_at: float
    ended_at: float | None


@dataclass(frozen=True)
class Choice:
    """The answer to a decision."""

    choice: str
    because: str
    decided_by: str
    at: float


@dataclass(frozen=True)
class PlanRecord:
    """The plan file that was run last."""

    name: str
    path: str
    digest: str


class Store:
    """An open state database; made, or brought to the newest schema, where needed.

    Raises StoreError when it can't be opened, read or written.
    """

    def __init__(self, paths: PlanPaths) -> None:
        self.path = paths.database
        self.run = ""
        try:
            paths.folder.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def _prepare(self) -> None:
        safe = not filesystem_type(self.path.parent).startswith(UNSAFE_FOR_WAL)
        self.connection.execute(f"PRAGMA journal_mode = {'WAL' if safe else 'DELETE'}")
        self.connection.execute("PRAGMA synchronous = FULL")
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreError(
                "the state database was written by a newer harness",
                where=str(self.path),
                found=f"schema {version}, this one knows {SCHEMA_VERSION}",
                do="Use the newer harness",
            )
        if version < SCHEMA_VERSION:
            from harness.schema import migrate  # noqa: PLC0415 - sqlite_utils costs 0.1 s, and is rarely needed

            migrate(self.connection, SCHEMA_VERSION)

    def _failure(self, error: Exception) -> StoreError:
        do = {
            "database or disk is full": "Free some room, then resume: nothing that was recorded is lost",
            "file is not a database": "Move it away to start anew, or restore a copy",
            "database disk image is malformed": "Move it away to start anew, or restore a copy",
        }
        return StoreError(
            "the state database can't be used",
            where=str(self.path),
            found=str(error),
            do=do.get(str(error), "Check the folder's permissions and free room"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _event(self, kind: str, *, task: str | None = None, attempt: int | None = None, **data: Any) -> None:
        self.connection.execute(
            "INSERT INTO event (ts, run, task, attempt, type, data) VALUES (?, ?, ?, ?, ?, ?)",
            (time.time(), self.run or None, task, attempt, kind, json.dumps(data, ensure_ascii=False)),
        )

    # -- plans and runs ---------------------------------------------------------------------------------------------

    def plan(self) -> PlanRecord:
        """The plan that was run last. Raises NotFoundError before the first run."""
        rows = self._rows("SELECT name, path, digest FROM plan")
        if not rows:
            raise NotFoundError("no run has been recorded", where=str(self.path), do="Name the plan file")
        return PlanRecord(*rows[0])

    def begin_run(self, loaded: LoadedPlan) -> str:
        """Record a run and the plan that it runs; returns the run's id, which sorts by time.

        Raises PlanError when the name belongs to another plan file that still exists.
        """
        name, path = loaded.plan.name, str(loaded.path)
        known = self._rows("SELECT path, digest FROM plan")
        if known and known[0][0] != path and Path(known[0][0]).exists() and known[0][1] != loaded.digest:
            what = f"the plan name '{name}' is already used by another plan file here"
            raise PlanError([Mistake(path, 0, 0, what, f"'{known[0][0]}'", "Give one of them another name")])
        self.run = f"{int(time.time() * 1000):012x}{secrets.token_hex(4)}"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with self._transaction() as db:
            values = (self.run, os.getpid(), socket.gethostname(), boot, loaded.digest, time.time())
            db.execute(
                "INSERT INTO run (id, pid, host, boot_id, plan_digest, started_at) VALUES (?, ?, ?, ?, ?, ?)", values
            )
            db.execute("INSERT OR REPLACE INTO plan VALUES (?, ?, ?, ?)", (name, path, loaded.digest, time.time()))
            if not known or known[0][1] != loaded.digest:
                self._sync(loaded)
            self._event("run_started", pid=os.getpid(), plan_digest=loaded.digest)
        return self.run

    def _sync(self, loaded: LoadedPlan) -> None:
        """Take the plan's tasks in; those that the plan no longer has are marked, not lost."""
        self.connection.execute("UPDATE task SET removed = 1")
        rows = [
            (name, place, s.task.content, s.task.priority, s.task.tool, json.dumps(s.needs), State.PENDING)
            for place, (name, s) in enumerate(loaded.steps.items())
        ]
        self.connection.executemany(
            "INSERT INTO task "
            "(id, position, content, priority, tool, needs, state, removed, attempt, tries_used, reason) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, '') ON CONFLICT (id) DO UPDATE SET position = excluded.position, "
            "content = excluded.content, priority = excluded.priority, tool = excluded.tool, needs = excluded.needs, "
            "removed = 0",
            rows,
        )

    def end_run(self, exit_code: int) -> None:
        """Record that the run has ended."""
        with self._transaction() as db:
            db.execute("UPDATE run SET ended_at = ?, exit_code = ? WHERE id = ?", (time.time(), exit_code, self.run))
            self._event("run_ended", exit_code=exit_code)

    # -- reading ----------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, TaskRecord]:
        """What is known of each task, by id."""
        rows = self._rows(
            "SELECT id, state, attempt, tries_used, reason, started_at, ended_at, retry_at FROM task "
            "WHERE removed = 0 OR state = 'running'"
        )
        return {row[0]: TaskRecord(row[0], State(row[1]), *row[2:]) for row in rows}

    def checkpoints(self) -> dict[str, Checkpoint]:
        """The completion checkpoint of each task that has one."""
        rows = self._rows("SELECT task, attempt, fingerprint, content, note, ended_at FROM checkpoint")
        found = {}
        for task, attempt, fingerprint, content, note, ended_at in rows:
            facts = json.loads(content)
            facts["seals"] = {name: Seal.from_dict(seal) for name, seal in facts["seals"].items()}
            found[task] = Checkpoint(task, attempt, fingerprint, note=note, ended_at=ended_at, **facts)
        return found

    def attempts(self, task: str) -> list[AttemptRecord]:
        """Every attempt of a task, in order."""
        rows = self._rows(
            "SELECT number, state, reason, fingerprint, parts, started_at, ended_at FROM attempt WHERE task = ? "
            "ORDER BY number",
            task,
        )
        return [AttemptRecord(r[0], State(r[1]), r[2], r[3], json.loads(r[4]), r[5], r[6]) for r in rows]

    def decisions(self) -> dict[str, Choice]:
        """The answers that have been given, by the decision's task id."""
        rows = self._rows("SELECT task, choice, because, decided_by, at FROM decision")
        return {row[0]: Choice(*row[1:]) for row in rows}

    def events(self, since: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Events after the cursor `since`, oldest first; `seq` of the last is the next cursor."""
        query = "SELECT seq, ts, run, task, attempt, type, data FROM event WHERE seq > ? ORDER BY seq LIMIT ?"
        names = ("seq", "ts", "run", "task", "attempt", "type", "data")
        found = [dict(zip(names, row, strict=True)) for row in self._rows(query, since, limit)]
        return [{**event, "data": json.loads(event["data"])} for event in found]

    # -- transitions ------------------------------------------------------------------------------------------------

    def start_attempt(self, task: str, *, fingerprint: str, parts: Mapping[str, Any]) -> int:
        """Record that the next attempt is running, before its process exists; returns its number."""
        now = time.time()
        with self._transaction() as db:
            row = db.execute("SELECT max(number) FROM attempt WHERE task = ?", (task,)).fetchone()
            number = (row[0] or 0) + 1
            db.execute(
                "INSERT INTO attempt (task, number, run, state, reason, fingerprint, parts, started_at) "
                "VALUES (?, ?, ?, 'running', '', ?, ?, ?)",
                (task, number, self.run, fingerprint, json.dumps(parts), now),
            )
            db.execute(
                "UPDATE task SET state = 'running', attempt = ?, reason = '', started_at = ?, ended_at = NULL, "
                "retry_at = NULL WHERE id = ?",
                (number, now, task),
            )
            self._event("running", task=task, attempt=number)
        return number

    def complete(self, checkpoint: Checkpoint, verdict: Verdict) -> None:
        """Record that an attempt completed, with its completion checkpoint."""
        with self._transaction():
            self._end(checkpoint.task, checkpoint.attempt, State.COMPLETED, verdict=verdict)
            self._put(checkpoint)

    def finish(
        self,
        task: str,
        number: int,
        state: State,
        *,
        verdict: Verdict | None,
        reason: str,
        retry: tuple[float | None, int],
    ) -> None:
        """Record that an attempt ended without completing.

        `retry` is when it is tried again, in seconds since the epoch, and how many tries have been used up.
        """
        with self._transaction() as db:
            self._end(task, number, state, verdict=verdict, reason=reason)
            db.execute("UPDATE task SET retry_at = ?, tries_used = ? WHERE id = ?", (*retry, task))

    def _end(self, task: str, number: int, state: State, *, verdict: Verdict | None, reason: str = "") -> None:
        ended_at = verdict.ended_at if verdict else time.time()
        facts: tuple[Any, ...] = (None, None, None, None, None)
        if verdict:
            facts = (verdict.exit_code, verdict.signal, verdict.stop, verdict.cpu_s, verdict.peak_rss_bytes)
        attempt_state = State.FAILED if state == State.WAITING_RETRY else state
        self.connection.execute(
            "UPDATE attempt SET state = ?, reason = ?, ended_at = ?, exit_code = ?, signal = ?, stop = ?, cpu_s = ?, "
            "peak_rss_bytes = ? WHERE task = ? AND number = ?",
            (attempt_state, reason, ended_at, *facts, task, number),
        )
        self.connection.execute(
            "UPDATE task SET state = ?, reason = ?, ended_at = ?, retry_at = NULL, tries_used = 0 WHERE id = ?",
            (state, reason, ended_at, task),
        )
        self._event(state, task=task, attempt=number, reason=reason)

    def _put(self, checkpoint: Checkpoint) -> None:
        content = {
            "parts": checkpoint.parts,
            "seals": {name: seal.to_dict() for name, seal in checkpoint.seals.items()},
            "values": checkpoint.values,
            "metrics": checkpoint.metrics,
            "freed": checkpoint.freed,
        }
        self.connection.execute(
            "INSERT OR REPLACE INTO checkpoint (task, attempt, fingerprint, content, note, ended_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                checkpoint.task,
                checkpoint.attempt,
                checkpoint.fingerprint,
                json.dumps(content, ensure_ascii=False),
                checkpoint.note,
                checkpoint.ended_at,
            ),
        )

    def set_state(self, task: str, state: State, reason: str) -> None:
        """Record a change of state that is no start or end of an attempt."""
        with self._transaction() as db:
            db.execute("UPDATE task SET state = ?, reason = ?, retry_at = NULL WHERE id = ?", (state, reason, task))
            self._event(state, task=task, reason=reason)

    def put_checkpoints(self, checkpoints: Iterable[Checkpoint], *, by: str) -> None:
        """Replace checkpoints, for example to note what task `by` has freed."""
        with self._transaction():
            for checkpoint in checkpoints:
                self._put(checkpoint)
                self._event("freed", task=checkpoint.task, by=by, outputs=sorted(checkpoint.freed))

    def unblock(self) -> None:
        """At the start of a run nothing has failed yet that could block anything."""
        with self._transaction() as db:
            db.execute("UPDATE task SET state = 'pending', reason = '' WHERE state = 'blocked'")

    def forget(self, task: str) -> None:
        """Drop a task's completion checkpoint; its outputs and attempts stay."""
        with self._transaction() as db:
            db.execute("DELETE FROM checkpoint WHERE task = ?", (task,))
            db.execute(
                "UPDATE task SET state = 'pending', reason = 'forgotten', tries_used = 0, retry_at = NULL WHERE id = ?",
                (task,),
            )
            self._event("forgotten", task=task)

    def decide(self, task: str, *, choice: str, because: str, by: str) -> None:
        """Record the answer to a decision; an earlier answer is replaced, and stays in the events."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO decision VALUES (?, ?, ?, ?, ?)", (task, choice, because, by, time.time())
            )
            self._event("decided", task=task, choice=choice, because=because, by=by)

    def seen_digest(self, path: str, stamp: str) -> str | None:
        """The digest of an input that was read before with this stamp."""
        rows = self._rows("SELECT digest FROM seen WHERE path = ? AND stamp = ?", path, stamp)
        return str(rows[0][0]) if rows else None

    def remember_digest(self, path: str, stamp: str, digest: str) -> None:
        """Keep an input's digest, so that it isn't read again while its stamp is the same."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (path, stamp, digest))


def filesystem_type(folder: Path) -> str:
    """The type of the file system that holds `folder`, such as "ext4"; "" where it can't be told."""
    found, longest = "", -1
    place = str(folder.resolve())
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:
            found, longest = kind, len(mount)
    return found
