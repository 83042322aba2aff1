import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import EXIT_BLOCKED, BlockedError, OwnedError
from harness.ownership import held, owner, owning
from tests.engine.disks import NEEDS_ROOT, as_nobody, fill, fill_inodes, tmpfs

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


def test_an_owner_on_another_machine_is_told_as_such(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    process = start_owner(lock)
    try:
        lock.write_text(json.dumps({"pid": 17, "host": "elsewhere", "since": 0.0}))  # as over a shared file system
        with (
            pytest.raises(OwnedError, match="pid 17 on elsewhere, which is another machine, since 19"),
            owning(lock, plan="demo"),
        ):
            pass
    finally:
        end(process)


@pytest.mark.parametrize("text", ["", "{", "[1]", "17", '{"pid": 4}'])
def test_a_lock_that_is_not_signed_yet_is_held_all_the_same(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "run.lock"
    process = start_owner(lock)
    try:
        lock.write_text(text)
        assert (owner(lock) or {}).keys() == {"pid", "host", "since"}
        with pytest.raises(OwnedError, match=r"on \?\)"), owning(lock, plan="demo"):
            pass
    finally:
        end(process)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_with_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = tmp_path / "run.lock"
    with (
        pytest.raises(BlockedError, match=r"has no locks.*file system \w+\).*--root.*link") as refused,
        owning(lock, plan="demo"),
    ):
        pass
    assert refused.value.exit_code == EXIT_BLOCKED
    with pytest.raises(BlockedError, match="has no locks"):
        held(lock)


@NEEDS_ROOT
@pytest.mark.parametrize("lacking", ["room", "inodes", "writing"])
def test_a_lock_that_can_not_be_made_on_a_disk_is_named(tmp_path: Path, lacking: str) -> None:
    with tmpfs(tmp_path / "disk", "size=1m,nr_inodes=9") as disk:
        lock = disk / "p" / "run.lock"
        said = "No space left on device"
        if lacking == "room":
            fill(disk)
        elif lacking == "inodes":
            fill_inodes(disk)
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            said = "Read-only file system"
        with pytest.raises(BlockedError, match=rf"{said} \(file system tmpfs\)") as refused, owning(lock, plan="p"):
            pass
        assert not isinstance(refused.value, OwnedError)
        assert refused.value.do


@NEEDS_ROOT
def test_a_plan_that_ran_before_is_owned_on_a_full_disk_too(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        lock = disk / "run.lock"
        with owning(lock, plan="p"):
            pass
        fill(disk)
        with owning(lock, plan="p"):
            assert (owner(lock) or {})["pid"] == os.getpid()


def test_a_lock_without_the_right_to_write_or_read_it_is_named() -> None:
    with as_nobody() as folder:
        lock = folder / "run.lock"
        lock.touch()
        lock.chmod(0)
        with pytest.raises(BlockedError, match=r"Permission denied.*Give this user the right"), owning(lock, plan="p"):
            pass
        with pytest.raises(BlockedError, match="Permission denied"):
            held(lock)


def test_a_block_that_fails_for_want_of_a_file_is_not_taken_for_the_locks_failure(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), owning(tmp_path / "run.lock", plan="p"):
        (tmp_path / "nothing").read_text()
