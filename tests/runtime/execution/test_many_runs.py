"""Many runs at once: their appends are committed together, in few statements, and every log is what was written."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Engine, Graph
from holdfast.errors import FenceLost, RunNotFound, SeqConflict
from holdfast.reading.verification import verify
from holdfast.storage.contract import Holder
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log

RUNS = 300


def flow() -> hf.Flow[Any]:
    graph = Graph("many", dict)

    @graph.node
    async def small(state: Any) -> dict[str, Any]:
        return {"number": state["number"] + 1, "text": "nœud 日本 \x7f 'quoted' \\ \n"}

    @graph.node
    async def large(state: Any) -> dict[str, Any]:
        return {"pages": [f"page {number} of run {state['number']}" for number in range(200)]}

    @graph.node
    async def last(state: Any) -> dict[str, Any]:
        return {"number": state["number"] * 2}

    return graph.chain(START, "small", "large", "last", END).compile()


def test_a_fleet_on_sqlite_ends_and_every_log_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    as_json = batches.as_json
    monkeypatch.setattr(batches, "as_json", lambda cells: written.append(len(cells)) or as_json(cells))
    store = SqliteStore(tmp_path / "runs.db")

    async def main() -> list[hf.Run[Any]]:
        many = flow()
        async with Engine(store) as engine:
            return await asyncio.gather(
                *(engine.run(many, {"number": number}, run_id=f"r{number}") for number in range(RUNS))
            )

    runs = asyncio.run(main())
    assert [run.state["number"] for run in runs] == [(number + 1) * 2 for number in range(RUNS)]
    assert max(written) >= batches.MANY, "the statements for many were not used"
    for run in runs:
        assert verify(store, run.id).problems == []
    store.close()


def test_neighbours_of_a_refused_append_are_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db", clock=time.time)
    store.renew(Holder(id="me"))
    logs = [Log(f"r{number}", holder="me", fence=1) for number in range(batches.MANY + 8)]
    for log in logs:
        first = log.create(holder="me")
        assert store.append([first]) == [None]
        log.wrote(first)
    batch = [log.next() for log in logs]
    stale, ahead, unknown = batch[3], batch[7], batch[11]
    batch[3] = msgspec.structs.replace(stale, fence=99)
    batch[7] = msgspec.structs.replace(ahead, expected_seq=50)
    batch[11] = msgspec.structs.replace(unknown, run_id="nobody")
    verdicts = store.append(batch)
    assert [type(verdict) for verdict in (verdicts[3], verdicts[7], verdicts[11])] == [
        FenceLost,
        SeqConflict,
        RunNotFound,
    ]
    assert [verdict for index, verdict in enumerate(verdicts) if index not in (3, 7, 11)] == [None] * (
        len(batch) - 3
    )
    for index, log in enumerate(logs):
        row = store.run(log.run_id)
        expected = batch[index].rows[-1].seq if index not in (3, 7, 11) else batch[index].expected_seq
        if index not in (3, 7, 11):
            assert (row.seq, row.digest, row.updated_at) == (
                expected,
                batch[index].rows[-1].digest,
                batch[index].rows[-1].at,
            )
            stored = store.events(log.run_id)[-len(batch[index].rows) :]
            assert tuple(stored) == batch[index].rows
    store.close()
