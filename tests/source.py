"""What the tests of the repository itself look at: modules, their sentences, the tree of the README."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- tree -->", "<!-- /tree -->"


def modules() -> list[Path]:
    """Every module of the engine and the pack."""
    return sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("tools/eagle3/**/*.py")])


def sentence(module: Path) -> str:
    """The first paragraph of a module's docstring on one line, "" where there is none."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def tree() -> str:
    """The annotated tree of the README: each module with its sentence, a tool as its folder with its summary's."""
    lines = []
    for title, folder in (("harness/", ROOT / "harness"), ("tools/eagle3/", ROOT / "tools" / "eagle3")):
        lines.append(title)
        entries = [path for path in sorted(folder.iterdir()) if _listed(path)]
        width = max(len(path.name) + path.is_dir() for path in entries)
        for path in entries:
            name = f"{path.name}/" if path.is_dir() else path.name
            text = sentence(path / "__init__.py" if path.is_dir() else path)
            lines.append(f"  {name:<{width}}  {text}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _listed(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").exists()
    return path.suffix == ".py" and path.name != "__init__.py"


def write_tree() -> None:
    """Bring the README's tree up to date."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n```\n{tree()}\n```\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_tree()
