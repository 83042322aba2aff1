"""The verbs of the command line; errors become exit codes here."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import __version__, errors
from harness.errors import HarnessError, NotFoundError, PlanError, UsageError, nearest

if TYPE_CHECKING:
    from harness.paths import PlanPaths, Root
    from harness.plan import LoadedPlan

EXIT_CODES = (
    "Exit codes: 0 done, 1 a task failed, 2 usage, 3 plan invalid, 4 a decision is needed, 5 blocked by the machine, "
    "6 another run owns the plan, 7 not found, 70 a fault of harness itself, 130/143 interrupted or detached."
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run long machine-learning work from a plan, and lose none of it.",
    epilog=EXIT_CODES,
)

PLAN_HELP = "A plan file, or the name of a plan run here before."
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help=PLAN_HELP)]
KnownPlanArgument = Annotated[str | None, typer.Argument(metavar="[PLAN]", help=f"{PLAN_HELP} May be left out.")]
PlanOption = Annotated[str | None, typer.Option("--plan", "-p", help="Which plan, where several were run here.")]
RootOption = Annotated[Path | None, typer.Option("--root", help="The folder that paths start from.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Tasks at a time; 1 by default.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]


def _place(plan: str | None, root: Path | None) -> tuple["Root", "PlanPaths | None", Path | None]:
    """Root, then state of the plan that an argument names, or the file where the argument is one."""
    from harness.location import find_root, known_plan

    if plan is not None and (Path(plan).suffix in {".yaml", ".yml", ".json"} or os.sep in plan):
        return find_root(Path(plan), root), None, Path(plan).absolute()
    found = find_root(Path.cwd(), root)
    return found, known_plan(found, plan), None


def _load(plan: str | None, root: Path | None) -> tuple["LoadedPlan", "Root"]:
    """The plan that an argument names, read from its file."""
    from harness import catalog, plancache
    from harness.store import Store

    where, paths, file = _place(plan, root)
    if file is None:
        assert paths is not None
        with Store(paths) as store:
            file = Path(store.plan().path)
        if not file.exists():
            raise NotFoundError("the plan's file is gone", found=f"'{file}'", do="Name the file that took its place")
    return plancache.load(file, catalog.tools(), where), where


def _state_of(plan: str | None, root: Path | None) -> "PlanPaths":
    """State of the plan that an argument names, without reading its file where a name was given."""
    where, paths, _ = _place(plan, root)
    return paths or where.plan(_load(plan, root)[0].plan.name)


def _task(name: str, known: Any, plan: str) -> str:
    """`name`, if the plan has such a task. Raises NotFoundError with the nearest right name."""
    if name in known:
        return name
    raise NotFoundError(f"plan '{plan}' has no task '{name}'", do=nearest(name, known))


def _print_json(schema: str, data: Any) -> None:
    typer.echo(json.dumps({"schema": schema, "ok": True, "data": data}, ensure_ascii=False, separators=(",", ":")))


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"harness {__version__}")
        raise typer.Exit


@app.command()
def run(
    plan: PlanArgument,
    only: Annotated[list[str] | None, typer.Option(help="Only this task and what it needs; repeatable.")] = None,
    jobs: JobsOption = None,
    root: RootOption = None,
) -> None:
    """Run a plan, or go on with it where it stopped."""
    _run(plan, root, jobs=jobs, only=only or [])


@app.command()
def resume(plan: KnownPlanArgument = None, jobs: JobsOption = None, root: RootOption = None) -> None:
    """Go on with a plan that was run here before."""
    _run(plan, root, jobs=jobs, only=[])


def _run(plan: str | None, root: Path | None, *, jobs: int | None, only: list[str]) -> None:
    from harness import session

    loaded, where = _load(plan, root)
    for task in only:
        _task(task, loaded.steps, loaded.plan.name)
    raise typer.Exit(session.run(loaded, where, jobs=jobs, only=only))


@app.command()
def status(
    plan: KnownPlanArgument = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Show the status table."""
    from harness import status as reader
    from harness import table

    snapshot = reader.snapshot(_state_of(plan, root))
    if as_json:
        typer.echo(json.dumps(reader.document(snapshot), ensure_ascii=False, separators=(",", ":")))
    else:
        table.show(snapshot)


@app.command()
def check(plan: PlanArgument, as_json: JsonOption = False, root: RootOption = None) -> None:
    """Validate a plan and show the order of its tasks; nothing is run."""
    from harness import checking

    loaded, where = _load(plan, root)
    report = checking.report(loaded, where)
    if as_json:
        _print_json("harness.check/1", report.document())
    else:
        typer.echo("\n".join(report.lines()))
    raise typer.Exit(report.exit_code)


