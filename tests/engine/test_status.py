import fcntl
import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness import status, table
from harness.errors import StoreError
from harness.ownership import owning
from harness.paths import PlanPaths, Root
from harness.state import Checkpoint, State, Verdict
from harness.status import Row
from harness.store import Store
from tests.engine import scenes
from tests.engine.plans import load, shell
from tests.engine.scenes import GOING, NOW, plan, row
from tests.source import ROOT

SCHEMA = json.loads((ROOT / "docs/schemas/status.json").read_text(encoding="utf-8"))
DECISION = {
    "id": "choose",
    "content": "选择",
    "decision": {"question": "Which?", "options": [{"key": "a"}, {"key": "b"}]},
}


@pytest.fixture
def paths(tmp_path: Path) -> PlanPaths:
    return Root(tmp_path).plan("p")


@pytest.fixture
def store(tmp_path: Path, paths: PlanPaths) -> Iterator[Store]:
    """A plan a -> b -> c, and a decision, whose run has begun."""
    tasks = [shell("a"), shell("b", needs=["a"], priority="high"), shell("c", needs=["b"]), DECISION]
    with Store(paths) as opened:
        opened.begin_run(load(tmp_path, tasks))
        yield opened


def started(store: Store, paths: PlanPaths, task: str) -> int:
    number = store.start_attempt(task, fingerprint="f", parts={})
    paths.attempt(task, number).folder.mkdir(parents=True)
    return number


def completed(store: Store, paths: PlanPaths, task: str, *, note: str = "", took_s: float = 5.0) -> None:
    number = started(store, paths, task)
    now = time.time() + took_s
    checkpoint = Checkpoint(task, number, "f", {}, {}, {}, note, now)
    store.complete(checkpoint, Verdict(0, None, "", now - took_s, now, 0.1, 1000))


def rows(paths: PlanPaths) -> dict[str, Row]:
    return {each.id: each for each in status.snapshot(paths).rows}


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_rows_come_in_the_order_of_the_plan_with_what_the_plan_says(store: Store, paths: PlanPaths) -> None:
    found = status.snapshot(paths)
    assert [(each.id, each.priority, each.tool, each.needs) for each in found.rows] == [
        ("a", "medium", "shell", ()),
        ("b", "high", "shell", ("a",)),
        ("c", "medium", "shell", ("b",)),
        ("choose", "medium", None, ()),
    ]
    assert (found.plan, found.run, found.pid) == ("p", store.run, os.getpid())
    assert found.rows[3].content == "选择"


def test_a_completed_task_shows_its_result_and_a_failed_one_its_reason(store: Store, paths: PlanPaths) -> None:
    completed(store, paths, "a", note="400 samples")
    number = started(store, paths, "b")
    store.finish("b", number, State.FAILED, verdict=None, reason="exit 3", retry=(None, 1))
    store.set_state("c", State.BLOCKED, "needs 'b', which failed")
    found = rows(paths)
    assert [found[name].note for name in "abc"] == ["400 samples", "exit 3", "needs 'b', which failed"]
    store.set_state("a", State.COMPLETED, "up to date")
    assert rows(paths)["a"].note == "400 samples"


def test_the_cursor_is_the_number_of_the_last_event(store: Store, paths: PlanPaths) -> None:
    before = status.snapshot(paths).cursor
    store.set_state("a", State.PENDING, "x")
    assert [event["seq"] for event in store.events(before)] == [status.snapshot(paths).cursor]


def test_progress_and_words_of_a_running_task_come_from_its_events(store: Store, paths: PlanPaths) -> None:
    number = started(store, paths, "a")
    now = time.time()
    events = [
        {"t": now - 30 + 10 * i, "type": "progress", "done": 10 * i, "total": 100, "unit": "rows"} for i in range(4)
    ]
    events.append({"t": now, "type": "say", "text": "reading"})
    attempt = paths.attempt("a", number)
    attempt.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    with locked(attempt.lock):
        found = rows(paths)["a"]
    assert found.progress
    assert (found.progress.done, found.progress.rate, found.note) == (30, pytest.approx(1.0), "reading")
    assert found.progress.eta_s == pytest.approx(70, abs=2)


