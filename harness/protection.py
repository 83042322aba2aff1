"""Which paths a deleting task must leave alone, and what it has freed."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from harness.plan import Step
from harness.state import SETTLED, Checkpoint, State


def protected(
    steps: Mapping[str, Step], by: str, states: Mapping[str, State], checkpoints: Mapping[str, Checkpoint]
) -> dict[str, str]:
    """Path -> why it must not be deleted by task `by`.

    An output is needed while a task that needs its maker isn't settled, and for ever when nothing needs its maker:
    then it is a result of the plan. An input is needed until the task that reads it is settled.
    """
    readers: dict[str, list[str]] = {}
    for name, step in steps.items():
        if name == by:
            continue
        for need in step.needs:
            readers.setdefault(need, []).append(name)

    reasons: dict[str, str] = {}
    for name, step in steps.items():
        if name == by:
            continue
        settled = states.get(name) in SETTLED
        if not settled:
            for path in step.inputs:
                reasons[path] = f"task '{name}' has yet to read it"
        checkpoint = checkpoints.get(name)
        waiting = [reader for reader in readers.get(name, []) if states.get(reader) not in SETTLED]
        for output, path in step.outputs.items():
            if checkpoint and output in checkpoint.freed:
                continue
            if not settled:
                reasons[path] = f"task '{name}' is still to make it"
            elif waiting:
                reasons[path] = f"output '{output}' of '{name}' is needed by '{waiting[0]}'"
            elif not readers.get(name):
                reasons[path] = f"output '{output}' of '{name}' is a result of the plan"
    return reasons


def freed(
    steps: Mapping[str, Step], checkpoints: Mapping[str, Checkpoint], paths: Collection[str], *, by: str
) -> list[Checkpoint]:
    """The checkpoints with an output at or below one of the deleted `paths`, each noting that task `by` freed it."""
    deleted = {Path(os.path.abspath(path)) for path in paths}  # noqa: PTH100 - "..": by name, as they were given
    found = []
    for name, checkpoint in checkpoints.items() if deleted else ():
        outputs = steps[name].outputs if name in steps else {}
        gone = {output: by for output, path in outputs.items() if not deleted.isdisjoint(_with_parents(path))}
        if gone:
            found.append(replace(checkpoint, freed={**checkpoint.freed, **gone}))
    return found


def _with_parents(path: str) -> tuple[Path, ...]:
    place = Path(path).absolute()
    return (place, *place.parents)
