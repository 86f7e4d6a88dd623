"""What a log means: the state of a run, as the fold builds it.

It holds everything that `decide` and the engine need to carry the run on, and nothing that is not in the log.
It is plain data: a snapshot is its JSON. The fold owns it and changes it in place, because a copy per event
would make a step cost as much as the run is long.

The input of a visit is the state at its first `NodeStarted`. It is kept beside the values, sharing what is
equal: a container that an input still refers to is copied before it is changed (`shared`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core.events import Changes, Failure, NodeName, Seq, Values
from holdfast.errors import StoreCorrupt

Status: TypeAlias = Literal[
    "new", "pending", "running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"
]
NodeStatus: TypeAlias = Literal[
    "pending", "running", "waiting", "interrupted", "completed", "failed", "skipped"
]

WaitKind: TypeAlias = Literal["timer", "signal"]

# --- sets of statuses: each has one name, here ---------------------------------------------------------

GOING: frozenset[Status] = frozenset({"pending", "running", "waiting"})
"""The run continues by itself, or as soon as something that it waits for has come."""
ACTIVE: frozenset[Status] = GOING | {"paused"}
"""No event has stopped the run: `decide` has something to say about it."""
LIVE: frozenset[Status] = ACTIVE - {"pending"}
"""Nodes of the run may be running."""
UNDER_WAY: frozenset[Status] = LIVE - {"paused"}
"""A process has claimed the run and not stopped it: if no process holds it now, that one crashed, or the run only waits."""
BEGUN: frozenset[Status] = LIVE | {"interrupted"}
"""The run has begun, and neither ended nor failed."""
STUCK: frozenset[Status] = frozenset({"waiting", "paused", "failed"})
"""The run may need an operator before it continues."""
OPEN: frozenset[Status] = ACTIVE | {"interrupted", "failed"}
"""The run may continue: by itself, or when it is resumed."""
CLAIMABLE: frozenset[Status] = OPEN - {"failed"}
"""An engine may claim the run without a resume; a paused run only for a request."""
TAKEABLE: frozenset[Status] = CLAIMABLE - {"paused"}
"""A worker claims the run by itself: at once, or when its time has come."""
OFFERED: frozenset[Literal["pending", "running", "interrupted"]] = frozenset(
    {"pending", "running", "interrupted"}
)
"""A worker claims the run at once."""
FINAL: frozenset[Status] = frozenset({"completed", "cancelled"})
"""No event follows."""
ENDED: frozenset[Status] = FINAL | {"failed"}
"""The run has a result or a failure. A failed run may be resumed."""
STOPPED: frozenset[Status] = ENDED | {"interrupted"}
"""No engine does anything more about the run unless it is resumed or claimed."""
HALTED: frozenset[Status] = STOPPED - FINAL
"""The run stopped before its end, and can be resumed."""

VISIT_DONE: frozenset[NodeStatus] = frozenset({"completed", "skipped"})
"""The node has its result, or something in place of it."""
VISIT_OPEN: frozenset[NodeStatus] = frozenset({"running", "waiting", "interrupted", "failed"})
"""The visit has begun and not ended."""
VISIT_STUCK: frozenset[NodeStatus] = frozenset({"pending", "waiting", "interrupted", "failed"})
"""The visit has not ended and does not run: it may be retried or skipped."""


class Items(msgspec.Struct, omit_defaults=True, gc=False):
    """The items of a fan-out: what there is to do, and how far each has come."""

    values: list[Any]
    begun: int = 0
    """Items before this one have been started at least once."""
    done: dict[int, Changes] = {}
    running: dict[int, int] = {}
    """Item -> attempt."""
    again: dict[int, float] = {}
    """Item -> when it is tried again (0: as soon as there is room)."""
    failed: dict[int, Failure] = {}
    attempts: dict[int, int] = {}
    """Only of items that needed more than one."""
    failures: dict[int, int] = {}

    def results(self) -> list[Changes]:
        """What the items changed, in item order."""
        return [self.done[item] for item in range(len(self.values))]


NODE_LEVEL = -1
"""In place of an item, for what belongs to the node itself."""


class NodeState(msgspec.Struct, omit_defaults=True, gc=False):
    """The latest visit of a node, and what is counted over all its visits."""

    status: NodeStatus = "pending"
    iteration: int = 0
    execution: int = 1
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    """Times in a row that the process died inside this visit."""
    tries: int = 0
    """Attempts ever started, over all visits that were not rewound."""
    seconds: float = 0.0
    """Spent in attempts that ended."""
    started_at: float = 0.0
    ended_at: float = 0.0
    completed_seq: Seq = 0
    retry_at: float | None = None
    failure: Failure | None = None
    question: str | None = None
    input: Values | None = None
    """While the visit has not ended: what it was given."""
    items: Items | None = None
    routed: bool = True
    """False: completed, and its router raised."""
    kept: dict[int, dict[str, Any]] = {}
    """Item (or `NODE_LEVEL`) -> slot -> what this execution has kept: step results, the last checkpoint, what came of waits."""
    parked: dict[int, list[str]] = {}
    """Item (or `NODE_LEVEL`) that has unwound -> the slots it waits for."""
    filled: dict[int, dict[str, Wait]] = {}
    """Item (or `NODE_LEVEL`) -> slot -> the wait for a payload of a certain form that a signal has ended: it goes on if the
    node cannot use that signal.
    """
    approved: bool = False
    """An answer has let the next visit begin."""
    answer: Any = None
    """What a question node was answered."""
    cut: str = ""
    """Why the latest attempt was stopped before it ended, where that is known."""
    asked: int = 0
    """How often this visit has asked before it began."""
    fresh: int = 0
    """How often this visit was asked to be repeated with new idempotency keys."""
    streamed: int = 0
    """Chunks that this visit has streamed, as far as recorded."""
    usd: float = 0.0
    tokens: int = 0


class Question(msgspec.Struct, omit_defaults=True, gc=False):
    """A decision that the run waits for."""

    key: str
    node: NodeName
    text: str
    options: list[str]
    asked_at: float
    about: str = "interrupt"
    answer_schema: dict[str, Any] = {}
    approving: list[str] = []
    slot: str = ""
    item: int | None = None
    until: float | None = None
    on_timeout: str = "fail"
    partial: dict[str, Any] = {}


class Wait(msgspec.Struct, omit_defaults=True, gc=False):
    """A time or a signal that a visit waits for."""

    node: NodeName
    iteration: int
    execution: int
    slot: str
    item: int | None = None
    signal: str | None = None
    """The name of the signal; None where the wait is for a time only."""
    until: float | None = None
    payload_schema: dict[str, Any] = {}
    """What the payload of the signal must fit; empty: any payload does."""

    @property
    def kind(self) -> WaitKind:
        """What ends the wait. Derived: snapshots store the signal, and must keep their bytes."""
        return "timer" if self.signal is None else "signal"


class SetAside(msgspec.Struct, omit_defaults=True, gc=False):
    """A signal that a node received and could not use. It is kept for a later wait that it fits."""

    name: str
    payload: Any
    node: NodeName
    """The node that could not use it."""
    reason: str


class Warned(msgspec.Struct, omit_defaults=True, gc=False):
    """A node that failed and was safe to."""

    node: NodeName
    iteration: int
    failure: Failure


class Held(msgspec.Struct, omit_defaults=True, gc=False):
    """A completion that waits for the rest of its layer."""

    changes: Changes
    items: list[Changes] = []


class RunState(msgspec.Struct, omit_defaults=True, gc=False):
    """A run, folded."""

    run_id: str
    status: Status = "new"
    seq: Seq = 0
    at: float = 0.0
    flow: str = ""
    fingerprint: str = ""
    state_version: int = 1
    schedule: Literal["eager", "layered"] = "eager"
    created_at: float = 0.0
    asked_at: float = 0.0
    """When the run was last started or resumed: its timeout counts from here."""
    labels: dict[str, str] = {}
    options: dict[str, Any] = {}
    parent: str | None = None
    values: Values = {}
    nodes: dict[NodeName, NodeState] = {}
    open: dict[NodeName, None] = {}
    """Nodes with a visit that has begun and not ended, or whose route is undecided."""
    arrivals: dict[NodeName, int] = {}
    """Nodes that the run has reached and that have not taken it up yet, in order of arrival."""
    running: int = 0
    waiting: int = 0
    failed: dict[NodeName, None] = {}
    """Nodes that failed for good, and completed ones whose router failed."""
    paused: bool = False
    layer: int = 0
    held: dict[NodeName, Held] = {}
    writers: dict[str, dict[NodeName, Seq]] = {}
    """Plain field -> who set it last, and when: how parallel writers are found."""
    executions: dict[NodeName, dict[int, int]] = {}
    """Visits that were rewound -> how often they had been executed."""
    fresh: dict[NodeName, dict[int, int]] = {}
    """Visits that were rewound -> how often they had been asked to be repeated with new idempotency keys."""
    questions: dict[str, Question] = {}
    waits: dict[str, Wait] = {}
    """Open timers and awaited signals, oldest first, by `wait_key`."""
    signals: dict[str, list[Any]] = {}
    """Signals that no visit has taken yet, oldest first."""
    aside: list[SetAside] = []
    """Signals that a visit could not use, oldest first."""
    warnings: list[Warned] = []
    usd: float = 0.0
    tokens: int = 0
    failure: Failure | None = None
    failure_node: NodeName | None = None
    active_s: float = 0.0
    path: list[tuple[Seq, Seq]] = []
    """The stretches of the log before the current one that this state is the fold of."""
    since: Seq = 1
    """Where the current stretch begins."""

    def visit(self, name: NodeName) -> NodeState:
        """The node's state, made when it is first reached."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = NodeState()
        return node

    def shared(self, field: str, value: Any) -> bool:
        """Whether the input of an open visit still refers to this very value."""
        nodes = self.nodes
        for name in self.open:
            given = nodes[name].input
            if given is not None and given.get(field) is value:
                return True
        return False

    def next_execution(self, name: NodeName, iteration: int) -> int:
        """The number of the next execution of a visit."""
        done = self.executions.get(name)
        return done.get(iteration, 0) + 1 if done else 1

    def place(self, name: NodeName) -> tuple[int, int, int]:
        """Iteration, execution and attempt of the visit that the status of a node is about. A visit that asks before it begins,
        or has no free slot yet, is the next one of its node, and its attempt is 0.
        """
        node, is_open = self.nodes[name], name in self.open
        question = self.questions.get(node.question or "")
        asks_first = question is not None and question.about == "gate"
        if node.status in VISIT_DONE or (is_open and not asks_first):
            return node.iteration, node.execution, node.attempt
        iteration = node.iteration + (not is_open)
        return iteration, self.next_execution(name, iteration), 0

    def waiting_in_memory(self) -> list[NodeName]:
        """The running nodes that wait and have not been unwound yet; a fan-out waits if all of its running items do."""
        levels: dict[NodeName, set[int | None]] = {}
        for wait in self._awaited():
            if wait.slot:
                levels.setdefault(wait.node, set()).add(wait.item)
        found = []
        for name, waiting in levels.items():
            node = self.nodes[name]
            running: set[int | None] = {None} if node.items is None else set(node.items.running)
            if node.status == "running" and running and running <= waiting:
                found.append(name)
        return found

    def due_at(self) -> float | None:
        """The earliest time at which the run continues although nothing has come for it: a timer, a retry or a timeout."""
        if self.status not in GOING:
            return None
        times = [wait.until for wait in self._awaited()]
        for name in self.open:
            node = self.nodes[name]
            times.append(node.retry_at)
            times += [at for at in node.items.again.values() if at] if node.items is not None else []
        return min((at for at in times if at is not None), default=None)

    def _awaited(self) -> Iterator[Wait | Question]:
        yield from self.waits.values()
        yield from self.questions.values()

    def stretches(self) -> list[tuple[Seq, Seq]]:
        """The parts of the log that this state is the fold of."""
        return [*self.path, (self.since, self.seq)]


