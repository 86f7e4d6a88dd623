"""Who is let in, and as whom: tokens, their expiry and revocation, wrong tokens by address, and where requests come from."""

from __future__ import annotations

import asyncio

import pytest
from app_client import SECRET, Caller, make_token
from served_flows import flow, opened

import holdfast as hf
from holdfast.errors import SettingError
from holdfast.server.access import FAILURES_MAX, FRESH_S, WINDOW_S, Failures, Identity
from holdfast.server.addresses import Addresses, network_of
from holdfast.server.asgi import asgi
from holdfast.storage.http.server_url import is_loopback
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import ManualClock

META = "/api/v1/meta"


def served(test, *, tokens=(), **options):
    """Run a test with an application on a manual clock, whose store is in memory."""

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            clock = ManualClock(1000.0)
            app = asgi(engine, tokens=tokens, clock=clock, **options)
            try:
                await test(engine, Caller(app), clock)
            finally:
                app.stop()

    asyncio.run(main())


def test_a_token_of_the_store_is_accepted_until_it_expires():
    async def test(engine, caller, clock):
        engine.store.tokens.add(make_token("start", "t1", name="scout", kind="agent", expires_at=2000.0))
        reply = await caller.get(META, token=f"t1.{SECRET}")
        assert reply.status == 200
        assert {name: reply.json[name] for name in ("name", "by", "role", "kind", "expires_at")} == {
            "name": "scout", "by": "agent:scout", "role": "start", "kind": "agent", "expires_at": 2000.0,
        }  # fmt: skip
        clock.advance(1000.0)
        assert (await caller.get(META, token=f"t1.{SECRET}")).status == 401

    served(test)


def test_a_revoked_token_is_refused_within_ten_seconds():
    assert FRESH_S <= 10

    async def test(engine, caller, clock):
        engine.store.tokens.add(make_token(token_id="t1"))
        assert (await caller.get(META, token=f"t1.{SECRET}")).status == 200
        engine.store.tokens.revoke("t1", 1001.0)
        clock.advance(FRESH_S)
        assert (await caller.get(META, token=f"t1.{SECRET}")).status == 401

    served(test)


def test_a_request_that_waits_ends_when_its_token_is_revoked():
    async def test(engine, caller, clock):
        await engine.start(flow, {}, run_id="r")
        engine.store.tokens.add(make_token(token_id="t1"))
        waiting = asyncio.ensure_future(caller.get("/api/v1/runs/r?wait=60&after=999", token=f"t1.{SECRET}"))
        began = clock.now()
        while not waiting.done():
            if clock.now() >= began + 1:
                engine.store.tokens.revoke("t1", clock.now())
            clock.advance(0.2)
            await asyncio.sleep(0.005)
        assert (await waiting).status == 401
        assert clock.now() - began < 11

    served(test)


def test_a_token_that_is_made_now_is_accepted_at_once():
    async def test(engine, caller, clock):
        assert (await caller.get(META, token=f"t1.{SECRET}")).status == 401
        engine.store.tokens.add(make_token(token_id="t1"))
        assert (await caller.get(META, token=f"t1.{SECRET}")).status == 200

    served(test)


def test_a_token_in_use_costs_no_query_per_request():
    async def test(engine, caller, clock):
        engine.store.tokens.add(make_token(token_id="t1"))
        asked: list[str] = []
        get = engine.store.tokens.get
        engine.store.tokens.get = lambda token_id: asked.append(token_id) or get(token_id)
        for _ in range(10):
            assert (await caller.get(META, token=f"t1.{SECRET}")).status == 200
        assert asked == ["t1"]

    served(test)


