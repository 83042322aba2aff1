"""Every file name under checkpoints/ is spelled here and nowhere else."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptPaths:
    """Files of one attempt, `checkpoints/<plan>/<task>/<attempt>/`."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held with flock by the shim for as long as it lives."""
        return self.folder / "lock"

    @property
    def started(self) -> Path:
        """Written by the shim once the worker runs: pids, boot id, time."""
        return self.folder / "started.json"

    @property
    def verdict(self) -> Path:
        """Written by the shim when everything it started is gone."""
        return self.folder / "verdict.json"

    @property
    def request(self) -> Path:
        return self.folder / "request.json"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "log"


@dataclass(frozen=True)
class PlanPaths:
    """Files of one plan, `checkpoints/<plan>/`."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "state.db"

    @property
    def ballast(self) -> Path:
        """Room that the database gets when the disk is full."""
        return self.folder / "ballast"

    @property
    def lock(self) -> Path:
        """Held with flock by the run that owns the plan; says pid, host and since when."""
        return self.folder / "run.lock"

    @property
    def tasks(self) -> Path:
        """Holds a folder for each task that was executed."""
        return self.folder / "tasks"

    def task(self, task: str) -> Path:
        return self.tasks / task

    def attempt(self, task: str, number: int) -> AttemptPaths:
        return AttemptPaths(self.task(task) / str(number))

    def attempts(self, task: str) -> list[int]:
        """The numbers of the attempts of a task that have a folder, in order."""
        try:
            return sorted(int(each.name) for each in self.task(task).iterdir() if each.name.isdecimal())
        except FileNotFoundError:
            return []

    def scratch(self, task: str, fingerprint: str) -> Path:
        """Progress checkpoints of a task, for one fingerprint."""
        return self.task(task) / f"progress-{fingerprint[:16]}"

    def scratches(self, task: str) -> list[Path]:
        """The progress checkpoints that a task has, of whatever fingerprint."""
        return sorted(self.task(task).glob("progress-*"))


@dataclass(frozen=True)
class Root:
    """The folder that relative paths of a plan start from, and that holds checkpoints/."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def imports(self) -> Path:
        """Links to the packages that a foreign environment's worker imports: harness and the tool packs."""
        return self.checkpoints / ".imports"

    @property
    def settings(self) -> Path:
        return self.folder / "harness.yaml"

    def kept_plan(self, path: Path) -> Path:
        """What is kept of a big plan file, so that it need not be read again; it may be deleted at any time."""
        return self.checkpoints / ".plans" / f"{hashlib.sha256(bytes(path)).hexdigest()[:16]}.json"

    def plan(self, name: str) -> PlanPaths:
        return PlanPaths(self.checkpoints / name)
