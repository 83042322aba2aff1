"""What the verbs of the command line have in common: their options, and the plan, state or task that these name."""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.errors import NotFoundError, nearest

if TYPE_CHECKING:
    from harness.paths import PlanPaths, Root
    from harness.plan import LoadedPlan

F = TypeVar("F", bound=Callable[..., Any])

plan_argument = click.argument("plan")  # a plan file, or the name of a plan run here before
known_plan_argument = click.argument("plan", required=False)  # may be left out where only one plan was run
task_argument = click.argument("task")
plan_option = click.option("--plan", "-p", metavar="PLAN", help="Which plan, where several were run here.")
root_option = click.option("--root", type=click.Path(path_type=Path), help="The folder that paths start from.")
jobs_option = click.option("--jobs", "-j", type=click.IntRange(min=1), help="Tasks at a time; 1 by default.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def place(plan: str | None, root: Path | None) -> tuple["Root", "PlanPaths | None", Path | None]:
    """Root, then state of the plan that an argument names, or the file where the argument is one."""
    from harness.location import find_root, known_plan

    if plan is not None and (Path(plan).suffix in {".yaml", ".yml", ".json"} or os.sep in plan or Path(plan).is_file()):
        return find_root(Path(plan), root), None, Path(plan).absolute()
    found = find_root(Path.cwd(), root)
    return found, known_plan(found, plan), None


def load(plan: str | None, root: Path | None) -> tuple["LoadedPlan", "Root"]:
    """The plan that an argument names, read from its file."""
    from harness import catalog, plancache
    from harness.store import Store

    where, paths, file = place(plan, root)
    if file is None:
        assert paths is not None
        with Store(paths) as store:
            file = Path(store.plan().path)
        if not file.exists():
            raise NotFoundError("the plan's file is gone", found=f"'{file}'", do="Name the file that took its place")
    return plancache.load(file, catalog.tools(), where), where


def state_of(plan: str | None, root: Path | None) -> "PlanPaths":
    """State of the plan that an argument names, without reading its file where a name was given."""
    where, paths, _ = place(plan, root)
    return paths or where.plan(load(plan, root)[0].plan.name)


def known_task(name: str, known: Collection[str], plan: str) -> str:
    """`name`, if the plan has such a task. Raises NotFoundError with the nearest right name."""
    if name in known:
        return name
    raise NotFoundError(f"plan '{plan}' has no task '{name}'", do=nearest(name, known))


def print_json(schema: str, data: Any) -> None:
    """Print the one JSON document of a verb."""
    document = {"schema": schema, "ok": True, "data": data}
    click.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
