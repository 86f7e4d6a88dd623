from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, get_args

import pytest

from holdfast import add, append
from holdfast.core import events, fold
from holdfast.core.events import KINDS, Changes, NodeEvent, Stored
from holdfast.core.kinds import TABLE
from holdfast.core.run_state import (
    Held,
    Items,
    NodeState,
    NodeStatus,
    Question,
    RunState,
    Status,
    Wait,
    wait_key,
)
from holdfast.errors import IllegalEvent, Recoverable
from holdfast.testing.builders import History, example, failure, outline

RUN = {kind.event: kind.run for kind in TABLE}
NODE = {kind.event: (kind.node, kind.node_after) for kind in TABLE if kind.node is not None}
STATUSES = get_args(Status)
NODE_STATUSES = ("", *get_args(NodeStatus))
OPEN = {"pending", "running", "waiting", "interrupted", "failed"}


@dataclass
class Notes:
    n: int = 0
    total: Annotated[int, add] = 0
    lines: Annotated[list[str], append] = field(default_factory=list)


def standing(run: str, node: str, kind: type[events.Event]) -> RunState:
    """A run of this status whose node `a` has that one, with all that an event of this kind needs to find."""
    state = RunState("r", status=run, seq=5, at=10.0, values={"n": 1}, layer=0)
    if node:
        visit = NodeState(status=node, iteration=1, execution=1, attempt=1, started_at=8.0, tries=1)
        state.nodes["a"] = visit
        if node in OPEN:
            state.open["a"] = None
            visit.input = {"n": 1}
            state.running, state.waiting = int(node == "running"), int(node == "waiting")
        if node == "failed":
            state.failed["a"] = None
            visit.failure = failure()
        if node == "waiting":
            visit.question = "a.1.1.1"
            state.questions["a.1.1.1"] = Question("a.1.1.1", "a", "again?", ["retry"], 9.0)
        elif kind is events.QuestionAnswered:
            state.questions["a.1.1.1"] = Question("a.1.1.1", "a", "?", [], 9.0, about="ask", slot="ask:?")
        elif kind is events.TimerFired:
            state.waits[wait_key("a", 1, 1, None, "sleep:1")] = Wait("a", 1, 1, "sleep:1", until=60.0)
        if kind is not events.ItemsListed:
            visit.items = Items([1, 2], begun=1, running={0: 1})
    if kind is events.LayerCompleted:
        state.nodes["b"] = NodeState(status="completed", iteration=1, attempt=1)
        state.held["b"] = Held(Changes(set={"n": 7}))
    return state


def next_event(state: RunState, event: events.Event, at: float = 11.0) -> Stored:
    return Stored(state.seq + 1, at, event)


def an_event(kind: type[events.Event], state: RunState) -> events.Event:
    return example(kind, to=state.seq) if kind is events.RunRewound else example(kind)


def a_node_status_that_fits(kind: type[events.Event]) -> str:
    return min(NODE[kind][0]) if kind in NODE else "completed"


def refused(state: RunState, stored: Stored) -> str:
    """The event is refused, and the state is what it was."""
    before = deepcopy(state)
    with pytest.raises(IllegalEvent) as caught:
        fold.fold(state, stored)
    assert state == before
    return str(caught.value)


# --- the tables --------------------------------------------------------------------------------------


def test_every_kind_of_the_closed_union_has_a_handler_and_its_statuses():
    kinds = set(KINDS.values())
    assert set(RUN) == kinds
    of_nodes = {kind for kind in kinds if issubclass(kind, NodeEvent)}
    assert set(NODE) == of_nodes - {events.TimerFired}, "a time comes whatever its node is doing"


def test_the_tables_know_no_other_statuses():
    assert all(statuses <= set(STATUSES) for statuses in RUN.values())
    assert all(statuses <= set(NODE_STATUSES) for statuses, _ in NODE.values())


def test_nothing_follows_a_final_status():
    assert not any({"completed", "cancelled"} & statuses for statuses in RUN.values())


def test_only_a_creation_meets_a_new_run():
    assert [kind.__name__ for kind, statuses in RUN.items() if "new" in statuses] == ["RunCreated"]


