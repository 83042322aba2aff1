"""What a run would do now with each task, against what the last one left."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import order
from harness.appraisal import Appraiser
from harness.errors import HarnessError
from harness.ledger import Known
from harness.paths import PlanPaths, Root
from harness.plan import LoadedPlan, Step
from harness.state import State, TaskRecord
from harness.store import Store

RUNS = ("new", "runs", "again", "goes on", "adopted")  # what a run executes for certain
WAITS = {
    State.FAILED: ("again", "it failed"),
    State.INTERRUPTED: ("goes on", "it was stopped"),
    State.LOST: ("again", "it was lost"),
    State.WAITING_DISK: ("again", "it waits for room on the disk"),
    State.WAITING_RETRY: ("again", "it failed and is tried again"),
}


@dataclass(frozen=True)
class Change:
    """What becomes of one task, in a word, and why in a sentence.

    "kept" (up to date), "new", "runs", "may run" (if what it needs makes other outputs), "again", "goes on", "adopted",
    "skipped", "asks", "cancelled", "blocked", "unclear" (its parameters are known only later) or "removed".
    """

    task: str
    what: str
    why: str


def changes(loaded: LoadedPlan, root: Root, store: Store) -> list[Change]:
    """One entry a task in execution order, then those that the plan no longer has."""
    paths, known = root.plan(loaded.plan.name), store.known()
    records = store.records()
    appraiser = Appraiser(loaded.steps, root.folder, store, known=known)
    found: dict[str, Change] = {}
    for name in order.execution_order(loaded.steps):
        step, record = loaded.steps[name], records.get(name)
        found[name] = _change(step, record, found, known=known, appraiser=appraiser)
        if found[name].what == "goes on" and not paths.scratches(name):
            found[name] = Change(name, "again", found[name].why)
    return [*found.values(), *_removed(loaded, paths, known)]


def _change(
    step: Step, record: TaskRecord | None, found: Mapping[str, Change], *, known: Known, appraiser: Appraiser
) -> Change:
    by_record = _by_record(step, record, found)
    if by_record:
        return by_record
    before = _before(step, found)
    try:
        if not appraiser.wanted(step):
            return before or Change(step.task.id, "skipped", f"its condition is false: {step.task.when}")
        if step.tool is None:
            return _decision(step, known)
        if before and step.task.id not in known.checkpoints:
            return before
        stale = appraiser.appraise(step).stale
    except HarnessError as error:
        return before or Change(step.task.id, "unclear", str(error))
    if stale is None:
        return before or Change(step.task.id, "kept", "up to date")
    return _stale(step, record, stale, completed=step.task.id in known.checkpoints)


def _by_record(step: Step, record: TaskRecord | None, found: Mapping[str, Change]) -> Change | None:
    """What is certain whatever the task's checkpoint says."""
    name, state = step.task.id, record.state if record else None
    if state == State.CANCELLED:
        return Change(name, "cancelled", "until harness retry lets it run again")
    stopper = next((need for need in step.needs if found[need].what in ("cancelled", "blocked")), None)
    if stopper:
        return Change(name, "blocked", f"it needs '{stopper}', which is {found[stopper].what}")
    if record and state == State.RUNNING:
        return Change(name, "adopted", f"attempt {record.attempt} runs, or has ended meanwhile")
    return None


def _decision(step: Step, known: Known) -> Change:
    name = step.task.id
    if name in known.choices:
        return Change(name, "kept", f"decided: {known.choices[name]}")
    return Change(name, "asks", step.task.decision.question if step.task.decision else "it has no tool yet")


def _stale(step: Step, record: TaskRecord | None, stale: str, *, completed: bool) -> Change:
    """A task that runs for certain: it has completed before, or never."""
    name, state = step.task.id, record.state if record else State.PENDING
    if completed or (record and state not in WAITS):
        return Change(name, "runs", stale)
    what, why = WAITS.get(state, ("new", "it is new in the plan"))
    return Change(name, what, f"{why}: {record.reason}" if record and record.reason else why)


def _before(step: Step, found: Mapping[str, Change]) -> Change | None:
    """What the task comes to because of what it needs; None where all of that stays as it is."""
    name = step.task.id
    asked = next((need for need in step.needs if found[need].what == "asks"), None)
    if asked:
        return Change(name, "may run", f"after decision '{asked}'")
    runs = next((need for need in step.needs if found[need].what in (*RUNS, "may run", "unclear")), None)
    return Change(name, "may run", f"if '{runs}', which {_verb(found[runs])}, makes other outputs") if runs else None


def _verb(change: Change) -> str:
    return "may run" if change.what in ("may run", "unclear") else "runs"


def _removed(loaded: LoadedPlan, paths: PlanPaths, known: Known) -> list[Change]:
    gone = sorted({*known.checkpoints} - loaded.steps.keys())
    return [
        Change(name, "removed", f"its checkpoint and {len(paths.attempts(name))} attempts are kept") for name in gone
    ]


def lines(found: list[Change], *, everything: bool) -> list[str]:
    """The changes as text, what stays as it is only where everything is asked for; then the sums."""
    shown = [each for each in found if everything or each.what != "kept"]
    width = max((len(each.task) for each in shown), default=0)
    kind = max((len(each.what) for each in shown), default=0)
    sums = Counter(each.what for each in found)
    first = next((each.task for each in found if each.what in RUNS), None)
    total = ", ".join(f"{number} {what}" for what, number in sums.items())
    last = f"{total}; " + (f"'{first}' runs first" if first else "a run would execute nothing")
    return [*(f"{each.task:<{width}}  {each.what:<{kind}}  {each.why}" for each in shown), last]


def document(found: list[Change]) -> dict[str, Any]:
    """The changes as JSON data."""
    return {"tasks": [vars(each) for each in found], "runs": [each.task for each in found if each.what in RUNS]}
