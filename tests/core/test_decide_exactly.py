"""What is decided where two things come together. Each of these was once got past by a small mistake that was made on purpose
(docs/mutants.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.core import events
from holdfast.core.commands import (
    AskFirst,
    DueAt,
    ExpireQuestion,
    FailRun,
    FireTimer,
    StartItem,
    StartNode,
    WakeAt,
)
from holdfast.testing.builders import History, outline


@dataclass
class Notes:
    n: int = 0


def told(*paths: str, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def beside(*nodes: str, **options) -> History:
    """A run of nodes that go beside each other."""
    return told(*(f"START {node} END" for node in nodes), **options)


def kinds(history: History) -> list[type]:
    return [type(command) for command in history.commands()]


# --- waits -------------------------------------------------------------------------------------------


def test_a_wait_without_an_end_hides_no_timer_that_is_over():
    run = beside("a", "b").started("a", "b")
    run.awaiting("a", "paid").parked("a", "signal:paid:1").sleeping("b", 5.0).parked("b", "sleep:1")
    run.at += 60.0
    assert kinds(run) == [FireTimer]


def test_a_question_without_an_end_hides_none_whose_time_is_over():
    run = beside("a", "b").started("a", "b").asking("a", "Sure?").asking("b", "Really?", timeout=5.0)
    run.parked("a", "ask:Sure?").parked("b", "ask:Really?")
    run.at += 60.0
    assert kinds(run) == [ExpireQuestion]


def test_while_something_runs_its_engine_stays_to_see_that_somebody_is_late():
    run = beside("a", "b").started("a", "b").asking("a", "Sure?", timeout=60.0).parked("a", "ask:Sure?")
    assert kinds(run) == [WakeAt]
    assert kinds(run.completed("b")) == [DueAt]


def test_where_something_starts_its_engine_stays_to_see_that_somebody_is_late():
    run = beside("a", "b c").started("a", "b").asking("a", "Sure?", timeout=60.0).parked("a", "ask:Sure?")
    assert kinds(run.completed("b")) == [StartNode, WakeAt]


# --- room --------------------------------------------------------------------------------------------


def test_as_many_nodes_start_at_once_as_there_is_room_for():
    nodes = ["a", "b", "c", "d", "e"]
    assert kinds(beside(*nodes, max_parallel=5)) == [StartNode] * 5
    assert kinds(beside(*nodes, max_parallel=4))[:4] == [StartNode] * 4


def test_as_many_items_start_again_at_once_as_there_is_room_for():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2, 3, 4], "limit": 3}}).settled()
    run.taken_up().started("a")
    assert run.commands() == [StartItem("a", item, 2) for item in range(3)]


# --- questions ---------------------------------------------------------------------------------------


def answered_and_begun() -> History:
    """A question node whose answer is there, and is being merged."""
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes).settled().answered("q", 4)
    return run.record(events.NodeStarted(node="q", iteration=1, took=1))


def test_a_question_node_that_was_cut_behind_its_answer_goes_on_with_it():
    run = answered_and_begun().taken_up()
    assert run.commands() == [StartNode("q", 1, 1, 2, 0)]


def test_a_question_node_that_failed_behind_its_answer_asks_again():
    run = answered_and_begun().failed("q", ValueError("does not fit")).settled().taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


@pytest.mark.parametrize("answer", ["reject", "approve"])
def test_a_node_that_may_fail_is_not_skipped_where_somebody_said_no(answer):
    run = told("START a b END", nodes={"a": {"approve": "Go on?", "safe_to_fail": True}}).settled()
    run.answered("a", answer)
    assert kinds(run) == [FailRun if answer == "reject" else StartNode]


def test_a_node_that_may_fail_is_not_skipped_where_somebody_said_no_to_its_next_attempt():
    options = {"a": {"idempotent": False, "safe_to_fail": True}}
    run = told("START a b END", nodes=options).crashed_in("a").taken_up().settled()
    run.record(
        events.QuestionAnswered(node="a", iteration=1, key="a.1.1.1", answer="abort", refused=True, attempt=1)
    )
    assert kinds(run) == [FailRun]


# --- joins -------------------------------------------------------------------------------------------


def test_a_join_waits_for_what_another_node_of_the_same_layer_leads_to():
    run = told("START a j END", "START b x j", schedule="layered").completed("a").completed("b").settled()
    assert run.running == ["x"]
    assert run.completed("x").settled().running == ["j"]
