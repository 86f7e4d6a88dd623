"""Tokens, limits of queues, pruning and requests to many runs, over HTTP."""

from __future__ import annotations

import asyncio

import pytest
from app_client import SECRET, TOKENS, make_token
from served_flows import flow, run_order
from verb_calls import Operator, operate, reach

import holdfast as hf
from holdfast.core import requests
from holdfast.errors import SettingError
from holdfast.reading import inbox
from holdfast.server.asgi import asgi
from holdfast.server.keys import KEPT_MAX, UsedKeys
from holdfast.server.problems import Refused
from holdfast.server.rates import Rates
from holdfast.storage.contract import Holder
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import ManualClock

# --- tokens ------------------------------------------------------------------------------------------


def test_a_token_is_made_shown_once_used_and_revoked():
    async def test(engine, operator):
        body = {"name": "scout", "role": "operate", "kind": "agent", "expires_in": 3600}
        made = await operator.post("tokens", body)
        assert made.status == 201, made.body
        text = made.json["token"]
        assert made.json["created_by"] == "admin-ada"
        about = await operator.get("/api/v1/meta", token=text)
        assert (about.json["by"], about.json["role"]) == ("agent:scout", "operate")
        listed = await operator.get("/api/v1/tokens")
        assert [(one["id"], one["valid"]) for one in listed.json["tokens"]] == [(made.json["id"], True)]
        secret = text.partition(".")[2]
        assert secret.encode() not in listed.body
        assert "digest" not in listed.json["tokens"][0]
        revoked = await operator.send("DELETE", f"/api/v1/tokens/{made.json['id']}")
        assert (revoked.status, revoked.json["valid"]) == (200, False)
        assert (await operator.get("/api/v1/meta", token=text)).status == 401  # at once
        again = await operator.send("DELETE", f"/api/v1/tokens/{made.json['id']}")
        assert again.json == revoked.json

    operate(test)


def test_a_key_makes_one_token():
    async def test(engine, operator):
        replies = await asyncio.gather(
            *(operator.post("tokens", {"name": "bob"}, key="k1") for _ in range(8))
        )
        assert sorted(reply.status for reply in replies) == [201] + [409] * 7
        assert len(engine.store.tokens.all()) == 1

    operate(test)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"name": ""}, 422),
        ({"name": "a/b"}, 400),
        ({"name": "agent:x"}, 400),
        ({"name": "x\x1b"}, 400),
        ({"name": "x" * 65}, 422),
        ({"name": "x", "role": "root"}, 422),
        ({"name": "x", "expires_in": 0}, 422),
        ({"name": "x", "token": "t.secret"}, 422),
        ({"name": "x", "id": "admin"}, 422),
    ],
)
def test_a_token_that_is_not_valid_is_not_made(body, status):
    async def test(engine, operator):
        assert (await operator.post("tokens", body)).status == status
        assert engine.store.tokens.all() == []

    operate(test)


def test_the_token_of_the_server_itself_cannot_be_revoked_here():
    async def test(engine, operator):
        reply = await operator.send("DELETE", "/api/v1/tokens/admin")
        assert reply.status == 404
        assert "HOLDFAST_TOKEN" in reply.json["remedy"]

    operate(test)


# --- queues and pruning --------------------------------------------------------------------------------


def test_the_limit_of_a_queue_is_set_and_removed():
    async def test(engine, operator):
        assert (await operator.post("queues/slow", {"limit": 2})).json["limit"] == 2
        assert [queue.limit for queue in engine.store.queues.queues()] == [2]
        assert (await operator.post("queues/slow", {"limit": None})).json["limit"] is None
        for wrong in ({}, {"limit": -1}, {"limit": True}, {"limit": 1, "name": "x"}):
            assert (await operator.post("queues/slow", wrong)).status == 422
        assert (await operator.post("queues/a%2Fb", {"limit": 1})).status == 400

    operate(test)


