"""Disks that fill up, run out of inodes or turn read-only, for real: small file systems in memory."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.plans import counted, harness, log, shell, start, status, until, write_plan


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB and 64 inodes."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = "size=16m,nr_inodes=64"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if made.returncode:
        pytest.skip("a small file system can't be mounted here: it needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


FILLS = "echo big >> log; head -c 12000000 /dev/zero > small/big || exit 1"


def filling(**more: object) -> dict[str, object]:
    return shell("big", FILLS, outputs={"o": "small/big"}, **more)


def state(root: Path, name: str) -> object:
    return status(root)[name]["state"] if (root / "checkpoints/p/state.db").exists() else None


def test_a_task_without_room_waits_and_goes_on_by_itself_when_there_is_some(tmp_path: Path, small: Path) -> None:
    (small / "old").write_bytes(bytes(10_000_000))
    first = shell("first", "head -c 1000000 /dev/zero > small/first", outputs={"o": "small/first"})
    plan = write_plan(tmp_path, [first, filling(needs=("first",)), counted("z", needs=("big",))])
    process = start(tmp_path, "run", str(plan))
    until(lambda: state(tmp_path, "big") == "waiting_disk")
    note = str(status(tmp_path)["big"]["note"])
    assert "No space left on device" in note
    assert "small/big' has " in note
    assert "biggest outputs there: 'small/first' 977 KiB" in note
    assert log(tmp_path) == ["big"]
    (small / "old").unlink()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "There is room again: 'big' goes on" in out
    assert log(tmp_path) == ["big", "big", "z"]


def test_waiting_for_room_uses_up_no_try_and_holds_back_what_would_fail_too(tmp_path: Path, small: Path) -> None:
    (small / "old").write_bytes(bytes(10_000_000))
    plan = write_plan(tmp_path, [filling(), counted("b")])
    process = start(tmp_path, "run", str(plan))
    until(lambda: state(tmp_path, "big") == "waiting_disk")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert log(tmp_path) == ["big"]
    assert state(tmp_path, "big") == "waiting_disk"
    (small / "old").unlink()
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["big", "big", "b"]


def test_a_task_that_tidies_up_after_itself_is_not_tried_in_a_circle(tmp_path: Path, small: Path) -> None:
    (small / "old").write_bytes(bytes(10_000_000))
    tidy = shell("big", f"({FILLS}) || {{ rm small/big; exit 1; }}", outputs={"o": "small/big"})
    process = start(tmp_path, "run", str(write_plan(tmp_path, [tidy])))
    until(lambda: state(tmp_path, "big") == "waiting_disk")
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=6)
    assert log(tmp_path) == ["big"]
    assert "'big' is tried again" in harness(tmp_path, "retry", "big")
    until(lambda: log(tmp_path) == ["big", "big"])
    (small / "old").unlink()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def test_a_lack_of_inodes_is_told_from_a_lack_of_bytes(tmp_path: Path, small: Path) -> None:
    many = "echo m >> log; mkdir small/m || exit 1; for i in $(seq 50); do echo > small/m/$i || exit 1; done"
    (small / "old").mkdir()
    for number in range(30):
        (small / "old" / str(number)).touch()
    process = start(tmp_path, "run", str(write_plan(tmp_path, [shell("m", many, outputs={"o": "small/m"})])))
    until(lambda: state(tmp_path, "m") == "waiting_disk")
    assert "has no inodes left" in str(status(tmp_path)["m"]["note"])
    subprocess.run(["rm", "-r", str(small / "old"), str(small / "m")], check=True)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def test_a_file_system_that_turned_read_only_is_waited_for(tmp_path: Path, small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    process = start(tmp_path, "run", str(write_plan(tmp_path, [filling()])))
    until(lambda: state(tmp_path, "big") == "waiting_disk")
    assert "can't be written" in str(status(tmp_path)["big"]["note"])
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def test_a_python_task_without_room_is_told_from_one_with_a_fault(tmp_path: Path, small: Path) -> None:
    (tmp_path / "fill.py").write_text(
        "def fill():\n    with open('small/big', 'wb') as file:\n        file.write(bytes(12_000_000))\n"
    )
    (small / "old").write_bytes(bytes(10_000_000))
    task = {"id": "f", "content": "f", "tool": "python", "outputs": {"o": "small/big"},
            "with": {"call": "fill:fill", "path": ["."]}}  # fmt: skip
    process = start(tmp_path, "run", str(write_plan(tmp_path, [task])))
    until(lambda: state(tmp_path, "f") == "waiting_disk")
    (small / "old").unlink()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def test_a_rule_may_say_something_else_of_a_full_disk(tmp_path: Path, small: Path) -> None:
    (small / "old").write_bytes(bytes(10_000_000))
    task = filling(retries={"count": 5, "backoff": 0, "rules": [{"cause": "disk", "count": 0}]})
    harness(tmp_path, "run", str(write_plan(tmp_path, [task])), code=1)
    assert log(tmp_path) == ["big"]


@pytest.fixture
def tiny_root(tmp_path: Path) -> Iterator[Path]:
    """A root folder on a file system of its own of 12 MB, state and all."""
    folder = tmp_path / "root"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=False)
    if made.returncode:
        pytest.skip("a small file system can't be mounted here: it needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_to_the_brim_under_the_state_itself_loses_nothing(tiny_root: Path) -> None:
    fills = counted("fills")
    fills["with"]["command"] += "; cat /dev/zero > ballast 2>/dev/null; true"  # type: ignore[index]
    names = ["a", "fills", "b", "c"]
    tasks = [counted("a"), fills | {"needs": ["a"]}, counted("b", needs=("fills",)), counted("c", needs=("b",))]
    process = start(tiny_root, "run", str(write_plan(tiny_root, tasks)))
    until(lambda: (tiny_root / "ballast").exists() and os.statvfs(tiny_root).f_bavail == 0)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=4)
    (tiny_root / "ballast").unlink()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "Traceback" not in out
    assert log(tiny_root) == names
    assert "nothing executed" in harness(tiny_root, "resume")


def test_a_run_on_a_full_disk_can_be_left_and_taken_up_again(tiny_root: Path) -> None:
    fills = counted("fills")
    fills["with"]["command"] += "; cat /dev/zero > ballast 2>/dev/null; true"  # type: ignore[index]
    process = start(tiny_root, "run", str(write_plan(tiny_root, [fills, counted("b", needs=("fills",))])))
    until(lambda: (tiny_root / "ballast").exists() and os.statvfs(tiny_root).f_bavail == 0)
    os.kill(process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert "Traceback" not in out
    assert process.returncode in (143, 5)
    (tiny_root / "ballast").unlink()
    out = harness(tiny_root, "resume")
    assert "Traceback" not in out
    assert log(tiny_root) == ["fills", "b"]
