"""Fold the events inside a visit: results that it keeps, what it waits for, and questions.

A *slot* (`core/slots`) names one result or wait within an execution: `step:charge`, `checkpoint`, `signal:paid:1`, and more.
Results are kept under their slot: the result of a step as it is; the outcome of a wait as `[value]`, or as `[]` if it timed
out. An attempt that has unwound (`parked`) is due again as soon as one of the slots that it waits for is filled.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from holdfast.core import events
from holdfast.core.events import Failure, Stored
from holdfast.core.fold.status import awaken, end_item, forget_begun, keep, set_status, settle, spend
from holdfast.core.run_state import (
    BEFORE_A_VISIT,
    NODE_LEVEL,
    Question,
    RunState,
    SetAside,
    Wait,
    WaitKind,
)
from holdfast.core.slots import CHECKPOINT, step_text
from holdfast.errors import IllegalEvent

# --- inside a node -----------------------------------------------------------------------------------


def node_checkpointed(state: RunState, event: events.NodeCheckpointed, stored: Stored) -> None:
    """Keep a node's checkpoint, which replaces its previous one."""
    keep(state, event.node, event.item, CHECKPOINT, event.value)


def node_streamed(state: RunState, event: events.NodeStreamed, stored: Stored) -> None:
    """Count the chunks that a node has streamed. The chunks themselves stay in the log."""
    state.nodes[event.node].streamed += event.count


def cost_incurred(state: RunState, event: events.CostIncurred, stored: Stored) -> None:
    """Add costs to the totals of the node and of the run."""
    node = state.nodes[event.node]
    node.usd += event.usd
    node.tokens += event.tokens
    state.usd += event.usd
    state.tokens += event.tokens


def timer_set(state: RunState, event: events.TimerSet, stored: Stored) -> None:
    """Record that a node waits until a time."""
    wait = Wait(event.node, event.iteration, event.execution, event.slot, event.item, until=event.until)
    state.waits[key_of(state, wait)] = wait
    open_again(state, event.node, event.item, event.slot)


def signal_awaited(state: RunState, event: events.SignalAwaited, stored: Stored) -> None:
    """Record that a node waits for a signal, or give it the oldest signal of that name that has already come."""
    wait = Wait(
        event.node, event.iteration, event.execution, event.slot, event.item, signal=event.name, until=event.until,
        payload_schema=event.payload_schema,
    )  # fmt: skip
    if event.takes is not None and not 0 <= event.takes < len(state.aside):
        raise IllegalEvent(f"run {state.run_id!r}: no signal {event.takes} was set aside")
    open_again(state, event.node, event.item, event.slot)
    if event.takes is not None:
        _fill(state, wait, state.aside.pop(event.takes).payload)
    elif not _take_oldest(state, wait):
        state.waits[key_of(state, wait)] = wait


def _take_oldest(state: RunState, wait: Wait) -> bool:
    """Give a wait the oldest signal of its name that no visit has received, if there is one."""
    name = wait.signal or ""
    waiting = state.signals.get(name)
    if not waiting:
        return False
    payload = waiting.pop(0)
    if not waiting:
        del state.signals[name]
    _fill(state, wait, payload)
    return True


def _fill(state: RunState, wait: Wait, payload: Any) -> None:
    """End a wait with a signal that came before the wait began."""
    keep(state, wait.node, wait.item, wait.slot, [payload])
    _remember(state, wait)


def _remember(state: RunState, wait: Wait) -> None:
    """Remember a wait that a signal has ended, if it is for a payload of a certain type: only the node can tell whether the
    payload fits, and if it does not, the wait continues.
    """
    if wait.payload_schema:
        level = NODE_LEVEL if wait.item is None else wait.item
        state.nodes[wait.node].filled.setdefault(level, {})[wait.slot] = wait


def key_of(state: RunState, wait: Wait) -> str:
    """Return the key of a wait among those of its run."""
    return state.wait_key(wait.node, wait.iteration, wait.execution, wait.item, wait.slot)


def signal_set_aside(state: RunState, event: events.SignalSetAside, stored: Stored) -> None:
    """Set the signal of a wait aside, and give the wait the next signal of its name. If there is none, the wait is open again,
    before all other waits.
    """
    node, level = state.nodes[event.node], NODE_LEVEL if event.item is None else event.item
    kept = node.kept.get(level, {})
    if not kept.get(event.slot):
        raise IllegalEvent(f"run {state.run_id!r}: {event.node!r} has received no signal in {event.slot!r}")
    (payload,) = kept.pop(event.slot)
    state.aside.append(SetAside(event.name, payload, event.node, event.reason))
    wait = node.filled.get(level, {}).pop(event.slot, None)
    if wait is None:  # of a version that did not keep what a wait wants
        wait = Wait(
            event.node, event.iteration, event.execution, event.slot, event.item, signal=event.name
        )  # fmt: skip
    wait.node = event.node
    if not _take_oldest(state, wait):
        state.waits = {key_of(state, wait): wait, **state.waits}


