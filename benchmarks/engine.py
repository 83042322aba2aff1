"""Speed and failure drills of the engine beside its peers, in one run: `engine.py speed` and `engine.py drills`."""

import argparse
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import ENGINES, Engine, Task, chain
from rich.console import Console
from rich.table import Table

TASK_MS, MEMORY_MB = 25.0, 80.0  # the limits of the design, and by number of tasks:
RERUN_S = {1000: 0.25, 10_000: 0.8}
STATUS_S = {1000: 0.15, 10_000: 0.4}
HALF = "echo start_{id} >> log; echo half > {out}; sleep {sleep}; echo whole > {out}; echo {id} >> log"
SLEEP_S = 3.0
console = Console()


def measured(command: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds, peak memory of the command itself in MB, exit code."""
    with (folder / "output").open("ab") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - began, used.ru_maxrss / 1024, process.returncode


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().split() if path.exists() else []


def speed(counts: list[int], engines: list[type[Engine]]) -> None:
    """First run, no-op rerun and status of each engine, as ratios to the bare loop and against our limits."""
    for count in counts:
        for independent in (False, True):
            shape = "independent" if independent else "chain"
            console.print(f"\n{count} tasks, {shape}", style="bold")
            table = Table(box=None, pad_edge=False)
            for name in ("engine", "run s", "ms/task", "x loop", "rerun s", "x loop", "status s", "peak MB"):
                table.add_column(name, justify="left" if name == "engine" else "right")
            base: tuple[float, float] | None = None
            limits = ""
            for engine in (each() for each in engines):
                if count > engine.most:
                    table.add_row(engine.name, *["-"] * 7)
                    continue
                row, base, found = _speed_row(engine, chain(count, independent=independent), base)
                table.add_row(*row)
                limits = found or limits
            console.print(table)
            if limits:
                console.print(f"harness, as shares of its limits: {limits}")


def _speed_row(
    engine: Engine, tasks: list[Task], base: tuple[float, float] | None
) -> tuple[list[str], tuple[float, float], str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine.write(folder, tasks)
        run_s, memory_mb, code = measured(engine.run(), folder)
        executed = len(log(folder))
        assert code == 0, (folder / "output").read_text()[-500:]
        assert executed == len(tasks), f"{engine.name} executed {executed} of {len(tasks)}"
        noop_s, noop_mb = best(engine.run(), folder)
        assert len(log(folder)) == executed, f"{engine.name} executed something again"
        status = engine.status()
        status_s = best(status, folder)[0] if status else float("nan")
    base = base or (run_s, noop_s)
    task_ms = 1000 * (run_s - noop_s) / len(tasks)
    memory = max(memory_mb, noop_mb)
    limits = _limits(len(tasks), task_ms, noop_s, status_s, memory) if engine.name == "harness" else ""
    cells = [f"{run_s:.2f}", f"{task_ms:.1f}", f"{run_s / base[0]:.1f}", f"{noop_s:.3f}", f"{noop_s / base[1]:.1f}"]
    return [engine.name, *cells, f"{status_s:.3f}", f"{memory:.0f}"], base, limits


def _limits(count: int, task_ms: float, noop_s: float, status_s: float, memory_mb: float) -> str:
    """Each figure of ours as a share of its limit; above 1 it is missed."""
    shares = {"task": task_ms / TASK_MS, "memory": memory_mb / MEMORY_MB}
    if count in RERUN_S:
        shares |= {"rerun": noop_s / RERUN_S[count], "status": status_s / STATUS_S[count]}
    return ", ".join(f"{name} {share:.2f}" for name, share in shares.items())


def best(command: list[str], folder: Path, times: int = 3) -> tuple[float, float]:
    """Seconds of the fastest of some runs, and the peak memory in MB of the first."""
    runs = [measured(command, folder) for _ in range(times)]
    return min(seconds for seconds, _, _ in runs), runs[0][1]


def drill_tasks() -> list[Task]:
    """Five in a chain; the third writes half its output, sleeps, then writes the whole."""
    tasks = chain(5)
    tasks[2]["command"] = HALF.format(id="t00002", out=tasks[2]["output"], sleep=SLEEP_S)
    return tasks


def start(engine: Engine, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            engine.run(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
        )


def interrupted(engine: Engine, folder: Path, number: signal.Signals, *, group: bool) -> str:
    """Send the signal in mid-task, rerun at once, and say what is wrong with the outcome."""
    engine.write(folder, drill_tasks())
    process = start(engine, folder)
    end = time.monotonic() + 30
    while "start_t00002" not in log(folder) and time.monotonic() < end:
        time.sleep(0.02)
    (os.killpg if group else os.kill)(process.pid, number)
    process.wait(30)
    before = len(log(folder))
    code = measured(engine.run(), folder)[2]
    ran = log(folder)[before:]
    if code:
        time.sleep(SLEEP_S)
        measured(engine.run(), folder)
    time.sleep(SLEEP_S)
    faults = ["needs another command"] if code else []
    faults += [f"ran {name} again" for name in ("t00000", "t00001") if name in ran]
    began = ran.index("start_t00002") if "start_t00002" in ran else -1
    if began >= 0 and ran.count("t00002") > 1:
        faults.append("two copies at once")
    if (folder / "out/t00002").read_text() != "whole\n":
        faults.append("trusted half an output")
    return ", ".join(faults) or "right"


def twice(engine: Engine, folder: Path) -> str:
    """Two runs of one plan at once: each task must be executed once."""
    tasks = chain(5)
    for task in tasks:
        task["command"] = f"sleep 0.3; {task['command']}"
    engine.write(folder, tasks)
    both = [start(engine, folder) for _ in range(2)]
    for process in both:
        process.wait(60)
    doubled = len(log(folder)) - len(set(log(folder)))
    return f"{doubled} executed twice" if doubled else "right"


def full_disk(engine: Engine, folder: Path) -> str:
    """The disk fills in mid-plan and is freed; a rerun must finish without executing anything finished again."""
    mount = folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)], check=False).returncode:
        return "needs root"
    try:
        tasks = chain(6)
        fill = "[ -e filled ] || { : > filled; cat /dev/zero > ballast 2>/dev/null; true; }"
        tasks[2]["command"] = f"{tasks[2]['command']}; {fill}"
        engine.write(mount, tasks)
        process = start(engine, mount)
        try:
            process.wait(10)
            waited = False
        except subprocess.TimeoutExpired:
            waited = True  # for room: it goes on by itself when there is some
        shown = (mount / "output").read_text(errors="replace")
        (mount / "ballast").unlink()
        process.wait(60)
        before = len(log(mount)) if not waited else 6
        code = measured(engine.run(), mount)[2]
        ran = log(mount)[before:]
        faults = [f"ran {name} again" for name in ("t00000", "t00001") if name in ran]
        faults += ["needs another command"] if code else []
        faults += ["a traceback"] if "Traceback" in shown else []
        return ", ".join(faults) or "right"
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def wrong_plan(engine: Engine, folder: Path) -> str:
    """An unknown need: nothing may run, and the place must be named."""
    tasks = chain(3)
    tasks[1]["needs"] = ["nowhere"]
    try:
        engine.write(folder, tasks)
    except KeyError:
        return "can't be written"
    done = subprocess.run(engine.run(), cwd=folder, capture_output=True, text=True, check=False)
    named = "bench.yaml:4:" in done.stdout + done.stderr
    faults = ([] if done.returncode else ["exit code 0"]) + (["ran something"] if log(folder) else [])
    return ", ".join(faults + ([] if named else ["no line and column"])) or "right"


def drills(engines: list[type[Engine]]) -> None:
    """Every drill with every engine, one row each."""
    table = Table(title="after the drill and a rerun at once", title_justify="left")
    rows: dict[str, Any] = {
        "kill -9": lambda e, f: interrupted(e, f, signal.SIGKILL, group=False),
        "Ctrl-C": lambda e, f: interrupted(e, f, signal.SIGINT, group=True),
        "SIGTERM": lambda e, f: interrupted(e, f, signal.SIGTERM, group=False),
        "two runs": twice,
        "full disk": full_disk,
        "wrong plan": wrong_plan,
    }
    for name in ("engine", *rows):
        table.add_column(name)
    for engine in (each() for each in engines):
        cells = []
        for drill in rows.values():
            folder = Path(tempfile.mkdtemp())
            cells.append(drill(engine, folder))
            shutil.rmtree(folder, ignore_errors=True)
        table.add_row(engine.name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "drills"), nargs="?", default="speed")
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--engines", nargs="+", default=[each.name for each in ENGINES], help="only these, by name")
    chosen = parser.parse_args()
    engines = [each for each in ENGINES if each.available() and each.name in chosen.engines]
    memory = resource.getpagesize() * os.sysconf("SC_PHYS_PAGES") // 2**30
    console.print(f"{os.cpu_count()} cores, {memory} GiB, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    drills(engines) if chosen.what == "drills" else speed(chosen.tasks, engines)


if __name__ == "__main__":
    main()
