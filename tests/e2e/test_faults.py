"""The fault campaign in small, and its checks, which must be able to find something."""

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import evidence, victims
from benchmarks.evidence import Allowed, Attempt, Effect
from harness.paths import PlanPaths
from harness.state import State, Verdict
from harness.store import Store
from tests.engine.plans import load, shell
from tests.source import ROOT

NOTHING = Allowed(hits=set())


def kinds(found: evidence.Found) -> set[str]:
    return {kind for kind, _ in found}


def units(*numbers: tuple[int, int]) -> list[Effect]:
    """Effects of task `t`: (attempt, unit)."""
    return [Effect("unit", "t", attempt, unit) for attempt, unit in numbers]


@pytest.mark.timeout(600)
def test_fifty_kills_leave_nothing_doubled_lost_or_left_over() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/faults.py"), "--kills", "50", "--seed", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 kills" in done.stdout


def test_the_effects_file_is_read_line_by_line() -> None:
    text = "start t 1 -\nunit t 1 0\nend t 1 -\n"
    assert evidence.read_effects(text) == [
        Effect("start", "t", 1, -1),
        Effect("unit", "t", 1, 0),
        Effect("end", "t", 1, -1),
    ]


def test_a_task_that_was_tried_until_it_completed_is_no_duplicate() -> None:
    effects = evidence.read_effects("start t 1 -\nstart t 2 -\nend t 2 -\n")
    assert evidence.repeated(effects, [Attempt("t", 1, "lost"), Attempt("t", 2, "completed")], NOTHING) == []


@pytest.mark.parametrize(
    ("effects", "attempts"),
    [
        ("start t 1 -\nend t 1 -\nstart t 2 -\n", [Attempt("t", 1, "completed"), Attempt("t", 2, "running")]),
        ("start t 1 -\nstart t 2 -\n", [Attempt("t", 1, "completed"), Attempt("t", 2, "completed")]),
        ("start t 1 -\nstart t 1 -\n", [Attempt("t", 1, "completed")]),
        ("start t 1 -\noverlap t 2 -\nstart t 2 -\n", [Attempt("t", 1, "lost"), Attempt("t", 2, "completed")]),
    ],
    ids=["after it had completed", "completed twice", "one attempt twice", "two copies at once"],
)
def test_a_second_execution_is_found(effects: str, attempts: list[Attempt]) -> None:
    assert kinds(evidence.repeated(evidence.read_effects(effects), attempts, NOTHING)) == {"duplicates"}


def test_a_second_execution_is_excused_once_where_its_only_proof_was_destroyed() -> None:
    attempts = [Attempt("t", 1, "completed"), Attempt("t", 2, "completed")]
    effects = evidence.read_effects("start t 1 -\nstart t 2 -\n")
    assert evidence.repeated(effects, attempts, Allowed(again=Counter("t"))) == []
    attempts.append(Attempt("t", 3, "completed"))
    assert kinds(evidence.repeated(effects, attempts, Allowed(again=Counter("t")))) == {"duplicates"}


def test_only_the_unit_at_which_an_attempt_was_killed_may_be_done_again() -> None:
    assert evidence.counted("t", units((1, 0), (1, 1), (2, 1), (2, 2)), 3) == []
    assert evidence.counted("t", units((1, 0), (1, 1), (2, 2)), 3) == []
    assert kinds(evidence.counted("t", units((1, 0), (1, 1), (2, 0), (2, 1), (2, 2)), 3)) == {"duplicates"}
    assert kinds(evidence.counted("t", units((1, 0), (1, 1), (1, 1), (1, 2)), 3)) == {"duplicates"}
    assert kinds(evidence.counted("t", units((1, 0), (2, 2)), 3)) == {"losses"}
    assert kinds(evidence.counted("t", units((1, 0), (1, 1)), 3)) == {"losses"}


