"""The geometry of a flow's picture: boxes, lines and their places in pixels, ready to be encoded as JSON; and the measures that
all pictures share.
"""

from __future__ import annotations

from typing import Literal

import msgspec

NODE_W, NODE_H, FAN_H = 164, 48, 60
STACK_W, STACK_H = 284, 52  # a closed stack has room for the counts of its members
END_SIZE = 12  # START and END are drawn as small circles
SIBLING_GAP = 16  # between boxes of one row
LINE_GAP = 14  # between a line and another line or a box beside it
ROW_GAP = 24  # between two rows that straight lines connect
TRACK_GAP = 8  # between horizontal lines in the gap between two rows
LEAD = 18  # from the bottom of a row to the first horizontal line below it, and from the last one to the next row
START_LEAD = 10  # the same below START, which has no text to keep away from
DIAMOND = 12  # the width and height of the sign for a branch; it begins as far below its node
BELOW_DIAMOND = 26
LANE_REACH = 42  # from a box to the first lane at its right side: half a badge and some room
LANE_GAP = 36  # between two lanes side by side: half a badge and some room
BADGE_W, BADGE_H = 58, 20
MARGIN = 16
STACK_LEAST = 6  # as many nodes with the same neighbours are one box
STACK_COLUMNS = 4  # an open stack shows its members in rows of this many
STACK_HEAD, STACK_PAD = 28, 12  # an open stack: room for its title, and around its members
COLUMNS = 8  # a row has room for this many nodes; wider layers are wrapped

Kind = Literal["start", "end", "node", "stack"]
LineKind = Literal["forward", "branch", "loop"]
Point = tuple[int, int]


class Box(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A node, a stack of nodes with the same neighbours, START or END. `x` and `y` are its upper left corner."""

    name: str
    """The name of the node. The name of a stack is `stack:` and the name of its first node; no node can have such a name."""
    kind: Kind
    x: int
    y: int
    w: int
    h: int
    diamond: Point | None = None
    """The centre of the sign below a box from which a branch leads on."""
    members: tuple[str, ...] = ()
    """The nodes in a stack. If the stack is open, `Geometry.boxes` also has a box for each of them, inside the stack's box."""
    stack: str | None = None
    """The open stack in which this node is drawn. The lines of its members begin and end at the stack."""


class EdgeLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An edge from the box `source` to the box `target`: horizontal and vertical pieces between its `points`.

    A `forward` line leads down. A `branch` also does, and passes the diamond of its source. A `loop` closes a loop: it leaves its
    source below and runs up in a lane at the right side.
    """

    source: str
    target: str
    kind: LineKind
    points: tuple[Point, ...]
    branch: bool = False
    """True for every line that a branch may choose, also if it closes a loop."""
    badge: Point | None = None
    """The centre of the room for a loop's count. All loops to one node share a lane; the first of their lines has the badge."""


class Geometry(msgspec.Struct, frozen=True):
    """The picture of a flow, without the statuses of a run: the same for all runs of a flow."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    """In the order of reading: row by row, from the left."""
    lines: tuple[EdgeLine, ...]
