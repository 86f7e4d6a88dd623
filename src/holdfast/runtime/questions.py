"""Asks questions, checks and records answers, and expires questions that are not answered in time.

- A question is in the log before it can be answered. An answer is checked before it is recorded: the question must be open,
  and the value must fit its options or schema (and the state field that receives it).
- A visit of a node with `approve=` begins only after an explicit approval, or if the function that makes the question returns
  None, which is recorded like a policy that allows the visit. A refusal is a fatal failure; a resume with `force` asks again.
- People and agents answer in the same way; `by` says who answered.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.core import answers, events
from holdfast.core.codec import DEPTH_MAX, Codec, is_pydantic, key_path
from holdfast.core.definition import QuestionOptions
from holdfast.core.run_state import (
    BEFORE_A_VISIT,
    HAPPENED,
    NODE_LEVEL,
    BegunVisit,
    DoubtfulStep,
    NodeState,
    Question,
    RunState,
    visit_of,
)
from holdfast.core.slots import CHECKPOINT, labels, raised_text, step_text
from holdfast.documents.checkout import checkout
from holdfast.errors import AnswerRefused, FlowNotFound, ResumeRefused, StateError, did_you_mean
from holdfast.reading import history, inbox
from holdfast.runtime import judging, outcomes
from holdfast.runtime.journal import Journal
from holdfast.runtime.judging import GATE as _GATE
from holdfast.storage.rows import open_row

_ANY: Codec[Any] = Codec.of(Any)
_INTERRUPT = ["retry", "skip", "abort"]
_REPEAT = ["run", "skip", "abort"]
_ITEMS_SHOWN = 10


# --- asking ------------------------------------------------------------------------------------------


def ask_first(journal: Journal, name: str, iteration: int, execution: int) -> None:
    """Ask the question that comes before a visit: a node's `approve`, or the question of a question node."""
    node = journal.flow.nodes[name]
    decided = judging.ask_policies(journal, name, iteration, execution) if node.pre else None
    if node.pre and decided is None:
        return
    visit = journal.state.nodes.get(name)
    times = visit.asked if visit is not None else 0
    header: dict[str, Any] = {"node": name, "iteration": iteration, "execution": execution}
    asked = node.options.question or QuestionOptions(options=_GATE)
    try:
        text = judging.questions_in(decided.decisions) if decided else judging.question_of(journal, node)
    except Exception as raised:  # noqa: BLE001 - user code
        took = journal.state.arrivals.get(name, 0) if name in journal.flow.topology.joins else 1
        journal.record(events.NodeStarted(**header, took=took if name in journal.state.arrivals else 0))
        journal.record(events.NodeFailed(**header, failure=journal.faults.describe(name, raised)))
        return
    if text is None:
        journal.record(events.PolicyDecided(**header, decisions=[judging.UNASKED]))
        return
    journal.record(
        events.QuestionAsked(
            **header,
            key=f"{journal.state.key_name(name)}.{iteration}.{execution}"
            + (f"#{times + 1}" if times else ""),
            text=text,
            options=asked.options,
            approving=[] if asked.into is not None else asked.options[:1],
            about="gate",
            answer_schema=asked.answer_schema,
            until=None if asked.timeout_s is None else journal.at + asked.timeout_s,
            on_timeout=asked.on_timeout,
        )
    )


def ask_about(journal: Journal, name: str) -> None:
    """Ask whether to retry, skip or abort a visit that was interrupted and must not run again without a decision."""
    visit = journal.state.nodes[name]
    cut = f"{name!r} did not end" + (f" ({visit.cut})" if visit.cut else "")
    begun = [one.step for one in visit.steps_in_doubt()]
    why = "" if journal.flow.nodes[name].options.idempotent else " and is not idempotent"
    if begun and not why:
        steps = " and ".join(dict.fromkeys(map(repr, begun)))
        why = f", and has begun the step {steps}, which is not idempotent"
    journal.record(
        events.QuestionAsked(
            **visit_of(name, visit),
            key=f"{journal.state.key_name(name)}.{visit.iteration}.{visit.execution}.{visit.attempt}",
            text=f"{cut}{why}: its effect may or may not have happened. Retry it, "
            f"{'say that the step has happened with its result, ' if begun else ''}skip it, or abort the run?",
            options=_INTERRUPT,
            partial=known_of(journal, name),
        )
    )


