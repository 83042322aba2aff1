"""The lock by which one run owns a plan."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import OwnedError


def held(lock: Path) -> bool:
    """Whether a living process holds the lock file; asks the kernel, so a dead holder is none."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def owner(lock: Path) -> dict[str, Any] | None:
    """Who owns the plan now, {"pid", "host", "since"}, or None."""
    if not held(lock):
        return None
    try:
        facts: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):  # between taking the lock and signing it
        return {"pid": 0, "host": "?", "since": time.time()}
    return facts


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
    """Own the plan for the length of the block. Raises OwnedError, naming the owner, when another run has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not take(descriptor):
            facts = owner(lock) or {"pid": "?", "host": "?", "since": time.time()}
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["since"]))
            raise OwnedError(
                f"plan '{plan}' is owned by another run (pid {facts['pid']} on {facts['host']}, since {since})",
                do=f"Look at it with: harness status {plan}",
            )
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(facts).encode(), 0)
        yield
    finally:
        os.close(descriptor)
