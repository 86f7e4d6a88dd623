"""What a person does with a run: call it off, pause it, try again what has not ended, or put something in its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core import events
from holdfast.core.run_state import HALTED, VISIT_STUCK
from holdfast.errors import ResumeRefused, did_you_mean
from holdfast.runtime import outcomes
from holdfast.runtime.calls.streams import recover
from holdfast.runtime.journal import Journal


def cancel(journal: Journal, *, by: str | None, reason: str | None) -> None:
    """Call off a run that nobody executes. What still counted as running was cut with its process."""
    cut_all(journal, "its process died", lost=True)
    recover(journal)
    journal.record(events.RunCancelled(by=by, reason=reason))


def cut_all(journal: Journal, reason: str, *, lost: bool = False) -> None:
    """What counts as running and does not run any more was cut."""
    state = journal.state
    for name in [name for name in state.open if state.nodes[name].status == "running"]:
        journal.record(
            events.NodeInterrupted(**outcomes.visit_of(name, state.nodes[name]), reason=reason, lost=lost)
        )


def pause(journal: Journal, *, by: str | None, reason: str | None, cut: bool = False) -> None:
    """Start nothing new. Twice is once; a run of which nothing is going on cannot be paused. `cut`: nobody executes it."""
    status = journal.state.status
    if status in HALTED:
        told = f"it is {status}, so nothing of it is going on"
        raise ResumeRefused(journal.state.run_id, told, asked="paused")
    if cut:
        cut_all(journal, "its process died", lost=True)
    if not journal.state.paused:
        journal.record(events.RunPaused(by=by, reason=reason))


def retry(journal: Journal, node: str | None, *, fresh: bool, by: str | None, reason: str | None) -> None:
    """Try a visit that has not ended again, now."""
    for name in _stuck(journal, node, "retry"):
        header = outcomes.visit_of(name, journal.state.nodes[name])
        journal.record(events.NodeScheduled(**header, why="retry", fresh=fresh, by=by, reason=reason))


def skip(journal: Journal, node: str, update: Any, *, by: str | None, reason: str | None) -> None:
    """Put this update in place of the result of a visit that has not ended, and go on."""
    (name,) = _stuck(journal, node, "skip")
    visit = journal.state.nodes[name]
    header = outcomes.visit_of(name, visit)
    took = 0
    if visit.input is None:  # due, and never begun
        header["iteration"] = visit.iteration + 1
        took = journal.state.arrivals[name] if name in journal.flow.topology.joins else 1
    journal.record(skipped(journal, name, header, took=took, update=update, by=by, reason=reason))


def skipped(
    journal: Journal, name: str, header: dict[str, Any], *, update: Any = None, **said: Any
) -> events.NodeSkipped:
    """A skip with this update in place of a result. `said`: who, why, and what it takes up."""
    changes = journal.flow.state.by_hand(update, node=name)
    if journal.state.schedule == "layered":
        return events.NodeSkipped(**header, changes=changes, **said)
    changes = outcomes.apply_reducers(journal.flow, journal.state.values, name, changes)
    try:
        route = outcomes.route(journal.flow, name, journal.state.values, [changes])
    except outcomes.RouterError as fault:
        raise ResumeRefused(
            journal.state.run_id,
            f"skipping {name!r} needs a route: {fault}. Give an update with which its router can decide.",
        ) from fault
    return events.NodeSkipped(**header, changes=changes, routes=route.to, **said)


def _stuck(journal: Journal, node: str | None, verb: str) -> list[str]:
    """The visits that somebody can retry or skip: failed, cut, waiting, or due and not begun."""
    nodes = journal.state.nodes
    asked = "tried again" if verb == "retry" else "skipped"
    names = [name for name in journal.state.open if nodes[name].status in VISIT_STUCK]
    # What asks first, or was refused, has not begun: it can be passed over, and nobody tries it without an approval.
    unbegun = VISIT_STUCK - {"interrupted"} if verb == "skip" else {"pending"}
    if node in journal.state.arrivals and node in nodes and nodes[node].status in unbegun:
        names.append(node)
    if verb == "retry":
        names += [name for name in journal.state.open if not nodes[name].routed]
    if node is None:
        names = [name for name in names if nodes[name].status != "pending"]
    elif node in names:
        return [node]
    elif node not in journal.flow.nodes:
        near = did_you_mean(node, journal.flow.nodes) or f"; it has {', '.join(journal.flow.nodes)}"
        told = f"flow {journal.flow.name!r} has no node {node!r}{near}"
        raise ResumeRefused(journal.state.run_id, told, asked=asked)
    else:
        visit = nodes.get(node)
        is_now = visit.status if visit is not None else "not reached"
        if verb == "retry":
            _refuse_unapproved(journal, [node])
        raise ResumeRefused(
            journal.state.run_id,
            f"node {node!r} is {is_now}; only a failed, cut or waiting node can be {asked}",
            asked=asked,
        )
    if not names:
        _refuse_unapproved(journal, journal.state.arrivals)
        raise ResumeRefused(
            journal.state.run_id,
            f"no node of it has failed, was cut or waits, so there is nothing to {verb}",
            asked=asked,
        )
    return names


def _refuse_unapproved(journal: Journal, names: Iterable[str]) -> None:
    """Nobody tries a visit again that somebody must let begin."""
    for name in names:
        visit = journal.state.nodes.get(name)
        if visit is not None and visit.asked and name in journal.state.arrivals:
            raise ResumeRefused(
                journal.state.run_id,
                f"node {name!r} asks first and has not begun. Answer its question; where that was refused, resume with "
                "force=True (--force) to ask again.",
                asked="tried again",
            )
