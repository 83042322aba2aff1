"""The wheel, installed into a fresh environment and used from a foreign folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of a fresh environment that holds the wheel and nothing of this folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    constraint = ROOT / "constraints" / "engine.txt"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", constraint, wheel]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "env" / "bin" / "harness"


def run(console: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [console, *arguments], cwd=folder, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_a_plan_in_a_foreign_folder(console: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a foreign folder"
    folder.mkdir()
    made = [
        {"id": "a", "content": "a", "tool": "shell", "with": {"command": "echo a > a.out"}, "outputs": {"o": "a.out"}},
    ]
    (folder / "my plan.yaml").write_text(json.dumps({"name": "p", "tasks": made[:1]}))
    assert {"shell", "extract", "train"} <= {line.split(" ")[0] for line in run(console, folder, "tools").splitlines()}
    assert "is valid, 1 tasks" in run(console, folder, "check", "my plan.yaml")
    assert "1 attempt executed" in run(console, folder, "run", "my plan.yaml")
    assert "nothing executed" in run(console, folder, "resume")
    assert "completed" in run(console, folder, "status")


def test_the_wheel_holds_the_two_packages_and_nothing_else(console: Path) -> None:
    site = next((console.parents[1] / "lib").glob("python*/site-packages"))
    record = next(site.glob("drafter_harness-*.dist-info")) / "RECORD"
    tops = {line.split("/")[0] for line in record.read_text().splitlines()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"harness", "eagle3", ".."}
    assert "licenses/LICENSE" in record.read_text()
