"""What the routes answer that list runs, questions and engines, and show the store at a glance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import apsw
import pytest
from served_flows import flow, opened, run_order

import holdfast as hf
from holdfast.reading import history
from holdfast.storage.contract import Along
from holdfast.storage.leases import Holder
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log
from holdfast.testing.builders import History, outline

API = "/api/v1"


def served(test, **options):
    async def main() -> None:
        async with opened(**options) as (engine, caller):
            await test(engine, caller)

    asyncio.run(main())


async def ids(caller, query: str) -> list[str]:
    reply = await caller.get(f"{API}/runs?{query}")
    assert reply.status == 200, reply.body
    return [run["id"] for run in reply.json["runs"]]


async def fill(engine) -> None:
    await run_order(engine, "a-bad", fails=True)
    await run_order(engine, "a-ask", asks=True)
    await run_order(engine, "b-ok")
    await engine.start(flow, {}, run_id="b-new", queue="mail", labels={"team": "é=1"})


# --- filters -------------------------------------------------------------------------------------------


def test_every_filter_selects_its_runs():
    async def test(engine, caller):
        await fill(engine)
        await engine.fork("b-ok", run_id="child")
        at = engine.store.run("b-ok").created_at
        expected = {
            "status=failed&status=completed": {"a-bad", "b-ok"},
            "flow=order&prefix=a-": {"a-bad", "a-ask"},
            f"label={quote('team=é=1')}": {"b-new"},
            "parent=b-ok": {"child"},
            "queue=mail": {"b-new"},
            "id=b-ok&id=a-ask&id=none": {"b-ok", "a-ask"},
            "asks=true": {"a-ask"},
            f"since={at!r}": {"b-ok", "b-new", "child"},
            f"until={at!r}": {"a-bad", "a-ask"},
            "attention=true": {"a-bad", "a-ask", "b-new", "child"},
            "attention=true&status=failed": {"a-bad"},
            "attention=false&flow=none": set(),
        }
        for query, found in expected.items():
            assert set(await ids(caller, query)) == found, query

    served(test)


def test_the_runs_that_a_run_started_are_listed_with_its_id():
    async def test(engine, caller):
        await fill(engine)
        starts = tuple(Log(run_id).create(origin="b-ok") for run_id in ("c-1", "c-2"))
        append = Log("other").create(along=Along(starts=starts))
        assert engine.store.append([append]) == [None]
        reply = await caller.get(f"{API}/runs?origin=b-ok")
        assert [(run["id"], run["origin"], run["parent"]) for run in reply.json["runs"]] == [
            ("c-2", "b-ok", None),
            ("c-1", "b-ok", None),
        ]
        assert await ids(caller, "origin=b-ok&status=completed") == []
        assert await ids(caller, "origin=c-1") == []
        (other,) = (await caller.get(f"{API}/runs?id=other")).json["runs"]
        assert other["origin"] is None

    served(test)


@pytest.mark.parametrize(
    "wrong",
    [
        "attention=maybe",
        "asks=",
        "since=x",
        "until=-1",
        "since=nan",
        "prefix=%2F",
        "sort=id",
        "id=..",
        "origin=..",
        "limit=0",
    ],
)
def test_a_filter_that_is_not_valid_is_refused(wrong):
    async def test(engine, caller):
        reply = await caller.get(f"{API}/runs?{wrong}")
        assert (reply.status, reply.json["type"]) == (400, "urn:holdfast:problem:bad-parameter")

    served(test)


def test_a_cursor_of_another_filter_is_refused():
    async def test(engine, caller):
        await fill(engine)
        cursor = (await caller.get(f"{API}/runs?attention=true&limit=1")).json["next"]
        assert len(await ids(caller, f"attention=true&limit=9&cursor={cursor}")) == 2
        for other in ("", "asks=true&", "attention=true&prefix=a&", "attention=true&until=9e9&"):
            reply = await caller.get(f"{API}/runs?{other}cursor={cursor}")
            assert (reply.status, reply.json["type"]) == (400, "urn:holdfast:problem:bad-cursor")
        reply = await caller.get(f"{API}/questions?cursor={cursor}")
        assert reply.json["type"] == "urn:holdfast:problem:bad-cursor"

    served(test)


# --- rows ----------------------------------------------------------------------------------------------


def test_a_row_says_whether_the_run_crashed_asks_or_is_retried_and_what_to_do(monkeypatch):
    async def test(engine, caller):
        await fill(engine)
        crashed = History("crashed", outline("START a END")).created().started("a")
        crashed.write(engine.store)
        again = History(
            "again", outline("START a END", nodes={"a": {"retry": hf.Retry(attempts=3)}})
        ).created()
        again.started("a").failed("a", ValueError("no luck"), retry_in=9e9).settled().write(engine.store)
        monkeypatch.setattr(history, "load", _refuse)
        rows = {run["id"]: run for run in (await caller.get(f"{API}/runs")).json["runs"]}
        assert set(hf.RunSummary.__struct_fields__) <= rows["crashed"].keys()
        assert {name for name, row in rows.items() if row["crashed"]} == {"crashed"}
        assert {name: row["asks"] for name, row in rows.items() if row["asks"]} == {"a-ask": 1}
        assert (rows["again"]["retry_at"] > 9e9, rows["crashed"]["retry_at"]) == (True, None)
        assert {name for name, row in rows.items() if not row["needs_attention"]} == {"b-ok", "again"}
        remedy = rows["a-bad"]["remedy"]
        assert (remedy["verb"], remedy["arguments"]["run"]) == ("resume", "a-bad")
        assert remedy["command"].startswith("holdfast resume a-bad")
        assert rows["b-ok"]["active_s"] >= 0
        assert "card declined" in rows["a-bad"]["reason"]

    served(test)


def test_a_run_says_what_its_row_says_whether_or_not_a_worker_takes_it():
    async def test(engine, caller):
        crashed = History("crashed", outline("START a END")).created().started("a")
        crashed.write(engine.store)
        first = await _both(caller, "crashed")
        assert first[0] == first[1]
        assert "no live worker takes flow" in first[0][0]
        assert first[0][1]["verb"] == "work"
        taken = engine.store.run("crashed").flow
        engine.store.renew(Holder(id="w", ttl_s=600.0, host="here", flows=(taken,)))
        then = await _both(caller, "crashed")
        assert then[0] == then[1]
        assert "no live worker" not in then[0][0]

    served(test)


async def _both(caller, run_id: str) -> list[tuple[str, dict]]:
    """Reason and first remedy of a run, from the run itself and from the list of runs."""
    run = (await caller.get(f"{API}/runs/{run_id}")).json
    row = (await caller.get(f"{API}/runs?id={run_id}")).json["runs"][0]
    return [(run["reason"], run["remedies"][0]), (row["reason"], row["remedy"])]


def _refuse(*_, **__):
    raise AssertionError("a log was read")


@pytest.mark.parametrize("column", ["labels", "active", "rewinds", "status", "situation"])
def test_a_row_that_is_damaged_is_listed_with_its_problem_beside_the_others(tmp_path, column):
    async def test(engine, caller):
        await run_order(engine, "ok")
        await run_order(engine, "hurt")
        change(tmp_path / "runs.db", f"update runs set {column} = 'x' where run_id = 'hurt'")
        change(tmp_path / "runs.db", "update events set body = x'00' where key >> 32 = 2")
        rows = {run["id"]: run for run in (await caller.get(f"{API}/runs")).json["runs"]}
        assert rows["ok"]["status"] == "completed"
        assert "cannot be read" in rows["hurt"]["reason"]
        assert rows["hurt"]["remedy"]["verb"] == "verify"
        assert rows["hurt"]["needs_attention"]
        assert (await caller.get(f"{API}/runs/hurt")).status == 409
        assert (await caller.get(f"{API}/board")).status == 200
        assert (await caller.get(f"{API}/questions")).status == 200

    served(test, store=SqliteStore(tmp_path / "runs.db"))


def test_a_row_of_a_newer_version_is_listed_as_far_as_it_is_known(tmp_path):
    async def test(engine, caller):
        await run_order(engine, "ok")
        await run_order(engine, "new")
        change(tmp_path / "runs.db", "update runs set status = 'dreaming' where run_id = 'new'")
        rows = {run["id"]: run for run in (await caller.get(f"{API}/runs")).json["runs"]}
        assert rows.keys() == {"ok", "new"}
        assert "unknown status 'dreaming'" in rows["new"]["reason"]

    served(test, store=SqliteStore(tmp_path / "runs.db"))


def change(file: Path, statement: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(statement)
    connection.close()


# --- board, workers, questions -------------------------------------------------------------------------


def test_the_board_counts_runs_by_status_attention_questions_and_ends():
    async def test(engine, caller):
        empty = (await caller.get(f"{API}/board")).json
        assert (empty["attention"], empty["asks"], set(empty["counts"].values())) == (0, 0, {0})
        await fill(engine)
        assert (await caller.get(f"{API}/doctor?again=true")).status == 200
        board = (await caller.get(f"{API}/board")).json
        counts = {status: count for status, count in board["counts"].items() if count}
        assert counts == {"completed": 1, "failed": 1, "waiting": 1, "pending": 1}
        assert (board["attention"], board["asks"], board["problems"]) == (3, 1, 2)
        assert len(board["minutes"]) == 60
        assert sum(minute["completed"] + minute["failed"] for minute in board["minutes"]) == 2

    served(test)


def test_the_board_does_not_wait_for_an_examination():
    async def test(engine, caller):
        await fill(engine)
        assert (await caller.get(f"{API}/board")).json["problems"] is None
        assert (
            await caller.get(f"{API}/doctor")
        ).status == 200  # waits for the examination that the board began
        assert (await caller.get(f"{API}/board")).json["problems"] == 2

    served(test)


def test_the_live_engines_are_listed_with_what_they_take_and_hold():
    async def test(engine, caller):
        worker = Holder(id="w", ttl_s=30.0, host="here", flows=("order",), queues=("mail",), version="1.2")
        engine.store.renew(worker)
        log = Log("held", holder="w", fence=1)
        assert engine.store.append([log.create(flow="order")]) == [None]
        found = (await caller.get(f"{API}/workers")).json["workers"]
        assert found[0]["id"] == "w"  # those that hold most runs come first
        (one,) = [one for one in found if one["is_worker"]]
        assert (one["flows"], one["queues"], one["held"], one["version"]) == (["order"], ["mail"], 1, "1.2")
        assert one["since"] <= one["seen_at"] <= one["expires_at"] - 30

    served(test)


def test_questions_come_in_pages_and_whole_for_one_run(monkeypatch):
    async def test(engine, caller):
        for number in range(3):
            await run_order(engine, f"q{number}", asks=True)
        await run_order(engine, "ok")
        whole = (await caller.get(f"{API}/questions?run=q1")).json
        assert [(one["run_id"], one["whole"], one["question"]["text"]) for one in whole["questions"]] == [
            ("q1", True, "Ship it?")
        ]
        assert (await caller.get(f"{API}/questions?run=ok")).json == {"questions": [], "next": None}
        assert (await caller.get(f"{API}/questions?run=none")).status == 404
        monkeypatch.setattr(history, "load", _refuse)
        first = (await caller.get(f"{API}/questions?limit=2")).json
        rest = (await caller.get(f"{API}/questions?limit=2&cursor={first['next']}")).json
        assert [one["run_id"] for one in first["questions"] + rest["questions"]] == ["q2", "q1", "q0"]
        assert rest["next"] is None
        assert (await caller.get(f"{API}/questions?flow=none")).json["questions"] == []

    served(test)
