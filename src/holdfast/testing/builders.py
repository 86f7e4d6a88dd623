"""Histories for tests: build the log of a run, event by event, without running it.

    History("r1", flow).created({"ticket": "T-1"}).completed("a", {"draft": "…"}).completed("b").crashed_before("c").write(store)
    run = await engine.resume("r1")

A history does not call any node. It asks `decide` what comes next, records that and the node results that the test gives,
and folds every event as the engine does; `write` sends the log through the engine's own journal into a store. So a history
that no engine could have written is refused at the line that builds it. A history has its own time: the first event is at
`STARTS_AT`, and each event is one second after the previous one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar, cast, get_origin

import msgspec

from holdfast.core import commands, event_encoding, events, run_state
from holdfast.core.budget import Budget
from holdfast.core.commands import AnyCommand
from holdfast.core.decide import decide
from holdfast.core.event_encoding import Encoded
from holdfast.core.events import Changes, Event, Failure, NodeEvent, Stored, Values
from holdfast.core.fold import fold
from holdfast.core.graph import END, START, Flow, Graph
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import RunState, visit_of, wait_key
from holdfast.core.slots import Slot
from holdfast.core.writers import Writers
from holdfast.reading import history, inbox
from holdfast.runtime import failures, judging, outcomes, perform, questions
from holdfast.runtime.creation import input_digest
from holdfast.runtime.holdings import Holdings
from holdfast.runtime.journal import Journal
from holdfast.runtime.listeners import Listeners
from holdfast.runtime.services import Commits, ReadingThread, Services
from holdfast.storage import definitions
from holdfast.storage.contract import Append, Holder, NewRun, Snapshot, Store, View
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import SALT_BYTES, open_row, pack
from holdfast.storage.writer import InlineWriter
from holdfast.testing.clock import STARTS_AT, ManualClock

T = TypeVar("T")


class History:
    """The log of a run under construction, and the run state folded from it. Methods that add events return the history."""

    def __init__(self, run_id: str, flow: Flow[Any], *, starts_at: float = STARTS_AT) -> None:
        self.run_id = run_id
        self.flow = flow
        self.state = RunState(run_id)
        self.ready = Readiness(flow.topology, self.state)
        self.writers = Writers(flow.topology, self.state)
        self.faults = failures.NodeFaults()
        self.last_answers: dict[str, events.QuestionAnswered] = {}
        self.at = starts_at
        self.log: list[tuple[float, Encoded]] = []
        """The time and the encoded form of every event. Events are encoded before they are folded, because the fold may
        append to a list that the event still refers to.
        """

    # --- the run --------------------------------------------------------------------------------------

    def created(
        self, given: Any = None, *, schedule: Literal["eager", "layered"] | None = None, **options: Any
    ) -> History:
        """Record that the run was created with this input, and with a schedule that may differ from that of its flow. `options`
        are recorded in `RunCreated.options`, e.g. `timeout_s`.
        """
        flow = self.flow
        values = flow.state.dump(flow.input if flow.input is not None else {} if given is None else given)
        return self.record(
            events.RunCreated(
                flow=flow.name,
                fingerprint=flow.fingerprint,
                state_version=flow.definition.state_version,
                input=values,
                starts=outcomes.route(flow, START, values).to,
                schedule=schedule or flow.definition.schedule,
                options={"durability": "sync", **options},
                plan=bool(flow.definition.plan),
            )
        )

    def paused(self) -> History:
        return self.record(events.RunPaused())

    def taken_up(
        self, *, force: bool = False, budget: Budget | None = None, scope: list[str] | None = None
    ) -> History:
        """Record that another process resumed the run, which interrupts the nodes that were running."""
        return self.record(events.RunResumed(force=force, budget=budget, scope=scope))

    def told(self, signal: str, payload: Any = None) -> History:
        """Record that the run received a signal."""
        return self.record(events.SignalReceived(name=signal, payload=payload))

    def answered(self, key: str, answer: Any, **said: Any) -> History:
        """Record an answer. `key` is the key of the question, or the name of a node with a single open question; `said` may
        contain `by`, `reason`, `confidence`, `update` and `stated`.
        """
        questions.answer(self._journal, inbox.Answer(key=key, value=answer, **said))
        return self

    def crashed_before(self, node: str) -> History:
        """Assume that the process died when this node was due but had not started. No event is added for this."""
        assert node in self.state.arrivals, f"the run has not reached {node!r}: {self._describe()}"
        return self

    def crashed_in(self, node: str) -> History:
        """Assume that the process died while this node was running. If the node has not started yet, its start is recorded
        first.
        """
        return self if self._is_running(node) else self.started(node)

    # --- its nodes ------------------------------------------------------------------------------------

    def started(self, *nodes: str) -> History:
        """Record that these nodes started; they stay running."""
        for node in nodes:
            self.perform(self._wanted(commands.StartNode, node))
        return self

    def completed(self, node: str, update: Any = None, *, routes: list[str] | None = None) -> History:
        """Record that the node returned `update`, which in a plan is its output, and what its rules say about it. `routes`
        replaces the choice of its branch. For a fan-out, complete all of its items first (`item_completed`).
        """
        if not self._is_running(node):
            self.started(node)
        if self.flow.nodes[node].options.each:
            return self.perform(self._wanted(commands.CompleteItems, node))
        visit = self.state.nodes[node]
        if routes is not None:
            changes = self.flow.state.changes(update, visit.input or {}, node=node)
            return self.record(events.NodeCompleted(**visit_of(node, visit), changes=changes, routes=routes))
        if self.flow.nodes[node].wiring is None and type(update) is not Changes:
            given = self.flow.state.load(visit.input or {})
            update = outcomes.find_changes(self.flow, node, visit.input or {}, given, update)
        if self.flow.nodes[node].is_ruled:
            produced = judging.complete(self._journal, node, update, {})
        else:
            produced = outcomes.complete_node(
                self.flow, self.state, self.writers, self.faults, node, update, self.flow.state.load
            )
        for event in produced:
            self.record(event)
        return self

    def item_completed(self, node: str, item: int, update: Any = None) -> History:
        """Record that one item of a fan-out returned `update`."""
        header = self._item_header(node, item)
        return self.record(outcomes.complete_item(self.flow, node, header, item, update))

    def failed(self, node: str, error: BaseException, *, retry_in: float | None = None) -> History:
        """Record that the node raised this error. If `retry_in` is given, the node is retried after that many seconds."""
        if not self._is_running(node):
            self.started(node)
        return self.record(
            events.NodeFailed(
                **visit_of(node, self.state.nodes[node]),
                failure=failures.describe(error),
                retry_at=None if retry_in is None else self.at + retry_in,
            )
        )

    def misrouted(self, node: str, error: BaseException) -> History:
        """Record that the node completed, and that its router raised this error."""
        if not self._is_running(node):
            self.started(node)
        visit = visit_of(node, self.state.nodes[node])
        self.record(events.NodeCompleted(**visit, routes=None))
        return self.record(events.RoutingFailed(**visit, failure=failures.describe(error)))

    def item_failed(
        self, node: str, item: int, error: BaseException, *, retry_in: float | None = None
    ) -> History:
        """Record that one item of a fan-out raised this error. If `retry_in` is given, the item is retried after that many
        seconds.
        """
        header = self._item_header(node, item)
        retry_at = None if retry_in is None else self.at + retry_in
        return self.record(
            events.ItemFailed(**header, item=item, failure=failures.describe(error), retry_at=retry_at)
        )

    def settled(self) -> History:
        """Record everything that happens without a node result: due nodes start, and a run without open nodes ends."""
        later = (commands.WakeAt, commands.DueAt)
        while wanted := [command for command in self.commands() if not isinstance(command, later)]:
            for command in wanted:
                self.perform(command)
        return self

    def passed(self, seconds: float) -> History:
        """Let this time pass, and record everything that happens without a node result (`settled`)."""
        self.at += seconds
        return self.settled()

    # --- inside its nodes -----------------------------------------------------------------------------

    def stepped(self, node: str, step: str, value: Any = None, *, item: int | None = None) -> History:
        """Record that the node completed a step."""
        return self._inside(events.StepCompleted, node, item, step=step, value=value)

    def began_step(self, node: str, step: str, *, item: int | None = None) -> History:
        """Record that the node is about to call a step with `idempotent=False`."""
        return self._inside(events.StepStarted, node, item, step=step)

    def step_failed(
        self,
        node: str,
        step: str,
        error: BaseException,
        *,
        retry_in: float | None = None,
        item: int | None = None,
    ) -> History:
        """Record that a step of the node raised this error: as its outcome or, if `retry_in` is given, as one failed try."""
        retry_at = None if retry_in is None else self.at + retry_in
        arguments = list(error.args) if retry_at is None else []
        failure = failures.describe(error)
        return self._inside(
            events.StepFailed, node, item, step=step, failure=failure, arguments=arguments, retry_at=retry_at
        )

    def checkpointed(self, node: str, value: Any, *, item: int | None = None) -> History:
        """Record that the node saved a checkpoint (`ctx.checkpoint`)."""
        return self._inside(events.NodeCheckpointed, node, item, value=value)

    def streamed(self, node: str, *chunks: Any, item: int | None = None) -> History:
        """Record chunks that the node streamed."""
        return self._inside(events.NodeStreamed, node, item, chunks=list(chunks))

    def spent(self, node: str, usd: float = 0.0, tokens: int = 0) -> History:
        """Record a cost that the node reported."""
        header = visit_of(node, self.state.nodes[node])
        return self.record(events.CostIncurred(**header, usd=usd, tokens=tokens))

    def sleeping(
        self, node: str, seconds: float, *, slot: str = "sleep:1", item: int | None = None
    ) -> History:
        """Record that the node began to sleep. Its attempt keeps running until the history calls `parked`."""
        return self._inside(events.TimerSet, node, item, slot=slot, until=self.at + seconds)

    def awaiting(
        self,
        node: str,
        signal: str,
        timeout: float | None = None,
        *,
        slot: str | None = None,
        item: int | None = None,
        **wanted: Any,
    ) -> History:
        """Record that the node began to wait for a signal, or received a signal that had arrived before. `wanted` may give the
        `payload_schema`, or in `takes` the position of a signal that was set aside.
        """
        until = None if timeout is None else self.at + timeout
        slot = slot or Slot.signal(signal, 1).text
        return self._inside(events.SignalAwaited, node, item, slot=slot, name=signal, until=until, **wanted)

    def set_aside(
        self, node: str, signal: str, *, slot: str | None = None, item: int | None = None
    ) -> History:
        """Record that the node could not use the signal that it received."""
        slot = slot or Slot.signal(signal, 1).text
        return self._inside(events.SignalSetAside, node, item, slot=slot, name=signal, reason="does not fit")

    def asking(
        self,
        node: str,
        text: str,
        *options: str,
        timeout: float | None = None,
        on_timeout: str = "fail",
        item: int | None = None,
    ) -> History:
        """Record that the node asked a question with `ctx.ask`."""
        visit, slot = self.state.nodes[node], Slot.ask(text).text
        return self._inside(
            events.QuestionAsked,
            node,
            item,
            key=wait_key(node, visit.iteration, visit.execution, item, slot),
            text=text,
            options=list(options),
            about="ask",
            slot=slot,
            until=None if timeout is None else self.at + timeout,
            on_timeout=on_timeout,
        )

    def calling(
        self,
        node: str,
        run: str,
        key: str = "child",
        *,
        cancels: bool = False,
        adopted: bool = False,
        item: int | None = None,
    ) -> History:
        """Record that the node started the child run `run`, of the flow `key`."""
        slot = f"child:{key}"
        return self._inside(
            events.ChildStarted, node, item, slot=slot, run=run, flow=key, cancels=cancels, adopted=adopted
        )

    def awaiting_child(
        self, node: str, run: str, timeout: float | None = None, *, item: int | None = None, **wanted: Any
    ) -> History:
        """Record that the node began to wait for the end of a child, or received the end that had come before. `wanted` may
        give `slot`, `anew` and `abandons`.
        """
        slot = wanted.pop("slot", f"{self.state.children[run].slot}:1")
        until = None if timeout is None else self.at + timeout
        return self._inside(events.ChildAwaited, node, item, slot=slot, run=run, until=until, **wanted)

    def child_ended(
        self, run: str, status: str = "completed", values: Any = None, *, seq: int | None = None, **cost: Any
    ) -> History:
        """Record that a child ended, at its event `seq`: if none is given, at one after all of its ends before. `cost` may give
        `usd` and `tokens`.
        """
        why = {"failed": failure("the child broke")}.get(status)
        told: dict[str, Any] = {"values": values or {}} if status == "completed" else {"failure": why}
        return self.record(
            events.ChildEnded(
                run=run, seq=seq or self.state.seq + 1, status=cast("Any", status), **told, **cost
            )
        )

    def withdrawn(
        self, node: str, slot: str, *, returned: str | None = None, item: int | None = None
    ) -> History:
        """Record that the node withdrew a wait. `returned` is the name of a signal that had ended the wait."""
        return self._inside(events.WaitWithdrawn, node, item, slot=slot, returned=returned)

    def parked(self, node: str, *slots: str, item: int | None = None) -> History:
        """Record that the node unwound for a long wait: its attempt ended, and the node runs again when one of these slots has
        a result.
        """
        return self._inside(events.NodeWaiting, node, item, on=list(slots))

    def kept(self, node: str, item: int | None = None) -> dict[str, Any]:
        """Return the results that the current visit of the node (or of one item) has recorded, as slot -> value."""
        return self.state.nodes[node].kept.get(run_state.NODE_LEVEL if item is None else item, {})

    # --- reading --------------------------------------------------------------------------------------

    @property
    def running(self) -> list[str]:
        """The names of the nodes that are running now, in the order in which they started."""
        return [name for name in self.state.open if self.state.nodes[name].status == "running"]

    def commands(self) -> list[AnyCommand]:
        """Return the commands that `decide` returns now."""
        return decide(self.flow, self.state, self.at, self.ready)

    def events(self) -> list[Stored]:
        """Return the events of the log, decoded."""
        return [
            Stored(seq, at, event_encoding.decode(encoded)) for seq, (at, encoded) in enumerate(self.log, 1)
        ]

    def write(self, store: Store, *, holder: Holder | None = None, one_by_one: bool = False) -> History:
        """Write the log into a store. No engine holds the run there, unless `holder` is given: then that holder has the lease,
        as after a crash, and can also append the events `one_by_one`.
        """
        if holder is not None:
            store.renew(holder)
        journal = Journal(
            _services(store, holder),
            self.flow,
            RunState(self.run_id),
            row=None,
            fence=int(holder is not None),
        )
        created = event_encoding.decode(self.log[0][1])
        assert isinstance(created, events.RunCreated), "call `created` first: a history begins with it"
        digest = input_digest(self.flow, created.input)
        journal.create = NewRun(
            flow=self.flow.name, input_digest=digest, created_at=self.log[0][0], labels=created.labels
        )
        journal.definition = definitions.encode(self.flow.definition, self.flow.definition_json)
        for at, encoded in self.log:
            journal.tick(at)
            journal.record(event_encoding.decode(encoded))
            if one_by_one:
                journal.save(_raise)
        if journal.unsaved:
            journal.save(_raise)  # the inline writer has committed when this returns
        return self

    # --- inside ---------------------------------------------------------------------------------------

    def cancel_children(self, node: str, item: int | None, reason: str) -> None:
        """Leave no request: a history has only the log of its own run."""

    def cancel_child(self, run_id: str, reason: str) -> None:
        """Leave no request, as `cancel_children`."""

    def record(self, event: Event) -> History:
        """Add one event to the log and fold it, then advance the time of the history by one second."""
        encoded = event_encoding.encode(event)
        fold(self.state, Stored(self.state.seq + 1, self.at, event))
        self.ready.observe(self.state, event)
        self.writers.observe(self.state, event)
        self.log.append((self.at, encoded))
        self.at += 1.0
        return self

    def perform(self, command: AnyCommand) -> History:
        """Record the events of a command, as the engine would."""
        match command:
            case commands.WakeAt() | commands.DueAt():
                self.at = max(self.at, command.at)
            case commands.AskAboutNode(
                node
            ):  # the engine also records what it knows about this machine; a history does not
                visit = self.state.nodes[node]
                key = f"{node}.{visit.iteration}.{visit.execution}.{visit.attempt}"
                options = ["retry", "skip", "abort"]
                self.record(events.QuestionAsked(**visit_of(node, visit), key=key, text="?", options=options))
            case _:
                perform.perform(self._journal, command, [])
        return self

    @property
    def _journal(self) -> Journal:
        """The history itself, typed as a `Journal`, for engine code that only records events and reads the time."""
        return cast("Journal", self)

    def load(self, values: Values) -> Any:
        """Return the state with these values, as a journal does."""
        return self.flow.state.load(values)

    @cached_property
    def services(self) -> Services:
        """The services of an engine, with an empty memory store that uses the time of this history."""
        return _services(MemoryStore(clock=lambda: self.at), None)

    def _inside(self, kind: Callable[..., NodeEvent], node: str, item: int | None, **fields: Any) -> History:
        """Record an event inside a node or one of its items; start the attempt first if none is running."""
        if item is None and not self._is_running(node):
            self.started(node)
        header = visit_of(node, self.state.nodes[node]) if item is None else self._item_header(node, item)
        return self.record(kind(**header, item=item, **fields))

    def _item_header(self, node: str, item: int) -> dict[str, Any]:
        """Return the fields that an event of an item begins with: node, visit, attempt. If the item has not started, record its
        start and those of all items before it.
        """
        if self._is_idle(node):
            self.started(node)
        items = self.state.nodes[node].items
        assert items is not None, f"{node!r} is not a fan-out, or has listed no items"
        while item not in items.running:
            self.perform(self._wanted(commands.StartItem, node))
        return visit_of(node, self.state.nodes[node]) | {"attempt": items.running[item]}

    def _is_idle(self, node: str) -> bool:
        """Return whether a fan-out has not started or was interrupted. A fan-out that waits has started."""
        visit = self.state.nodes.get(node)
        return visit is None or visit.items is None or visit.status not in ("running", "waiting")

    def _is_running(self, node: str) -> bool:
        visit = self.state.nodes.get(node)
        return visit is not None and visit.status == "running"

    def _wanted(self, kind: type[T], node: str) -> T:
        """Return the first command of this kind for this node among those that `decide` returns now."""
        for command in self.commands():
            if isinstance(command, kind) and getattr(command, "node", None) == node:
                return command
        raise AssertionError(f"`decide` does not return {kind.__name__} for {node!r} now: {self._describe()}")

    def _describe(self) -> str:
        state = self.state
        return (
            f"the run is {state.status}, open nodes are {list(state.open)}, due nodes {list(state.arrivals)}"
        )


def outline(
    *paths: str,
    branches: Mapping[str, str] | None = None,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    asks: Mapping[str, Mapping[str, Any]] | None = None,
    state: type[Any] = dict,
    **options: Any,
) -> Flow[Any]:
    """Make a flow from paths of node names: `outline("START a b c END", branches={"c": "a END"}, nodes={"b": {"join":
    "any"}}, schedule="layered")`. `asks` are its question nodes; the question is the name with a question mark.

    The nodes are declared in the order in which they are named. Their functions do nothing; a history gives their results. A
    branch chooses its last target, unless the history gives another one (`completed(…, routes=[…])`).
    """
    graph: Graph[Any] = Graph("outline", state)
    mentioned = [
        name for path in (*paths, *(branches or {}), *(branches or {}).values()) for name in path.split()
    ]
    for name in dict.fromkeys(name for name in mentioned if name not in (START, END)):
        if name in (asks or {}):
            graph.ask(name, f"{name}?", **(asks or {})[name])
        else:
            graph.node(name=name, **(nodes or {}).get(name, {}))(_nothing)
    for path in paths:
        graph.chain(*path.split())
    for source, targets in (branches or {}).items():
        graph.branch(source, _last_of(targets.split()), to=targets.split())
    return graph.compile(**options)


def _nothing(given: Any) -> None:
    """The function of every node of an outline: does nothing."""


def _last_of(targets: list[str]) -> Callable[[Any], str]:
    return lambda state: targets[-1]


def example(kind: type[Event], **fields: Any) -> Any:
    """Make an event of this kind, for tests that cover every kind. An event of a node belongs to the first attempt of node
    `a`.
    """
    told: dict[type[Event], dict[str, Any]] = {
        events.RunCreated: {
            "flow": "f",
            "fingerprint": "p",
            "state_version": 1,
            "input": {"n": 1},
            "starts": ["a"],
        },
        events.RunForked: {"parent": "r0", "to": 1, "base_digest": "d"},
        events.RunClaimed: {"holder": "h"},
        events.RunRewound: {"to": 1, "executions": {"a": {1: 2}}, "crashes": {"a": 1}},
        events.RunFailed: {"failure": failure(), "node": "a"},
        events.RequestRefused: {"verb": "resume", "reason": "no"},
        events.ResumeRefused: {"reason": "no"},
        events.StateEdited: {"changes": Changes(set={"n": 2})},
        events.StateUpgraded: {"state_version": 2, "values": {"n": 3}},
        events.FlowChanged: {"fingerprint": "q"},
        events.NodeScheduled: {"why": "no free slot"},
        events.NodeStarted: {"took": 0},
        events.NodeCompleted: {"changes": Changes(set={"n": 2}), "routes": ["END"]},
        events.NodeFailed: {"failure": failure()},
        events.NodeSkipped: {"routes": ["END"]},
        events.NodeRouted: {"routes": ["END"]},
        events.RoutingFailed: {"failure": failure()},
        events.ItemsListed: {"items": [1, 2]},
        events.ItemStarted: {"item": 0},
        events.ItemCompleted: {"item": 0},
        events.ItemFailed: {"item": 0, "failure": failure()},
        events.LayerCompleted: {"layer": 1, "nodes": ["b"], "routes": {"b": ["END"]}},
        events.QuestionAsked: {"key": "a.1.1.1", "text": "again?", "options": ["retry", "skip"]},
        events.QuestionAnswered: {"key": "a.1.1.1", "answer": "retry"},
        events.NodeWaiting: {"on": ["sleep:1"]},
        events.NodeCheckpointed: {"value": 7},
        events.NodeStreamed: {"chunks": ["once", "upon"], "spans": [events.Span(2, "draft")]},
        events.StepCompleted: {"step": "charge", "value": {"id": 1}},
        events.StepStarted: {"step": "charge"},
        events.StepFailed: {"step": "charge", "failure": failure(), "arguments": ["no"]},
        events.CostIncurred: {"usd": 0.5, "tokens": 12},
        events.TimerSet: {"slot": "sleep:1", "until": 60.0},
        events.TimerFired: {"slot": "sleep:1"},
        events.SignalAwaited: {"slot": "signal:paid:1", "name": "paid"},
        events.SignalReceived: {"name": "paid", "payload": 1},
        events.SignalSetAside: {"slot": "signal:paid:1", "name": "paid", "reason": "it does not fit"},
        events.WaitWithdrawn: {"slot": "signal:paid:1"},
        events.ChildStarted: {"slot": "child:pay", "run": "r.pay", "flow": "pay"},
        events.ChildAwaited: {"slot": "child:pay:1", "run": "r.pay"},
        events.ChildEnded: {"run": "r.pay", "seq": 7, "status": "completed", "values": {"n": 2}},
    }
    header = {"node": "a", "iteration": 1} if issubclass(kind, events.NodeEvent) else {}
    return kind(**{**_plainest(kind), **header, **told.get(kind, {}), **fields})


def _plainest(kind: type[Event]) -> dict[str, Any]:
    """Return the required fields of an event kind, each with the empty value of its type (0, an empty string, an empty list)."""
    made: dict[Any, Callable[[], Any]] = {Failure: failure, Changes: Changes, Any: lambda: None, Literal: str}
    types = {field.name: field.type for field in msgspec.structs.fields(kind) if field.required}
    return {name: made.get(get_origin(one) or one, get_origin(one) or one)() for name, one in types.items()}


def failure(message: str = "broken") -> Failure:
    """Make a failure with this message."""
    return Failure("partial", "ValueError", message)


def crashed_copy(store: Store, run_id: str, seq: int, into: Store, *, snapshot_at: int | None = None) -> None:
    """Copy the events of a run up to event `seq` into another store, as if its process had died after that event. With
    `snapshot_at`, also store a snapshot of that event. The base of a fork is copied too.
    """
    rows = store.events(run_id, upto=seq)
    rewinds = tuple(
        (row.seq, open_row(row, store.blobs).event.to) for row in rows if row.kind == "RunRewound"
    )
    told = store.run(run_id)
    place = msgspec.structs.replace(told, seq=seq, rewinds=rewinds)
    state = history.load(store, run_id, seq, row=place, cold=True)
    assert state.status != "new"
    begins_after = rows[0].seq - 1
    base = store.snapshot(run_id, [(begins_after, begins_after)]) if begins_after else None
    snapshots: tuple[Snapshot, ...] = (base,) if base is not None else ()
    if snapshot_at is not None:
        body = run_state.dump(history.load(store, run_id, snapshot_at, row=place, cold=True))
        snapshots += (Snapshot(snapshot_at, pack(body)),)
    (verdict,) = into.append(
        [
            Append(
                run_id=run_id,
                expected_seq=begins_after,
                rows=tuple(rows),
                view=View(
                    status=state.status,
                    fingerprint=state.fingerprint,
                    state_version=state.state_version,
                    active=tuple(state.open)[:5],
                    rewinds=rewinds,
                ),
                create=NewRun(
                    flow=told.flow,
                    input_digest=told.input_digest,
                    created_at=told.created_at,
                    labels=told.labels,
                    parent=told.parent,
                ),
                definition=store.definition(state.fingerprint),
                snapshots=snapshots,
            )
        ]
    )
    _raise(verdict)


def _services(store: Store, holder: Holder | None) -> Services:
    luck, holdings = random.Random(0), Holdings()
    return Services(
        store=store,
        commits=Commits(InlineWriter(store)),
        clock=ManualClock(),
        luck=luck,
        salts=lambda: luck.randbytes(SALT_BYTES),
        holder=holder or Holder(id=""),
        resources={},
        inline=True,
        reading=ReadingThread(inline=True),
        haunted={},
        faults={},
        holdings=holdings,
        run_options=lambda flow, place: {"durability": "sync", **place},
        build_families=_no_families,
        listeners=Listeners(),
    )


def _no_families() -> Any:
    raise AssertionError("a history has no engine that would execute child runs")


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
