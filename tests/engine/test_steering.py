"""Stop, cancel, retry, attach and an edited plan, with real runs."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.engine.plans import counted, harness, log, shell, slow_plan, start, status, until, write_plan

SAVES = "trap 'echo saved >> log; exit 75' TERM; echo s >> log; until [ -e go ]; do sleep 0.02; done; echo end >> log"


def saving(name: str = "s", **more: object) -> dict[str, object]:
    return shell(name, SAVES, **more)


def test_a_running_task_is_stopped_by_its_name_and_goes_on_with_the_next_run(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving(), counted("z", needs=("s",))])))
    until(lambda: log(tmp_path) == ["s"])
    assert "'s' is being stopped" in harness(tmp_path, "stop", "s")
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert log(tmp_path) == ["s", "saved"]
    assert status(tmp_path)["s"]["state"] == "interrupted"
    (tmp_path / "go").touch()
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["s", "saved", "s", "end", "z"]


def test_a_stop_without_a_task_ends_the_run_also_one_that_would_detach(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving()], on_interrupt="detach")))
    until(lambda: log(tmp_path) == ["s"])
    assert "the run stops" in harness(tmp_path, "stop")
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert log(tmp_path) == ["s", "saved"]
    assert harness(tmp_path, "stop") == "nothing runs\n"


def test_a_detached_task_is_stopped_without_a_run(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving()], on_interrupt="detach")))
    until(lambda: log(tmp_path) == ["s"])
    os.kill(process.pid, signal.SIGHUP)
    process.communicate(timeout=30)
    assert log(tmp_path) == ["s"]
    assert "'s' has ended; the next run takes it in" in harness(tmp_path, "stop")
    assert log(tmp_path) == ["s", "saved"]


def test_a_task_that_was_stopped_while_no_run_was_there_goes_on_with_the_next(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving()], on_interrupt="detach")))
    until(lambda: log(tmp_path) == ["s"])
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    harness(tmp_path, "stop", "s")
    (tmp_path / "go").touch()
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["s", "saved", "s", "end"]


def test_a_task_may_detach_where_the_rest_is_stopped(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [saving("s"), saving("d", on_interrupt="detach")])
    process = start(tmp_path, "run", str(plan), "--jobs", "2")
    until(lambda: log(tmp_path) == ["s", "s"])
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert "Detached: d goes on" in out
    assert log(tmp_path) == ["s", "s", "saved"]
    (tmp_path / "go").touch()
    until(lambda: log(tmp_path)[3:] == ["end"])


def test_a_cancelled_task_runs_no_more_until_it_is_tried_again(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving(), counted("z", needs=("s",)), counted("b")])))
    until(lambda: log(tmp_path) == ["s"])
    harness(tmp_path, "cancel", "s")
    out, _ = process.communicate(timeout=30)
    assert "s  cancelled" in out
    assert process.returncode == 1, "z could not run"
    assert log(tmp_path) == ["s", "saved", "b"]
    assert "nothing executed" in harness(tmp_path, "resume", code=1)
    assert status(tmp_path)["z"]["note"] == "needs 's', which was cancelled"
    (tmp_path / "go").touch()
    assert "is tried again with the next run" in harness(tmp_path, "retry", "s")
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["s", "saved", "b", "s", "end", "z"]


def test_a_task_that_waits_is_cancelled_without_ever_running(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    assert "'z' is cancelled" in harness(tmp_path, "cancel", "z")
    (tmp_path / "go").touch()
    process.communicate(timeout=30)
    assert log(tmp_path) == ["a", "s", "s_end"]
    assert process.returncode == 0


def test_a_failed_task_is_tried_again_while_the_run_goes_on(tmp_path: Path) -> None:
    fragile = shell("f", "echo f >> log; [ -e mended ]")
    plan = write_plan(tmp_path, [fragile, counted("z", needs=("f",)), saving()])
    process = start(tmp_path, "run", str(plan))
    until(lambda: log(tmp_path) == ["f", "s"])
    assert status(tmp_path)["z"]["state"] == "blocked"
    (tmp_path / "mended").touch()
    assert "'f' is tried again" in harness(tmp_path, "retry", "f")
    assert "'s' is running" in harness(tmp_path, "retry", "s")
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert sorted(log(tmp_path)) == sorted(["f", "s", "end", "f", "z"])
    assert "harness forget lets it run again" in harness(tmp_path, "retry", "f")


def test_a_task_that_does_not_exist_is_named_with_the_nearest(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("extract")])))
    assert "no task 'extrct'. Did you mean 'extract'?" in harness(tmp_path, "cancel", "extrct", code=7)


def test_somebody_else_follows_a_run_and_leaves_it_alone(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    leaving, staying = start(tmp_path, "attach"), start(tmp_path, "run", "p", "--wait")
    assert leaving.stdout
    assert "s  in_progress" in leaving.stdout.readline()
    os.kill(leaving.pid, signal.SIGINT)
    leaving.communicate(timeout=30)
    assert leaving.returncode == 130
    assert process.poll() is None
    assert staying.stdout
    assert "s  in_progress" in staying.stdout.readline()
    (tmp_path / "go").touch()
    out, _ = staying.communicate(timeout=30)
    assert staying.returncode == 0, out
    assert "s  completed" in out
    process.communicate(timeout=30)
    assert log(tmp_path) == ["a", "s", "s_end", "z"]


def test_a_killed_run_ends_what_follows_it(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    follower = start(tmp_path, "attach")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "go").touch()
    out, _ = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "The run was killed. Go on with: harness resume p" in out


def edited(root: Path, tasks: list[dict[str, object]]) -> None:
    """Replace the plan as an editor does: a new file takes the old one's place."""
    path = write_plan(root, tasks, name="edited")
    path.write_text(path.read_text().replace('"name": "edited"', '"name": "p"'))
    path.replace(root / "plans" / "p.yaml")


