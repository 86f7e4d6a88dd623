"""What a CEL expression consists of: its tree, the paths that it reads, and how much work it can cause at most.

The tree is read from the bytes of `cel.expr.CheckedExpr` (protocol buffers), which the library writes, so that nothing here
parses the text of an expression a second time. The invariant: the work of an expression that `effort` accepts is bounded
whatever values it reads, because it reads at most `READ_BYTES_MAX` bytes and lists of at most `ITEMS_MAX` items.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

READ_BYTES_MAX = 4096
ITEMS_MAX = 100

Tree: TypeAlias = tuple[Any, ...]
"""A node of an expression: ("const", value), ("ident", name), ("select", operand, field), ("has", operand, field),
("call", function, *arguments), ("list", *items), ("map", *keys and values), ("macro", names, range, *parts), ("message",).
"""

_CALL_UNITS = 10
_COMPARED = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_OPPOSITES = {"_==_": "_!=_", "_!=_": "_==_", "_<_": "_>=_", "_>=_": "_<_", "_>_": "_<=_", "_<=_": "_>_"}
_STATE_UNITS = 300
"""What one state of a regular expression costs: the library compiles a pattern again at each call."""
_CLASS_STATES = 420
_REPEATED_MAX = 1000
"""How often the library lets a part of a pattern be repeated in all."""
_REPEATED_STATES = 10


class Path(msgspec.Struct, frozen=True):
    """A place that an expression reads: a root (`context`, `outputs`, …) and the keys below it."""

    root: str
    keys: tuple[str, ...] = ()
    tested: bool = False
    """True if the expression only asks whether the place exists: `has(context.vip)`."""

    def __str__(self) -> str:
        place = self.root + "".join(map(_step, self.keys))
        return f"has({place})" if self.tested else place

    def covers(self, other: Path) -> bool:
        """Return whether whoever has the value at this path has that of the other path too."""
        return not self.tested and self.root == other.root and self.keys == other.keys[: len(self.keys)]


def _step(key: str) -> str:
    return f".{key}" if re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII) else f"[{key!r}]"


# --- the tree ---------------------------------------------------------------------------------------------


def read_tree(serialized: bytes) -> Tree:
    """Return the tree of an expression from the bytes of its `google.protobuf.Any`, which holds a `CheckedExpr`."""
    checked = _last(serialized, 2)
    return _tree(_last(checked, 4))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer, as number and raw value."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        match tag & 7:
            case 0:
                value, position = _varint(data, position)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, data[position : position + 8]
                position += 8
            case 2:
                length, position = _varint(data, position)
                yield tag >> 3, data[position : position + length]
                position += length
            case _:
                yield tag >> 3, data[position : position + 4]
                position += 4


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _last(data: bytes, number: int) -> bytes:
    found: bytes = b""
    for field, value in _fields(data):
        if field == number:
            found = value
    return found


def _tree(data: bytes) -> Tree:
    for number, value in _fields(data):
        match number:
            case 3:
                return ("const", _constant(value))
            case 4:
                return ("ident", _last(value, 1).decode())
            case 5:
                return _select(value)
            case 6:
                return _call(value)
            case 7:
                return ("list", *(_tree(item) for field, item in _fields(value) if field == 1))
            case 8:
                return _struct(value)
            case 9:
                return _macro(value)
            case _:
                pass  # the id, which only error messages of the library use
    return ("const", None)


def _constant(data: bytes) -> Any:
    for number, value in _fields(data):
        match number:
            case 2:
                return bool(value)
            case 3:
                return value - (1 << 64) if value >> 63 else value
            case 4:
                return ("uint", value)
            case 6:
                return value.decode()
            case 1:
                return None
            case _:
                return ("bytes", number, bytes(value))
    return None


def _select(data: bytes) -> Tree:
    operand, field, tested = b"", "", False
    for number, value in _fields(data):
        if number == 1:
            operand = value
        elif number == 2:
            field = value.decode()
        else:
            tested = bool(value)
    return ("has" if tested else "select", _tree(operand), field)


def _call(data: bytes) -> Tree:
    function = ""
    arguments: list[Tree] = []
    for number, value in _fields(data):
        if number == 2:
            function = value.decode()
        elif number == 1:
            arguments.insert(0, _tree(value))
        else:
            arguments.append(_tree(value))
    return ("call", function, *arguments)


def _struct(data: bytes) -> Tree:
    parts = []
    for number, value in _fields(data):
        if number == 1 and value:
            return ("message",)
        if number == 2:
            parts += [_tree(inner) for field, inner in _fields(value) if field in (3, 4)]
    return ("map", *parts)


def _macro(data: bytes) -> Tree:
    names, parts = [], {}
    for number, value in _fields(data):
        if number in (1, 3, 8):
            names.append(value.decode())
        else:
            parts[number] = _tree(value)
    return ("macro", frozenset(names), parts[2], *(parts[number] for number in (4, 5, 6, 7)))


def children(tree: Tree) -> tuple[Tree, ...]:
    """Return the parts of a tree that are trees."""
    match tree[0]:
        case "select" | "has":
            return (tree[1],)
        case "call" | "macro":
            return tree[2:]
        case "list" | "map":
            return tree[1:]
        case _:
            return ()


def negate(tree: Tree) -> Tree:
    """Return a tree that is true exactly where this one is false."""
    if tree[0] == "call" and tree[1] == "!_":
        inner: Tree = tree[2]
        return inner
    if tree[0] == "call" and tree[1] in _OPPOSITES:
        return ("call", _OPPOSITES[tree[1]], *tree[2:])
    return ("const", not tree[1]) if tree[0] == "const" else ("call", "!_", tree)


def has_nested_macros(tree: Tree, *, inside: bool = False) -> bool:
    """Return whether a macro (`all`, `exists`, `exists_one`, `map`, `filter`) is part of another."""
    is_macro = tree[0] == "macro"
    return (is_macro and inside) or any(
        has_nested_macros(child, inside=inside or is_macro) for child in children(tree)
    )


def has_messages(tree: Tree) -> bool:
    """Return whether an expression makes a message of protocol buffers."""
    return tree[0] == "message" or any(map(has_messages, children(tree)))


# --- the paths --------------------------------------------------------------------------------------------


def read_paths(tree: Tree, roots: frozenset[str]) -> tuple[Path, ...]:
    """Return the places that an expression reads, without those that are part of another."""
    found = list(dict.fromkeys(_paths(tree, roots, frozenset())))
    return tuple(
        path
        for path in found
        if path.tested or not any(other.covers(path) for other in found if other is not path)
    )


def _paths(tree: Tree, roots: frozenset[str], bound: frozenset[str]) -> Iterator[Path]:
    place = _place(tree, roots, bound)
    if place is not None:
        yield place
        return
    if tree[0] == "macro":
        yield from _paths(tree[2], roots, bound)
        for part in tree[3:]:
            yield from _paths(part, roots, bound | tree[1])
        return
    for child in children(tree):
        yield from _paths(child, roots, bound)


def _place(tree: Tree, roots: frozenset[str], bound: frozenset[str]) -> Path | None:
    """Return the path of a tree that is a root with constant keys, or None."""
    match tree:
        case ("ident", name):
            root = name.removeprefix(".")
            return Path(root) if root in roots and (name not in bound) else None
        case ("select" | "has" as kind, operand, field):
            above = _place(operand, roots, bound)
            return above and Path(above.root, (*above.keys, field), kind == "has")
        case ("call", "_[_]", operand, ("const", str(key))):
            above = _place(operand, roots, bound)
            return above and Path(above.root, (*above.keys, key))
        case _:
            return None


# --- the work ---------------------------------------------------------------------------------------------


class Effort(NamedTuple):
    """The most that a tree can cause: bytes of its value, items of its value, and units of work (about 10 ns each)."""

    bytes: float
    items: float
    units: float


def effort(tree: Tree, bound: dict[str, Effort] | None = None) -> Effort:
    """Return what a tree costs at most. A macro multiplies its parts by the items of its range; the sizes of these items add up
    to the size of the range.
    """
    bound = bound or {}
    match tree:
        case ("const", value):
            return Effort(len(value) if isinstance(value, str) else 8, 1, 1)
        case ("ident", name) if name in bound:
            return bound[name]
        case ("ident", _):
            return Effort(READ_BYTES_MAX, ITEMS_MAX, 1)
        case ("select" | "has" as kind, operand, _):
            above = effort(operand, bound)
            return Effort(8, 1, above.units + 1) if kind == "has" else above._replace(units=above.units + 1)
        case ("list" | "map", *parts):
            costs = [effort(part, bound) for part in parts]
            return Effort(
                sum(one.bytes for one in costs) + 8, len(parts), sum(one.units for one in costs) + 1
            )
        case ("macro", names, over, *parts):
            return _macro_effort(names, over, parts, bound)
        case ("call", function, *arguments):
            return _call_effort(function, arguments, [effort(part, bound) for part in arguments])
        case _:
            return Effort(0, 0, 0)


def _macro_effort(names: frozenset[str], over: Tree, parts: list[Tree], bound: dict[str, Effort]) -> Effort:
    ranged = effort(over, bound)
    count = max(ranged.items, 1)
    inside = bound | dict.fromkeys(names, Effort(ranged.bytes / count, ITEMS_MAX, 1))
    costs = [effort(part, inside) for part in parts]
    return Effort(
        ranged.bytes + count * sum(one.bytes for one in costs),
        count,
        ranged.units + count * (sum(one.units for one in costs) + _CALL_UNITS),
    )


def _call_effort(function: str, arguments: list[Tree], costs: list[Effort]) -> Effort:
    total = sum(one.bytes for one in costs)
    units = sum(one.units for one in costs) + _CALL_UNITS
    largest = max((one.bytes for one in costs), default=8)
    items = max((one.items for one in costs), default=1)
    if function in _COMPARED:
        return Effort(8, 1, units + 2 * min(one.bytes for one in costs))
    match function:
        case "_+_":
            return Effort(total, sum(one.items for one in costs), units + total)
        case "_&&_" | "_||_" | "!_":
            return Effort(8, 1, units)
        case "_?_:_" | "_[_]" | "dyn":
            return Effort(largest, items, units)
        case "contains" if len(costs) == 2:
            return Effort(8, 1, units + costs[0].bytes * max(1, costs[1].bytes / 64))
        case "matches":
            return Effort(8, 1, units + 2 * costs[0].bytes + _pattern_units(arguments[-1]))
        case _:
            return Effort(largest, 1, units + total)


def _pattern_units(pattern: Tree) -> float:
    """Return what it costs to compile a regular expression. One that is not a literal may be any, and costs more than is
    allowed.
    """
    if pattern[0] != "const" or not isinstance(pattern[1], str):
        return float("inf")
    text: str = pattern[1]
    counts = [max(1, int(high or low)) for low, high in re.findall(r"\{(\d{1,9}),?(\d{0,9})\}", text)]
    states = len(text) + _CLASS_STATES * len(re.findall(r"\\[pP]", text))
    if re.search(r"\)\{\d", text):  # a counted group may contain other counts
        return states * min(_REPEATED_MAX, math.prod(counts)) * _STATE_UNITS
    return (states + _REPEATED_STATES * sum(counts)) * _STATE_UNITS