def test_only_what_takes_a_failed_run_up_again_or_changes_it_first_or_is_said_to_it_meets_a_failed_run():
    allowed = {
        "RunForked",
        "RunResumed",
        "RunRewound",
        "RunCancelled",
        "ResumeRefused",
        "StateEdited",
        "StateUpgraded",
        "FlowChanged",
        "QuestionAnswered",
        "SignalReceived",
    }
    assert {kind.__name__ for kind, statuses in RUN.items() if "failed" in statuses} == allowed


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_event_is_folded_where_the_runs_status_allows_it_and_refused_elsewhere(kind, status):
    state = standing(status, a_node_status_that_fits(kind), kind)
    stored = next_event(state, an_event(kind, state))
    if status in RUN[kind]:
        assert fold.fold(state, stored) is state
        assert (state.seq, state.at) == (stored.seq, stored.at)
    else:
        assert f"is {status}: {kind.__name__}" in refused(state, stored)


@pytest.mark.parametrize("status", NODE_STATUSES)
@pytest.mark.parametrize("kind", NODE, ids=lambda kind: kind.__name__)
def test_an_event_is_folded_where_its_nodes_status_allows_it_and_refused_elsewhere(kind, status):
    state = standing("running", status, kind)
    stored = next_event(state, example(kind))
    allowed, afterwards = NODE[kind]
    if status in allowed:
        fold.fold(state, stored)
        if afterwards is not None:
            assert state.nodes["a"].status == afterwards
        assert state.running == sum(node.status == "running" for node in state.nodes.values())
        assert state.waiting == sum(node.status == "waiting" for node in state.nodes.values())
    else:
        assert f"{'a'!r} is {status or 'not reached'}: {kind.__name__}" in refused(state, stored)


def test_an_event_that_is_no_event_of_a_run_is_refused():
    class Rumour(events.Event, frozen=True, kw_only=True):
        pass

    state = standing("running", "running", Rumour)
    assert "Rumour is not an event of a run" in refused(state, next_event(state, Rumour()))


# --- places in the log -------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_an_event_must_follow_the_one_before_it(offset):
    state = standing("running", "running", events.NodeCompleted)
    refused(state, Stored(state.seq + offset, 11.0, example(events.NodeCompleted)))


def test_a_rewind_is_folded_only_onto_the_place_it_names():
    state = standing("running", "completed", events.RunRewound)
    refused(state, Stored(9, 11.0, example(events.RunRewound, to=4)))
    refused(state, Stored(5, 11.0, example(events.RunRewound, to=5)))
    fold.fold(state, Stored(9, 11.0, example(events.RunRewound, to=5)))
    assert state.seq == 9
    assert state.stretches() == [(1, 5), (9, 9)]


# --- late results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [events.NodeCompleted, events.NodeFailed, events.NodeInterrupted])
@pytest.mark.parametrize("late", [{"attempt": 2}, {"execution": 2}, {"iteration": 2}])
def test_the_late_end_of_another_attempt_is_refused(kind, late):
    state = standing("running", "running", kind)
    assert "is open" in refused(state, next_event(state, example(kind, **late)))


@pytest.mark.parametrize("kind", [events.ItemCompleted, events.ItemFailed])
@pytest.mark.parametrize("late", [{"attempt": 2}, {"item": 1}, {"execution": 2}, {"iteration": 2}])
def test_the_late_end_of_another_attempt_at_an_item_is_refused(kind, late):
    state = standing("running", "running", kind)
    refused(state, next_event(state, example(kind, **late)))


def test_an_item_without_a_list_is_refused():
    state = standing("running", "running", events.ItemsListed)
    assert "has listed no items" in refused(state, next_event(state, example(events.ItemStarted)))


# --- what an event must find -------------------------------------------------------------------------


def test_a_start_that_takes_more_arrivals_than_there_are_is_refused():
    state = standing("running", "", events.NodeStarted)
    state.arrivals["a"] = 1
    assert "took 2 arrivals" in refused(state, next_event(state, example(events.NodeStarted, took=2)))


def test_a_run_is_not_completed_while_something_is_left_to_do():
    for left in ({"open": {"a": None}}, {"arrivals": {"a": 1}}, {"held": {"a": Held(Changes())}}):
        state = standing("running", "completed", events.RunCompleted)
        for name, value in left.items():
            setattr(state, name, value)
        assert "is not done" in refused(state, next_event(state, events.RunCompleted()))


