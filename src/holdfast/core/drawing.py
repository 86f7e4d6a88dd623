"""Draw a flow, with or without the statuses of a run: as Mermaid for web pages, or as plain text for terminals.

Both are pure functions of the definition: the same flow is always drawn the same way.

The terminal picture is a list of nodes with rails beside it, as in `git log --graph`. Each row is a node, each rail an edge on
its way to a node further down; a rail forks where the run continues with several nodes, and rails join where edges meet:

    ○    START
    ├─╮
    ● │  plan
    ● │  research
    │ ●  style
    ├─╯
    ●    write
    ●    check      ◇ publish or ↺ write
    ┆
    ●    publish
    ◎    END

Dashed rails belong to branches; `◇` lists the nodes that the branch may choose. In a plan, an edge that has a condition is
dashed, too: the node that it leads to has the guard beside it (`◇ if …`), or the failures that the edge takes (`↯ on …`). A
rail never leads up: an edge that closes a loop is written beside the node it starts from (`↺ write`). A node directly below
another on the same rail comes after it. If rails would take too much room, the next nodes are listed beside each node instead.

Names that users chose are never put unescaped into Mermaid or the terminal: ids are numbers, labels are escaped, and control
characters are removed.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.core.conditions import conditions_of
from holdfast.core.definition import END, START, Definition, Edge
from holdfast.core.topology import Topology

MARKS: dict[str, str] = {
    "pending": "◌",
    "running": "▶",
    "waiting": "…",
    "paused": "‖",
    "interrupted": "‖",
    "completed": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "»",
}
"""The mark for each status of a node. A node that the run has not reached has no status and is marked `·`."""

_TIMES = "\N{MULTIPLICATION SIGN}"
_NOT_REACHED, _UNKNOWN, _NO_RUN = "·", "?", "●"
_ENDS = {START: "○", END: "◎"}
_ASCII = str.maketrans({
    "◌": "o", "▶": ">", "…": "~", "‖": "=", "✓": "v", "✗": "x", "⊘": "#", "»": "s", "·": ".", "●": "*", "○": "o", "◎": "@",
    "│": "|", "┆": ":", "─": "-", "┄": ".", "├": "+", "┬": "+", "┴": "+", "╮": "\\", "╯": "/",
    "◇": "?", "↺": "^", "→": "->", "◆": "?", "↯": "!", "—": "-", _TIMES: "x", "µ": "u",
})  # fmt: skip

_NODES_MAX = 60
_LANES_MAX = 14
_LABEL_COLUMNS_MAX = 32  # one long name does not push all notes to the right
_CONDITION_MAX = 120
_HARMLESS = frozenset(string.ascii_letters + string.digits + " ._-")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


_COLOURS: dict[str, str] = {
    "pending": "fill:#f4f4f5,stroke:#a1a1aa,color:#3f3f46",
    "running": "fill:#dbeafe,stroke:#2563eb,color:#1e3a8a",
    "waiting": "fill:#fef9c3,stroke:#ca8a04,color:#713f12",
    "paused": "fill:#ede9fe,stroke:#7c3aed,color:#4c1d95",
    "interrupted": "fill:#ffedd5,stroke:#ea580c,color:#7c2d12",
    "completed": "fill:#dcfce7,stroke:#16a34a,color:#14532d",
    "failed": "fill:#fee2e2,stroke:#dc2626,color:#7f1d1d",
    "cancelled": "fill:#e4e4e7,stroke:#52525b,color:#27272a",
    "skipped": "fill:#f4f4f5,stroke:#a1a1aa,color:#71717a,stroke-dasharray:4 3",
}


def mermaid(definition: Definition, statuses: Mapping[str, str] = {}) -> str:
    """Return the flow as a Mermaid flowchart: branches are dashed, edges that close a loop are labelled `again`, edges of a plan
    with their guards and the failures that they take; statuses are colours.
    """
    shape = _Shape(definition)
    ids = {name: f"n{number}" for number, name in enumerate(definition.nodes)} | {START: "first", END: "last"}
    lines = ["flowchart TD", '    first(["START"])']
    for name, options in definition.nodes.items():
        label = _entities(_label(definition, name))
        lines.append(f'    {ids[name]}[["{label}"]]' if options.each else f'    {ids[name]}["{label}"]')
    lines.append('    last(["END"])')
    for source, ways in shape.onward.items():
        for way in ways:
            condition = shape.conditions.get(Edge(source, way.to))
            label = f'|"{_entities(_shortened(str(condition)))}"|' if condition is not None else ""
            lines.append(f"    {ids[source]} {'-.->' if way.dashed else '-->'}{label} {ids[way.to]}")
        for target in shape.back.get(source, ()):
            arrow = "-. again .->" if target in shape.branches.get(source, ()) else "-- again -->"
            lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    for status, colours in _COLOURS.items():
        if members := [ids[name] for name in definition.nodes if statuses.get(name) == status]:
            lines += [f"    classDef {status} {colours}", f"    class {','.join(members)} {status}"]
    return "\n".join(lines)


def _shortened(text: str) -> str:
    return text if len(text) <= _CONDITION_MAX else f"{text[: _CONDITION_MAX - 1]}…"


def _entities(text: str) -> str:
    """Return the text as a Mermaid label: every character except letters, digits and a few harmless ones is written as a numeric
    entity.
    """
    return "".join(char if char in _HARMLESS else f"#{ord(char)};" for char in text)


def terminal(
    definition: Definition,
    statuses: Mapping[str, str] = {},
    *,
    width: int = 80,
    notes: Mapping[str, str] = {},
    routes: Mapping[str, Collection[str]] = {},
    ascii: bool = False,
) -> str:
    """Return the flow as plain text, at most `width` columns wide unless a node's name or note needs more.

    With `statuses`, every node has the mark of its status; `notes` (a time, a count) are printed after the names. In a plan,
    `routes` says where the run went from each node that has ended.
    """
    shape = _Shape(definition)
    rows = _rails(shape) if len(definition.nodes) <= _NODES_MAX else []
    room = max((len(row.rail) for row in rows), default=0)
    fits = room < 2 * _LANES_MAX and room + 2 + max(map(len, definition.nodes), default=0) <= width
    if rows and fits:
        tails = {name: _choices(shape, name) for name in (START, *definition.nodes)}
    else:
        rows = [_Row("", name) for name in (START, *definition.nodes)]
        tails = {
            name: " ".join([*_leads(shape, name), _choices(shape, name)])
            for name in (START, *definition.nodes)
        }
    for name, told in _entries(shape, routes, is_compact=not (rows and rows[0].rail)):
        tails[name] = f"{tails[name]}  {told}".strip()
    drawn = _lines(definition, rows, statuses, notes, tails, width)
    return "\n".join(in_ascii(line) if ascii else line for line in drawn)


# --- the shape of a flow -----------------------------------------------------------------------------


class _Way(msgspec.Struct, frozen=True):
    """An edge that is drawn as a rail on its way to a node."""

    to: str
    dashed: bool
    """True if the edge belongs to a branch; its rail is then dashed."""


class _Shape:
    """The edges of every node: those that lead onward, and those that lead back around a loop."""

    def __init__(self, definition: Definition) -> None:
        back = Topology.of(definition).back_edges
        self.conditions = conditions_of(definition)
        plain = frozenset(definition.edges) - self.conditions.keys()
        self.onward: dict[str, list[_Way]] = {name: [] for name in (START, *definition.nodes, END)}
        self.back: dict[str, list[str]] = {name: [] for name in definition.nodes}
        self.branches = definition.branches
        for arrow in definition.arrows():
            if (arrow.source, arrow.target) in back:
                self.back[arrow.source].append(arrow.target)
            else:
                self.onward[arrow.source].append(_Way(arrow.target, arrow not in plain))

    def waiting(self) -> dict[str, int]:
        """Return, for each node, how many edges lead to it. A node is drawn when the sources of all these edges are drawn above
        it.
        """
        count = dict.fromkeys(self.onward, 0)
        for ways in self.onward.values():
            for way in ways:
                count[way.to] += 1
        return count

    def ends(self) -> frozenset[str]:
        """Return the nodes from which END can be reached without going around a loop."""
        sources: dict[str, list[str]] = {}
        for source, ways in self.onward.items():
            for way in ways:
                sources.setdefault(way.to, []).append(source)
        met = {END: None}
        walk = [END]
        for name in walk:  # the list grows during the loop
            for source in sources.get(name, ()):
                if source not in met:
                    met[source] = None
                    walk.append(source)
        return frozenset(met)


# --- rails -------------------------------------------------------------------------------------------


class _Row(msgspec.Struct, frozen=True):
    """One row of rails. `at` is the position of the node's mark."""

    rail: str
    node: str | None = None
    at: int = 0


