"""The tool `evaluate`: three decodings of each prompt, compared."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workshop import lines_of, make_target, talk

from eagle3.evaluate.comparison import Comparison
from eagle3.evaluate.spec import TOOL
from eagle3.model import Drafter
from eagle3.target import Target
from eagle3.weights import save_drafter
from harness.contract import Result, ToolError

Run = Callable[..., Result]


@pytest.fixture
def asked(root: Path, trained: Drafter, target: Target) -> dict[str, Any]:
    """The trained drafter on disk, and prompts."""
    facts = {
        "layers": [2, 3, 4],
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
    }
    save_drafter(root / "drafter", trained, facts)
    lines = [json.dumps({"id": str(number), "messages": talk(number)}) for number in range(8)]
    (root / "heldout.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "out": "evaluation",
        "target": str(target.path),
        "drafter": "drafter",
        "prompts": "heldout.jsonl",
        "num_prompts": 6,
        "max_new_tokens": 20,
        "draft_tokens": 3,
    }


def test_the_trained_drafter_beats_the_untrained_one_and_no_answer_changes(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    values = run_tool(TOOL, **asked).values
    report = json.loads((root / "evaluation" / "report.json").read_text())
    assert values["acceptance_length"] > values["untrained_acceptance_length"] + 0.3
    assert values["lossless"] is True
    assert report["num_prompts"] == 6
    assert report["num_tokens"] > 6
    assert values["acceptance_length"] == pytest.approx(1 + sum(values["acceptance"]))
    assert values["acceptance"] == sorted(values["acceptance"], reverse=True)
    assert values["simulated_acceptance_length"] == pytest.approx(values["acceptance_length"], rel=0.15)


def test_a_killed_evaluation_answers_no_prompt_twice(
    run_tool: Run, start_tool: Callable[..., subprocess.Popen[bytes]], asked: dict[str, Any], root: Path
) -> None:
    kept = root / ".scratch" / "answers.jsonl"
    process = start_tool(TOOL, **asked)
    end = time.monotonic() + 60
    while not kept.exists() or kept.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, "the tool ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    before = kept.read_bytes()
    assert 2 <= before.count(b"\n") < 6
    whole = before[: before.rfind(b"\n") + 1]
    kept.write_bytes(whole + b'{"prompt": [2, 2')
    values = run_tool(TOOL, **asked).values
    assert kept.read_bytes().startswith(whole)
    assert kept.read_bytes().count(b"\n") == 6
    assert values["lossless"] is True


def test_another_targets_drafter_is_refused(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    other = make_target(root / "other", seed=1)
    with pytest.raises(ToolError, match="trained for another target"):
        run_tool(TOOL, **asked | {"target": str(other)})


def test_a_file_without_prompts_is_told(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    (root / "heldout.jsonl").write_text("\n")
    with pytest.raises(ToolError, match="no prompts"):
        run_tool(TOOL, **asked)


def test_an_answer_that_differs_beyond_rounding_fails_the_task_and_is_in_the_report(
    run_tool: Run, asked: dict[str, Any], root: Path
) -> None:
    run_tool(TOOL, **asked)
    kept = root / ".scratch" / "answers.jsonl"
    records = [json.loads(line) for line in kept.read_text().splitlines()]
    records[2]["differences"] = [{"drafter": "trained", "place": 4, "gap": 0.2}]
    records[3]["differences"] = [{"drafter": "untrained", "place": 1, "gap": 1e-6}]
    kept.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ToolError, match=r"differ from plain greedy decoding.*1 answers, the first at token 4"):
        run_tool(TOOL, **asked)
    report = json.loads((root / "evaluation" / "report.json").read_text())
    assert report["lossless"] is False
    assert report["num_near_ties"] == 1


def test_progress_counts_prompts(run_tool: Run, asked: dict[str, Any], root: Path) -> None:
    run_tool(TOOL, **asked)
    last = [event for event in lines_of(root) if event["type"] == "progress"][-1]
    assert (last["done"], last["total"], last["unit"]) == (6, 6, "prompts")


def test_the_comparison_counts_rounds_and_seconds() -> None:
    def record(accepted: list[int], seconds: float) -> dict[str, Any]:
        plain = {"tokens": [1] * 10, "accepted": [], "seconds": 2.0}
        trained = {"tokens": [1] * 10, "accepted": accepted, "seconds": seconds}
        untrained = {"tokens": [1] * 10, "accepted": [0] * 9, "seconds": 4.0}
        return {"plain": plain, "trained": trained, "untrained": untrained, "differences": []}

    found = Comparison.of([record([3, 1, 2], 0.5), record([0, 2, 3, 1], 1.5)], draft_tokens=3)
    assert found.acceptance == pytest.approx([6 / 7, 4 / 7, 2 / 7])
    assert found.acceptance_length == pytest.approx(1 + 12 / 7)
    assert found.untrained_acceptance_length == 1
    assert (found.plain_ms_per_token, found.trained_ms_per_token) == (200, 100)
    assert found.speedup == 2
    assert found.lossless is True