def ask_repeat(journal: Journal, name: str, iteration: int, execution: int) -> None:
    """Ask whether this fork runs a visit that its parent has begun, skips it with the result that it had, or is aborted."""
    visit = journal.state.begun_visit(name, iteration)
    assert visit is not None
    times = journal.state.nodes[name].asked if name in journal.state.nodes else 0
    text, known = _repeated(journal.state, name, iteration, visit)
    journal.record(
        events.QuestionAsked(
            node=name,
            iteration=iteration,
            execution=execution,
            key=f"{journal.state.key_name(name)}.{iteration}.{execution}.repeat"
            + (f"#{times + 1}" if times else ""),
            text=text,
            options=_REPEAT,
            about="repeat",
            partial=known,
        )
    )


def _repeated(state: RunState, name: str, iteration: int, visit: BegunVisit) -> tuple[str, dict[str, Any]]:
    """Return the question whether to repeat a visit, and what is known about the visit."""
    asked = (
        [visit.whole] if visit.whole is not None else [one for one in visit.items.values() if not one.kept]
    )
    latest = max(asked, key=lambda one: one.at)
    run = latest.run or state.parent
    what = f"{name!r}" + (f" (iteration {iteration})" if iteration > 1 else "")
    done = sum(one.result is not None for one in asked)
    by = f" at {history.day(latest.at)}" if latest.at else ""
    by += f" by run {run!r}, from which this run was forked"
    known: dict[str, Any] = {"run": run, "at": latest.at, "iteration": iteration}
    if visit.whole is None:
        several = len(asked) > 1
        shown = ", ".join(
            [*(str(one.item) for one in asked[:_ITEMS_SHOWN]), *["…"] * (len(asked) > _ITEMS_SHOWN)]
        )
        text = (
            f"{'Items' if several else 'Item'} {shown} of {what} {'were' if several else 'was'} begun{by}; "
        )
        text += f"{done} of {len(asked)} {'was' if done == 1 else 'were'} completed. "
        text += (
            "Run them again, skip them with their results"
            if several
            else "Run it again, skip it with its result"
        )
        text += ", or abort this run?"
        known |= {"items": [one.item for one in asked], "items_done": done}
    elif done:
        text = f"{what} was completed{by}. Run it again, skip it with that result, or abort this run?"
        known["result"] = msgspec.to_builtins(visit.whole.result)
    else:
        text = f"{what} was begun{by}, and was not completed: its effect may or may not have happened. "
        text += "Run it again, skip it without a result, or abort this run?"
    return text, known


def known_of(journal: Journal, name: str) -> dict[str, Any]:
    """Return the known facts about an interrupted visit: its steps, items, checkpoint, chunks and files, and the git checkout."""
    visit = journal.state.nodes[name]
    kept = {level: labels("step", slots) for level, slots in visit.kept.items()}
    known: dict[str, Any] = {
        "steps": kept.pop(NODE_LEVEL, []),
        "steps_of_items": {str(item): steps for item, steps in kept.items() if steps},
        "items_done": len(visit.items.done) if visit.items is not None else 0,
        "chunks": visit.streamed,
        "artifacts": journal.services.artifact_names(journal.state.run_id, journal.flow.name, name),
        "checkout": checkout("."),
    }
    own, in_doubt = visit.kept.get(NODE_LEVEL, {}), visit.steps_in_doubt()
    known["steps_begun"] = [one.step for one in in_doubt]
    known["in_doubt"] = msgspec.to_builtins(in_doubt)
    known["steps_raised"] = labels("raised", own)
    if CHECKPOINT in own:
        known["checkpoint"] = own[CHECKPOINT]
    return {what: value for what, value in known.items() if value}


# --- answering ---------------------------------------------------------------------------------------


def find(journal: Journal, key: str) -> Question:
    """Return the open question with this key, or the only open question of the node with this name. Raises `AnswerRefused`."""
    pending = journal.state.questions
    if key in pending:
        return pending[key]
    of_node = [question for question in pending.values() if question.node == key]
    if len(of_node) == 1:
        return of_node[0]
    run_id = journal.state.run_id
    if of_node:
        why = f"node {key!r} has {len(of_node)} open questions; choose one by its key: {', '.join(q.key for q in of_node)}"
        raise AnswerRefused(run_id, key, why)
    rows = journal.services.store.events(run_id, kinds=("QuestionAnswered",))
    stored = (open_row(row, journal.services.store.blobs).event for row in reversed(rows))
    for answered in itertools.chain(journal.last_answers.values(), stored):
        if key in (answered.key, answered.node):
            raise AnswerRefused(run_id, key, said_already(answered))
    known = [name for question in pending.values() for name in (question.key, question.node)]
    near = did_you_mean(key, known)
    listed = f"; its open questions are: {', '.join(pending)}" if pending and not near else ""
    cut = [name for name, node in journal.state.nodes.items() if node.status == "running"]
    if cut and not pending and not journal.services.store.run(run_id).held:
        listed = f"; its process ended while {' and '.join(cut)} ran: resume the run first, so that it can ask about that"
    raise AnswerRefused(
        run_id, key, f"the run has no such open question{near or listed or '; it has none at all'}"
    )