def _rails(shape: _Shape) -> list[_Row]:
    """Return the rows of the picture from START to END: each node below all nodes that lead to it, with the rails beside it."""
    rows: list[_Row] = []
    waiting, ends = shape.waiting(), shape.ends()
    lanes: list[_Way | None] = [_Way(START, dashed=False)]
    while True:
        ready = [way.to for way in lanes if way and not waiting[way.to]]
        if not ready:
            return rows
        name = next((name for name in ready if name != END), END)
        arrived = [number for number, way in enumerate(lanes) if way and way.to == name]
        lane = arrived[0]
        if len(arrived) > 1:
            rows.append(_Row(_crossbar(lanes, arrived, "┴", "╯")))
        elif rows and rows[-1].node and rows[-1].at == 2 * lane and _vertical(lanes[lane]) == "┆":
            # Without this row, nothing would show that a branch leads here.
            rows.append(_Row(_verticals(lanes)))
        for number in arrived[1:]:
            lanes[number] = None
        while lanes[-1] is None:
            lanes.pop()
        rows.append(_Row(_verticals(lanes), name, 2 * lane))
        for way in shape.onward[name]:
            waiting[way.to] -= 1
        taken = _fork(lanes, lane, sorted(shape.onward[name], key=lambda way: way.to not in ends))
        if len(taken) > 1:
            rows.append(_Row(_crossbar(lanes, taken, "┬", "╮")))


