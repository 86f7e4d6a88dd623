"""The reading routes answer the same over every store, below a prefix too."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from app_client import SECRET, TOKENS, Caller, make_token
from fastapi import FastAPI
from served_flows import flow, run_order
from served_plans import ORDER, shop
from starlette.applications import Starlette
from starlette.routing import Mount
from test_table import BLOB, path_of
from verb_calls import Operator

import holdfast as hf
from holdfast.server.access import FRESH_S
from holdfast.server.table import ROUTES
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, schema_for, shared_url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        yield SqliteStore(tmp_path / "runs.db")
    else:
        yield PostgresStore(shared_url(), schema=schema_for(tmp_path))
        drop_schema(shared_url(), schema_for(tmp_path))


def test_every_route_answers(store):
    async def main() -> None:
        async with hf.Engine(store, flows=[flow, shop]) as engine:
            await run_order(engine, "ok", asks=True, parts=[1, 2])
            await run_order(engine, "bad", fails=True)
            await engine.run(shop.plan(ORDER), run_id="planned")
            store.blobs.put(BLOB.digest, BLOB.body)
            app = hf.asgi(engine, tokens=TOKENS)
            caller = Caller(app)
            readable = [
                one for one in ROUTES if one.method == "GET" and one.media_type != "text/event-stream"
            ]
            for route in readable:
                reply = await caller.get(path_of(route))
                assert reply.status == (404 if route.path.endswith("{path}") else 200), (
                    route.path,
                    reply.body,
                )
                if route.output is not None and route.output is not dict:
                    msgspec.json.decode(reply.body, type=route.output)
            assert [run["id"] for run in (await caller.get("/api/v1/runs?status=failed")).json["runs"]] == [
                "bad"
            ]
            missing = await caller.get("/api/v1/runs/none")
            assert missing.status == 404
            app.stop()

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_verbs_are_carried_out(store):
    async def main() -> None:
        async with hf.Engine(store, flows=[flow]) as engine:
            app = hf.asgi(engine, tokens=TOKENS)
            operator = Operator(app)
            body = {"flow": "order", "input": {"asks": True}, "run_id": "r1"}
            assert [(await operator.post("runs", body)).status for _ in range(2)] == [201, 200]
            assert (await operator.post("runs/r1/pause", key="k1")).json["run"]["status"] == "paused"
            working = asyncio.ensure_future(engine.work())
            seen = await operator.post("runs/r1/resume?preview=1")
            match = {"if-match": seen.headers["etag"]}
            asked = await operator.post("runs/r1/resume", {}, headers=match, key="k2", wait=60)
            assert asked.status == 200, asked.body
            answer = {"question": "ship", "answer": "approve"}
            done = await operator.post("runs/r1/answer", answer, key="k3", wait=60)
            assert (done.status, done.json["run"]["status"]) == (200, "completed"), done.body
            fork = await operator.post("runs/r1/fork", {"checkpoint": 1}, key="k4")
            assert fork.status == 201, fork.body
            await operator.post(f"runs/{fork.json['id']}/cancel", wait=60)
            await engine.stop("over", grace=0)
            await working
            app.stop()

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_a_token_of_the_store_is_accepted_until_it_is_revoked(store):
    async def main() -> None:
        clock = ManualClock()
        async with hf.Engine(store, flows=[flow]) as engine:
            app = hf.asgi(engine, clock=clock)
            caller = Caller(app)
            assert (await caller.get("/api/v1/meta")).status == 401
            store.tokens.add(make_token("operate", "t1", kind="agent"))
            about = await caller.get("/api/v1/meta", token=f"t1.{SECRET}")
            assert (about.status, about.json["name"], about.json["role"]) == (200, "operate-ada", "operate")
            assert (await caller.get("/api/v1/meta", token=f"t1.{SECRET}x")).status == 401
            store.tokens.revoke("t1", clock.now())
            clock.advance(FRESH_S)
            assert (await caller.get("/api/v1/meta", token=f"t1.{SECRET}")).status == 401
            app.stop()

    try:
        asyncio.run(main())
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["fastapi", "starlette"])
def test_an_application_mounts_it_below_a_prefix(kind):
    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            await run_order(engine, "ok")
            inner = hf.asgi(engine, tokens=TOKENS)
            if kind == "fastapi":
                outer = FastAPI()
                outer.mount("/ops/holdfast", inner)
            else:
                outer = Starlette(routes=[Mount("/ops/holdfast", app=inner)])
            caller = Caller(outer)
            assert (await caller.get("/ops/holdfast/api/v1/runs/ok")).json["status"] == "completed"
            assert (await caller.get("/ops/holdfast/healthz", token=None)).body == b"ok\n"
            assert (await caller.get("/ops/holdfast/api/v1/runs/ok", token=None)).status == 401
            assert (await caller.get("/ops/holdfast/api/v1/runs/ok/", token=None)).status == 401
            inner.stop()

    asyncio.run(main())