def test_an_address_with_many_wrong_tokens_must_wait_and_others_need_not():
    async def test(engine, caller, clock):
        for _ in range(FAILURES_MAX):
            assert (await caller.get(META, token="x.wrongwrongwrongwrong", client="10.0.0.1")).status == 401
        refused = await caller.get(META, token="x.wrongwrongwrongwrong", client="10.0.0.1")
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) == WINDOW_S + 1
        assert (await caller.get(META, client="10.0.0.1")).status == 429
        assert (await caller.get(META, client="10.0.0.2")).status == 200
        clock.advance(WINDOW_S)
        assert (await caller.get(META, client="10.0.0.1")).status == 200

    served(test, tokens=[make_token()])


def test_a_client_that_is_in_stays_in_beside_one_that_sends_wrong_tokens():
    async def test(engine, caller, clock):
        assert (await caller.get(META, client="10.0.0.1")).status == 200
        for _ in range(FAILURES_MAX + 5):
            await caller.get(META, token="x.wrongwrongwrongwrong", client="10.0.0.1")
        assert (await caller.get(META, client="10.0.0.1")).status == 200

    served(test, tokens=[make_token()])


def test_requests_without_any_token_count_as_no_failure():
    async def test(engine, caller, clock):
        for _ in range(FAILURES_MAX + 5):
            assert (await caller.get(META, token=None)).status == 401
        assert (await caller.get(META)).status == 200

    served(test, tokens=[make_token()])


def test_failures_are_counted_in_bounded_space():
    failures = Failures()
    for number in range(20_000):
        failures.add(f"10.{number >> 8}.0.{number & 255}", 0.0)
    assert len(failures._counts) == 10_000


def test_one_ipv6_network_counts_as_one_address():
    assert network_of("2001:db8:0:1:aaaa::1") == network_of("2001:db8:0:1:bbbb::2")
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8:0:2::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")
    assert network_of("unix") == "unix"


def test_a_backend_may_say_for_whom_it_calls():
    async def test(engine, caller, clock):
        reply = await caller.get(META, headers={"holdfast-for": "ada@example.com"})
        assert reply.json["by"] == "portal/ada@example.com"
        for wrong in ("", "a/b", "a\x1bb", "x" * 65, " a", "agent:x"):
            assert (await caller.get(META, headers={"holdfast-for": wrong})).status == 400

    served(test, tokens=[make_token(name="portal")])


NOBODY = Identity(token_id="none", name="ada", role="admin", by="ada")


def test_without_tokens_the_login_name_is_recorded():
    async def test(engine, caller, clock):
        reply = await caller.get(META, token=None)
        assert (reply.json["by"], reply.json["role"]) == ("ada", "admin")
        assert (await caller.get(META, token="x.wrongwrongwrongwrong")).status == 401

    served(test, anonymous=NOBODY)


def test_without_tokens_a_request_for_another_may_wait():
    async def test(engine, caller, clock):
        await engine.start(flow, {}, run_id="r")
        path, behalf = "/api/v1/runs/r?wait=20&after=999", {"holdfast-for": "eve"}
        waiting = asyncio.ensure_future(caller.get(path, token=None, headers=behalf))
        while not waiting.done():
            clock.advance(0.2)
            await asyncio.sleep(0.005)
        assert (await waiting).status == 200

    served(test, anonymous=NOBODY)


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"])
def test_without_tokens_no_proxy_lets_others_in(header):
    async def test(engine, caller, clock):
        assert (await caller.get(META, token=None, headers={header: "1.2.3.4"})).status == 403

    served(test, anonymous=NOBODY)


def test_a_body_is_refused_before_it_is_read():
    async def test(engine, caller, clock):
        async def post(body: bytes = b"{}", **headers: str):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await caller.send("POST", "/api/v1/runs", body=body, headers=named)).status

        assert await post() == 415
        for wrong in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp",
                      "application/json; charset=utf-16", "text/json", "application/json, text/plain"):  # fmt: skip
            assert await post(content_type=wrong) == 415
        assert await post(content_type="application/json", content_encoding="gzip") == 415
        assert await post(content_type="application/json", transfer_encoding="chunked") == 400
        for right in ("application/json", "Application/JSON", 'application/json; charset="UTF-8"'):
            assert await post(content_type=right) == 422
        assert (await caller.send("GET", META, body=b"{}")).status == 400
        length = {"content-length": str(10**9), "content-type": "application/json"}
        reply = await caller.send("POST", "/api/v1/runs", headers=length)
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        for wrong in ("-1", "+1", "1_0", "x", "", "1" * 30):
            assert (
                await caller.send("POST", "/api/v1/runs", headers={"content-length": wrong})
            ).status == 400

    served(test, tokens=[make_token()])


