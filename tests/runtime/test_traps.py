"""What people do by mistake inside nodes, and what must not come of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Engine, Flow, Graph

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
    assert "Wait outside of steps" in error.message


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
    assert "the answer to 'Buy for 981?' is not used" in caplog.text
