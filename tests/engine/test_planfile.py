"""Wrong plans: all mistakes of each, with their places."""

import json
import time
from pathlib import Path

import pytest

from harness import planfile
from harness.errors import NotFoundError, PlanError
from harness.generic import TOOLS

DATA = Path(__file__).parents[1] / "data" / "wrong"
KNOWN = {tool.name: tool for tool in TOOLS}

WRONG = {
    "names": [
        (2, 1, "unknown key 'contnet'. Did you mean 'content'?"),
        (6, 15, "found 'urgent'"),
        (7, 11, "'shel' is no tool. Did you mean 'shell'?"),
        (11, 13, "task 'b' needs 'aa', which is no task. Did you mean 'a'?"),
        (11, 17, "task 'b' needs itself"),
        (13, 11, "'command' is missing"),
        (13, 12, "unknown key 'comand'. Did you mean 'command'?"),
        (14, 9, "task 'a' stands twice, first in line 4"),
        (18, 9, "only letters, digits, - and _ can stand in a name, 64 at most; found 'c d'"),
        (20, 5, "unknown key 'unknown'"),
    ],
    "cycle": [(3, 45, "found a -> c -> b -> a")],
    "references": [
        (5, 14, "'${vars.wrok}' refers to no variable of the plan. Did you mean 'work'?"),
        (7, 35, "'${tasks.z.outputs.o}' refers to 'z', which is no task"),
        (7, 62, "'${a.b}' is no reference"),
        (11, 11, "task 'd' has no output 'answer'; found outputs choice"),
        (12, 21, "'${tasks.b.outputs.o}' refers to the task that it stands in"),
        (16, 11, "a condition may only compare values"),
    ],
    "count": [(2, 8, "the plan says that it has 3 tasks; found 2. The file may be cut off")],
    "truncated": [(7, 1, "unexpected end of stream")],
    "types": [
        (4, 14, "'content': input should be a valid string; found 5"),
        (5, 12, "'needs': input should be a valid list; found 'b'"),
        (7, 14, "a duration is seconds or like 90s"),
        (8, 22, "greater than or equal to 0; found -1"),
        (8, 26, "unknown key 'backof_s'"),
        (9, 21, "'command': input should be a valid string; found a list"),
        (9, 31, "'cpus': input should be a valid integer"),
        (10, 5, "a task is a mapping with id and content; found 'just text'"),
    ],
    "both": [
        (7, 15, "task 'a' has both a tool and a decision"),
        (10, 11, "task 'b' has parameters but no tool"),
        (13, 40, "'options': list should have at least 2 items"),
        (16, 40, "two options have the same key"),
    ],
    "outputs": [
        (4, 5, "output 'o' of 'b' is or lies inside output 'o' of 'a'; found 'out/a/b'"),
        (5, 5, "output 'o' of 'c' is or lies inside output 'o' of 'a'; found 'out/a'"),
    ],
    "doubled": [
        (2, 1, "key 'name' stands twice, first in line 1"),
        (6, 5, "key 'content' stands twice, first in line 5"),
        (8, 29, "key 'command' stands twice, first in line 8"),
    ],
    "latin": [(3, 25, "not UTF-8; found byte 0xe9")],
    "tabs": [(3, 1, "not valid YAML")],
    "empty": [(1, 1, "the file is empty")],
    "nothing": [(2, 8, "'tasks': list should have at least 1 item")],
    "envs": [
        (4, 44, "'gpus' is no environment of the plan. Did you mean 'gpu'?"),
        (4, 63, "'call': string should match pattern"),
    ],
}


def mistakes(path: Path) -> list[tuple[int, int, str]]:
    with pytest.raises(PlanError) as refused:
        planfile.load(path, KNOWN)
    place = f"{path}:"
    lines = str(refused.value).splitlines()
    assert all(line.startswith(place) for line in lines)
    parts = [line.removeprefix(place).split(":", 2) for line in lines]
    return [(int(line), int(column), text) for line, column, text in parts]


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_of_a_wrong_plan_is_named_with_its_place(name: str) -> None:
    found = mistakes(DATA / f"{name}.yaml")
    expected = WRONG[name]
    assert [(line, column) for line, column, _ in found] == [(line, column) for line, column, _ in expected]
    for (_, _, text), (_, _, says) in zip(found, expected, strict=True):
        assert says in text


