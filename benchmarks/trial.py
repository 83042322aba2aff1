"""One plan of the fault campaign in a folder of its own: set up, run under faults until it is done, and checked."""

import fcntl
import json
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import evidence
from evidence import Allowed, Found
from victims import MARK, Victim, end_all, left_over, living

HERE = Path(__file__).resolve().parent
RETRIES = 12  # a killed worker is a failure; a task may be hit less often than that in one trial
HANG_S = 120.0  # undisturbed, the plan takes some seconds
GRACE_S = 5
DONE, INTERRUPTED, TERMINATED = 0, 130, 143
UNITS = {"a": 30, "d": 20, "k": 20}
SHELL = """set -e; exec 9>>$W/$HARNESS_TASK.lock
who="$HARNESS_TASK $(basename $HARNESS_ATTEMPT)"; flock -n 9 || echo "overlap $who -" >> $W/effects
echo "start $who -" >> $W/effects
setsid sleep 600 & sleep {pause} & wait $!
cat {read} /dev/null | sha256sum > {out}.tmp; sync {out}.tmp; mv {out}.tmp {out}
echo "end $who -" >> $W/effects"""


def tasks(witness: Path, *, pause_s: float = 0.1) -> list[dict[str, Any]]:
    """Two independent chains, a fork of three, two joins: counting, shell and Python tasks."""

    def read(*names: str) -> list[str]:
        return [f"out/{name}" for name in names]

    def shell(name: str, *needs: str) -> dict[str, Any]:
        command = SHELL.format(pause=pause_s, read=" ".join(read(*needs)), out=f"out/{name}")
        given = {"command": command, "env": {"W": str(witness)}}
        return {"id": name, "tool": "shell", "needs": list(needs), "with": given, "outputs": {"out": f"out/{name}"}}

    def count(name: str, *needs: str) -> dict[str, Any]:
        given = {"out": f"out/{name}", "witness": str(witness), "units": UNITS[name], "inputs": read(*needs)}
        return {"id": name, "tool": "count", "needs": list(needs), "with": given}

    def join(name: str, *needs: str, units: list[str]) -> dict[str, Any]:
        args = {"out": f"out/{name}", "witness": str(witness), "inputs": read(*needs)}
        args["units"] = [f"${{tasks.{each}.outputs.units}}" for each in units]
        given = {"call": "counting.run:join", "path": [str(HERE)], "args": args}
        return {"id": name, "tool": "python", "needs": list(needs), "with": given, "outputs": {"out": f"out/{name}"}}

    found = [count("a"), shell("b", "a"), shell("c", "a"), count("d", "b", "c")]
    found += [shell("e", "d"), shell("f", "d"), join("g", "d", units=["a", "d"])]
    found += [shell("h", "e", "f", "g"), shell("i"), shell("j", "i"), count("k", "j"), join("l", "h", "k", units=["k"])]
    retries = {"count": RETRIES, "backoff": 0.05, "backoff_max": 0.2}
    return [{"content": f"Do {each['id']}", "retries": retries, **each} for each in found]


TASKS = [task["id"] for task in tasks(Path())]


def make_folder(folder: Path, root: Path) -> None:
    """The plan in `root`, the witnesses and our tools beside it in `folder`."""
    witness = folder / "witness"
    for each in (root / "plans", root / "out", witness, folder / "pack" / "counting-1.dist-info"):
        each.mkdir(parents=True, exist_ok=True)
    plan = {"name": "faults", "grace_s": GRACE_S, "tasks": tasks(witness)}
    (root / "plans" / "faults.yaml").write_text(json.dumps(plan))
    (folder / "pack" / "counting").symlink_to(HERE / "counting")
    info = folder / "pack" / "counting-1.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[harness.tools]\ncounting = counting.spec:TOOLS\n")


@contextmanager
def outlet(path: Path, *, terminal: bool) -> Iterator[int]:
    """A descriptor for a run's output, which comes into the file: the file itself, or a terminal of 200 columns."""
    if not terminal:
        with path.open("wb") as file:
            yield file.fileno()
        return
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    threading.Thread(target=relay, args=(master, path), daemon=True).start()
    try:
        yield slave
    finally:
        os.close(slave)


