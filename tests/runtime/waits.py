"""Shared by the tests of waiting: a run that is being executed, a run that waits without a process, and signals to it."""

from __future__ import annotations

import asyncio
from typing import Any

from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import Flow
from holdfast.reading.views import Run


class Going:
    """The run `r` while an engine executes it, with a clock that the test controls."""

    def __init__(self, stage: Stage, engine: hf.Engine, coroutine: Any) -> None:
        self.stage = stage
        self.engine = engine
        self.task: asyncio.Task[Run[Any]] = asyncio.create_task(coroutine)

    async def until(self, kind: str, times: int = 1) -> None:
        await until(lambda: self.task.done() or self.count(kind) >= times)
        assert self.count(kind) >= times, self.task

    def count(self, kind: str) -> int:
        try:
            return self.stage.kinds().count(kind)
        except hf.RunNotFound:
            return 0

    async def parked(self, times: int = 1) -> None:
        """Wait until the node has unwound (a coroutine unwinds only after `park_after` seconds, so advance the clock)."""
        if self.stage.colour != "def":
            await self.until("NodeStarted", times)
            await self.asleep()
            self.stage.clock.advance(30)
        await self.until("NodeWaiting", times)

    async def asleep(self) -> None:
        """Wait until the node waits: its wait is in the log, and the node knows that it is."""
        await until(lambda: any(self.count(kind) for kind in ("TimerSet", "SignalAwaited", "QuestionAsked")))
        for _ in range(10):
            await asyncio.sleep(0)

    async def crash(self) -> None:
        """Stop executing the run without recording anything, as a crash does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Boom(Exception):
    """An exception that is not retried automatically."""


def waiting(stage: Stage, flow: Flow[Any], *, resume: bool = False) -> Run[Any]:
    """Start or resume the run `r`, and execute it until its node has unwound and the run is waiting."""

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.resume("r") if resume else engine.run(flow, run_id="r"))
        if stage.colour != "def":
            await turns(60)  # everything happens on the loop, so after 60 rounds the node waits
            stage.clock.advance(30)
        return await going.task

    run: Run[Any] = stage.do(use, flow)
    assert run.status == "waiting"
    return run


def told(stage: Stage, name: str, payload: Any = None, run_id: str = "r", **named: Any) -> Run[Any]:
    """Send a signal to a run from an engine that knows no flow."""
    run: Run[Any] = stage.do(lambda engine: engine.signal(run_id, name, payload, **named))
    return run


def paid(stage: Stage, seen: list[Any] | None = None, **named: Any) -> Flow[Any]:
    """Make a flow of one node that waits for the signal `paid`."""

    def body(state: Work, ctx: Any) -> Any:
        try:
            found = yield ctx.wait_for("paid", **named)
        except hf.HoldfastError as late:
            if seen is None:
                raise
            seen.append((type(late).__name__, str(late)))
            found = "late"
        return {"log": [found]}

    return stage.one(body)
