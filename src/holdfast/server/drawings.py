"""Routes for drawing a run: its timeline, the picture of its flow, and the states of the nodes in that picture."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.reading.timeline import Part, Timeline, timeline
from holdfast.server.calls import HttpCall
from holdfast.server.runs import Seq

PIECES_MAX = 5000
Instant = Annotated[float, Meta(ge=0, le=1e11)]


class TimelineQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the timeline."""

    from_: Instant | UnsetType = msgspec.field(name="from", default=UNSET)
    """Leave out what ended before this time."""
    to: Instant | UnsetType = UNSET
    """Leave out what began after this time."""
    after: Seq = 0
    """Leave out what began with this event or before it: `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=PIECES_MAX)] = 1000
    """How many pieces to list, of all kinds together. Pieces that began with the same event are on the same page."""


def get_timeline(call: HttpCall[TimelineQuery, None]) -> Timeline:
    """Get the timeline of a run: holders, attempts, waits and acts of people, in pages or for a window of time."""
    query = call.query
    part = Part(
        from_at=None if query.from_ is UNSET else query.from_,
        to_at=None if query.to is UNSET else query.to,
        after=query.after,
        limit=query.limit,
    )
    return timeline(call.backend.store, call.backend.store.run(call.values["id"]), part)