def test_the_application_works_below_a_prefix_and_sees_only_its_own_paths():
    async def test(engine, caller, clock):
        below = Caller(caller.app, prefix="/ops/hold fast")
        assert (await below.get("/healthz", token=None)).status == 200
        assert (await below.get(META)).status == 200
        assert (await below.get(META, token=None)).status == 401
        assert (await caller.get("/ops" + META)).status == 404

    served(test, tokens=[make_token()])


def test_a_websocket_is_refused():
    async def test(engine, caller, clock):
        sent = []

        async def send(message):
            sent.append(message)

        await caller.app({"type": "websocket", "path": "/api/v1/live"}, None, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]

    served(test)


def test_a_lifespan_is_answered():
    async def test(engine, caller, clock):
        sent, coming = [], [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

        async def receive():
            return coming.pop()

        async def send(message):
            sent.append(message["type"])

        await caller.app({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    served(test)


def test_an_engine_that_is_not_open_is_reported():
    async def main():
        app = asgi(hf.Engine("memory://"), tokens=[make_token()])
        reply = await Caller(app).get("/api/v1/runs")
        assert reply.status == 503
        assert "not open" in reply.json["detail"]
        posted = await Caller(app).send(
            "POST", "/api/v1/runs/r1/cancel", body=b"{}", headers={"content-type": "application/json"}
        )
        assert posted.status == 503
        assert (await Caller(app).get("/healthz", token=None)).status == 200
        assert (await Caller(app).get("/readyz", token=None)).status == 503
        app.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "holdfast.example.com",
        "ftp://x",
        "https://",
        "https://u:p@x",
        "https://x?q",
        "https://x#f",
        "https://x:0",
        "https://x:99999",
        None,
    ],
)
def test_a_public_url_must_be_the_address_of_a_server(url):
    with pytest.raises(SettingError, match="public URL"):
        Addresses([url])


def test_the_names_of_the_server_follow_from_the_address_at_which_a_request_arrives():
    plain = Addresses()
    assert plain.is_host("127.0.0.1:80", ("127.0.0.1", 80))
    assert plain.is_host("localhost", ("127.0.0.1", 80))
    assert plain.is_host("[::1]:8765", ("::1", 8765))
    assert not plain.is_host("127.0.0.1:8765", ("::1", 8765))
    assert not plain.is_host("192.168.1.5:8765", ("192.168.1.5", 8765))
    assert not plain.is_host("/run/x.sock", ("/run/x.sock", None))
    assert not plain.is_host("localhost", None)
    named = Addresses(["https://h.example.com/below/", "http://[2001:db8::1]:8080"])
    for host in ("h.example.com", "H.Example.com", "h.example.com:443", "[2001:db8::1]:8080"):
        assert named.is_host(host, ("10.0.0.1", 8765))
    assert not named.is_host("h.example.com:80", None)
    assert not named.is_origin("http://h.example.com", None)
    assert named.is_origin("https://h.example.com", None)


@pytest.mark.parametrize(
    ("address", "is_own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", False),
     ("10.0.0.1", False), ("::", False), ("localhost.evil.com", False), ("", False)],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_reaches(address, is_own):
    assert is_loopback(address) is is_own


def test_the_tokens_of_a_memory_store_are_used():
    async def main():
        async with opened(role="read") as (engine, caller):
            engine.store.tokens.add(make_token("read", "t9"))
            assert (await caller.get(META, token=f"t9.{SECRET}")).status == 200

    asyncio.run(main())
