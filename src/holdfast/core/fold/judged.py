"""Fold what rules decided: guards on the edges of a plan, policies, and the verification of results."""

from __future__ import annotations

from holdfast.core import events
from holdfast.core.events import Failure, Stored
from holdfast.core.fold.status import awaken, set_status, settle
from holdfast.core.fold.waits import refuse
from holdfast.core.run_state import KeptResult, RunState
from holdfast.errors import IllegalEvent, end_sentence


def guard_evaluated(state: RunState, event: events.GuardEvaluated, stored: Stored) -> None:
    """Note that the edges that could take the failure of a node were asked. If one takes it, the skip of the node follows; the
    route of a node that has ended follows in an event of its own, too.
    """
    node = state.nodes[event.node]
    if node.status == "failed":
        node.unhandled = True
        node.failure = event.failure or node.failure


def nodes_skipped(state: RunState, event: events.NodesSkipped, stored: Stored) -> None:
    """Skip nodes of a plan that have not begun and never will. No edge out of them is taken."""
    for name in event.nodes:
        node = state.visit(name)
        if node.iteration or name in state.open or node.question is not None:
            raise IllegalEvent(
                f"run {state.run_id!r}: node {name!r} has begun, so event {stored.seq} cannot skip it"
            )
    for name in event.nodes:
        node = state.nodes[name]
        state.arrivals.pop(name, None)
        node.iteration, node.ended_at, node.routes = 1, stored.at, []
        set_status(state, node, "skipped")
    settle(state)


def policy_decided(state: RunState, event: events.PolicyDecided, stored: Stored) -> None:
    """Let a visit begin, or fail it before it begins. What follows from any other verdict is an event of its own."""
    if event.stage == "post":
        return
    node = state.visit(event.node)
    if event.verdict == "allow":
        node.approved = True
    elif event.verdict == "deny":
        refuse(state, event.node, event.failure or denial(event.decisions))
        awaken(state)


def denial(decisions: list[events.Decision]) -> Failure:
    """Return the failure by a denial: which policies denied, and why."""
    denied = [one for one in decisions if one.verdict == "deny"]
    told = "; ".join(
        f"policy {one.policy!r} denied it" + (f": {one.reason}" if one.reason else "") for one in denied
    )
    told = f"{end_sentence(told)} With force=True (--force) the policies are asked again."
    return Failure("fatal", "PolicyDenied", told)


def output_verified(state: RunState, event: events.OutputVerified, stored: Stored) -> None:
    """Change nothing: the end of the visit follows."""


def node_returned(state: RunState, event: events.NodeReturned, stored: Stored) -> None:
    """Keep what a node has returned, so that it can be judged again without calling the node."""
    state.nodes[event.node].returned = KeptResult(event.value, artifacts=event.artifacts)
