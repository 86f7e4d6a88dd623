"""Requests take effect in the order in which they were acknowledged, whichever way each took: left in the inbox for a worker, or
recorded at once by the process of the caller.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asking import Order, error_of, leave, post, refused, requests, waiting, works
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading import inbox
from holdfast.storage.rows import open_row


class Shop:
    """The flow `agree -> pay`: `agree` asks a question, and `pay` must not be called unasked."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        graph = Graph("shop", Work)
        graph.node(name="agree", approve="Shall we pay?")(lambda state: {"log": ["agreed"]})
        graph.node(name="pay", idempotent=False)(self.pay)
        self.flow: Flow[Work] = graph.chain(START, "agree", "pay", END).compile()

    def pay(self, state: Work) -> dict[str, Any]:
        self.paid.append(state.plain)
        return {"log": [f"paid {state.plain}"]}

    def ask(self, stage: Stage) -> Shop:
        stage.run(self.flow, {"plain": "tea"})
        return self


@pytest.fixture
def order(stage: Stage) -> Order:
    """A run that has been recorded, and that no engine has begun."""
    order = Order()
    order.broken = False
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"), order.flow)
    return order


@pytest.mark.parametrize(
    ("verb", "given"),
    [("resume", {}), ("retry", {}), ("retry", {"node": "charge"}), ("skip", {"node": "charge"})],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_older_request_does_not_undo_a_pause(
    stage: Stage, order: Order, verb: str, given: dict[str, Any], named: bool
) -> None:
    leave(stage, "pause")
    leave(stage, verb, **given, execute=False, id="old", by="bo")
    paused = leave(stage, "pause", by="ann", **({"id": "new"} if named else {}))
    assert (paused.status, waiting(stage)) == ("paused", [])
    ((told, error, reason),) = refused(stage)
    assert (told, error) == (verb, "RequestSuperseded")
    assert reason.startswith("a later pause by ann superseded this request before an engine carried it out.")
    assert works(stage, order.flow) == []
    assert (order.ran, stage.store.run("r").status, stage.problems()) == ([], "paused", [])


def test_the_sender_of_a_superseded_request_learns_what_became_of_it(stage: Stage, order: Order) -> None:
    leave(stage, "pause")
    leave(stage, "resume", execute=False, id="old", by="bo")
    leave(stage, "pause", by="ann")
    (one,) = requests(stage)
    assert (one.id, one.verb, one.status, one.by) == ("old", "resume", "refused", "bo")
    assert one.refused is not None
    assert "a later pause by ann superseded this request" in one.refused
    assert "`holdfast resume r" in one.refused
    assert leave(stage, "resume", execute=False, id="old").repeated  # its id stays used
    assert waiting(stage) == []


def test_a_later_resume_continues_a_run_whose_older_resume_was_superseded(stage: Stage, order: Order) -> None:
    leave(stage, "pause")
    leave(stage, "resume", execute=False)
    leave(stage, "pause")
    leave(stage, "resume", execute=False)
    (ended,) = works(stage, order.flow)
    assert (ended.status, order.ran) == ("completed", ["charge", "send"])


def test_a_cancel_supersedes_an_older_resume(stage: Stage, order: Order) -> None:
    leave(stage, "pause")
    leave(stage, "resume", execute=False, id="old")
    assert leave(stage, "cancel", by="ann").status == "cancelled"
    assert [told[:2] for told in refused(stage)] == [("resume", "RequestSuperseded")]
    assert stage.kinds()[-2:] == ["RequestRefused", "RunCancelled"]
    assert (works(stage, order.flow), order.ran) == ([], [])


def test_a_worker_does_not_carry_out_what_a_later_request_in_the_inbox_supersedes(
    stage: Stage, order: Order
) -> None:
    leave(stage, "pause")
    post(stage, inbox.Resume(id="1"), inbox.Edit(id="2", fields={"plain": "milk"}), inbox.Pause(id="3"))
    assert works(stage, order.flow) == []
    assert stage.kinds()[-3:] == ["RequestRefused", "StateEdited", "RunPaused"]
    assert (order.ran, waiting(stage)) == ([], [])


def test_a_pause_that_is_refused_supersedes_nothing(stage: Stage) -> None:
    order = Order().fail(stage)
    leave(stage, "retry", execute=False)
    assert isinstance(error_of(stage, "pause"), hf.ResumeRefused)
    (ended,) = works(stage, order.flow)
    assert ended.status == "completed"


def test_an_edit_waits_for_an_older_request_that_a_worker_carries_out(stage: Stage, order: Order) -> None:
    leave(stage, "pause")
    leave(stage, "resume", edit={"plain": "coffee"}, execute=False)
    leave(stage, "edit", {"plain": "milk"}, flows=(order.flow,))
    assert [one.verb for one in waiting(stage)] == ["resume", "edit"]
    (ended,) = works(stage, order.flow)
    assert ended.state.log == ["charged for milk", "sent milk"]


def test_an_answer_waits_for_an_older_skip(stage: Stage) -> None:
    shop = Shop().ask(stage)
    leave(stage, "skip", "agree", execute=False)
    leave(stage, "answer", "agree", "approve")
    assert [one.verb for one in waiting(stage)] == ["skip", "answer"]
    (ended,) = works(stage, shop.flow)
    assert (ended.status, ended.state.log) == ("completed", ["paid tea"])
    assert [told[:2] for told in refused(stage)] == [("answer", "AnswerRefused")]


def test_an_answer_before_a_pause_is_recorded_with_it(stage: Stage) -> None:
    shop = Shop().ask(stage)
    leave(stage, "resume", execute=False)
    leave(stage, "answer", "agree", "approve", id="yes")
    assert [one.verb for one in waiting(stage)] == ["resume", "answer"]
    before = stage.store.run("r").seq
    leave(stage, "pause")
    assert [row.kind for row in stage.store.events("r", before)] == [
        "RequestRefused",
        "QuestionAnswered",
        "RunPaused",
    ]
    assert (works(stage, shop.flow), shop.paid) == ([], [])


def test_a_signal_waits_for_a_retry_but_not_for_a_resume(stage: Stage, order: Order) -> None:
    leave(stage, "pause")
    leave(stage, "resume", execute=False)
    leave(stage, "signal", "go")
    assert stage.kinds()[-1] == "SignalReceived"
    leave(stage, "skip", "charge", execute=False)
    leave(stage, "signal", "go")
    assert [one.verb for one in waiting(stage)] == ["resume", "skip", "signal"]
    (ended,) = works(stage, order.flow)
    assert (ended.status, stage.kinds().count("SignalReceived")) == ("completed", 2)


@pytest.mark.parametrize("verb", ["resume", "retry", "skip"])
def test_what_waits_takes_effect_before_what_is_executed_here(stage: Stage, verb: str) -> None:
    order = Order().fail(stage)
    post(
        stage,
        inbox.Retry(id="a", reason="1"),
        inbox.Edit(id="b", fields={"plain": "milk"}, reason="2"),
        inbox.Resume(id="c", reason="3"),
    )
    given = ["send"] if verb == "skip" else []
    run = leave(stage, verb, *given, flows=(order.flow,), reason="4")
    assert (run.status, waiting(stage), refused(stage)) == ("completed", [], [])
    rows = stage.store.events("r", 6)
    told = [getattr(open_row(row, stage.store.blobs).event, "reason", None) for row in rows]
    assert list(dict.fromkeys(reason for reason in told if reason)) == ["1", "2", "3", "4"]
    assert run.state.log[1:] == ([] if verb == "skip" else ["sent milk"])
    assert stage.problems() == []


def test_a_pause_that_waits_takes_effect_before_a_resume_that_is_executed_here(
    stage: Stage, order: Order
) -> None:
    post(stage, inbox.Pause(id="p"))
    run = stage.resume(order.flow)
    assert (run.status, order.ran) == ("completed", ["charge", "send"])
    kinds = stage.kinds()
    assert kinds.index("RunPaused") < kinds.index("RunResumed")


def test_the_end_of_the_run_by_an_older_answer_is_reported_to_the_later_request(stage: Stage) -> None:
    flow = stage.one(lambda ctx, state: {}, approve="Sure?")
    stage.run(flow)
    post(stage, inbox.Cancel(id="c"))
    assert isinstance(error_of(stage, "pause"), hf.RunOver)
    assert stage.store.run("r").status == "cancelled"


def test_the_engine_that_executes_a_run_keeps_the_order_of_the_inbox(stage: Stage) -> None:
    """A resume that another process left waits while the run is paused; a later pause supersedes it."""
    graph = Graph("slow", Work)
    begun, end = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @graph.node
    async def first(state: Work) -> dict[str, Any]:
        begun.set()
        await end.wait()
        return {"log": ["first"]}

    @graph.node
    def second(state: Work) -> dict[str, Any]:
        ran.append("second")
        return {"log": ["second"]}

    flow = graph.chain(START, "first", "second", END).compile()

    async def use(engine: hf.Engine) -> None:
        going = asyncio.ensure_future(engine.run(flow, {}, run_id="r"))
        await begun.wait()
        await engine.pause("r")
        post(stage, inbox.Resume(id="old"), inbox.Signal(id="s", name="go"))
        await engine.pause("r", by="ann")  # this engine has not heard of the resume yet
        end.set()
        assert (await going).status == "paused"

    stage.do(use, flow)
    assert [told[:2] for told in refused(stage)] == [("resume", "RequestSuperseded")]
    assert (works(stage, flow), ran, waiting(stage)) == ([], [], [])
    leave(stage, "resume", execute=False)
    (ended,) = works(stage, flow)
    assert (ended.status, ran, stage.problems()) == ("completed", ["second"], [])
