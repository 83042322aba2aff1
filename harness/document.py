"""A YAML or JSON text as plain values, with the line and column of each."""

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLStreamError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

Place = tuple[int, int]
Path = tuple[str | int, ...]

# Plain scalars by the core schema of YAML 1.2 (section 10.3.2), and 10_000 as people write it.
INTEGER = re.compile(r"[-+]?[0-9][0-9_]{0,999}")  # Python reads at most 4 300 digits
BASED = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
NUMERIC = frozenset("+-.0123456789")
WORDS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_DEPTH = 100  # of lists and mappings: what reads the values may recurse
MAX_VALUES = 2_000_000  # with aliases counted for all that they stand for: a few lines of them can mean billions


@dataclass(frozen=True)
class Problem:
    """Something wrong with the text itself; line and column count from 1."""

    line: int
    column: int
    what: str
    do: str = ""


@dataclass
class Document:
    """What a text holds; `places` has, by the id of each list or mapping in it, where its items stand.

    An item of a mapping stands at (line, column, line of its key, column of its key), one of a list at (line, column).
    """

    value: Any
    start: Place = (1, 1)
    places: dict[int, dict[Any, tuple[int, ...]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """Where the value at `path` stands, or the nearest thing around it; of its key, if "key" is appended."""
        found: tuple[int, ...] = self.start
        value = self.value
        for step in path:
            items = self.places.get(id(value), {}) if type(value) in {dict, list} else {}
            if step not in items:
                return (found[2], found[3]) if step == "key" and len(found) == 4 else (found[0], found[1])
            found, value = items[step], value[step]
        return found[0], found[1]


def read(text: str) -> Document:
    """Read one document. Syntax errors and doubled keys become problems; the value is then what could be read."""
    yaml = YAML(typ="safe")  # parses with libyaml where it is installed: ten times as fast
    reading = _Reading()
    try:
        for event in yaml.parse(text):
            reading.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        do = "Put a text with a colon into quotes" if what.endswith("unexpected ':'") else ""
        return Document(None, problems=[Problem(line, column, f"not valid YAML: {what}", do)])
    except (YAMLError, YAMLStreamError) as error:
        return Document(None, problems=[_unreadable(text, error)])
    return Document(None, problems=reading.document.problems) if reading.broken else reading.document


def _unreadable(text: str, error: Exception) -> Problem:
    """The problem of a text that holds a character which no YAML may hold."""
    odd = UNPRINTABLE.search(text)
    if odd is None:
        return Problem(1, 1, f"not valid YAML: {str(error).splitlines()[0]}")
    line = text.count("\n", 0, odd.start()) + 1
    return Problem(line, odd.start() - text.rfind("\n", 0, odd.start()), f"control character U+{ord(odd[0]):04X}")


def scalar(text: str) -> Any:
    """The value of a plain scalar."""
    if text in WORDS:
        return WORDS[text]
    if text[0] not in NUMERIC:
        return text
    if INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if BASED.fullmatch(text):
        return int(text, 0)
    if FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


_AWAITED = object()  # a mapping's next key is still to come
_DROPPED = object()  # the next value belongs to no key that counts


class _Reading:
    """A document on its way from events to values; a loop over a stack, so that no depth is too deep.

    An alias is the very value that its anchor names, not a copy of it.
    """

    def __init__(self) -> None:
        self.document = Document(None)
        self.count = 0
        self.broken = False  # there is a problem that leaves no value to look at
        self._num_documents = 0
        self._open: list[Any] = []  # lists and mappings, from the outermost in
        self._keys: list[Any] = []  # for each the key that waits for its value, or _AWAITED
        self._began: list[int] = []  # for each the count when it began
        self._anchors: dict[str, Any] = {}
        self._sizes: dict[int, int] = {}  # of lists and mappings that are closed, by id
        self._take = {
            ScalarEvent: self._scalar,
            MappingStartEvent: self._start,
            SequenceStartEvent: self._start,
            MappingEndEvent: self._end,
            SequenceEndEvent: self._end,
            AliasEvent: self._alias,
            DocumentStartEvent: self._document,
        }

    def take(self, event: Event) -> None:
        """The next event of the parser."""
        take = self._take.get(type(event))
        if take is not None and self.count <= MAX_VALUES:
            take(event)

    def _problem(self, event: Event, what: str, *, breaks: bool = False) -> None:
        self.broken |= breaks
        line, column = _place(event)
        self.document.problems.append(Problem(line, column, what))

    def _document(self, event: Event) -> None:
        self._num_documents += 1
        if self._num_documents == 2:
            self._problem(event, "a file holds one document, and here a second begins", breaks=True)

    def _scalar(self, event: Any) -> None:
        if self._keys and self._keys[-1] is _AWAITED:
            self._key(event)
            return
        value = event.value if event.style or event.tag else scalar(event.value)
        if event.anchor:
            self._anchors[event.anchor] = value
        self._put(event, value)

    def _key(self, event: Any) -> None:
        mapping, key = self._open[-1], event.value
        places = self.document.places[id(mapping)]
        if key in mapping:
            self._problem(event, f"key '{key}' stands twice, first in line {places[key][-2]}")
            self._keys[-1] = _DROPPED
            return
        mapping[key] = None
        places[key] = (0, 0, *_place(event))
        self._keys[-1] = key

    def _start(self, event: Any) -> None:
        mapping = isinstance(event, MappingStartEvent)
        value: Any = {} if mapping else []
        if self._keys and self._keys[-1] is _AWAITED:
            self._problem(event, "a key must be plain text")
            self._keys[-1] = _DROPPED
        else:
            self._put(event, value)
        if event.anchor:
            self._anchors[event.anchor] = value
        self.document.places[id(value)] = {}
        if len(self._open) == MAX_DEPTH:
            self._problem(event, f"lists and mappings may nest {MAX_DEPTH} deep", breaks=True)
        self._open.append(value)
        self._keys.append(_AWAITED if mapping else None)
        self._began.append(self.count)

    def _end(self, _event: Event) -> None:
        value = self._open.pop()
        self._keys.pop()
        self._sizes[id(value)] = self.count - self._began.pop()

    def _alias(self, event: Any) -> None:
        if self._keys and self._keys[-1] is _AWAITED:
            self._problem(event, "a key must be plain text")
            self._keys[-1] = _DROPPED
        elif event.anchor not in self._anchors:
            self._problem(event, f"no anchor '&{event.anchor}' stands before this alias", breaks=True)
            self._put(event, None)
        else:
            value = self._anchors[event.anchor]
            if any(value is each for each in self._open):
                self._problem(event, "an alias holds itself", breaks=True)
                value = None
            self.count += self._sizes.get(id(value), 0)
            self._put(event, value)

    def _put(self, event: Event, value: Any) -> None:
        """Give the value its place in what is open."""
        self.count += 1
        if self.count > MAX_VALUES:
            what = f"more than {MAX_VALUES} values, with all that the aliases stand for"
            self._problem(event, what, breaks=True)
        if not self._open:
            if self._num_documents == 1:
                self.document.value, self.document.start = value, _place(event)
            return
        container, key = self._open[-1], self._keys[-1]
        places = self.document.places[id(container)]
        if isinstance(container, list):
            places[len(container)] = _place(event)
            container.append(value)
            return
        self._keys[-1] = _AWAITED
        if key is not _DROPPED:
            container[key] = value
            places[key] = (*_place(event), *places[key][2:])


def _place(event: Event) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1
