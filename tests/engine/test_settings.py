import sys
from pathlib import Path

import pytest

from harness.errors import BlockedError, NotFoundError, UsageError
from harness.location import find_root, known_plan
from harness.paths import Root
from harness.settings import Settings, interpreter, read_settings


def test_the_root_is_the_nearest_folder_above_that_holds_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_ROOT", raising=False)
    (tmp_path / "plans").mkdir()
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(deep, None).folder == tmp_path
    assert find_root(tmp_path / "plans" / "demo.yaml", None).folder == tmp_path
    monkeypatch.setenv("HARNESS_ROOT", str(deep))
    assert find_root(tmp_path, None).folder == deep
    assert find_root(tmp_path, tmp_path / "a").folder == tmp_path / "a"
    with pytest.raises(UsageError, match="not a folder"):
        find_root(tmp_path, tmp_path / "nowhere")


def test_an_environment_without_a_name_is_the_engines_own_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert interpreter("train", root, {}) == Path(sys.executable)
    assert interpreter("train", root, {"train": sys.executable}) == Path(sys.executable)
    with pytest.raises(BlockedError, match="'train' has no interpreter"):
        interpreter("train", root, {"train": ".nowhere/bin/python"})


def test_settings_are_read_and_a_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert read_settings(root) == Settings()
    root.settings.write_text("envs: {train: x/python}\njobs: 2\n")
    assert read_settings(root) == Settings(envs={"train": "x/python"}, jobs=2)
    for wrong in ("jobs: 0\n", "job: 2\n", "envs: {"):
        root.settings.write_text(wrong)
        with pytest.raises(UsageError, match=r"harness.yaml"):
            read_settings(root)


def test_the_only_plan_need_not_be_named_and_several_must_be(tmp_path: Path) -> None:
    root = Root(tmp_path)
    with pytest.raises(NotFoundError, match="no plan has been run here"):
        known_plan(root, None)
    for name in ("a", "b"):
        root.plan(name).folder.mkdir(parents=True)
        root.plan(name).database.touch()
        if name == "a":
            assert known_plan(root, None) == root.plan("a")
    with pytest.raises(UsageError, match="a, b"):
        known_plan(root, None)
    assert known_plan(root, "b") == root.plan("b")
    with pytest.raises(NotFoundError, match="'c'"):
        known_plan(root, "c")
