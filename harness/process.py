"""Starts, adopts, follows and stops the supervised process of an attempt."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.ownership import held
from harness.paths import AttemptPaths
from harness.state import Verdict

SHIM = Path(__file__).with_name("shim.py")
START_S = 20.0  # a machine that needs longer to start one small process is not usable


@dataclass(frozen=True)
class Launch:
    """What is to be started: `timeout_s` None means no limit."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    grace_s: float
    timeout_s: float | None


class Attempt:
    """A handle on a living attempt, our own or an adopted one."""

    def __init__(self, paths: AttemptPaths, pid: int, pidfd: int) -> None:
        self.paths, self._pid, self._pidfd = paths, pid, pidfd
        self._offset = 0

    def fileno(self) -> int:
        """Readable once the supervisor has ended."""
        return self._pidfd

    def poll(self) -> Verdict | None:
        """The verdict of an ended attempt; None where it was lost, after what it left behind has been ended."""
        with contextlib.suppress(ChildProcessError):  # adopted: somebody else's child
            os.waitpid(self._pid, os.WNOHANG)
        return _verdict_or_lost(self.paths)

    def stop(self) -> None:
        """Ask the task to end; its supervisor kills it after the grace period."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the task and all its descendants now."""
        self._send(signal.SIGQUIT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Let go of the handle; the attempt goes on."""
        os.close(self._pidfd)


def start(paths: AttemptPaths, launch: Launch) -> Attempt:
    """Start an attempt under a supervisor of its own session, in an existing folder."""
    words = [str(paths.folder), launch.cwd, f"{launch.grace_s:g}", f"{launch.timeout_s or 0:g}", *launch.argv]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SHIM), *words],
        env=dict(launch.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # Attempt reaps it, not Popen
    return Attempt(paths, process.pid, os.pidfd_open(process.pid))


def adopt(paths: AttemptPaths) -> Attempt | Verdict | None:
    """A living attempt as a handle, an ended one's verdict, or None for one that was lost."""
    waited_until = time.monotonic() + START_S
    while held(paths.lock):
        started = _json(paths.started)
        if started is not None:
            try:
                pidfd = os.pidfd_open(started["shim_pid"])
            except ProcessLookupError:
                continue
            if held(paths.lock):  # it still lives, so the handle is on it and not on a later process of that number
                return Attempt(paths, started["shim_pid"], pidfd)
            os.close(pidfd)
        elif time.monotonic() > waited_until:
            break
        time.sleep(0.02)
    return _verdict_or_lost(paths)


def _verdict_or_lost(paths: AttemptPaths) -> Verdict | None:
    """The verdict; where there is none, end what a killed supervisor left behind before saying so."""
    content = _json(paths.verdict)
    if content is None:
        _sweep(paths)
        return None
    return Verdict(**content)


def _sweep(paths: AttemptPaths) -> None:
    """End every process that carries the attempt's mark in its environment."""
    mark = b"HARNESS_ATTEMPT=" + os.fsencode(paths.folder)
    for _ in range(50):
        left = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _has(each, mark)]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if not left:
            return
        time.sleep(0.02)


def _has(folder: Path, mark: bytes) -> bool:
    """Whether a living process carries the mark; a zombie's environment is empty."""
    try:
        return mark in (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content


def read_result(paths: AttemptPaths) -> dict[str, Any] | None:
    """What the tool returned or reported, or None where it left nothing readable."""
    content = _json(paths.result)
    return content if isinstance(content, dict) else None


def log_tail(paths: AttemptPaths, num_lines: int) -> list[str]:
    """The last lines of the log, read from its end."""
    try:
        with paths.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 16384))
            return log.read().decode("utf-8", "replace").splitlines()[-num_lines:]
    except FileNotFoundError:
        return []
