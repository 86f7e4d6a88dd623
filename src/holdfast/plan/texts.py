"""Turns the text of a plan, in JSON or YAML, into plain data, and refuses a text that must not even be looked at.

A parser that recurses can be made to end its process by deep nesting, one that keeps the last of two equal keys lets a plan lose
its policies without a word, and YAML can say in a few bytes what fills the memory. So YAML is read from the events of its parser,
which does not recurse, and every event is counted before anything is made of it. The invariant: a text that is accepted has at
most `BYTES_MAX` bytes, `VALUES_MAX` values and `DEPTH_MAX` levels, and no two equal keys in one object; and reading a text takes
a few seconds and 200 MB at most, whatever its bytes are.
"""

from __future__ import annotations

import json
import re
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from holdfast.core.codec import DEPTH_MAX, key_path
from holdfast.errors import PlanError, Problem

FORMAT = "plan/1"
BYTES_MAX = 4_000_000
VALUES_MAX = 1_000_000
"""How many values a document has at most: objects, lists, texts, numbers and keys."""
NUMBER_CHARS_MAX = 1_000
"""How long a number or a date in YAML may be. YAML's numbers to the base 60 take quadratic time to read."""
DIRECTIVES_MAX = 100
"""How often `%TAG` may be in a YAML text. The parser compares each of these directives with all others before its first event."""

