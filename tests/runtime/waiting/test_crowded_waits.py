"""A call that only waits does not keep others from beginning: it is unwound at once if they want its room."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness import until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing.clock import ManualClock

_numbers = itertools.count()
NEVER_S = 1e6
"""No time passes in these tests: a wait that is unwound was unwound at once."""


def using(use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any], **options: Any) -> Any:
    async def main() -> Any:
        options.setdefault("park_after", NEVER_S)
        async with hf.Engine(
            f"memory://crowded-{next(_numbers)}", flows=flows, clock=ManualClock(), **options
        ) as engine:
            return await asyncio.wait_for(use(engine), 30)

    return asyncio.run(main())


async def asked(engine: hf.Engine, run_id: str, count: int) -> None:
    """Wait until this many questions of a run are open."""

    def are_open() -> bool:
        try:
            return engine.store.run(run_id).asks == count
        except hf.RunNotFound:
            return False

    await until(are_open)


def fan(fn: Callable[..., Any], count: int, limit: int) -> Flow[Any]:
    graph = Graph("fan")
    graph.node(name="ask", each=lambda state: range(count), limit=limit)(fn)
    return graph.chain(START, "ask", END).compile()


@pytest.mark.parametrize("inline", [True, False])
def test_a_fan_out_of_waits_opens_all_its_questions_before_park_after(inline: bool) -> None:
    inside, most = 0, 0

    async def ask(item: int, ctx: hf.Context) -> dict[str, Any]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return {f"got_{item}": await ctx.ask(f"question {item}")}
        finally:
            inside -= 1

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow, {}, run_id="r"))
        await asked(engine, "r", 200)
        assert most <= 4
        going.cancel()

    flow = fan(ask, 200, 4)
    using(use, flow, inline=inline)


def test_an_item_whose_wait_asyncio_may_cancel_keeps_its_room() -> None:
    async def ask(item: int, ctx: hf.Context) -> dict[str, Any]:
        async with asyncio.timeout(600):
            return {f"got_{item}": await ctx.ask(f"question {item}")}

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow, {}, run_id="r"))
        await asked(engine, "r", 2)
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.store.run("r").asks == 2
        assert "NodeWaiting" not in [event.kind for event in await engine.events("r")]
        going.cancel()

    flow = fan(ask, 10, 2)
    using(use, flow, inline=True)


def test_nodes_that_wait_make_room_for_others_of_their_run() -> None:
    async def ask(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.ask(f"question of {ctx.node}")

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow, {}, run_id="r"))
        await asked(engine, "r", 9)
        going.cancel()

    graph = Graph("wide")
    for number in range(9):
        graph.node(name=f"n{number}")(ask)
        graph.chain(START, f"n{number}", END)
    flow = graph.compile(max_parallel=2)
    using(use, flow, inline=True)


def test_a_step_that_waits_for_its_next_try_gives_its_thread_to_calls_that_wait_for_one() -> None:
    begun = threading.Event()
    fetch = hf.Step("fetch", retry=hf.Retry(attempts=2, backoff=20, jitter=0))
    tries: list[int] = []

    def fail_once() -> int:
        tries.append(1)
        assert begun.wait(30)
        if len(tries) == 1:
            raise hf.Recoverable("busy")
        return 5

    def node(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"got": ctx.step(fetch, fail_once)}

    def quick(state: dict[str, Any]) -> dict[str, Any]:
        return {"done": True}

    flows = []
    for name, fn in (("retries", node), ("quick", quick)):
        graph = Graph(name)
        graph.node(name="only")(fn)
        flows.append(graph.chain(START, "only", END).compile())

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flows[0], {}, run_id="retries"))
        await until(lambda: tries)
        other = asyncio.create_task(engine.run(flows[1], {}))
        await until(lambda: engine.places["thread"].waiting == 1)
        begun.set()
        assert (await other).state == {"done": True}
        assert tries == [1]
        going.cancel()

    using(use, *flows, threads=1)
