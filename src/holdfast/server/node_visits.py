"""The route that shows one visit of a node: what it was given, what it did, how its attempts ended, and why it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.definition import START, Definition
from holdfast.core.slots import parse
from holdfast.errors import RunNotFound, did_you_mean
from holdfast.reading import history, words
from holdfast.reading.chunks import Streamer, spilled_chunks, streamer_of
from holdfast.reading.places import frames_of, is_foreign
from holdfast.reading.views import EventView, event_view
from holdfast.reading.visits import partial_of
from holdfast.server.calls import HttpCall
from holdfast.server.problems import refuse
from holdfast.server.runs import Limit
from holdfast.server.state_changes import Value, describe
from holdfast.storage.contract import RunRow, Store

_LINES_MAX = 200
_CHUNKS_MAX = 1000
Number = Annotated[int, Meta(ge=1, le=2**31)]
_ENDS = {
    "NodeCompleted": "completed",
    "NodeFailed": "failed",
    "NodeInterrupted": "interrupted",
    "NodeSkipped": "skipped",
    "NodeWaiting": "waiting",
}
_ROUTED = ("NodeCompleted", "NodeSkipped", "NodeRouted", "LayerCompleted")


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a traceback."""

    file: str
    line: int
    function: str
    source: str
    own: bool
    """True if the file belongs neither to Python nor to an installed package."""


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt failed."""

    kind: str
    type: str
    message: str
    frames: list[Frame]


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a visit."""

    attempt: int
    status: str
    """`completed`, `failed`, `interrupted`, `skipped`, `waiting`, `running`, or `crashed` if its process died."""
    started_at: float | None
    ended_at: float | None
    failure: FailureView | None = None
    retry_at: float | None = None
    reason: str | None = None
    by: str | None = None


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step, which is kept."""

    name: str
    item: int | None
    seq: int
    at: float
    result: Value


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a fan-out."""

    item: int
    value: Value
    status: str
    attempt: int
    failure: FailureView | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a visit began: an earlier node led here."""

    node: str
    seq: int
    iteration: int
    why: str
    """`edge`, or `branch` if a router chose this node."""


class NodeVisit(msgspec.Struct, frozen=True, kw_only=True):
    """One visit of a node: everything that the log says about it."""

    run_id: str
    node: str
    iteration: int
    execution: int
    visits: list[tuple[int, int]]
    """Iteration and execution of every visit of the node."""
    status: str
    causes: list[Cause]
    input: dict[str, Value] | None
    """The state that the visit was given; None if it has not begun, or if that event was compacted."""
    output: dict[str, dict[str, Value]] | None
    """Operation -> field -> value: what the visit changed in the state; None if it has not completed."""
    next: list[str] | None
    attempts: list[AttemptView]
    steps: list[StepView]
    checkpoint: Any
    chunks: int
    """How many chunks the visit has streamed."""
    last_lines: list[str]
    artifacts: dict[str, Any]
    left: dict[str, Any]
    """What a crashed attempt left behind: files, steps, the git checkout."""
    items: list[ItemView] | None
    """Items of a fan-out, those that failed first; None if the node is not a fan-out."""
    items_all: int


class VisitQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which visit; default: the latest."""

    iteration: Number | UnsetType = UNSET
    execution: Number | UnsetType = UNSET
    items_from: Annotated[int, Meta(ge=0, le=2**31)] = 0
    """Skip so many items, to page through a large fan-out."""
    items: Limit = 100


def get_visit(call: HttpCall[VisitQuery, None]) -> NodeVisit:
    """Show a visit of a node: input, output, attempts, steps, chunks, items and cause."""
    backend, query = call.backend, call.query
    store, run_id, node = backend.store, call.values["id"], call.values["node"]
    row = store.run(run_id)
    definition = backend.reader.definition(row)
    log = [event_view(one) for one in history.opened(store, run_id, store.events(run_id, node=node))]
    places = sorted({(event.iteration, event.execution) for event in log if event.iteration})
    if node not in definition.nodes and not places:
        known = did_you_mean(node, definition.nodes)
        raise refuse("not-found", f"The flow of run {run_id!r} has no node {node!r}{known}.")
    place = _choose(places, query)
    here = [event for event in log if (event.iteration, event.execution) == place]
    state = history.load(store, run_id, row=row)
    began = next((event.seq for event in here if event.kind == "NodeStarted"), None)
    done = next((event for event in reversed(here) if event.kind in ("NodeCompleted", "NodeSkipped")), None)
    chunks = _chunks(store, run_id, node, here)
    is_latest = bool(places) and place == places[-1]
    known_node = state.nodes.get(node) if is_latest else None
    every_item = _items(here)
    attempts = _attempts(here, crashed=row.holder is not None and not row.held)
    return NodeVisit(
        run_id=run_id,
        node=node,
        iteration=place[0],
        execution=place[1],
        visits=places,
        status=known_node.status if known_node else (attempts[-1].status if attempts else "pending"),
        causes=list(_causes(store, row, definition, node, began)) if began is not None else [],
        input=_input(store, row, began) if began is not None else None,
        output=_output(done),
        next=done.body.get("routes") if done is not None else None,
        attempts=attempts,
        steps=list(_steps(here)),
        checkpoint=next((e.body.get("value") for e in reversed(here) if e.kind == "NodeCheckpointed"), None),
        chunks=len(chunks),
        last_lines=words.lines(chunks[-_CHUNKS_MAX:], _LINES_MAX),
        artifacts=done.body.get("artifacts", {}) if done is not None else {},
        left=partial_of(tuple(state.questions.values()), node) if is_latest else {},
        items=every_item[query.items_from : query.items_from + query.items]
        if every_item is not None
        else None,
        items_all=len(every_item) if every_item is not None else 0,
    )


