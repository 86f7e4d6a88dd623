"""One visit of a node: what it was given, what it did, how its attempts ended, and why it ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, assert_never

import msgspec

from holdfast.core import events
from holdfast.core.definition import START, Definition, NodeOptions
from holdfast.core.events import NodeEvent, Stored
from holdfast.core.kinds import TAKES_OVER
from holdfast.core.run_state import ITEM_STATUSES, ItemStatus, stretches
from holdfast.core.slots import Slot
from holdfast.errors import RunNotFound
from holdfast.reading import history, words
from holdfast.reading.attempts import (
    LINES_MAX,
    AttemptView,
    FailureView,
    Known,
    attempts_of,
    failure_of,
)
from holdfast.reading.chunks import spilled_chunks
from holdfast.reading.node_reasons import NodeReasons, reasons_of
from holdfast.reading.open_visits import partial_of
from holdfast.reading.state_changes import Value, describe
from holdfast.reading.views import Cost
from holdfast.reading.visits import MOTIVE_KINDS, AttemptRecord, VisitRecord, Visits
from holdfast.storage.contract import Query, Row, RunRow, Store

_CHUNKS_MAX = 1000
_CALLED_MAX = 100
_ROUTED = ("NodeCompleted", "NodeSkipped", "NodeRouted", "LayerCompleted")
_LISTED = ITEM_STATUSES[::-1]
"""In which order items are listed."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a step, which is kept: its result, or an exception."""

    name: str
    key: str | None
    """What distinguishes steps of the same name, if the node gave a key."""
    item: int | None
    attempt: int
    """The attempt that called the step."""
    seq: int
    at: float
    result: Value
    raised: str | None = None
    """The exception that is the outcome of the step, in place of a result."""


class CalledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A child run that a visit has started."""

    id: str
    flow: str
    key: str
    item: int | None
    seq: int
    at: float
    status: str | None
    """Its status now; None if it was deleted."""


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a fan-out."""

    item: int
    label: str
    """The name of the item that `label=` of the node gives; empty without it."""
    value: Value
    status: str
    """`pending`, `running`, `waiting`, `completed`, `failed`, or `cancelled` if the run was cancelled after it had begun."""
    attempt: int
    failure: FailureView | None = None


class AnswerView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question."""

    seq: int
    at: float
    answer: Value
    by: str | None
    reason: str | None
    refused: bool
    """True if it refuses the visit, which then fails."""


class AskedView(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a visit has asked, or that was asked about it."""

    key: str
    text: str
    item: int | None
    seq: int
    at: float
    answers: list[AnswerView]
    """The answers, oldest first. A question about several steps that were interrupted takes one for each step."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a visit began: an earlier node led here. A join has several causes."""

    node: str
    seq: int
    iteration: int
    why: str
    """`edge`, or `branch` if a router chose this node."""


class NodeVisit(msgspec.Struct, frozen=True, kw_only=True):
    """One visit of a node: everything that the log says about it. With `item`, status, input, output, files, attempts, steps and
    chunks are those of that item.
    """

    run_id: str
    node: str
    iteration: int
    execution: int
    item: int | None
    visits: list[tuple[int, int]]
    """Iteration and execution of every visit of the node."""
    status: str
    options: NodeOptions
    """How the flow declares the node: its time limit, retries, whether it is idempotent. Defaults are left out."""
    causes: list[Cause]
    input: dict[str, Value] | None
    """The state that the visit was given, or the value of the item as `item`; None if it has not begun, or if that event was
    compacted."""
    output: dict[str, dict[str, Value]] | None
    """Operation -> field -> value: what the visit changed in the state; None if it has not completed."""
    next: list[str] | None
    """The nodes that the visit led to; None if that is not decided."""
    attempts: list[AttemptView]
    questions: list[AskedView]
    """What was asked of the visit, oldest first, with the answers."""
    steps: list[StepView]
    checkpoint: Any
    chunks: int
    """How many chunks were streamed."""
    last_lines: list[str]
    artifacts: dict[str, Any]
    """Files that the visit wrote: name -> sha256 and size."""
    cost: Cost
    children: list[CalledRun]
    """The child runs that the visit has started: the latest 100."""
    items: list[ItemView] | None
    """Items of a fan-out, those that failed first; None if the node is not a fan-out."""
    items_all: int
    title: str = ""
    """What the plan calls the node; empty in a graph in code."""
    capability: str = ""
    """What the node calls, as in `charge@2`; empty in a graph in code."""
    returned: Value | None = None
    """What the node has returned, if it did not pass its verification, or if a policy denies it or asks about it."""
    reasons: NodeReasons | None = None
    """Why the node of a plan ran or did not, what policies decided about it, and how its result was verified."""


class VisitWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which visit to show, and how much of its items."""

    iteration: int | None = None
    execution: int | None = None
    item: int | None = None
    upto: int | None = None
    """Show the visit as it was after this event."""
    items_from: int = 0
    items: int = 100


class _Visit(msgspec.Struct):
    """The visit that is shown: its events, and the records that follow from them."""

    places: list[tuple[int, int]]
    place: tuple[int, int] = (0, 0)
    log: list[Stored] = []
    before: int = 0
    """The seq with which the visit before it began; 0 if there is none."""
    record: VisitRecord | None = None
    attempts: dict[tuple[int | None, int], AttemptRecord] = {}
    """Item (None: the node itself) and number -> the attempt."""

    def of(self, *kinds: type[NodeEvent], item: int | None = None) -> Iterator[tuple[Stored, Any]]:
        """Yield the events of some kinds; with `item`, those of an item."""
        for stored in self.log:
            event = stored.event
            if isinstance(event, kinds) and (item is None or getattr(event, "item", None) == item):
                yield stored, event

    def last(self, *kinds: type[NodeEvent], item: int | None = None) -> Any:
        """Return the last event of some kinds; None if there is none."""
        return next((event for _, event in reversed(list(self.of(*kinds, item=item)))), None)

    @property
    def began(self) -> int | None:
        return next((stored.seq for stored in self.log if stored.kind == "NodeStarted"), None)

    def fold(self, others: Iterable[Stored], *, crashed: bool) -> None:
        """Follow the events of the visit, and others of the run. `crashed` is true if no live process executes the run now."""
        visits = Visits()
        for stored in sorted([*self.log, *others], key=lambda stored: stored.seq):
            for change in visits.read(stored):
                one, key = change.attempt, (change.attempt.item, change.attempt.number)
                if one.place != self.place or change.how not in ("began", "waits", "ended"):
                    continue
                if self.attempts.get(key, one) is not one:  # the log begins while the attempt waits
                    one.started_at = self.attempts[key].started_at
                self.attempts[key] = one
        if crashed:
            visits.presume_dead()
        self.record = next(iter(visits.latest.values()), None)


def show_visit(
    store: Store,
    row: RunRow,
    definition: Definition,
    node: str,
    wanted: VisitWanted,
    files: Sequence[str] = (),
) -> NodeVisit | None:
    """Return a visit of a node; None if there is no such visit. A node that was not reached has an empty one. `files` are the
    files that are in the node's folder now.
    """
    visit = _find(store, row, node, wanted)
    if visit is None:
        return None
    state = history.load(store, row.run_id, wanted.upto, row=row)
    is_cancelled = state.status == "cancelled"
    is_latest = bool(visit.places) and visit.place == visit.places[-1]
    chunks = _chunks(store, row.run_id, node, visit)
    partial = partial_of(tuple(state.questions.values()), node) if is_latest else {}
    known = Known(
        crashed=not row.held and state.seq == row.seq,
        files=files if is_latest else (),
        checkout=partial.get("checkout") or {},
    )
    visit.fold(_of_run(store, row, node, visit, state.seq), crashed=known.crashed)
    records = [record for (item, _), record in visit.attempts.items() if item == wanted.item]
    attempts = attempts_of(records, _steps_of_attempts(visit, wanted.item), chunks, known)
    done: events.NodeCompleted | events.NodeSkipped | None = visit.last(
        events.NodeCompleted, events.NodeSkipped
    )
    ended: events.NodeCompleted | events.NodeSkipped | events.ItemCompleted | None = done
    if wanted.item is not None:
        ended = visit.last(events.ItemCompleted, item=wanted.item)
    streamed = [chunk for (_, item), part in chunks.items() if item == wanted.item for chunk in part]
    if wanted.item is None and not streamed:
        streamed = [chunk for part in chunks.values() for chunk in part]
    # A node of a plan that was skipped, because no edge led to it, has no visit.
    node_state = state.nodes.get(node) if is_latest or not visit.places else None
    listed = visit.last(events.ItemsListed)
    saved = visit.last(events.NodeCheckpointed, item=wanted.item)
    returned = visit.last(events.NodeReturned)
    is_judged = bool(definition.plan or definition.nodes.get(node, NodeOptions()).judged)
    return NodeVisit(
        run_id=row.run_id,
        node=node,
        iteration=visit.place[0],
        execution=visit.place[1],
        item=wanted.item,
        visits=visit.places,
        status=_item_status(visit.record.items.get(wanted.item), is_cancelled=is_cancelled)
        if wanted.item is not None and visit.record is not None
        else ("failed" if state.is_misrouted(node) else node_state.status)
        if node_state
        else (attempts[-1].status if attempts else "pending"),
        options=definition.nodes.get(node, NodeOptions()),
        causes=list(_causes(store, row, definition, node, visit)),
        input=_input(store, row, visit.began) if wanted.item is None else _item_input(listed, wanted.item),
        output=_output(ended),
        next=(done.routes or None) if done is not None and wanted.item is None else None,
        attempts=attempts,
        questions=_questions(visit, wanted.item),
        steps=list(_steps(visit, wanted.item)),
        checkpoint=saved.value if saved is not None else None,
        chunks=len(streamed),
        last_lines=words.lines(streamed[-_CHUNKS_MAX:], LINES_MAX),
        artifacts=dict(ended.artifacts)
        if isinstance(ended, events.NodeCompleted | events.ItemCompleted)
        else {},
        cost=Cost(visit.record.usd, visit.record.tokens) if visit.record is not None else Cost(),
        children=_called(store, visit, wanted.item),
        items=_items(visit, listed, wanted, is_cancelled=is_cancelled) if listed is not None else None,
        items_all=len(listed.items) if listed is not None else 0,
        **_planned(definition, node),
        returned=describe(returned.value) if returned is not None else None,
        reasons=reasons_of(store, row, definition, state).get(node) if is_judged else None,
    )


def _planned(definition: Definition, node: str) -> dict[str, Any]:
    """Return what the plan says about a node: its title, and what it calls."""
    found: dict[str, Any] = next((one for one in definition.plan.get("tasks", ()) if one["id"] == node), {})
    return {name: found.get(name, "") for name in ("title", "capability")}


def _called(store: Store, visit: _Visit, item: int | None) -> list[CalledRun]:
    """Return the child runs that a visit has started, or one of its items."""
    started = {event.run: (stored, event) for stored, event in visit.of(events.ChildStarted, item=item)}
    latest = list(started.items())[-_CALLED_MAX:]
    rows = store.runs(Query(ids=tuple(name for name, _ in latest), limit=_CALLED_MAX)) if latest else []
    statuses = {row.run_id: row.status for row in rows}
    return [
        CalledRun(
            id=name,
            flow=event.flow,
            key=event.slot.removeprefix("child:"),
            item=event.item,
            seq=stored.seq,
            at=stored.at,
            status=statuses.get(name),
        )
        for name, (stored, event) in latest
    ]


def _find(store: Store, row: RunRow, node: str, wanted: VisitWanted) -> _Visit | None:
    rows = store.events(row.run_id, 0, wanted.upto, node=node)
    places = sorted({(one.iteration, one.execution) for one in rows if one.iteration})
    fitting = [
        place
        for place in places
        if wanted.iteration in (None, place[0]) and wanted.execution in (None, place[1])
    ]
    if not fitting:
        if wanted.iteration is not None or wanted.execution is not None:
            return None
        return _Visit(places)
    place = fitting[-1]
    here = [one for one in rows if (one.iteration, one.execution) == place]
    log = list(history.opened(store, row.run_id, here))
    before = [one.seq for one in rows if one.kind == "NodeStarted" and one.seq < here[0].seq]
    return _Visit(places, place, log, before[-1] if before else 0)


# --- what it did ---------------------------------------------------------------------------------------


def _of_run(store: Store, row: RunRow, node: str, visit: _Visit, upto: int) -> Iterator[Stored]:
    """Yield the other events that say something about the attempts of a visit: those of the run, and of this node before, that
    can be the reason why one began, and the one with which a process has claimed the run since.
    """
    if visit.log:
        last, seen = visit.log[-1].seq, {stored.seq for stored in visit.log}
        rows = store.events(row.run_id, visit.before, last, kinds=MOTIVE_KINDS)
        rows = [one for one in rows if one.node in (None, node) and one.seq not in seen]
        rows += store.events(row.run_id, last, upto, kinds=tuple(TAKES_OVER), limit=1)
        yield from history.opened(store, row.run_id, rows)


def _outcomes(
    visit: _Visit, item: int | None
) -> Iterator[tuple[Stored, events.StepCompleted | events.StepFailed]]:
    """Yield the events that are the outcome of a step: its result, or an exception that is kept."""
    for stored, event in visit.of(events.StepCompleted, events.StepFailed, item=item):
        if isinstance(event, events.StepCompleted) or event.retry_at is None:
            yield stored, event


def _questions(visit: _Visit, item: int | None) -> list[AskedView]:
    asked: list[AskedView] = []
    latest: dict[str, AskedView] = {}  # a question that is asked again has the same key
    for stored in visit.log:
        event = stored.event
        if isinstance(event, events.QuestionAsked) and item in (None, event.item):
            latest[event.key] = one = AskedView(
                key=event.key, text=event.text, item=event.item, seq=stored.seq, at=stored.at, answers=[]
            )  # fmt: skip
            asked.append(one)
        elif isinstance(event, events.QuestionAnswered) and event.key in latest:
            latest[event.key].answers.append(
                AnswerView(
                    seq=stored.seq, at=stored.at, answer=describe(event.answer), by=event.by, reason=event.reason,
                    refused=event.refused,
                )
            )  # fmt: skip
    return asked


def _steps(visit: _Visit, item: int | None) -> Iterator[StepView]:
    for stored, event in _outcomes(visit, item):
        step = Slot("step", event.step)
        failure = event.failure if isinstance(event, events.StepFailed) else None
        yield StepView(
            name=step.name,
            key=step.key,
            item=event.item,
            attempt=event.attempt,
            seq=stored.seq,
            at=stored.at,
            result=describe(event.value if isinstance(event, events.StepCompleted) else None),
            raised=f"{failure.type}: {failure.message}" if failure is not None else None,
        )


def _steps_of_attempts(visit: _Visit, item: int | None) -> dict[int, list[str]]:
    """Return the names of the steps that each attempt at the node, or at an item, has completed."""
    found: dict[int, list[str]] = {}
    for _, event in _outcomes(visit, item):
        if event.item == item:
            found.setdefault(event.attempt, []).append(Slot("step", event.step).label)
    return found


def _chunks(store: Store, run_id: str, node: str, visit: _Visit) -> dict[tuple[int, int | None], list[Any]]:
    """Return what each attempt of the node and of its items streamed: the chunks in the log, then those that are only spilled so
    far.
    """
    found: dict[tuple[int, int | None], list[Any]] = {}
    for _, event in visit.of(events.NodeStreamed):
        found.setdefault((event.attempt, event.item), []).extend(event.chunks)
    recorded = {key: len(chunks) for key, chunks in found.items()}
    for chunk in spilled_chunks(store, run_id) if visit.log else ():
        key = (chunk.attempt, chunk.item)
        if chunk.streamer[:3] == (node, *visit.place) and chunk.number > recorded.get(key, 0):
            found.setdefault(key, []).append(chunk.value)
    return found


# --- items ---------------------------------------------------------------------------------------------


def _items(
    visit: _Visit, listed: events.ItemsListed, wanted: VisitWanted, *, is_cancelled: bool
) -> list[ItemView]:
    """Return a page of the items: those that failed first, then those that have not ended."""
    values, labels = listed.items, listed.labels
    records = visit.record.items if visit.record is not None else {}
    statuses = [_item_status(records.get(item), is_cancelled=is_cancelled) for item in range(len(values))]
    order = (
        [wanted.item] if wanted.item is not None and wanted.item < len(values)
        else sorted(range(len(values)), key=lambda item: _LISTED.index(statuses[item]))[
            wanted.items_from : wanted.items_from + wanted.items
        ]
    )  # fmt: skip
    return [
        ItemView(
            item=item,
            label=labels[item] if labels else "",
            value=describe(values[item]),
            status=statuses[item],
            attempt=records[item].number if item in records else 0,
            failure=failure_of(records[item].failure) if item in records else None,
        )
        for item in order
    ]


def _item_status(record: AttemptRecord | None, *, is_cancelled: bool) -> ItemStatus:
    """Return the status of an item by its latest attempt. An item that was interrupted runs again with its node, unless the run
    was cancelled.
    """
    stopped: Literal["cancelled"] | None = "cancelled" if is_cancelled else None
    match record.status if record is not None else None:
        case None:
            return "pending"
        case "failed":
            return "failed" if record is None or record.retry_at is None else stopped or "waiting"
        case "completed" | "skipped":
            return "completed"
        case "waiting":
            return stopped or "waiting"
        case "running" | "interrupted" | "crashed":
            return stopped or "running"
        case unknown:
            assert_never(unknown)


# --- what it was given and made ------------------------------------------------------------------------


def _input(store: Store, row: RunRow, began: int | None) -> dict[str, Value] | None:
    if began is None:
        return None
    try:
        given = history.load(store, row.run_id, began, row=row)
    except RunNotFound:  # compacted
        return None
    return {name: describe(value) for name, value in given.values.items()}


def _item_input(listed: events.ItemsListed | None, item: int) -> dict[str, Value] | None:
    """Return the value of an item; None if the items are not listed yet."""
    if listed is None or item >= len(listed.items):
        return None
    return {"item": describe(listed.items[item])}


def _output(
    done: events.NodeCompleted | events.NodeSkipped | events.ItemCompleted | None,
) -> dict[str, dict[str, Value]] | None:
    if done is None:
        return None
    changes: dict[str, Any] = msgspec.to_builtins(done.changes, str_keys=True)
    return {
        operation: {name: describe(value) for name, value in fields.items()}
        for operation, fields in changes.items()
        if isinstance(fields, dict)
    }


def _causes(store: Store, row: RunRow, definition: Definition, node: str, visit: _Visit) -> Iterator[Cause]:
    """Yield the nodes that led to the visit since the visit before it began; if there are none, the one that did so last."""
    began = visit.began
    if began is None:
        return
    sources = {edge.source for edge in definition.arrows() if edge.target == node}
    parts = stretches(row.rewinds, began)
    rows = [
        one
        for one in store.events(row.run_id, 0, began, kinds=_ROUTED)
        if (one.node is None or one.node in sources)
        and any(first <= one.seq <= last for first, last in parts)
    ]
    found: dict[str, Cause] = {}
    for one in reversed(rows):
        if len(found) == len(sources) or (found and one.seq < visit.before):
            break
        for source in _led_here(store, row, one, node):
            if source in sources and source not in found:
                iteration = next(
                    each.iteration for each in reversed(rows) if each.node == source and each.seq <= one.seq
                )
                why = "branch" if node in definition.branches.get(source, ()) else "edge"
                found[source] = Cause(node=source, seq=one.seq, iteration=iteration, why=why)
    if not found and START in sources:
        why = "branch" if node in definition.branches.get(START, ()) else "edge"
        found[START] = Cause(node=START, seq=1, iteration=1, why=why)
    yield from sorted(found.values(), key=lambda cause: cause.seq)


def _led_here(store: Store, row: RunRow, one: Row, node: str) -> Iterator[str]:
    """Yield the nodes that an event leads from to this node."""
    (stored,) = history.opened(store, row.run_id, [one])
    event = stored.event
    if isinstance(event, events.LayerCompleted):
        yield from (source for source, routes in event.routes.items() if node in routes)
    elif node in (event.routes or ()):
        yield event.node
