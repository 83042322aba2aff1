"""The work of `clean-disk`: refuse everything doubtful first, then delete path by path, each recorded."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from eagle3.clean_disk.spec import CleanDiskParams
from harness.contract import Context, Result, ToolError, write_json


def main(params: CleanDiskParams, context: Context) -> Result:
    """Delete the paths, or say what would be deleted."""
    own = {str(path): "this task itself writes there" for path in (context.folder, *context.outputs.values())}
    kept = {**own, **context.protected}
    refused = [reason for path in params.paths if (reason := _refusal(path, params.roots, kept))]
    if refused:
        raise ToolError("nothing was deleted", found="; ".join(refused))
    paths = _outermost(params.paths)
    journal = context.scratch / "journal.jsonl"
    done = _read(journal)
    for position, path in enumerate(paths):
        facts = done.get(path)
        if facts is None or not facts["deleted"] or os.path.lexists(path):
            if facts is None or facts["deleted"]:
                facts = _measure(path)  # else what an earlier attempt measured, before it deleted some of it
            if not params.dry_run:
                _note(journal, {"path": path, **facts, "deleted": False})
                _delete(path, params.roots)
                _note(journal, {"path": path, **facts, "deleted": True})
            done[path] = facts
        verb = "would free" if params.dry_run else "freed"
        context.say(f"{verb} {facts['bytes']} bytes in {facts['files']} files: '{path}'")
        context.progress(position + 1, len(paths), unit="paths")
    entries = [{"path": path, "bytes": done[path]["bytes"], "files": done[path]["files"]} for path in paths]
    total = sum(entry["bytes"] for entry in entries)
    write_json(context.outputs["report"], {"dry_run": params.dry_run, "freed_bytes": total, "paths": entries})
    return Result(
        values={"freed_bytes": 0 if params.dry_run else total},
        note=f"{'would free' if params.dry_run else 'freed'} {total / 2**20:.1f} MiB",
        freed=[] if params.dry_run else params.paths,
    )


def _outermost(paths: list[str]) -> list[str]:
    """Each path once, without those inside another one, so that nothing is counted twice."""
    places = {Path(path).absolute(): path for path in paths}
    return [path for place, path in places.items() if places.keys().isdisjoint(place.parents)]


def _refusal(path: str, roots: list[str], protected: dict[str, str]) -> str:
    """Why `path` must not be deleted, "" where it may be."""
    place, root = Path(path).absolute(), _root_of(path, roots)
    if root is None:
        return f"'{path}' is not inside one of the roots ({', '.join(roots)})"
    for part in (place, *place.parents):
        if part.is_symlink() and not _is_or_above(part, root):
            return f"'{path}' leads through the symlink '{part}'"
    real = place.resolve()
    for kept, reason in protected.items():
        other = Path(kept).resolve()
        if _is_or_above(real, other) or _is_or_above(other, real):
            return f"'{path}' must stay: {reason}"
    mounts = [mount for mount in _mount_points() if _is_or_above(real, mount)]
    return f"'{path}' holds the mount point '{mounts[0]}'" if mounts else ""


def _root_of(path: str, roots: list[str]) -> Path | None:
    """The root that `path` lies inside of; none for a path with "..", whose meaning a link could change."""
    place = Path(path).absolute()
    if ".." in place.parts:
        return None
    return next((root for root in map(Path.absolute, map(Path, roots)) if root in place.parents), None)


def _is_or_above(upper: Path, lower: Path) -> bool:
    return upper == lower or upper in lower.parents


def _mount_points() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    names = (line.split(" ")[4] for line in lines)  # proc(5): blanks and backslashes are written as octal numbers
    return [Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), name)) for name in names]


def _measure(path: str) -> dict[str, Any]:
    """Bytes on the disk and files at `path`, links counted as themselves; nothing there counts nothing."""
    place = Path(path)
    if not place.exists():
        return {"bytes": 0, "files": 0}
    if not place.is_dir():
        return {"bytes": place.lstat().st_blocks * 512, "files": 1}
    total = files = 0
    for folder, _, names in os.walk(place):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118 - a million files
            files += 1
    return {"bytes": total, "files": files}


def _delete(path: str, roots: list[str]) -> None:
    """Delete below an opened folder, step by step and never through a link, so that no swapped link can lead astray."""
    root = _root_of(path, roots)
    assert root is not None, "refused before"
    parts = Path(path).absolute().relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except FileNotFoundError:
                return
            os.close(folder)
            folder = below
        try:
            is_folder = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode & 0o170000 == 0o040000
        except FileNotFoundError:
            return
        if is_folder:
            shutil.rmtree(parts[-1], dir_fd=folder)
        else:
            os.unlink(parts[-1], dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        raise ToolError("could not be deleted", where=path, found=str(error)) from error
    finally:
        os.close(folder)


def _read(journal: Path) -> dict[str, dict[str, Any]]:
    """The last word of an earlier attempt on each path."""
    found: dict[str, dict[str, Any]] = {}
    if journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # torn by a kill
            found[entry.pop("path")] = entry
    return found


def _note(journal: Path, entry: dict[str, Any]) -> None:
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
