"""The state database: transitions, crashes, and files that are none."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import SCHEMA_VERSION
from harness.errors import NotFoundError, StoreError
from harness.paths import PlanPaths
from harness.state import Checkpoint, State, Verdict
from harness.store import Store
from tests.engine.plans import load, shell

DATA = Path(__file__).parents[1] / "data"
VERDICT = Verdict(0, None, "", 1.0, 2.0, 0.5, 1000)


def checkpoint(task: str, number: int = 1) -> Checkpoint:
    return Checkpoint(task, number, "f" * 64, {}, {"n": 3}, {"x": 1.5}, "done well", 2.0)


@pytest.fixture
def paths(tmp_path: Path) -> PlanPaths:
    return PlanPaths(tmp_path / "checkpoints" / "p")


@pytest.fixture
def store(tmp_path: Path, paths: PlanPaths) -> Iterator[Store]:
    with Store(paths) as opened:
        opened.begin_run(load(tmp_path, [shell("a"), shell("b", needs=["a"])]))
        yield opened


def test_what_is_committed_is_there_after_opening_anew(store: Store, paths: PlanPaths) -> None:
    assert store.start_attempt("a", fingerprint="f", parts={"k": [1]}) == 1
    assert store.records()["a"].state == State.RUNNING
    store.complete(checkpoint("a"), VERDICT)
    store.close()
    with Store(paths) as again:
        assert again.records()["a"].state == State.COMPLETED
        assert again.checkpoints()["a"] == checkpoint("a")
        assert again.attempts("a")[0].parts == {"k": [1]}
        assert again.plan().name == "p"


def test_every_transition_leaves_its_event(store: Store) -> None:
    store.start_attempt("a", fingerprint="f", parts={})
    store.finish("a", 1, State.FAILED, verdict=VERDICT, reason="oh", retry=(None, 1))
    store.set_state("b", State.BLOCKED, "needs 'a'")
    store.forget("a")
    store.decide("b", choice="x", because="y", by="me")
    events = store.events()
    assert [event["type"] for event in events] == [
        "run_started",
        "running",
        "failed",
        "blocked",
        "forgotten",
        "decided",
    ]
    assert [event["seq"] for event in events] == list(range(1, 7))
    assert store.events(since=4) == events[4:]


def test_a_failing_transition_changes_nothing(store: Store) -> None:
    number = store.start_attempt("a", fingerprint="f", parts={})
    before = store.events()
    broken = checkpoint("a")
    broken.values["n"] = object()  # can't be stored, found after the row was updated
    with pytest.raises(TypeError):
        store.complete(broken, VERDICT)
    assert store.records()["a"].state == State.RUNNING
    assert store.events() == before
    assert number == 1


WRITER = """
import sys
from pathlib import Path
from harness.paths import PlanPaths
from harness.store import Store
store = Store(PlanPaths(Path(sys.argv[1])))
while True:
    number = store.start_attempt("a", fingerprint="f", parts={})
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_committed_transition(store: Store, paths: PlanPaths) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(paths.folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    told = [int(writer.stdout.readline()) for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    writer.stdout.close()
    numbers = [attempt.number for attempt in store.attempts("a")]
    assert numbers[: len(told)] == told
    assert len(numbers) - len(told) <= 1
    assert len([event for event in store.events(limit=100_000) if event["type"] == "running"]) == len(numbers)
    assert store.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_reader_sees_the_last_commit_while_a_writer_is_in_the_middle(store: Store, paths: PlanPaths) -> None:
    def work() -> set[str]:
        store.connection.execute("UPDATE task SET state = 'failed'")
        with closing(sqlite3.connect(f"{paths.database.as_uri()}?mode=ro", uri=True)) as reader:
            return {row[0] for row in reader.execute("SELECT state FROM task")}

    assert store.database.transact(work) == {"pending"}
    assert {record.state for record in store.records().values()} == {State.FAILED}


def test_a_file_that_is_no_database_is_named(paths: PlanPaths) -> None:
    paths.folder.mkdir(parents=True)
    paths.database.write_text("this is no database, and long enough to be read as a header of one" * 10)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(paths)


def test_a_newer_schema_is_refused(store: Store, paths: PlanPaths) -> None:
    store.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()
    with pytest.raises(StoreError, match="newer harness"):
        Store(paths)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be used"):
        Store(PlanPaths(tmp_path / "file" / "p"))


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_database_of_every_released_schema_opens_for_ever(tmp_path: Path, version: int) -> None:
    paths = PlanPaths(tmp_path / "p")
    paths.folder.mkdir()
    shutil.copy(DATA / f"schema{version}.db", paths.database)
    with Store(paths) as store:
        assert store.connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert store.records()["a"].state == State.COMPLETED
        assert store.records()["b"].state == State.FAILED
        assert store.checkpoints()["a"].values == {"n": 3}
        assert store.decisions()["c"].choice == "x"


def test_a_store_without_a_run_has_no_plan(paths: PlanPaths) -> None:
    with Store(paths) as store, pytest.raises(NotFoundError):
        store.plan()


def test_ten_thousand_tasks_are_taken_in_and_read_at_once(tmp_path: Path, paths: PlanPaths) -> None:
    loaded = load(tmp_path, [shell(f"t{number}") for number in range(10_000)])
    began = time.monotonic()
    with Store(paths) as store:
        store.begin_run(loaded)
        assert len(store.records()) == 10_000
    assert time.monotonic() - began < 60, "something in it is quadratic"


OPENER = """
import sys
from pathlib import Path
from harness.paths import PlanPaths
from harness.store import Store
print("ready", flush=True)
sys.stdin.readline()
with Store(PlanPaths(Path(sys.argv[1]))) as store:
    store.ask("resume", None, by=sys.argv[2])
"""


@pytest.mark.parametrize("old", [None, "schema1.db"])
def test_processes_that_open_a_new_or_old_database_at_once_do_not_collide(paths: PlanPaths, old: str | None) -> None:
    paths.folder.mkdir(parents=True)
    if old:
        shutil.copy(DATA / old, paths.database)
    command = [sys.executable, "-c", OPENER, str(paths.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    openers = [subprocess.Popen([*command, str(number)], **pipes) for number in range(6)]
    for opener in openers:
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        opener.stdin.write("go\n")
        opener.stdin.flush()
    assert [opener.communicate()[1] for opener in openers] == [""] * 6
    with Store(paths) as store:
        assert {request.by for request in store.requests()} == set("012345")


def test_a_request_waits_for_one_answer(store: Store) -> None:
    first, second = store.ask("cancel", "a", by="me"), store.ask("pause", None, by="you")
    assert [(r.seq, r.verb, r.task, r.by) for r in store.requests()] == [
        (first, "cancel", "a", "me"),
        (second, "pause", None, "you"),
    ]
    assert store.answer_to(first) is None
    store.answer(first, "'a' is cancelled")
    store.answer(first, "once more")
    assert store.answer_to(first) == "'a' is cancelled"
    assert [request.seq for request in store.requests()] == [second]
    told = [(event["type"], event["task"], event["data"]["request"]) for event in store.events()[-3:]]
    assert told == [("asked", "a", first), ("asked", None, second), ("answered", "a", first)]


def test_what_a_retry_rule_changed_stays_until_the_task_is_forgotten_or_renewed(store: Store) -> None:
    for fresh in (store.forget, store.renew):
        number = store.start_attempt("a", fingerprint="f", parts={})
        how = {"verdict": VERDICT, "reason": "oh", "retry": (None, 1)}
        store.finish("a", number, State.FAILED, **how, cause="gpu_memory", changes={"batch": 4})
        number = store.start_attempt("a", fingerprint="f", parts={})
        store.finish("a", number, State.FAILED, **how)
        assert store.changes() == {"a": {"batch": 4}}
        assert [attempt.cause for attempt in store.attempts("a")][-2:] == ["gpu_memory", ""]
        fresh("a")
        assert store.changes() == {}


@pytest.mark.parametrize("state", list(State))
def test_only_a_task_that_did_not_complete_and_does_not_run_is_renewed(store: Store, state: State) -> None:
    number = store.start_attempt("a", fingerprint="f", parts={})
    store.finish("a", number, state, verdict=None, reason="oh", retry=(time.time() + 60, 3))
    before, renewed = store.records()["a"], store.renew("a")
    after = store.records()["a"]
    settled = {State.PENDING, State.BLOCKED, State.RUNNING, State.COMPLETED, State.SKIPPED}
    assert renewed == (state not in settled)
    if renewed:
        assert (after.state, after.tries_used, after.retry_at) == (State.PENDING, 0, None)
        assert after.reason == "asked to be tried again"
        assert (store.events()[-1]["type"], store.events()[-1]["data"]) == ("retried", {"was": state})
    else:
        assert after == before


def test_a_cancelled_task_says_why(store: Store) -> None:
    store.cancel("b", "cancelled by me")
    assert (store.records()["b"].state, store.records()["b"].reason) == (State.CANCELLED, "cancelled by me")
    assert store.events()[-1]["type"] == "cancelled"


def test_a_plan_that_was_edited_is_taken_in_while_its_run_goes_on(tmp_path: Path, store: Store) -> None:
    edited = load(tmp_path, [shell("b", "false"), shell("c"), shell("d", content="do c")])
    store.set_state("b", State.FAILED, "oh")
    store.sync(edited)
    assert store.plan().digest == edited.digest
    assert store.records().keys() == {"b", "c", "d"}
    assert store.records()["b"].state == State.FAILED
    event = store.events()[-1]
    told = {"digest": edited.digest, "added": ["c", "d"], "removed": ["a"], "changed": ["b"]}
    assert (event["type"], event["data"]) == ("plan_changed", told)
    store.sync(load(tmp_path, [shell("c"), shell("d", content="do d"), shell("b", "false")]))
    assert {**store.events()[-1]["data"], "digest": ""} == {"digest": "", "added": [], "removed": [], "changed": ["d"]}


def test_another_connections_commit_changes_the_data_version(store: Store, paths: PlanPaths) -> None:
    before = store.data_version()
    store.set_state("a", State.BLOCKED, "mine")
    assert store.data_version() == before
    with Store(paths) as other:
        other.ask("cancel", "a", by="me")
    assert store.data_version() != before


def test_a_database_restored_from_a_copy_uses_no_attempts_folder_again(store: Store, paths: PlanPaths) -> None:
    for number in (1, 2, 5):
        paths.attempt("a", number).folder.mkdir(parents=True)
    paths.scratch("a", "f" * 64).mkdir()
    assert store.start_attempt("a", fingerprint="f", parts={}) == 6
    assert store.start_attempt("b", fingerprint="f", parts={}) == 1


def test_a_freed_output_is_kept_in_its_checkpoint_with_the_completion_of_who_freed_it(store: Store) -> None:
    store.complete(checkpoint("a"), VERDICT)
    freed = replace(checkpoint("a"), freed={"out": "b"})
    store.complete(checkpoint("b"), VERDICT, freed=iter([freed]))
    assert store.checkpoints() == {"a": freed, "b": checkpoint("b")}
    assert (store.events()[-1]["type"], store.events()[-1]["data"]) == ("freed", {"by": "b", "outputs": ["out"]})


def test_a_memory_kill_is_stored_with_its_attempt(store: Store) -> None:
    number = store.start_attempt("a", fingerprint="f", parts={})
    store.finish("a", number, State.FAILED, verdict=replace(VERDICT, oom_kills=2), reason="oh", retry=(None, 1))
    assert store.connection.execute("SELECT oom_kills FROM attempt").fetchall() == [(2,)]


def make_old_database(path: Path) -> None:
    """How the newest tests/data/schema*.db was made; kept so that the next schema's can be made alike."""
    folder = path.parent / "made"
    paths = PlanPaths(folder / "checkpoints" / "p")
    with Store(paths) as store:
        store.begin_run(load(folder, [shell("a"), shell("b"), shell("c")]))
        store.start_attempt("a", fingerprint="f", parts={"tool": "shell"})
        store.complete(checkpoint("a"), VERDICT)
        store.start_attempt("b", fingerprint="f", parts={})
        store.finish("b", 1, State.FAILED, verdict=VERDICT, reason="oh", retry=(None, 1))
        store.ask("retry", "b", by="me")
        store.decide("c", choice="x", because="y", by="me")
        store.end_run(1)
        store.connection.execute("UPDATE run SET host = 'old', boot_id = '0'")  # nothing of the machine that made it
        store.connection.execute("UPDATE plan SET path = '/plans/p.yaml'")
        store.connection.execute("VACUUM")
        store.connection.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(paths.database, path)
