"""The loop that runs a plan: consider, start, follow, settle, until nothing is left to do."""

import random
import selectors
import shutil
import time
from collections import Counter
from dataclasses import replace

from harness import launching, order, preflight, process, protection, references
from harness.appraisal import Appraisal, Appraiser
from harness.contract import Needs
from harness.errors import BlockedError, ToolError
from harness.files import Seal
from harness.frontier import Frontier
from harness.live import Live
from harness.machine import DiskWatch, list_gpus, snapshot
from harness.outcome import Outcome, judge
from harness.paths import Root
from harness.plan import LoadedPlan, Step
from harness.sealing import Sealer, Seals
from harness.state import SETTLED, Checkpoint, State, Verdict
from harness.stops import Stops
from harness.store import Store

TICK_S = 0.25
RESOURCES_AGAIN_S = 5.0
ANSWERS_AGAIN_S = 1.0
NOTHING = Needs()
LOST = "its process is gone without a verdict: killed, or the machine went down"
LOST_AT_MOST = 3  # in one run: something keeps killing the task's supervisor


class Engine:
    """Owns the plan for one run. All state that matters is in the store: what is here can be lost at any moment."""

    def __init__(
        self, loaded: LoadedPlan, root: Root, store: Store, *, live: Live, stops: Stops, envs: dict[str, str]
    ) -> None:
        self.plan, self.steps, self.root, self.store = loaded.plan, loaded.steps, root, store
        self.live, self.stops, self.envs = live, stops, envs
        self.paths = root.plan(loaded.plan.name)
        store.unblock()
        records = store.records()
        self.states = {name: records[name].state if name in records else State.PENDING for name in self.steps}
        self.tries_used = {
            name: record.tries_used for name, record in records.items() if record.state == State.WAITING_RETRY
        }
        self.retry_at = {name: record.retry_at for name, record in records.items() if record.retry_at}
        self.checkpoints: dict[str, Checkpoint] = store.checkpoints()
        self.choices = {name: decision.choice for name, decision in store.decisions().items()}
        self.appraiser = Appraiser(self.steps, root.folder, store, checkpoints=self.checkpoints, choices=self.choices)
        self.reasons = {name: record.reason for name, record in records.items()}
        self.outcomes: dict[str, tuple[Verdict, Outcome]] = {}
        self.launcher = launching.Launcher(root, loaded.plan, self.paths, envs)
        self.selector = selectors.DefaultSelector()
        self.ready: dict[str, Appraisal] = {}
        self.running: dict[str, process.Attempt] = {}
        self.numbers: dict[str, int] = {}
        self.forced: dict[str, str] = {}  # tasks to run again although their checkpoint holds, and why
        self.lost: Counter[str] = Counter()
        self.executed = 0
        self.blocked_until = 0.0
        self.answers_at = 0.0
        self.disk = DiskWatch(self.paths.folder)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self, jobs: int, only: list[str]) -> None:
        """Run until nothing more can be done, or until stopped."""
        self.frontier = Frontier(self.steps, only)
        machine = snapshot()
        self.queue = order.Queue(self.steps, order.Capacity(jobs, machine.cpus, 0, machine.ram_bytes))
        self.sealer = Sealer(self.root.folder)
        self.selector.register(self.stops, selectors.EVENT_READ)
        self.selector.register(self.sealer, selectors.EVENT_READ)
        try:
            self._recover()
            while True:
                self._consider_all()
                if not self.stops.count:
                    self._start_ready()
                if self._finished():
                    break
                self._wait()
        finally:
            self.sealer.close()
            for attempt in self.running.values():
                attempt.close()

    def _finished(self) -> bool:
        if self.running or len(self.sealer) or self.frontier:
            return False
        blocked = time.monotonic() < self.blocked_until  # everything that is ready was tried, and lacks something
        return bool(self.stops.count) or not (self.retry_at or (self.queue and not blocked))

    def _wait(self) -> None:
        """Sleep until an attempt ends, seals are done, a stop signal comes, or it is time to look again."""
        seen = self.stops.count
        for key, _ in self.selector.select(TICK_S):
            if key.fileobj is self.stops:
                self.stops.drain()
            elif key.fileobj is self.sealer:
                for name, seals in self.sealer.done():
                    self._completed(name, seals)
            else:
                self._poll(key.data)
        if self.stops.count > seen:
            self._stop()
        self._look_for_answers()
        if news := self.disk.news():
            self.live.say(news)
        self.live.refresh()

    def _look_for_answers(self) -> None:
        """Take in the decisions that were made while this run goes on."""
        if State.WAITING_DECISION not in self.states.values() or time.monotonic() < self.answers_at:
            return
        self.answers_at = time.monotonic() + ANSWERS_AGAIN_S
        for name, decision in self.store.decisions().items():
            if name not in self.choices:
                self.choices[name] = decision.choice
                self.frontier.reconsider(name)

    def _poll(self, name: str) -> None:
        """Take the verdict of an attempt whose supervisor has ended."""
        attempt = self.running.pop(name)
        self.selector.unregister(attempt)
        verdict = attempt.poll()
        attempt.close()
        self._ended(name, verdict if isinstance(verdict, Verdict) else None)

    def _stop(self) -> None:
        """Act on a stop signal: detach or stop gracefully on the first, kill on the second."""
        if self.plan.on_interrupt == "detach":
            for attempt in self.running.values():
                self.selector.unregister(attempt)
                attempt.close()
            names = ", ".join(self.running) or "nothing"
            self.live.say(f"Detached; still running: {names}. Follow again with: harness resume {self.plan.name}")
            self.running.clear()
            return
        if self.stops.count == 1:
            self.live.say(f"Stopping: each task has {self.plan.grace_s:g} s to keep its progress. Ctrl-C again kills.")
        for attempt in self.running.values():
            if self.stops.count == 1:
                attempt.stop()
            else:
                attempt.kill()

    # -- what runs next ---------------------------------------------------------------------------------------------

    def _consider_all(self) -> None:
        """Look at each task whose needs are settled: up to date, skipped, waiting, or ready to run."""
        now = time.time()
        for name in [name for name, at in self.retry_at.items() if at <= now]:
            del self.retry_at[name]
            self.frontier.reconsider(name)
        while (task := self.frontier.pop()) is not None:
            if task in self.running or task in self.outcomes:
                continue
            try:
                self._consider(task, self.steps[task])
            except ToolError as error:
                self._set(task, State.FAILED, str(error))
                self._block(task)

    def _consider(self, name: str, step: Step) -> None:
        if not self.appraiser.wanted(step):
            self._set(name, State.SKIPPED, f"its condition is false: {step.task.when}")
            self.frontier.settle(name)
        elif step.tool is None:
            self._consider_decision(name, step)
        else:
            appraisal = self.appraiser.appraise(step)
            stale = appraisal.stale or self.forced.get(name)
            if stale is None:
                self._set(name, State.COMPLETED, "up to date")
                self.frontier.settle(name)
            elif freed := self.appraiser.freed_needs(step):
                for need, reason in freed.items():
                    self._make_again(need, reason)
            elif name not in self.retry_at:
                needs = self._needs(step, appraisal)
                if name in self.checkpoints:
                    self._set(name, State.PENDING, stale)
                    self._doubt(name)
                self.ready[name] = appraisal
                self.queue.add(name, needs)

    def _make_again(self, name: str, reason: str) -> None:
        """Let a task run again whose outputs were freed, and after it whoever freed them."""
        for by in set(self.checkpoints[name].freed.values()) & self.steps.keys():
            self.store.forget(by)
            self.checkpoints.pop(by, None)
            self.states[by] = State.PENDING
            self.frontier.unsettle(by)
        self.forced[name] = reason
        for dependant in self.frontier.unsettle(name):
            self.ready.pop(dependant, None)

    def _consider_decision(self, name: str, step: Step) -> None:
        if name in self.choices:
            self._set(name, State.COMPLETED, f"decided: {self.choices[name]}")
            self.frontier.settle(name)
        elif step.task.decision:
            asked = references.substitute(step.task.decision.model_dump(), self.appraiser.filled)
            options = " | ".join(f"{each['key']} {each['title']}".strip() for each in asked["options"])
            self._set(name, State.WAITING_DECISION, f"{asked['question']} {options}")
        else:
            self._set(name, State.WAITING_DECISION, "has no tool yet: give it one in the plan")

    # -- starting ---------------------------------------------------------------------------------------------------

    def _needs(self, step: Step, appraisal: Appraisal) -> Needs:
        """What the task asks of the machine, its inputs among the files."""
        assert step.tool is not None
        needs = step.tool.needs(launching.checked_params(step, appraisal.params))
        if needs.gpus and not self.queue.capacity.gpus:
            self.queue.capacity = replace(self.queue.capacity, gpus=len(list_gpus()))
        return needs.model_copy(update={"files": [*needs.files, *step.inputs]}) if step.inputs else needs

    def _start_ready(self) -> None:
        if time.monotonic() < self.blocked_until:
            return
        held_back = []
        while (picked := self.queue.pick()) is not None:
            name, needs = picked
            appraisal = self.ready.get(name)
            if appraisal is None:
                continue  # it was reopened, or already started, since it was queued
            problems = self._problems(self.steps[name], needs)
            if problems:
                self._set(name, State.WAITING_RESOURCES, "; ".join(problems))
                held_back.append((name, needs))
            else:
                del self.ready[name]
                self._start(name, self.steps[name], appraisal, needs)
        for name, needs in held_back:
            self.queue.add(name, needs)
        if held_back:
            self.blocked_until = time.monotonic() + RESOURCES_AGAIN_S

    def _problems(self, step: Step, needs: Needs) -> list[str]:
        """What the machine lacks for the step, one sentence each."""
        try:
            self.launcher.python(step)
        except BlockedError as error:
            return [str(error)]
        if needs == NOTHING:
            return []
        now = snapshot(disks=needs.disk_bytes, files=needs.files, ports=needs.ports, gpus=needs.gpus > 0)
        found = preflight.findings(needs, now)
        return [str(finding) for finding in found if finding.level == "error"]

    def _start(self, name: str, step: Step, appraisal: Appraisal, needs: Needs) -> None:
        """Start the next attempt of a task: the row first, then the process."""
        number = self.store.start_attempt(name, fingerprint=appraisal.fingerprint, parts=appraisal.parts)
        self.numbers[name] = number
        self.states[name] = State.RUNNING
        self.forced.pop(name, None)
        self.executed += 1
        keep = {}
        if step.tool and step.tool.deletes:
            keep = protection.protected(self.steps, name, self.states, self.checkpoints)
        try:
            launch = self.launcher.prepare(step, appraisal, number, protected=keep)
            attempt = process.start(self.paths.attempt(name, number), launch)
        except OSError as error:
            self._unfinished(name, None, Outcome(State.FAILED, f"could not be started: {error}"))
            return
        self._follow(name, attempt, needs)
        self.live.transition(name, State.RUNNING, f"attempt {number}")

    def _follow(self, name: str, attempt: process.Attempt, needs: Needs) -> None:
        self.running[name] = attempt
        self.queue.occupy(name, needs)
        self.selector.register(attempt, selectors.EVENT_READ, name)

    def _recover(self) -> None:
        """Take up what an earlier run left running: its verdict, the living attempt, or the fact that it is lost."""
        for name, record in self.store.records().items():
            if record.state != State.RUNNING:
                continue
            paths = self.paths.attempt(name, record.attempt)
            self.numbers[name] = record.attempt
            found = process.adopt(paths)
            if isinstance(found, process.Attempt):
                self._follow(name, found, NOTHING)
                self.live.transition(name, State.RUNNING, f"attempt {record.attempt} outlived its run and is adopted")
                if name not in self.steps:
                    found.stop()
            else:
                self._ended(name, found)

    # -- settling ---------------------------------------------------------------------------------------------------

    def _ended(self, name: str, verdict: Verdict | None) -> None:
        """Judge an attempt whose processes are gone; no verdict means that it was lost."""
        step, paths = self.steps.get(name), self.paths.attempt(name, self.numbers[name])
        if verdict is None:
            self._unfinished(name, None, Outcome(State.LOST, LOST))
            return
        tail = process.log_tail(paths, 5)
        result = process.read_result(paths)
        timeout_s = step.task.timeout_s if step else None
        outcome = judge(verdict, result, tail, timeout_s=timeout_s)
        if step is None:
            outcome = Outcome(State.CANCELLED, "it was removed from the plan")
        if outcome.state != State.COMPLETED or step is None:
            self._unfinished(name, verdict, outcome)
            return
        self.outcomes[name] = (verdict, outcome)
        if "seals" in outcome.result:
            seals = {output: Seal.from_dict(seal) for output, seal in outcome.result["seals"].items()}
            self._completed(name, seals)
        else:
            self.sealer.submit(name, step.outputs)

    def _completed(self, name: str, seals: Seals | OSError) -> None:
        """Commit the completion checkpoint of a task whose outputs are sealed, or its failure to make them."""
        verdict, outcome = self.outcomes.pop(name)
        self.queue.release(name)  # only now: what it makes ready comes before what waits for the free place
        if isinstance(seals, OSError):
            reason = f"it ended well, but a declared output can't be sealed: '{seals.filename}' ({seals.strerror})"
            self._unfinished(name, verdict, Outcome(State.FAILED, reason))
            return
        attempt = self.store.attempts(name)[-1]
        result = outcome.result
        checkpoint = Checkpoint(
            task=name,
            attempt=attempt.number,
            fingerprint=attempt.fingerprint,
            parts=attempt.parts,
            seals=seals,
            values=result.get("values", {}),
            metrics=result.get("metrics", {}),
            note=result.get("note", ""),
            ended_at=verdict.ended_at,
        )
        self.checkpoints[name] = checkpoint
        freed = protection.freed(self.steps, self.checkpoints, result.get("freed", []), by=name)
        self.store.complete(checkpoint, verdict, freed=freed)
        shutil.rmtree(self.paths.scratch(name, attempt.fingerprint), ignore_errors=True)  # nothing resumes from it now
        self.checkpoints.update({each.task: each for each in freed})
        self.states[name] = State.COMPLETED
        self.live.transition(name, State.COMPLETED, checkpoint.note)
        self.frontier.reconsider(name)  # the plan may have changed while it ran: its checkpoint is compared once more

    def _unfinished(self, name: str, verdict: Verdict | None, outcome: Outcome) -> None:
        """Record an attempt that didn't complete, and decide whether the task is tried again."""
        state, retry_at = outcome.state, None
        self.queue.release(name)
        step = self.steps.get(name)
        if state == State.FAILED and step:
            self.tries_used[name] = self.tries_used.get(name, 0) + 1
            retries = step.task.retries
            if self.tries_used[name] <= retries.count:
                pause_s = min(retries.backoff_s * 2 ** (self.tries_used[name] - 1), retries.backoff_max_s)
                retry_at = time.time() + pause_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads retries, no secret
                self.retry_at[name] = retry_at
                state = State.WAITING_RETRY
        self.store.finish(
            name,
            self.numbers[name],
            state,
            verdict=verdict,
            reason=outcome.reason,
            retry=(retry_at, self.tries_used.get(name, 0)),
        )
        self.states[name] = state
        self.live.transition(name, state, outcome.reason)
        if state == State.FAILED:
            self._block(name)
        elif state == State.LOST and not self.stops.count:
            self.lost[name] += 1
            if self.lost[name] < LOST_AT_MOST:
                self.frontier.reconsider(name)

    def _block(self, name: str) -> None:
        """Say of everything that waits for a failed task that it is blocked, and by what."""
        stays = {State.RUNNING, *SETTLED}
        for task, by in self.frontier.below(name, leave=lambda task: self.states[task] in stays).items():
            self._set(task, State.BLOCKED, f"needs '{by}', which {'failed' if by == name else 'is blocked'}")

    def _doubt(self, name: str) -> None:
        """A completed task runs again: what rests on it isn't completed until it has been compared anew."""
        for task, by in self.frontier.below(name, leave=lambda task: self.states[task] != State.COMPLETED).items():
            self._set(task, State.PENDING, f"waits for '{by}', which runs again")

    def _set(self, name: str, state: State, reason: str) -> None:
        """Record a change of state that is not the start or end of an attempt; nothing where nothing changes."""
        if self.states[name] == state and (state in SETTLED or self.reasons.get(name) == reason):
            return
        self.store.set_state(name, state, reason)
        self.states[name], self.reasons[name] = state, reason
        self.live.transition(name, state, reason)
