"""The states of nodes in a picture: items share marks, and only what the run is made of now counts as taken."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.core import events
from holdfast.core.run_state import RunState
from holdfast.reading import history
from holdfast.reading.picture import PictureStates, picture_states
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline

FAN = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})
LOOP = outline("START a b", branches={"b": "a END"}, nodes={"b": {"approve": "Go on?"}})


def states(store: MemoryStore, at: int | None = None, flow: Any = LOOP) -> PictureStates:
    row = store.run("r")
    state: RunState = history.load(store, "r", at, row=row)
    return picture_states(store, row, flow.definition, state)


def test_many_items_share_marks_and_the_worst_of_each_share_shows() -> None:
    written = History("r", FAN).created({"parts": list(range(401))}).settled()
    written.item_completed("fan", 0).item_completed("fan", 1)
    written.item_failed("fan", 4, ValueError("broken")).settled()
    store = MemoryStore()
    written.write(store)
    items = states(store, flow=FAN).nodes["fan"].items
    assert items is not None
    assert (items.all, items.completed, items.failed, len(items.marks)) == (401, 2, 1, 134)
    assert items.marks[:3] == ["running", "failed", "running"], "three items share a mark"
    assert items.marks[-1] == "pending"


def test_no_item_of_a_cancelled_fan_out_is_marked_as_running_or_waiting() -> None:
    written = History("r", FAN).created({"parts": list(range(3))}).settled()
    written.item_completed("fan", 0).item_failed("fan", 1, OSError("away"), retry_in=9.0)
    written.record(
        events.RunCancelled()
    )  # its process had died, so nothing records that item 2 was interrupted
    store = MemoryStore()
    written.write(store)
    items = states(store, flow=FAN).nodes["fan"].items
    assert items is not None
    assert (items.marks, items.running, items.waiting) == (["completed", "cancelled", "cancelled"], 0, 0)


def test_a_node_whose_router_failed_is_marked_as_failed() -> None:
    flow = outline("START a", "b END", branches={"a": "b END"})
    store = MemoryStore()
    History("r", flow).created().misrouted("a", AttributeError("no score")).settled().write(store)
    mark = states(store, flow=flow).nodes["a"]
    assert (mark.status, mark.misrouted, mark.error) == ("failed", True, "AttributeError: no score")


def test_a_fan_out_that_completed_still_counts_its_items() -> None:
    store = MemoryStore()
    hf.run(FAN, {"parts": [1, 2, 3]}, run_id="r", store=store)
    items = states(store, flow=FAN).nodes["fan"].items
    assert items is not None
    assert (items.all, items.completed, items.marks) == (3, 3, ["completed"] * 3)


def test_edges_of_branches_that_a_rewind_has_undone_were_not_taken() -> None:
    store = MemoryStore()
    written = History("r", LOOP).created().completed("a").settled().answered("b", "approve")
    written.completed("b", routes=["a"]).completed("a").settled().write(store)
    assert states(store).chosen == {"b": ["a"]}
    assert ("b", "a") in states(store).taken
    assert states(store).nodes["a"].iteration == 2
    early = next(one.seq for one in history.checkpoints(store, "r") if one.kind == "NodeCompleted")
    hf.resume(f"r@{early}", store=store, flows=[LOOP])
    found = states(store)
    assert (found.chosen, found.taken) == ({}, [("START", "a"), ("a", "b")])


def test_a_node_that_waits_for_a_retry_says_until_when() -> None:
    store = MemoryStore()
    written = History("r", LOOP).created().failed("a", OSError("away"), retry_in=5.0)
    written.write(store)
    node = states(store).nodes["a"]
    assert (node.status, node.waits_for, node.until) == (
        "waiting",
        "retry",
        written.state.nodes["a"].retry_at,
    )
    assert node.error == "OSError: away"


def test_a_node_that_waits_in_the_memory_of_its_process_is_waiting_and_one_of_a_dead_process_crashed() -> (
    None
):
    held, dead = MemoryStore(), MemoryStore()
    flow = outline("START a END")
    written = History("r", flow).created().started("a").awaiting("a", "paid")
    written.write(held, holder=this_process())
    written.write(dead)
    assert (states(held, flow=flow).nodes["a"].status, states(held, flow=flow).status) == (
        "waiting",
        "waiting",
    )
    node = states(dead, flow=flow).nodes["a"]
    assert (node.status, node.crashed, node.waits_for) == ("running", True, "signal")


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_what_a_branch_chose_is_known_in_both_schedules(schedule: str) -> None:
    flow = outline("START a", "b END", "c END", branches={"a": "b c"}, schedule=schedule)
    store = MemoryStore()
    hf.run(flow, {}, run_id="r", store=store)
    assert states(store, flow=flow).chosen == {"a": ["c"]}
    assert states(store, flow=flow).taken == [("START", "a"), ("c", "END"), ("a", "c")]
