"""A run that has streamed very much is loaded and shown without its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import history
from holdfast.reading.open_visits import open_visits
from holdfast.reading.reader import Reader
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row
from holdfast.storage.urls import open_store

CHUNKS = 5
LARGE = "x" * 300_000


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind = request.param
    store = open_store(f"memory://{tmp_path.name}" if kind == "memory" else str(tmp_path / "runs.db"))
    yield store
    store.close()


def stream(store: Store, chunk: Any) -> None:
    """Execute a run whose node streams chunks and then fails, so that the visit is still open."""

    async def stream_all(state: dict[str, Any], ctx: hf.Context) -> None:
        for number in range(CHUNKS):
            ctx.emit([number, chunk])
        raise RuntimeError("fails")

    graph = Graph("streams", dict)
    graph.node(name="stream")(stream_all)
    flow = graph.chain(START, "stream", END).compile()

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], inline=True) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, {}, run_id="r")

    asyncio.run(main())


def test_a_run_is_loaded_and_shown_without_the_chunks_it_has_streamed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream(store, LARGE)
    (row,) = store.events("r", kinds=("NodeStreamed",))
    assert row.body.startswith(b'{"$blobs"')
    whole = open_row(row, store.blobs).event
    assert [number for number, _ in whole.chunks] == list(range(CHUNKS))
    read: list[str] = []
    real = store.blobs.get

    def get(digest: str) -> bytes:
        read.append(digest)
        return real(digest)

    monkeypatch.setattr(store.blobs, "get", get)
    assert history.load(store, "r", cold=True).nodes["stream"].streamed == CHUNKS
    shown = Reader(store).get("r")
    assert shown.nodes["stream"].chunks == CHUNKS
    (left,) = open_visits(Reader(store), shown)
    assert (left.chunks, left.last_lines) == (CHUNKS, [])
    assert read == []
    assert [event.body["chunks"] for event in Reader(store).events("r", kind="NodeStreamed")] == [
        whole.chunks
    ]
    assert read != []


def test_small_chunks_are_recorded_as_before(store: Store) -> None:
    stream(store, "x")
    (row,) = store.events("r", kinds=("NodeStreamed",))
    assert b"spans" not in row.body
    assert history.load(store, "r", cold=True).nodes["stream"].streamed == CHUNKS


def test_large_chunks_of_an_older_version_are_read_to_be_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.calls.streams.make_spans", lambda steps, size: [])
    stream(store, LARGE)
    (row,) = store.events("r", kinds=("NodeStreamed",))
    assert b"spans" not in row.body
    assert history.load(store, "r", cold=True).nodes["stream"].streamed == CHUNKS
