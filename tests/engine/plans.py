"""Plans for tests, and the console script that runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jsonschema

from harness import planfile
from harness.generic import TOOLS
from harness.plan import LoadedPlan
from tests.source import ROOT

KNOWN = {tool.name: tool for tool in TOOLS}


def shell(name: str, command: str = "true", *, needs: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """A shell task as the plan file holds it."""
    return {
        "id": name,
        "content": f"do {name}",
        "tool": "shell",
        "needs": list(needs),
        "with": {"command": command},
        **more,
    }


def write_plan(root: Path, tasks: list[dict[str, Any]], *, name: str = "p", **more: Any) -> Path:
    """Write plans/<name>.yaml below the root."""
    path = root / "plans" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "tasks": tasks, **more}), encoding="utf-8")
    return path


def load(root: Path, tasks: list[dict[str, Any]], **more: Any) -> LoadedPlan:
    return planfile.load(write_plan(root, tasks, **more), KNOWN)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def harness(root: Path, *arguments: str, code: int = 0, seconds: float = 120, **env: str) -> str:
    """Run the console script in the root folder; its output, after its exit code was checked."""
    done = subprocess.run(
        command(*arguments),
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
        timeout=seconds,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def counted(name: str, *, needs: tuple[str, ...] = (), text: str = "") -> dict[str, object]:
    """A task that counts its executions in `log` and writes its output."""
    return shell(
        name, f"echo {name} >> log; echo '{text or name}' > {name}.out", needs=needs, outputs={"o": f"{name}.out"}
    )


def log(root: Path) -> list[str]:
    path = root / "log"
    return path.read_text().split() if path.exists() else []


def status(root: Path) -> dict[str, dict[str, object]]:
    document = json.loads(harness(root, "status", "--json"))
    jsonschema.validate(document, json.loads((ROOT / "docs/schemas/status.json").read_text()))
    return {task["id"]: task for task in document["data"]["tasks"]}


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


SLOW = "echo s >> log; echo half > s.out; until [ -e go ]; do sleep 0.02; done; echo whole > s.out; echo s_end >> log"


def slow_plan(root: Path, **more: object) -> Path:
    slow = shell("s", SLOW, needs=["a"], outputs={"o": "s.out"})
    return write_plan(root, [counted("a"), slow, counted("z", needs=("s",))], **more)
