"""Tool packs: found by their entry points, refused by name when they are broken."""

import importlib
import sys
from pathlib import Path

import pytest

from harness import catalog, generic
from harness.errors import UsageError

PACK = """
from harness.contract import Params, Tool

class P(Params):
    out: str

TOOLS = (Tool("NAME", 1, "Does.", P, "NAME_pack:main"),)
"""


def install(folder: Path, name: str, source: str, *, attribute: str = "TOOLS") -> None:
    """A distribution as an installer leaves it: a package, and its metadata beside it."""
    (folder / f"{name}_pack").mkdir()
    (folder / f"{name}_pack" / "__init__.py").write_text(source.replace("NAME", name))
    metadata = folder / f"{name}_pack-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-pack\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[harness.tools]\n{name} = {name}_pack:{attribute}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose packages are importable."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [each for each in sys.modules if each.endswith("_pack")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_the_generic_tools_and_those_of_an_installed_pack_are_found(site: Path) -> None:
    install(site, "dig", PACK)
    importlib.invalidate_caches()
    found = dict(catalog.tools())
    assert {tool.name for tool in generic.TOOLS} < set(found)
    assert found["dig"].summary == "Does."


def test_a_worker_is_given_harness_and_the_package_of_its_tool(site: Path) -> None:
    install(site, "dug", PACK)
    importlib.invalidate_caches()
    folders = catalog.package_folders(dict(catalog.tools())["dug"])
    assert folders == {"harness": Path(catalog.__file__).parent, "dug_pack": site / "dug_pack"}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import absent_module_of_nobody", "No module named 'absent_module_of_nobody'"),
        ("TOOLS = (", "SyntaxError"),
        ("TOOLS = unknown_name", "NameError"),
        ("OTHER = 1", "AttributeError"),
        ("TOOLS = 5", "TypeError"),
        ("from harness.contract import Params\nclass P(Params):\n    x: 5\nTOOLS = ()", "Error"),
        ("TOOLS = ['text']", "holds something that is no tool; found 'text'"),
    ],
)
def test_a_broken_pack_is_named_with_what_is_wrong_with_it(site: Path, source: str, says: str) -> None:
    install(site, "broken", source)
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match="tool pack 'broken'") as refused:
        dict(catalog.tools())
    assert says in str(refused.value)


def test_two_tools_of_one_name_are_refused_with_both_their_homes(site: Path) -> None:
    install(site, "shell", PACK)
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match="two tools are called 'shell'") as refused:
        dict(catalog.tools())
    assert "in harness itself and in pack 'shell'" in str(refused.value)


def test_an_unknown_tool_is_not_found_and_the_nearest_is_named() -> None:
    assert "Did you mean 'shell'?" in str(catalog.unknown_tool("shel", {tool.name: tool for tool in generic.TOOLS}))