def test_a_run_says_that_its_queue_was_stopped_although_it_has_no_new_event():
    async def test(engine, operator):
        await engine.start(flow, {}, run_id="r1", queue="slow")
        engine.store.renew(Holder(id="w", host="box", pid=7, ttl_s=600.0, flows=(flow.name,)))
        before = await operator.get("/api/v1/runs/r1")
        await operator.post("queues/slow", {"limit": 0})
        after = await operator.get("/api/v1/runs/r1")
        assert "queue 'slow' is stopped" in after.json["reason"]
        assert after.headers["etag"] != before.headers["etag"]
        await operator.post("queues/slow", {"limit": None})
        assert (await operator.get("/api/v1/runs/r1")).json["reason"] == before.json["reason"]

    operate(test)


def test_a_preview_of_pruning_says_what_pruning_does():
    async def test(engine, operator):
        await run_order(engine, "r1")
        seen = await operator.post("runs/r1/prune?preview=1", {"keep_last": 2, "compact": True})
        assert seen.status == 200, seen.body
        assert (seen.json["kept"], len(await engine.checkpoints("r1")) > 2) == (2, True)
        done = await operator.post("runs/r1/prune", {"keep_last": 2, "compact": True})
        assert done.json == seen.json
        assert len(await engine.checkpoints("r1")) == 2
        assert (await operator.post("runs/r1/prune", {"archive": "/tmp/x"})).status == 422
        assert (await operator.post("runs/none/prune")).status == 404

    operate(test)


# --- many runs -----------------------------------------------------------------------------------------


def test_many_runs_are_asked_at_once_and_once_per_key():
    async def test(engine, operator):
        for number in range(3):
            await run_order(engine, f"f{number}", fails=True)
        await run_order(engine, "ok")
        body = {
            "verb": "resume",
            "where": {"status": ["failed"], "flow": "order"},
            "force": True,
            "reason": "all",
        }
        seen = await operator.post("requests?preview=1", body)
        assert (seen.status, seen.json["matched"], seen.json["asked"]) == (200, 3, 0)
        assert set(seen.json["runs"]) == {"f0", "f1", "f2"}
        assert [await engine.requests(f"f{number}") for number in range(3)] == [[], [], []]
        done = await operator.post("requests", body, key="k1")
        assert (done.status, done.json["asked"], done.json["request"]) == (202, 3, "http:admin:k1")
        again = await operator.post("requests", body, key="k1")
        assert (again.status, again.json) == (202, done.json)
        keyless = await operator.post("requests", body)
        assert (await operator.post("requests", body)).json["repeated"] == keyless.json["asked"] == 3
        assert {one.by for one in await engine.requests("f0")} == {"admin-ada"}
        reused = await operator.post("requests", body | {"where": {"flow": "other"}}, key="k1")
        assert reused.json["type"].endswith("key-reused")

    operate(test)


def test_many_runs_are_resumed_with_the_options_that_one_run_is():
    async def test(engine, operator):
        await run_order(engine, "f0", fails=True)
        options = {
            "after": "reserve", "edit": {"fails": False}, "confirm": ["charge"], "on_change": "compatible",
            "rename": {"a": "b"}, "budget": {"usd": 5}, "scope": ["*"], "force": True,
        }  # fmt: skip
        body = {"verb": "resume", "where": {"flow": "order"}, **options}
        assert (await operator.post("requests", body)).json["asked"] == 1
        (stored,) = engine.store.inbox(run_id="f0")
        wanted = requests.Resume(**options | {"budget": hf.Budget(usd=5)})
        read = inbox.read(stored)
        assert {name: getattr(read, name) for name in options} == {
            name: getattr(wanted, name) for name in options
        }

    operate(test)


def test_the_same_key_does_not_reach_runs_that_match_only_later():
    async def test(engine, operator):
        await run_order(engine, "f0", fails=True)
        body = {"verb": "cancel", "where": {"flow": "order"}}
        first = await operator.post("requests", body, key="k1")
        await run_order(engine, "f1", fails=True)
        again = await operator.post("requests", body, key="k1")
        assert (first.json["runs"], again.json) == (["f0"], first.json)
        assert await engine.requests("f1") == []

    operate(test)


