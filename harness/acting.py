"""The verbs that act on a plan: run, resume, attach, stop, cancel, retry, forget, decide, tool."""

import sys
from pathlib import Path

import click

from harness.arguments import (
    jobs_option,
    known_plan_argument,
    known_task,
    load,
    plan_argument,
    plan_option,
    root_option,
    state_of,
    task_argument,
)
from harness.errors import OwnedError, UsageError

wait_option = click.option("--wait", is_flag=True, help="If another run owns the plan, follow that.")


@click.command()
@plan_argument
@click.option("--only", multiple=True, metavar="TASK", help="Only this task and what it needs; repeatable.")
@jobs_option
@wait_option
@root_option
def run(plan: str, *, only: tuple[str, ...], jobs: int | None, wait: bool, root: Path | None) -> None:
    """Run a plan, or go on with it where it stopped.

    PLAN is a file, or the name of a plan that was run here before.
    """
    _run(plan, root, jobs=jobs, only=list(only), wait=wait)


@click.command()
@known_plan_argument
@jobs_option
@wait_option
@root_option
def resume(plan: str | None, *, jobs: int | None, wait: bool, root: Path | None) -> None:
    """Go on with a plan that was run here before."""
    _run(plan, root, jobs=jobs, only=[], wait=wait)


def _run(plan: str | None, root: Path | None, *, jobs: int | None, only: list[str], wait: bool) -> None:
    from harness import session

    loaded, where = load(plan, root)
    for task in only:
        known_task(task, loaded.steps, loaded.plan.name)
    try:
        code = session.run(loaded, where, jobs=jobs, only=only, load=lambda: load(str(loaded.path), root)[0])
    except OwnedError:
        if not wait:
            raise
        from harness import attaching

        code = attaching.follow(where.plan(loaded.plan.name))
    sys.exit(code)


@click.command()
@known_plan_argument
@root_option
def attach(plan: str | None, root: Path | None) -> None:
    """Follow what runs until it ends.

    Whoever follows owns nothing: to leave with Ctrl-C changes nothing.
    """
    from harness import attaching

    sys.exit(attaching.follow(state_of(plan, root)))


@click.command()
@click.argument("task", required=False)
@plan_option
@root_option
def stop(task: str | None, plan: str | None, root: Path | None) -> None:
    """Stop the run, or only one task of it.

    What runs is asked to keep its progress, and goes on from there with the next run.
    """
    _ask("stop", task, plan, root)


@click.command()
@task_argument
@plan_option
@root_option
def cancel(task: str, plan: str | None, root: Path | None) -> None:
    """Stop a task for good.

    What needs TASK is blocked, until `harness retry TASK` lets it run again.
    """
    _ask("cancel", task, plan, root)


@click.command()
@task_argument
@plan_option
@root_option
def retry(task: str, plan: str | None, root: Path | None) -> None:
    """Try a task again that failed, was cancelled or waits.

    Its retries count from the beginning. A run that goes on tries it at once, else the next one does.
    """
    _ask("retry", task, plan, root)


def _ask(verb: str, task: str | None, plan: str | None, root: Path | None) -> None:
    from harness import steering
    from harness.store import Store

    paths = state_of(plan, root)
    if task is not None:
        with Store(paths) as store:
            known_task(task, store.records(), paths.folder.name)
    for line in steering.ask(paths, verb, task):
        click.echo(line)


@click.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@click.argument("tool")
@root_option
@click.pass_context
def tool(context: click.Context, tool: str, root: Path | None) -> None:
    """Run one tool now, outside a plan.

    The tool's parameters are options: `harness tool verify --features work/features --repair`.
    """
    from harness import catalog, session, single
    from harness.location import find_root

    where = find_root(Path.cwd(), root)
    known = catalog.tools()
    if tool not in known:
        raise catalog.unknown_tool(tool, known)
    loaded = single.plan_of(known[tool], context.args, where)
    sys.exit(session.run(loaded, where))


@click.command()
@task_argument
@plan_option
@root_option
def forget(task: str, plan: str | None, root: Path | None) -> None:
    """Drop the checkpoints of a task.

    The next run executes TASK from the beginning. Its outputs stay.
    """
    import shutil

    from harness.ownership import held, owning
    from harness.state import State
    from harness.store import Store

    paths = state_of(plan, root)
    with owning(paths.lock, plan=paths.folder.name), Store(paths) as store:
        record = store.records()[known_task(task, store.records(), paths.folder.name)]
        if record.state == State.RUNNING and held(paths.attempt(task, record.attempt).lock):
            raise UsageError(f"task '{task}' is running", do=f"Stop it first: harness stop {task}")
        store.forget(task)
        for scratch in paths.scratches(task):
            shutil.rmtree(scratch)
    click.echo(f"'{task}' is forgotten: the next run executes it again")


@click.command()
@task_argument
@click.argument("option")
@click.option("--because", required=True, help="The reason; it is kept with the decision.")
@click.option("--by", metavar="WHO", help="Who decides; you by default.")
@plan_option
@root_option
def decide(task: str, option: str, *, because: str, by: str | None, plan: str | None, root: Path | None) -> None:
    """Answer a decision of the plan.

    TASK is the decision, OPTION the key of the answer.
    """
    import getpass

    from harness.store import Store

    loaded, where = load(plan, root)
    decision = loaded.steps[known_task(task, loaded.steps, loaded.plan.name)].task.decision
    if decision is None:
        raise UsageError(f"task '{task}' is not a decision")
    keys = [each.key for each in decision.options]
    if option not in keys:
        raise UsageError(f"decision '{task}' has no option '{option}'", found="options " + ", ".join(keys))
    if not because.strip():
        raise UsageError("a decision needs its reason", do='Say it: --because "..."')
    with Store(where.plan(loaded.plan.name)) as store:
        store.decide(task, choice=option, because=because.strip(), by=by or getpass.getuser())
    click.echo(f"'{task}' is decided: {option}")
