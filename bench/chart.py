"""A picture of a result: bars of steps per second, for one run, for many at once and beside large states, as SVG.

The SVG is written without a library, because it is only a few rectangles and texts. The scale is linear, starts at zero, and is
the same within a panel.
"""

from typing import Any, NamedTuple
from xml.sax.saxutils import escape

WIDTH = 760
_LABEL, _BAR, _ROW, _HEAD = 230, 420, 26, 56
_OURS, _THEIRS, _LIMIT = "#1f6feb", "#9aa4b2", "#d9a441"


class Bar(NamedTuple):
    label: str
    value: float
    colour: str


def draw(figures: list[dict[str, Any]]) -> str:
    """Return the picture as SVG; it is empty if none of its figures was measured."""
    panels = [
        ("One run, one step after the other: durable steps per second", _chain(figures)),
        ("Many runs at once: durable steps per second", _fleet(figures)),
        ("A number changes beside 1 MB of rows: steps per second", _large(figures, "rows in a list, 1 MB, ")),
        ("A message is added to 4,000: steps per second", _large(figures, "history of 4,000 messages, ")),
    ]
    parts: list[str] = []
    top = 12
    for title, bars in panels:
        if bars:
            parts += _panel(title, bars, top)
            top += _HEAD + _ROW * len(bars)
    height = top + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Durable steps per second of Holdfast, its peers and the raw disk" '
        'font-family="system-ui, sans-serif" font-size="13">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _panel(title: str, bars: list[Bar], top: int) -> list[str]:
    most = max(bar.value for bar in bars)
    drawn = [f'<text x="16" y="{top + 24}" font-weight="600" fill="#1b1f24">{escape(title)}</text>']
    for number, bar in enumerate(bars):
        y = top + 38 + number * _ROW
        length = max(bar.value / most * _BAR, 1)
        drawn += [
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end" fill="#1b1f24">{escape(bar.label)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="18" rx="3" fill="{bar.colour}"/>',
            f'<text x="{_LABEL + length + 6:.1f}" y="{y + 14}" fill="#57606a">{bar.value:,.0f}</text>',
        ]
    return drawn


def _chain(figures: list[dict[str, Any]]) -> list[Bar]:
    return [
        *_limit(figures),
        *_rates(figures, "chain, async nodes, sqlite", "Holdfast, async nodes"),
        *_rates(figures, "chain, def nodes, sqlite", "Holdfast, def nodes"),
        *_peers(figures, "chain, "),
    ]


def _fleet(figures: list[dict[str, Any]]) -> list[Bar]:
    return [
        *_limit(figures),
        *_rates(figures, "fleet, 1,000 runs, sqlite", "Holdfast, 1,000 runs"),
        *_rates(figures, "fleet, 200 runs, sqlite", "Holdfast, 200 runs"),
        *_peers(figures, "fleet, "),
    ]


def _large(figures: list[dict[str, Any]], prefix: str) -> list[Bar]:
    found = [
        Bar(name, 1e3 / figure["median"], _OURS if name == "Holdfast" else _THEIRS)
        for figure in figures
        if figure["name"].startswith(prefix) and figure["unit"] == "ms per step" and figure["values"]
        for name in [figure["name"].removeprefix(prefix)]
    ]
    return sorted(found, key=lambda bar: (bar.colour != _OURS, -bar.value))


def _limit(figures: list[dict[str, Any]]) -> list[Bar]:
    return [
        Bar("raw commits", figure["median"], _LIMIT)
        for figure in figures
        if figure["part"] == "raw" and figure["values"]
    ]


def _rates(figures: list[dict[str, Any]], name: str, label: str) -> list[Bar]:
    return [
        Bar(label, figure["beside"]["steps/s"]["median"], _OURS)
        for figure in figures
        if figure["name"] == name and figure["values"]
    ]


def _peers(figures: list[dict[str, Any]], prefix: str) -> list[Bar]:
    found = [
        Bar(figure["name"].removeprefix(prefix), figure["median"], _THEIRS)
        for figure in figures
        if figure["part"] == "peers"
        and figure["name"].startswith(prefix)
        and figure["unit"] == "steps/s"
        and figure["values"]
        and not figure["name"].endswith("Holdfast")
    ]
    return sorted(found, key=lambda bar: -bar.value)