def test_a_worker_carries_out_what_many_runs_were_asked_for():
    async def test(engine, operator):
        for number in range(2):
            await engine.start(flow, {"fails": True}, run_id=f"f{number}")
        for number in range(2):
            await reach(engine, f"f{number}", "failed")
        await operator.post("requests", {"verb": "cancel", "where": {"status": ["failed"]}})
        for number in range(2):
            await reach(engine, f"f{number}", "cancelled")

    operate(test, works=True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"verb": "resume"}, 422),
        ({"verb": "resume", "where": {}}, 422),
        ({"verb": "resume", "where": {"stauts": ["failed"]}}, 422),
        ({"verb": "resume", "where": {"status": "failed"}}, 422),
        ({"verb": "resume", "where": {"status": ["completed"]}}, 400),
        ({"verb": "fork", "where": {"flow": "order"}}, 422),
        ({"verb": "cancel", "where": {"flow": "order"}, "force": True}, 422),
        ({"verb": "retry", "where": {"flow": "order"}, "on_change": "compatible"}, 422),
        ({"verb": "resume", "where": {"flow": "order"}, "checkpoint": 1}, 422),
        ({"verb": "resume", "where": {"flow": "order"}, "after": "charge", "replay": True}, 422),
        ({"verb": "resume", "where": {"flow": "order"}, "after": "no node"}, 422),
        ({"verb": "resume", "where": {"labels": {"a": 1}}}, 422),
        ({"verb": "resume", "where": {"flow": "order"}, "run_id": "r1"}, 422),
    ],
)
def test_a_request_to_many_runs_that_is_not_valid_asks_none(body, status):
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        assert (await operator.post("requests", body)).status == status
        assert await engine.requests("r1") == []

    operate(test)


# --- rates and keys --------------------------------------------------------------------------------------


def test_a_token_that_sends_too_many_requests_must_wait_and_others_need_not():
    async def main():
        clock = ManualClock(1000.0)
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS, clock=clock, rate=2)
            operator = Operator(app)
            replies = [await operator.get("/api/v1/meta") for _ in range(3)]
            assert [reply.status for reply in replies] == [200, 200, 429]
            assert replies[2].headers["retry-after"] == "1"
            assert replies[2].json["type"].endswith("too-many-requests")
            assert (await operator.get("/api/v1/meta", token=f"read.{SECRET}")).status == 200
            assert (await operator.get("/healthz", token=None)).status == 200
            clock.advance(0.5)
            assert [(await operator.get("/api/v1/meta")).status for _ in range(2)] == [200, 429]
            app.stop()

    asyncio.run(main())


def test_a_rate_below_one_lets_one_request_through():
    rates = Rates(0.1)
    rates.take("t", 0.0)
    with pytest.raises(Refused) as raised:
        rates.take("t", 1.0)
    assert raised.value.headers == {"Retry-After": "9"}
    rates.take("t", 10.0)
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="rate"):
            Rates(wrong)


def test_rates_and_keys_are_kept_in_bounded_space():
    rates, keys = Rates(1), UsedKeys()
    for number in range(KEPT_MAX + 10):
        rates.take(f"t{number}", 0.0)
        with keys.use("t", f"k{number}", ("start",)):
            pass
    assert len(rates._left) == len(keys._uses) == KEPT_MAX


def test_a_wait_ends_when_its_token_is_revoked():
    async def main():
        clock = ManualClock(1000.0)
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS, clock=clock)
            operator = Operator(app)
            await run_order(engine, "r1", fails=True)
            engine.store.tokens.add(make_token("operate", "t1"))
            waiting = asyncio.ensure_future(
                operator.post("runs/r1/resume", {"force": True}, wait=60, token=f"t1.{SECRET}")
            )
            began = clock.now()
            while not waiting.done():
                if clock.now() >= began + 1:
                    engine.store.tokens.revoke("t1", clock.now())
                clock.advance(0.2)
                await asyncio.sleep(0.005)
            assert (await waiting).status == 401
            assert clock.now() - began < 11
            app.stop()

    asyncio.run(main())


def test_a_wait_ends_when_the_server_stops_and_its_request_stays():
    async def main():
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS)
            operator = Operator(app)
            await run_order(engine, "r1", fails=True)
            waiting = asyncio.ensure_future(operator.post("runs/r1/resume", {"force": True}, wait=60))
            while not await engine.requests("r1"):  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.005)
            app.stop()
            async with asyncio.timeout(10):
                assert (await waiting).status in (202, 503)
            assert len(await engine.requests("r1")) == 1
            assert (await operator.post("runs/r1/cancel")).status == 503

    asyncio.run(main())
