"""What people do by mistake inside nodes, and what must not come of it."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Engine, Flow, Graph
from holdfast.testing.clock import ManualClock

_numbers = itertools.count()


def store() -> str:
    return f"memory://traps-{next(_numbers)}"


def flow_of(fn: Any, **options: Any) -> Flow[Any]:
    graph = Graph("trap", dict)
    graph.node(name="trap", **options)(fn)
    return graph.edge(START, "trap").edge("trap", END).compile()


def ran(flow: Flow[Any], **options: Any) -> hf.Run[Any]:
    async def main() -> hf.Run[Any]:
        async with Engine(store(), **options) as engine:
            return await engine.run(flow, {})

    return asyncio.run(main())


def failure_of(flow: Flow[Any]) -> Any:
    with pytest.raises(hf.RunFailed) as failed:
        ran(flow)
    return failed.value.run.error


def swallowing_def(state: Any, ctx: hf.BlockingContext) -> dict[str, Any]:
    try:
        answer = ctx.ask("Delete everything?", options=["no", "yes"])
    except BaseException:
        answer = "yes"
    return {"answer": answer}


async def swallowing_async(state: Any, ctx: hf.Context) -> dict[str, Any]:
    try:
        answer = await ctx.ask("Delete everything?", options=["no", "yes"])
    except BaseException:
        answer = "yes"
    return {"answer": answer}


@pytest.mark.parametrize("node", [swallowing_def, swallowing_async])
def test_a_node_that_swallows_the_signal_does_not_get_past_its_question(node: Any) -> None:
    flow = flow_of(node)

    async def main() -> hf.Run[Any]:
        async with Engine(store(), flows=flow, park_after=0.01) as engine:
            run = await engine.run(flow, {}, run_id="r")
            assert (run.status, run.state) == ("waiting", {})
            await engine.answer("r", "trap", "no")
            return await engine.resume("r")

    assert asyncio.run(main()).state == {"answer": "no"}


def test_a_step_that_is_not_awaited_fails_the_node_and_says_so() -> None:
    async def forgetful(state: Any, ctx: hf.Context) -> dict[str, Any]:
        ctx.step("tool", lambda: 1)
        return {"done": True}

    error = failure_of(flow_of(forgetful))
    assert error.type == "ContextError"
    assert "ctx.step('tool', …) and did not await it" in error.message


def test_a_wait_inside_a_step_is_refused_with_the_way_out() -> None:
    async def nested(state: Any, ctx: hf.Context) -> None:
        async def tool() -> Any:
            return await ctx.ask("May I?")

        await ctx.step("tool", tool)

    error = failure_of(flow_of(nested))
    assert error.type == "ContextError"
    assert "inside the step 'tool'" in error.message
    assert "Wait outside of the step" in error.message


def test_an_uncertain_failure_of_a_node_that_is_not_idempotent_asks_and_is_not_repeated() -> None:
    paid: list[int] = []

    def pay(state: Any) -> None:
        paid.append(1)
        raise ConnectionError("read timed out after the request was sent")

    flow = flow_of(pay, idempotent=False)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            run = await engine.run(flow, {}, run_id="r")
            assert run.status == "waiting"
            (question,) = run.questions
            assert question.options == ["retry", "skip", "abort"]
            assert "ConnectionError: read timed out" in question.text
            assert (await engine.resume("r")).status == "waiting"
            await engine.answer("r", "trap", "skip", update={"paid": True})
            assert (await engine.resume("r")).state == {"paid": True}

    asyncio.run(main())
    assert len(paid) == 1


def test_a_certain_failure_of_a_node_that_is_not_idempotent_is_a_failure() -> None:
    def pay(state: Any) -> None:
        raise ValueError("no such account")

    assert failure_of(flow_of(pay, idempotent=False)).kind == "partial"


def test_what_is_approved_can_be_said_by_a_function_of_the_state() -> None:
    graph = Graph("refund", dict)

    @graph.node(approve=lambda state: f"Refund {state['euros']} euros?")
    def refund(state: Any) -> dict[str, Any]:
        return {"refunded": True}

    flow = graph.edge(START, "refund").edge("refund", END).compile()

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            run = await engine.run(flow, {"euros": 30}, run_id="r")
            assert [question.text for question in run.questions] == ["Refund 30 euros?"]
            await engine.answer("r", "refund", "approve")
            assert (await engine.resume("r")).state["refunded"]

    asyncio.run(main())


def test_a_question_whose_words_vary_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    prices = iter([981, 782])

    def buy(state: Any, ctx: hf.BlockingContext) -> Any:
        return {"bought": ctx.ask(f"Buy for {next(prices)}?", options=["yes", "no"])}

    flow = flow_of(buy)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            await engine.run(flow, {}, run_id="r")
            await engine.answer("r", "trap", "yes")
            with caplog.at_level(logging.WARNING, "holdfast"):
                await engine.resume("r")

    asyncio.run(main())
    assert "but has not used the answer to 'Buy for 981?'" in caplog.text


def test_who_and_why_are_words() -> None:
    flow = flow_of(lambda state: None)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            await engine.start(flow, {}, run_id="r")
            wrong: Any = 5
            for verb in (
                engine.cancel("r", by=wrong),
                engine.pause("r", by=wrong),
                engine.resume("r", by=wrong),
            ):
                with pytest.raises(hf.SettingError):
                    await verb
            with pytest.raises(hf.SettingError):
                await engine.start(flow, {}, run_id="r2", by=wrong)
            assert (await engine.get("r")).status == "pending"

    asyncio.run(main())


def test_a_stream_over_the_budget_does_not_cost_the_result() -> None:
    async def talkative(state: Any, ctx: hf.Context) -> dict[str, Any]:
        for number in range(1000):
            ctx.emit(str(number) * 50)
        return {"done": True}

    assert ran(flow_of(talkative), log_limit=50_000).state == {"done": True}


def test_a_node_that_swallows_its_cancellation_is_given_up() -> None:
    entered = asyncio.Event()

    async def stubborn(state: Any) -> None:
        entered.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    flow = flow_of(stubborn)

    async def main() -> None:
        options: dict[str, Any] = {"clock": ManualClock(auto=True), "inline": True}
        async with Engine(store(), flows=flow, grace=0.0, **options) as engine:
            running = asyncio.create_task(engine.run(flow, {}, run_id="r"))
            await entered.wait()
            engine.stop("enough")
            engine.stop("enough, really")
            assert (await running).status == "interrupted"

    asyncio.run(main())


def test_time_in_a_wait_is_not_time_of_the_node() -> None:
    async def patient(state: Any, ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(0.3)
        return {"done": True}

    assert ran(flow_of(patient, timeout=0.1, retry=1)).state == {"done": True}


def test_results_of_a_map_belong_to_items_not_to_places() -> None:
    tries = itertools.count()

    async def mapped(state: Any, ctx: hf.Context) -> dict[str, Any]:
        first = next(tries) == 0
        items = ["a", "bb", "ccc"] if first else ["ccc", "a", "bb"]
        lengths = await ctx.map("length", len, items)
        if first:
            raise hf.Recoverable("again")
        return {"lengths": lengths}

    assert ran(flow_of(mapped, retry=hf.Retry(attempts=2, backoff=0.0))).state == {"lengths": [3, 1, 2]}


def test_a_fan_out_that_is_not_idempotent_waits_for_its_answer_after_a_timeout() -> None:
    calls: list[int] = []

    async def pay(item: int) -> None:
        calls.append(item)
        if calls.count(2) == 1 and item == 2:
            await asyncio.Event().wait()

    flow = flow_of(pay, each=lambda state: [1, 2], idempotent=False, timeout=0.05)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            assert (await engine.run(flow, {}, run_id="r")).status == "waiting"
            assert (await engine.resume("r")).status == "waiting"
            assert calls == [1, 2]
            await engine.answer("r", "trap", "retry")
            assert (await engine.resume("r")).status == "completed"

    asyncio.run(main())
    assert calls == [1, 2, 2]


def test_a_pause_does_not_wait_for_what_only_waits() -> None:
    entered = asyncio.Event()

    async def waits(state: Any, ctx: hf.Context) -> None:
        entered.set()
        await ctx.wait_for("never")

    flow = flow_of(waits)

    async def main() -> None:
        async with Engine(store(), flows=flow, park_after=1000.0) as engine:
            running = asyncio.create_task(engine.run(flow, {}, run_id="r"))
            await entered.wait()
            async for event in engine.follow("r"):
                if event.kind == "SignalAwaited":
                    await engine.pause("r")
                    break
            assert (await asyncio.wait_for(running, 10)).status == "paused"

    asyncio.run(main())


def test_a_question_is_there_for_others_also_where_the_run_saves_at_its_exit() -> None:
    graph = Graph("exit", dict)
    go_on, entered = asyncio.Event(), asyncio.Event()

    @graph.node
    async def long(state: Any) -> None:
        entered.set()
        await go_on.wait()

    @graph.node
    async def asks(state: Any, ctx: hf.Context) -> dict[str, Any]:
        return {"answer": await ctx.ask("Which?", options=["a", "b"])}

    graph.edge(START, "long").edge(START, "asks").edge("long", END).edge("asks", END)
    flow = graph.compile()

    async def main() -> None:
        async with Engine(store(), flows=flow, durability="exit") as engine:
            running = asyncio.create_task(engine.run(flow, {}, run_id="r"))
            await entered.wait()
            async for event in engine.follow("r"):
                if event.kind == "QuestionAsked":
                    break
            await engine.answer("r", "asks", "b")
            go_on.set()
            assert (await running).state == {"answer": "b"}

    asyncio.run(main())


def test_a_key_that_was_made_fresh_stays_so_when_the_run_goes_back_before_it() -> None:
    keys: list[str] = []

    def pay(state: Any, ctx: hf.BlockingContext) -> None:
        keys.append(ctx.idempotency_key("pay"))
        if len(keys) < 3:
            raise ValueError("not yet")

    flow = flow_of(pay)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, {}, run_id="r")
            with pytest.raises(hf.RunFailed):
                await engine.retry("r", fresh=True)
            await engine.resume("r", checkpoint=1)

    asyncio.run(main())
    first, fresh, again = keys
    assert first != fresh == again


def test_signals_that_are_taken_again_come_in_the_order_they_came() -> None:
    taken: list[list[int]] = []

    async def takes(state: Any, ctx: hf.Context) -> None:
        taken.append([await ctx.wait_for("s"), await ctx.wait_for("s")])
        if len(taken) < 2:
            raise ValueError("once more")

    flow = flow_of(takes)

    async def main() -> None:
        async with Engine(store(), flows=flow) as engine:
            await engine.start(flow, {}, run_id="r")
            for number in range(3):
                await engine.signal("r", "s", number)
            with pytest.raises(hf.RunFailed):
                await engine.resume("r")
            assert (await engine.resume("r", restart_at="trap")).signals == {"s": 1}

    asyncio.run(main())
    assert taken == [[0, 1], [0, 1]]


def test_a_wait_inside_the_work_of_a_map_is_refused_with_the_way_out() -> None:
    def mapped(state: Any, ctx: hf.BlockingContext) -> None:
        ctx.map("nap", lambda number: ctx.sleep(0.1, key=number), [1, 2])

    error = failure_of(flow_of(mapped))
    assert (error.type, "Wait outside of the step" in error.message) == ("ContextError", True)


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
def test_what_a_node_sets_in_its_context_is_not_there_for_the_next_and_what_the_caller_set_is(
    inline: bool,
) -> None:
    seen: list[str] = []

    def note(state: dict[str, Any]) -> None:
        seen.append(WHO.get())
        WHO.set("a node")

    async def note_async(state: dict[str, Any]) -> None:
        note(state)

    graph: Graph[Any] = Graph("notes", dict)
    for number, body in enumerate([note_async, note, note_async, note_async, note]):
        graph.node(name=f"n{number}")(body)
    flow = graph.chain(START, "n0", "n1", "n2", "n3", "n4", END).compile()

    async def main() -> None:
        WHO.set("the caller")
        async with hf.Engine("memory://", flows=[flow], inline=inline) as engine:
            assert (await engine.run(flow)).status == "completed"

    asyncio.run(main())
    assert seen == ["the caller"] * 5