def test_a_layer_with_a_node_that_has_not_completed_is_refused():
    state = standing("running", "running", events.LayerCompleted)
    refused(state, next_event(state, example(events.LayerCompleted, nodes=["b", "a"])))


# --- inputs ------------------------------------------------------------------------------------------


def two_beside_each_other() -> History:
    return History("r", outline("START a END", "START b END", state=Notes)).created().started("a", "b")


def test_the_input_of_a_visit_is_the_state_at_its_first_start():
    told = two_beside_each_other().completed("a", {"n": 1, "lines": ["from a"]})
    assert told.state.values == {"n": 1, "total": 0, "lines": ["from a"]}
    assert told.state.nodes["b"].input == {"n": 0, "total": 0, "lines": []}


def test_a_later_attempt_gets_the_same_input():
    told = two_beside_each_other().failed("b", Recoverable("later"), retry_in=0.0)
    told.completed("a", {"lines": ["from a"]}).started("b")
    assert told.state.nodes["b"].attempt == 2
    assert told.state.nodes["b"].input == {"n": 0, "total": 0, "lines": []}


def test_an_edit_replaces_the_input_of_what_has_not_ended():
    told = two_beside_each_other().completed("a", {"lines": ["from a"]})
    told.record(
        events.StateEdited(changes=Changes(set={"n": 9}, append={"lines": ["edited"]}, add={"total": 2}))
    )
    assert told.state.values == {"n": 9, "total": 2, "lines": ["from a", "edited"]}
    assert told.state.nodes["b"].input == {"n": 9, "total": 2, "lines": ["edited"]}


def test_a_completed_visit_holds_no_input():
    assert two_beside_each_other().completed("a").state.nodes["a"].input is None


def test_the_fold_never_grows_a_list_that_a_stored_event_holds():
    """Events are encoded before they are folded; the log is right although the fold changes lists in place."""
    told = History("r", outline("START a b END", state=Notes)).created({"lines": ["zero"]})
    told.completed("a", {"lines": ["one"]}).completed("b", {"lines": ["two"]})
    created, *rest = told.events()
    assert created.event.input["lines"] == ["zero"]
    assert [s.event.changes.append for s in rest if s.kind == "NodeCompleted"] == [
        {"lines": ["one"]},
        {"lines": ["two"]},
    ]


# --- failures and crashes ----------------------------------------------------------------------------


def chain(**options) -> History:
    return History("r", outline("START a b END", **options)).created()


def test_neither_a_resume_nor_a_crash_gives_new_tries():
    told = chain().failed("a", Recoverable("later"), retry_in=5.0)
    assert told.state.status == "waiting"
    told.taken_up()
    assert (told.state.nodes["a"].failures, told.state.nodes["a"].retry_at) == (1, told.log[2][0] + 5.0)
    told.at += 5.0
    told.started("a").taken_up().started("a")
    assert (told.state.nodes["a"].failures, told.state.nodes["a"].crashes, told.state.nodes["a"].attempt) == (
        1,
        1,
        3,
    )


def test_crashes_are_counted_in_a_row():
    told = chain().crashed_in("a").taken_up().started("a").taken_up().started("a")
    assert told.state.nodes["a"].crashes == 2
    told.failed("a", Recoverable("later"), retry_in=0.0)
    assert told.state.nodes["a"].crashes == 0


def test_a_node_that_failed_for_good_is_due_again_after_a_resume():
    told = chain().failed("a", ValueError("broken")).settled()
    assert (told.state.status, told.state.failure.message, told.state.failure_node) == (
        "failed",
        "broken",
        "a",
    )
    told.taken_up()
    assert (told.state.status, told.state.failure, list(told.state.failed)) == ("running", None, [])
    told.completed("a").completed("b").settled()
    assert told.state.status == "completed"


def test_a_resume_of_some_nodes_leaves_the_others_failed():
    told = two_beside_each_other().failed("a", ValueError("x")).failed("b", ValueError("y")).settled()
    told.record(events.RunResumed(nodes=["b"]))
    assert list(told.state.failed) == ["a"]


def test_a_fresh_try_is_a_new_execution_with_the_same_input():
    told = two_beside_each_other().failed("b", ValueError("x")).completed("a", {"n": 5}).settled()
    told.record(events.RunResumed(fresh=True)).started("b")
    visit = told.state.nodes["b"]
    assert (visit.execution, visit.attempt, visit.input["n"]) == (2, 1, 0)


