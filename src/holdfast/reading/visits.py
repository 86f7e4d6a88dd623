"""`Visits`: the visits of a run with their attempts and items, folded from its log event by event.

This is the only place that knows what an event does to an attempt: which events begin and end one, and what happens to it when
its process dies, when it waits and is woken, when the run is rewound, cancelled or resumed, and when its router raises. Receipts,
the timeline and the views of a node read the log through it. It reads events only, so the events of one visit are enough to
explain that visit; a reader that begins within a log begins with the state there (`Visits.of`). Of each node it keeps the latest
visit; a reader that wants more keeps the records that `read` returns.

- A *visit* has attempts, one after the other; `VisitRecord.attempt` is the latest one. Each item of a fan-out has attempts of its
  own, while an attempt at the node runs.
- An attempt that waits keeps its number and is woken later, so it consists of several spans. It is over when an event ends it,
  when the run is rewound or cancelled, or when its process dies while it runs. A log does not say when a process died: the span
  then ends with the last sign of life of the process, and `noticed_at` says when the death was noticed.
- Every kind of event has a row in `Visits._READS`. Without it, this module cannot be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.events import KINDS, Failure, NodeEvent, Stored
from holdfast.core.kinds import FROM_OUTSIDE
from holdfast.core.run_state import VISIT_DONE, RunState
from holdfast.reading import text
from holdfast.reading.spans import AttemptSpan, AttemptStatus

How: TypeAlias = Literal["began", "waits", "ended", "refused", "routed"]
"""What happened to an attempt. `began`: it began, or was woken. `waits`: it was suspended. `ended`: it ended, or an attempt that
had ended got another end (a failed visit was skipped). `refused`: an answer refused the visit, or none came in time. `routed`:
the router of a node that has completed raised, or has decided since."""
ReasonKind: TypeAlias = Literal["resumed", "claimed", "rewound", "retried", "answered", "retry"]
Place: TypeAlias = tuple[int, int]

ERROR_WIDTH = 300
MISROUTED = "routing failed"
"""What is said about an attempt that completed, but whose router raised an exception."""
BY_CALLERS = FROM_OUTSIDE | {"RunPaused", "RunCancelled", "StateEdited"}
"""Kinds of events that a process may record which does not execute the run."""
NODE_ENDS: dict[type[events.Event], AttemptStatus] = {
    events.NodeCompleted: "completed",
    events.NodeFailed: "failed",
    events.NodeInterrupted: "interrupted",
    events.NodeSkipped: "skipped",
}
"""Kind of event that ends an attempt at a node -> how."""
_MOTIVES: dict[str, ReasonKind] = {
    "RunResumed": "resumed",
    "RunClaimed": "claimed",
    "RunRewound": "rewound",
    "NodeScheduled": "retried",
    "QuestionAnswered": "answered",
}
MOTIVE_KINDS = tuple(_MOTIVES)
"""The kinds of events because of which attempts begin."""
_SUCCESSES = frozenset({events.NodeCompleted, events.ItemCompleted})
"""Kinds of events that say nothing about how an attempt ended: it succeeded."""
_ANSWER_WIDTH = 200


class AttemptReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt began, if it is not the first one or had to be allowed."""

    kind: ReasonKind
    """`retry`: the node's own retry policy; `retried`: a caller asked for it."""
    seq: int
    at: float
    by: str | None = None
    reason: str | None = None
    holder: str | None = None
    """The process that claimed the run."""


