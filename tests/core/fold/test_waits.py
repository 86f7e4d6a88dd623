"""What a visit waits for: timers, signals and parked attempts."""

from copy import deepcopy

import pytest

from holdfast.core import events, fold
from holdfast.core.commands import (
    CompleteLayer,
    DueAt,
    FireTimer,
    StartNode,
    WakeAt,
)
from holdfast.core.events import Changes, Stored
from holdfast.core.run_state import wait_key
from holdfast.errors import IllegalEvent, Recoverable
from holdfast.testing.builders import History, outline


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def alone(**options) -> History:
    """A run of one node, which has begun."""
    return told("START a END", nodes={"a": options}).started("a")


def refused(history: History, event: events.Event) -> str:
    """The event is refused, and the state is what it was."""
    before = deepcopy(history.state)
    with pytest.raises(IllegalEvent) as caught:
        fold.fold(history.state, Stored(history.state.seq + 1, history.at, event))
    assert history.state == before
    return str(caught.value)


def again(node: str = "a", *, attempt: int = 1, execution: int = 1, iteration: int = 1) -> StartNode:
    """The same attempt, behind a wait."""
    return StartNode(node, iteration, execution, attempt, 0, woken=True)


# --- sleeping ----------------------------------------------------------------------------------------


def test_a_node_that_sleeps_without_unwinding_runs_and_is_told_when_its_time_has_come():
    run = alone().sleeping("a", 60)
    assert (run.state.status, run.commands()) == ("running", [WakeAt(run.state.waits["a.1.1:sleep:1"].until)])
    run.passed(60)
    assert (run.kept("a"), run.state.waits, run.state.nodes["a"].status) == (
        {"sleep:1": [None]},
        {},
        "running",
    )


def test_a_node_that_has_unwound_waits_and_so_does_its_run():
    run = alone().sleeping("a", 60).parked("a", "sleep:1")
    assert (run.state.status, run.state.nodes["a"].status, run.state.running) == ("waiting", "waiting", 0)


def test_behind_its_wait_the_same_attempt_goes_on_and_is_not_counted_as_another_try():
    run = alone().stepped("a", "x", 1).sleeping("a", 60).parked("a", "sleep:1")
    run.at += 60
    assert run.commands() == [FireTimer("a.1.1:sleep:1")]
    run.perform(FireTimer("a.1.1:sleep:1"))
    assert run.commands() == [again()]
    run.settled()
    visit = run.state.nodes["a"]
    assert (visit.status, visit.attempt, visit.tries, visit.failures, visit.crashes) == (
        "running",
        1,
        1,
        0,
        0,
    )
    assert run.kept("a") == {"step:x": 1, "sleep:1": [None]}
    assert visit.parked == {}


def test_a_wait_costs_no_active_time():
    run = alone().sleeping("a", 600).parked("a", "sleep:1")
    spent = run.state.active_s
    run.passed(600).completed("a")
    assert run.state.active_s == spent + 1.0


def test_a_time_that_comes_while_the_attempt_unwinds_makes_it_due_at_once():
    run = alone().sleeping("a", 60)
    run.passed(60).parked("a", "sleep:1")
    assert (run.state.nodes["a"].status, run.state.status) == ("pending", "pending")
    assert run.commands() == [again()]


def test_an_attempt_that_waits_for_two_things_goes_on_with_the_first():
    run = alone().sleeping("a", 60).awaiting("a", "paid").parked("a", "sleep:1", "signal:paid:1")
    run.told("paid", 5)
    assert run.commands()[0] == again()
    run.settled().passed(100)
    assert run.kept("a") == {"signal:paid:1": [5], "sleep:1": [None]}


def test_a_timer_is_neither_lost_nor_begun_anew_by_a_crash():
    run = alone().sleeping("a", 60)
    until = run.state.waits["a.1.1:sleep:1"].until
    run.taken_up().started("a")
    assert run.state.waits["a.1.1:sleep:1"].until == until


def test_a_wait_is_left_as_it_is_when_the_run_is_taken_up():
    run = alone().sleeping("a", 60).parked("a", "sleep:1").taken_up()
    assert (run.state.status, run.commands()) == ("waiting", [WakeAt(run.state.waits["a.1.1:sleep:1"].until)])
    assert run.passed(60).state.nodes["a"].attempt == 1


