"""Plans for tests, and the console script that runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import planfile
from harness.generic import TOOLS
from harness.plan import LoadedPlan

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
