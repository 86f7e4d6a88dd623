"""Live events on raw sockets: what a client gets, when it returns, when it is slow, and when its stream must end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from app_client import SECRET, TOKENS, Caller, make_token
from fastapi import FastAPI
from live_client import PATIENCE_S, Cut, LiveClient
from served_flows import flow, run_order

import holdfast as hf
from holdfast.server import connection, live, open_streams, openapi
from holdfast.server.asgi import Application, asgi
from holdfast.server.backend import THREADS
from holdfast.server.board import BoardView
from holdfast.server.open_streams import HEARTBEAT_S, PIECE_BYTES, Ring
from holdfast.server.table import ROUTES
from holdfast.storage.leases import Holder
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, schema_for, shared_url

TOKEN = f"admin.{SECRET}"
WORKER = Holder(id="worker", ttl_s=1e6)


@dataclass
class Hosted:
    """A server on a free port of the loopback address, and a simulated worker that appends to the runs of its store."""

    app: Application
    store: Any
    port: int
    clock: ManualClock | None
    logs: dict[str, Log]
    host: connection.Host
    clients: list[LiveClient] = field(default_factory=list)

    async def follow(self, query: str = "?run=r", *, token: str = TOKEN, **options: Any) -> LiveClient:
        async with asyncio.timeout(PATIENCE_S):
            self.clients.append(await LiveClient.open(self.port, query, token, **options))
        return self.clients[-1]

    def create(self, run_id: str = "r", events: int = 1) -> None:
        self.store.renew(WORKER)
        log = self.logs[run_id] = Log(run_id, holder=WORKER.id, fence=1)
        self._write(log.create(*[b"{}"] * events, kind="NodeStarted"))

    def move(self, events: int = 1, run_id: str = "r", *, status: str = "running", **given: Any) -> None:
        bodies = given.pop("bodies", [b"{}"] * events)
        self._write(self.logs[run_id].next(*bodies, status=status, **{"kind": "NodeStarted", **given}))

    def finish(self, run_id: str = "r") -> None:
        self.move(run_id=run_id, kind="RunCompleted", status="completed")

    def _write(self, append: Any) -> None:
        assert self.store.append([append]) == [None]
        self.logs[append.run_id].wrote(append)


@asynccontextmanager
async def hosted(store: Any = None, *, clock: ManualClock | None = None, mount: str = "", **options: Any):
    async with hf.Engine(store if store is not None else MemoryStore(), flows=[flow]) as engine:
        app = asgi(engine, tokens=TOKENS, clock=clock, **options)
        outer: Any = app
        if mount:
            outer = FastAPI()
            outer.mount(mount, app)
        listening = connection.listen("127.0.0.1", 0)
        host = connection.Host(outer, listening)
        serving = asyncio.ensure_future(host.host())
        it = Hosted(app, engine.store, listening.getsockname()[1], clock, {}, host)
        try:
            yield it
        finally:
            app.stop()
            for client in it.clients:
                client.close()
            host.stop()
            await serving


def seqs(frames: list[Any]) -> list[int]:
    return [found.id for found in frames if found.event == "event"]


async def until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - nothing tells a test that a stream has ended
            await asyncio.sleep(0.005)


# --- one run -----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        with closing(SqliteStore(tmp_path / "runs.db")) as opened:
            yield opened
    else:
        opened = PostgresStore(shared_url(), schema=schema_for(tmp_path))
        yield opened
        opened.close()
        drop_schema(shared_url(), schema_for(tmp_path))


def test_every_event_comes_once_and_the_end_of_the_run_is_told(store):
    async def main() -> None:
        async with hosted(store) as it:
            it.create(events=3)
            async with await it.follow() as client:
                assert client.headers["content-type"] == "text/event-stream"
                assert client.headers["cache-control"] == "no-store"
                assert client.headers["x-accel-buffering"] == "no"
                first = await client.next()
                assert (first.event, first.id, first.data["kind"]) == ("event", 1, "NodeStarted")
                it.move(2)
                assert [(await client.next()).id for _ in range(4)] == [2, 3, 4, 5]
                it.move(status="failed")
                it.move()
                it.finish()
                rest = await client.rest()
                assert seqs(rest) == [6, 7, 8]
                assert (rest[-1].event, rest[-1].id) == ("over", None)
                assert rest[-1].data == {"seq": 8, "status": "completed"}
            async with await it.follow(last_id=8) as again:
                assert [found.event for found in await again.rest()] == ["over"]

    asyncio.run(main())


def test_a_client_that_returns_continues_after_its_last_event_also_at_another_server():
    async def main() -> None:
        store = MemoryStore()
        got: list[int] = []
        async with hosted(store) as it:
            it.create(events=2)
            async with await it.follow() as client:
                got += [(await client.next()).id for _ in range(2)]
            logs = it.logs
            it.move(3)
        async with hosted(store) as it:
            it.logs = logs
            async with await it.follow(last_id=got[-1]) as client:
                got += [(await client.next()).id for _ in range(2)]
            async with await it.follow("?run=r&after=1", last_id=got[-1]) as client:
                got += [(await client.next()).id]
                it.finish()
                got += seqs(await client.rest())
            async with await it.follow("?run=r&after=4") as client:
                assert seqs(await client.rest()) == [5, 6]
        assert got == [1, 2, 3, 4, 5, 6]

    asyncio.run(main())


def test_events_chunks_and_their_end_from_this_process():
    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            caller = Caller(asgi(engine, tokens=TOKENS))
            await run_order(engine, "r")
            reply = await caller.get("/api/v1/live?run=r")
            assert reply.status == 200
            assert reply.body.endswith(
                b'event: over\ndata: {"seq":%d,"status":"completed"}\n\n' % len(await engine.events("r"))
            )
            assert b"content-length" not in reply.headers
            caller.app.stop()

    asyncio.run(main())


def test_chunks_have_no_id_and_come_between_the_events_of_their_attempt():
    async def main() -> None:
        gate = asyncio.Event()
        graph = hf.Graph("talk")

        @graph.node
        async def say(state: dict, ctx: hf.Context) -> dict:
            ctx.emit("one")
            ctx.emit("x" * (live.FRAME_BYTES_MAX + 1))
            await gate.wait()
            return {}

        talk = graph.chain(hf.START, "say", hf.END).compile()
        async with hf.Engine(MemoryStore(), flows=[talk]) as engine:
            app = asgi(engine, tokens=TOKENS)
            listening = connection.listen("127.0.0.1", 0)
            host = connection.Host(app, listening)
            serving = asyncio.ensure_future(host.host())
            await engine.start(talk, run_id="r")
            async with await LiveClient.open(listening.getsockname()[1], "?run=r", TOKEN) as client:
                running = asyncio.ensure_future(engine.resume("r"))
                chunk = await client.next("chunk")
                assert (chunk.id, chunk.data["value"], chunk.data["number"]) == (None, "one", 1)
                large = await client.next("chunk")
                assert large.data["value"] is None
                assert large.data["omitted"] > live.FRAME_BYTES_MAX
                gate.set()
                rest = await client.rest()
                kinds = [found.data["kind"] for found in rest if found.event == "event"]
                assert kinds == ["NodeStreamed", "NodeCompleted", "RunCompleted"]
                streamed = next(found for found in rest if found.data.get("kind") == "NodeStreamed")
                assert streamed.data["body"] == {}
                assert streamed.data["omitted"] > live.FRAME_BYTES_MAX
                await running
            app.stop()
            host.stop()
            await serving

    asyncio.run(main())


def test_a_compacted_log_begins_with_a_reset():
    async def main() -> None:
        async with hosted() as it:
            it.create(events=9)
            digest = it.store.events("r", 5, 6)[0].digest
            it.store.upkeep.compact("r", 6, body=b"{}", digest=digest, holder=WORKER.id, fence=1)
            it.finish()
            for asked in (None, 2, 5):
                async with await it.follow(last_id=asked) as client:
                    reset, *rest = await client.rest()
                    assert (reset.event, reset.id, reset.data) == ("reset", 6, {"seq": 6})
                    assert seqs(rest) == [7, 8, 9, 10]
            async with await it.follow(last_id=6) as client:
                assert [found.event for found in await client.rest()] == ["event"] * 4 + ["over"]

    asyncio.run(main())


def test_a_run_that_is_deleted_meanwhile_ends_its_streams_with_a_problem():
    async def main() -> None:
        async with hosted() as it:
            it.create()
            async with await it.follow() as client:
                await client.next()
                it.store.release("r", WORKER.id, 1)
                assert not it.store.upkeep.delete({"r": 1})
                (problem,) = await client.rest()
                assert (problem.event, problem.data["type"]) == (
                    "problem",
                    "urn:holdfast:problem:run-not-found",
                )
            assert it.app.backend.channels == {}

    asyncio.run(main())


WRONG = [
    ("?run=nobody", None, 404, "run-not-found"),
    ("?run=r", "x", 400, "bad-event-id"),
    ("?run=r", "-1", 400, "bad-event-id"),
    ("?run=r", "1.5", 400, "bad-event-id"),
    ("?run=r", "\u00b2", 400, "bad-event-id"),
    ("?run=r", "9" * 30, 400, "bad-event-id"),
    ("?run=r", 2, 400, "bad-event-id"),
    ("?run=r&after=2", None, 400, "bad-event-id"),
    ("?run=r&after=x", None, 400, "bad-parameter"),
    ("?run=..", None, 400, "bad-parameter"),
    ("?run=r&status=failed", None, 400, "bad-parameter"),
    ("?run=r&run=r", None, 400, "bad-parameter"),
    ("?after=1", None, 400, "bad-parameter"),
    ("?status=odd", None, 400, "bad-parameter"),
    ("?cursor=odd", None, 400, "bad-cursor"),
    ("?nothing=2", None, 400, "bad-parameter"),
]


def test_the_description_of_the_api_names_the_header_with_which_a_client_returns():
    (route,) = [route for route in ROUTES if route.handler is live.get_live]
    told = msgspec.json.decode(openapi.document((route,)))["paths"]["/api/v1/live"]["get"]["parameters"]
    assert "Last-Event-ID" in {one["name"] for one in told if one["in"] == "header"}


def test_what_cannot_be_followed_is_a_problem():
    async def main() -> None:
        async with hosted() as it:
            it.create()
            for query, last_id, status, name in WRONG:
                async with await it.follow(query, last_id=last_id) as client:
                    problem = msgspec.json.decode(client.body)
                    told = (query, last_id, client.status, problem["type"].rpartition(":")[2])
                    assert told == (query, last_id, status, name)
                    assert problem["remedy"]
            assert len(it.app.backend.streams) == 0

    asyncio.run(main())


# --- many clients, and slow ones ---------------------------------------------------------------------


def test_each_event_is_encoded_once_for_all_clients(monkeypatch):
    encoded: list[int] = []
    real = live.event_frame
    monkeypatch.setattr(live, "event_frame", lambda event: encoded.append(event.seq) or real(event))

    async def main() -> None:
        async with hosted() as it:
            it.create()
            clients = [await it.follow(last_id=1) for _ in range(20)]
            await until(lambda: len(it.app.backend.streams) == 20)
            it.move(5)
            for client in clients:
                assert [(await client.next()).id for _ in range(5)] == [2, 3, 4, 5, 6]
            assert encoded == [2, 3, 4, 5, 6]
            for client in clients:
                client.close()
            await until(lambda: not it.app.backend.channels)
            assert len(it.app.backend.streams) == 0

    asyncio.run(main())


def test_a_client_that_stops_reading_costs_little_and_loses_nothing():
    async def main() -> None:
        async with hosted() as it:
            it.create()
            stuck = await it.follow(receive_bytes=4096)
            reader = await it.follow()
            body = b'{"chunks":["%s"]}' % (b"x" * 20_000)
            for _ in range(10):  # 2 MB of events, and as much of chunks
                it.move(bodies=[body] * 10, kind="NodeStreamed")
                for _ in range(10):
                    await reader.next("event")
            buffered = [one.transport.get_write_buffer_size() for one in it.host.server_state.connections]
            assert PIECE_BYTES / 4 < max(buffered) < 256 * 1024
            channel = it.app.backend.channels["r"]
            assert sum(len(data) for _, _, data in channel.ring._entries) <= PIECE_BYTES
            it.finish()
            assert seqs(await stuck.rest()) == list(range(1, 103))
            stuck.close()
            reader.close()

    asyncio.run(main())


def test_a_client_that_does_not_read_for_long_is_dropped(monkeypatch):
    monkeypatch.setattr(connection, "WRITE_S", 0.3)

    async def main() -> None:
        async with hosted() as it:
            it.create()
            stuck = await it.follow(receive_bytes=4096)
            body = b'{"chunks":["%s"]}' % (b"x" * 20_000)
            it.move(bodies=[body] * 100, kind="NodeStreamed")
            await until(lambda: len(it.app.backend.streams) == 1)
            await until(lambda: len(it.app.backend.streams) == 0)
            got: list[int] = []

            async def read() -> None:
                async for found in stuck.frames():
                    got.extend([found.id] if found.event == "event" else [])

            with pytest.raises(Cut):
                await read()
            it.finish()
            async with await it.follow(last_id=got[-1]) as again:
                got += seqs(await again.rest())
            assert got == list(range(1, 103))

    asyncio.run(main())


def test_in_another_server_a_client_that_does_not_read_for_long_is_dropped():
    async def main() -> None:
        clock, blocked, sent = ManualClock(), asyncio.Event(), []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) > 2:
                blocked.set()
                await asyncio.Event().wait()

        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS, clock=clock)
            await run_order(engine, "r", asks=True)
            serving = asyncio.ensure_future(Caller(app).send_to("/api/v1/live?run=r", send))
            await asyncio.wait_for(blocked.wait(), PATIENCE_S)
            for _ in range(int(open_streams.STUCK_S) + 2):
                await asyncio.sleep(0)
                clock.advance(1.0)
            with pytest.raises(open_streams.ClientStuck):
                await asyncio.wait_for(serving, PATIENCE_S)
            assert len(app.backend.streams) == 0
            app.stop()

    asyncio.run(main())


# --- when streams end, and what they say meanwhile ----------------------------------------------------


def test_a_silent_stream_has_heartbeats():
    async def main() -> None:
        clock = ManualClock()
        async with hosted(clock=clock) as it:
            it.create()
            async with await it.follow() as client:
                await client.next()
                for _ in range(2):
                    for _ in range(int(HEARTBEAT_S) + 1):
                        clock.advance(1.0)
                        await asyncio.sleep(0)
                    await client.next_comment()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_the_streams_of_a_token_end_within_ten_seconds_of_the_token(how):
    async def main() -> None:
        clock = ManualClock()
        async with hosted(clock=clock) as it:
            it.create()
            expires_at = clock.now() + 5.0 if how == "expired" else None
            it.store.tokens.add(make_token("read", "t1", expires_at=expires_at))
            other = await it.follow()
            client = await it.follow(token=f"t1.{SECRET}")
            page = await it.follow("", token=f"t1.{SECRET}")
            for one in (client, page, other):
                await one.next()
            if how == "revoked":
                it.store.tokens.revoke("t1", clock.now())
            for _ in range(15 if how == "expired" else 10):
                clock.advance(1.0)
                await asyncio.sleep(0.005)
            assert await client.rest() == []
            await page.rest()
            it.finish()
            assert seqs(await other.rest()) == [2]
            assert (await it.follow(token=f"t1.{SECRET}")).status == 401

    asyncio.run(main())


def test_a_server_that_stops_ends_its_streams_at_once():
    async def main() -> None:
        async with hosted() as it:
            it.create()
            clients = [await it.follow("?run=r" if number % 2 else "") for number in range(50)]
            for client in clients:
                await client.next()
            it.app.stop()
            for client in clients:
                assert "over" not in [found.event for found in await client.rest()]
            assert (await it.follow()).status == 503
            assert it.app.backend.channels == {}

    asyncio.run(main())


def test_there_are_no_more_streams_than_allowed():
    async def main() -> None:
        async with hosted(streams=2) as it:
            it.create()
            first, second = await it.follow(), await it.follow("")
            third = await it.follow()
            assert (third.status, third.headers["retry-after"]) == (503, "5")
            assert msgspec.json.decode(third.body)["type"] == "urn:holdfast:problem:too-many-streams"
            assert (await Caller(it.app).send("HEAD", "/api/v1/live?run=r", host=f"127.0.0.1:{it.port}",
                                              server=("127.0.0.1", it.port))).status == 503  # fmt: skip
            first.close()
            await until(lambda: len(it.app.backend.streams) == 1)
            assert (await it.follow()).status == 200
            second.close()

    asyncio.run(main())


def test_clients_that_come_at_the_same_moment_do_not_get_more_streams_than_allowed():
    async def main() -> None:
        async with hosted(streams=3) as it:
            it.create()
            for query in ("?run=r", ""):
                found = await asyncio.gather(*(it.follow(query) for _ in range(20)))
                assert sorted(one.status for one in found) == [200] * 3 + [503] * 17
                for one in found:
                    one.close()
                await until(lambda: len(it.app.backend.streams) == 0)

    asyncio.run(main())


def test_only_the_head_is_answered_to_a_head_request():
    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            caller = Caller(asgi(engine, tokens=TOKENS))
            await run_order(engine, "r", asks=True)
            for query in ("?run=r", ""):
                reply = await caller.send("HEAD", f"/api/v1/live{query}")
                assert (reply.status, reply.body) == (200, b"")
                assert reply.headers["content-type"] == "text/event-stream"
            assert caller.app.backend.channels == {}
            caller.app.stop()

    asyncio.run(main())


def test_it_works_below_a_prefix_without_a_lifespan():
    async def main() -> None:
        async with hosted(mount="/ops") as it:
            it.create(events=2)
            async with await it.follow(path="/ops/api/v1/live") as client:
                assert [(await client.next()).id for _ in range(2)] == [1, 2]
                it.finish()
                assert [found.event for found in await client.rest()] == ["event", "over"]

    asyncio.run(main())


# --- rows and the board ------------------------------------------------------------------------------


def test_rows_are_sent_when_they_change_and_a_client_that_returns_gets_the_present_ones():
    async def main() -> None:
        clock = ManualClock()

        async def look() -> None:
            await asyncio.sleep(0.01)
            clock.advance(live.LOOK_S)

        async with hosted(clock=clock) as it:
            it.create("r1")
            it.create("r2")
            async with await it.follow("") as client:
                board = await client.next()
                assert (board.event, board.id, board.data["counts"]["running"]) == ("board", None, 2)
                assert len(board.data["minutes"]) == 60
                assert board.data.keys() == {*BoardView.__struct_fields__} - {"at"}
                first = [await client.next("runs", "row") for _ in range(3)]
                assert first[0].data == {"ids": ["r2", "r1"]}
                assert [(found.data["id"], found.data["status"]) for found in first[1:]] == [
                    ("r2", "running"),
                    ("r1", "running"),
                ]
                assert {found.id for found in first} == {None}
                it.move(run_id="r1", status="failed")
                await look()
                row = await client.next("runs", "row")
                assert (row.event, row.data["id"], row.data["status"]) == ("row", "r1", "failed")
                it.create("r3")
                await look()
                while (
                    board.data["counts"]["failed"] == 0
                ):  # one was sent when the examination of the store had ended
                    board = await client.next("board")
                counts = board.data["counts"]
                assert (counts["running"], counts["failed"], board.data["attention"]) == (2, 1, 1)
                assert (await client.next("runs")).data == {"ids": ["r3", "r2", "r1"]}
                assert (await client.next("row")).data["id"] == "r3"
            async with await it.follow("?status=failed&limit=1") as client:
                assert (await client.next("runs")).data == {"ids": ["r1"]}
                assert (await client.next("row")).data["seq"] == 2
                it.move(run_id="r1")
                await look()
                assert (await client.next("runs")).data == {"ids": []}

    asyncio.run(main())


class SlowLists(MemoryStore):
    """A store whose lists of runs do not come until the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = threading.Event()
        self.may_list.set()

    def runs(self, query):
        assert self.may_list.wait(PATIENCE_S)
        return super().runs(query)


