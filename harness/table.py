"""The status table: one row a task, from 60 to 200 columns, with colour and without."""

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import IO, TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from harness import wording
from harness.state import State
from harness.status import Row, Snapshot

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

STYLES = {
    State.COMPLETED: "green", State.RUNNING: "bold cyan", State.FAILED: "bold red", State.SKIPPED: "dim",
    State.CANCELLED: "dim", State.WAITING_DECISION: "bold yellow", State.WAITING_RESOURCES: "yellow",
    State.WAITING_RETRY: "yellow", State.WAITING_DISK: "yellow", State.INTERRUPTED: "magenta", State.LOST: "magenta",
    State.BLOCKED: "dim", State.PENDING: "dim",
}  # fmt: skip
ATTENTION = (State.FAILED, State.WAITING_DECISION)  # said in the header
RECEDING = frozenset({State.PENDING, State.BLOCKED, State.SKIPPED, State.CANCELLED})
KEPT_FIRST = {State.FAILED: 0, State.RUNNING: 0, State.WAITING_DECISION: 0, State.COMPLETED: 2, State.SKIPPED: 2}
ASCII = str.maketrans(
    {"✓": "v", "●": "*", "✗": "x", "–": "-", "◔": "~", "↻": "r", "‖": "=", "·": "-", "━": "#", "─": "-", "≥": ">="}
    | {"…": "...", "“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "→": "->", "×": "x", "\u00a0": " "}
)
GAP = 2
SETS = (  # what is shown, and how many cells it must leave to the note: the first that fits is taken
    (44, "mark task content priority status progress done rate left time tries"),
    (36, "mark task content priority status progress rate left time tries"),
    (32, "mark task short priority status progress left time tries"),
    (28, "mark task short priority status progress left time"),
    (28, "mark task priority status progress rate left time tries"),
    (24, "mark task priority status progress left time tries"),
    (24, "mark task priority status done left time"),
    (22, "mark task priority status done time"),
    (14, "mark task status done time"),
    (12, "mark task status done"),
    (0, "mark task status"),
)

Piece = tuple[str, str]  # text and its style


def cell_count(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return len(text) if text.isascii() else cell_len(text)


@dataclass(frozen=True)
class Spelling:
    """How text is written: `ascii` for a terminal that has no other characters."""

    ascii: bool = False

    def __call__(self, text: str) -> str:
        if not self.ascii or text.isascii():
            return text
        return "".join(each if each.isascii() else "?" * cell_len(each) for each in text.translate(ASCII))

    def cut(self, text: str, size: int) -> str:
        """`text` in at most `size` cells, with a sign where something is missing."""
        if cell_count(text) <= size:
            return text
        return set_cell_size(text, size - 1).rstrip() + ("~" if self.ascii else "…") if size > 0 else ""


@dataclass(frozen=True)
class Column:
    """Cells as they are written; a column is as wide as its widest cell, `most` at the most."""

    name: str
    cells: list[str]
    right: bool = False
    most: int = 40

    @cached_property
    def size(self) -> int:
        return min(self.most, max(map(cell_count, {self.name, *self.cells})))

    def filled(self, size: int, spell: Spelling) -> list[str]:
        """The name and the cells, each in exactly `size` cells."""
        shown = [spell.cut(cell, size) for cell in (self.name, *self.cells)]
        spaces = [" " * (size - cell_count(cell)) for cell in shown]
        return [space + cell if self.right else cell + space for cell, space in zip(shown, spaces, strict=True)]


def columns(rows: list[Row], now: float, width: int, spell: Spelling) -> list[Column]:
    """The columns that fit, the note last; those in which no row has anything are left out."""
    offered = _offered(rows, now, spell)
    shown: list[str] = []
    for least, names in SETS:
        shown = [name for name in names.split() if any(offered[name].cells)]
        if sum(offered[name].size + GAP for name in shown) + least <= width:
            break
    notes = []
    for place, row in enumerate(rows):
        parts = [spell(wording.note(row, now))]
        if row.state == State.RUNNING:  # what has no column of its own goes to the front of the note
            parts = [wording.rate(row)] * ("rate" not in shown) + [_still(row, now)] * ("left" not in shown) + parts
        text = spell(" · ").join(part for part in parts if part)
        told = "content" in shown or "short" in shown
        notes.append(text if text or told else offered["content"].cells[place])
    return [*(offered[name] for name in shown), Column("Note", notes, most=10_000)]


def _still(row: Row, now: float) -> str:
    left = wording.left(row, now) if row.state == State.RUNNING else ""
    return f"{left} left" if left else ""


def _offered(rows: list[Row], now: float, spell: Spelling) -> dict[str, Column]:
    def column(name: str, cells: Iterable[str], *, right: bool = False, most: int = 40) -> Column:
        return Column(name, [spell(cell) for cell in cells], right, most)

    contents = [wording.one_line(row.content) for row in rows]
    return {
        "mark": column("", (wording.MARKS[wording.actual(row)] for row in rows)),
        "task": column("Task", (wording.one_line(row.id) for row in rows), most=28),
        "content": column("Content", contents, most=56),
        "short": column("Content", contents, most=32),
        "priority": column("Priority", (row.priority for row in rows)),
        "status": column("Status", (wording.status(row) for row in rows)),
        "progress": column("Progress", (wording.fraction(row) for row in rows), right=True),
        "done": column("Done", (wording.percent(row) for row in rows), right=True),
        "rate": column("Rate", (wording.rate(row) for row in rows), right=True),
        "left": column("Left", (wording.left(row, now) for row in rows), right=True),
        "time": column("Time", (wording.spent(row, now) for row in rows), right=True),
        "tries": column("Tries", (str(row.attempt or "") for row in rows), right=True),
    }


@dataclass(frozen=True)
class View:
    """Lines of pieces for rich to show as they are: it has nothing to lay out, which is most of its work."""

    lines: list[list[Piece]]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment  # noqa: PLC0415 - a pipe needn't pay for rich

        styles = {style: console.get_style(style) for pieces in self.lines for _, style in pieces}
        end = Segment.line()
        for pieces in self.lines:
            for text, style in pieces:
                yield Segment(text, styles[style])
            yield end


def render(snapshot: Snapshot, width: int, *, ascii: bool = False, height: int | None = None) -> View:  # noqa: A002
    """The whole view: header, table, footer, none of its lines wider than `width`; `height` limits their number."""
    spell = Spelling(ascii)
    advice = wording.advice(snapshot, reasons=True)
    feet = [(line, STYLES[state]) for text, state in advice for line in _folded(spell(text), width)]
    frame = 5 + len(feet)  # header, a blank line, the columns' names, a blank line, the cursor's line
    rows, left_out = _shortened(snapshot.rows, height - frame if height else None)
    made: list[list[Piece]] = [_header(snapshot, width, spell), [], *_body(rows, snapshot.now, width, spell)]
    if left_out:
        made.append([(spell.cut(f"   {left_out}", width), "dim")])
    if feet:
        made += [[], *([(spell.cut(line, width), style)] for line, style in feet)]
    return View(made)


def _folded(text: str, width: int) -> list[str]:
    """A line of the footer, on as many as it takes: a command that is cut off would be of no use."""
    return textwrap.wrap(text, max(20, width), subsequent_indent="  ", break_on_hyphens=False)


def _shortened(rows: list[Row], height: int | None) -> tuple[list[Row], str]:
    """The rows that fit the screen, those that matter most kept, and what was left out."""
    if height is None or len(rows) <= height:
        return rows, ""
    ranked = sorted(range(len(rows)), key=lambda place: (KEPT_FIRST.get(rows[place].state, 1), place))
    room = max(1, height - 1)
    hidden = Counter(wording.status(rows[place]) for place in sorted(ranked[room:]))
    left_out = "and " + ", ".join(f"{wording.count(number)} {what}" for what, number in hidden.items())
    return [rows[place] for place in sorted(ranked[:room])], left_out


def _body(rows: list[Row], now: float, width: int, spell: Spelling) -> list[list[Piece]]:
    """The table's lines. We lay them out ourselves: rich would shrink every column to spare one."""
    if not rows:
        return [[(spell.cut("no tasks yet", width), "dim")]]
    *fixed, note = columns(rows, now, width, spell)
    room = max(0, width - sum(each.size + GAP for each in fixed))
    grid = zip(*(each.filled(each.size, spell) for each in fixed), note.filled(room, spell), strict=True)
    made = [[((" " * GAP).join(next(grid)).rstrip(), "dim")]]
    for row, (*cells, last) in zip(rows, grid, strict=True):
        state, high, again = wording.actual(row), row.priority == "high", row.attempt > 1
        stalled = row.progress is not None and row.progress.stalled
        pieces = [
            (cell + " " * GAP, _style(each.name, state, high=high, again=again))
            for each, cell in zip(fixed, cells, strict=True)
        ]
        pieces.append((last, "red" if stalled else _style(note.name, state, high=high, again=again)))
        made.append(_stripped(pieces))
    return made if room else [_cropped(pieces, width) for pieces in made]


def _cropped(pieces: list[Piece], width: int) -> list[Piece]:
    """What a screen that is narrower than the narrowest table has room for."""
    made: list[Piece] = []
    for text, style in pieces:
        made.append((set_cell_size(text, min(width, cell_count(text))), style))
        width -= cell_count(made[-1][0])
    return _stripped(made)


def _stripped(pieces: list[Piece]) -> list[Piece]:
    """A line without spaces at its end."""
    while len(pieces) > 1 and not pieces[-1][0].rstrip():
        pieces.pop()
    text, style = pieces[-1]
    pieces[-1] = (text.rstrip(), style)
    return pieces


@cache
def _style(column: str, state: State, *, high: bool, again: bool) -> str:
    """Colour for the mark and the status alone; what needs no attention recedes."""
    if column in ("", "Status"):
        return STYLES[state]
    usual = (column == "Priority" and not high) or (column == "Tries" and not again)
    if usual or state in RECEDING:
        return "dim"
    return "bold" if column == "Task" and state in (State.RUNNING, State.FAILED) else ""


def _header(snapshot: Snapshot, width: int, spell: Spelling) -> list[Piece]:
    """Plan, bar, facts; the last facts only where there is room."""
    name = spell.cut(spell(wording.one_line(snapshot.plan)), max(8, width // 3))
    facts = [(spell(text), style) for text, style in _facts(snapshot)]
    room = width - cell_count(name)
    while len(facts) > 1 and sum(cell_count(text) + GAP for text, _ in facts) > room:
        facts.pop()
    bar: list[Piece] = []
    size = min(24, room - GAP - sum(cell_count(text) + GAP for text, _ in facts))
    if size >= 8 and snapshot.rows:
        full = size * sum(row.settled for row in snapshot.rows) // len(snapshot.rows)
        bar = [(" " * GAP, ""), (spell("━" * full), "green"), (spell("─" * (size - full)), "dim")]
    return [(name, "bold"), *bar, *(piece for fact in facts for piece in ((" " * GAP, ""), fact))]


def _facts(snapshot: Snapshot) -> list[Piece]:
    """Counts, what needs attention, and the latest run, those that matter most first."""
    states = Counter(wording.actual(row) for row in snapshot.rows)
    done = states[State.COMPLETED] + states[State.SKIPPED]
    facts: list[Piece] = [(f"{wording.count(done)}/{wording.count(len(snapshot.rows))} done", "")]
    facts += [(f"{states[state]} {wording.word(state)}", STYLES[state]) for state in ATTENTION if states[state]]
    if not snapshot.run:
        return [*facts, ("not run yet", "dim")]
    killed = not snapshot.alive and snapshot.ended_at is None
    how = "running" if snapshot.alive else "killed after" if killed else "took"
    facts.append((f"{how} {wording.duration(snapshot.elapsed_s)}", "magenta" if killed else ""))
    known_s, unknown = snapshot.eta()
    if snapshot.alive and known_s:
        facts.append((f"ETA {'≥ ' if unknown else '~'}{wording.duration(known_s)}", ""))
    if snapshot.alive:
        facts.append((f"pid {snapshot.pid} on {snapshot.host}", "dim"))
    elif snapshot.exit_code:
        facts.append((f"exit code {snapshot.exit_code}", "dim"))
    return [*facts, (f"run {snapshot.run}", "dim")]


def lines(snapshot: Snapshot, *, ascii: bool = False) -> list[str]:  # noqa: A002
    """The table for a pipe or a log: one line a task, no colour, nothing cut off."""
    now, spell = snapshot.now, Spelling(ascii)
    rows = [(row, wording.one_line(row.id), wording.status(row)) for row in snapshot.rows]
    id_size = max((cell_count(name) for _, name, _ in rows), default=0)
    status_size = max((len(status) for _, _, status in rows), default=0)
    made = ["  ".join([f"{wording.one_line(snapshot.plan)}:", *(text for text, _ in _facts(snapshot))])]
    for row, name, status in rows:
        progress = " · ".join(part for part in (wording.fraction(row), wording.rate(row), _still(row, now)) if part)
        tries = f"try {row.attempt}" if row.attempt else ""
        text = wording.note(row, now) or wording.one_line(row.content)
        start = f"{name}{' ' * (id_size - cell_count(name))}  {status:<{status_size}}"
        facts = (start, row.priority, progress, wording.spent(row, now), tries, text)
        made.append("  ".join(part for part in facts if part))
    return [spell(line) for line in (*made, *(text for text, _ in wording.advice(snapshot)))]


def ascii_wanted(file: IO[str]) -> bool:
    """Whether what reads this file can't show the marks."""
    return "utf" not in (getattr(file, "encoding", None) or "").lower() or os.environ.get("TERM") == "dumb"


def show(snapshot: Snapshot) -> None:
    """Print the table to a terminal, plain lines to anything else."""
    ascii_only = ascii_wanted(sys.stdout)
    if not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        sys.stdout.write("\n".join(lines(snapshot, ascii=ascii_only)) + "\n")
        return
    from rich.console import Console  # noqa: PLC0415 - costs 50 ms that a pipe needn't pay

    console = Console(highlight=False)
    console.print(render(snapshot, console.width, ascii=ascii_only), crop=False)
