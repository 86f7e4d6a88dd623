"""What an event does to an attempt: its times, its ends, and why it began."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.events import KINDS, Failure, NodeEvent, Stored
from holdfast.core.fold import fold
from holdfast.core.run_state import RunState
from holdfast.reading.spans import AttemptSpan
from holdfast.reading.visits import NODE_ENDS, AttemptRecord, VisitChange, Visits
from holdfast.testing.builders import History, outline
from holdfast.testing.flows import attended, nested
from holdfast.testing.plan_sketches import draw_plan
from holdfast.testing.random_histories import play, play_plan

FLOW = outline("START a b END")
FAN = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})


def read(history: History, visits: Visits | None = None, after: int = 0) -> list[VisitChange]:
    visits = visits or Visits()
    return [change for stored in history.events() if stored.seq > after for change in visits.read(stored)]


def attempts(history: History, node: str, item: int | None = None) -> list[AttemptRecord]:
    found = [one.attempt for one in read(history) if one.visit.node == node and one.attempt.item == item]
    return list({id(one): one for one in found}.values())


def spans(history: History, node: str, item: int | None = None) -> list[AttemptSpan]:
    began: list[AttemptSpan] = []
    visits = Visits()
    for stored in history.events():
        for change in visits.read(stored):
            span = change.attempt.span
            if change.visit.node == node and change.attempt.item == item and span and span not in began:
                began.append(span)
    return began


def follow(visits: Visits, at: float, *recorded: events.Event) -> list[VisitChange]:
    """Read further events, a second apart."""
    return [
        change
        for number, event in enumerate(recorded, 1)
        for change in visits.read(Stored(visits.seen_seq + 100 + number, at + number, event))
    ]


def claimed(history: History, holder: str, **options: bool) -> History:
    return history.record(events.RunClaimed(holder=holder, **options))


def fan_out(*parts: str) -> History:
    history = History("r", FAN).created({"parts": list(parts)}).started("fan")
    return history.settled()


# --- crashes ---------------------------------------------------------------------------------------------


def test_an_attempt_whose_process_died_ends_with_the_last_sign_of_life_of_the_process() -> None:
    history = claimed(History("r", FLOW).created(), "w1").completed("a").stepped("b", "charge")
    last = history.at - 1.0
    claimed(history.passed(30.0), "w2").completed("b")
    crashed, again = attempts(history, "b")
    assert (crashed.status, crashed.lost, crashed.ended_at, crashed.seconds) == ("crashed", True, None, 0.0)
    assert crashed.span is not None
    assert (crashed.span.ended_at, crashed.span.noticed_at) == (last, last + 31.0)
    assert (again.number, again.status, again.motive and again.motive.kind) == (2, "completed", "claimed")


def test_an_attempt_whose_process_lost_the_run_and_lives_is_interrupted() -> None:
    history = claimed(History("r", FLOW).created().completed("a").started("b"), "w2", outlived=True)
    (attempt,) = attempts(history, "b")
    assert (attempt.status, attempt.lost) == ("interrupted", True)


def test_an_event_of_a_caller_is_no_sign_of_life() -> None:
    history = History("r", FLOW).created().completed("a").started("b")
    last = history.at - 1.0
    history.passed(30.0).record(events.SignalReceived(name="go"))
    visits = Visits()
    read(history, visits)
    assert visits.seen_at == last
    visits.presume_dead()
    attempt = visits.latest["b"].attempt
    assert attempt is not None
    assert attempt.span is not None
    assert (attempt.status, attempt.span.ended_at) == ("crashed", last)


# --- waits -----------------------------------------------------------------------------------------------


def test_an_attempt_that_waits_survives_a_claim_and_is_one_attempt_of_two_spans() -> None:
    history = History("r", FLOW).created().completed("a").sleeping("b", 60.0).parked("b", "sleep:1")
    claimed(history, "w2").passed(60.0).completed("b")
    (attempt,) = attempts(history, "b")
    assert (attempt.number, attempt.status, attempt.lost) == (1, "completed", False)
    first, second = spans(history, "b")
    assert [(one.status, one.woken) for one in (first, second)] == [("waiting", False), ("completed", True)]
    ran = [one.ended_at - one.started_at for one in (first, second) if one.ended_at is not None]
    assert attempt.seconds == sum(ran) < 60.0


def test_a_fan_out_whose_items_all_wait_does_not_run_and_survives_a_claim() -> None:
    history = fan_out("x", "y")
    for item in (0, 1):
        history.sleeping("fan", 60.0, item=item).parked("fan", "sleep:1", item=item)
    asleep = history.at - 1.0
    (attempt,) = attempts(history, "fan")
    assert (attempt.status, attempt.since) == ("waiting", None)
    claimed(history, "w2").passed(60.0)
    for item in (0, 1):
        history.item_completed("fan", item)
    history.settled()
    (attempt,) = attempts(history, "fan")
    (span,) = spans(history, "fan")
    assert (attempt.status, attempt.lost, span.status) == ("completed", False, "completed")
    assert attempt.seconds < span.ended_at - asleep  # type: ignore[operator]
    assert [one.status for one in spans(history, "fan", 0)] == ["waiting", "completed"]


def test_an_attempt_whose_result_waits_for_an_answer_waits_and_survives_a_claim() -> None:
    history = History("r", FLOW).created().completed("a").started("b")
    place: dict[str, Any] = {"node": "b", "iteration": 1, "attempt": 1}
    history.record(events.NodeReturned(**place, value=1))
    history.record(events.QuestionAsked(**place, key="k", text="Use it?", about="result"))
    asked = history.at - 1.0
    claimed(history, "w2")
    (attempt,) = attempts(history, "b")
    (span,) = spans(history, "b")
    assert (attempt.status, span.status, span.ended_at, span.noticed_at) == (
        "waiting",
        "waiting",
        asked,
        None,
    )


def test_a_caller_who_retries_an_attempt_that_waits_replaces_it() -> None:
    history = History("r", FLOW).created().completed("a").sleeping("b", 60.0).parked("b", "sleep:1")
    visits = Visits()
    read(history, visits)
    waited = visits.latest["b"].attempt
    assert waited is not None
    visits.read(Stored(97, history.at, events.NodeScheduled(node="b", iteration=1, why="retry", by="ada")))
    changes = visits.read(Stored(98, history.at, events.NodeStarted(node="b", iteration=1, attempt=2)))
    assert [(one.how, one.attempt.number, one.cause) for one in changes] == [
        ("ended", 1, "another attempt took its place"),
        ("began", 2, None),
    ]
    assert waited.is_over
    (_, began) = changes
    assert began.attempt.asked is not None
    assert (began.attempt.asked.by, began.attempt.motive) == ("ada", began.attempt.asked)


# --- ends ------------------------------------------------------------------------------------------------


def test_a_rewind_ends_what_waits_and_what_runs() -> None:
    history = History("r", FLOW).created().completed("a").sleeping("b", 60.0).parked("b", "sleep:1")
    history.record(events.RunRewound(to=1, by="ada"))
    (waited,) = attempts(history, "b")
    assert (waited.status, waited.lost, waited.is_over) == ("interrupted", False, True)
    running = History("r", FLOW).created().completed("a").started("b").record(events.RunRewound(to=1))
    (attempt,) = attempts(running, "b")
    assert (attempt.status, attempt.lost) == ("crashed", True)


def test_a_cancel_ends_an_attempt_at_that_time() -> None:
    history = History("r", FLOW).created().completed("a").started("b").record(events.RunCancelled(by="ada"))
    (attempt,) = attempts(history, "b")
    assert (attempt.status, attempt.ended_at) == ("interrupted", history.at - 1.0)


def test_a_failed_attempt_says_when_it_is_tried_again_and_the_next_one_why_it_began() -> None:
    history = History("r", FLOW).created().completed("a").failed("b", OSError("away"), retry_in=5.0)
    history.passed(5.0).completed("b")
    failed, again = attempts(history, "b")
    assert (failed.status, failed.failure and failed.failure.type) == ("failed", "OSError")
    assert again.motive is not None
    assert (again.motive.kind, again.motive.at) == ("retry", failed.retry_at)


def test_a_visit_that_is_skipped_before_it_began_has_an_attempt_without_a_beginning() -> None:
    history = History("r", FLOW).created().completed("a")
    visits = Visits()
    read(history, visits)
    skip = events.NodeSkipped(node="b", iteration=1, attempt=1, routes=["END"], by="ada", reason="not needed")
    (change,) = visits.read(Stored(99, history.at, skip))
    attempt = change.attempt
    assert (attempt.never_began, attempt.started_at, attempt.by, attempt.reason) == (
        True,
        None,
        "ada",
        "not needed",
    )
    assert attempt.span is not None
    assert attempt.span.started_at == attempt.span.ended_at


def test_a_router_that_raised_makes_the_attempt_a_failed_one_until_the_route_is_decided() -> None:
    flow = outline("START a", "b END", branches={"a": "b END"})
    history = History("r", flow).created().misrouted("a", AttributeError("no score"))
    (attempt,) = attempts(history, "a")
    assert (attempt.status, attempt.reason) == ("failed", "routing failed")
    history.settled().record(events.RunResumed(by="ada"))
    history.record(events.NodeRouted(node="a", iteration=1, attempt=1, routes=["b"]))
    (attempt,) = attempts(history, "a")
    assert (attempt.status, attempt.reason, attempt.failure) == ("completed", None, None)


def test_an_answer_that_refuses_a_visit_leaves_the_end_of_its_attempt_alone() -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    history = History("r", flow).created().settled().answered("a", "reject", by="ada")
    (change,) = [one for one in read(history) if one.how == "refused"]
    assert change.attempt.never_began
    assert change.failure is not None
    assert (change.failure.type, change.failure.message) == ("QuestionRefused", 'the answer was "reject"')


def test_an_answer_that_ends_a_crashed_visit_does_not_change_how_its_attempt_ended() -> None:
    history = claimed(History("r", FLOW).created().completed("a").started("b"), "w2")
    visits, place = Visits(), {"node": "b", "iteration": 1, "attempt": 1}
    read(history, visits)
    asked = events.QuestionAsked(**place, key="k", text="?")
    *_, refused = follow(
        visits, history.at, asked, events.QuestionAnswered(**place, key="k", answer="abort", refused=True)
    )
    assert (refused.how, refused.attempt.status, refused.attempt.is_over) == ("refused", "crashed", True)


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (events.RunClaimed(holder="w2"), "crashed"),
        (events.RunClaimed(holder="w2", outlived=True), "interrupted"),
        (events.NodeInterrupted(node="fan", iteration=1, attempt=1, reason="SIGTERM"), "interrupted"),
        (
            events.NodeFailed(node="fan", iteration=1, attempt=1, failure=Failure("fatal", "E", "no")),
            "interrupted",
        ),
    ],
)
def test_the_items_that_run_end_with_the_attempt_at_their_node(event: events.Event, status: str) -> None:
    history, visits = fan_out("x", "y").item_completed("fan", 0), Visits()
    read(history, visits)
    follow(visits, history.at, event)
    items = visits.latest["fan"].items
    assert [items[item].status for item in (0, 1)] == ["completed", status]
    assert items[1].span is not None
    assert (items[1].span.status, visits.latest["fan"].running) == (status, {})


def test_a_fan_out_whose_items_wait_ends_its_span_when_the_run_fails() -> None:
    history = fan_out("x").sleeping("fan", 60.0, item=0).parked("fan", "sleep:1", item=0)
    visits = Visits()
    read(history, visits)
    follow(visits, history.at, events.RunFailed(failure=Failure("fatal", "E", "no")))
    attempt = visits.latest["fan"].attempt
    assert attempt is not None
    assert attempt.span is not None
    assert (attempt.status, attempt.span.status, attempt.is_over) == ("waiting", "interrupted", False)


# --- why it began ----------------------------------------------------------------------------------------


def test_an_attempt_after_a_resume_was_asked_for_by_its_caller_if_its_node_was_meant() -> None:
    history = History("r", FLOW).created().completed("a").failed("b", ValueError("no"))
    for nodes, asked in ((None, True), (["b"], True), (["a"], False)):
        visits = Visits()
        read(history, visits)
        again = events.NodeStarted(node="b", iteration=1, attempt=2)
        *_, began = follow(visits, history.at, events.RunResumed(by="ada", nodes=nodes), again)
        assert (began.attempt.asked is not None) == asked
        assert began.attempt.motive is not None
        assert (began.attempt.motive.kind, began.attempt.motive.by) == ("resumed", "ada")


def test_a_visit_that_is_repeated_after_a_rewind_was_asked_for_by_who_rewound_the_run() -> None:
    history, visits = History("r", FLOW).created().completed("a"), Visits()
    read(history, visits)
    repeated = events.NodeStarted(node="a", iteration=1, execution=2, attempt=1)
    *_, began = follow(visits, history.at, events.RunRewound(to=1, by="ada"), repeated)
    assert began.attempt.asked is not None
    assert began.attempt.asked.by == "ada"


def test_a_visit_keeps_its_attempts_when_its_node_is_renamed() -> None:
    history, visits = History("r", FLOW).created().completed("a").failed("b", ValueError("no")), Visits()
    read(history, visits)
    follow(visits, history.at, events.FlowChanged(fingerprint="f", rename={"b": "c"}))
    (change,) = follow(visits, history.at, events.NodeStarted(node="c", iteration=1, attempt=2))
    assert change.attempt.span is not None
    assert (change.visit.node, change.attempt.span.node) == ("c", "c")
    assert list(visits.latest) == ["a", "c"]


# --- all histories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_fold_and_the_visits_agree_on_what_runs(seed: int) -> None:
    """Also if the reader begins within the log, with the state that the run had there."""
    luck = random.Random(seed)
    sketch = attended(nested(luck, depth=2), luck)
    history = History("r", sketch.flow(max_parallel=2)).created()
    for _ in play(history, sketch, luck, trouble=0.12, inside=0.4):
        pass
    compare(history)


@pytest.mark.parametrize("seed", range(8))
def test_the_fold_and_the_visits_agree_on_what_runs_in_a_plan(seed: int) -> None:
    luck = random.Random(seed)
    plan = draw_plan(luck, least=3, most=20, handled=True)
    history = History("r", plan.flow()).created()
    for _ in play_plan(history, plan, luck, trouble=0.05):
        pass
    compare(history)


def compare(history: History) -> None:
    state, whole, late = RunState("r"), Visits(), None
    middle = len(history.log) // 2
    for stored in history.events():
        fold(state, stored)
        for visits in (whole, late):
            if visits is not None:
                visits.read(stored)
                assert running(visits) == running_in(state), stored
        if stored.seq == middle:
            late = Visits.of(state)


def running(visits: Visits) -> set[tuple[str, int | None]]:
    nodes = {
        (name, None) for name, one in visits.latest.items() if one.attempt and one.attempt.status == "running"
    }
    return nodes | {(name, item) for name, one in visits.latest.items() for item in one.running}


def running_in(state: RunState) -> set[tuple[str, int | None]]:
    found = {(name, None) for name, node in state.nodes.items() if node.status == "running"}
    return found | {
        (name, item) for name, node in state.nodes.items() if node.items for item in node.items.running
    }


def test_only_events_of_nodes_end_attempts_by_themselves() -> None:
    assert all(issubclass(kind, NodeEvent) for kind in NODE_ENDS)
    assert {kind.__name__ for kind in NODE_ENDS} < KINDS.keys()
