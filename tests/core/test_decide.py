from dataclasses import dataclass

import pytest

from holdfast.core import commands, events
from holdfast.core.commands import (
    AskFirst,
    CompleteLayer,
    CompleteRun,
    DueAt,
    ExpireQuestion,
    FailRun,
    FireTimer,
    RouteNode,
    ScheduleNode,
    SkipNode,
    StartItem,
    StartNode,
    WakeAt,
)
from holdfast.core.decide import decide
from holdfast.core.run_state import RunState
from holdfast.errors import IllegalEvent, Recoverable
from holdfast.testing.builders import History, failure, outline


def told(*paths, **options) -> History:
    """A run of such a graph, just created."""
    return History("r", outline(*paths, **options)).created()


def starts(history: History) -> list[str]:
    return [command.node for command in history.commands() if isinstance(command, StartNode)]


def first(node: str, *, took: int = 1) -> StartNode:
    return StartNode(node, 1, 1, 1, took)


@dataclass
class Notes:
    n: int = 0


def beside(*nodes: str, **options) -> History:
    """A run of nodes that go beside each other."""
    return told(*(f"START {node} END" for node in nodes), **options)


def kinds(history: History) -> list[type]:
    return [type(command) for command in history.commands()]


def two_beside_each_other(**options) -> History:
    return told("START a END", "START b END", state=Notes, **options).started("a", "b")


def side_by_side(*nodes: str, **options) -> History:
    """A run of nodes that go beside each other."""
    return History("r", outline(*(f"START {node} END" for node in nodes), **options)).created()


def wanted(history: History) -> list[tuple[type, str]]:
    return [(type(command), command.node) for command in history.commands()]


# --- chains, branches, loops -------------------------------------------------------------------------


def test_a_chain_goes_from_node_to_node():
    run = told("START a b END")
    assert run.commands() == [first("a")]
    assert run.started("a").commands() == []
    assert run.completed("a").commands() == [first("b")]
    assert run.completed("b").commands() == [CompleteRun()]
    assert run.settled().commands() == []


def test_nothing_is_decided_for_a_run_that_is_over():
    for status in ("new", "completed", "failed", "cancelled", "interrupted"):
        assert decide(outline("START a END"), RunState("r", status=status, arrivals={"a": 1}), 0.0) == []


def test_a_branch_leads_only_where_it_was_routed():
    run = told("START a", "b END", "c END", branches={"a": "b c"})
    assert starts(run.completed("a", routes=["c"])) == ["c"]


def test_a_branch_may_lead_to_several_nodes():
    run = told("START a", "b END", "c END", branches={"a": "b c"})
    assert starts(run.completed("a", routes=["b", "c"])) == ["b", "c"]


def test_a_branch_that_leads_to_the_end_ends_that_way():
    run = told("START a", branches={"a": "a END"}).completed("a", routes=["END"])
    assert run.commands() == [CompleteRun()]


def test_a_loop_visits_its_nodes_again_as_the_next_iteration():
    run = told("START a b", branches={"b": "a END"}).completed("a").completed("b", routes=["a"])
    assert run.commands() == [StartNode("a", 2, 1, 1, 1)]
    run.completed("a").completed("b", routes=["a"]).completed("a")
    assert run.commands() == [StartNode("b", 3, 1, 1, 1)]


def test_a_node_that_is_reached_while_it_runs_runs_again_afterwards():
    run = told("START a c END", "START b c", nodes={"c": {"join": "any"}}).started("a", "b")
    run.completed("a").started("c").completed("b")
    assert run.commands() == []
    assert run.completed("c").commands() == [StartNode("c", 2, 1, 1, 1)]


# --- joins -------------------------------------------------------------------------------------------


def test_a_join_starts_once_and_takes_up_all_arrivals():
    run = told("START s a d END", "s b d").completed("s").started("a", "b").completed("a")
    assert run.commands() == []
    assert run.completed("b").commands() == [first("d", took=2)]


def test_a_join_does_not_wait_for_a_branch_that_was_not_chosen():
    run = told("START s", "a d END", "b d", branches={"s": "a b"}).completed("s", routes=["b"]).completed("b")
    assert run.commands() == [first("d")]


def test_a_join_waits_for_a_branch_that_is_due_and_has_not_started():
    run = told("START s a d END", "s b d").completed("s").completed("a")
    assert starts(run) == ["b"]