def test_a_crash_behind_a_wait_is_a_new_attempt_which_does_not_wait_again():
    run = alone().sleeping("a", 60).parked("a", "sleep:1").passed(60).taken_up()
    assert run.commands() == [StartNode("a", 1, 1, 2, 0)]
    assert run.settled().kept("a") == {"sleep:1": [None]}


def test_nothing_is_woken_while_the_run_is_paused():
    run = alone().sleeping("a", 60).parked("a", "sleep:1").paused()
    run.passed(60)
    assert (run.state.status, run.running, run.kept("a")) == ("paused", [], {"sleep:1": [None]})
    assert run.taken_up().commands() == [again()]


def test_what_is_woken_waits_for_a_free_slot():
    run = (
        told("START a END", "START b END", max_parallel=1)
        .started("a")
        .sleeping("a", 60)
        .parked("a", "sleep:1")
    )
    assert run.settled().running == ["b"]
    assert run.passed(60).running == ["b"]
    assert run.completed("b").settled().running == ["a"]


def test_a_start_behind_a_wait_is_refused_where_nothing_is_parked():
    woken = events.NodeStarted(node="a", iteration=1, took=0, woken=True)
    assert "does not wait" in refused(alone().taken_up(), woken)
    assert "does not wait" in refused(
        told("START a END"), events.NodeStarted(node="a", iteration=1, woken=True)
    )


@pytest.mark.parametrize("other", [{"attempt": 2}, {"execution": 2}, {"iteration": 2}])
def test_a_start_behind_a_wait_is_refused_for_another_attempt(other):
    run = alone().sleeping("a", 60).parked("a", "sleep:1")
    refused(run, events.NodeStarted(**{"node": "a", "iteration": 1, "took": 0, "woken": True, **other}))


def test_somebody_who_tries_a_waiting_node_again_ends_its_wait():
    run = alone().sleeping("a", 600).parked("a", "sleep:1")
    run.record(events.NodeScheduled(node="a", iteration=1, why="retry"))
    assert (run.state.waits, run.state.nodes["a"].parked) == ({}, {})
    assert run.commands() == [StartNode("a", 1, 1, 2, 0)]


def test_the_end_of_a_visit_closes_its_waits():
    for end in ("completed", "failed", "skipped"):
        run = alone().sleeping("a", 600).awaiting("a", "paid").asking("a", "Sure?")
        if end == "skipped":
            run.parked("a", "sleep:1").record(events.NodeSkipped(node="a", iteration=1, routes=["END"]))
        elif end == "failed":
            run.failed("a", ValueError("x"))
        else:
            run.completed("a")
        assert (run.state.waits, run.state.questions) == ({}, {}), end


def test_the_end_of_a_visit_leaves_the_waits_of_others_alone():
    run = (
        told("START a END", "START b END")
        .started("a", "b")
        .sleeping("a", 60)
        .sleeping("b", 60)
        .completed("a")
    )
    assert list(run.state.waits) == ["b.1.1:sleep:1"]


def test_a_timer_of_nothing_that_waits_is_refused():
    fired = events.TimerFired(node="a", iteration=1, slot="sleep:1")
    assert "node 'a' has no wait or question in slot 'sleep:1'" in refused(alone(), fired)
    refused(alone().sleeping("a", 60).passed(60), fired)


def test_a_run_that_is_called_off_waits_for_nothing():
    run = alone().sleeping("a", 60).asking("a", "Sure?").parked("a", "sleep:1").record(events.RunCancelled())
    assert (run.state.waits, run.state.questions, run.commands()) == ({}, {}, [])


def test_a_renamed_node_still_waits():
    run = alone().sleeping("a", 60).asking("a", "Sure?").parked("a", "sleep:1", "ask:Sure?")
    renamed = History("r", outline("START z END"))
    for stored in run.events():
        renamed.record(stored.event)
    renamed.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert list(renamed.state.waits) == ["z.1.1:sleep:1"]
    assert list(renamed.state.questions) == ["z.1.1:ask:Sure?"]
    renamed.passed(60)
    assert (renamed.running, renamed.kept("z")) == (["z"], {"sleep:1": [None]})


def test_what_comes_second_of_two_things_that_were_waited_for_wakes_nobody_twice():
    run = told("START a END").sleeping("a", 5.0).sleeping("a", 9.0, slot="sleep:2")
    run.parked("a", "sleep:1", "sleep:2")
    run.at += 20.0
    for command in run.commands()[:2]:
        run.perform(command)
    assert run.state.nodes["a"].status == "pending"
    assert set(run.kept("a")) == {"sleep:1", "sleep:2"}


