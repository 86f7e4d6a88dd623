"""The state of a run, as the fold computes it from the log.

It contains everything that `decide` and the engine need to continue the run, and nothing that is not in the log. It is plain
data: a snapshot is its JSON. The fold owns it and changes it in place, because with a copy per event a step would cost more the
longer the run is.

The input of a visit is the state at its first `NodeStarted`. It is kept beside the current values and shares equal values with
them: a container that an input still refers to is copied before it is changed (`shared`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core.budget import Budget, Spent, reached
from holdfast.core.events import Begun, Changes, Choice, Failure, NodeName, Reported, Seq, Uncleaned, Values
from holdfast.core.slots import begun_steps, result_schema
from holdfast.errors import SchemaTooNew, SettingError, StoreCorrupt

Status: TypeAlias = Literal[
    "new", "pending", "running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"
]
NodeStatus: TypeAlias = Literal[
    "pending", "running", "waiting", "interrupted", "completed", "failed", "skipped"
]

ItemStatus: TypeAlias = Literal["pending", "completed", "cancelled", "waiting", "running", "failed"]
ITEM_STATUSES: tuple[ItemStatus, ...] = (
    "completed",
    "pending",
    "cancelled",
    "waiting",
    "running",
    "failed",
)
"""The statuses of the items of a fan-out, in the order of what an operator looks for: failures come last."""
WaitKind: TypeAlias = Literal["timer", "signal", "child"]

FEW = 5
"""How many nodes, waits and retries the row of a run names; the others are counted."""

# --- named sets of statuses ----------------------------------------------------------------------------

GOING: frozenset[Status] = frozenset({"pending", "running", "waiting"})
"""Statuses in which the run continues by itself, or as soon as something that it waits for has come."""
ACTIVE: frozenset[Status] = GOING | {"paused"}
"""Statuses in which no event has stopped the run, so that `decide` may return commands for it."""
LIVE: frozenset[Status] = ACTIVE - {"pending"}
"""Statuses in which nodes of the run may be running."""
UNDER_WAY: frozenset[Status] = LIVE - {"paused"}
"""Statuses of a run that a process has claimed and not stopped. If no process holds it now, that process crashed, or the run only
waits."""
BEGUN: frozenset[Status] = LIVE | {"interrupted"}
"""Statuses of a run that has begun, and has neither ended nor failed."""
STUCK: frozenset[Status] = frozenset({"waiting", "paused", "failed"})
"""Statuses in which the run may need an operator before it continues."""
OPEN: frozenset[Status] = ACTIVE | {"interrupted", "failed"}
"""Statuses in which the run may continue, by itself or when it is resumed."""
CLAIMABLE: frozenset[Status] = OPEN - {"failed"}
"""Statuses in which an engine may claim the run without a resume; a paused run only to handle a request."""
TAKEABLE: frozenset[Status] = CLAIMABLE - {"paused"}
"""Statuses in which a worker claims the run by itself, at once or when the run is due."""
OFFERED: frozenset[Literal["pending", "running", "interrupted"]] = frozenset(
    {"pending", "running", "interrupted"}
)
"""Statuses in which a worker claims the run at once."""
FINAL: frozenset[Status] = frozenset({"completed", "cancelled"})
"""Final statuses: no event may follow."""
ENDED: frozenset[Status] = FINAL | {"failed"}
"""Statuses of a run that has a result or a failure. A failed run may be resumed."""
STOPPED: frozenset[Status] = ENDED | {"interrupted"}
"""Statuses in which no engine continues the run unless it is resumed or claimed."""
HALTED: frozenset[Status] = STOPPED - FINAL
"""Statuses of a run that stopped before its end and can be resumed."""

VISIT_DONE: frozenset[NodeStatus] = frozenset({"completed", "skipped"})
"""Statuses of a node that has its result, or a replacement for it."""
VISIT_OPEN: frozenset[NodeStatus] = frozenset({"running", "waiting", "interrupted", "failed"})
"""Statuses of a node whose visit has begun and not ended."""
VISIT_STUCK: frozenset[NodeStatus] = frozenset({"pending", "waiting", "interrupted", "failed"})
"""Statuses of a node whose visit has not ended and is not running, so that it may be retried or skipped."""

BEFORE_A_VISIT = ("gate", "repeat")
"""What a question is about (`Question.about`) if it is asked before a visit or a new execution of it begins."""


class Items(msgspec.Struct, omit_defaults=True, gc=False):
    """The items of a fan-out and the progress of each. Items are identified by their index in `values`."""

    values: list[Any]
    begun: int = 0
    """All items before this index have been started at least once, or have the result that they had in the parent of a fork."""
    done: dict[int, Changes] = {}
    running: dict[int, int] = {}
    """Running item -> the number of its attempt."""
    again: dict[int, float] = {}
    """Item -> the time at which the item is tried again (0 means as soon as the limit of the fan-out allows)."""
    failed: dict[int, Failure] = {}
    attempts: dict[int, int] = {}
    """Item -> the number of its latest attempt; only for items that needed more than one attempt or that wait."""
    failures: dict[int, int] = {}
    labels: list[str] = []

    def results(self) -> list[Changes]:
        """Return the changes of all items, in item order."""
        return [self.done[item] for item in range(len(self.values))]


NODE_LEVEL = -1
"""The key that is used in place of an item's index for data of the node itself."""