def test_a_join_waits_for_a_branch_that_is_still_looping():
    run = told("START s a d END", "s b", "c b", branches={"b": "c d"}).completed("s").completed("a")
    run.completed("b", routes=["c"])
    assert starts(run) == ["c"]
    assert run.started("c").commands() == []
    run.completed("c").completed("b", routes=["d"])
    assert run.commands() == [first("d", took=2)]


def test_a_join_in_a_loop_joins_once_per_iteration():
    run = told("START s a d e", "s b d", branches={"e": "s END"})
    for iteration in (1, 2):
        run.completed("s").completed("a").completed("b")
        assert run.commands() == [StartNode("d", iteration, 1, 1, 2)]
        run.completed("d").completed("e", routes=["s"])


def test_a_join_that_takes_any_starts_once_for_each_arrival():
    run = (
        told("START s a d END", "s b d", nodes={"d": {"join": "any"}})
        .completed("s")
        .started("a", "b")
        .completed("a")
    )
    assert starts(run) == ["d"]
    run.completed("d").completed("b")
    assert run.commands() == [StartNode("d", 2, 1, 1, 1)]


def test_a_join_waits_for_a_node_that_waits_for_its_retry():
    run = (
        told("START s a d END", "s b d")
        .completed("s")
        .completed("a")
        .failed("b", Recoverable("later"), retry_in=100.0)
    )
    assert run.commands() == [WakeAt(run.state.nodes["b"].retry_at)]


def test_two_joins_of_nested_loops_do_not_wait_for_each_other():
    """`late` waits until the inner loop is over; `early` is part of it and must not wait for what comes behind."""
    run = told(
        "START out in", "x early in", "p late", branches={"in": "x early p late END", "late": "out END"}
    )
    run.completed("out").completed("in", routes=["x", "early", "p", "late"]).completed("x").completed("p")
    assert run.commands() == [first("early", took=2)]
    run.completed("early").completed("in", routes=["END"])
    assert run.commands() == [first("late", took=2)]


def test_two_joins_of_loops_with_two_entries_do_not_wait_for_each_other():
    """The smallest graph on which a random trial got stuck: `n4` can be reached past the head of the loop it is part of."""
    run = told(
        "START n1 n0 n2", "START n4 n0", "n1 n2", branches={"n0": "n3 END", "n2": "n1 END", "n3": "n4"}
    )
    run.completed("n1").completed("n0", routes=["n3"]).completed("n3", routes=["n4"])
    assert starts(run) == ["n4"]


def test_a_run_that_cannot_go_on_with_arrivals_is_a_defect_and_says_so():
    """No log leads here; the state is made up."""
    flow = outline("START s a d END", "s b d")
    state = RunState("r", status="running", arrivals={"gone": 1})
    with pytest.raises(IllegalEvent, match=r"is stuck: \['gone'\]"):
        decide(flow, state, 0.0, ready=History("r", flow).ready)


def test_a_join_waits_for_what_another_node_of_the_same_layer_leads_to():
    run = told("START a j END", "START b x j", schedule="layered").completed("a").completed("b").settled()
    assert run.running == ["x"]
    assert run.completed("x").settled().running == ["j"]


# --- fan-outs ----------------------------------------------------------------------------------------


def fan(count: int, **options) -> History:
    nodes = {"a": {"each": lambda state: list(range(count)), **options}}
    return told("START a b END", nodes=nodes).started("a")


def test_a_fan_out_starts_as_many_items_as_its_limit_allows():
    run = fan(5, limit=2)
    assert run.commands() == [StartItem("a", 0, 1), StartItem("a", 1, 1)]
    run.settled()
    assert run.item_completed("a", 1).commands() == [StartItem("a", 2, 1)]


def test_a_fan_out_over_nothing_is_complete_at_once():
    assert fan(0).commands() == [commands.CompleteItems("a")]


def test_a_fan_out_is_complete_when_its_last_item_is():
    run = fan(2).settled().item_completed("a", 0)
    assert run.commands() == []
    assert run.item_completed("a", 1).commands() == [commands.CompleteItems("a")]


def test_when_an_item_fails_the_others_finish_first():
    run = fan(3, limit=1).settled().item_failed("a", 0, ValueError("first"))
    assert run.commands() == [StartItem("a", 1, 1)]
    run.settled().item_completed("a", 1).settled().item_failed("a", 2, ValueError("last"))
    (failed,) = run.commands()
    assert isinstance(failed, commands.FailItems)
    assert (failed.item, failed.failure.message) == (0, "first")