def test_however_many_pages_are_followed_other_requests_are_answered():
    async def main() -> None:
        clock, store = ManualClock(), SlowLists()
        async with hosted(store, clock=clock) as it:
            it.create()
            clients = [await it.follow(f"?since={number}") for number in range(2 * THREADS)]
            for client in clients:
                await client.next("runs")
            store.may_list.clear()
            try:
                clock.advance(live.LOOK_S)
                await until(it.app.backend.looks.locked)
                async with asyncio.timeout(PATIENCE_S):
                    address = {"host": f"127.0.0.1:{it.port}", "server": ("127.0.0.1", it.port)}
                    assert (await Caller(it.app).get("/api/v1/runs/r/requests", **address)).status == 200
            finally:
                store.may_list.set()

    asyncio.run(main())


def test_there_are_no_more_pages_with_other_parameters_than_allowed(monkeypatch):
    monkeypatch.setattr(live, "PAGES_MAX", 1)

    async def main() -> None:
        async with hosted() as it:
            it.create()
            first = await it.follow("?limit=1")
            refused = await it.follow("?limit=2")
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            assert [(await it.follow(query)).status for query in ("?limit=1", "?run=r")] == [200, 200]
            first.close()

    asyncio.run(main())


# --- the ring ----------------------------------------------------------------------------------------


