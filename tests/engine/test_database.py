"""The state database on disks that are full, read-only or damaged."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness import status
from harness.ballast import BALLAST_BYTES
from harness.errors import EXIT_BLOCKED, BlockedError, StoreError
from harness.location import known_plans
from harness.mounts import Mount
from harness.paths import PlanPaths, Root
from harness.state import State
from harness.store import Store
from tests.engine.disks import NEEDS_ROOT, as_nobody, ext4, fill, fill_inodes, tmpfs
from tests.engine.plans import load, shell

BIG = {"text": "x" * 300_000}


@pytest.fixture
def paths(tmp_path: Path) -> PlanPaths:
    return PlanPaths(tmp_path / "disk" / "p")


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that fills up."""
    small = (
        tmpfs(tmp_path / "disk", "size=12m")
        if request.param == "tmpfs"
        else ext4(tmp_path / "disk", tmp_path / "image", 24 * 2**20)
    )
    with small as folder:
        yield folder


def opened(tmp_path: Path, paths: PlanPaths) -> Store:
    store = Store(paths)
    store.begin_run(load(tmp_path, [shell("a"), shell("b")]))
    return store


def numbers(store: Store) -> list[int]:
    """The numbers of the attempts of task a, which its events confirm."""
    found = [attempt.number for attempt in store.attempts("a")]
    assert [event["attempt"] for event in store.events() if event["type"] == "running"] == found
    return found


def until_refused(store: Store) -> StoreError:
    """Start attempts until the store refuses one."""
    for _ in range(200):
        try:
            store.start_attempt("a", fingerprint="f", parts=BIG)
        except StoreError as error:
            return error
    raise AssertionError("the disk never filled up")


@NEEDS_ROOT
def test_on_a_full_disk_the_ballast_gives_room_and_nothing_is_written_twice(
    tmp_path: Path, disk: Path, paths: PlanPaths
) -> None:
    with opened(tmp_path, paths) as store:
        assert paths.ballast.stat().st_blocks * 512 >= BALLAST_BYTES
        assert not store.tight
        filler = fill(disk)
        told = [store.start_attempt("a", fingerprint="f", parts=BIG)]
        assert store.tight
        assert not paths.ballast.exists()
        error = until_refused(store)
        assert error.passing
        assert error.exit_code == EXIT_BLOCKED
        assert "its disk is full" in str(error)
        told += range(2, numbers(store)[-1] + 1)
        assert numbers(store) == told
        store.restore_ballast()
        assert store.tight
        filler.unlink()
        assert store.start_attempt("a", fingerprint="f", parts={}) == told[-1] + 1
        store.restore_ballast()
        assert not store.tight
        assert paths.ballast.stat().st_size == BALLAST_BYTES
        assert store.database.rows("PRAGMA integrity_check") == [("ok",)]


@NEEDS_ROOT
def test_a_store_is_opened_on_a_full_disk_too(tmp_path: Path, disk: Path, paths: PlanPaths) -> None:
    opened(tmp_path, paths).close()
    fill(disk)
    with Store(paths) as store:
        assert store.start_attempt("a", fingerprint="f", parts={}) == 1
        assert numbers(store) == [1]


@NEEDS_ROOT
def test_the_ballast_is_not_what_fills_the_disk_up(tmp_path: Path, disk: Path, paths: PlanPaths) -> None:
    filler = fill(disk, leave_bytes=2 * BALLAST_BYTES)
    with opened(tmp_path, paths) as store:
        assert store.tight
        assert not paths.ballast.exists()
        filler.unlink()
        store.restore_ballast()
        assert not store.tight
    paths.ballast.write_bytes(b"cut short")
    with Store(paths):
        assert paths.ballast.stat().st_size == BALLAST_BYTES


@NEEDS_ROOT
def test_an_old_database_on_a_full_disk_is_as_it_was_or_new(disk: Path, paths: PlanPaths) -> None:
    paths.folder.mkdir()
    shutil.copy(Path(__file__).parents[1] / "data" / "schema1.db", paths.database)
    filler = fill(disk)
    with pytest.raises(StoreError) as refused:
        Store(paths)
    assert refused.value.passing
    filler.unlink()
    with Store(paths) as store:
        assert store.records()["b"].state == State.FAILED
        assert store.ask("retry", "b", by="me") == 1


