"""The page on reliability: what the fault campaign does, and what its last run has counted."""

import time
from collections import Counter
from dataclasses import dataclass, field

from evidence import KINDS
from killing import SIGNALS, TARGETS


@dataclass
class Results:
    """What a campaign has done and found; kills by (target, signal), `found` by kind of fault."""

    seed: int
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    fills: int = 0
    tears: int = 0
    trials: int = 0
    runs: int = 0
    found: Counter[str] = field(default_factory=Counter)
    needs_root: bool = False
    took_s: float = 0.0


TEXT = """# Reliability

This page is written by `benchmarks/faults.py`, which runs a plan again and again, disturbs it at random, and counts
what it finds afterwards that should not be there.

## {date}

{kills} kills, {tears} torn files and {fills} in {trials} plans, which took {runs} runs of `harness run` and
{minutes:.0f} minutes, on {machine}; seed {seed}.

| what | count |
|---|---:|
{counts}

| kills | {signals} | all |
|---|{rule}---:|
{rows}

## What is done

The plan has chains, a fork and joins, of twelve tasks: shell commands, Python functions, and a tool that counts
through numbered units and keeps its progress after each. Tasks have helpers, and leave processes behind in sessions
of their own. Two tasks run at a time. A good third of the plans are shown on a terminal, with the live table.

- **Kills** hit `harness run`, a task's supervisor, the task itself, a process below it, a whole attempt or everything
  at once, by SIGKILL, SIGSTOP and then SIGKILL, SIGTERM or SIGINT. Two fifths of the moments are drawn from a
  distribution in which a millisecond is as likely as a second, from the first instruction of a run on; the others come
  right after a transaction of the database, a new attempt, the fork of its task, or the start, the result or the
  verdict of it. `harness run` follows at once.
- **Torn files**: everything is killed, then JSON files of attempts or the database's write-ahead log lose their last
  bytes, as after a power cut on a disk that lies.
- **Full disks**: the root lies on a small disk, which is filled to its last page for up to three seconds.

## What is counted

Every task writes a line when it starts, for each unit and when it ends, in one append each, to a file outside the
root, and holds a lock while it lives. When the plan is done, that file, the database and the folders are compared.

- **duplicates**: a completed task that was executed again, an attempt that was executed twice, two living copies of a
  task, a unit that was done again although it was not the one at which the task was killed, an attempt that was not
  taken for completed although it ended well, a rerun of the finished plan that executes anything. Where a tear
  destroyed the only proof of an attempt, that task may run once more.
- **losses**: a task that is not completed, a unit that was never done, an output that is missing or that differs by a
  byte from an undisturbed run's, an attempt that was given up as lost although nobody had hit it.
- **leftovers**: a process that is still alive when the plan is done, and carries the folder in its environment, its
  current folder or its command line.
- **commands by hand**: a run that hangs, or ends otherwise than done, interrupted, terminated, or by the signal that
  it was sent; the next thing that is done is always just `harness run` again. On a full disk a run may give up, if
  the next one gets on.
- **damaged databases**: SQLite's own check fails, or the states of tasks and attempts are not what the events say.
- **tracebacks**: one in anything that harness prints, or in the log of a task.
- **retries used up**: a task failed more often than it was hit, so that a lost or interrupted attempt was not free.

## Again

```
.venv/bin/python benchmarks/faults.py --kills 1000 --report docs/reliability.md
```

`--seed` repeats what is done to whom; when it is done also depends on the machine. A plan in which anything was found
keeps its folder, and its last actions are printed. The tests make 50 kills (`make e2e`).
"""


def render(results: Results, machine: str) -> str:
    """The page, for a machine described in a few words."""
    counts = "\n".join(f"| {kind} | {results.found[kind]} |" for kind in KINDS)
    rows = []
    for target in TARGETS:
        numbers = [results.kills[target, each] for each in SIGNALS]
        rows.append(f"| {target} | {' | '.join(map(str, numbers))} | {sum(numbers)} |")
    return TEXT.format(
        date=time.strftime("%Y-%m-%d"),
        kills=results.kills.total(),
        tears=results.tears,
        fills="no full disk (that needs root)" if results.needs_root else f"{results.fills} full disks",
        trials=results.trials,
        runs=results.runs,
        minutes=results.took_s / 60,
        machine=machine,
        seed=results.seed,
        counts=counts,
        signals=" | ".join(SIGNALS),
        rule="---:|" * len(SIGNALS),
        rows="\n".join(rows),
    )
