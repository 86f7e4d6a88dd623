"""What the fold accepts: by the status of the run and of the node, by place in the log, by attempt, and by what must be there."""

from copy import deepcopy
from typing import get_args

import pytest

from holdfast.core import events, fold
from holdfast.core.events import KINDS, Changes, NodeEvent, Stored
from holdfast.core.kinds import TABLE
from holdfast.core.run_state import (
    NODE_LEVEL,
    Child,
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
from holdfast.errors import IllegalEvent
from holdfast.testing.builders import History, example, failure, outline

RUN = {kind.event: kind.run for kind in TABLE}
NODE = {kind.event: (kind.node, kind.node_after) for kind in TABLE if kind.node is not None}
STATUSES = get_args(Status)
NODE_STATUSES = ("", *get_args(NodeStatus))
OPEN = {"pending", "running", "waiting", "interrupted", "failed"}


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
        elif kind is events.WaitWithdrawn:
            state.waits[wait_key("a", 1, 1, None, "signal:paid:1")] = Wait("a", 1, 1, "signal:paid:1")
        elif kind is events.SignalSetAside:
            visit.kept[NODE_LEVEL] = {"signal:paid:1": [1]}
        elif kind is events.ChildAwaited:
            state.children["r.pay"] = Child("a", 1, 1, "child:pay", "pay")
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


# --- the tables --------------------------------------------------------------------------------------


def test_every_kind_of_the_closed_union_has_a_handler_and_its_statuses():
    kinds = set(KINDS.values())
    assert {kind.event for kind in TABLE if kind.handler} == kinds
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
        "RequestRefused",
        "ResumeRefused",
        "StateEdited",
        "StateUpgraded",
        "FlowChanged",
        "QuestionAnswered",
        "SignalReceived",
        "ChildEnded",
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
        assert f"is {status}, so {kind.__name__}" in refused(state, stored)


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
        assert f"{'a'!r} is {status or 'not reached'}, so {kind.__name__}" in refused(state, stored)


def test_an_event_that_is_no_event_of_a_run_is_refused():
    class Rumour(events.Event, frozen=True, kw_only=True):
        pass

    state = standing("running", "running", Rumour)
    assert "Rumour is not a known kind of event" in refused(state, next_event(state, Rumour()))


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


def test_what_only_an_item_can_say_is_refused_of_a_node_that_has_none():
    run = told("START a END").started("a")
    with pytest.raises(IllegalEvent, match=r"1\.1\.0 is open"):
        run.record(events.NodeWaiting(**of(run, "a"), item=0, on=["sleep:1"]))


# --- what an event must find -------------------------------------------------------------------------


def test_a_start_that_takes_more_arrivals_than_there_are_is_refused():
    state = standing("running", "", events.NodeStarted)
    state.arrivals["a"] = 1
    assert "uses up 2 arrivals" in refused(state, next_event(state, example(events.NodeStarted, took=2)))


def test_a_run_is_not_completed_while_something_is_left_to_do():
    for left in ({"open": {"a": None}}, {"arrivals": {"a": 1}}, {"held": {"a": Held(Changes())}}):
        state = standing("running", "completed", events.RunCompleted)
        for name, value in left.items():
            setattr(state, name, value)
        assert "is not done" in refused(state, next_event(state, events.RunCompleted()))


def test_a_layer_with_a_node_that_has_not_completed_is_refused():
    state = standing("running", "running", events.LayerCompleted)
    refused(state, next_event(state, example(events.LayerCompleted, nodes=["b", "a"])))


def test_a_visit_that_takes_up_an_arrival_that_is_not_there_is_refused():
    run = told("START a b END").started("a")
    with pytest.raises(
        IllegalEvent, match="node 'b' uses up 1 arrivals, but the run has reached the node fewer times"
    ):
        run.record(events.NodeStarted(node="b", iteration=1, execution=1, attempt=1, took=1))