def test_a_living_run_is_told_from_a_dead_one_by_its_lock(store: Store, paths: PlanPaths) -> None:
    with owning(paths.lock, plan="p"):
        assert status.snapshot(paths).alive
    assert not status.snapshot(paths).alive


def test_a_running_task_without_a_run_is_alive_ended_or_gone(store: Store, paths: PlanPaths) -> None:
    attempt = paths.attempt("a", started(store, paths, "a"))
    assert rows(paths)["a"].process == "gone"
    with locked(attempt.lock):
        assert rows(paths)["a"].process == "alive"
    attempt.verdict.write_text("{}")
    assert rows(paths)["a"].process == "ended"
    with owning(paths.lock, plan="p"):
        assert rows(paths)["a"].process == "alive"  # its run is about to see to it
    assert rows(paths)["b"].process is None


def test_a_killed_run_took_until_its_last_event(store: Store, paths: PlanPaths) -> None:
    with sqlite3.connect(paths.database) as db:
        db.execute("UPDATE run SET started_at = started_at - 100")
    db.close()
    assert status.snapshot(paths).elapsed_s == pytest.approx(100, abs=2)
    store.end_run(1)
    found = status.snapshot(paths)
    assert (found.exit_code, found.elapsed_s) == (1, pytest.approx(100, abs=2))


def test_next_is_what_has_all_that_it_needs(store: Store, paths: PlanPaths) -> None:
    store.set_state("choose", State.WAITING_DECISION, "Which?")
    assert status.document(status.snapshot(paths))["data"]["next"] == ["a"]
    completed(store, paths, "a")
    found = status.document(status.snapshot(paths))["data"]
    assert (found["next"], found["blocking"]) == (["b"], ["choose"])


def test_the_time_left_adds_up_what_is_known_and_counts_what_is_not(store: Store, paths: PlanPaths) -> None:
    completed(store, paths, "a", took_s=20)
    store.forget("a")
    known_s, unknown = status.snapshot(paths).eta()
    assert (known_s, unknown) == (pytest.approx(20, abs=0.5), 3)
    assert status.document(status.snapshot(paths))["data"]["eta_s"] is None


def test_tasks_that_run_side_by_side_take_no_longer_than_the_longest() -> None:
    two = [row(name, State.RUNNING, progress=GOING) for name in "ab"]
    assert plan(two).eta() == (5123.0, 0)
    assert plan([*two, row("c", past_s=6000.0)]).eta() == (pytest.approx((2 * 5123 + 6000) / 2), 0)
    assert plan([row("a", State.RUNNING, started_at=NOW - 70, past_s=100.0)]).eta() == (30.0, 0)
    assert plan([row("a", State.FAILED), row("b", State.BLOCKED), row("c", State.COMPLETED)]).eta() == (0.0, 0)


def test_reading_changes_nothing(store: Store, paths: PlanPaths) -> None:
    store.close()
    before = {path: path.read_bytes() for path in paths.folder.rglob("*") if path.is_file()}
    status.snapshot(paths)
    assert {path: path.read_bytes() for path in paths.folder.rglob("*") if path.is_file()} == before


