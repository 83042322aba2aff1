"""Snapshots of plans for the tests of the table, at a fixed time."""

from typing import Any

from harness.progress import Progress
from harness.state import State
from harness.status import Row, Snapshot

NOW = 1_700_000_000.0
GOING = Progress(4211, 10_000, "samples", 1.13, 5123.0, 0.4)
QUESTION = "Only 812 GB are free: delete the features of the first try? delete Delete them | keep Keep them"
KILLED = "exit 137 (SIGKILL), peak RSS 121 GB of 128 GB: the machine ran out of memory"


def row(name: str, state: State = State.PENDING, content: str = "", **more: Any) -> Row:
    facts = {"content": content or f"Do {name}", "priority": "medium", "tool": "shell", "needs": ()}
    process = "alive" if state == State.RUNNING else None
    return Row(id=name, state=state, **{**facts, "attempt": 0, "note": "", "process": process, **more})


def took(seconds: float, attempt: int = 1) -> dict[str, Any]:
    return {"started_at": NOW - 100 - seconds, "ended_at": NOW - 100, "attempt": attempt}


def plan(rows: list[Row], **more: Any) -> Snapshot:
    """A plan whose run has been alive for 2 h 41 m, unless told otherwise."""
    run = {"run": "01a231adb1af4b989eba", "pid": 4711, "host": "gpu-07", "alive": True, "started_at": NOW - 9660}
    return Snapshot("kimi-eagle3", rows=rows, now=NOW, **{**run, **more})


def busy() -> Snapshot:
    """A plan with a task in nearly every state."""
    tune = row("tune-server", State.COMPLETED, "Tune the SGLang server until its throughput stops rising", **took(724))
    extract = {"started_at": NOW - 3731, "attempt": 2, "note": "388 GB written", "progress": GOING}
    return plan(
        [
            tune,
            row(
                "extract",
                State.RUNNING,
                "Extract the hidden states of layers 2, 30, 58, 60",
                priority="high",
                **extract,
            ),
            row("free-disk", State.WAITING_DECISION, "Decide whether the features of the first try go", note=QUESTION),
            row(
                "准备数据",
                State.COMPLETED,
                "准备训练数据并检查每个样本",
                note="10 000 个样本，去掉 12 个重复",
                **took(10),
            ),
            row("train-first", State.FAILED, "Train the drafter, first recipe", note=KILLED, **took(190, attempt=3)),
            row(
                "train",
                State.BLOCKED,
                priority="high",
                note="needs 'train-first', which failed",
                needs=("train-first",),
            ),
            row("evaluate", priority="low", needs=("train",), past_s=353.0),
            row("fetch", State.WAITING_RETRY, note="exit 22: the server said 503", retry_at=NOW + 42, **took(5)),
            row("serve", State.WAITING_RESOURCES, note="GPUs: it needs 8, there are 0"),
            row("stopped", State.INTERRUPTED, note="stopped as asked, progress kept", **took(5)),
            row("skip", State.SKIPPED, priority="low", note="its condition is false"),
        ]
    )


def done() -> Snapshot:
    """A plan whose last run has completed everything."""
    rows = [row(name, State.COMPLETED, note=f"{name} is there", **took(12)) for name in ("prepare", "train", "export")]
    return plan(rows, alive=False, ended_at=NOW - 100, exit_code=0)
