"""Tasks that hang, are killed for want of memory, or hold a secret; with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import process
from harness.launching import py_spy
from harness.paths import AttemptPaths
from harness.process import Launch
from tests.engine.plans import harness, log, shell, status, until, write_plan
from tests.engine.test_process import wait

MEMORY = Path("/sys/fs/cgroup/memory")
HANGING = """
import threading, time
def waits_for_a_peer():
    time.sleep(600)
print("begun", flush=True)
threading.Thread(target=waits_for_a_peer, daemon=True).start()
waits_for_a_peer()
"""


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    folder = tmp_path / "t" / "1"
    folder.mkdir(parents=True)
    return AttemptPaths(folder)


def launch(paths: AttemptPaths, argv: list[str], **more: object) -> process.Attempt:
    facts = {"grace_s": 5.0, "timeout_s": None, "env": dict(os.environ), **more}
    return process.start(paths, Launch(argv, str(paths.folder), **facts))  # type: ignore[arg-type]


def test_a_task_without_progress_is_stopped_and_its_stacks_are_in_its_log(paths: AttemptPaths) -> None:
    script = paths.folder / "hanging.py"
    script.write_text(HANGING)
    attempt = launch(paths, ["/bin/sh", "-c", f"'{sys.executable}' hanging.py & wait"], stall_s=1.0, py_spy=py_spy())
    verdict = wait(attempt, 60)
    assert verdict
    assert verdict.stop == "stalled"
    text = paths.log.read_text()
    assert "no progress for too long" in text
    assert text.count("waits_for_a_peer") >= 2, text


def test_a_task_that_goes_on_is_not_taken_for_stalled(paths: AttemptPaths) -> None:
    attempt = launch(paths, ["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done"], stall_s=1.2)
    verdict = wait(attempt, 60)
    assert verdict
    assert (verdict.exit_code, verdict.stop) == (0, "")


def test_events_count_as_progress_and_where_there_are_some_the_log_does_not(paths: AttemptPaths) -> None:
    both = "echo '{}' >> events.jsonl; while :; do echo waiting; sleep 0.1; done"
    verdict = wait(launch(paths, ["/bin/sh", "-c", both], stall_s=1.0), 60)
    assert verdict
    assert verdict.stop == "stalled"


def test_a_hanging_python_task_dumps_its_own_stacks_without_any_tool(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text("import time\ndef hang():\n    time.sleep(600)\n")
    task = {"id": "h", "content": "h", "tool": "python", "with": {"call": "hanging:hang", "path": ["."]}}
    plan = write_plan(tmp_path, [{**task, "stall_timeout": 2, "retries": {"count": 1, "backoff": 0}}], grace_s=5)
    out = harness(tmp_path, "run", str(plan), code=1, PATH="/usr/bin:/bin")
    assert "stopped: it made no progress for 2 s; its log has the stacks" in out
    assert "2 attempts executed" in out
    assert 'hanging.py", line 3 in hang' in harness(tmp_path, "logs", "h")


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup of 256 MB."""
    group = MEMORY / f"harness-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("256000000")
    except OSError:
        pytest.skip("no memory cgroup of version 1 can be made here: it needs root and that controller")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


EATS = f"'{sys.executable}' -c 'import sys; x = bytearray(10**6 * int(sys.argv[1])); print(len(x))' "


