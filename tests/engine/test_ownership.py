import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import OwnedError
from harness.ownership import held, owner, owning

HOLD = """
import sys, time
from pathlib import Path
from harness.ownership import owning
with owning(Path(sys.argv[1]), plan="p"):
    print("owned", flush=True)
    time.sleep(60)
"""
ASK = """
import sys
from pathlib import Path
from harness.ownership import held
print("asking", flush=True)
while True:
    held(Path(sys.argv[1]))
"""


def start_owner(lock: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "owned\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def test_a_second_owner_is_refused_in_one_line_that_names_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "run.lock"
    process = start_owner(lock)
    try:
        with pytest.raises(OwnedError) as refused, owning(lock, plan="demo"):
            pass
        assert f"pid {process.pid} on {os.uname().nodename}" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert (owner(lock) or {})["pid"] == process.pid
    finally:
        end(process)


def test_a_killed_owner_owns_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    process = start_owner(lock)
    os.kill(process.pid, signal.SIGKILL)
    end(process)
    assert owner(lock) is None
    with owning(lock, plan="demo"):
        assert held(lock)
    assert not held(lock)


def test_a_reader_that_asks_at_that_moment_does_not_keep_a_run_from_owning(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    lock.touch()
    reader = subprocess.Popen([sys.executable, "-c", ASK, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout and reader.stdout.readline() == "asking\n"
        for _ in range(20):
            with owning(lock, plan="demo"):
                pass
    finally:
        end(reader)
