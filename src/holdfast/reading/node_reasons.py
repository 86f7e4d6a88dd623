"""Why each node of a run ran, or did not: which edges led to it, what the guards on them read, what policies decided about it,
and how its result was verified.

The facts come from the log and from the definition. What is recorded is never evaluated again: an expression is quoted, with the
values that it has read then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.conditions import Condition, conditions_of
from holdfast.core.definition import END, START, Definition, Edge
from holdfast.core.run_state import VISIT_DONE, NodeState, RunState, stretches
from holdfast.reading import history, text
from holdfast.storage.contract import RunRow, Store

_KINDS = ("GuardEvaluated", "NodesSkipped", "PolicyDecided", "OutputVerified", "NodeSkipped")
_VALUE_WIDTH = 80
_FAULT_WIDTH = 300

Passage: TypeAlias = Literal["taken", "not taken", "undecided"]


class EdgeIn(msgspec.Struct, frozen=True, kw_only=True):
    """An edge to a node: whether it was taken, and why."""

    source: str
    passage: Passage
    guard: str = ""
    """The expression of its guard; empty if it has none."""
    verdict: bool | None = None
    """What the guard said; None if it has none, or was not evaluated."""
    reads: dict[str, Any] = {}
    """The values that the guard has read, by path."""
    errors: list[str] = []
    """The failures that it takes; empty for an ordinary edge."""
    seq: int | None = None
    """The event that has the verdict."""
    why: str = ""
    """The reason, in words."""


class PolicyVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies decided about a visit, or about its result."""

    seq: int
    stage: Literal["pre", "post"]
    verdict: events.Verdict
    decisions: list[events.Decision]
    fault: str = ""
    """Why the policies could not decide, which is a denial."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How the result of a visit was verified."""

    seq: int
    ok: bool
    checks: list[events.Checked]


