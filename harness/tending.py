"""The verbs that tend a plan's state: doctor, gc."""

import functools
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.arguments import json_option, known_plan_argument, load, print_json, root_option, state_of
from harness.errors import EXIT_FAILED, EXIT_OK, HarnessError, UsageError

if TYPE_CHECKING:
    from harness.disposal import Limits, Prospects
    from harness.holdings import Holding
    from harness.paths import PlanPaths
    from harness.store import Store

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@click.command()
@known_plan_argument
@click.option("--fix", is_flag=True, help="Cure what can be cured without losing anything.")
@json_option
@root_option
def doctor(plan: str | None, *, fix: bool, as_json: bool, root: Path | None) -> None:
    """Tell what is wrong with a plan's state.

    The database, attempts, files and processes are compared; only --fix changes anything. The exit code is 1 where
    something is wrong.
    """
    from harness import curing, diagnosis

    paths = state_of(plan, root)
    done = curing.cure(paths) if fix else []
    found = diagnosis.diagnose(paths)
    if as_json:
        print_json("harness.doctor/1", {**found.document(), "fixed": done})
    else:
        click.echo("\n".join([*(f"Fixed: {each}" for each in done), *found.lines()]))
    sys.exit(EXIT_FAILED if found.findings else EXIT_OK)


def limited(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options that make up its `limits`."""

    @click.option("--older-than", default="30d", metavar="AGE", help="Only what is older, like 12h; 30d by default.")
    @click.option("--larger-than", default="0", metavar="SIZE", help="Only folders that take more, like 100M.")
    @click.option(
        "--keep", type=click.IntRange(1), default=3, help="So many last attempts of a task stay; 3 by default."
    )
    @functools.wraps(verb)
    def wrapped(*, older_than: str, larger_than: str, keep: int, **rest: Any) -> None:
        from harness.disposal import Limits

        verb(limits=Limits(_seconds(older_than), keep, _bytes(larger_than)), **rest)

    return wrapped


@click.command()
@known_plan_argument
@limited
@click.option("--dry-run", is_flag=True, help="Tell what would be removed, and remove nothing.")
@json_option
@root_option
def gc(plan: str | None, *, limits: "Limits", dry_run: bool, as_json: bool, root: Path | None) -> None:
    """Remove old attempts and progress checkpoints.

    Never what a resume needs: the last attempts of each task, those of checkpoints, progress of tasks that are to run.
    """
    from harness import disposal
    from harness.ownership import owning
    from harness.store import Store

    paths = state_of(plan, root)
    with nullcontext() if dry_run else owning(paths.lock, plan=paths.folder.name), Store(paths) as store:
        ahead, unsure = _ahead(paths, store, root)
        gone = disposal.disposable(paths, store, limits, ahead)
        if not dry_run:
            gone = disposal.dispose(store, gone)
    if as_json:
        print_json("harness.gc/1", {**_document(gone), "dry_run": dry_run, "unsure": unsure})
    else:
        click.echo("\n".join(_lines(gone, unsure, dry_run=dry_run)))


def _ahead(paths: "PlanPaths", store: "Store", root: Path | None) -> tuple["Prospects", str]:
    """What the next run would go on from, and why that isn't known if it isn't."""
    from harness import disposal

    try:
        loaded, where = load(store.plan().path, root or paths.folder.parents[1])
    except HarnessError as error:
        return disposal.Prospects(), str(error)
    return disposal.prospects(loaded, where, store), ""


def _document(gone: "list[Holding]") -> dict[str, object]:
    now = time.time()
    removed = [
        {
            "task": each.task,
            "attempt": each.number,
            "where": str(each.path),
            "size_bytes": each.size_bytes,
            "age_s": round(now - each.changed_at, 3),
        }
        for each in gone
    ]
    return {"removed": removed, "freed_bytes": sum(each.size_bytes for each in gone)}


def _lines(gone: "list[Holding]", unsure: str, *, dry_run: bool) -> list[str]:
    """What was removed, for people: a line each, then the sum."""
    from harness.preflight import size
    from harness.wording import duration

    now, verb = time.time(), "would be removed" if dry_run else "removed"
    lines = [f"{each}, {size(each.size_bytes)}, {duration(now - each.changed_at)} old" for each in gone]
    if unsure:
        lines.append(f"All progress checkpoints stay, for the plan can't be read: {unsure}")
    if not gone:
        return [*lines, "Nothing to remove"]
    return [*lines, f"{len(gone)} folders {verb}: {size(sum(each.size_bytes for each in gone))}"]


def _seconds(text: str) -> float:
    from harness.plan import seconds

    try:
        value = seconds(text)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}", found=f"'{text}'") from error
    assert isinstance(value, float)
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    if not match:
        raise UsageError("--larger-than: a size is bytes or like 500K, 100M, 2G", found=f"'{text}'")
    return int(float(match[1]) * UNITS[match[2].upper()])
