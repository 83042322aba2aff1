"""The tools that need no pack: a shell command and a Python function."""

import sys
from typing import Any

from pydantic import Field

from harness.contract import Context, Needs, Params, Result, Tool, ToolError


class Machine(Params):
    """What a generic task asks of the machine; only its author knows."""

    cpus: int = Field(0, ge=0)
    gpus: int = Field(0, ge=0)
    ram_bytes: int = Field(0, ge=0)
    disk_bytes: dict[str, int] = Field(default_factory=dict, description="path -> bytes that will be written below it")
    shm_bytes: int = Field(0, ge=0)


class ShellParams(Machine):
    command: str = Field(min_length=1, description="run by /bin/sh -c")
    cwd: str = Field(".", description="relative to the root")
    env: dict[str, str] = Field(default_factory=dict)
    inputs: list[str] = Field(default_factory=list, description="paths that it reads; a change makes the task stale")


class PythonParams(Machine):
    call: str = Field(
        pattern=r"^[\w.]+:[\w.]+$", description="module:function; it gets `args`, its dict becomes values"
    )
    args: dict[str, Any] = Field(default_factory=dict)
    path: list[str] = Field(default_factory=list, description="folders to import from")
    inputs: list[str] = Field(default_factory=list, description="paths that it reads; a change makes the task stale")


def needs(params: Machine) -> Needs:
    """What the task's author declared."""
    return Needs(
        cpus=params.cpus,
        gpus=params.gpus,
        ram_bytes=params.ram_bytes,
        disk_bytes=params.disk_bytes,
        shm_bytes=params.shm_bytes,
    )


def call_function(params: PythonParams, context: Context) -> Result:
    """Import and call the function. Raises ToolError when there is no such function."""
    import importlib  # noqa: PLC0415 - the engine reads this module too, and never calls

    sys.path[:0] = [str(context.root / folder) for folder in params.path]
    module, _, name = params.call.partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        raise ToolError(f"no function '{params.call}'", found=str(error), do="Check 'call' and 'path'") from error
    found = function(**params.args)
    return Result(values=found if isinstance(found, dict) else {})


ANY_VALUE = {"*": 'whatever the command writes to $HARNESS_RESULT as {"values": {...}}'}

SHELL = Tool(
    name="shell",
    version=1,
    summary="Run a shell command.",
    params=ShellParams,
    run="",  # the supervisor starts the command itself
    values=ANY_VALUE,
    inputs=("inputs",),
    needs=needs,
)
PYTHON = Tool(
    name="python",
    version=1,
    summary="Call a Python function.",
    params=PythonParams,
    run="harness.generic:call_function",
    values={"*": "the items of the dict that the function returns"},
    inputs=("inputs",),
    needs=needs,
)
TOOLS = (SHELL, PYTHON)