def check(journal: Journal, request: inbox.Answer) -> str:
    """Check an answer, and return the key of its question. Raises `AnswerRefused`."""
    value, update = request.value, request.update
    question = find(journal, request.key)
    run_id = journal.state.run_id
    if question.until is not None and question.until <= journal.services.store.now():
        why = "the question was not answered in time. Resume the run: it continues as the question says for this case"
        raise AnswerRefused(run_id, question.key, why)
    fitting = _fitting(journal, question, value)
    if find_stated(journal, question, request) is None:
        wrong = answers.misfit(fitting, question.options, question.answer_schema or None)
        if wrong is not None:
            raise AnswerRefused(run_id, question.key, wrong)
    if update is not None and not (question.about == "interrupt" and value == "skip"):
        raise AnswerRefused(
            run_id,
            question.key,
            "an update can only be given with the answer 'skip' about an interrupted node",
        )
    return question.key


def find_stated(journal: Journal, question: Question, request: inbox.Answer) -> events.StatedStep | None:
    """Return the step that has happened, according to an answer, with its result; None if the answer says something else. Raises
    `AnswerRefused` if the step has an outcome or its result has another type, or if it is not known who states it and why.
    """
    refusal = partial(AnswerRefused, journal.state.run_id, question.key)
    given = request.stated
    if question.about != "interrupt" or request.value != HAPPENED:
        if given is not None:
            raise refusal(
                f"a step and its result can only be given with the answer {HAPPENED!r} about an interrupted node"
            )
        return None
    visit = journal.state.nodes[question.node]
    in_doubt = visit.steps_in_doubt()
    if not in_doubt:
        raise refusal(
            f"node {question.node!r} has no step of which it is unknown whether it has happened: that can only be a step with "
            f"idempotent=False. Answer with one of {', '.join(map(repr, question.options))}"
        )
    if given is None:
        raise refusal(
            f"give the result of {_steps_named(in_doubt)}, which the node then gets (result=…, --result JSON)"
        )
    step = _choose_stated(visit, in_doubt, given, refusal)
    if not request.by or not request.reason:
        raise refusal(
            "say who states that the step has happened (by=…, --by) and how that is known (reason=…, --reason)"
        )
    wrong = answers.misfit(given.result, (), step.result_schema or None, what="result")
    if wrong is not None:
        raise refusal(f"{wrong}. The node gets it from the step {step.step!r}, so it must have that type")
    return events.StatedStep(step.step, given.result, step.item)


