"""The front door of a tool's process: reads the request, runs the tool, seals its outputs, writes the result.

python -P -m harness.worker REQUEST        exit 0 done, 1 failed, 75 interrupted, 70 a fault of the tool
"""

import contextlib
import errno
import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import files
from harness.contract import Context, Result
from harness.errors import EXIT_INTERNAL, EXIT_OK, HarnessError, ToolError

SECRET = re.compile(r"\$\{\s*secrets\.([^}\s]+)\s*\}")
SECRET_VARIABLE = "HARNESS_SECRET_"  # noqa: S105 - its name begins so
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _named(name: str) -> Any:
    """The object called "package.module:name"."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _seals(context: Context) -> dict[str, Any]:
    """Seal every declared output. Raises ToolError for one that isn't there or can't be sealed."""
    seals = {}
    for name, path in context.outputs.items():
        try:
            seals[name] = files.seal(context.root / path).to_dict()
        except FileNotFoundError as error:
            raise ToolError(f"the tool ended without its output '{name}'", found=f"nothing at '{path}'") from error
        except OSError as error:
            found = f"'{error.filename or path}': {error.strerror}"
            raise ToolError(f"output '{name}' can't be sealed", found=found) from error
    return seals


def revealed(value: Any, env: Mapping[str, str]) -> Any:
    """`value` with every `${secrets.x}` in its strings replaced by the secret, which the environment holds."""
    if isinstance(value, str):
        return SECRET.sub(lambda match: env[SECRET_VARIABLE + match[1]], value)
    if isinstance(value, dict):
        return {key: revealed(item, env) for key, item in value.items()}
    if isinstance(value, list):
        return [revealed(item, env) for item in value]
    return value


def _load(request: dict[str, Any]) -> tuple[Any, Any]:
    """The tool's parameters and main. Raises ToolError when the environment can't import it."""
    try:
        return _named(request["params_model"]).model_validate(revealed(request["params"], os.environ)), _named(
            request["run"]
        )
    except ModuleNotFoundError as error:
        raise ToolError(
            f"the Python of this task has no module '{error.name}'",
            where=sys.executable,
            do=f"Install it there, or say in the plan's or harness.yaml's envs which Python runs '{request['tool']}'",
        ) from error
    except ValidationError as error:
        raise ToolError(f"the parameters don't fit: {error.errors()[0]['msg']}") from error


def run(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Run the tool and return what goes into the result file."""
    params, main = _load(request)
    result = main(params, context)
    if not isinstance(result, Result):
        raise ToolError(f"'{request['run']}' must return a Result", found=repr(result))
    return {"ok": True, **result.model_dump(), "seals": _seals(context)}


def _log(text: str) -> None:
    """Put a text into the log, unless its disk is full: the result says it too."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a worker's stderr is its log


def _fault(error: Exception, context: Context) -> dict[str, Any]:
    """What went wrong in the tool: the machine lacked something, or a fault of the tool itself."""
    _log(context.hidden(traceback.format_exc()))
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = f" ('{error.filename}')" if error.filename else ""
        return {"code": "disk", "what": f"{error.strerror}{place}", "do": "Free some room"}
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return {"code": "oom", "what": f"out of memory: {first}", "do": "Ask for less at a time"}
    what = f"a fault of the tool: {type(error).__name__}: {first}"
    return {"code": "internal", "what": what, "do": "The log has the traceback"}


def _write(context: Context, outcome: dict[str, Any]) -> None:
    """Write the result, waiting for room as long as it takes: what was worked for is not lost to a full disk."""
    told = False
    while True:
        try:
            files.write_text(context.folder / "result.json", context.hidden(json.dumps(outcome)))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not told:
                context.say(f"harness: the result waits for room: {error.strerror}")
            told = True
            time.sleep(1)
        else:
            return


def main() -> int:
    """Run the request that the command line names."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # sent by hand, it ends the task as any other signal does
    faulthandler.register(signal.SIGUSR2)  # the supervisor asks where a task hangs
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    secrets = [value for name, value in os.environ.items() if name.startswith(SECRET_VARIABLE) and value]
    context = Context(request, secrets)
    try:
        outcome, code = run(request, context), EXIT_OK
    except HarnessError as error:
        parts = {"code": error.code, "what": error.what, "where": error.where, "found": error.found, "do": error.do}
        outcome, code = {"ok": False, "error": parts}, error.exit_code
        _log(context.hidden(str(error)))
    except Exception as error:
        outcome, code = {"ok": False, "error": _fault(error, context)}, EXIT_INTERNAL
    _write(context, outcome)
    context.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
