"""What a campaign's folder proves: which tasks ran twice, what was lost, whether the database agrees with itself."""

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("duplicates", "losses", "leftovers", "commands by hand", "damaged databases", "tracebacks", "retries used up")
STATES = frozenset(
    [
        "pending",
        "blocked",
        "waiting_resources",
        "waiting_decision",
        "waiting_retry",
        "waiting_disk",
        "running",
        "completed",
        "failed",
        "interrupted",
        "lost",
        "skipped",
        "cancelled",
    ]
)
# An exception that another one took the place of, with all up to that one's own traceback.
CHAINED = re.compile(
    r"Traceback \(most recent call last\):\n(?:(?!Traceback \(most).*\n)*?\n"
    r"(?:During handling of the above exception|The above exception was the direct cause).*\n\n"
)
OURS = re.compile(r'File ".*/(?:harness|counting)/\w+\.py"')
Found = list[tuple[str, str]]  # kind of fault, what it is


@dataclass(frozen=True)
class Effect:
    """One line of the effects file: start, unit, end or overlap."""

    what: str
    task: str
    attempt: int
    unit: int  # -1 where it is no unit


@dataclass(frozen=True)
class Attempt:
    """One row of the attempt table."""

    task: str
    number: int
    state: str


@dataclass
class Allowed:
    """What the faults of a trial excuse, by task.

    `again` holds tasks whose only proof was destroyed, which may be executed once more for each time; `hits` which
    attempts (task, number) may have failed or been lost, None for any.
    """

    again: Counter[str] = field(default_factory=Counter)
    hits: set[tuple[str, int]] | None = None


def read_effects(text: str) -> list[Effect]:
    """The effects in the order in which they were written. Raises ValueError for a broken line."""
    found = []
    for line in text.splitlines():
        what, task, attempt, unit = line.split(" ")
        found.append(Effect(what, task, int(attempt), -1 if unit == "-" else int(unit)))
    return found


def repeated(effects: Iterable[Effect], attempts: Iterable[Attempt], allowed: Allowed) -> Found:
    """Every task that ran again after it had completed, twice under one number, or in two copies at once."""
    effects, attempts = list(effects), list(attempts)
    found = [f"'{each.task}' ran in two copies (attempt {each.attempt})" for each in effects if each.what == "overlap"]
    completed: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.state == "completed":
            completed.setdefault(attempt.task, []).append(attempt.number)
    again: Counter[str] = Counter()
    for task, numbers in completed.items():
        if len(numbers) > 1:
            again[task] += len(numbers) - 1
        later = {each.attempt for each in effects if each.task == task and each.attempt > min(numbers)}
        again[task] += len(later - set(numbers))
    starts = Counter((each.task, each.attempt) for each in effects if each.what == "start")
    for (task, _), count in starts.items():
        again[task] += count - 1
    found += [
        f"'{task}' was executed again, {count} times"
        for task, count in sorted(again.items())
        if count > allowed.again[task]
    ]
    return [("duplicates", text) for text in found]


def counted(task: str, effects: Iterable[Effect], total: int) -> Found:
    """Whether a task did each of its units, in order, repeating only the one at which an attempt was killed."""
    found: Found = []
    last, by = -1, 0
    for each in effects:
        if each.task != task or each.what != "unit":
            continue
        if each.unit > last + 1:
            found.append(("losses", f"'{task}' never did its units {last + 1} to {each.unit - 1}"))
        elif each.unit < last or (each.unit == last and each.attempt == by):
            found.append(("duplicates", f"'{task}' did unit {each.unit} again after unit {last}"))
        last, by = each.unit, each.attempt
    if last != total - 1:
        found.append(("losses", f"'{task}' ended after unit {last} of {total}"))
    return found


def verdicts(tasks: Path, allowed: Allowed) -> Found:
    """Every task that was executed again although an attempt of it had ended well."""
    found: Found = []
    for folder in sorted(tasks.iterdir()) if tasks.is_dir() else []:
        good = [path.parent.name for path in folder.glob("*/verdict.json") if _exit_code(path) == 0]
        if len(good) > 1 + allowed.again[folder.name]:
            found.append(("duplicates", f"'{folder.name}' ended well in attempts {', '.join(sorted(good))}"))
    return found


def _exit_code(verdict: Path) -> int | None:
    try:
        code: int | None = json.loads(verdict.read_bytes())["exit_code"]
    except (OSError, ValueError):
        return None
    return code


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each finished file below the folder, by its relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and ".tmp" not in path.name
    }