class KeptResult(msgspec.Struct, omit_defaults=True, gc=False):
    """What the function of a node has returned, if it is not accepted yet."""

    value: Any
    accepted: bool = False
    """True if an answer has accepted it."""
    artifacts: dict[str, Any] = {}


class NodeState(msgspec.Struct, omit_defaults=True, gc=False):
    """The state of a node: its latest visit, and totals over all its visits."""

    status: NodeStatus = "pending"
    iteration: int = 0
    execution: int = 1
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    """How many times in a row the process died inside this visit, while the visit kept and received nothing."""
    tries: int = 0
    """How many attempts were started over all visits that were not rewound."""
    seconds: float = 0.0
    """Total time of all attempts that ended."""
    started_at: float = 0.0
    ended_at: float = 0.0
    completed_seq: Seq = 0
    retry_at: float | None = None
    failure: Failure | None = None
    question: str | None = None
    input: Values | None = None
    """The state that the visit was given; None once the visit has ended."""
    items: Items | None = None
    routed: bool = True
    """False if the node has completed and its router raised."""
    kept: dict[int, dict[str, Any]] = {}
    """Item (or `NODE_LEVEL`) -> slot -> the kept value: a step's result, the latest checkpoint, the outcome of a wait."""
    parked: dict[int, list[str]] = {}
    """Item (or `NODE_LEVEL`) whose attempt has unwound -> the slots that the attempt waits for."""
    withdrawn: dict[int, list[str]] = {}
    """Item (or `NODE_LEVEL`) -> the slots of the waits that this execution has withdrawn."""
    filled: dict[int, dict[str, Wait]] = {}
    """Item (or `NODE_LEVEL`) -> slot -> a wait that a signal has ended, if the payload must fit a type: the wait continues if
    the node cannot use that signal.
    """
    approved: bool = False
    """True if an answer has allowed the next visit to begin."""
    answer: Any = None
    """The answer to a question node."""
    cut: str = ""
    """Why the latest attempt was stopped before it ended, if that is known."""
    asked: int = 0
    """How many times a question was asked before this visit began."""
    fresh: int = 0
    """How many times a caller asked to repeat this visit with new idempotency keys."""
    streamed: int = 0
    """How many chunks of this visit are recorded."""
    usd: float = 0.0
    tokens: int = 0
    returned: KeptResult | None = None
    """What the latest attempt has returned, if a verification or a policy has not accepted it: the visit continues with that, and
    its function is not called again."""
    routes: list[NodeName] | None = None
    """Where the run went from here, in the run of a plan; None if that is not decided."""
    unhandled: bool = False
    """True if no edge took the failure of the node."""

    @property
    def is_in_doubt(self) -> bool:
        """True if a step with `idempotent=False` was about to be called and has no outcome: if the visit is interrupted, it does
        not run again without a decision.
        """
        return any(begun_steps(kept) for kept in self.kept.values())

    def steps_in_doubt(self) -> list[DoubtfulStep]:
        """Return the steps with `idempotent=False` that were about to be called and have no outcome."""
        return [
            DoubtfulStep(step, None if level == NODE_LEVEL else level, result_schema(kept, step))
            for level, kept in self.kept.items()
            for step in begun_steps(kept)
        ]


class DoubtfulStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A step with `idempotent=False` of which it is not known whether it has happened."""

    step: str
    item: int | None = None
    result_schema: dict[str, Any] = {}
    """The JSON Schema of its result; empty if any result fits."""


HAPPENED = "happened"
"""The answer about an interrupted visit that says that one of its steps has happened, with its result."""


class Question(msgspec.Struct, omit_defaults=True, gc=False):
    """An open question that the run waits for."""

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

    @property
    def in_doubt(self) -> list[DoubtfulStep]:
        """The steps of an interrupted visit of which an answer can say that they have happened (`HAPPENED`). That answer is not
        one of `options`: a version of Holdfast that does not know it would take it for a decision to run the visit again.
        """
        return msgspec.convert(self.partial.get("in_doubt", []), list[DoubtfulStep])


class Wait(msgspec.Struct, omit_defaults=True, gc=False):
    """A time or a signal that a visit waits for."""

    node: NodeName
    iteration: int
    execution: int
    slot: str
    item: int | None = None
    signal: str | None = None
    """The name of the signal; None if the wait is only for a time."""
    until: float | None = None
    payload_schema: dict[str, Any] = {}
    """The JSON Schema that the payload of the signal must fit; empty if any payload fits."""
    child: str | None = None
    """The id of the child run whose end the visit waits for; None if it waits for something else."""
    abandons: bool = False
    """True if the child is cancelled when the time of this wait has come."""

    @property
    def kind(self) -> WaitKind:
        """What ends the wait. Derived from other fields, because a new field would change stored snapshots."""
        if self.child is not None:
            return "child"
        return "timer" if self.signal is None else "signal"


class Child(msgspec.Struct, omit_defaults=True, gc=False):
    """A child run that a visit started. It is forgotten when its end can change nothing here any more."""

    node: NodeName
    iteration: int
    execution: int
    slot: str
    """The text `child:KEY`, without the number of a wait."""
    flow: str
    item: int | None = None
    cancels: bool = False
    ended: Seq = 0
    """The seq of its latest end that is recorded here; 0 if none is."""
    end: dict[str, Any] | None = None
    """Its latest end, for the next wait: None if there is none, or if a wait has received it and the child cannot end again."""
    is_final: bool = False
    """True if the child cannot end again."""
    in_doubt: bool = False
    """True if the child may have ended without a report that is still to come: an earlier execution has started it, or the node
    failed because this child did, and was retried since. The child is looked at before the node waits."""


class SetAside(msgspec.Struct, omit_defaults=True, gc=False):
    """A signal that a node received and could not use. It is kept for a later wait that it fits."""

    name: str
    payload: Any
    node: NodeName
    """The node that could not use the signal."""
    reason: str


class Warned(msgspec.Struct, omit_defaults=True, gc=False):
    """A failure of a node that is `safe_to_fail`, kept as a warning."""

    node: NodeName
    iteration: int
    failure: Failure


class Held(msgspec.Struct, omit_defaults=True, gc=False):
    """The changes of a completed node, held back until all nodes of its layer have completed."""

    changes: Changes
    items: list[Changes] = []
    routes: list[NodeName] | None = None
    """Where the run goes from here, if that is decided already: by the edge that took the failure of the node."""


class BegunVisit(msgspec.Struct, omit_defaults=True, gc=False):
    """A visit that the parent of this fork has begun. It may begin here only after a decision (`choice`)."""

    whole: Begun | None = None
    """What the parent did of the visit as a whole; None if it is a fan-out of which only items are known."""
    items: dict[int, Begun] = {}
    choice: Choice | None = None

    @property
    def undecided(self) -> bool:
        """True if the fork has to ask before the visit begins."""
        return self.choice is None and (
            self.whole is not None or not all(one.kept for one in self.items.values())
        )

    @property
    def skips_whole(self) -> bool:
        """True if the visit is skipped. (Otherwise it begins, and a skip applies only to the items that the parent has begun.)"""
        return self.choice == "skip" and self.whole is not None

    def reused(self) -> dict[int, Changes]:
        """Return copies of the results of the items that do not run again, by item. An item without a result changes nothing."""
        skips = self.choice == "skip"
        return {item: _copy(one.result) for item, one in self.items.items() if one.kept or skips}

    def result(self) -> Changes:
        """Return a copy of the result of the visit as a whole. Without a result, it changes nothing."""
        return _copy(self.whole.result if self.whole is not None else None)

    def runs_again(self, item: int | None) -> bool:
        """Return whether the visit, or this item of it, repeats what the parent has begun, because a caller decided so."""
        return self.choice == "run" and (self.whole is not None or item in self.items)


def _copy(result: Changes | None) -> Changes:
    """Return a copy, because the values of a state take over the lists and mappings of the changes that are applied to them."""
    return deepcopy(result) if result is not None else Changes()


class RunState(msgspec.Struct, omit_defaults=True, gc=False):
    """The state of a run: the result of folding its log."""

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
    """When the run was last started or resumed, or is to begin: its timeout counts from here."""
    labels: dict[str, str] = {}
    options: dict[str, Any] = {}
    plan: bool = False
    """True if the run is one of a plan: visits get what the plan refers to, and no copy of the state."""
    budget: Budget | None = None
    """What the run may cost; None if that is not limited."""
    scope: dict[NodeName, None] | None = None
    """The nodes that may run; None if all of them may."""
    parent: str | None = None
    lineage: str = ""
    """The run from whose id idempotency keys are derived, if it is another run: see `RunForked.lineage`."""
    origin: str | None = None
    """The caller: the run that started this one."""
    depth: int = 0
    """How many callers the run has."""
    children: dict[str, Child] = {}
    """The child runs that visits have started, by id: those of open visits, those that end with this run, and those that may
    still end."""
    called: bool = False
    """True if a visit has started a child run, also if a rewind has undone that visit."""
    children_usd: float = 0.0
    """The cost of the child runs that have ended, with their own children."""
    children_tokens: int = 0
    reported: Reported | None = None
    """What the caller of this run knows of its ends; None if the run has no caller, or has not ended."""
    begun: dict[NodeName, dict[int, BegunVisit]] = {}
    """Node -> iteration -> what the parent of this fork has begun of that visit."""
    values: Values = {}
    nodes: dict[NodeName, NodeState] = {}
    open: dict[NodeName, None] = {}
    """Nodes with a visit that has begun and not ended, or whose route is undecided."""
    arrivals: dict[NodeName, int] = {}
    """Nodes that the run has reached and whose visit has not begun -> how often it has reached them, in order of arrival."""
    running: int = 0
    waiting: int = 0
    failed: dict[NodeName, None] = {}
    """Nodes that failed for good, and completed nodes whose router failed."""
    paused: bool = False
    layer: int = 0
    held: dict[NodeName, Held] = {}
    writers: dict[str, dict[NodeName, Seq]] = {}
    """Field without a reducer -> node that set it -> seq of the event. Parallel writers are detected with this."""
    executions: dict[NodeName, dict[int, int]] = {}
    """Node -> iteration that was rewound or is repeated -> how often it had been executed."""
    fresh: dict[NodeName, dict[int, int]] = {}
    """Node -> iteration that was rewound -> how often a caller had asked to repeat it with new idempotency keys."""
    questions: dict[str, Question] = {}
    waits: dict[str, Wait] = {}
    """Open timers and awaited signals, oldest first, by `wait_key`."""
    signals: dict[str, list[Any]] = {}
    """Signal name -> payloads that no visit has taken yet, oldest first."""
    aside: list[SetAside] = []
    """The signals that were set aside because a visit could not use them, oldest first."""
    warnings: list[Warned] = []
    uncleaned: list[Uncleaned] = []
    """The visits whose cleanup did not run, or not to its end, when the run was cancelled."""
    usd: float = 0.0
    tokens: int = 0
    failure: Failure | None = None
    failure_node: NodeName | None = None
    active_s: float = 0.0
    key_names: dict[NodeName, str] = {}
    """Node -> the name from which its keys are made, if that is another one: see `key_name`."""
    path: list[tuple[Seq, Seq]] = []
    """The ranges of the log, before the current one, whose events led to this state. A rewind leaves out the events that it
    undoes."""
    since: Seq = 1
    """The first seq of the current range of the log (see `path`)."""

    @property
    def is_plain(self) -> bool:
        """True if the run only executes a few nodes, or is completed: then its status needs no other explanation."""
        if self.questions or self.waits or self.failed or self.paused:
            return False
        if self.status == "running":
            is_small = 0 < self.running == len(self.open) <= FEW
            return is_small and not any(self.nodes[name].is_in_doubt for name in self.open)
        return self.status == "completed"

    @property
    def is_over_budget(self) -> bool:
        """True if a limit of the run's budget is reached, so that nothing more may begin."""
        return self.budget is not None and bool(reached(self.budget, self.spent()))

    def spent(self) -> Spent:
        """Return what the run has spent so far, its child runs included. An attempt that runs counts until the last event, as it
        would if its process had died.
        """
        active_s = self.active_s
        if self.running:
            nodes = [self.nodes[name] for name in self.open]
            active_s += sum(max(0.0, self.at - node.started_at) for node in nodes if node.status == "running")
        return Spent(self.usd + self.children_usd, self.tokens + self.children_tokens, active_s)

    def visit(self, name: NodeName) -> NodeState:
        """Return the state of a node, which is created when the run first reaches the node."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = NodeState()
        return node

    def shared(self, field: str, value: Any) -> bool:
        """Return whether the input of an open visit still refers to this value (the same object)."""
        nodes = self.nodes
        for name in self.open:
            given = nodes[name].input
            if given is not None and given.get(field) is value:
                return True
        return False

    def next_execution(self, name: NodeName, iteration: int) -> int:
        """Return the number of the next execution of a visit."""
        done = self.executions.get(name)
        return done.get(iteration, 0) + 1 if done else 1

    def begun_visit(self, name: NodeName, iteration: int) -> BegunVisit | None:
        """Return what the parent of this fork has begun of a visit; None if it has begun nothing of it."""
        visits = self.begun.get(name)
        return visits.get(iteration) if visits is not None else None

    def is_done(self, name: NodeName, iteration: int) -> bool:
        """Return whether a visit has its result, or a replacement for it. Its route may still be undecided."""
        node = self.nodes.get(name)
        if node is None or iteration > node.iteration:
            return False
        return iteration < node.iteration or name not in self.open or not node.routed

    def is_misrouted(self, name: NodeName) -> bool:
        """Return whether a node has completed, but its router raised an exception and has not been called again."""
        return name in self.failed and name in self.nodes and not self.nodes[name].routed

    def key_root(self, name: NodeName, iteration: int, item: int | None) -> str:
        """Return the run id from which the idempotency keys of a visit (or item) are derived. In a fork, it is the id of the run
        that the lineage begins with, so that a receiver recognises what the parent has sent; only a visit that a caller decided
        to repeat gets keys of its own.
        """
        if not self.lineage:
            return self.run_id
        visit = self.begun_visit(name, iteration)
        return self.run_id if visit is not None and visit.runs_again(item) else self.lineage

    def key_name(self, name: NodeName) -> str:
        """Return the name from which the keys of a node are made: idempotency keys, the ids of child runs, and the keys of
        questions and waits. A renamed node keeps the name that it had first, because services, child runs and people know those
        keys. A node that gets a name which another node has given up has a key name of its own (`pay~2`), which is the same in
        all forks and after each rewind.
        """
        return self.key_names.get(name, name)

    def name_of_key(self, key_name: str) -> NodeName:
        """Return the name of the node whose keys are made from this name. If this state does not know the node yet, because it
        came with a rename that a rewind undoes, its key name takes the place of its name.
        """
        for name, known in self.key_names.items():
            if known == key_name:
                return name
        return key_name

    def wait_key(self, node: NodeName, iteration: int, execution: int, item: int | None, slot: str) -> str:
        """Return the key of a wait or a question inside a visit, unique within its run."""
        return wait_key(self.key_name(node), iteration, execution, item, slot)

    def renewals(self) -> dict[NodeName, dict[int, int]]:
        """Return how often each visit got new idempotency keys, as node -> iteration -> count. Rewinds and forks keep this count,
        because the services that got the old keys remember them.
        """
        fresh = {name: dict(visits) for name, visits in self.fresh.items()}
        for name, node in self.nodes.items():
            if node.fresh:
                fresh.setdefault(name, {})[node.iteration] = node.fresh
        return fresh

    def place(self, name: NodeName) -> tuple[int, int, int]:
        """Return iteration, execution and attempt of the visit that the status of a node refers to. A visit that has not begun,
        because it asks first or may not start yet, has attempt 0.
        """
        node, is_open = self.nodes[name], name in self.open
        question = self.questions.get(node.question or "")
        asks_first = question is not None and question.about in BEFORE_A_VISIT
        if node.status in VISIT_DONE or (is_open and not asks_first):
            return node.iteration, node.execution, node.attempt
        iteration = node.iteration + (not is_open)
        return iteration, self.next_execution(name, iteration), 0

    def waiting_in_memory(self) -> list[NodeName]:
        """Return the running nodes that wait and have not been unwound yet. A fan-out waits if all of its running items wait."""
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
        """Return the earliest time at which the run continues by itself: it begins, a timer ends, a node is retried, or a wait
        times out.
        """
        if self.status not in GOING:
            return None
        if (
            self.status == "pending" and self.parent is None and "begin_at" in self.options
        ):  # a fork begins at once
            return float(self.options["begin_at"])
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
        """Return the ranges of the log (first and last seq) whose events led to this state."""
        return [*self.path, (self.since, self.seq)]


def visit_of(name: str, node: NodeState) -> dict[str, Any]:
    """Return the fields by which an event names the open visit of a node."""
    return {"node": name, "iteration": node.iteration, "execution": node.execution, "attempt": node.attempt}


def wait_key(key_name: str, iteration: int, execution: int, item: int | None, slot: str) -> str:
    """Return the key of a wait or a question inside a visit of the node with this key name (`RunState.key_name`)."""
    place = "" if item is None else f"[{item}]"
    return f"{key_name}.{iteration}.{execution}{place}:{slot}"


def awaited_signals(waits: Iterable[Wait]) -> list[str]:
    """Return the names of the awaited signals, in the order of the waits; timers are left out."""
    return [wait.signal for wait in waits if wait.signal is not None]


def stretches(rewinds: Sequence[tuple[Seq, Seq]], upto: Seq, first: Seq = 1) -> list[tuple[Seq, Seq]]:
    """Return the ranges of a log that led to the state at `upto`. `rewinds`: pairs (seq of a `RunRewound`, seq gone back to)."""
    found: list[tuple[Seq, Seq]] = []
    for seq, to in sorted(rewinds, reverse=True):
        if seq <= upto:
            found.append((seq, upto))
            upto = to
    if upto >= first:
        found.append((first, upto))
    return found[::-1]


class _Less(msgspec.Struct, omit_defaults=True):
    """The input of a visit, stored as its difference from the values of the state."""

    set: Values = {}
    unset: list[str] = []


class _Written(msgspec.Struct):
    """The stored form of a snapshot."""

    state: RunState
    inputs: dict[NodeName, _Less]


class _Limited(msgspec.Struct):
    """The stored form of a snapshot that older versions must not read: they would ignore a budget, a scope, a plan or key names.
    They refuse it, because it has no field `state`.
    """

    v: int
    run: RunState
    inputs: dict[NodeName, _Less]


class _Version(msgspec.Struct):
    v: int = 1


_SNAPSHOT_VERSION = 2
_NEWER = b'{"v":'
"""How a snapshot begins that says its version."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Written).decode


