"""The states of a task, the todo word that each is shown as, and the records kept of a task."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.files import Seal


class State(StrEnum):
    """The precise state that the store keeps."""

    PENDING = "pending"
    BLOCKED = "blocked"  # something it needs has failed or was cancelled
    WAITING_RESOURCES = "waiting_resources"
    WAITING_DECISION = "waiting_decision"
    WAITING_RETRY = "waiting_retry"
    WAITING_DISK = "waiting_disk"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # stopped because we were asked to; uses up no retry
    LOST = "lost"  # its process is gone without a verdict; uses up no retry
    SKIPPED = "skipped"  # its `when` is false; what needs it may run
    CANCELLED = "cancelled"


SHOWN_AS = {
    State.RUNNING: "in_progress",
    State.COMPLETED: "completed",
    State.SKIPPED: "cancelled",
    State.CANCELLED: "cancelled",
}
SETTLED = frozenset({State.COMPLETED, State.SKIPPED})


def shown_as(state: State) -> str:
    """The todo word of a state: pending, in_progress, completed or cancelled."""
    return SHOWN_AS.get(state, "pending")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The stored fact that a task completed.

    `freed` maps an output's name to who deleted it on purpose.
    """

    task: str
    attempt: int
    fingerprint: str
    seals: dict[str, Seal]
    values: dict[str, Any]
    metrics: dict[str, float]
    note: str
    ended_at: float
    freed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What the store knows of one task now. Times are seconds since the epoch."""

    task: str
    state: State
    attempt: int = 0  # number of the latest attempt, 0 before the first
    tries_used: int = 0  # failed attempts since the last completion or retry; lost and interrupted ones don't count
    reason: str = ""  # one line: why it is in this state
    started_at: float | None = None
    ended_at: float | None = None
    retry_at: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the shim wrote when an attempt's processes were all gone.

    Exactly one of `exit_code` and `signal` is set. `stop` says whether the shim was told to end it:
    "" (nobody), "stop" (asked), "hard" (killed at request), "timeout" or "stalled" (no progress for too long).
    `oom_kills` counts the processes that the kernel killed meanwhile, for want of memory, beside or below it.
    """

    exit_code: int | None
    signal: int | None
    stop: str
    started_at: float
    ended_at: float
    cpu_s: float
    peak_rss_bytes: int
    oom_kills: int = 0
    error: str = ""  # the command could not even be started, and why
    errno: int = 0  # of that
