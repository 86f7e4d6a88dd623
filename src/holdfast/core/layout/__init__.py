"""The layout of a flow's picture: `lay_out(definition) -> Geometry`, a pure function that says where each box and line is.

A picture goes from top to bottom. The parts are found in this order, each by a module of its own:

- `boxes`: one box per node; six or more nodes with the same neighbours are one stack.
- `layers`: each box below those that lead to it; wide layers are wrapped; lines that pass rows keep room in them.
- `crossings`: the order inside the rows.
- `placement`: the horizontal places. The longest way is a straight line.
- `routing`: the horizontal pieces of lines in the gaps between rows, from which the heights of the gaps follow.
- `lanes`: loops at the right side.

`geometry` has the result and all measures. The same fingerprint gives the same geometry, so that it can be kept for ever: the
order in which nodes were declared has no influence, only the order of the targets of each node. Everything is about linear in the
size of the picture, and nothing recurses.

What depends on the statuses of a run is chosen by the caller: `open` and `alone`. A caller that draws a stretch of nodes as one
box would do it in `boxes`, which is the only module that knows nodes; the others only see boxes and arrows.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.definition import Definition
from holdfast.core.layout.boxes import group_nodes
from holdfast.core.layout.crossings import reduce_crossings
from holdfast.core.layout.drafting import draft
from holdfast.core.layout.geometry import Box, EdgeLine, Geometry
from holdfast.core.layout.layers import arrange
from holdfast.core.layout.placement import place_items

__all__ = ["Box", "EdgeLine", "Geometry", "lay_out"]


def lay_out(
    definition: Definition, *, open: Collection[str] = frozenset(), alone: Collection[str] = frozenset()
) -> Geometry:
    """Return the geometry of a valid flow.

    `open` has the names of stacks whose members are drawn, in rows of four; `alone` has nodes that are drawn beside their stack.
    Names that the flow does not have are ignored.
    """
    graph = group_nodes(definition, open, alone)
    rows = arrange(graph)
    reduce_crossings(rows)
    return draft(graph, rows, place_items(rows, graph.boxes))