def signal_received(state: RunState, event: events.SignalReceived, stored: Stored) -> None:
    """Give a signal to the oldest wait for it; if no visit waits for it, keep the signal for the next wait."""
    if not _give_to_oldest(state, event.name, event.payload):
        state.signals.setdefault(event.name, []).append(event.payload)


def _give_to_oldest(state: RunState, name: str, payload: Any) -> bool:
    """Give a signal to the oldest wait for its name. Returns False if no visit waits for it."""
    for key, wait in state.waits.items():
        if wait.signal == name:
            del state.waits[key]
            _remember(state, wait)
            resolve(state, wait.node, wait.item, wait.slot, [payload])
            return True
    return False


def wait_withdrawn(state: RunState, event: events.WaitWithdrawn, stored: Stored) -> None:
    """Close a wait. A signal that it had received goes to the next wait for that name, before all later signals."""
    node, level = state.nodes[event.node], NODE_LEVEL if event.item is None else event.item
    kept = node.kept.get(level, {})
    key = state.wait_key(event.node, event.iteration, event.execution, event.item, event.slot)
    is_open = key in state.waits or key in state.questions
    if not (is_open if event.returned is None else kept.get(event.slot)):
        raise IllegalEvent(f"run {state.run_id!r}: {event.node!r} does not wait in {event.slot!r}")
    state.waits.pop(key, None)
    state.questions.pop(key, None)
    node.withdrawn.setdefault(level, []).append(event.slot)
    if event.returned is not None:
        (payload,) = kept.pop(event.slot)
        node.filled.get(level, {}).pop(event.slot, None)
        if not _give_to_oldest(state, event.returned, payload):
            state.signals.setdefault(event.returned, []).insert(0, payload)


def open_again(state: RunState, name: str, item: int | None, slot: str) -> None:
    """Note that a wait is not withdrawn any more, if it begins again."""
    given_up = state.nodes[name].withdrawn.get(NODE_LEVEL if item is None else item, ())
    if slot in given_up:
        state.nodes[name].withdrawn[NODE_LEVEL if item is None else item].remove(slot)


def timer_fired(state: RunState, event: events.TimerFired, stored: Stored) -> None:
    """End a wait whose time has come: a timer has ended, or a signal or an answer has not come in time."""
    key = state.wait_key(event.node, event.iteration, event.execution, event.item, event.slot)
    wait = state.waits.pop(key, None)
    if wait is not None:
        resolve(state, event.node, event.item, event.slot, _result_of_timeout(wait.kind))
        return
    question = _question_of(state, event)
    del state.questions[question.key]
    if question.about == "ask":
        resolve(state, event.node, event.item, event.slot, [])
    else:
        told = f"nobody answered {question.text!r} in time. Resume the run to ask again, or skip the node."
        refuse(state, event.node, Failure("partial", "QuestionTimeout", told))
        settle(state)


def _result_of_timeout(kind: WaitKind) -> list[Any]:
    """Return the value for the slot of a wait whose time has come: a timer ends normally, any other wait has timed out."""
    match kind:
        case "timer":
            return [None]
        case "signal" | "child":
            return []
        case unknown:
            assert_never(unknown)


def _question_of(state: RunState, event: events.TimerFired) -> Question:
    for question in state.questions.values():
        if (question.node, question.item, question.slot) == (event.node, event.item, event.slot):
            return question
    raise IllegalEvent(
        f"run {state.run_id!r}: node {event.node!r} has no wait or question in slot {event.slot!r}"
    )


def resolve(state: RunState, name: str, item: int | None, slot: str, value: list[Any]) -> None:
    """Fill the slot of a wait: with `[value]` if what the visit waited for has come, with `[]` if it timed out. If the attempt
    has unwound because of this wait, it is due again. What a visit receives is progress, as what it keeps is: its count of
    crashes in a row starts again at 0.
    """
    node = state.nodes[name]
    node.crashes = 0
    level = NODE_LEVEL if item is None else item
    node.kept.setdefault(level, {})[slot] = value
    if slot in node.parked.get(level, ()):
        _unpark(state, name, level)


def _unpark(state: RunState, name: str, level: int) -> None:
    node = state.nodes[name]
    if level == NODE_LEVEL:
        if node.status == "waiting":
            set_status(state, node, "pending")
    else:
        assert node.items is not None  # only a running item can wait
        node.items.again[level] = 0.0
        if node.question is not None:  # the whole visit waits for the answer, so nothing begins yet
            return
    awaken(state)