class AttemptRecord(msgspec.Struct, kw_only=True):
    """An attempt at a visit, or at an item of it. It changes as the log is read."""

    iteration: int
    execution: int
    number: int
    item: int | None = None
    status: AttemptStatus = "running"
    first_seq: int
    last_seq: int
    """The latest event that began or ended it, or made it wait."""
    started_at: float | None = None
    """When it began; None if the log does not say so, or if it never began."""
    ended_at: float | None = None
    """The time of the event that ended it; None while it runs or waits."""
    failure: Failure | None = None
    retry_at: float | None = None
    reason: str | None = None
    """Why it was interrupted or skipped, if the event says so."""
    by: str | None = None
    lost: bool = False
    """True if its process died, or another process took the run from it."""
    motive: AttemptReason | None = None
    """Why it began; None if the visit itself or the retry policy of the node is the reason."""
    asked: AttemptReason | None = None
    """The request of a caller that it began with; None if there was none."""
    span: AttemptSpan | None = None
    """The time in which it ran, since it began or was woken."""
    since: float | None = None
    """Since when it runs; None while it waits and when it has ended."""
    seconds: float = 0.0
    is_over: bool = False
    is_done: bool = False
    """True if its visit has completed or was skipped."""
    never_began: bool = False
    """True if the visit ended before it began: it was skipped or refused."""

    @property
    def place(self) -> Place:
        return self.iteration, self.execution

    @property
    def key(self) -> tuple[int, int, int]:
        return self.iteration, self.execution, self.number

    @property
    def is_drawn(self) -> bool:
        """True if its span has not ended."""
        return self.span is not None and self.span.ended_at is None


class VisitRecord(msgspec.Struct, kw_only=True):
    """The latest visit of a node. All attempts of one execution share its items and steps."""

    node: str
    iteration: int
    execution: int
    before: int = 0
    """The event with which the visit before this one began last, or was woken; 0 if there is none."""
    begun: int = 0
    """The event with which this visit began last, or was woken; until then, that of the visit before."""
    attempt: AttemptRecord | None = None
    """The latest attempt at the node; until the first attempt of this visit, that of the visit before."""
    items: dict[int, AttemptRecord] = {}
    """Item of a fan-out that has begun -> the latest attempt at it."""
    size: int | None = None
    """The number of items; None if they were not listed."""
    running: dict[int, None] = {}
    """The items that run, in the order in which they began."""
    waiting: set[int] = set()
    steps: dict[str, None] = {}
    steps_raised: dict[str, str] = {}
    """Step whose outcome is an exception -> the exception."""
    steps_begun: dict[str, None] = {}
    """Steps with `idempotent=False` that were about to be called and have no outcome."""
    children: dict[str, dict[str, Any]] = {}
    """Child run that the visit started -> its flow and, once it has ended, its status and cost."""
    usd: float = 0.0
    tokens: int = 0
    streamed: int = 0
    asked: AttemptReason | None = None
    """The request of a caller with which the next attempt begins."""
    gate: str | None = None
    """The slot of an open question that must be answered before the visit begins or continues."""
    motive: AttemptReason | None = None
    """The latest event of the node that is a reason for attempts to begin."""
    answer: AttemptReason | None = None
    """The latest answer to a question about this visit, or of its attempts."""

    @property
    def place(self) -> Place:
        return self.iteration, self.execution


class VisitChange(msgspec.Struct, frozen=True):
    """What an event did to an attempt."""

    how: How
    visit: VisitRecord
    attempt: AttemptRecord
    cause: str | None = None
    """Why an attempt ended that no event of its own has ended."""
    failure: Failure | None = None
    """Why the visit was refused."""


