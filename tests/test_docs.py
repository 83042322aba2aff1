import json
import re
import subprocess
import sys

import pytest

from harness import errors
from harness.cli import EXIT_CODES, MODULES
from tests.source import BEGIN, END, ROOT, tree

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def test_the_tree_of_the_readme_is_what_the_modules_say() -> None:
    shown = README.split(BEGIN)[1].split(END)[0].strip().strip("`").strip("\n")
    assert shown == tree(), "bring it up to date: .venv/bin/python -m tests.source"


def test_the_readme_lists_every_verb_and_no_other() -> None:
    assert set(re.findall(r"^\| `harness (\w+)", README, flags=re.MULTILINE)) == set(MODULES)


def test_help_names_every_verb_and_the_exit_codes() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "harness", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(re.search(rf"^  {verb} ", shown, flags=re.MULTILINE) for verb in MODULES)
    assert "Exit codes: 0 done" in shown


def test_the_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    table = README.split("| exit code | meaning |")[1].split("\n\n")[0]
    shown = {
        int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, flags=re.MULTILINE) for number in row.split(",")
    }
    assert shown == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert shown == {int(number) for number in re.findall(r"\d+", EXIT_CODES)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_make_targets_exist(page: object) -> None:
    text = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target  # type: ignore[attr-defined]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)|`make (\w+)`", text, flags=re.MULTILINE):
        name = target[0] or target[1]
        assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"make {name}"


def test_the_plan_of_the_readme_is_valid() -> None:
    from harness import catalog, planfile

    text = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert text
    example = ROOT / "checkpoints" / "readme.yaml"
    example.parent.mkdir(exist_ok=True)
    example.write_text(text[1], encoding="utf-8")
    assert set(planfile.load(example, catalog.tools()).steps) == {"prepare", "enough", "extract"}


def test_no_page_or_module_names_a_path_of_a_developers_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in filter(None, listed):
        if (ROOT / name).is_file() and not name.endswith((".db", ".lock")):
            text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"(?<![\w.])/(root|home/\w+|work/main)\b", text), name


def test_the_status_schema_is_a_schema() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads((ROOT / "docs/schemas/status.json").read_text()))
