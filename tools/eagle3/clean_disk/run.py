"""The work of `clean-disk`: refuse everything doubtful first, then delete path by path, each recorded."""

import json
import os
import re
from pathlib import Path
from typing import Any

from eagle3.clean_disk.removal import delete, measure
from eagle3.clean_disk.spec import CleanDiskParams
from harness.contract import Context, Result, ToolError, write_json


def main(params: CleanDiskParams, context: Context) -> Result:
    """Delete the paths, or say what would be deleted."""
    own = {str(path): "this task itself writes there" for path in (context.folder, *context.outputs.values())}
    kept = {**own, **context.protected}
    places = {path: Path(path).resolve() for path in params.paths}  # once: what is checked is what is deleted
    refused = [reason for path, place in places.items() if (reason := _refusal(path, place, params.roots, kept))]
    if refused:
        raise ToolError("nothing was deleted", found="; ".join(refused))
    paths = _outermost(places)
    journal = context.scratch / "journal.jsonl"
    done = _read(journal)
    for position, path in enumerate(paths):
        facts = done.get(path)
        if facts is None or not facts["deleted"] or os.path.lexists(places[path]):
            if facts is None or facts["deleted"]:
                facts = measure(places[path])  # else what an earlier attempt measured, before it deleted some of it
            if not params.dry_run:
                _note(journal, {"path": path, **facts, "deleted": False})
                delete(places[path])
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


def _outermost(places: dict[str, Path]) -> list[str]:
    """Each place's first name, without the places inside another one, so that nothing is counted twice."""
    names: dict[Path, str] = {}
    for path, place in places.items():
        names.setdefault(place, path)
    return [path for place, path in names.items() if names.keys().isdisjoint(place.parents)]


def _refusal(path: str, place: Path, roots: list[str], protected: dict[str, str]) -> str:
    """Why `path`, which resolves to `place`, must not be deleted; "" where it may be."""
    root = _root_of(path, roots)
    if root is None:
        return f"'{path}' is not inside one of the roots ({', '.join(roots)})"
    if place != root.resolve() / Path(path).absolute().relative_to(root):
        return f"'{path}' leads through a symlink to '{place}'"
    for kept, reason in protected.items():
        other = Path(kept).resolve()
        if _is_or_above(place, other) or _is_or_above(other, place):
            return f"'{path}' must stay: {reason}"
    mounts = [mount for mount in _mount_points() if _is_or_above(place, mount)]
    return f"'{path}' holds the mount point '{mounts[0]}'" if mounts else ""


def _root_of(path: str, roots: list[str]) -> Path | None:
    """The innermost root that `path` lies inside of; none for a path with "..", whose meaning a link could change."""
    named = Path(path).absolute()
    if ".." in named.parts:
        return None
    around = [root for root in (Path(root).absolute() for root in roots) if root in named.parents]
    return max(around, key=lambda root: len(root.parts), default=None)


def _is_or_above(upper: Path, lower: Path) -> bool:
    return upper == lower or upper in lower.parents


def _mount_points() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    names = (line.split(" ")[4] for line in lines)  # proc(5): blanks and backslashes are written as octal numbers
    return [Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), name)) for name in names]


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
