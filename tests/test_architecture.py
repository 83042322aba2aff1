import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT, modules, sentence

HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "sglang", "numpy"}
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 6


def named(module: Path) -> str:
    return str(module.relative_to(ROOT))


@pytest.mark.parametrize("module", modules(), ids=named)
def test_a_module_begins_with_one_sentence(module: Path) -> None:
    text = sentence(module)
    if module.name == "__init__.py" and not text:
        return
    assert text.endswith("."), f"{named(module)}: its docstring is no sentence: {text!r}"
    assert len(re.findall(r"\.\s+[A-Z]", text)) == 0, f"{named(module)}: more than one sentence: {text!r}"


@pytest.mark.parametrize("module", modules(), ids=named)
def test_modules_and_functions_stay_small(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            parameters = [name for name in names if name not in ("self", "cls")]
            assert len(parameters) <= PARAMETERS, f"{node.name} takes {len(parameters)} parameters"


def test_only_the_two_front_doors_catch_everything() -> None:
    found = set()
    for module in modules():
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None
                or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"))
            ):
                broad = node.type.id if isinstance(node.type, ast.Name) else "everything"
                if not isinstance(node.body[-1], ast.Raise):
                    found.add((named(module), broad))
    assert found == {("harness/cli.py", "Exception"), ("harness/worker.py", "Exception")}


def imported_by(*names: str) -> set[str]:
    """The top-level packages that importing these modules brings in, in a fresh process."""
    code = f"import sys\nimport {', '.join(names)}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    path = f"{ROOT}:{ROOT / 'tools'}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    return set(done.stdout.split())


def test_the_tools_specifications_are_light() -> None:
    found = imported_by("eagle3.toolbox")
    assert not found & HEAVY
    assert not found & {"rich", "click", "ruamel", "sqlite_utils"}


def test_looking_at_the_status_loads_neither_pydantic_nor_the_engine() -> None:
    assert not imported_by("harness.status", "harness.table", "harness.location") & {
        "pydantic",
        "sqlite_utils",
        "ruamel",
    }


def test_a_worker_needs_only_pydantic() -> None:
    assert not imported_by("harness.worker") & {"rich", "click", "ruamel", "sqlite_utils", "psutil", "pynvml"}


def test_the_supervisor_imports_nothing_of_ours() -> None:
    source = (ROOT / "harness" / "shim.py").read_text(encoding="utf-8")
    names = {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names}
    assert names <= {"_ctypes", "_signal", "fcntl", "os", "resource", "sys", "time"}
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
