"""How states, times, counts and notes are said to people, in one line each."""

import re

from harness.state import State, shown_as
from harness.status import HOPELESS, Row, Snapshot

MARKS = {
    State.COMPLETED: "✓", State.RUNNING: "●", State.FAILED: "✗", State.SKIPPED: "–", State.CANCELLED: "–",
    State.WAITING_DECISION: "?", State.WAITING_RESOURCES: "◔", State.WAITING_RETRY: "↻", State.WAITING_DISK: "◔",
    State.INTERRUPTED: "‖", State.LOST: "‖", State.BLOCKED: "·", State.PENDING: "·",
}  # fmt: skip
WORDS = {
    State.WAITING_DECISION: "needs you", State.WAITING_RESOURCES: "waits", State.WAITING_RETRY: "retries",
    State.WAITING_DISK: "disk full",
}  # fmt: skip
BLOCKS = {
    State.FAILED: "failed", State.WAITING_DECISION: "needs you", State.WAITING_RESOURCES: "waits for the machine",
    State.WAITING_DISK: "waits for room on the disk",
}  # fmt: skip
TODO = frozenset({State.PENDING, State.RUNNING, State.COMPLETED, State.CANCELLED})
OPEN = frozenset({State.PENDING, State.BLOCKED, State.WAITING_RESOURCES, State.WAITING_DECISION, State.WAITING_DISK})
BLOCKING_SHOWN, NEXT_SHOWN, REASON_CHARACTERS = 3, 4, 300
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def one_line(text: str) -> str:
    """Text of somebody else's, without line breaks and without what would steer the terminal."""
    return UNPRINTABLE.sub(" ", ESCAPES.sub("", text)).strip() if not text.isprintable() else text


def duration(seconds: float | None) -> str:
    """Seconds for people: "4.2 s", "12:04", "1:02:11", "3 d 04 h"."""
    if seconds is None:
        return ""
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    if whole < 86400:
        return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 86400} d {whole // 3600 % 24:02} h"


def count(number: float) -> str:
    """A count with its thousands apart: 17 285 548."""
    return f"{number:,}".replace(",", " ")


def word(state: State) -> str:
    """The state as the table says it: the todo word, or the more precise one where that tells more."""
    return shown_as(state) if state in TODO else WORDS.get(state, state.value)


def actual(row: Row) -> State:
    """The state, but lost for a task that runs by the records and has no process any more."""
    return State.LOST if row.process in ("ended", "gone") else row.state


def status(row: Row) -> str:
    """The state of a task in a word or two."""
    return row.process if row.process in ("ended", "gone") else word(row.state)


def fraction(row: Row) -> str:
    """How far a task is: "4 211/10 000"."""
    progress = row.progress
    return f"{count(progress.done)}/{count(progress.total)}" if progress and progress.total else ""


def percent(row: Row) -> str:
    progress = row.progress
    return f"{int(100 * progress.done // progress.total)} %" if progress and progress.total else ""


def rate(row: Row) -> str:
    """How fast a task goes on: "1 930 tok/s"; slow ones the other way round: "16 s/step"."""
    if not row.progress or not row.progress.rate or row.progress.stalled:
        return ""
    pace, unit = row.progress.rate, row.progress.unit or "1"
    if pace >= 1000:
        return f"{count(round(pace))} {unit}/s"
    return f"{pace:.3g} {unit}/s" if pace >= 0.1 else f"{1 / pace:.3g} s/{unit}"


def left(row: Row, now: float) -> str:
    """How long a task still takes; with a "~" where that is how long it took the last time."""
    if row.settled or row.state in HOPELESS:
        return ""
    seconds = row.left_s(now)
    measured = row.progress is not None and row.progress.eta_s is not None
    return "" if seconds is None else f"{'' if measured else '~'}{duration(seconds)}"


def spent(row: Row, now: float) -> str:
    """How long the latest attempt took, or has taken; nothing for a task that is to run again."""
    if row.started_at is None or row.state in OPEN:
        return ""
    if row.state == State.RUNNING:
        return duration(now - row.started_at) if row.process == "alive" else ""
    return duration(row.ended_at - row.started_at) if row.ended_at else ""


def note(row: Row, now: float) -> str:
    """The key result, or the reason of the state, or the latest of a running task."""
    text = one_line(row.note)
    if row.process == "ended":
        return "it ended with no run there to see it: resume takes its result"
    if row.process == "gone":
        return "its process is gone: resume goes on with it"
    if row.progress and row.progress.stalled:
        silent = f"no progress for {duration(row.progress.age_s)}"
        return f"{silent} · {text}" if text else silent
    if row.state == State.WAITING_RETRY and row.retry_at:
        return f"again in {duration(row.retry_at - now)}: {text}"
    return text


def advice(snapshot: Snapshot, *, reasons: bool = False) -> list[tuple[str, State]]:
    """What needs somebody, what failed, what is next: a few lines, each with the state that it is about.

    With `reasons`, what blocks is said as well, for where the table has no room for it.
    """
    plan, made = snapshot.plan, []
    for row in snapshot.blocking[:BLOCKING_SHOWN]:
        reason, start = one_line(row.note), f"{row.id} {BLOCKS[row.state]}: "
        if reasons:
            cut = reason[:REASON_CHARACTERS].rstrip() + "…" if len(reason) > REASON_CHARACTERS else reason
            made.append((start + cut, row.state))
            start = "  "
        if row.state == State.FAILED:
            made.append((f"{start}harness logs {row.id} -p {plan}", row.state))
        elif row.state == State.WAITING_DECISION:
            made.append((f'{start}harness decide {row.id} OPTION --because "…" -p {plan}', row.state))
    more = len(snapshot.blocking) - BLOCKING_SHOWN
    if more > 0:
        made.append((f"and {more} more like that", State.PENDING))
    orphans = [] if snapshot.alive else [row for row in snapshot.rows if row.state == State.RUNNING]
    following = orphans or snapshot.ready
    resume = "" if snapshot.alive else f": harness resume {plan}"
    if following:
        names = ", ".join(row.id for row in following[:NEXT_SHOWN])
        rest = f" and {len(following) - NEXT_SHOWN} more" if len(following) > NEXT_SHOWN else ""
        made.append((f"next {names}{rest}{resume}", State.PENDING))
    elif resume and any(row.state == State.FAILED for row in snapshot.blocking):
        made.append((f"then{resume}", State.PENDING))
    if snapshot.removed:
        shown = ", ".join(f"{name} ({word(state)})" for name, state in snapshot.removed[:NEXT_SHOWN])
        rest = f" and {len(snapshot.removed) - NEXT_SHOWN} more" if len(snapshot.removed) > NEXT_SHOWN else ""
        made.append((f"removed from the plan, kept: {shown}{rest}", State.PENDING))
    return made
