"""What a visit keeps: steps, checkpoints, costs and chunks."""

from copy import deepcopy

import pytest

from holdfast.core import events, fold
from holdfast.core.events import Stored
from holdfast.core.run_state import NODE_LEVEL
from holdfast.errors import IllegalEvent, Recoverable
from holdfast.testing.builders import History, outline


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def alone(**options) -> History:
    """A run of one node, which has begun."""
    return told("START a END", nodes={"a": options}).started("a")


def fan(count: int = 3, **options) -> History:
    """A run of one fan-out, whose items have begun as far as its limit allows."""
    nodes = {"a": {"each": lambda state: list(range(count)), **options}}
    return told("START a END", nodes=nodes).settled()


def refused(history: History, event: events.Event) -> str:
    """The event is refused, and the state is what it was."""
    before = deepcopy(history.state)
    with pytest.raises(IllegalEvent) as caught:
        fold.fold(history.state, Stored(history.state.seq + 1, history.at, event))
    assert history.state == before
    return str(caught.value)


# --- steps and checkpoints ---------------------------------------------------------------------------


def test_the_result_of_a_step_is_kept_under_its_name():
    run = alone().stepped("a", "charge", {"id": 7}).stepped("a", "mail")
    assert run.kept("a") == {"step:charge": {"id": 7}, "step:mail": None}


def test_a_step_is_kept_over_a_plain_retry():
    run = alone().stepped("a", "charge", 1).failed("a", Recoverable("later"), retry_in=0.0).started("a")
    assert (run.state.nodes["a"].attempt, run.kept("a")) == (2, {"step:charge": 1})


def test_a_step_is_kept_over_a_crash():
    run = alone().stepped("a", "charge", 1).taken_up().started("a")
    assert (run.state.nodes["a"].attempt, run.kept("a")) == (2, {"step:charge": 1})


def test_a_step_is_kept_over_a_failure_for_good_and_a_resume():
    run = alone().stepped("a", "charge", 1).failed("a", ValueError("x")).settled().taken_up().started("a")
    assert run.kept("a") == {"step:charge": 1}


def test_a_step_is_kept_when_its_process_was_asked_to_stop():
    run = alone().stepped("a", "charge", 1)
    run.record(events.NodeInterrupted(node="a", iteration=1)).record(events.RunInterrupted())
    assert run.taken_up().started("a").kept("a") == {"step:charge": 1}


def test_a_fresh_try_keeps_no_step():
    run = alone().stepped("a", "charge", 1).failed("a", ValueError("x")).settled()
    run.record(events.RunResumed(fresh=True)).started("a")
    assert (run.state.nodes["a"].execution, run.kept("a")) == (2, {})


def test_only_a_fresh_try_makes_new_idempotency_keys():
    run = alone().taken_up().started("a")
    run.record(events.RunRewound(to=run.state.seq, executions={"a": {1: 1}})).started("a")
    assert (run.state.nodes["a"].execution, run.state.nodes["a"].fresh) == (2, 0)
    run.failed("a", ValueError("x")).settled().record(events.RunResumed(fresh=True)).started("a")
    assert (run.state.nodes["a"].execution, run.state.nodes["a"].fresh) == (3, 1)


def test_a_rewind_keeps_no_step_of_what_was_open():
    run = alone().stepped("a", "charge", 1)
    run.record(events.RunRewound(to=run.state.seq, executions={"a": {1: 1}}))
    assert run.kept("a") == {}
    run.started("a")
    assert (run.state.nodes["a"].execution, run.kept("a")) == (2, {})


def test_the_next_iteration_begins_with_no_step():
    run = told("START a", branches={"a": "a END"}).started("a").stepped("a", "charge", 1)
    run.completed("a", routes=["a"])
    assert run.state.nodes["a"].kept == {}
    assert run.started("a").kept("a") == {}


def test_a_completed_visit_keeps_nothing():
    run = alone().stepped("a", "charge", 1).checkpointed("a", 5).completed("a")
    assert run.state.nodes["a"].kept == {}


