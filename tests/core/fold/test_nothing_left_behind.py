"""What the fold leaves of a visit that ended, and what the next attempt, visit or execution begins without."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from holdfast import add, append
from holdfast.core import events
from holdfast.core.events import Changes
from holdfast.core.run_state import (
    NodeState,
)
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, outline


@dataclass
class Notes:
    n: int = 0
    total: Annotated[int, add] = 0
    lines: Annotated[list[str], append] = field(default_factory=list)


def told(*paths: str, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def fan_out(count: int = 2, **options) -> History:
    nodes = {"a": {"each": lambda state: list(range(count)), **options}}
    return told("START a END", nodes=nodes)


def of(history: History, node: str) -> dict:
    visit = history.state.nodes[node]
    return {
        "node": node,
        "iteration": visit.iteration,
        "execution": visit.execution,
        "attempt": visit.attempt,
    }


def holds_nothing(visit: NodeState) -> bool:
    """What is left of a visit that ended are numbers and times."""
    gone = (visit.input, visit.items, visit.retry_at, visit.failure, visit.question, visit.answer)
    return gone == (None,) * 6 and not (visit.kept or visit.parked or visit.approved or visit.asked)


# --- what an ended visit holds -----------------------------------------------------------------------


def two_beside_each_other() -> History:
    return History("r", outline("START a END", "START b END", state=Notes)).created().started("a", "b")


def test_a_completed_visit_holds_no_input():
    assert two_beside_each_other().completed("a").state.nodes["a"].input is None


def test_a_completed_visit_holds_nothing_of_its_steps_waits_and_questions():
    run = told("START a END", nodes={"a": {"approve": "Go on?"}}).settled()
    run.answered("a", "approve").stepped("a", "one", 1)
    assert not holds_nothing(run.state.nodes["a"])
    run.completed("a")
    assert holds_nothing(run.state.nodes["a"])


def test_a_completed_fan_out_holds_no_items():
    run = fan_out(1).settled().item_completed("a", 0).completed("a")
    assert holds_nothing(run.state.nodes["a"])


def test_a_visit_that_is_skipped_while_it_waits_for_its_next_attempt_holds_neither_time_nor_failure():
    run = told("START a END").failed("a", Recoverable("later"), retry_in=60.0)
    run.record(events.NodeSkipped(**of(run, "a"), changes=Changes(), routes=["END"]))
    assert holds_nothing(run.state.nodes["a"])
    assert run.state.nodes["a"].ended_at == run.state.at


def test_a_visit_that_failed_and_is_skipped_holds_no_failure_and_fails_nothing():
    run = told("START a END").failed("a", ValueError("broken"))
    run.record(events.NodeSkipped(**of(run, "a"), changes=Changes(), routes=["END"]))
    assert holds_nothing(run.state.nodes["a"])
    assert run.state.failed == {}


def test_a_visit_that_was_cut_and_asked_about_and_is_skipped_holds_no_question():
    run = told("START a END", nodes={"a": {"idempotent": False}}).crashed_in("a").taken_up().settled()
    assert run.state.nodes["a"].question is not None
    run.record(events.NodeSkipped(**of(run, "a"), changes=Changes(), routes=["END"]))
    assert holds_nothing(run.state.nodes["a"])
    assert run.state.questions == {}


def test_a_fan_out_that_has_completed_holds_its_items_no_longer():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}})
    run.item_completed("a", 0).item_completed("a", 1).completed("a")
    assert run.state.nodes["a"].status == "completed"
    assert run.state.nodes["a"].items is None


# --- what a completion forgets -----------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_completion_forgets_how_often_the_visit_failed_and_was_cut(crashes):
    run = told("START a END").failed("a", Recoverable("later"), retry_in=0.0).started("a")
    for _ in range(crashes):
        run.taken_up().started("a")
    visit = run.state.nodes["a"]
    assert (visit.failures, visit.crashes) == (1, crashes)
    run.completed("a")
    assert (visit.failures, visit.crashes) == (0, 0)


def test_a_completion_forgets_a_cut_without_a_failure():
    run = told("START a END").crashed_in("a").taken_up().started("a").completed("a")
    assert run.state.nodes["a"].crashes == 0


# --- what the next attempt or visit begins without ---------------------------------------------------


def test_a_second_attempt_begins_without_the_failure_of_the_first():
    run = told("START a END").failed("a", Recoverable("later"), retry_in=0.0).started("a")
    visit = run.state.nodes["a"]
    assert (visit.failure, visit.retry_at, visit.cut) == (None, None, "")


def test_a_second_attempt_begins_without_the_reason_why_the_first_was_cut():
    run = told("START a END").started("a")
    run.record(events.NodeInterrupted(**of(run, "a"), reason="drained"))
    assert run.state.nodes["a"].cut == "drained"
    run.taken_up().started("a")
    assert run.state.nodes["a"].cut == ""


def test_a_first_attempt_begins_without_the_refusal_that_came_before_it():
    run = told("START a END", nodes={"a": {"approve": "Go on?"}}).settled()
    run.answered("a", "reject").settled()
    assert run.state.nodes["a"].failure is not None
    run.taken_up(force=True).settled()
    run.answered("a", "approve").started("a")
    visit = run.state.nodes["a"]
    assert (visit.tries, visit.failure, visit.question) == (1, None, None)


def test_a_visit_after_one_that_failed_and_was_skipped_begins_without_failures():
    run = told("START a", branches={"a": "a END"}, nodes={"a": {"safe_to_fail": True}})
    run.failed("a", Recoverable("no"))
    run.record(events.NodeSkipped(**of(run, "a"), reason="safe", changes=Changes(), routes=["a"])).started(
        "a"
    )
    visit = run.state.nodes["a"]
    assert (visit.iteration, visit.failures) == (2, 0)


def test_a_visit_that_is_done_over_waits_no_more_for_what_the_one_before_it_waited_for():
    run = told("START a END").sleeping("a", 60.0).parked("a", "sleep:1")
    run.record(events.RunResumed(nodes=["a"], fresh=True)).started("a")
    assert run.state.nodes["a"].execution == 2
    assert (run.state.nodes["a"].parked, run.state.waits) == ({}, {})


def test_the_next_iteration_of_a_fan_out_waits_for_nothing_that_an_item_of_the_last_one_waited_for():
    run = told("START a", branches={"a": "a END"}, nodes={"a": {"each": lambda state: [1, 2]}}).started("a")
    run.sleeping("a", 60.0, item=0).parked("a", "sleep:1", item=0)
    run.taken_up().record(events.NodeSkipped(**of(run, "a"), changes=Changes(), routes=["a"])).started("a")
    assert (run.state.nodes["a"].iteration, run.state.nodes["a"].parked) == (2, {})
