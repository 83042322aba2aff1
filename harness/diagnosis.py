"""What `harness doctor` tells: whether a plan's records, files and processes agree, and what they take up."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from harness import faults
from harness.ballast import BALLAST_BYTES
from harness.database import SCHEMA_VERSION, Database
from harness.errors import BlockedError, NotFoundError
from harness.holdings import Holding, Unfinished, holdings, unfinished
from harness.leftovers import leftovers
from harness.mounts import mount_of
from harness.ownership import held, owner
from harness.paths import PlanPaths
from harness.preflight import size
from harness.records import Records, read
from harness.state import State

BIGGEST = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `fixable` says that `--fix` cures it, without losing anything."""

    what: str
    where: str
    do: str
    fixable: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.do}" + (" (or: --fix)" if self.fixable else "")


@dataclass
class Diagnosis:
    """All findings, and the facts that go with them; sizes in bytes."""

    plan: str
    findings: list[Finding]
    facts: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The diagnosis as JSON data."""
        return {"plan": self.plan, "findings": [vars(each) for each in self.findings], **self.facts}

    def lines(self) -> list[str]:
        """The diagnosis for people: the findings, then what the plan's state takes up."""
        facts = self.facts
        sizes = ", ".join(f"{name} {size(taken)}" for name, taken in facts["sizes"].items())
        free = f"{size(facts['free_bytes'])} free" + (", no inodes" if facts["free_inodes"] == 0 else "")
        lines = [str(each) for each in self.findings] or ["Nothing is wrong"]
        journal = "" if facts["journal"] == "wal" else ", where only the slower kind of journal is safe"
        lines.append(f"{self.plan}: schema {facts['schema']}, on {facts['file_system']}{journal}, {free}")
        lines.append(f"  takes up: {sizes}")
        if facts["biggest"]:
            biggest = ", ".join(f"{each['what']} {size(each['size_bytes'])}" for each in facts["biggest"])
            lines.append(f"  biggest: {biggest}")
        return lines


def diagnose(paths: PlanPaths) -> Diagnosis:
    """Look at everything, and change nothing. What can't be looked at is a finding.

    Raises NotFoundError where the plan has no state, BlockedError where an attempt's lock can't be asked about.
    """
    if not paths.folder.is_dir():
        raise NotFoundError("no run has been recorded", where=str(paths.folder), do="Start one: harness run PLAN")
    found: list[Finding] = []
    owned = True  # unless we know better: then what a run may just be doing is no finding
    try:
        owned = owner(paths.lock) is not None
    except BlockedError as error:
        found.append(Finding(f"{error.what}; found {error.found}", error.where, error.do))
    records = None
    try:
        with closing(Database(paths, read_only=True)) as database:
            found += _integrity(database, paths)
            records = read(database)
    except BlockedError as error:
        found.append(Finding(f"{error.what}; found {error.found}", error.where, error.do))
    folders, partials = holdings(paths), unfinished(paths)
    if records:
        found += _history(records, paths)
        found += _attempts(records, paths, folders, owned=owned)
        found += _progress(records, folders, owned=owned)
    found += _processes(paths)
    found += _partials(partials)
    found += _room(paths)
    return Diagnosis(paths.folder.name, found, _facts(paths, records, folders))


