"""What a verb would do to the visits of a run: which stay as they are, which run again, and which are asked about first.

`survey` notes what has begun before the verb, `foresee` compares that with the state after its events. The events come from the
code that carries the verb out, and what follows from them is asked of `decide`, so that no rule exists twice.

- A visit that has begun and is not done afterwards runs again if the run takes the same path as before: at once, when its retry
  is due, or when the run reaches it. Visits that have never begun are not listed: it is not known whether the run reaches them.
- A visit that waits for a signal or a timer continues, and one that another process executes goes on: neither is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.core import commands
from holdfast.core.decide import Shape, decide
from holdfast.core.definition import Definition, NodeOptions
from holdfast.core.run_state import ACTIVE, VISIT_DONE, BegunVisit, NodeState, Question, RunState
from holdfast.core.topology import Topology

Fate: TypeAlias = Literal["run", "ask", "skip", "stop", "wait"]
"""What becomes of a visit that has begun and is not done: it runs again, a question is asked first, it is skipped, it ends
without a result, or it goes on as it is."""

_ROOM = 1 << 30


class PreviewNode(msgspec.Struct, frozen=True, kw_only=True):
    """Visits of one node, in a preview."""

    node: str
    first: int
    """The iteration of the first visit."""
    last: int
    status: str
    """The status of the last visit as it is now, before the verb; of visits that the verb skips, "skipped"."""
    at: float | None
    """When that visit completed, was skipped or failed; if it has not ended, when it began. None if that is not known."""
    idempotent: bool
    run: str | None = None
    """The run that has begun the visits, if it is a run from which the forked run descends; None for the run itself."""


class Consequences(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb would do, in the order in which the run first reached the nodes."""

    kept: tuple[PreviewNode, ...] = ()
    rerun: tuple[PreviewNode, ...] = ()
    asks: tuple[PreviewNode, ...] = ()
    skips: tuple[PreviewNode, ...] = ()
    stops: tuple[PreviewNode, ...] = ()
    closes: tuple[Question, ...] = ()
    leaves: tuple[str, ...] = ()
    """The child runs that have not ended for good and that the run leaves alone."""
    risky: tuple[PreviewNode, ...] = ()
    """The visits of nodes that are not idempotent among those that begin again, whatever becomes of them."""


class Before(msgspec.Struct, frozen=True):
    """What is known about the visits of a run before a verb: copies, because the verb changes the state of the run."""

    nodes: dict[str, NodeState]
    done: dict[str, bool]
    """Node -> whether its latest visit is done."""
    questions: tuple[Question, ...]
    children: tuple[str, ...] = ()
    """The child runs that may still end."""


def survey(state: RunState, rename: Mapping[str, str] | None = None) -> Before:
    """Note what has begun. `rename` has the new names of nodes that the verb renames."""
    names = {name: (rename or {}).get(name, name) for name in state.nodes}
    return Before(
        {names[name]: msgspec.structs.replace(node) for name, node in state.nodes.items()},
        {names[name]: state.is_done(name, node.iteration) for name, node in state.nodes.items()},
        tuple(state.questions.values()),
        tuple(run for run, child in state.children.items() if not child.is_final),
    )


def begins_again(node: NodeState, after: RunState, name: str) -> bool:
    """Return whether attempts of a node, as it was before, are repeated in a run that continues from the state `after`."""
    if not node.tries:
        return False
    later = after.nodes.get(name)
    return later is None or later.tries != node.tries or name in after.open


def foresee(before: Before, after: RunState, flow: Shape, now: float) -> Consequences:
    """Return what becomes of the visits that have begun, if the run continues from the state `after` with this flow."""
    options = flow.definition.nodes
    at_once = _fates(after, flow, now)
    found: dict[Fate, list[PreviewNode]] = {"run": [], "ask": [], "skip": [], "stop": [], "wait": []}
    risky: list[PreviewNode] = []
    for one in _begun(before, after, options):
        first = _done_upto(after, one.node) + 1
        if not one.idempotent:
            risky.append(one)
        if one.last >= first:
            fate = at_once.get(one.node) or _later(after, options[one.node], one.node, first)
            found[fate].append(one)
    kept, skipped = _done(before, after, options)
    open_now = {question.key for question in after.questions.values()}
    return Consequences(
        kept=tuple(kept),
        rerun=tuple(found["run"]),
        asks=tuple(found["ask"]),
        skips=(*skipped, *found["skip"]),
        stops=tuple(found["stop"]),
        closes=tuple(question for question in before.questions if question.key not in open_now),
        leaves=tuple(run for run in before.children if run not in after.children),
        risky=tuple(risky),
    )


def _begun(before: Before, after: RunState, options: Mapping[str, NodeOptions]) -> Iterable[PreviewNode]:
    """Yield the visits that begin again: of this run, and of the run that it was forked from, if this run has not begun them."""
    for name, node in before.nodes.items():
        if name in options and begins_again(node, after, name):
            first = min(_done_upto(after, name) + 1, node.iteration)
            yield _entry(name, first, node, options[name], is_done=before.done[name])
    for name, visits in after.begun.items():
        left = [iteration for iteration in visits if not after.is_done(name, iteration)]
        known = before.nodes.get(name)
        if name in options and left and not (known is not None and begins_again(known, after, name)):
            yield _entry_of_parent(name, min(left), max(left), visits[max(left)], options[name])


