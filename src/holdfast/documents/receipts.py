"""Makes receipts and handoffs: JSON documents about every attempt at a node, computed from the log.

A *receipt* says how an attempt ended; a *handoff* says what it passed on, to which next nodes and why. `Book` reads a log event
by event and returns the documents that each event produces. It decides their content and names, and uses neither clock nor disk:
the same log gives the same bytes, so that every file can be made again. `scribe` writes the files.

- A document is written under its full name, `<node>-<agent>.<iteration>.<execution>.<attempt>.json`; the plain name
  `<node>-<agent>.json` is a copy of the latest. Attempt 0 is a visit that ended before it began.
- The node, agent and attempt of a document are inside it; nothing is ever read from its name.
- Only the same attempt writes its document again (it failed and was skipped later; its route was decided later), and facts that
  were known before stay in it. Any other document that would get the same name gets another name.
- Documents are made in the order of the log. Attempts that a rewind undid have happened, and keep their documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.definition import Definition, Edge
from holdfast.core.events import VALUE_PARTS, Changes, Failure, NodeEvent, Stored
from holdfast.core.kinds import CHECKPOINTS
from holdfast.documents import run_folder
from holdfast.documents.run_folder import ARTIFACTS, HANDOFFS, RECEIPTS, RUN_FILE
from holdfast.reading import text
from holdfast.storage.contract import RunRow

FORMAT = 1
"""The format version of all documents. It is increased when the meaning of a field changes."""
SMALL_BYTES = 200
"""A handoff contains values of up to this many bytes; for a larger value it has only the size and the digest."""

Lookup: TypeAlias = Callable[[str], Definition | None]
"""Returns the flow definition with this fingerprint; None if it is unknown."""
Written: TypeAlias = bytes
Key: TypeAlias = tuple[int, int, int]


class Listed(msgspec.Struct, frozen=True):
    """Size and digest of a document, as run.json lists it."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, content: Written) -> Listed:
        return cls(len(content), sha256(content).hexdigest())


class _Item(msgspec.Struct):
    """The progress of one item of a fan-out node."""

    status: str = "running"
    attempt: int = 1
    seq: int = 0
    failure: Failure | None = None
    changes: dict[str, Any] = {}
    artifacts: dict[str, Any] = {}


class _Attempt(msgspec.Struct):
    """One attempt at a node, and the paths of its documents if it has any."""

    key: Key
    first_seq: int
    started_at: float | None = None
    since: float | None = None
    """The time at which the attempt began or last continued; None while it waits and after it has ended."""
    seconds: float = 0.0
    ended: bool = False
    ended_at: float | None = None
    """When it ended; None if that is not known."""
    asked: dict[str, Any] | None = None
    """Who requested the attempt, and why; None if the engine started it."""
    facts: dict[str, Any] = {}
    """Facts from the event that ended the attempt."""
    receipt: str = ""
    handoff: str = ""
    handed: dict[str, Any] = {}
    decided: bool = False


class _Visit(msgspec.Struct):
    """The latest visit of a node, with all attempts of it."""

    iteration: int = 0
    execution: int = 1
    attempt: _Attempt | None = None
    items: dict[int, _Item] = {}
    steps: dict[str, None] = {}
    steps_raised: dict[str, str] = {}
    """Step whose outcome is an exception -> the exception."""
    steps_begun: dict[str, None] = {}
    """Steps with `idempotent=False` that were about to be called and have no outcome."""
    children: dict[str, dict[str, Any]] = {}
    """Child run that the visit started -> its flow and, once it has ended, its status and cost."""
    running: set[int] = set()
    waiting: set[int] = set()
    changes: list[Changes] = []
    """The changes that the items of a fan-out made to the state."""
    usd: float = 0.0
    tokens: int = 0
    streamed: int = 0
    asked: dict[str, Any] | None = None
    """Who requested the next attempt, and why; None if no caller did."""
    gate: str | None = None
    """The slot of an open question that must be answered before the visit begins or continues."""


def documents(run: RunRow, log: Iterable[Stored], lookup: Lookup, fingerprint: str = "") -> dict[str, bytes]:
    """Return every document of a run, by its path within the run's folder. The result depends only on the log. For a fork,
    `fingerprint` is that of the flow with which its log begins.
    """
    book = Book(run.run_id, run.flow, lookup, fingerprint)
    made: dict[str, bytes] = {}
    for stored in log:
        made.update(book.observe(stored))
    return {**made, **book.latest, RUN_FILE: book.run_document(run)}