def test_a_ring_gives_what_is_after_an_event_as_long_as_it_has_it():
    ring = Ring(5)
    assert (ring.number_after(5), ring.number_after(4)) == (0, None)
    for seq in (6, None, None, 7, None):
        ring.add(b"%d," % (seq or 0), seq)
    assert ring.since(ring.number_after(5)) == b"6,0,0,7,0,"
    assert ring.since(ring.number_after(6)) == b"0,0,7,0,"
    assert ring.since(ring.number_after(7)) == b"0,"
    assert ring.number_after(6, least=2) == 2
    assert (ring.since(ring.end), ring.reached) == (b"", 7)
    ring.add(b"x" * (PIECE_BYTES - 6), 8)
    assert (ring.base, ring.number_after(5)) == (6, None)
    assert ring.since(ring.number_after(6))[:8] == b"0,7,0,xx"
    ring.add(b"y" * (PIECE_BYTES + 1), 9)
    assert (ring.base, ring.begin, ring.end) == (9, 7, 7)
    assert (ring.number_after(8), ring.number_after(9)) == (None, 7)


def test_a_client_that_is_ahead_of_the_ring_is_not_sent_again_what_it_has():
    async def main() -> None:
        channel = SimpleNamespace(ring=Ring(8), last=None)
        place = live.RunPlace(channel, 10)
        assert await place.next_part() == b""
        for seq in (9, 10):
            channel.ring.add(b"%d," % seq, seq)
            assert await place.next_part() == b""
        channel.ring.add(b"11,", 11)
        assert await place.next_part() == b"11,"
        assert await place.next_part() == b""

    asyncio.run(main())
