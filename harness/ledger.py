"""What a state database tells: the plan, its tasks and their attempts, answers, requests and events."""

import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from harness.database import Database
from harness.errors import NotFoundError
from harness.files import Seal
from harness.state import Checkpoint, State, TaskRecord


@dataclass(frozen=True)
class AttemptRecord:
    """One execution of a task, as stored. Times are seconds since the epoch.

    `cause` is the class of its failure in one word, "" where none was found.
    """

    number: int
    state: State
    reason: str
    fingerprint: str
    parts: dict[str, Any]
    started_at: float
    ended_at: float | None
    cause: str = ""


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


@dataclass
class Known:
    """What appraising a task takes: checkpoints, answers to decisions, what retry rules changed; by task id."""

    checkpoints: dict[str, Checkpoint]
    choices: dict[str, str]
    changes: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What a person asks of the run that owns the plan: a verb, and the task that it is about, None for the plan."""

    seq: int
    at: float
    verb: str
    task: str | None
    by: str


class Ledger:
    """Reads an open state database. Raises StoreError when it can't be read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connection = database.connection
        self.path = database.path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def data_version(self) -> int:
        """A number that changes when somebody else has written to the database."""
        return self.database.data_version()

    def plan(self) -> PlanRecord:
        """The plan that was run last. Raises NotFoundError before the first run."""
        rows = self.database.rows("SELECT name, path, digest FROM plan")
        if not rows:
            raise NotFoundError("no run has been recorded", where=str(self.path), do="Name the plan file")
        return PlanRecord(*rows[0])

    def records(self) -> dict[str, TaskRecord]:
        """What is known of each task, by id."""
        rows = self.database.rows(
            "SELECT id, state, attempt, tries_used, reason, started_at, ended_at, retry_at FROM task "
            "WHERE removed = 0 OR state = 'running'"
        )
        return {row[0]: TaskRecord(row[0], State(row[1]), *row[2:]) for row in rows}

    def checkpoints(self) -> dict[str, Checkpoint]:
        """The completion checkpoint of each task that has one."""
        rows = self.database.rows("SELECT task, attempt, fingerprint, content, note, ended_at FROM checkpoint")
        found = {}
        for task, attempt, fingerprint, content, note, ended_at in rows:
            facts = json.loads(content)
            facts.pop("parts", None)  # older ones kept there what the attempt keeps as well
            facts["seals"] = {name: Seal.from_dict(seal) for name, seal in facts["seals"].items()}
            found[task] = Checkpoint(task, attempt, fingerprint, note=note, ended_at=ended_at, **facts)
        return found

    def attempts(self, task: str) -> list[AttemptRecord]:
        """Every attempt of a task, in order."""
        rows = self.database.rows(
            "SELECT number, state, reason, fingerprint, parts, started_at, ended_at, cause FROM attempt "
            "WHERE task = ? ORDER BY number",
            task,
        )
        return [AttemptRecord(r[0], State(r[1]), r[2], r[3], json.loads(r[4]), r[5], r[6], r[7] or "") for r in rows]

    def parts(self, task: str, attempt: int) -> dict[str, Any]:
        """What the fingerprint of an attempt was made of, part by part; {} where that isn't known."""
        rows = self.database.rows("SELECT parts FROM attempt WHERE task = ? AND number = ?", task, attempt)
        return dict(json.loads(rows[0][0])) if rows else {}

    def changes(self) -> dict[str, dict[str, Any]]:
        """What retry rules have changed for the next attempts, by task; tasks without a change are left out."""
        rows = self.database.rows("SELECT id, changes FROM task WHERE changes IS NOT NULL AND removed = 0")
        return {name: json.loads(changes) for name, changes in rows}

    def known(self) -> Known:
        """What appraising a task takes."""
        choices = {name: decision.choice for name, decision in self.decisions().items()}
        return Known(self.checkpoints(), choices, self.changes())

    def decisions(self) -> dict[str, Choice]:
        """The answers that have been given, by the decision's task id."""
        rows = self.database.rows("SELECT task, choice, because, decided_by, at FROM decision")
        return {row[0]: Choice(*row[1:]) for row in rows}

    def events(self, since: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Events after the cursor `since`, oldest first; `seq` of the last is the next cursor."""
        query = "SELECT seq, ts, run, task, attempt, type, data FROM event WHERE seq > ? ORDER BY seq LIMIT ?"
        names = ("seq", "ts", "run", "task", "attempt", "type", "data")
        found = [dict(zip(names, row, strict=True)) for row in self.database.rows(query, since, limit)]
        return [{**event, "data": json.loads(event["data"])} for event in found]

    def requests(self) -> list[Request]:
        """The requests that have no answer yet, oldest first."""
        query = "SELECT seq, at, verb, task, by FROM request WHERE answered_at IS NULL ORDER BY seq"
        return [Request(*row) for row in self.database.rows(query)]

    def answer_to(self, seq: int) -> str | None:
        """The answer to a request, None while it has none."""
        rows = self.database.rows("SELECT answer FROM request WHERE seq = ?", seq)
        return rows[0][0] if rows else None

    def seen_digest(self, path: str, stamp: str) -> str | None:
        """The digest of an input that was read before with this stamp."""
        rows = self.database.rows("SELECT digest FROM seen WHERE path = ? AND stamp = ?", path, stamp)
        return str(rows[0][0]) if rows else None