def test_an_item_that_is_tried_again_waits_for_its_time_and_its_turn():
    run = fan(3, limit=2).settled().item_failed("a", 0, Recoverable("later"), retry_in=50.0)
    again_at = run.state.nodes["a"].items.again[0]
    assert run.commands() == [StartItem("a", 2, 1), WakeAt(again_at)]
    run.settled()
    run.at = again_at
    assert run.commands() == []
    assert run.item_completed("a", 1).commands() == [StartItem("a", 0, 2)]


def test_items_of_a_fan_out_that_runs_go_on_while_the_run_is_paused():
    run = fan(2, limit=1).settled().paused().item_completed("a", 0)
    assert run.commands() == [StartItem("a", 1, 1)]
    run.settled().item_completed("a", 1).settled()
    assert (run.state.status, list(run.state.arrivals)) == ("paused", ["b"])


def test_a_fan_out_that_has_not_listed_its_items_waits_for_the_list():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}})
    (start,) = run.commands()
    assert isinstance(start, StartNode)
    run.record(events.NodeStarted(node="a", iteration=1, took=1))
    assert run.commands() == []


# --- failures ----------------------------------------------------------------------------------------


def test_a_failed_attempt_is_tried_again_when_its_time_has_come():
    run = told("START a END").failed("a", Recoverable("later"), retry_in=30.0)
    due = run.state.nodes["a"].retry_at
    assert run.commands() == [WakeAt(due)]
    run.at = due
    assert run.commands() == [StartNode("a", 1, 1, 2, 0)]


def test_the_earliest_of_several_retries_wakes_the_run():
    run = told("START a END", "START b END").started("a", "b")
    run.failed("a", Recoverable("x"), retry_in=90.0).failed("b", Recoverable("x"), retry_in=40.0)
    assert run.commands() == [WakeAt(run.state.nodes["b"].retry_at)]


def test_once_a_node_has_failed_for_good_nothing_new_starts_and_what_runs_ends():
    run = told("START a c END", "START b END").started("a", "b").failed("b", ValueError("broken"))
    assert run.commands() == []
    run.completed("a")
    (end,) = run.commands()
    assert isinstance(end, FailRun)
    assert (end.node, end.failure.message) == ("b", "broken")
    assert run.settled().state.arrivals == {"c": 1}


def test_a_retry_does_not_start_once_another_node_has_failed_for_good():
    run = (
        told("START a END", "START b END")
        .started("a", "b")
        .failed("a", Recoverable("x"), retry_in=0.0)
        .failed("b", ValueError("y"))
    )
    assert [type(command) for command in run.commands()] == [FailRun]


def test_a_router_that_raised_is_asked_again_after_a_resume_and_the_node_is_not_run():
    run = told("START a", branches={"a": "a END"}).started("a")
    header = {"node": "a", "iteration": 1}
    run.record(events.NodeCompleted(**header)).record(
        events.RoutingFailed(**header, failure=failure("router"))
    )
    assert [type(command) for command in run.commands()] == [FailRun]
    assert run.settled().taken_up().commands() == [RouteNode("a")]
    run.settled()
    assert (run.state.status, run.state.nodes["a"].tries) == ("completed", 1)


def test_a_visit_that_was_cut_stays_cut_when_another_node_has_failed_for_good():
    run = two_beside_each_other().failed("a", ValueError("broken")).record(events.RunClaimed(holder="h"))
    assert run.state.nodes["b"].status == "interrupted"
    assert [type(command) for command in run.commands()] == [FailRun]


# --- crashes -----------------------------------------------------------------------------------------


def test_a_visit_that_was_cut_is_a_new_attempt():
    run = told("START a b END").completed("a").crashed_in("b").taken_up()
    assert run.commands() == [StartNode("b", 1, 1, 2, 0)]


def test_a_visit_that_was_cut_and_must_not_be_repeated_is_asked_about():
    run = told("START a END", nodes={"a": {"idempotent": False}}).crashed_in("a").taken_up()
    assert run.commands() == [commands.AskAboutNode("a")]
    assert run.settled().commands() == []
    assert (run.state.status, run.state.nodes["a"].status) == ("waiting", "waiting")
    run.record(events.QuestionAnswered(node="a", iteration=1, key="a.1.1.1", answer="retry"))
    assert run.commands() == [StartNode("a", 1, 1, 2, 0)]


