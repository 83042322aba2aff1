"""The state database as a file: opening, the way to the newest schema, and transactions that outlive a full disk."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness import faults
from harness.ballast import Ballast
from harness.errors import StoreError
from harness.mounts import mount_of
from harness.paths import PlanPaths

SCHEMA_VERSION = 2
WRITE_AHEAD = b"\x02\x02"  # https://www.sqlite.org/fileformat2.html, offsets 18 and 19 of the header
READING_S = 10.0
LOCKED_S = 30.0  # how long another process may hold the database before we give up
Answer = TypeVar("Answer")


class Database:
    """An open state database; made, or brought to the newest schema, where needed.

    Where the disk is full, the ballast is given up and the same is tried once more. Raises StoreError when it can't be
    opened, read or written all the same; its `passing` says whether trying again later makes sense.
    """

    def __init__(self, paths: PlanPaths, *, read_only: bool = False) -> None:
        self.paths, self.path, self.read_only = paths, paths.database, read_only
        self.ballast = Ballast(paths.ballast)
        self.connection = self._with_room(self._look if read_only else self._open)
        if not read_only:
            self.ballast.make()

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._look_before()
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=LOCKED_S)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look(self) -> sqlite3.Connection:
        """Open for reading only: nothing is made, migrated or given up."""
        if misplaced := faults.misplacement(self.path):
            raise faults.store_error(misplaced, self.path)
        connection = reading(self.path)
        try:
            connection.execute("BEGIN")  # all that is read is of one moment
            connection.execute("PRAGMA user_version")
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_before(self) -> None:
        """Refuse what SQLite would take for a new database, or open for reading only."""
        if misplaced := faults.misplacement(self.path):
            raise faults.store_error(misplaced, self.path)
        if not self.path.exists():
            return
        if not all(os.access(each, os.W_OK, effective_ids=True) for each in (self.path, self.path.parent)):
            read_only = mount_of(self.path.parent).read_only
            raise faults.store_error(faults.READ_ONLY if read_only else faults.FORBIDDEN, self.path)
        if not self.path.stat().st_size and self.paths.tasks.is_dir():
            raise faults.store_error(faults.EMPTY, self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _set_journal(connection, "delete" if mount_of(self.path.parent).shared else "wal")
        connection.execute("PRAGMA synchronous = FULL")
        version = _value(connection, "PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise StoreError(
                "the state database was written by a newer harness",
                where=str(self.path),
                found=f"schema {version}, this one knows {SCHEMA_VERSION}",
                do="Use the newer harness",
            )
        if version < SCHEMA_VERSION:
            from harness.schema import migrate  # noqa: PLC0415 - sqlite_utils costs 0.1 s, and is rarely needed

            _transaction(connection, lambda: migrate(connection, SCHEMA_VERSION))

    def close(self) -> None:
        self.connection.close()

    # -- reading and writing ----------------------------------------------------------------------------------------

    def transact(self, work: Callable[[], Answer]) -> Answer:
        """Do `work` on the connection as one transaction, and return what it returns.

        It is all there afterwards or, where an error is raised, nothing of it is; `work` may be called more than once.
        """
        return self._with_room(lambda: _transaction(self.connection, work))

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows that the query finds."""
        if self.connection.in_transaction and not self.read_only:  # an error is for who began it
            return self.connection.execute(query, values).fetchall()
        return self._with_room(lambda: self.connection.execute(query, values).fetchall())

    def data_version(self) -> int:
        """A number that changes when another connection has committed something."""
        return int(self.rows("PRAGMA data_version")[0][0])

    def _with_room(self, work: Callable[[], Answer]) -> Answer:
        """Do `work`; where there is no room for it, give the ballast up and do it once more."""
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            cause = faults.cause_of(error, self.path)
            if self.read_only or not cause.no_room or not self.ballast.give_up():
                raise faults.store_error(cause, self.path, error) from error
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            raise faults.store_error(faults.cause_of(error, self.path), self.path, error) from error


def reading(database: Path) -> sqlite3.Connection:
    """Open the database for reading only, without leaving files beside it. Raises OSError or sqlite3.Error.

    The file itself is looked into only where it has no log: to close a file gives up every POSIX lock that this process
    has on it. If the run looked into its own database, another process could take itself for the last user, and remove
    the log that the run goes on writing to (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    uri = f"{database.absolute().as_uri()}?mode=ro"
    if not database.with_name(f"{database.name}-wal").exists():
        with database.open("rb") as file:
            logged = file.read(20)[18:] == WRITE_AHEAD
        if logged:
            uri += "&immutable=1"  # nobody has it open, and whoever opens it now writes to its log first
    return sqlite3.connect(uri, uri=True, timeout=READING_S, isolation_level=None)


def _transaction(connection: sqlite3.Connection, work: Callable[[], Answer]) -> Answer:
    connection.execute("BEGIN IMMEDIATE")
    try:
        answer = work()
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise
    return answer


def _value(connection: sqlite3.Connection, query: str) -> Any:
    return connection.execute(query).fetchone()[0]


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """Set the journal's mode. SQLite doesn't wait for the lock that it needs for that, so we do."""
    until = time.monotonic() + LOCKED_S
    while _value(connection, "PRAGMA journal_mode") != mode:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
            return  # where the file system can't do it, SQLite keeps another mode
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
