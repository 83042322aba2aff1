"""One snapshot of the machine: file systems, /dev/shm, memory, processors, GPUs, ports."""

import contextlib
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from harness.preflight import FileSystem, Gpu, Machine

SHM = Path("/dev/shm")
CGROUP = Path("/sys/fs/cgroup")


def snapshot(
    *, disks: Iterable[str] = (), files: Iterable[str] = (), ports: Iterable[int] = (), gpus: bool = False
) -> Machine:
    """Look at the machine now; GPUs only where asked, for NVML takes a moment."""
    total, free = memory()
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        ram_bytes=total,
        ram_free_bytes=free,
        file_systems={path: file_system(Path(path)) for path in disks},
        shm=file_system(SHM) if SHM.is_dir() else None,
        gpus=list_gpus() if gpus else (),
        missing_files=frozenset(path for path in files if not Path(path).exists()),
        busy_ports=frozenset(port for port in ports if not _port_is_free(port)),
    )


def file_system(path: Path) -> FileSystem:
    """The file system of the nearest existing folder at or above `path`."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    status = os.statvfs(existing)
    return FileSystem(
        path=str(path),
        device=existing.stat().st_dev,
        size_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        num_inodes=status.f_files,
        free_inodes=status.f_favail,
        writable=os.access(existing, os.W_OK) and not status.f_flag & os.ST_RDONLY,
    )


class DiskWatch:
    """Tells, looking every few seconds, when the file system of a folder has filled up and when it has room again."""

    FULL_BYTES = 1 << 20
    EVERY_S = 5.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._full = False
        self._next_at = 0.0

    def news(self) -> str:
        """One sentence when that has changed, else ""."""
        if time.monotonic() < self._next_at:
            return ""
        self._next_at = time.monotonic() + self.EVERY_S
        was, self._full = self._full, file_system(self.folder).free_bytes < self.FULL_BYTES
        if self._full == was:
            return ""
        if self._full:
            return (
                f"The disk of '{self.folder}' is full: what has ended waits there for room. Free some, nothing is lost."
            )
        return f"The disk of '{self.folder}' has room again."


def memory() -> tuple[int, int]:
    """Total and free memory in bytes: what a cgroup allows, where that is less than the machine has."""
    import psutil  # noqa: PLC0415 - only a task that asks for something pays for it

    whole = psutil.virtual_memory()
    total, free = whole.total, whole.available
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((CGROUP / limit_file).read_text(encoding="ascii"))
            used = int((CGROUP / used_file).read_text(encoding="ascii"))
            if limit < total:
                total, free = limit, min(free, limit - used)
    return total, free


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs that NVML sees; none where there is no driver."""
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - see memory

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            sizes = pynvml.nvmlDeviceGetMemoryInfo(device)
            try:
                busy = tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device))
            except pynvml.NVMLError:
                busy = ()
            uuid, name = pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlDeviceGetName(device)
            found.append(Gpu(index, str(uuid), str(name), int(sizes.total), int(sizes.free), busy))
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
