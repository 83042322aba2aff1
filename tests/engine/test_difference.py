"""`harness diff` says what the next run then does."""

import json
from pathlib import Path

from tests.engine.plans import counted, harness, log, shell, write_plan


def told(root: Path, *more: str) -> dict[str, str]:
    data = json.loads(harness(root, "diff", "--json", *more))["data"]
    return {task["task"]: task["what"] for task in data["tasks"]}


def test_before_the_first_run_everything_is_new(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [counted("a"), counted("b", needs=("a",))])
    out = harness(tmp_path, "diff", str(plan))
    assert "a  new" in out
    assert "b  may run  if 'a', which runs, makes other outputs" in out
    assert "'a' runs first" in out


def test_a_finished_plan_would_execute_nothing(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a"), counted("b", needs=("a",))])))
    assert harness(tmp_path, "diff") == "2 kept; a run would execute nothing\n"
    assert "a  kept  up to date" in harness(tmp_path, "diff", "--all")


def test_each_change_is_told_and_the_run_then_does_it(tmp_path: Path) -> None:
    fails = shell("fails", "echo fails >> log; [ -e mended ]")
    waits = counted("waits", needs=("fails",))
    old = [counted("same"), counted("changed"), counted("below", needs=("changed",)), counted("gone"), fails, waits]
    harness(tmp_path, "run", str(write_plan(tmp_path, old)), code=1)
    new = [counted("same"), counted("changed", text="x"), counted("below", needs=("changed",)), counted("fresh"),
           fails, waits]  # fmt: skip
    write_plan(tmp_path, new)
    assert told(tmp_path) == {
        "same": "kept", "changed": "runs", "below": "may run", "fresh": "new", "fails": "again", "waits": "may run",
        "gone": "removed",
    }  # fmt: skip
    out = harness(tmp_path, "diff")
    assert "parameter 'command' changed" in out
    assert "fails    again    it failed: exit code 1" in out
    before = len(log(tmp_path))
    (tmp_path / "mended").touch()
    harness(tmp_path, "run", "p")
    assert sorted(log(tmp_path)[before:]) == ["below", "changed", "fails", "fresh", "waits"]


def test_a_damaged_output_a_skipped_a_cancelled_and_an_open_decision_are_told(tmp_path: Path) -> None:
    options = [{"key": "yes"}, {"key": "no"}]
    ask = {"id": "ask", "content": "ask", "decision": {"question": "Go on?", "options": options}}
    tasks = [
        counted("a"),
        shell("never", when="1 > 2"),
        counted("c"),
        counted("d", needs=("c",)),
        ask,
        shell("then", "true", when="${tasks.ask.outputs.choice} == 'yes'"),
    ]
    harness(tmp_path, "run", str(write_plan(tmp_path, tasks)), code=4)
    (tmp_path / "a.out").write_text("damaged")
    harness(tmp_path, "forget", "c")
    harness(tmp_path, "cancel", "c")
    found = told(tmp_path)
    assert found == {
        "a": "runs", "never": "skipped", "c": "cancelled", "d": "blocked", "ask": "asks", "then": "may run",
    }  # fmt: skip
    assert "after decision 'ask'" in harness(tmp_path, "diff")
