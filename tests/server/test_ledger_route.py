"""The ledger over HTTP: in pages, with the result of a verification, and through the client."""

from __future__ import annotations

import asyncio
from contextlib import closing

import apsw
import pytest
from hosted import ADMIN, hosting
from served_flows import flow, opened

import holdfast as hf
from holdfast.storage.urls import open_store

API = "/api/v1"


def served(test, **options):
    async def main() -> None:
        async with opened(**options) as (engine, caller):
            await test(engine, caller)

    asyncio.run(main())


async def shipped(engine: hf.Engine, run_id: str = "r1") -> None:
    await engine.run(flow, {"asks": True}, run_id=run_id)
    await engine.answer(run_id, "ship", "approve", by="agent:clerk", reason="in stock")
    await engine.resume(run_id)


def test_the_decisions_of_a_run_are_listed_with_who_made_them():
    async def test(engine, caller):
        await shipped(engine)
        page = (await caller.get(f"{API}/runs/r1/ledger")).json
        ledger = await engine.ledger("r1")
        assert [entry["digest"] for entry in page["entries"]] == [entry.digest for entry in ledger.entries]
        assert {"type": "decision", "actor": "agent", "by": "agent:clerk"}.items() <= next(
            entry.items() for entry in page["entries"] if entry["type"] == "decision"
        )
        assert (page["seq"], page["digest"], page["next"]) == (ledger.seq, ledger.digest, None)
        assert page["verified"] is None
        assert (await caller.get(f"{API}/runs/r2/ledger")).status == 404

    served(test)


def test_a_ledger_is_read_in_pages_and_by_type():
    async def test(engine, caller):
        await shipped(engine)
        every = [entry.seq for entry in (await engine.ledger("r1")).entries]
        seen, after = [], 0
        while after is not None:
            page = (await caller.get(f"{API}/runs/r1/ledger?limit=1&after={after}")).json
            seen += [entry["seq"] for entry in page["entries"]]
            after = page["next"]
        assert seen == every
        only = (await caller.get(f"{API}/runs/r1/ledger?type=branch&type=plan")).json["entries"]
        assert [entry["type"] for entry in only] == ["plan", "branch"]
        for wrong in ("type=task", "limit=0", "limit=1001", "verify=perhaps"):
            assert (await caller.get(f"{API}/runs/r1/ledger?{wrong}")).status == 400, wrong

    served(test)


def test_a_ledger_that_is_known_is_not_sent_again():
    async def test(engine, caller):
        await shipped(engine)
        first = await caller.get(f"{API}/runs/r1/ledger")
        again = await caller.get(f"{API}/runs/r1/ledger", headers={"if-none-match": first.headers["etag"]})
        assert again.status == 304

    served(test)


def test_a_verification_names_the_event_that_was_altered(tmp_path):
    path = tmp_path / "runs.db"

    async def test(engine, caller):
        await shipped(engine)
        assert (await caller.get(f"{API}/runs/r1/ledger?verify=true")).json["verified"] is True
        seq = next(entry.seq for entry in (await engine.ledger("r1")).entries if entry.type == "decision")
        with closing(apsw.Connection(str(path))) as db:
            db.execute("update events set attempt = 7 where kind = 'QuestionAnswered'")
        page = (await caller.get(f"{API}/runs/r1/ledger?verify=true")).json
        assert page["verified"] is False
        assert [(one["what"], one["seq"], one["type"]) for one in page["damage"]] == [
            ("altered", seq, "decision")
        ]
        assert page["problems"] == [page["damage"][0]["text"]]

    with closing(open_store(path)) as store:
        served(test, store=store)


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_client_gets_the_ledger_that_the_engine_gets(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("holdfast.server.client._ENTRIES_MAX", limit)
    path = tmp_path / "runs.db"
    hf.run(flow, {"asks": True}, run_id="r1", store=path)
    with closing(open_store(path)) as store, hosting() as host, host.serving(store, flows=[flow]) as url:
        client = hf.BlockingClient(url, ADMIN)
        for verify in (False, True):
            assert client.ledger("r1", verify=verify) == hf.ledger("r1", store=path, verify=verify)
        with pytest.raises(hf.RunNotFound):
            client.ledger("r2")
