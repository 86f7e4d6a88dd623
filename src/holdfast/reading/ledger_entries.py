"""The entries of a ledger: which events are decisions, by whom they were made, why, and with which values.

Most events decide nothing and have no entry; `_TELLS` has the others.

- The actor is `policy` for what policies decided, `agent` for what was asked `by="agent:…"` (the server records this for a token
  of an agent), `human` for what any other caller asked, and otherwise `engine`. A caller need not say who it is: an answer, an
  edit, a rewind and a retry are always asked for by one.
- A branch is a route that a router chose. Only the definition of the flow knows whether a node has one, so it is looked up by
  the fingerprint that is in force at that place of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.core import events
from holdfast.core.definition import START, Definition
from holdfast.core.events import Failure, NodeEvent
from holdfast.errors import StoreCorrupt
from holdfast.reading import text
from holdfast.storage.contract import Row

EntryType: TypeAlias = Literal[
    "plan",
    "branch",
    "guard",
    "policy",
    "verification",
    "decision",
    "skip",
    "failure",
    "edit",
    "resume",
    "rewind",
    "refusal",
]
TYPES: tuple[EntryType, ...] = get_args(EntryType)
Actor: TypeAlias = Literal["engine", "policy", "agent", "human"]

AGENT = "agent:"
"""How the name of an agent begins in `by`."""
TIMEOUT = "timeout"
"""The `by` of an answer that the engine has recorded, because none came in time."""
Lookup: TypeAlias = Callable[[str], Definition | None]
"""Returns the flow definition with this fingerprint; None if it is unknown."""
Opens: TypeAlias = Callable[[Row], Any]
"""Returns the event that a row contains. Raises `StoreCorrupt`."""

_VALUE_WIDTH = 80
_REASON_WIDTH = 300
_NAMES_MAX = 10


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in the log of a run."""

    seq: int
    at: float
    type: EntryType
    kind: str
    """The kind of the event."""
    actor: Actor
    by: str | None
    """Who decided, as recorded: the caller, the agent, or the policies."""
    reason: str | None
    about: dict[str, Any]
    """What the decision concerns, and its data: node, iteration, question, routes, verdicts, values read."""
    text: str
    """The decision in a few words."""
    digest: str
    """The digest of the event's row in the hash chain of the log, in hex."""


class _Told(msgspec.Struct, frozen=True):
    """What an event has decided."""

    type: EntryType
    about: dict[str, Any]
    text: str
    reason: str | None = None
    actor: Actor | None = None
    by: str | None = None


class LedgerBook:
    """Reads the rows of a log in order, and returns the entry of each row that has one."""

    def __init__(self, lookup: Lookup, open_event: Opens, fingerprint: str = "") -> None:
        self._lookup = lookup
        self._open = open_event
        self.asked: dict[str, events.QuestionAsked] = {}
        """Key of a question -> the question, until it is answered."""
        self.branches: Mapping[str, list[str]] = {}
        """Node whose router chooses what follows -> the declared targets."""
        self._flows: list[tuple[int, str]] = []
        """The events from which on another flow was in force, and its fingerprint, oldest first."""
        self._seq = 0
        self.follow(fingerprint)

    def follow(self, fingerprint: str) -> None:
        """Continue with the flow that has this fingerprint."""
        self._flows.append((self._seq, fingerprint))
        found = self._lookup(fingerprint) if fingerprint else None
        self.branches = found.branches if found is not None else {}

    def go_back(self, to: int) -> None:
        """Continue with the flow that was in force at an event."""
        self.follow(next(fingerprint for seq, fingerprint in reversed(self._flows) if seq <= to))

    def wants(self, kind: str, node: str | None) -> bool:
        """Return whether an event may be a decision, or is needed to understand one. Its header tells, so the bodies of most
        events are never read.
        """
        if kind == "NodeCompleted":
            return node in self.branches
        return kind in _TELLS and (kind != "LayerCompleted" or bool(self.branches))

    def read(self, row: Row) -> LedgerEntry | None:
        """Return the entry about an event; None if the event decides nothing. Raises `StoreCorrupt`, `SchemaTooNew`."""
        if not self.wants(row.kind, row.node):
            return None
        event, self._seq = self._open(row), row.seq
        told = _TELLS[row.kind](self, event)
        if told is None:
            return None
        by = told.by if told.by is not None else getattr(event, "by", None)
        reason = told.reason if told.reason is not None else getattr(event, "reason", None)
        return LedgerEntry(
            seq=row.seq,
            at=row.at,
            type=told.type,
            kind=row.kind,
            actor=told.actor or actor_of(by, caller=row.kind in _BY_CALLERS),
            by=by,
            reason=reason,
            about=told.about,
            text=told.text,
            digest=row.digest.hex(),
        )


