"""What a run knows of each task, kept equal to the store; it waits where the store can't be written for a while."""

import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from harness import retrying
from harness.appraisal import defaults
from harness.errors import StoreError
from harness.files import digest_json
from harness.ledger import Request
from harness.live import Live
from harness.outcome import Outcome
from harness.plan import Rule, Step
from harness.state import SETTLED, Checkpoint, State, Verdict
from harness.store import Store

T = TypeVar("T")
WAIT_S = 1.0
FIGURES = re.compile(r"\d[\d.,]* ?(?:[KMGT]i)?B?")


def _but_figures(reason: str) -> str:
    """A reason without its figures: how much is free of what a task waits for changes all the time."""
    return FIGURES.sub("", reason)


class Books:
    """States, reasons, checkpoints, answers and retries by task id. `leaves` says whether the run is told to leave."""

    def __init__(self, store: Store, live: Live, leaves: Callable[[], bool]) -> None:
        self.store, self.live, self.leaves = store, live, leaves
        self.write(store.unblock)
        records = store.records()
        self.states = {name: record.state for name, record in records.items()}
        self.reasons = {name: record.reason for name, record in records.items()}
        self.attempts = {name: record.attempt for name, record in records.items()}
        self.retry_at = {name: record.retry_at for name, record in records.items() if record.retry_at}
        self.tries_used = {  # a task that has failed for good begins anew with each run
            name: record.tries_used for name, record in records.items() if record.state != State.FAILED
        }
        self.checkpoints: dict[str, Checkpoint] = store.checkpoints()
        self.choices = {name: decision.choice for name, decision in store.decisions().items()}
        self.changes: dict[str, dict[str, Any]] = store.changes()

    def write(self, transaction: Callable[[], T]) -> T:
        """Carry out a transaction, again and again while the disk is full or read-only.

        Raises StoreError for a cause that won't pass, or when the run is told to leave meanwhile.
        """
        told = False
        while True:
            try:
                done = transaction()
            except StoreError as error:
                if not error.passing or self.leaves():
                    raise
                if not told:
                    self.live.say(f"{error}. The run waits for that; nothing is lost.")
                told = True
                time.sleep(WAIT_S)
            else:
                if told:
                    self.live.say("The state can be written again: the run goes on.")
                return done

    def take_in(self, steps: Iterable[str]) -> None:
        """Tasks that are new are pending."""
        for name in steps:
            self.states.setdefault(name, State.PENDING)

    def set(self, name: str, state: State, reason: str) -> None:
        """Record a change of state that is not the start or end of an attempt; nothing where nothing changes."""
        before = self.reasons.get(name, "")
        same = _but_figures(before) == _but_figures(reason) if state == State.WAITING_RESOURCES else before == reason
        if self.states[name] == state and (state in SETTLED or same):
            return
        self.write(lambda: self.store.set_state(name, state, reason))
        self._now(name, state, reason)

    def start(self, name: str, fingerprint: str, parts: Mapping[str, Any]) -> int:
        """Record that the next attempt is running, before its process exists; returns its number."""
        number = self.write(lambda: self.store.start_attempt(name, fingerprint=fingerprint, parts=parts))
        self.attempts[name] = number
        self.states[name] = State.RUNNING
        return number

    def complete(self, checkpoint: Checkpoint, verdict: Verdict, freed: list[Checkpoint]) -> None:
        """Record a completion checkpoint, and what the task has freed of others."""
        name = checkpoint.task
        self.write(lambda: self.store.complete(checkpoint, verdict, freed=freed))
        self.checkpoints.update({each.task: each for each in (*freed, checkpoint)})
        self.tries_used.pop(name, None)
        self._now(name, State.COMPLETED, checkpoint.note)

    def finish(
        self, name: str, state: State, outcome: Outcome, verdict: Verdict | None, *, retry_at: float | None = None
    ) -> None:
        """Record an attempt that didn't complete; `retry_at` is when it is tried again, in seconds since the epoch."""
        retry = (retry_at, self.tries_used.get(name, 0))
        self.write(
            lambda: self.store.finish(
                name,
                self.attempts[name],
                state,
                verdict=verdict,
                reason=outcome.reason,
                retry=retry,
                cause=outcome.cause or "",
                changes=self.changes.get(name),
            )
        )
        if retry_at is not None:
            self.retry_at[name] = retry_at
        self._now(name, state, outcome.reason)

    def renew(self, name: str) -> None:
        """Record that somebody asked for the task to be tried again."""
        self.write(lambda: self.store.renew(name))
        for known in (self.retry_at, self.tries_used, self.changes):
            known.pop(name, None)
        self._now(name, State.PENDING, "asked to be tried again")

    def cancel(self, name: str, reason: str) -> None:
        """Record that somebody cancelled the task."""
        self.write(lambda: self.store.cancel(name, reason))
        self.retry_at.pop(name, None)
        self._now(name, State.CANCELLED, reason)

    def forget(self, name: str) -> None:
        """Drop a checkpoint."""
        self.write(lambda: self.store.forget(name))
        self.checkpoints.pop(name, None)
        self.states[name] = State.PENDING

    def answer(self, request: Request, text: str) -> None:
        """Record what was done at somebody's request."""
        self.write(lambda: self.store.answer(request.seq, text))
        self.live.say(f"{request.by} asked to {request.verb} {request.task or 'the run'}: {text}")

    def next_try(self, step: Step, rule: Rule | None) -> float | None:
        """When a task that has failed once more is tried again, in seconds since the epoch; None: not any more.

        What the rule changes counts until the plan itself says something else.
        """
        name = step.task.id
        used = self.tries_used[name] = self.tries_used.get(name, 0) + 1
        params = {
            **(defaults(step.tool.params) if step.tool else {}),
            **step.params,
            **self.changes.get(name, {}).get("with", {}),
            **self.store.attempts(name)[-1].parts["params"],  # which leaves out those that can't change the outputs
        }
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 - no secret
        again = retrying.again(step.task.retries, rule, used, params, jitter=jitter)
        if again is None:
            return None
        if again.changes:
            before, base = self.changes.get(name, {}), digest_json(step.params)
            kept = before.get("with", {}) if before.get("base") == base else {}
            self.changes[name] = {"base": base, "with": {**kept, **again.changes}}
        return time.time() + again.pause_s

    def _now(self, name: str, state: State, reason: str) -> None:
        self.states[name], self.reasons[name] = state, reason
        self.live.transition(name, state, reason)
