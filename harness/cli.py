"""The command line: finds the verb, and turns errors into exit codes."""

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

import click

from harness import __version__, errors
from harness.errors import HarnessError, PlanError, UsageError

EXIT_CODES = (
    "Exit codes: 0 done, 1 a task failed, 2 usage, 3 plan invalid, 4 a decision is needed, 5 blocked by the machine, "
    "6 another run owns the plan, 7 not found, 70 a fault of harness itself, 130/143 interrupted or detached."
)
LOOKING, ACTING, TENDING = "harness.looking", "harness.acting", "harness.tending"
MODULES = {  # in the order of --help; a module is loaded when one of its verbs is called
    "run": ACTING,
    "resume": ACTING,
    "status": LOOKING,
    "check": LOOKING,
    "diff": LOOKING,
    "tools": LOOKING,
    "why": LOOKING,
    "logs": LOOKING,
    "attach": ACTING,
    "stop": ACTING,
    "cancel": ACTING,
    "retry": ACTING,
    "decide": ACTING,
    "forget": ACTING,
    "tool": ACTING,
    "doctor": TENDING,
    "gc": TENDING,
}


class Verbs(click.Group):
    """The verbs, each loaded from its module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        command: click.Command = getattr(import_module(MODULES[cmd_name]), cmd_name)
        return command


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, message="harness %(version)s")
def app() -> None:
    """Run long machine-learning work from a plan, and lose none of it."""


def _report(error: HarnessError) -> NoReturn:
    """Print an error, as JSON on standard output for --json, else on standard error; exit with its code."""
    if "--json" in sys.argv:
        parts: dict[str, Any] = {"code": error.code, "message": str(error)}
        if isinstance(error, PlanError):
            parts["mistakes"] = [vars(mistake) for mistake in error.mistakes]
        click.echo(json.dumps({"schema": "harness.error/1", "ok": False, "error": parts}, ensure_ascii=False))
    else:
        click.echo(f"harness: {error}" if not isinstance(error, PlanError) else str(error), err=True)
    sys.exit(error.exit_code)


def _usage(error: click.ClickException) -> UsageError:
    """A mistake that click found in the arguments, as ours."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "harness"
    what, _, hint = error.format_message().partition(" Did you mean")
    do = (f"Did you mean{hint} " if hint else "") + f"See: {path} --help"
    return UsageError(what.rstrip("."), do=do)


def main() -> None:
    """Find the verb and carry it out."""
    try:
        app(prog_name="harness", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(errors.EXIT_USAGE)
    except click.ClickException as error:
        _report(_usage(error))
    except HarnessError as error:
        _report(error)
    except click.Abort:  # what click makes of a Ctrl-C
        sys.exit(errors.EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(errors.EXIT_OK)
    except Exception as error:
        from harness.files import crash_report

        where = crash_report(traceback.format_exc())
        click.echo(
            f"harness: a fault of ours ({type(error).__name__}: {error}); please report it with {where}", err=True
        )
        sys.exit(errors.EXIT_INTERNAL)