# --- signals -----------------------------------------------------------------------------------------


def test_a_signal_that_came_before_the_wait_is_taken_at_once():
    run = alone().told("paid", {"eur": 5}).awaiting("a", "paid")
    assert run.kept("a") == {"signal:paid:1": [{"eur": 5}]}
    assert (run.state.signals, run.state.waits) == ({}, {})


def test_a_signal_that_comes_after_the_wait_wakes_it():
    run = alone().awaiting("a", "paid").parked("a", "signal:paid:1")
    assert (run.state.status, run.commands()) == ("waiting", [])
    run.told("paid", 5)
    assert run.commands() == [again()]
    assert run.settled().kept("a") == {"signal:paid:1": [5]}


def test_a_signal_that_comes_while_the_attempt_unwinds_makes_it_due_at_once():
    run = alone().awaiting("a", "paid").told("paid", 5).parked("a", "signal:paid:1")
    assert run.commands() == [again()]


def test_of_two_waits_for_one_name_the_older_takes_the_first_signal():
    run = told("START a END", "START b END").started("a", "b").awaiting("b", "paid").awaiting("a", "paid")
    run.parked("b", "signal:paid:1").parked("a", "signal:paid:1").told("paid", "first")
    assert (run.kept("b"), run.kept("a")) == ({"signal:paid:1": ["first"]}, {})
    run.settled().told("paid", "second").settled()
    assert (run.kept("a"), run.running) == ({"signal:paid:1": ["second"]}, ["a", "b"])


def test_signals_of_one_name_are_taken_in_the_order_they_came_and_each_once():
    run = alone().told("paid", 1).told("paid", 2).told("other", 3)
    run.awaiting("a", "paid", slot="signal:paid:1").awaiting("a", "paid", slot="signal:paid:2")
    run.awaiting("a", "paid", slot="signal:paid:3")
    assert run.kept("a") == {"signal:paid:1": [1], "signal:paid:2": [2]}
    assert (run.state.signals, list(run.state.waits)) == ({"other": [3]}, ["a.1.1:signal:paid:3"])


def test_a_signal_without_a_payload_is_not_one_that_did_not_come():
    run = alone().awaiting("a", "go").told("go")
    assert run.kept("a") == {"signal:go:1": [None]}
    run = alone().awaiting("a", "go", 60).passed(60)
    assert run.kept("a") == {"signal:go:1": []}


def test_a_signal_that_does_not_come_in_time_wakes_its_node_too():
    run = alone().awaiting("a", "paid", 60).parked("a", "signal:paid:1").passed(60)
    assert (run.running, run.kept("a")) == (["a"], {"signal:paid:1": []})
    assert run.told("paid", 5).state.signals == {"paid": [5]}


def test_a_signal_reaches_a_run_that_failed_was_paused_or_interrupted():
    for happened in (events.RunInterrupted(), events.RunPaused()):
        run = alone().awaiting("a", "paid").parked("a", "signal:paid:1").record(happened).told("paid", 5)
        assert run.state.status in ("interrupted", "paused")
        assert run.taken_up().commands() == [again()]
    run = (
        told("START a END", "START b END")
        .started("a", "b")
        .awaiting("a", "paid")
        .parked("a", "signal:paid:1")
    )
    run.failed("b", ValueError("x")).settled().told("paid", 5)
    assert run.state.status == "failed"
    assert run.taken_up().commands()[0] == again()


def test_a_signal_to_a_run_that_is_over_is_refused():
    over = alone().completed("a").settled()
    assert "is completed" in refused(over, events.SignalReceived(name="paid"))


def test_a_rewind_puts_signals_back_that_came_since():
    run = told("START a b END").completed("a").told("paid", 1)
    place = deepcopy(run.state)
    run.started("b").awaiting("b", "paid").told("paid", 2)
    fold.fold(
        place, Stored(run.state.seq + 1, run.at, events.RunRewound(to=place.seq, signals={"paid": [1, 2]}))
    )
    assert place.signals == {"paid": [1, 2]}


