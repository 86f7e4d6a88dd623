"""The read-only records that users get: runs, nodes, questions and events, made from the log."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar

import msgspec

from holdfast.core import situation
from holdfast.core.budget import Budget, BudgetLeft, left_of
from holdfast.core.definition import Definition
from holdfast.core.events import Failure, NodeEvent, Stored, Uncleaned, Values
from holdfast.core.graph import Flow
from holdfast.core.run_state import (
    ENDED,
    GOING,
    NODE_LEVEL,
    VISIT_OPEN,
    VISIT_STUCK,
    NodeState,
    Question,
    RunState,
    SetAside,
    Warned,
)
from holdfast.core.slots import CHECKPOINT, labels
from holdfast.errors import (
    RunCancelled,
    RunFailed,
    StateError,
    StoreCorrupt,
    end_sentence,
)
from holdfast.reading import text
from holdfast.reading.places import place_of
from holdfast.storage.contract import RunRow, RunStatus

S = TypeVar("S")
_DEFINITION = "_definition"
"""The attribute of a `Run` with the definition of its flow. It is no field, because a view is also encoded as JSON."""
_MISFIT = "_misfit"
"""The attribute of an `UnfitRun` that says why its state does not fit."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The cost of a run or node, as its nodes reported with `ctx.cost`."""

    usd: float = 0.0
    tokens: int = 0


_NOTHING = Cost()


class NodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The latest visit of a node. `tries` counts the attempts of all its visits."""

    status: str
    iteration: int
    execution: int
    attempt: int
    """The number of the attempt, counted from 1; 0 if the visit has not begun, because it asks first or may not start yet."""
    tries: int
    seconds: float
    started_at: float
    ended_at: float
    error: Failure | None
    retry_at: float | None
    items: tuple[int, int] | None
    """For a fan-out that has not ended: how many of its items are done, and how many it has. Otherwise None."""
    steps: tuple[str, ...]
    """The names of the steps that the visit has completed, while it has not ended. Steps of the items of a fan-out are not
    listed.
    """
    checkpoint: Any
    """The last value that the node saved with `ctx.checkpoint`."""
    chunks: int
    """How many streamed chunks of the node are in the log."""
    cost: Cost
    routes: tuple[str, ...] | None = None
    """In the run of a plan: the nodes that the run went to from here. None if that is not decided, and for a graph in code."""


class ChildView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A child run, as its caller shows it."""

    id: str
    flow: str
    status: RunStatus
    key: str | None
    """The key under which its node started it; None if the log of the caller no longer tells."""
    node: str | None
    """The node of the caller that started it; None if the log of the caller no longer tells."""
    iteration: int = 0
    item: int | None = None
    """The item of a fan-out that started it."""
    pausing: bool = False
    """True if it was paused, and nodes of it still run."""


