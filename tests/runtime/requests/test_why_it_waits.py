"""The diagnosis of a run says which request waits for an engine, for how long, and whether a live worker takes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from asking import Order, leave, post, works
from harness import Stage

from holdfast.reading import inbox, text
from holdfast.reading.cases import case_of
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.reading.reader import Reader


def found(stage: Stage) -> Diagnosis:
    case = case_of(stage.store, stage.store.run("r"), holders=stage.store.queues.holders())
    return diagnose(case, stage.store.now())


def test_a_failed_run_with_a_request_says_that_no_live_worker_takes_it_and_how_to_start_one(
    stage: Stage,
) -> None:
    Order().fail(stage)
    leave(stage, "resume", execute=False, by="ann")
    asked_at = text.soon(stage.store.now(), stage.store.now())
    stage.clock.advance(300)
    said = found(stage)
    assert (said.kind, said.status) == ("failed", "failed")
    assert (
        f"; the request 'resume' by ann has waited since {asked_at}, and no live worker takes flow 'order'"
        in said.reason
    )
    assert said.remedies[0].command.startswith("holdfast worker FILE.py")
    assert any(one.command.startswith("holdfast resume r") for one in said.remedies)


def test_the_number_of_further_requests_is_told(stage: Stage) -> None:
    Order().fail(stage)
    for number in range(3):
        post(stage, inbox.Edit(id=str(number), fields={"plain": "x"}))
    assert "the request 'edit' has waited since" in found(stage).reason
    assert "(and 2 more requests)" in found(stage).reason


def test_a_request_that_was_handled_is_not_mentioned(stage: Stage) -> None:
    order = Order().fail(stage)
    leave(stage, "edit", {"plain": "x"})
    works(stage, order.flow)
    assert "request" not in found(stage).reason


def test_a_refused_request_does_not_look_like_an_answer(stage: Stage) -> None:
    order = Order()
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    before = Reader(stage.store).diagnose("r")
    stage.do(lambda engine: engine.pause("r"))
    stage.verb(order.flow, "edit", {"plain": "x"})
    assert (before.kind, Reader(stage.store).diagnose("r").answered) == ("no worker", False)


def test_an_answer_counts_although_a_request_was_refused_after_it(stage: Stage) -> None:
    def body(state: Any, ctx: Any) -> Any:
        yield ctx.wait_for("go")

    flow = stage.one(body)
    stage.run(flow)
    stage.verb(flow, "signal", "go")
    assert found(stage).answered
    stage.verb(flow, "edit", {"plain": "x"})
    assert found(stage).answered


def test_a_run_that_begins_later_says_when(stage: Stage) -> None:
    order, begins = Order(), datetime.fromtimestamp(stage.clock.now() + 3600, UTC)
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r", begin_at=begins))
    said = found(stage)
    assert (said.kind, said.reason[:13]) == ("waiting", "it begins at ")
    stage.clock.advance(3601)
    assert found(stage).kind == "no worker"
