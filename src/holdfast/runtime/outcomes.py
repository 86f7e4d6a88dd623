"""Turns the result or the exception of a node into events. Only this module calls routers and custom reducers."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.definition import END
from holdfast.core.events import Changes, Failure, Values
from holdfast.core.graph import Flow, Node
from holdfast.core.rules import EdgeChoice, RuleFacts
from holdfast.core.run_state import NODE_LEVEL, NodeState, RunState, visit_of
from holdfast.core.situation import FLOW_FILE
from holdfast.core.slots import begun_steps, labels
from holdfast.core.state import always, apply, item_conflict
from holdfast.core.writers import Writers
from holdfast.errors import (
    HoldfastError,
    Recoverable,
    ResumeRefused,
    RouterError,
    StateError,
    did_you_mean,
    end_sentence,
)
from holdfast.runtime import failures
from holdfast.runtime.failures import NodeFaults
from holdfast.runtime.inputs import Inputs

Loader: TypeAlias = Callable[[Values], Any]
"""A function that returns the state with these values, for one call: `Journal.load`."""


Failed = TypeVar("Failed", bound=events.NodeFailed | events.ItemFailed)


class LayerError(HoldfastError):
    """Raised if, because of this node, the changes of a layer cannot be merged or its next nodes not be chosen."""

    def __init__(self, node: str, message: str) -> None:
        self.node = node
        super().__init__(message)


class Route(msgspec.Struct, frozen=True, gc=False):
    """The nodes that follow a node."""

    to: list[str]
    why: EdgeChoice | None = None
    """What guards decided, which is recorded before the route; None if the route has no guards: plain edges and routers give no
    reasons."""

    def evidence(self, header: dict[str, Any]) -> list[events.Event]:
        """Return the event that records what the guards decided, and with which values."""
        if self.why is None or not self.why.verdicts:
            return []
        return [events.GuardEvaluated(**header, verdicts=self.why.verdicts, reads=self.why.reads)]


# --- returned ----------------------------------------------------------------------------------------


def find_changes(
    flow: Flow[Any], name: str, values: Values, given: Any, returned: Any, inputs: object = None
) -> Changes:
    """Return the changes that a node's result makes to its input. Raises `StateError`. For a node in another process, this
    function is called in that process.
    """
    known: Mapping[str, int] = {}
    if type(inputs) is Inputs and flow.state.is_whole(returned, given):
        known = inputs.unchanged(given if returned is None else returned, values)
    changes = flow.state.changes(returned, values, node=name, given=given, known=known)
    if returned is None:
        _refuse_silent_mutation(flow, name, given, values, known)
    return changes


def answer_node(
    flow: Flow[Any],
    state: RunState,
    writers: Writers,
    faults: NodeFaults,
    name: str,
    update: dict[str, Any],
    load: Loader,
) -> list[events.Event]:
    """Return the events for a question node that was answered: its result is this update, as plain data."""
    return complete_node(flow, state, writers, faults, name, flow.state.by_hand(update, node=name), load)


def complete_items(
    flow: Flow[Any], state: RunState, writers: Writers, faults: NodeFaults, name: str, load: Loader
) -> list[events.Event]:
    """Return the events for a fan-out whose items have all completed. Raises `StateError` if two items set the same field."""
    items = state.nodes[name].items
    assert items is not None
    results = items.results()
    clash = item_conflict(results)
    if clash is not None:
        field, one, other = clash
        raise StateError(
            f"items {one} and {other} both set {field!r}. Give the field a reducer (Annotated[…, append | merge | add]), or let "
            f"only one item set it. Then run the items again: `holdfast retry {state.run_id} {name} --fresh`.",
            node=name,
            field=field,
        )
    return complete_node(flow, state, writers, faults, name, Changes(), load, items=results)


def complete_node(
    flow: Flow[Any],
    state: RunState,
    writers: Writers,
    faults: NodeFaults,
    name: str,
    changes: Changes,
    load: Loader,
    artifacts: dict[str, Any] | None = None,
    items: Sequence[Changes] = (),
) -> list[events.Event]:
    """Return the events for a node that returned, and made these changes, or whose items did. Raises `StateError` if they do not
    fit the state; then nothing is recorded. An exception of the node's router is kept in `faults`.
    """
    node = state.nodes[name]
    _refuse_conflict(flow, state, writers, name, changes, items)
    routes, unroutable = None, None
    if state.schedule == "eager":
        if changes.reduce or items:
            changes = apply_reducers(flow, state.values, name, changes, items)
        parts = (*items, changes) if items else (changes,)
        if items or changes.add or flow.state.validates:
            _refuse_misfit(flow, state.values, name, parts, load)
        try:
            routes = route(flow, name, state.values, parts, load=load).to
        except RouterError as fault:
            unroutable = faults.describe(name, fault.__cause__ or fault)
    completion = events.NodeCompleted(
        node=name,
        iteration=node.iteration,
        execution=node.execution,
        attempt=node.attempt,
        changes=changes,
        routes=routes,
        items=bool(items),
        artifacts=artifacts or {},
    )
    if unroutable is None:
        return [completion]
    return [completion, events.RoutingFailed(**visit_of(name, node), failure=unroutable)]


def complete_ruled(
    flow: Flow[Any],
    state: RunState,
    faults: NodeFaults,
    name: str,
    output: Any,
    now: float,
    artifacts: dict[str, Any],
) -> list[events.Event]:
    """Return the events for a node of a plan whose output is accepted: what its guards decide, and its completion."""
    header = visit_of(name, state.nodes[name])
    changes = put_output(name, output)
    if state.schedule == "layered":
        return [events.NodeCompleted(**header, changes=changes, artifacts=artifacts)]
    try:
        chosen = choose(flow, state, name, now, fresh={name: output})
    except RouterError as fault:
        completion = events.NodeCompleted(**header, changes=changes, artifacts=artifacts)
        return [completion, events.RoutingFailed(**header, failure=faults.describe(name, fault))]
    completion = events.NodeCompleted(**header, changes=changes, routes=chosen.to, artifacts=artifacts)
    return [*chosen.evidence(header), completion]


def put_output(name: str, output: Any) -> Changes:
    """Return the changes by which the output of a node becomes part of the state of a plan's run."""
    return Changes(merge={"outputs": {name: output}})