def _fork(lanes: list[_Way | None], lane: int, ways: Sequence[_Way]) -> list[int]:
    """Put the edges that leave a node onto rails: the first stays on the node's rail, the others take the nearest free rails to
    the right.
    """
    lanes[lane] = ways[0] if ways else None
    taken = [lane]
    for way in ways[1:]:
        number = taken[-1] + 1
        while number < len(lanes) and lanes[number] is not None:
            number += 1
        lanes[number : number + 1] = [way]
        taken.append(number)
    return taken


def _verticals(lanes: Iterable[_Way | None]) -> str:
    return " ".join(_vertical(lane) for lane in lanes)


def _vertical(lane: _Way | None) -> str:
    return " " if lane is None else "┆" if lane.dashed else "│"


def _crossbar(lanes: Sequence[_Way | None], met: Sequence[int], tee: str, corner: str) -> str:
    """Return a row in which the rails `met` fork or join. Other rails between them cross the horizontal line."""
    drawn = []
    for number, lane in enumerate(lanes):
        inside = met[0] <= number < met[-1]
        dashed = all((way := lanes[other]) and way.dashed for other in met if other > number)
        bar = "┄" if dashed else "─"
        if number in met:
            drawn.append("├" if number == met[0] else corner if number == met[-1] else tee)
        else:
            drawn.append(bar if lane is None and inside else _vertical(lane))
        drawn.append(bar if inside else " ")
    return "".join(drawn).rstrip()


# --- text beside the rails ---------------------------------------------------------------------------


