"""What the fold makes of a node: its input, its attempts, its arrivals and its routes."""

from dataclasses import dataclass, field
from typing import Annotated

from holdfast import add, append
from holdfast.core import events
from holdfast.core.commands import RouteNode
from holdfast.core.events import Changes
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, failure, outline


@dataclass
class Notes:
    n: int = 0
    total: Annotated[int, add] = 0
    lines: Annotated[list[str], append] = field(default_factory=list)


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


def routing_failed(history: History, node: str) -> History:
    return history.record(events.RoutingFailed(**of(history, node), failure=failure("no way")))


def wanted(history: History) -> list[tuple[type, str]]:
    return [(type(command), command.node) for command in history.commands()]


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


def test_an_edit_changes_no_input_where_a_visit_has_none_any_more():
    run = told("START a", branches={"a": "a END"}, state=Notes).started("a")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    routing_failed(run, "a").record(events.StateEdited(changes=Changes(set={"n": 4})))
    assert run.state.values["n"] == 4
    assert run.state.nodes["a"].input is None


def test_a_list_grows_while_a_visit_is_open_that_has_no_input_any_more():
    run = told("START a", "START b END", branches={"a": "a END"}, state=Notes).started("a", "b")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.record(events.RoutingFailed(**of(run, "a"), failure=failure("no way")))
    run.completed("b", {"lines": ["one"]})
    assert run.state.values["lines"] == ["one"]


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


def test_a_resume_of_a_node_that_is_not_open_changes_nothing():
    run = told("START a b END").completed("a").started("b")
    run.record(events.RunResumed(nodes=["a", "nobody"]))
    assert (run.state.nodes["a"].status, list(run.state.open)) == ("completed", ["b"])


# --- arrivals ----------------------------------------------------------------------------------------


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
