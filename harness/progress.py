"""How far a running attempt is, and its latest words, from the end of its events."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 32768
WINDOW_S = 60.0  # the rate is that of the last minute, or of REPORTS reports where these took longer
REPORTS = 10
SILENT_S = 60.0


@dataclass(frozen=True)
class Progress:
    """`rate` is in units a second, None before there are three reports; `age_s` is the age of the last one.

    `stalled` says that the next report is long overdue; there is no `eta_s` then.
    """

    done: float
    total: float
    unit: str
    rate: float | None
    eta_s: float | None
    age_s: float
    stalled: bool = False


def last_words(events: Path, now: float) -> tuple[Progress | None, str]:
    """The progress of an attempt, None before it has reported any, and its latest numbers or line, "" likewise."""
    reports: list[dict[str, Any]] = []
    words = ""
    for event in _tail(events):
        kind = event.get("type")
        if kind == "progress":
            reports.append(event)
        elif kind == "metric":
            words = " · ".join(f"{name} {_number(value)}" for name, value in list(event["values"].items())[:4])
        elif kind == "say":
            words = event["text"]
    return (progress(reports, now) if reports else None), words


def _tail(events: Path) -> list[dict[str, Any]]:
    """The events at the end of the file."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # the first is cut through, the last may still be in writing
            continue
    return [event for event in found if isinstance(event, dict)]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def progress(reports: list[dict[str, Any]], now: float) -> Progress:
    """The progress that these reports, oldest first and at least one, tell at the time `now`."""
    last = reports[-1]
    recent = [last]
    for report in reversed(reports[:-1]):
        same = (report["total"], report["unit"]) == (last["total"], last["unit"])
        if not same or report["done"] > recent[-1]["done"]:
            break  # another phase of the task
        if last["t"] - report["t"] > WINDOW_S and len(recent) >= REPORTS:
            break
        recent.append(report)
    age_s = max(0.0, now - last["t"])
    spent_s, gained = last["t"] - recent[-1]["t"], last["done"] - recent[-1]["done"]
    known = len(recent) >= 3 and spent_s > 0 and gained > 0
    rate = gained / spent_s if known else None
    pause_s = spent_s / (len(recent) - 1) if known else 0.0
    stalled = age_s > max(SILENT_S, 5 * pause_s)
    eta_s = max(0.0, (last["total"] - last["done"]) / rate - age_s) if rate and not stalled else None
    return Progress(last["done"], last["total"], last["unit"], rate, eta_s, age_s, stalled)
