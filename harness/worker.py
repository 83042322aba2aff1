"""The front door of a tool's process: reads the request, runs the tool, seals its outputs, writes the result.

python -P -m harness.worker REQUEST        exit 0 done, 1 failed, 75 interrupted, 70 a fault of the tool
"""

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import files
from harness.contract import Context, Result
from harness.errors import EXIT_INTERNAL, EXIT_OK, HarnessError, ToolError


def _named(name: str) -> Any:
    """The object called "package.module:name"."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _seals(context: Context) -> dict[str, Any]:
    """Seal every declared output. Raises ToolError for one that isn't there."""
    seals = {}
    for name, path in context.outputs.items():
        try:
            seals[name] = files.seal(context.root / path).to_dict()
        except FileNotFoundError as error:
            raise ToolError(f"the tool ended without its output '{name}'", found=f"nothing at '{path}'") from error
    return seals


def _load(request: dict[str, Any]) -> tuple[Any, Any]:
    """The tool's parameters and main. Raises ToolError when the environment can't import it."""
    try:
        return _named(request["params_model"]).model_validate(request["params"]), _named(request["run"])
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


def main() -> int:
    """Run the request that the command line names."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    context = Context(request)
    try:
        outcome, code = run(request, context), EXIT_OK
    except HarnessError as error:
        parts = {"code": error.code, "what": error.what, "where": error.where, "found": error.found, "do": error.do}
        outcome, code = {"ok": False, "error": parts}, error.exit_code
        print(error, file=sys.stderr)  # noqa: T201 - a worker's stderr is its log
    except Exception as error:
        traceback.print_exc()
        what = f"a fault of the tool: {type(error).__name__}: {error}"
        parts = {"code": "internal", "what": what.splitlines()[0], "do": "The log has the traceback"}
        outcome, code = {"ok": False, "error": parts}, EXIT_INTERNAL
    finally:
        context.close()
    files.write_json(context.folder / "result.json", outcome)
    return code


if __name__ == "__main__":
    sys.exit(main())
