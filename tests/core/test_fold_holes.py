"""What the fold keeps, drops and refuses in rarer histories: renamed nodes that failed, routers that are asked later, questions
that are dropped with what they were about. Mutants that nobody had looked at got past the tests here (docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core import events
from holdfast.core.commands import RouteNode, StartNode
from holdfast.core.events import Changes
from holdfast.errors import IllegalEvent, Recoverable
from holdfast.testing.builders import History, failure, outline


def told(*paths: str, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def of(history: History, node: str) -> dict:
    visit = history.state.nodes[node]
    return {
        "node": node,
        "iteration": visit.iteration,
        "execution": visit.execution,
        "attempt": visit.attempt,
    }


def wanted(history: History) -> list[tuple[type, str]]:
    return [(type(command), command.node) for command in history.commands()]


# --- names -------------------------------------------------------------------------------------------


def test_a_run_that_failed_at_a_node_tells_its_new_name_once_it_was_renamed():
    run = told("START a b END").completed("a").failed("b", ValueError("no")).settled()
    assert (run.state.status, run.state.failure_node) == ("failed", "b")
    run.record(events.FlowChanged(fingerprint="q", rename={"b": "z"}))
    assert run.state.failure_node == "z"


def test_a_run_that_failed_at_a_node_still_tells_it_where_another_was_renamed():
    run = told("START a b END").completed("a").failed("b", ValueError("no")).settled()
    run.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert run.state.failure_node == "b"


def test_a_run_that_failed_at_no_node_fails_at_none_after_a_renaming():
    run = told("START a END").record(events.RunFailed(failure=failure("out of time")))
    run.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert run.state.failure_node is None


# --- routes ------------------------------------------------------------------------------------------


def unrouted(history: History, node: str) -> History:
    """The node has completed, and nobody has said yet where the run goes."""
    return history.record(events.NodeCompleted(**of(history, node), changes=Changes(), routes=None))


def test_a_node_that_completed_without_a_route_is_routed_next():
    run = unrouted(told("START a b END").started("a"), "a")
    assert wanted(run) == [(RouteNode, "a")]


def test_a_node_whose_router_failed_is_routed_and_not_run_when_it_is_scheduled_again():
    run = unrouted(told("START a b END").started("a"), "a")
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    run.record(events.NodeScheduled(**of(run, "a"), why="retry"))
    assert run.state.nodes["a"].status == "completed"
    assert wanted(run) == [(RouteNode, "a")]


# --- arrivals ----------------------------------------------------------------------------------------


def test_a_visit_that_takes_up_an_arrival_that_is_not_there_is_refused():
    run = told("START a b END").started("a")
    with pytest.raises(IllegalEvent, match="'b' took 1 arrivals, which are not there"):
        run.record(events.NodeStarted(node="b", iteration=1, execution=1, attempt=1, took=1))


# --- visits ------------------------------------------------------------------------------------------


def test_a_visit_after_one_that_failed_and_was_skipped_begins_without_failures():
    run = told("START a", branches={"a": "a END"}, nodes={"a": {"safe_to_fail": True}})
    run.failed("a", Recoverable("no"))
    run.record(events.NodeSkipped(**of(run, "a"), reason="safe", changes=Changes(), routes=["a"])).started(
        "a"
    )
    visit = run.state.nodes["a"]
    assert (visit.iteration, visit.failures) == (2, 0)


@pytest.mark.parametrize("kept", [{1: 3}, {1: 3, 3: 1}])
def test_fresh_keys_that_were_asked_for_one_visit_are_not_those_of_another(kept):
    run = told("START a", branches={"a": "a END"}).started("a")
    run.record(events.RunRewound(to=run.state.seq, fresh={"a": kept}))
    run.completed("a", routes=["a"]).started("a")
    assert (run.state.nodes["a"].iteration, run.state.nodes["a"].fresh) == (2, 0)


def test_fresh_keys_that_were_asked_for_a_later_visit_are_not_those_of_a_first_one():
    run = told("START a b", branches={"b": "a END"}).started("a")
    run.record(events.RunRewound(to=run.state.seq, fresh={"b": {2: 3}})).completed("a").started("b")
    assert (run.state.nodes["b"].iteration, run.state.nodes["b"].fresh) == (1, 0)


def test_a_fork_at_the_first_event_goes_on_behind_it():
    run = told("START a END").record(events.RunForked(parent="p", to=1, base_digest="d"))
    assert run.state.stretches() == [(1, 1), (2, 2)]


def test_a_fan_out_that_has_completed_holds_its_items_no_longer():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}})
    run.item_completed("a", 0).item_completed("a", 1).completed("a")
    assert run.state.nodes["a"].status == "completed"
    assert run.state.nodes["a"].items is None


# --- questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduled", [True, False])
def test_a_question_about_a_cut_attempt_is_dropped_when_the_node_is_tried_again_without_an_answer(scheduled):
    run = told("START a END", nodes={"a": {"on_interrupt": "ask"}}).crashed_in("a").taken_up().settled()
    assert len(run.state.questions) == 1
    if scheduled:
        run.record(events.NodeScheduled(**of(run, "a"), why="retry"))
    else:
        run.record(events.RunResumed(nodes=["a"]))
    assert run.state.questions == {}
    assert wanted(run) == [(StartNode, "a")]
