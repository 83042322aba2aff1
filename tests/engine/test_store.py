"""The state database: transitions, crashes, and files that are none."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import NotFoundError, StoreError
from harness.paths import PlanPaths
from harness.state import Checkpoint, State, Verdict
from harness.store import SCHEMA_VERSION, Store
from tests.engine.plans import load, shell

DATA = Path(__file__).parents[1] / "data"
VERDICT = Verdict(0, None, "", 1.0, 2.0, 0.5, 1000)


def checkpoint(task: str, number: int = 1) -> Checkpoint:
    return Checkpoint(task, number, "f" * 64, {"tool": "shell"}, {}, {"n": 3}, {"x": 1.5}, "done well", 2.0)


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
    with store._transaction() as connection:
        connection.execute("UPDATE task SET state = 'failed'")
        reader = sqlite3.connect(f"{paths.database.as_uri()}?mode=ro", uri=True)
        assert {row[0] for row in reader.execute("SELECT state FROM task")} == {"pending"}
        reader.close()


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


def make_old_database(path: Path) -> None:
    """How tests/data/schema1.db was made; kept so that the next schema's can be made alike."""
    folder = path.parent / "made"
    paths = PlanPaths(folder / "checkpoints" / "p")
    with Store(paths) as store:
        store.begin_run(load(folder, [shell("a"), shell("b"), shell("c")]))
        store.start_attempt("a", fingerprint="f", parts={"tool": "shell"})
        store.complete(checkpoint("a"), VERDICT)
        store.start_attempt("b", fingerprint="f", parts={})
        store.finish("b", 1, State.FAILED, verdict=VERDICT, reason="oh", retry=(None, 1))
        store.decide("c", choice="x", because="y", by="me")
        store.end_run(1)
        store.connection.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(paths.database, path)


def test_a_freed_output_is_kept_in_its_checkpoint(store: Store) -> None:
    store.put_checkpoints([checkpoint("a")], by="clean")
    assert store.checkpoints()["a"].freed == {}
    assert json.loads(json.dumps(store.events()[-1]["data"])) == {"by": "clean", "outputs": []}
