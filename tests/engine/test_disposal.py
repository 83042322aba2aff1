"""`harness gc`: what it removes, and what it never removes."""

import fcntl
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EXIT_FAILED, EXIT_OWNED, EXIT_USAGE
from harness.ownership import owning
from harness.paths import PlanPaths, Root
from harness.store import Store
from tests.engine.plans import harness, shell, write_plan

FIVE = {"retries": {"count": 4, "backoff": 0}}
TASKS = [shell("a"), shell("b", "exit 3", **FIVE), shell("c", needs=["b"])]


@pytest.fixture
def paths(tmp_path: Path) -> PlanPaths:
    """A plan whose task a completed long ago, b failed five times since, and c waits for b."""
    write_plan(tmp_path, TASKS)
    harness(tmp_path, "run", "plans/p.yaml", code=EXIT_FAILED)
    paths = Root(tmp_path).plan("p")
    age(paths, 40)
    return paths


def age(paths: PlanPaths, days: float) -> None:
    """Let all that lies in the tasks' folders be that old."""
    at = time.time() - days * 86400
    for path in paths.tasks.rglob("*"):
        os.utime(path, (at, at))


def gc(paths: PlanPaths, *arguments: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(harness(paths.folder.parents[1], "gc", "p", "--json", *arguments))["data"]
    return data


def removed(paths: PlanPaths, *arguments: str) -> list[str]:
    """What was removed, as task/name, after the disk was looked at."""
    data = gc(paths, *arguments)
    assert all(Path(each["where"]).exists() == data["dry_run"] for each in data["removed"])
    return [f"{each['task']}/{Path(each['where']).name}" for each in data["removed"]]


def progress(paths: PlanPaths, task: str, fingerprint: str) -> str:
    folder = paths.scratch(task, fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step-900").write_bytes(bytes(5000))
    age(paths, 40)
    return f"{task}/{folder.name}"


def fingerprint(paths: PlanPaths, task: str) -> str:
    with Store(paths) as store:
        return store.attempts(task)[-1].fingerprint


def test_the_last_attempts_of_each_task_stay_and_the_rest_is_removed_and_recorded(
    tmp_path: Path, paths: PlanPaths
) -> None:
    assert removed(paths, "--dry-run") == ["b/1", "b/2"]
    assert removed(paths) == ["b/1", "b/2"]
    assert removed(paths) == []
    assert paths.attempts("b") == [3, 4, 5]
    with Store(paths) as store:
        event = store.events()[-1]
    assert event["type"] == "disposed"
    assert event["data"]["attempts"] == {"b": [1, 2]}
    assert event["data"]["freed_bytes"] > 0
    assert harness(tmp_path, "doctor").startswith("Nothing is wrong")
    harness(tmp_path, "resume", code=EXIT_FAILED)
    assert paths.attempts("b") == [3, 4, 5, 6, 7, 8, 9, 10]


def test_it_says_what_is_removed_and_how_much_that_is(tmp_path: Path, paths: PlanPaths) -> None:
    shown = harness(tmp_path, "gc", "--dry-run").splitlines()
    assert shown[0].startswith("attempt 1 of 'b', 12.0 KiB, 40 d 00 h old")
    assert shown[-1] == "2 folders would be removed: 24.0 KiB"
    assert harness(tmp_path, "gc", "--older-than", "60d") == "Nothing to remove\n"


def test_only_what_is_older_and_larger_than_asked_for_is_removed(paths: PlanPaths) -> None:
    recent = paths.attempt("b", 2).log
    recent.write_bytes(bytes(200_000))
    paths.attempt("b", 1).log.write_bytes(bytes(300_000))
    now = time.time()
    os.utime(paths.attempt("b", 1).log, (now - 31 * 86400, now - 31 * 86400))
    assert removed(paths, "--dry-run") == ["b/1"]
    assert removed(paths, "--dry-run", "--older-than", "0") == ["b/1", "b/2"]
    assert removed(paths, "--dry-run", "--older-than", "0", "--larger-than", "250K") == ["b/1"]
    assert removed(paths, "--dry-run", "--older-than", "0", "--larger-than", "1M") == []


def test_the_attempt_of_a_checkpoint_and_the_last_one_stay_whatever_is_asked(paths: PlanPaths) -> None:
    for number in (2, 3, 4):
        paths.attempt("a", number).folder.mkdir()  # from a database that was replaced by an older copy
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as database:
        database.execute("UPDATE task SET attempt = 3 WHERE id = 'a'")
    assert removed(paths, "--keep", "1", "--older-than", "0") == ["a/2", "b/1", "b/2", "b/3", "b/4"]
    assert paths.attempts("a") == [1, 3, 4]
    assert paths.attempts("b") == [5]


def test_progress_stays_only_where_a_resume_goes_on_from_it(paths: PlanPaths) -> None:
    now, other = fingerprint(paths, "b"), "0" * 64
    needed = progress(paths, "b", now)
    gone = [progress(paths, "b", other), progress(paths, "a", fingerprint(paths, "a")), progress(paths, "z", other)]
    waiting = progress(paths, "c", other)  # its fingerprint isn't known before b completes
    assert set(removed(paths, "--keep", "9", "--older-than", "0")) == set(gone)
    assert all((paths.tasks / each).exists() for each in (needed, waiting))


def test_progress_of_an_edited_plan_is_that_of_what_would_run_now(tmp_path: Path, paths: PlanPaths) -> None:
    before = progress(paths, "b", fingerprint(paths, "b"))
    write_plan(tmp_path, [shell("a"), shell("b", "exit 4", **FIVE), shell("c", needs=["b"])])
    harness(tmp_path, "run", "plans/p.yaml", code=EXIT_FAILED)
    edited = progress(paths, "b", fingerprint(paths, "b"))
    write_plan(tmp_path, TASKS)
    assert before != edited
    assert removed(paths, "--keep", "99") == [edited]


@pytest.mark.parametrize("text", [None, "tasks: ["])
def test_no_progress_is_removed_where_the_plan_can_not_be_read(paths: PlanPaths, text: str | None) -> None:
    plan = paths.folder.parents[1] / "plans" / "p.yaml"
    plan.unlink() if text is None else plan.write_text(text)
    progress(paths, "b", "0" * 64)
    progress(paths, "a", "0" * 64)
    assert gc(paths, "--dry-run")["unsure"]
    assert removed(paths) == ["b/1", "b/2"]


def test_nothing_of_a_task_that_lives_is_removed(paths: PlanPaths) -> None:
    progress(paths, "b", "0" * 64)
    with paths.attempt("b", 2).lock.open("w") as lock:
        age(paths, 40)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert removed(paths) == []
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as database:
        database.execute("UPDATE task SET state = 'running', attempt = 2 WHERE id = 'b'")
    assert removed(paths) == ["b/1"]


def test_nothing_is_removed_while_a_run_owns_the_plan(tmp_path: Path, paths: PlanPaths) -> None:
    with owning(paths.lock, plan="p"):
        assert "owned by another run" in harness(tmp_path, "gc", code=EXIT_OWNED)
        assert removed(paths, "--dry-run") == ["b/1", "b/2"]
    assert paths.attempts("b") == [1, 2, 3, 4, 5]


def test_a_link_in_the_place_of_an_attempt_is_left_alone(tmp_path: Path, paths: PlanPaths) -> None:
    elsewhere = tmp_path / "elsewhere"
    paths.attempt("b", 1).folder.rename(elsewhere)
    paths.attempt("b", 1).folder.symlink_to(elsewhere)
    assert removed(paths, "--older-than", "0") == ["b/2"]
    assert (elsewhere / "log").exists()


@pytest.mark.parametrize("arguments", [("--older-than", "old"), ("--larger-than", "big"), ("--keep", "0")])
def test_a_wrong_limit_is_named(tmp_path: Path, paths: PlanPaths, arguments: tuple[str, str]) -> None:
    assert arguments[0] in harness(tmp_path, "gc", *arguments, code=EXIT_USAGE)
    assert paths.attempts("b") == [1, 2, 3, 4, 5]
