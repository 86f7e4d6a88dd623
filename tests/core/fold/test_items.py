"""What the fold makes of the items of a fan-out: which are due, which wait, and what they leave."""

from dataclasses import dataclass, field
from typing import Annotated

from holdfast import add, append
from holdfast.core import events
from holdfast.core.commands import (
    CompleteItems,
    StartItem,
    WakeAt,
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


def fan(count: int = 3, **options) -> History:
    """A run of one fan-out, whose items have begun as far as its limit allows."""
    nodes = {"a": {"each": lambda state: list(range(count)), **options}}
    return told("START a END", nodes=nodes).settled()


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


def test_items_that_were_cut_start_again_together_as_far_as_there_is_room():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2, 3], "limit": 2}}).settled()
    run.taken_up().started("a")
    assert run.commands() == [StartItem("a", 0, 2), StartItem("a", 1, 2)]


# --- items that wait ---------------------------------------------------------------------------------


def test_an_item_that_waits_makes_room_for_the_next():
    run = fan(3, limit=1).awaiting("a", "paid", item=0).parked("a", "signal:paid:1", item=0)
    assert run.commands() == [StartItem("a", 1, 1)]


def test_an_item_that_is_woken_goes_on_as_the_same_attempt():
    run = (
        fan(2).awaiting("a", "paid", item=0).stepped("a", "x", 1, item=0).parked("a", "signal:paid:1", item=0)
    )
    run.told("paid", 5)
    assert run.commands() == [StartItem("a", 0, 1)]
    run.settled()
    assert run.kept("a", 0) == {"step:x": 1, "signal:paid:1": [5]}
    assert run.state.nodes["a"].parked == {}


def test_an_item_whose_signal_came_while_it_unwound_is_due_at_once():
    run = fan(2).awaiting("a", "paid", item=0).told("paid", 5).parked("a", "signal:paid:1", item=0)
    assert run.commands() == [StartItem("a", 0, 1)]


def test_a_fan_out_runs_while_one_of_its_items_does():
    run = fan(2).sleeping("a", 60, item=0).parked("a", "sleep:1", item=0)
    assert (run.state.status, run.state.nodes["a"].status) == ("running", "running")
    run.item_completed("a", 1)
    assert (run.state.status, run.state.nodes["a"].status) == ("waiting", "waiting")


def test_when_all_items_wait_the_node_and_the_run_wait():
    run = fan(2)
    for item in (0, 1):
        run.sleeping("a", 60 + 30 * item, item=item).parked("a", "sleep:1", item=item)
    assert (run.state.status, run.state.nodes["a"].status, run.running) == ("waiting", "waiting", [])
    assert run.commands() == [WakeAt(run.state.waits["a.1.1[0]:sleep:1"].until)]
    run.passed(60)
    assert (run.state.status, run.state.nodes["a"].items.running) == ("running", {0: 1})


def test_a_fan_out_is_complete_only_when_the_items_that_waited_are_done():
    run = fan(2).sleeping("a", 60, item=0).parked("a", "sleep:1", item=0).item_completed("a", 1, {"n": 1})
    assert run.commands() == [WakeAt(run.state.waits["a.1.1[0]:sleep:1"].until)]
    run.passed(60).item_completed("a", 0)
    assert run.commands() == [CompleteItems("a")]
    assert run.settled().state.status == "completed"


def test_an_item_that_failed_lets_the_others_wait_to_their_end():
    run = fan(2).sleeping("a", 60, item=0).parked("a", "sleep:1", item=0).item_failed("a", 1, ValueError("x"))
    assert (run.state.status, run.commands()) == (
        "waiting",
        [WakeAt(run.state.waits["a.1.1[0]:sleep:1"].until)],
    )
    run.passed(60).item_completed("a", 0).settled()
    assert (run.state.status, run.state.failure.message, run.state.failure.item) == ("failed", "x", 1)


def test_items_that_wait_go_on_waiting_when_their_process_dies():
    run = fan(3).sleeping("a", 60, item=0).parked("a", "sleep:1", item=0).taken_up().settled()
    items = run.state.nodes["a"].items
    assert (items.running, list(run.state.nodes["a"].parked)) == ({1: 2, 2: 2}, [0])
    run.item_completed("a", 1).item_completed("a", 2).settled()
    assert run.state.status == "waiting"
    run.passed(60).item_completed("a", 0).settled()
    assert run.state.status == "completed"


def test_items_that_wait_go_on_waiting_when_their_process_is_asked_to_stop():
    run = fan(2).awaiting("a", "paid", item=0).parked("a", "signal:paid:1", item=0)
    run.record(events.NodeInterrupted(node="a", iteration=1)).record(events.RunInterrupted())
    run.told("paid", 5).taken_up().settled()
    assert run.state.nodes["a"].items.running == {0: 1, 1: 2}


def test_items_that_wait_are_done_over_when_somebody_tries_the_node_again():
    run = fan(2).sleeping("a", 600, item=0).parked("a", "sleep:1", item=0).item_completed("a", 1)
    run.record(events.NodeScheduled(node="a", iteration=1, why="retry")).settled()
    assert (run.state.nodes["a"].items.running, run.state.waits) == ({0: 2}, {})
    assert run.item_completed("a", 0).settled().state.status == "completed"


def test_a_woken_item_of_a_fan_out_that_waits_does_not_start_while_the_run_is_paused():
    run = fan(1).awaiting("a", "paid", item=0).parked("a", "signal:paid:1", item=0).paused().told("paid", 5)
    assert (run.state.status, run.commands()) == ("paused", [])
    assert run.taken_up().commands() == [StartItem("a", 0, 1)]


def test_a_question_of_an_item_is_answered_for_that_item():
    run = fan(2)
    for item in (0, 1):
        run.asking("a", "Sure?", "yes", "no", item=item).parked("a", "ask:Sure?", item=item)
    run.answered("a.1.1[1]:ask:Sure?", "yes")
    assert (run.kept("a", 0), run.kept("a", 1)) == ({}, {"ask:Sure?": ["yes"]})
    assert run.commands() == [StartItem("a", 1, 1)]


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


def test_a_timer_of_an_item_does_not_make_a_run_due_that_waits_for_an_answer_about_its_whole_fan_out():
    run = fan(2, on_interrupt="ask").sleeping("a", 5, item=0).parked("a", "sleep:1", item=0)
    run.taken_up().settled()
    (question,) = run.state.questions
    run.passed(6)
    assert (run.state.waits, run.state.nodes["a"].items.again) == ({}, {0: 0.0, 1: 0.0})
    assert (run.state.status, run.commands()) == ("waiting", [])
    run.answered(question, "retry").settled()
    assert run.state.nodes["a"].items.running == {0: 1, 1: 2}