@NEEDS_ROOT
def test_a_disk_that_is_full_before_there_is_a_database_is_named(disk: Path, paths: PlanPaths) -> None:
    paths.folder.mkdir()
    filler = fill(disk)
    with pytest.raises(StoreError, match=r"its disk is full .*Free some room") as refused:
        Store(paths)
    assert refused.value.passing
    filler.unlink()
    with Store(paths) as store:
        assert store.requests() == []


@NEEDS_ROOT
def test_no_file_left_to_make_is_another_cause_than_no_room_left(tmp_path: Path, paths: PlanPaths) -> None:
    with tmpfs(tmp_path / "disk", "size=12m,nr_inodes=12") as disk:
        opened(tmp_path, paths).close()
        fill_inodes(disk)
        with pytest.raises(StoreError, match=r"room for no more files.*Delete some files") as refused:
            Store(paths)
        assert refused.value.passing
        (disk / "filler-0").unlink()
        (disk / "filler-1").unlink()
        with Store(paths) as store:
            assert store.start_attempt("a", fingerprint="f", parts={}) == 1


@NEEDS_ROOT
def test_the_ballast_is_one_file_too(tmp_path: Path, paths: PlanPaths) -> None:
    with tmpfs(tmp_path / "disk", "size=12m,nr_inodes=12") as disk:
        with opened(tmp_path, paths) as store:
            store.connection.execute("PRAGMA journal_mode = DELETE")
            fill_inodes(disk)
            assert store.start_attempt("a", fingerprint="f", parts={}) == 1
            assert store.tight
        assert not paths.ballast.exists()


@NEEDS_ROOT
def test_a_read_only_disk_is_a_cause_that_passes(tmp_path: Path, paths: PlanPaths) -> None:
    with tmpfs(tmp_path / "disk", "size=12m") as disk:
        opened(tmp_path, paths).close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StoreError, match=r"read-only.*Mount it writable") as refused:
            Store(paths)
        assert refused.value.passing
        with pytest.raises(StoreError, match="read-only"):
            Store(PlanPaths(disk / "another"))
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        with Store(paths) as store:
            assert store.start_attempt("a", fingerprint="f", parts={}) == 1


@NEEDS_ROOT
def test_a_disk_that_the_kernel_makes_read_only_under_an_open_store_is_a_cause_that_passes(
    tmp_path: Path, paths: PlanPaths
) -> None:
    with ext4(tmp_path / "disk", tmp_path / "image", 24 * 2**20) as disk, opened(tmp_path, paths) as store:
        device = subprocess.check_output(["findmnt", "-no", "SOURCE", disk], text=True).strip()
        subprocess.run(["mount", "-o", "remount,errors=remount-ro", disk], check=True)
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")
        with pytest.raises(StoreError, match=r"read-only.*the kernel's log") as refused:
            store.start_attempt("a", fingerprint="f", parts={})
        assert refused.value.passing
        assert store.records()["a"].state == State.PENDING


