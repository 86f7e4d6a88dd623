"""Listeners of an engine: what they are notified about, and that they never harm a run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from bench import counts

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.runtime.listeners import Listeners
from holdfast.storage.memory.store import MemoryStore


class Everything(hf.Listener):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def saved(self, run_id: str) -> None:
        self.heard.append(("saved", run_id))

    def streamed(self, chunk: hf.Chunk) -> None:
        self.heard.append(("streamed", chunk.value))

    def called(self, call: hf.NodeCall) -> None:
        self.heard.append(("called", call.node, call.attempt, call.item))

    def returned(self, call: hf.NodeCall, error: BaseException | None) -> None:
        self.heard.append(("returned", call.node, call.attempt, call.item, type(error).__name__))


class Broken(hf.Listener):
    def saved(self, run_id: str) -> None:
        raise ValueError("no")

    def called(self, call: hf.NodeCall) -> None:
        raise ValueError("no")


class OnlyStreams(hf.Listener):
    def streamed(self, chunk: hf.Chunk) -> None: ...


def flow_of(**nodes: Any) -> hf.Flow[Any]:
    graph: Graph[Any] = Graph("flow", dict)
    for name, fn in nodes.items():
        graph.node(name=name, retry=hf.Retry(attempts=2, backoff=0))(fn)
    return graph.chain(START, *nodes, END).compile()


def run(flow: hf.Flow[Any], *listeners: Any, store: Any = None) -> hf.Run[Any]:
    async def main() -> hf.Run[Any]:
        async with hf.Engine(store or MemoryStore(), listeners=listeners) as engine:
            return await engine.run(flow, {}, run_id="r")

    return asyncio.run(main())


async def quiet(state: dict[str, Any]) -> None: ...


async def talks(state: dict[str, Any], ctx: hf.Context) -> None:
    ctx.emit("hello")


def test_a_listener_hears_of_saves_chunks_calls_and_returns() -> None:
    listener = Everything()
    run(flow_of(talks=talks), listener)
    heard = [one for one in listener.heard if one[0] != "saved"]
    assert heard == [
        ("called", "talks", 1, None),
        ("streamed", "hello"),
        ("returned", "talks", 1, None, "NoneType"),
    ]
    assert listener.heard[0] == ("saved", "r")
    assert listener.heard[-1] == ("saved", "r")


def test_every_attempt_is_a_call_of_its_own() -> None:
    tries: list[int] = []

    def fails_once(state: dict[str, Any]) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise hf.Recoverable("once")

    listener = Everything()
    run(flow_of(only=fails_once), listener)
    assert [one for one in listener.heard if one[0] == "returned"] == [
        ("returned", "only", 1, None, "Recoverable"),
        ("returned", "only", 2, None, "NoneType"),
    ]


def test_a_listener_that_raises_is_logged_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    beside = Everything()
    with caplog.at_level(logging.WARNING, "holdfast"):
        ended = run(flow_of(a=quiet, b=quiet), Broken(), beside)
    assert ended.status == "completed"
    assert [one[1] for one in beside.heard if one[0] == "called"] == ["a", "b"]
    (record,) = caplog.records
    assert "Broken" in record.getMessage()


def test_a_start_is_durable_before_its_node_is_called() -> None:
    store = MemoryStore()
    found: list[list[str]] = []

    class Looks(hf.Listener):
        def called(self, call: hf.NodeCall) -> None:
            found.append([row.kind for row in store.events("r")])

    run(flow_of(a=quiet), Looks(), store=store)
    assert found == [["RunCreated", "NodeStarted"]]


def test_no_listener_and_one_that_does_not_hear_of_calls_cost_a_step_nothing() -> None:
    assert not Listeners().hear_calls
    assert not Listeners([OnlyStreams()]).hear_calls
    assert Listeners([Everything()]).hear_calls
    assert counts.calls(10, 30).ours <= 114


@pytest.mark.parametrize("given", [[object()], 5, ["saved"]])
def test_an_object_that_is_not_a_listener_is_refused(given: Any) -> None:
    with pytest.raises(hf.SettingError, match="listener"):
        hf.Engine(MemoryStore(), listeners=given)


def test_the_blocking_verbs_take_listeners() -> None:
    listener = Everything()
    hf.run(flow_of(a=quiet), {}, run_id="r", store=MemoryStore(), listeners=[listener])
    assert ("called", "a", 1, None) in listener.heard
