"""What wakes a worker that rests, and what becomes of what it got while it was ended. The clock is the test's and stands still,
so that no slow look ever hides that nobody woke it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE_S, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.runtime import worker
from holdfast.storage.contract import Store
from holdfast.storage.postgres import listener
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, schema_for, shared_url

SLOW_S = 10.0**6
"""How often these workers look by themselves: never, as far as a test goes."""
AT_REST_S = 1000.0
"""A worker whose next look is further off than this rests: what is nearer is only a breath between two looks."""


class Place:
    """A store of any kind, and engines with threads on it: they hear, and only the test moves their clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.store: Store = open_store(url, clock=self.clock.now)

    def engine(self, *flows: Flow[Any]) -> hf.Engine:
        return hf.Engine(self.url, flows=flows, clock=self.clock, luck=random.Random(7), lease_ttl=3 * SLOW_S)

    def rests(self) -> bool:
        """Whether the worker waits for nothing but news, a slow look or a run that falls due. Breaths are let pass."""
        at, now = self.clock.next_at, self.clock.now()
        if at is not None and at < now + AT_REST_S:
            self.clock.advance_to_next()
        return at is not None and at >= now + AT_REST_S

    async def until(self, condition: Callable[[], Any]) -> None:
        """Until this holds; nothing passes meanwhile but breaths."""
        await until(lambda: (self.rests(), condition())[1])

    def looks_at(self, at: float) -> bool:
        """Whether the next look is about then: some breaths may pass while it is worked out."""
        return self.clock.next_at is not None and abs(self.clock.next_at - at) < AT_REST_S


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(worker, "POLL_S", SLOW_S)
    # An ear on PostgreSQL that hears nothing finds that out and looks every second; here it must hear.
    monkeypatch.setattr(listener, "PROOF_S", 10.0**6)
    schema = schema_for(tmp_path)
    url = {
        "memory": lambda: f"memory://{tmp_path.name}",
        "sqlite": lambda: str(tmp_path / "runs.db"),
        "postgres": lambda: f"{shared_url()}&schema={schema}",
    }[request.param]()
    made = Place(url)
    yield made
    made.store.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


def naps(seconds: float) -> Flow[Any]:
    graph = Graph("naps", dict)

    @graph.node
    async def nap(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        if seconds:
            await ctx.sleep(seconds)
        return {"slept": seconds}

    return graph.chain(START, nap, END).compile()


def bounded(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def test_a_worker_at_rest_wakes_at_the_moment_when_a_run_falls_due(place: Place) -> None:
    flow = naps(50_000.0)
    ended: list[str] = []

    async def main() -> None:
        async with place.engine(flow) as engine:
            await engine.start(flow, {}, run_id="r")
            working = asyncio.create_task(engine.work(on_end=lambda run: ended.append(run.status)))
            await until(lambda: place.rests() and ended == ["waiting"])
            due_at = place.store.run("r").due_at
            assert due_at is not None
            await until(lambda: place.rests() and place.looks_at(due_at))  # and not at its slow look
            place.clock.advance_to_next()
            await place.until(lambda: ended == ["waiting", "completed"])
            assert place.clock.now() < due_at + SLOW_S / 2, "nobody waits for the next slow look"
            engine.stop()
            await working

    bounded(main())


def test_a_worker_at_rest_hears_of_a_run_while_its_clock_stands_still(place: Place) -> None:
    flow = naps(0.0)
    ended: list[str] = []

    async def main() -> None:
        async with place.engine(flow) as engine, place.engine() as another:
            working = asyncio.create_task(engine.work(on_end=lambda run: ended.append(run.id)))
            for run_id in "abc":
                await until(place.rests)
                looks_at = place.clock.next_at
                assert looks_at is not None
                await another.start(flow, {}, run_id=run_id)
                await place.until(lambda: run_id in ended)  # noqa: B023 - it is awaited here
                assert place.clock.now() < looks_at
            engine.stop()
            await working

    bounded(main())


def test_what_a_worker_got_while_it_was_cancelled_is_given_back(place: Place) -> None:
    flow = naps(0.0)
    got, let_go = threading.Event(), threading.Event()

    class Slow:
        """Queues whose reply to a take comes late."""

        def __init__(self, queues: Any) -> None:
            self._queues = queues

        def take(self, *asked: Any) -> Any:
            taken = self._queues.take(*asked)
            got.set()
            assert let_go.wait(PATIENCE_S)
            return taken

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queues, name)

    async def main() -> None:
        async with place.engine(flow) as engine:
            await engine.start(flow, {}, run_id="r")
            real, engine.store.queues = engine.store.queues, Slow(engine.store.queues)
            working = asyncio.create_task(engine.work())
            await until(got.is_set)
            assert place.store.run("r").held
            working.cancel()
            await asyncio.wait([working])
            let_go.set()
            await until(lambda: not place.store.run("r").held)
            engine.store.queues = real
            await engine.work(until="idle")  # and it is on offer again, to this engine too
            assert place.store.run("r").status == "completed"

    bounded(main())
