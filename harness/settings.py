"""Where the root folder is, and what harness.yaml there says: interpreters and jobs."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import BlockedError, NotFoundError, UsageError
from harness.paths import PlanPaths, Root


class Settings(BaseModel):
    """The content of harness.yaml: `envs` maps an environment's name to its Python interpreter."""

    model_config = ConfigDict(extra="forbid")

    envs: dict[str, str] = {}
    jobs: int = Field(1, ge=1)


def read_settings(root: Root) -> Settings:
    """Settings of the root folder; defaults where it has no harness.yaml. Raises UsageError on a wrong file."""
    if not root.settings.exists():
        return Settings()
    from ruamel.yaml import YAML  # noqa: PLC0415 - most roots have no such file
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        content: Any = YAML(typ="safe", pure=True).load(root.settings.read_text(encoding="utf-8"))
        return Settings.model_validate(content or {})
    except (YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise UsageError("harness.yaml can't be read", where=str(root.settings), found=str(error)) from error


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


def interpreter(env: str, root: Root, envs: Mapping[str, str]) -> Path:
    """The Python of environment `env`: as `envs` says (relative to the root), else the engine's own."""
    named = envs.get(env)
    if named is None:
        return Path(sys.executable)
    path = root.folder / Path(named).expanduser()
    if path.is_file() and os.access(path, os.X_OK):
        return path
    on_path = shutil.which(named)
    if on_path:
        return Path(on_path)
    raise BlockedError(
        f"environment '{env}' has no interpreter",
        found=f"nothing executable at '{path}'",
        do="Make it, or correct envs",
    )


def known_plans(root: Root) -> list[str]:
    """Names of the plans that have state below the root."""
    if not root.checkpoints.is_dir():
        return []
    return sorted(folder.name for folder in root.checkpoints.iterdir() if PlanPaths(folder).database.exists())


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