@pytest.mark.parametrize("late", [{"attempt": 2}, {"execution": 2}, {"iteration": 2}, {"node": "b"}])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (events.StepCompleted, {"step": "charge"}),
        (events.NodeCheckpointed, {"value": 1}),
        (events.TimerSet, {"slot": "sleep:1", "until": 60.0}),
        (events.SignalAwaited, {"slot": "signal:x:1", "name": "x"}),
        (events.NodeWaiting, {"on": ["sleep:1"]}),
        (events.QuestionAsked, {"key": "k", "text": "?", "about": "ask", "slot": "ask:?"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_an_attempt_that_is_not_open_says_is_refused(kind, fields, late):
    refused(alone(), kind(**{"node": "a", "iteration": 1, **fields, **late}))


def test_what_a_cut_attempt_says_is_refused():
    refused(alone().taken_up(), events.StepCompleted(node="a", iteration=1, step="charge"))


def test_a_later_checkpoint_takes_the_place_of_an_earlier_one():
    run = alone().checkpointed("a", {"page": 1}).checkpointed("a", {"page": 2})
    assert run.kept("a") == {"checkpoint": {"page": 2}}
    assert run.taken_up().started("a").kept("a") == {"checkpoint": {"page": 2}}


def test_every_item_keeps_its_own_steps_and_its_own_checkpoint():
    run = fan().stepped("a", "charge", "zero", item=0).stepped("a", "charge", "one", item=1)
    run.checkpointed("a", 5, item=1)
    assert run.kept("a", 0) == {"step:charge": "zero"}
    assert run.kept("a", 1) == {"step:charge": "one", "checkpoint": 5}
    assert run.kept("a") == {}


def test_an_item_that_is_done_keeps_nothing_and_the_others_keep_theirs():
    run = fan().stepped("a", "x", 0, item=0).stepped("a", "x", 1, item=1).item_completed("a", 0)
    assert (run.kept("a", 0), run.kept("a", 1)) == ({}, {"step:x": 1})


def test_an_item_keeps_its_steps_over_a_retry_and_a_crash():
    run = fan().stepped("a", "x", 1, item=1).item_failed("a", 1, Recoverable("later"), retry_in=0.0)
    run.settled().taken_up().settled()
    assert (run.state.nodes["a"].items.running[1], run.kept("a", 1)) == (3, {"step:x": 1})


def test_the_late_step_of_an_item_is_refused():
    late = events.StepCompleted(node="a", iteration=1, attempt=2, item=0, step="x")
    assert "is open" in refused(fan(), late)
    done = fan().item_completed("a", 0)
    assert "is open" in refused(done, events.StepCompleted(node="a", iteration=1, item=0, step="x"))


# --- costs and chunks --------------------------------------------------------------------------------


def test_costs_count_for_the_node_and_for_the_run():
    run = told("START a END", "START b END").started("a", "b")
    run.spent("a", 0.5, 10).spent("b", 0.25, 5).spent("a", tokens=1)
    assert (run.state.usd, run.state.tokens) == (0.75, 16)
    assert (run.state.nodes["a"].usd, run.state.nodes["a"].tokens) == (0.5, 11)


def test_costs_are_kept_over_failures_crashes_and_resumes():
    run = alone().spent("a", 0.5, 10).taken_up().started("a").spent("a", 0.5, 10)
    run.failed("a", ValueError("x")).settled().taken_up().completed("a").settled()
    assert (run.state.status, run.state.usd, run.state.tokens) == ("completed", 1.0, 20)


def test_a_rewind_never_undoes_what_was_spent():
    run = told("START a b END").completed("a")
    place = deepcopy(run.state)
    run.started("b").spent("b", 2.0, 100)
    rewound = events.RunRewound(to=place.seq, usd=run.state.usd, tokens=run.state.tokens)
    fold.fold(place, Stored(run.state.seq + 1, run.at, rewound))
    assert (place.usd, place.tokens) == (2.0, 100)


def test_chunks_are_counted_over_the_attempts_of_a_visit_and_from_none_in_the_next():
    run = told("START a", branches={"a": "a END"}).streamed("a", "once", "upon").taken_up()
    run.streamed("a", "a", "time").taken_up()
    assert run.state.nodes["a"].streamed == 4
    run.completed("a", routes=["a"]).started("a")
    assert run.state.nodes["a"].streamed == 0


def test_chunks_of_an_attempt_that_was_found_cut_are_still_taken():
    run = alone().taken_up()
    run.record(events.NodeStreamed(node="a", iteration=1, chunks=["once"]))
    assert (run.state.nodes["a"].streamed, run.state.nodes["a"].status) == (1, "interrupted")


# --- the node itself and its items -------------------------------------------------------------------


def test_the_slots_of_the_node_itself_are_kept_apart_from_those_of_item_0():
    assert NODE_LEVEL not in range(3)
