"""The processes of one campaign folder, found through /proc: who is who, and signals that reach only them."""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "FAULTS_FOLDER"  # the variable that every process of a campaign inherits
PROC = Path("/proc")


@dataclass(frozen=True)
class Victim:
    """A living process. `role` is engine, supervisor, worker, grandchild or helper (anything else of the engine)."""

    pid: int
    role: str
    task: str  # "" for the engine
    attempt: int
    began: str  # its start in clock ticks: a later process of that number has another

    def send(self, number: int) -> bool:
        """Send the signal to this process and no other; says whether it was still there."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            fields = _fields(self.pid)
            if fields is None or fields[19] != self.began:
                return False
            signal.pidfd_send_signal(handle, number)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True


def _fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (field 3 of the manual is number 0); None for a dead process."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def living(folder: Path, engine: int) -> list[Victim]:
    """Every process that carries the campaign folder's mark; `engine` is the pid of `harness run`."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for each in PROC.iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        pid = int(each.name)
        environment = _read(pid, "environ").split(b"\0")
        fields = _fields(pid) if mark in environment else None
        if fields is not None:
            role, attempt = _role(pid, engine, fields, environment)
            task, number = (attempt.parent.name, int(attempt.name)) if attempt else ("", 0)
            found.append(Victim(pid, role, task, number, fields[19]))
    return found


def _role(pid: int, engine: int, fields: list[str], environment: list[bytes]) -> tuple[str, Path | None]:
    """Who a process is, and its attempt's folder: told by started.json, before that by its session and its group."""
    if pid == engine:
        return "engine", None
    words = [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")]
    group, session = fields[2], fields[3]
    for word, after in itertools.pairwise(words):
        if "/shim." in word:
            same = session == str(pid)  # its child is not yet the worker, nor any longer the supervisor
            return ("supervisor" if same else "worker"), Path(after)
    attempt = next((Path(os.fsdecode(each[16:])) for each in environment if each.startswith(b"HARNESS_ATTEMPT=")), None)
    if attempt is None:
        return "helper", None
    with suppress(OSError, ValueError, AttributeError):
        started = json.loads((attempt / "started.json").read_bytes())
        if started.get("pid"):
            return ("worker" if started["pid"] == pid else "grandchild"), attempt
    return ("worker" if group == str(pid) else "grandchild"), attempt


def left_over(folder: Path, *, patience_s: float = 1.0) -> list[str]:
    """Processes that still carry the folder in environment, current folder or command line after `patience_s`."""
    ends_at = time.monotonic() + patience_s
    while True:
        found = [text for pid in _pids() if (text := _carries(pid, folder))]
        if not found or time.monotonic() > ends_at:
            return found
        time.sleep(0.05)


def _pids() -> Iterable[int]:
    return [int(each.name) for each in PROC.iterdir() if each.name.isdigit() and int(each.name) != os.getpid()]


def _carries(pid: int, folder: Path) -> str:
    """The process in words, if it carries the folder; "" if not, or if it is dead."""
    name = os.fsencode(folder)
    cwd = Path()
    with suppress(OSError):
        cwd = (PROC / str(pid) / "cwd").readlink()
    words = _read(pid, "cmdline")
    carries = name in words or name in _read(pid, "environ") or cwd.is_relative_to(folder)
    if not carries or _fields(pid) is None:
        return ""
    return f"pid {pid}: {os.fsdecode(words.replace(bytes(1), b' '))[:200]}"


def end_all(folder: Path) -> None:
    """End every process of the campaign folder, and wait until they are gone."""
    ends_at = time.monotonic() + 10
    while (left := living(folder, -1)) and time.monotonic() < ends_at:
        for each in left:
            each.send(signal.SIGKILL)
        time.sleep(0.02)
