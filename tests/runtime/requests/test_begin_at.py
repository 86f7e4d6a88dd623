"""`start(…, begin_at=…)`: the run is pending, and workers leave it alone until that time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from asking import Order, leave, post, waiting, works
from harness import Stage

import holdfast as hf
from holdfast.reading import inbox


def at(stage: Stage, seconds: float) -> datetime:
    return datetime.fromtimestamp(stage.clock.now() + seconds, UTC)


def start(stage: Stage, order: Order, begin_at: Any, **options: Any) -> str:
    order.broken = False
    run_id: str = stage.do(
        lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r", begin_at=begin_at, **options)
    )
    return run_id


@pytest.fixture
def order() -> Order:
    return Order()


def test_a_worker_leaves_the_run_alone_until_its_time(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600))
    run = stage.do(lambda engine: engine.get("r"))
    assert (run.status, run.due_at) == ("pending", stage.clock.now() + 3600)
    works(stage, order.flow)
    assert (order.ran, stage.kinds()) == ([], ["RunCreated"])
    stage.clock.advance(3600)
    works(stage, order.flow)
    assert (order.ran, stage.store.run("r").status) == (["charge", "send"], "completed")
    assert stage.problems() == []


def test_a_listing_says_when_it_begins(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600))
    (summary,) = stage.do(lambda engine: engine.runs())
    assert summary.due_at == stage.clock.now() + 3600


def test_a_time_in_another_zone_is_the_same_time(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600).astimezone(timezone(timedelta(hours=5))))
    assert stage.told("RunCreated")[0].options["begin_at"] == stage.clock.now() + 3600


def test_a_resume_begins_it_at_once(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600))
    assert stage.resume(order.flow).status == "completed"


def test_a_resume_that_is_left_begins_it_at_once_too(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600))
    leave(stage, "resume", execute=False)
    works(stage, order.flow)
    assert stage.store.run("r").status == "completed"


@pytest.mark.parametrize(
    "sent",
    [inbox.Edit(id="1", fields={"plain": "cocoa"}), inbox.Signal(id="1", name="x"), inbox.Pause(id="1")],
)
def test_another_request_is_carried_out_and_does_not_begin_it(stage: Stage, order: Order, sent: Any) -> None:
    start(stage, order, at(stage, 3600))
    post(stage, sent)
    works(stage, order.flow)
    assert (waiting(stage), order.ran) == ([], [])
    assert stage.store.run("r").due_at == stage.clock.now() + 3600
    stage.clock.advance(3600)
    works(stage, order.flow)
    assert stage.store.run("r").status == ("paused" if isinstance(sent, inbox.Pause) else "completed")


def test_its_time_limit_counts_from_its_begin(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600), timeout=60)
    stage.clock.advance(3601)
    works(stage, order.flow)
    assert stage.store.run("r").status == "completed"


def test_a_fork_of_it_begins_at_once(stage: Stage, order: Order) -> None:
    start(stage, order, at(stage, 3600))
    stage.do(lambda engine: engine.fork("r", run_id="f"), order.flow)
    assert stage.do(lambda engine: engine.get("f")).due_at is None
    works(stage, order.flow)
    assert (stage.store.run("f").status, stage.store.run("r").status) == ("completed", "pending")


def test_starting_it_again_is_the_same_run_even_when_its_time_has_passed(stage: Stage, order: Order) -> None:
    begin_at = at(stage, 3600)
    start(stage, order, begin_at)
    stage.clock.advance(7200)
    assert start(stage, order, begin_at) == "r"
    assert stage.kinds() == ["RunCreated"]


@pytest.mark.parametrize(
    ("begin_at", "said"),
    [
        (datetime(2100, 1, 1), "not a time with a time zone"),  # noqa: DTZ001 - without one, on purpose
        (5.0, "not a time with a time zone"),
        ("2100-01-01T00:00:00Z", "not a time with a time zone"),
        (datetime(2001, 1, 1, tzinfo=UTC), "has passed"),
        (datetime(2101, 1, 1, tzinfo=UTC), "more than ten years away"),
        (datetime.max.replace(tzinfo=UTC), "more than ten years away"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(stage: Stage, order: Order, begin_at: Any, said: str) -> None:
    with pytest.raises(hf.SettingError, match=said):
        start(stage, order, begin_at)
    assert stage.do(lambda engine: engine.runs()) == []


def test_a_run_without_a_time_records_none(stage: Stage, order: Order) -> None:
    start(stage, order, None)
    assert "begin_at" not in stage.told("RunCreated")[0].options