def test_a_visit_that_was_cut_is_skipped_where_its_node_says_so():
    run = told("START a b END", nodes={"a": {"on_interrupt": "skip"}}).crashed_in("a").taken_up()
    assert run.commands() == [SkipNode("a")]
    assert starts(run.perform(SkipNode("a"))) == ["b"]


# --- waits -------------------------------------------------------------------------------------------


def test_a_wait_without_an_end_hides_no_timer_that_is_over():
    run = beside("a", "b").started("a", "b")
    run.awaiting("a", "paid").parked("a", "signal:paid:1").sleeping("b", 5.0).parked("b", "sleep:1")
    run.at += 60.0
    assert kinds(run) == [FireTimer]


def test_a_question_without_an_end_hides_none_whose_time_is_over():
    run = beside("a", "b").started("a", "b").asking("a", "Sure?").asking("b", "Really?", timeout=5.0)
    run.parked("a", "ask:Sure?").parked("b", "ask:Really?")
    run.at += 60.0
    assert kinds(run) == [ExpireQuestion]


def test_while_something_runs_its_engine_stays_to_see_that_somebody_is_late():
    run = beside("a", "b").started("a", "b").asking("a", "Sure?", timeout=60.0).parked("a", "ask:Sure?")
    assert kinds(run) == [WakeAt]
    assert kinds(run.completed("b")) == [DueAt]


def test_where_something_starts_its_engine_stays_to_see_that_somebody_is_late():
    run = beside("a", "b c").started("a", "b").asking("a", "Sure?", timeout=60.0).parked("a", "ask:Sure?")
    assert kinds(run.completed("b")) == [StartNode, WakeAt]


# --- questions ---------------------------------------------------------------------------------------


def answered_and_begun() -> History:
    """A question node whose answer is there, and is being merged."""
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes).settled().answered("q", 4)
    return run.record(events.NodeStarted(node="q", iteration=1, took=1))


def test_a_question_node_that_was_cut_behind_its_answer_goes_on_with_it():
    run = answered_and_begun().taken_up()
    assert run.commands() == [StartNode("q", 1, 1, 2, 0)]


def test_a_question_node_that_failed_behind_its_answer_asks_again():
    run = answered_and_begun().failed("q", ValueError("does not fit")).settled().taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


@pytest.mark.parametrize("answer", ["reject", "approve"])
def test_a_node_that_may_fail_is_not_skipped_where_somebody_said_no(answer):
    run = told("START a b END", nodes={"a": {"approve": "Go on?", "safe_to_fail": True}}).settled()
    run.answered("a", answer)
    assert kinds(run) == [FailRun if answer == "reject" else StartNode]


def test_a_node_that_may_fail_is_not_skipped_where_somebody_said_no_to_its_next_attempt():
    options = {"a": {"idempotent": False, "safe_to_fail": True}}
    run = told("START a b END", nodes=options).crashed_in("a").taken_up().settled()
    run.record(
        events.QuestionAnswered(node="a", iteration=1, key="a.1.1.1", answer="abort", refused=True, attempt=1)
    )
    assert kinds(run) == [FailRun]


def test_a_node_that_is_asked_about_first_keeps_no_other_from_starting():
    run = side_by_side("a", "b", nodes={"a": {"approve": "Go on?"}})
    assert wanted(run) == [(AskFirst, "a"), (StartNode, "b")]


# --- pauses and room ---------------------------------------------------------------------------------


def test_nothing_new_starts_while_the_run_is_paused():
    run = told("START a b END").started("a").paused().completed("a")
    assert run.commands() == [ScheduleNode("b", 1, 1, "paused")]
    assert run.settled().commands() == []
    assert run.taken_up().commands() == [first("b")]


def test_a_retry_waits_while_the_run_is_paused():
    run = told("START a END").failed("a", Recoverable("x"), retry_in=0.0).paused()
    assert run.commands() == []
    assert run.taken_up().commands() == [StartNode("a", 1, 1, 2, 0)]


def test_nodes_without_a_free_slot_are_scheduled_and_start_when_there_is_one():
    run = told("START a END", "START b END", "START c END", max_parallel=1)
    assert run.commands() == [
        first("a"),
        ScheduleNode("b", 1, 1, "no free slot"),
        ScheduleNode("c", 1, 1, "no free slot"),
    ]
    assert run.settled().commands() == []
    assert run.completed("a").commands() == [first("b")]
    run.settled().completed("b").settled().completed("c").settled()
    assert run.state.status == "completed"


