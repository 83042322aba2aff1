"""A YAML or JSON text as plain values, with the line and column of each."""

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLStreamError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Place = tuple[int, int]
Path = tuple[str | int, ...]

# Plain scalars by the core schema of YAML 1.2 (section 10.3.2), and 10_000 as people write it.
INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
BASED = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
WORDS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}


@dataclass(frozen=True)
class Problem:
    """Something wrong with the text itself; line and column count from 1."""

    line: int
    column: int
    what: str


@dataclass
class Document:
    """`places` maps the path of each value, and with "key" appended of each key, to its line and column from 1."""

    value: Any
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """Where the value at `path` stands, or the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))


def read(text: str) -> Document:
    """Read one document. Syntax errors and doubled keys become problems; the value is then what could be read."""
    yaml = YAML(typ="safe")  # composes with libyaml where it is installed: ten times as fast
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        return Document(None, problems=[Problem(line, column, f"not valid YAML: {what}")])
    except (YAMLError, YAMLStreamError) as error:
        return Document(None, problems=[Problem(1, 1, f"not valid YAML: {str(error).splitlines()[0]}")])
    document = Document(None)
    if root is not None:
        document.value = _build(root, document)
    return document


def scalar(text: str) -> Any:
    """The value of a plain scalar."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if BASED.fullmatch(text):
        return int(text, 0)
    if FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _build(root: Node, document: Document) -> Any:
    """Values from nodes, without recursion; an alias that holds itself is a problem, not an endless loop."""
    box: list[Any] = [None]
    pending: list[tuple[Node, Any, Any, Path, frozenset[int]]] = [(root, box, 0, (), frozenset())]
    while pending:
        node, holder, key, path, above = pending.pop()
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        document.places[path] = (line, column)
        if id(node) in above:
            document.problems.append(Problem(line, column, "an alias holds itself"))
        elif isinstance(node, ScalarNode):
            holder[key] = node.value if node.style else scalar(node.value)
        elif isinstance(node, SequenceNode):
            holder[key] = items = [None] * len(node.value)
            below = above | {id(node)}
            pending.extend((item, items, index, (*path, index), below) for index, item in enumerate(node.value))
        elif isinstance(node, MappingNode):
            mapping: dict[str, Any] = {}
            holder[key] = mapping
            pending.extend(_entries(node, mapping, document, path, above=above | {id(node)}))
    return box[0]


def _entries(
    node: MappingNode, mapping: dict[str, Any], document: Document, path: Path, *, above: frozenset[int]
) -> list[tuple[Node, Any, Any, Path, frozenset[int]]]:
    """The values of a mapping, still to be built; keys keep their order."""
    found: list[tuple[Node, Any, Any, Path, frozenset[int]]] = []
    for key_node, value_node in node.value:
        line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
        if not isinstance(key_node, ScalarNode):
            document.problems.append(Problem(line, column, "a key must be plain text"))
            continue
        key = key_node.value
        if key in mapping:
            first = document.places[(*path, key, "key")][0]
            document.problems.append(Problem(line, column, f"key '{key}' stands twice, first in line {first}"))
            continue
        mapping[key] = None
        document.places[(*path, key, "key")] = (line, column)
        found.append((value_node, mapping, key, (*path, key), above))
    return found
