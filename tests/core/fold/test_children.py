"""The child runs that a visit starts: whom their ends reach, what stays of them, and what a retry of the caller changes."""

from copy import deepcopy

import pytest

from holdfast.core import events, fold, run_state
from holdfast.core.commands import DueAt, FireTimer, StartNode
from holdfast.core.events import Caller, Reported, Stored
from holdfast.core.run_state import ENDED, Child, RunState
from holdfast.errors import ChildFailed, IllegalEvent
from holdfast.testing.builders import History, outline


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def calling(run: str = "r.1", **options) -> History:
    """A run of one node, which has started a child."""
    return told("START a END").calling("a", run, **options)


def fanned() -> History:
    """A run whose node has two items."""
    return told("START a END", nodes={"a": {"each": lambda state: [10, 20]}})


def child_failed(run: str = "r.1") -> ChildFailed:
    return ChildFailed(run, "child", None, "holdfast resume r.1", "child run 'r.1' failed")


def refused(history: History, event: events.Event) -> str:
    """The event is refused, and the state is what it was."""
    before = deepcopy(history.state)
    with pytest.raises(IllegalEvent) as caught:
        fold.fold(history.state, Stored(history.state.seq + 1, history.at, event))
    assert history.state == before
    return str(caught.value)


def end(run: str = "r.1", status: str = "completed", seq: int = 9, **fields) -> events.ChildEnded:
    return events.ChildEnded(run=run, seq=seq, status=status, **fields)


def completed(values: dict) -> list:
    return [{"run": "r.1", "status": "completed", "values": values}]


def failed() -> list:
    failure = {"kind": "partial", "type": "ValueError", "message": "the child broke"}
    return [{"run": "r.1", "status": "failed", "failure": failure}]


# --- starting ----------------------------------------------------------------------------------------


def test_a_child_is_known_with_the_visit_that_started_it_and_the_node_is_said_to_have_made_progress():
    run = told("START a END").started("a")
    run.state.nodes["a"].crashes = 2
    run.calling("a", "r.1", cancels=True)
    assert run.state.children == {"r.1": Child("a", 1, 1, "child:child", "child", cancels=True)}
    assert run.state.nodes["a"].crashes == 0


def test_one_execution_starts_a_child_once():
    run = calling()
    assert "starts the child 'r.1' again" in refused(run, run.events()[-1].event)


def test_a_new_execution_may_start_the_same_child_and_knows_nothing_of_its_ends_yet():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", "failed").failed("a", child_failed())
    run.record(events.RunResumed(nodes=["a"], fresh=True))
    run.record(events.NodeStarted(node="a", iteration=1, execution=2, attempt=1, took=0))
    run.calling("a", "r.1", adopted=True)
    assert run.state.children["r.1"] == Child("a", 1, 2, "child:child", "child", in_doubt=True)


# --- ends --------------------------------------------------------------------------------------------


def test_the_end_of_a_child_fills_the_slot_of_the_wait_for_it():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", values={"n": 2})
    assert (run.kept("a"), run.state.waits) == ({"child:child:1": completed({"n": 2})}, {})
    assert run.state.nodes["a"].status == "running"


def test_a_node_that_has_unwound_is_due_again_when_its_child_has_ended():
    run = calling().awaiting_child("a", "r.1").parked("a", "child:child:1")
    assert (run.state.status, run.commands()) == ("waiting", [])
    run.child_ended("r.1")
    assert run.state.status == "pending"
    assert run.commands() == [StartNode("a", 1, 1, 1, 0, woken=True)]


def test_an_end_that_comes_before_the_wait_is_kept_for_it():
    run = calling().child_ended("r.1", values={"n": 2})
    assert (run.kept("a"), run.state.children["r.1"].ended) == ({}, run.state.seq)
    run.awaiting_child("a", "r.1", 60.0)
    assert (run.kept("a"), run.state.waits) == ({"child:child:1": completed({"n": 2})}, {})


def test_an_end_is_recorded_once():
    run = calling().child_ended("r.1", "failed", seq=9)
    assert "at its event 9, which is recorded already" in refused(run, end(status="failed", seq=9))


def test_an_earlier_end_that_arrives_after_a_later_one_counts_only_its_cost():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", values={"n": 2}, seq=15, tokens=2)
    run.child_ended("r.1", "failed", seq=9, tokens=3)
    assert run.kept("a") == {"child:child:1": completed({"n": 2})}
    assert (run.state.children["r.1"].ended, run.state.children_tokens) == (15, 5)


def test_a_child_that_failed_may_end_again_and_the_latest_end_counts_for_the_next_wait():
    run = calling().child_ended("r.1", "failed", seq=9).child_ended("r.1", values={"n": 3}, seq=15)
    run.awaiting_child("a", "r.1")
    assert run.kept("a") == {"child:child:1": completed({"n": 3})}


