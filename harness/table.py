"""The status table: one row a task, from 60 to 200 columns, with colour and without."""

import os
import sys
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.text import Text

from harness.state import State, shown_as
from harness.status import Row, Snapshot

GLYPHS = {
    State.COMPLETED: "✓", State.RUNNING: "●", State.FAILED: "✗", State.SKIPPED: "–", State.CANCELLED: "–",
    State.WAITING_DECISION: "?", State.WAITING_RESOURCES: "◔", State.WAITING_RETRY: "↻", State.WAITING_DISK: "◔",
    State.INTERRUPTED: "‖", State.LOST: "‖", State.BLOCKED: "·", State.PENDING: "·",
}  # fmt: skip
ASCII = str.maketrans("✓●✗–◔↻‖·━─…≥", "v*x-~r=.#-~>")
STYLES = {
    State.COMPLETED: "green", State.RUNNING: "bold cyan", State.FAILED: "bold red", State.SKIPPED: "dim",
    State.CANCELLED: "dim", State.WAITING_DECISION: "bold yellow", State.WAITING_RESOURCES: "yellow",
    State.WAITING_RETRY: "yellow", State.WAITING_DISK: "yellow", State.INTERRUPTED: "magenta", State.LOST: "magenta",
    State.BLOCKED: "dim", State.PENDING: "dim",
}  # fmt: skip
PRECISE = {State.PENDING, State.RUNNING, State.COMPLETED, State.CANCELLED}
WAITS = {
    State.WAITING_DECISION: "needs you", State.WAITING_RESOURCES: "waits: machine", State.WAITING_RETRY: "retries",
    State.WAITING_DISK: "waits: disk",
}  # fmt: skip
NOTE_MIN, GAP = 24, 2


def duration(seconds: float | None) -> str:
    """Seconds for people: "4.2 s", "12:04", "1:02:11", "3 d 04 h"."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    if whole < 86400:
        return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 86400} d {whole // 3600 % 24:02} h"


def count(number: int) -> str:
    """A count with thin groups: 17 285 548."""
    return f"{number:,}".replace(",", " ")


def word(state: State) -> str:
    """The state as the table says it: the todo word, or the more precise one where that tells more."""
    return shown_as(state) if state in PRECISE else WAITS.get(state, state.value)


@dataclass(frozen=True)
class Column:
    """`natural` is the width that no cell of it exceeds."""

    name: str
    cells: list[str]
    right: bool = False
    most: int = 40

    @property
    def natural(self) -> int:
        return min(self.most, max(cell_len(self.name), *(cell_len(cell) for cell in self.cells)))


def _progress(row: Row, *, full: bool) -> str:
    progress = row.progress
    if progress is None or not progress.total:
        return ""
    short = f"{count(progress.done)}/{count(progress.total)}"
    if not full:
        return f"{100 * progress.done // progress.total} %"
    rate = f" · {progress.rate:.3g} {progress.unit}/s" if progress.rate else ""
    eta = f" · {duration(progress.eta_s)} left" if progress.eta_s is not None else ""
    return f"{short}{rate}{eta}"


def _spent(row: Row, now: float) -> str:
    if row.started_at is None:
        return ""
    if row.state == State.RUNNING:
        return duration(now - row.started_at)
    return duration(row.ended_at - row.started_at) if row.ended_at else ""


def _note(row: Row, now: float, *, with_content: bool) -> str:
    """The key result or the reason; what is to be done where there is neither and no column says it."""
    note = row.note
    if row.progress and row.progress.age_s > 60:
        note = f"no progress for {duration(row.progress.age_s)}" + (f" · {note}" if note else "")
    if row.retry_at:
        note = f"again in {duration(row.retry_at - now)}: {note}"
    if not note and not with_content:
        note = row.content
    return note.replace("\n", " ")


def columns(rows: list[Row], now: float, width: int) -> list[Column]:
    """The columns that fit: the widest set that leaves the note enough, the note last."""
    mark = Column("", [GLYPHS[row.state] for row in rows])
    task = Column("Task", [row.id for row in rows], most=28)
    content = Column("Content", [row.content for row in rows], most=56)
    priority = Column("Priority", [row.priority for row in rows])
    status = Column("Status", [word(row.state) for row in rows])
    progress = Column("Progress", [_progress(row, full=True) for row in rows], most=44)
    percent = Column("Done", [_progress(row, full=False) for row in rows], right=True)
    spent = Column("Time", [_spent(row, now) for row in rows], right=True)
    tries = Column("Tries", [str(row.attempt or "") for row in rows], right=True)
    sets = [
        [mark, task, content, priority, status, progress, spent, tries],
        [mark, task, priority, status, progress, spent, tries],
        [mark, task, priority, status, percent, spent, tries],
        [mark, task, priority, status, percent, spent],
        [mark, task, status, percent, spent],
        [mark, task, status],
    ]
    if not any(progress.cells):
        sets = [[each for each in chosen if each not in (progress, percent)] for chosen in sets]
    chosen = next((each for each in sets if _width(each) + NOTE_MIN <= width), sets[-1])
    note = Column("Note", [_note(row, now, with_content=content in chosen) for row in rows], most=10_000)
    return [*chosen, note]


def _width(chosen: list[Column]) -> int:
    return sum(each.natural + GAP for each in chosen)


def _shortened(rows: list[Row], height: int | None) -> tuple[list[Row], str]:
    """The rows that fit the screen, those that matter most kept, and what was left out."""
    if height is None or len(rows) <= height:
        return rows, ""
    order = {State.FAILED: 0, State.RUNNING: 0, State.WAITING_DECISION: 0, State.COMPLETED: 3, State.SKIPPED: 3}
    ranked = sorted(range(len(rows)), key=lambda place: (order.get(rows[place].state, 1), place))
    kept = sorted(ranked[: max(1, height - 1)])
    hidden = [rows[place] for place in sorted(ranked[max(1, height - 1) :])]
    counts: dict[str, int] = {}
    for row in hidden:
        counts[word(row.state)] = counts.get(word(row.state), 0) + 1
    return [rows[place] for place in kept], "and " + ", ".join(f"{number} {what}" for what, number in counts.items())


def render(snapshot: Snapshot, width: int, *, ascii_only: bool = False, height: int | None = None) -> Group:
    """The whole view: header, table, footer. No row wraps; `height` limits the lines of it all."""
    feet = footer(snapshot)
    rows, left_out = _shortened(snapshot.rows, height - len(feet) - 5 if height else None)
    lines = [_header(snapshot, width), Text(""), *_body(rows, snapshot.now, width)]
    if left_out:
        lines.append(Text(_cell(f"   {left_out}", width), style="dim"))
    if feet:
        lines += [Text(""), *(Text(_cell(line, width), style=style) for line, style in feet)]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
        if ascii_only:
            line.plain = line.plain.translate(ASCII)  # one character for one: the styles stay where they are
    return Group(*lines)


def _body(rows: list[Row], now: float, width: int) -> list[Text]:
    """The table's lines. We lay them out ourselves: rich would shrink every column to spare one."""
    if not rows:
        return []
    chosen = columns(rows, now, width)
    sizes = [*(each.natural for each in chosen[:-1]), max(8, width - _width(chosen[:-1]))]

    def line(cells: list[str], styles: list[str]) -> Text:
        text = Text()
        for each, cell, size, style in zip(chosen, cells, sizes, styles, strict=True):
            shown = _cell(cell, size)
            space = " " * (size - cell_len(shown))
            text.append(space + shown if each.right else shown + space, style=style)
            text.append(" " * GAP)
        text.rstrip()
        return text

    lines = [line([each.name for each in chosen], ["bold"] * len(chosen))]
    for place, row in enumerate(rows):
        styles = [STYLES[row.state] if each.name in ("", "Status") else _plain(row) for each in chosen]
        lines.append(line([each.cells[place] for each in chosen], styles))
    return lines


