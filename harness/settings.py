"""What harness.yaml says: the interpreter of each environment, and jobs."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import BlockedError, UsageError
from harness.paths import Root


class Settings(BaseModel):
    """The content of harness.yaml: `envs` maps an environment's name to its Python interpreter."""

    model_config = ConfigDict(extra="forbid")

    envs: dict[str, str] = {}
    jobs: int = Field(default=1, ge=1)


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
