"""Atomic writes, and seals: the size and digest of a file or a folder."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
MANIFEST = "manifest.jsonl"


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync it and rename it to `path`, else remove it.

    The final name is never carried by a half-written file, whatever kills the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        fsync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it takes the place of `path` (an old one is removed)."""
    import shutil  # noqa: PLC0415 - it brings every compressor along, and status reads this module

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        if path.exists():
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.replace(old)
            partial.replace(path)
            shutil.rmtree(old)
        else:
            partial.replace(path)
        fsync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def digest_file(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of `value` as canonical JSON, in hex."""
    return hashlib.sha256(CANONICAL(value).encode()).hexdigest()


class Seal(NamedTuple):
    """What a file or folder was when it was sealed.

    `stamp` digests paths, sizes and modification times: while it is unchanged, nothing is read again.
    """

    kind: str  # "file" | "folder"
    size_bytes: int
    num_files: int
    digest: str
    stamp: str

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def _walk(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Every regular file or symlink under `folder` with its status, by relative path; unfinished files left out."""
    found: list[tuple[str, os.stat_result]] = []
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".partial"):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    found.append((os.path.relpath(entry.path, folder), entry.stat()))
    return sorted(found)


def stamp(path: Path | str) -> str | None:
    """Digest of the paths, sizes and modification times at `path`, or None where nothing is there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked of ten thousand outputs, a Path costs more than the system call
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return digest_json([status.st_size, status.st_mtime_ns, status.st_ino])
    return digest_json([(name, s.st_size, s.st_mtime_ns) for name, s in _walk(Path(path))])


def _manifest(folder: Path, files: list[tuple[str, os.stat_result]]) -> dict[str, str]:
    """Digests that the folder's own manifest vouches for: those whose size and modification time are as listed."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return {}  # nothing there, or somebody else's file of that name
    status = dict(files)
    known = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            continue
        now = status.get(entry["path"])
        if (
            now
            and isinstance(entry.get("sha256"), str)
            and (now.st_size, now.st_mtime_ns) == (entry.get("size"), entry.get("mtime_ns"))
        ):
            known[entry["path"]] = entry["sha256"]
    return known


def seal(path: Path) -> Seal:
    """Seal the file or folder at `path`.

    A folder may hold a `manifest.jsonl` with one line for each file that its maker has digested already
    ({"path", "size", "mtime_ns", "sha256"}); a file that still has that size and time isn't read again.

    Raises FileNotFoundError when nothing is there, OSError for what can't be sealed: a pipe, a socket, a device.
    """
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        _check_regular(path, status)
        return Seal("file", status.st_size, 1, digest_file(path), str(stamp(path)))
    files = _walk(path)
    for name, each in files:
        _check_regular(path / name, each)
    known = _manifest(path, files)
    lines = [(name, s.st_size, known.get(name) or digest_file(path / name)) for name, s in files if name != MANIFEST]
    times = digest_json([(name, s.st_size, s.st_mtime_ns) for name, s in files])
    return Seal("folder", sum(s.st_size for _, s in files), len(files), digest_json(lines), times)


def _check_regular(path: Path, status: os.stat_result) -> None:
    """Reading a pipe or a device could take for ever. Raises OSError for it."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))


def holds(path: Path | str, seal_: Seal) -> bool:
    """Whether what lies at `path` is still what was sealed; read again only if a size or time has changed."""
    now = stamp(path)
    if now is None:
        return False
    return now == seal_.stamp or seal(Path(path)).digest == seal_.digest


def crash_report(text: str) -> Path:
    """Keep a traceback in the user's state folder and return its path."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "drafter-harness"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{os.getpid()}.log"
    path.write_text(text, encoding="utf-8")
    return path
