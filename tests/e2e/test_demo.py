"""The demo plan for real, in small: run undisturbed, killed in every way, damaged and repaired."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.engine.plans import command, harness
from tests.source import ROOT

SMALLER: dict[str, dict[str, Any]] = {
    "target": {"steps": 12, "num_conversations": 300, "hidden_size": 64, "num_layers": 6, "vocab_size": 1024},
    "prepare": {"num_samples": 120, "heldout": 6, "max_length": 128, "answers": "keep"},
    "vocab": {"size": 256},
    "extract": {"batch_tokens": 128},
    "verify": {"recompute": 2},
    "train": {"epochs": 1, "batch_tokens": 256, "checkpoint_every": 7, "unroll": 4},
    "evaluate": {"num_prompts": 3, "max_new_tokens": 16},
}
FEATURES = Path("work/demo/features")


def make_root(folder: Path) -> Path:
    """A root with the demo plan, made smaller, and the environment of the pack."""
    plan = YAML(typ="safe").load((ROOT / "plans" / "demo.yaml").read_text())
    for task in plan["tasks"]:
        task["with"].update(SMALLER.get(task["id"], {}))
    (folder / "plans").mkdir(parents=True)
    (folder / "plans" / "demo.yaml").write_text(json.dumps(plan))
    (folder / "harness.yaml").write_text(json.dumps({"envs": {"train": str(ROOT / ".venv-train/bin/python")}}))
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_root(tmp_path_factory.mktemp("undisturbed"))
    harness(root, "run", "plans/demo.yaml", seconds=900)
    return root


def tasks(root: Path) -> dict[str, dict[str, Any]]:
    return {task["id"]: task for task in json.loads(harness(root, "status", "--json"))["data"]["tasks"]}


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < end
        time.sleep(0.01)


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments), cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, text=True
    )


def worker(root: Path, task: str) -> int:
    """The pid of the task's running worker."""
    attempts = sorted(
        (root / "checkpoints/demo/tasks" / task).glob("*/started.json"), key=lambda path: path.stat().st_mtime
    )
    pid: int = json.loads(attempts[-1].read_text())["pid"]
    return pid


def progress(root: Path, task: str) -> int:
    """What the task's running attempt reported last."""
    events = sorted(
        (root / "checkpoints/demo/tasks" / task).glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime
    )
    if not events:
        return 0
    reports = [line for line in events[-1].read_text().splitlines() if '"progress"' in line]
    return int(json.loads(reports[-1])["done"]) if reports else 0


def files(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (root / FEATURES).glob("*/data_*.pt")}


def test_every_task_completes_and_a_rerun_executes_nothing(undisturbed: Path) -> None:
    found = tasks(undisturbed)
    assert {task["status"] for task in found.values()} == {"completed"}
    assert len(found) == 9
    assert "nothing executed" in harness(undisturbed, "run", "plans/demo.yaml")
    report = json.loads((undisturbed / "work/demo/evaluation/report.json").read_text())
    assert report["lossless"]
    assert report["acceptance_length"] >= report["untrained_acceptance_length"]
    exported = undisturbed / "work/demo/export"
    assert {path.name for path in exported.iterdir()} >= {"config.json", "model.safetensors"}
    assert not (undisturbed / FEATURES).exists(), "clean-disk frees the features"


def test_kills_of_engine_and_workers_lose_nothing_and_the_weights_are_the_same(
    undisturbed: Path, tmp_path: Path
) -> None:
    root = make_root(tmp_path / "disturbed root")
    run = start(root, "run", "plans/demo.yaml")
    until(lambda: len(files(root)) >= 20, run)
    os.kill(worker(root, "extract"), signal.SIGKILL)
    assert run.wait(60) == 1
    before = files(root)
    assert 20 <= len(before) < 120, "extract was not killed in the middle"

    run = start(root, "resume")
    until(lambda: progress(root, "train") >= 10, run)
    after = files(root)
    assert sum(after[name] != made for name, made in before.items()) <= 1, "a sample was extracted twice"
    os.kill(worker(root, "train"), signal.SIGKILL)
    assert run.wait(60) == 1

    run = start(root, "resume")
    until(lambda: tasks(root)["train"]["attempt"] == 2 and progress(root, "train") >= 10, run)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    os.kill(worker(root, "train"), 0)  # it outlives its engine
    harness(root, "resume", seconds=600)

    found = tasks(root)
    assert {task["status"] for task in found.values()} == {"completed"}
    attempts = {name: task["attempt"] for name, task in found.items()}
    assert attempts == {**dict.fromkeys(found, 1), "extract": 2, "train": 2}
    for part in ("target/model", "data/samples", "vocab", "drafter", "export"):
        assert digests(root / "work/demo" / part) == digests(undisturbed / "work/demo" / part), part


def test_damaged_features_are_named_and_only_they_are_repaired(undisturbed: Path, tmp_path: Path) -> None:
    root = make_root(tmp_path)
    for part in ("target", "data"):
        subprocess.run(["cp", "-a", "--parents", f"work/demo/{part}", str(root)], cwd=undisturbed, check=True)
    subprocess.run(["cp", "-a", "--parents", "checkpoints/demo", str(root)], cwd=undisturbed, check=True)
    harness(root, "forget", "extract")
    harness(root, "run", "plans/demo.yaml", "--only", "extract", seconds=300)
    flipped, removed, cut = (root / FEATURES / "00000" / f"data_{index}.pt" for index in (5, 50, 99))
    whole = digests(root / FEATURES / "00000")
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    removed.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    before = files(root)
    inputs = ["--features", str(FEATURES), "--samples", "work/demo/data/samples", "--target", "work/demo/target/model"]
    out = harness(root, "tool", "verify", "--out", "work/check", *inputs, code=1, seconds=120)
    assert "3 bad samples" in out
    for index in (5, 50, 99):
        assert f"sample {index}: " in out
    harness(root, "tool", "verify", "--out", "work/check", *inputs, "--repair", seconds=120)
    assert {name for name, made in files(root).items() if before.get(name) != made} == {
        "data_5.pt", "data_50.pt", "data_99.pt",
    }  # fmt: skip
    assert digests(root / FEATURES / "00000") == whole
    assert "its checkpoint holds" in harness(root, "why", "extract", "--plan", "demo")
