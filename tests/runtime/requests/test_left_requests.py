"""Requests that do not execute: `resume`, `retry` and `skip` with `execute=False` are left in the inbox, and a worker carries
them out. The calling process claims nothing and executes nothing, and needs no flow.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asking import Order, error_of, leave, refused, requests, waiting, works
from harness import Stage

import holdfast as hf
from holdfast.runtime.door import Door
from holdfast.storage.oversize import BLOB_OVER, references
from holdfast.storage.rows import open_row


@pytest.fixture
def order(stage: Stage) -> Order:
    return Order().fail(stage)


@pytest.mark.parametrize(
    ("verb", "given"), [("resume", ()), ("retry", ()), ("retry", ("send",)), ("skip", ("send",))]
)
def test_a_request_that_is_left_is_carried_out_by_a_worker(
    stage: Stage, order: Order, verb: str, given: tuple[str, ...]
) -> None:
    before, fence = stage.kinds(), stage.store.run("r").fence
    run = leave(stage, verb, *given, execute=False, by="ann", reason="stamps came")
    assert (run.status, run.repeated) == ("failed", False)
    assert (stage.kinds(), stage.store.run("r").fence, order.ran) == (before, fence, [])
    assert [(one.verb, one.by, one.reason) for one in waiting(stage)] == [(verb, "ann", "stamps came")]
    (ended,) = works(stage, order.flow)
    assert ended.status == "completed"
    assert order.ran == ([] if verb == "skip" else ["send"])
    assert (waiting(stage), requests(stage), stage.problems()) == ([], [], [])


def test_the_events_name_who_asked_and_why(stage: Stage, order: Order) -> None:
    leave(stage, "resume", execute=False, by="ann", reason="stamps came")
    works(stage, order.flow)
    (resumed,) = stage.told("RunResumed")
    assert (resumed.by, resumed.reason) == ("ann", "stamps came")


def test_a_resume_that_is_left_carries_every_option(stage: Stage, order: Order) -> None:
    leave(stage, "resume", restart_at="charge", edit={"plain": "cocoa"}, confirm=["charge"], execute=False)
    (ended,) = works(stage, order.flow)
    assert ended.state.log == ["charged for cocoa", "sent cocoa"]
    assert stage.told("RunRewound")[0].confirmed == ["charge"]


def test_an_edit_function_is_called_by_the_caller_with_the_state_at_the_place_of_the_resume(
    stage: Stage, order: Order
) -> None:
    seen: list[Any] = []

    def stronger(state: Any) -> dict[str, Any]:
        seen.append(list(state.log))
        return {"plain": f"strong {state.plain}"}

    options = {"restart_at": "charge", "confirm": ["charge"], "execute": False}
    leave(stage, "resume", edit=stronger, flows=(order.flow,), **options)
    assert seen == [[]]  # before `charge` had completed
    (ended,) = works(stage, order.flow)
    assert ended.state.log == ["charged for strong tea", "sent strong tea"]
    assert len(seen) == 1


def test_an_edit_function_is_refused_if_the_run_has_moved_since(stage: Stage, order: Order) -> None:
    leave(stage, "resume", edit=lambda state: {"plain": "x"}, execute=False, flows=(order.flow,))
    seen = stage.store.run("r").seq
    stage.verb(
        order.flow, "signal", "news", id="n1"
    )  # two seeded engines would give both requests the same random id
    works(stage, order.flow)
    ((verb, error, reason),) = refused(stage)
    assert (verb, error, order.ran) == ("resume", "ResumeRefused", [])
    assert f"computed from the state at event {seen}, and the run has moved since (SignalReceived)" in reason


def test_a_function_without_the_flow_names_the_flow_that_is_needed(stage: Stage, order: Order) -> None:
    error = error_of(stage, "resume", edit=lambda state: None, execute=False)
    assert isinstance(error, hf.FlowNotFound)
    assert waiting(stage) == []


def test_a_validation_cannot_be_left(stage: Stage, order: Order) -> None:
    error = error_of(stage, "resume", validate=lambda state: None, execute=False)
    assert isinstance(error, hf.SettingError)
    assert "validate=" in str(error)


def test_a_plain_resume_of_a_completed_run_returns_it(stage: Stage, order: Order) -> None:
    stage.resume(order.flow)
    assert leave(stage, "resume", execute=False).status == "completed"


@pytest.mark.parametrize(
    ("verb", "given"), [("resume", {"replay": True}), ("retry", {}), ("skip", {"node": "send"})]
)
def test_a_request_to_a_run_that_is_over_is_refused_and_not_left(
    stage: Stage, order: Order, verb: str, given: dict[str, Any]
) -> None:
    stage.resume(order.flow)
    error = error_of(stage, verb, execute=False, **given)
    assert isinstance(error, hf.RunOver)
    assert "it is completed, which is final" in str(error)
    assert stage.store.inbox(run_id="r") == []


def test_a_request_to_a_run_that_does_not_exist_is_refused(stage: Stage) -> None:
    assert isinstance(error_of(stage, "resume", execute=False), hf.RunNotFound)


def test_requests_are_carried_out_in_the_order_in_which_they_were_left(stage: Stage, order: Order) -> None:
    leave(stage, "edit", {"plain": "cocoa"})
    leave(stage, "resume", execute=False)
    works(stage, order.flow)
    assert stage.store.run("r").status == "completed"
    assert stage.do(lambda engine: engine.state("r"))["log"] == ["charged for tea", "sent cocoa"]
    assert refused(stage) == []


def test_a_worker_reports_no_end_of_a_run_that_it_did_not_execute(stage: Stage, order: Order) -> None:
    leave(stage, "edit", {"plain": "cocoa"})
    leave(stage, "skip", "sned", execute=False)
    assert works(stage, order.flow) == []
    leave(stage, "edit", {"plain": "tea"})
    stage.do(lambda engine: engine.cancel("r"))
    assert stage.store.run("r").status == "cancelled"


@pytest.mark.parametrize("status", ["pending", "paused"])
def test_an_edit_and_a_resume_of_a_run_that_does_not_move_are_carried_out_one_after_the_other(
    stage: Stage, status: str
) -> None:
    order = Order()
    order.broken = False
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    if status != "pending":
        leave(stage, "pause")
    leave(stage, "edit", {"plain": "cocoa"})
    leave(stage, "resume", execute=False, by="ann")
    works(stage, order.flow)
    assert stage.do(lambda engine: engine.state("r"))["log"] == ["charged for cocoa", "sent cocoa"]
    assert [event.by for event in stage.told("RunResumed")] == ["ann"]
    assert refused(stage) == []


# --- ids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "given"), [("resume", ()), ("retry", ("send",)), ("skip", ("send", {"plain": "x"}))]
)
def test_the_same_request_twice_is_left_once(
    stage: Stage, order: Order, verb: str, given: tuple[Any, ...]
) -> None:
    first = leave(stage, verb, *given, execute=False, id="7")
    again = leave(stage, verb, *given, execute=False, id="7")
    assert (first.repeated, again.repeated, len(waiting(stage))) == (False, True, 1)
    works(stage, order.flow)
    assert leave(stage, verb, *given, execute=False, id="7").repeated
    assert stage.kinds().count("RunResumed") == 1


@pytest.mark.parametrize(("verb", "given"), [("pause", ()), ("cancel", ()), ("edit", ({"plain": "cocoa"},))])
def test_a_recorded_request_with_an_id_is_recorded_once(
    stage: Stage, verb: str, given: tuple[Any, ...]
) -> None:
    order = Order()
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    first = leave(stage, verb, *given, id="7", flows=(order.flow,))
    kinds = stage.kinds()
    again = leave(stage, verb, *given, id="7", flows=(order.flow,))
    assert (first.repeated, again.repeated) == (False, True)
    assert stage.kinds() == kinds
    assert len(kinds) == 2


@pytest.mark.parametrize(("verb", "given"), [("cancel", ()), ("signal", ("news",))])
def test_a_request_that_another_engine_carries_out_at_once_is_not_refused_although_the_run_is_over_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, verb: str, given: tuple[Any, ...]
) -> None:
    order = Order()
    order.broken = False
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    post = Door._post

    def and_works(*posted: Any) -> bool:
        is_new = post(*posted)
        worker = threading.Thread(target=works, args=(stage, order.flow))
        worker.start()
        worker.join()
        return is_new

    monkeypatch.setattr(Door, "_post", and_works)
    run = leave(stage, verb, *given, id="7")
    assert run.status == ("cancelled" if verb == "cancel" else "completed")
    assert stage.kinds().count("RunCancelled" if verb == "cancel" else "SignalReceived") == 1
    assert requests(stage) == []


def test_another_request_with_the_same_id_is_refused(stage: Stage, order: Order) -> None:
    leave(stage, "retry", "send", execute=False, id="7")
    for verb, given in (("retry", ()), ("resume", ())):
        error = error_of(stage, verb, *given, execute=False, id="7")
        assert isinstance(error, hf.RequestExists)
        assert "the id '7' (retry)" in str(error)
        assert error.request == "7"
    assert len(waiting(stage)) == 1


def test_a_repeated_request_that_was_refused_gets_the_refusal_again(stage: Stage, order: Order) -> None:
    for _ in range(2):
        error = error_of(stage, "pause", id="7")
        assert isinstance(error, hf.ResumeRefused)
        assert "run 'r' was not paused: the run is failed" in str(error)
    assert len(refused(stage)) == 1


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_an_id_needs_an_inbox(stage: Stage, order: Order, verb: str) -> None:
    error = error_of(stage, verb, id="7", flows=(order.flow,))
    assert isinstance(error, hf.SettingError)
    assert "execute=False" in str(error)
    assert order.ran == []


@pytest.mark.parametrize("id", ["", 7])
def test_an_id_that_is_not_text_is_refused(stage: Stage, order: Order, id: Any) -> None:
    assert isinstance(error_of(stage, "resume", execute=False, id=id), hf.SettingError)


@pytest.mark.parametrize(
    ("verb", "given", "named"),
    [
        ("resume", {"rename": {"send": 5}}, "$.rename"),
        ("resume", {"on_change": "perhaps"}, "$.on_change"),
        ("resume", {"force": "yes"}, "$.force"),
        ("resume", {"after": 5}, "$.after"),
        ("retry", {"node": 5}, "$.node"),
        ("skip", {"node": None}, "$.node"),
        ("resume", {"by": "\ud800"}, "by="),
        ("resume", {"reason": "a\0b"}, "reason="),
        ("resume", {"id": "x" * 513}, "up to 512 printable characters"),
        ("resume", {"id": "a\0b"}, "up to 512 printable characters"),
    ],
)
def test_an_option_that_no_engine_could_read_is_refused_at_once(
    stage: Stage, order: Order, verb: str, given: dict[str, Any], named: str
) -> None:
    error = error_of(stage, verb, execute=False, **given)
    assert isinstance(error, hf.SettingError)
    assert named in str(error)
    assert waiting(stage) == []


def test_a_whole_number_of_any_size_can_be_left(stage: Stage, order: Order) -> None:
    leave(stage, "skip", "send", {"log": [10**30]}, execute=False)
    (ended,) = works(stage, order.flow)
    assert ended.state.log[-1] == 10**30


def test_a_large_value_of_a_request_leaves_the_inbox_when_it_is_carried_out_and_becomes_a_blob(
    stage: Stage, order: Order
) -> None:
    large = "x" * (BLOB_OVER + 1)
    leave(stage, "resume", execute=False)
    leave(stage, "skip", "send", {"plain": large}, execute=False)
    assert [len(str(one.body)) > BLOB_OVER for one in stage.store.inbox(run_id="r")] == [False, True]
    works(stage, order.flow)
    assert [(one.body, one.taken > 0) for one in stage.store.inbox(run_id="r")] == [({}, True)] * 2
    (row,) = stage.store.events("r", kinds=("NodeSkipped",))
    assert len(references(row.body)) == 1
    assert open_row(row, stage.store.blobs).event.changes.set == {"plain": large}
