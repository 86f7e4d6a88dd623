"""Draw a flow as an SVG document, with or without the statuses of a run. The places come from `core/layout`; this module adds
names, signs and colours.

The document refers to nothing outside itself and contains no script. It follows the reader's light or dark theme. Names that
users chose are escaped, and control characters are removed. Its classes begin with `hf-`, and it has no ids, so that several
pictures can be part of one web page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from html import escape

from holdfast.core.conditions import Condition, conditions_of
from holdfast.core.definition import END, START, Definition
from holdfast.core.drawing import clean
from holdfast.core.layout import Box, EdgeLine, Geometry, lay_out
from holdfast.core.layout import geometry as g
from holdfast.core.run_state import VISIT_DONE

_LIGHT = {
    "canvas": "#f6f7f9", "panel": "#ffffff", "text": "#14181f", "text2": "#444d59", "text3": "#5d6672",
    "line": "#cdd2d9", "edge": "#8f99a6", "accent": "#3d4fd1", "done": "#1c7a4a", "fail": "#c12f28", "ask": "#8a5800",
}  # fmt: skip
_DARK = {
    "canvas": "#0e1116", "panel": "#14181e", "text": "#e7eaee", "text2": "#b4bcc7", "text3": "#929caa",
    "line": "#3a424e", "edge": "#6b7583", "accent": "#94a5ff", "done": "#58c28d", "fail": "#ff8178", "ask": "#e6b04c",
}  # fmt: skip
_STYLE = """
.hf-flow{%s;background:var(--hf-canvas);font:12px/16px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.hf-flow{%s}}
.hf-flow *{vector-effect:non-scaling-stroke}
.hf-box{fill:var(--hf-panel);stroke:var(--hf-line)}
.hf-frame{fill:none;stroke:var(--hf-line)}
.hf-ahead .hf-box{fill:var(--hf-canvas);stroke-dasharray:4 3}
.hf-line,.hf-end{fill:none;stroke:var(--hf-edge);stroke-width:1.5}
.hf-end-dot{fill:var(--hf-edge)}
.hf-open{stroke-dasharray:4 3}
.hf-pale{stroke:var(--hf-line)}
.hf-diamond{fill:var(--hf-canvas);stroke:var(--hf-edge);stroke-width:1.5}
.hf-badge{fill:var(--hf-panel);stroke:var(--hf-line)}
.hf-name{font:13px/20px ui-monospace,SFMono-Regular,Menlo,monospace;fill:var(--hf-text)}
.hf-note{fill:var(--hf-text3)}
.hf-ahead .hf-name{fill:var(--hf-text3)}
.hf-once{fill:none;stroke:var(--hf-line)}
.hf-sign{fill:none;stroke:var(--hf-text3);stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}
.hf-sign .hf-full{fill:var(--hf-text3);stroke:none}
.hf-accent{stroke:var(--hf-accent)}
.hf-fail{stroke:var(--hf-fail)}
.hf-fail .hf-full{fill:var(--hf-fail)}
.hf-done .hf-full{fill:var(--hf-done)}
.hf-sign .hf-cut{stroke:var(--hf-panel)}
"""
_LABEL_STYLE = """\
.hf-label{font-size:11px;fill:var(--hf-text3);paint-order:stroke;stroke:var(--hf-canvas);stroke-width:3px}
.hf-error{fill:var(--hf-fail)}
"""
_TONES = {"running": "accent", "completed": "done", "failed": "fail"}
_SIGNS: dict[str, str] = {  # 16 by 16 pixels, around the middle
    "pending": '<circle r="5.5" stroke-dasharray="2.6 2"/>',
    "running": '<circle r="5.5" opacity=".3"/><path d="M0-5.5A5.5 5.5 0 0 1 5.5 0"/>',
    "waiting": '<circle r="5.5"/><path d="M0-3V0L2 1.6"/>',
    "paused": '<circle r="5.5"/><path d="M-1.5-2V2M1.5-2V2"/>',
    "interrupted": '<circle r="5.5"/><path class="hf-full" d="M-1.8-1.8H1.8V1.8H-1.8Z"/>',
    "completed": '<circle class="hf-full" r="6.25"/><path class="hf-cut" d="M-2.8.2L-.8 2.2L2.8-1.8"/>',
    "failed": '<path class="hf-full" d="M-2.6-6.2H2.6L6.2-2.6V2.6L2.6 6.2H-2.6L-6.2 2.6V-2.6Z"/>'
    '<path class="hf-cut" d="M-2-2L2 2M2-2L-2 2"/>',
    "cancelled": '<circle r="5.5"/><path d="M-3.7 3.7L3.7-3.7"/>',
    "skipped": '<circle r="5.5"/><path d="M-2.4-2L-.4 0L-2.4 2M.6-2L2.6 0L.6 2"/>',
}
_NOT_REACHED = '<circle class="hf-full" r="2"/>'
_RADIUS = 8
_NAME_CHARS, _CHAR_W = 15, 7.8
_NOTE_CHARS = 21
_ALONE_MAX = 8
_NODES_TOLD = 60  # in the description for readers who do not see the picture
_LABEL_CHARS, _LABEL_CHAR_W = 26, 6.0
_CONDITIONS_TOLD = 10
_ONCE = "1\N{MULTIPLICATION SIGN}"


def draw(
    definition: Definition,
    statuses: Mapping[str, str] = {},
    *,
    notes: Mapping[str, str] = {},
    repeated: Collection[str] = frozenset(),
    open: Collection[str] = frozenset(),
    title: str = "",
    routes: Mapping[str, Collection[str]] | None = None,
) -> str:
    """Return the flow as an SVG document. With `statuses`, every node has the sign of its status, and lines that the run did not
    take are pale; loops were taken to the nodes in `repeated`. `notes` (a time, a count) are written below the names. Stacks that
    are named in `open` show their members. In the run of a plan, `routes` says where the run went from each node that has ended,
    which the statuses do not tell. The title (default: the name of the flow) and a list of the nodes are for readers who
    do not see the picture.
    """
    geometry = lay_out(definition, open=open, alone=_busy(statuses))
    edges = _Edges(definition, geometry, routes if definition.plan else None)
    reached = {name for box in geometry.boxes for name in (box.name, *box.members) if name in statuses}
    size = f'width="{geometry.width}" height="{geometry.height}"'
    style = _STYLE % tuple(
        ";".join(f"--hf-{name}:{colour}" for name, colour in colours.items()) for colours in (_LIGHT, _DARK)
    )
    frame = f'{size} viewBox="0 0 {geometry.width} {geometry.height}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hf-flow" {frame} role="img">',
        f"<title>{escape(clean(title or f'Flow {definition.name}'))}</title>",
        f"<desc>{escape(clean(_described(geometry, statuses)))}</desc>",
        f"<style>{style}{_LABEL_STYLE if edges.conditions else ''}</style>",
        *_lines(geometry, statuses, reached, repeated, edges),
        *edges.labels(geometry),
        *(_diamond(box) for box in geometry.boxes if box.diamond),
        *(_badge(line) for line in geometry.lines if line.badge),
        *(_box(box, definition, statuses, notes) for box in geometry.boxes),
        "</svg>",
    ])  # fmt: skip


def _busy(statuses: Mapping[str, str]) -> list[str]:
    """Return the nodes that are drawn beside their stack, because they are what a reader looks for: failures first."""
    found = [name for name, status in statuses.items() if status not in VISIT_DONE and status != "pending"]
    return sorted(found, key=lambda name: statuses[name] != "failed")[:_ALONE_MAX]


def _described(geometry: Geometry, statuses: Mapping[str, str]) -> str:
    """Return the nodes of the picture in words, in the order of reading."""
    names = dict.fromkeys(name for box in geometry.boxes for name in (box.members or (box.name,)))
    names = dict.fromkeys(name for name in names if name not in (START, END))
    words = [f"{name} {statuses.get(name, 'not reached')}" if statuses else name for name in names]
    more = [f"and {len(words) - _NODES_TOLD} more"] if len(words) > _NODES_TOLD else []
    return f"{len(words)} nodes: {', '.join([*words[:_NODES_TOLD], *more])}."


# --- lines -------------------------------------------------------------------------------------------


class _Edges:
    """What a plan says about the lines of its picture: the conditions of their edges, and which of them a run took."""

    def __init__(
        self, definition: Definition, geometry: Geometry, routes: Mapping[str, Collection[str]] | None
    ) -> None:
        box_of = {name: box.name for box in geometry.boxes for name in (box.name, *box.members)}
        self.taken: set[tuple[str, str]] | None = None
        self.decided: set[str] = set()
        """The boxes of the nodes that have ended."""
        self.conditions: dict[tuple[str, str], list[Condition]] = {}
        for edge, condition in conditions_of(definition).items():
            self.conditions.setdefault((box_of[edge.source], box_of[edge.target]), []).append(condition)
        if routes is not None:
            self.taken = {
                (box_of[source], box_of[to]) for source, targets in routes.items() for to in targets
            }
            self.taken |= {(START, box_of[edge.target]) for edge in definition.edges if edge.source == START}
            self.decided = {box_of[source] for source in routes}

    def labels(self, geometry: Geometry) -> Iterator[str]:
        """Yield the conditions as text beside the ends of their lines. If several lead to one box, there is room for one."""
        arriving = Counter(target for _, target in self.conditions)
        for line in geometry.lines:
            conditions = self.conditions.get((line.source, line.target))
            if not conditions:
                continue
            x, y = line.points[-1]
            alone = len(conditions) == 1 and arriving[line.target] == 1
            told = str(conditions[0]).removeprefix("if ") if alone else f"{arriving[line.target]} conditions"
            room = max(8, min(_LABEL_CHARS, int((geometry.width - x - 20) / _LABEL_CHAR_W)))
            tone = " hf-error" if all(condition.errors for condition in conditions) else ""
            whole = "; ".join(clean(str(condition)) for condition in conditions[:_CONDITIONS_TOLD])
            yield (
                f'<text class="hf-label{tone}" x="{x + 5}" y="{y - 7}"><title>{escape(self._mark(line) + whole)}</title>'
                f"{escape(self._mark(line) + _cut(clean(told), room))}</text>"
            )

    def _mark(self, line: EdgeLine) -> str:
        if self.taken is None or line.source not in self.decided:
            return ""
        return "✓ " if (line.source, line.target) in self.taken else "✗ "


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lines(
    geometry: Geometry,
    statuses: Mapping[str, str],
    reached: set[str],
    repeated: Collection[str],
    edges: _Edges,
) -> Iterator[str]:
    """Yield the lines; those that the run took come last, so that they cover the others where lines meet."""
    members = {box.name: box.members or (box.name,) for box in geometry.boxes}
    passed = ({START} if statuses else set()) | {name for name in reached if statuses[name] in VISIT_DONE}
    planned = edges.taken
    taken = [
        (line.source, line.target) in planned if planned is not None
        else any(name in passed for name in members[line.source])
        and any(name in (repeated if line.kind == "loop" else reached) for name in members[line.target])
        for line in geometry.lines
    ]  # fmt: skip
    for wanted in (False, True):
        for line, was_taken in zip(geometry.lines, taken, strict=True):
            if was_taken == wanted:
                open_ = not was_taken and (bool(statuses) or line.branch)
                pale = bool(statuses) and not was_taken
                yield _line(line, " hf-open" * open_ + " hf-pale" * pale)


def _line(line: EdgeLine, classes: str) -> str:
    return (
        f'<path class="hf-line{classes}" d="{_path(line.points)}"/>'
        f'<path class="hf-line{classes.replace(" hf-open", "")}" d="{_head(*line.points[-2:])}"/>'
    )


def _head(before: g.Point, end: g.Point) -> str:
    """Return the path of an arrowhead."""
    (x1, y1), (x, y) = before, end
    across, down = (x > x1) - (x < x1), (y > y1) - (y < y1)
    left = f"M{x - 4 * (across - down)} {y - 4 * (down + across)}"
    return f"{left}L{x} {y}L{x - 4 * (across + down)} {y - 4 * (down - across)}"


def _path(points: tuple[g.Point, ...]) -> str:
    """Return the path of a line, with round corners."""
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        reach = min(_RADIUS, _length(before, (x, y)) / 2, _length((x, y), after) / 2)
        near, far = (_towards((x, y), point, reach) for point in (before, after))
        parts.append(f"L{near}Q{x} {y} {far}")
    return "".join([*parts, f"L{points[-1][0]} {points[-1][1]}"])


def _length(one: g.Point, other: g.Point) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _towards(start: g.Point, end: g.Point, reach: float) -> str:
    (x1, y1), (x2, y2) = start, end
    return f"{x1 + reach * ((x2 > x1) - (x2 < x1)):g} {y1 + reach * ((y2 > y1) - (y2 < y1)):g}"


def _diamond(box: Box) -> str:
    assert box.diamond
    x, y = box.diamond
    half = g.DIAMOND // 2
    return f'<path class="hf-diamond" d="M{x} {y - half}L{x + half} {y}L{x} {y + half}L{x - half} {y}Z"/>'


def _badge(line: EdgeLine) -> str:
    assert line.badge
    x, y = line.badge
    sign = f"M{x + 3.5} {y - 2.5}A4.2 4.2 0 1 1 {x + 1} {y - 4}M{x + 3.9} {y - 5.5}V{y - 2}H{x + 0.4}"
    return (
        f'<circle class="hf-badge" cx="{x}" cy="{y}" r="{g.BADGE_H // 2}"/>'
        f'<path class="hf-sign" d="{sign}"><title>again from {escape(clean(line.target))}</title></path>'
    )


# --- boxes -------------------------------------------------------------------------------------------


def _box(box: Box, definition: Definition, statuses: Mapping[str, str], notes: Mapping[str, str]) -> str:
    if box.kind in ("start", "end"):
        return _end(box)
    if box.kind == "stack":
        return _stack(box, definition, statuses)
    status = statuses.get(box.name)
    options = definition.nodes[box.name]
    ahead = bool(statuses) and status is None
    name = clean(box.name)
    shown = _shortened(name, _NAME_CHARS - 4 * (not options.idempotent) - 2 * options.each)
    label = shown + (" \N{MULTIPLICATION SIGN}N" if options.each else "")
    left = 30 if statuses else 14
    second = notes.get(box.name) or ("not reached" if ahead else status or _kind(definition, box.name))
    line = 20 if second else 28
    parts = [
        f'<g class="hf-node{" hf-ahead" * ahead}" transform="translate({box.x} {box.y})"><title>{escape(name)}</title>',
        f'<rect class="hf-box" width="{box.w}" height="{box.h}" rx="8"/>',
        f'<text class="hf-name" x="{left}" y="{line}">{escape(label)}</text>',
    ]
    if statuses:
        parts.append(_sign(status))
    if not options.idempotent:
        x = left + len(label) * _CHAR_W + 6
        parts.append(f'<rect class="hf-once" x="{x:g}" y="{line - 12.5}" width="21" height="16" rx="4"/>')
        parts.append(f'<text class="hf-note" x="{x + 3.5:g}" y="{line}">{_ONCE}</text>')
    if second:
        parts.append(
            f'<text class="hf-note" x="{left}" y="37">{escape(_shortened(clean(second), _NOTE_CHARS))}</text>'
        )
    return "".join([*parts, "</g>"])


def _kind(definition: Definition, name: str) -> str:
    """Return what a reader of the flow wants to know about a node in a few words, or nothing."""
    options = definition.nodes[name]
    words = []
    if options.each:
        words.append("one visit per item")
    if options.calls is not None:
        words.append(f"calls {options.calls}")
    if options.question is not None:
        words.append("asks")
    elif options.approve is not None:
        words.append("asks first")
    if options.join == "any":
        words.append("joins any")
    return " · ".join(words)


def _sign(status: str | None) -> str:
    tone = f" hf-{_TONES[status]}" if status in _TONES else ""
    drawn = _NOT_REACHED if status is None else _SIGNS.get(status, _NOT_REACHED)
    return f'<g class="hf-sign{tone}" transform="translate(18 15.5)">{drawn}</g>'


def _end(box: Box) -> str:
    x, y, radius = box.x + box.w // 2, box.y + box.h // 2, box.w / 2 - 0.75
    dot = f'<circle class="hf-end-dot" cx="{x}" cy="{y}" r="2"/>' if box.kind == "end" else ""
    return f'<circle class="hf-end" cx="{x}" cy="{y}" r="{radius}"><title>{box.name}</title></circle>{dot}'


def _stack(box: Box, definition: Definition, statuses: Mapping[str, str]) -> str:
    first, last = clean(box.members[0]), clean(box.members[-1])
    title = f"{_shortened(first, 14)} … {_shortened(last, 14)}"
    counts: dict[str, int] = {}
    for name in box.members:
        word = statuses.get(name, "not reached") if statuses else "nodes"
        counts[word] = counts.get(word, 0) + 1
    told = escape(" · ".join(f"{count} {clean(word)}" for word, count in counts.items()))
    ahead = bool(statuses) and counts.keys() == {"not reached"}
    place = f'transform="translate({box.x} {box.y})"'
    start = f'<g class="hf-node{" hf-ahead" * ahead}" {place}><title>{escape(first)} … {escape(last)}: {told}</title>'
    is_open = box.h > g.STACK_H
    if is_open:
        frame = f'<rect class="hf-frame" width="{box.w}" height="{box.h}" rx="8"/>'
        return f'{start}{frame}<text class="hf-note" x="12" y="19">{told}</text></g>'
    behind = f'<rect class="hf-box" x="4" y="4" width="{box.w}" height="{box.h}" rx="8"/>'
    front = f'<rect class="hf-box" width="{box.w}" height="{box.h}" rx="8"/>'
    return (
        f'{start}{behind}{front}<text class="hf-name" x="14" y="21">{escape(title)}</text>'
        f'<text class="hf-note" x="14" y="39">{told}</text></g>'
    )


def _shortened(name: str, most: int) -> str:
    """Return the name, cut in the middle if it is too long."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"
