"""The file system below a folder: its type, and how it is mounted."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Here memory mapped by several processes isn't safely shared, or a lock of one machine isn't seen by the others.
SHARED = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse", "gfs", "gluster", "gpfs", "lustre"),
    *("nfs", "ocfs", "orangefs", "panfs", "prl_fs", "pvfs", "smb", "vboxsf", "virtiofs", "vmhgfs"),
)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. `options` are those of the mount and of the file system, such as "ro" or "noatime"."""

    number: int
    point: str
    kind: str
    source: str
    options: frozenset[str]

    @property
    def shared(self) -> bool:
        """Whether other machines may have it mounted too, or it is served by a program."""
        return self.kind.startswith(SHARED)

    @property
    def read_only(self) -> bool:
        return not self.options.isdisjoint({"ro", "emergency_ro"})


UNKNOWN = Mount(0, "/", "", "", frozenset())


def mount_of(folder: Path) -> Mount:
    """The mount that holds the folder, or the nearest folder above that exists; UNKNOWN where it can't be told."""
    place = Path(os.path.realpath(folder))
    while not place.is_dir() and place != place.parent:
        place = place.parent
    try:
        mounts = parse(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return UNKNOWN
    return covering(mounts, str(place), number=_mount_number(place))


def parse(mountinfo: bytes) -> list[Mount]:
    """The mounts in a text like /proc/self/mountinfo, in its order; lines of another form are left out."""
    found = []
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(b" - ")
        fields, rest = before.split(b" "), after.split(b" ")
        if not dash or len(fields) < 6 or len(rest) < 3 or not fields[0].isdigit():
            continue
        options = frozenset(_plain(fields[5]).split(",")) | frozenset(_plain(rest[2]).split(","))
        found.append(Mount(int(fields[0]), _plain(fields[4]), _plain(rest[0]), _plain(rest[1]), options))
    return found


def covering(mounts: list[Mount], place: str, *, number: int | None = None) -> Mount:
    """The mount with this number, else the last one among those nearest above the absolute path `place`."""
    for mount in mounts:
        if mount.number == number:
            return mount
    found = UNKNOWN
    for mount in mounts:
        inside = place == mount.point or place.startswith(mount.point.rstrip("/") + "/")
        if inside and (found is UNKNOWN or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _plain(field: bytes) -> str:
    """A field with its octal escapes (space, tab, newline, backslash) undone."""
    return os.fsdecode(re.sub(rb"\\([0-3][0-7]{2})", lambda match: bytes([int(match[1], 8)]), field))


def _mount_number(folder: Path) -> int | None:
    """The kernel's number of the mount that holds a folder: right also where one mount hides another."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    match = re.search(r"^mnt_id:\s*(\d+)$", facts, flags=re.MULTILINE)
    return int(match[1]) if match else None