class Visits:
    """Reads the events of a log in order."""

    def __init__(self) -> None:
        self.latest: dict[str, VisitRecord] = {}
        """Node -> its latest visit."""
        self.seen_at, self.seen_seq = 0.0, 0
        """The last event that the holder of the run recorded: its last sign of life."""
        self._rewound: AttemptReason | None = None
        """Who rewound the run last, and why; None if it was not rewound."""
        self._motive: AttemptReason | None = None
        """The latest event of the run that is a reason for attempts to begin."""
        self._changes: list[VisitChange] = []

    @classmethod
    def of(cls, state: RunState) -> Visits:
        """Return the visits that are open in a state, for a reader that begins within a log. When they began is not known
        exactly.
        """
        visits = cls()
        visits.seen_at, visits.seen_seq = state.at, state.seq
        for name in state.open:
            node = state.nodes[name]
            visit = VisitRecord(node=name, iteration=node.iteration, execution=node.execution)
            visits.latest[name] = visit
            running: list[tuple[int | None, int]] = [(None, node.attempt)] if node.status == "running" else []
            if node.items is not None:
                visit.size, visit.running = len(node.items.values), dict.fromkeys(node.items.running)
                running += node.items.running.items()
            for item, number in running:
                attempt = _record(visit, number, state.seq, item=item, at=node.started_at)
                attempt.since = node.started_at
                attempt.span = _span(visit, attempt, state.seq, node.started_at)
                if item is None:
                    visit.attempt = attempt
                else:
                    visit.items[item] = attempt
        return visits

    def drawn(self) -> Iterator[AttemptRecord]:
        """Yield the attempts whose span has not ended."""
        for visit in self.latest.values():
            if visit.attempt is not None and visit.attempt.is_drawn:
                yield visit.attempt
            yield from (visit.items[item] for item in visit.running)

    def presume_dead(self) -> None:
        """End the attempts that were running when the log ended: no process executes the run any more."""
        for attempt in list(self.drawn()):
            if attempt.since is not None:
                attempt.status = "crashed"
                _end_span(attempt, "crashed", self.seen_at)

    def read(self, stored: Stored) -> list[VisitChange]:
        """Process an event. Returns what it did to attempts, in order."""
        self._changes = []
        read = self._READS[type(stored.event)]
        if read is not None:
            read(self, stored.event, stored)
        if stored.kind not in BY_CALLERS:
            self.seen_at, self.seen_seq = stored.at, stored.seq
        return self._changes

    # --- the run ---

    def _taken_over(self, event: events.RunClaimed | events.RunResumed, stored: Stored) -> None:
        """End the attempts that were running: their process died, or has lost the run. Those that wait continue."""
        status: AttemptStatus = "interrupted" if event.outlived else "crashed"
        self._cut_all(stored, "its process died", status, waiting=False)
        motive = self._motive = _motive(event, stored)
        if isinstance(event, events.RunResumed):
            for name, visit in self.latest.items():
                is_done = visit.attempt is None or visit.attempt.is_done
                if not is_done and (event.nodes is None or name in event.nodes):
                    visit.asked = motive

    def _run_rewound(self, event: events.RunRewound, stored: Stored) -> None:
        self._cut_all(stored, f"the run went back to event {event.to}", "crashed")
        self._rewound = self._motive = _motive(event, stored)
        for visit in self.latest.values():
            visit.asked = visit.gate = None

    def _run_cancelled(self, event: events.RunCancelled, stored: Stored) -> None:
        self._cut_all(stored, "the run was cancelled", "interrupted", lost=False)

    def _run_failed(self, event: events.RunFailed, stored: Stored) -> None:
        """End the spans of fan-outs whose items wait. Nothing else runs when a run fails."""
        for attempt in self.drawn():
            _end_span(attempt, "interrupted", stored.at)

    def _flow_changed(self, event: events.FlowChanged, stored: Stored) -> None:
        self.latest = {event.rename.get(name, name): visit for name, visit in self.latest.items()}
        for name, visit in self.latest.items():
            visit.node = name

    def _cut_all(
        self, stored: Stored, cause: str, status: AttemptStatus, *, waiting: bool = True, lost: bool = True
    ) -> None:
        """End every attempt that runs and, with `waiting`, those that wait. Only an attempt that ran can be lost."""
        for visit in self.latest.values():
            attempt = visit.attempt
            if attempt is not None and attempt.since is not None:
                how = status if attempt.status == "running" else attempt.status
                self._cut(visit, attempt, stored, cause, how, lost=lost)
            elif attempt is not None and waiting and not attempt.is_over:
                self._cut(visit, attempt, stored, cause, "interrupted", lost=False)

    def _cut(
        self,
        visit: VisitRecord,
        attempt: AttemptRecord,
        stored: Stored,
        cause: str | None,
        status: AttemptStatus,
        *,
        lost: bool = True,
    ) -> None:
        """End an attempt that did not end by itself, and the items that run in it. How long a lost attempt ran is not known."""
        if lost:
            attempt.since = None
        noticed_at = stored.at if lost and status == "crashed" else None
        ended_at = self.seen_at if lost else stored.at
        _end_items(visit, status, ended_at, noticed_at)
        _end_span(attempt, status, ended_at, noticed_at)
        attempt.status, attempt.lost, attempt.ended_at = status, lost, None if lost else stored.at
        self._end(visit, attempt, stored, cause)

    # --- attempts ---

    def _node_started(self, event: events.NodeStarted, stored: Stored) -> None:
        visit = self._visit(event)
        attempt = visit.attempt
        key = (event.iteration, event.execution, event.attempt)
        if attempt is None or attempt.is_done or attempt.never_began or attempt.key != key:
            if attempt is not None and not attempt.is_over:
                status = attempt.status if attempt.since is None else "crashed"
                self._cut(visit, attempt, stored, "another attempt took its place", status)
            before, attempt = attempt, _record(visit, event.attempt, stored.seq, at=stored.at)
            attempt.asked, visit.asked = visit.asked, None
            if event.execution > 1 and event.attempt == 1:
                attempt.asked = attempt.asked or self._rewound
            attempt.motive = self._why(visit, attempt, before)
            visit.attempt = attempt
        self._begin(visit, attempt, stored, woken=event.woken)
        visit.begun = stored.seq

    def _begin(
        self, visit: VisitRecord, attempt: AttemptRecord, stored: Stored, *, woken: bool = False
    ) -> None:
        attempt.status, attempt.is_over, attempt.ended_at = "running", False, None
        attempt.since, attempt.last_seq = stored.at, stored.seq
        attempt.span = _span(visit, attempt, stored.seq, stored.at, woken=woken)
        self._changes.append(VisitChange("began", visit, attempt))

    def _node_waiting(self, event: events.NodeWaiting, stored: Stored) -> None:
        visit = self._visit(event)
        if event.item is not None:
            attempt = self._item(visit, event, stored)
            visit.waiting.add(event.item)
        else:
            attempt = visit.attempt or _record(visit, event.attempt, stored.seq)
        _take(attempt, event)
        _spend(attempt, stored.at)
        _end_span(attempt, "waiting", stored.at)
        attempt.status, attempt.last_seq = "waiting", stored.seq
        self._changes.append(VisitChange("waits", visit, attempt))
        if event.item is not None:
            _rest(visit, stored.at)

    def _node_ended(self, event: NodeEvent, stored: Stored) -> None:
        status = NODE_ENDS[type(event)]
        visit, attempt = self._ended_attempt(event, stored)
        lost = bool(getattr(event, "lost", False))
        if attempt.never_began:
            attempt.number = event.attempt
        if getattr(event, "caught", False):
            if attempt.span is not None:
                attempt.span.handled = True
        elif status == "skipped" and not attempt.is_drawn:
            attempt.span = _span(visit, attempt, stored.seq, stored.at)
        _take(attempt, event)
        if lost or status == "interrupted":
            self._cut(visit, attempt, stored, None, "crashed" if lost else "interrupted", lost=lost)
            attempt.ended_at = stored.at
            return
        attempt.is_done = status in VISIT_DONE
        _end_span(attempt, status, stored.at)
        _end_items(visit, "interrupted", stored.at)
        attempt.status, attempt.lost, attempt.ended_at = status, False, stored.at
        self._end(visit, attempt, stored, None)

    def _end(self, visit: VisitRecord, attempt: AttemptRecord, stored: Stored, cause: str | None) -> None:
        _spend(attempt, stored.at)
        attempt.is_over, attempt.last_seq = True, stored.seq
        self._changes.append(VisitChange("ended", visit, attempt, cause))

    def _node_scheduled(self, event: events.NodeScheduled, stored: Stored) -> None:
        visit = self.latest.get(event.node)
        if visit is not None:
            visit.motive = _motive(event, stored)
            visit.asked = visit.motive if event.why == "retry" else visit.asked

    def _routing(self, event: events.RoutingFailed | events.NodeRouted, stored: Stored) -> None:
        """Note whether the router of a completed node raised. In a fork, the attempt may have ended in the parent run."""
        visit = self._visit(event)
        if visit.attempt is None:
            visit.attempt = _record(visit, event.attempt, stored.seq)
            visit.attempt.is_done = visit.attempt.is_over = True
        attempt = visit.attempt
        failure = attempt.failure = event.failure if isinstance(event, events.RoutingFailed) else None
        attempt.status = "completed" if failure is None else "failed"
        attempt.reason = None if failure is None else MISROUTED
        if attempt.span is not None:
            attempt.span.status = attempt.status
            attempt.span.error = None if failure is None else _error(failure, f"{MISROUTED}: ")
        self._changes.append(VisitChange("routed", visit, attempt))

    def _visit(self, event: NodeEvent) -> VisitRecord:
        """Return the visit that an event belongs to."""
        visit = self.latest.get(event.node)
        if visit is None or visit.place != (event.iteration, event.execution):
            before = visit
            visit = VisitRecord(node=event.node, iteration=event.iteration, execution=event.execution)
            if before is not None:
                visit.before = visit.begun = before.begun
                visit.asked, visit.attempt = before.asked, before.attempt
                visit.motive = before.motive
            self.latest[event.node] = visit
        return visit

    def _ended_attempt(self, event: NodeEvent, stored: Stored) -> tuple[VisitRecord, AttemptRecord]:
        """Return the attempt that an event ends. For a visit that never began, this is a new one."""
        visit = self._visit(event)
        attempt = visit.attempt
        if attempt is None or attempt.place != visit.place or attempt.is_done:
            attempt = visit.attempt = _record(visit, event.attempt, stored.seq)
            attempt.never_began = isinstance(
                event, events.NodeSkipped | events.QuestionAnswered | events.TimerFired
            )
        return visit, attempt

    def _why(
        self, visit: VisitRecord, attempt: AttemptRecord, before: AttemptRecord | None
    ) -> AttemptReason | None:
        """Return why an attempt begins: the latest motive since the attempt before it began."""
        if before is not None and (before.place != visit.place or before.number != attempt.number - 1):
            before = None
        after = before.first_seq if before is not None and before.started_at is not None else visit.before
        latest = (visit.answer,) if attempt.number == 1 else (self._motive, visit.motive)
        found = max((one for one in latest if one is not None), key=lambda one: one.seq, default=None)
        if found is not None and found.seq > after:
            return found
        if before is not None and before.retry_at is not None:
            return AttemptReason(kind="retry", seq=attempt.first_seq, at=before.retry_at)
        return None

    # --- items ---

    def _items_listed(self, event: events.ItemsListed, stored: Stored) -> None:
        visit = self._visit(event)
        visit.size, visit.items, visit.running, visit.waiting = len(event.items), {}, {}, set()

    def _item_started(self, event: events.ItemStarted, stored: Stored) -> None:
        visit = self._visit(event)
        before = visit.items.get(event.item)
        item = self._item(visit, event, stored)
        if item is not before:
            item.started_at, item.motive = stored.at, self._why(visit, item, before)
        visit.running[event.item], item.failure = None, None
        self._begin(visit, item, stored)
        _rest(visit, stored.at)

    def _item_ended(self, event: events.ItemCompleted | events.ItemFailed, stored: Stored) -> None:
        visit = self._visit(event)
        item = self._item(visit, event, stored)
        _take(item, event)
        item.status = "failed" if item.failure is not None else "completed"
        _end_span(item, item.status, stored.at)
        item.ended_at = stored.at
        self._end(visit, item, stored, None)
        _rest(visit, stored.at)

    def _item(self, visit: VisitRecord, event: Any, stored: Stored) -> AttemptRecord:
        item = visit.items.get(event.item)
        if item is None or item.number != event.attempt:
            item = visit.items[event.item] = _record(visit, event.attempt, stored.seq, item=event.item)
        visit.running.pop(event.item, None)
        visit.waiting.discard(event.item)
        return item

    # --- inside a visit ---

    def _step_completed(self, event: events.StepCompleted, stored: Stored) -> None:
        _keep(self._visit(event), step_name(event))

    def _step_started(self, event: events.StepStarted, stored: Stored) -> None:
        self._visit(event).steps_begun[step_name(event)] = None

    def _step_failed(self, event: events.StepFailed, stored: Stored) -> None:
        visit, step = self._visit(event), step_name(event)
        visit.steps_begun.pop(step, None)
        if event.retry_at is None:
            visit.steps_raised[step] = f"{event.failure.type}: {event.failure.message}"

    def _child_started(self, event: events.ChildStarted, stored: Stored) -> None:
        self._visit(event).children[event.run] = {"flow": event.flow, "status": None, "usd": 0.0, "tokens": 0}

    def _child_ended(self, event: events.ChildEnded, stored: Stored) -> None:
        for visit in self.latest.values():
            child = visit.children.get(event.run)
            if child is not None:
                child["status"] = event.status
                child["usd"] += event.usd
                child["tokens"] += event.tokens

    def _cost(self, event: events.CostIncurred, stored: Stored) -> None:
        visit = self._visit(event)
        visit.usd += event.usd
        visit.tokens += event.tokens

    def _streamed(self, event: events.NodeStreamed, stored: Stored) -> None:
        self._visit(event).streamed += len(event.chunks)

    # --- questions ---

    def _asked(self, event: events.QuestionAsked, stored: Stored) -> None:
        """Note a question that must be answered before the visit begins, or before the result of its attempt is used."""
        if event.about == "ask":
            return
        visit = self._visit(event)
        visit.gate = event.slot
        if event.about == "result" and visit.attempt is not None:
            visit.attempt.status = "waiting"  # receipts count the wait as time in which it ran
            _end_span(visit.attempt, "waiting", stored.at)
            self._changes.append(VisitChange("waits", visit, visit.attempt))

    def _answered(self, event: events.QuestionAnswered, stored: Stored) -> None:
        """End the visit if the answer refuses it; any other answer lets the visit begin or continue."""
        visit = self._visit(event)
        motive = visit.motive = visit.answer = _motive(event, stored)
        if event.stated is not None:
            _keep(visit, step_name(event.stated))
        if visit.gate is None:
            return
        visit.gate, visit.asked = None, motive
        if event.refused:
            answer = msgspec.json.encode(event.answer).decode()
            said = answer if len(answer) <= _ANSWER_WIDTH else f"{answer[:_ANSWER_WIDTH]}…"
            self._refuse(event, stored, Failure("fatal", "QuestionRefused", f"the answer was {said}"))

    def _time_over(self, event: events.TimerFired, stored: Stored) -> None:
        visit = self.latest.get(event.node)
        if visit is not None and visit.gate is not None and visit.gate == event.slot:
            visit.gate = None
            self._refuse(event, stored, Failure("partial", "QuestionTimeout", "nobody answered in time"))

    def _refuse(self, event: NodeEvent, stored: Stored, failure: Failure) -> None:
        visit, attempt = self._ended_attempt(event, stored)
        _spend(attempt, stored.at)
        attempt.is_over, attempt.status = True, "failed" if attempt.never_began else attempt.status
        self._changes.append(VisitChange("refused", visit, attempt, failure=failure))

    _READS: ClassVar[dict[type[events.Event], Callable[[Visits, Any, Stored], None] | None]] = {
        events.RunClaimed: _taken_over,
        events.RunResumed: _taken_over,
        events.RunRewound: _run_rewound,
        events.RunCancelled: _run_cancelled,
        events.RunFailed: _run_failed,
        events.FlowChanged: _flow_changed,
        events.NodeScheduled: _node_scheduled,
        events.NodeStarted: _node_started,
        events.NodeWaiting: _node_waiting,
        events.NodeRouted: _routing,
        events.RoutingFailed: _routing,
        events.ItemsListed: _items_listed,
        events.ItemStarted: _item_started,
        events.ItemCompleted: _item_ended,
        events.ItemFailed: _item_ended,
        events.StepCompleted: _step_completed,
        events.StepStarted: _step_started,
        events.StepFailed: _step_failed,
        events.ChildStarted: _child_started,
        events.ChildEnded: _child_ended,
        events.CostIncurred: _cost,
        events.NodeStreamed: _streamed,
        events.QuestionAsked: _asked,
        events.QuestionAnswered: _answered,
        events.TimerFired: _time_over,
        **dict.fromkeys(NODE_ENDS, _node_ended),
        **dict.fromkeys(
            (
                events.RunCreated, events.RunForked, events.RunPaused, events.RunInterrupted, events.RunCompleted,
                events.RequestRefused, events.ResumeRefused, events.StateEdited, events.StateUpgraded, events.LayerCompleted,
                events.GuardEvaluated, events.NodesSkipped, events.PolicyDecided, events.OutputVerified, events.NodeReturned,
                events.NodeCheckpointed, events.TimerSet, events.SignalAwaited, events.SignalReceived, events.SignalSetAside,
                events.WaitWithdrawn, events.ChildAwaited,
            )
        ),
    }  # fmt: skip
    """Kind of event -> what it does to attempts; None if it does nothing to any. Every kind has a row."""


