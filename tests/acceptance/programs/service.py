"""A plain asyncio service with an `Engine`, in one of several forms. It prints a line at each place where a test meets it.

    service.py FORM STORE [GRACE]

Its flow is `first -> second`. `first` prints "begun" and ends when a line of text comes in through stdin.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.runtime import blocking

RUN_ID = "r1"
graph = Graph("service", dict)
entered = asyncio.Event()


def say(what: str) -> None:
    print(what, flush=True)


async def line() -> None:
    """Wait for a line of text, without a thread."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), lambda: came.done() or came.set_result(None))
    try:
        await came
    finally:
        loop.remove_reader(sys.stdin.fileno())
    sys.stdin.readline()


@graph.node
async def first(state: dict[str, Any]) -> dict[str, Any]:
    say("begun")
    entered.set()
    await line()
    return {"first": 1}


@graph.node
async def second(state: dict[str, Any]) -> dict[str, Any]:
    return {"second": 1}


flow = graph.chain(START, "first", "second", END).compile()


class Engine(hf.Engine):
    """Says that it stops."""

    def stop(self, *args: Any, **options: Any) -> Any:
        stopping = super().stop(*args, **options)
        say("stopping")
        return stopping


@asynccontextmanager
async def opened() -> AsyncIterator[Engine]:
    grace = float(sys.argv[3]) if len(sys.argv) > 3 else 3600.0
    async with Engine(sys.argv[2], flows=[flow], grace=grace) as engine:
        yield engine


# --- the forms ---------------------------------------------------------------------------------------


async def stops_and_leaves() -> None:
    async with opened() as engine:
        going = asyncio.create_task(engine.run(flow, {}, run_id=RUN_ID))
        await entered.wait()
        engine.stop()
        say("leaves")
    say((await going).status)


async def awaits_its_stop() -> None:
    async with opened() as engine:
        going = asyncio.create_task(engine.run(flow, {}, run_id=RUN_ID))
        await entered.wait()
        await engine.stop()
        say((await going).status)


async def idle() -> None:
    async with opened():
        say("ready")
        await asyncio.Event().wait()


async def idle_after_a_run() -> None:
    async with opened() as engine:
        say((await engine.run(flow, {}, run_id=RUN_ID)).status)
        await asyncio.Event().wait()


async def works_aside() -> None:
    """A worker in a task of its own; the main task waits for something else."""
    async with opened() as engine:
        await engine.start(flow, {}, run_id=RUN_ID)
        working = asyncio.create_task(engine.work())
        try:
            await asyncio.Event().wait()
        finally:
            say("main leaves")
            await asyncio.gather(working)


async def opened_elsewhere() -> None:
    """The task that opened the engine has ended."""
    stack = opened()
    engine = await asyncio.create_task(stack.__aenter__())
    going = asyncio.create_task(engine.run(flow, {}, run_id=RUN_ID))
    try:
        await asyncio.Event().wait()
    finally:
        say("main leaves")
        await going


async def two_engines() -> None:
    """The engine that was opened first is closed first."""
    older = opened()
    await older.__aenter__()
    async with opened() as engine:
        await older.__aexit__(None, None, None)
        say((await engine.run(flow, {}, run_id=RUN_ID)).status)


async def works_in_a_loop() -> None:
    async with opened() as engine:
        await engine.start(flow, {}, run_id=RUN_ID)
        while True:
            await engine.work(until="idle")
            await asyncio.sleep(0.01)


async def works_in_a_loop_with_a_handler() -> None:
    """The handler is the program's own, as under a web server."""
    async with opened() as engine:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.stop, "the handler")
        await engine.start(flow, {}, run_id=RUN_ID)
        while True:
            say(f"worked: {await engine.work(until='idle')}")
            await asyncio.sleep(0.01)


async def runs() -> None:
    async with opened() as engine:
        say((await engine.run(flow, {}, run_id=RUN_ID)).status)


async def join(engine: hf.Engine) -> None:
    """Says when it waits for the run of another process."""
    going = asyncio.create_task(engine.run(flow, {}, run_id=RUN_ID))
    for _ in iter(lambda: engine._holdings.has_joins, True):
        await asyncio.sleep(0)
    say("joined")
    say((await going).status)


async def joins() -> None:
    async with opened() as engine:
        await join(engine)


def joins_and_blocks() -> None:
    """As `hf.run`."""
    blocking.with_engine(join, {"store": sys.argv[2]})


def waits_and_blocks() -> None:
    """As `hf.wait`, and says when its engine is open."""

    async def wait(engine: hf.Engine) -> hf.Run[Any]:
        say("waits")
        return await engine.wait(RUN_ID)

    say(blocking.with_engine(wait, {"store": sys.argv[2]}).status)


FORMS: dict[str, Callable[[], Awaitable[None] | None]] = {
    form.__name__: form
    for form in (
        stops_and_leaves,
        awaits_its_stop,
        idle,
        idle_after_a_run,
        works_aside,
        opened_elsewhere,
        two_engines,
        works_in_a_loop,
        works_in_a_loop_with_a_handler,
        runs,
        joins,
        joins_and_blocks,
        waits_and_blocks,
    )
}

if __name__ == "__main__":
    chosen = FORMS[sys.argv[1]]
    if inspect.iscoroutinefunction(chosen):
        asyncio.run(chosen())
    else:
        chosen()
