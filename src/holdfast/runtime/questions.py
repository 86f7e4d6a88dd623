"""Asks questions, checks and records answers, and expires questions that are not answered in time.

- A question is in the log before it can be answered. An answer is checked before it is recorded: the question must be open,
  and the value must fit its options or schema (and the state field that receives it).
- A visit of a node with `approve=` begins only after an explicit approval. A refusal is a fatal failure; a resume with `force`
  asks again.
- People and agents answer in the same way; `by` says who answered.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from holdfast.core import answers, events
from holdfast.core.codec import Codec, is_pydantic, key_path
from holdfast.core.definition import QuestionOptions
from holdfast.core.run_state import BEFORE_A_VISIT, NODE_LEVEL, BegunVisit, Question, RunState, visit_of
from holdfast.core.slots import CHECKPOINT, begun_steps, labels
from holdfast.documents.checkout import checkout
from holdfast.errors import AnswerRefused, FlowNotFound, ResumeRefused, StateError, did_you_mean
from holdfast.reading import history
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
    if decided is not None:
        asked = QuestionOptions(text=judging.questions_in(decided.decisions), options=_GATE)
        says = None
    else:
        asked = node.options.question or QuestionOptions(text=node.options.approve or "", options=_GATE)
        says = node.fn if node.options.question is not None and not asked.text else node.asks
    try:
        text = asked.text if says is None else str(says(journal.flow.state.load(journal.state.values)))
    except Exception as raised:  # noqa: BLE001 - user code
        took = journal.state.arrivals.get(name, 0) if name in journal.flow.topology.joins else 1
        journal.record(events.NodeStarted(**header, took=took if name in journal.state.arrivals else 0))
        journal.record(events.NodeFailed(**header, failure=journal.faults.describe(name, raised)))
        return
    journal.record(
        events.QuestionAsked(
            **header,
            key=f"{name}.{iteration}.{execution}" + (f"#{times + 1}" if times else ""),
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
    begun = [step for kept in visit.kept.values() for step in begun_steps(kept)]
    why = "" if journal.flow.nodes[name].options.idempotent else " and is not idempotent"
    if begun and not why:
        steps = " and ".join(dict.fromkeys(map(repr, begun)))
        why = f", and has begun the step {steps}, which is not idempotent"
    journal.record(
        events.QuestionAsked(
            **visit_of(name, visit),
            key=f"{name}.{visit.iteration}.{visit.execution}.{visit.attempt}",
            text=f"{cut}{why}: its effect may or may not have happened. Retry it, skip it, or abort the run?",
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
            key=f"{name}.{iteration}.{execution}.repeat" + (f"#{times + 1}" if times else ""),
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
    own = visit.kept.get(NODE_LEVEL, {})
    known["steps_begun"] = [step for slots in visit.kept.values() for step in begun_steps(slots)]
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
    for row in reversed(journal.services.store.events(run_id, kinds=("QuestionAnswered",))):
        answered = open_row(row, journal.services.store.blobs).event
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


def check(journal: Journal, key: str, value: Any, *, update: Any = None) -> str:
    """Check an answer, and return the key of its question. Raises `AnswerRefused`."""
    question = find(journal, key)
    run_id = journal.state.run_id
    if question.until is not None and question.until <= journal.services.store.now():
        why = "the question was not answered in time. Resume the run: it continues as the question says for this case"
        raise AnswerRefused(run_id, question.key, why)
    fitting = _fitting(journal, question, value)
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


def plain(value: Any, path: str) -> Any:
    """Convert a value to plain data, and dataclasses, pydantic models and structs within it. Raises `CodecError`."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) or is_pydantic(kind) or issubclass(kind, msgspec.Struct):
        return Codec.of(kind).encode(value, path=path)
    if kind is dict:
        value = {name: plain(inner, key_path(path, str(name))) for name, inner in value.items()}
    elif kind is list:
        value = [plain(inner, f"{path}[{number}]") for number, inner in enumerate(value)]
    return _ANY.encode(value, path=path)


def said_already(answered: events.QuestionAnswered) -> str:
    """Return the reason for which a second answer is refused: what the first answer was, and who gave it."""
    by = f" by {answered.by}" if answered.by else ""
    return f"the question was answered {answered.answer!r}{by} already"


def answer(
    journal: Journal,
    key: str,
    value: Any,
    *,
    update: Any = None,
    confidence: float | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Record an answer, and the skip of a node if the answer is `skip`. Returns whether the run is to be cancelled. Raises
    `AnswerRefused` if the answer cannot be recorded.
    """
    run_id = journal.state.run_id
    question = journal.state.questions[check(journal, key, value, update=update)]
    value = _fitting(journal, question, value)
    answered = events.QuestionAnswered(
        **_header(journal, question),
        key=question.key,
        answer=value,
        refused=_refuses(question, value),
        confidence=confidence,
        by=by,
        reason=reason,
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
                update=update,
                now=journal.at,
                by=by,
                reason=reason,
            )
        except (ResumeRefused, StateError) as fault:
            raise AnswerRefused(run_id, question.key, str(fault)) from fault
        journal.record(answered)
        if journal.state.children:
            journal.cancel_children(question.node, None, f"its caller has skipped {question.node!r}")
        for event in skipped:
            journal.record(event)
        return False
    journal.record(answered)
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