def differing(outputs: Mapping[str, str], undisturbed: Mapping[str, str]) -> Found:
    """The outputs that are missing, are too many, or hold other bytes than in an undisturbed run."""
    names = sorted(name for name in outputs.keys() | undisturbed.keys() if outputs.get(name) != undisturbed.get(name))
    how = {
        name: "is missing" if name not in outputs else "differs" if name in undisturbed else "is new" for name in names
    }
    return [("losses", f"output '{name}' {text}") for name, text in how.items()]


def unfinished(states: Mapping[str, str], tasks: Iterable[str]) -> Found:
    """The tasks that are not completed."""
    missing = [task for task in tasks if states.get(task) != "completed"]
    return [("losses", f"'{task}' is {states.get(task, 'unknown')}, not completed") for task in missing]


def unexplained(effects: Iterable[Effect], attempts: Iterable[Attempt], allowed: Allowed) -> Found:
    """The attempts that failed, or were given up after they had begun, although nobody had hit them."""
    found: Found = []
    begun = {(each.task, each.attempt) for each in effects if each.what == "start"}
    for each in attempts:
        if allowed.hits is None or (each.task, each.number) in allowed.hits:
            continue
        text = f"attempt {each.number} of '{each.task}' is {each.state}, but nobody had hit it"
        if each.state == "failed":
            found.append(("retries used up", text))
        elif each.state == "lost" and (each.task, each.number) in begun:
            found.append(("losses", text))
    return found


@dataclass(frozen=True)
class Record:
    """What the database says: states by task, attempts in order; `faults` is how it contradicts itself."""

    states: dict[str, str]
    attempts: list[Attempt]
    faults: list[str]


def read_database(path: Path) -> Record:
    """Read the state database and hold its tables against its events."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return _record(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        return Record({}, [], [f"it can't be read: {error}"])


def _record(connection: sqlite3.Connection) -> Record:
    faults = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    states = dict(connection.execute("SELECT id, state FROM task WHERE removed = 0"))
    rows = connection.execute("SELECT task, number, state FROM attempt ORDER BY task, number")
    attempts = [Attempt(*row) for row in rows]
    said: dict[str, str] = {}
    told: dict[tuple[str, int], list[str]] = {}
    for task, attempt, kind in connection.execute("SELECT task, attempt, type FROM event ORDER BY seq"):
        if task is None or kind not in STATES:
            continue
        said[task] = kind
        if attempt is not None:
            told.setdefault((task, attempt), []).append("failed" if kind == "waiting_retry" else kind)
    faults += [
        f"task '{task}' is {state}, its last event says {said.get(task)}"
        for task, state in states.items()
        if said.get(task, "pending") != state
    ]
    for each in attempts:
        events = told.pop((each.task, each.number), [])
        state = "failed" if each.state == "waiting_disk" else each.state
        expected = ["running"] if state == "running" else ["running", state]
        if ["failed" if kind == "waiting_disk" else kind for kind in events] != expected:
            faults.append(f"attempt {each.number} of '{each.task}' is {each.state}, its events say {events}")
    faults += [f"attempt {number} of '{task}' has events, but no row" for task, number in told]
    held = {row[0]: row[1] for row in connection.execute("SELECT task, attempt FROM checkpoint")}
    completed = {each.task: each.number for each in attempts if each.state == "completed"}
    faults += [
        f"'{task}' is completed without a checkpoint of its completed attempt"
        for task, state in states.items()
        if state == "completed" and held.get(task) != completed.get(task)
    ]
    return Record(states, attempts, faults)


def is_early(text: str) -> bool:
    """Whether this is all that Python says when a SIGINT hits it before our first line: that is nobody's fault."""
    lines = text.strip().splitlines()
    return lines[-1:] == ["KeyboardInterrupt"] and not any(OURS.search(line) for line in lines)


def tracebacks(texts: Mapping[str, str], *, excused: Collection[str] = ()) -> Found:
    """Every text with a traceback or a fault of ours in it, unless its last line is excused, or is still to come."""
    found: Found = []
    for name, text in texts.items():
        for part in CHAINED.sub("", text).split("Traceback (most recent call last):")[1:]:
            lines = part.splitlines()
            end = next((line for line in lines if line and not line.startswith((" ", "\t"))), "")
            cut = bool(excused) and not end  # it was killed while it printed
            if not is_early(part) and not cut and not any(word in end for word in excused):
                found.append(("tracebacks", f"{name}: {end or part[-200:]}"))
        if "a fault of ours" in text:
            found.append(("tracebacks", f"{name}: {text[text.index('a fault of ours') :].splitlines()[0]}"))
    return found
