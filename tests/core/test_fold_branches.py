"""The rarer turns of the fold, of what happens inside of a node, and of what is decided: each has a story that takes it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.core import events
from holdfast.core.commands import AskFirst, FailRun, RouteNode, StartItem, StartNode
from holdfast.core.events import Changes
from holdfast.errors import IllegalEvent
from holdfast.testing.builders import History, failure, outline


@dataclass
class Notes:
    n: int = 0


def told(*paths: str, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def two_beside_each_other(**options) -> History:
    return told("START a END", "START b END", state=Notes, **options).started("a", "b")


def of(history: History, node: str) -> dict:
    visit = history.state.nodes[node]
    return {
        "node": node,
        "iteration": visit.iteration,
        "execution": visit.execution,
        "attempt": visit.attempt,
    }


def routing_failed(history: History, node: str) -> History:
    return history.record(events.RoutingFailed(**of(history, node), failure=failure("no way")))


# --- the fold ----------------------------------------------------------------------------------------


def test_a_rewind_carries_how_often_fresh_keys_were_asked_for():
    run = told("START a b END").completed("a").started("b")
    run.record(events.RunRewound(to=run.state.seq, fresh={"b": {1: 2}, "c": {1: 1}}, crashes={"c": 1}))
    assert run.state.fresh == {"b": {1: 2}, "c": {1: 1}}
    assert run.state.nodes["b"].fresh == 2


def test_an_edit_changes_no_input_where_a_visit_has_none_any_more():
    run = told("START a", branches={"a": "a END"}, state=Notes).started("a")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    routing_failed(run, "a").record(events.StateEdited(changes=Changes(set={"n": 4})))
    assert run.state.values["n"] == 4
    assert run.state.nodes["a"].input is None


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


def test_a_resume_of_a_node_that_is_not_open_changes_nothing():
    run = told("START a b END").completed("a").started("b")
    run.record(events.RunResumed(nodes=["a", "nobody"]))
    assert (run.state.nodes["a"].status, list(run.state.open)) == ("completed", ["b"])


def test_a_router_that_failed_is_asked_again_behind_a_rewind():
    run = told("START a", branches={"a": "a END"}).started("a")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    routing_failed(run, "a")
    run.record(events.RunRewound(to=run.state.seq))
    assert run.commands() == [RouteNode("a")]


def test_a_router_of_a_layer_that_failed_is_asked_again_with_its_layer():
    run = told("START a", "START c END", branches={"a": "a END"}, schedule="layered").started("a", "c")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.completed("c")
    routing_failed(run, "a")
    assert "a" in run.state.held
    run.settled().taken_up()
    assert (run.state.nodes["a"].routed, list(run.state.open)) == (True, [])


def test_a_rewind_finds_a_node_due_that_was_open_without_an_input():
    run = told("START a END", nodes={"a": {"approve": "Go on?"}}).settled()
    run.record(events.RunRewound(to=run.state.seq))
    assert run.commands() == [AskFirst("a", 1, 1)]


# --- inside a node -----------------------------------------------------------------------------------


def test_what_comes_second_of_two_things_that_were_waited_for_wakes_nobody_twice():
    run = told("START a END").sleeping("a", 5.0).sleeping("a", 9.0, slot="sleep:2")
    run.parked("a", "sleep:1", "sleep:2")
    run.at += 20.0
    for command in run.commands()[:2]:
        run.perform(command)
    assert run.state.nodes["a"].status == "pending"
    assert set(run.kept("a")) == {"sleep:1", "sleep:2"}


# --- what is decided ---------------------------------------------------------------------------------


def test_a_visit_that_was_cut_stays_cut_when_another_node_has_failed_for_good():
    run = two_beside_each_other().failed("a", ValueError("broken")).record(events.RunClaimed(holder="h"))
    assert run.state.nodes["b"].status == "interrupted"
    assert [type(command) for command in run.commands()] == [FailRun]


def test_a_fan_out_that_has_not_listed_its_items_waits_for_the_list():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}})
    (start,) = run.commands()
    assert isinstance(start, StartNode)
    run.record(events.NodeStarted(node="a", iteration=1, took=1))
    assert run.commands() == []


def test_a_question_node_that_failed_is_asked_about_again():
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes)
    run.record(events.NodeStarted(node="q", iteration=1, took=1))
    run.failed("q", ValueError("could not be asked")).settled().taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


def test_what_only_an_item_can_say_is_refused_of_a_node_that_has_none():
    run = told("START a END").started("a")
    with pytest.raises(IllegalEvent, match=r"1\.1\.0 is open"):
        run.record(events.NodeWaiting(**of(run, "a"), item=0, on=["sleep:1"]))


# --- what a mutant has survived ----------------------------------------------------------------------


def test_a_question_node_that_was_cut_before_anybody_was_asked_asks():
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes)
    run.record(events.NodeStarted(node="q", iteration=1, took=1)).taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


def test_items_that_were_cut_start_again_together_as_far_as_there_is_room():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2, 3], "limit": 2}}).settled()
    run.taken_up().started("a")
    assert run.commands() == [StartItem("a", 0, 2), StartItem("a", 1, 2)]


@pytest.mark.parametrize(("later", "seconds"), [(0.25, 0.25), (-3.0, 0.0)])
def test_an_attempt_counts_as_long_as_it_took_and_never_less_than_nothing(later, seconds):
    run = told("START a END").started("a")
    run.at = run.state.nodes["a"].started_at + later
    run.completed("a")
    assert (run.state.nodes["a"].seconds, run.state.active_s) == (seconds, seconds)
