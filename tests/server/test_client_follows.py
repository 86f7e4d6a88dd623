"""What a client that follows a run gets: the same events and chunks as a follower in the process of the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hosted import ADMIN, hosting

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.server.live import FRAME_BYTES_MAX
from holdfast.storage.memory.store import MemoryStore


def make_flow() -> hf.Flow[Any]:
    graph = Graph("talk", dict)

    @graph.node
    async def speak(state: dict[str, Any]) -> Any:
        for word in ("hold", "fast"):
            yield word
        yield {"said": 2}

    return graph.chain(START, speak, END).compile()


@pytest.fixture(scope="module")
def host():
    with hosting() as made:
        yield made


def told(news: Any) -> Any:
    return (news.number, news.value) if isinstance(news, hf.Chunk) else news.kind


def test_a_follower_that_comes_late_gets_the_chunks_from_the_log_as_in_the_process_of_the_engine(host):
    flow, store = make_flow(), MemoryStore()
    hf.run(flow, {}, run_id="r", store=store)

    async def here() -> list[Any]:
        async with hf.Engine(store) as engine:
            return [told(news) async for news in engine.follow("r", chunks=True)]

    async def afar(client: hf.Client) -> list[Any]:
        return [told(news) async for news in client.follow("r", chunks=True)]

    with host.serving(store, flows=[flow]) as url:
        seen = hf.BlockingClient(url, ADMIN).call(afar)
        assert seen == asyncio.run(here())
    assert [one for one in seen if isinstance(one, tuple)] == [(1, "hold"), (2, "fast")]


def test_a_follower_that_begins_within_an_attempt_gets_each_event_once(host):
    flow, store = make_flow(), MemoryStore()
    hf.run(flow, {}, run_id="r", store=store)
    (streamed,) = [event.seq for event in hf.events("r", store=store) if event.kind == "NodeStreamed"]

    async def afar(client: hf.Client) -> list[Any]:
        return [told(news) async for news in client.follow("r", streamed - 1, chunks=True)]

    with host.serving(store, flows=[flow]) as url:
        assert hf.BlockingClient(url, ADMIN).call(afar) == ["NodeStreamed", "NodeCompleted", "RunCompleted"]


def test_a_follower_gets_an_event_whole_that_is_too_large_for_a_stream(host):
    store = MemoryStore()
    graph = Graph("long", dict)

    @graph.node
    async def write(state: dict[str, Any]) -> dict[str, Any]:
        return {"text": "x" * FRAME_BYTES_MAX}

    flow = graph.chain(START, write, END).compile()
    hf.run(flow, {}, run_id="r", store=store)

    async def afar(client: hf.Client) -> list[Any]:
        return [news async for news in client.follow("r")]

    with host.serving(store, flows=[flow]) as url:
        completed = next(
            one for one in hf.BlockingClient(url, ADMIN).call(afar) if one.kind == "NodeCompleted"
        )
        assert completed.body == hf.events("r", store=store)[completed.seq - 1].body
        assert len(str(completed.body)) > FRAME_BYTES_MAX