def test_an_edited_plan_is_taken_in_while_it_runs(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [counted("a"), saving(), counted("old"), counted("b")])))
    until(lambda: log(tmp_path) == ["a", "s"])
    edited(tmp_path, [counted("a"), saving(), counted("b", text="changed"), counted("new", needs=("b",))])
    assert process.stdout
    until(lambda: "going on with its 4 tasks" in process.stdout.readline())  # type: ignore[union-attr]
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert log(tmp_path) == ["a", "s", "end", "b", "new"]
    assert (tmp_path / "b.out").read_text() == "changed\n"


def test_a_running_task_that_is_removed_from_the_plan_is_stopped_and_can_come_back(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [saving(), counted("b")])))
    until(lambda: log(tmp_path) == ["s"])
    edited(tmp_path, [counted("b")])
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert log(tmp_path) == ["s", "saved", "b"]
    (tmp_path / "go").touch()
    harness(tmp_path, "run", str(write_plan(tmp_path, [saving(), counted("b")])))
    assert log(tmp_path) == ["s", "saved", "b", "s", "end"]


def test_a_plan_that_is_wrong_while_it_is_edited_changes_nothing(tmp_path: Path) -> None:
    plan = slow_plan(tmp_path)
    process = start(tmp_path, "run", str(plan))
    until(lambda: log(tmp_path) == ["a", "s"])
    plan.write_text(plan.read_text().replace('"needs": ["s"]', '"needs": ["nowhere"]'))
    assert process.stdout
    until(lambda: "is wrong now" in process.stdout.readline())  # type: ignore[union-attr]
    (tmp_path / "go").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert log(tmp_path) == ["a", "s", "s_end", "z"]


def test_a_failed_task_that_is_mended_in_the_plan_runs_again_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(write_plan(tmp_path, [shell("f", "echo f >> log; false"), saving()])))
    until(lambda: log(tmp_path) == ["f", "s"])
    edited(tmp_path, [shell("f", "echo mended >> log"), saving()])
    (tmp_path / "later").touch()
    assert process.stdout
    until(lambda: "going on with" in process.stdout.readline())  # type: ignore[union-attr]
    (tmp_path / "go").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert log(tmp_path) == ["f", "s", "end", "mended"]


@pytest.mark.parametrize("verb", ["cancel", "retry", "stop"])
def test_a_request_that_a_dead_run_never_saw_is_not_done_later(tmp_path: Path, verb: str) -> None:
    from harness.paths import Root
    from harness.store import Store

    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a")])))
    with Store(Root(tmp_path).plan("p")) as store:
        number = store.ask(verb, None if verb == "stop" else "a", by="me")
    harness(tmp_path, "forget", "a")
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["a", "a"]
    with Store(Root(tmp_path).plan("p")) as store:
        assert store.answer_to(number) == "the run that was asked has ended"
        assert json.dumps(store.events(0, 1000)).count('"answered"') == 1


def test_what_has_completed_can_not_be_cancelled(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a")])))
    assert "'a' is completed; harness forget lets it run again" in harness(tmp_path, "cancel", "a")
    assert status(tmp_path)["a"]["state"] == "completed"


def test_an_emptied_database_is_not_taken_for_a_plan_that_was_never_run(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a")])))
    (tmp_path / "checkpoints/p/state.db").write_bytes(b"")
    assert "the file is empty, though tasks have been executed" in harness(tmp_path, "status", code=5)