def _plain(row: Row) -> str:
    if row.state in (State.RUNNING, State.FAILED):
        return "bold"
    return "dim" if row.state in (State.BLOCKED, State.SKIPPED, State.CANCELLED) else ""


def _cell(text: str, size: int) -> str:
    """`text` in at most `size` cells."""
    return text if cell_len(text) <= size else set_cell_size(text, size - 1) + "…"


def _header(snapshot: Snapshot, width: int) -> Text:
    done = sum(row.settled for row in snapshot.rows)
    total = len(snapshot.rows)
    known_s, unknown = snapshot.eta()
    running = any(row.state == State.RUNNING for row in snapshot.rows)
    facts = [f"{done}/{total} completed"]
    if snapshot.run:
        alive = f"running, pid {snapshot.pid}" if snapshot.alive else "no run now" if done < total else "all done"
        facts += [alive, duration(snapshot.elapsed_s)]
    if running and known_s:
        facts.append(f"ETA {'≥ ' if unknown else ''}{duration(known_s)}")
    bar_size = min(24, max(0, width - cell_len(snapshot.plan) - cell_len("   ".join(facts)) - 6))
    full = bar_size * done // total if total else 0
    bar = f"{'━' * full}{'─' * (bar_size - full)}  " if bar_size >= 6 else ""
    return Text.assemble((snapshot.plan, "bold"), "  ", (bar, "cyan"), _cell("   ".join(facts), width))


def footer(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What needs somebody, what failed, what is next: at most a few lines, each with its style."""
    lines = []
    for row in sorted(snapshot.rows, key=lambda row: row.state != State.FAILED):
        if row.state == State.WAITING_DECISION:
            lines.append((f'{row.id} needs you: harness decide {row.id} OPTION --because "…"', "yellow"))
        elif row.state == State.FAILED:
            lines.append((f"{row.id} failed: harness why {row.id}, harness logs {row.id}; then harness resume", "red"))
    more = len(lines) - 3
    lines = lines[:3] + ([(f"and {more} more like that", "dim")] if more > 0 else [])
    names = [row.id for row in snapshot.ready]
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        how = "" if snapshot.alive else f": harness resume {snapshot.plan}"
        lines.append((f"next {shown}{how}", "dim"))
    return lines


def plain(snapshot: Snapshot) -> list[str]:
    """The table for a pipe: one line a task, no colour, nothing cut off."""
    done = sum(row.settled for row in snapshot.rows)
    lines = [f"{snapshot.plan}: {done}/{len(snapshot.rows)} completed"]
    for row in snapshot.rows:
        parts = [row.id, word(row.state), row.priority, _progress(row, full=True), _spent(row, snapshot.now)]
        tries = f"try {row.attempt}" if row.attempt else ""
        lines.append("  ".join(part for part in (*parts, tries, _note(row, snapshot.now, with_content=False)) if part))
    return [*lines, *(line for line, _ in footer(snapshot))]


def ascii_wanted() -> bool:
    """Whether the terminal can't show the glyphs."""
    return "utf" not in (getattr(sys.stdout, "encoding", "") or "").lower() or os.environ.get("TERM") == "dumb"


def show(snapshot: Snapshot) -> None:
    """Print the table to a terminal, plain lines to anything else."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(render(snapshot, console.width, ascii_only=ascii_wanted()))
    else:
        sys.stdout.write("\n".join(plain(snapshot)) + "\n")
