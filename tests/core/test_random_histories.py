"""Properties of all histories, on random ones: luck draws the flow, and `decide` drives it through steps, waits, signals,
answers, rejections, crashes, failures, pauses and resumes.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import commands, events, run_state
from holdfast.core.events import Stored
from holdfast.core.fold import fold
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import NODE_LEVEL, RunState
from holdfast.testing.builders import History
from holdfast.testing.flows import Sketch, arbitrary, attended, nested
from holdfast.testing.plan_sketches import PlanSketch, draw_plan
from holdfast.testing.random_histories import play, play_plan

STEPS_MAX = 4_000


def small(luck: random.Random) -> Sketch:
    while True:
        sketch = nested(luck, depth=2) if luck.random() < 0.6 else arbitrary(luck, most=5)
        if sketch.visits is None or sum(sketch.visits.values()) <= 25:
            return replace(attended(sketch, luck), crash_limit=luck.choice((1, 3, 100)))


def for_random_histories(check: Callable[[History], None], *, each_step: bool, examples: int) -> Counter[str]:
    """Hypothesis draws the seeds, and prints the one that fails. Returns how often each kind of event was seen."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples)
    @given(st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        luck = random.Random(seed)
        sketch = small(luck)
        schedule = luck.choice(("eager", "eager", "layered"))
        history = History("r", sketch.flow(schedule=schedule, max_parallel=luck.choice((1, 2, 64)))).created()
        for step, _ in enumerate(play(history, sketch, luck, trouble=0.08, inside=0.4)):
            if each_step:
                check(history)
            assert step < STEPS_MAX, "the run does not end"
        assert history.state.status == "completed"
        check(history)
        seen.update(stored.kind for stored in history.events())

    holds()
    return seen


def for_random_plans(check: Callable[[History], None], *, each_step: bool, examples: int) -> Counter[str]:
    """As `for_random_histories`, for plans whose failures are all taken by edges."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples)
    @given(st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        luck = random.Random(seed)
        sketch = draw_plan(luck, least=3, most=20, handled=True)
        history = History("r", sketch.flow()).created(schedule=luck.choice(("eager", "eager", "layered")))
        for step, _ in enumerate(play_plan(history, sketch, luck, trouble=0.05)):
            if each_step:
                check(history)
            assert step < STEPS_MAX, "the run does not end"
        assert history.state.status == "completed"
        check(history)
        seen.update(stored.kind for stored in history.events())

    holds()
    return seen


def counted(state: RunState) -> dict[str, int]:
    return {
        status: sum(node.status == status for node in state.nodes.values())
        for status in ("running", "waiting")
    }


def folded(log: list[Stored]) -> RunState:
    state = RunState("r")
    for stored in log:
        fold(state, stored)
    return state


def test_random_histories_hold_events_of_every_kind_that_comes_without_a_person_at_the_controls():
    seen = set(for_random_histories(lambda history: None, each_step=False, examples=60))
    seen |= set(for_random_plans(lambda history: None, each_step=False, examples=30))
    by_hand = {
        "RunForked", "RunClaimed", "RunRewound", "RunInterrupted", "RunCancelled", "RequestRefused", "ResumeRefused",
        "StateEdited", "StateUpgraded", "FlowChanged", "NodeInterrupted", "NodeRouted", "RoutingFailed",
    }  # fmt: skip
    if set(events.KINDS) - seen != by_hand:  # sixty may be too few
        seen |= set(for_random_histories(lambda history: None, each_step=False, examples=400))
    assert set(events.KINDS) - seen == by_hand


def test_what_is_kept_beside_the_state_is_what_the_state_says_after_every_event():
    def check(history: History) -> None:
        state, fresh = history.state, Readiness(history.flow.topology, history.state)
        ready = history.ready
        assert (set(ready.due), set(ready.unscheduled)) == (set(fresh.due), set(fresh.unscheduled))
        assert (set(ready.open), ready.live) == (set(fresh.open), fresh.live)
        assert counted(state) == {"running": state.running, "waiting": state.waiting}

    for_random_histories(check, each_step=True, examples=60)


def test_the_edges_of_a_plan_are_counted_as_the_state_says_after_every_event():
    def check(history: History) -> None:
        ready, fresh = history.ready, Readiness(history.flow.topology, history.state)
        assert (set(ready.due), set(ready.unscheduled)) == (set(fresh.due), set(fresh.unscheduled))
        assert (set(ready.open), set(ready.undecided())) == (set(fresh.open), set(fresh.undecided()))
        assert set(ready.doomed) == set(fresh.doomed)
        assert counted(history.state) == {"running": history.state.running, "waiting": history.state.waiting}

    for_random_plans(check, each_step=True, examples=60)


def test_every_run_of_a_plan_comes_to_what_plain_python_says():
    def check(history: History) -> None:
        if history.state.status != "completed":
            return
        sketch = msgspec.convert(history.flow.definition.plan["sketch"], PlanSketch)
        expected = sketch.expect()
        skipped = {"handled": "skipped"}
        assert {name: node.status for name, node in history.state.nodes.items()} == {
            name: skipped.get(status, status) for name, status in expected.statuses.items()
        }
        outputs = history.state.values["outputs"]
        assert {name: {"n": told["n"]} for name, told in outputs.items()} == expected.outputs

    for_random_plans(check, each_step=False, examples=60)


def test_a_snapshot_of_a_plan_anywhere_and_the_tail_behind_it_give_the_full_fold():
    for_random_plans(same_by_snapshot, each_step=False, examples=25)


def test_any_prefix_of_the_history_of_a_plan_can_be_carried_on():
    def check(history: History) -> None:
        luck = random.Random(history.state.seq)
        cut = History("r", history.flow)
        for stored in history.events()[: luck.randrange(1, len(history.log))]:
            cut.at = stored.at
            cut.record(stored.event)
        sketch = msgspec.convert(history.flow.definition.plan["sketch"], PlanSketch)
        if cut.state.status != "completed":
            failure = cut.state.failure
            cut.taken_up(force=failure is not None and failure.kind == "fatal")
            for _ in play_plan(cut, sketch, luck):
                pass
            assert cut.state.values == history.state.values

    for_random_plans(check, each_step=False, examples=40)


def test_a_run_is_never_said_to_be_over_while_something_waits():
    def check(history: History) -> None:
        state = history.state
        pending = state.questions or state.waits or any(node.parked for node in state.nodes.values())
        if pending and not state.failed:
            over = (commands.CompleteRun, commands.FailRun)
            assert not [command for command in history.commands() if isinstance(command, over)]
        if state.status == "completed":
            assert not pending

    for_random_histories(check, each_step=True, examples=60)


def test_a_run_wakes_by_itself_only_for_timers_and_retries():
    def check(history: History) -> None:
        said = history.commands()
        starts = any(isinstance(command, (commands.StartNode, commands.StartItem)) for command in said)
        if not said or starts or history.state.running:
            return
        alone, spoken = times(history.state)
        match said[-1]:
            case commands.WakeAt(at):
                assert alone
                assert at == min(time for time in alone + spoken if time > history.at)
            case commands.DueAt(at):
                assert not [time for time in alone if time > history.at]
                assert at == min(time for time in spoken if time > history.at)

    for_random_histories(check, each_step=True, examples=60)


def times(state: RunState) -> tuple[list[float], list[float]]:
    """When something comes by itself, and when somebody is late."""
    alone = [node.retry_at for node in state.nodes.values() if node.retry_at is not None]
    alone += [at for node in state.nodes.values() if node.items for at in node.items.again.values() if at]
    alone += [w.until for w in state.waits.values() if w.kind == "timer" and w.until is not None]
    spoken = [w.until for w in state.waits.values() if w.kind != "timer" and w.until is not None]
    return alone, spoken + [q.until for q in state.questions.values() if q.until is not None]


def test_whatever_waits_belongs_to_a_visit_that_is_open_and_has_not_come():
    def check(history: History) -> None:
        state = history.state
        for wait in state.waits.values():
            visit = state.nodes[wait.node]
            assert wait.node in state.open
            assert (wait.iteration, wait.execution) == (visit.iteration, visit.execution)
            assert wait.slot not in visit.kept.get(NODE_LEVEL if wait.item is None else wait.item, {})
        for key, question in state.questions.items():
            assert question.key == key
            assert question.node in state.open or question.node in state.arrivals
        for name, visit in state.nodes.items():
            for level, slots in visit.parked.items():
                came = any(slot in visit.kept.get(level, {}) for slot in slots)
                again = visit.items is not None and level in visit.items.again
                assert came == (again if visit.items is not None else visit.status == "pending"), name
            if visit.items is not None:
                assert accounted(visit.items, set(visit.parked)), name

    for_random_histories(check, each_step=True, examples=60)


def accounted(items: run_state.Items, parked: set[int]) -> bool:
    """Every item that has begun is done, running, due again, failed or waiting: none is lost."""
    known = {*items.done, *items.running, *items.again, *items.failed, *parked}
    return known == set(range(items.begun)) and len(items.done) + len(items.running) <= items.begun


def same_by_snapshot(history: History) -> None:
    whole, state = folded(history.events()), RunState("r")
    assert whole == history.state
    for place, stored in enumerate(history.events(), 1):
        fold(state, stored)
        if place % 7 == 0:
            loaded = run_state.load(run_state.dump(state))
            assert loaded == state
            for later in history.events()[place:]:
                fold(loaded, later)
            assert loaded == whole


def test_a_snapshot_anywhere_and_the_tail_behind_it_give_the_full_fold():
    for_random_histories(same_by_snapshot, each_step=False, examples=25)


def test_any_prefix_of_any_history_folds_and_can_be_carried_on():
    """The process dies behind any event, and another one takes the run up: it goes on to its end."""

    def check(history: History) -> None:
        luck = random.Random(history.state.seq)
        cut = History("r", history.flow)
        for stored in history.events()[: luck.randrange(1, len(history.log))]:
            cut.at = stored.at
            cut.record(stored.event)
        if cut.state.status != "completed":
            fatal = cut.state.failure is not None and cut.state.failure.kind == "fatal"
            cut.taken_up(force=fatal).settled()
            assert (
                cut.commands() != [] or cut.running or cut.state.status in ("completed", "failed", "waiting")
            )

    for_random_histories(check, each_step=False, examples=60)


def test_only_an_approval_lets_a_gated_visit_begin():
    def check(history: History) -> None:
        approved: set[tuple[str, int, int]] = set()
        for stored in history.events():
            event = stored.event
            if isinstance(event, events.QuestionAnswered) and not event.refused:
                approved.add((event.node, event.iteration, event.execution))
            elif isinstance(event, events.NodeStarted) and history.flow.nodes[event.node].options.gated:
                assert (event.node, event.iteration, event.execution) in approved

    for_random_histories(check, each_step=False, examples=60)


def test_every_signal_is_taken_once_and_in_the_order_they_came():
    """Each is sent with another payload. What was set aside has been taken, and may be taken again."""

    def check(history: History) -> None:
        came = [s.event.payload for s in history.events() if s.kind == "SignalReceived"]
        state, taken = RunState("r"), {}
        for stored in history.events():
            fold(state, stored)
            kept = list(signals_kept(state).values())
            there = [*kept, *state.signals.get("go", ()), *(one.payload for one in state.aside)]
            assert len(set(there)) == len(there), "one signal is in two places"
            taken.update(dict.fromkeys(sorted(kept)))
        assert [*taken, *(one for one in state.signals.get("go", ()) if one not in taken)] == came

    for_random_histories(check, each_step=False, examples=40)


def signals_kept(state: RunState) -> dict[tuple, int]:
    """Which visit holds which payload."""
    return {
        (name, visit.iteration, visit.execution, level): slots["signal:go:1"][0]
        for name, visit in state.nodes.items()
        for level, slots in visit.kept.items()
        if slots.get("signal:go:1")
    }


def test_no_cost_is_lost_or_counted_twice():
    def check(history: History) -> None:
        spent = [s.event for s in history.events() if s.kind == "CostIncurred"]
        assert history.state.usd == sum(event.usd for event in spent)
        assert history.state.tokens == sum(event.tokens for event in spent)
        assert history.state.usd == sum(node.usd for node in history.state.nodes.values())

    for_random_histories(check, each_step=False, examples=40)


def test_an_attempt_behind_a_wait_is_the_same_one_and_every_other_start_is_the_next():
    def check(history: History) -> None:
        tries: Counter[str] = Counter()
        last: dict[str, tuple[int, int, int]] = {}
        for stored in history.events():
            event = stored.event
            if isinstance(event, events.NodeStarted):
                place = (event.iteration, event.execution, event.attempt)
                if event.woken:
                    assert place == last[event.node]
                else:
                    assert place > last.get(event.node, (0, 0, 0))
                    tries[event.node] += 1
                last[event.node] = place
        assert {name: node.tries for name, node in history.state.nodes.items() if node.tries} == dict(tries)

    for_random_histories(check, each_step=False, examples=40)