class Run(msgspec.Struct, Generic[S], frozen=True, kw_only=True, dict=True):
    """A run as it was when it was read."""

    id: str
    flow: str
    status: RunStatus
    state: S
    """The state: typed if the flow is known, otherwise plain data. Reading it raises `StateError` if it does not fit the flow
    that is known, because newer code has upgraded it. A state of an older version is plain data, until a resume upgrades it.
    """
    nodes: dict[str, NodeView]
    error: Failure | None
    failed_node: str | None
    questions: tuple[Question, ...]
    seq: int
    checkpoint: str
    """The end of the log (`<run_id>@<seq>`), from which a resume would continue. It need not be a checkpoint to go back to."""
    labels: dict[str, str]
    parent: str | None
    """The run that it was forked from."""
    origin: str | None = None
    """The run that started it; None if it was not started by a run."""
    created_at: float
    updated_at: float
    active_s: float
    cost: Cost
    warnings: tuple[Warned, ...]
    """Failures of nodes with `safe_to_fail`, after which the run continued."""
    waits: tuple[str, ...]
    """The timers and signals that the run waits for."""
    due_at: float | None
    """The earliest time at which the run continues by itself, if it waits; None if it does not wait, or only for answers or
    signals.
    """
    signals: dict[str, int]
    """Signals that were sent but that no node has received yet -> how many of each."""
    set_aside: tuple[SetAside, ...]
    """Signals that a node received and could not use, oldest first. Each is kept for a `ctx.wait_for` that it fits."""
    layer: int
    held_by: str | None
    """A description of the live process that executes the run; None if there is none."""
    children: tuple[ChildView, ...] = ()
    """The child runs that its nodes have started, oldest first: at most 100, first of all those that have not ended and then the
    newest. `runs(origin=run.id)` lists all of them.
    """
    budget: Budget | None = None
    """What the run may cost in total; None if that is not limited."""
    budget_left: BudgetLeft | None = None
    """What is left of each limit of the budget; None if the run has no budget."""
    schedule: Literal["eager", "layered"] = "eager"
    scope: tuple[str, ...] | None = None
    """The only nodes that may run; None if all of them may."""
    children_cost: Cost = _NOTHING
    """The cost of the child runs that have ended, with that of their own children. `cost` does not include it."""
    uncleaned: tuple[Uncleaned, ...] = ()
    """The visits whose cleanup did not run, or not to its end, when the run was cancelled."""
    repeated: bool = False
    """True in the result of a request with an id if the same request was made before, so that nothing changed."""
    state_version: int | None = None
    """The version of its state (`Graph(version=…)`); None if it was read from a server that does not tell."""
    pausing: bool = False
    """True if the run was paused, and nodes of it still run: its status is `running`, and becomes `paused` when they have ended.
    No other node starts.
    """

    @property
    def caller(self) -> str | None:
        """The run that started this one; None if it is not a child run."""
        return self.origin

    def __repr__(self) -> str:
        return f"<Run {self.id!r} of {self.flow!r}: {name_status(self)}{_of_node(self)}, {self.seq} events>"

    def _repr_html_(self) -> str | None:
        """The picture of its flow with the statuses of its nodes, which a notebook shows for the run; None if the flow was not
        known where the run was read.
        """
        definition: Definition | None = self.__dict__.get(_DEFINITION)
        return draw_run(self, definition) if definition is not None else None


class UnfitRun(Run[S], frozen=True, kw_only=True):
    """A run whose state does not fit the flow that is known. Everything else can be read; the state, which it has as plain data,
    only by an encoder.
    """

    @property  # type: ignore[misc]
    def state(self) -> S:
        raise StateError(
            self.__dict__.get(_MISFIT)  # a copy does not have it
            or f"run {self.id!r} has a state of version {self.state_version} that does not fit the flow that was known where the "
            f"run was read. `holdfast state {self.id}` prints it as plain data."
        )


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list: the fields of `Run` that can be read without its log."""

    id: str
    flow: str
    status: RunStatus
    error: str | None
    """Type and message of the run's failure in one text, at most 500 characters."""
    seq: int
    checkpoint: str
    """The end of the log (`<run_id>@<seq>`), from which a resume would continue. It need not be a checkpoint to go back to."""
    labels: dict[str, str]
    parent: str | None
    """The run that it was forked from."""
    origin: str | None = None
    """The run that started it; None if it was not started by a run."""
    created_at: float
    updated_at: float
    due_at: float | None
    """The earliest time at which the run continues by itself, if it waits; otherwise None."""
    held_by: str | None
    """A description of the live process that executes the run; None if there is none."""
    pausing: bool = False
    """True if the run was paused, and nodes of it still run: its status becomes `paused` when they have ended."""

    @property
    def caller(self) -> str | None:
        """The run that started this one; None if it is not a child run."""
        return self.origin

    @property
    def run_id(self) -> str:
        """The former name of `id`, until version 1.0."""
        warnings.warn("RunSummary.run_id is now RunSummary.id", DeprecationWarning, stacklevel=2)
        return self.id


class AskedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """An open question and the run that asks it."""

    run_id: str
    flow: str
    question: Question


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a run that waits for an engine, or that was refused."""

    id: str
    """The id that the caller gave, or a random one; empty if the caller asked an engine directly."""
    verb: str
    about: str | None = None
    """What the request is about, in a few words: a node, a question, a signal, fields, or the place to resume from."""
    status: Literal["waiting", "refused"]
    by: str | None
    reason: str | None
    """Why the sender made the request, as the sender said."""
    at: float
    """When the request was made."""
    refused: str | None = None
    """Why the request was refused; None if it waits."""
    refused_at: float | None = None


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event: its header fields, and all other fields in `body` as plain data."""

    seq: int
    at: float
    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    by: str | None
    body: dict[str, Any]