def test_a_rewind_closes_every_wait():
    run = alone().sleeping("a", 60).awaiting("a", "paid").asking("a", "Sure?").parked("a", "sleep:1")
    run.record(events.RunRewound(to=run.state.seq, executions={"a": {1: 1}}))
    assert (run.state.waits, run.state.questions, run.state.nodes["a"].parked) == ({}, {}, {})
    assert run.commands() == [StartNode("a", 1, 2, 1, 0)]


def test_a_wait_of_an_execution_that_was_done_over_is_another_wait():
    assert wait_key("a", 1, 2, None, "sleep:1") != wait_key("a", 1, 1, None, "sleep:1")
    assert wait_key("a", 1, 1, 3, "sleep:1") != wait_key("a", 1, 1, None, "sleep:1")


# --- what is decided while something waits -----------------------------------------------------------


def test_a_run_is_not_completed_while_something_waits():
    run = (
        told("START a END", "START b END")
        .started("a", "b")
        .awaiting("a", "paid")
        .parked("a", "signal:paid:1")
    )
    run.completed("b")
    assert (run.commands(), run.state.status) == ([], "waiting")
    assert "is not done" in refused(run, events.RunCompleted())


def test_parallel_branches_go_on_while_one_waits():
    run = told("START a c END", "START b d e END").started("a", "b").sleeping("a", 60).parked("a", "sleep:1")
    run.completed("b").completed("d")
    assert run.commands()[0] == StartNode("e", 1, 1, 1, 1)


def test_a_join_waits_for_a_branch_that_waits():
    run = told("START a c END", "START b c").started("a", "b").sleeping("a", 60).parked("a", "sleep:1")
    run.completed("b")
    assert run.commands() == [WakeAt(run.state.waits["a.1.1:sleep:1"].until)]


def test_a_node_that_waits_inside_holds_its_layer():
    run = told("START a c END", "START b c", schedule="layered").started("a", "b")
    run.awaiting("a", "paid").parked("a", "signal:paid:1").completed("b")
    assert run.commands() == []
    run.told("paid").settled().completed("a")
    assert run.commands() == [CompleteLayer(1, ("a", "b"))]


def test_a_run_that_waits_for_a_time_wakes_by_itself():
    run = alone().sleeping("a", 60).parked("a", "sleep:1")
    assert run.commands() == [WakeAt(run.state.waits["a.1.1:sleep:1"].until)]


def test_a_run_that_waits_only_for_somebody_need_not_be_waited_for():
    run = alone().awaiting("a", "paid", 60).parked("a", "signal:paid:1")
    assert run.commands() == [DueAt(run.state.waits["a.1.1:signal:paid:1"].until)]
    run = alone().asking("a", "Sure?", timeout=60).parked("a", "ask:Sure?")
    assert run.commands() == [DueAt(run.state.questions["a.1.1:ask:Sure?"].until)]


def test_a_run_that_waits_for_somebody_without_a_limit_is_due_at_no_time():
    assert alone().awaiting("a", "paid").parked("a", "signal:paid:1").commands() == []


def test_a_run_that_waits_for_a_time_and_for_somebody_wakes_at_the_earlier_of_the_two():
    run = told("START a END", "START b END").started("a", "b")
    run.sleeping("a", 90).parked("a", "sleep:1").awaiting("b", "paid", 30).parked("b", "signal:paid:1")
    assert run.commands() == [WakeAt(run.state.waits["b.1.1:signal:paid:1"].until)]


def test_a_retry_beside_somebodys_answer_wakes_the_run():
    run = (
        told("START a END", "START b END")
        .started("a", "b")
        .awaiting("a", "paid")
        .parked("a", "signal:paid:1")
    )
    run.failed("b", Recoverable("later"), retry_in=40.0)
    assert run.commands() == [WakeAt(run.state.nodes["b"].retry_at)]


def test_a_run_in_which_another_node_failed_for_good_does_not_wait():
    run = told("START a END", "START b END").started("a", "b").sleeping("a", 60).parked("a", "sleep:1")
    run.failed("b", ValueError("x")).settled()
    assert (run.state.status, list(run.state.waits)) == ("failed", ["a.1.1:sleep:1"])
    run.taken_up().settled()
    assert (run.state.nodes["a"].status, run.running) == ("waiting", ["b"])


def test_an_edit_reaches_the_input_of_a_node_that_waits():
    run = (
        alone()
        .sleeping("a", 60)
        .parked("a", "sleep:1")
        .record(events.StateEdited(changes=Changes(set={"n": 9})))
    )
    assert run.state.nodes["a"].input == {"n": 9}
