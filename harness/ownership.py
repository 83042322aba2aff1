"""The lock by which one run owns a plan."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import BlockedError, OwnedError
from harness.mounts import mount_of

SIGNED_BYTES = 512  # always that long, so that signing it anew needs no room on a full disk
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
NOBODY = {"pid": "?", "host": "?", "since": None}


def held(lock: Path) -> bool:
    """Whether a living process holds the lock file; asks the kernel, so a dead holder is none.

    Raises BlockedError where that can't be told: nobody may take a living process for a dead one.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _blocked(error, lock) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise _blocked(error, lock) from error
    finally:
        os.close(descriptor)
    return False


def owner(lock: Path) -> dict[str, Any] | None:
    """Who owns the plan now, {"pid", "host", "since"}, or None; "?" and since None where it hasn't said so yet."""
    return _signed(lock) if held(lock) else None


def _signed(lock: Path) -> dict[str, Any]:
    try:
        facts = json.loads(lock.read_bytes())
    except (OSError, ValueError):  # between taking the lock and signing it
        return NOBODY
    return {**NOBODY, **facts} if isinstance(facts, dict) else NOBODY


def take(descriptor: int) -> bool:
    """Take the lock, trying for a moment: `held`, asked by a reader, holds it for some microseconds."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


@contextmanager
def owning(lock: Path, *, plan: str) -> Iterator[None]:
    """Own the plan for the length of the block.

    Raises OwnedError, naming the owner, when another run has it; BlockedError when the lock can't be made or taken.
    """
    descriptor = -1
    try:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not take(descriptor):
                raise _owned(_signed(lock), plan)
            facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
            os.pwrite(descriptor, json.dumps(facts).encode().ljust(SIGNED_BYTES), 0)
            os.ftruncate(descriptor, SIGNED_BYTES)
        except OSError as error:
            raise _blocked(error, lock) from error
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _owned(facts: dict[str, Any], plan: str) -> OwnedError:
    elsewhere = facts["host"] not in ("?", socket.gethostname())
    who = f"pid {facts['pid']} on {facts['host']}" + (", which is another machine," if elsewhere else "")
    if isinstance(facts["since"], int | float):
        who += f"{'' if elsewhere else ','} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(facts['since']))}"
    return OwnedError(
        f"plan '{plan}' is owned by another run ({who.rstrip(',')})", do=f"Look at it with: harness status {plan}"
    )


def _blocked(error: OSError, lock: Path) -> BlockedError:
    """Why the lock can't be made, taken or asked about, and what to do."""
    what, words = "the lock that keeps two runs of a plan apart can't be used", error.strerror or str(error)
    kind = mount_of(lock.parent).kind or "unknown type"
    do = {
        errno.ENOSPC: "Free some room there",
        errno.EDQUOT: "Free some room there, or ask for a larger quota",
        errno.EROFS: "Mount it writable, or choose another root: --root",
        errno.EACCES: "Give this user the right to write there, or choose another root: --root",
        errno.EPERM: "Give this user the right to write there, or choose another root: --root",
        errno.EISDIR: "Move the folder that is in its place away",
    }.get(error.errno or 0, "Look at each part of the path")
    if error.errno in UNSUPPORTED:
        what = "this file system has no locks, so two runs of a plan could not be kept apart"
        do = "Put checkpoints/ on a local disk: choose another root with --root, or make it a link to one"
    return BlockedError(what, where=str(lock), found=f"{words} (file system {kind})", do=do)
