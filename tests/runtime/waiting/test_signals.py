"""Signals: taken once, in the order they came, and what a wait for one that does not come does."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Stage, Work
from waits import Boom, Going, paid, told, waiting

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT

# --- signals -----------------------------------------------------------------------------------------


def test_a_signal_that_came_before_the_wait_is_taken_at_once(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "paid", {"usd": 5})
    assert stage.resume(flow).state.log == [{"usd": 5}]
    assert "NodeWaiting" not in stage.kinds()


def test_a_signal_reaches_a_node_that_waits_in_place(quick: Stage) -> None:
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(1)
        return {"log": [(yield ctx.wait_for("paid"))]}

    flow = quick.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await engine.signal("r", "paid", 7, by="bank", reason="invoice 3")
        return await going.task

    run = quick.do(use, flow)
    assert (run.state.log, entered) == ([7], [1])
    (received,) = quick.told("SignalReceived")
    assert (received.name, received.payload, received.by, received.reason) == ("paid", 7, "bank", "invoice 3")


def test_a_signal_from_another_engine_reaches_the_run_through_the_inbox(quick: Stage) -> None:
    flow = paid(quick)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        async with quick.engine() as other:
            await other.signal("r", "paid", 7)
        return await going.task

    run = quick.do(use, flow)
    assert run.state.log == [7]
    assert run.updated_at - STARTS_AT == pytest.approx(0.2)


def test_a_signal_wakes_a_node_that_has_unwound(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    told(stage, "paid", 7)
    run = stage.resume(flow)
    assert (run.state.log, run.nodes["only"].attempt) == ([7], 1)


def test_each_signal_is_taken_once_and_in_the_order_they_came(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        one = yield ctx.wait_for("paid")
        two = yield ctx.wait_for("paid")
        return {"log": [one, two]}

    flow = stage.one(body)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "paid", 1)
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:2",)
    told(stage, "paid", 2)
    assert stage.resume(flow).state.log == [1, 2]


def test_a_signal_goes_to_the_wait_that_is_oldest(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [[ctx.node, (yield ctx.wait_for("paid"))]]}

    graph = Graph("two", Work)
    graph.node(name="a")(quick.node(body))
    graph.node(name="b")(quick.node(body))
    for name in ("a", "b"):
        graph.chain(START, name, END)
    flow = graph.compile()
    quick.run(flow)
    order = [wait.node for wait in quick.told("SignalAwaited")]
    told(quick, "paid", 1)
    told(quick, "paid", 2)
    assert sorted(quick.resume(flow).state.log) == sorted([[order[0], 1], [order[1], 2]])


def test_signals_of_other_names_and_of_other_runs_do_not_reach_a_wait(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="other"))
    waiting(stage, flow)
    told(stage, "paid", "wrong", run_id="other")
    told(stage, "paid later", "wrong")
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:1",)
    told(stage, "paid", "right")
    assert stage.resume(flow).state.log == ["right"]


def test_a_signal_with_an_id_is_taken_once_however_often_it_is_told(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    for _ in range(3):
        told(stage, "paid", 1, id="invoice-3")
    with pytest.raises(hf.RequestExists, match="the id 'invoice-3'"):
        told(stage, "paid", 2, id="invoice-3")
    assert [signal.payload for signal in stage.told("SignalReceived")] == [1]


def test_a_payload_has_the_type_that_was_asked_for(stage: Stage) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        found = yield ctx.wait_for("job", type=Work)
        seen.append(found)

    flow = stage.one(body)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "job", {"plain": "text"})
    stage.resume(flow)
    assert seen == [Work(plain="text")]


def test_a_signal_to_a_run_that_is_over_is_refused(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)

    flow = stage.one(body)
    stage.run(flow)
    before = stage.kinds()
    with pytest.raises(hf.ResumeRefused, match="'r' was not sent a signal: it is completed"):
        told(stage, "paid")
    stage.do(lambda engine: engine.start(flow, run_id="c"))
    stage.do(lambda engine: engine.cancel("c"))
    with pytest.raises(hf.ResumeRefused, match="'c' was not sent a signal: it is cancelled"):
        told(stage, "paid", run_id="c")
    assert stage.kinds() == before


def test_a_signal_that_cannot_be_kept_is_refused_and_nothing_is_recorded(quick: Stage) -> None:
    flow = paid(quick)
    quick.run(flow)
    before = quick.kinds()
    with pytest.raises(hf.CodecError, match="payload"):
        told(quick, "paid", object())
    for name in ("", None):
        with pytest.raises(hf.SettingError, match="signal"):
            told(quick, name)  # type: ignore[arg-type]
    with pytest.raises(hf.RunNotFound):
        told(quick, "paid", run_id="nobody")
    assert quick.kinds() == before


def test_a_signal_to_a_failed_run_waits_for_its_resume(stage: Stage) -> None:
    broken = [True]

    def body(state: Work, ctx: Any) -> Any:
        if broken:
            raise Boom("first")
        return {"log": [(yield ctx.wait_for("paid"))]}

    flow = stage.one(body)
    stage.fails(flow)
    told(stage, "paid", 7)
    broken.clear()
    assert stage.resume(flow).state.log == [7]


@pytest.mark.parametrize(
    "how",
    [{"replay": True}, {"checkpoint": 1}, {"restart_at": "behind"}],
    ids=["replay", "checkpoint", "restart_at"],
)
def test_a_rewind_gives_back_the_signals_that_were_taken_behind_that_place(quick: Stage, how: Any) -> None:
    """What others told the run is not undone by doing its work over."""
    taken: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        taken.append((ctx.node, (yield ctx.wait_for("paid"))))

    def behind(state: Work, ctx: Any) -> Any:
        taken.append((ctx.node, (yield ctx.wait_for("shipped"))))
        if len(taken) == 2:
            raise Boom("for good")

    graph = Graph("two", Work)
    graph.node(name="only")(quick.node(body))
    graph.node(name="behind")(quick.node(behind))
    flow = graph.chain(START, "only", "behind", END).compile()
    assert quick.run(flow).status == "waiting"
    told(quick, "paid", 1)
    assert quick.resume(flow).status == "waiting"
    told(quick, "shipped", 2)
    with pytest.raises(hf.RunFailed):
        quick.resume(flow)
    taken.clear()
    taken.extend([("before", 0), ("before", 0)])
    assert quick.resume(flow, **how).status == "completed"
    redone = [("behind", 2)] if "restart_at" in how else [("only", 1), ("behind", 2)]
    assert taken[2:] == redone


# --- timeouts ----------------------------------------------------------------------------------------


def test_a_signal_that_does_not_come_in_time_raises_in_the_node(quick: Stage) -> None:
    seen: list[Any] = []
    flow = paid(quick, seen, timeout=20)
    run = quick.run(flow)
    assert (run.state.log, run.updated_at) == (["late"], STARTS_AT + 20)
    ((kind, text),) = seen
    assert kind == "WaitTimeout"
    assert all(part in text for part in ("'only'", "'paid'", "20 s"))


def test_a_timeout_that_nobody_catches_fails_the_node_for_good(quick: Stage) -> None:
    failed = quick.fails(paid(quick, timeout=20))
    assert (failed.error.type, failed.error.kind, failed.nodes["only"].attempt) == (
        "WaitTimeout",
        "partial",
        1,
    )


def test_a_timeout_is_durable_too(stage: Stage) -> None:
    """The run is left alone with it; whoever takes it up later finds that the time has come."""
    seen: list[Any] = []
    flow = paid(stage, seen, timeout=50)
    waiting(stage, flow)
    assert stage.store.run("r").due_at == STARTS_AT + 50
    stage.clock.advance(STARTS_AT + 49 - stage.clock.now())
    assert stage.resume(flow).status == "waiting"
    stage.clock.advance(1)
    assert stage.resume(flow).state.log == ["late"]
    assert [kind for kind, _ in seen] == ["WaitTimeout"]


def test_a_signal_that_comes_after_its_timeout_is_kept_for_the_next_wait(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.wait_for("paid", timeout=50)
        except TimeoutError:
            return {"log": ["late", (yield ctx.wait_for("paid"))]}

    flow = stage.one(body)
    waiting(stage, flow)
    stage.clock.advance(STARTS_AT + 60 - stage.clock.now())
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:2",)
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == ["late", 7]


def test_what_came_of_a_wait_is_the_same_for_every_later_attempt(stage: Stage) -> None:
    """A crash behind the timeout, and then the signal comes: the first answer stands."""
    seen: list[Any] = []
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        try:
            found = yield ctx.wait_for("paid", timeout=0)
        except TimeoutError:
            found = "late"
        seen.append(found)
        lives.append(1)
        if len(lives) == 1:
            yield stage.dies(ctx)
        return {"log": [found]}

    flow = stage.one(body)
    stage.crash(flow)
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == ["late"]
    assert seen == ["late", "late"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True, 1e12])
@pytest.mark.parametrize("verb", ["wait_for", "ask"])
def test_what_is_no_time_to_wait_is_refused(quick: Stage, verb: str, timeout: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield getattr(ctx, verb)("paid", timeout=timeout)

    error = quick.fails(quick.one(body)).error
    assert (error.type, "'only'" in error.message) == ("ContextError", True)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_wait_for_no_signal_is_refused(quick: Stage, name: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.wait_for(name)

    assert quick.fails(quick.one(body)).error.type == "ContextError"