TOO_DEEP = f"it is nested deeper than {DEPTH_MAX} levels; keep deep structures as a flat list with ids"
TOO_MANY = f"it has more than {VALUES_MAX:,} values; keep large data outside the plan, and refer to it by its address"
TOO_LARGE = (
    f"it is larger than {BYTES_MAX:,} bytes; keep large data outside the plan, and refer to it by its address"
)
_BEGINS = f"a plan begins with {{'holdfast': '{FORMAT}', 'tasks': […]}}"
_ALIAS = "it is a YAML alias, which a plan may not have; write the value out"
_MERGE = "it is a YAML merge key (<<), which a plan may not have; write the fields out"
_KEY = "a key of an object must be a text"
_DIRECTIVES = f"it has more than {DIRECTIVES_MAX} YAML directives (%TAG), which no plan needs; leave them out"
_DIRECTIVE = tuple("%TAG".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be"))
_TAG = "tag:yaml.org,2002:"
_TEXT_TAG, _MAP_TAG, _LIST_TAG = f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq"

# Possessive quantifiers: no part of a text is scanned twice.
_JSON = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]|[^\s\[\]{}",:]++|\n', re.DOTALL)


def read_text(data: bytes, name: str) -> dict[str, Any]:
    """Return the plain data of a plan, which is JSON if it begins with `{`, and YAML otherwise. Raises `PlanError`, which gives
    the plan this name.
    """
    if len(data) > BYTES_MAX:
        raise PlanError(name, [Problem("", TOO_LARGE)])
    try:
        plain = _read_json(data) if data.lstrip()[:1] == b"{" else _read_yaml(data)
    except _Unreadable as fault:
        raise PlanError(name, [fault.problem]) from fault
    if not isinstance(plain, dict):
        raise PlanError(name, [Problem("", f"it is not an object; {_BEGINS}")])
    return plain


class _Unreadable(Exception):
    """A text cannot be read as a plan."""

    def __init__(self, told: str, path: str = "") -> None:
        self.problem = Problem(path.lstrip("."), told)
        super().__init__(told)


class EqualKeys(NamedTuple):
    """A key that is in one object twice: the path of its value, and the two lines, counted from 1."""

    key: str
    path: str
    first: int
    second: int


# --- JSON -------------------------------------------------------------------------------------------------


def _read_json(data: bytes) -> Any:
    try:
        plain = msgspec.json.decode(data)
    except RecursionError:
        raise _Unreadable(TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise _Unreadable(f"it is not valid JSON{_position(str(fault))}; {_BEGINS}") from fault
    told = size_problem(plain)
    if told is not None:
        raise _Unreadable(told)
    try:
        found = find_equal_keys(data)
    except RecursionError:  # in a value that an equal key has replaced: this parser needs more frames
        raise _Unreadable(TOO_DEEP) from None
    if found is not None:
        raise _Unreadable(_equal_keys(found.first, found.second), found.path)
    return plain


def size_problem(plain: Any) -> str | None:
    """Return what is wrong with the depth or the number of the values of plain data, or None. It walks level by level and visits
    no container twice, so that the walk itself is bounded.
    """
    seen = {id(plain)}
    level: list[Any] = [plain] if isinstance(plain, (dict, list)) else []
    values = 0
    for _ in range(DEPTH_MAX + 1):
        inner = []
        for container in level:
            is_dict = isinstance(container, dict)
            values += 2 * len(container) if is_dict else len(container)
            if values > VALUES_MAX:
                return TOO_MANY
            for child in container.values() if is_dict else container:
                if isinstance(child, (dict, list)) and id(child) not in seen:
                    seen.add(id(child))
                    inner.append(child)
        if not inner:
            return None
        level = inner
    return TOO_DEEP


def find_equal_keys(data: bytes) -> EqualKeys | None:
    """Return the first key that is in one object of a JSON text twice, or None. A text that is not JSON has none: its reader says
    so. Raises `RecursionError` if the text is nested too deeply for a parser.
    """
    found = False

    def collect(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) != len(pairs)

    try:
        json.loads(data, object_pairs_hook=collect, parse_int=len, parse_float=len, parse_constant=len)
    except ValueError:
        return None
    return _locate_equal_keys(data) if found else None


def _locate_equal_keys(data: bytes) -> EqualKeys | None:
    """Read a valid JSON text token by token, for the lines of its keys."""
    tree, line = _Tree(depth_max=len(data), values_max=len(data)), 1
    for token in _JSON.finditer(data):
        match data[token.start() : token.start() + 1]:
            case b"\n":
                line += 1
            case b"{":
                tree.begin({})
            case b"[":
                tree.begin([])
            case b"]" | b"}":
                tree.end()
            case b'"':
                if not tree.wants_key:
                    tree.add(None)
                    continue
                key = json.loads(data[token.start() : token.end()])
                first = tree.add_key(key, line)
                if first is not None:
                    return EqualKeys(key, tree.path.lstrip("."), first, line)
            case _:
                tree.add(None)
    return None


# --- YAML -------------------------------------------------------------------------------------------------


class _Tree:
    """Builds plain data from its parts, in the order of the text, without recursion."""

    def __init__(self, depth_max: int = DEPTH_MAX + 1, values_max: int = VALUES_MAX) -> None:
        self._depth_max, self._values_max = depth_max, values_max
        self._stack: list[tuple[Any, dict[Any, int]]] = []
        self._keys: list[Any] = []
        self.root: Any = None
        self.wants_key = False
        self._values = 0

    @property
    def path(self) -> str:
        """The path of the part that is being read, for messages."""
        place = ""
        keys = iter(self._keys)
        for container, _ in self._stack:
            if isinstance(container, list):
                place += f"[{len(container)}]"
            else:
                place = "".join([place, *(key_path("", key) for key in islice(keys, 1))])
        return place

    def begin(self, container: Any) -> None:
        """Begin an object or a list, which the next parts belong to."""
        if self.wants_key:
            raise _Unreadable(_KEY, self.path)
        self._count()
        if len(self._stack) >= self._depth_max:
            raise _Unreadable(TOO_DEEP)
        self._stack.append((container, {}))
        self.wants_key = isinstance(container, dict)

    def end(self) -> None:
        """End the object or list that was begun last, and put it into its place."""
        container, _ = self._stack.pop()
        self._values -= 1  # it was counted when it began
        self.add(container)

    def add_key(self, key: Any, line: int) -> int | None:
        """Begin a value of an object. Returns the line of the same key before, if the object has it already."""
        self._count()
        lines = self._stack[-1][1]
        first = lines.get(key)
        lines[key] = line
        self._keys.append(key)
        self.wants_key = False
        return first

    def add(self, value: Any) -> None:
        """Put a value into the object or list that is open."""
        self._count()
        if not self._stack:
            self.root = value
            return
        container = self._stack[-1][0]
        if isinstance(container, dict):
            container[self._keys.pop()] = value
            self.wants_key = True
        else:
            container.append(value)
            self.wants_key = False

    def _count(self) -> None:
        self._values += 1
        if self._values > self._values_max:
            raise _Unreadable(TOO_MANY)


def _read_yaml(data: bytes) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # only plans in YAML need it
    except ImportError as fault:
        told = "reading YAML needs the package pyyaml, which is not installed: pip install 'holdfast[plans]'"
        raise _Unreadable(told) from fault
    if any(data.count(directive) > DIRECTIVES_MAX for directive in _DIRECTIVE):
        raise _Unreadable(_DIRECTIVES)
    try:
        return _YamlText(yaml, len(data)).read(data)
    except yaml.MarkedYAMLError as fault:
        raise _Unreadable(f"it is not valid JSON or YAML{_parsed(fault)}; {_BEGINS}") from fault
    except (yaml.YAMLError, ValueError, OverflowError) as fault:
        raise _Unreadable(f"it is not valid JSON or YAML{_position(str(fault))}; {_BEGINS}") from fault


class _YamlText:
    """One YAML text, read from the events of the parser. `yaml` is the package, and `size` is the length of the text."""

    def __init__(self, yaml: Any, size: int) -> None:
        self._yaml = yaml
        self._size = size
        self._tree = _Tree()
        self._scalars: dict[str, Any] = {}
        self._containers: set[str] = set()
        self._constructor = yaml.constructor.SafeConstructor()
        self._resolvers: dict[str, list[Any]] = yaml.resolver.Resolver.yaml_implicit_resolvers

    def read(self, data: bytes) -> Any:
        yaml = self._yaml
        documents = 0
        # Without libyaml, the same events come from Python code, and take about twenty times as long.
        for event in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value = self._value(event)
                if event.anchor is not None:
                    self._scalars[event.anchor] = value
                self._add(value, event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._begin(event, {} if kind is yaml.MappingStartEvent else [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._tree.end()
            elif kind is yaml.AliasEvent:
                self._add(self._repeat(event), event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise _Unreadable(
                        f"a second YAML document begins on line {_line(event)}; write one plan per file"
                    )
        return self._tree.root

    def _begin(self, event: Any, container: Any) -> None:
        wanted = _MAP_TAG if isinstance(container, dict) else _LIST_TAG
        if event.tag not in (None, "!", wanted):
            raise _Unreadable(_tag(event), self._tree.path)
        if event.anchor is not None:
            self._containers.add(event.anchor)
        self._tree.begin(container)

    def _add(self, value: Any, event: Any) -> None:
        tree = self._tree
        if not tree.wants_key:
            tree.add(value)
            return
        line = _line(event)
        first = tree.add_key(value, line)
        if first is not None:
            raise _Unreadable(_equal_keys(first, line), tree.path)
        if value == "<<" and getattr(event, "implicit", (False,))[0]:
            raise _Unreadable(_MERGE, tree.path)

    def _repeat(self, event: Any) -> Any:
        """Return the value that an alias stands for. Repeated texts count as if they were written out."""
        if event.anchor in self._containers:
            raise _Unreadable(_ALIAS, self._tree.path)
        if event.anchor not in self._scalars:
            told = (
                f"the YAML alias on line {_line(event)} repeats a value that is not above it; write the value"
            )
            raise _Unreadable(told, self._tree.path)
        value = self._scalars[event.anchor]
        self._size += len(str(value))
        if self._size > BYTES_MAX:
            raise _Unreadable(f"{TOO_LARGE}. A YAML alias repeats what it stands for")
        return value

    def _value(self, event: Any) -> Any:
        """Return the value of a scalar, as YAML 1.1 says."""
        text: str = event.value
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._implied(text) if event.implicit[0] else _TEXT_TAG
        if tag == _TEXT_TAG:
            return text
        if tag not in _SCALAR_TAGS:
            raise _Unreadable(_tag(event), self._tree.path)
        if len(text) > NUMBER_CHARS_MAX:
            told = f"a number or date on line {_line(event)} is longer than {NUMBER_CHARS_MAX:,} characters"
            raise _Unreadable(f"{told}; write it as a text, in quotes", self._tree.path)
        try:
            node = self._yaml.ScalarNode(tag, text)
            return self._constructor.yaml_constructors[tag](self._constructor, node)
        except (ValueError, KeyError, IndexError, OverflowError, AttributeError, TypeError) as fault:
            told = f"the value on line {_line(event)} has the form of a number or date and is none; write it as a text, in quotes"
            raise _Unreadable(told, self._tree.path) from fault

    def _implied(self, text: str) -> str:
        """Return the tag of a text without quotes, by its form. The forms are not matched with a long text, because a form with
        repeated groups takes 60 bytes of memory for each byte of the text.
        """
        if len(text) > NUMBER_CHARS_MAX:
            is_number = text[0] in _FIRST_OF_NUMBERS and not text.strip(_SIGNS_OF_NUMBERS)
            return _NUMBER_TAG if is_number else _TEXT_TAG
        for tag, form in chain(self._resolvers.get(text[:1], ()), self._resolvers.get(None, ())):  # type: ignore[call-overload]
            if form.match(text):
                return _TEXT_TAG if tag in _TEXT_FORMS else str(tag)
        return _TEXT_TAG


_SCALAR_TAGS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "timestamp"))
_NUMBER_TAG = f"{_TAG}int"
_FIRST_OF_NUMBERS = "0123456789+-."
_SIGNS_OF_NUMBERS = "0123456789abcdefABCDEFxXo_+-.:eETtZz \t"
_TEXT_FORMS = frozenset(f"{_TAG}{name}" for name in ("merge", "value", "yaml"))
"""Forms that mean something only to YAML itself: `<<` as a key is refused, `=` is a text."""


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _tag(event: Any) -> str:
    return f"the YAML tag on line {_line(event)} is not one that a plan may have; leave it out"


def _equal_keys(first: int, second: int) -> str:
    lines = f"on line {first}" if first == second else f"on lines {first} and {second}"
    return f"the object has this key twice, {lines}; remove one of the two"


def _parsed(fault: Any) -> str:
    """Return where the YAML parser stopped and why, in its words, without data of the text. What it was parsing may have begun
    many lines before.
    """
    mark, context = fault.problem_mark, fault.context_mark
    place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    words = [fault.problem or ""]
    if fault.context and context is not None and mark is not None:
        begins = f" that begins on line {context.line + 1}" if context.line != mark.line else ""
        words.append(f"{fault.context}{begins}")
    said = ", ".join(word for word in words if word)
    return f"{place}: {_DATA.sub('…', said)}" if said else place


_DATA = re.compile(r"'[^'\s]{2,}'|\"[^\"\s]{2,}\"|<[^>]+>")
"""What the YAML parser quotes from the text. A single character says what is wrong, and is kept."""


def _position(told: str) -> str:
    """Return where a parser stopped, without what it found there."""
    for mark in ("byte ", "line "):
        _, found, rest = told.partition(mark)
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        if found and digits:
            return f" at {mark}{digits}"
    return ""
