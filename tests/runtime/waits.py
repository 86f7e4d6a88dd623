"""What the tests of waiting share: a run on its way, one that has unwound, and a signal from elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import Flow
from holdfast.reading.views import Run


class Going:
    """The run `r` on its way in an engine, with the clock in the test's hands."""

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
        """Wait until the node has unwound, after the time that a coroutine takes for it."""
        if self.stage.colour != "def":
            await self.until("NodeStarted", times)
            await self.asleep()
            self.stage.clock.advance(30)
        await self.until("NodeWaiting", times)

    async def asleep(self) -> None:
        """Wait until the node waits: what it waits for is in the log, and it has been told so."""
        await until(lambda: any(self.count(kind) for kind in ("TimerSet", "SignalAwaited", "QuestionAsked")))
        for _ in range(10):
            await asyncio.sleep(0)

    async def crash(self) -> None:
        """Leave it where it is, with nothing recorded."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Boom(Exception):
    """Something that is not tried again by itself."""


def waiting(stage: Stage, flow: Flow[Any], *, resume: bool = False) -> Run[Any]:
    """Carry `r` on until it has unwound and nobody is left to wait for but others."""

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.resume("r") if resume else engine.run(flow, run_id="r"))
        if stage.colour != "def":
            await turns(60)  # everything happens on the loop, so that is long enough for it to wait
            stage.clock.advance(30)
        return await going.task

    run: Run[Any] = stage.do(use, flow)
    assert run.status == "waiting"
    return run


def told(stage: Stage, name: str, payload: Any = None, run_id: str = "r", **named: Any) -> Run[Any]:
    """Signal a run from an engine that knows no flow."""
    run: Run[Any] = stage.do(lambda engine: engine.signal(run_id, name, payload, **named))
    return run


def paid(stage: Stage, seen: list[Any] | None = None, **named: Any) -> Flow[Any]:
    """Waits for `paid`."""

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