def _integrity(database: Database, paths: PlanPaths) -> Iterator[Finding]:
    problems = [row[0] for row in database.rows("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        what = f"the state database is damaged: {'; '.join(problems)}"
        yield Finding(what, str(paths.database), faults.RESTORE)


def _history(records: Records, paths: PlanPaths) -> Iterator[Finding]:
    """Whether the event log and the states agree."""
    where = str(paths.database)
    restore = "Restore a copy of it, or let the task run again: harness forget"
    if records.num_missing_events:
        yield Finding(f"{records.num_missing_events} events are missing", where, "Somebody edited it: restore a copy")
    for name, task in records.tasks.items():
        told = records.last_events.get(name, State.PENDING)
        unblocked = (told, task.state) == (State.BLOCKED, State.PENDING)  # at the start of a run, without an event
        if told != task.state and not unblocked:
            yield Finding(f"'{name}' is {task.state}, but its last event says {told}", where, f"{restore} {name}")
        if task.state == State.COMPLETED and task.tool and name not in records.checkpoints:
            yield Finding(f"'{name}' is completed without a checkpoint", where, f"{restore} {name}")
    for name, number in records.checkpoints.items():
        attempt = records.attempts.get((name, number))
        if attempt is None or attempt.state != State.COMPLETED:
            what = f"the checkpoint of '{name}' is that of attempt {number}, which never completed"
            yield Finding(what, where, f"{restore} {name}")


def _attempts(records: Records, paths: PlanPaths, folders: list[Holding], *, owned: bool) -> Iterator[Finding]:
    """Attempts that only a row or only a folder tells of, and those that live or are dead against their row."""
    resume = f"harness resume {paths.folder.name}"
    there = {(each.task, each.number) for each in folders if each.number is not None}
    for name, number in sorted(there):
        row, place = records.attempts.get((name, number)), paths.attempt(name, number)
        alive = held(place.lock)
        if alive and (row is None or row.state != State.RUNNING):
            tells = "no record tells of it" if row is None else f"its record says {row.state}"
            what = f"attempt {number} of '{name}' is alive, but {tells}"
            yield Finding(what, str(place.folder), "End it: the pid is in its started.json")
        elif row is None and not owned:
            do = "An older copy of the database was restored? harness gc removes it"
            yield Finding(f"no record tells of attempt {number} of '{name}'", str(place.folder), do)
        elif row and row.state == State.RUNNING and not alive and not owned:
            if place.verdict.exists():
                what = f"attempt {number} of '{name}' has ended, and no run has taken that in"
                yield Finding(what, str(place.folder), f"Take it in: {resume}")
            else:
                what = f"attempt {number} of '{name}' is gone without a verdict, though its record says running"
                yield Finding(what, str(place.folder), f"It is tried again by: {resume}")
    for (name, number), row in records.attempts.items():
        missing = (name, number) not in there and (name, number) not in records.disposed
        if missing and (row.has_verdict or (row.state == State.RUNNING and not owned)):
            what = f"the folder of attempt {number} of '{name}' is gone, with its log"
            yield Finding(what, str(paths.attempt(name, number).folder), "Somebody removed it; harness goes on without")
    for name, task in records.tasks.items():
        running = records.attempts.get((name, task.attempt))
        if task.state == State.RUNNING and (running is None or running.state != State.RUNNING):
            yield Finding(
                f"'{name}' is running, but its attempt isn't", str(paths.database), f"Let it run again: {resume}"
            )


def _progress(records: Records, folders: list[Holding], *, owned: bool) -> Iterator[Finding]:
    """Progress checkpoints that no resume can use."""
    for each in folders:
        if each.number is not None:
            continue
        task, prefix = records.tasks.get(each.task), each.path.name.partition("-")[2]
        known = any(fingerprint.startswith(prefix) for fingerprint in records.fingerprints.get(each.task, ()))
        if task is None or task.removed:
            why = "the plan has no such task"
        elif task.state == State.COMPLETED and not owned:
            why = "the task is completed"
        elif not known:
            why = "no attempt had its fingerprint"
        else:
            continue
        do = f"harness gc removes it: {size(each.size_bytes)}"
        yield Finding(f"progress of '{each.task}' that nothing can go on from: {why}", str(each.path), do)


def _processes(paths: PlanPaths) -> Iterator[Finding]:
    for pid, attempt in leftovers(paths).items():
        what = f"process {pid} goes on although the supervisor of its attempt is gone"
        yield Finding(what, str(attempt.folder), f"End it: kill {pid}", fixable=True)


def _partials(partials: list[Unfinished]) -> Iterator[Finding]:
    for each in (each for each in partials if each.stale):
        what = f"an unfinished file of a process that is gone, {size(each.size_bytes)}"
        yield Finding(what, str(each.path), "Remove it", fixable=True)


def _room(paths: PlanPaths) -> Iterator[Finding]:
    try:
        there = paths.ballast.stat().st_size >= BALLAST_BYTES
    except OSError:
        there = False
    if not there:
        what = "the ballast is missing, which gives the state room on a full disk"
        yield Finding(what, str(paths.ballast), "The next run makes it where there is room", fixable=True)
    mount = mount_of(paths.folder)
    if mount.read_only:
        yield Finding("the file system is read-only", mount.point, faults.READ_ONLY.do)
    free = os.statvfs(paths.folder)
    if free.f_bavail * free.f_frsize < 4 * BALLAST_BYTES or (free.f_files and not free.f_favail):
        yield Finding("the disk is full", mount.point, "Free some room: harness gc, for example")


def _facts(paths: PlanPaths, records: Records | None, folders: list[Holding]) -> dict[str, Any]:
    """What the plan's state is kept in, and what it takes up."""
    free, mount = os.statvfs(paths.folder), mount_of(paths.folder)
    by_task: Counter[str] = Counter()
    sizes = {"database": 0, "attempts": 0, "progress": 0}
    for each in paths.folder.glob(f"{paths.database.name}*"):
        sizes["database"] += each.lstat().st_size
    for folder in folders:
        sizes["progress" if folder.number is None else "attempts"] += folder.size_bytes
        by_task[folder.task] += folder.size_bytes
    biggest = sorted(folders, key=lambda each: -each.size_bytes)[:BIGGEST]
    return {
        "schema": records.schema if records else None,
        "newest_schema": SCHEMA_VERSION,
        "file_system": mount.kind,
        "journal": "delete" if mount.shared else "wal",
        "free_bytes": free.f_bavail * free.f_frsize,
        "free_inodes": free.f_favail if free.f_files else None,
        "sizes": sizes,
        "size_by_task": dict(by_task.most_common()),
        "biggest": [{"what": str(each), "where": str(each.path), "size_bytes": each.size_bytes} for each in biggest],
    }
