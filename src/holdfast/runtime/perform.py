"""Performs commands of `decide` by recording their events. The runner calls the nodes when these events are durable."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, TypeAlias, assert_never

import msgspec

from holdfast.core import commands, events
from holdfast.core.codec import article, is_declarable, type_name
from holdfast.core.decide import is_caught
from holdfast.core.events import Changes, Failure
from holdfast.core.graph import Flow, Node
from holdfast.core.run_state import VISIT_STUCK, visit_of
from holdfast.errors import CodecError, ResumeRefused, RouterError, StateError, describe_item, end_sentence
from holdfast.runtime import judging, outcomes, questions
from holdfast.runtime.journal import Journal
from holdfast.runtime.services import AbandonedCall

_log = logging.getLogger("holdfast")
_WARNED_FROM = 9
"""A lower limit on iterations has no nine tenths, and its end is in sight from the start."""

_LABEL_CHARS = 100
"""A label is one of many in a list, and is stored with each of them."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_OnVisit: TypeAlias = (
    commands.CompleteItems | commands.FailItems | commands.RouteNode | commands.SkipNode | commands.AskAboutNode
    | commands.QuarantineNode | commands.FinishNode
)  # fmt: skip
"""The commands that concern an open visit."""


def perform(journal: Journal, command: commands.AnyCommand, starts: list[events.NodeEvent]) -> bool:
    """Record the events of a command. Start events are also added to `starts` if the runner must call the node or item when
    they are durable. Returns whether `decide` may have more commands now.
    """
    record = journal.record
    match command:
        case commands.StartNode():
            return _start(journal, command, starts)
        case commands.StartItem(node, item, attempt):
            header = visit_of(node, journal.state.nodes[node]) | {"attempt": attempt}
            begun = events.ItemStarted(**header, item=item)
            record(begun)
            starts.append(begun)
        case commands.ScheduleNode(node, iteration, execution, why):
            record(events.NodeScheduled(node=node, iteration=iteration, execution=execution, why=why))
            return journal.state.scope is not None  # if nothing else is left to do, the run is paused now
        case commands.CompleteRun():
            record(events.RunCompleted())
        case commands.FailRun(failure, failed):
            record(events.RunFailed(failure=msgspec.structs.replace(failure, traceback=""), node=failed))
        case commands.PauseRun(reason):
            record(events.RunPaused(reason=reason))
        case commands.CompleteLayer():
            _complete_layer(journal, command)
            return True
        case commands.AskFirst(node, iteration, execution):
            questions.ask_first(journal, node, iteration, execution)
            return True
        case commands.AskRepeat(node, iteration, execution):
            questions.ask_repeat(journal, node, iteration, execution)
            return True
        case commands.SkipRepeat():
            _skip_repeat(journal, command)
            return True
        case commands.SkipNodes(nodes, why):
            record(events.NodesSkipped(nodes=list(nodes), why=why))
            return True
        case commands.ExpireQuestion(key):
            questions.expire(journal, key)
            return True
        case commands.FireTimer(key):
            _fire(journal, key)
            return True
        case (
            commands.CompleteItems()
            | commands.FailItems()
            | commands.RouteNode()
            | commands.SkipNode()
            | commands.AskAboutNode()
            | commands.QuarantineNode()
            | commands.FinishNode()
        ):
            _perform_on_visit(journal, command)
            return True
        case commands.WakeAt() | commands.DueAt():
            raise AssertionError(
                f"{command} has no events to record: the runner must handle it, by setting a timer"
            )
        case _:
            assert_never(command)
    return False


def _start(journal: Journal, command: commands.StartNode, starts: list[events.NodeEvent]) -> bool:
    name = command.node
    started = events.NodeStarted(
        node=name,
        iteration=command.iteration,
        execution=command.execution,
        attempt=command.attempt,
        took=command.took,
        woken=command.woken,
    )
    journal.record(started)
    if command.iteration >= _WARNED_FROM:
        _warn_of_limit(journal, command)
    options = journal.flow.nodes[name].options
    if options.question is not None:
        _take_answer(journal, name)
        return True
    if options.each:
        if journal.state.nodes[name].items is None:
            _list_items(journal, name)
        return True  # a fan-out is not called itself, only its items
    starts.append(started)
    return False


