"""What an ended attempt amounts to: completed, failed or interrupted, and the reason in one line."""

import signal
from dataclasses import dataclass, field
from typing import Any

from harness.errors import WORKER_INTERRUPTED
from harness.state import State, Verdict


@dataclass(frozen=True)
class Outcome:
    """`result` is what the tool returned: values, metrics, note, freed, seals."""

    state: State
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)


def judge(verdict: Verdict, result: dict[str, Any] | None, log_tail: list[str], *, timeout_s: float | None) -> Outcome:
    """Judge an attempt from the shim's verdict, the worker's result (None: it left none) and its last log lines."""
    if verdict.error:
        return Outcome(State.FAILED, f"could not be started: {verdict.error}")
    if verdict.stop == "timeout":
        return Outcome(
            State.FAILED, f"stopped at its time limit of {timeout_s:g} s" if timeout_s else "stopped at its time limit"
        )
    if verdict.exit_code == 0:
        return Outcome(State.COMPLETED, result=result or {})
    if verdict.stop or verdict.exit_code == WORKER_INTERRUPTED:
        return Outcome(State.INTERRUPTED, "stopped as asked")
    error = (result or {}).get("error")
    if error:
        return Outcome(State.FAILED, sentence(error))
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "")
    cause = signal_cause(verdict) if verdict.signal else f"exit code {verdict.exit_code}"
    return Outcome(State.FAILED, f"{cause}: {last}" if last else cause)


def sentence(error: dict[str, str]) -> str:
    """The parts of an error that a worker reported, as one line."""
    parts = [f"{error['where']}: {error['what']}" if error.get("where") else error["what"]]
    if error.get("found"):
        parts.append(f"found {error['found']}")
    line = "; ".join(parts)
    return f"{line}. {error['do']}" if error.get("do") else line


def signal_cause(verdict: Verdict) -> str:
    """The name of the signal that ended an attempt, with the peak memory when it was SIGKILL."""
    assert verdict.signal is not None
    try:
        name = signal.Signals(verdict.signal).name
    except ValueError:
        name = f"signal {verdict.signal}"
    if verdict.signal == signal.SIGKILL:
        return f"killed by {name} (peak memory {verdict.peak_rss_bytes / 2**30:.2f} GiB; out of memory?)"
    return f"killed by {name}"
