"""Starts, adopts, follows and stops the supervised process of an attempt."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from harness.errors import BlockedError
from harness.ownership import held, take
from harness.paths import AttemptPaths
from harness.state import Verdict

SHIM = "harness.shim"
SHIM_AT = 3  # where the supervisor's command line names its script; its folder follows
LOCK = 3  # the descriptor on which the supervisor finds its lock
UNSEEN_S = 5.0  # a machine that needs longer to start one small process is not usable
GONE_S = 10.0  # what a killed process may take to be gone
LONGEST_ARGUMENT = 131_071  # bytes: MAX_ARG_STRLEN of Linux
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
VERDICT = frozenset(field.name for field in fields(Verdict))


@dataclass(frozen=True)
class Launch:
    """What is to be started. Limits are in seconds, None is none; `secrets` names variables that no log may show."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    grace_s: float
    timeout_s: float | None
    stall_s: float | None = None
    py_spy: str = ""
    secrets: Sequence[str] = ()


class Attempt:
    """A handle on a living attempt, our own or an adopted one."""

    def __init__(self, paths: AttemptPaths, pid: int, pidfd: int) -> None:
        self.paths, self._pid, self._pidfd = paths, pid, pidfd

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
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)  # a suspended one could not act

    def close(self) -> None:
        """Let go of the handle; the attempt goes on."""
        os.close(self._pidfd)


def start(paths: AttemptPaths, launch: Launch) -> Attempt:
    """Start an attempt under a supervisor of its own session, in an existing folder. Raises OSError when that fails.

    The supervisor is born with its lock: there is no moment in which it lives and could be taken for dead.
    """
    longest = max(len(os.fsencode(word)) for word in launch.argv)
    if longest > LONGEST_ARGUMENT:
        what = (
            f"the command is too long: {longest:,} bytes, the system takes {LONGEST_ARGUMENT:,}; put it into a script"
        )
        raise OSError(errno.E2BIG, what)
    limits = [f"{limit or 0:g}" for limit in (launch.grace_s, launch.timeout_s, launch.stall_s)]
    words = [str(paths.folder), launch.cwd, *limits, launch.py_spy, *launch.argv]
    env = {**launch.env, "HARNESS_ATTEMPT": str(paths.folder)}
    if launch.secrets:
        env["HARNESS_SECRETS"] = " ".join(launch.secrets)
    lock = _locked(paths.lock)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _shim(), *words],
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, lock, LOCK),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ],
            setsid=True,
            setsigmask=(signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT),
        )
    finally:
        os.close(lock)
    return Attempt(paths, pid, os.pidfd_open(pid))


@cache
def _shim() -> str:
    """The supervisor's script: as importing it has compiled it, which saves a third of its start, else its source."""
    spec = importlib.import_module(SHIM).__spec__
    assert spec
    assert spec.origin
    source, compiled = Path(spec.origin), Path(spec.cached or "")
    try:
        status, head = source.stat(), compiled.read_bytes()[:16]
    except OSError:
        return str(source)
    stamp = struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)  # PEP 552
    return str(compiled if head == importlib.util.MAGIC_NUMBER + stamp else source)


def _locked(path: Path) -> int:
    """A descriptor well above the standard ones that holds the lock of a new attempt.

    Raises OSError when there is no room for the file, or another supervisor has it.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lock = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(opened)
    if not take(lock):
        os.close(lock)
        raise OSError(errno.EBUSY, "another supervisor has this attempt", str(path))
    return lock


def adopt(paths: AttemptPaths) -> Attempt | Verdict | None:
    """A living attempt as a handle, an ended one's verdict, or None for one that was lost.

    Raises BlockedError when it lives where its process can't be seen: on another host, or in another container.
    """
    waited_until = time.monotonic() + UNSEEN_S
    while held(paths.lock):
        pid = _supervisor(paths)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                if held(paths.lock):  # so the handle is on it, and not on a later process of that number
                    return Attempt(paths, pid, pidfd)
                os.close(pidfd)
        elif time.monotonic() > waited_until:
            raise BlockedError(
                f"attempt {paths.folder.name} of '{paths.folder.parent.name}' is alive, but not here",
                found=f"'{paths.lock}' is locked, by no process of this machine or container",
                do="Run harness where it was started, or end it there",
            )
        time.sleep(0.02)
    return _verdict_or_lost(paths)


def _supervisor(paths: AttemptPaths) -> int:
    """The pid of the attempt's living supervisor, told by its command line; 0 where there is none."""
    return next((pid for pid, folder in _supervisors() if folder == paths.folder), 0)


def _supervisors() -> Iterator[tuple[int, Path]]:
    """Every living supervisor that can be seen here, with the folder of its attempt."""
    for pid in _processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > SHIM_AT + 1 and b"/shim." in words[SHIM_AT]:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == pid:  # else it is the supervisor's child that hides secrets in the log
                    yield pid, Path(os.fsdecode(words[SHIM_AT + 1]))


def end_strays(below: Path, known: Collection[Path], *, grace_s: float) -> list[Path]:
    """End the attempts below a folder that no record tells of (a lost database did); returns their folders."""
    strays = [folder for _, folder in _supervisors() if below in folder.parents and folder not in known]
    for folder in strays:
        found = adopt(AttemptPaths(folder))
        if isinstance(found, Attempt):
            found.stop()
            select.select([found], [], [], grace_s + GONE_S)
            found.close()
    return strays


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _verdict_or_lost(paths: AttemptPaths) -> Verdict | None:
    """The verdict; where there is none, end what a killed supervisor left behind before saying so."""
    content = _json(paths.verdict)
    with contextlib.suppress(TypeError):
        if content is not None:
            return Verdict(**{name: value for name, value in content.items() if name in VERDICT})
    _sweep(paths)
    return None


def why_lost(paths: AttemptPaths) -> str:
    """What is known of the end of an attempt that left no verdict, in one sentence."""
    boot_id = (_json(paths.started) or {}).get("boot_id")
    if boot_id and boot_id != BOOT_ID.read_text(encoding="ascii").strip():
        return "the machine went down while it ran"
    return "its supervisor is gone without a verdict: somebody killed it"


def _sweep(paths: AttemptPaths) -> None:
    """End every process that carries the attempt's mark in its environment. Raises BlockedError where one stays."""
    mark = b"HARNESS_ATTEMPT=" + os.fsencode(paths.folder)
    ends_at = time.monotonic() + GONE_S
    while left := [pid for pid in _processes() if pid != os.getpid() and _has(pid, mark)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > ends_at:
            raise BlockedError(
                f"processes of a dead attempt of '{paths.folder.parent.name}' can't be ended",
                found=f"pids {', '.join(map(str, left))}",
                do="They may hang in the kernel, on a disk or a GPU: end them, then resume",
            )
        time.sleep(0.02)


def _has(pid: int, mark: bytes) -> bool:
    """Whether a living process carries the mark; a zombie's environment is empty."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file, or one that was torn."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_result(paths: AttemptPaths) -> dict[str, Any] | None:
    """What the tool returned or reported, or None where it left nothing readable."""
    return _json(paths.result)


def log_tail(paths: AttemptPaths, num_lines: int) -> list[str]:
    """The last lines of the log, read from its end."""
    try:
        with paths.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 16384))
            return log.read().decode("utf-8", "replace").splitlines()[-num_lines:]
    except FileNotFoundError:
        return []