def test_a_database_that_another_process_keeps_locked_is_a_cause_that_passes(
    tmp_path: Path, paths: PlanPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.database.LOCKED_S", 0.1)
    with opened(tmp_path, paths) as store, closing(sqlite3.connect(paths.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process keeps it locked") as refused:
            store.ask("cancel", "a", by="me")
        assert refused.value.passing
        other.execute("ROLLBACK")
        assert store.ask("cancel", "a", by="me") == 1


@pytest.mark.parametrize("locked", ["folder", "file", "above"])
def test_a_missing_right_is_named_and_does_not_pass(locked: str) -> None:
    with as_nobody() as folder:
        paths = PlanPaths(folder / "checkpoints" / "p")
        if locked == "above":
            (folder / "checkpoints").mkdir()
            (folder / "checkpoints").chmod(0o555)
        else:
            Store(paths).close()
            (paths.database if locked == "file" else paths.folder).chmod(0o444 if locked == "file" else 0o555)
        with pytest.raises(StoreError, match=r"no permission to write it.*Give this user the right") as refused:
            Store(paths)
        assert not refused.value.passing
        assert refused.value.exit_code == EXIT_BLOCKED


def test_a_folder_that_may_not_even_be_looked_into_is_named() -> None:
    with as_nobody() as folder:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints").chmod(0)
        with pytest.raises(StoreError, match="no permission"):
            Store(PlanPaths(folder / "checkpoints" / "p"))
        (folder / "checkpoints").chmod(0o700)


def damage(paths: PlanPaths, how: str) -> None:
    database = paths.database
    content = database.read_bytes()
    database.unlink()
    match how:
        case "no database":
            database.write_text("this is no database, and long enough to be read as a header of one" * 10)
        case "cut in the header":
            database.write_bytes(content[:60])
        case "cut in the middle":
            database.write_bytes(content[: len(content) // 2 // 4096 * 4096])
        case "cut within a page":
            database.write_bytes(content[: len(content) // 2 + 1000])
        case "overwritten":
            database.write_bytes(content[:4096] + os.urandom(len(content) - 4096))
        case "empty":
            database.touch()
            paths.attempt("a", 1).folder.mkdir(parents=True)
        case "a folder":
            database.mkdir()
        case "a dangling link":
            database.symlink_to("nowhere.db")


DAMAGES = {
    "no database": "is no database",
    "cut in the header": "is no database",
    "cut in the middle": "damaged",
    "cut within a page": "damaged",
    "overwritten": "damaged",
    "empty": "empty, though tasks have been executed",
    "a folder": "a folder is in its place",
    "a dangling link": "nothing is where it leads",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_database_is_named_with_what_to_do_and_left_alone(tmp_path: Path, paths: PlanPaths, how: str) -> None:
    opened(tmp_path, paths).close()
    damage(paths, how)
    before = paths.database.read_bytes() if paths.database.is_file() else None
    with pytest.raises(StoreError) as refused, Store(paths) as store:
        store.records()
    error = refused.value
    assert DAMAGES[how] in str(error)
    assert str(paths.database) in str(error)
    assert error.do
    assert not error.passing
    assert error.exit_code == EXIT_BLOCKED
    assert (paths.database.read_bytes() if paths.database.is_file() else None) == before


def test_a_plan_whose_database_is_a_dangling_link_or_may_not_be_seen_is_not_forgotten() -> None:
    with as_nobody() as folder:
        plan = Root(folder).plan("p")
        plan.folder.mkdir(parents=True)
        plan.database.symlink_to("nowhere.db")
        assert known_plans(Root(folder)) == ["p"]
        (folder / "checkpoints").chmod(0)
        with pytest.raises(BlockedError, match=r"can't be read; found Permission denied"):
            known_plans(Root(folder))
        (folder / "checkpoints").chmod(0o700)


def test_an_empty_file_of_a_plan_that_never_ran_is_a_new_database(paths: PlanPaths) -> None:
    paths.folder.mkdir(parents=True)
    paths.database.touch()
    with Store(paths) as store:
        assert store.records() == {}


@pytest.mark.parametrize(("kind", "mode"), [("nfs4", "delete"), ("fuse.sshfs", "delete"), ("ext4", "wal")])
def test_the_journal_suits_the_file_system(
    tmp_path: Path, paths: PlanPaths, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    opened(tmp_path, paths).close()  # on a local disk, before the folder was moved
    monkeypatch.setattr("harness.database.mount_of", lambda folder: Mount(1, "/", kind, "x", frozenset()))
    with Store(paths) as store:
        assert store.database.rows("PRAGMA journal_mode") == [(mode,)]
        assert store.start_attempt("a", fingerprint="f", parts={}) == 1


def test_a_run_that_looks_at_its_own_status_keeps_its_log(tmp_path: Path, paths: PlanPaths) -> None:
    another = f"""
from pathlib import Path
from harness.paths import PlanPaths
from harness.store import Store
with Store(PlanPaths(Path({str(paths.folder)!r}))) as store:
    store.ask("cancel", "a", by="me")
"""
    with opened(tmp_path, paths) as store:
        status.snapshot(paths)
        subprocess.run([sys.executable, "-c", another], check=True)
        store.start_attempt("a", fingerprint="f", parts={})
        with closing(sqlite3.connect(paths.database)) as other:
            assert other.execute("SELECT number FROM attempt").fetchall() == [(1,)]
