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

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, TypeAlias, assert_never

import msgspec

from holdfast.core import events
from holdfast.core.definition import Definition, Edge
from holdfast.core.events import VALUE_PARTS, Changes, Stored
from holdfast.core.kinds import CHECKPOINTS
from holdfast.documents import run_folder
from holdfast.documents.run_folder import ARTIFACTS, HANDOFFS, RECEIPTS, RUN_FILE
from holdfast.reading import text
from holdfast.reading.visits import AttemptRecord, VisitChange, VisitRecord, Visits
from holdfast.storage.contract import RunRow

FORMAT = 1
"""The format version of all documents. It is increased when the meaning of a field changes."""
SMALL_BYTES = 200
"""A handoff contains values of up to this many bytes; for a larger value it has only the size and the digest."""

Lookup: TypeAlias = Callable[[str], Definition | None]
"""Returns the flow definition with this fingerprint; None if it is unknown."""
Written: TypeAlias = bytes
_ITEM_STATUS = {"completed": "succeeded", "crashed": "interrupted"}
"""How the status of an item is called in a receipt, if by another word."""


class Listed(msgspec.Struct, frozen=True):
    """Size and digest of a document, as run.json lists it."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, content: Written) -> Listed:
        return cls(len(content), sha256(content).hexdigest())


class _Papers(msgspec.Struct):
    """The documents of the latest attempt at a node, and the facts in them."""

    attempt: AttemptRecord
    ended_at: float | None = None
    """When it ended; None if that is not known."""
    facts: dict[str, Any] = {}
    """Facts from the event that ended the attempt."""
    receipt: str = ""
    handoff: str = ""
    handed: dict[str, Any] = {}


class _Results(msgspec.Struct):
    """The results of the items of a fan-out, by item."""

    visit: VisitRecord
    given: dict[int, dict[str, Any]] = {}
    """The changes, summarized, and the artifacts."""
    changes: dict[int, Changes] = {}
    """The changes that the items made to the state, until the visit has completed."""
    inherited: dict[int, None] = {}
    """The items that did not run here: the fork has used the results of its parent."""


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
        self._visits = Visits()
        self._papers: dict[str, _Papers] = {}
        self._results: dict[str, _Results] = {}
        self._stems: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        """The beginnings of file names (`<node>-<agent>`) in use, in lower case, because some file systems ignore case."""
        self._inherited: dict[tuple[str, int, int | None], Changes] = {}
        """For a fork: node, iteration and item -> the result that its parent had, which the fork may use."""
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
        for change in self._visits.read(stored):
            self._follow(change, stored)
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
        self._papers = {event.rename.get(name, name): papers for name, papers in self._papers.items()}
        self._results = {event.rename.get(name, name): results for name, results in self._results.items()}

    def _use(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        self._definition = self._lookup(fingerprint)

    def _rewound(self, event: events.RunRewound, stored: Stored) -> None:
        before = [complete for seq, complete in self._layers if seq <= event.to]
        self._layers += [(stored.seq, before[-1])] if before else []

    def _cancelled(self, event: events.RunCancelled, stored: Stored) -> None:
        """Say in the receipts of attempts that their cleanup was not done. When they ended is known already."""
        for left in event.uncleaned:
            visit = self._visits.latest.get(left.node)
            if visit is not None and visit.attempt is not None:
                papers = self._papers_of(left.node, visit.attempt)
                uncleaned = [*papers.facts.get("uncleaned", ()), text.not_cleaned_up(left)]
                self._write_receipt(visit, papers, stored, "interrupted", uncleaned=uncleaned)

    def _forked(self, event: events.RunForked, stored: Stored) -> None:
        self._inherited = {
            (one.node, one.iteration, one.item): one.result for one in event.visits if one.result is not None
        }

    # --- receipts -------------------------------------------------------------------------------------

    def _follow(self, change: VisitChange, stored: Stored) -> None:
        """Make the documents about what an event did to an attempt."""
        match change.how:
            case "began" | "waits":
                pass
            case "ended" if change.attempt.item is not None:
                self._item_ended(change, stored)
            case "ended":
                self._attempt_ended(change, stored)
            case "refused":
                event, papers = stored.event, self._papers_of(change.visit.node, change.attempt)
                papers.ended_at = stored.at
                said = _by_and_reason(event) if isinstance(event, events.QuestionAnswered) else {}
                self._write_receipt(change.visit, papers, stored, "failed", failure=change.failure, **said)
            case "routed":
                self._routed(change, stored)
            case unknown:
                assert_never(unknown)

    def _papers_of(self, node: str, attempt: AttemptRecord) -> _Papers:
        papers = self._papers.get(node)
        if papers is None or papers.attempt is not attempt:
            papers = self._papers[node] = _Papers(attempt)
        return papers

    def _results_of(self, visit: VisitRecord) -> _Results:
        results = self._results.get(visit.node)
        if results is None or results.visit is not visit:
            results = self._results[visit.node] = _Results(visit)
        return results

    def _item_ended(self, change: VisitChange, stored: Stored) -> None:
        event, item = stored.event, change.attempt.item
        if isinstance(event, events.ItemCompleted) and item is not None:
            results = self._results_of(change.visit)
            results.given[item] = {"changes": summary([event.changes]), "artifacts": event.artifacts}
            results.changes[item] = event.changes

    def _attempt_ended(self, change: VisitChange, stored: Stored) -> None:
        visit, attempt, event = change.visit, change.attempt, stored.event
        papers = self._papers_of(visit.node, attempt)
        papers.ended_at = None if attempt.lost else stored.at
        match attempt.status if change.cause is None else "interrupted":
            case "completed":
                changes = self._collect(visit) if visit.size is not None else []
                said = {"changes": summary([event.changes]), "artifacts": event.artifacts}
                self._write_receipt(visit, papers, stored, "succeeded", **said)
                handed = [*changes, event.changes] if event.items else [event.changes]
                self._hand_over(papers, visit, stored, handed, artifacts=event.artifacts)
            case "skipped":
                said = _by_and_reason(event)
                failed = {} if attempt.failure is None else {"failure": attempt.failure}
                changed = summary([event.changes])
                self._write_receipt(visit, papers, stored, "skipped", **said, changes=changed, **failed)
                self._hand_over(papers, visit, stored, [event.changes], decided="skip", **said)
            case "failed":
                said = {"failure": attempt.failure, "retry_at": instant(attempt.retry_at)}
                self._write_receipt(visit, papers, stored, "failed", **said)
            case "interrupted" | "crashed":
                said = {"reason": change.cause or attempt.reason, "lost": attempt.lost}
                self._write_receipt(visit, papers, stored, "interrupted", **said)
            case "running" | "waiting" as status:
                raise AssertionError(f"an attempt that is {status} has not ended")
            case unknown:
                assert_never(unknown)

    def _collect(self, visit: VisitRecord) -> list[Changes]:
        """Return the changes of all items. For those that did not run here, the fork uses the results of its parent."""
        results, items = self._results_of(visit), range(visit.size or 0)
        for item in items:
            if item not in visit.items:
                changes = self._inherited.get((visit.node, visit.iteration, item), Changes())
                results.inherited[item], results.changes[item] = None, changes
                results.given[item] = {"changes": summary([changes]), "artifacts": {}}
        given, results.changes = results.changes, {}
        return [given.get(item, Changes()) for item in items]

    def _write_receipt(
        self, visit: VisitRecord, papers: _Papers, stored: Stored, status: str, **said: Any
    ) -> None:
        """Make the receipt of an attempt that has ended. If it had a receipt before (it failed and was skipped later), facts in
        that one stay unless they are replaced.
        """
        attempt = papers.attempt
        papers.facts = {**papers.facts, **said} if status != "succeeded" else said
        checkpoint = f"{self.run_id}@{stored.seq}" if stored.kind in CHECKPOINTS else None
        facts = {
            "asked": None if attempt.asked is None else _by_and_reason(attempt.asked),
            "by": None,
            "reason": None,
            "failure": None,
            "retry_at": None,
            "lost": False,
            "changes": {},
            "artifacts": {},
            **papers.facts,
            "status": status,
            "seq": {"first": attempt.first_seq, "last": stored.seq},
            "checkpoint": checkpoint,
            "started_at": instant(attempt.started_at),
            "ended_at": instant(papers.ended_at),
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
        if visit.items or visit.size:
            facts["items"] = list(self._items(visit))
        if facts["artifacts"]:
            facts["artifacts_folder"] = f"{ARTIFACTS}/{run_folder.part(visit.node)}"
        papers.receipt = self._put(RECEIPTS, visit.node, attempt, papers.receipt, facts)

    def _items(self, visit: VisitRecord) -> Iterator[dict[str, Any]]:
        """Yield what the receipt of a fan-out says about each item."""
        results = self._results_of(visit)
        for item in sorted({*range(visit.size or 0), *visit.items}):
            latest = visit.items.get(item)
            not_begun = "inherited" if item in results.inherited else "pending"
            yield {
                "item": item,
                "status": not_begun if latest is None else _ITEM_STATUS.get(latest.status, latest.status),
                "attempt": 0 if latest is None else latest.number,
                "seq": 0 if latest is None else latest.last_seq,
                "failure": None if latest is None else latest.failure,
                **results.given.get(item, {"changes": {}, "artifacts": {}}),
            }

    # --- handoffs -------------------------------------------------------------------------------------

    def _hand_over(
        self,
        papers: _Papers,
        visit: VisitRecord,
        stored: Stored,
        changes: list[Changes],
        *,
        decided: str = "completion",
        **said: Any,
    ) -> None:
        """Record what a completed visit passes on. Makes its handoff, unless a layer or a router decides the route later."""
        papers.handed = {
            "completed_seq": stored.seq,
            "decided": decided,
            "handed": summary(changes, small_bytes=SMALL_BYTES),
            **said,
        }
        if stored.event.routes is not None:
            self._route(visit.node, papers, stored, stored.event.routes)

    def _routed(self, change: VisitChange, stored: Stored) -> None:
        """Make the handoff of a node whose router raised, or has decided since."""
        node, event = change.visit.node, stored.event
        papers = self._papers_of(node, change.attempt)
        if isinstance(event, events.RoutingFailed):
            self._route(node, papers, stored, None, failure=event.failure)
        else:
            self._route(node, papers, stored, event.routes, decided="router, asked again")

    def _layer(self, event: events.LayerCompleted, stored: Stored) -> None:
        merged = summary([event.changes], small_bytes=SMALL_BYTES)
        self._layers.append((stored.seq, event.layer))
        for name, routes in event.routes.items():
            visit = self._visits.latest.get(name)
            if visit is not None and visit.attempt is not None:
                papers = self._papers_of(name, visit.attempt)
                decided = "skip" if papers.handed.get("decided") == "skip" else "layer"
                self._route(name, papers, stored, routes, decided=decided, layer=event.layer, merged=merged)

    def _route(
        self, name: str, papers: _Papers, stored: Stored, routes: list[str] | None, **said: Any
    ) -> None:
        facts = {
            "by": None,
            "reason": None,
            "failure": None,
            "layer": None,
            "merged": {},
            "artifacts": {},
            **papers.handed,
            **said,
            "seq": stored.seq,
            "decided_at": instant(stored.at),
            "checkpoint": f"{self.run_id}@{stored.seq}" if stored.kind in CHECKPOINTS else None,
            "to": None
            if routes is None
            else [{"node": target, "why": self._why(name, target)} for target in routes],
        }
        path = self._put(HANDOFFS, name, papers.attempt, papers.handoff, facts)
        # If the run is rewound to just before this event and the route is decided again, that does not overwrite this handoff.
        papers.handoff = path if routes is None else ""

    def _why(self, name: str, target: str) -> str:
        definition = self._definition
        branched = definition is not None and target in definition.branches.get(name, ())
        return (
            "branch"
            if branched and definition is not None and Edge(name, target) not in definition.edges
            else "edge"
        )

    # --- names ----------------------------------------------------------------------------------------

    def _put(self, folder: str, name: str, attempt: AttemptRecord, path: str, facts: dict[str, Any]) -> str:
        """Make a document, and return its path. `path` is its existing path; if that is empty, a new one is chosen."""
        options = self._definition.nodes.get(name) if self._definition is not None else None
        agent = options.agent if options is not None else "engine"
        stem = f"{folder}/{self._stem(name, agent)}"
        number = 0 if attempt.never_began else attempt.number
        path = path or self._free(f"{stem}.{attempt.iteration}.{attempt.execution}.{number}")
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
                "iteration": attempt.iteration,
                "execution": attempt.execution,
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
        events.RunRewound: _rewound,
        events.RunCancelled: _cancelled,
        events.RequestRefused: _request_refused,
        events.FlowChanged: _flow_changed,
        events.LayerCompleted: _layer,
    }
    """Kind of event -> what else it says for documents than what it does to attempts."""


def _by_and_reason(said: Any) -> dict[str, Any]:
    return {"by": said.by, "reason": said.reason}