def relay(master: int, path: Path) -> None:
    """Copy what a terminal shows into the file, until nobody writes to it any more."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while chunk := os.read(master, 65536):
            file.write(chunk)
    os.close(master)


@dataclass
class Trial:
    """A folder with its plan, what was done to it, and what was found wrong. `root` may lie on a small disk."""

    folder: Path
    root: Path
    jobs: int
    rng: random.Random
    found: Found = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    allowed: Allowed = field(default_factory=lambda: Allowed(hits=set()))
    sent: set[int] = field(default_factory=set)  # signals that this run's engine was sent
    runs: int = 0
    refused: int = 0  # runs in a row that ended as they must not
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        make_folder(self.folder, self.root)
        self.terminal = self.rng.random() < 0.4  # with the live table
        self.act(f"runs are shown {'on a terminal' if self.terminal else 'in a file'}")
        self.engine: subprocess.Popen[bytes] | None = None
        self.plan_folder = self.root / "checkpoints" / "faults"

    def act(self, text: str) -> None:
        """Note what was done, with the time since the trial began."""
        self.actions.append(f"{time.monotonic() - self.began:9.4f} s  {text}")
        with (self.folder / "actions").open("a") as file:
            file.write(self.actions[-1] + "\n")

    def fault(self, kind: str, text: str) -> None:
        self.found.append((kind, text))
        self.act(f"FOUND {kind}: {text}")

    # -- runs -------------------------------------------------------------------------------------------------------

    def start(self) -> subprocess.Popen[bytes]:
        """`harness run`, in a session of its own."""
        self.runs += 1
        self.sent = set()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HARNESS_", "PYTHON"))}
        env |= {MARK: str(self.folder), "PYTHONPATH": str(self.folder / "pack"), "NO_COLOR": "1", "TERM": "xterm"}
        env |= {"XDG_STATE_HOME": str(self.folder / "state")}
        with outlet(self.folder / f"run-{self.runs}.txt", terminal=self.terminal) as output:
            self.engine = subprocess.Popen(
                [sys.executable, "-m", "harness", "run", "plans/faults.yaml", "--jobs", str(self.jobs)],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in a shell
            )
        self.act(f"run {self.runs} starts, pid {self.engine.pid}")
        return self.engine

    def output(self, run: int) -> str:
        return (self.folder / f"run-{run}.txt").read_text(errors="replace").replace("\r\n", "\n")

    def processes(self) -> list[Victim]:
        """All that lives of this trial."""
        return living(self.folder, self.engine.pid if self.engine and self.engine.returncode is None else -1)

    def wait(self, seconds: float = HANG_S) -> bool:
        """Let the run go on by itself until it ends; says whether it did."""
        assert self.engine
        try:
            self.engine.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ended(self) -> bool:
        """Judge the exit code of the run that has ended; says whether the plan is done."""
        assert self.engine
        code = self.engine.returncode
        self.act(f"run {self.runs} ended with exit code {code}")
        if code == DONE:
            return True
        shown = self.output(self.runs)
        early = signal.SIGINT in self.sent and evidence.is_early(shown)
        fine = code in (INTERRUPTED, TERMINATED) or -code in self.sent or early
        self.refused = 0 if fine else self.refused + 1
        if not fine:
            last = shown.strip().splitlines()[-1:] or [""]
            self.fault("commands by hand", f"run {self.runs} ended with exit code {code}: {last[0]}")
        return False

    def hung(self) -> None:
        """The run didn't end: a person would have to end it."""
        assert self.engine
        self.fault("commands by hand", f"run {self.runs} hangs, after {HANG_S:g} s without a fault")
        end_all(self.folder)
        self.engine.wait(10)

    @property
    def hopeless(self) -> bool:
        return self.refused > 3

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self, undisturbed: dict[str, str]) -> None:
        """Hold what the trial left against what an undisturbed run leaves."""
        self.found += [("leftovers", text) for text in left_over(self.folder)]
        text = (self.folder / "witness" / "effects").read_text()
        self._rerun()
        if (self.folder / "witness" / "effects").read_text() != text:
            self.fault("duplicates", "a rerun of the finished plan executed something")
        effects = evidence.read_effects(text)
        record = evidence.read_database(self.plan_folder / "state.db")
        self.found += [("damaged databases", fault) for fault in record.faults]
        self.found += evidence.repeated(effects, record.attempts, self.allowed)
        self.found += evidence.verdicts(self.plan_folder / "tasks", self.allowed)
        for task, units in UNITS.items():
            if not self.allowed.again[task]:
                self.found += evidence.counted(task, effects, units)
        self.found += evidence.unfinished(record.states, TASKS)
        self.found += evidence.unexplained(effects, record.attempts, self.allowed)
        self.found += evidence.differing(evidence.digests(self.root / "out"), undisturbed)
        self.found += self._tracebacks()

    def _rerun(self) -> None:
        self.start()
        if not self.wait():
            self.hung()
        elif self.ended() and "nothing executed" not in self.output(self.runs):
            self.fault("duplicates", "a rerun of the finished plan did not say 'nothing executed'")

    def _tracebacks(self) -> Found:
        shown = {f"run {run}": self.output(run) for run in range(1, self.runs + 1)}
        crashes = {path.name: path.read_text(errors="replace") for path in (self.folder / "state").rglob("crash-*")}
        logs = {
            str(path.relative_to(self.plan_folder)): path.read_text(errors="replace")
            for path in self.plan_folder.glob("tasks/*/*/log")
        }
        excused = ("KeyboardInterrupt", "No space left on device")  # a worker that is sent SIGINT before it is ready
        return evidence.tracebacks(shown | crashes) + evidence.tracebacks(logs, excused=excused)
