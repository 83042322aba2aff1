import fcntl
import io
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

from rich.console import Console

from harness.live import Live
from harness.paths import PlanPaths, Root
from harness.state import State
from harness.store import Store
from tests.engine.plans import command, load, shell, write_plan
from tests.engine.terminal import Terminal

WAIT = "for i in $(seq 600); do [ -e go ] && exit 0; sleep 0.05; done; exit 1"  # outlives no failed test for long


def waiting_plan(root: Path, tasks: int = 0, **more: object) -> list[str]:
    """A plan whose task `slow` waits for the file `go`, then as many others; the command that runs it."""
    slow = shell("slow", WAIT, priority="high", content="等待文件出现", **more)
    return command("run", str(write_plan(root, [slow, *(shell(f"t{i:02}", needs=["slow"]) for i in range(tasks))])))


def recorded(root: Path) -> PlanPaths:
    """A plan whose run has begun, with nothing running."""
    paths = Root(root).plan("p")
    with Store(paths) as store:
        store.begin_run(load(root, [shell("a"), shell("b")]))
    return paths


def tables(terminal: Terminal) -> int:
    return len([line for line in terminal.lines if re.match(r"\s+Task\s+.*Note$", line)])


def test_a_terminal_shows_one_table_that_changes_in_place(tmp_path: Path) -> None:
    with Terminal(waiting_plan(tmp_path, 2), tmp_path) as terminal:
        terminal.until(lambda: re.search(r"●  slow .*in_progress +\d", terminal.text))
        assert tables(terminal) == 1
        assert "0/3 done  running" in terminal.lines[0]
        assert "·  t00" in terminal.text
        first = re.search(r"in_progress +([\d.]+) s", terminal.text)
        assert first
        terminal.until(lambda: first[0] not in terminal.text)  # the time goes on
        (tmp_path / "go").touch()
        assert terminal.ended() == 0
        assert tables(terminal) == 1
        assert re.findall(r"✓  (\w+) .*completed", terminal.text) == ["slow", "t00", "t01"]
        assert "in_progress" not in terminal.text
        assert "3/3 done" in terminal.text