# --- pauses ------------------------------------------------------------------------------------------


def test_a_paused_run_is_paused_when_its_running_nodes_have_ended():
    told = chain().started("a").paused()
    assert told.state.status == "running"
    told.completed("a")
    assert told.state.status == "paused"
    told.taken_up()
    assert told.state.status == "running"


# --- counters ----------------------------------------------------------------------------------------


def test_the_seconds_of_attempts_that_ended_count_for_the_node_and_the_run():
    told = chain().started("a").failed("a", Recoverable("later"), retry_in=0.0).started("a").completed("a")
    assert told.state.nodes["a"].seconds == 2.0
    assert told.state.active_s == 2.0


def test_arrivals_that_a_visit_did_not_take_up_stay():
    flow = outline("START a c END", "START b c", nodes={"c": {"join": "any"}})
    told = History("r", flow).created().completed("a").completed("b")
    assert told.state.arrivals == {"c": 2}
    told.started("c")
    assert told.state.arrivals == {"c": 1}
    told.completed("c").completed("c").settled()
    assert told.state.status == "completed"
    assert told.state.nodes["c"].iteration == 2


def test_skipping_a_visit_that_never_began_takes_up_the_arrivals_it_names():
    flow = outline("START a c END", "START b c", nodes={"c": {"join": "any"}})
    run = History("r", flow).created().started("a", "b").paused().completed("a").completed("b").settled()
    skipped = events.NodeSkipped(node="c", iteration=1, took=1, routes=["END"])
    assert run.record(skipped).state.arrivals == {"c": 1}


# --- rewinds, forks, other flows ---------------------------------------------------------------------


def test_after_a_rewind_what_was_open_is_due_again_as_a_new_execution():
    told = two_beside_each_other()
    at_start = deepcopy(told.state)
    fold.fold(at_start, Stored(9, 99.0, events.RunRewound(to=3, executions={"a": {1: 1}}, active_s=7.0)))
    assert (at_start.status, list(at_start.open), at_start.running) == ("running", ["a", "b"], 0)
    assert {node.status for node in at_start.nodes.values()} == {"pending"}
    assert at_start.next_execution("a", 1) == at_start.next_execution("b", 1) == 2
    assert at_start.active_s == 7.0


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


# --- layers ------------------------------------------------------------------------------------------


def test_what_a_layer_changed_is_applied_in_node_order_when_it_is_complete():
    flow = outline("START a c END", "START b c", state=Notes, schedule="layered")
    told = (
        History("r", flow)
        .created()
        .started("a", "b")
        .completed("b", {"lines": ["b"]})
        .completed("a", {"lines": ["a"]})
    )
    assert told.state.values["lines"] == []
    assert list(told.state.held) == ["b", "a"]
    told.settled()
    assert told.state.values["lines"] == ["a", "b"]
    assert (told.state.layer, told.state.held, told.running) == (1, {}, ["c"])


# --- items -------------------------------------------------------------------------------------------


def test_items_that_were_cut_are_tried_again_and_finished_ones_are_not():
    flow = outline("START a END", nodes={"a": {"each": lambda state: [10, 20, 30], "limit": 2}})
    told = History("r", flow).created().item_completed("a", 0).settled()
    items = told.state.nodes["a"].items
    assert (items.running, list(items.done)) == ({1: 1, 2: 1}, [0])
    told.taken_up()
    assert (items.running, items.again) == ({}, {1: 0.0, 2: 0.0})
    told.settled()
    assert items.running == {1: 2, 2: 2}


def test_a_resume_tries_only_the_items_that_failed_again():
    flow = outline("START a END", nodes={"a": {"each": lambda state: [10, 20]}})
    told = History("r", flow).created().item_completed("a", 0).item_failed("a", 1, ValueError("x")).settled()
    assert told.state.status == "failed"
    told.taken_up().started("a").settled()
    assert told.state.nodes["a"].items.running == {1: 2}


def test_results_of_items_are_applied_in_item_order():
    flow = outline("START a END", state=Notes, nodes={"a": {"each": lambda state: [10, 20]}})
    told = (
        History("r", flow)
        .created()
        .item_completed("a", 1, {"lines": ["second"]})
        .item_completed("a", 0, {"lines": ["first"]})
    )
    told.settled()
    assert told.state.values["lines"] == ["first", "second"]
