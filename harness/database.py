"""The state database as a file: opening, the way to the newest schema, transactions, and errors in plain words."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import StoreError

SCHEMA_VERSION = 2
LOCKED_S = 30.0  # how long another process may hold the database before we give up
UNSAFE_FOR_WAL = ("nfs", "cifs", "smb", "9p", "fuse", "lustre", "gpfs", "ceph", "afs")
Answer = TypeVar("Answer")


class Database:
    """An open state database; made, or brought to the newest schema, where needed.

    Raises StoreError when it can't be opened, read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error
        try:
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            self.connection.close()
            raise self._failure(error) from error
        except StoreError:
            self.connection.close()
            raise

    def _prepare(self) -> None:
        safe = not filesystem_type(self.path.parent).startswith(UNSAFE_FOR_WAL)
        self._journal("wal" if safe else "delete")
        self.connection.execute("PRAGMA synchronous = FULL")
        version = self._value("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise StoreError(
                "the state database was written by a newer harness",
                where=str(self.path),
                found=f"schema {version}, this one knows {SCHEMA_VERSION}",
                do="Use the newer harness",
            )
        if version < SCHEMA_VERSION:
            from harness.schema import migrate  # noqa: PLC0415 - sqlite_utils costs 0.1 s, and is rarely needed

            self.transact(lambda: migrate(self.connection, SCHEMA_VERSION))

    def _journal(self, mode: str) -> None:
        """Set the journal's mode. SQLite doesn't wait for the lock that it needs for that, so we do."""
        until = time.monotonic() + LOCKED_S
        while self._value("PRAGMA journal_mode") != mode:
            try:
                self.connection.execute(f"PRAGMA journal_mode = {mode}")
                return  # where the file system can't do it, SQLite keeps another mode
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _value(self, query: str) -> Any:
        return self.connection.execute(query).fetchone()[0]

    def _failure(self, error: Exception) -> StoreError:
        do = {
            "database or disk is full": "Free some room, then resume: nothing that was recorded is lost",
            "file is not a database": "Move it away to start anew, or restore a copy",
            "database disk image is malformed": "Move it away to start anew, or restore a copy",
        }
        return StoreError(
            "the state database can't be used",
            where=str(self.path),
            found=str(error),
            do=do.get(str(error), "Check the folder's permissions and free room"),
        )

    def close(self) -> None:
        self.connection.close()

    def transact(self, work: Callable[[], Answer]) -> Answer:
        """Do `work` on the connection as one transaction, and return what it returns.

        It is all there afterwards or, where an error is raised, nothing of it is; `work` may be called more than once.
        """
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work()
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return answer

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows that the query finds."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def data_version(self) -> int:
        """A number that changes when another connection has committed something."""
        return int(self.rows("PRAGMA data_version")[0][0])


def filesystem_type(folder: Path) -> str:
    """The type of the file system that holds `folder`, such as "ext4"; "" where it can't be told."""
    found, longest = "", -1
    place = str(folder.resolve())
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:
            found, longest = kind, len(mount)
    return found