def actor_of(by: str | None, *, caller: bool = False) -> Actor:
    """Return what kind of actor has decided something. `caller`: only a caller can have done that, also if it did not say who it
    is.
    """
    if by == TIMEOUT or not (by or caller):
        return "engine"
    if not by:
        return "human"
    return "agent" if by.startswith(AGENT) else "human"


def read_entries(
    rows: Iterable[Row],
    lookup: Lookup,
    open_event: Opens,
    *,
    fingerprint: str = "",
    damaged: Collection[int | None] = (),
) -> list[LedgerEntry]:
    """Return the entries about these rows, oldest first. For a log that begins with a base, `fingerprint` is that of the flow
    there. Rows in `damaged` have no entry if they cannot be read.
    """
    book = LedgerBook(lookup, open_event, fingerprint)
    found: list[LedgerEntry] = []
    for row in rows:
        try:
            entry = book.read(row)
        except StoreCorrupt:
            if row.seq in damaged:
                continue
            raise
        if entry is not None:
            found.append(entry)
    return found


def kinds_for(*, branching: bool) -> tuple[str, ...]:
    """Return the kinds of events that a ledger is made from. Completions matter only if the flow has a router."""
    return tuple(kind for kind in _TELLS if branching or kind != "NodeCompleted")


# --- what each kind of event decides -----------------------------------------------------------------


def _visit(event: NodeEvent) -> dict[str, Any]:
    found: dict[str, Any] = {"node": event.node, "iteration": event.iteration}
    if event.execution > 1:
        found["execution"] = event.execution
    return found


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _short(value: Any) -> str:
    return text.one_line(text.json_text(value, indent=None), _VALUE_WIDTH)


def _names(names: Collection[str]) -> str:
    """Return names as a list in words, shortened if it is long."""
    first = list(names)[:_NAMES_MAX]
    if len(names) > _NAMES_MAX:
        return f"{', '.join(first)} and {len(names) - _NAMES_MAX} more"
    return " and ".join(part for part in (", ".join(first[:-1]), *first[-1:]) if part) or "nothing"


def _created(book: LedgerBook, event: events.RunCreated) -> _Told:
    book.follow(event.fingerprint)
    about: dict[str, Any] = {"flow": event.flow, "fingerprint": event.fingerprint}
    if event.plan:
        about["plan"] = True
    about |= {name: event.options[name] for name in ("budget", "scope") if event.options.get(name)}
    if event.schedule != "eager":
        about["schedule"] = event.schedule
    if event.caller is not None:
        about["caller"] = event.caller.run
    if START in book.branches:
        about |= {"starts": event.starts, "among": book.branches[START]}
    what = "a plan for" if event.plan else "the flow"
    return _Told("plan", about, f"the run follows {what} {event.flow!r} ({event.fingerprint[:12]})")


def _forked(book: LedgerBook, event: events.RunForked) -> _Told:
    about: dict[str, Any] = {"parent": event.parent, "to": event.to}
    if event.repeat:
        about["repeat"] = event.repeat
    return _Told("plan", about, f"the run continues from event {event.to} of run {event.parent}")


def _chosen(book: LedgerBook, event: events.NodeCompleted | events.NodeRouted) -> _Told | None:
    if event.routes is None or event.node not in book.branches:
        return None
    about = _visit(event) | {"routes": event.routes, "among": book.branches[event.node]}
    return _Told("branch", about, f"{event.node} leads to {_names(event.routes)}")


def _layer(book: LedgerBook, event: events.LayerCompleted) -> _Told | None:
    routes = {node: to for node, to in event.routes.items() if node in book.branches}
    if not routes:
        return None
    chosen = "; ".join(f"{node} leads to {_names(to)}" for node, to in routes.items())
    return _Told("branch", {"layer": event.layer, "routes": routes}, chosen)


def _guarded(book: LedgerBook, event: events.GuardEvaluated) -> _Told:
    about = _visit(event) | {"verdicts": event.verdicts, "reads": event.reads}
    if event.failure is not None:
        about["failure"] = _failure(event.failure)
        text_of = f"a guard after {event.node} could not be evaluated"
        return _Told("guard", about, text_of, _fault(event.failure))
    taken = [target for target, is_taken in event.verdicts.items() if is_taken]
    others = [target for target, is_taken in event.verdicts.items() if not is_taken]
    parts = ([f"to {_names(taken)}"] if taken else []) + ([f"not to {_names(others)}"] if others else [])
    return _Told("guard", about, f"{event.node} leads {', '.join(parts)}")


