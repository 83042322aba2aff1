"""What `harness gc` removes: folders of old attempts and progress checkpoints, never what a resume needs."""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.appraisal import Appraiser
from harness.errors import BlockedError, HarnessError
from harness.frontier import Frontier
from harness.holdings import Holding, holdings
from harness.leftovers import leftovers
from harness.ownership import held
from harness.paths import PlanPaths, Root
from harness.plan import LoadedPlan
from harness.state import State
from harness.store import Store


@dataclass(frozen=True)
class Limits:
    """What may go: what is older than that, and at least that big; of each task the last `keep` attempts stay."""

    older_than_s: float
    keep: int
    min_bytes: int = 0


@dataclass
class Prospects:
    """What the next run would go on from, as far as that is known.

    `fingerprints` holds that of each task which is to run, None for one whose checkpoint holds; a task of the plan that
    isn't in it waits for others, and may run with any. `known` is False where the plan could not be read.
    """

    known: bool = False
    tasks: frozenset[str] = frozenset()
    fingerprints: dict[str, str | None] = field(default_factory=dict)

    def needs(self, task: str, prefix: str) -> bool:
        """Whether the next run may need the progress checkpoints of a task for this beginning of a fingerprint."""
        if not self.known:
            return True
        if task not in self.tasks:
            return False
        if task not in self.fingerprints:
            return True
        fingerprint = self.fingerprints[task]
        return fingerprint is not None and fingerprint.startswith(prefix)


def prospects(loaded: LoadedPlan, root: Root, store: Store) -> Prospects:
    """Appraise the plan's tasks in the order in which a run would come to them, as far as it would come at once."""
    known = store.known()
    appraiser = Appraiser(loaded.steps, root.folder, store, known=known)
    frontier = Frontier(loaded.steps)
    found = Prospects(known=True, tasks=frozenset(loaded.steps))
    while (name := frontier.pop()) is not None:
        step = loaded.steps[name]
        try:
            if step.tool is None:
                settled = name in known.choices
            elif not appraiser.wanted(step):
                settled = True
            else:
                appraisal = appraiser.appraise(step)
                settled = appraisal.stale is None and not appraiser.freed_needs(step)
                found.fingerprints[name] = None if settled else appraisal.fingerprint
        except (HarnessError, OSError):
            continue
        if settled:
            frontier.settle(name)
    return found


def disposable(paths: PlanPaths, store: Store, limits: Limits, ahead: Prospects) -> list[Holding]:
    """The folders that may go: attempts that are neither among the last ones nor hold a checkpoint, and progress
    checkpoints that no run needs. Where anything of a task lives, all of it stays."""
    now = time.time()
    records = store.records()
    completed = {name: checkpoint.attempt for name, checkpoint in store.checkpoints().items()}
    living = {attempt.folder.parent.name for attempt in leftovers(paths).values()}
    by_task: dict[str, list[Holding]] = defaultdict(list)
    for each in holdings(paths):
        by_task[each.task].append(each)
    found = []
    for task, folders in by_task.items():
        record = records.get(task)
        numbers = [each.number for each in folders if each.number is not None]
        if task in living or any(held(paths.attempt(task, number).lock) for number in numbers):
            continue
        keep = {*sorted(numbers)[-max(1, limits.keep) :], completed.get(task), record.attempt if record else None}
        for each in folders:
            if each.number is None:
                running = record is not None and record.state == State.RUNNING
                needed = running or ahead.needs(task, each.path.name.partition("-")[2])
            else:
                needed = each.number in keep
            if not needed and now - each.changed_at > limits.older_than_s and each.size_bytes >= limits.min_bytes:
                found.append(each)
    return found


def dispose(store: Store, chosen: Iterable[Holding]) -> list[Holding]:
    """Record that these folders go, then remove them; the plan must be owned. Returns those that are gone.

    Raises BlockedError, after all the others are gone, when one can't be removed.
    """
    attempts: dict[str, list[int]] = defaultdict(list)
    progress: dict[str, list[str]] = defaultdict(list)
    folders = list(chosen)
    for each in folders:
        if each.number is None:
            progress[each.task].append(each.path.name)
        else:
            attempts[each.task].append(each.number)
    if folders:
        store.dispose(attempts, progress, sum(each.size_bytes for each in folders))
    left = []
    for each in folders:
        shutil.rmtree(each.path, ignore_errors=True)
        if os.path.lexists(each.path):
            left.append(each)
    if left:
        raise BlockedError(
            f"{len(left)} folders can't be removed", found=f"'{left[0].path}'", do="Look at its permissions"
        )
    return folders