def _warn_of_limit(journal: Journal, command: commands.StartNode) -> None:
    """Log a warning at the first attempt of the visit that is nine tenths of the way to the iteration limit."""
    most = journal.flow.definition.max_iterations
    if (
        most is not None
        and command.iteration == -(-9 * most // 10)
        and command.attempt == 1
        and not command.woken
    ):
        _log.warning(
            "run %r: node %r begins iteration %s of at most %s, where the run would fail. If that is right, raise the limit with "
            "compile(max_iterations=…), or remove it with compile(max_iterations=None).",
            journal.state.run_id,
            command.node,
            f"{command.iteration:,}",
            f"{most:,}",
        )


def _perform_on_visit(journal: Journal, command: _OnVisit) -> None:
    name = command.node
    record = journal.record
    header = visit_of(name, journal.state.nodes[name])
    match command:
        case commands.CompleteItems():
            try:
                produced = outcomes.complete_items(
                    journal.flow, journal.state, journal.writers, journal.faults, name, journal.load
                )
            except Exception as raised:  # noqa: BLE001 - two items set one field, or a reducer raised
                produced = [events.NodeFailed(**header, failure=journal.faults.describe(name, raised))]
            for event in produced:
                record(event)
        case commands.FailItems():
            items = journal.state.nodes[name].items
            assert items is not None
            label = items.labels[command.item] if items.labels else ""
            failure = msgspec.structs.replace(command.failure, item=command.item, label=label)
            if failure.kind == "recoverable":  # its effect may or may not have happened, as after a crash
                told = f"{failure.type}, {describe_item(command.item, label)}: {failure.message}"
                record(events.NodeInterrupted(**header, reason=told))
                return
            record(events.NodeFailed(**header, failure=failure))
        case commands.RouteNode():
            _route(journal, name, header)
        case commands.FinishNode():
            judging.finish(journal, name)
        case commands.SkipNode():
            _skip_cut(journal, name, header)
        case commands.AskAboutNode():
            questions.ask_about(journal, name)
        case commands.QuarantineNode():
            record(events.NodeFailed(**header, failure=_quarantined(journal, name)))
        case _:
            assert_never(command)


def _list_items(journal: Journal, name: str) -> None:
    """Call the `each` function of a fan-out, and record the items that it returns, in the same append as the start."""
    node, visit = journal.flow.nodes[name], journal.state.nodes[name]
    header = visit_of(name, visit)
    assert node.each is not None
    try:
        listed = _listed(node, journal.load(visit.input or {}))
        items = [_encode_item(journal.flow, name, number, item) for number, item in enumerate(listed)]
        labels = [_label(node, number, item) for number, item in enumerate(listed)] if node.label else []
    except Exception as raised:  # noqa: BLE001 - user code
        now, luck = journal.at, journal.services.luck
        fault = raised.__cause__ or raised if isinstance(raised, _LabelFailed) else raised
        journal.faults[name] = fault
        failed = outcomes.fail_node(node, visit, fault, now=now, luck=luck, timed_out=False)
        if isinstance(raised, _LabelFailed):
            failure = msgspec.structs.replace(failed.failure, advice=str(raised))
            failed = msgspec.structs.replace(failed, failure=failure)
        journal.record(failed)
    else:
        journal.record(events.ItemsListed(**header, items=items, labels=labels))


def _listed(node: Node, state: Any) -> list[Any]:
    """Return the items of a fan-out. Raises `StateError` if its `each` function returns something that lists none."""
    assert node.each is not None
    given = node.each(state)
    if not isinstance(given, Iterable) and not hasattr(given, "__getitem__"):
        raise StateError(f"each= returned {given!r:.80}; return a list of items", node=node.name)
    return list(given)


class _LabelFailed(Exception):
    """The `label` of a fan-out raised (`__cause__` is what it raised). Its text is the advice."""


def _label(node: Node, number: int, item: Any) -> str:
    """Return the label of an item, shortened if it is long. Raises `_LabelFailed`, or `StateError` for what is not a label."""
    assert node.label is not None
    try:
        label = node.label(item)
    except Exception as raised:
        raise _LabelFailed(
            f"It was raised by label= of node {node.name!r} for item {number}, before any item began. It must return a text "
            "for every item."
        ) from raised
    if not isinstance(label, str):
        raise StateError(f"label= returned {label!r:.80} for item {number}; return a str", node=node.name)
    if _CONTROL.search(label):
        raise StateError(
            f"label= returned {label!r:.80} for item {number}, which has control characters; return one line of text",
            node=node.name,
        )
    return label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"


def _encode_item(flow: Flow[Any], name: str, number: int, item: Any) -> Any:
    """Convert an item of a fan-out to plain data. Raises `CodecError`, which says where the type of the items is missing."""
    codec, node, path = flow.item_codecs[name], flow.nodes[name], f"item {number}"
    try:
        return codec.encode(item, path=path, node=name)
    except CodecError as fault:
        if codec.type is not Any or not is_declarable(item):
            raise
        kind = type_name(type(item))
        function = "input" if node.calls is not None else name
        raise CodecError(
            f"{article(kind)} cannot be kept, because the type of the items is not known; annotate the argument of the function "
            f"that gets an item, as in def {function}(item: {kind})",
            path=path,
            node=name,
        ) from fault


def _route(journal: Journal, name: str, header: dict[str, Any]) -> None:
    flow, state = journal.flow, journal.state
    try:
        if flow.guards is not None:
            chosen = outcomes.choose(flow, state, name, journal.at, fresh={})
        else:
            chosen = outcomes.route(flow, name, state.values, load=journal.load)
    except RouterError as fault:
        cause = fault.__cause__ or fault
        journal.record(events.RoutingFailed(**header, failure=journal.faults.describe(name, cause)))
        return
    for event in (*chosen.evidence(header), events.NodeRouted(**header, routes=chosen.to)):
        journal.record(event)


def _complete_layer(journal: Journal, command: commands.CompleteLayer) -> None:
    try:
        changes, routes = outcomes.merge_layer(
            journal.flow, journal.state, command.nodes, journal.at, journal.load
        )
    except outcomes.LayerError as fault:
        header = visit_of(fault.node, journal.state.nodes[fault.node])
        failure = journal.faults.describe(fault.node, fault.__cause__ or fault)
        journal.record(events.RoutingFailed(**header, failure=failure))
    else:
        for name, route in routes.items():
            for event in route.evidence(visit_of(name, journal.state.nodes[name])):
                journal.record(event)
        journal.record(
            events.LayerCompleted(
                layer=command.layer,
                nodes=list(command.nodes),
                changes=changes,
                routes={name: route.to for name, route in routes.items()},
            )
        )


def _skip_cut(journal: Journal, name: str, header: dict[str, Any]) -> None:
    """Skip an interrupted visit (`on_interrupt="skip"`) or a failed one (`safe_to_fail`, or an edge takes its failure), with no
    update in place of its result. If the node's router cannot choose a route then, this is recorded as a failure of the router.
    """
    visit = journal.state.nodes[name]
    warning = visit.failure
    if is_caught(journal.flow.nodes[name].options, visit):
        _take_failure(journal, name, header)
        return
    reason = "on_interrupt" if warning is None else "safe_to_fail"
    _skip(journal, name, header, reason=reason, warning=warning)


def _take_failure(journal: Journal, name: str, header: dict[str, Any]) -> None:
    """Let the edges of a plan that name the failure of a node take it, if their guards allow it. Otherwise only what the guards
    decided is recorded, and the failure stays unhandled.
    """
    failure, took = journal.state.nodes[name].failure, 0
    assert failure is not None
    if name not in journal.state.open:  # it was refused before it began
        header["iteration"] += 1
        header["execution"] = journal.state.next_execution(name, header["iteration"])
        took = journal.state.arrivals[name]
    try:
        chosen = outcomes.choose(journal.flow, journal.state, name, journal.at, fresh={}, failure=failure)
    except RouterError as fault:
        found = journal.faults.describe(name, fault)
        told = f"{end_sentence(found.message)} It was to decide about this failure: {failure.describe()}"
        found = msgspec.structs.replace(found, message=told)
        journal.record(events.GuardEvaluated(**header, failure=found))
        return
    for event in chosen.evidence(header):
        journal.record(event)
    if chosen.why is not None and chosen.why.to:
        journal.cancel_children(name, None, f"its caller has skipped {name!r}")
        journal.record(
            events.NodeSkipped(
                **header, routes=chosen.to, took=took, warning=failure, caught=True, reason="on_error"
            )
        )


def _skip_repeat(journal: Journal, command: commands.SkipRepeat) -> None:
    """Skip a visit that the parent of this fork has begun, with the result that it had there."""
    name, state = command.node, journal.state
    header: dict[str, Any] = {"node": name, "iteration": command.iteration, "execution": command.execution}
    visit = state.begun_visit(name, command.iteration)
    assert visit is not None
    if name not in state.nodes or state.nodes[name].status not in VISIT_STUCK:
        journal.record(events.NodeScheduled(**header, why="the fork skips it"))
    _skip(journal, name, header, update=visit.result(), took=command.took, reason="repeat")


def _skip(
    journal: Journal, name: str, header: dict[str, Any], *, update: Changes | None = None, **said: Any
) -> None:
    """Record the skip of a visit. If its route cannot be decided, or the update does not fit the state any more, that is recorded
    as a failure of the router, so that the run fails and an operator can edit the state.
    """
    if journal.state.children:
        journal.cancel_children(name, None, f"its caller has skipped {name!r}")
    try:
        skipped = outcomes.skipped(
            journal.flow, journal.state, name, header, update=update, now=journal.at, **said
        )
    except (StateError, ResumeRefused) as fault:
        changes = Changes() if update is None or isinstance(fault, StateError) else update
        journal.record(events.NodeSkipped(**header, changes=changes, **said))
        cause = fault if isinstance(fault, StateError) else fault.__cause__ or fault
        journal.record(events.RoutingFailed(**header, failure=journal.faults.describe(name, cause)))
    else:
        for event in skipped:
            journal.record(event)


def _quarantined(journal: Journal, name: str) -> Failure:
    nodes = journal.state.nodes
    times = nodes[name].crashes
    beside = [other for other in journal.state.open if other != name and nodes[other].crashes >= times]
    also = f" (the cause may also be in {', '.join(beside)}, which ran at the same time)" if beside else ""
    return Failure(
        "fatal",
        "Quarantined",
        f"the process ended while {name!r} ran, {times} times in a row, and the node neither kept a result nor received anything "
        "in between, so it is not retried",
        advice=f"Find out what ends the process{also}; then resume with force=True (--force), or skip the node.",
    )


def _fire(journal: Journal, key: str) -> None:
    wait = journal.state.waits[key]
    if wait.abandons and wait.child in journal.state.children:
        journal.cancel_child(wait.child, "its caller did not wait longer")
    attempt = journal.state.nodes[wait.node].attempt
    journal.record(
        events.TimerFired(
            node=wait.node,
            iteration=wait.iteration,
            execution=wait.execution,
            attempt=attempt,
            slot=wait.slot,
            item=wait.item,
        )
    )


def _take_answer(journal: Journal, name: str) -> None:
    """Complete a question node that was answered: the answer is its result."""
    asked, visit = journal.flow.nodes[name].options.question, journal.state.nodes[name]
    assert asked is not None
    update = {asked.into: visit.answer} if asked.into is not None else {}
    try:
        produced = outcomes.answer_node(
            journal.flow, journal.state, journal.writers, journal.faults, name, update, journal.load
        )
    except Exception as raised:  # noqa: BLE001 - a reducer or a validation of the user's raised
        failure = journal.faults.describe(name, raised)
        produced = [events.NodeFailed(**visit_of(name, visit), failure=failure)]
    for event in produced:
        journal.record(event)


def give_up(journal: Journal, command: commands.AnyCommand, abandoned: AbandonedCall) -> None:
    """Record that a new attempt has failed, because the thread of an older attempt still runs. It is not retried."""
    name = abandoned.key[0]
    options = journal.flow.nodes[name].options
    told = f"the thread of an earlier attempt of {name!r} still runs"
    more = ""
    if abandoned.timed_out:
        seconds = f"{options.timeout_s:g}"
        told = f"node {name!r} took longer than its timeout of {seconds} s, and the thread of that attempt still runs"
        more = f"Raise timeout={seconds} if the node needs longer. "
    advice = (
        f"A thread cannot be killed: stop this process, then resume the run. {more}An async node, or a node that checks "
        "ctx.cancelled, can be stopped."
    )
    failure = Failure("partial", "StillRunning", told, advice=advice)
    starts: list[events.NodeEvent] = []
    perform(journal, command, starts)
    for start in starts:
        header: dict[str, Any] = {
            name: getattr(start, name) for name in ("node", "iteration", "execution", "attempt")
        }
        if isinstance(start, events.ItemStarted):
            journal.record(events.ItemFailed(**header, item=start.item, failure=failure))
        else:
            journal.record(events.NodeFailed(**header, failure=failure))
