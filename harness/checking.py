"""What `harness check` tells of a valid plan: the order, and what each task lacks on this machine."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from harness import order, preflight
from harness.appraisal import checked_params, defaults
from harness.errors import EXIT_OK, BlockedError
from harness.machine import snapshot
from harness.paths import Root
from harness.plan import LoadedPlan, Step
from harness.settings import interpreter, read_settings


@dataclass(frozen=True)
class Row:
    """One task in its turn. `warnings` are sentences about what is missing now; they may be cured by earlier tasks."""

    task: str
    content: str
    priority: str
    tool: str | None
    needs: tuple[str, ...]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    plan: str
    path: str
    rows: list[Row]
    exit_code: int = EXIT_OK

    def document(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"plan": self.plan, "path": self.path, "valid": True, "order": [vars(row) for row in self.rows]}

    def lines(self) -> list[str]:
        """The report as text, one line a task, then the warnings."""
        width = max(len(row.task) for row in self.rows)
        kind = max(len(row.tool or "decision") for row in self.rows)
        lines = [f"{self.path}: plan '{self.plan}' is valid, {len(self.rows)} tasks. They run in this order:"]
        for position, row in enumerate(self.rows, 1):
            after = f"  after {', '.join(row.needs)}" if row.needs else ""
            lines.append(
                f"{position:>4}  {row.task:<{width}}  {row.priority:<6}  {row.tool or 'decision':<{kind}}{after}"
            )
        warnings = [f"  {row.task}: {warning}" for row in self.rows for warning in row.warnings]
        return [*lines, *(["As the machine is now:", *warnings] if warnings else [])]


def report(loaded: LoadedPlan, root: Root) -> Report:
    """Check a loaded plan against the machine."""
    envs = {**read_settings(root).envs, **loaded.plan.envs}
    made = {path for step in loaded.steps.values() for path in step.outputs.values()}
    rows = []
    with contextlib.chdir(root.folder):
        for name in order.execution_order(loaded.steps):
            step = loaded.steps[name]
            task = step.task
            warnings = _warnings(step, root, envs, made=made)
            rows.append(Row(name, task.content, task.priority, task.tool, step.needs, warnings))
    return Report(loaded.plan.name, str(loaded.path), rows)


def _warnings(step: Step, root: Root, envs: dict[str, str], *, made: set[str]) -> list[str]:
    """What the step lacks on this machine now."""
    tool = step.tool
    if tool is None:
        return [] if step.task.decision else ["has no tool yet: the run will stop here"]
    found = []
    try:
        interpreter(step.task.env or tool.env, root, envs)
    except BlockedError as error:
        found.append(str(error))
    for path in step.inputs:
        below = any(path == output or path.startswith(f"{output}/") for output in made)
        if not below and not (root.folder / path).exists():
            found.append(f"input '{path}' does not exist")
    if not step.deferred:
        needs = tool.needs(checked_params(step, {**defaults(tool.params), **step.params}))
        machine = snapshot(disks=needs.disk_bytes, files=needs.files, ports=needs.ports, gpus=needs.gpus > 0)
        found.extend(str(finding) for finding in preflight.findings(needs, machine))
    return found
