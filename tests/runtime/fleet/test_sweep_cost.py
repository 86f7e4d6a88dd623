"""A sweep looks for what is in use where that can be, and does not read every log to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Row, Store
from holdfast.storage.urls import open_store
from holdfast.upkeep import archive, retention
from postgres_server import drop_schema, schema_for, shared_url

BIG_AT, ROUNDS = 5, 60

graph = Graph("rounds", dict)


@graph.node
async def turn(state: dict[str, Any]) -> dict[str, Any]:
    number = state.get("number", 0) + 1
    return {"number": number, "big": "x" * (2_000_000 if number == BIG_AT else 1)}


graph.edge(START, "turn")
graph.branch("turn", lambda state: "turn" if state["number"] < ROUNDS else END, to=["turn", END])
flow = graph.compile()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a run of many events, one of which refers to a blob."""
    name, server = schema_for(tmp_path), shared_url() if request.param == "postgres" else ""
    url = {
        "memory": f"memory://{name}",
        "sqlite": str(tmp_path / "runs.db"),
        "postgres": f"{server}{'&' if '?' in server else '?'}schema={name}",
    }[request.param]

    async def main() -> None:
        async with hf.Engine(url, flows=[flow]) as engine:
            await engine.run(flow, {}, run_id="r")

    store = open_store(url)
    asyncio.run(main())
    yield store
    store.close()
    if server:
        drop_schema(server, name)


def test_events_that_refer_to_no_blob_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set(store.blobs.digests())
    unused = Blob.of(b"of nobody")
    store.blobs.put(unused.digest, unused.body)
    read: list[Row] = []
    events = store.events

    def counted(*piece: Any, **chosen: Any) -> list[Row]:
        found = events(*piece, **chosen)
        read.extend(found)
        return found

    monkeypatch.setattr(store, "events", counted)
    monkeypatch.setattr(retention, "YOUNG_S", -3600.0)
    swept = retention.sweep(store)
    assert (swept.blobs, set(store.blobs.digests())) == (1, used)
    assert len(used) == 1
    assert len(read) < 5
    assert archive.references(store, store.run("r")) == used