def _refuse_conflict(
    flow: Flow[Any], state: RunState, writers: Writers, name: str, changes: Changes, items: Sequence[Changes]
) -> None:
    """Refuse changes to a field without a reducer that a parallel node has set too. Raises `StateError`."""
    if name in flow.topology.alone:
        return
    fields: Iterable[str] = changes.set
    if items or changes.unset:
        fields = [field for part in (*items, changes) for field in (*part.set, *part.unset)]
    clash = writers.conflict(state, name, fields)
    if clash is None and state.held:
        clash = _find_held_conflict(flow, state, name, fields)
    if clash is not None:
        field, other = clash
        raise StateError(
            f"the node sets {field!r}, as the parallel node {other!r} has done, and the graph does not say which comes last. "
            "Give the field a reducer (Annotated[…, append | merge | add | your own]), let only one of the nodes set it, "
            "or put an edge between them.",
            node=name,
            field=field,
        )


def _refuse_misfit(
    flow: Flow[Any], values: Values, name: str, parts: Sequence[Changes], load: Loader
) -> None:
    """Refuse changes after which the state does not fit its type: a sum may be too large for its type, and a state type with its
    own validators may reject any value. The failure belongs to this node, not to the next one that gets the state.
    """
    if not flow.state.validates and not any(part.add for part in parts):
        return
    summed = {field for part in parts for field in part.add}
    after = dict(values)
    try:
        for part in parts:
            apply(after, part, always)
        if flow.state.validates:
            load(after)
        for field in summed:
            flow.state.decode_field(field, after[field])
    except StateError as misfit:
        raise StateError(f"the result of the node makes the state invalid: {misfit}", node=name) from misfit


def _refuse_old_result(flow: Flow[Any], values: Values, name: str, changes: Changes) -> None:
    """Refuse changes that an earlier execution made, perhaps with another version of the flow, if they do not fit the state."""
    try:
        flow.state.load(_applied(values, [changes]))
    except Exception as misfit:
        raise StateError(
            f"the result that the visit had in the parent of this fork does not fit the state: {end_sentence(str(misfit))} It "
            "was skipped without a result. Resume the run with edit=… (--edit) that sets the fields of the result.",
            node=name,
        ) from misfit