def _of_node(run: Run[Any]) -> str:
    """Return words for the node in which the run is or has failed, for one line."""
    if run.status == "failed":
        return f" in {run.failed_node!r}" if run.failed_node else ""
    active = [name for name, node in run.nodes.items() if node.status in VISIT_OPEN]
    more = f" and {len(active) - 1} more" if len(active) > 1 else ""
    return f" in {active[0]!r}{more}" if active and run.status not in ENDED else ""


def draw_run(run: Run[Any], definition: Definition) -> str:
    """Return the flow of a run as an SVG document, with the statuses of the nodes."""
    from holdfast.core import svg  # few programs draw

    nodes = run.nodes.items()
    return svg.draw(
        definition,
        {name: node.status for name, node in nodes},
        notes={name: _note(node) for name, node in nodes},
        repeated={name for name, node in nodes if node.iteration > 1},
        title=f"Run {run.id} of flow {run.flow}: {name_status(run)}",
        routes=routes_of(run),
    )


def routes_of(run: Run[Any]) -> dict[str, tuple[str, ...]]:
    """Return where the run of a plan went from each node that has ended."""
    return {name: node.routes for name, node in run.nodes.items() if node.routes is not None}


def _note(node: NodeView) -> str:
    """Return what a picture says below the name of a node."""
    if node.items is not None:
        return "{} of {} done".format(*node.items)
    if node.iteration > 1:
        return f"{node.iteration} iterations" if node.status == "completed" else f"iteration {node.iteration}"
    return f"{node.status} · attempt {node.attempt}" if node.attempt > 1 else node.status


def run_view(
    state: RunState,
    row: RunRow | None,
    flow: Flow[S] | None,
    children: tuple[ChildView, ...] = (),
    *,
    is_past: bool = False,
    load: Callable[[Values], S] | None = None,
) -> Run[S]:
    """Return the view of a run, from its state, its row and its children (`relatives.children_of`). Its state is typed if the
    flow is given and has the same version of the state. A node that waits is shown as waiting also while the process that
    executes it keeps it in memory, unless the run is paused as soon as that node has ended. `is_past` is True if the run has
    moved on since. `load` makes the typed state, if the caller can do so without a copy of all values.
    """
    waiting = state.waiting_in_memory() if row is not None and row.held and not state.paused else []
    status: RunStatus = state.status if state.status != "new" else "pending"
    if status == "running" and state.running == len(waiting) and not is_past:
        status = "waiting"
    typed, misfit = _typed(state, flow, load)
    run: Run[S] = (UnfitRun if misfit else Run)(
        id=state.run_id,
        flow=state.flow,
        status=status,
        state=typed,
        nodes={
            name: _node_view(node, state.place(name), waits=name in waiting)
            for name, node in state.nodes.items()
        },
        error=state.failure,
        failed_node=state.failure_node,
        questions=tuple(state.questions.values()),
        seq=state.seq,
        checkpoint=f"{state.run_id}@{state.seq}",
        labels=dict(state.labels),
        parent=state.parent,
        origin=state.origin,
        created_at=state.created_at,
        updated_at=state.at,
        active_s=state.active_s,
        cost=Cost(state.usd, state.tokens),
        warnings=tuple(state.warnings),
        waits=tuple(state.waits),
        due_at=state.due_at(),
        signals={name: len(sent) for name, sent in state.signals.items() if sent},
        set_aside=tuple(state.aside),
        layer=state.layer,
        held_by=held_by(row) if row is not None else None,
        children=children,
        budget=state.budget,
        budget_left=left_of(state.budget, state.spent()) if state.budget is not None else None,
        schedule=state.schedule,
        scope=tuple(state.scope) if state.scope is not None else None,
        children_cost=Cost(state.children_usd, state.children_tokens),
        uncleaned=tuple(state.uncleaned),
        state_version=state.state_version,
        pausing=status == "running" and state.paused and (is_past or (row is not None and row.held)),
    )
    if misfit:
        run.__dict__[_MISFIT] = misfit
    elif flow is not None and flow.definition.state_version == state.state_version:
        run.__dict__[_DEFINITION] = flow.definition
    return run


