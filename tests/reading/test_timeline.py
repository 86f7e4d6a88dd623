"""The timeline of a run: who held it, what was tried, what it waited for, and what people did."""

from __future__ import annotations

import random
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import events
from holdfast.core.run_state import ENDED
from holdfast.reading.timeline import Part, Timeline, timeline
from holdfast.storage.contract import Query
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import STARTS_AT, History, crashed_copy, outline
from holdfast.testing.flows import attended, nested
from holdfast.testing.random_histories import play

FLOW = outline("START a b END")
ASKS = outline("START a b END", nodes={"b": {"approve": "Go on?"}})
FAN = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})


def drawn(history: History, **part: Any) -> Timeline:
    store = MemoryStore(clock=lambda: history.at)
    history.write(store)
    return timeline(store, store.run(history.run_id), Part(**part))


def claimed(history: History, holder: str, **options: Any) -> History:
    return history.record(events.RunClaimed(holder=holder, **options))


def attempts(found: Timeline) -> list[tuple[str, int, str, float, float | None]]:
    """Node, attempt, status, and the seconds at which it began and ended."""
    return [
        (
            one.node,
            one.attempt,
            one.status,
            one.started_at - STARTS_AT,
            None if one.ended_at is None else one.ended_at - STARTS_AT,
        )
        for one in found.attempts
    ]


# --- holders ---------------------------------------------------------------------------------------------


def test_a_process_that_died_is_shown_with_its_last_sign_of_life_and_the_time_without_a_holder() -> None:
    history = History("r", FLOW).created()
    claimed(history, "w1").completed("a").started("b")
    claimed(history.passed(30.0), "w2").completed("b").settled()
    found = drawn(history)
    first, second = found.holders
    assert (first.holder, first.end) == ("w1", "died")
    assert (first.ended_at, first.noticed_at) == (found.attempts[1].started_at, second.started_at)
    assert (second.holder, second.end, second.ended_at) == ("w2", "released", found.ended_at)
    (gap,) = found.waits
    assert (gap.kind, gap.node, gap.started_at, gap.ended_at) == (
        "holder",
        None,
        first.ended_at,
        second.started_at,
    )
    crashed, again = found.attempts[1:]
    assert (crashed.status, crashed.attempt, crashed.noticed_at) == ("crashed", 1, second.started_at)
    assert (again.status, again.attempt) == ("completed", 2)


def test_a_process_that_was_asked_to_stop_is_drained_and_one_that_lost_its_lease_is_replaced() -> None:
    history = History("r", FLOW).created()
    claimed(history, "w1").completed("a").record(events.RunInterrupted(reason="SIGTERM"))
    claimed(history, "w2").started("b")
    claimed(history, "w3", outlived=True)
    found = drawn(history)
    assert [(one.holder, one.end) for one in found.holders[:2]] == [("w1", "drained"), ("w2", "replaced")]
    assert found.attempts[-1].status == "interrupted", "its process lives"


def test_a_holder_that_leaves_a_run_to_its_question_has_released_it() -> None:
    history = History("r", ASKS).created().completed("a").settled().passed(100.0)
    history.answered("b", "approve", by="ada", reason="looks fine")
    claimed(history, "w2").completed("b").settled()
    found = drawn(history)
    assert [(one.holder, one.end) for one in found.holders] == [(None, "released"), ("w2", "released")]
    (asked,) = found.waits
    assert (asked.kind, asked.key, asked.reason, asked.ended_by) == (
        "question",
        "b.1.1",
        "Go on?",
        "answered",
    )
    assert found.holders[0].ended_at == asked.started_at
    answer = found.acts[1]
    assert (answer.verb, answer.by, answer.reason, answer.node) == ("answer", "ada", "looks fine", "b")
    assert (answer.answer, answer.at) == ("approve", asked.ended_at)


def test_the_last_holder_of_a_run_that_no_process_executes_has_died() -> None:
    found = drawn(History("r", FLOW).created().completed("a").started("b"))
    assert found.holders[0].end == "died"
    assert attempts(found)[1:] == [("b", 1, "crashed", 3.0, 3.0)]
    assert (found.waits[0].reason, found.waits[0].ended_at) == ("no holder", None)