def dump(state: RunState) -> bytes:
    """Encode a state as a snapshot. Inputs of visits are stored as their difference from the values, so that many open visits
    need little space.
    """
    inputs: dict[NodeName, _Less] = {}
    bare = msgspec.structs.replace(state, nodes=dict(state.nodes))
    for name in state.open:
        node = state.nodes[name]
        if node.input is not None:
            inputs[name] = _less(node.input, state.values)
            bare.nodes[name] = msgspec.structs.replace(node, input=None)
    if state.plan or state.budget is not None or state.scope is not None or state.key_names:
        return _encode(_Limited(_SNAPSHOT_VERSION, bare, inputs))
    return _encode(_Written(bare, inputs))


def load(snapshot: bytes) -> RunState:
    """Decode a snapshot into the state of a run. Raises `StoreCorrupt`, and `SchemaTooNew` for one of a newer version."""
    try:
        if snapshot.startswith(_NEWER):
            limited = _read_newer(snapshot)
            state, inputs = limited.run, limited.inputs
        else:
            written = _decode(snapshot)
            state, inputs = written.state, written.inputs
    except (msgspec.MsgspecError, UnicodeDecodeError, SettingError) as fault:
        raise StoreCorrupt(
            f"a snapshot cannot be read: {fault}. `holdfast verify` lists the damage"
        ) from fault
    for name, given in inputs.items():
        state.nodes[name].input = _with(given, state.values)
    return state


def _read_newer(snapshot: bytes) -> _Limited:
    """Decode a snapshot that says its version. Raises `SchemaTooNew` if this Holdfast does not know that version."""
    version = msgspec.json.decode(snapshot, type=_Version).v
    if version > _SNAPSHOT_VERSION:
        raise SchemaTooNew(
            f"the log has a snapshot of version {version}; this Holdfast knows versions up to {_SNAPSHOT_VERSION}. Use the "
            "version of Holdfast that wrote it, or a newer one."
        )
    return msgspec.json.decode(snapshot, type=_Limited)


def _less(given: Values, values: Values) -> _Less:
    differing = {
        field: value for field, value in given.items() if field not in values or values[field] is not value
    }
    return _Less(differing, [field for field in values if field not in given])


def _with(less: _Less, values: Values) -> Values:
    return {**{field: value for field, value in values.items() if field not in less.unset}, **less.set}
