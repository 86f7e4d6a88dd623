"""Runs that move at the same time share commits, and never hold the event loop up for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import FenceLost
from holdfast.reading import verification
from holdfast.runtime.services import APPENDS_FEW
from holdfast.storage import writer
from holdfast.storage.memory.store import MemoryStore


class Counting(MemoryStore):
    """A store that keeps the size of every batch, and can have one run taken away from its holder."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.robbed: str | None = None

    def append(self, batch: Any) -> Any:
        self.batches.append(len(batch))
        verdicts = super().append(batch)
        for number, append in enumerate(batch):
            if append.run_id == self.robbed:
                verdicts[number] = FenceLost("another process took it over")
        return verdicts


def three_nodes() -> hf.Flow[Any]:
    graph: Graph[Any] = Graph("three", dict)
    for name in "abc":

        async def body(state: dict[str, Any]) -> None: ...

        graph.node(name=name)(body)
    return graph.chain(START, "a", "b", "c", END).compile()


async def run_many(store: Counting, count: int) -> list[Any]:
    flow = three_nodes()
    async with hf.Engine(store, flows=flow) as engine:
        runs = (engine.run(flow, run_id=f"r{number}") for number in range(count))
        return await asyncio.gather(*runs, return_exceptions=True)


def test_runs_that_move_together_share_commits_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUICK_S", 60.0)  # also on a machine that is busy with something else
    store = Counting()
    ended = asyncio.run(run_many(store, 100))
    assert {run.status for run in ended} == {"completed"}
    assert max(store.batches) <= APPENDS_FEW
    assert len(store.batches) < sum(store.batches) / 8
    assert all(verification.verify(store, f"r{number}").problems == [] for number in range(100))


def test_a_lone_run_waits_for_nobody() -> None:
    store = Counting()
    assert [run.status for run in asyncio.run(run_many(store, 1))] == ["completed"]
    assert set(store.batches) == {1}


def test_a_run_that_was_taken_over_does_not_disturb_its_neighbours() -> None:
    store = Counting()
    store.robbed = "r7"
    ended = asyncio.run(run_many(store, 20))
    assert isinstance(ended.pop(7), FenceLost)
    assert {run.status for run in ended} == {"completed"}


@pytest.mark.parametrize("count", [1, 5])
def test_a_slow_store_is_left_to_the_writer_thread(count: int) -> None:
    store, flow = Counting(), three_nodes()

    async def use() -> list[Any]:
        async with hf.Engine(store, flows=flow) as engine:
            engine._open().commits._writer._commit_s = 1.0
            return await asyncio.gather(*(engine.run(flow, run_id=f"r{number}") for number in range(count)))

    assert {run.status for run in asyncio.run(use())} == {"completed"}