def _find_held_conflict(
    flow: Flow[Any], state: RunState, name: str, fields: Iterable[str]
) -> tuple[str, str] | None:
    """Return one of these fields that another node of the same layer has set, and the name of that node; None if there is none.
    (The changes of a layer are applied when it is complete.)
    """
    for other, held in state.held.items():
        if any(flow.topology.parallel(name, 1 << flow.topology.index[other])):
            taken = {field for part in (*held.items, held.changes) for field in (*part.set, *part.unset)}
            for field in fields:
                if field in taken:
                    return field, other
    return None


def _refuse_silent_mutation(
    flow: Flow[Any], name: str, given: Any, values: Values, known: Mapping[str, int]
) -> None:
    changed = flow.state.untouched(given, values, known)
    if changed:
        raise StateError(
            f"the node changed {', '.join(map(repr, changed))} of the state it was given and returned None, so the change "
            "would be lost. Return the state, or a dict with the changed fields.",
            node=name,
            field=changed[0],
        )


def complete_item(
    flow: Flow[Any],
    name: str,
    header: dict[str, Any],
    item: int,
    returned: Any,
    artifacts: dict[str, Any] | None = None,
) -> events.ItemCompleted:
    """Return the event for an item of a fan-out that returned. Raises `StateError` if its result does not fit the state."""
    changes = returned if type(returned) is Changes else flow.state.changes(returned, {}, node=name)
    return events.ItemCompleted(**header, item=item, changes=changes, artifacts=artifacts or {})


# --- custom reducers ---------------------------------------------------------------------------------


def apply_reducers(
    flow: Flow[Any], values: Values, name: str, changes: Changes, items: Iterable[Changes] = ()
) -> Changes:
    """Return the changes with each value for a custom reducer replaced by the reducer's result. Values from items are reduced
    first, in the order of the items.
    """
    if not changes.reduce and not items:
        return changes
    operands: dict[str, list[Any]] = {}
    for part in (*items, changes):
        for field, operand in part.reduce.items():
            operands.setdefault(field, []).append(operand)
    if not operands:
        return changes
    results = {
        field: _reduce(flow, name, field, values.get(field), given) for field, given in operands.items()
    }
    return msgspec.structs.replace(changes, set={**changes.set, **results}, reduce={})


def _reduce(flow: Flow[Any], name: str, field: str, value: Any, operands: list[Any]) -> Any:
    reducer = flow.state.reducer(field)
    for operand in operands:
        merged = reducer(flow.state.decode_field(field, value), flow.state.decode_operand(field, operand))
        value = flow.state.encode_field(field, merged, node=name)
    return value


# --- routes ------------------------------------------------------------------------------------------


def route(
    flow: Flow[Any],
    name: str,
    values: Values,
    changes: Iterable[Changes] = (),
    *,
    load: Loader | None = None,
) -> Route:
    """Return the nodes that follow this node, given the state with these changes applied. Raises `RouterError`."""
    routes = list(flow.plain_routes[name])
    branch = flow.branches.get(name)
    if branch is None:
        return Route(routes)
    after = _applied(values, changes)
    try:
        chosen = branch.router((load or flow.state.load)(after))
    except Exception as raised:
        raise RouterError(f"the router of {name!r} raised {type(raised).__name__}: {raised}") from raised
    for target in [chosen] if isinstance(chosen, str) else _list_targets(name, chosen, branch.targets):
        if target not in branch.targets:
            raise RouterError(
                f"the router of {name!r} returned {target!r}, which is not one of its targets "
                f"({', '.join(branch.targets)}){did_you_mean(str(target), branch.targets)}"
            )
        if target not in routes:
            routes.append(target)
    return Route(routes)


def choose(
    flow: Flow[Any],
    state: RunState,
    name: str,
    now: float,
    *,
    fresh: dict[str, Any],
    failure: Failure | None = None,
) -> Route:
    """Return where the run of a plan goes from a node that has ended: along the ordinary edges or, with a failure, along those
    that take it. Raises `GuardError`.
    """
    assert flow.guards is not None
    facts = RuleFacts(values=state.values, now=now, fresh=fresh, error=failure)
    chosen = flow.guards[name].choose(facts, failure)
    return Route(chosen.to or [END], chosen)