def test_an_output_that_is_missing_or_differs_is_a_loss(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    undisturbed = evidence.digests(tmp_path)
    assert evidence.differing(evidence.digests(tmp_path), undisturbed) == []
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").unlink()
    assert [text for _, text in evidence.differing(evidence.digests(tmp_path), undisturbed)] == [
        "output 'a' differs",
        "output 'b' is missing",
    ]


def test_a_task_that_is_not_completed_is_a_loss() -> None:
    assert kinds(evidence.unfinished({"t": "lost"}, ["t"])) == {"losses"}


@pytest.mark.parametrize(("state", "kind"), [("failed", "retries used up"), ("lost", "losses")])
def test_an_attempt_that_failed_or_was_lost_unhit_is_found(state: str, kind: str) -> None:
    attempts, effects = [Attempt("t", 1, state), Attempt("t", 2, "completed")], [Effect("start", "t", 1, -1)]
    assert evidence.unexplained(effects, attempts, Allowed(hits={("t", 1)})) == []
    assert kinds(evidence.unexplained(effects, attempts, Allowed(hits={("t", 2)}))) == {kind}


def test_an_attempt_that_was_lost_before_it_began_needs_no_hit() -> None:
    assert evidence.unexplained([], [Attempt("t", 1, "lost")], NOTHING) == []


def test_two_good_verdicts_of_one_task_are_a_duplicate(tmp_path: Path) -> None:
    for number, code in ((1, "null"), (2, "0"), (3, "0")):
        folder = tmp_path / "t" / str(number)
        folder.mkdir(parents=True)
        (folder / "verdict.json").write_text(f'{{"exit_code": {code}}}')
    assert kinds(evidence.verdicts(tmp_path, NOTHING)) == {"duplicates"}
    (tmp_path / "t" / "3" / "verdict.json").write_text('{"exit_code": 0')
    assert evidence.verdicts(tmp_path, NOTHING) == []


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The database of a plan of one task, which was interrupted once and has then failed."""
    loaded = load(tmp_path, [shell("t")])
    paths = PlanPaths(tmp_path / "p")
    with Store(paths) as store:
        store.begin_run(loaded)
        for state in (State.INTERRUPTED, State.FAILED):
            number = store.start_attempt("t", fingerprint="f", parts={})
            verdict = Verdict(1, None, "", 0.0, 1.0, 0.0, 0)
            store.finish("t", number, state, verdict=verdict, reason="", retry=(None, 0))
        store.end_run(1)
    return paths.database


def test_a_database_that_agrees_with_itself_has_no_fault(database: Path) -> None:
    record = evidence.read_database(database)
    assert record.faults == []
    assert record.attempts == [Attempt("t", 1, "interrupted"), Attempt("t", 2, "failed")]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE task SET state = 'completed'",
        "UPDATE task SET state = 'pending'",
        "UPDATE attempt SET state = 'completed' WHERE number = 1",
        "DELETE FROM attempt WHERE number = 1",
        "DELETE FROM event WHERE type = 'interrupted'",
    ],
)
def test_a_database_whose_history_and_state_disagree_is_damaged(database: Path, change: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(change)
    connection.close()
    assert evidence.read_database(database).faults


def test_a_database_with_destroyed_pages_is_damaged(database: Path) -> None:
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    assert evidence.read_database(database).faults


def test_a_traceback_is_found_and_only_what_is_excused_is_not() -> None:
    text = 'one\nTraceback (most recent call last):\n  File "x"\n    y\nOSError: oh\ntwo\n'
    assert kinds(evidence.tracebacks({"run 1": text})) == {"tracebacks"}
    assert evidence.tracebacks({"run 1": text}, excused=["OSError"]) == []
    assert kinds(evidence.tracebacks({"run 1": "harness: a fault of ours (X: y)"})) == {"tracebacks"}


def test_a_traceback_that_another_one_took_the_place_of_is_told_by_that_one() -> None:
    first = 'Traceback (most recent call last):\n  File "x"\nKeyError: 1\n\n'
    second = 'Traceback (most recent call last):\n  File "x"\nKeyboardInterrupt\n'
    between = "During handling of the above exception, another exception occurred:\n\n"
    assert evidence.tracebacks({"log": first + between + second}) == []
    assert kinds(evidence.tracebacks({"log": first + second})) == {"tracebacks"}


def test_an_interrupted_start_is_excused_only_before_our_first_line() -> None:
    text = 'Traceback (most recent call last):\n  File "<frozen site>", line 1\n{}KeyboardInterrupt\n'
    assert evidence.tracebacks({"run 1": text.format("")}) == []
    assert kinds(evidence.tracebacks({"run 1": text.format('  File "/x/harness/cli.py", line 1\n')})) == {"tracebacks"}


@pytest.mark.parametrize("how", ["environment", "folder", "command line"])
def test_a_process_that_is_left_over_is_found(tmp_path: Path, how: str) -> None:
    env = {**os.environ, "HARNESS_ATTEMPT": str(tmp_path / "1")} if how == "environment" else None
    words = ["sh", "-c", f": {tmp_path}; sleep 60" if how == "command line" else "sleep 60"]
    process = subprocess.Popen(words, env=env, cwd=tmp_path if how == "folder" else "/", start_new_session=True)
    try:
        assert victims.left_over(tmp_path, patience_s=0.2)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert victims.left_over(tmp_path) == []


def test_a_signal_reaches_no_later_process_of_the_same_number() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not victims.Victim(process.pid, "worker", "t", 1, "1").send(9)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
