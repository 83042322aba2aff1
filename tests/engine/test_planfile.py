"""Wrong plans: all mistakes of each, with their places."""

import json
import time
from pathlib import Path

import pytest

from harness import planfile
from harness.contract import Params, Tool
from harness.errors import NotFoundError, PlanError
from harness.generic import TOOLS

DATA = Path(__file__).parents[1] / "data" / "wrong"


class ReadParams(Params):
    source: str | list[str]
    layers: list[int] | None = None


READ = Tool("read", 1, "Reads.", ReadParams, "m:f", inputs=("source",), values={"n": "how many"})
KNOWN = {tool.name: tool for tool in (*TOOLS, READ)}

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
    "cycle": [
        (3, 45, "found a -> c -> b -> a"),
        (6, 31, "'shel' is no tool. Did you mean 'shell'?"),
        (7, 5, "found e -> f -> e"),
    ],
    "references": [
        (5, 14, "'${vars.wrok}' refers to no variable of the plan. Did you mean 'work'?"),
        (7, 35, "'${tasks.z.outputs.o}' refers to 'z', which is no task"),
        (7, 62, "'${a.b}' is no reference"),
        (11, 11, "task 'd' has no output 'answer'; found outputs choice"),
        (12, 21, "'${tasks.b.outputs.o}' refers to the task that it stands in"),
        (16, 11, "a condition may only compare values"),
        (24, 21, "'${vars.work' has no closing brace"),
    ],
    "quoted": [(2, 8, "'count': input should be a valid integer; found '2'")],
    "count": [(2, 8, "the plan says that it has 3 tasks; found 2. The file may be cut off")],
    "truncated": [(7, 1, "unexpected end of stream")],
    "types": [
        (4, 14, "'content': input should be a valid string; found 5"),
        (5, 12, "'needs': input should be a valid list; found 'b'"),
        (7, 14, "a duration is seconds or like 90s"),
        (8, 22, "greater than or equal to 0; found -1"),
        (8, 26, "unknown key 'backof_s'. Did you mean 'backoff'?"),
        (9, 21, "'command': input should be a valid string; found a list"),
        (9, 31, "'cpus': input should be a valid integer"),
        (10, 5, "a task is a mapping with id and content; found 'just text'"),
    ],
    "both": [
        (7, 15, "task 'a' has both a tool and a decision"),
        (10, 11, "task 'b' has parameters but no tool"),
        (13, 40, "'options': list should have at least 2 items"),
        (16, 40, "two options have the same key"),
        (19, 75, "'recommended': no option has this key, only x, y do; found 'z'"),
    ],
    "outputs": [
        (4, 76, "output 'o' of 'b' is or lies inside output 'o' of 'a'; found 'out/a/b'"),
        (5, 76, "output 'o' of 'c' is or lies inside output 'o' of 'a'; found 'out/a'"),
        (7, 76, "the path of output 'o' has to be known before anything runs; found '${tasks.d.outputs.n}'"),
        (8, 76, "output 'o' would be the folder that holds everything; found '.'"),
    ],
    "doubled": [
        (2, 1, "key 'name' stands twice, first in line 1"),
        (6, 5, "key 'content' stands twice, first in line 5"),
        (8, 29, "key 'command' stands twice, first in line 8"),
    ],
    "double": [
        (4, 10, "task 'a' stands twice, first in line 3"),
        (4, 40, "task 'a' needs 'b', which is no task"),
        (4, 50, "'shel' is no tool. Did you mean 'shell'?"),
    ],
    "unions": [
        (2, 15, "'sizes': input should be a valid string or a valid integer or a valid number or a valid boolean"),
        (4, 52, "'source': input should be a valid string or a valid list; found 5"),
        (5, 56, "'source[1]': input should be a valid string; found 5"),
        (5, 69, "'layers[0]': input should be a valid integer"),
        (6, 48, "'x y': only letters, digits, - and _ can stand in a name"),
    ],
    "documents": [(4, 1, "a file holds one document, and here a second begins")],
    "colon": [(3, 53, "found unexpected ':'. Put a text with a colon into quotes")],
    "alias": [(2, 12, "an alias holds itself"), (3, 11, "no anchor '&nowhere' stands before this alias")],
    "control": [(3, 24, "control character U+0007")],
    "shape": [(1, 3, "'content' is missing"), (1, 3, "unknown key 'name'")],
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
    assert {path.stem for path in DATA.iterdir()} == {*WRONG}


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