def _done_upto(state: RunState, name: str) -> int:
    """Return the iteration of the last visit of a node that is done; 0 if there is none."""
    node = state.nodes.get(name)
    if node is None:
        return 0
    return node.iteration if state.is_done(name, node.iteration) else node.iteration - 1


def _done(
    before: Before, after: RunState, options: Mapping[str, NodeOptions]
) -> tuple[list[PreviewNode], list[PreviewNode]]:
    """Return the visits that are done and stay so, and those that the verb itself ends, by skipping them."""
    kept, skipped = list[PreviewNode](), list[PreviewNode]()
    for name, node in after.nodes.items():
        last, known = _done_upto(after, name), before.nodes.get(name)
        was = known.iteration - (not before.done[name]) if known is not None else 0
        if name not in options:
            continue
        for found, first, upto in ((kept, 1, min(was, last)), (skipped, was + 1, last)):
            if first <= upto:
                found.append(_done_entry(name, first, upto, node, options[name]))
    return kept, skipped


def _done_entry(name: str, first: int, last: int, node: NodeState, options: NodeOptions) -> PreviewNode:
    is_last = last == node.iteration
    return PreviewNode(
        node=name,
        first=first,
        last=last,
        status=node.status if is_last and node.status in VISIT_DONE else "completed",
        at=node.ended_at if is_last else None,
        idempotent=options.idempotent,
    )


def _entry(name: str, first: int, node: NodeState, options: NodeOptions, *, is_done: bool) -> PreviewNode:
    ended = is_done or node.status in VISIT_DONE or node.status == "failed"
    return PreviewNode(
        node=name,
        first=first,
        last=node.iteration,
        status=node.status if not is_done or node.status in VISIT_DONE else "completed",
        at=node.ended_at if ended else node.started_at,
        idempotent=options.idempotent,
    )


def _entry_of_parent(
    name: str, first: int, last: int, visit: BegunVisit, options: NodeOptions
) -> PreviewNode:
    known = [one for one in (visit.whole, *visit.items.values()) if one is not None]
    return PreviewNode(
        node=name,
        first=first,
        last=last,
        status="completed" if all(one.result is not None for one in known) else "interrupted",
        at=max((one.at for one in known if one.at), default=None),
        idempotent=options.idempotent,
        run=max(known, key=lambda one: one.at).run if known else None,
    )


class _Roomy(msgspec.Struct, frozen=True):
    """A flow in which any number of nodes may run at a time: a node that only waits for its turn is not forgotten."""

    definition: Definition
    topology: Topology


def _fates(after: RunState, flow: Shape, now: float) -> dict[str, Fate]:
    """Return what happens to the open visits."""
    if after.status not in ACTIVE:
        return dict.fromkeys(after.open, "stop")
    roomy = _Roomy(msgspec.structs.replace(flow.definition, max_parallel=_ROOM), flow.topology)
    found: dict[str, Fate] = {}
    for command in decide(roomy, _without_skippable(after, flow.definition), now):
        match command:
            case commands.StartNode():
                found[command.node] = "wait" if command.woken else "run"
            case commands.StartItem():
                found[command.node] = "run"
            case commands.AskAboutNode() | commands.AskFirst() | commands.AskRepeat():
                found[command.node] = "ask"
            case commands.SkipNode() | commands.SkipRepeat():
                found[command.node] = "skip"
            case commands.QuarantineNode() | commands.FailItems():
                found[command.node] = "stop"
            case _:
                pass
    return {name: _open_fate(after, name, found.get(name)) for name in after.open}


def _open_fate(after: RunState, name: str, told: Fate | None) -> Fate:
    node = after.nodes[name]
    if node.status == "running":
        return "wait"
    if told == "run":
        return _fan_out_fate(after, node, name)
    if told is not None:
        return told
    if node.question is not None:
        return "ask"
    retries = node.retry_at is not None or (node.items is not None and bool(node.items.again))
    if node.status == "waiting" and not after.failed:
        return "run" if retries else "wait"
    return "wait" if node.status == "pending" and not after.failed else "stop"


def _fan_out_fate(after: RunState, node: NodeState, name: str) -> Fate:
    """Return "run" for a visit that starts, unless it is a fan-out of which no item that has begun runs again."""
    if node.items is not None and node.attempt:
        return "run" if any(item not in node.items.done for item in range(node.items.begun)) else "wait"
    begun = after.begun_visit(name, node.iteration) if not node.attempt else None
    return _begun_fate(begun) if begun is not None else "run"


def _begun_fate(begun: BegunVisit) -> Fate:
    """Return what a fork does with a visit that its parent has begun."""
    if begun.undecided:
        return "ask"
    if begun.choice is None:  # every item that the parent has begun is kept
        return "wait"
    return "skip" if begun.choice == "skip" else "run"


def _without_skippable(after: RunState, definition: Definition) -> RunState:
    """Return the state as if the failed nodes that are safe to fail were skipped already: they hold nothing back."""
    blocking = {name: None for name in after.failed if not definition.nodes[name].safe_to_fail}
    return after if len(blocking) == len(after.failed) else msgspec.structs.replace(after, failed=blocking)


def _later(after: RunState, options: NodeOptions, name: str, iteration: int) -> Fate:
    """Return what happens to a visit when the run reaches it again."""
    if after.status not in ACTIVE:
        return "stop"
    begun = after.begun_visit(name, iteration)
    if begun is not None and _begun_fate(begun) != "run":
        return _begun_fate(begun)
    node = after.nodes.get(name)
    is_approved = node is not None and node.approved and iteration == node.iteration + 1
    return "ask" if options.gated and not is_approved else "run"
