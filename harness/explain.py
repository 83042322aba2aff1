"""Why a task is in the state it is in, from the task back to the cause."""

from collections.abc import Mapping

from harness.appraisal import Appraiser
from harness.errors import HarnessError
from harness.paths import PlanPaths, Root
from harness.plan import LoadedPlan, Step
from harness.state import SETTLED, Checkpoint, State, TaskRecord
from harness.store import Store

MEANING = {
    State.RUNNING: "is running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.INTERRUPTED: "was stopped and goes on with the next run",
    State.LOST: "was lost and runs again with the next run",
    State.SKIPPED: "is skipped",
    State.CANCELLED: "was cancelled",
    State.BLOCKED: "is blocked",
    State.PENDING: "is to run",
    State.WAITING_DECISION: "waits for a decision",
    State.WAITING_DISK: "waits for room on the disk",
    State.WAITING_RESOURCES: "waits for the machine",
    State.WAITING_RETRY: "failed and is tried again soon",
}


def why(loaded: LoadedPlan, root: Root, store: Store, task: str) -> list[str]:
    """The task's state in one sentence, then the chain of what it waits for, one line each, ending at the cause."""
    records, checkpoints = store.records(), store.checkpoints()
    appraiser = Appraiser(loaded.steps, root.folder, store, known=store.known())
    lines = [_sentence(loaded.steps[task], records, checkpoints, appraiser)]
    paths = root.plan(loaded.plan.name)
    seen, current = {task}, task
    while (cause := _waits_for(loaded.steps[current], records)) and cause not in seen:
        seen.add(cause)
        lines.append(f"  it needs {_sentence(loaded.steps[cause], records, checkpoints, appraiser)}")
        current = cause
    return [*lines, *_evidence(paths, records.get(current))]


def _waits_for(step: Step, records: Mapping[str, TaskRecord]) -> str | None:
    """The first need that isn't settled: failed ones before those that merely wait."""
    open_needs = [need for need in step.needs if _state(records, need) not in SETTLED]
    failed = [need for need in open_needs if _state(records, need) in (State.FAILED, State.BLOCKED)]
    return next(iter(failed or open_needs), None)


def _state(records: Mapping[str, TaskRecord], task: str) -> State:
    return records[task].state if task in records else State.PENDING


def _sentence(
    step: Step, records: Mapping[str, TaskRecord], checkpoints: Mapping[str, Checkpoint], appraiser: Appraiser
) -> str:
    name, state = step.task.id, _state(records, step.task.id)
    record = records.get(name)
    reason = f": {record.reason}" if record and record.reason else ""
    if state != State.COMPLETED or step.tool is None:
        return f"'{name}' {MEANING[state]}{reason}"
    checkpoint = checkpoints.get(name)
    attempt = f" (attempt {checkpoint.attempt})" if checkpoint else ""
    try:
        stale = appraiser.appraise(step).stale
    except HarnessError as error:
        stale = str(error)
    if stale:
        return f"'{name}' completed{attempt} but runs again: {stale}"
    freed = f"; deleted since, on purpose: {', '.join(checkpoint.freed)}" if checkpoint and checkpoint.freed else ""
    return f"'{name}' completed{attempt} and its checkpoint holds{freed}"


def _evidence(paths: PlanPaths, record: TaskRecord | None) -> list[str]:
    """Where to look further."""
    if record is None or record.attempt == 0 or record.state in SETTLED:
        return []
    return [f"  log: {paths.attempt(record.task, record.attempt).log}"]