def mark_repeated(run: Run[S], repeated: bool) -> Run[S]:
    """Return the run as the result of a request with an id, which may have been made before."""
    marked = msgspec.structs.replace(run, repeated=repeated)
    marked.__dict__.update(run.__dict__)
    return marked


def run_summary(row: RunRow) -> RunSummary:
    """Return the summary of a run, from its row."""
    return RunSummary(
        id=row.run_id,
        flow=row.flow,
        status=row.status,
        error=row.error,
        seq=row.seq,
        checkpoint=f"{row.run_id}@{row.seq}",
        labels=dict(row.labels),
        parent=row.parent,
        origin=row.origin,
        created_at=row.created_at,
        updated_at=row.updated_at,
        due_at=row.due_at if row.status in GOING else None,
        held_by=held_by(row),
        pausing=is_row_pausing(row),
    )


def is_row_pausing(row: RunRow) -> bool:
    """Return whether a run was paused and a live process still executes nodes of it, as far as its row tells."""
    if row.status != "running" or not row.held or row.situation is None:
        return False
    with suppress(StoreCorrupt):  # `verify` reports it
        return situation.is_pausing(row.status, situation.load(row.situation, row.active))
    return False


def name_status(shown: Run[Any] | RunSummary | ChildView) -> str:
    """Return the status of a run in a word, for people: `pausing` if it is paused as soon as its running nodes have ended."""
    return "pausing" if shown.pausing else shown.status


def held_by(row: RunRow) -> str | None:
    """Return a description of the live process that executes a run; None if there is none."""
    return row.holder.describe() if row.held and row.holder is not None else None


def load_state(
    run_id: str,
    values: Values,
    version: int,
    flow: Flow[Any] | None,
    load: Callable[[Values], Any] | None = None,
) -> Any:
    """Return the values of a run's state, which has this version, as the flow types them. They stay plain data if the flow is
    unknown, or if their version is older: the new code knows it, and a resume upgrades them. Raises `StateError` if they do not
    fit. Values of a newer version never do, also if they have the fields of the type: they may mean something else.
    """
    known = flow.definition.state_version if flow is not None else version + 1
    if flow is None or version < known:
        return values
    plain = f"`holdfast state {run_id}` prints it as plain data."
    if version > known:
        raise StateError(
            f"run {run_id!r} has a state of version {version}, and flow {flow.name!r} has version {known} here: newer code has "
            f"upgraded the run. Use the newer code to read its state; {plain}"
        )
    try:
        return (load or flow.state.load)(values)
    except StateError as misfit:
        raise StateError(
            f"run {run_id!r}: {end_sentence(str(misfit))} {plain}", field=misfit.field
        ) from misfit


def type_state(run: Run[Any], flow: Flow[Any]) -> Run[Any]:
    """Return a run that has its state as plain data with the state as the flow types it."""
    version = run.state_version if run.state_version is not None else flow.definition.state_version
    try:
        return msgspec.structs.replace(run, state=load_state(run.id, run.state, version, flow))
    except StateError as misfit:
        unfit: Run[Any] = UnfitRun(**{name: getattr(run, name) for name in Run.__struct_fields__})
        unfit.__dict__[_MISFIT] = str(misfit)
        return unfit


def without_misfit(run: Run[Any]) -> Run[Any]:
    """Return the run. If its state does not fit the flow that is known, it is plain data."""
    return Run(**msgspec.structs.asdict(run)) if isinstance(run, UnfitRun) else run


def _typed(state: RunState, flow: Flow[Any] | None, load: Callable[[Values], Any] | None) -> tuple[Any, str]:
    """Return the state as its flow types it, and an empty text; or plain data, and why it does not fit the flow."""
    misfit = ""
    try:
        typed = load_state(state.run_id, state.values, state.state_version, flow, load)
        if typed is not state.values:
            return typed, ""
    except StateError as fault:
        misfit = str(fault)
    return msgspec.json.decode(msgspec.json.encode(state.values)), misfit


