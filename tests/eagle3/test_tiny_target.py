"""The tool `tiny-target` makes a target that has learnt something, the same one after a kill."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from workshop import lines_of

from eagle3.chat import open_chat
from eagle3.target import load_target
from eagle3.tiny_target.corpus import pieces, text_files
from eagle3.tiny_target.muon import Muon, orthogonal
from eagle3.tiny_target.spec import TOOL, TinyTargetParams
from harness.contract import Result
from harness.errors import ToolError

Run = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]
SMALL = {
    "source": "text",
    "steps": 12,
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 2,
    "vocab_size": 400,
    "sequence_length": 64,
    "batch_size": 4,
    "num_conversations": 20,
    "checkpoint_every": 3,
    "threads": 1,
}


@pytest.fixture
def text(root: Path) -> Path:
    """Twelve files of code that repeats itself."""
    folder = root / "text"
    folder.mkdir()
    for number in range(12):
        lines = [f"def f_{number}_{i}(value):\n    total = value + {i}\n    return total\n" for i in range(30)]
        (folder / f"m{number}.py").write_text("\n".join(lines))
    return folder


def weights(folder: Path | str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model" / "model.safetensors")


@pytest.mark.usefixtures("text")
def test_it_writes_a_target_that_loads_with_a_template_that_can_be_learnt_from(run_tool: Run) -> None:
    result = run_tool(TOOL, out="tiny", **SMALL)
    target = load_target("tiny/model")
    assert (target.hidden_size, target.num_layers) == (32, 4)
    assert target.vocab_size == len(target.tokenizer) <= 400
    chat = open_chat(target.tokenizer, target.stop_ids, "tiny/model")
    lines = [json.loads(line) for line in Path("tiny/conversations.jsonl").read_text().splitlines()]
    assert len(lines) == result.values["num_conversations"] == 20
    ids, mask = chat.encode(lines[0]["messages"])
    assert target.tokenizer.decode([i for i, bit in zip(ids, mask, strict=True) if bit]) == (
        lines[0]["messages"][1]["content"] + "<|end|>"
    )


@pytest.mark.usefixtures("text")
def test_it_learns(run_tool: Run) -> None:
    first = run_tool(TOOL, out="one", **{**SMALL, "steps": 1}).values["loss"]
    (Path(".scratch") / "progress.pt").unlink(missing_ok=True)
    last = run_tool(TOOL, out="many", **{**SMALL, "steps": 60}).values["loss"]
    assert last < first / 2


def test_no_conversation_comes_from_a_file_that_is_trained_on(text: Path, run_tool: Run) -> None:
    run_tool(TOOL, out="tiny", **SMALL)
    lines = [json.loads(line) for line in Path("tiny/conversations.jsonl").read_text().splitlines()]
    held_back = {name for line in lines for name in names(line["messages"])}
    [said] = [event["text"] for event in lines_of(Path.cwd()) if event["type"] == "say"]
    assert said.startswith(f"{12 - len(held_back)} files, ")
    assert 0 < len(held_back) < 12
    assert text.is_dir()


def names(messages: list[dict[str, str]]) -> set[str]:
    """Numbers of the files that define the functions in these messages."""
    words = " ".join(message["content"] for message in messages).split()
    return {word.split("_")[1] for word in words if word.startswith("f_")}


@pytest.mark.usefixtures("text")
def test_the_same_seed_gives_the_same_weights_and_another_one_others(run_tool: Run) -> None:
    made = []
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        forget(Path.cwd())
        run_tool(TOOL, out=out, **{**SMALL, "steps": 3}, seed=seed)
        made.append(weights(out))
    assert equal(made[0], made[1])
    assert not equal(made[0], made[2])


@pytest.mark.usefixtures("text")
def test_after_a_kill_it_goes_on_at_the_kept_step_and_ends_with_the_same_bits(
    start_tool: Start, run_tool: Run, root: Path
) -> None:
    params = {**SMALL, "steps": 60, "sequence_length": 128}
    worker = start_tool(TOOL, out="tiny", **params)
    deadline = time.monotonic() + 120
    while not (root / ".scratch" / "progress.pt").exists():
        assert worker.poll() is None, (root / ".attempt" / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert not (root / "tiny").exists()
    run_tool(TOOL, out="tiny", **params)
    said = [event["text"] for event in lines_of(root) if event["type"] == "say"]
    assert any(text.startswith("going on at step ") for text in said)
    forget(root)
    run_tool(TOOL, out="undisturbed", **params)
    assert equal(weights("tiny"), weights("undisturbed"))
    tokenizers = [Path(out, "model", "tokenizer.json").read_text() for out in ("tiny", "undisturbed")]
    assert tokenizers[0] == tokenizers[1]


def forget(root: Path) -> None:
    for path in sorted((root / ".scratch").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_folder_without_text_is_refused(run_tool: Run, root: Path) -> None:
    (root / "text").mkdir()
    with pytest.raises(ToolError, match="not enough text to train on; found 0 files"):
        run_tool(TOOL, out="tiny", **SMALL)


def test_nothing_said_it_reads_the_running_pythons_library() -> None:
    names_ = {path.name for path in text_files(None, 0)}
    assert {"argparse.py", "dataclasses.py"} <= names_
    assert not any("site-packages" in str(path) for path in text_files(None, 0))


def test_pieces_are_all_of_the_text_and_no_longer_than_asked(text: Path) -> None:
    found = list(pieces(text / "m3.py", 300))
    assert all(len(piece.question) + len(piece.answer) < 300 + 40 for piece in found)
    joined = "\n".join(piece.question + "\n" + piece.answer for piece in found)
    assert joined.split() == (text / "m3.py").read_text().split()
    assert all(piece.question.startswith("def ") for piece in found), "cut at blank lines"


def test_a_state_that_the_heads_dont_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_size 100 must be a multiple of 2 x num_heads"):
        TinyTargetParams(out="x", hidden_size=100, num_heads=8)


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 24, 24)])
def test_the_update_is_orthogonal_in_its_smaller_side_and_keeps_the_directions(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    update = orthogonal(matrices)
    for before, after in zip(matrices, update, strict=True):
        assert float(torch.linalg.svdvals(after).min()) > 0.5
        assert float(torch.linalg.svdvals(after).max()) < 1.3
        u, _, v = torch.linalg.svd(before, full_matrices=False)
        assert torch.allclose(u.mT @ after @ v.mT, torch.diag(torch.diag(u.mT @ after @ v.mT)), atol=1e-3)


def test_muon_goes_downhill() -> None:
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.randn(8, 8, generator=generator))
    goal = torch.randn(8, 8, generator=generator)
    optimizer = Muon([param], lr=0.2)
    losses = []
    for _ in range(60):
        loss = (param - goal).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 5
