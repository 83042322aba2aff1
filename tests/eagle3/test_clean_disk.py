"""Deleting: only what is named, only inside the roots, never what is still needed."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.clean_disk.removal import delete
from eagle3.clean_disk.spec import TOOL
from harness.contract import Result, ToolError

Run = Callable[..., Result]


@pytest.fixture
def tree(root: Path) -> Path:
    """work/{old,new}/… with some files, and outside/keep."""
    for name in ("work/old/a/x.bin", "work/old/y.bin", "work/new/z.bin", "outside/keep"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10_000)
    return root


def asked(*paths: str, **more: Any) -> dict[str, Any]:
    return {"out": "report.json", "paths": list(paths), "roots": ["work"], **more}


def everything(root: Path) -> set[str]:
    return {
        str(path.relative_to(root)) for top in ("work", "outside") for path in (root / top).rglob("*") if path.is_file()
    }


def test_what_is_named_is_deleted_and_recorded(run_tool: Run, tree: Path) -> None:
    result = run_tool(TOOL, **asked("work/old", "work/gone"))
    assert everything(tree) == {"work/new/z.bin", "outside/keep"}
    assert result.freed == ["work/old", "work/gone"]
    assert result.values["freed_bytes"] >= 20_000
    report = json.loads((tree / "report.json").read_text())
    assert [(entry["path"], entry["files"]) for entry in report["paths"]] == [("work/old", 2), ("work/gone", 0)]


def test_a_dry_run_deletes_nothing_and_says_how_much(run_tool: Run, tree: Path) -> None:
    before = everything(tree)
    result = run_tool(TOOL, **asked("work/old", dry_run=True))
    assert everything(tree) == before
    assert result.freed == []
    assert json.loads((tree / "report.json").read_text())["freed_bytes"] >= 20_000


@pytest.mark.parametrize(
    "path",
    [
        "outside",
        "outside/keep",
        "work",
        ".",
        "work/..",
        "work/../outside",
        "work/old/../../outside",
        "/etc",
        "workshop",
    ],
)
def test_nothing_outside_the_roots_is_deleted_nor_a_root_itself(run_tool: Run, tree: Path, path: str) -> None:
    before = everything(tree)
    with pytest.raises(ToolError, match="not inside one of the roots"):
        run_tool(TOOL, **asked("work/old", path))
    assert everything(tree) == before, "one refusal means that nothing is deleted"


def test_an_absolute_path_inside_a_root_is_deleted(run_tool: Run, tree: Path) -> None:
    run_tool(TOOL, **asked(str(tree / "work" / "old")))
    run_tool(TOOL, **{**asked(str(tree / "work" / "new")), "roots": [str(tree / "work")]})
    assert everything(tree) == {"outside/keep"}


def test_no_symlink_is_followed(run_tool: Run, tree: Path) -> None:
    (tree / "work" / "link").symlink_to(tree / "outside")
    for path in ("work/link", "work/link/keep"):
        with pytest.raises(ToolError, match=r"leads through a symlink to '.*outside"):
            run_tool(TOOL, **asked(path))
    (tree / "work" / "old" / "inner").symlink_to(tree / "outside")
    run_tool(TOOL, **asked("work/old"))
    assert (tree / "outside" / "keep").exists()
    assert not (tree / "work" / "old").exists()


@pytest.mark.parametrize("swapped", ["work", "work/deep", "work/deep/x"])
def test_a_folder_swapped_for_a_link_after_the_check_leads_nowhere(tree: Path, swapped: str) -> None:
    place = tree / "work" / "deep" / "x" / "keep"
    place.parent.mkdir(parents=True)
    place.touch()
    copy = tree / "outside" / place.relative_to(tree / swapped)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.touch()
    (tree / swapped).rename(tree / "moved")
    (tree / swapped).symlink_to(tree / "outside")
    with pytest.raises(ToolError, match="could not be deleted"):
        delete(place)
    assert copy.exists()


def test_a_root_may_be_a_link_that_the_user_has_set(run_tool: Run, tree: Path) -> None:
    (tree / "fast").symlink_to(tree / "work")
    for kept, named, root in (("work/new", "fast/new", "fast"), ("fast/new", "work/new", "work")):
        with pytest.raises(ToolError, match="must stay"):
            run_tool(TOOL, protected={kept: "needed"}, **{**asked(named), "roots": [root]})
    run_tool(TOOL, **{**asked("fast/old"), "roots": ["fast"]})
    assert everything(tree) == {"work/new/z.bin", "outside/keep"}


def test_bytes_that_another_name_keeps_on_the_disk_do_not_count_as_freed(run_tool: Run, tree: Path) -> None:
    whole = run_tool(TOOL, **asked("work/old", dry_run=True)).note
    (tree / "work/old/a/second").hardlink_to(tree / "work/old/a/x.bin")
    assert run_tool(TOOL, **asked("work/old", dry_run=True)).note == whole
    (tree / "outside/third").hardlink_to(tree / "work/old/a/x.bin")
    assert run_tool(TOOL, **asked("work/old")).values == {"freed_bytes": (tree / "outside/keep").stat().st_blocks * 512}


@pytest.mark.parametrize("kept", ["work/old", "work/old/a", "work/old/a/x.bin"])
def test_what_the_plan_still_needs_stays_with_the_reason(run_tool: Run, tree: Path, kept: str) -> None:
    before = everything(tree)
    with pytest.raises(ToolError, match="must stay: needed by 'train'"):
        run_tool(TOOL, protected={kept: "needed by 'train'"}, **asked("work/new", "work/old"))
    if kept == "work/old":
        with pytest.raises(ToolError, match="must stay"):
            run_tool(TOOL, protected={kept: "needed by 'train'"}, **asked("work/old/a"))
    assert everything(tree) == before


@pytest.mark.parametrize("path", ["/proc", "/dev"])
def test_a_mount_point_or_what_holds_one_is_never_deleted(run_tool: Run, tree: Path, path: str) -> None:
    with pytest.raises(ToolError, match="holds the mount point"):  # a dry run: a mistake here must not delete them
        run_tool(TOOL, **{**asked(path, dry_run=True), "roots": ["/"]})


def test_a_path_named_twice_or_inside_another_is_counted_once(run_tool: Run, tree: Path) -> None:
    paths = ("work/old", "work/old/a", "./work/old", "work/old")
    once = run_tool(TOOL, **asked("work/old", dry_run=True)).note
    assert run_tool(TOOL, **asked(*paths, dry_run=True)).note == once
    result = run_tool(TOOL, **asked(*paths))
    assert result.values["freed_bytes"] == json.loads((tree / "report.json").read_text())["freed_bytes"] >= 20_000
    assert result.freed == list(paths), "all that is gone, as it was named"


def test_the_folder_that_it_reports_into_stays(run_tool: Run, tree: Path) -> None:
    before = everything(tree)
    with pytest.raises(ToolError, match="this task itself writes there"):
        run_tool(TOOL, **{**asked("work/old"), "out": "work/old/report.json"})
    assert everything(tree) == before


def num_files(folder: Path) -> int:
    try:
        return sum(len(files) for _, _, files in os.walk(folder))
    except FileNotFoundError:
        return 0


def test_a_killed_deletion_is_taken_up_and_its_bytes_are_counted_once(
    run_tool: Run, start_tool: Callable[..., subprocess.Popen[bytes]], tree: Path
) -> None:
    for number in range(100):
        folder = tree / "work" / "many" / str(number)
        folder.mkdir(parents=True)
        for name in range(200):
            (folder / str(name)).write_bytes(b"x")
    run_tool(TOOL, **asked("work/many", dry_run=True))
    whole = json.loads((tree / "report.json").read_text())["freed_bytes"]
    process = start_tool(TOOL, **asked("work/new", "work/many"))
    end = time.monotonic() + 60
    while num_files(tree / "work" / "many") == 20_000:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
    process.kill()
    assert process.wait(30) == -9
    assert 0 < num_files(tree / "work" / "many") < 20_000, "it was not killed in the middle"
    with (tree / ".scratch" / "journal.jsonl").open("a") as journal:
        journal.write('{"path": "wor')  # torn
    run_tool(TOOL, **asked("work/new", "work/many"))
    freed = {entry["path"]: entry for entry in json.loads((tree / "report.json").read_text())["paths"]}
    assert (freed["work/many"]["bytes"], freed["work/many"]["files"]) == (whole, 20_000)
    assert freed["work/new"]["files"] == 1
    assert everything(tree) == {"work/old/a/x.bin", "work/old/y.bin", "outside/keep"}


def test_what_was_deleted_before_and_is_there_again_is_deleted_again(run_tool: Run, tree: Path) -> None:
    run_tool(TOOL, **asked("work/new"))
    (tree / "work" / "new").mkdir()
    (tree / "work" / "new" / "more.bin").write_bytes(b"x" * 50_000)
    assert run_tool(TOOL, **asked("work/new")).values["freed_bytes"] >= 50_000
    assert not (tree / "work" / "new").exists()
