"""From a step to its process: command line, environment and request."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import catalog
from harness.appraisal import Appraisal
from harness.contract import Params, Tool
from harness.errors import ToolError
from harness.files import write_json
from harness.generic import SHELL
from harness.paths import AttemptPaths, PlanPaths, Root
from harness.plan import Plan, Step
from harness.process import Launch
from harness.settings import interpreter


def checked_params(step: Step, params: Mapping[str, Any]) -> Params:
    """The parameters as the tool's model. Raises ToolError where a value known only now doesn't fit."""
    assert step.tool is not None
    try:
        return step.tool.params.model_validate(params)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ToolError(f"parameter '{name}': {first['msg']}", found=repr(first["input"])) from error


def link_packages(root: Root, tool: Tool) -> Path:
    """The folder of links through which a foreign environment imports harness and the tool's pack."""
    root.imports.mkdir(parents=True, exist_ok=True)
    for name, folder in catalog.package_folders(tool).items():
        link = root.imports / name
        if not link.is_symlink() or link.readlink() != folder:
            fresh = root.imports / f".{name}.{os.getpid()}"
            fresh.symlink_to(folder)
            fresh.replace(link)
    return root.imports


class Launcher:
    """Prepares attempts: writes the request into the attempt's folder and says what the shim is to start."""

    def __init__(self, root: Root, plan: Plan, paths: PlanPaths, envs: Mapping[str, str]) -> None:
        self.root, self.plan, self.paths, self.envs = root, plan, paths, envs

    def python(self, step: Step) -> Path:
        """The interpreter of the step's environment. Raises BlockedError when there is none."""
        assert step.tool is not None
        return interpreter(step.task.env or step.tool.env, self.root, self.envs)

    def prepare(self, step: Step, appraisal: Appraisal, number: int, *, protected: dict[str, str]) -> Launch:
        """Make the attempt's folder and its Launch. Raises OSError when it can't be written."""
        assert step.tool is not None
        attempt = self.paths.attempt(step.task.id, number)
        attempt.folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "HARNESS_TASK": step.task.id, "PYTHONUNBUFFERED": "1"}
        argv, cwd = (
            self._shell(attempt, appraisal, env)
            if step.tool is SHELL
            else self._worker(step, appraisal, number, env, protected=protected)
        )
        return Launch(argv=argv, cwd=str(cwd), env=env, grace_s=self.plan.grace_s, timeout_s=step.task.timeout_s)

    def _shell(self, attempt: AttemptPaths, appraisal: Appraisal, env: dict[str, str]) -> tuple[list[str], Path]:
        env["HARNESS_RESULT"] = str(attempt.result)
        env.update(appraisal.params["env"])
        return ["/bin/sh", "-c", appraisal.params["command"]], self.root.folder / appraisal.params["cwd"]

    def _worker(
        self, step: Step, appraisal: Appraisal, number: int, env: dict[str, str], *, protected: dict[str, str]
    ) -> tuple[list[str], Path]:
        tool, task = step.tool, step.task.id
        assert tool is not None
        attempt = self.paths.attempt(task, number)
        scratch = self.paths.scratch(task, appraisal.fingerprint)
        scratch.mkdir(parents=True, exist_ok=True)
        model = tool.params
        write_json(
            attempt.request,
            {
                "task": task,
                "attempt": number,
                "tool": tool.name,
                "run": tool.run,
                "params_model": f"{model.__module__}:{model.__qualname__}",
                "params": appraisal.params,
                "root": str(self.root.folder),
                "folder": str(attempt.folder),
                "scratch": str(scratch),
                "outputs": step.outputs,
                "protected": {**protected, str(self.root.checkpoints): "the engine keeps its state there"},
                "fingerprint": appraisal.fingerprint,
            },
        )
        env["PYTHONPATH"] = str(link_packages(self.root, tool))
        return [str(self.python(step)), "-P", "-m", "harness.worker", str(attempt.request)], self.root.folder
