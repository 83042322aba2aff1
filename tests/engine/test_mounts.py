import os
import subprocess
from pathlib import Path

import pytest

from harness.mounts import UNKNOWN, covering, mount_of, parse
from tests.engine.disks import NEEDS_ROOT, tmpfs

MOUNTINFO = rb"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
22 21 0:20 / /proc rw,nosuid - proc proc rw
30 21 0:40 / /data/a\040b rw shared:7 master:2 - nfs4 server:/export rw,vers=4.2
31 21 0:41 / /mnt/x rw - fuse.sshfs me@there: rw,user_id=0
32 31 254:0 /deep /mnt/x/local rw - ext4 /dev/vda rw
33 21 0:50 / /var/lib rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
34 21 8:1 / /sealed ro,relatime - xfs /dev/sda1 rw
35 21 8:2 / /failed rw,relatime - ext4 /dev/sda2 ro
36 21 0:60 / /mnt/x rw - tmpfs over rw
37 21 0:61 / /back\134slash rw - cifs //host/share rw
not a line of it
"""


@pytest.mark.parametrize(
    ("place", "kind", "shared"),
    [
        ("/", "ext4", False),
        ("/data/a", "ext4", False),
        ("/data/a b", "nfs4", True),
        ("/data/a b/c", "nfs4", True),
        ("/data/a bc", "ext4", False),
        ("/mnt/x/local/y", "ext4", False),
        ("/mnt/x/other", "tmpfs", False),
        ("/var/lib/y", "overlay", False),
        ("/back\\slash", "cifs", True),
    ],
)
def test_the_nearest_and_last_mount_holds_a_folder(place: str, kind: str, shared: bool) -> None:
    found = covering(parse(MOUNTINFO), place)
    assert (found.kind, found.shared) == (kind, shared)


def test_a_mount_is_read_only_by_its_own_option_or_by_its_file_systems() -> None:
    mounts = parse(MOUNTINFO)
    read_only = {mount.point for mount in mounts if mount.read_only}
    assert read_only == {"/sealed", "/failed"}


def test_the_number_that_the_kernel_gives_decides() -> None:
    assert covering(parse(MOUNTINFO), "/mnt/x/y", number=31).kind == "fuse.sshfs"
    assert covering([], "/mnt") is UNKNOWN


@NEEDS_ROOT
def test_a_mount_that_hides_another_is_the_one_that_counts(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "a" / "b", "size=1m"):
        assert mount_of(tmp_path / "a" / "b").kind == "tmpfs"
        subprocess.run(["mount", "--bind", "/proc", tmp_path / "a"], check=True)
        try:
            assert mount_of(tmp_path / "a" / str(os.getpid())).kind == "proc"
        finally:
            subprocess.run(["umount", tmp_path / "a"], check=True)
    assert mount_of(tmp_path / "not" / "there") == mount_of(tmp_path)
