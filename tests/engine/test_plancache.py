"""Big plans that are kept: the same as read anew, and never when anything has changed."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import plancache, planfile
from harness.errors import NotFoundError, PlanError
from harness.generic import TOOLS
from harness.paths import Root

KNOWN = {tool.name: tool for tool in TOOLS}
PLAN = """
name: p
vars: {n: 3, rate: .inf}
envs: {other: bin/python}
tasks:
  - {id: a, content: "make ${vars.n} ü", priority: high, timeout: 2h, tool: shell, with: {command: x}, outputs: {o: o}}
  - id: b
    content: b
    tool: python
    with: {call: "m:f", args: {r: "${vars.rate}", p: "${tasks.a.outputs.o}", l: [1, ~]}}
  - {id: c, content: c, decision: {question: "${tasks.b.outputs.x}?", options: [{key: x}, {key: y}]}}
  - {id: d, content: d, when: "${tasks.c.outputs.choice} == 'x'", retries: {count: 2}, needs: [a]}
"""


def big(path: Path, extra: str = "") -> Path:
    filler = "# a comment that makes the file big enough to be kept\n" * 2000
    path.write_text(PLAN + extra + filler, encoding="utf-8")
    return path


def kept(root: Root, path: Path) -> Path:
    return root.kept_plan(path)


def test_a_plan_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    loaded = planfile.load(big(tmp_path / "p.yaml"), KNOWN)
    assert plancache.from_json(plancache.to_json(loaded, KNOWN), KNOWN) == loaded


def test_a_big_plan_is_read_from_what_was_kept_and_is_the_same(tmp_path: Path) -> None:
    path, root = big(tmp_path / "p.yaml"), Root(tmp_path)
    first = plancache.load(path, KNOWN, root)
    assert first == planfile.load(path, KNOWN) == plancache.load(path, KNOWN, root)
    text = kept(root, path).read_text(encoding="utf-8")
    kept(root, path).write_text(text.replace("make 3", "kept 3"), encoding="utf-8")
    assert plancache.load(path, KNOWN, root).steps["a"].task.content == "kept 3 ü"


def test_a_changed_file_is_read_anew_also_when_size_and_time_are_the_same(tmp_path: Path) -> None:
    import os

    path, root = big(tmp_path / "p.yaml"), Root(tmp_path)
    plancache.load(path, KNOWN, root)
    before = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("content: b", "content: B"), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert plancache.load(path, KNOWN, root).steps["b"].task.content == "B"


def test_a_mistake_is_told_though_the_file_was_right_before(tmp_path: Path) -> None:
    path, root = big(tmp_path / "p.yaml"), Root(tmp_path)
    plancache.load(path, KNOWN, root)
    big(path, extra="  - {id: e, content: e, tool: shel}\n")
    with pytest.raises(PlanError, match="'shel' is no tool"):
        plancache.load(path, KNOWN, root)


def test_another_version_of_a_tool_and_a_tool_that_is_gone_are_noticed(tmp_path: Path) -> None:
    path, root = big(tmp_path / "p.yaml"), Root(tmp_path)
    plancache.load(path, KNOWN, root)
    newer = {**KNOWN, "shell": replace(KNOWN["shell"], outputs={"extra": "extra.txt"})}
    assert plancache.load(path, newer, root).steps["a"].outputs == {"extra": "extra.txt", "o": "o"}
    with pytest.raises(PlanError, match="'shell' is no tool"):
        plancache.load(path, {"python": KNOWN["python"]}, root)


@pytest.mark.parametrize("damage", ["", "{", "1\n2\n3\n4", "[]\n[]\n[]\n[]"])
def test_a_damaged_file_is_passed_over_and_written_anew(tmp_path: Path, damage: str) -> None:
    path, root = big(tmp_path / "p.yaml"), Root(tmp_path)
    expected = plancache.load(path, KNOWN, root)
    whole = kept(root, path).read_bytes()
    for content in (damage.encode(), whole[: len(whole) // 2], b"\xff" + whole):
        kept(root, path).write_bytes(content)
        assert plancache.load(path, KNOWN, root) == expected
        assert kept(root, path).read_bytes() == whole


def test_a_plan_where_nothing_can_be_kept_is_still_read(tmp_path: Path) -> None:
    path = big(tmp_path / "p.yaml")
    (tmp_path / "checkpoints").write_text("a file where the folder would be")
    assert len(plancache.load(path, KNOWN, Root(tmp_path)).steps) == 4


def test_a_small_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PLAN, encoding="utf-8")
    plancache.load(path, KNOWN, Root(tmp_path))
    assert not (tmp_path / "checkpoints").exists()


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        plancache.load(tmp_path / "none.yaml", KNOWN, Root(tmp_path))
