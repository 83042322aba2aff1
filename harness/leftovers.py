"""Processes of a plan's attempts that go on although their supervisor is gone."""

import contextlib
import os
import signal
from pathlib import Path

from harness.ownership import held
from harness.paths import AttemptPaths, PlanPaths

MARK = b"HARNESS_ATTEMPT="


def leftovers(paths: PlanPaths) -> dict[int, AttemptPaths]:
    """The attempt of each such process, by pid; those of other users can't be seen."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid() and (folder := _marked(int(each.name))):
            attempt = AttemptPaths(folder)
            if paths.tasks in folder.parents and not held(attempt.lock):
                found[int(each.name)] = attempt
    return found


def end(paths: PlanPaths) -> list[int]:
    """Kill them; returns the pids of those that were killed."""
    killed = []
    for pid, attempt in leftovers(paths).items():
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            process = os.pidfd_open(pid)
            try:
                if _marked(pid) == attempt.folder:  # so the handle is on it, and not on a later process of that number
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    killed.append(pid)
            finally:
                os.close(process)
    return killed


def _marked(pid: int) -> Path | None:
    """The folder of the attempt whose mark the process carries in its environment; a zombie has none."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(MARK):
            return Path(os.fsdecode(entry[len(MARK) :]))
    return None
