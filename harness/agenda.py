"""What is to be done with each task now: nothing, wait, or run; looked at again whenever something changes."""

from collections.abc import Collection, Iterable

from harness import references
from harness.appraisal import Appraisal, Appraiser, checked_params
from harness.books import Books
from harness.errors import ToolError
from harness.frontier import Frontier
from harness.paths import Root
from harness.plan import Step
from harness.state import SETTLED, State

OVER = frozenset({State.FAILED, State.CANCELLED, State.INTERRUPTED, State.LOST})  # for this run, until asked otherwise


class Agenda:
    """The tasks of `only` and what they need. `ready` holds those that may run, as they were appraised."""

    def __init__(self, steps: dict[str, Step], root: Root, books: Books, only: Iterable[str]) -> None:
        self.root, self.books, self.only = root, books, list(only)
        self.ready: dict[str, Appraisal] = {}
        self.added: list[str] = []  # became ready since they were last taken
        self.steps: dict[str, Step] = {}
        self.over: set[str] = set()  # were tried in this run, or cancelled: they don't start by themselves
        self._forced: dict[str, str] = {}  # tasks to run again although their checkpoint holds, and why
        self.take_in(steps)

    def take_in(self, steps: dict[str, Step]) -> None:
        """Begin anew with these steps: those of the plan, or of the plan as it was edited."""
        changed = {name for name in self.over if self.steps.get(name) != steps.get(name)}
        self.over -= changed
        self.steps = steps
        self.books.take_in(steps)
        self.frontier = Frontier(steps, [name for name in self.only if name in steps] if self.only else None)
        self.ready.clear()
        self.appraiser = Appraiser(steps, self.root.folder, self.books.store, known=self.books)

    def look(self, busy: Collection[str]) -> list[str]:
        """Consider each task whose needs are settled, those apart that are `busy`; returns which are ready now."""
        self.added = []
        while (name := self.frontier.pop()) is not None:
            if name in busy or name in self.over:
                continue
            try:
                self._consider(name, self.steps[name])
            except ToolError as error:
                self.over.add(name)
                self.books.set(name, State.FAILED, str(error))
                self.block(name)
        return self.added

    def take(self, name: str) -> None:
        """The task starts now."""
        self.ready.pop(name, None)
        self._forced.pop(name, None)

    def _consider(self, name: str, step: Step) -> None:
        if self.books.states[name] == State.CANCELLED:
            self.over.add(name)
            self.block(name)
        elif not self.appraiser.wanted(step):
            self.books.set(name, State.SKIPPED, f"its condition is false: {step.task.when}")
            self.frontier.settle(name)
        elif step.tool is None:
            self._consider_decision(name, step)
        else:
            self._consider_run(name, step, self.appraiser.appraise(step))

    def _consider_run(self, name: str, step: Step, appraisal: Appraisal) -> None:
        stale = appraisal.stale or self._forced.get(name)
        if stale is None:
            self.books.set(name, State.COMPLETED, "up to date")
            self.frontier.settle(name)
        elif freed := self.appraiser.freed_needs(step):
            for need, reason in freed.items():
                self._make_again(need, reason)
        elif name not in self.books.retry_at:
            if name in self.books.checkpoints:
                self.books.set(name, State.PENDING, stale)
                self._doubt(name)
            checked_params(step, appraisal.params)
            self.ready[name] = appraisal
            self.added.append(name)

    def _make_again(self, name: str, reason: str) -> None:
        """Let a task run again whose outputs were freed, and after it whoever freed them."""
        for by in set(self.books.checkpoints[name].freed.values()) & self.steps.keys():
            self.books.forget(by)
            self.frontier.unsettle(by)
        self._forced[name] = reason
        for dependant in self.frontier.unsettle(name):
            self.ready.pop(dependant, None)

    def _consider_decision(self, name: str, step: Step) -> None:
        if name in self.books.choices:
            self.books.set(name, State.COMPLETED, f"decided: {self.books.choices[name]}")
            self.frontier.settle(name)
        elif step.task.decision:
            asked = references.substitute(step.task.decision.model_dump(), self.appraiser.filled)
            options = " | ".join(f"{each['key']} {each['title']}".strip() for each in asked["options"])
            self.books.set(name, State.WAITING_DECISION, f"{asked['question']} {options}")
        else:
            self.books.set(name, State.WAITING_DECISION, "has no tool yet: give it one in the plan")

    # -- what an end means for the others ---------------------------------------------------------------------------

    def block(self, name: str) -> None:
        """Say of everything that waits for a failed or cancelled task that it is blocked, and by what."""
        stays = {State.RUNNING, State.CANCELLED, *SETTLED}
        what = "was cancelled" if self.books.states[name] == State.CANCELLED else "failed"
        for task, by in self.frontier.below(name, leave=lambda task: self.books.states[task] in stays).items():
            self.books.set(task, State.BLOCKED, f"needs '{by}', which {what if by == name else 'is blocked'}")

    def unblock(self, name: str) -> None:
        """The task is tried again: what was blocked by it waits for it, and it is considered."""
        self.over.discard(name)
        for task in self.frontier.below(name, leave=lambda task: self.books.states[task] != State.BLOCKED):
            self.books.set(task, State.PENDING, f"waits for '{name}'")
        self.frontier.reconsider(name)

    def _doubt(self, name: str) -> None:
        """A completed task runs again: what rests on it isn't completed until it has been compared anew."""
        completed = self.frontier.below(name, leave=lambda task: self.books.states[task] != State.COMPLETED)
        for task, by in completed.items():
            self.books.set(task, State.PENDING, f"waits for '{by}', which runs again")
