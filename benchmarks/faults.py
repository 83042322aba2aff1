"""The fault campaign: kills, full disks and torn writes at random, and what they have done to the plans they hit.

    faults.py --kills 1000 --seed 7 --report docs/reliability.md

It exits with 1 when anything was executed twice, lost, left over, damaged, or needed a command by hand.
"""

import argparse
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import evidence
from damage import run_on_full_disks, run_with_torn_writes, small_disk
from evidence import KINDS
from killing import SIGNALS, TARGETS, Killer
from page import Results, render
from rich.console import Console
from rich.table import Table
from trial import Trial
from victims import end_all

LAST = 25  # actions that a failure shows
console = Console(highlight=False)


class Campaign:
    """Trials in folders of their own below one; folders of trials with faults are kept."""

    def __init__(self, seed: int, jobs: int) -> None:
        self.seed, self.jobs = seed, jobs
        self.folder = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
        self.results = Results(seed=seed)
        self.undisturbed: dict[str, str] = {}
        self.began = time.monotonic()

    def make_undisturbed(self) -> None:
        """Run the plan once without a fault: its outputs are what all others must make. Exits if it fails."""
        trial = self._trial("undisturbed")
        trial.start()
        if not trial.wait() or not trial.ended():
            end_all(trial.folder)
            sys.exit(f"the undisturbed run fails already:\n{trial.output(1)}")
        self.undisturbed = evidence.digests(trial.root / "out")
        trial.check(self.undisturbed)
        self._close(trial, "nothing done")

    def kill(self, kills: int) -> None:
        """Trials until so many kills were made."""
        while (left := kills - self.results.kills.total()) > 0:
            trial = self._trial(f"kills-{self.results.trials}")
            before = self.results.kills.total()
            self._run(trial, lambda trial=trial, left=left: self._killed(trial, left))  # type: ignore[misc]
            self._close(trial, f"{self.results.kills.total() - before} kills")

    def _killed(self, trial: Trial, left: int) -> None:
        Killer(trial, self.results.kills).disturb(min(left, trial.rng.randint(10, 25)))

    def fill(self, fills: int) -> None:
        """Trials on a small disk until it was filled so often; where none can be mounted, that is said."""
        while self.results.fills < fills:
            folder = self._folder(f"fills-{self.results.trials}")
            root = folder / "small"
            root.mkdir(parents=True)
            with small_disk(root) as mounted:
                if not mounted:
                    self.results.needs_root = True
                    console.print("full disks: needs root, to mount a small tmpfs")
                    shutil.rmtree(folder)
                    return
                trial = self._trial(folder.name, root)
                before = self.results.fills
                share = min(fills - before, trial.rng.randint(2, 5))

                def disturb(trial: Trial = trial, share: int = share) -> None:
                    self.results.fills += run_on_full_disks(trial, share)

                self._run(trial, disturb)
                end_all(trial.folder)
                if trial.found:
                    shutil.copytree(root, folder / "kept", symlinks=True)
                self._close(trial, f"full {self.results.fills - before} times", keep_root=False)
            if not trial.found:
                shutil.rmtree(folder)  # what the mounted disk stood in the way of

    def tear(self, tears: int) -> None:
        """Trials until so many files were torn."""
        while self.results.tears < tears:
            trial = self._trial(f"tears-{self.results.trials}")
            before = self.results.tears
            share = min(tears - before, trial.rng.randint(4, 10))

            def disturb(trial: Trial = trial, share: int = share) -> None:
                self.results.tears += run_with_torn_writes(trial, share)

            self._run(trial, disturb)
            self._close(trial, f"{self.results.tears - before} torn files")

    def _folder(self, name: str) -> Path:
        return self.folder / name

    def _trial(self, name: str, root: Path | None = None) -> Trial:
        folder = self._folder(name)
        folder.mkdir(exist_ok=True)
        rng = random.Random(f"{self.seed} {name}")
        return Trial(folder, root or folder, self.jobs, rng)

    def _run(self, trial: Trial, disturb: Callable[[], None]) -> None:
        try:
            disturb()
            if not trial.hopeless:
                trial.check(self.undisturbed)
        finally:
            end_all(trial.folder)

    def _close(self, trial: Trial, done: str, *, keep_root: bool = True) -> None:
        """Count what a trial has found, show it, and keep its folder if that is anything."""
        self.results.trials += 1
        self.results.runs += trial.runs
        self.results.found.update(kind for kind, _ in trial.found)
        took_s = time.monotonic() - trial.began
        verdict = ", ".join(sorted({kind for kind, _ in trial.found})) or "right"
        console.print(f"{trial.folder.name:<14} {done}, {trial.runs} runs, {took_s:.1f} s: {verdict}", markup=False)
        if not trial.found:
            shutil.rmtree(trial.folder, ignore_errors=not keep_root)
            return
        for kind, text in trial.found:
            console.print(f"    {kind}: {text}", markup=False)
        console.print(f"    seed {self.seed}, folder {trial.folder}, last actions:", markup=False)
        for action in trial.actions[-LAST:]:
            console.print(f"    {action}", markup=False)

    def close(self) -> None:
        """Remove the campaign's folder unless it keeps something."""
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def show(self) -> None:
        """One table: the kills by target and signal, then the counts of what went wrong."""
        results = self.results
        table = Table(title=f"{results.kills.total()} kills, seed {self.seed}", title_justify="left")
        for name in ("target", *SIGNALS, "all"):
            table.add_column(name, justify="left" if name == "target" else "right")
        for target in TARGETS:
            row = [results.kills[target, each] for each in SIGNALS]
            table.add_row(target, *map(str, row), str(sum(row)))
        table.add_section()
        table.add_row("full disks", *[""] * len(SIGNALS), "needs root" if results.needs_root else str(results.fills))
        table.add_row("torn files", *[""] * len(SIGNALS), str(results.tears))
        table.add_section()
        for kind in KINDS:
            table.add_row(kind, *[""] * len(SIGNALS), str(results.found[kind]))
        console.print(table)


def interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--fills", type=int, help="how often a disk is full; one for 25 kills by default")
    parser.add_argument("--tears", type=int, help="how many files are torn; one for 5 kills by default")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what is done follows from it, when doesn't")
    parser.add_argument("--jobs", type=int, default=2, help="tasks at a time")
    parser.add_argument("--report", type=Path, help="the page to write")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupted)
    campaign = Campaign(chosen.seed, chosen.jobs)
    results = campaign.results
    try:
        campaign.make_undisturbed()
        campaign.kill(chosen.kills)
        campaign.tear(chosen.tears if chosen.tears is not None else -(-chosen.kills // 5))
        campaign.fill(chosen.fills if chosen.fills is not None else -(-chosen.kills // 25))
    finally:
        end_all(campaign.folder)
        campaign.close()
    results.took_s = time.monotonic() - campaign.began
    campaign.show()
    console.print(f"{results.kills.total() / results.took_s * 60:.0f} kills a minute")
    if chosen.report:
        memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
        machine = f"{os.cpu_count()} cores, {memory_gib} GiB, Linux {platform.release().split('-')[0]}"
        chosen.report.write_text(render(results, f"{machine}, Python {platform.python_version()}"))
    return 1 if results.found.total() else 0


if __name__ == "__main__":
    sys.exit(main())
