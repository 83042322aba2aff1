"""The loop that runs a plan: consider, start, follow, settle, until nothing is left to do."""

import selectors
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harness import launching, order, process, protection, retrying
from harness.agenda import Agenda
from harness.books import Books
from harness.contract import Needs
from harness.files import Seal
from harness.ledger import Request
from harness.live import Live
from harness.machine import DiskWatch, snapshot
from harness.outcome import NO_ROOM, Ended, Outcome, judge
from harness.paths import Root
from harness.plan import Cause, LoadedPlan, Step
from harness.room import Shortages, users
from harness.sealing import Sealer, Seals, unsealed
from harness.state import Checkpoint, State, Verdict
from harness.stops import Stops
from harness.store import Store
from harness.watching import Watch

TICK_S = 0.25
RESOURCES_AGAIN_S = 5.0
LEAVE_S = 5.0
LOST_AT_MOST = 3  # in one run: something keeps killing the task's supervisor
TAIL_LINES = 40
REMOVED = "it was removed from the plan"


@dataclass
class Running:
    """An attempt that is followed; `step` is None for a task that the plan no longer had when the run began."""

    attempt: process.Attempt
    step: Step | None
    cancelled: bool = False


class Engine:
    """Owns the plan for one run. All state that matters is in the store: what is here can be lost at any moment."""

    def __init__(
        self, loaded: LoadedPlan, root: Root, store: Store, *, live: Live, stops: Stops, envs: Mapping[str, str]
    ) -> None:
        self.loaded, self.plan, self.root, self.store = loaded, loaded.plan, root, store
        self.live, self.stops = live, stops
        self.paths = root.plan(loaded.plan.name)
        self.books = Books(store, live, self._leaves)
        self.launcher = launching.Launcher(root, loaded.plan, self.paths, envs)
        self.selector = selectors.DefaultSelector()
        self.running: dict[str, Running] = {}
        self.ended: dict[str, Ended] = {}
        self.shortages = Shortages()
        self.lost: Counter[str] = Counter()
        self.executed = 0
        self.blocked_until = 0.0
        self.heeded = 0  # of the stop signals
        self.disk = DiskWatch(self.paths.folder)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self, jobs: int, only: list[str], load: Callable[[], LoadedPlan]) -> None:
        """Run until nothing more can be done, or until stopped. `load` reads the plan anew."""
        self.capacity = order.Capacity(jobs, 0, 0, 0)  # the machine is looked at when a task asks for something
        self.agenda = Agenda(self.loaded.steps, self.root, self.books, only)
        self.queue = order.Queue(self.loaded.steps, self.capacity)
        self.watch = Watch(self.loaded, self.store, load)
        self.sealer = Sealer(self.root.folder)
        self.selector.register(self.stops, selectors.EVENT_READ)
        self.selector.register(self.sealer, selectors.EVENT_READ)
        try:
            self._recover()
            while True:
                self._consider()
                if not self.stops.count:
                    self._start_ready()
                if self.stops.count > self.heeded:
                    self._stop()
                if self._finished():
                    break
                self._wait()
        finally:
            self.sealer.close()
            for each in self.running.values():
                each.attempt.close()

    def _leaves(self) -> bool:
        """Whether the run is told to end at once: everything that it waits for is left to the next one."""
        return self.stops.count > 1

    def _finished(self) -> bool:
        if self._leaves():
            return not self.running or time.monotonic() > self.leaves_at
        if self.running or len(self.sealer):
            return False
        if self.stops.count:
            return True
        blocked = time.monotonic() < self.blocked_until  # everything that is ready was tried, and lacks something
        waits = self.books.retry_at or self.shortages or (self.queue and not blocked)
        return not (self.agenda.frontier or waits)

    def _wait(self) -> None:
        """Sleep until an attempt ends, seals are done, a stop signal comes, or it is time to look again."""
        for key, _ in self.selector.select(TICK_S):
            if key.fileobj is self.stops:
                self.stops.drain()
            elif key.fileobj is self.sealer:
                for name, seals in self.sealer.done():
                    self._completed(name, self.ended.pop(name), seals)
            else:
                self._poll(key.data)
        if self.watch.due():
            self._look_around()
        if news := self.disk.news():
            self.live.say(news)
        self.live.refresh()

    def _poll(self, name: str) -> None:
        """Take the verdict of an attempt whose supervisor has ended."""
        ended = self.running.pop(name)
        self.selector.unregister(ended.attempt)
        verdict = ended.attempt.poll()
        ended.attempt.close()
        self._ended(name, ended.step, verdict, cancelled=ended.cancelled)

    def _stop(self) -> None:
        """Act on a stop signal: detach or stop gracefully on the first, kill on the second."""
        self.heeded = self.stops.count
        first = self.heeded == 1
        self.leaves_at = time.monotonic() + LEAVE_S  # a supervisor that waits for room to write its verdict may stay
        detached = [name for name, each in self.running.items() if first and self._detaches(each)]
        for name in detached:
            each = self.running.pop(name)
            self.selector.unregister(each.attempt)
            each.attempt.close()
        plan = self.plan.name
        if detached:
            self.live.say(
                f"Detached: {', '.join(detached)} goes on. Look at it: harness attach {plan}. "
                f"Go on with the plan: harness resume {plan}"
            )
        if self.running and first:
            self.live.say(f"Stopping: each task has {self.plan.grace_s:g} s to keep its progress. Ctrl-C again kills.")
        for each in self.running.values():
            if first:
                each.attempt.stop()
            else:
                each.attempt.kill()

    def _detaches(self, each: Running) -> bool:
        said = each.step.task.on_interrupt if each.step else None
        return (said or self.plan.on_interrupt) == "detach" and not self.stops.asked

    # -- what others change -----------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Take in answers, requests, an edited plan, and room where there was none."""
        if self.watch.store_changed():
            for name, decision in self.store.decisions().items():
                if self.books.choices.get(name) != decision.choice:
                    self.books.choices[name] = decision.choice
                    self.agenda.frontier.reconsider(name)
            for request in self.store.requests():
                self.books.answer(request, self._heed(request))
        found = self.watch.new_plan()
        if isinstance(found, LoadedPlan):
            self._take_in(found)
        elif found:
            self.live.say(found)
        for name in self.shortages.over():
            self.live.say(f"There is room again: '{name}' goes on")
            self.agenda.unblock(name)
        if self.store.tight:
            self.store.restore_ballast()

    def _take_in(self, loaded: LoadedPlan) -> None:
        """Go on with the plan as it was edited."""
        self.live.say(f"The plan's file has changed: going on with its {len(loaded.steps)} tasks")
        self.plan = self.launcher.plan = loaded.plan
        self.books.write(lambda: self.store.sync(loaded))
        used = self.queue.used
        self.queue = order.Queue(loaded.steps, self.capacity)
        for name, needs in used.items():
            self.queue.occupy(name, needs)
        self.agenda.take_in(loaded.steps)
        for name in self.books.states.keys() - loaded.steps.keys():
            self.books.retry_at.pop(name, None)
            self.shortages.drop(name)
        for name in self.running.keys() - loaded.steps.keys():
            self.live.say(f"'{name}' is stopped: {REMOVED}")
            self.running[name].attempt.stop()

    def _heed(self, request: Request) -> str:
        """Do what somebody asks, and say what was done."""
        name, running = request.task or "", self.running.get(request.task or "")
        if request.verb == "stop" and not name:
            self.stops.ask()
            return "the run stops"
        state = self.books.states.get(name)
        if name not in self.agenda.steps or state is None:
            return f"the plan has no task '{name}'"
        if request.verb in ("stop", "cancel") and running:
            running.cancelled |= request.verb == "cancel"
            running.attempt.stop()
            return f"'{name}' is being stopped; it has {self.plan.grace_s:g} s to keep its progress"
        if request.verb == "stop":
            return f"'{name}' does not run"
        if state in (State.RUNNING, State.COMPLETED):
            return f"'{name}' is {state}" + ("; harness forget lets it run again" * (state == State.COMPLETED))
        self.agenda.take(name)
        self.shortages.drop(name)
        if request.verb == "cancel":
            self.books.cancel(name, f"cancelled by {request.by}")
            self.agenda.over.add(name)
            self.agenda.block(name)
            return f"'{name}' is cancelled; what needs it is blocked"
        self.books.renew(name)
        self.agenda.unblock(name)
        return f"'{name}' is tried again"

    # -- starting ---------------------------------------------------------------------------------------------------

    def _consider(self) -> None:
        now = time.time()
        for name in [name for name, at in self.books.retry_at.items() if at <= now]:
            del self.books.retry_at[name]
            self.agenda.frontier.reconsider(name)
        for name in self.agenda.look(busy=self.running.keys() | self.ended.keys()):
            step = self.agenda.steps[name]
            needs = launching.needs(step, self.agenda.ready[name])
            if needs != launching.NOTHING and not self.capacity.cpus:
                machine = snapshot(gpus=True)
                found = order.Capacity(self.capacity.jobs, machine.cpus, len(machine.gpus), machine.ram_bytes)
                self.queue.capacity = self.capacity = found
            self.queue.add(name, needs)

    def _start_ready(self) -> None:
        if self.shortages.lacking or self.store.tight or time.monotonic() < self.blocked_until:
            return
        held_back = []
        while (picked := self.queue.pick()) is not None:
            name, needs = picked
            if name not in self.agenda.ready or name in self.running:
                continue  # it was reopened, or already started, since it was queued
            problems = self.launcher.problems(self.agenda.steps[name], needs)
            if problems:
                self.books.set(name, State.WAITING_RESOURCES, "; ".join(problems))
                held_back.append((name, needs))
            else:
                self._start(name, needs)
        for name, needs in held_back:
            self.queue.add(name, needs)
        if held_back:
            self.blocked_until = time.monotonic() + RESOURCES_AGAIN_S

    def _start(self, name: str, needs: Needs) -> None:
        """Start the next attempt of a task: the row first, then the process."""
        step, appraisal = self.agenda.steps[name], self.agenda.ready[name]
        number = self.books.start(name, appraisal.fingerprint, appraisal.parts)
        self.agenda.take(name)
        self.executed += 1
        keep = {}
        if step.tool and step.tool.deletes:
            keep = protection.protected(self.agenda.steps, name, self.books.states, self.books.checkpoints)
        try:
            launch = self.launcher.prepare(step, appraisal, number, protected=keep)
            attempt = process.start(self.paths.attempt(name, number), launch)
        except OSError as error:
            cause: Cause = "disk" if error.errno in NO_ROOM else "start"
            reason = f"could not be started: {error.strerror}" + (f": '{error.filename}'" if error.filename else "")
            self._unfinished(name, step, None, Outcome(State.FAILED, reason, cause=cause))
            return
        self._follow(name, Running(attempt, step), needs)
        self.live.transition(name, State.RUNNING, f"attempt {number}")

    def _follow(self, name: str, running: Running, needs: Needs) -> None:
        self.running[name] = running
        self.queue.occupy(name, needs)
        self.selector.register(running.attempt, selectors.EVENT_READ, name)

    def _recover(self) -> None:
        """Take up what an earlier run left running: its verdict, the living attempt, or the fact that it is lost."""
        for request in self.store.requests():
            self.store.answer(request.seq, "the run that was asked has ended")
        running = [name for name, state in self.books.states.items() if state == State.RUNNING]
        places = {name: self.paths.attempt(name, self.books.attempts[name]) for name in running}
        known = {place.folder for place in places.values()}
        for folder in process.end_strays(self.paths.folder, known, grace_s=self.plan.grace_s):
            self.live.say(f"An attempt that no record tells of was running, and has been stopped: '{folder}'")
        for name, place in places.items():
            found, step = process.adopt(place), self.agenda.steps.get(name)
            if isinstance(found, process.Attempt):
                self._follow(name, Running(found, step), launching.NOTHING)
                number = self.books.attempts[name]
                self.live.transition(name, State.RUNNING, f"attempt {number} outlived its run and is adopted")
                if step is None:
                    found.stop()
            else:
                self._ended(name, step, found)
                if (
                    self.books.states[name] == State.INTERRUPTED and step
                ):  # for the run before: this one goes on with it
                    self.agenda.unblock(name)

    # -- settling ---------------------------------------------------------------------------------------------------

    def _ended(self, name: str, step: Step | None, verdict: Verdict | None, *, cancelled: bool = False) -> None:
        """Judge an attempt whose processes are gone; no verdict means that it was lost."""
        paths = self.paths.attempt(name, self.books.attempts[name])
        tail = process.log_tail(paths, TAIL_LINES)
        if verdict is None:
            outcome = Outcome(State.LOST, process.why_lost(paths))
        elif step is None:
            outcome = Outcome(State.INTERRUPTED, REMOVED)
        else:
            outcome = judge(verdict, self.launcher.result(step, paths), tail, step.task)
        if outcome.state != State.COMPLETED and cancelled:
            outcome = Outcome(State.CANCELLED, "cancelled while it ran")
        if outcome.state != State.COMPLETED or step is None or verdict is None:
            self._unfinished(name, step, verdict, outcome, tail="\n".join(tail))
            return
        ended = Ended(step, verdict, outcome)
        if "seals" in outcome.result:
            seals = {output: Seal.from_dict(seal) for output, seal in outcome.result["seals"].items()}
            self._completed(name, ended, seals)
        else:
            self.ended[name] = ended
            self.sealer.submit(name, step.outputs)

    def _completed(self, name: str, ended: Ended, seals: Seals | OSError) -> None:
        """Commit the completion checkpoint of a task whose outputs are sealed, or its failure to make them."""
        if isinstance(seals, OSError):
            failure = Outcome(State.FAILED, unsealed(seals), cause="output")
            self._unfinished(name, ended.step, ended.verdict, failure)
            return
        self.queue.release(name)  # only now: what it makes ready comes before what waits for the free place
        attempt = self.store.attempts(name)[-1]
        result = ended.outcome.result
        checkpoint = Checkpoint(
            task=name,
            attempt=attempt.number,
            fingerprint=attempt.fingerprint,
            seals=seals,
            values=result.get("values", {}),
            metrics=result.get("metrics", {}),
            note=result.get("note", ""),
            ended_at=ended.verdict.ended_at,
        )
        known = {**self.books.checkpoints, name: checkpoint}
        freed = protection.freed(self.agenda.steps, known, result.get("freed", []), by=name)
        self.books.complete(checkpoint, ended.verdict, freed)
        shutil.rmtree(self.paths.scratch(name, attempt.fingerprint), ignore_errors=True)  # nothing resumes from it now
        if name in self.agenda.steps:  # the plan may have changed while it ran: it is compared once more
            self.agenda.frontier.reconsider(name)

    def _unfinished(
        self, name: str, step: Step | None, verdict: Verdict | None, outcome: Outcome, *, tail: str = ""
    ) -> None:
        """Record an attempt that didn't complete, and decide whether and when the task is tried again."""
        self.queue.release(name)
        state, retry_at = outcome.state, None
        if state == State.FAILED and step:
            rule = next((r for r in step.task.retries.rules if retrying.fits(r, outcome, verdict, tail)), None)
            if outcome.cause == "disk" and rule is None:
                state, outcome = State.WAITING_DISK, self._shortage(name, step, outcome)
            else:
                retry_at = self.books.next_try(step, rule)
                state = State.FAILED if retry_at is None else State.WAITING_RETRY
        self.books.finish(name, state, outcome, verdict, retry_at=retry_at)
        if name not in self.agenda.steps:
            return
        if state == State.LOST and not self.stops.count:
            self.lost[name] += 1
            if self.lost[name] < LOST_AT_MOST:
                self.agenda.frontier.reconsider(name)
                return
        if state not in (State.WAITING_RETRY, State.WAITING_DISK):
            self.agenda.over.add(name)
        if state in (State.FAILED, State.CANCELLED):
            self.agenda.block(name)

    def _shortage(self, name: str, step: Step, outcome: Outcome) -> Outcome:
        """The task waits for room; its reason says where, what uses it and what could be freed."""
        folders = [*step.outputs.values(), str(self.root.folder), str(self.paths.folder)]
        shortage = self.shortages.note(name, folders)
        using = users(self.agenda.steps, self.books, shortage.lacking or shortage.then)
        return replace(outcome, reason=f"{outcome.reason}; {shortage}; {using}")
