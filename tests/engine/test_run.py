"""`harness run` for real, through the console script."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.engine.plans import command, counted, harness, log, shell, slow_plan, start, status, until, write_plan


def test_a_plan_runs_once_and_a_rerun_executes_nothing(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [counted("a"), counted("b", needs=("a",)), counted("c", needs=("a",))])
    assert "3 attempts executed" in harness(tmp_path, "run", str(plan))
    assert log(tmp_path) == ["a", "b", "c"]
    assert "nothing executed" in harness(tmp_path, "run", str(plan))
    assert "nothing executed" in harness(tmp_path, "resume")
    assert log(tmp_path) == ["a", "b", "c"]
    assert {task["status"] for task in status(tmp_path).values()} == {"completed"}


def test_a_changed_parameter_reruns_what_depends_on_it_and_why_says_so(tmp_path: Path) -> None:
    def tasks(text: str) -> list[dict[str, object]]:
        read = shell("b", "cat a.out >> log; cp a.out b.out", needs=["a"], outputs={"o": "b.out"})
        return [counted("a", text=text), read, counted("z")]

    harness(tmp_path, "run", str(write_plan(tmp_path, tasks("one"))))
    write_plan(tmp_path, tasks("two"))
    assert "parameter 'command' changed from" in harness(tmp_path, "why", "a")
    out = harness(tmp_path, "run", "p")
    assert "b  pending  output 'o' of 'a' changed" in out
    assert sorted(log(tmp_path)) == sorted(["a", "one", "z", "a", "two"])


def test_a_rerun_with_equal_outputs_leaves_what_depends_on_it_alone(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [counted("a"), counted("b", needs=("a",))])
    harness(tmp_path, "run", str(plan))
    harness(tmp_path, "forget", "a")
    harness(tmp_path, "run", "p")
    assert log(tmp_path) == ["a", "b", "a"]
    assert status(tmp_path)["b"]["state"] == "completed"


@pytest.mark.parametrize("damage", ["remove", "change"])
def test_a_damaged_output_makes_its_task_run_again(tmp_path: Path, damage: str) -> None:
    plan = write_plan(tmp_path, [counted("a"), counted("b")])
    harness(tmp_path, "run", str(plan))
    out = tmp_path / "a.out"
    out.unlink() if damage == "remove" else out.write_text("x\n")
    assert "output 'o' is missing or was changed" in harness(tmp_path, "why", "a")
    harness(tmp_path, "run", "p")
    assert log(tmp_path) == ["a", "b", "a"]


def test_touching_an_output_changes_nothing(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [counted("a")])
    harness(tmp_path, "run", str(plan))
    os.utime(tmp_path / "a.out", (1, 1))
    assert "nothing executed" in harness(tmp_path, "run", "p")


def test_a_changed_input_file_makes_its_task_stale(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("1")
    task = shell("a", "cat data.txt >> log")
    task["with"]["inputs"] = ["data.txt"]
    plan = write_plan(tmp_path, [task])
    harness(tmp_path, "run", str(plan))
    (tmp_path / "data.txt").write_text("2")
    assert "input 'data.txt' changed" in harness(tmp_path, "why", "a")
    harness(tmp_path, "run", "p")
    assert log(tmp_path) == ["12"]


def test_a_failed_task_blocks_only_what_needs_it_and_the_exit_code_is_1(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [shell("a", "echo oh dear; exit 3"), counted("b", needs=("a",)), counted("c")])
    out = harness(tmp_path, "run", str(plan), code=1)
    assert "a  failed  exit code 3: oh dear" in out
    assert status(tmp_path)["b"]["state"] == "blocked"
    assert log(tmp_path) == ["c"]
    why = harness(tmp_path, "why", "b")
    assert "it needs 'a' failed: exit code 3: oh dear" in why
    assert harness(tmp_path, "logs", "a") == "oh dear\n"


def test_a_task_that_ends_well_without_its_output_has_failed(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [shell("a", "true", outputs={"o": "nowhere.out"})])
    assert "a declared output can't be sealed" in harness(tmp_path, "run", str(plan), code=1)


def test_a_task_is_tried_again_as_often_as_the_plan_says(tmp_path: Path) -> None:
    flaky = shell("a", "echo a >> log; [ $(wc -l < log) -ge 3 ]", retries={"count": 2, "backoff": 0.1})
    harness(tmp_path, "run", str(write_plan(tmp_path, [flaky])))
    assert log(tmp_path) == ["a"] * 3
    hopeless = shell("b", "echo b >> log; false", retries={"count": 1, "backoff": 0})
    harness(tmp_path, "run", str(write_plan(tmp_path, [hopeless], name="q")), code=1)
    assert log(tmp_path) == ["a"] * 3 + ["b"] * 2


def test_a_decision_stops_only_what_needs_it_and_then_picks_the_branch(tmp_path: Path) -> None:
    ask = {
        "id": "ask", "content": "choose", "needs": ["n"],
        "decision": {"question": "${tasks.n.outputs.rows} rows?", "options": [{"key": "few"}, {"key": "many"}]},
    }  # fmt: skip
    count = shell("n", """echo '{"values": {"rows": 12}}' > $HARNESS_RESULT""")
    choice = "${tasks.ask.outputs.choice}"
    few, many = ({**counted(name), "when": f"{choice} == '{key}'"} for name, key in (("f", "few"), ("m", "many")))
    tasks = [count, ask, few, many, counted("end", needs=("f", "m")), counted("free")]
    plan = write_plan(tmp_path, tasks)
    out = harness(tmp_path, "run", str(plan), code=4)
    assert "ask  needs you  12 rows? few | many" in out
    assert log(tmp_path) == ["free"]
    assert "no option 'lots'" in harness(tmp_path, "decide", "ask", "lots", "--because", "x", code=2)
    assert "needs its reason" in harness(tmp_path, "decide", "ask", "many", "--because", " ", code=2)
    harness(tmp_path, "decide", "ask", "many", "--because", "there is time")
    harness(tmp_path, "run", "p")
    assert log(tmp_path) == ["free", "m", "end"]
    assert status(tmp_path)["f"]["state"] == "skipped"


def test_an_answer_given_while_the_plan_runs_is_taken_in(tmp_path: Path) -> None:
    ask = {"id": "ask", "content": "choose", "decision": {"question": "?", "options": [{"key": "x"}, {"key": "y"}]}}
    slow = shell("slow", "until [ -e go ]; do sleep 0.05; done")
    plan = write_plan(tmp_path, [ask, slow, counted("then", needs=("ask",))])
    process = start(tmp_path, "run", str(plan), "--jobs", "2")
    until((tmp_path / "checkpoints/p/tasks/slow/1/started.json").exists)
    harness(tmp_path, "decide", "ask", "x", "--because", "y not")
    until(lambda: log(tmp_path) == ["then"])
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out


def test_priority_flows_to_what_an_important_task_needs(tmp_path: Path) -> None:
    tasks = [counted("low"), counted("base"), {**counted("top", needs=("base",)), "priority": "high"}]
    harness(tmp_path, "run", str(write_plan(tmp_path, tasks)))
    assert log(tmp_path) == ["base", "top", "low"]


def test_independent_tasks_run_side_by_side_up_to_jobs(tmp_path: Path) -> None:
    meet = "echo {0} >> log; until [ $(wc -l < log) -ge 2 ]; do sleep 0.02; done"
    tasks = [shell(name, meet.format(name)) for name in ("a", "b")]
    harness(tmp_path, "run", str(write_plan(tmp_path, tasks)), "--jobs", "2")
    assert sorted(log(tmp_path)) == ["a", "b"]


def test_only_runs_a_task_and_what_it_needs(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, [counted("a"), counted("b", needs=("a",)), counted("c", needs=("b",)), counted("d")])
    harness(tmp_path, "run", str(plan), "--only", "b")
    assert log(tmp_path) == ["a", "b"]
    assert "Did you mean 'b'?" in harness(tmp_path, "run", str(plan), "--only", "bb", code=7)


def test_a_python_task_returns_values_that_others_use(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sums.py").write_text("def add(a, b): return {'total': a + b}\n")
    add = {
        "id": "add",
        "content": "add",
        "tool": "python",
        "with": {"call": "sums:add", "args": {"a": 2, "b": 3}, "path": ["code"]},
    }
    plan = write_plan(tmp_path, [add, shell("say", "echo ${tasks.add.outputs.total} > log")])
    harness(tmp_path, "run", str(plan))
    assert log(tmp_path) == ["5"]
    add["with"]["call"] = "sums:sub"  # type: ignore[index]
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [add])), code=1)
    assert "no function 'sums:sub'" in out
    assert "Traceback" not in out


def test_a_missing_input_blocks_with_exit_code_5(tmp_path: Path) -> None:
    task = shell("a")
    task["with"]["inputs"] = ["absent.txt"]
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [task])), code=5)
    assert "file 'absent.txt': needs it to exist" in out
    assert "absent.txt" in harness(tmp_path, "check", "plans/p.yaml")


def test_an_impossible_ask_blocks_with_exit_code_5(tmp_path: Path) -> None:
    task = shell("a")
    task["with"]["disk_bytes"] = {"out": 10**18}
    assert "disk of 'out': needs 909495 TiB free" in harness(tmp_path, "run", str(write_plan(tmp_path, [task])), code=5)


def test_freed_outputs_count_as_done_until_something_needs_them_again(tmp_path: Path) -> None:
    def tasks(text: str) -> list[dict[str, object]]:
        make = shell("make", "echo make >> log; mkdir -p work; echo big > work/big", outputs={"o": "work/big"})
        read = f"echo use >> log; cat ${{tasks.make.outputs.o}} > use.out; : {text}"
        use = shell("use", read, outputs={"o": "use.out"})
        other = shell("other", "echo other >> log; cat ${tasks.make.outputs.o} > other.out", outputs={"o": "other.out"})
        clean = {"id": "clean", "content": "free", "tool": "clean-disk", "needs": ["use", "other"],
                 "with": {"out": "clean.json", "paths": ["${tasks.make.outputs.o}"], "roots": ["work"]}}  # fmt: skip
        return [make, use, other, clean]

    harness(tmp_path, "run", str(write_plan(tmp_path, tasks("one"))))
    assert not (tmp_path / "work" / "big").exists()
    assert log(tmp_path) == ["make", "use", "other"]
    assert "deleted since, on purpose: o" in harness(tmp_path, "why", "make")
    assert "nothing executed" in harness(tmp_path, "run", "p")
    write_plan(tmp_path, tasks("two"))
    out = harness(tmp_path, "run", "p")
    assert "make  pending  output 'o' was freed by 'clean' and is needed again by 'use'" in out
    assert log(tmp_path) == ["make", "use", "other", "make", "use"]
    assert not (tmp_path / "work" / "big").exists()
    assert {task["state"] for task in status(tmp_path).values()} == {"completed"}


def test_what_a_task_still_needs_is_not_deleted(tmp_path: Path) -> None:
    make = shell("make", "mkdir -p work; echo big > work/big", outputs={"o": "work/big"})
    clean = {"id": "clean", "content": "free", "tool": "clean-disk", "needs": ["make"], "priority": "high",
             "with": {"out": "clean.json", "paths": ["work/big"], "roots": ["work"]}}  # fmt: skip
    plan = write_plan(tmp_path, [make, clean, shell("use", "cat work/big", needs=["make"], priority="low")])
    assert "output 'o' of 'make' is needed by 'use'" in harness(tmp_path, "run", str(plan), code=1)
    assert (tmp_path / "work" / "big").exists()


@pytest.mark.parametrize("path", ["checkpoints", "checkpoints/p/state.db", "checkpoints/other"])
def test_the_engines_own_state_is_never_deleted(tmp_path: Path, path: str) -> None:
    clean = {"id": "clean", "content": "free", "tool": "clean-disk",
             "with": {"out": "clean.json", "paths": [path], "roots": ["."]}}  # fmt: skip
    assert f"'{path}' must stay: " in harness(tmp_path, "run", str(write_plan(tmp_path, [clean])), code=1)
    assert (tmp_path / "checkpoints" / "p" / "state.db").exists()


def test_a_killed_engine_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert status(tmp_path)["s"]["state"] == "running"
    again = start(tmp_path, "resume")
    assert again.stdout
    assert "s  in_progress  attempt 1 outlived its run and is adopted" in again.stdout.readline()
    (tmp_path / "go").touch()
    out, _ = again.communicate(timeout=30)
    assert again.returncode == 0, out
    assert log(tmp_path) == ["a", "s", "s_end", "z"]
    assert (tmp_path / "s.out").read_text() == "whole\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_stop_interrupts_the_task_and_a_rerun_starts_it_again(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code, out
    assert "Traceback" not in out
    assert status(tmp_path)["s"]["state"] == "interrupted"
    (tmp_path / "go").touch()
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["a", "s", "s", "s_end", "z"]


def test_a_second_ctrl_c_kills_what_ignores_the_first(tmp_path: Path) -> None:
    stubborn = shell("s", "trap '' TERM; echo s >> log; while :; do sleep 0.05; done")
    process = start(tmp_path, "run", str(write_plan(tmp_path, [stubborn])))
    until(lambda: log(tmp_path) == ["s"])
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_detaching_leaves_the_task_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path, on_interrupt="detach")))
    until(lambda: log(tmp_path) == ["a", "s"])
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Detached: s goes on. Look at it: harness attach p" in out
    (tmp_path / "go").touch()
    until(lambda: log(tmp_path) == ["a", "s", "s_end"])
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["a", "s", "s_end", "z"]


def test_a_second_run_is_refused_in_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    refused = harness(tmp_path, "resume", code=6)
    assert f"owned by another run (pid {process.pid} on" in refused
    assert refused.count("\n") == 1
    assert "owned by another run" in harness(tmp_path, "forget", "a", code=6)
    (tmp_path / "go").touch()
    process.communicate(timeout=30)
    assert log(tmp_path) == ["a", "s", "s_end", "z"]


def test_a_killed_supervisor_costs_no_retry_and_the_task_runs_again(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    started = tmp_path / "checkpoints/p/tasks/s/1/started.json"
    until(started.exists)
    until(lambda: log(tmp_path) == ["a", "s"])
    os.kill(json.loads(started.read_text())["shim_pid"], signal.SIGKILL)
    until(lambda: log(tmp_path) == ["a", "s", "s"])
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert "s  lost" in out
    assert log(tmp_path) == ["a", "s", "s", "s_end", "z"]


def test_an_attempt_that_a_lost_database_knew_of_does_not_run_beside_the_next(tmp_path: Path) -> None:
    process = start(tmp_path, "run", str(slow_plan(tmp_path)))
    until(lambda: log(tmp_path) == ["a", "s"])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for file in (tmp_path / "checkpoints/p").glob("state.db*"):
        file.unlink()
    again = start(tmp_path, "run", str(tmp_path / "plans/p.yaml"))
    until(lambda: log(tmp_path) == ["a", "s", "a", "s"])
    (tmp_path / "go").touch()
    out, _ = again.communicate(timeout=30)
    assert "An attempt that no record tells of was running, and has been stopped" in out
    assert log(tmp_path) == ["a", "s", "a", "s", "s_end", "z"]


def test_a_task_removed_from_the_plan_is_shown_as_such(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a"), counted("b")])))
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("b")])))
    assert set(status(tmp_path)) == {"b"}
    assert json.loads(harness(tmp_path, "status", "--json"))["data"]["removed"] == [{"id": "a", "state": "completed"}]
    assert "1/1 done" in harness(tmp_path, "status")
    assert "removed from the plan, kept: a (completed)" in harness(tmp_path, "status")
    assert log(tmp_path) == ["a", "b"]
    assert "nothing executed" in harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a"), counted("b")])))


def test_two_files_can_not_share_a_name(tmp_path: Path) -> None:
    harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a")])))
    other = tmp_path / "plans" / "other.yaml"
    other.write_text(
        '{"name": "p", "tasks": [{"id": "x", "content": "x", "tool": "shell", "with": {"command": "true"}}]}'
    )
    assert "already used by another plan file" in harness(tmp_path, "run", str(other), code=3)


def test_errors_are_json_where_json_was_asked_for(tmp_path: Path) -> None:
    bad = write_plan(tmp_path, [shell("a", needs=["b"])])
    error = json.loads(harness(tmp_path, "check", str(bad), "--json", code=3))
    assert error["error"]["code"] == "plan_invalid"
    assert error["error"]["mistakes"][0]["line"] == 1
    assert json.loads(harness(tmp_path, "status", "--json", code=7))["error"]["code"] == "not_found"


def test_the_exit_code_of_a_wrong_option_is_2(tmp_path: Path) -> None:
    assert "Traceback" not in harness(tmp_path, "run", "--nonsense", code=2)
    assert "Traceback" not in harness(tmp_path, "frobnicate", code=2)


def test_a_pipe_gets_dated_lines_without_escape_codes(tmp_path: Path) -> None:
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [counted("a")])), FORCE_COLOR="")
    assert not re.search(r"[\x1b\r]", out)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in out.splitlines())


def test_a_terminal_shows_the_table_and_ctrl_c_there_ends_cleanly(tmp_path: Path) -> None:
    plan = slow_plan(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ.update(COLUMNS="100", LINES="30", TERM="xterm-256color")
        os.execv(sys.executable, command("run", str(plan)))
    seen = b""

    def read() -> bytes:
        nonlocal seen
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                return seen
        return seen

    until(lambda: b"in_progress" in read() and log(tmp_path) == ["a", "s"])
    os.write(terminal, b"\x03")
    end = time.monotonic() + 20
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        read()
        assert time.monotonic() < end
    assert os.waitstatus_to_exitcode(done[1]) == 130
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read().decode())
    assert "Stopping: each task has 30 s" in text
    assert "interrupted" in text
    os.close(terminal)


def test_a_single_tool_runs_outside_a_plan(tmp_path: Path) -> None:
    out = harness(tmp_path, "tool", "shell", "--command", "echo hello >> log", "--cpus", "1")
    assert "1 completed" in out
    harness(tmp_path, "tool", "shell", "--command=echo hello >> log")
    assert log(tmp_path) == ["hello", "hello"]
    assert "unknown key 'comand'" in harness(tmp_path, "tool", "shell", "--comand", "x", code=3)
    assert "is no tool" in harness(tmp_path, "tool", "shel", code=7)


@pytest.mark.parametrize("make", ["mkfifo out", "mkdir out; mkfifo out/pipe"])
def test_an_output_that_can_not_be_sealed_fails_its_task_at_once(tmp_path: Path, make: str) -> None:
    plan = write_plan(tmp_path, [shell("a", make, outputs={"o": "out"}), counted("b")])
    out = harness(tmp_path, "run", str(plan), code=1, seconds=30)
    assert "a declared output can't be sealed" in out
    assert "neither a file nor a folder" in out
    assert log(tmp_path) == ["b"]


def test_an_input_that_is_a_pipe_fails_its_task_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    task = shell("a")
    task["with"]["inputs"] = ["pipe"]
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [task])), code=1, seconds=30)
    assert "an input can't be read; found" in out


def test_a_second_stop_does_not_wait_for_big_outputs_to_be_sealed(tmp_path: Path) -> None:
    big = shell("big", "truncate -s 60G big; echo big >> log", outputs={"o": "big"})
    process = start(tmp_path, "run", str(write_plan(tmp_path, [big])))
    until(lambda: log(tmp_path) == ["big"])
    time.sleep(0.7)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.7)
    assert process.poll() is None, "the first waits for it"
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_a_command_that_is_too_long_for_the_system_says_so(tmp_path: Path) -> None:
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [shell("a", f": {'x' * 140_000}")])), code=1)
    assert "the command is too long: 140,0" in out
    assert "put it into a script" in out