def encode(document: dict[str, Any]) -> bytes:
    """Encode a document as JSON. Equal documents give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def instant(at: float | None) -> str | None:
    """Format a time as documents have it: ISO 8601 in UTC, with microseconds."""
    return (
        None
        if at is None
        else datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def summary(changes: Iterable[Changes], *, small_bytes: int = 0) -> dict[str, Any]:
    """Summarize changes of a state: for each field the size and digest of its new value, and the value itself if it has at most
    `small_bytes`. Several values for one field (from the items of a fan-out) are summarized together.
    """
    given: dict[str, dict[str, list[Any]]] = {}
    for part in changes:
        for how in VALUE_PARTS:
            for field, value in getattr(part, how).items():
                given.setdefault(how, {}).setdefault(field, []).append(value)
        for field in part.unset:
            given.setdefault("unset", {})[field] = []
    return {
        how: {field: _digest(values, small_bytes) for field, values in fields.items()}
        for how, fields in given.items()
    }


def _digest(values: list[Any], small_bytes: int) -> dict[str, Any]:
    written = b"\n".join(msgspec.json.encode(value, order="sorted") for value in values)
    told: dict[str, Any] = {"bytes": len(written), "sha256": sha256(written).hexdigest()}
    if len(values) > 1:
        told["values"] = len(values)
    elif values and len(written) <= small_bytes:
        told["value"] = values[0]
    return told


class Book:
    """Reads the events of a log in order, and makes the documents that each event produces."""

    def __init__(self, run_id: str, flow: str, lookup: Lookup, fingerprint: str = "") -> None:
        self.run_id = run_id
        self.flow = flow
        self.seq = 0
        self.files: dict[str, Listed] = {}
        """Size and digest of every document so far, listed under its full name and under its plain name."""
        self.latest: dict[str, bytes] = {}
        """Plain name of a file (`<node>-<agent>.json`) -> the latest document with that name."""
        self._lookup = lookup
        self._fingerprint = fingerprint
        self._definition = lookup(fingerprint) if fingerprint else None
        self._visits: dict[str, _Visit] = {}
        self._stems: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        """The beginnings of file names (`<node>-<agent>`) in use, in lower case, because some file systems ignore case."""
        self._inherited: dict[tuple[str, int, int | None], Changes] = {}
        """For a fork: node, iteration and item -> the result that its parent had, which the fork may use."""
        self._went_back: dict[str, Any] | None = None
        """Who rewound the run last, and why; None if it was not rewound."""
        self._refused: list[dict[str, Any]] = []
        """The requests to the run that were refused, oldest first."""
        self._layers: list[tuple[int, int]] = []
        """Seq of an event -> how many layers of a layered run are complete from there on. Empty for an eager run, and for a fork
        until its log says so."""
        self._made: dict[str, bytes] = {}
        self._plain: dict[str, str] = {}

    def observe(self, stored: Stored) -> dict[str, bytes]:
        """Process an event. Returns the documents that it produces, by full name."""
        self._made, self._plain = {}, {}
        self.seq = stored.seq
        handler = self._HANDLERS.get(type(stored.event))
        if handler is not None:
            handler(self, stored.event, stored)
        return self._made

    def plain_of(self, path: str) -> str:
        """Return the plain name of a document that the last event produced."""
        return self._plain[path]

    def run_document(self, run: RunRow) -> bytes:
        """Return run.json: the facts about the run and the list of its files. `run` is its row as of the last event observed."""
        told = {
            name: getattr(run, name) for name in ("run_id", "flow", "status", "labels", "parent", "error")
        }
        if self._refused:
            told["refused"] = self._refused
        return encode(
            {
                **told,
                "kind": "run",
                "format": FORMAT,
                "fingerprint": run.fingerprint,
                "state_version": run.state_version,
                "created_at": instant(run.created_at),
                "updated_at": instant(run.updated_at),
                "seq": self.seq,
                "checkpoint": f"{self.run_id}@{self.seq}",
                "files": self.files,
            }
        )

    # --- runs and flows -------------------------------------------------------------------------------

    def _created(self, event: events.RunCreated, stored: Stored) -> None:
        self._use(event.fingerprint)
        if event.schedule == "layered":
            self._layers.append((stored.seq, 0))

    def _request_refused(self, event: events.RequestRefused, stored: Stored) -> None:
        said = {"verb": event.verb, "by": event.by, "reason": event.reason}
        self._refused.append(said | {"request": event.request, "at": instant(stored.at)})

    def _flow_changed(self, event: events.FlowChanged, stored: Stored) -> None:
        self._use(event.fingerprint)
        self._visits = {event.rename.get(name, name): visit for name, visit in self._visits.items()}

    def _use(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        self._definition = self._lookup(fingerprint)

    def _taken_up(self, event: events.RunClaimed | events.RunResumed, stored: Stored) -> None:
        """Handle a claim of the run by another process: attempts that were running were interrupted at an unknown time."""
        self._cut_all(stored, waiting=False, reason="its process died")
        if isinstance(event, events.RunResumed):
            for name, visit in self._visits.items():
                ended_badly = visit.attempt is not None and not visit.attempt.decided
                if ended_badly and (event.nodes is None or name in event.nodes):
                    visit.asked = _by_and_reason(event)

    def _rewound(self, event: events.RunRewound, stored: Stored) -> None:
        self._cut_all(stored, waiting=True, reason=f"the run went back to event {event.to}")
        self._went_back = _by_and_reason(event)
        before = [complete for seq, complete in self._layers if seq <= event.to]
        self._layers += [(stored.seq, before[-1])] if before else []
        for visit in self._visits.values():
            visit.asked = visit.gate = None

    def _cancelled(self, event: events.RunCancelled, stored: Stored) -> None:
        self._cut_all(stored, waiting=True, reason="the run was cancelled", lost=False)
        for left in event.uncleaned:
            visit = self._visits.get(left.node)
            if visit is not None and visit.attempt is not None:
                self._add_uncleaned(left, visit, visit.attempt, stored)

    def _add_uncleaned(
        self, left: events.Uncleaned, visit: _Visit, attempt: _Attempt, stored: Stored
    ) -> None:
        """Say in the receipt of an attempt that its cleanup was not done. When it ended is known already."""
        ended_at = attempt.ended_at
        uncleaned = [*attempt.facts.get("uncleaned", ()), text.not_cleaned_up(left)]
        self._end(left.node, visit, attempt, stored, status="interrupted", at=ended_at, uncleaned=uncleaned)

    def _cut_all(self, stored: Stored, *, waiting: bool, reason: str, lost: bool = True) -> None:
        for name, visit in self._visits.items():
            attempt = visit.attempt
            if attempt is not None and not attempt.ended and (waiting or attempt.since is not None):
                self._cut(name, visit, attempt, stored, reason, lost=lost and attempt.since is not None)

    def _cut(
        self, name: str, visit: _Visit, attempt: _Attempt, stored: Stored, reason: str, *, lost: bool
    ) -> None:
        if lost:
            attempt.since = None
        for number in visit.running:
            visit.items[number].status = "interrupted"
        visit.running.clear()
        at = None if lost else stored.at
        self._end(name, visit, attempt, stored, status="interrupted", at=at, reason=reason, lost=lost)

    # --- attempts -------------------------------------------------------------------------------------

    def _scheduled(self, event: events.NodeScheduled, stored: Stored) -> None:
        if event.why == "retry" and event.node in self._visits:
            self._visits[event.node].asked = _by_and_reason(event)

    def _started(self, event: events.NodeStarted, stored: Stored) -> None:
        visit = self._visit(event)
        attempt = visit.attempt
        key = (event.iteration, event.execution, event.attempt)
        if attempt is None or attempt.key != key or attempt.decided:
            if attempt is not None and not attempt.ended:
                self._cut(event.node, visit, attempt, stored, "another attempt took its place", lost=True)
            asked, visit.asked = visit.asked, None
            if event.execution > 1 and event.attempt == 1:
                asked = asked or self._went_back
            attempt = visit.attempt = _Attempt(key, stored.seq, stored.at, asked=asked)
        attempt.since = stored.at  # also if the same attempt was woken after a wait
        attempt.ended = False

    def _visit(self, event: NodeEvent) -> _Visit:
        """Return the visit that an event belongs to. All attempts of one execution share its items and steps."""
        visit = self._visits.get(event.node)
        if visit is None:
            visit = self._visits[event.node] = _Visit(event.iteration, event.execution)
        elif (visit.iteration, visit.execution) != (event.iteration, event.execution):
            before, visit = visit, _Visit(event.iteration, event.execution)
            visit.asked, visit.attempt = before.asked, before.attempt
            self._visits[event.node] = visit
        return visit

    def _attempt(self, event: NodeEvent, stored: Stored) -> tuple[_Visit, _Attempt]:
        """Return the attempt that an event ends. For a visit that never began, this is a new attempt with number 0."""
        visit = self._visit(event)
        attempt = visit.attempt
        key = (event.iteration, event.execution, event.attempt)
        if attempt is None or attempt.key[:2] != key[:2] or attempt.decided:
            never_begun = isinstance(event, (events.NodeSkipped, events.QuestionAnswered, events.TimerFired))
            attempt = visit.attempt = _Attempt((*key[:2], 0) if never_begun else key, stored.seq)
        return visit, attempt

    def _waiting(self, event: events.NodeWaiting, stored: Stored) -> None:
        visit = self._visit(event)
        if event.item is not None:
            self._item(event, stored, "waiting")
        elif visit.attempt is not None:
            _spend(visit.attempt, stored.at)

    def _forked(self, event: events.RunForked, stored: Stored) -> None:
        self._inherited = {
            (one.node, one.iteration, one.item): one.result for one in event.visits if one.result is not None
        }

    def _completed(self, event: events.NodeCompleted, stored: Stored) -> None:
        visit, attempt = self._attempt(event, stored)
        for number, item in visit.items.items():
            if item.status == "pending":  # the item did not run here: the fork uses the result of its parent
                result = self._inherited.get((event.node, event.iteration, number), Changes())
                item.status, item.changes, visit.changes[number] = "inherited", summary([result]), result
        artifacts = event.artifacts
        own = summary([event.changes])
        self._end(event.node, visit, attempt, stored, status="succeeded", changes=own, artifacts=artifacts)
        changes = [*visit.changes, event.changes] if event.items else [event.changes]
        visit.changes = []
        self._hand_over(event.node, visit, attempt, stored, changes, event.routes, artifacts=artifacts)

    def _skipped(self, event: events.NodeSkipped, stored: Stored) -> None:
        visit, attempt = self._attempt(event, stored)
        said: dict[str, Any] = {"by": event.by, "reason": event.reason, "changes": summary([event.changes])}
        if event.warning is not None:
            said["failure"] = event.warning
        self._end(event.node, visit, attempt, stored, status="skipped", **said)
        self._hand_over(
            event.node,
            visit,
            attempt,
            stored,
            [event.changes],
            event.routes,
            decided="skip",
            by=event.by,
            reason=event.reason,
        )

    def _failed(self, event: events.NodeFailed, stored: Stored) -> None:
        visit, attempt = self._attempt(event, stored)
        self._end(
            event.node,
            visit,
            attempt,
            stored,
            status="failed",
            failure=event.failure,
            retry_at=instant(event.retry_at),
        )

    def _interrupted(self, event: events.NodeInterrupted, stored: Stored) -> None:
        visit, attempt = self._attempt(event, stored)
        self._cut(event.node, visit, attempt, stored, event.reason, lost=event.lost)

    def _end(
        self,
        name: str,
        visit: _Visit,
        attempt: _Attempt,
        stored: Stored,
        *,
        status: str,
        at: float | None = -1.0,
        **said: Any,
    ) -> None:
        """Make the receipt of an attempt that has ended: at the time of the event, unless another one is given, or None because
        it is not known. If the attempt had a receipt before (it failed and was skipped later), facts in it stay unless they are
        replaced.
        """
        _spend(attempt, stored.at)
        attempt.ended, attempt.ended_at = True, stored.at if at == -1.0 else at
        attempt.facts = {**attempt.facts, **said} if status != "succeeded" else said
        checkpoint = f"{self.run_id}@{stored.seq}" if stored.kind in CHECKPOINTS else None
        facts = {
            "asked": attempt.asked,
            "by": None,
            "reason": None,
            "failure": None,
            "retry_at": None,
            "lost": False,
            "changes": {},
            "artifacts": {},
            **attempt.facts,
            "status": status,
            "seq": {"first": attempt.first_seq, "last": stored.seq},
            "checkpoint": checkpoint,
            "started_at": instant(attempt.started_at),
            "ended_at": None if attempt.ended_at is None else instant(attempt.ended_at),
            "seconds": round(attempt.seconds, 6),
            "steps": list(visit.steps),
            "cost": {"usd": visit.usd, "tokens": visit.tokens},
            "streamed": visit.streamed,
        }
        if self._layers:
            facts["layer"] = self._layers[-1][1] + 1
        if visit.steps_raised:
            facts["steps_raised"] = visit.steps_raised
        if visit.steps_begun:
            facts["steps_begun"] = list(visit.steps_begun)
        if visit.children:
            facts["children"] = visit.children
        if visit.items:
            facts["items"] = [
                {"item": number, **msgspec.structs.asdict(item)}
                for number, item in sorted(visit.items.items())
            ]
        if facts["artifacts"]:
            facts["artifacts_folder"] = f"{ARTIFACTS}/{run_folder.part(name)}"
        attempt.receipt = self._put(RECEIPTS, name, attempt, attempt.receipt, facts)

    # --- inside a visit -------------------------------------------------------------------------------

    def _items_listed(self, event: events.ItemsListed, stored: Stored) -> None:
        visit = self._visit(event)
        visit.items = {number: _Item("pending", 0) for number in range(len(event.items))}
        visit.changes = [Changes()] * len(event.items)

    def _item_started(self, event: events.ItemStarted, stored: Stored) -> None:
        self._item(event, stored, "running")

    def _item_completed(self, event: events.ItemCompleted, stored: Stored) -> None:
        item = self._item(event, stored, "succeeded")
        item.changes = summary([event.changes])
        item.artifacts = getattr(event, "artifacts", {})
        self._visit(event).changes[event.item] = event.changes

    def _item_failed(self, event: events.ItemFailed, stored: Stored) -> None:
        self._item(event, stored, "failed").failure = event.failure

    def _item(self, event: Any, stored: Stored, status: str) -> _Item:
        item = self._visit(event).items.setdefault(event.item, _Item())
        visit = self._visit(event)
        visit.running.discard(event.item)
        visit.waiting.discard(event.item)
        if status == "running":
            visit.running.add(event.item)
        elif status == "waiting":
            visit.waiting.add(event.item)
        item.status, item.attempt, item.seq, item.failure = status, event.attempt, stored.seq, None
        attempt = visit.attempt
        if attempt is not None and visit.running and attempt.since is None:
            attempt.since = stored.at
        elif attempt is not None and visit.waiting and not visit.running:
            _spend(attempt, stored.at)  # no item runs and at least one waits, so the whole fan-out waits
        return item

    def _step(self, event: events.StepCompleted, stored: Stored) -> None:
        visit, step = self._visit(event), _step_name(event)
        visit.steps[step] = None
        visit.steps_begun.pop(step, None)

    def _child_started(self, event: events.ChildStarted, stored: Stored) -> None:
        self._visit(event).children[event.run] = {"flow": event.flow, "status": None, "usd": 0.0, "tokens": 0}

    def _child_ended(self, event: events.ChildEnded, stored: Stored) -> None:
        for visit in self._visits.values():
            child = visit.children.get(event.run)
            if child is not None:
                child["status"] = event.status
                child["usd"] += event.usd
                child["tokens"] += event.tokens

    def _step_started(self, event: events.StepStarted, stored: Stored) -> None:
        self._visit(event).steps_begun[_step_name(event)] = None

    def _step_failed(self, event: events.StepFailed, stored: Stored) -> None:
        visit, step = self._visit(event), _step_name(event)
        visit.steps_begun.pop(step, None)
        if event.retry_at is None:
            visit.steps_raised[step] = f"{event.failure.type}: {event.failure.message}"

    def _cost(self, event: events.CostIncurred, stored: Stored) -> None:
        visit = self._visit(event)
        visit.usd += event.usd
        visit.tokens += event.tokens

    def _streamed(self, event: events.NodeStreamed, stored: Stored) -> None:
        self._visit(event).streamed += len(event.chunks)

    # --- questions ------------------------------------------------------------------------------------

    def _asked(self, event: events.QuestionAsked, stored: Stored) -> None:
        if event.about != "ask":
            self._visit(event).gate = event.slot

    def _answered(self, event: events.QuestionAnswered, stored: Stored) -> None:
        """End the visit if the answer refuses it; any other answer lets the visit begin or continue."""
        visit = self._visit(event)
        if event.stated is not None:
            step = _step_name(event.stated)
            visit.steps[step] = None
            visit.steps_begun.pop(step, None)
        if visit.gate is None:
            return
        visit.gate, visit.asked = None, _by_and_reason(event)
        if event.refused:
            told = Failure("fatal", "QuestionRefused", f"the answer was {_show(event.answer)}")
            self._refuse(event, stored, told, by=event.by, reason=event.reason)

    def _time_over(self, event: events.TimerFired, stored: Stored) -> None:
        visit = self._visits.get(event.node)
        if visit is not None and visit.gate is not None and visit.gate == event.slot:
            visit.gate = None
            self._refuse(event, stored, Failure("partial", "QuestionTimeout", "nobody answered in time"))

    def _refuse(self, event: NodeEvent, stored: Stored, failure: Failure, **said: Any) -> None:
        visit, attempt = self._attempt(event, stored)
        self._end(event.node, visit, attempt, stored, status="failed", failure=failure, **said)

    # --- handoffs -------------------------------------------------------------------------------------

    def _hand_over(
        self,
        name: str,
        visit: _Visit,
        attempt: _Attempt,
        stored: Stored,
        changes: list[Changes],
        routes: list[str] | None,
        *,
        decided: str = "completion",
        **said: Any,
    ) -> None:
        """Record what a completed visit passes on. Makes its handoff, unless a layer or a router decides the route later."""
        attempt.decided = True
        attempt.handed = {
            "completed_seq": stored.seq,
            "decided": decided,
            "handed": summary(changes, small_bytes=SMALL_BYTES),
            **said,
        }
        if routes is not None:
            self._route(name, attempt, stored, routes)

    def _routed(self, event: events.NodeRouted, stored: Stored) -> None:
        _, attempt = self._done(event, stored)
        self._route(event.node, attempt, stored, event.routes, decided="router, asked again")

    def _routing_failed(self, event: events.RoutingFailed, stored: Stored) -> None:
        _, attempt = self._done(event, stored)
        self._route(event.node, attempt, stored, None, failure=event.failure)

    def _done(self, event: NodeEvent, stored: Stored) -> tuple[_Visit, _Attempt]:
        """Return the attempt whose route is decided now. In a fork, that attempt may have ended in the parent run."""
        visit = self._visit(event)
        if visit.attempt is None:
            visit.attempt = _Attempt(
                (event.iteration, event.execution, event.attempt), stored.seq, decided=True
            )
        return visit, visit.attempt

    def _layer(self, event: events.LayerCompleted, stored: Stored) -> None:
        merged = summary([event.changes], small_bytes=SMALL_BYTES)
        self._layers.append((stored.seq, event.layer))
        for name, routes in event.routes.items():
            visit = self._visits.get(name)
            if visit is not None and visit.attempt is not None:
                skipped = visit.attempt.handed.get("decided") == "skip"
                decided = "skip" if skipped else "layer"
                self._route(
                    name, visit.attempt, stored, routes, decided=decided, layer=event.layer, merged=merged
                )

    def _route(
        self, name: str, attempt: _Attempt, stored: Stored, routes: list[str] | None, **said: Any
    ) -> None:
        facts = {
            "by": None,
            "reason": None,
            "failure": None,
            "layer": None,
            "merged": {},
            "artifacts": {},
            **attempt.handed,
            **said,
            "seq": stored.seq,
            "decided_at": instant(stored.at),
            "checkpoint": f"{self.run_id}@{stored.seq}" if stored.kind in CHECKPOINTS else None,
            "to": None
            if routes is None
            else [{"node": target, "why": self._why(name, target)} for target in routes],
        }
        path = self._put(HANDOFFS, name, attempt, attempt.handoff, facts)
        # If the run is rewound to just before this event and the route is decided again, that does not overwrite this handoff.
        attempt.handoff = path if routes is None else ""

    def _why(self, name: str, target: str) -> str:
        definition = self._definition
        branched = definition is not None and target in definition.branches.get(name, ())
        return (
            "branch"
            if branched and definition is not None and Edge(name, target) not in definition.edges
            else "edge"
        )

    # --- names ----------------------------------------------------------------------------------------

    def _put(self, folder: str, name: str, attempt: _Attempt, path: str, facts: dict[str, Any]) -> str:
        """Make a document, and return its path. `path` is its existing path; if that is empty, a new one is chosen."""
        options = self._definition.nodes.get(name) if self._definition is not None else None
        agent = options.agent if options is not None else "engine"
        stem = f"{folder}/{self._stem(name, agent)}"
        iteration, execution, number = attempt.key
        path = path or self._free(f"{stem}.{iteration}.{execution}.{number}")
        content = encode(
            {
                **facts,
                "kind": folder.removesuffix("s"),
                "format": FORMAT,
                "run_id": self.run_id,
                "flow": self.flow,
                "fingerprint": self._fingerprint,
                "node": name,
                "agent": agent,
                "iteration": iteration,
                "execution": execution,
                "attempt": number,
            }
        )
        plain = f"{stem}.json"
        self._made[path] = self.latest[plain] = content
        self._plain[path] = plain
        self.files[path] = self.files[plain] = Listed.of(content)
        return path

    def _free(self, path: str) -> str:
        """Return a path that no document has yet."""
        found, count = f"{path}.json", 1
        while found in self.files:
            count += 1
            found = f"{path}~{count}.json"
        return found

    def _stem(self, node: str, agent: str) -> str:
        """Return the beginning of a file name, `<node>-<agent>`. A digest is added if another pair gives the same text, as node
        `a-b` with agent `c` and node `a` with agent `b-c`.
        """
        stem = self._stems.get((node, agent))
        if stem is None:
            # A dot in an agent's name could make a plain name look like the full name of another.
            stem = f"{run_folder.part(node)}-{run_folder.part(agent).replace('.', '%2E')}"
            if stem.casefold() in self._taken:
                stem = f"{stem}~{run_folder.mark(f'{node}/{agent}')}"
            self._taken.add(stem.casefold())
            self._stems[node, agent] = stem
        return stem

    _HANDLERS: ClassVar[dict[type[events.Event], Callable[..., None]]] = {
        events.RunCreated: _created,
        events.RunForked: _forked,
        events.RunClaimed: _taken_up,
        events.RunResumed: _taken_up,
        events.RunRewound: _rewound,
        events.RunCancelled: _cancelled,
        events.RequestRefused: _request_refused,
        events.FlowChanged: _flow_changed,
        events.NodeScheduled: _scheduled,
        events.NodeStarted: _started,
        events.NodeWaiting: _waiting,
        events.NodeCompleted: _completed,
        events.NodeFailed: _failed,
        events.NodeInterrupted: _interrupted,
        events.NodeSkipped: _skipped,
        events.NodeRouted: _routed,
        events.RoutingFailed: _routing_failed,
        events.ItemsListed: _items_listed,
        events.ItemStarted: _item_started,
        events.ItemCompleted: _item_completed,
        events.ItemFailed: _item_failed,
        events.StepCompleted: _step,
        events.StepStarted: _step_started,
        events.ChildStarted: _child_started,
        events.ChildEnded: _child_ended,
        events.StepFailed: _step_failed,
        events.CostIncurred: _cost,
        events.NodeStreamed: _streamed,
        events.QuestionAsked: _asked,
        events.QuestionAnswered: _answered,
        events.TimerFired: _time_over,
        events.LayerCompleted: _layer,
    }
    """Kind of event -> the method that makes or changes documents. All other events are ignored."""


def _step_name(
    event: events.StepCompleted | events.StepStarted | events.StepFailed | events.StatedStep,
) -> str:
    return event.step if event.item is None else f"{event.step}[{event.item}]"


def _spend(attempt: _Attempt, at: float) -> None:
    if attempt.since is not None:
        attempt.seconds += max(0.0, at - attempt.since)
        attempt.since = None


def _by_and_reason(event: Any) -> dict[str, Any]:
    return {"by": event.by, "reason": event.reason}


def _show(answer: Any) -> str:
    told = msgspec.json.encode(answer).decode()
    return told if len(told) <= SMALL_BYTES else f"{told[:SMALL_BYTES]}…"