def test_mistakes_in_a_todo_list_have_their_places_however_it_is_indented(tmp_path: Path) -> None:
    items = [{"content": "go 🚀", "status": "pending"}, {"content": "stop", "priority": "urgent"}]
    for content in (items, {"todos": items}):
        for indent in (2, "\t"):
            text = json.dumps(content, indent=indent)
            line = next(number for number, each in enumerate(text.split("\n"), 1) if "urgent" in each)
            column = text.split("\n")[line - 1].index('"urgent"') + 1
            [(found_line, found_column, says)] = mistakes(write(tmp_path / "t.json", text))
            assert (found_line, found_column) == (line, column)
            assert "found 'urgent'" in says


def test_emoji_escapes_in_json_are_the_emoji_and_escaped_backslashes_stay(tmp_path: Path) -> None:
    for content in ("go 🚀", "a \\ud83d\\ude80", "\\🚀"):
        path = write(tmp_path / "t.json", json.dumps([{"content": content, "id": "a"}]))
        assert planfile.load(path, KNOWN).steps["a"].task.content == content


def test_nothing_in_a_todo_list_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", '{"todos": [{"content": "x", "content": "y"}], "bogus": 1}')
    assert [says for *_, says in mistakes(path)] == [
        " key 'content' stands twice, first in line 1",
        " unknown key 'bogus'",
    ]


def test_an_id_that_a_todo_list_gives_is_never_given_to_another_item(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", '[{"content": "tune"}, {"content": "later", "id": "tune"}]')
    assert list(planfile.load(path, KNOWN).steps) == ["tune-2", "tune"]


def test_nesting_too_deep_is_a_mistake_wherever_it_is(tmp_path: Path) -> None:
    deep = f"{'[' * 2000}{']' * 2000}"
    task = "{id: a, content: a, tool: python, with: {call: 'm:f', args: {x: %s}}}"
    for tasks, above in ((deep, 1), (f"[{task % deep}]", 5)):
        column = f"tasks: {tasks}".index("[[") + (100 - above) + 1
        found = mistakes(write(tmp_path / "p.yaml", f"name: p\ntasks: {tasks}\n"))
        assert found == [(2, column, " lists and mappings may nest 100 deep")]


def test_a_few_lines_of_aliases_that_stand_for_billions_of_values_are_refused(tmp_path: Path) -> None:
    lines = ["  a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, below in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"  {name}: &{name} [{', '.join([f'*{below}'] * 10)}]")
    text = "\n".join(["name: p", "vars:", *lines, "tasks:", "  - {id: a, content: a}"])
    assert "values, with all that the aliases stand for" in mistakes(write(tmp_path / "p.yaml", text))[0][2]


def test_a_condition_that_nests_too_deep_is_a_mistake(tmp_path: Path) -> None:
    for when in ("not " * 5000 + "true", "-" * 200 + "1 < 0"):
        [(line, _, says)] = mistakes(
            write(tmp_path / "p.yaml", f"name: p\ntasks:\n  - {{id: a, content: a, when: '{when}'}}\n")
        )
        assert line == 3
        assert "may nest 50 deep" in says


def test_a_number_of_more_digits_than_python_reads_is_text(tmp_path: Path) -> None:
    plan = f"name: p\ncount: {'9' * 5000}\ntasks:\n  - {{id: a, content: a}}\n"
    assert [place[:2] for place in mistakes(write(tmp_path / "p.yaml", plan))] == [(2, 8)]


def test_a_task_needs_what_its_sentence_refers_to(tmp_path: Path) -> None:
    plan = """
name: p
tasks:
  - {id: b, content: "look at ${tasks.a.outputs.o}"}
  - {id: a, content: a, tool: shell, with: {command: "true"}, outputs: {o: out/o}}
"""
    step = planfile.load(write(tmp_path / "p.yaml", plan), KNOWN).steps["b"]
    assert step.needs == ("a",)
    assert step.task.content == "look at out/o"


def test_a_file_that_cannot_be_opened_is_not_found(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / ("x" * 300)):
        with pytest.raises(NotFoundError, match="can't be read"):
            planfile.load(path, KNOWN)