def test_every_wrong_plan_of_the_folder_is_tested() -> None:
    assert {path.stem for path in DATA.iterdir()} == {*WRONG, "shape"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_cut_off_anywhere_never_passes_for_a_shorter_one(tmp_path: Path) -> None:
    tasks = "".join(f"  - {{id: t{n}, content: do, tool: shell, with: {{command: 'true'}}}}\n" for n in range(4))
    text = f"name: whole\ncount: 4\ntasks:\n{tasks}"
    assert len(planfile.load(write(tmp_path / "whole.yaml", text), KNOWN).steps) == 4
    for length in range(len(text) - 2):
        with pytest.raises(PlanError):
            planfile.load(write(tmp_path / "cut.yaml", text[:length]), KNOWN)


def test_a_reference_makes_a_need_and_stands_for_the_path_or_waits_for_the_value(tmp_path: Path) -> None:
    plan = """
name: p
vars: {work: w/x, n: 3}
tasks:
  - {id: a, content: "make ${vars.n}", tool: shell, with: {command: "make ${vars.n}"}, outputs: {o: "${vars.work}/./o"}}
  - {id: b, content: b, tool: python, with: {call: "m:f", args: {path: "${tasks.a.outputs.o}", n: "${vars.n}"}}}
  - {id: c, content: c, tool: shell, with: {command: "echo ${tasks.b.outputs.total} ${tasks.a.outputs.o}"}}
"""
    steps = planfile.load(write(tmp_path / "p.yaml", plan), KNOWN).steps
    assert steps["a"].task.content == "make 3"
    assert steps["a"].outputs == {"o": "w/x/o"}
    assert steps["b"].needs == ("a",)
    assert steps["b"].params["args"] == {"path": "w/x/o", "n": 3}
    assert set(steps["c"].needs) == {"a", "b"}
    assert steps["c"].deferred == {"command"}
    assert steps["c"].params["command"] == "echo ${tasks.b.outputs.total} w/x/o"


def test_numbers_durations_and_words_are_read_as_people_mean_them(tmp_path: Path) -> None:
    plan = """
name: p
tasks:
  - id: a
    content: a
    timeout: 1h30m
    tool: python
    with:
      call: "m:f"
      args: {n: 10_000, rate: 1e-4, half: .5, hex: 0x10, no: no, yes: "true", t: true, nil: ~, v: 1.0.0}
"""
    step = planfile.load(write(tmp_path / "p.yaml", plan), KNOWN).steps["a"]
    assert step.task.timeout_s == 5400
    numbers = {"n": 10000, "rate": 1e-4, "half": 0.5, "hex": 16}
    assert step.params["args"] == {**numbers, "no": "no", "yes": "true", "t": True, "nil": None, "v": "1.0.0"}


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_a_todo_list_is_a_plan_and_its_claims_are_only_notes(tmp_path: Path, indent: int | str | None) -> None:
    items = [
        {"content": "Tune the server", "status": "completed", "priority": "high"},
        {"content": "Extract features", "status": "in_progress", "priority": "medium", "id": "2"},
        {"content": "Tune the server", "status": "pending", "priority": "low"},
    ]
    for content in (items, {"todos": items}):
        path = write(tmp_path / "my todos.json", json.dumps(content, indent=indent))
        loaded = planfile.load(path, KNOWN)
        assert loaded.plan.name == "my-todos"
        assert list(loaded.steps) == ["tune-the-server", "2", "tune-the-server-2"]
        assert [step.task.note for step in loaded.steps.values()] == ["claimed completed", "claimed in_progress", ""]
        assert [step.task.priority for step in loaded.steps.values()] == ["high", "medium", "low"]


def test_a_missing_plan_and_a_folder_are_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(NotFoundError):
            planfile.load(path, KNOWN)


def test_a_chain_of_ten_thousand_tasks_loads(tmp_path: Path) -> None:
    lines = ["name: long", "tasks:"]
    for n in range(10_000):
        before = f"${{tasks.t{n - 1}.outputs.o}}" if n else "start"
        lines.append(
            f"  - {{id: t{n}, content: x, tool: shell, with: {{command: 'cat {before}'}}, outputs: {{o: o/{n}}}}}"
        )
    began = time.monotonic()
    steps = planfile.load(write(tmp_path / "long.yaml", "\n".join(lines)), KNOWN).steps
    assert steps["t9999"].needs == ("t9998",)
    assert time.monotonic() - began < 120, "something in it is quadratic"


def test_aliases_work_and_one_that_holds_itself_is_a_mistake(tmp_path: Path) -> None:
    plan = """
name: p
tasks:
  - {id: a, content: a, tool: shell, with: &same {command: "true"}}
  - {id: b, content: b, tool: shell, with: *same}
"""
    assert planfile.load(write(tmp_path / "p.yaml", plan), KNOWN).steps["b"].params == {"command": "true"}
    with pytest.raises(PlanError, match="an alias holds itself"):
        planfile.load(write(tmp_path / "q.yaml", "name: q\ntasks: &a [*a]\n"), KNOWN)
