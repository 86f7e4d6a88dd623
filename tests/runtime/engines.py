"""Shared by the tests of the engine: a state, a flow of one node, and functions that execute the run `r` on a new engine.

The tests control the time: a manual clock either jumps to the next timer when nothing else is to do, or does not move. Tests
with threads synchronise through events; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from harness import PATIENCE_S, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, add, append, merge
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    seen: Annotated[dict[str, int], merge] = field(default_factory=dict)
    plain: str = ""
    number: float = 0.0
    pages: list[str] = field(default_factory=list)


def one_node(body: Callable[..., Any], state: type[Any] = Work, **options: Any) -> Flow[Any]:
    graph = Graph("one", state)
    graph.node(name="only", **options)(body)
    return graph.chain(START, "only", END).compile()


def in_engine(use: Callable[[hf.Engine], Awaitable[Any]], store: Any = None, **options: Any) -> Any:
    """Call `use` with a new engine, and return its result. Fails if that takes longer than `PATIENCE_S`: then something hangs."""

    async def main() -> Any:
        async with hf.Engine(store or MemoryStore(), **options) as engine:
            return await asyncio.wait_for(use(engine), PATIENCE_S)

    return asyncio.run(main())


def quickly(
    flow: Flow[Any], given: Any = None, *, store: Any = None, clock: ManualClock | None = None, **options: Any
) -> Any:
    """Execute the run `r` on one thread, with a clock that jumps over every wait."""
    clock = clock or ManualClock(auto=True)
    store = store or MemoryStore(clock=clock.now)
    options = {"clock": clock, "inline": True, "luck": random.Random(7), **options}
    return in_engine(lambda engine: engine.run(flow, given, run_id="r"), store, **options)


def failure_of(flow: Flow[Any], given: Any = None, **options: Any) -> hf.Run[Any]:
    with pytest.raises(hf.RunFailed) as failed:
        quickly(flow, given, **options)
    run: hf.Run[Any] = failed.value.run
    return run


def kinds(store: Any, after: int = 0) -> list[str]:
    return [row.kind for row in store.events("r", after)]


def has(store: Any, kind: str, node: str | None = None) -> bool:
    """Return whether the log of the run `r` has an event of this kind (and node)."""
    try:
        return bool(store.events("r", kinds=(kind,), node=node))
    except hf.RunNotFound:
        return False


async def started(engine: hf.Engine, node: str) -> None:
    """Wait until the start of a node is durable, and its function has begun."""
    await until(lambda: has(engine.store, "NodeStarted", node))
    await turns(3)


@asynccontextmanager
async def running(
    engine: hf.Engine, flow: Flow[Any], given: Any = None, **options: Any
) -> AsyncIterator[asyncio.Task[hf.Run[Any]]]:
    """Execute the run `r` as an asyncio task while the block runs; cancel it at the end."""
    run = asyncio.create_task(engine.run(flow, given, run_id="r", **options))
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def gated() -> tuple[Flow[Work], dict[str, Any]]:
    """Make the flow first -> second. `first` sets the event `gate["in"]`, and continues when `gate["open"]` is set."""
    graph, gate = Graph("gated", Work), {}

    @graph.node
    async def first(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"log": ["first"]}

    @graph.node
    async def second(state: Work) -> dict[str, Any]:
        return {"log": ["second"]}

    return graph.chain(START, "first", "second", END).compile(), gate


def looping(ran: list[int], **options: Any) -> Flow[Work]:
    graph = Graph("loop", Work)

    @graph.node
    def turn(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ran.append(ctx.iteration)
        return {"total": 1}

    graph.edge(START, "turn").branch("turn", lambda s: "turn" if s.total < 10 else END, to=["turn", END])
    return graph.compile(**options)
