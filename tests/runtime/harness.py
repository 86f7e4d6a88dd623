"""Shared by the tests of work inside a node: a memory or SQLite store, a clock, and engines that use them one after the other,
like processes. Only the store connects two of them.

The function of a node is written once for both colours (`def` and `async def`), as a script: a generator that yields what an
`async def` would await.

    def body(state, ctx):
        charged = yield ctx.step("charge", charge)
        return {"log": [charged]}

As a plain function it runs in a thread, with a clock that only the test moves; as a coroutine it runs on the event loop, with a
clock that jumps over every wait.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, add, append
from holdfast.reading import verification
from holdfast.runtime.calls.context import BlockingContext
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.storage.urls import open_store
from holdfast.testing.appends import KilledAtFailpoint
from holdfast.testing.builders import History, crashed_copy, outline
from holdfast.testing.clock import ManualClock
from postgres_server import lend_schema, return_schema, shared_url

PATIENCE_S = 60


@dataclass
class Work:
    log: Annotated[list[Any], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    plain: str = ""


def coloured(colour: str, script: Callable[..., Any]) -> Callable[..., Any]:
    """Make a node function of this colour (`def` or `async`) from a script."""

    def plain(state: Any, ctx: Any) -> Any:
        work = script(state, ctx)
        try:
            value = next(work)
            while True:
                value = work.send(value)
        except StopIteration as done:
            return done.value

    async def coroutine(state: Any, ctx: Any) -> Any:
        work = script(state, ctx)
        try:
            awaited = next(work)
            while True:
                try:
                    value = await awaited
                except BaseException as raised:
                    awaited = work.throw(raised)
                else:
                    awaited = work.send(value)
        except StopIteration as done:
            return done.value

    return plain if colour == "def" else coroutine


class Stage:
    """A store, a clock, and the engines that use them one after the other."""

    def __init__(self, kind: str, folder: Path, colour: str = "async", *, still: bool = False) -> None:
        self.kind = kind
        self.colour = colour
        self.folder = folder
        self.clock = ManualClock(auto=colour != "def" and not still)
        self.url = f"memory://{folder.name}" if kind == "memory" else str(folder / "runs.db")
        self.store = self.open(self.url)
        self._died: asyncio.Event | None = None
        self._left = threading.Event()

    def open(self, url: str) -> Store:
        return open_store(url, clock=self.clock.now)

    # --- flows ----------------------------------------------------------------------------------------

    def node(self, script: Callable[..., Any]) -> Callable[..., Any]:
        """Make a node function of this stage's colour from a script."""
        return coloured(self.colour, script)

    def one(self, script: Callable[..., Any], state: type[Any] = Work, **options: Any) -> Flow[Any]:
        """Make a flow of one node, `only`, of this stage's colour."""
        graph = Graph("one", state)
        graph.node(name="only", **options)(self.node(script))
        return graph.chain(START, "only", END).compile()

    # --- engines --------------------------------------------------------------------------------------

    def do(
        self,
        use: Callable[[hf.Engine], Awaitable[Any]],
        *flows: Flow[Any],
        url: str | None = None,
        **options: Any,
    ) -> Any:
        """Call `use` with a new engine, and return its result. Fails if that takes longer than `PATIENCE_S`: then it hangs."""

        async def main() -> Any:
            async with self.engine(*flows, url=url, **options) as engine:
                return await asyncio.wait_for(use(engine), PATIENCE_S)

        return asyncio.run(main())

    def engine(self, *flows: Flow[Any], url: str | None = None, **options: Any) -> hf.Engine:
        options = {"clock": self.clock, "inline": self.colour != "def", "luck": random.Random(7), **options}
        return hf.Engine(url or self.url, flows=flows, **options)

    def run(self, flow: Flow[Any], given: Any = None, *, run_id: str = "r", **options: Any) -> hf.Run[Any]:
        ended: hf.Run[Any] = self.do(lambda engine: engine.run(flow, given, run_id=run_id), **options)
        return ended

    def fails(self, flow: Flow[Any], given: Any = None, **options: Any) -> hf.Run[Any]:
        """Execute the run, which must fail, and return it."""
        with pytest.raises(hf.RunFailed) as failed:
            self.run(flow, given, **options)
        run: hf.Run[Any] = failed.value.run
        return run

    def verb(self, flow: Flow[Any], name: str, *args: Any, url: str | None = None, **named: Any) -> Any:
        """Call one method of a new engine on the run `r`."""
        return self.do(lambda engine: getattr(engine, name)("r", *args, **named), flow, url=url)

    def resume(self, flow: Flow[Any], **named: Any) -> Any:
        return self.verb(flow, "resume", **named)

    # --- crashes --------------------------------------------------------------------------------------

    def dies(self, ctx: Any) -> Any:
        """Use in a script that `crash` executes: simulate the death of the process here."""
        if isinstance(ctx, BlockingContext):
            died = self._died
            assert died is not None
            ctx._loop.call_soon_threadsafe(died.set)
            self._left.wait(PATIENCE_S)
            raise KilledAtFailpoint
        return self._die()

    async def _die(self) -> None:
        assert self._died is not None
        self._died.set()
        await asyncio.get_running_loop().create_future()

    def crash(self, flow: Flow[Any], given: Any = None, **options: Any) -> None:
        """Start or resume the run `r`, and abandon it where its node calls `dies`: nothing is recorded after that."""

        async def use(engine: hf.Engine) -> None:
            self._died = asyncio.Event()
            known = any(run.id == "r" for run in await engine.runs())
            going = engine.resume("r") if known else engine.run(flow, given, run_id="r")
            run = asyncio.create_task(going)
            died = asyncio.create_task(self._died.wait())
            await asyncio.wait([run, died], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                pytest.fail(f"the run ended without calling `dies`: {run.exception() or run.result()}")
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            self._left.set()

        self._left.clear()
        self.do(use, flow, **options)

    def crashed_at(self, seq: int) -> str:
        """Return the URL of another store, in which the process of the run `r` died right after this event."""
        url = f"{self.url}-{seq}"
        into = self.open(url)
        crashed_copy(self.store, "r", seq, into)
        into.close()
        return url

    # --- what is there --------------------------------------------------------------------------------

    def kinds(self) -> list[str]:
        return [row.kind for row in self.store.events("r")]

    def told(self, kind: str) -> list[Any]:
        """Return the events of this kind in the log of the run `r`."""
        return [open_row(row, self.store.blobs).event for row in self.store.events("r", kinds=(kind,))]

    def problems(self, url: str | None = None) -> list[str]:
        store = self.store if url is None else self.open(url)
        return verification.verify(store, "r").problems

    def spilled(self) -> dict[str, bytes]:
        return self.store.blobs.spilled("r")

    def close(self) -> None:
        self.store.close()


class OnServer(Stage):
    """A stage in a schema of its own, of the PostgreSQL server that the tests share."""

    def __init__(self, folder: Path, *, still: bool = False) -> None:
        super().__init__("memory", folder, still=still)
        self.store.close()
        self.kind, self.url = "postgres", f"{shared_url()}&schema={lend_schema(shared_url(), folder)}"
        self.store = self.open(self.url)

    def crashed_at(self, seq: int) -> str:
        pytest.fail("a store on a server is not copied: its schema is lent to other tests")

    def close(self) -> None:
        super().close()
        return_schema(shared_url(), self.folder)


async def until(condition: Callable[[], Any]) -> None:
    """Run the event loop until the condition holds; `Stage.do` limits the time."""
    for _ in iter(int, 1):  # for ever
        if condition():
            return
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Run the event loop for this many rounds."""
    for _ in range(count):
        await asyncio.sleep(0)


class LeftRuns:
    """A store with unfinished runs that no engine executes."""

    def __init__(self, *ids: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock.now)
        for run_id in ids:
            self.write(run_id)

    def write(self, run_id: str) -> None:
        story = History(run_id, outline("START a b END"), starts_at=self.clock.now()).created()
        story.completed("a").started("b").write(self.store)