def node_waiting(state: RunState, event: events.NodeWaiting, stored: Stored) -> None:
    """Record that an attempt of a node or an item has unwound and waits. It has got to its wait and has ended as it should, so
    the count of crashes in a row starts again at 0.
    """
    node = state.nodes[event.node]
    node.crashes = 0
    level = NODE_LEVEL if event.item is None else event.item
    node.parked[level] = event.on
    if event.item is None:
        spend(state, node, stored.at)
        set_status(state, node, "waiting")
    else:
        assert node.items is not None  # only a running item can wait
        end_item(state, node.items, event, stored.seq)
        node.items.attempts[event.item] = event.attempt
        rest(state, event.node, stored.at)
    settle(state)
    if any(
        slot in node.kept.get(level, ()) for slot in event.on
    ):  # a slot was filled while the attempt unwound
        _unpark(state, event.node, level)


def rest(state: RunState, name: str, at: float) -> None:
    """Set a fan-out to waiting if none of its items is running and at least one waits."""
    node = state.nodes[name]
    items = node.items
    if items is not None and node.parked and not items.running and node.status == "running":
        spend(state, node, at)
        set_status(state, node, "waiting")
        settle(state)


# --- questions ---------------------------------------------------------------------------------------


def question_asked(state: RunState, event: events.QuestionAsked, stored: Stored) -> None:
    """Record an open question, which can be answered from now on."""
    if event.key in state.questions:
        raise IllegalEvent(f"run {state.run_id!r}: question {event.key!r} is already open")
    state.questions[event.key] = Question(
        event.key, event.node, event.text, event.options, stored.at, about=event.about,
        answer_schema=event.answer_schema, approving=event.approving, slot=event.slot, item=event.item, until=event.until,
        on_timeout=event.on_timeout, partial=event.partial,
    )  # fmt: skip
    if event.about != "ask":
        node = state.visit(event.node)
        node.question = event.key
        node.asked += event.about in BEFORE_A_VISIT
        if node.status == "running":  # the node has returned, and the question is whether its result is used
            spend(state, node, stored.at)
        set_status(state, node, "waiting")
    else:
        open_again(state, event.node, event.item, event.slot)
    settle(state)


def question_answered(state: RunState, event: events.QuestionAnswered, stored: Stored) -> None:
    """Close a question and apply its answer. The answer to `ctx.ask` goes to the visit that asked; any other answer lets a visit
    begin or run again, or refuses it.
    """
    question = state.questions.get(event.key)
    if question is None:
        raise IllegalEvent(
            f"run {state.run_id!r}: question {event.key!r} was not asked, or is already answered"
        )
    name = question.node
    if event.stated is not None and _keep_stated(state, question, event.stated):
        return
    del state.questions[event.key]
    if question.about == "ask":
        resolve(state, name, question.item, question.slot, [event.answer])
        return
    node = state.nodes[name]
    node.question = None
    if question.about == "repeat":
        _choose(state, event)
    elif event.refused:
        by = f" by {event.by}" if event.by else ""
        told = f"{question.text!r} was answered {event.answer!r}{by}. With force=True (--force) it is asked again."
        refuse(state, name, Failure("fatal", "QuestionRefused", told))
    else:
        # The question was also about items that failed and may have had their effect: they are tried again.
        if node.items is not None:
            node.items.again.update(dict.fromkeys(node.items.failed, 0.0))
            node.items.failed.clear()
        forget_begun(node)
        node.approved = question.about == "gate"
        if question.about == "result" and node.returned is not None:
            node.returned.accepted = True
        node.answer = event.answer
        set_status(state, node, "pending")
    awaken(state)


def _keep_stated(state: RunState, question: Question, stated: events.StatedStep) -> bool:
    """Keep the result of a step that has happened, according to an answer. Returns whether the question stays open, because it is
    unknown of other steps whether they have happened.
    """
    node = state.nodes[question.node]
    if (stated.step, stated.item) not in [(one.step, one.item) for one in node.steps_in_doubt()]:
        raise IllegalEvent(
            f"run {state.run_id!r}: the step {stated.step!r} of node {question.node!r} has an outcome, or was not called"
        )
    keep(state, question.node, stated.item, step_text(stated.step), stated.result)
    left = node.steps_in_doubt()
    partial = {**question.partial, "in_doubt": msgspec.to_builtins(left)}
    state.questions[question.key] = msgspec.structs.replace(question, partial=partial)
    return bool(left)


def _choose(state: RunState, event: events.QuestionAnswered) -> None:
    """Record whether a fork repeats a visit that its parent has begun. `abort` decides nothing: the run is cancelled."""
    visit = state.begun_visit(event.node, event.iteration)
    if visit is None:
        raise IllegalEvent(
            f"run {state.run_id!r}: the parent has begun no visit {event.iteration} of node {event.node!r}"
        )
    if event.answer != "abort":
        visit.choice = event.answer
    set_status(state, state.nodes[event.node], "pending")


def refuse(state: RunState, name: str, failure: Failure) -> None:
    """Fail a node without running it, because its visit may not begin, or its result may not be used."""
    node = state.nodes[name]
    node.failure = failure
    node.question = None
    state.failed[name] = None
    set_status(state, node, "failed")
