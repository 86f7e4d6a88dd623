"""Requests to runs: a closed union, one table, and the form in which stores keep them."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import inbox
from holdfast.runtime.recorders import RECORDERS
from holdfast.storage.contract import Request
from holdfast.storage.memory.store import MemoryStore

STORED = [
    (inbox.Pause(id="1", by="eve", reason="why"), Request(id="1", verb="pause", by="eve", reason="why")),
    (inbox.Cancel(id="1"), Request(id="1", verb="cancel")),
    (
        inbox.Answer(id="1", key="a.1.1", value=None),
        Request(id="1", verb="answer", body={"key": "a.1.1", "value": None}),
    ),
    (
        inbox.Answer(id="1", key="k", value="skip", update={"n": 1}, confidence=1),
        Request(
            id="1", verb="answer", body={"key": "k", "value": "skip", "update": {"n": 1}, "confidence": 1}
        ),
    ),
    (
        inbox.Signal(id="1", name="paid"),
        Request(id="1", verb="signal", body={"name": "paid", "payload": None}),
    ),
    (inbox.Retry(id="1"), Request(id="1", verb="retry", body={"node": None, "fresh": False})),
    (
        inbox.Skip(id="1", node="a", update={"n": 1}),
        Request(id="1", verb="skip", body={"node": "a", "update": {"n": 1}}),
    ),
]


@pytest.mark.parametrize(("request_", "stored"), STORED)
def test_a_request_is_stored_as_verb_and_body_and_read_again(request_: Any, stored: Request) -> None:
    assert inbox.stored_form(request_) == stored
    assert list(inbox.stored_form(request_).body) == list(stored.body)
    assert inbox.read(stored) == request_


def test_an_int_that_was_stored_stays_an_int() -> None:
    read = inbox.read(Request(id="1", verb="answer", body={"key": "k", "value": 1, "confidence": 1}))
    assert isinstance(read, inbox.Answer)
    assert type(read.confidence) is int


def test_every_type_of_request_has_a_row_in_the_table() -> None:
    assert set(RECORDERS) == {record.verb for record in get_args(inbox.AnyRequest)}


@pytest.mark.parametrize("body", [{}, {"node": 5}, {"name": []}])
def test_a_stored_request_that_cannot_be_read_becomes_unknown(body: dict[str, Any]) -> None:
    for verb in ("answer", "signal", "skip", "dance", ""):
        read = inbox.read(Request(id="1", verb=verb, body=body, run_id="r", by="eve"))
        assert read == inbox.Unknown(id="1", run_id="r", by="eve", stored_verb=verb)


@pytest.mark.parametrize("verb", ["dance", "skip"])
def test_a_request_that_this_version_cannot_read_leaves_the_inbox_and_the_run_continues(verb: str) -> None:
    store = MemoryStore()
    begun = asyncio.Event()

    async def waits(state: dict[str, Any], ctx: hf.Context) -> None:
        begun.set()
        await ctx.wait_for("go")

    graph: Graph[Any] = Graph("flow", dict)
    graph.node(name="waits")(waits)
    flow = graph.chain(START, "waits", END).compile()

    async def main() -> str:
        async with hf.Engine(store, flows=[flow]) as engine:
            going = asyncio.ensure_future(engine.run(flow, {}, run_id="r"))
            await begun.wait()
            store.post("r", Request(id="odd", verb=verb, body={"steps": 3}))
            (odd,) = store.inbox(engine._open().holder.id)
            engine._holdings.get("r").request(inbox.read(odd))  # as the poll of the inbox does
            await engine.signal("r", "go")
            return (await going).status

    assert asyncio.run(main()) == "completed"
    assert not store._data.waiting


def test_an_idle_run_refuses_a_request_that_this_version_cannot_read() -> None:
    store = MemoryStore()

    def fails(state: dict[str, Any]) -> None:
        raise hf.Fatal("no")

    graph: Graph[Any] = Graph("flow", dict)
    graph.node(name="fails")(fails)
    flow = graph.chain(START, "fails", END).compile()

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], inline=True) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, {}, run_id="r")
            store.post("r", Request(id="odd", verb="dance"))
            await engine.work(until="idle")

    asyncio.run(main())
    assert store.events("r")[-1].kind == "RequestRefused"
    assert not store._data.waiting
