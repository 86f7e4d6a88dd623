"""What the fold leaves behind, exactly: counters, times and what a visit no longer holds. Each of these was once got past by a
small mistake that was made on purpose (docs/mutants.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from holdfast import append
from holdfast.core import events
from holdfast.core.commands import FailRun
from holdfast.core.events import Changes
from holdfast.core.run_state import NodeState
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, failure, outline


@dataclass
class Notes:
    n: int = 0
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


# --- failures ----------------------------------------------------------------------------------------


def test_a_run_that_fails_at_the_limit_of_a_loop_tells_the_limit_and_not_what_its_node_had():
    run = told("START a", branches={"a": "a END"}, max_iterations=1).completed("a", routes=["a"])
    (command,) = run.commands()
    assert isinstance(command, FailRun)
    run.settled()
    assert run.state.failure == command.failure
    assert run.state.failure_node == "a"


def test_a_run_that_fails_because_of_no_node_tells_why():
    run = told("START a END").record(events.RunFailed(failure=failure("out of time")))
    assert run.state.failure == failure("out of time")
    assert run.state.failure_node is None


def test_a_run_tells_the_failure_of_its_node_where_there_is_one():
    run = told("START a END").failed("a", ValueError("mine"))
    run.record(events.RunFailed(node="a", failure=failure("told")))
    assert run.state.failure.message == "mine"


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


def test_a_rewind_forgets_how_often_what_was_open_had_failed():
    run = told("START a END").failed("a", Recoverable("later"), retry_in=60.0)
    assert run.state.nodes["a"].failures == 1
    run.record(events.RunRewound(to=run.state.seq))
    assert run.state.nodes["a"].failures == 0


# --- rewinds and new executions ----------------------------------------------------------------------


def test_every_rewind_is_kept_as_a_stretch_that_ends_where_it_went_back_to():
    run = told("START a END")
    run.record(events.RunRewound(to=1)).record(events.RunRewound(to=2))
    assert (run.state.path, run.state.since) == ([(1, 1), (2, 2)], 3)
    assert run.state.stretches() == [(1, 1), (2, 2), (3, 3)]


def test_a_rewind_carries_how_often_a_node_was_cut():
    run = told("START a b END").completed("a").started("b")
    run.record(events.RunRewound(to=run.state.seq, crashes={"b": 2, "nobody": 1}))
    assert run.state.nodes["b"].crashes == 2
    assert "nobody" not in run.state.nodes


def test_a_rewind_carries_fresh_keys_to_the_visit_that_they_were_asked_for():
    run = told("START a", branches={"a": "a END"}).started("a")
    run.record(events.RunRewound(to=run.state.seq, fresh={"a": {2: 3}}))
    run.completed("a", routes=["a"])
    assert run.state.nodes["a"].fresh == 0
    assert run.started("a").state.nodes["a"].fresh == 3


def test_a_rewind_carries_fresh_keys_to_a_node_that_was_not_reached_since():
    run = told("START a b END").started("a")
    run.record(events.RunRewound(to=run.state.seq, fresh={"b": {1: 3}})).completed("a").started("b")
    assert run.state.nodes["a"].fresh == 0
    assert run.state.nodes["b"].fresh == 3


def test_a_rewind_finds_everything_due_again_behind_a_node_whose_router_failed():
    run = told("START a", "START b END", branches={"a": "a END"}).started("a", "b")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    run.state.open = {"a": None, "b": None}
    run.record(events.RunRewound(to=run.state.seq))
    assert run.state.nodes["b"].status == "pending"


def test_a_new_execution_begins_without_failures_and_without_items():
    run = fan_out(1).settled().item_failed("a", 0, ValueError("broken")).settled()
    visit = run.state.nodes["a"]
    assert (visit.failures, visit.items is None) == (1, False)
    run.record(events.RunResumed(fresh=True))
    run.record(events.NodeStarted(node="a", iteration=1, execution=2, attempt=1, took=0))
    assert (visit.failures, visit.items) == (0, None)


def test_a_new_execution_begins_without_items_where_nothing_had_failed():
    run = fan_out(1).settled()
    run.record(events.RunResumed(nodes=["a"], fresh=True))
    run.record(events.NodeStarted(node="a", iteration=1, execution=2, attempt=1, took=0))
    assert run.state.nodes["a"].items is None


# --- time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "seconds"), [(True, 2.0), (False, 7.0)])
def test_an_attempt_that_was_lost_counts_as_far_as_the_log_knows_and_another_up_to_its_end(lost, seconds):
    run = told("START a END").started("a")
    run.at = run.state.nodes["a"].started_at + 2.0
    run.checkpointed("a", 1)
    run.at = run.state.nodes["a"].started_at + 7.0
    run.record(events.NodeInterrupted(**of(run, "a"), reason="?", lost=lost))
    assert run.state.nodes["a"].seconds == seconds
    assert run.state.active_s == seconds


# --- routes ------------------------------------------------------------------------------------------


def test_a_node_that_was_routed_at_last_is_routed_and_holds_no_failure():
    run = told("START a", branches={"a": "a END"}).started("a")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    assert not run.state.nodes["a"].routed
    run.record(events.RunResumed())
    run.record(events.NodeRouted(**of(run, "a"), routes=["END"]))
    visit = run.state.nodes["a"]
    assert (visit.routed, visit.failure) == (True, None)
    assert (run.state.open, run.state.failed) == ({}, {})


def test_a_list_grows_while_a_visit_is_open_that_has_no_input_any_more():
    run = told("START a", "START b END", branches={"a": "a END"}, state=Notes).started("a", "b")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    run.completed("b", {"lines": ["one"]})
    assert run.state.values["lines"] == ["one"]


# --- items -------------------------------------------------------------------------------------------


def test_only_items_that_needed_more_than_one_attempt_are_counted():
    run = fan_out(2).settled()
    items = run.state.nodes["a"].items
    assert items.attempts == {}
    run.item_failed("a", 0, Recoverable("later"), retry_in=0.0)
    run.settled()
    assert items.attempts == {0: 2}


def test_the_failures_of_an_item_are_counted_from_one():
    run = fan_out(1).settled()
    items = run.state.nodes["a"].items
    for count in (1, 2, 3):
        run.item_failed("a", 0, Recoverable("later"), retry_in=0.0)
        assert items.failures == {0: count}
        run.settled()


def test_items_that_failed_or_waited_are_due_as_soon_as_there_is_room_when_the_run_is_resumed():
    run = fan_out(3).settled().item_failed("a", 1, ValueError("broken"))
    run.sleeping("a", 60.0, item=0).parked("a", "sleep:1", item=0).item_completed("a", 2)
    run.record(events.RunResumed(nodes=["a"]))
    items = run.state.nodes["a"].items
    assert items.again == {1: 0.0, 0: 0.0}
    assert items.failed == {}


# --- what an ended visit holds -----------------------------------------------------------------------


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


# --- what a run's status follows from ----------------------------------------------------------------


def test_a_failed_run_stays_failed_whatever_is_answered_while_another_node_waits():
    run = told("START a END", "START b END", "START c END").started("a", "b", "c")
    for node in ("b", "c"):
        run.asking(node, "Sure?").parked(node, "ask:Sure?")
    run.failed("a", ValueError("broken")).settled()
    assert (run.state.status, run.state.waiting) == ("failed", 2)
    run.answered("b", "yes")
    assert (run.state.status, run.state.waiting) == ("failed", 1)


# --- items that go on --------------------------------------------------------------------------------


def test_an_item_whose_wait_is_over_is_due_as_soon_as_there_is_room():
    run = fan_out(2).settled().awaiting("a", "paid", item=0).parked("a", "signal:paid:1", item=0)
    run.told("paid")
    assert run.state.nodes["a"].items.again == {0: 0.0}


def test_items_that_somebody_lets_be_tried_again_are_due_as_soon_as_there_is_room():
    run = fan_out(2, idempotent=False).settled()
    run.item_failed("a", 1, ValueError("broken")).taken_up().settled()
    (key,) = run.state.questions
    run.answered(key, "retry")
    items = run.state.nodes["a"].items
    assert items.again == {0: 0.0, 1: 0.0}
    assert items.failed == {}
