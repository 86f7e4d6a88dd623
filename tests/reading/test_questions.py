"""What a question is about: what follows from each answer, and how it was closed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.run_state import Question
from holdfast.reading.questions import KINDS, asked_in, outcomes, state_seen, without_answer
from holdfast.testing.builders import History, outline

FLOW = outline(
    "START gate pay END",
    "START choose",
    branches={"choose": "pay END"},
    nodes={"gate": {"approve": "Go on?"}, "pay": {"idempotent": False, "join": "any"}},
    asks={"choose": {"options": ["yes", "no"]}},
)


def question(node: str, about: str, options: list[str], **more: Any) -> Question:
    return Question(f"{node}.1.1", node, "?", options, 0.0, about=about, **more)


def follows(asked: Question) -> list[tuple[str | None, str, list[str], list[str], str]]:
    found = outcomes(FLOW.definition, asked)
    return [(one.answer, one.effect, one.nodes, one.once, one.words) for one in found]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            question("gate", "gate", ["approve", "reject"], approving=["approve"]),
            [
                ("approve", "begins", ["gate"], [], "gate begins"),
                ("reject", "fails", [], [], "gate fails, and with it the run"),
            ],
        ),
        (
            question("choose", "gate", ["yes", "no"], approving=["yes"]),
            [
                ("yes", "completes", ["pay", "END"], ["pay"], "choose completes, then pay or END"),
                ("no", "fails", [], [], "choose fails, and with it the run"),
            ],
        ),
        (
            question("pay", "interrupt", ["retry", "skip", "abort"]),
            [
                ("retry", "runs again", ["pay"], ["pay"], "pay runs again"),
                ("skip", "is skipped", ["END"], [], "pay is skipped, and its path ends"),
                ("abort", "run is cancelled", [], [], "the run is cancelled"),
            ],
        ),
        (
            question("pay", "repeat", ["run", "skip", "abort"]),
            [
                ("run", "begins", ["pay"], ["pay"], "pay begins"),
                ("skip", "is skipped", ["END"], [], "pay is skipped, and its path ends"),
                ("abort", "run is cancelled", [], [], "the run is cancelled"),
            ],
        ),
        (question("gate", "ask", []), [(None, "continues", ["gate"], [], "gate continues")]),
    ],
    ids=["approval", "question node", "interrupt", "repeat", "ask"],
)
def test_an_answer_says_what_follows(asked: Question, expected: list[Any]) -> None:
    assert follows(asked) == expected


def test_a_deadline_says_what_happens_without_an_answer() -> None:
    options = ["approve", "reject"]
    gate = question("gate", "gate", options, approving=["approve"])
    assert without_answer(FLOW.definition, gate) is None
    late = question("gate", "gate", options, approving=["approve"], until=9.0)
    assert without_answer(FLOW.definition, late) == "gate then fails, and with it the run"
    counts = question("gate", "gate", options, approving=["approve"], until=9.0, on_timeout="approve")
    assert without_answer(FLOW.definition, counts) == "the answer is then 'approve': gate begins"
    inside = question("gate", "ask", [], until=9.0)
    assert without_answer(FLOW.definition, inside) == "gate then gets an exception"


def test_a_question_is_answered_withdrawn_timed_out_or_open() -> None:
    flow = outline("START a END")
    history = History("r", flow).created().started("a")
    history.asking("a", "first").asking("a", "second", timeout=50).asking("a", "third")
    history.asking("a", "fourth")
    keys = list(history.state.questions)
    history.answered(keys[0], "yes", by="ada")
    slots = {one.slot for one in history.state.questions.values() if one.until is not None}
    history.record(events.TimerFired(node="a", iteration=1, slot=slots.pop()))
    history.withdrawn("a", history.state.questions[keys[2]].slot)
    log = [stored for stored in history.events() if stored.kind in KINDS]
    found = list(asked_in(log, history.state))
    assert [one.question.key for one in found] == keys
    assert [one.closing.how if one.closing else "open" for one in found] == [
        "answered",
        "timed out",
        "withdrawn",
        "open",
    ]
    assert found[0].closing is not None
    assert (found[0].closing.answer, found[0].closing.by) == ("yes", "ada")


def test_an_open_question_that_was_asked_before_the_log_begins_is_known() -> None:
    history = History("r", FLOW).created().settled()
    assert {one.question.key: (one.seq, one.closing) for one in asked_in([], history.state)} == {
        "gate.1.1": (0, None),
        "choose.1.1": (0, None),
    }


def test_an_asking_node_sees_the_state_that_it_was_given() -> None:
    flow = outline("START a END", "START b END")
    history = History("r", flow).created({"x": 1}).started("a").completed("b", {"x": 2})
    assert state_seen(history.state, "a") == {"x": 1}
    assert state_seen(history.state, "b") == {"x": 2}