_LACKING = KINDS.keys() - {kind.__name__ for kind in Visits._READS}  # noqa: SLF001
if _LACKING:
    raise AssertionError(
        f"reading/visits.py: Visits._READS must say what every kind of event does to attempts; lacking: {sorted(_LACKING)}"
    )


def step_name(
    event: events.StepCompleted | events.StepStarted | events.StepFailed | events.StatedStep,
) -> str:
    """Return the name of a step, with its item if it is of one."""
    return event.step if event.item is None else f"{event.step}[{event.item}]"


def _keep(visit: VisitRecord, step: str) -> None:
    visit.steps[step] = None
    visit.steps_begun.pop(step, None)


def _motive(event: Any, stored: Stored) -> AttemptReason:
    return AttemptReason(
        kind=_MOTIVES[stored.kind], seq=stored.seq, at=stored.at, by=getattr(event, "by", None),
        reason=getattr(event, "reason", None), holder=getattr(event, "holder", None) or None,
    )  # fmt: skip


def _record(
    visit: VisitRecord, number: int, seq: int, *, item: int | None = None, at: float | None = None
) -> AttemptRecord:
    return AttemptRecord(
        iteration=visit.iteration, execution=visit.execution, number=number, item=item, first_seq=seq, last_seq=seq,
        started_at=at,
    )  # fmt: skip