def test_the_last_holder_is_named_by_its_lease_if_the_log_does_not_name_it() -> None:
    history = History("r", FLOW).created().completed("a").started("b")
    holder = this_process()
    lost = MemoryStore(clock=lambda: history.at)
    history.write(lost, holder=holder)
    (held,) = timeline(lost, lost.run("r"), Part()).holders
    assert (held.holder, held.end, held.ended_at) == (holder.describe(), None, None)
    history.passed(holder.ttl_s + 1)
    (dead,) = timeline(lost, lost.run("r"), Part()).holders
    assert (dead.holder, dead.end) == (holder.describe(), "died")


def test_a_process_that_died_between_two_nodes_has_died_too() -> None:
    history = History("r", FLOW).created()
    claimed(history, "w1").completed("a")
    claimed(history, "w2")
    assert [one.end for one in drawn(history).holders] == ["died", "died"]


# --- attempts and waits ------------------------------------------------------------------------------------


def test_a_retry_waits_between_two_attempts() -> None:
    history = History("r", FLOW).created().completed("a").failed("b", OSError("away"), retry_in=5.0)
    history.passed(5.0).completed("b").settled()
    found = drawn(history)
    failed, completed = found.attempts[1:]
    assert (failed.status, failed.error, failed.retry_at) == ("failed", "OSError: away", found.waits[0].until)
    (wait,) = found.waits
    assert (wait.kind, wait.node, wait.reason) == ("retry", "b", "retry in 5.00 s")
    assert (wait.started_at, wait.ended_at) == (failed.ended_at, completed.started_at)


def test_a_fan_out_whose_items_all_wait_has_not_crashed_when_its_run_is_claimed() -> None:
    history = History("r", FAN).created({"parts": ["x", "y"]}).started("fan").settled()
    for item in (0, 1):
        history.sleeping("fan", 60.0, item=item).parked("fan", "sleep:1", item=item)
    claimed(history, "w2").passed(60.0)
    history.item_completed("fan", 0).item_completed("fan", 1).settled()
    (attempt,) = (one for one in drawn(history).attempts if one.item is None)
    assert (attempt.status, attempt.noticed_at) == ("completed", None)


def test_an_attempt_whose_router_failed_is_drawn_as_failed_until_the_route_is_decided() -> None:
    flow = outline("START a", "b END", branches={"a": "b END"})
    history = History("r", flow).created().misrouted("a", AttributeError("no score")).settled()
    (attempt,) = drawn(history).attempts
    assert (attempt.status, attempt.error) == ("failed", "routing failed: AttributeError: no score")
    history.record(events.RunResumed(by="ada")).record(
        events.NodeRouted(node="a", iteration=1, attempt=1, routes=["b"])
    )
    (attempt,) = drawn(history).attempts
    assert (attempt.status, attempt.error) == ("completed", None)


def test_a_cancelled_run_waits_for_nothing() -> None:
    history = History("r", FLOW).created().completed("a").failed("b", OSError("away"), retry_in=5.0)
    found = drawn(history.record(events.RunCancelled(by="ada")))
    assert [(wait.kind, wait.ended_at, wait.ended_by) for wait in found.waits] == [
        ("retry", found.ended_at, None)
    ]


def test_a_node_that_the_engine_skips_is_not_an_act_of_a_person() -> None:
    history = History("r", FLOW).created().started("a")
    visit = {"node": "a", "iteration": 1}
    history.record(events.NodeInterrupted(**visit))
    history.record(events.NodeSkipped(**visit, routes=["b"], reason="on_interrupt"))
    found = drawn(history)
    assert [(one.node, one.status) for one in found.attempts] == [("a", "interrupted"), ("a", "skipped")]
    assert [act.verb for act in found.acts] == ["start"]


def test_a_suspended_attempt_has_a_span_before_and_after_its_wait() -> None:
    history = History("r", FLOW).created().completed("a").started("b").awaiting("b", "paid")
    slot = next(iter(history.state.waits.values())).slot
    history.parked("b", slot).passed(60.0).told("paid").settled()
    history.completed("b").settled()
    found = drawn(history)
    assert [(one.status, one.attempt, one.woken) for one in found.attempts[1:]] == [
        ("waiting", 1, False),
        ("completed", 1, True),
    ]
    (wait,) = found.waits
    assert (wait.kind, wait.reason, wait.ended_by) == ("signal", "the signal 'paid'", "received")
    assert [act.verb for act in found.acts] == ["start", "signal"]


