"""What a client that waits for a caller gets: the caller when its family needs something from outside, and not before."""

from __future__ import annotations

from typing import Any

import pytest
from hosted import ADMIN, hosting

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.memory.store import MemoryStore


@pytest.fixture(scope="module")
def host():
    with hosting() as made:
        yield made


def make_family(broken: list[bool]) -> tuple[hf.Flow[Any], hf.Flow[Any]]:
    child, caller = Graph("pay", dict), Graph("order", dict)

    @child.node
    async def charge(state: dict[str, Any]) -> dict[str, Any]:
        if broken:
            raise ValueError("the till is broken")
        return {"paid": True}

    pay = child.chain(START, "charge", END).compile()

    @caller.node
    async def settle(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"paid": (await ctx.call(pay, {}, queue="elsewhere"))["paid"]}

    return caller.chain(START, "settle", END).compile(), pay


def test_a_client_waits_for_a_caller_whose_child_needs_only_a_worker(host):
    flow, pay = make_family([])
    store = MemoryStore()
    assert hf.run(flow, {}, run_id="r", store=store).status == "waiting"

    async def look(client: hf.Client) -> str:
        for until in ("stopped", "ended"):
            with pytest.raises(TimeoutError):
                await client.wait("r", timeout=0.5, until=until)
        async with hf.Engine(store, flows=[flow, pay]) as engine:
            await engine.work(until="idle")
        return (await client.wait("r", timeout=60)).status

    with host.serving(store, flows=[flow]) as url:
        assert hf.BlockingClient(url, ADMIN).call(look) == "completed"


def test_a_request_over_http_mends_a_family_and_its_preview_names_the_child(host):
    broken = [True]
    flow, pay = make_family(broken)
    store = MemoryStore()

    async def mend(client: hf.Client) -> tuple[list[str], str]:
        async with hf.Engine(store, flows=[flow, pay]) as engine:
            await engine.start(flow, {}, run_id="r")
            await engine.work(until="idle")
            broken.clear()
            seen = await client.preview("r", "retry")
            await client.retry("r", expects=seen.digest, id="mend-it")
            await engine.work(until="idle")
        return [one.run_id for one in seen.family], (await client.wait("r", timeout=60)).status

    with host.serving(store, flows=[flow]) as url:
        named, status = hf.BlockingClient(url, ADMIN).call(mend)
    (child,) = [run.id for run in hf.runs(origin="r", store=store)]
    assert (named, status) == ([child], "completed")