def _lines(
    definition: Definition,
    rows: Sequence[_Row],
    statuses: Mapping[str, str],
    notes: Mapping[str, str],
    tails: Mapping[str, str],
    width: int,
) -> Iterator[str]:
    """Yield the lines of the picture: rails, name, note and tail in columns. Of a line that is too wide, only the tail is
    shortened.
    """
    names = max(len(row.rail) for row in rows) + 2
    labels = {row.node: _label(definition, row.node) for row in rows if row.node}
    beside = names + min(max(map(len, labels.values())), _LABEL_COLUMNS_MAX) + 3
    behind = beside + max((len(clean(note)) + 3 for name, note in notes.items() if name in labels), default=0)
    for row in rows:
        if row.node is None:
            yield row.rail
            continue
        rail = row.rail[: row.at] + _mark(row.node, statuses) + row.rail[row.at + 1 :]
        line = rail.ljust(names) + labels[row.node]
        if note := clean(notes.get(row.node, "")):
            line = line.ljust(beside - 3) + "   " + note
        if tail := tails.get(row.node, ""):
            whole = line.ljust(behind - 3) + "   " + tail
            line = whole if len(whole) <= width else whole[: max(len(line) + 1, width - 1)] + "…"
        yield line.rstrip()


def _label(definition: Definition, name: str) -> str:
    """Return the name of a node, marked if the node fans out, calls a flow, or does not wait for all nodes that lead to it
    (`join="any"`).
    """
    options = definition.nodes.get(name)
    if options is None:
        return clean(name)
    each = f" {_TIMES}N" if options.each else ""
    calls = f" (calls {clean(options.calls)})" if options.calls is not None else ""
    return clean(name) + each + calls + (" (any)" if options.join == "any" else "")


def _mark(name: str, statuses: Mapping[str, str]) -> str:
    if name in _ENDS:
        return _ENDS[name]
    if not statuses:
        return _NO_RUN
    return MARKS.get(statuses[name], _UNKNOWN) if name in statuses else _NOT_REACHED


def _leads(shape: _Shape, name: str) -> Iterator[str]:
    """Yield the targets of a node's edges as text, for pictures without rails."""
    if plain := [clean(way.to) for way in shape.onward[name] if not way.dashed]:
        yield f"→ {', '.join(plain)}"


def _choices(shape: _Shape, name: str) -> str:
    """Return the nodes that a branch may choose, and the edges that close a loop, as text."""
    back = shape.back.get(name, [])
    chosen = sorted(
        shape.branches.get(name, []), key=lambda target: target in back
    )  # edges onward come first
    words = [f"↺ {clean(target)}" for target in back if target not in chosen]
    if chosen:
        words.append(
            "◇ " + " or ".join(f"{'↺ ' if target in back else ''}{clean(target)}" for target in chosen)
        )
    return "  ".join(words)


def _entries(
    shape: _Shape, routes: Mapping[str, Collection[str]], *, is_compact: bool
) -> Iterator[tuple[str, str]]:
    """Yield the conditions of edges, with the node that each leads to. Rails show where an edge comes from; without them, or if
    several edges lead to the node, the source is named.
    """
    arriving = shape.waiting()
    for edge, condition in shape.conditions.items():
        source = f"from {edge.source} " if is_compact or arriving[edge.target] > 1 else ""
        taken = ": taken" if edge.target in routes.get(edge.source, ()) else ": not taken"
        told = f"{source}{condition}{taken if edge.source in routes else ''}"
        yield edge.target, f"{'↯' if condition.errors else '◇'} {clean(told)}"


def clean(text: str) -> str:
    """Return the text without characters that would move the cursor, colour the terminal or reverse the direction of the line."""
    return _CONTROL.sub("?", text)


def in_ascii(line: str) -> str:
    """Return a line of a drawing, or a mark, in ASCII."""
    return line.translate(_ASCII).encode("ascii", "replace").decode()
