"""What an error of SQLite or of the system means for the state database, whether it passes, and what to do about it."""

import errno
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from harness.errors import StoreError

RESTORE = "Move it away to start anew, or restore a copy (without the old state.db-wal and state.db-shm)"


@dataclass(frozen=True)
class Cause:
    """Why the database can't be used. `passing`: the cause can go away; `no_room`: the ballast may help."""

    found: str
    do: str
    passing: bool = False
    no_room: bool = False


FULL = Cause("its disk is full", "Free some room there, then resume: nothing that was recorded is lost", True, True)
NO_INODES = Cause(
    "its file system has room for no more files", "Delete some files there, then resume: nothing is lost", True, True
)
QUOTA = Cause("the disk quota is used up", "Free some room, then resume: nothing that was recorded is lost", True, True)
READ_ONLY = Cause("its file system is read-only", "Mount it writable (the kernel's log may say why it isn't)", True)
LOCKED = Cause("another process keeps it locked", "Look who has it open: fuser -v state.db", True)
FORBIDDEN = Cause("no permission to write it", "Give this user the right to write the folder and what is in it")
FOLDER = Cause("a folder is in its place", "Move it away to start anew, or restore a copy")
DANGLING = Cause("it is a link, and nothing is where it leads", "Make its target reachable, or remove the link")
NO_FOLDER = Cause("something in its path is no folder", "Look at each part of the path")
MISSING = Cause("nothing is there", "Restore a copy, or start anew: harness run")
EMPTY = Cause("the file is empty, though tasks have been executed", RESTORE)
DAMAGED = Cause("the file is damaged, or is no database", RESTORE)
BROKEN = Cause("the disk failed to read or write", "Look at the kernel's log: dmesg")
OTHER = Cause("an error", "Look at the folder's permissions and free room")

BY_ERRNO = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: QUOTA,
    errno.EROFS: READ_ONLY,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.EIO: BROKEN,
    errno.ENOENT: MISSING,
    errno.EISDIR: FOLDER,
    errno.ENOTDIR: NO_FOLDER,
    errno.EEXIST: NO_FOLDER,
}
BY_CODE = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_READONLY: FORBIDDEN,
    sqlite3.SQLITE_PERM: FORBIDDEN,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_IOERR: BROKEN,
}
UNCLEAR = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def cause_of(error: sqlite3.Error | OSError, database: Path) -> Cause:
    """What is behind the error. SQLite keeps the system's own error to itself, so the folder is tried out."""
    if isinstance(error, OSError):
        return _with_inodes(BY_ERRNO.get(error.errno or 0, OTHER), database.parent)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bytes refine it
    if code in UNCLEAR:
        if misplaced := misplacement(database):
            return misplaced
        problem = _try_out(database.parent)
        if problem in BY_ERRNO:
            return _with_inodes(BY_ERRNO[problem], database.parent)
        if code == sqlite3.SQLITE_CANTOPEN and not os.access(database, os.W_OK, effective_ids=True):
            return FORBIDDEN
    return BY_CODE.get(code, OTHER)


def store_error(cause: Cause, database: Path, error: Exception | None = None) -> StoreError:
    """The error to raise."""
    words = f" ({getattr(error, 'strerror', None) or error})" if error else ""
    found = StoreError(
        "the state database can't be used", where=str(database), found=f"{cause.found}{words}", do=cause.do
    )
    found.passing = cause.passing
    return found


def misplacement(database: Path) -> Cause | None:
    """What is in the database's place that is no file, None where there is a file or nothing."""
    if database.is_symlink() and not database.exists():
        return DANGLING
    return FOLDER if database.is_dir() else None


def _try_out(folder: Path) -> int:
    """The error number that writing a file into the folder meets, 0 where it meets none."""
    import tempfile  # noqa: PLC0415 - only an error pays for it

    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(8192))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno or 0
    return 0


def _with_inodes(cause: Cause, folder: Path) -> Cause:
    """The same system error says that there is no room for bytes and that there is none for another file."""
    if cause is not FULL:
        return cause
    try:
        free = os.statvfs(folder)
    except OSError:
        return cause
    return NO_INODES if free.f_files and not free.f_favail else cause
