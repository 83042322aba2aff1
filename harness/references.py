"""References like ${vars.x}, ${secrets.x} and ${tasks.t.outputs.name}, and the conditions of `when`."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PATTERN = re.compile(r"\$\{([^}]*)\}")
UNCLOSED = re.compile(r"\$\{[^}]*\Z")
MAX_DEPTH = 50  # of a condition
Lookup = Callable[[str, str], Any]


@dataclass(frozen=True)
class Reference:
    """`${vars.<name>}` when `task` is None, else `${tasks.<task>.outputs.<name>}`; `text` as written.

    A `secret` one is `${secrets.<name>}`: it stays as it is until the task's own process puts the value in.
    """

    text: str
    task: str | None
    name: str
    secret: bool = False


def parse(inside: str) -> Reference:
    """What stands between the braces. Raises ValueError for anything that is no reference."""
    parts = inside.strip().split(".")
    text = f"${{{inside}}}"
    if len(parts) == 2 and parts[0] == "vars" and parts[1]:
        return Reference(text, None, parts[1])
    if len(parts) == 2 and parts[0] == "secrets" and parts[1]:
        return Reference(text, None, parts[1], secret=True)
    if len(parts) == 4 and parts[0] == "tasks" and parts[2] == "outputs" and parts[1] and parts[3]:
        return Reference(text, parts[1], parts[3])
    raise ValueError(f"'{text}' is no reference: write ${{vars.NAME}}, ${{tasks.TASK.outputs.NAME}} or a shell's $NAME")


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested lists and mappings."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending.extend((*item, *item.values()))
        elif isinstance(item, list | tuple):
            pending.extend(item)


def find(value: Any) -> list[Reference]:
    """The references in every string inside `value`. Raises ValueError for a malformed one."""
    return [parse(match[1]) for text in strings(value) if "${" in text for match in PATTERN.finditer(text)]


def substitute(value: Any, replace: Callable[[Reference], Any]) -> Any:
    """`value` with every reference replaced; a string that is exactly one reference takes the replacement's type.

    `replace` returns the reference itself where it has to stay.
    """
    if isinstance(value, str):
        if "${" not in value:
            return value
        unclosed = UNCLOSED.search(value)
        if unclosed:
            raise ValueError(f"'{unclosed[0]}' has no closing brace")
        whole = PATTERN.fullmatch(value)
        if whole:
            found = replace(parse(whole[1]))
            return value if isinstance(found, Reference) else found

        def text(match: re.Match[str]) -> str:
            found = replace(parse(match[1]))
            return match[0] if isinstance(found, Reference) else str(found)

        return PATTERN.sub(text, value)
    if isinstance(value, Mapping):
        return {str(substitute(key, replace)): substitute(item, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [substitute(item, replace) for item in value]
    return value


def resolve(params: Mapping[str, Any], values: Lookup) -> dict[str, Any]:
    """Parameters with every `${tasks.*}` reference replaced by `values(task, name)`."""

    def replace(reference: Reference) -> Any:
        return reference if reference.task is None else values(reference.task, reference.name)

    return {name: substitute(value, replace) for name, value in params.items()}


COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def _tree(when: str) -> tuple[ast.expr, list[Reference]]:
    """The condition as a syntax tree in which the name `REF0_` stands for the first reference, and so on."""
    found: list[Reference] = []

    def placeholder(match: re.Match[str]) -> str:
        found.append(parse(match[1]))
        return f"REF{len(found) - 1}_"

    try:
        tree = ast.parse(PATTERN.sub(placeholder, when).strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"'{when}' can't be read as a condition: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"a condition may nest {MAX_DEPTH} deep") from error
    return tree, found


def condition(when: str) -> list[Reference]:
    """The references of a condition. Raises ValueError when it is malformed or does more than compare."""
    tree, found = _tree(when)
    allowed = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.Constant, ast.Name)
    level, depth = [tree], 0
    while level := [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"a condition may nest {MAX_DEPTH} deep")
    for node in ast.walk(tree):
        known = not isinstance(node, ast.Name) or node.id in WORDS or re.fullmatch(r"REF\d+_", node.id)
        if not isinstance(node, (*allowed, ast.Load, ast.List, *COMPARISONS)) or not known:
            what = f"'{node.id}'" if isinstance(node, ast.Name) else type(node).__name__
            raise ValueError(f"a condition may only compare values with and, or, not: {what} in '{when}'")
    return found


def evaluate(when: str, values: Lookup) -> bool:
    """Whether the condition holds. Raises TypeError when it orders what has no order, such as 'a' < 3."""
    tree, found = _tree(when)
    known = {f"REF{place}_": values(reference.task or "", reference.name) for place, reference in enumerate(found)}
    return bool(_value(tree, {**WORDS, **known}))


def _filled(constant: Any, known: Mapping[str, Any]) -> Any:
    """A constant; references inside a quoted text are put in."""
    if isinstance(constant, str):
        return re.sub(r"REF\d+_", lambda match: str(known.get(match[0], match[0])), constant)
    return constant


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return _filled(node.value, known)
        case ast.Name():
            return known[node.id]
        case ast.List():
            return [_value(item, known) for item in node.elts]
        case ast.BoolOp(op=ast.And()):
            return all(_value(item, known) for item in node.values)
        case ast.BoolOp():
            return any(_value(item, known) for item in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, known)
        case ast.UnaryOp():
            return -_value(node.operand, known)
        case ast.Compare():
            values = [_value(item, known) for item in (node.left, *node.comparators)]
            return all(
                COMPARISONS[type(op)](left, right)
                for op, left, right in zip(node.ops, values, values[1:], strict=False)
            )
    raise ValueError(f"a condition can't hold a {type(node).__name__}")
