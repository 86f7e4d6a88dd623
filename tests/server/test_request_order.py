"""Over HTTP too, requests take effect in the order in which they were acknowledged: an older resume does not undo a pause."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from verb_calls import operated

import holdfast as hf
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from postgres_server import drop_schema, schema_for, shared_url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: Any, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        with closing(SqliteStore(tmp_path / "runs.db")) as opened:
            yield opened
    else:
        with closing(PostgresStore(shared_url(), schema=schema_for(tmp_path))) as opened:
            yield opened
        drop_schema(shared_url(), schema_for(tmp_path))


@pytest.mark.parametrize(
    ("verb", "body"), [("resume", {}), ("retry", {"node": "pay"}), ("skip", {"node": "pay"})]
)
def test_an_acknowledged_pause_is_not_undone_by_an_older_request(
    store: Any, verb: str, body: dict[str, Any]
) -> None:
    paid: list[str] = []
    graph = hf.Graph("shop", dict)

    @graph.node(idempotent=False)
    def pay(state: dict[str, Any]) -> dict[str, Any]:
        paid.append("paid")
        return {}

    flow = graph.chain(hf.START, "pay", hf.END).compile()

    async def main() -> None:
        async with operated(store=store, flows=[flow]) as (engine, operator):
            await engine.start(flow, {}, run_id="r1")
            assert (await operator.post("runs/r1/pause", {})).status == 202
            assert (await operator.post(f"runs/r1/{verb}", body, key="old")).status == 202
            paused = await operator.post("runs/r1/pause", {})
            assert (paused.status, paused.json["run"]["status"]) == (202, "paused")
            async with hf.Engine(store, flows=[flow]) as working:
                await working.work(until="idle")
            assert (paid, (await operator.run("r1"))["status"]) == ([], "paused")
            (listed,) = (await operator.get("/api/v1/runs/r1/requests")).json["requests"]
            assert (listed["verb"], listed["status"]) == (verb, "refused")
            assert "a later pause by admin-ada superseded this request" in listed["refused"]
            again = await operator.post(f"runs/r1/{verb}", body, key="old", wait=30)
            assert (again.status, again.json["type"]) == (409, "urn:holdfast:problem:request-superseded")
            assert (await operator.post("runs/r1/resume", {}, key="new")).status == 202
            async with hf.Engine(store, flows=[flow]) as working:
                await working.work(until="idle")
            assert ((await operator.run("r1"))["status"], paid) == ("completed", ["paid"])

    asyncio.run(main())