def test_within_one_execution_a_slot_that_is_filled_stays_filled_when_the_child_ends_again():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", "failed", seq=9)
    run.child_ended("r.1", values={"n": 3}, seq=15)
    assert run.kept("a") == {"child:child:1": failed()}


def test_a_wait_whose_time_has_come_ends_without_an_end_of_the_child_and_the_next_wait_gets_it():
    run = calling().awaiting_child("a", "r.1", 60.0).parked("a", "child:child:1")
    (due,) = run.commands()
    assert isinstance(due, DueAt)
    run.at = due.at
    run.perform(FireTimer("a.1.1:child:child:1")).settled()
    assert run.kept("a") == {"child:child:1": []}
    run.child_ended("r.1", values={"n": 2}).awaiting_child("a", "r.1", slot="child:child:2")
    assert run.kept("a")["child:child:2"] == completed({"n": 2})


def test_a_wait_for_a_run_that_is_not_a_child_is_refused():
    run = told("START a END").started("a")
    event = events.ChildAwaited(node="a", iteration=1, slot="child:child:1", run="r.1")
    assert "waits for 'r.1', which is not its child" in refused(run, event)


def test_the_cost_of_every_end_counts_also_of_a_child_that_is_forgotten():
    run = calling().child_ended("r.1", "failed", usd=0.5, tokens=3)
    run.completed("a").child_ended("r.1", usd=0.25, tokens=2).child_ended("r.7", usd=1.0, tokens=1)
    assert (run.state.children_usd, run.state.children_tokens) == (1.75, 6)
    assert (run.state.usd, run.state.tokens) == (0.0, 0)


@pytest.mark.parametrize("stop", [events.RunPaused(), events.RunInterrupted()], ids=["paused", "interrupted"])
def test_the_end_of_a_child_starts_nothing_in_a_run_that_was_stopped(stop):
    run = calling().awaiting_child("a", "r.1").parked("a", "child:child:1").record(stop)
    status = run.state.status
    run.child_ended("r.1")
    assert (run.state.status, run.commands()) == (status, [])


def test_the_end_of_a_child_is_kept_in_a_failed_run_and_starts_nothing():
    run = told("START a END", "START b END").calling("a", "r.1").awaiting_child("a", "r.1")
    run.parked("a", "child:child:1").failed("b", ValueError("broken")).settled()
    assert run.state.status == "failed"
    run.child_ended("r.1")
    assert (run.state.status, run.commands()) == ("failed", [])
    assert run.kept("a") == {"child:child:1": completed({})}


# --- forgetting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_child_that_cannot_end_again_is_forgotten_with_its_visit(status):
    run = calling(cancels=True).child_ended("r.1", status).completed("a")
    assert run.state.children == {}


def test_a_child_that_the_caller_does_not_cancel_is_forgotten_with_its_visit():
    assert calling().completed("a").state.children == {}


def test_a_child_that_is_cancelled_with_its_caller_is_known_until_it_has_ended_for_good():
    run = told("START a b END").calling("a", "r.1", cancels=True).completed("a").started("b")
    assert list(run.state.children) == ["r.1"]
    run.child_ended("r.1", "failed")
    assert list(run.state.children) == ["r.1"]
    run.child_ended("r.1")
    assert run.state.children == {}


def test_the_children_of_one_item_are_forgotten_with_it_and_those_of_another_are_not():
    run = fanned().calling("a", "r.1", item=0).calling("a", "r.2", item=1)
    run.item_completed("a", 0)
    assert list(run.state.children) == ["r.2"]


# --- trying again ------------------------------------------------------------------------------------


def failed_for_its_child() -> History:
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", "failed", seq=9)
    return run.failed("a", child_failed()).settled()


def test_a_resume_after_the_failure_of_the_child_empties_the_slot_and_leaves_the_child_in_doubt():
    run = failed_for_its_child().taken_up()
    assert run.kept("a") == {}
    assert run.state.children["r.1"].in_doubt


def test_a_retried_node_gets_the_same_failure_again_while_the_child_has_not_ended_again():
    run = failed_for_its_child().taken_up().settled().awaiting_child("a", "r.1")
    assert run.kept("a") == {"child:child:1": failed()}
    assert not run.state.children["r.1"].in_doubt


def test_a_retried_node_waits_anew_for_a_child_that_continues():
    run = failed_for_its_child().taken_up().settled().awaiting_child("a", "r.1", anew=True)
    assert (run.kept("a"), list(run.state.waits)) == ({}, ["a.1.1:child:child:1"])
    run.child_ended("r.1", values={"n": 2}, seq=15)
    assert run.kept("a") == {"child:child:1": completed({"n": 2})}


def test_an_end_that_came_while_the_caller_had_failed_is_what_the_retried_node_gets():
    run = failed_for_its_child().child_ended("r.1", values={"n": 2}, seq=15)
    assert run.state.status == "failed"
    run.taken_up().settled()
    assert run.kept("a") == {}
    run.awaiting_child("a", "r.1")
    assert run.kept("a") == {"child:child:1": completed({"n": 2})}


