"""Routes for drawing a run: its timeline, the picture of its flow, and the states of the nodes in that picture."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import VERSION
from holdfast.core.conditions import conditions_of
from holdfast.core.definition import Definition
from holdfast.core.graph import Flow
from holdfast.core.layout import Box, EdgeLine, lay_out
from holdfast.reading import history
from holdfast.reading.picture import PictureStates, picture_states
from holdfast.reading.timeline import FORKS_MAX, Part, timeline
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.entity_tags import FOR_EVER, answer_tagged, tag_of_event, tag_of_run
from holdfast.server.problems import Fault, refuse
from holdfast.server.runs import Name, Seq
from holdfast.storage.contract import Query

PIECES_MAX = 5000
_STACK = "stack:"
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


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a picture shows of a node's options."""

    idempotent: bool = True
    each: bool = False
    """True if the node is a fan-out."""
    asks: bool = False
    """True if a question must be answered before a visit begins."""
    safe_to_fail: bool = False
    title: str = ""
    """What the plan calls it; empty in a graph in code."""
    capability: str = ""
    """What it calls, as in `charge@2`; empty in a graph in code."""


class EdgeRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an edge of a plan is taken. An edge that is not listed is taken if its source completes."""

    source: str
    target: str
    guard: str = ""
    """The expression that must be true."""
    errors: tuple[str, ...] = ()
    """The failures of its source that it takes: classes and types, `*` for all; empty for an ordinary edge."""


class FlowPicture(msgspec.Struct, frozen=True, kw_only=True):
    """The picture of a flow, in pixels: the same for all its runs."""

    fingerprint: str
    flow: str
    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[EdgeLine, ...]
    nodes: dict[str, NodeFacts]
    """All nodes, in the order in which the picture is read."""
    max_iterations: int | None
    """How often a loop can go around at most."""
    rules: tuple[EdgeRule, ...] = ()
    """The guards and error edges of a plan."""


class FlowPictureQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to draw stacks of nodes with the same neighbours."""

    open: tuple[Annotated[str, Meta(pattern="^stack:.{1,128}$", max_length=134)], ...] = ()
    """Names of stacks whose members are drawn one by one; repeatable."""
    alone: tuple[Name, ...] = ()
    """Names of nodes that are drawn beside their stack; repeatable."""


class PictureQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At which event."""

    at: Seq | UnsetType = UNSET
    """The seq of an event; default: the end of the log."""


def get_timeline(call: HttpCall[TimelineQuery, None]) -> Answer:
    """Get the timeline of a run: holders, attempts, waits and acts of people, in pages or for a window of time."""
    query, store = call.query, call.backend.store
    row = store.run(call.values["id"])
    part = Part(
        from_at=None if query.from_ is UNSET else query.from_,
        to_at=None if query.to is UNSET else query.to,
        after=query.after,
        limit=query.limit,
    )
    forks = [] if part.after else store.runs(Query(parent=row.run_id, limit=FORKS_MAX))
    newest = f".{len(forks)}.{forks[0].digest.hex()[:16]}" if forks else ""
    return answer_tagged(call, tag_of_run(row, newest), lambda: timeline(store, row, part, forks))


def get_picture(call: HttpCall[PictureQuery, None]) -> Answer:
    """Get the states of the nodes of a run after an event; the geometry is at `pictures/{fingerprint}`."""
    store, at = call.backend.store, call.query.at
    row = store.run(call.values["id"])
    tag = tag_of_run(row) if at is UNSET or at == row.seq else tag_of_event(store, row, at)

    def make() -> PictureStates:
        state = history.load(store, row.run_id, None if at is UNSET else at, row=row)
        return picture_states(store, row, _definition(call.backend, state.fingerprint), state)

    return answer_tagged(call, tag, make)


def get_flow_picture(call: HttpCall[FlowPictureQuery, None]) -> Answer:
    """Get the picture of a flow: where its boxes and lines are. It never changes, so it can be kept for ever."""
    fingerprint, query = call.values["fingerprint"], call.query

    def make() -> FlowPicture:
        definition = _definition(call.backend, fingerprint)
        _refuse_unknown(definition, query)
        return flow_picture(definition, fingerprint, query)

    return answer_tagged(call, f'"{fingerprint[:32]}.{VERSION}"', make, cache=FOR_EVER)


def flow_picture(definition: Definition, fingerprint: str, query: FlowPictureQuery) -> FlowPicture:
    """Return the picture of a flow."""
    drawn = lay_out(definition, open=query.open, alone=query.alone)
    return FlowPicture(
        fingerprint=fingerprint,
        flow=definition.name,
        width=drawn.width,
        height=drawn.height,
        boxes=drawn.boxes,
        lines=drawn.lines,
        nodes=_facts(definition, drawn.boxes),
        max_iterations=definition.max_iterations,
        rules=tuple(
            EdgeRule(source=edge.source, target=edge.target, guard=one.guard, errors=one.errors)
            for edge, one in conditions_of(definition).items()
        ),
    )


def _facts(definition: Definition, boxes: tuple[Box, ...]) -> dict[str, NodeFacts]:
    names = dict.fromkeys(name for box in boxes for name in (box.members or (box.name,)))
    planned = {one["id"]: one for one in definition.plan.get("tasks", ())}
    return {
        name: NodeFacts(
            idempotent=options.idempotent,
            each=options.each,
            asks=options.gated,
            safe_to_fail=options.safe_to_fail,
            title=planned.get(name, {}).get("title", ""),
            capability=planned.get(name, {}).get("capability", ""),
        )
        for name in names
        if (options := definition.nodes.get(name))
    }


def _definition(backend: Backend, fingerprint: str) -> Definition:
    """Return the definition of a flow: as the store has it, or of a flow that this server knows and that has no run yet."""
    stored = backend.store.definition(fingerprint)
    if stored is not None:
        return history.defined(stored, fingerprint)
    for flow in backend.engine.flows.values():
        if isinstance(flow, Flow) and flow.fingerprint == fingerprint:
            return flow.definition
    raise refuse(
        "not-found",
        f"No run of this store has a flow with the fingerprint {fingerprint[:12]}…",
        remedy="GET /api/v1/runs/ID/picture has the fingerprint of a run's flow.",
    )


def _refuse_unknown(definition: Definition, query: FlowPictureQuery) -> None:
    wrong = [("open", name) for name in query.open if name.removeprefix(_STACK) not in definition.nodes]
    wrong += [("alone", name) for name in query.alone if name not in definition.nodes]
    if wrong:
        raise refuse(
            "bad-parameter",
            f"The flow has no {'stack' if wrong[0][0] == 'open' else 'node'} {wrong[0][1]!r}.",
            faults=tuple(Fault(parameter, f"{name!r} is not in the flow") for parameter, name in wrong),
        )
