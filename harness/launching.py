"""From a step to its process: command line, environment and request."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import catalog, preflight, process, references
from harness.appraisal import Appraisal, checked_params
from harness.contract import Needs, Tool, redacted
from harness.errors import BlockedError
from harness.files import write_json
from harness.generic import SHELL
from harness.machine import snapshot
from harness.paths import AttemptPaths, PlanPaths, Root
from harness.plan import Plan, Secret, Step
from harness.process import Launch
from harness.settings import interpreter
from harness.worker import SECRET_VARIABLE, revealed

NOTHING = Needs()


def needs(step: Step, appraisal: Appraisal) -> Needs:
    """What the task asks of the machine, its inputs among the files."""
    assert step.tool is not None
    asked = step.tool.needs(checked_params(step, appraisal.params))
    return asked.model_copy(update={"files": [*asked.files, *step.inputs]}) if step.inputs else asked


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


def secret(name: str, source: Secret) -> str:
    """The value of a secret. Raises BlockedError where it isn't to be had."""
    if source.env is not None:
        found, place = os.environ.get(source.env), f"the environment variable '{source.env}' is not set"
    else:
        path = Path(str(source.file)).expanduser()
        try:
            found, place = path.read_text(encoding="utf-8").strip(), f"'{path}' is empty"
        except (OSError, UnicodeDecodeError) as error:
            found, place = None, f"'{path}' can't be read: {error}"
    if not found:
        raise BlockedError(f"secret '{name}' is missing", found=place, do="Set it, then resume")
    return found


def py_spy() -> str:
    """The path of py-spy, beside our own Python or elsewhere; "" where it isn't installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


class Launcher:
    """Prepares attempts: writes the request into the attempt's folder and says what the shim is to start."""

    def __init__(self, root: Root, plan: Plan, paths: PlanPaths, envs: Mapping[str, str]) -> None:
        self.root, self.plan, self.paths, self._envs = root, plan, paths, envs

    def python(self, step: Step) -> Path:
        """The interpreter of the step's environment. Raises BlockedError when there is none."""
        assert step.tool is not None
        return interpreter(step.task.env or step.tool.env, self.root, {**self._envs, **self.plan.envs})

    def problems(self, step: Step, asked: Needs) -> list[str]:
        """What the machine lacks for the step, one sentence each."""
        try:
            self.python(step)
            self.secrets(step)
        except BlockedError as error:
            return [str(error)]
        if asked == NOTHING:
            return []
        now = snapshot(disks=asked.disk_bytes, files=asked.files, ports=asked.ports, gpus=asked.gpus > 0)
        return [str(finding) for finding in preflight.findings(asked, now) if finding.level == "error"]

    def secrets(self, step: Step) -> dict[str, str]:
        """The secrets that the step's parameters refer to, with their values. Raises BlockedError for a missing one."""
        found = references.find(step.params) if self.plan.secrets else []
        return {each.name: secret(each.name, self.plan.secrets[each.name]) for each in found if each.secret}

    def prepare(self, step: Step, appraisal: Appraisal, number: int, *, protected: dict[str, str]) -> Launch:
        """Make the attempt's folder and its Launch. Raises OSError when it can't be written."""
        assert step.tool is not None
        attempt = self.paths.attempt(step.task.id, number)
        attempt.folder.mkdir(parents=True, exist_ok=True)
        hidden = {f"{SECRET_VARIABLE}{name}": value for name, value in self.secrets(step).items()}
        env = {**self._environment(hidden), "HARNESS_TASK": step.task.id, "PYTHONUNBUFFERED": "1", **hidden}
        argv, cwd = (
            self._shell(attempt, appraisal, env)
            if step.tool is SHELL
            else self._worker(step, appraisal, number, env, protected=protected)
        )
        return Launch(
            argv=argv,
            cwd=str(cwd),
            env=env,
            grace_s=self.plan.grace_s,
            timeout_s=step.task.timeout_s,
            stall_s=step.task.stall_s,
            py_spy=py_spy() if step.task.stall_s else "",
            secrets=list(hidden),
        )

    def _environment(self, hidden: Mapping[str, str]) -> dict[str, str]:
        """Our own environment, without the variables of secrets that the task doesn't refer to."""
        others = {s.env for name, s in self.plan.secrets.items() if f"{SECRET_VARIABLE}{name}" not in hidden}
        return {name: value for name, value in os.environ.items() if name not in others}

    def result(self, step: Step, paths: AttemptPaths) -> dict[str, Any] | None:
        """What the tool returned or reported, None where it left nothing readable; secrets are hidden."""
        found = process.read_result(paths)
        if found is None or step.tool is not SHELL:  # a worker hides them itself
            return found
        with contextlib.suppress(BlockedError):  # a secret that is gone now
            return dict(json.loads(redacted(json.dumps(found), self.secrets(step).values())))
        return found

    def _shell(self, attempt: AttemptPaths, appraisal: Appraisal, env: dict[str, str]) -> tuple[list[str], Path]:
        env["HARNESS_RESULT"] = str(attempt.result)
        env.update({name: revealed(text, env) for name, text in appraisal.params["env"].items()})
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