def _judged(book: LedgerBook, event: events.PolicyDecided) -> _Told:
    deciding = [one for one in event.decisions if one.verdict == event.verdict]
    about = _visit(event) | {
        "stage": event.stage,
        "verdict": event.verdict,
        "decisions": _plain(event.decisions),
    }
    reasons = "; ".join(one.reason for one in deciding if one.reason) or None
    if event.failure is not None:
        about["failure"] = _failure(event.failure)
        reasons = _fault(event.failure)
    subject = event.node if event.stage == "pre" else f"the result of {event.node}"
    verb = {"allow": "is allowed", "ask": "needs an answer", "deny": "is denied"}[event.verdict]
    by = ", ".join(one.policy for one in deciding) or None
    return _Told("policy", about, f"{subject} {verb}", reasons, actor="policy", by=by)


def _verified(book: LedgerBook, event: events.OutputVerified) -> _Told:
    about = _visit(event) | {"ok": event.ok, "checks": _plain(event.checks)}
    failed = [f"{one.id}: {one.reason}" if one.reason else one.id for one in event.checks if not one.ok]
    verb = "is verified" if event.ok else "is not verified"
    return _Told("verification", about, f"the result of {event.node} {verb}", "; ".join(failed) or None)


def _skipped_nodes(book: LedgerBook, event: events.NodesSkipped) -> _Told:
    about = {"nodes": event.nodes, "why": event.why}
    ways = ", ".join(f"from {source} to {node}" for node, source in event.why.items())
    reason = text.one_line(f"no way {ways}", _REASON_WIDTH) if ways else None
    verb = "is skipped" if len(event.nodes) == 1 else "are skipped"
    return _Told("skip", about, f"{_names(event.nodes)} {verb}", reason)


def _asked(book: LedgerBook, event: events.QuestionAsked) -> None:
    book.asked[event.key] = event


def _answered(book: LedgerBook, event: events.QuestionAnswered) -> _Told:
    about = _visit(event) | {"question": event.key}
    asked = book.asked.get(event.key)  # an answer about one of several steps leaves it open
    if asked is not None:
        about |= {"asked": asked.about, "text": asked.text}
    about["answer"] = event.answer
    if event.refused:
        about["refused"] = True
    if event.confidence is not None:
        about["confidence"] = event.confidence
    if event.stated is not None:
        about["stated"] = msgspec.to_builtins(event.stated)
        item = "" if event.stated.item is None else f" (item {event.stated.item})"
        told = f"the step {event.stated.step!r}{item} has happened, with the result {_short(event.stated.result)}"
        return _Told("decision", about, f"{event.node}: {told}")
    refused = ", which refuses it" if event.refused else ""
    return _Told("decision", about, f"{event.node}: the answer is {_short(event.answer)}{refused}")


def _paused(book: LedgerBook, event: events.RunPaused) -> _Told:
    return _Told("decision", {"verb": "pause"}, "the run is paused")


def _cancelled(book: LedgerBook, event: events.RunCancelled) -> _Told:
    about: dict[str, Any] = {"verb": "cancel"}
    if not event.uncleaned:
        return _Told("decision", about, "the run is cancelled")
    about["uncleaned"] = msgspec.to_builtins(event.uncleaned)
    left = "; ".join(map(text.not_cleaned_up, event.uncleaned))
    return _Told("decision", about, f"the run is cancelled ({left})")  # the reason follows


def _skipped(book: LedgerBook, event: events.NodeSkipped) -> _Told:
    about = _visit(event)
    if event.routes is not None:
        about["routes"] = event.routes
    if event.warning is None:
        return _Told("skip", about, f"{event.node} is skipped")
    about["failure"] = _failure(event.warning)
    verb = f"leads to {_names(event.routes or ())}" if event.caught else "is accepted"
    return _Told("skip", about, f"the failure of {event.node} {verb}", _fault(event.warning))


def _failure(failure: Failure) -> dict[str, Any]:
    item = {} if failure.item is None else {"item": failure.item}
    return {"kind": failure.kind, "type": failure.type, "message": failure.message, **item}


def _fault(failure: Failure) -> str:
    return text.one_line(failure.describe(), _REASON_WIDTH)


def _failed(book: LedgerBook, event: events.NodeFailed) -> _Told | None:
    if event.retry_at is not None:
        return None
    about = _visit(event) | {"attempt": event.attempt, "failure": _failure(event.failure)}
    return _Told("failure", about, f"{event.node} failed for good", _fault(event.failure))


def _misrouted(book: LedgerBook, event: events.RoutingFailed) -> _Told:
    about = _visit(event) | {"failure": _failure(event.failure)}
    return _Told("failure", about, f"what follows {event.node} could not be decided", _fault(event.failure))