def _choose_stated(
    visit: NodeState,
    in_doubt: list[DoubtfulStep],
    given: inbox.Stated,
    refusal: Callable[[str], AnswerRefused],
) -> DoubtfulStep:
    """Return the step in doubt that an answer means: the one that it names, or the only one."""
    fitting = [
        one
        for one in in_doubt
        if given.step in (None, one.step) and (given.item is None or given.item == one.item)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise refusal(
            f"choose one of {_steps_named(fitting)} (step=…, --step; item=…, --item for an item of a fan-out)"
        )
    kept = visit.kept.get(NODE_LEVEL if given.item is None else given.item, {})
    if given.step is not None and (step_text(given.step) in kept or raised_text(given.step) in kept):
        raise refusal(
            f"the step {given.step!r} has an outcome already, and nothing more can be said about it"
        )
    near = did_you_mean(given.step or "", [one.step for one in in_doubt])
    said = (
        f"the node has not called the step {given.step!r}"
        if given.step
        else f"item {given.item} has no such step"
    )
    raise refusal(f"{said}{near or f'; it is unknown of {_steps_named(in_doubt)} whether it has happened'}")


def _steps_named(steps: list[DoubtfulStep]) -> str:
    names = [f"{one.step!r}" + ("" if one.item is None else f" of item {one.item}") for one in steps]
    return f"the step{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """Convert a value to plain data, and dataclasses, pydantic models and structs within it. Raises `CodecError`, also for a
    value that is nested too deeply, or contains itself.
    """
    kind = type(value)
    if depth > DEPTH_MAX:
        return value  # the encoding of the whole value refuses it
    if dataclasses.is_dataclass(kind) or is_pydantic(kind) or issubclass(kind, msgspec.Struct):
        return Codec.of(kind).encode(value, path=path)
    if kind is dict:
        value = {name: plain(inner, key_path(path, str(name)), depth + 1) for name, inner in value.items()}
    elif kind is list:
        value = [plain(inner, f"{path}[{number}]", depth + 1) for number, inner in enumerate(value)]
    return _ANY.encode(value, path=path)


def said_already(answered: events.QuestionAnswered) -> str:
    """Return the reason for which a second answer is refused: what the first answer was, and who gave it."""
    by = f" by {answered.by}" if answered.by else ""
    stated = f" (the step {answered.stated.step!r})" if answered.stated is not None else ""
    return f"the question was answered {answered.answer!r}{stated}{by} already"


def answer(journal: Journal, request: inbox.Answer) -> bool:
    """Record an answer, and the skip of a node if the answer is `skip`. Returns whether the run is to be cancelled. Raises
    `AnswerRefused` if the answer cannot be recorded.
    """
    run_id, by, reason = journal.state.run_id, request.by, request.reason
    question = journal.state.questions[check(journal, request)]
    value = _fitting(journal, question, request.value)
    answered = events.QuestionAnswered(
        **_header(journal, question),
        key=question.key,
        answer=value,
        refused=_refuses(question, value),
        confidence=request.confidence,
        by=by,
        reason=reason,
        stated=find_stated(journal, question, request),
    )
    if question.about == "interrupt" and value == "skip":
        if question.node not in journal.flow.nodes:  # only its flow knows where the run continues
            raise FlowNotFound(journal.state.flow, (), run_id=run_id)
        header = visit_of(question.node, journal.state.nodes[question.node])
        try:
            skipped = outcomes.skipped(
                journal.flow,
                journal.state,
                question.node,
                header,
                update=request.update,
                now=journal.at,
                by=by,
                reason=reason,
            )
        except (ResumeRefused, StateError) as fault:
            raise AnswerRefused(run_id, question.key, str(fault)) from fault
        journal.record(answered)
        journal.last_answers[question.node] = answered
        if journal.state.children:
            journal.cancel_children(question.node, None, f"its caller has skipped {question.node!r}")
        for event in skipped:
            journal.record(event)
        return False
    journal.record(answered)
    journal.last_answers[question.node] = answered
    return question.about in ("interrupt", "repeat") and value == "abort"


def expire(journal: Journal, key: str) -> None:
    """Record that a question was not answered in time: its `on_timeout` is the answer, or the question fails."""
    question = journal.state.questions[key]
    header = _header(journal, question)
    if question.on_timeout == "fail":
        journal.record(events.TimerFired(**header, slot=question.slot, item=question.item))
        return
    value = question.on_timeout
    refused = _refuses(question, value)
    journal.record(events.QuestionAnswered(**header, key=key, answer=value, refused=refused, by="timeout"))


def _header(journal: Journal, question: Question) -> dict[str, Any]:
    """Return the event fields that name the visit which a question is about: the open visit, or the next visit if it has not
    begun yet.
    """
    if question.about in BEFORE_A_VISIT:
        iteration, execution, _ = journal.state.place(question.node)
        return {"node": question.node, "iteration": iteration, "execution": execution, "attempt": 1}
    return visit_of(question.node, journal.state.nodes[question.node])


def _refuses(question: Question, value: Any) -> bool:
    """Return whether an answer refuses the approval that a visit needs to begin."""
    return bool(question.approving) and value not in question.approving


def _fitting(journal: Journal, question: Question, value: Any) -> Any:
    """Return the answer as plain data. Raises `AnswerRefused` if a state field receives the answer and it does not fit that
    field.
    """
    node = journal.flow.nodes.get(question.node)
    asked = node.options.question if node is not None else None
    try:
        if asked is not None and asked.into is not None:
            return journal.flow.state.accept_field(asked.into, value)
        return _ANY.encode(value, path="answer", node=question.node)
    except StateError as fault:
        raise AnswerRefused(journal.state.run_id, question.key, str(fault)) from fault