def test_a_node_whose_child_was_cancelled_gets_that_end_again():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", "cancelled").failed("a", child_failed())
    run.settled().taken_up()
    assert run.kept("a")["child:child:1"][0]["status"] == "cancelled"
    assert not run.state.children["r.1"].in_doubt


def test_a_resume_after_another_failure_keeps_the_end_of_the_child():
    run = calling().awaiting_child("a", "r.1").child_ended("r.1", "failed").failed("a", ValueError("other"))
    run.settled().taken_up()
    assert run.kept("a") == {"child:child:1": failed()}


def test_only_the_item_that_failed_for_its_child_looks_at_the_child_again():
    run = fanned().calling("a", "r.1", item=0).calling("a", "r.2", item=1)
    for number, child in enumerate(["r.1", "r.2"]):
        run.awaiting_child("a", child, item=number).child_ended(child, "failed")
    run.item_failed("a", 0, child_failed()).item_failed("a", 1, ValueError("other")).settled().taken_up()
    assert (run.kept("a", 0), list(run.kept("a", 1))) == ({}, ["child:child:1"])
    assert [child.in_doubt for child in run.state.children.values()] == [True, False]


# --- a run that is a child ---------------------------------------------------------------------------


def child() -> RunState:
    state = RunState("r.1")
    caller = Caller("r", "lineage", 2)
    created = events.RunCreated(
        flow="f", fingerprint="p", state_version=1, input={}, starts=["a"], caller=caller
    )
    return fold.fold(state, Stored(1, 1.0, created))


def then(state: RunState, *told: events.Event) -> RunState:
    for event in told:
        fold.fold(state, Stored(state.seq + 1, state.at + 1.0, event))
    return state


def header(attempt: int = 1) -> dict:
    return {"node": "a", "iteration": 1, "attempt": attempt}


def test_a_child_knows_its_caller_and_has_the_lineage_that_the_caller_gave_it():
    state = child()
    assert (state.origin, state.depth, state.lineage, state.reported) == ("r", 2, "lineage", None)


def test_what_a_child_reports_with_an_end_is_what_it_and_its_children_have_cost_since_the_end_before():
    failure = events.Failure("partial", "ValueError", "broken")
    state = then(
        child(), events.NodeStarted(**header()), events.CostIncurred(**header(), usd=0.5, tokens=5),
        events.NodeFailed(**header(), failure=failure), events.RunFailed(failure=failure, node="a"),
    )  # fmt: skip
    assert state.reported == Reported(5, 0.5, 5)
    state = then(
        state, events.RunResumed(), events.NodeStarted(**header(2), took=0),
        events.ChildStarted(**header(2), slot="child:c", run="r.1.2", flow="c"),
        end("r.1.2", usd=1.0, tokens=10), events.NodeCompleted(**header(2), routes=["END"]), events.RunCompleted(),
    )  # fmt: skip
    assert state.reported == Reported(11, 1.5, 15, 0.5, 5)


def test_a_run_without_a_caller_reports_nothing():
    assert told("START a END").completed("a").settled().state.reported is None


def test_a_fork_has_no_caller_and_children_of_its_own():
    state = then(
        child(),
        events.NodeStarted(**header()),
        events.ChildStarted(**header(), slot="child:c", run="r.1.2", flow="c"),
        events.RunForked(parent="r.1", to=3, base_digest="d", lineage="lineage"),
    )
    assert (state.origin, state.children, state.reported, state.lineage) == (None, {}, None, "lineage")


def test_a_rewind_keeps_what_children_have_cost_and_what_the_caller_was_told():
    run = calling().child_ended("r.1", usd=0.5, tokens=5)
    place = deepcopy(run.state)
    told = Reported(40, 2.0, 20, 1.0, 10)
    rewound = events.RunRewound(
        to=place.seq, executions={"a": {1: 2}}, children_usd=0.75, children_tokens=7, reported=told
    )
    state = fold.fold(place, Stored(place.seq + 5, run.at, rewound))
    assert (state.children_usd, state.children_tokens, state.reported) == (0.75, 7, told)
    assert state.children == {}


# --- snapshots ---------------------------------------------------------------------------------------


def test_a_snapshot_has_the_children_and_what_was_told_of_ends():
    run = calling(cancels=True).awaiting_child("a", "r.1", 60.0, abandons=True).child_ended("r.7", tokens=3)
    run.calling("a", "r.2", "other").child_ended("r.2", "failed", seq=4)
    state = run.state
    state.origin, state.depth, state.reported = "r0", 3, Reported(7, 0.5, 5, 0.25, 2)
    assert run_state.load(run_state.dump(state)) == state


def test_every_status_with_which_a_run_ends_is_an_end_that_its_caller_hears_of():
    statuses = events.ChildEnded.__annotations__["status"]
    assert all(status in statuses for status in ENDED)
