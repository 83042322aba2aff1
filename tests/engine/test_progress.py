import json
from pathlib import Path
from typing import Any

import pytest

from harness.contract import Context
from harness.progress import TAIL_BYTES, last_words, progress
from tests.engine.scenes import NOW


def report(t: float, done: float, total: float = 100, unit: str = "steps") -> dict[str, Any]:
    return {"t": NOW + t, "type": "progress", "done": done, "total": total, "unit": unit}


def context(folder: Path) -> Context:
    request = {
        "task": "t",
        "attempt": 1,
        "root": ".",
        "folder": folder,
        "scratch": ".",
        "fingerprint": "",
        "outputs": {},
    }
    return Context(request)


def test_what_a_tool_reports_is_what_is_read(tmp_path: Path) -> None:
    tool = context(tmp_path)
    tool.progress(3, 3, unit="samples")
    tool.metric(step=3, loss=0.123456)
    found, words = last_words(tmp_path / "events.jsonl", NOW)
    tool.close()
    assert found
    assert (found.done, found.total, found.unit) == (3, 3, "samples")
    assert words == "step 3 · loss 0.1235"


def test_before_the_first_report_there_is_no_progress(tmp_path: Path) -> None:
    assert last_words(tmp_path / "missing", NOW) == (None, "")
    (tmp_path / "events.jsonl").touch()
    assert last_words(tmp_path / "events.jsonl", NOW) == (None, "")


def test_torn_lines_and_the_line_in_writing_are_passed_over(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps(report(0, 7)) + '\n{"t": 1, "type": "prog\n7\n' + json.dumps(report(1, 8))[:-9])
    found, _ = last_words(events, NOW)
    assert found
    assert found.done == 7


def test_only_the_end_of_a_long_file_is_read_and_its_first_piece_is_dropped(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(report(i, i, total=9000)) + "\n" for i in range(5000)))
    assert events.stat().st_size > 5 * TAIL_BYTES
    found, _ = last_words(events, NOW + 4999)
    assert found
    assert (found.done, found.rate) == (4999, 1.0)


@pytest.mark.parametrize("number", [1, 2])
def test_there_is_no_rate_from_fewer_than_three_reports(number: int) -> None:
    found = progress([report(i, i) for i in range(number)], NOW)
    assert (found.rate, found.eta_s) == (None, None)


def test_the_rate_is_that_of_the_last_minute_not_of_the_whole_attempt() -> None:
    slow = [report(i * 10, i) for i in range(10)]
    fast = [report(90 + i, 9 + 2 * i, total=1000) | {"total": 100} for i in range(1, 41)]
    found = progress([*slow, *fast, *[report(130 + i, 89 + i / 10) for i in range(1, 61)]], NOW + 190)
    assert found.rate == pytest.approx(0.1)


def test_the_time_left_counts_down_between_two_reports() -> None:
    reports = [report(i * 10, i) for i in range(5)]
    assert progress(reports, NOW + 40).eta_s == pytest.approx(960)
    assert progress(reports, NOW + 45).eta_s == pytest.approx(955)


def test_another_phase_of_the_task_starts_its_own_rate() -> None:
    first = [report(i, i, unit="samples") for i in range(20)]
    found = progress([*first, report(20, 0), report(24, 1), report(28, 2)], NOW + 28)
    assert (found.done, found.rate) == (2, 0.25)
    again = progress([*[report(i, i) for i in range(20)], report(20, 0), report(24, 1), report(28, 2)], NOW + 28)
    assert again.rate == 0.25


def test_a_long_silence_is_a_stall_and_takes_the_time_left_away() -> None:
    quick, slow = [report(i, i) for i in range(9)], [report(i * 100, i) for i in range(9)]
    assert not progress(quick, NOW + 8 + 59).stalled
    stalled = progress(quick, NOW + 8 + 61)
    assert (stalled.stalled, stalled.eta_s, stalled.age_s) == (True, None, 61)
    assert not progress(slow, NOW + 800 + 499).stalled  # it always takes that long
    assert progress(slow, NOW + 800 + 501).stalled


def test_a_clock_that_was_set_back_gives_no_nonsense() -> None:
    found = progress([report(10, 1), report(5, 2), report(0, 3)], NOW - 100)
    assert (found.rate, found.age_s) == (None, 0.0)