def _take(attempt: AttemptRecord, event: Any) -> None:
    """Note what the event says that ends an attempt."""
    attempt.failure = attempt.retry_at = attempt.reason = attempt.by = None
    if type(event) not in _SUCCESSES:
        attempt.failure = getattr(event, "failure", None) or getattr(event, "warning", None)
        attempt.retry_at, attempt.reason = getattr(event, "retry_at", None), getattr(event, "reason", None)
        attempt.by = getattr(event, "by", None)


def _rest(visit: VisitRecord, at: float) -> None:
    """Stop the clock of a fan-out while none of its items runs and at least one waits."""
    attempt = visit.attempt
    if attempt is None:
        return
    if visit.running:
        if attempt.since is None:
            attempt.since, attempt.status = at, "running"
    elif visit.waiting:
        _spend(attempt, at)
        attempt.status = "waiting"


def _spend(attempt: AttemptRecord, at: float) -> None:
    if attempt.since is not None:
        attempt.seconds += max(0.0, at - attempt.since)
        attempt.since = None


def _span(
    visit: VisitRecord, attempt: AttemptRecord, seq: int, at: float, *, woken: bool = False
) -> AttemptSpan:
    return AttemptSpan(
        seq=seq, node=visit.node, iteration=attempt.iteration, execution=attempt.execution, attempt=attempt.number,
        item=attempt.item, status="running", started_at=at, woken=woken,
    )  # fmt: skip


def _end_items(visit: VisitRecord, status: AttemptStatus, at: float, noticed_at: float | None = None) -> None:
    """End the items that run, with the attempt at their node."""
    for number in visit.running:
        item = visit.items[number]
        item.status, item.since = status, None
        _end_span(item, status, at, noticed_at)
    visit.running.clear()


def _end_span(
    attempt: AttemptRecord, status: AttemptStatus, at: float, noticed_at: float | None = None
) -> None:
    span = attempt.span
    if span is None or span.ended_at is not None:
        return
    span.status, span.ended_at, span.noticed_at = status, max(at, span.started_at), noticed_at
    if status in ("failed", "skipped"):
        span.error = None if attempt.failure is None else _error(attempt.failure)
        span.retry_at = attempt.retry_at


def _error(failure: Failure, before: str = "") -> str:
    return text.one_line(before + failure.describe(), ERROR_WIDTH)
