"""Where the root folder is, and which plans have state below it."""

import os
from pathlib import Path

from harness.errors import BlockedError, NotFoundError, UsageError
from harness.paths import PlanPaths, Root


def find_root(start: Path, given: Path | None) -> Root:
    """The root: `given`, else $HARNESS_ROOT, else the nearest folder from `start` upwards that holds
    harness.yaml, checkpoints/ or plans/, else the folder of `start` itself."""
    chosen = given or (Path(os.environ["HARNESS_ROOT"]) if os.environ.get("HARNESS_ROOT") else None)
    if chosen is not None:
        if not chosen.is_dir():
            raise UsageError("the root is not a folder", found=f"'{chosen}'")
        return Root(chosen.resolve())
    here = start.resolve()
    folder = here if here.is_dir() else here.parent
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in ("harness.yaml", "checkpoints", "plans")):
            return Root(candidate)
    return Root(folder)


def known_plans(root: Root) -> list[str]:
    """Names of the plans that have state below the root, if only a link that leads nowhere. Raises BlockedError."""
    try:
        if not root.checkpoints.is_dir():
            return []
        return sorted(each.name for each in root.checkpoints.iterdir() if os.path.lexists(PlanPaths(each).database))
    except OSError as error:
        raise BlockedError(
            "the folder of all plans' states can't be read",
            where=str(root.checkpoints),
            found=error.strerror or str(error),
            do="Look at its permissions",
        ) from error


def known_plan(root: Root, name: str | None) -> PlanPaths:
    """State of the plan called `name`, or of the only one there is. Raises NotFoundError or UsageError."""
    names = known_plans(root)
    if name is None:
        if len(names) == 1:
            return root.plan(names[0])
        if not names:
            raise NotFoundError("no plan has been run here", where=str(root.folder), do="Start one: harness run PLAN")
        raise UsageError("several plans have state here", found=", ".join(names), do="Name one of them")
    if name not in names:
        raise NotFoundError(
            f"no plan called '{name}' has been run here",
            where=str(root.folder),
            found=", ".join(names) or "none",
            do="Give a plan file to start one",
        )
    return root.plan(name)