def test_what_a_rewind_has_undone_is_marked() -> None:
    store = MemoryStore()
    History("s", ASKS).created().completed("a").settled().write(store)
    hf.resume("s@1", store=store, flows=[ASKS], by="ada")
    found = timeline(store, store.run("s"), Part())
    assert [(one.node, one.execution, one.current) for one in found.attempts] == [
        ("a", 1, False),
        ("a", 2, True),
    ]
    assert [(wait.node, wait.current, wait.ended_at is None) for wait in found.waits] == [
        ("b", False, False),
        ("b", True, True),
    ]
    assert [(act.verb, act.about, act.by) for act in found.acts] == [
        ("start", None, None),
        ("rewind", "@1", "ada"),
    ]


def test_forks_say_from_where_they_were_made() -> None:
    store = MemoryStore()
    History("r", ASKS).created().completed("a").settled().write(store)
    hf.fork("r@3", run_id="f", store=store, flows=[ASKS], by="ada", reason="what if")
    (fork,) = timeline(store, store.run("r"), Part(), store.runs(Query(parent="r"))).forks
    assert (fork.run_id, fork.to, fork.by, fork.reason) == ("f", 3, "ada", "what if")
    found = timeline(store, store.run("f"), Part())
    assert [(act.verb, act.about) for act in found.acts] == [("fork", "r@3")]
    assert found.beginning == "Earlier events are in the log of run 'r'."


def test_a_retry_is_an_act_if_a_caller_asked_for_it() -> None:
    history = History("r", FLOW).created()
    history.record(events.NodeScheduled(node="a", iteration=1, why="max_parallel"))
    history.record(events.NodeScheduled(node="a", iteration=1, why="retry", by="ada"))
    assert [(act.verb, act.by) for act in drawn(history).acts] == [("start", None), ("retry", "ada")]


def test_acts_of_people_say_who_did_what_and_why() -> None:
    history = History("r", FLOW).created().completed("a")
    history.record(events.StateEdited(changes=events.Changes(set={"card": "x"}), by="ada", reason="new card"))
    history.record(events.RunPaused(by="bob"))
    history.record(events.RequestRefused(verb="skip", reason="it is paused", by="eve"))
    history.record(events.RunResumed(holder="w1", by="ada", reason="go"))
    history.record(events.RunCancelled(by="bob", reason="enough"))
    told = [(act.verb, act.by, act.reason, act.about) for act in drawn(history).acts[1:]]
    assert told == [
        ("edit", "ada", "new card", "card"),
        ("pause", "bob", None, None),
        ("refused", "eve", "it is paused", "skip"),
        ("resume", "ada", "go", None),
        ("cancel", "bob", "enough", None),
    ]


# --- items -------------------------------------------------------------------------------------------------


def fanned(items: int) -> History:
    history = History("r", FAN).created({"parts": list(range(items))}).settled()
    for item in range(items - 1):
        history.item_completed("fan", item).settled()
    return history.item_failed("fan", items - 1, ValueError("no such part"))


def test_up_to_eight_items_have_spans_of_their_own_and_more_are_one() -> None:
    few, many = drawn(fanned(8)), drawn(fanned(9))
    assert len([one for one in few.attempts if one.item is not None]) == 8
    assert few.items == []
    assert [one for one in many.attempts if one.item is not None] == []
    (span,) = many.items
    assert (span.node, span.items, span.attempts) == ("fan", 9, 9)
    assert span.counts == {"completed": 8, "failed": 1}
    assert max(span.running) >= 1
    assert sum(span.failed) == 1


