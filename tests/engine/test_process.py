"""Attempts with real processes: what the supervisor, `start` and `adopt` promise."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import process
from harness.ownership import held
from harness.paths import AttemptPaths
from harness.process import Attempt, Launch
from harness.state import Verdict


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    folder = tmp_path / "odd name ü" / "1"
    folder.mkdir(parents=True)
    return AttemptPaths(folder)


def start(paths: AttemptPaths, command: str, *, grace_s: float = 5, timeout_s: float | None = None) -> Attempt:
    argv = ["/bin/sh", "-c", command]
    return process.start(paths, Launch(argv, str(paths.folder), dict(os.environ), grace_s, timeout_s))


def wait(attempt: Attempt, seconds: float = 20) -> Verdict | None:
    with selectors.DefaultSelector() as selector:
        selector.register(attempt, selectors.EVENT_READ)
        assert selector.select(seconds), "the attempt did not end"
    verdict = attempt.poll()
    attempt.close()
    return verdict


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def pids(paths: AttemptPaths, name: str) -> list[int]:
    file = paths.folder / name
    until(lambda: file.exists() and file.read_text().endswith("\n"))
    return [int(word) for word in file.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("command", "code", "number"), [("exit 0", 0, None), ("exit 7", 7, None), ("kill -9 $$", None, 9)]
)
def test_the_verdict_says_how_the_task_ended(
    paths: AttemptPaths, command: str, code: int | None, number: int | None
) -> None:
    verdict = wait(start(paths, f"echo words; echo more >&2; {command}"))
    assert verdict
    assert (verdict.exit_code, verdict.signal, verdict.stop, verdict.error) == (code, number, "", "")
    assert process.log_tail(paths, 5) == ["words", "more"]
    assert verdict.peak_rss_bytes > 100_000
    assert verdict.ended_at >= verdict.started_at
    assert not held(paths.lock)


def test_a_command_that_can_not_be_started_is_named(paths: AttemptPaths) -> None:
    launch = Launch([".no/such python"], str(paths.folder), dict(os.environ), 5, None)
    verdict = wait(process.start(paths, launch))
    assert verdict
    assert verdict.error == "No such file or directory: '.no/such python'"
    assert (verdict.exit_code, verdict.signal) == (None, None)


def test_a_stop_lets_the_task_end_by_itself(paths: AttemptPaths) -> None:
    attempt = start(paths, "trap 'echo saved; exit 75' TERM; echo ready > ready; while :; do sleep 0.05; done")
    until((paths.folder / "ready").exists)
    attempt.stop()
    verdict = wait(attempt)
    assert verdict
    assert (verdict.exit_code, verdict.stop) == (75, "stop")
    assert "saved" in process.log_tail(paths, 3)


def test_a_task_that_ignores_a_stop_is_killed_after_its_grace(paths: AttemptPaths) -> None:
    attempt = start(paths, "trap '' TERM; echo > ready; while :; do sleep 0.05; done", grace_s=0.3)
    until((paths.folder / "ready").exists)
    began = time.monotonic()
    attempt.stop()
    verdict = wait(attempt)
    assert verdict
    assert (verdict.signal, verdict.stop) == (signal.SIGKILL, "hard")
    assert time.monotonic() - began >= 0.3


def test_a_kill_ends_everything_at_once(paths: AttemptPaths) -> None:
    attempt = start(paths, "trap '' TERM; (setsid sleep 60 & echo $! > pids); sleep 60")
    (child,) = pids(paths, "pids")
    attempt.kill()
    verdict = wait(attempt)
    assert verdict
    assert verdict.stop == "hard"
    assert not alive(child)


def test_a_stopped_process_can_be_stopped(paths: AttemptPaths) -> None:
    attempt = start(paths, "echo $$ > pids; kill -STOP $$; sleep 60")
    (pid,) = pids(paths, "pids")
    until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text())
    attempt.stop()
    verdict = wait(attempt)
    assert verdict
    assert verdict.signal == signal.SIGTERM


def test_a_time_limit_stops_the_task_and_says_so(paths: AttemptPaths) -> None:
    verdict = wait(start(paths, "sleep 60", timeout_s=0.3))
    assert verdict
    assert (verdict.signal, verdict.stop) == (signal.SIGTERM, "timeout")


DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""


def test_nothing_that_a_task_started_outlives_it(paths: AttemptPaths) -> None:
    (paths.folder / "daemon.py").write_text(DAEMON)
    children = "setsid sleep 60 & echo $! >> more; sleep 60 & echo $! >> more"
    command = f"{children}; '{sys.executable}' daemon.py; until [ -s pids ]; do sleep 0.02; done"
    verdict = wait(start(paths, command))
    assert verdict
    assert verdict.exit_code == 0
    left = pids(paths, "pids") + pids(paths, "more")
    assert len(left) == 3
    assert not [pid for pid in left if alive(pid)]


def test_two_supervisors_never_have_one_attempt(paths: AttemptPaths) -> None:
    first = start(paths, "echo once >> runs; sleep 0.6")
    until((paths.folder / "runs").exists)
    with pytest.raises(OSError, match="another supervisor"):
        start(paths, "echo twice >> runs")
    assert wait(first)
    assert (paths.folder / "runs").read_text() == "once\n"


ENGINE = """
import os, sys, time
from pathlib import Path
from harness import process
from harness.paths import AttemptPaths
paths = AttemptPaths(Path(sys.argv[1]))
process.start(paths, process.Launch(["/bin/sh", "-c", sys.argv[2]], str(paths.folder), dict(os.environ), 5, None))
print("started", flush=True)
time.sleep(60)
"""


def run_engine_that_dies(paths: AttemptPaths, command: str) -> None:
    """Start an attempt from a process that is then killed with SIGKILL."""
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(paths.folder), command], stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout
    assert engine.stdout.readline() == "started\n"
    engine.kill()
    engine.wait()
    engine.stdout.close()


def test_an_attempt_outlives_its_engine_and_is_adopted(paths: AttemptPaths) -> None:
    run_engine_that_dies(paths, "echo > ready; until [ -e go ]; do sleep 0.02; done; exit 4")
    until((paths.folder / "ready").exists)
    adopted = process.adopt(paths)
    assert isinstance(adopted, Attempt)
    (paths.folder / "go").touch()
    verdict = wait(adopted)
    assert verdict
    assert verdict.exit_code == 4
    assert process.adopt(paths) == verdict


def test_an_adopted_attempt_can_be_stopped(paths: AttemptPaths) -> None:
    run_engine_that_dies(paths, "echo > ready; sleep 60")
    until((paths.folder / "ready").exists)
    adopted = process.adopt(paths)
    assert isinstance(adopted, Attempt)
    adopted.stop()
    verdict = wait(adopted)
    assert verdict
    assert verdict.stop == "stop"


def test_a_killed_supervisor_means_lost_and_leaves_no_process(paths: AttemptPaths) -> None:
    attempt = start(paths, "setsid sleep 60 & echo $! >> pids; sleep 60 & echo $! >> pids; echo $$ >> pids; wait")
    until(lambda: len(pids(paths, "pids")) == 3)
    until(paths.started.exists)
    shim = process._json(paths.started)
    assert shim
    os.kill(shim["shim_pid"], signal.SIGKILL)
    assert wait(attempt) is None
    until(lambda: not [pid for pid in pids(paths, "pids") if alive(pid)])
    assert process.adopt(paths) is None


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_verdict_waits_for_room_on_a_full_disk(full_disk: Path) -> None:
    paths = AttemptPaths(full_disk / "1")
    paths.folder.mkdir()
    attempt = start(paths, "cat /dev/zero > ../ballast; exit 3")
    until(lambda: (full_disk / "ballast").exists() and os.statvfs(full_disk).f_bavail == 0)
    time.sleep(0.5)
    assert not paths.verdict.exists()
    assert held(paths.lock), "the supervisor gave up"
    (full_disk / "ballast").unlink()
    verdict = wait(attempt)
    assert verdict
    assert verdict.exit_code == 3
