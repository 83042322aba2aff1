import signal
from dataclasses import replace

import pytest

from harness.outcome import judge
from harness.plan import Task
from harness.state import State, Verdict

TASK = Task.model_validate({"id": "t", "content": "t", "tool": "shell", "timeout": 90, "stall_timeout": 7})
ENDED = Verdict(exit_code=0, signal=None, stop="", started_at=0, ended_at=1, cpu_s=0, peak_rss_bytes=3 * 2**30)


@pytest.mark.parametrize(
    ("changes", "result", "state", "says"),
    [
        ({}, {"values": {"n": 1}}, State.COMPLETED, ""),
        ({"stop": "stop"}, None, State.COMPLETED, ""),  # it finished before it could be stopped
        ({"exit_code": 2}, None, State.FAILED, "exit code 2: boom"),
        ({"exit_code": 75}, {"error": {"what": "stopped"}}, State.INTERRUPTED, "stopped as asked"),
        ({"exit_code": None, "signal": signal.SIGTERM, "stop": "stop"}, None, State.INTERRUPTED, "stopped as asked"),
        ({"exit_code": 143, "stop": "hard"}, None, State.INTERRUPTED, "stopped as asked"),
        ({"exit_code": None, "signal": signal.SIGTERM, "stop": "timeout"}, None, State.FAILED, "time limit of 90 s"),
        ({"exit_code": None, "signal": signal.SIGKILL}, None, State.FAILED, "SIGKILL (peak memory 3.00 GiB"),
        ({"exit_code": None, "signal": signal.SIGSEGV}, None, State.FAILED, "killed by SIGSEGV"),
        ({"exit_code": None, "error": "no such file: 'pyhton'"}, None, State.FAILED, "no such file: 'pyhton'"),
        (
            {"exit_code": 1},
            {"error": {"what": "not JSON", "where": "a.jsonl:3", "found": "'}'", "do": "Mend the line"}},
            State.FAILED,
            "a.jsonl:3: not JSON; found '}'. Mend the line",
        ),
    ],
)
def test_an_attempt_is_judged_by_its_verdict_then_by_what_its_tool_said(
    changes: dict[str, object], result: dict[str, object] | None, state: State, says: str
) -> None:
    verdict = replace(ENDED, **changes)  # type: ignore[arg-type]
    outcome = judge(verdict, result, ["working", "boom", ""], TASK)
    assert outcome.state == state
    assert says in outcome.reason


def test_a_timeout_is_a_failure_even_when_the_tool_ends_well_while_it_is_stopped() -> None:
    assert judge(replace(ENDED, stop="timeout"), {}, [], TASK).state == State.FAILED
