"""What a result depends on, and how a difference is told."""

from typing import Any

import pytest

from harness import fingerprint
from harness.files import Seal
from harness.generic import SHELL
from harness.plan import Step, Task
from harness.protection import freed, protected
from harness.state import Checkpoint, State


def step(name: str = "a", needs: tuple[str, ...] = (), outputs: dict[str, str] | None = None, **params: Any) -> Step:
    task = Task.model_validate({"id": name, "content": name})
    return Step(task, needs, SHELL, params, outputs or {}, tuple(params.get("inputs", ())), frozenset())


def done(name: str, parts: dict[str, Any] | None = None, *, digest: str = "", **more: Any) -> Checkpoint:
    seals = {"o": Seal("file", 1, 1, digest, "s")} if digest else {}
    parts = parts or {}
    return Checkpoint(name, 1, fingerprint.fingerprint(parts), seals, {}, {}, "", 0.0, **more)


def parts(each: Step, **upstream: Checkpoint) -> dict[str, Any]:
    return fingerprint.parts(each, each.params, dict.fromkeys(each.inputs, "d"), upstream)


OLD = parts(step(command="x", n=1, inputs=["data"]), up=done("up", digest="1"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tool": "python"}, "its tool changed from 'shell' to 'python'"),
        ({"version": 2}, "tool 'shell' is version 2, was 1"),
        ({"params": {**OLD["params"], "n": 2}}, "parameter 'n' changed from 1 to 2"),
        ({"params": {**OLD["params"], "m": "z"}}, "parameter 'm' changed from nothing to 'z'"),
        ({"inputs": {"data": "e"}}, "input 'data' changed"),
        ({"inputs": {"data": "missing"}}, "input 'data' is gone"),
        ({"inputs": {"data": "d", "more": "x"}}, "input 'more' is new"),
        ({"upstream": {"up": {"o": "2"}}}, "output 'o' of 'up' changed"),
        ({"upstream": {}}, "it no longer needs 'up'"),
        ({"upstream": {**OLD["upstream"], "too": "f"}}, "it now needs 'too'"),
        ({"outputs": {"o": "elsewhere"}}, "its outputs are declared elsewhere now"),
        ({}, ""),
    ],
)
def test_a_difference_is_told_in_one_sentence(change: dict[str, Any], says: str) -> None:
    new = {**OLD, **change}
    assert fingerprint.difference(OLD, new) == says
    assert (fingerprint.fingerprint(OLD) == fingerprint.fingerprint(new)) == (says == "")


def test_a_need_counts_by_its_outputs_or_without_any_by_its_own_fingerprint() -> None:
    again = done("up", {"tool": "shell", "params": {"new": 1}}, digest="1")
    assert parts(step(), up=again)["upstream"] == OLD["upstream"]
    first, second = done("up", {"run": 1}), done("up", {"run": 2})
    assert parts(step(), up=first) != parts(step(), up=second)


def test_a_checkpoint_holds_while_its_parts_and_outputs_do() -> None:
    each = step(command="x", outputs={"o": "a.out"})
    now = parts(each)
    assert fingerprint.staleness(each, None, {}, changed=None) == "it has not completed yet"
    assert fingerprint.staleness(each, done("a", now), {"o": True}, changed=None) is None
    reason = fingerprint.staleness(each, done("a", now), {"o": False}, changed=None)
    assert reason == "output 'o' is missing or was changed after it was sealed ('a.out')"


STEPS = {
    "make": step("make", outputs={"o": "w/big"}),
    "use": step("use", ("make",), outputs={"o": "w/small"}),
    "read": step("read", inputs=["raw"]),
    "clean": step("clean", ("use",)),
}


@pytest.mark.parametrize(
    ("settled", "needed"),
    [
        (set(), {"w/big": "still to make", "w/small": "still to make", "raw": "has yet to read"}),
        ({"make"}, {"w/big": "needed by 'use'", "w/small": "still to make", "raw": "has yet to read"}),
        ({"make", "use"}, {"w/small": "is a result of the plan", "raw": "has yet to read"}),
        ({"make", "use", "read"}, {"w/small": "is a result of the plan"}),
    ],
)
def test_a_path_is_protected_until_nothing_needs_it(settled: set[str], needed: dict[str, str]) -> None:
    states = {name: State.COMPLETED if name in settled else State.PENDING for name in STEPS}
    found = protected(STEPS, "clean", states, {name: done(name, digest="1") for name in settled})
    assert set(found) == set(needed)
    assert all(says in found[path] for path, says in needed.items())


def test_an_output_at_or_below_a_deleted_path_is_freed_however_the_path_is_written() -> None:
    checkpoints = {name: done(name, digest="1") for name in ("make", "use")}
    for path in ("w/big", "./w/big", "w/x/../big"):
        (found,) = freed(STEPS, checkpoints, [path], by="clean")
        assert (found.task, found.freed) == ("make", {"o": "clean"})
    assert {each.task for each in freed(STEPS, checkpoints, ["w"], by="clean")} == {"make", "use"}
    assert freed(STEPS, checkpoints, ["other"], by="clean") == []