class NodeReasons(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node ran, or did not."""

    node: str
    status: str | None
    """None if the run has not reached the node."""
    join: str
    edges: list[EdgeIn]
    skipped: str = ""
    """Why it was skipped, in words; empty if it was not."""
    policies: list[PolicyVerdict] = []
    verifications: list[Verification] = []
    fault: str = ""
    """The failure that it ended with, or that it waits after."""
    is_kept: bool = False
    """True if it has returned a result that is not used (yet)."""


def reasons_of(store: Store, row: RunRow, definition: Definition, state: RunState) -> dict[str, NodeReasons]:
    """Return the reasons of every node of a run, in the order of the definition. `state` is the run at the wanted event."""
    log = _Log(store, row, state)
    conditions = conditions_of(definition)
    into: dict[str, list[Edge]] = {}
    for edge in definition.arrows():
        if edge.target != END:
            into.setdefault(edge.target, []).append(edge)
    found = {}
    for name, options in definition.nodes.items():
        node = state.nodes.get(name)
        failure = node.failure if node is not None else None
        edges = [_edge(edge, conditions.get(edge, Condition()), state, log) for edge in into.get(name, ())]
        found[name] = NodeReasons(
            node=name,
            status=None if node is None else "failed" if state.is_misrouted(name) else node.status,
            join="some" if definition.plan and options.join == "all" else options.join,
            edges=edges,
            skipped=log.skips.get(name, "") if node is not None and node.status == "skipped" else "",
            policies=log.policies.get(name, []),
            verifications=log.verifications.get(name, []),
            fault=text.one_line(failure.describe(), _FAULT_WIDTH) if failure else "",
            is_kept=node is not None and node.status not in VISIT_DONE and node.returned is not None,
        )
    return found


class _Log:
    """What the log of a run says about its nodes, without the parts that the run was rewound over."""

    def __init__(self, store: Store, row: RunRow, state: RunState) -> None:
        self.guards: dict[Edge, tuple[int, bool, dict[str, Any]]] = {}
        """Edge with a guard -> the event, the verdict, and what all guards of the node have read."""
        self.skips: dict[str, str] = {}
        self.policies: dict[str, list[PolicyVerdict]] = {}
        self.verifications: dict[str, list[Verification]] = {}
        parts = stretches(row.rewinds, state.seq)
        rows = [
            one
            for one in store.events(row.run_id, 0, state.seq, kinds=_KINDS)
            if any(first <= one.seq <= last for first, last in parts)
        ]
        for stored in history.opened(store, row.run_id, rows):
            self._read(stored.seq, stored.event)

    def _read(self, seq: int, event: object) -> None:
        match event:
            case events.GuardEvaluated():
                for target, verdict in event.verdicts.items():
                    self.guards[Edge(event.node, target)] = (seq, verdict, event.reads)
            case events.NodesSkipped():
                self.skips |= {name: _unreached(name, event.why) for name in event.nodes}
            case events.NodeSkipped():
                self.skips[event.node] = _skipped(event)
            case events.PolicyDecided():
                self.policies.setdefault(event.node, []).append(_policy(seq, event))
            case events.OutputVerified():
                found = Verification(seq=seq, ok=event.ok, checks=event.checks)
                self.verifications.setdefault(event.node, []).append(found)
            case _:
                raise AssertionError(f"{type(event).__name__} is not among the kinds that are read here")


def _unreached(name: str, why: Mapping[str, str]) -> str:
    return f"the edge from {why[name]} was not taken" if name in why else "no edge to it was taken"


def _skipped(event: events.NodeSkipped) -> str:
    if event.warning is not None:
        fault = text.one_line(event.warning.describe(), _FAULT_WIDTH)
        handled = (
            "which an error edge takes" if event.reason == "on_error" else "which is ignored (safe_to_fail)"
        )
        return f"it failed, {handled}: {fault}"
    by = f" by {event.by}" if event.by else ""
    reason = f": {event.reason}" if event.reason else ""
    return f"skipped{by}{reason}"


def _policy(seq: int, event: events.PolicyDecided) -> PolicyVerdict:
    failure = event.failure
    return PolicyVerdict(
        seq=seq,
        stage=event.stage,
        verdict=event.verdict,
        decisions=event.decisions,
        fault=text.one_line(failure.describe(), _FAULT_WIDTH) if failure else "",
    )


# --- edges -------------------------------------------------------------------------------------------


def _edge(edge: Edge, condition: Condition, state: RunState, log: _Log) -> EdgeIn:
    source = state.nodes.get(edge.source)
    seq, verdict, reads = log.guards.get(edge, (None, None, {}))
    passage = _passage(edge, source, state)
    has_failed = any(warned.node == edge.source for warned in state.warnings)
    return EdgeIn(
        source=edge.source,
        passage=passage,
        guard=condition.guard,
        verdict=verdict,
        reads=_read_by(condition.guard, reads),
        errors=list(condition.errors),
        seq=seq,
        why=_why(edge, condition, source, passage, verdict, has_failed=has_failed),
    )


def _passage(edge: Edge, source: NodeState | None, state: RunState) -> Passage:
    if edge.source == START:
        return "taken"
    if source is None or source.status not in VISIT_DONE:
        return "undecided"
    if state.plan:
        return (
            "undecided" if source.routes is None else "taken" if edge.target in source.routes else "not taken"
        )
    return "taken" if edge.target in state.nodes else "undecided"


def _why(
    edge: Edge,
    condition: Condition,
    source: NodeState | None,
    passage: Passage,
    verdict: bool | None,
    *,
    has_failed: bool,
) -> str:
    """Return why an edge was taken or not, in words that follow `after NODE` or `not after NODE`. `has_failed` is true if an edge
    or `safe_to_fail` took a failure of the source; otherwise a source that has not completed was skipped.
    """
    if edge.source == START or source is None or source.status not in VISIT_DONE:
        return ""
    if passage == "undecided":
        return "whose guards could not be evaluated"
    if condition.errors and passage == "taken":
        return f"which failed ({condition.failures})"
    if passage == "taken" or verdict is False:
        return ""
    if source.status == "completed":
        return "which did not fail" if condition.errors else ""
    if not has_failed:
        return "which was skipped"
    return f"which did not fail with {condition.failures}" if condition.errors else "which failed"


def _read_by(guard: str, reads: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that an expression has read. An event has those of all guards of a node; a path that is written in
    another form (`a["b"]`) cannot be told apart, so then all are returned.
    """
    named = {path: value for path, value in reads.items() if path in guard}
    return named or dict(reads)


def told_reads(reads: Mapping[str, Any]) -> str:
    """Return the values that a rule has read, as text; empty if there are none."""
    shown = (
        f"{path} = {text.one_line(text.json_text(value, indent=None), _VALUE_WIDTH)}"
        for path, value in reads.items()
    )
    return ", ".join(shown)


def tell(reasons: NodeReasons) -> Iterator[str]:
    """Yield why a node ran or did not, a line for each edge, policy and verification."""
    for edge in reasons.edges:
        yield from _tell_edge(edge)
    if reasons.skipped and not (reasons.edges and reasons.skipped.startswith(("the edge", "no edge"))):
        yield reasons.skipped
    for decided in reasons.policies:
        yield from _tell_policy(decided)
    for verified in reasons.verifications:
        yield from _tell_checks(verified)
    if reasons.is_kept:
        yield "it has returned; its result is kept and not used, and it is not called again"
    if reasons.fault and reasons.status != "skipped":
        yield reasons.fault


def _tell_edge(edge: EdgeIn) -> Iterator[str]:
    if edge.source == START:
        return
    word = {"taken": "after", "not taken": "not after", "undecided": "waits for"}[edge.passage]
    told = f"{word} {edge.source}" + (f", {edge.why}" if edge.why else "")
    if edge.verdict is not None:
        reads = told_reads(edge.reads)
        told += f": guard `{edge.guard}` is {'true' if edge.verdict else 'false'}" + (
            f" ({reads})" if reads else ""
        )
    elif edge.passage == "undecided" and (edge.guard or edge.errors):
        told += f" ({Condition(edge.guard, tuple(edge.errors))})"
    yield told


def _tell_policy(decided: PolicyVerdict) -> Iterator[str]:
    about = "it" if decided.stage == "pre" else "its result"
    verbs = {"allow": "allows", "ask": "asks about", "deny": "denies"}
    for one in decided.decisions:
        reason = f": {text.one_line(one.reason, _FAULT_WIDTH)}" if one.reason else ""
        reads = told_reads(one.reads)
        yield f"policy {one.policy} {verbs[one.verdict]} {about}{reason}" + (f"; {reads}" if reads else "")
    if decided.fault:
        yield f"the policies could not decide about {about}, so it is denied: {decided.fault}"


def _tell_checks(verified: Verification) -> Iterator[str]:
    for one in verified.checks:
        reason = f": {text.one_line(one.reason, _FAULT_WIDTH)}" if one.reason else ""
        reads = told_reads(one.reads)
        yield f"check {one.id} {'passed' if one.ok else 'failed'}{reason}" + (f"; {reads}" if reads else "")
