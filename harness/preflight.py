"""What a task asks of the machine against what the machine has: every finding at once, each with a remedy."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from harness.contract import Needs


@dataclass(frozen=True)
class FileSystem:
    """The file system that a path lies on, or would; `device` is equal for paths that share one."""

    path: str
    device: int
    size_bytes: int
    free_bytes: int
    num_inodes: int  # 0 where the file system makes them as needed
    free_inodes: int
    writable: bool


@dataclass(frozen=True)
class Gpu:
    """One GPU; `busy` lists the pids that use it."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    busy: tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """What the machine has and what of it is free, at one moment."""

    cpus: int
    ram_bytes: int
    ram_free_bytes: int
    file_systems: dict[str, FileSystem]
    shm: FileSystem | None
    gpus: tuple[Gpu, ...]
    missing_files: frozenset[str]
    busy_ports: frozenset[int]


@dataclass(frozen=True)
class Finding:
    """Something that the machine lacks. An error keeps the task from starting, a warning doesn't."""

    level: Literal["error", "warning"]
    what: str
    needed: str
    found: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}: needs {self.needed}, found {self.found}. {self.do}"


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    value, unit = float(count), "B"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, following
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def findings(needs: Needs, machine: Machine) -> list[Finding]:
    """All that `needs` asks for and `machine` doesn't have."""
    found = [
        Finding("error", f"file '{path}'", "it to exist", "nothing there", "Make it, or correct the plan")
        for path in needs.files
        if path in machine.missing_files
    ]
    found += _disks(needs, machine)
    if needs.shm_bytes and (machine.shm is None or machine.shm.free_bytes < needs.shm_bytes):
        free = size(machine.shm.free_bytes) if machine.shm else "none"
        do = "Remount /dev/shm larger, or start the container with a larger --shm-size"
        found.append(Finding("error", "/dev/shm", f"{size(needs.shm_bytes)} free", free, do))
    if needs.ram_bytes > machine.ram_free_bytes:
        level: Literal["error", "warning"] = "error" if needs.ram_bytes > machine.ram_bytes else "warning"
        free = f"{size(machine.ram_free_bytes)} of {size(machine.ram_bytes)}"
        found.append(Finding(level, "memory", f"{size(needs.ram_bytes)} free", free, "End what else uses memory"))
    found += _gpus(needs, machine)
    found += [
        Finding("error", f"port {port}", "it free", "another process listens there", "End it, or choose another port")
        for port in needs.ports
        if port in machine.busy_ports
    ]
    return found


def _disks(needs: Needs, machine: Machine) -> list[Finding]:
    """Room by file system: paths on one device are added up."""
    asked: dict[int, int] = defaultdict(int)
    named: dict[int, tuple[str, FileSystem]] = {}
    found = []
    for path, count in needs.disk_bytes.items():
        place = machine.file_systems[path]
        asked[place.device] += count
        named.setdefault(place.device, (path, place))
        if not place.writable:
            do = "Mount it writable, or choose another path"
            found.append(Finding("error", f"'{path}'", "a writable folder", "a read-only one", do))
    for device, count in asked.items():
        path, place = named[device]
        if count > place.free_bytes:
            do = "Free some room there, or choose another disk"
            found.append(Finding("error", f"disk of '{path}'", f"{size(count)} free", size(place.free_bytes), do))
    return found


def _gpus(needs: Needs, machine: Machine) -> list[Finding]:
    if not needs.gpus:
        return []
    asked = f"{needs.gpus} GPU{'s' * (needs.gpus > 1)}"
    if len(machine.gpus) < needs.gpus:
        do = "Run this on another machine, or ask for fewer"
        return [Finding("error", "GPUs", asked, f"{len(machine.gpus)}", do)]
    roomy = [gpu for gpu in machine.gpus if gpu.free_bytes >= needs.gpu_free_bytes]
    if len(roomy) < needs.gpus:
        held = "; ".join(f"GPU {gpu.index} {size(gpu.free_bytes)} free, pids {list(gpu.busy)}" for gpu in machine.gpus)
        do = "End the processes that hold them"
        return [Finding("error", "GPU memory", f"{asked} with {size(needs.gpu_free_bytes)} free", held, do)]
    return []