def wait_key(node: NodeName, iteration: int, execution: int, item: int | None, slot: str) -> str:
    """What a wait or a question inside a visit is called within its run."""
    place = "" if item is None else f"[{item}]"
    return f"{node}.{iteration}.{execution}{place}:{slot}"


def awaited_signals(waits: Iterable[Wait]) -> list[str]:
    """The name of the signal of each wait that is for one, in the order of the waits."""
    return [wait.signal for wait in waits if wait.signal is not None]


def stretches(rewinds: Sequence[tuple[Seq, Seq]], upto: Seq, first: Seq = 1) -> list[tuple[Seq, Seq]]:
    """The parts of a log whose fold is the state at `upto`. `rewinds`: (seq of a RunRewound, where it went back to)."""
    found: list[tuple[Seq, Seq]] = []
    for seq, to in sorted(rewinds, reverse=True):
        if seq <= upto:
            found.append((seq, upto))
            upto = to
    if upto >= first:
        found.append((first, upto))
    return found[::-1]


class _Less(msgspec.Struct, omit_defaults=True):
    """An input, as what differs from the values."""

    set: Values = {}
    unset: list[str] = []


class _Written(msgspec.Struct):
    """A snapshot as stored."""

    state: RunState
    inputs: dict[NodeName, _Less]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Written).decode


def dump(state: RunState) -> bytes:
    """A snapshot. Inputs are written as what differs from the values, so that many open visits cost little."""
    inputs: dict[NodeName, _Less] = {}
    bare = msgspec.structs.replace(state, nodes=dict(state.nodes))
    for name in state.open:
        node = state.nodes[name]
        if node.input is not None:
            inputs[name] = _less(node.input, state.values)
            bare.nodes[name] = msgspec.structs.replace(node, input=None)
    return _encode(_Written(bare, inputs))


def load(snapshot: bytes) -> RunState:
    """The state that a snapshot holds."""
    try:
        written = _decode(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise StoreCorrupt(f"a snapshot cannot be read: {fault}") from fault
    state = written.state
    for name, given in written.inputs.items():
        state.nodes[name].input = _with(given, state.values)
    return state


def _less(given: Values, values: Values) -> _Less:
    differing = {
        field: value for field, value in given.items() if field not in values or values[field] is not value
    }
    return _Less(differing, [field for field in values if field not in given])


def _with(less: _Less, values: Values) -> Values:
    return {**{field: value for field, value in values.items() if field not in less.unset}, **less.set}