def _applied(values: Values, changes: Iterable[Changes]) -> Values:
    """Return the values with the changes applied; the given values stay as they are."""
    after = dict(values)
    for part in changes:
        apply(after, part, always)
    return after


def _list_targets(name: str, chosen: Any, targets: Sequence[str]) -> list[Any]:
    if not isinstance(chosen, (list, tuple, set, frozenset)) or not chosen:
        raise RouterError(
            f"the router of {name!r} returned {chosen!r}; it must return one or more of its targets ({', '.join(targets)})"
            + ("" if END in targets else f". To end the run here, declare {END} as a target")
        )
    return sorted(chosen, key=list(targets).index) if all(one in targets for one in chosen) else list(chosen)


def skipped(
    flow: Flow[Any],
    state: RunState,
    name: str,
    header: dict[str, Any],
    *,
    update: Any = None,
    now: float = 0.0,
    **said: Any,
) -> list[events.Event]:
    """Return the events for a visit that is skipped, with `update` in place of its result: fields, or the changes that an earlier
    execution made; in a plan, its output. `said` are more fields of the event, such as `by` and `reason`. Raises `ResumeRefused`
    if a route cannot be chosen, and `StateError` if the update does not fit the state.
    """
    changes = _by_hand(flow, state, name, update)
    if state.schedule == "layered":
        return [events.NodeSkipped(**header, changes=changes, **said)]
    changes = apply_reducers(flow, state.values, name, changes)
    try:
        if flow.guards is not None:
            failure = said.get("warning") if said.get("caught") else None
            chosen = choose(flow, state, name, now, fresh=changes.merge.get("outputs", {}), failure=failure)
        else:
            chosen = route(flow, name, state.values, [changes])
    except RouterError as fault:
        raise ResumeRefused(
            state.run_id,
            f"skipping {name!r} needs a route, but {fault}. Give an update with which its router can choose one.",
        ) from fault
    return [*chosen.evidence(header), events.NodeSkipped(**header, changes=changes, routes=chosen.to, **said)]


def _by_hand(flow: Flow[Any], state: RunState, name: str, update: Any) -> Changes:
    """Return the changes that are given in place of a node's result. Raises `StateError`."""
    if type(update) is Changes:
        _refuse_old_result(flow, state.values, name, update)
        return update
    wiring = flow.nodes[name].wiring if name in flow.nodes else None
    if wiring is not None and update is not None:
        return put_output(name, wiring.encode(wiring.accept(update)))
    return flow.state.by_hand(update, node=name)


def merge_layer(
    flow: Flow[Any], state: RunState, nodes: Sequence[str], now: float, load: Loader
) -> tuple[Changes, dict[str, Route]]:
    """Merge the changes of a completed layer. Returns the results of custom reducers, which no node has recorded, and the nodes
    that follow each node. Raises `LayerError`.
    """
    if flow.guards is not None:
        return Changes(), _route_layer(flow, state, nodes, now)
    after = dict(state.values)
    results: dict[str, Any] = {}
    for name in nodes:
        held = state.held[name]
        for part in (*held.items, held.changes):
            try:
                _refuse_misfit(flow, after, name, [part], load)
                apply(after, part, always)
                merged = apply_reducers(flow, after, name, Changes(reduce=part.reduce))
            except Exception as raised:
                raise LayerError(
                    name, f"merging its changes raised {type(raised).__name__}: {raised}"
                ) from raised
            results.update(merged.set)
            after.update(merged.set)
    routes: dict[str, Route] = {}
    for name in nodes:
        try:
            routes[name] = route(flow, name, after, load=load)
        except RouterError as fault:
            raise LayerError(name, str(fault)) from (fault.__cause__ or fault)
    return Changes(set=results), routes


def _route_layer(flow: Flow[Any], state: RunState, nodes: Sequence[str], now: float) -> dict[str, Route]:
    """Return where the run of a plan goes from each node of a layer."""
    fresh: dict[str, Any] = {}
    for name in nodes:
        fresh |= state.held[name].changes.merge.get("outputs", {})
    routes: dict[str, Route] = {}
    for name in nodes:
        decided = state.held[name].routes
        if decided is not None:
            routes[name] = Route(decided)
            continue
        try:
            routes[name] = choose(flow, state, name, now, fresh=fresh)
        except RouterError as fault:
            raise LayerError(name, str(fault)) from fault
    return routes