def _choose(places: list[tuple[int, int]], query: VisitQuery) -> tuple[int, int]:
    fitting = [
        place
        for place in places
        if query.iteration in (UNSET, place[0]) and query.execution in (UNSET, place[1])
    ]
    if fitting:
        return fitting[-1]
    if query.iteration is UNSET and query.execution is UNSET:
        return 0, 0  # the node was not reached yet
    raise refuse("not-found", "The node has no such visit.", remedy="Leave out `iteration` and `execution`.")


# --- what it did -------------------------------------------------------------------------------------


def _attempts(here: list[EventView], *, crashed: bool) -> list[AttemptView]:
    found: dict[int, dict[str, Any]] = {}
    for event in here:
        if event.kind == "NodeStarted":
            known = found.setdefault(event.attempt, {"started_at": event.at})
            known |= {"status": "running", "ended_at": None}
        elif event.kind in _ENDS:
            body = event.body
            failure = body.get("failure") or body.get("warning")
            found.setdefault(event.attempt, {"started_at": None}).update(
                status=_ENDS[event.kind],
                ended_at=event.at if event.kind != "NodeWaiting" else None,
                failure=_failure(failure) if failure else None,
                retry_at=body.get("retry_at"),
                reason=body.get("reason"),
                by=event.by,
            )
    last = max(found, default=0)
    for number, known in found.items():
        if known["status"] == "running" and (number < last or crashed):
            known["status"] = "crashed"
    return [AttemptView(attempt=number, **known) for number, known in sorted(found.items())]


def _failure(failure: dict[str, Any]) -> FailureView:
    lines = frames_of(failure.get("traceback", ""))
    return FailureView(
        kind=failure.get("kind", ""),
        type=failure.get("type", ""),
        message=failure.get("message", ""),
        frames=[
            Frame(
                file=line.file,
                line=line.line,
                function=line.function,
                source=line.source,
                own=not is_foreign(line.file),
            )
            for line in lines
        ],
    )


def _steps(here: list[EventView]) -> Iterator[StepView]:
    for event in here:
        if event.kind == "StepCompleted":
            slot = parse(event.body["step"])
            yield StepView(
                name=slot.name if slot is not None else event.body["step"],
                item=event.body.get("item"),
                seq=event.seq,
                at=event.at,
                result=describe(event.body.get("value")),
            )


def _chunks(store: Store, run_id: str, node: str, here: list[EventView]) -> list[Any]:
    """Return what the visit streamed: the chunks in the log, then those that are only spilled so far."""
    chunks: list[Any] = []
    recorded: Counter[Streamer] = Counter()
    for event in here:
        if event.kind == "NodeStreamed":
            chunks += event.body.get("chunks", [])
            recorded[streamer_of(event)] += len(event.body.get("chunks", []))
    visits = {(node, event.iteration, event.execution) for event in here}
    chunks += [
        chunk.value
        for chunk in (spilled_chunks(store, run_id) if here else ())
        if chunk.streamer[:3] in visits and chunk.number > recorded[chunk.streamer]
    ]
    return chunks


def _items(here: list[EventView]) -> list[ItemView] | None:
    """Return the items of a fan-out, those that failed first."""
    listed = next((event for event in here if event.kind == "ItemsListed"), None)
    if listed is None:
        return None
    status: dict[int, tuple[str, int, FailureView | None]] = {}
    for event in here:
        item = event.body.get("item")
        if event.kind == "ItemStarted":
            status[item] = ("running", event.attempt, None)  # type: ignore[index]
        elif event.kind == "ItemCompleted":
            status[item] = ("completed", event.attempt, None)  # type: ignore[index]
        elif event.kind == "ItemFailed":
            kind = "failed" if event.body.get("retry_at") is None else "waiting"
            status[item] = (kind, event.attempt, _failure(event.body["failure"]))  # type: ignore[index]
    found = []
    for number, value in enumerate(listed.body.get("items", [])):
        kind, attempt, failure = status.get(number, ("pending", 0, None))
        found.append(
            ItemView(item=number, value=describe(value), status=kind, attempt=attempt, failure=failure)
        )
    return sorted(found, key=lambda one: one.status != "failed")


# --- what it was given and made ------------------------------------------------------------------------


def _input(store: Store, row: RunRow, began: int) -> dict[str, Value] | None:
    try:
        given = history.load(store, row.run_id, began, row=row)
    except RunNotFound:  # compacted
        return None
    return {name: describe(value) for name, value in given.values.items()}


def _output(done: EventView | None) -> dict[str, dict[str, Value]] | None:
    if done is None:
        return None
    changes: dict[str, Any] = done.body.get("changes") or {}
    return {
        operation: {name: describe(value) for name, value in fields.items()}
        for operation, fields in changes.items()
        if isinstance(fields, dict)
    }


def _causes(store: Store, row: RunRow, definition: Definition, node: str, began: int) -> Iterator[Cause]:
    for source in dict.fromkeys(edge.source for edge in definition.arrows() if edge.target == node):
        why = "branch" if node in definition.branches.get(source, ()) else "edge"
        if source == START:
            yield Cause(node=START, seq=1, iteration=1, why=why)
            continue
        found = store.events(row.run_id, 0, began, kinds=_ROUTED, node=source)
        for event in map(event_view, history.opened(store, row.run_id, reversed(found))):
            if node in (event.body.get("routes") or ()):
                yield Cause(node=source, seq=event.seq, iteration=event.iteration, why=why)
                break