@app.command()
def tools(
    name: Annotated[str | None, typer.Argument(metavar="[TOOL]", help="Show this tool's parameters.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools that a plan can name, or show one."""
    from harness import catalog, manual

    known = catalog.tools()
    if name is not None and name not in known:
        raise catalog.unknown_tool(name, known)
    shown = [known[name]] if name is not None else list(known.values())
    if as_json:
        _print_json("harness.tools/1", [manual.document(tool) for tool in shown])
    else:
        typer.echo("\n".join(manual.page(shown[0]) if name is not None else manual.index(shown)))


@app.command()
def why(task: TaskArgument, plan: PlanOption = None, as_json: JsonOption = False, root: RootOption = None) -> None:
    """Say why a task is in its state, back to the cause."""
    from harness import explain
    from harness.store import Store

    loaded, where = _load(plan, root)
    _task(task, loaded.steps, loaded.plan.name)
    with Store(where.plan(loaded.plan.name)) as store:
        lines = explain.why(loaded, where, store, task)
    if as_json:
        _print_json("harness.why/1", {"task": task, "lines": [line.strip() for line in lines]})
    else:
        typer.echo("\n".join(lines))


@app.command()
def logs(
    task: TaskArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; the latest by default.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many last lines.")] = None,
    plan: PlanOption = None,
    root: RootOption = None,
) -> None:
    """Print the log of a task's attempt."""
    from harness import logs as reader

    paths = _state_of(plan, root)
    for piece in reader.read(paths, task, attempt=attempt, tail=tail, follow=follow):
        sys.stdout.write(piece)
        sys.stdout.flush()


@app.command()
def forget(task: TaskArgument, plan: PlanOption = None, root: RootOption = None) -> None:
    """Drop a task's checkpoints, so that the next run executes it from the beginning. Its outputs stay."""
    import shutil

    from harness.ownership import owning
    from harness.store import Store

    paths = _state_of(plan, root)
    with owning(paths.lock, plan=paths.folder.name), Store(paths) as store:
        _task(task, store.records(), paths.folder.name)
        store.forget(task)
        for scratch in paths.scratches(task):
            shutil.rmtree(scratch)
    typer.echo(f"'{task}' is forgotten: the next run executes it again")


@app.command()
def decide(
    task: TaskArgument,
    option: Annotated[str, typer.Argument(metavar="OPTION", help="The key of the option.")],
    because: Annotated[str, typer.Option(help="The reason; it is kept with the decision.")],
    by: Annotated[str | None, typer.Option(help="Who decides; you by default.")] = None,
    plan: PlanOption = None,
    root: RootOption = None,
) -> None:
    """Answer a decision of the plan."""
    import getpass

    from harness.store import Store

    loaded, where = _load(plan, root)
    decision = loaded.steps[_task(task, loaded.steps, loaded.plan.name)].task.decision
    if decision is None:
        raise UsageError(f"task '{task}' is not a decision")
    keys = [each.key for each in decision.options]
    if option not in keys:
        raise UsageError(f"decision '{task}' has no option '{option}'", found="options " + ", ".join(keys))
    if not because.strip():
        raise UsageError("a decision needs its reason", do='Say it: --because "..."')
    with Store(where.plan(loaded.plan.name)) as store:
        store.decide(task, choice=option, because=because.strip(), by=by or getpass.getuser())
    typer.echo(f"'{task}' is decided: {option}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def tool(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    root: RootOption = None,
) -> None:
    """Run one tool now, outside a plan: `harness tool verify --features work/features --repair`."""
    from harness import catalog, session, single
    from harness.location import find_root

    where = find_root(Path.cwd(), root)
    known = catalog.tools()
    if name not in known:
        raise catalog.unknown_tool(name, known)
    loaded = single.plan_of(known[name], context.args, where)
    raise typer.Exit(session.run(loaded, where, only=[]))


def _report(error: HarnessError) -> None:
    """Print an error: as JSON on standard output for --json, else on standard error."""
    if "--json" in sys.argv:
        parts: dict[str, Any] = {"code": error.code, "message": str(error)}
        if isinstance(error, PlanError):
            parts["mistakes"] = [vars(mistake) for mistake in error.mistakes]
        typer.echo(json.dumps({"schema": "harness.error/1", "ok": False, "error": parts}, ensure_ascii=False))
    else:
        typer.echo(f"harness: {error}" if not isinstance(error, PlanError) else str(error), err=True)


def main() -> None:
    """The console script."""
    try:
        app()
    except HarnessError as error:
        _report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(errors.EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(errors.EXIT_OK)
    except Exception as error:
        from harness.files import crash_report

        where = crash_report(traceback.format_exc())
        typer.echo(
            f"harness: a fault of ours ({type(error).__name__}: {error}); please report it with {where}", err=True
        )
        sys.exit(errors.EXIT_INTERNAL)