# --- raised ------------------------------------------------------------------------------------------


def fail_node(
    node: Node, state: NodeState, error: BaseException, *, now: float, luck: random.Random, timed_out: bool
) -> events.NodeFailed:
    """Return the event for a node that raised or timed out."""
    failure, delay = _judge(node, error, state.failures + 1, now, luck, timed_out)
    return events.NodeFailed(
        **visit_of(node.name, state), failure=failure, retry_at=None if delay is None else now + delay
    )


def fail_item(
    node: Node,
    state: NodeState,
    header: dict[str, Any],
    item: int,
    error: BaseException,
    *,
    now: float,
    luck: random.Random,
    timed_out: bool,
) -> events.ItemFailed:
    """Return the event for an item of a fan-out that raised or timed out."""
    before = state.items.failures.get(item, 0) if state.items is not None else 0
    failure, delay = _judge(node, error, before + 1, now, luck, timed_out)
    kept = state.kept.get(item, {})
    uncertain = timed_out or (
        failures.classify(error) == "recoverable" and not isinstance(error, Recoverable)
    )
    is_asked = delay is None and uncertain and node.options.on_interrupt == "ask"
    if is_asked or begun_steps(kept):  # `perform` asks the operator
        failure, delay = msgspec.structs.replace(failure, kind="recoverable"), None
    return events.ItemFailed(
        **header, item=item, failure=failure, retry_at=None if delay is None else now + delay
    )


def name_remedy(failed: Failed, error: BaseException, state: RunState) -> Failed:
    """Return the event of a failure. If every attempt would get it again, because it is the kept outcome of a step, the event
    says so, with the commands that help.
    """
    by = failures.kept_steps(error)
    if not by:
        return failed
    (run_id, step), node = by[0], failed.node
    level = failed.item if isinstance(failed, events.ItemFailed) else NODE_LEVEL
    kept = state.nodes[node].kept.get(level, {})
    others = [one for one in (*labels("step", kept), *labels("raised", kept)) if one != step]
    also = f", also {', '.join(map(repr, others))}" if others else ""
    file = state.options.get(FLOW_FILE)
    where = f"{run_id} {node}" + (f" {shlex.quote(file)}" if file else "")
    advice = (
        f"This is the outcome of the step {step!r}, which a resume gets again without a call. To go on without the node: "
        f"`holdfast skip {where}`; to call its steps again{also}: `holdfast retry {where} --fresh`."
    )
    failure = msgspec.structs.replace(failed.failure, advice=advice, step=step)
    return msgspec.structs.replace(failed, failure=failure)


def is_uncertain(
    node: Node,
    state: NodeState,
    error: BaseException,
    now: float,
    luck: random.Random,
    *,
    timed_out: bool = False,
) -> bool:
    """Return whether it is unknown if a node, or a step of it, that is not idempotent had its effect: because it took too long,
    its connection broke or no reply arrived. False if the node's `Retry` covers the failure, or if the node raised
    `Recoverable`, which says that a retry is safe.
    """
    options = node.options
    if begun_steps(state.kept.get(NODE_LEVEL, {})):
        return True
    if timed_out:
        return not options.idempotent
    if options.idempotent or options.on_interrupt != "ask" or isinstance(error, Recoverable):
        return False
    if (
        failures.find_spent_budget(error) is not None
    ):  # the node has reported a cost, so its effect has probably happened
        return True
    if failures.classify(error) != "recoverable":
        return False
    return failures.retry_delay(node.retry, error, "recoverable", state.failures + 1, luck, now=now) is None


def _judge(
    node: Node, error: BaseException, count: int, now: float, luck: random.Random, timed_out: bool
) -> tuple[Failure, float | None]:
    if timed_out:
        error = TimeoutError(f"node {node.name!r} took longer than {node.options.timeout_s:g} s")
    failure = failures.describe(error)
    delay = failures.retry_delay(node.retry, error, failure.kind, count, luck, now=now)
    if delay is None and failure.kind == "recoverable":
        failure = msgspec.structs.replace(failure, kind="partial")
    return failure, delay
