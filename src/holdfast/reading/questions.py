"""What a question is about: what follows from each answer, what happens without one, and who answered it.

What follows is read from the definition of the flow, so it is known also where the flow is not. Which target a branch will choose
is not known before its node has completed: then all targets are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.conditions import Condition, conditions_of
from holdfast.core.definition import END, Definition, NodeOptions
from holdfast.core.events import Stored
from holdfast.core.run_state import HAPPENED, Question, RunState

Effect: TypeAlias = Literal[
    "begins", "continues", "completes", "runs again", "is skipped", "fails", "run is cancelled"
]
HowClosed: TypeAlias = Literal["answered", "timed out", "withdrawn"]

KINDS = ("QuestionAsked", "QuestionAnswered", "TimerFired")
"""The kinds of events that `asked_in` needs."""


class AnswerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from an answer."""

    answer: str | None
    """One of the options; None stands for every answer that is not listed."""
    effect: Effect
    """What happens to the node, or that the run is cancelled."""
    nodes: list[str]
    """The nodes that run next: the node that asks, or those after it (for a branch, those that it may choose); `END` is the end
    of the flow."""
    once: list[str]
    """Those of `nodes` that are not idempotent."""
    words: str
    """The same in one sentence."""


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """How a question was closed."""

    how: HowClosed
    """`withdrawn`: its visit or the run ended, or a rewind undid the question."""
    at: float | None = None
    seq: int | None = None
    answer: Any = None
    refused: bool = False
    """True if the answer refuses the visit."""
    confidence: float | None = None
    by: str | None = None
    """Who answered; `timeout` if the question says which answer counts if none comes in time."""
    reason: str | None = None
    stated: events.StatedStep | None = None
    """The step that has happened, according to the answer, with its result."""


class AskedOnce(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a run, open or closed."""

    seq: int
    """The event with which it was asked; 0 if that event was compacted."""
    iteration: int
    execution: int
    question: Question
    closing: Closing | None
    """None if it is open."""


# --- what follows --------------------------------------------------------------------------------------


def outcomes(definition: Definition, question: Question) -> list[AnswerOutcome]:
    """Return what follows from each answer to a question."""
    node = question.node
    options = definition.nodes.get(node, NodeOptions())
    after = _after(definition, node)
    listed: list[str | None] = [*question.options, *[HAPPENED] * bool(question.in_doubt)] or [None]
    return [
        _outcome(definition, node, answer, *_effect(question, options, answer, after)) for answer in listed
    ]


def without_answer(definition: Definition, question: Question) -> str | None:
    """Say what happens if no answer comes in time; None if the question has no deadline."""
    if question.until is None:
        return None
    if question.on_timeout != "fail":
        counted = next(
            (
                one.words
                for one in outcomes(definition, question)
                if one.answer in (question.on_timeout, None)
            ),
            "",
        )
        return f"the answer is then {question.on_timeout!r}: {counted}"
    if question.about == "ask":
        return f"{question.node} then gets an exception"
    return f"{question.node} then fails, and with it the run"


def _effect(
    question: Question, options: NodeOptions, answer: str | None, after: list[str]
) -> tuple[Effect, list[str]]:
    here = [question.node]
    match question.about, answer:
        case (("interrupt" | "repeat"), "abort"):
            return "run is cancelled", []
        case (("interrupt" | "repeat"), "skip"):
            return "is skipped", after
        case (
            "interrupt",
            _,
        ):  # also `HAPPENED`: the node runs again, and gets the result of the step from the log
            return "runs again", here
        case "repeat", _:
            return "begins", here
        case "ask", _:
            return "continues", here
        case "result", _:
            return (
                ("fails", [])
                if question.approving and answer not in question.approving
                else ("completes", after)
            )
        case _:
            if question.approving and answer not in question.approving:
                return "fails", []
            return ("completes", after) if options.question is not None else ("begins", here)


def _outcome(
    definition: Definition, node: str, answer: str | None, effect: Effect, nodes: list[str]
) -> AnswerOutcome:
    once = [name for name in nodes if name in definition.nodes and not definition.nodes[name].idempotent]
    words = _words(definition, node, effect, nodes)
    if answer == HAPPENED and effect == "runs again":
        words = f"{node} runs again and gets the result that you state; the step is not called"
    return AnswerOutcome(answer=answer, effect=effect, nodes=nodes, once=once, words=words)


def _words(definition: Definition, node: str, effect: Effect, nodes: list[str]) -> str:
    if effect == "run is cancelled":
        return "the run is cancelled"
    if effect == "fails":
        return f"{node} fails, and with it the run"
    if effect not in ("completes", "is skipped"):
        return f"{node} {effect}"
    follow = [name for name in nodes if name != END]
    if not follow:
        return f"{node} {effect}, and its path ends"
    is_choice = node in definition.branches or any(
        edge.source == node and condition.guard for edge, condition in conditions_of(definition).items()
    )
    names = " or ".join(nodes) if is_choice else " and ".join(follow)
    return f"{node} {effect}, then {names}"


def _after(definition: Definition, node: str) -> list[str]:
    conditions = conditions_of(definition)
    arrows = (edge for edge in definition.arrows() if edge.source == node)
    return list(dict.fromkeys(edge.target for edge in arrows if not conditions.get(edge, Condition()).errors))


def state_seen(state: RunState, node: str) -> dict[str, Any]:
    """Return the state that a node which asks was given, or will be given if it has not begun."""
    visit = state.nodes.get(node)
    given = visit.input if visit is not None and node in state.open else None
    return state.values if given is None else given


# --- questions of a run --------------------------------------------------------------------------------


def asked_in(log: Iterable[Stored], state: RunState) -> Iterator[AskedOnce]:
    """Yield every question in a log, oldest first. `log` has the events of the kinds in `KINDS`, and `state` is the state at its
    end.
    """
    asked: dict[str, Stored] = {}
    closings: dict[int, Closing] = {}
    order: list[Stored] = []
    for stored in log:
        event = stored.event
        match event:
            case events.QuestionAsked():
                asked[event.key] = stored
                order.append(stored)
            case events.QuestionAnswered() if event.key in asked:
                closings[asked[event.key].seq] = _answered(stored)
            case events.TimerFired():
                for one in asked.values():
                    about = one.event
                    if one.seq not in closings and (about.node, about.slot, about.item) == (
                        event.node,
                        event.slot,
                        event.item,
                    ):
                        closings[one.seq] = Closing(how="timed out", at=stored.at, seq=stored.seq)
            case _:
                continue
    for key, question in state.questions.items():
        if key not in asked:  # before the log begins
            iteration, execution, _ = state.place(question.node)
            yield AskedOnce(seq=0, iteration=iteration, execution=execution, question=question, closing=None)
    for stored in order:
        event = stored.event
        is_open = event.key in state.questions and asked[event.key] is stored
        closing = None if is_open else closings.get(stored.seq, Closing(how="withdrawn"))
        yield AskedOnce(
            seq=stored.seq,
            iteration=event.iteration,
            execution=event.execution,
            question=state.questions[event.key] if is_open else _question(stored),
            closing=closing,
        )


def _answered(stored: Stored) -> Closing:
    event = stored.event
    return Closing(
        how="answered",
        at=stored.at,
        seq=stored.seq,
        answer=event.answer,
        refused=event.refused,
        confidence=event.confidence,
        by=event.by,
        reason=event.reason,
        stated=event.stated,
    )


def _question(stored: Stored) -> Question:
    event = stored.event
    names = [name for name in Question.__struct_fields__ if name != "asked_at"]
    return Question(**{name: getattr(event, name) for name in names}, asked_at=stored.at)