def test_a_kill_for_want_of_memory_is_named_and_a_rule_asks_for_less(tmp_path: Path, small_memory: Path) -> None:
    task = {"id": "e", "content": "e", "tool": "shell", "with": {"command": f"{EATS} 1000", "env": {"N": "1"}}}
    again = {"count": 2, "backoff": 0, "rules": [{"cause": "oom", "with": {"command": f"{EATS} 10"}}]}
    plan = write_plan(tmp_path, [{**task, "retries": again}])
    inside = f"echo $$ > {small_memory}/cgroup.procs; exec '{sys.executable}' -m harness run {plan}"
    done = subprocess.run(
        ["/bin/sh", "-c", inside], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed by the kernel, which had run out of memory" in done.stdout
    assert "10000000" in harness(tmp_path, "logs", "e")
    assert "nothing executed" in harness(tmp_path, "resume"), "what the rule changed was forgotten"
    task["with"]["env"]["N"] = "2"  # type: ignore[index]
    write_plan(tmp_path, [{**task, "retries": again}])
    assert "parameter 'command' changed" in harness(tmp_path, "why", "e"), "the plan says something new, and counts"


def test_half_of_a_number_is_asked_for_at_each_lack_of_memory(tmp_path: Path) -> None:
    (tmp_path / "eat.py").write_text(
        "def eat(batch, rate):\n    if batch > 2:\n        raise MemoryError(f'batch {batch}')\n"
        "    return {'batch': batch}\n"
    )
    arguments = {"call": "eat:eat", "path": ["."], "args": {"batch": 8, "rate": 1.0}, "cpus": 2}
    rule = {"cause": "oom", "scale": {"cpus": 0.5}, "with": {"args": {"batch": 2, "rate": 1.0}}}
    task = {"id": "e", "content": "e", "tool": "python", "with": arguments}
    again = {"count": 1, "backoff": 0, "rules": [rule]}
    out = harness(tmp_path, "run", str(write_plan(tmp_path, [{**task, "retries": again}])))
    assert "out of memory: batch 8" in out
    request = json.loads((tmp_path / "checkpoints/p/tasks/e/2/request.json").read_text())
    assert request["params"]["cpus"] == 1
    assert request["params"]["args"]["batch"] == 2


def test_a_failure_that_must_not_be_repeated_is_not(tmp_path: Path) -> None:
    rules = [{"exit_codes": [2], "count": 0}, {"log": "^NCCL", "count": 2, "backoff": 0}]
    usage = shell("u", "echo u >> log; exit 2", retries={"count": 5, "backoff": 0, "rules": rules})
    nccl = shell("n", "echo n >> log; echo 'NCCL WARN x'; exit 1", retries={"count": 5, "backoff": 0, "rules": rules})
    harness(tmp_path, "run", str(write_plan(tmp_path, [usage, nccl])), code=1)
    assert log(tmp_path) == ["u", "n", "n", "n"]


def test_the_time_of_the_next_try_survives_a_killed_run(tmp_path: Path) -> None:
    from tests.engine.plans import start

    task = shell("f", "echo f >> log; [ -e mended ]", retries={"count": 1, "backoff": 3})
    process_ = start(tmp_path, "run", str(write_plan(tmp_path, [task])))
    until(lambda: status(tmp_path)["f"]["state"] == "waiting_retry" if log(tmp_path) else False)
    os.kill(process_.pid, signal.SIGKILL)
    process_.communicate()
    at = status(tmp_path)["f"]["retry_at"]
    (tmp_path / "mended").touch()
    harness(tmp_path, "resume")
    assert log(tmp_path) == ["f", "f"]
    assert status(tmp_path)["f"]["started_at"] >= at, "it was tried too early"


TOKEN = "hf_a-very/secret+token=="


def everything_below(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_secret_reaches_the_task_and_no_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "import sys\ndef use(token):\n    open('got.txt', 'w').write(token)\n    print('the token is', token)\n"
        "    sys.stdout.write(token[:9]); sys.stdout.flush(); sys.stdout.write(token[9:] + '\\n')\n"
        "    return {'token': token}\n"
        "def fail(token):\n    raise ValueError(f'{token} is refused')\n"
    )
    arguments = {"args": {"token": "${secrets.hub}"}, "path": ["."]}
    tasks = [
        {"id": "s", "content": "s", "tool": "shell",
         "with": {"command": "echo $T > shell.txt; echo $T; echo $T >&2", "env": {"T": "${secrets.file}"}}},
        {"id": "u", "content": "u", "tool": "python", "with": {"call": "use:use", **arguments}},
        {"id": "f", "content": "f", "tool": "python", "with": {"call": "use:fail", **arguments}},
    ]  # fmt: skip
    (tmp_path / "token.txt").write_text("from-a-file-9876\n")
    secrets = {"hub": {"env": "HUB_TOKEN"}, "file": {"file": str(tmp_path / "token.txt")}}
    plan = write_plan(tmp_path, tasks, secrets=secrets)
    out = harness(tmp_path, "run", str(plan), code=1, HUB_TOKEN=TOKEN)
    assert (tmp_path / "got.txt").read_text() == TOKEN
    assert (tmp_path / "shell.txt").read_text() == "from-a-file-9876\n"
    kept = everything_below(tmp_path / "checkpoints")
    for secret in (TOKEN, "from-a-file-9876"):
        assert secret.encode() not in kept
        assert secret not in out
    assert "[secret] is refused" in out
    assert harness(tmp_path, "logs", "s") == "[secret]\n[secret]\n"
    assert harness(tmp_path, "logs", "u") == "the token is [secret]\n[secret]\n"
    assert "nothing executed" in harness(tmp_path, "run", str(plan), "--only", "u", HUB_TOKEN="another")


def test_a_missing_secret_blocks_and_is_named(tmp_path: Path) -> None:
    task = {"id": "a", "content": "a", "tool": "shell", "with": {"command": "true", "env": {"T": "${secrets.hub}"}}}
    plan = write_plan(tmp_path, [task], secrets={"hub": {"env": "NO_SUCH_TOKEN"}})
    out = harness(tmp_path, "run", str(plan), code=5)
    assert "secret 'hub' is missing; found the environment variable 'NO_SUCH_TOKEN' is not set" in out


def test_a_secret_may_not_stand_where_it_would_be_seen(tmp_path: Path) -> None:
    task = {"id": "a", "content": "${secrets.hub}", "tool": "shell", "outputs": {"o": "${secrets.hub}/x"},
            "with": {"command": "curl -H ${secrets.hub} ${secrets.hup}"}}  # fmt: skip
    plan = write_plan(tmp_path, [task], secrets={"hub": {"env": "A"}})
    out = harness(tmp_path, "check", str(plan), code=3)
    assert "would be seen by everybody who lists processes" in out
    assert "refers to no secret of the plan. Did you mean 'hub'?" in out
    assert out.count("would be seen here") == 2
    write_plan(tmp_path, [task], secrets={"hub": {"env": "A", "file": "b"}})
    assert "a secret comes from env or from file" in harness(tmp_path, "check", str(plan), code=3)