def _run_failed(book: LedgerBook, event: events.RunFailed) -> _Told:
    about: dict[str, Any] = {"node": event.node} if event.node else {}
    return _Told(
        "failure", about | {"failure": _failure(event.failure)}, "the run failed", _fault(event.failure)
    )


def _edited(book: LedgerBook, event: events.StateEdited) -> _Told:
    changes = _plain(event.changes)
    fields = {field: None for part in changes.values() for field in part}
    return _Told(
        "edit", {"fields": list(fields), "changes": changes}, f"the state is edited: {', '.join(fields)}"
    )


def _upgraded(book: LedgerBook, event: events.StateUpgraded) -> _Told:
    about = {"state_version": event.state_version}
    return _Told("edit", about, f"the state is upgraded to version {event.state_version}")


def _changed(book: LedgerBook, event: events.FlowChanged) -> _Told:
    book.follow(event.fingerprint)
    about: dict[str, Any] = {"fingerprint": event.fingerprint}
    if event.rename:
        about["rename"] = event.rename
    return _Told("edit", about, f"the run continues with a changed flow ({event.fingerprint[:12]})")


def _claimed(book: LedgerBook, event: events.RunClaimed) -> _Told:
    about: dict[str, Any] = {"holder": event.holder}
    if event.outlived:
        about["outlived"] = True
    return _Told("resume", about, "another process continues the run")


def _resumed(book: LedgerBook, event: events.RunResumed) -> _Told:
    names = [name for name in event.__struct_fields__ if name not in ("by", "reason")]
    about = {name: _plain(value) for name in names if (value := getattr(event, name))}
    given = [", ".join(event.nodes)] if event.nodes else []
    if event.budget is not None:
        given.append(f"the budget {event.budget}")
    if event.scope is not None:
        given.append("all nodes in scope" if "*" in event.scope else f"{', '.join(event.scope)} in scope")
    if event.force:
        given.append("force")
    how = f" with {' and '.join(given)}" if given else ""
    return _Told("resume", about, f"the run is resumed{how}")


def _retried(book: LedgerBook, event: events.NodeScheduled) -> _Told | None:
    if event.why != "retry":  # then no caller asked for it
        return None
    about = _visit(event) | ({"fresh": True} if event.fresh else {})
    return _Told("resume", about, f"{event.node} is tried again")


def _rewound(book: LedgerBook, event: events.RunRewound) -> _Told:
    book.go_back(event.to)
    about: dict[str, Any] = {"to": event.to}
    if event.confirmed:
        about["confirmed"] = event.confirmed
    return _Told("rewind", about, f"the run goes back to event {event.to}")


def _refused(book: LedgerBook, event: events.RequestRefused) -> _Told:
    given = {"verb": event.verb, "request": event.request, "error": event.error, "concerns": event.about}
    about = {name: value for name, value in given.items() if value}
    return _Told("refusal", about, f"{event.verb} is refused")


def _resume_refused(book: LedgerBook, event: events.ResumeRefused) -> _Told:
    return _Told("refusal", {"verb": "resume"}, "resume is refused")


_TELLS: dict[str, Callable[[LedgerBook, Any], _Told | None]] = {
    "RunCreated": _created,
    "RunForked": _forked,
    "RunClaimed": _claimed,
    "RunResumed": _resumed,
    "RunRewound": _rewound,
    "RunPaused": _paused,
    "RunFailed": _run_failed,
    "RunCancelled": _cancelled,
    "RequestRefused": _refused,
    "ResumeRefused": _resume_refused,
    "StateEdited": _edited,
    "StateUpgraded": _upgraded,
    "FlowChanged": _changed,
    "GuardEvaluated": _guarded,
    "NodesSkipped": _skipped_nodes,
    "PolicyDecided": _judged,
    "OutputVerified": _verified,
    "NodeScheduled": _retried,
    "NodeCompleted": _chosen,
    "NodeFailed": _failed,
    "NodeSkipped": _skipped,
    "NodeRouted": _chosen,
    "RoutingFailed": _misrouted,
    "LayerCompleted": _layer,
    "QuestionAsked": _asked,
    "QuestionAnswered": _answered,
}
"""Kind of event -> the function that returns its entry, if it has one. Events of any other kind decide nothing."""
_BY_CALLERS = frozenset({"QuestionAnswered", "StateEdited", "RunRewound", "NodeScheduled"})
"""Kinds whose entries only a caller causes, except the answer that is recorded when the time for one is over (`TIMEOUT`)."""
KINDS = frozenset(_TELLS)
"""The kinds of events that a ledger is made from."""