def test_what_is_said_stands_above_the_table_and_the_cursor_comes_back(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Terminal(waiting_plan(tmp_path), tmp_path) as terminal:
        assert terminal.ended() == 0
        assert terminal.lines[0] == "p: 1 completed; 1 attempt executed"
        assert re.match(r"p +.*1/1 done", terminal.lines[1])
        assert not terminal.screen.cursor.hidden


def test_a_table_taller_than_the_screen_keeps_what_matters_in_sight(tmp_path: Path) -> None:
    with Terminal(waiting_plan(tmp_path, 40), tmp_path, lines=16) as terminal:
        terminal.until(lambda: "in_progress" in terminal.text)
        assert "0/41 done" in terminal.lines[0]
        assert re.search(r"and \d\d pending", terminal.text)
        (tmp_path / "go").touch()
        terminal.until(lambda: re.search(r"and .*\d+ completed", terminal.text))
        terminal.until(lambda: "41/41 done" in terminal.text, 90)
        assert terminal.ended() == 0
        assert tables(terminal) == 1


def test_a_resized_terminal_gets_a_table_of_its_new_size(tmp_path: Path) -> None:
    with Terminal(waiting_plan(tmp_path), tmp_path, columns=70) as terminal:
        terminal.until(lambda: "in_progress" in terminal.text)
        assert "Content" not in terminal.text
        terminal.resize(180, 24)
        terminal.until(lambda: re.search(r"Task +Content +Priority", terminal.text))
        (tmp_path / "go").touch()
        assert terminal.ended() == 0


def test_wide_characters_keep_the_columns_aligned_on_the_screen(tmp_path: Path) -> None:
    with Terminal(waiting_plan(tmp_path, 1), tmp_path, columns=160) as terminal:
        terminal.until(lambda: "in_progress" in terminal.text)
        place = terminal.screen.display[2].index("Status")
        words = ["".join(terminal.screen.buffer[y][place + i].data for i in range(7)) for y in (2, 3, 4)]
        assert "等待文件出现" in terminal.text
        assert words == ["Status ", "in_prog", "pending"]
        (tmp_path / "go").touch()
        assert terminal.ended() == 0


def test_a_terminal_without_colours_gets_none(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Terminal(waiting_plan(tmp_path), tmp_path, NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
        codes = set(re.findall(rb"\x1b\[([\d;]+)m", terminal.raw))
    assert codes <= {b"0", b"1", b"2"}
    with Terminal(waiting_plan(tmp_path), tmp_path) as terminal:
        assert terminal.ended() == 0
        assert b"\x1b[32m" in terminal.raw


def test_a_terminal_without_unicode_gets_plain_signs(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Terminal(waiting_plan(tmp_path), tmp_path, PYTHONIOENCODING="ascii") as terminal:
        assert terminal.ended() == 0
        assert terminal.raw.isascii()
        assert re.search(r"v  slow .*completed", terminal.text)


def test_a_dumb_terminal_gets_dated_lines(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Terminal(waiting_plan(tmp_path), tmp_path, TERM="dumb") as terminal:
        assert terminal.ended() == 0
        assert b"\x1b" not in terminal.raw
        assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  slow  in_progress  attempt 1$", terminal.text, re.MULTILINE)


def test_a_pipe_gets_lines_even_where_colour_is_forced(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    env = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    done = subprocess.run(waiting_plan(tmp_path), cwd=tmp_path, capture_output=True, check=True, env=env)
    assert not re.search(rb"[\x1b\r]", done.stdout)
    assert len(done.stdout.splitlines()) == 3


def test_a_run_goes_on_when_its_reader_has_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(waiting_plan(tmp_path, 2), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    (tmp_path / "go").touch()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
    again = subprocess.run(command("status", "p"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "3/3 done" in again.stdout


def test_a_heartbeat_says_that_the_run_is_alive(tmp_path: Path) -> None:
    paths, file = recorded(tmp_path), io.StringIO()
    with Live(paths, Console(file=file), heartbeat_s=0.2) as live:
        live.refresh()
        assert file.getvalue() == ""
        time.sleep(0.25)
        live.refresh()
        assert re.fullmatch(r"[\d: -]+  nothing runs; a pending, b pending\n", file.getvalue())
        live.transition("a", State.FAILED, "first\r\n\x1b[31msecond")
        live.refresh()
    assert file.getvalue().splitlines()[1][21:] == "a  failed  first second"
    assert len(file.getvalue().splitlines()) == 2


def test_the_heartbeat_of_a_running_task_says_how_far_it_is(tmp_path: Path) -> None:
    paths, file = recorded(tmp_path), io.StringIO()
    with Store(paths) as store:
        number = store.start_attempt("a", fingerprint="f", parts={})
    attempt = paths.attempt("a", number)
    attempt.folder.mkdir(parents=True)
    attempt.events.write_text('{"t": 1, "type": "progress", "done": 3, "total": 9, "unit": "steps"}\n')
    with attempt.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Live(paths, Console(file=file), heartbeat_s=0) as live:
            live.refresh()
    assert "a  still running  3/9  no progress for " in file.getvalue()


def test_the_table_is_drawn_at_most_four_times_a_second(tmp_path: Path) -> None:
    paths = recorded(tmp_path)
    outer, inner = pty.openpty()
    drawn = b""
    with os.fdopen(inner, "w", encoding="utf-8") as file, Live(paths, Console(file=file, width=80, height=24)) as live:
        end = time.monotonic() + 1.1
        while time.monotonic() < end:
            live.transition("a", State.RUNNING, "")
            live.refresh()
            while select.select([outer], [], [], 0.005)[0]:
                drawn += os.read(outer, 65536)
    os.close(outer)
    assert 1 <= drawn.count(b"0/2 done") <= 5
