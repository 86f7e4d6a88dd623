"""A pause over HTTP while a node runs: every answer says that the run is pausing."""

from __future__ import annotations

import asyncio

from app_client import TOKENS, Caller

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.memory.store import MemoryStore


def test_a_run_that_is_paused_over_http_while_its_node_runs_is_pausing_in_every_answer() -> None:
    graph = Graph("gated", dict)
    begun, opened = asyncio.Event(), asyncio.Event()

    @graph.node
    async def first(state):
        begun.set()
        await opened.wait()

    flow = graph.chain(START, first, END).compile()

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            run = asyncio.create_task(engine.run(flow, {}, run_id="r"))
            await begun.wait()
            caller = Caller(hf.asgi(engine, tokens=TOKENS))
            before = (await caller.get("/api/v1/runs/r")).json
            headers = {"content-type": "application/json", "idempotency-key": "k"}
            paused = await caller.send("POST", "/api/v1/runs/r/pause", headers=headers, body=b"{}")
            shown = await caller.get("/api/v1/runs/r")
            (listed,) = (await caller.get("/api/v1/runs?status=running")).json["runs"]
            (member,) = (await caller.get("/api/v1/runs/r/family")).json["members"]
            told = [paused.json["run"], shown.json, listed, member]
            assert [(one["status"], one["pausing"]) for one in told] == [("running", True)] * 4
            assert not before["pausing"]
            assert "is recorded, so the run is paused when first has ended" in listed["reason"]
            assert listed["reason"] == shown.json["reason"]
            assert not listed["needs_attention"]
            opened.set()
            await run
            after = (await caller.get("/api/v1/runs/r")).json
            assert (after["status"], after["pausing"]) == ("completed", False)

    asyncio.run(main())
