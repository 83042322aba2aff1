"""A file that only takes up room, and gives it to the state database when the disk is full."""

import contextlib
import errno
import os
from pathlib import Path

from harness.files import fsync_folder

# A transition writes five or six pages of 4 KiB, and SQLite begins its log anew after 4 MiB. So this is room for the
# last words of forty tasks even where the log still has to grow, and it is nothing beside the disk of such a plan.
BALLAST_BYTES = 2**20
FREE_BYTES = 4 * BALLAST_BYTES  # made again only where this much is free, else it would fill the disk up itself
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Ballast:
    """The file at `path`. `tight` says that it isn't there because the disk has, or had, no room for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tight = False

    def make(self) -> None:
        """Make it, if it isn't there whole and there is room; one look at the file where nothing is to be done."""
        try:
            if self.path.stat().st_size >= BALLAST_BYTES:
                self.tight = False
                return
        except OSError:
            pass  # it isn't there, or can't be seen: the next lines find out
        try:
            free = os.statvfs(self.path.parent)
            if free.f_bavail * free.f_frsize < FREE_BYTES:
                self.tight = True
                return
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            finally:
                os.close(descriptor)
            self.tight = False
        except OSError as error:  # a file system that reserves nothing, or lets us write nothing, has no ballast
            self.tight = error.errno in NO_ROOM
            if self.tight:
                with contextlib.suppress(OSError):
                    self.path.unlink()

    def give_up(self) -> bool:
        """Free its room. Returns False where there was none to free."""
        self.tight = True
        try:
            os.truncate(self.path, 0)  # some file systems need room to remove a name, and find it so
        except OSError:
            return False
        with contextlib.suppress(OSError):
            self.path.unlink()
            fsync_folder(self.path.parent)  # on a journaling file system the room is free once this is written
        return True
