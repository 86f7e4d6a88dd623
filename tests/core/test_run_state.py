from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import events, run_state
from holdfast.core.events import Changes
from holdfast.core.fold import fold
from holdfast.core.run_state import RunState, stretches
from holdfast.errors import Recoverable, StoreCorrupt
from holdfast.testing.builders import History, outline

# --- stretches ---------------------------------------------------------------------------------------


def test_a_log_without_rewinds_is_one_stretch():
    assert stretches([], 7) == [(1, 7)]


def test_a_rewind_leaves_out_what_lies_between():
    assert stretches([(8, 3)], 9) == [(1, 3), (8, 9)]


def test_a_place_before_a_rewind_does_not_know_of_it():
    assert stretches([(8, 3)], 7) == [(1, 7)]


def test_a_rewind_into_what_an_earlier_one_left_out_comes_back_to_it():
    """6 went back to 2; 9 went back to 4, which lies before 6: what counts is 1 to 4, then 9."""
    assert stretches([(6, 2), (9, 4)], 10) == [(1, 4), (9, 10)]


def test_a_rewind_into_the_stretch_behind_another_keeps_both():
    assert stretches([(6, 2), (9, 7)], 10) == [(1, 2), (6, 7), (9, 10)]


def test_a_fork_begins_behind_its_base():
    assert stretches([], 9, first=6) == [(6, 9)]
    assert stretches([(8, 5)], 9, first=6) == [(8, 9)]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_stretches_are_the_places_that_a_walk_through_the_log_stood_at(steps, luck):
    """An independent account: every place remembers the places it came through."""
    came_through: dict[int, list[int]] = {0: []}
    rewinds = []
    for seq, rewinds_here in enumerate(steps, 1):
        before = luck.randrange(1, seq) if rewinds_here and seq > 1 else seq - 1
        if before != seq - 1:
            rewinds.append((seq, before))
        came_through[seq] = [*came_through[before], seq]
    for seq in range(1, len(steps) + 1):
        assert [
            place for first, last in stretches(rewinds, seq) for place in range(first, last + 1)
        ] == came_through[seq]


def test_a_state_knows_the_stretches_it_is_the_fold_of():
    told = History("r", outline("START a b c END")).created().completed("a").completed("b")
    at_a = RunState("r")
    for stored in told.events()[:3]:
        fold(at_a, stored)
    fold(at_a, events.Stored(6, 99.0, events.RunRewound(to=3)))
    assert at_a.stretches() == stretches([(6, 3)], 6) == [(1, 3), (6, 6)]


# --- snapshots ---------------------------------------------------------------------------------------


def full() -> RunState:
    """A state that has something in nearly every field."""
    flow = outline(
        "START a b END", "START ask END", "START fan END", "START bad END",
        nodes={"ask": {"idempotent": False}, "fan": {"each": lambda state: [1, 2, 3], "limit": 2}},
    )  # fmt: skip
    told = (
        History("r", flow)
        .created({"list": [1], "map": {"k": "v"}}, timeout_s=9.0)
        .started("a", "ask", "fan", "bad")
        .settled()
    )
    told.item_completed("fan", 0, {"item": 0}).item_failed("fan", 1, ValueError("x"))
    told.completed("a", {"list": [1, 2], "new": None}).taken_up().settled()
    told.failed("bad", Recoverable("later"), retry_in=9.0).paused()
    told.record(events.RunRewound(to=told.state.seq, executions={"a": {1: 3}}, active_s=99.0))
    return told.settled().state


def test_a_snapshot_holds_the_whole_state():
    state = full()
    assert run_state.load(run_state.dump(state)) == state


def test_a_snapshot_leaves_the_state_as_it_was():
    state = full()
    before = deepcopy(state)
    run_state.dump(state)
    assert state == before


def test_inputs_share_with_the_values_what_is_equal_after_loading_too():
    """Many open visits cost little, and a container that an input refers to is copied before it is changed."""
    told = (
        History("r", outline("START a END", "START b END"))
        .created({"big": list(range(1000))})
        .started("a", "b")
    )
    loaded = run_state.load(run_state.dump(told.state))
    assert loaded.nodes["a"].input["big"] is loaded.values["big"]
    assert len(run_state.dump(told.state)) < 6_000
    for state in (told.state, loaded):
        fold(
            state,
            events.Stored(
                4, 99.0, events.NodeCompleted(node="a", iteration=1, changes=Changes(append={"big": [-1]}))
            ),
        )
        assert state.values["big"][-1] == -1
        assert state.nodes["b"].input["big"][-1] == 999


def test_an_input_that_differs_from_the_values_is_kept_as_it_was():
    told = History("r", outline("START a END", "START b END")).created({"x": 1, "gone": 2}).started("a", "b")
    changes = Changes(set={"x": 5, "new": 6}, unset=["gone"])
    told.record(events.NodeCompleted(node="a", iteration=1, changes=changes, routes=["END"]))
    loaded = run_state.load(run_state.dump(told.state))
    assert loaded.values == {"x": 5, "new": 6}
    assert loaded.nodes["b"].input == {"x": 1, "gone": 2}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"state": {}}', b'{"state": {"run_id": 7}, "inputs": {}}', b"\xff"]
)
def test_a_snapshot_that_cannot_be_read_is_corrupt(body):
    with pytest.raises(StoreCorrupt, match="snapshot"):
        run_state.load(body)


def test_a_loaded_state_goes_on_like_the_one_it_was_made_of():
    told = History("r", outline("START a b c END")).created({"n": 0}).completed("a", {"n": 1})
    loaded = run_state.load(run_state.dump(told.state))
    seen = told.state.seq
    told.completed("b", {"n": 2}).completed("c").settled()
    for stored in told.events()[seen:]:
        fold(loaded, stored)
    assert loaded == told.state


def test_the_next_execution_counts_those_that_were_rewound():
    state = RunState("r", executions={"a": {2: 3}})
    assert [state.next_execution("a", 1), state.next_execution("a", 2), state.next_execution("b", 1)] == [
        1,
        4,
        1,
    ]


def test_the_same_history_gives_the_same_snapshot():
    assert run_state.dump(full()) == run_state.dump(full())
