"""An engine that cannot record a refusal, because the store is busy, holds the run no longer: another engine refuses it."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import StoreBusy
from holdfast.storage.contract import Holder, Lease, RunRow
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


class BusyStore(MemoryStore):
    """A store that does not answer once, right after the run was claimed to record a refusal."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock.now)
        self.claims = 0

    def claim(self, run_id: str, holder: Holder) -> Lease:
        self.claims += 1
        return super().claim(run_id, holder)

    def run(self, run_id: str) -> RunRow:
        if self.claims == 1:
            self.claims += 1
            raise StoreBusy("the store did not answer")
        return super().run(run_id)


def test_a_run_is_released_if_a_refusal_cannot_be_recorded() -> None:
    clock = ManualClock(auto=True)
    store = BusyStore(clock)
    graph: Graph[Any] = Graph("asks", dict)
    graph.ask("which", "Which?", options=["this", "that"])
    flow = graph.chain(START, "which", END).compile()
    troubles: list[Any] = []

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as engine:
            await engine.run(flow, {}, run_id="r")
            await engine.skip("r", "nowhere", execute=False)
            await engine.work(until=lambda: bool(troubles), on_report=troubles.append)
            assert not store.run("r").held
            await engine.work(until=lambda: bool(store.events("r", kinds=("RequestRefused",))))

    asyncio.run(main())
    assert "did not answer" in troubles[0].message
    (request,) = store.inbox(run_id="r")
    assert request.taken
