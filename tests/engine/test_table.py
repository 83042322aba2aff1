import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from harness import table
from harness.progress import Progress
from harness.state import State
from harness.status import Snapshot
from tests.engine import scenes
from tests.engine.scenes import GOING, NOW, plan, row, took


def shown(
    snapshot: Snapshot, width: int, *, only_ascii: bool = False, height: int | None = None, color: bool = False
) -> str:
    """The table as a terminal gets it."""
    system = "standard" if color else None
    console = Console(width=width, file=io.StringIO(), force_terminal=color, color_system=system, highlight=False)
    console.print(table.render(snapshot, width, ascii=only_ascii, height=height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("only_ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("scene", [scenes.busy, scenes.done], ids=lambda scene: scene.__name__)
def test_the_table_looks_like_this(snapshot: SnapshotAssertion, scene: object, width: int, only_ascii: bool) -> None:
    assert shown(scene(), width, only_ascii=only_ascii) == snapshot  # type: ignore[operator]


def test_the_lines_for_a_pipe_look_like_this(snapshot: SnapshotAssertion) -> None:
    assert "\n".join(table.lines(scenes.busy())) == snapshot


TEXTS = st.text(st.sampled_from("ab -\n\r\t\x1b[31m\x07\x9b准备数据é…·e\u0301🙂\u200b\u202e"), max_size=90)
ROWS = st.builds(
    row,
    st.from_regex(r"[a-z][a-z0-9-]{0,40}", fullmatch=True),
    st.sampled_from(State),
    content=TEXTS,
    note=TEXTS,
    priority=st.sampled_from(["high", "medium", "low"]),
    attempt=st.integers(0, 12),
    past_s=st.none() | st.floats(0, 1e7),
    progress=st.none() | st.just(GOING) | st.just(Progress(0, 0, "", None, None, 900.0, True)),
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(ROWS, max_size=12), width=st.integers(20, 220), only_ascii=st.booleans())
def test_no_line_is_wider_than_the_screen_and_no_row_wraps(rows: list[object], width: int, only_ascii: bool) -> None:
    out = shown(plan(rows), width, only_ascii=only_ascii)  # type: ignore[arg-type]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    lines = out.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert not [line for line in lines if line.endswith(" ")]
    assert lines[1] == ""
    assert len("\n".join(lines[2:]).split("\n\n")[0].rstrip("\n").split("\n")) == max(1, len(rows) + bool(rows))
    if only_ascii:
        assert out.isascii()


@pytest.mark.parametrize("height", [16, 24, 50])
def test_a_table_taller_than_the_screen_is_shortened_to_it(height: int) -> None:
    states = [State.COMPLETED, State.RUNNING, State.PENDING, State.FAILED, State.WAITING_DECISION]
    rows = [row(f"t{i}", states[i % 5], note="why") for i in range(60)]
    assert height - 3 <= shown(plan(rows), 100, height=height).count("\n") < height


def test_what_needs_attention_stays_when_rows_are_left_out() -> None:
    rows = [row(f"old{i}", State.COMPLETED, **took(1)) for i in range(40)]
    rows += [row("bad", State.FAILED, note="exit 1"), row("now", State.RUNNING, started_at=NOW)]
    rows += [row(f"new{i}") for i in range(40)]
    out = shown(plan(rows), 100, height=20)
    assert {"bad", "now", "new0"} <= {line.split()[1] for line in out.splitlines() if len(line.split()) > 2}
    assert "and 40 completed, " in out


def test_cells_of_a_column_begin_at_the_same_place_whatever_the_script() -> None:
    head, *rows = shown(scenes.busy(), 120).split("\n\n")[1].splitlines()
    start = head.index("Status")
    words = {line_at(each, start).split("  ")[0] for each in rows}
    assert words >= {"completed", "in_progress", "needs you", "failed", "waits", "skipped"}


def line_at(line: str, cell: int) -> str:
    """The part of a line that begins at a cell of the screen."""
    return next(line[place:] for place in range(len(line)) if cell_len(line[:place]) == cell)


def test_a_wider_screen_never_shows_fewer_columns_of_facts() -> None:
    heads = {width: shown(scenes.busy(), width).splitlines()[2].split() for width in (60, 80, 120, 200)}
    assert heads[60] == ["Task", "Status", "Done", "Time", "Note"]
    assert heads[200] == ["Task", "Content", "Priority", "Status", "Progress", "Rate", "Left", "Time", "Tries", "Note"]
    assert len(heads[60]) <= len(heads[80]) <= len(heads[120]) <= len(heads[200])


def test_what_has_no_column_of_its_own_is_said_in_the_note() -> None:
    running = row("extract", State.RUNNING, note="388 GB", started_at=NOW, progress=GOING)
    assert "1.13 samples/s · 1:25:23 left" in shown(plan([running]), 80)


def test_columns_in_which_nothing_is_said_are_left_out() -> None:
    assert shown(plan([row("a"), row("b")]), 120).splitlines()[2].split() == [
        "Task", "Content", "Priority", "Status", "Note",
    ]  # fmt: skip


def test_the_note_alone_shrinks() -> None:
    rows = [row("a", State.COMPLETED, note="x" * 300, **took(3))]
    for width in (60, 80, 120, 200):
        line = shown(plan(rows), width).splitlines()[3]
        assert cell_len(line) == width
        assert "✓  a" in line
        assert "completed" in line
        assert "3.0 s" in line
        assert line.endswith("x…")


def test_only_what_needs_attention_is_loud() -> None:
    out = shown(scenes.busy(), 120, color=True)
    assert "\x1b[1;31mfailed" in out
    assert "\x1b[1;33mneeds you" in out
    assert "\x1b[1;36min_progress" in out
    assert "\x1b[32mcompleted" in out
    assert "\x1b[2mpending" in out


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    codes = re.findall(r"\x1b\[([\d;]*)m", shown(scenes.busy(), 120, color=True))
    assert set(";".join(codes).split(";")) <= {"", "0", "1", "2"}  # bold and dim are no colours


def test_a_stalled_task_says_since_when_in_red() -> None:
    silent = Progress(10, 100, "steps", 1.0, None, 420.0, stalled=True)
    out = shown(
        plan([row("train", State.RUNNING, started_at=NOW - 900, note="loss 2", progress=silent)]), 100, color=True
    )
    assert "\x1b[31mno progress for 7:00 · loss 2" in out


def test_a_killed_run_and_its_orphans_are_told_apart_from_living_ones() -> None:
    rows = [row("a", State.RUNNING, process="gone"), row("b", State.RUNNING, process="ended")]
    out = shown(plan(rows, alive=False, changed_at=NOW - 60), 100)
    assert "killed after 2:40:00" in out
    assert re.search(r"‖  a .* gone ", out)
    assert re.search(r"‖  b .* ended ", out)
    assert "next a, b: harness resume kimi-eagle3" in out


def test_the_footer_says_the_whole_reason_and_the_commands_unbroken() -> None:
    out = shown(scenes.busy(), 60)
    assert scenes.KILLED in " ".join(out.split())
    assert "  harness logs train-first -p kimi-eagle3\n" in out
    assert 'harness decide free-disk OPTION --because "…"' in out


def test_the_header_says_how_many_are_done_and_how_long_the_rest_takes() -> None:
    head = shown(scenes.busy(), 120).splitlines()[0]
    assert "3/11 done  1 failed  1 needs you  running 2:41:00  ETA ≥ 1:31:16" in head
    assert "3/3 done  took 2:39:20" in shown(scenes.done(), 80)


def test_a_plan_without_tasks_is_shown_too() -> None:
    assert "no tasks yet" in shown(plan([]), 80)
    assert "not run yet" in shown(Snapshot("new"), 80)


def test_the_lines_for_a_pipe_hold_every_fact_in_full() -> None:
    text = "\n".join(table.lines(scenes.busy()))
    assert scenes.KILLED in text
    assert scenes.QUESTION in text
    assert "4 211/10 000 · 1.13 samples/s · 1:25:23 left" in text
    assert "\x1b" not in text


def test_a_note_can_not_steer_the_terminal() -> None:
    noisy = row("a", State.FAILED, note="\x1b[2J\x1b]0;title\x07first\r\nsecond\x9b31m")
    for out in (shown(plan([noisy]), 100), "\n".join(table.lines(plan([noisy])))):
        assert "first second" in out
        assert not re.search(r"[\x1b\r\x07\x9b]", out)