def test_a_process_that_dies_in_a_large_fan_out_ends_its_span_and_the_next_begins_with_the_next_process() -> (
    None
):
    history = History("r", FAN).created({"parts": list(range(20))})
    claimed(history, "w1").settled()
    for item in range(5):
        history.item_completed("fan", item).settled()
    claimed(history.passed(4000.0), "w2").settled()
    for item in range(5, 20):
        history.item_completed("fan", item).settled()
    found = drawn(history)
    killed, rest = found.items
    assert killed.ended_at - killed.started_at < 100
    assert rest.started_at - killed.ended_at >= 4000
    assert killed.counts["completed"] == 5
    assert sum(killed.crashed) == sum(killed.failed) == killed.counts["crashed"]
    assert killed.counts["crashed"] + killed.counts.get("pending", 0) == 15
    assert (rest.counts, sum(rest.crashed)) == ({"completed": 15}, 0)


# --- parts -------------------------------------------------------------------------------------------------


def random_history(seed: int) -> History:
    luck = random.Random(seed)
    sketch = attended(nested(luck, depth=2), luck)
    history = History("r", sketch.flow()).created()
    for step, _ in enumerate(play(history, sketch, luck, trouble=0.1, inside=0.4)):
        if step > 150 and luck.random() < 0.02:
            break
    return history


def pieces(found: Timeline) -> list[Any]:
    lists = (found.holders, found.attempts, found.items, found.waits, found.acts)
    return sorted((one for part in lists for one in part), key=lambda one: (one.seq, type(one).__name__))


@pytest.mark.parametrize("seed", [*range(10), 76, 90])
def test_pages_and_windows_show_what_the_whole_timeline_shows(seed: int) -> None:
    history = random_history(seed)
    store = MemoryStore(clock=lambda: history.at)
    history.write(store)
    row = store.run("r")
    whole = timeline(store, row, Part(limit=10**6))
    assert whole.next is None
    paged, after = [], 0
    while True:
        page = timeline(store, row, Part(after=after, limit=7))
        paged += pieces(page)
        if page.next is None:
            break
        assert page.next > after
        after = page.next
    assert paged == pieces(whole)
    luck = random.Random(seed)
    for _ in range(5):
        begin, end = sorted(luck.uniform(row.created_at, row.updated_at) for _ in range(2))
        window = timeline(store, row, Part(from_at=begin, to_at=end, limit=10**6))
        for part in ("holders", "attempts", "waits"):
            shown = [
                one
                for one in getattr(whole, part)
                if one.started_at <= end and (one.ended_at is None or one.ended_at >= begin)
            ]
            assert getattr(window, part) == shown, part


@pytest.mark.parametrize("seed", range(12))
def test_the_attempts_of_a_timeline_are_those_that_the_state_counts(seed: int) -> None:
    history = random_history(seed)
    found = drawn(history, limit=10**6)
    of_nodes = {
        (one.node, one.iteration, one.execution, one.attempt) for one in found.attempts if one.item is None
    }
    began = {key for key in of_nodes if key not in skipped(found)}
    assert len(began) == sum(node.tries for node in history.state.nodes.values())
    if history.state.status in ENDED:
        assert not [one for one in found.attempts if one.ended_at is None]
        assert not [one for one in found.waits if one.ended_at is None]


def skipped(found: Timeline) -> set[tuple[str, int, int, int]]:
    """Visits that were skipped before an attempt began."""
    return {
        (one.node, one.iteration, one.execution, one.attempt)
        for one in found.attempts
        if one.status == "skipped" and one.started_at == one.ended_at
    } - {
        (one.node, one.iteration, one.execution, one.attempt)
        for one in found.attempts
        if one.status != "skipped"
    }


def test_a_window_late_in_a_long_log_is_read_without_the_events_before_it() -> None:
    loop = outline("START a", branches={"a": "a END"}, max_iterations=2000)
    history = History("r", loop).created()
    for _ in range(1000):
        history.completed("a", routes=["a"])
    whole, store = MemoryStore(clock=lambda: history.at), MemoryStore(clock=lambda: history.at)
    history.write(whole)
    crashed_copy(whole, "r", whole.run("r").seq, store, snapshot_at=1900)
    row, read = store.run("r"), 0
    events_of = store.events

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def events(self, *args: Any, **options: Any) -> Any:
            nonlocal read
            found = events_of(*args, **options)
            read += len(found)
            return found

    found = timeline(Counting(), row, Part(from_at=row.updated_at - 10, limit=100))  # type: ignore[arg-type]
    assert 4 <= len(found.attempts) <= 6
    assert read < 400
