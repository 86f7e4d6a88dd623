"""What a fork must not repeat unasked, found in the log of its parent: against a slow and simple account, on random histories
with crashes, failures, skips and rewinds; and by hand, for compacted logs, forks of forks and renamed nodes.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from holdfast.core import event_encoding, events
from holdfast.core.begun import Names, begun_visits
from holdfast.core.events import Begun, Changes, Stored
from holdfast.core.fold import fold
from holdfast.core.kinds import CHECKPOINTS
from holdfast.core.readiness import Readiness
from holdfast.core.requests import Resume
from holdfast.core.run_state import RunState
from holdfast.core.writers import Writers
from holdfast.runtime.preparation import _rewind
from holdfast.testing.builders import History, outline
from holdfast.testing.flows import Sketch, arbitrary, attended, nested, with_risks
from holdfast.testing.random_histories import play

# --- histories that are rewound ----------------------------------------------------------------------


def way_to(log: list[Stored], seq: int) -> list[Stored]:
    """The events that led to an event, by walking back from it."""
    came = []
    while seq:
        stored = log[seq - 1]
        came.append(stored)
        seq = stored.event.to if stored.kind == "RunRewound" else seq - 1
    return came[::-1]


def state_at(log: list[Stored], seq: int) -> RunState:
    state = RunState("r")
    for stored in way_to(log, seq):
        fold(state, stored)
    return state


def rewind(history: History, to: int) -> None:
    """Go back to an event, as `resume(checkpoint=…)` does."""
    head, state = history.state, state_at(history.events(), to)
    event = _rewind(head, state, to, Resume(), {})
    encoded = event_encoding.encode(event)
    fold(state, Stored(len(history.log) + 1, history.at, event))
    history.log.append((history.at, encoded))
    history.at += 1.0
    history.state = state
    history.ready = Readiness(history.flow.topology, state)
    history.writers = Writers(history.flow.topology, state)


def places(history: History) -> list[int]:
    return [stored.seq for stored in history.events() if stored.kind in CHECKPOINTS]


# --- the slow and simple account ---------------------------------------------------------------------


def account(log: list[Stored], to: int, sketch: Sketch) -> set[tuple[Any, ...]]:
    """(node, iteration, item, its result, whether it is kept), written from the rule and without a state."""
    begun: dict[tuple[str, int, int | None], Changes | None] = {}
    for stored in log:
        event = stored.event
        match stored.kind:
            case "NodeStarted" if event.node not in sketch.items:
                begun.setdefault((event.node, event.iteration, None))
            case "ItemStarted":
                begun.setdefault((event.node, event.iteration, event.item))
            case "NodeCompleted" if event.node not in sketch.items:
                begun[event.node, event.iteration, None] = event.changes
            case "ItemCompleted":
                begun[event.node, event.iteration, event.item] = event.changes
            case "NodeSkipped" if event.changes != Changes():
                if any((event.node, event.iteration) == visit[:2] for visit in begun):
                    begun[event.node, event.iteration, None] = event.changes
    done: set[tuple[str, int]] = set()
    within: dict[tuple[str, int], dict[int, Changes]] = {}
    for stored in way_to(log, to):
        event = stored.event
        match stored.kind:
            case "NodeCompleted" | "NodeSkipped":
                done.add((event.node, event.iteration))
            case "ItemsListed":
                within[event.node, event.iteration] = {}
            case "ItemCompleted":
                within[event.node, event.iteration][event.item] = event.changes
            case "RunRewound":  # begins the open visits again
                within.clear()
    found = set()
    for (node, iteration, item), result in begun.items():
        if node in sketch.risky and (node, iteration) not in done:
            kept = within.get((node, iteration), {}).get(item)
            found.add((node, iteration, item, str(kept or result), kept is not None))
    return found


def told(found: list[Begun]) -> set[tuple[Any, ...]]:
    assert len({(one.node, one.iteration, one.item) for one in found}) == len(found)
    return {(one.node, one.iteration, one.item, str(one.result), one.kept) for one in found}


def small(luck: random.Random) -> Sketch:
    while True:
        sketch = nested(luck, depth=2) if luck.random() < 0.3 else arbitrary(luck, most=6)
        if sketch.visits is None or sum(sketch.visits.values()) <= 25:
            return with_risks(attended(sketch, luck) if luck.random() < 0.3 else sketch, luck)


def drawn(luck: random.Random) -> tuple[History, Sketch]:
    """The log of a random run, with crashes, failures, skips and rewinds."""
    sketch = small(luck)
    schedule = luck.choice(("eager", "eager", "layered"))
    history = History("r", sketch.flow(schedule=schedule, max_parallel=luck.choice((1, 2, 64)))).created()
    rewinds = luck.choice((0, 1, 3))
    playing, steps = play(history, sketch, luck, trouble=0.08, inside=0.1), 0
    while next(playing, None) is not None and steps < 400:
        steps += 1
        if rewinds and luck.random() < 0.05 and history.state.status not in ("completed", "cancelled"):
            rewinds -= 1
            rewind(history, luck.choice(places(history)))
            playing = play(history, sketch, luck, trouble=0.08, inside=0.1)
    return history, sketch


def test_what_was_begun_is_what_a_simple_account_of_300_logs_says_at_every_checkpoint() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        history, sketch = drawn(random.Random(f"begun {seed}"))
        log = history.events()
        for place in places(history):
            found = begun_visits(log, state_at(log, place), Names(log), sketch.risky, sketch.items)
            assert told(found) == account(log, place, sketch), f"seed {seed}, event {place}"
            assert all(one.run is None for one in found)
            seen.update(begun=bool(found), items=any(one.item is not None for one in found))
            seen.update(kept=any(one.kept for one in found), open=any(one.result is None for one in found))
        seen.update(rewound=any(stored.kind == "RunRewound" for stored in log))
    assert min(seen[what] for what in ("begun", "items", "kept", "open", "rewound")) > 10, seen


# --- by hand -----------------------------------------------------------------------------------------


def risky(*names: str, **options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"idempotent": False, **options.get(name, {})} for name in names}


def begun(history: History, at: int, *names: str, fan_outs: tuple[str, ...] = (), **more: Any) -> list[Begun]:
    log = history.events()
    return begun_visits(log, state_at(log, at), Names(log), names, fan_outs, **more)


def test_a_node_that_began_before_the_place_and_completed_after_it_has_its_result() -> None:
    history = History("r", outline("START a END", "START b END", nodes=risky("a"))).created()
    history.started("a").completed("b", {"n": 1})
    place = history.state.seq
    history.completed("a", {"paid": 9})
    (one,) = begun(history, place, "a")
    assert (one.node, one.iteration, one.result) == ("a", 1, Changes(set={"paid": 9}))
    assert one.at == history.events()[-1].at
    assert begun(history, history.state.seq, "a") == []


def test_a_visit_that_was_skipped_has_the_update_and_one_that_never_began_is_not_listed() -> None:
    history = History("r", outline("START a b END", nodes=risky("a", "b"))).created()
    history.started("a").taken_up().settled().answered("a", "skip", update={"paid": 3})
    history.record(events.NodeScheduled(node="b", iteration=1, why="paused"))
    history.record(
        events.NodeSkipped(node="b", iteration=1, took=1, routes=["END"], changes=Changes(set={"x": 1}))
    )
    (one,) = begun(history, 1, "a", "b")
    assert (one.node, one.result) == ("a", Changes(set={"paid": 3}))


def fan(history: History) -> History:
    """Items 0 and 1 are completed, and item 2 is running."""
    history.created().completed("x").item_completed("f", 0, {"n": 1}).item_completed("f", 1, {"n": 2})
    return history.settled()


def fan_flow() -> Any:
    return outline(
        "START x f END", "START y END", nodes={"f": {"idempotent": False, "each": lambda state: [1, 2, 3]}}
    )


def test_a_fan_out_that_was_skipped_as_a_whole_is_known_as_a_whole() -> None:
    history = fan(History("r", fan_flow()))
    place = history.completed("y").state.seq
    found = begun(history, place, "f", fan_outs=("f",))
    assert [(one.item, one.kept) for one in found] == [(0, True), (1, True), (2, False)]
    history.taken_up().settled().answered("f", "skip", update={"n": 7})
    whole, *items = begun(history, place, "f", fan_outs=("f",))
    assert (whole.item, whole.result) == (None, Changes(set={"n": 7}))
    assert [one.item for one in items] == [0, 1, 2]


def test_items_of_an_execution_that_a_caller_gave_up_are_not_kept() -> None:
    history = fan(History("r", fan_flow()))
    history.item_failed("f", 2, ValueError("no")).settled()
    history.record(events.NodeScheduled(node="f", iteration=1, why="retry", fresh=True))
    found = begun(history, history.completed("y").state.seq, "f", fan_outs=("f",))
    assert [(one.item, one.kept, one.result is None) for one in found] == [
        (0, False, False),
        (1, False, False),
        (2, False, True),
    ]


def test_of_a_compacted_log_the_state_says_what_had_begun() -> None:
    flow = outline(
        "START a b END", "START f END", nodes=risky("a", "f", f={"each": lambda state: [1, 2, 3], "limit": 2})
    )
    history = History("r", flow).created().completed("a", {"paid": 1})
    history.item_completed("f", 0, {"n": 1})
    rewind(history, 1)
    history.item_completed("f", 0, {"n": 4}).settled()
    base = state_at(history.events(), history.state.seq)
    place = history.completed("a", {"paid": 2}).state.seq
    log = history.events()
    found = begun_visits(log[base.seq :], state_at(log, place), Names(log), {"a", "f"}, {"f"}, base)
    # Which items the rewound execution of the fan-out had begun is not known.
    assert [(one.node, one.item, one.kept) for one in found] == [
        ("f", None, False),
        ("f", 0, True),
        ("f", 1, False),
        ("f", 2, False),
    ]
    found = begun_visits(log[base.seq :], state_at(log, base.seq), Names(log), {"a", "f"}, {"f"}, base)
    assert ("a", None, Changes(set={"paid": 2})) in [(one.node, one.item, one.result) for one in found]


def forked(base: RunState, visits: list[Begun], **fields: Any) -> Stored:
    event = events.RunForked(parent="r", to=base.seq, base_digest="d", lineage="r", visits=visits, **fields)
    return Stored(base.seq + 1, 0.0, event)


def test_a_fork_of_a_fork_inherits_what_is_still_open_and_says_which_run_began_it() -> None:
    state = state_at(fan(History("r", fan_flow())).events(), 1)
    visits = [
        Begun("f", 1, 0, Changes(set={"n": 1}), kept=True),
        Begun("f", 1, 1),
        Begun("x", 1, None, Changes()),
    ]
    first = forked(state, visits)
    fold(state, first)
    found = begun_visits([first], state, Names([first]), {"f", "x"}, {"f"})
    assert [(one.node, one.item, one.kept, one.run) for one in found] == [
        ("f", 0, True, "r"),
        ("f", 1, False, "r"),
        ("x", None, False, "r"),
    ]


def test_a_compacted_fork_inherits_from_its_state() -> None:
    state = state_at(fan(History("r", fan_flow())).events(), 1)
    fold(state, forked(state, [Begun("x", 1, None, Changes(set={"n": 1}), run="q"), Begun("y", 1)]))
    found = begun_visits([], state, Names([]), {"x", "y"}, (), state)
    assert [(one.node, one.result is None, one.run) for one in found] == [("x", False, "q"), ("y", True, "r")]


# --- names -------------------------------------------------------------------------------------------


def renaming(*renames: dict[str, str] | int) -> Names:
    """A log whose n-th event renames nodes, or rewinds to an event."""
    made: list[Any] = [
        events.RunRewound(to=one) if isinstance(one, int) else events.FlowChanged(fingerprint="p", rename=one)
        for one in renames
    ]
    return Names([Stored(seq, 0.0, event) for seq, event in enumerate(made, 1)])


@pytest.mark.parametrize(
    ("renames", "name", "seen_at", "forked_at", "named"),
    [
        ([{"a": "b"}], "b", 1, 0, "a"),
        ([{"a": "b"}], "a", 0, 1, "b"),
        ([{"a": "b"}], "c", 1, 0, "c"),
        ([{"a": "b"}, {"b": "c"}], "c", 2, 0, "a"),
        ([{"a": "b", "b": "a"}], "a", 1, 0, "b"),
        ([{"a": "b"}, {}, 0], "a", 3, 1, "b"),
        ([{"a": "b"}, 0, {"a": "c"}], "b", 1, 3, "c"),
        ([{"a": "b"}], "a", 1, 0, None),  # a new node that got the old name
        ([{"a": "b"}, {"b": "a"}], "a", 2, 0, "a"),
    ],
)
def test_a_node_is_followed_through_its_names(
    renames: list[Any], name: str, seen_at: int, forked_at: int, named: str | None
) -> None:
    names = renaming(*renames)
    assert names.name(names.identity(name, seen_at), forked_at) == named
