"""The verbs that only look: status, check, diff, tools, why, logs."""

import json
import sys
from pathlib import Path

import click

from harness.arguments import (
    json_option,
    known_plan_argument,
    known_task,
    load,
    plan_argument,
    plan_option,
    print_json,
    root_option,
    state_of,
    task_argument,
)


@click.command()
@known_plan_argument
@json_option
@root_option
def status(plan: str | None, as_json: bool, root: Path | None) -> None:
    """Show the status table.

    PLAN is a name or a file; it may be left out where only one plan was run.
    """
    from harness import status as reader
    from harness import table

    snapshot = reader.snapshot(state_of(plan, root))
    if as_json:
        click.echo(json.dumps(reader.document(snapshot), ensure_ascii=False, separators=(",", ":")))
    else:
        table.show(snapshot)


@click.command()
@plan_argument
@json_option
@root_option
def check(plan: str, as_json: bool, root: Path | None) -> None:
    """Validate a plan and show the order of its tasks."""
    from harness import checking

    loaded, where = load(plan, root)
    report = checking.report(loaded, where)
    if as_json:
        print_json("harness.check/1", report.document())
    else:
        click.echo("\n".join(report.lines()))
    sys.exit(report.exit_code)


@click.command()
@known_plan_argument
@click.option("--all", "everything", is_flag=True, help="Also the tasks that are up to date.")
@json_option
@root_option
def diff(plan: str | None, *, everything: bool, as_json: bool, root: Path | None) -> None:
    """Show what a run would do now.

    Each task is compared with what the last run left: PLAN may be an edited file. Nothing is run.
    """
    from harness import difference
    from harness.store import Store

    loaded, where = load(plan, root)
    with Store(where.plan(loaded.plan.name)) as store:
        found = difference.changes(loaded, where, store)
    if as_json:
        print_json("harness.diff/1", difference.document(found))
    else:
        click.echo("\n".join(difference.lines(found, everything=everything)))


@click.command()
@click.argument("tool", required=False)
@json_option
def tools(tool: str | None, as_json: bool) -> None:
    """List the tools that a plan can name, or show one."""
    from harness import catalog, manual

    known = catalog.tools()
    if tool is not None and tool not in known:
        raise catalog.unknown_tool(tool, known)
    shown = [known[tool]] if tool is not None else list(known.values())
    if as_json:
        print_json("harness.tools/1", [manual.document(each) for each in shown])
    else:
        click.echo("\n".join(manual.page(shown[0]) if tool is not None else manual.index(shown)))


@click.command()
@task_argument
@plan_option
@json_option
@root_option
def why(task: str, plan: str | None, as_json: bool, root: Path | None) -> None:
    """Say why TASK is in its state, back to the cause."""
    from harness import explain
    from harness.store import Store

    loaded, where = load(plan, root)
    known_task(task, loaded.steps, loaded.plan.name)
    with Store(where.plan(loaded.plan.name)) as store:
        lines = explain.why(loaded, where, store, task)
    if as_json:
        print_json("harness.why/1", {"task": task, "lines": [line.strip() for line in lines]})
    else:
        click.echo("\n".join(lines))


@click.command()
@task_argument
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt has ended.")
@click.option("--attempt", type=click.IntRange(min=1), help="Which attempt; the latest by default.")
@click.option("--tail", type=click.IntRange(min=0), help="Only so many last lines.")
@plan_option
@root_option
def logs(
    task: str, *, follow: bool, attempt: int | None, tail: int | None, plan: str | None, root: Path | None
) -> None:
    """Print the log of an attempt of TASK."""
    from harness import logs as reader

    for piece in reader.read(state_of(plan, root), task, attempt=attempt, tail=tail, follow=follow):
        sys.stdout.write(piece)
        sys.stdout.flush()
