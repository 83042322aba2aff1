"""Damage to a trial's files: a disk that fills to the brim and is freed, and writes that were torn by a power cut."""

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import evidence
from killing import Killer, log_uniform
from trial import Trial
from victims import end_all

SMALL_MIB = 24
PAGE_BYTES = 4096
STUCK_S = 20.0  # a run that waits longer for room that is there is stopped, and resumed
JSON_FILES = ("started.json", "result.json", "verdict.json", "request.json", "events.jsonl")
PROOFS = ("result.json", "verdict.json")  # of an attempt that has not been judged yet there is no other


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small tmpfs on the folder for the length of the block; yields whether that was allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ballast: Path, spare_pages: int) -> None:
    """Fill the disk with one file to its last byte, then leave `spare_pages` pages free."""
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for size in (1 << 20, PAGE_BYTES, 1):
            try:
                while True:
                    os.write(descriptor, bytes(size))
            except OSError:
                continue
        written = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.ftruncate(descriptor, max(0, written - spare_pages * PAGE_BYTES))
    finally:
        os.close(descriptor)


def run_on_full_disks(trial: Trial, fills: int) -> int:
    """Run the plan to its end on a disk that is filled `fills` times, for a while each. Returns how often."""
    rng, done = trial.rng, 0
    trial.allowed.hits = None
    ballast = trial.root / "ballast"
    while not trial.hopeless:
        engine = trial.start()
        while done < fills and engine.poll() is None:
            time.sleep(log_uniform(rng, 0.01, 1.5))
            spare_pages = rng.choice([0, 0, 0, 1, 2, 4, 8])
            fill(ballast, spare_pages)
            held_s = log_uniform(rng, 0.02, 3.0)
            trial.act(f"the disk is full but for {spare_pages} pages, for {held_s:.2f} s")
            time.sleep(held_s)
            ballast.unlink()
            trial.act("the disk has room")
            done += 1
        if not trial.wait(STUCK_S):
            trial.act("the run waits though there is room: it is stopped, and resumed")
            trial.sent.add(signal.SIGINT)
            engine.send_signal(signal.SIGINT)
            if not trial.wait():
                trial.hung()
        if engine.returncode not in (0, -2, 130):
            trial.act(f"run {trial.runs} gave up with exit code {engine.returncode}; the next one has to get on")
            trial.refused += 1
        elif trial.ended():
            break
    if trial.hopeless:
        trial.fault("commands by hand", f"{trial.refused} runs in a row gave up, the last with room")
    return done


def run_with_torn_writes(trial: Trial, tears: int) -> int:
    """Run the plan to its end, killed `tears` times; after each kill files lose their last bytes. Returns how many."""
    rng, done = trial.rng, 0
    killer = Killer(trial, Counter())
    trial.allowed.hits = None
    while not trial.hopeless:
        engine = trial.start()
        if done < tears:
            killer.await_moment()
            time.sleep(log_uniform(rng, 0.001, 1.0))
            if engine.poll() is None:
                trial.sent.add(signal.SIGKILL)
                end_all(trial.folder)
        if not trial.wait():
            trial.hung()
        if trial.ended():
            break
        if -engine.returncode == signal.SIGKILL:
            for _ in range(min(rng.randint(1, 3), tears - done)):
                done += tear_log(trial) if rng.random() < 0.4 else tear_json(trial)
    return done


def tear(path: Path, lost_bytes: int) -> None:
    os.truncate(path, max(0, path.stat().st_size - lost_bytes))


def tear_json(trial: Trial) -> int:
    """Tear one JSON file of an attempt, more often of one that has not been judged; returns how many were torn."""
    rng = trial.rng
    running = {(each.task, each.number) for each in copied(trial.plan_folder) if each.state == "running"}
    found = [path for name in JSON_FILES for path in sorted(trial.plan_folder.glob(f"tasks/*/*/{name}"))]
    found = [path for path in found if path.stat().st_size]
    unjudged = [path for path in found if (path.parts[-3], int(path.parts[-2])) in running]
    if unjudged and rng.random() < 0.7:
        found = unjudged
    if not found:
        return 0
    path = rng.choice(found)
    size = path.stat().st_size
    lost_bytes = size if rng.random() < 0.15 else rng.randint(1, min(size, 300))
    tear(path, lost_bytes)
    task = path.parts[-3]
    if path in unjudged and path.name in PROOFS:
        trial.allowed.again[task] += 1
    trial.act(f"{task}/{path.parts[-2]}/{path.name} lost its last {lost_bytes} of {size} bytes")
    return 1


def tear_log(trial: Trial) -> int:
    """Tear the database's write-ahead log; a start that goes with it may happen again, and nothing else may."""
    log = trial.plan_folder / "state.db-wal"
    if not log.exists() or not log.stat().st_size:
        return 0
    size = log.stat().st_size
    lost_bytes = min(
        size, trial.rng.randint(1, PAGE_BYTES) if trial.rng.random() < 0.7 else trial.rng.randint(1, 20_000)
    )
    before = copied(trial.plan_folder)
    tear(log, lost_bytes)
    after = {(each.task, each.number) for each in copied(trial.plan_folder)}
    lost = [each for each in before if (each.task, each.number) not in after]
    for each in lost:
        trial.allowed.again[each.task] += 1
    gone = ", ".join(f"{each.task}/{each.number}" for each in lost)
    trial.act(f"state.db-wal lost its last {lost_bytes} of {size} bytes, and with them the starts of: {gone or 'none'}")
    return 1


def copied(plan_folder: Path) -> list[evidence.Attempt]:
    """The attempts as a copy of the database tells them, so that the original is not recovered by our reading it."""
    with tempfile.TemporaryDirectory() as name:
        for file in plan_folder.glob("state.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, name)
        try:
            connection = sqlite3.connect(Path(name) / "state.db")
            try:
                rows = connection.execute("SELECT task, number, state FROM attempt").fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []
    return [evidence.Attempt(*row) for row in rows]
