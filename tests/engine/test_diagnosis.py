"""`harness doctor`: what is wrong with a plan's state, and what it cures."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.ballast import BALLAST_BYTES
from harness.errors import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_OWNED
from harness.ownership import owning
from harness.paths import PlanPaths, Root
from tests.engine.plans import command, harness, shell, write_plan

OLD = time.time() - 2 * 86400


@pytest.fixture
def paths(tmp_path: Path) -> PlanPaths:
    """The state of a plan whose task a has completed and whose task b has failed twice."""
    write_plan(tmp_path, [shell("a"), shell("b", "exit 3")])
    harness(tmp_path, "run", "plans/p.yaml", code=EXIT_FAILED)
    harness(tmp_path, "run", "plans/p.yaml", code=EXIT_FAILED)
    return Root(tmp_path).plan("p")


def findings(paths: PlanPaths, *arguments: str, code: int = EXIT_FAILED) -> list[dict[str, Any]]:
    root = paths.folder.parents[1]
    found = json.loads(harness(root, "doctor", "p", "--json", *arguments, code=code))["data"]["findings"]
    assert all(each["what"] and each["where"] and each["do"] for each in found)
    return found


def edit(paths: PlanPaths, *statements: str) -> None:
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


@contextmanager
def locking(lock: Path) -> Iterator[None]:
    """Another process holds the lock, as a supervisor does."""
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def test_where_nothing_is_wrong_it_says_so_and_touches_nothing(tmp_path: Path, paths: PlanPaths) -> None:
    before = everything(tmp_path)
    shown = harness(tmp_path, "doctor")
    assert shown.startswith("Nothing is wrong\n")
    assert "attempt 1 of 'a'" in shown
    assert findings(paths, code=0) == []
    assert everything(tmp_path) == before


def test_nothing_is_wrong_while_a_run_goes_on(tmp_path: Path) -> None:
    write_plan(tmp_path, [shell("a"), shell("b", "sleep 60", needs=["a"])])
    run = subprocess.Popen(command("run", "plans/p.yaml"), cwd=tmp_path, stdout=subprocess.DEVNULL)
    paths = Root(tmp_path).plan("p")
    try:
        while not paths.attempt("b", 1).started.exists():
            assert run.poll() is None
            time.sleep(0.05)
        assert findings(paths, code=0) == []
    finally:
        run.kill()
        run.wait()
    assert findings(paths, code=0) == []  # the attempt outlives its run, and is adopted by the next one
    harness(tmp_path, "stop", "-p", "p")
    (found,) = findings(paths)
    assert "has ended, and no run has taken that in" in found["what"]
    assert found["do"] == "Take it in: harness resume p"


def row_gone(paths: PlanPaths) -> None:
    edit(paths, "DELETE FROM attempt WHERE task = 'b' AND number = 1")


def folder_gone(paths: PlanPaths) -> None:
    shutil.rmtree(paths.attempt("b", 1).folder)


def process_gone(paths: PlanPaths) -> None:
    edit(
        paths,
        "UPDATE attempt SET state = 'running', exit_code = NULL WHERE task = 'b' AND number = 2",
        "UPDATE task SET state = 'running' WHERE id = 'b'",
        "INSERT INTO event (ts, task, type, data) VALUES (0, 'b', 'running', '{}')",
    )
    paths.attempt("b", 2).verdict.unlink()


def only_task_runs(paths: PlanPaths) -> None:
    edit(
        paths,
        "UPDATE task SET state = 'running' WHERE id = 'b'",
        "INSERT INTO event (ts, task, type, data) VALUES (0, 'b', 'running', '{}')",
    )


def unfinished_file(paths: PlanPaths) -> None:
    for place, pid, age in (("a", 4194305, OLD), ("new", 4194305, time.time()), ("living", os.getpid(), OLD)):
        partial = paths.folder / f".{place}.{pid}.partial"
        partial.touch()
        os.utime(partial, (age, age))


def progress(name: str, prefix: str) -> Callable[[PlanPaths], None]:
    return lambda paths: paths.scratch(name, prefix * 16).mkdir(parents=True)


WRONGS: dict[str, tuple[Callable[[PlanPaths], None], str]] = {
    "state": (lambda p: edit(p, "UPDATE task SET state = 'lost' WHERE id = 'b'"), "'b' is lost, but its last event"),
    "event": (lambda p: edit(p, "DELETE FROM event WHERE seq = 2"), "1 events are missing"),
    "checkpoint": (lambda p: edit(p, "DELETE FROM checkpoint"), "'a' is completed without a checkpoint"),
    "attempt": (lambda p: edit(p, "UPDATE checkpoint SET attempt = 9"), "'a' is that of attempt 9, which never"),
    "row": (row_gone, "no record tells of attempt 1 of 'b'"),
    "folder": (folder_gone, "the folder of attempt 1 of 'b' is gone"),
    "process": (process_gone, "attempt 2 of 'b' is gone without a verdict"),
    "task": (only_task_runs, "'b' is running, but its attempt isn't"),
    "unfinished": (unfinished_file, "an unfinished file of a process that is gone"),
    "completed": (progress("a", "f"), "progress of 'a' that nothing can go on from: the task is completed"),
    "fingerprint": (progress("b", "f"), "progress of 'b' that nothing can go on from: no attempt"),
    "unknown": (progress("z", "f"), "progress of 'z' that nothing can go on from: the plan has no such task"),
    "ballast": (lambda p: p.ballast.unlink(), "the ballast is missing"),
    "database": (lambda p: os.truncate(p.database, 20480), "the state database can't be used"),
    "index": (
        lambda p: edit(p, "PRAGMA writable_schema = 1", "UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'task'"),
        "the state database",
    ),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_each_thing_that_is_wrong_is_found_alone(paths: PlanPaths, wrong: str) -> None:
    make, expected = WRONGS[wrong]
    make(paths)
    before = everything(paths.folder)
    found = findings(paths)
    assert expected in found[0]["what"]
    assert len(found) == 1 or wrong == "index"
    assert everything(paths.folder) == before


def test_a_living_attempt_that_its_record_does_not_tell_of_is_found(paths: PlanPaths) -> None:
    with locking(paths.attempt("b", 2).lock):
        (found,) = findings(paths)
    assert found["what"] == "attempt 2 of 'b' is alive, but its record says failed"


def test_a_process_that_its_dead_attempt_left_behind_is_found_and_ended(tmp_path: Path, paths: PlanPaths) -> None:
    attempt = paths.attempt("b", 2)
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, "HARNESS_ATTEMPT": str(attempt.folder)})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, "HARNESS_ATTEMPT": f"{tmp_path}/else/tasks/b/2"})
    try:
        (found,) = findings(paths)
        assert found["what"].startswith(f"process {left.pid} goes on")
        assert found["fixable"]
        assert left.poll() is None
        with locking(attempt.lock):
            assert not [each for each in findings(paths) if "goes on" in each["what"]]
        assert f"process {left.pid} of a dead attempt was ended" in harness(tmp_path, "doctor", "--fix")
        assert left.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_fix_cures_what_can_be_cured_and_nothing_else(tmp_path: Path, paths: PlanPaths) -> None:
    paths.ballast.unlink()
    unfinished_file(paths)
    row_gone(paths)
    (left,) = findings(paths, "--fix")
    assert "no record tells of attempt 1 of 'b'" in left["what"]
    assert paths.ballast.stat().st_size == BALLAST_BYTES
    assert sorted(path.name.split(".")[1] for path in paths.folder.glob(".*.partial")) == ["living", "new"]
    assert paths.attempt("b", 1).log.exists()


def test_nothing_is_fixed_while_a_run_owns_the_plan(tmp_path: Path, paths: PlanPaths) -> None:
    paths.ballast.unlink()
    with owning(paths.lock, plan="p"):
        assert "owned by another run" in harness(tmp_path, "doctor", "--fix", code=EXIT_OWNED)
    assert not paths.ballast.exists()


def test_a_damaged_database_is_told_and_not_fixed(tmp_path: Path, paths: PlanPaths) -> None:
    os.truncate(paths.database, 20480)
    shown = harness(tmp_path, "doctor", "--fix", code=EXIT_FAILED)
    assert "restore a copy" in shown
    assert paths.database.stat().st_size == 20480


def test_an_old_database_is_diagnosed_as_it_is(tmp_path: Path) -> None:
    paths = Root(tmp_path).plan("p")
    paths.folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "data" / "schema1.db", paths.database)
    before = paths.database.read_bytes()
    found = {each["what"] for each in findings(paths)}
    assert "the folder of attempt 1 of 'b' is gone, with its log" in found
    assert paths.database.read_bytes() == before


def test_a_plan_that_never_ran_has_no_diagnosis(tmp_path: Path) -> None:
    write_plan(tmp_path, [shell("a")])
    assert "no run has been recorded" in harness(tmp_path, "doctor", "plans/p.yaml", code=EXIT_NOT_FOUND)