def test_what_was_cut_while_it_was_scheduled_starts_as_a_first_attempt():
    run = told("START a END", "START b END", max_parallel=1).settled().taken_up().completed("a")
    assert run.commands() == [first("b")]


def test_never_more_nodes_run_at_once_than_may_also_when_a_retry_comes_due():
    run = (
        told("START a END", "START b END", max_parallel=1)
        .settled()
        .failed("a", Recoverable("x"), retry_in=50.0)
        .settled()
    )
    assert run.running == ["b"]
    run.at += 50.0
    assert run.settled().running == ["b"]
    assert run.completed("b").commands() == [StartNode("a", 1, 1, 2, 0)]


def test_as_many_nodes_start_at_once_as_there_is_room_for():
    nodes = ["a", "b", "c", "d", "e"]
    assert kinds(beside(*nodes, max_parallel=5)) == [StartNode] * 5
    assert kinds(beside(*nodes, max_parallel=4))[:4] == [StartNode] * 4


def test_as_many_items_start_again_at_once_as_there_is_room_for():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2, 3, 4], "limit": 3}}).settled()
    run.taken_up().started("a")
    assert run.commands() == [StartItem("a", item, 2) for item in range(3)]


# --- limits ------------------------------------------------------------------------------------------


def test_a_loop_fails_at_its_limit_with_the_way_out():
    run = (
        told("START a", branches={"a": "a END"}, max_iterations=2)
        .completed("a", routes=["a"])
        .completed("a", routes=["a"])
    )
    (end,) = run.commands()
    assert isinstance(end, FailRun)
    assert end.node == "a"
    assert "max_iterations" in end.failure.advice
    assert [type(command) for command in run.settled().taken_up().commands()] == [FailRun]


def test_a_loop_without_a_limit_is_reached_again_each_time():
    run = told("START a", branches={"a": "a END"}, max_iterations=None)
    for iteration in range(1, 1003):
        assert starts(run) == ["a"], iteration
        run.completed("a", routes=["a"])


def test_what_runs_beside_a_loop_at_its_limit_ends_first():
    run = (
        told("START a", "START b END", branches={"a": "a END"}, max_iterations=1)
        .started("a", "b")
        .completed("a", routes=["a"])
    )
    assert run.commands() == []
    assert [type(command) for command in run.completed("b").commands()] == [FailRun]


# --- layers ------------------------------------------------------------------------------------------


def test_a_layer_is_complete_when_all_its_nodes_are_and_then_the_next_one_starts():
    run = told("START a c END", "START b d END", schedule="layered")
    assert starts(run) == ["a", "b"]
    assert run.started("a", "b").completed("b").commands() == []
    assert run.completed("a").commands() == [CompleteLayer(1, ("a", "b"))]
    assert run.settled().running == ["c", "d"]


def test_a_node_that_waits_holds_its_layer():
    run = told("START a END", "START b c END", schedule="layered").started("a", "b").completed("b")
    run.failed("a", Recoverable("x"), retry_in=50.0)
    assert run.commands() == [WakeAt(run.state.nodes["a"].retry_at)]


def test_a_join_waits_for_the_whole_way_of_its_branches_in_layers_too():
    run = told("START s a d END", "s b c d", schedule="layered").completed("s").settled()
    run.completed("a").completed("b").settled()
    assert run.running == ["c"]
    assert run.completed("c").settled().running == ["d"]


def test_a_node_that_arrivals_reach_twice_in_one_layer_is_visited_in_two_layers():
    """Both completions wait for their layer; in the same one the second would take the place of the first."""
    run = told("START a c END", "START b c", nodes={"c": {"join": "any"}}, schedule="layered")
    run.completed("a").completed("b").settled().completed("c", {"first": 1}).settled()
    assert run.running == ["c"]
    assert run.state.layer == 2
    run.completed("c", {"second": 2}).settled()
    assert run.state.values == {"first": 1, "second": 2}


def test_a_layer_with_more_nodes_than_room_runs_them_one_after_the_other():
    run = (
        told("START a c END", "START b c", schedule="layered", max_parallel=1)
        .settled()
        .completed("a")
        .settled()
    )
    assert run.running == ["b"]
    assert run.completed("b").commands() == [CompleteLayer(1, ("a", "b"))]
