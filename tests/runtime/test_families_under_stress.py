"""Families: callers on one slot, a cancel at each commit of a start over three generations, and starts that collide."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from holdfast import END, START, Context, Engine, Flow, Graph, append
from holdfast.core.run_state import FINAL
from holdfast.errors import HoldfastError
from holdfast.storage import failpoints
from holdfast.storage.contract import Query
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.checker import check


@dataclass
class Order:
    amount: int = 0
    paid: Annotated[list[int], append] = field(default_factory=list)


def generations() -> list[Flow[Order]]:
    """Three flows, each of which calls the next."""
    flows: list[Flow[Order]] = []
    for name in ("leaf", "middle", "top"):
        graph = Graph(name, Order)
        called = flows[0] if flows else None

        async def call(state: Order, ctx: Context, called: Flow[Order] | None = called) -> dict[str, Any]:
            if called is None:
                await ctx.sleep(0.01)
                return {"paid": [state.amount]}
            return {"paid": (await ctx.call(called, {"amount": state.amount + 1})).paid}

        graph.node(name="call")(call)
        flows.insert(0, graph.chain(START, "call", END).compile())
    return flows


def test_six_callers_complete_on_one_slot() -> None:
    async def main() -> None:
        flows, store = generations(), MemoryStore()
        async with Engine(store, flows=flows) as engine:
            for number in range(6):
                await engine.start(flows[0], {"amount": number}, run_id=f"r{number}")
            working = asyncio.ensure_future(engine.work(concurrency=1))
            for number in range(6):
                run = await engine.wait(f"r{number}", timeout=60)
                assert (run.status, run.state.paid) == ("completed", [number + 2])
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        assert check(store) == []

    asyncio.run(main())


@pytest.mark.parametrize("commit", range(1, 14))
def test_a_cancel_at_any_commit_of_three_generations_ends_all_of_them(commit: int) -> None:
    async def main() -> None:
        flows, store, reached = generations(), MemoryStore(), 0
        cancelling: list[asyncio.Future[Any]] = []
        async with Engine(store, flows=flows, inline=True) as engine:

            async def cancel() -> None:
                with_run = [row.run_id for row in store.runs(Query())]
                if "r" in with_run:
                    try:
                        await engine.cancel("r")
                    except HoldfastError:
                        assert store.run("r").status in FINAL

            def reach(name: str) -> None:
                nonlocal reached
                reached += name == "append.committed"
                if reached == commit and not cancelling:
                    cancelling.append(asyncio.ensure_future(cancel()))

            failpoints.install(reach)
            try:
                going = asyncio.ensure_future(engine.run(flows[0], {"amount": 1}, run_id="r"))
                await asyncio.wait([going], timeout=30)
                assert going.done()
                going.exception()
                await asyncio.gather(*cancelling)
            finally:
                failpoints.install(None)
        statuses = {row.run_id: row.status for row in store.runs(Query())}
        assert set(statuses.values()) <= FINAL, statuses
        assert check(store) == []

    asyncio.run(main())


def test_a_start_that_collides_does_not_cost_the_completion_of_a_parallel_node() -> None:
    """The id of the child is taken by another run: the node that starts it fails, and the other one stays completed."""

    async def main() -> None:
        leaf = generations()[2]
        graph = Graph("caller", Order)

        @graph.node
        async def call(state: Order, ctx: Context) -> dict[str, Any]:
            return {"paid": (await ctx.call(leaf, {"amount": 1})).paid}

        @graph.node
        async def other(state: Order) -> dict[str, Any]:
            return {"paid": [7]}

        flow = graph.chain(START, "call", END).chain(START, "other", END).compile()
        probe, store = MemoryStore(), MemoryStore()
        async with Engine(probe, flows=[flow, leaf]) as engine:
            await engine.run(flow, run_id="r")
            (taken,) = [row.run_id for row in probe.runs(Query(origin="r"))]
        async with Engine(store, flows=[flow, leaf]) as engine:
            await engine.run(leaf, {"amount": 3}, run_id=taken)
            with pytest.raises(HoldfastError, match="--fresh"):
                await engine.run(flow, run_id="r")
            run = await engine.get("r")
            assert (run.status, run.nodes["other"].status, run.nodes["call"].status) == (
                "failed",
                "completed",
                "failed",
            )
            mended = await engine.retry("r", "call", fresh=True)
            assert (mended.status, sorted(mended.state.paid)) == ("completed", [1, 7])
        assert check(store) == []

    asyncio.run(main())