def test_a_writer_in_the_middle_of_a_transition_is_not_waited_for(store: Store, paths: PlanPaths) -> None:
    writer = sqlite3.connect(paths.database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE task SET state = 'failed'")
    begin = time.monotonic()
    assert {each.state for each in status.snapshot(paths).rows} == {State.PENDING}
    assert time.monotonic() - begin < 5
    writer.execute("ROLLBACK")
    writer.close()


def test_the_cursor_and_the_states_are_of_one_moment(store: Store, paths: PlanPaths) -> None:
    start, end = status.snapshot(paths).cursor, threading.Event()

    def write() -> None:
        with Store(paths) as writer:
            for place in itertools.takewhile(lambda _: not end.is_set(), itertools.count(1)):
                writer.set_state("a", State.FAILED if place % 2 else State.PENDING, "")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(400):
            found = status.snapshot(paths)
            assert found.rows[0].state == (State.FAILED if (found.cursor - start) % 2 else State.PENDING)
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("open_still", [True, False], ids=["while a run has it open", "afterwards"])
def test_another_user_who_may_only_read_sees_it_too(store: Store, paths: PlanPaths, open_still: bool) -> None:
    completed(store, paths, "a", note="400 samples")
    if not open_still:
        store.close()
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "p"
        copy.parent.chmod(0o755)
        shutil.copytree(paths.folder, copy)
        for path in (*copy.rglob("*"), copy):
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = as_a_reader(copy)
        copy.chmod(0o755)
    assert "400 samples" in done.stdout, done.stderr


def as_a_reader(folder: Path) -> subprocess.CompletedProcess[str]:
    """Print the lines of the plan in a process that may not write to its folder."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from harness import status, table; from harness.paths import PlanPaths\n"
        "os.chdir(sys.argv[1])\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "print('\\n'.join(table.lines(status.snapshot(PlanPaths(Path('.'))))))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_plan_whose_tables_are_about_to_be_made_is_empty(paths: PlanPaths) -> None:
    paths.folder.mkdir(parents=True)
    sqlite3.connect(paths.database).close()
    paths.database.touch()
    assert status.snapshot(paths).rows == []


@pytest.mark.parametrize("content", [b"no database at all, just some text" * 100, None], ids=["text", "missing"])
def test_what_can_not_be_read_is_an_error_that_names_the_file(paths: PlanPaths, content: bytes | None) -> None:
    paths.folder.mkdir(parents=True)
    if content:
        paths.database.write_bytes(content)
    with pytest.raises(StoreError, match=re.escape(str(paths.database))):
        status.snapshot(paths)


SCENES: dict[str, Callable[[], Any]] = {"busy": scenes.busy, "done": scenes.done, "new": lambda: status.Snapshot("new")}


@pytest.mark.parametrize("scene", SCENES)
def test_the_document_is_as_the_schema_says(scene: str) -> None:
    document = json.loads(json.dumps(status.document(SCENES[scene]())))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_every_state_and_every_fact_is_in_the_schema(store: Store, paths: PlanPaths) -> None:
    for state in State:
        if state == State.RUNNING:
            started(store, paths, "a")
        else:
            store.set_state("a", state, "why")
        document = json.loads(json.dumps(status.document(status.snapshot(paths))))
        jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    task = SCHEMA["properties"]["data"]["properties"]["tasks"]["items"]
    assert set(task["required"]) == set(task["properties"]) == {*Row.__dataclass_fields__, "status"}
    assert set(task["properties"]["state"]["enum"]) == set(State)


@pytest.mark.parametrize("number", [1_000, 10_000])
def test_a_big_plan_is_shown_whole_and_in_order(tmp_path: Path, number: int) -> None:
    paths = Root(tmp_path).plan("p")
    with Store(paths) as store:
        store.begin_run(load(tmp_path, [shell("t0")]))
        completed(store, paths, "t0")
        store.connection.execute("BEGIN")
        store.connection.executemany(
            "INSERT INTO task (id, position, content, priority, needs, removed, state, attempt, tries_used, reason) "
            "VALUES (?, ?, 'go on', 'low', ?, 0, 'pending', 0, 0, '')",
            [(f"t{i}", i, json.dumps([f"t{i - 1}"])) for i in range(1, number)],
        )
        store.connection.execute("COMMIT")
    found = status.snapshot(paths)
    assert [each.id for each in found.rows] == [f"t{i}" for i in range(number)]
    assert [each.id for each in found.ready] == ["t1"]
    assert len(table.lines(found)) == number + 2
    assert f"1/{number:,} done".replace(",", " ") in table.lines(found)[0]
    assert len(table.render(found, 120).lines) == number + 5
    assert len(table.render(found, 120, height=30).lines) < 30
    assert len(json.loads(json.dumps(status.document(found)))["data"]["tasks"]) == number


def test_the_reading_side_needs_only_the_standard_library_and_rich() -> None:
    code = (
        "import sys; before = set(sys.modules); import harness.{0}\n"
        "print(*sorted({{n.split('.')[0] for n in set(sys.modules) - before}} - set(sys.stdlib_module_names)))"
    )
    for name, allowed in (("status", {"harness"}), ("table", {"harness", "rich"})):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert set(done.stdout.split()) == allowed
