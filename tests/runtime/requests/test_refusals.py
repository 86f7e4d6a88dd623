"""A request from an inbox that cannot be carried out is recorded as refused, with the reason, and leaves the inbox in the same
append. A caller that waits for it gets the exception that it would have got from its own engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asking import Order, leave, post, refused, requests, waiting, works
from engines import has
from harness import Stage, Work, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.core import events
from holdfast.errors import HoldfastError, name_refusal, rebuild_refusal
from holdfast.reading import inbox


def asks(gate: dict[str, asyncio.Event]) -> Flow[Work]:
    """Two branches: `busy` runs until the gate is open, and `may` asks a question."""
    graph = Graph("asks", Work)

    @graph.node
    async def busy(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"log": ["busy"]}

    graph.ask("may", "May I?", options=["yes", "no"])
    return graph.chain(START, "busy", END).chain(START, "may", END).compile()


REFUSED: list[tuple[Any, str, str]] = [
    (inbox.Answer(id="1", key="may", value="maybe"), "AnswerRefused", "maybe"),
    (inbox.Answer(id="1", key="why", value="yes"), "AnswerRefused", "no such open question"),
    (inbox.Retry(id="1", node="busy"), "ResumeRefused", "node 'busy' is running"),
    (inbox.Skip(id="1", node="bsuy"), "ResumeRefused", "did you mean 'busy'?"),
    (inbox.Skip(id="1", node="may", update={"plain": 5}), "StateError", "plain"),
    (inbox.Edit(id="1", fields={"plain": "x"}), "ResumeRefused", "busy is running"),
    (inbox.Edit(id="1", changes={"set": 5}, seen=3), "ResumeRefused", "busy is running"),
    (inbox.Resume(id="1"), "RunHeld", "It moves already"),
]


@pytest.mark.parametrize(("sent", "error", "said"), REFUSED)
def test_the_engine_that_executes_the_run_records_what_it_refuses_and_the_sender_gets_the_exception(
    stage: Stage, sent: Any, error: str, said: str
) -> None:
    gate: dict[str, asyncio.Event] = {}
    flow = asks(gate)

    async def use(engine: hf.Engine) -> HoldfastError:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, {"plain": "tea"}, run_id="r"))
        await gate["in"].wait()
        await until(lambda: has(stage.store, "QuestionAsked"))
        async with stage.engine(flow) as other:
            with pytest.raises(HoldfastError) as raised:
                await other.door._hand_in("r", sent)
        gate["open"].set()
        await run
        return raised.value

    raised = stage.do(use, flow)
    assert type(raised).__name__ == error
    assert said in str(raised)
    assert "'r'" in str(raised) or error == "StateError"
    ((verb, recorded, reason),) = refused(stage)
    assert (verb, recorded) == (sent.verb, error)
    assert said in reason
    (event,) = stage.told("RequestRefused")
    assert event.request == "1"
    assert event.asked_at is not None
    assert waiting(stage) == []
    assert stage.problems() == []


@pytest.mark.parametrize(
    "sent",
    [
        *(
            inbox.Pause(id="1", by="ann"),
            inbox.Retry(id="1", node="snd", by="ann"),
            inbox.Skip(id="1", node="charge", by="ann"),
        ),
        *(inbox.Resume(id="1", checkpoint=99, by="ann"), inbox.Answer(id="1", key="x", value=1, by="ann")),
        *(
            inbox.Resume(id="1", confirm=["x"], by="ann"),
            inbox.Unknown(id="1", stored_verb="dance", by="ann"),
        ),
    ],
)
def test_a_worker_records_what_it_refuses_of_a_failed_run(stage: Stage, sent: Any) -> None:
    order = Order().fail(stage)
    seq = stage.store.run("r").seq
    post(stage, sent)
    works(stage, order.flow)
    assert [row.kind for row in stage.store.events("r", seq)] == ["RequestRefused"]
    assert (waiting(stage), order.ran, stage.store.run("r").status) == ([], [], "failed")
    (seen,) = requests(stage)
    assert (seen.id, seen.verb, seen.status, seen.by) == ("1", sent.verb, "refused", "ann")
    assert seen.refused
    assert seen.at <= (seen.refused_at or 0)
    assert stage.problems() == []


def test_a_refusal_stops_neither_the_run_nor_the_requests_after_it(stage: Stage) -> None:
    order = Order()
    order.broken = False
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    post(
        stage,
        inbox.Answer(id="1", key="x", value=1),
        inbox.Edit(id="2", fields={"plain": 5}),
        inbox.Edit(id="3", fields={"plain": "cocoa"}),
    )
    works(stage, order.flow)
    assert stage.do(lambda engine: engine.state("r"))["log"] == ["charged for cocoa", "sent cocoa"]
    assert [verb for verb, _, _ in refused(stage)] == ["answer", "edit"]


def test_a_validation_that_refuses_a_local_resume_is_recorded_as_a_refused_request(stage: Stage) -> None:
    order = Order().fail(stage)
    with pytest.raises(hf.ResumeRefused, match="not today"):
        stage.verb(order.flow, "resume", validate=lambda state: "not today", by="ann")
    (event,) = stage.told("RequestRefused")
    assert (event.verb, event.reason, event.request, event.by) == ("resume", "not today", "", "ann")
    (seen,) = requests(stage)
    assert (seen.id, seen.verb, seen.refused) == ("", "resume", "not today")


def test_a_validation_of_the_flow_refuses_a_resume_from_the_inbox(stage: Stage) -> None:
    order = Order().fail(stage)
    graph = Graph("order", Work, validate_resume=lambda state: "not today")
    graph.node(name="charge", idempotent=False)(order.charge)
    graph.node(name="send")(order.send)
    careful = graph.chain(START, "charge", "send", END).compile()
    leave(stage, "resume", execute=False, id="7", by="ann")
    works(stage, careful)
    (event,) = stage.told("RequestRefused")
    assert (event.verb, event.reason, event.request, event.by) == ("resume", "not today", "request:7", "ann")
    assert waiting(stage) == []


# --- what waits when a run ends ----------------------------------------------------------------------


def test_a_request_that_still_waits_when_the_run_ends_is_refused_by_the_same_append(stage: Stage) -> None:
    order = Order().fail(stage)
    post(stage, inbox.Cancel(id="1"), inbox.Edit(id="2", fields={"plain": "x"}, by="ann", reason="no tea"))
    works(stage, order.flow)
    assert stage.kinds()[-1] == "RunCancelled"
    (late,) = requests(stage)
    assert (late.id, late.verb, late.status, late.by, late.reason) == (
        "2",
        "edit",
        "refused",
        "ann",
        "no tea",
    )
    assert late.refused == "the run was cancelled before the request was carried out"
    assert late.refused_at == stage.store.run("r").updated_at


def test_a_caller_whose_run_ends_first_gets_run_over(stage: Stage) -> None:
    order = Order().fail(stage)
    post(stage, inbox.Cancel(id="1"), inbox.Pause(id="request:2"))
    works(stage, order.flow)
    with pytest.raises(hf.RunOver, match="run 'r' was not paused: it is cancelled"):
        leave(stage, "pause", id="2")


def test_the_requests_of_a_run_are_listed_oldest_first_with_who_when_and_why(stage: Stage) -> None:
    order = Order().fail(stage)
    leave(stage, "resume", execute=False, checkpoint=99, by="bob", reason="a typo", id="1")
    works(stage, order.flow)
    leave(stage, "edit", {"plain": "x"}, by="ann", reason="no tea", id="2")
    first, second = requests(stage)
    assert (first.id, first.verb, first.status, first.by, first.reason) == (
        "1", "resume", "refused", "bob", "a typo",
    )  # fmt: skip
    assert "has no event 99" in (first.refused or "")
    assert (second.id, second.status, second.reason, second.refused) == (
        "2",
        "waiting",
        "no tea",
        None,
    )
    assert first.at <= second.at


def test_the_requests_of_a_run_that_does_not_exist_are_not_listed(stage: Stage) -> None:
    with pytest.raises(hf.RunNotFound):
        requests(stage)


# --- the exception that travels ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        hf.ResumeRefused("r", "no", asked="paused"),
        hf.RunOver("r", "no", asked="paused"),
        hf.AnswerRefused("r", "key", "no"),
        hf.SignalRefused("r", "name", "no"),
        hf.SettingError("no"),
        hf.StateError("no"),
        hf.RunHeld("r", "pid 5", "Wait."),
        hf.RunHeld("r", "pid 5"),
    ],
)
def test_an_exception_is_rebuilt_as_it_was(error: Any) -> None:
    about = next((getattr(error, name) for name in ("key", "name", "holder") if hasattr(error, name)), None)
    reason = str(getattr(error, "reason", error))
    again = rebuild_refusal(name_refusal(error), "r", reason, about=about, asked="paused")
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_exception_of_another_class_is_rebuilt_as_the_nearest_that_is_known() -> None:
    error = hf.CodecError("no", path="state.x")
    assert name_refusal(error) == "StateError"
    assert events.RequestRefused(verb="x", reason="y").error == name_refusal(RuntimeError("x"))  # type: ignore[arg-type]
