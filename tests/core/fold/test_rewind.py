"""What a rewind, a fork, a new execution and another flow keep of a run, and what they begin again."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from holdfast import add, append
from holdfast.core import events, fold
from holdfast.core.commands import AskFirst, RouteNode
from holdfast.core.events import Changes, Stored
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, failure, outline


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


def routing_failed(history: History, node: str) -> History:
    return history.record(events.RoutingFailed(**of(history, node), failure=failure("no way")))


# --- rewinds, forks, other flows ---------------------------------------------------------------------


def two_beside_each_other() -> History:
    return History("r", outline("START a END", "START b END", state=Notes)).created().started("a", "b")


def test_after_a_rewind_what_was_open_is_due_again_as_a_new_execution():
    told = two_beside_each_other()
    at_start = deepcopy(told.state)
    fold.fold(at_start, Stored(9, 99.0, events.RunRewound(to=3, executions={"a": {1: 1}}, active_s=7.0)))
    assert (at_start.status, list(at_start.open), at_start.running) == ("running", ["a", "b"], 0)
    assert {node.status for node in at_start.nodes.values()} == {"pending"}
    assert at_start.next_execution("a", 1) == at_start.next_execution("b", 1) == 2
    assert at_start.active_s == 7.0


def chain(**options) -> History:
    return History("r", outline("START a b END", **options)).created()


def test_a_rewind_closes_questions_and_failures():
    told = chain(nodes={"a": {"idempotent": False}}).crashed_in("a").taken_up().settled()
    assert list(told.state.questions) == ["a.1.1.1"]
    told.record(events.RunRewound(to=told.state.seq))
    assert (told.state.questions, told.state.failed, told.state.nodes["a"].question) == ({}, {}, None)


def test_a_fork_is_a_pending_run_of_its_own():
    told = chain().completed("a").started("b")
    told.record(events.RunForked(parent="r0", to=told.state.seq, base_digest="d", labels={"try": "2"}))
    assert (told.state.status, told.state.parent, told.state.labels) == ("pending", "r0", {"try": "2"})
    assert told.state.nodes["b"].status == "pending"
    assert told.state.stretches() == [(1, 4), (5, 5)]


def test_a_renamed_node_keeps_everything_it_has():
    told = chain().completed("a").crashed_in("b")
    told.record(events.FlowChanged(fingerprint="q", rename={"b": "z", "a": "y"}))
    assert list(told.state.nodes) == ["y", "z"]
    assert list(told.state.open) == ["z"]
    assert told.state.fingerprint == "q"


def test_an_upgrade_replaces_the_values_and_the_inputs_of_what_has_not_ended():
    told = chain().crashed_in("a")
    told.record(events.StateUpgraded(state_version=2, values={"new": 1}, inputs={"a": {"new": 0}}))
    assert (told.state.values, told.state.nodes["a"].input, told.state.state_version) == (
        {"new": 1},
        {"new": 0},
        2,
    )


def test_a_fork_at_the_first_event_goes_on_behind_it():
    run = told("START a END").record(events.RunForked(parent="p", to=1, base_digest="d"))
    assert run.state.stretches() == [(1, 1), (2, 2)]


def test_a_rewind_forgets_how_often_what_was_open_had_failed():
    run = told("START a END").failed("a", Recoverable("later"), retry_in=60.0)
    assert run.state.nodes["a"].failures == 1
    run.record(events.RunRewound(to=run.state.seq))
    assert run.state.nodes["a"].failures == 0


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


def test_a_rewind_finds_everything_due_again_behind_a_node_whose_router_failed():
    run = told("START a", "START b END", branches={"a": "a END"}).started("a", "b")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    run.state.open = {"a": None, "b": None}
    run.record(events.RunRewound(to=run.state.seq))
    assert run.state.nodes["b"].status == "pending"


def test_a_router_that_failed_is_asked_again_behind_a_rewind():
    run = told("START a", branches={"a": "a END"}).started("a")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    routing_failed(run, "a")
    run.record(events.RunRewound(to=run.state.seq))
    assert run.commands() == [RouteNode("a")]


def test_a_rewind_finds_a_node_due_that_was_open_without_an_input():
    run = told("START a END", nodes={"a": {"approve": "Go on?"}}).settled()
    run.record(events.RunRewound(to=run.state.seq))
    assert run.commands() == [AskFirst("a", 1, 1)]


# --- fresh keys --------------------------------------------------------------------------------------


def test_a_rewind_carries_how_often_fresh_keys_were_asked_for():
    run = told("START a b END").completed("a").started("b")
    run.record(events.RunRewound(to=run.state.seq, fresh={"b": {1: 2}, "c": {1: 1}}, crashes={"c": 1}))
    assert run.state.fresh == {"b": {1: 2}, "c": {1: 1}}
    assert run.state.nodes["b"].fresh == 2


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


# --- new executions ----------------------------------------------------------------------------------


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
