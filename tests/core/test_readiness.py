import random

import pytest

from holdfast.core import events
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import RunState
from holdfast.testing.builders import History, outline
from holdfast.testing.flows import arbitrary, nested
from holdfast.testing.random_histories import play


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def parts(ready: Readiness) -> dict[str, object]:
    return {
        "due": set(ready.due),
        "unscheduled": set(ready.unscheduled),
        "open": set(ready.open),
        "live": ready.live,
    }


def assert_kept(history: History) -> None:
    """What is kept event by event is what the state alone says."""
    assert parts(history.ready) == parts(Readiness(history.flow.topology, history.state))


def live(history: History) -> set[str]:
    return set(history.flow.topology.members(history.ready.live))


def test_a_node_is_due_when_the_run_arrives_and_not_while_it_runs():
    run = told("START a b END")
    assert list(run.ready.due) == ["a"]
    run.started("a")
    assert list(run.ready.due) == []
    run.completed("a")
    assert list(run.ready.due) == ["b"]


def test_nodes_are_due_in_the_order_of_arrival():
    run = (
        told("START a d END", "START b e END", "START c f END")
        .started("a", "b", "c")
        .completed("b")
        .completed("a")
        .completed("c")
    )
    assert list(run.ready.due) == ["e", "d", "f"]


def test_what_runs_is_due_or_held_is_live():
    run = told("START a c END", "START b c", schedule="layered").completed("a").started("b")
    assert live(run) == {"a", "b"}
    run.completed("b")
    assert live(run) == {"a", "b"}
    run.settled()
    assert live(run) == {"c"}


def test_a_join_is_blocked_until_its_last_witness_is_gone():
    run = told("START a d END", "START b d", "START c d").started("a", "b", "c")
    for node in ("b", "a"):
        run.completed(node)
        assert list(run.ready.due) == []
    run.completed("c")
    assert list(run.ready.due) == ["d"]


def test_a_blocked_join_is_freed_when_the_witness_leads_elsewhere():
    run = (
        told("START a d END", "START b", branches={"b": "d END"})
        .completed("a")
        .completed("b", routes=["END"])
    )
    assert list(run.ready.due) == ["d"]


def test_a_join_is_blocked_again_when_somebody_new_can_reach_it():
    """`x` leads to `b`, from which `d` can be reached; but `x` itself could be reached from nowhere that is live."""
    run = told("START a d END", "START s", "x b d", branches={"s": "x END"}).started("a", "s").completed("a")
    assert list(run.ready.due) == []
    run.completed("s", routes=["x"])
    assert list(run.ready.due) == ["x"]
    run.completed("x").completed("b")
    assert list(run.ready.due) == ["d"]


def test_a_join_that_a_loop_leads_back_to_waits_for_what_the_same_branch_starts_before_it():
    """`t` leads back to `h` and to `b`, which leads to `h` too: whichever is named first, `h` waits for `b`."""
    for routes in (["h", "b"], ["b", "h"]):
        run = (
            told("START a b h t", "a h", branches={"t": "h b END"})
            .completed("a")
            .completed("b")
            .completed("h")
        )
        run.completed("t", routes=routes)
        assert list(run.ready.due) == ["b"]
        assert_kept(run)


def test_a_join_that_is_due_waits_as_soon_as_a_new_round_begins_that_can_reach_it():
    """`h` is due and has no slot yet when `t` leads back to `b`."""
    run = told(
        "START a b h t", "a h", "b t", branches={"t": "b END"}, nodes={"t": {"join": "any"}}, max_parallel=1
    )
    run.completed("a").completed("b").started("t")
    assert list(run.ready.due) == ["h"]
    run.completed("t", routes=["b"])
    assert list(run.ready.due) == ["b"]
    assert_kept(run)


def test_a_scheduled_node_is_due_and_known_to_the_log():
    run = told("START a END", "START b END", max_parallel=1).settled()
    assert (list(run.ready.due), list(run.ready.unscheduled)) == (["b"], [])
    assert_kept(run)


def test_open_visits_that_want_something_are_kept_apart_from_those_that_simply_run():
    nodes = {"fan": {"each": lambda state: [1, 2]}}
    run = told("START a END", "START fan END", nodes=nodes).started("a", "fan")
    assert set(run.ready.open) == {"fan"}
    run.taken_up()
    assert set(run.ready.open) == {"a", "fan"}


def test_a_name_that_the_flow_does_not_know_yet_is_left_alone():
    state = RunState("r", status="running", arrivals={"old name": 1})
    assert parts(Readiness(outline("START a END").topology, state)) == {
        "due": {"old name"},
        "unscheduled": {"old name"},
        "open": set(),
        "live": 0,
    }


def test_a_rename_is_followed():
    run = History("r", outline("START a b END")).created().completed("a")
    renamed = History("r", outline("START a z END"))
    for stored in run.events():
        renamed.record(stored.event)
    renamed.record(events.FlowChanged(fingerprint="q", rename={"b": "z"}))
    assert list(renamed.ready.due) == ["z"]
    assert_kept(renamed)


@pytest.mark.parametrize("schedule", ["eager", "layered"])
@pytest.mark.parametrize("draw", [nested, arbitrary])
def test_what_is_kept_event_by_event_is_what_the_state_says_after_every_event_of_any_flow(draw, schedule):
    for seed in range(60):
        luck = random.Random(f"readiness {seed}")
        sketch = draw(luck)
        flow = sketch.flow(schedule=schedule, max_parallel=luck.choice((1, 2, 64)))
        history = History("r", flow).created()
        for step, _ in enumerate(play(history, sketch, luck, trouble=0.15)):
            assert_kept(history)
            assert step < 20_000, "the run does not end"


def test_a_node_that_is_skipped_before_it_began_is_not_due_any_more():
    run = History("r", outline("START a b END", max_parallel=1)).created().paused().settled()
    assert list(run.ready.due) == ["a"]
    run.record(events.NodeSkipped(node="a", iteration=1, took=1, routes=["b"]))
    assert list(run.ready.due) == ["b"]
