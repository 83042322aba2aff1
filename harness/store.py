"""The only writer of a plan's state database: one transaction for each transition, with its event."""

import functools
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Concatenate, NotRequired, ParamSpec, TypedDict, TypeVar, Unpack

from harness.database import Database
from harness.errors import Mistake, PlanError
from harness.files import digest_json
from harness.ledger import Ledger
from harness.paths import PlanPaths
from harness.plan import LoadedPlan, Step
from harness.state import Checkpoint, State, Verdict

RENEWABLE = (State.FAILED, State.CANCELLED, State.INTERRUPTED, State.LOST, *(s for s in State if "waiting" in s))
TASK_COLUMNS = ("position", "id", "content", "priority", "tool", "needs", "definition")  # what the plan says of a task
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Ending(TypedDict):
    """How an attempt ended that didn't complete.

    `retry` is when it is tried again, in seconds since the epoch, and how many tries have been used up; `cause` is the
    class of the failure; `changes` is what a retry rule changed, None where earlier changes stay.
    """

    verdict: Verdict | None
    reason: str
    retry: tuple[float | None, int]
    cause: NotRequired[str]
    changes: NotRequired[dict[str, Any] | None]


def transition(method: Callable[Concatenate["Store", Asked], Answer]) -> Callable[Concatenate["Store", Asked], Answer]:
    """Make a method of the store one transaction; it may be called again, so all that it does is in the database."""

    @functools.wraps(method)
    def whole(store: "Store", /, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        return store.database.transact(lambda: method(store, *args, **kwargs))

    return whole


class Store(Ledger):
    """An open state database; made, or brought to the newest schema, where needed.

    Raises StoreError when it can't be opened, read or written.
    """

    def __init__(self, paths: PlanPaths) -> None:
        super().__init__(Database(paths))
        self.paths = paths
        self.run = ""

    @property
    def tight(self) -> bool:
        """Whether the disk was so full that the ballast was given up, or could not be made."""
        return self.database.ballast.tight

    def restore_ballast(self) -> None:
        """Make the ballast again where there is room for it now; costs next to nothing while it is there."""
        self.database.ballast.make()

    def _event(self, kind: str, *, task: str | None = None, attempt: int | None = None, **data: Any) -> None:
        self.connection.execute(
            "INSERT INTO event (ts, run, task, attempt, type, data) VALUES (?, ?, ?, ?, ?, ?)",
            (time.time(), self.run or None, task, attempt, kind, json.dumps(data, ensure_ascii=False)),
        )

    # -- plans and runs ---------------------------------------------------------------------------------------------

    def begin_run(self, loaded: LoadedPlan) -> str:
        """Record a run and the plan that it runs; returns the run's id, which sorts by time.

        Raises PlanError when the name belongs to another plan file that still exists.
        """
        name, path = loaded.plan.name, str(loaded.path)
        known = self.database.rows("SELECT path, digest FROM plan")
        if known and known[0][0] != path and Path(known[0][0]).exists() and known[0][1] != loaded.digest:
            what = f"the plan name '{name}' is already used by another plan file here"
            raise PlanError([Mistake(path, 0, 0, what, f"'{known[0][0]}'", "Give one of them another name")])
        self.run = f"{int(time.time() * 1000):012x}{secrets.token_hex(4)}"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._begin_run(loaded, boot)
        return self.run

    @transition
    def _begin_run(self, loaded: LoadedPlan, boot: str) -> None:
        values = (self.run, os.getpid(), socket.gethostname(), boot, loaded.digest, time.time())
        self.connection.execute(
            "INSERT INTO run (id, pid, host, boot_id, plan_digest, started_at) VALUES (?, ?, ?, ?, ?, ?)", values
        )
        self._event("run_started", pid=os.getpid(), plan_digest=loaded.digest)
        known = self.database.rows("SELECT digest FROM plan WHERE path = ?", str(loaded.path))
        if known != [(loaded.digest,)]:
            self._take_in(loaded)

    @transition
    def sync(self, loaded: LoadedPlan) -> None:
        """Take in a plan whose file was edited; tasks that it no longer has are marked, not lost."""
        self._take_in(loaded)

    def _take_in(self, loaded: LoadedPlan) -> None:
        new = {name: _task_row(place, name, step) for place, (name, step) in enumerate(loaded.steps.items())}
        columns = ", ".join(TASK_COLUMNS)
        rows = self.database.rows(f"SELECT {columns} FROM task WHERE removed = 0")  # noqa: S608 - names of ours
        old = {row[1]: row for row in rows}
        self.connection.execute("UPDATE task SET removed = 1")
        renewed = ", ".join(f"{name} = excluded.{name}" for name in TASK_COLUMNS)
        self.connection.executemany(
            f"INSERT INTO task ({columns}, state, removed, attempt, tries_used, reason) "  # noqa: S608 - names of ours
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', 0, 0, 0, '') "
            f"ON CONFLICT (id) DO UPDATE SET {renewed}, removed = 0",
            new.values(),
        )
        known = self.database.rows("SELECT 1 FROM plan")
        values = (loaded.plan.name, str(loaded.path), loaded.digest, time.time())
        self.connection.execute("INSERT OR REPLACE INTO plan VALUES (?, ?, ?, ?)", values)
        if known:
            changed = [name for name in new.keys() & old.keys() if _differ(old[name], new[name])]
            self._event(
                "plan_changed",
                digest=loaded.digest,
                added=sorted(new.keys() - old.keys()),
                removed=sorted(old.keys() - new.keys()),
                changed=sorted(changed),
            )

    @transition
    def end_run(self, exit_code: int) -> None:
        """Record that the run has ended."""
        self.connection.execute(
            "UPDATE run SET ended_at = ?, exit_code = ? WHERE id = ?", (time.time(), exit_code, self.run)
        )
        self._event("run_ended", exit_code=exit_code)

    # -- attempts and states -------------------------------------------------------------------------------------------

    @transition
    def start_attempt(self, task: str, *, fingerprint: str, parts: Mapping[str, Any]) -> int:
        """Record that the next attempt is running, before its process exists; returns its number.

        An attempt's folder is never used again, not even by a database that was restored from an older copy.
        """
        now = time.time()
        last = self.database.rows("SELECT max(number) FROM attempt WHERE task = ?", task)[0][0] or 0
        number = 1 + max(last, *self.paths.attempts(task), 0)
        self.connection.execute(
            "INSERT INTO attempt (task, number, run, state, reason, fingerprint, parts, started_at) "
            "VALUES (?, ?, ?, 'running', '', ?, ?, ?)",
            (task, number, self.run, fingerprint, json.dumps(parts), now),
        )
        self.connection.execute(
            "UPDATE task SET state = 'running', attempt = ?, reason = '', started_at = ?, ended_at = NULL, "
            "retry_at = NULL WHERE id = ?",
            (number, now, task),
        )
        self._event("running", task=task, attempt=number)
        return number

    def complete(self, checkpoint: Checkpoint, verdict: Verdict, *, freed: Iterable[Checkpoint] = ()) -> None:
        """Record that an attempt completed, with its completion checkpoint and those whose outputs it has freed."""
        self._complete(checkpoint, verdict, tuple(freed))

    @transition
    def _complete(self, checkpoint: Checkpoint, verdict: Verdict, freed: tuple[Checkpoint, ...]) -> None:
        self._end(checkpoint.task, checkpoint.attempt, State.COMPLETED, verdict=verdict)
        self._put(checkpoint)
        for each in freed:
            self._put(each)
            self._event("freed", task=each.task, by=checkpoint.task, outputs=sorted(each.freed))

    @transition
    def finish(self, task: str, number: int, state: State, **ending: Unpack[Ending]) -> None:
        """Record that an attempt ended without completing."""
        self._end(
            task, number, state, verdict=ending["verdict"], reason=ending["reason"], cause=ending.get("cause", "")
        )
        self.connection.execute("UPDATE task SET retry_at = ?, tries_used = ? WHERE id = ?", (*ending["retry"], task))
        changes = ending.get("changes")
        if changes is not None:
            text = json.dumps(changes, ensure_ascii=False) if changes else None
            self.connection.execute("UPDATE task SET changes = ? WHERE id = ?", (text, task))

    def _end(
        self, task: str, number: int, state: State, *, verdict: Verdict | None, reason: str = "", cause: str = ""
    ) -> None:
        ended_at = verdict.ended_at if verdict else time.time()
        facts: tuple[Any, ...] = (None,) * 6
        if verdict:
            facts = (verdict.exit_code, verdict.signal, verdict.stop, verdict.cpu_s, verdict.peak_rss_bytes)
            facts = (*facts, verdict.oom_kills)
        attempt_state = State.FAILED if state == State.WAITING_RETRY else state
        self.connection.execute(
            "UPDATE attempt SET state = ?, reason = ?, cause = ?, ended_at = ?, exit_code = ?, signal = ?, stop = ?, "
            "cpu_s = ?, peak_rss_bytes = ?, oom_kills = ? WHERE task = ? AND number = ?",
            (attempt_state, reason, cause, ended_at, *facts, task, number),
        )
        self.connection.execute(
            "UPDATE task SET state = ?, reason = ?, ended_at = ?, retry_at = NULL, tries_used = 0 WHERE id = ?",
            (state, reason, ended_at, task),
        )
        self._event(state, task=task, attempt=number, reason=reason, **({"cause": cause} if cause else {}))

    def _put(self, checkpoint: Checkpoint) -> None:
        content = {
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

    @transition
    def set_state(self, task: str, state: State, reason: str) -> None:
        """Record a change of state that is no start or end of an attempt."""
        self._state(task, state, reason)
        self._event(state, task=task, reason=reason)

    def _state(self, task: str, state: State, reason: str) -> None:
        self.connection.execute(
            "UPDATE task SET state = ?, reason = ?, retry_at = NULL WHERE id = ?", (state, reason, task)
        )

    @transition
    def cancel(self, task: str, reason: str) -> None:
        """Record that the task is not to be executed, because somebody said so."""
        self._state(task, State.CANCELLED, reason)
        ended = "UPDATE attempt SET state = 'cancelled', reason = ?, ended_at = ? WHERE task = ? AND state = 'running'"
        self.connection.execute(ended, (reason, time.time(), task))
        self._event("cancelled", task=task, reason=reason)

    @transition
    def unblock(self) -> None:
        """At the start of a run nothing has failed yet that could block anything."""
        self.connection.execute("UPDATE task SET state = 'pending', reason = '' WHERE state = 'blocked'")

    @transition
    def renew(self, task: str) -> bool:
        """Let a task that failed, was stopped, lost or cancelled, or waits, be tried as if it never had been.

        Returns False, and changes nothing, where the task is in another state.
        """
        rows = self.database.rows("SELECT state FROM task WHERE id = ?", task)
        if not rows or rows[0][0] not in RENEWABLE:
            return False
        self._fresh(task, "asked to be tried again")
        self._event("retried", task=task, was=rows[0][0])
        return True

    @transition
    def forget(self, task: str) -> None:
        """Drop a task's completion checkpoint; its outputs and attempts stay."""
        self.connection.execute("DELETE FROM checkpoint WHERE task = ?", (task,))
        self._fresh(task, "forgotten")
        self._event("forgotten", task=task)

    def _fresh(self, task: str, reason: str) -> None:
        self._state(task, State.PENDING, reason)
        self.connection.execute("UPDATE task SET tries_used = 0, changes = NULL WHERE id = ?", (task,))

    @transition
    def decide(self, task: str, *, choice: str, because: str, by: str) -> None:
        """Record the answer to a decision; an earlier answer is replaced, and stays in the events."""
        values = (task, choice, because, by, time.time())
        self.connection.execute("INSERT OR REPLACE INTO decision VALUES (?, ?, ?, ?, ?)", values)
        self._event("decided", task=task, choice=choice, because=because, by=by)

    @transition
    def dispose(self, attempts: Mapping[str, list[int]], progress: Mapping[str, list[str]], freed_bytes: int) -> None:
        """Record that the folders of these attempts and progress checkpoints, by task, are removed for their room."""
        self._event("disposed", attempts=dict(attempts), progress=dict(progress), freed_bytes=freed_bytes)

    # -- what a person asks of the run that owns the plan -----------------------------------------------------------

    @transition
    def ask(self, verb: str, task: str | None, *, by: str) -> int:
        """Leave a request to the run that owns the plan; returns its number, by which the answer is found."""
        cursor = self.connection.execute(
            "INSERT INTO request (at, verb, task, by) VALUES (?, ?, ?, ?)", (time.time(), verb, task, by)
        )
        assert cursor.lastrowid is not None
        self._event("asked", task=task, request=cursor.lastrowid, verb=verb, by=by)
        return cursor.lastrowid

    @transition
    def answer(self, seq: int, text: str) -> None:
        """Answer a request; nothing where it has an answer already, or there is no such request."""
        found = self.connection.execute(
            "UPDATE request SET answer = ?, answered_at = ? WHERE seq = ? AND answered_at IS NULL RETURNING verb, task",
            (text, time.time(), seq),
        ).fetchall()
        for verb, task in found:
            self._event("answered", task=task, request=seq, verb=verb, answer=text)

    @transition
    def remember_digest(self, path: str, stamp: str, digest: str) -> None:
        """Keep an input's digest, so that it isn't read again while its stamp is the same."""
        self.connection.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (path, stamp, digest))


def _task_row(place: int, name: str, step: Step) -> tuple[Any, ...]:
    """A task as the plan defines it, in the order of TASK_COLUMNS."""
    task = step.task
    rest = [step.params, step.outputs, step.inputs, sorted(step.deferred)]
    definition = digest_json([task.model_dump(mode="json", by_alias=True, exclude_defaults=True), *rest])
    return place, name, task.content, task.priority, task.tool, json.dumps(step.needs), definition


def _differ(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether two rows of a task differ in more than its place; a row of schema 1 has no definition to compare."""
    return old[1:-1] != new[1:-1] or old[-1] not in (None, new[-1])