def _node_view(node: NodeState, place: tuple[int, int, int], *, waits: bool) -> NodeView:
    iteration, execution, attempt = place
    items = node.items
    kept = node.kept.get(NODE_LEVEL) or {}
    view = NodeView(
        status="waiting" if waits else node.status,
        iteration=iteration,
        execution=execution,
        attempt=attempt,
        tries=node.tries,
        seconds=node.seconds,
        started_at=node.started_at if attempt else 0.0,
        ended_at=node.ended_at if attempt else 0.0,
        error=node.failure,
        retry_at=node.retry_at,
        items=(len(items.done), len(items.values)) if items is not None else None,
        steps=tuple(labels("step", kept)) if kept else (),
        checkpoint=kept.get(CHECKPOINT),
        chunks=node.streamed,
        cost=Cost(node.usd, node.tokens) if node.tokens or node.usd else _NOTHING,
    )
    if node.routes is None:  # a call with one argument more would build a dict, for every node of every graph
        return view
    return msgspec.structs.replace(view, routes=tuple(node.routes))


def event_view(stored: Stored) -> EventView:
    """Return the view of a stored event."""
    event = stored.event
    body: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    header = (
        {name: body.pop(name, 0) for name in ("iteration", "execution", "attempt")}
        if isinstance(event, NodeEvent)
        else {}
    )
    node = body.pop("node", None) if isinstance(event, NodeEvent) else body.get("node")
    return EventView(
        seq=stored.seq,
        at=stored.at,
        kind=stored.kind,
        node=node,
        iteration=header.get("iteration", 0),
        execution=header.get("execution", 0),
        attempt=header.get("attempt", 0),
        by=body.get("by"),
        body={name: value for name, value in body.items() if value not in (None, {}, [])},
    )


def result_of(run: Run[S], *, fault: BaseException | None = None, earlier: bool = False) -> Run[S]:
    """Return the run, or raise `RunFailed` or `RunCancelled` if it failed or was cancelled. `fault` is the exception for which
    the run failed, if it was raised in this process. `earlier` is True if the run had ended before this call, so that nothing
    was executed.
    """
    if run.status == "failed":
        raise RunFailed(run, _failed_before(run) if earlier else _failed(run)) from fault
    if run.status == "cancelled":
        raise RunCancelled(run, f"run {run.id!r} was cancelled")
    return run


def _failed(run: Run[Any]) -> str:
    node = run.nodes.get(run.failed_node or "")
    skip = ", or skip the node" if node is not None and node.status in VISIT_STUCK else ""
    error = run.error
    if error is not None and (error.advice or error.child or error.type == "BudgetExceeded"):
        # It says itself what to do.
        return f"run {run.id!r} failed{_fault(run)}{_left_alone(run)}{_place(run)}"
    return (
        f"run {run.id!r} failed{_fault(run)} Completed work is kept: fix the cause and resume the run, "
        f"hf.resume({run.id!r}, flows=[…]){skip}.{_left_alone(run)}{_place(run)}"
    )


def _left_alone(run: Run[Any]) -> str:
    """Name the child runs that go on without a run that failed."""
    going = [child.id for child in run.children if child.status not in ENDED]
    if not going:
        return ""
    more = f" and {len(going) - 3} more" if len(going) > 3 else ""
    return f" It has left child runs alone, which go on: {', '.join(going[:3])}{more}."


def _failed_before(run: Run[Any]) -> str:
    """Return the message for a caller of `run` whose run had failed before this call."""
    force = ", force=True" if run.error is not None and run.error.kind == "fatal" else ""
    node = f", {run.failed_node!r}" if run.failed_node else ""
    if run.error is not None and run.error.step:  # it says itself what to do
        return (
            f"run {run.id!r} failed before, at {text.when(run.updated_at)}{_fault(run)} Nothing was executed now; another run_id "
            f"starts a new run.{_place(run)}"
        )
    return (
        f"run {run.id!r} failed before, at {text.when(run.updated_at)}{_fault(run)} Nothing was executed now. Fix the cause, "
        f"then continue it with hf.resume({run.id!r}{force}, flows=[…]) or hf.retry({run.id!r}{node}, flows=[…]); another run_id "
        f"starts a new run."
        f"{_place(run)}"
    )


def _fault(run: Run[Any]) -> str:
    error = run.error
    where = f" in node {run.failed_node!r}" if run.failed_node else ""
    if error is None:
        return f"{where}: unknown."
    advice = f" {error.advice}" if error.advice else ""
    return f"{where}: {end_sentence(error.describe())}{advice}"


def _place(run: Run[Any]) -> str:
    place = place_of(run.error)
    return f"\n  {place}" if place is not None else ""
