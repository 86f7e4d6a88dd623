"""What the reading routes answer."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec
import pytest
from app_client import Caller
from served_flows import flow, opened, run_order

import holdfast as hf
from holdfast.server.asgi import asgi
from holdfast.server.runs import etag
from holdfast.storage.contract import Holder, Query
from holdfast.storage.leases import CallsAtOnce
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.upkeep import archive

API = "/api/v1"


def served(test, **options):
    async def main() -> None:
        async with opened(**options) as (engine, caller):
            await test(engine, caller)

    asyncio.run(main())


# --- families ------------------------------------------------------------------------------------------


def calling_flow():
    pay, order = hf.Graph("pay", dict), hf.Graph("shop", dict)

    @pay.node
    async def charge(state, ctx):
        return {"paid": await ctx.ask("Charge?", options=["yes", "no"])}

    child = pay.chain(hf.START, "charge", hf.END).compile()

    @order.node
    async def settle(state, ctx):
        return await ctx.call(child)

    return order.chain(hf.START, "settle", hf.END).compile()


def test_a_family_is_listed_with_the_question_of_a_child_under_its_caller():
    async def test(engine, caller):
        await engine.start(calling_flow(), {}, run_id="r")
        await engine.work(until="idle")
        (child,) = (await caller.get(f"{API}/runs?origin=r")).json["runs"]
        assert child["origin"] == "r"
        family = (await caller.get(f"{API}/runs/{child['id']}/family")).json
        assert [(one["id"], one["status"]) for one in family["callers"]] == [("r", "waiting")]
        top, below = (await caller.get(f"{API}/runs/r/family")).json["members"]
        assert (top["id"], below["id"], below["node"], below["asks"]) == ("r", child["id"], "settle", 1)
        (asked,) = (await caller.get(f"{API}/questions?run=r")).json["questions"]
        assert asked["run_id"] == child["id"]
        visit = (await caller.get(f"{API}/runs/r/nodes/settle")).json
        assert [(one["id"], one["status"]) for one in visit["children"]] == [(child["id"], "waiting")]

    served(test)


def test_a_run_with_children_is_read_anew_because_they_move_without_it():
    async def test(engine, caller):
        await engine.start(calling_flow(), {}, run_id="r")
        await engine.work(until="idle")
        first = await caller.get(f"{API}/runs/r")
        (child,) = first.json["children"]
        await engine.pause(child["id"])
        tag = {"if-none-match": first.headers["etag"]}
        again = await caller.get(f"{API}/runs/r", headers=tag)
        assert (again.status, again.json["children"][0]["status"]) == (200, "paused")

    served(test)


# --- lists of runs -------------------------------------------------------------------------------------


def test_a_list_of_runs_comes_in_pages_without_gap_or_repeat():
    async def test(engine, caller):
        for number in range(7):
            await engine.start(flow, {}, run_id=f"r{number}", labels={"odd": str(number % 2)})
        seen, cursor = [], ""
        while True:
            page = (await caller.get(f"{API}/runs?limit=3{cursor}")).json
            seen += [run["id"] for run in page["runs"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert sorted(seen) == [f"r{number}" for number in range(7)]
        assert [row.run_id for row in engine.store.runs(Query())] == seen
        odd = (await caller.get(f"{API}/runs?label=odd=1")).json["runs"]
        assert {run["id"] for run in odd} == {"r1", "r3", "r5"}

    served(test)


def test_a_cursor_belongs_to_its_filters_and_outlives_the_run_at_which_it_was_made():
    async def test(engine, caller):
        for number in range(3):
            await engine.start(flow, {}, run_id=f"r{number}")
        page = (await caller.get(f"{API}/runs?limit=1&flow=order")).json
        assert (await caller.get(f"{API}/runs?flow=order&cursor={page['next']}")).status == 200
        for wrong in (
            f"cursor={page['next']}",
            f"flow=other&cursor={page['next']}",
            "cursor=x",
            "cursor=",
            "cursor=%F0%9F%90%99",
        ):
            reply = await caller.get(f"{API}/runs?{wrong}")
            assert reply.status == 400
            assert reply.json["type"].endswith("bad-cursor")
        first = page["runs"][0]["id"]
        assert not engine.store.upkeep.delete({first: page["runs"][0]["seq"]})
        rest = (await caller.get(f"{API}/runs?flow=order&cursor={page['next']}")).json["runs"]
        assert {run["id"] for run in rest} == {"r0", "r1", "r2"} - {first}

    served(test)


def test_a_row_says_why_the_run_is_where_it_is_and_what_to_do():
    async def test(engine, caller):
        await run_order(engine, "bad", fails=True)
        await run_order(engine, "ask", asks=True)
        await run_order(engine, "ok")
        rows = {run["id"]: run for run in (await caller.get(f"{API}/runs")).json["runs"]}
        assert rows["bad"]["reason"].startswith("node charge failed: Fatal: card declined")
        assert rows["bad"]["remedy"]["verb"] == "resume"
        assert rows["bad"]["remedy"]["arguments"] == {"run": "bad", "force": True}
        assert rows["ask"]["asks"] == 1
        assert rows["ask"]["remedy"]["verb"] == "answer"
        assert (rows["ok"]["remedy"], rows["ok"]["crashed"]) == (None, False)
        wanted = (await caller.get(f"{API}/runs?id=ok&id=gone&id=bad")).json["runs"]
        assert [run["id"] for run in wanted] == ["ok", "bad"]
        some = (await caller.get(f"{API}/runs?id=ok&id=bad&status=failed")).json["runs"]
        assert [run["id"] for run in some] == ["bad"]
        page = (await caller.get(f"{API}/runs?id=ok&id=bad&id=ask&limit=2")).json
        rest = (await caller.get(f"{API}/runs?id=ok&id=bad&id=ask&limit=2&cursor={page['next']}")).json
        assert [run["id"] for run in page["runs"] + rest["runs"]] == ["ok", "ask", "bad"]
        assert rest["next"] is None

    served(test)


def test_a_damaged_run_is_reported_and_the_others_stay_visible(tmp_path):
    async def test(engine, caller):
        await run_order(engine, "ok")
        await run_order(engine, "hurt")
        damage(tmp_path / "runs.db", "hurt")
        assert (await caller.get(f"{API}/runs?id=hurt")).json["runs"][0]["status"] == "completed"
        damage(tmp_path / "runs.db", "hurt", "situation")
        rows = {run["id"]: run for run in (await caller.get(f"{API}/runs")).json["runs"]}
        assert "its log cannot be read" in rows["hurt"]["reason"]
        assert rows["ok"]["reason"] == "every branch of the flow reached its end"
        for path in (
            "", "/events", "/state", "/nodes/charge", "/receipts", "/diff?from=2", "/archive",
            "/timeline", "/picture", "/picture?at=3", "/questions",
        ):  # fmt: skip
            reply = await caller.get(f"{API}/runs/hurt{path}")
            assert reply.status == 409, (path, reply.body)
            assert reply.json["remedy"]
        for path in ("compare?a=ok&b=hurt", "compare?a=hurt&b=ok"):
            assert (await caller.get(f"{API}/{path}")).status == 409, path
        assert (await caller.get(f"{API}/runs/hurt/requests")).json["requests"] == []

    served(test, store=SqliteStore(tmp_path / "runs.db"))


def test_a_run_of_a_newer_version_is_refused_and_the_others_stay_visible(tmp_path):
    async def test(engine, caller):
        await run_order(engine, "ok")
        await run_order(engine, "new")
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        connection.execute(
            "update events set kind = 'NodeImagined' where kind = 'NodeStarted' "
            "and key >> 32 = (select key from runs where run_id = 'new')"
        )
        connection.close()
        for path in (
            "",
            "/timeline",
            "/picture",
            "/nodes/charge",
            "/questions",
            "/state",
            "/events",
            "/diff?from=1",
        ):
            reply = await caller.get(f"{API}/runs/new{path}")
            assert (reply.status, "NodeImagined" in reply.json["detail"]) == (409, True), (path, reply.body)
        assert (await caller.get(f"{API}/compare?a=ok&b=new")).status == 409
        assert (await caller.get(f"{API}/runs/ok/timeline")).status == 200

    served(test, store=SqliteStore(tmp_path / "runs.db"))


def damage(file: Path, run_id: str, column: str = "") -> None:
    """Damage the log of a run, or a column of its row."""
    connection = apsw.Connection(str(file))
    log = "update events set body = x'00' where key >> 32 = (select key from runs where run_id = ?)"
    connection.execute(f"update runs set {column} = 'x' where run_id = ?" if column else log, (run_id,))
    connection.close()


# --- one run -------------------------------------------------------------------------------------------


def test_a_run_has_the_fields_of_run_and_the_reason():
    async def test(engine, caller):
        await run_order(engine, "ok")
        told = (await caller.get(f"{API}/runs/ok")).json
        assert set(hf.Run.__struct_fields__) <= told.keys()
        assert told["state"]["notes"] == ["reserved", "paid 42"]
        assert told["reason"] == "every branch of the flow reached its end"
        assert (await caller.get(f"{API}/runs/none")).status == 404

    served(test)


def test_a_run_that_has_not_changed_is_not_sent_again():
    async def test(engine, caller):
        await engine.start(flow, {}, run_id="r")
        first = await caller.get(f"{API}/runs/r")
        assert first.headers["etag"] == f'"{first.json["seq"]}"'
        for tag in (first.headers["etag"], f"W/{first.headers['etag']}", f'"0", {first.headers["etag"]}'):
            again = await caller.get(f"{API}/runs/r", headers={"if-none-match": tag})
            assert (again.status, again.body) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
        await engine.resume("r")
        changed = await caller.get(f"{API}/runs/r", headers={"if-none-match": first.headers["etag"]})
        assert changed.status == 200
        assert changed.json["status"] == "completed"

    served(test)


def test_the_tag_of_a_run_changes_when_its_process_dies():
    async def test(engine, caller):
        await engine.start(flow, {}, run_id="r")
        row = engine.store.run("r")
        holder = engine._open().holder
        going = msgspec.structs.replace(row, status="running", holder=holder, held=True)
        assert etag(going) != etag(msgspec.structs.replace(going, held=False))

    served(test)


def test_a_long_poll_returns_when_the_run_moves():
    async def test(engine, caller):
        await engine.start(flow, {"asks": True}, run_id="r")
        seq = (await caller.get(f"{API}/runs/r")).json["seq"]
        waiting = asyncio.ensure_future(caller.get(f"{API}/runs/r?wait=60&after={seq}"))
        await engine.resume("r")
        assert (await waiting).json["seq"] > seq
        now = (await caller.get(f"{API}/runs/r")).json["seq"]
        unmoved = await caller.get(f"{API}/runs/r?wait=0&after={now}")
        assert unmoved.json["seq"] == now
        assert (await caller.get(f"{API}/runs/r?wait=0")).json["seq"] == now

    served(test)


def test_a_long_poll_ends_when_the_run_is_over_or_the_server_stops():
    async def test(engine, caller):
        await run_order(engine, "ok")
        assert (await caller.get(f"{API}/runs/ok?wait=60&after=999")).status == 200
        await engine.start(flow, {}, run_id="r")
        waiting = asyncio.ensure_future(caller.get(f"{API}/runs/r?wait=60&after=999"))
        await asyncio.sleep(0)
        caller.app.backend.is_stopping = True
        assert (await waiting).status == 200

    served(test)


# --- the log -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("filters", ["", "&node=reserve", "&kind=NodeStarted"])
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_events_are_paged_from_both_ends(newest, filters, limit):
    async def test(engine, caller):
        await run_order(engine, "ok", parts=list(range(9)))
        every = await engine.events(
            "ok",
            node="reserve" if "node" in filters else None,
            kind="NodeStarted" if "kind" in filters else None,
        )
        seen, place = [], ""
        while True:
            page = (
                await caller.get(
                    f"{API}/runs/ok/events?limit={limit}{filters}{place}{'&newest=true' if newest else ''}"
                )
            ).json
            assert len(page["events"]) <= limit
            seen += [event["seq"] for event in page["events"]]
            onward = page["older" if newest else "newer"]
            if onward is None or not page["events"]:
                break
            place = f"&before={onward}" if newest else f"&after={onward}"
        assert seen == sorted((event.seq for event in every), reverse=newest)

    served(test)


def test_events_come_with_all_kinds_and_an_unknown_kind_is_refused():
    async def test(engine, caller):
        await run_order(engine, "ok")
        assert "RunForked" in (await caller.get(f"{API}/runs/ok/events")).json["kinds"]
        reply = await caller.get(f"{API}/runs/ok/events?kind=NodeStartet")
        assert reply.status == 400
        assert "NodeStarted" in reply.json["detail"]

    served(test)


def test_states_and_their_differences_are_shown_at_any_event():
    async def test(engine, caller):
        await run_order(engine, "ok")
        points = (await caller.get(f"{API}/runs/ok/checkpoints")).json["checkpoints"]
        assert [point["id"] for point in points] == [point.id for point in await engine.checkpoints("ok")]
        first, last = points[0]["seq"], points[-1]["seq"]
        assert (await caller.get(f"{API}/runs/ok/state?at={first}")).json["state"]["notes"] == []
        found = (await caller.get(f"{API}/runs/ok/diff?from={first}&to={last}")).json["changes"]
        assert found == [
            {"operation": "add", "path": ["quantity"], "now": {"value": 2}, "was": {"value": 1}},
            {"operation": "append", "path": ["notes"], "now": {"value": ["reserved", "paid 42"]}},
            {"operation": "merge", "path": ["prices", "lamp"], "now": {"value": 4.5}},
        ]
        for wrong in ("state?at=0", "state?at=999", "diff?from=1&to=999"):
            assert (await caller.get(f"{API}/runs/ok/{wrong}")).status == 404, wrong
        assert (await caller.get(f"{API}/runs/ok/diff")).status == 400

    served(test)


def test_a_large_value_is_a_digest_in_a_difference_and_whole_in_its_field_of_the_state():
    async def test(engine, caller):
        await run_order(engine, "ok", item="x" * 5000)
        seq = (await caller.get(f"{API}/runs/ok")).json["seq"]
        told = (await caller.get(f"{API}/runs/ok/nodes/charge")).json["input"]["item"]
        whole = (await caller.get(f"{API}/runs/ok/state?at={seq}&field=item&field=fails")).json["state"]
        assert whole == {"item": "x" * 5000, "fails": False}
        written = b'"%s"' % whole["item"].encode()
        assert told == {"bytes": len(written), "sha256": sha256(written).hexdigest()}
        brief = (await caller.get(f"{API}/runs/ok/state?brief=true")).json["state"]
        assert (brief["item"], brief["fails"]) == (told, {"value": False})
        assert (await caller.get(f"{API}/runs/ok?brief=true")).json["state"] is None
        assert (await caller.get(f"{API}/runs/ok")).json["state"]["item"] == whole["item"]
        wrong = await caller.get(f"{API}/runs/ok/state?field=itm")
        assert (wrong.status, wrong.json["detail"]) == (
            400,
            "The state has no field 'itm' there; did you mean 'item'?",
        )

    served(test)


def test_a_visit_shows_what_it_was_given_and_did():
    async def test(engine, caller):
        await run_order(engine, "ok", asks=True)
        told = (await caller.get(f"{API}/runs/ok/nodes/charge")).json
        assert told["status"] == "completed"
        assert told["input"]["notes"] == {"value": ["reserved"]}
        assert told["output"] == {"append": {"notes": {"value": ["paid 42"]}}}
        assert told["next"] == ["ship"]
        assert [(step["name"], step["result"]) for step in told["steps"]] == [("pay", {"value": 42})]
        assert told["last_lines"] == ["charging…"]
        assert [(cause["node"], cause["why"]) for cause in told["causes"]] == [("weigh", "edge")]
        assert [one["status"] for one in told["attempts"]] == ["completed"]
        begin = (await caller.get(f"{API}/runs/ok/nodes/reserve")).json
        assert [(cause["node"], cause["why"]) for cause in begin["causes"]] == [("START", "edge")]
        question = (await caller.get(f"{API}/questions")).json["questions"][0]
        await engine.answer("ok", question["question"]["key"], "approve")
        await engine.resume("ok")
        ship = (await caller.get(f"{API}/runs/ok/nodes/ship")).json
        assert [(cause["node"], cause["why"]) for cause in ship["causes"]] == [("charge", "branch")]
        assert (await caller.get(f"{API}/runs/ok/nodes/shp")).status == 404
        assert (await caller.get(f"{API}/runs/ok/nodes/ship?iteration=9")).status == 404

    served(test)


def test_a_failed_visit_shows_the_lines_of_its_traceback():
    async def test(engine, caller):
        await run_order(engine, "bad", fails=True)
        (attempt,) = (await caller.get(f"{API}/runs/bad/nodes/charge")).json["attempts"]
        assert attempt["failure"]["message"] == "card declined"
        own = [frame for frame in attempt["failure"]["frames"] if frame["own"]]
        assert own[-1]["function"] == "charge"
        assert own[-1]["source"] == 'raise hf.Fatal("card declined")'

    served(test)


def test_the_items_of_a_fan_out_come_in_pages_failures_first():
    async def test(engine, caller):
        await run_order(engine, "items", parts=[1, 2, 13, 4])
        told = (await caller.get(f"{API}/runs/items/nodes/weigh?items=2")).json
        assert told["items_all"] == 4
        assert [(item["item"], item["status"]) for item in told["items"]] == [(2, "failed"), (0, "completed")]
        rest = (await caller.get(f"{API}/runs/items/nodes/weigh?items=2&items_from=2")).json
        assert [item["item"] for item in rest["items"]] == [1, 3]

    served(test)


def test_a_comparison_says_where_the_shared_history_ends_and_what_was_edited():
    async def test(engine, caller):
        await run_order(engine, "a")
        place = (await engine.checkpoints("a"))[1].seq
        await engine.fork("a", checkpoint=place, run_id="b", edit={"item": "chair"}, by="ada")
        told = (await caller.get(f"{API}/compare?a=a&b=b")).json
        assert told["shared"] == {"run_id": "a", "seq": place}
        assert [(edit["by"], edit["body"]["changes"]) for edit in told["edits"]] == [
            ("ada", {"set": {"item": "chair"}})
        ]
        assert [change["path"] for change in told["changes"]] == [["item"], ["notes"]]
        await run_order(engine, "c")
        assert (await caller.get(f"{API}/compare?a=a&b=c")).json["shared"] is None
        assert (await caller.get(f"{API}/compare?a=a&b=none")).status == 404

    served(test)


# --- files ---------------------------------------------------------------------------------------------


def test_receipts_are_made_from_the_log():
    async def test(engine, caller):
        await run_order(engine, "ok")
        told = (await caller.get(f"{API}/runs/ok/receipts")).json["documents"]
        assert sorted(told) == sorted(
            f"{kind}/{node}-engine.1.1.1.json"
            for kind in ("receipts", "handoffs")
            for node in ("reserve", "weigh", "charge")
        )
        only = (await caller.get(f"{API}/runs/ok/receipts?node=charge")).json["documents"]
        assert {document["node"] for document in only.values()} == {"charge"}

    served(test)


def test_an_artifact_is_an_attachment_and_no_name_leads_out_of_its_folder(tmp_path):
    graph = hf.Graph("files")

    @graph.node
    def write(state: dict, ctx: hf.BlockingContext) -> dict:
        ctx.artifacts.write("page.html", "<script>alert(1)</script>")
        ctx.artifacts.write("deep/ünïcode name.txt", "x" * 600_000)
        return {}

    made = graph.chain(hf.START, write, hf.END).compile()
    (tmp_path / "secret").write_text("CANARY")

    async def test(engine, caller):
        await engine.run(made, {}, run_id="r")
        listed = (await caller.get(f"{API}/runs/r/artifacts")).json
        assert listed == {
            "run_id": "r",
            "kept": True,
            "artifacts": {"write": ["deep/ünïcode name.txt", "page.html"]},
        }
        page = await caller.get(f"{API}/runs/r/artifacts/write/page.html")
        assert page.body == b"<script>alert(1)</script>"
        assert page.headers["content-type"] == "application/octet-stream"
        assert page.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in page.headers["content-security-policy"]
        deep = await caller.get(f"{API}/runs/r/artifacts/write/deep/%C3%BCn%C3%AFcode%20name.txt")
        assert len(deep.body) == 600_000 == int(deep.headers["content-length"])
        folder = next((tmp_path / "base").rglob("page.html")).parent
        os.symlink(tmp_path / "secret", folder / "link")
        os.symlink(tmp_path, folder / "way")
        os.mkfifo(folder / "pipe")
        for name in (
            "link",
            "way/secret",
            "pipe",
            "../../../../../../secret",
            "..%2f..%2fsecret",
            "%2e%2e/secret",
            ".visit",
            "deep",
            "",
            "/etc/passwd",
            "%00",
            "..%5csecret",
            "page.html/",
            "page.html%00.txt",
            "PAGE.HTML",
            "x" * 3000,
        ):
            reply = await caller.get(f"{API}/runs/r/artifacts/write/{name}")
            assert reply.status in (400, 404), name
            assert b"CANARY" not in reply.body

    served(test, run_base=tmp_path / "base", flows=[made])


def test_an_archive_can_be_put_back(tmp_path):
    async def test(engine, caller):
        await run_order(engine, "ok")
        reply = await caller.get(f"{API}/runs/ok/archive")
        (tmp_path / "ok.archive").write_bytes(reply.body)
        store = SqliteStore(tmp_path / "other.db")
        archive.put_back(store, tmp_path / "ok.archive")
        assert [row.digest for row in store.events("ok")] == [row.digest for row in engine.store.events("ok")]
        store.close()

    served(test)


# --- the server ----------------------------------------------------------------------------------------


def test_flows_come_with_the_schema_of_their_input():
    async def test(engine, caller):
        (told,) = (await caller.get(f"{API}/flows")).json["flows"]
        assert told["name"] == "order"
        assert told["description"] == "Orders things."
        assert told["input_schema"] == flow.input_schema()

    served(test)


def test_the_doctor_keeps_what_it_found_until_asked_again():
    async def test(engine, caller):
        first = (await caller.get(f"{API}/doctor")).json
        await run_order(engine, "bad", fails=True)
        assert (await caller.get(f"{API}/doctor")).json == first
        again = (await caller.get(f"{API}/doctor?again=true")).json
        assert again["examined_at"] > first["examined_at"]
        assert [problem["run_id"] for problem in again["problems"]] == ["bad"]

    served(test)


def test_the_doctor_verifies_logs_and_reports_an_altered_event(tmp_path):
    async def test(engine, caller):
        for run_id in ("ok", "hurt"):
            await run_order(engine, run_id)
        whole = (await caller.get(f"{API}/doctor")).json
        assert whole["problems"] == []
        assert {"title": "Logs of runs", "detail": "all 2 runs verified", "fault": None} in whole["store"]
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        which = "key = (select key << 32 | 3 from runs where run_id = 'hurt')"
        connection.execute(f"update events set at = at + 1 where {which}")
        connection.close()
        told = (await caller.get(f"{API}/doctor?again=true")).json
        (problem,) = told["problems"]
        assert (problem["kind"], problem["run_id"]) == ("unreadable", "hurt")
        assert "event 3 " in problem["reason"]
        assert problem["remedies"][0]["verb"] == "verify"
        (logs,) = [check for check in told["store"] if check["title"] == "Logs of runs"]
        assert logs["fault"] == "1 log is not what was written (all 2 runs verified)"
        assert (await caller.get(f"{API}/board")).json["problems"] == 1

    served(test, store=SqliteStore(tmp_path / "runs.db"))


def test_metrics_count_answers_by_route_and_never_name_a_run():
    async def test(engine, caller):
        await engine.start(flow, {}, run_id="secret-run", queue="q")
        await caller.get(f"{API}/runs/secret-run")
        await caller.get(f"{API}/runs/secret-other")
        await caller.get("/secret-path", token=None)
        told = (await caller.get("/metrics")).body.decode()
        assert 'holdfast_http_requests_total{method="GET",path="/api/v1/runs/{id}",status="200"} 1' in told
        assert 'holdfast_http_requests_total{method="GET",path="/api/v1/runs/{id}",status="404"} 1' in told
        assert 'holdfast_http_requests_total{method="none",path="none",status="401"} 1' in told
        assert 'holdfast_queue_offered{queue="q"} 1' in told
        assert 'holdfast_runs{status="pending"} 1' in told
        assert "holdfast_open_questions 0" in told
        assert "secret" not in told

    served(test)


def test_metrics_say_how_many_calls_of_each_worker_wait():
    async def test(engine, caller):
        calls = (CallsAtOnce(executor="thread", limit=5, waiting=7),)
        engine.store.renew(Holder(id="w1", ttl_s=30.0, calls=calls))
        told = (await caller.get("/metrics")).body.decode()
        assert 'holdfast_calls_waiting{worker="w1",process="engine w1",executor="thread"} 7' in told

    served(test)


def test_a_slow_read_delays_no_other_request():
    async def test(engine, caller):
        await run_order(engine, "ok")
        release = asyncio.Event()
        loop = asyncio.get_running_loop()
        held = caller.app.backend.read(
            lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        )
        slow = asyncio.ensure_future(held)
        assert (await caller.get(f"{API}/runs/ok")).status == 200
        assert not slow.done()
        release.set()
        await slow

    served(test)


def test_a_head_request_is_answered_like_get():
    async def test(engine, caller):
        await run_order(engine, "ok")
        reply = await caller.send("HEAD", f"{API}/runs/ok")
        assert reply.status == 200
        assert reply.headers["etag"]

    served(test)


def test_two_applications_may_share_an_engine():
    async def test(engine, caller):
        other = asgi(engine)
        assert (await Caller(other).get(f"{API}/meta")).status == 401
        assert (await caller.get(f"{API}/meta")).status == 200
        other.stop()

    served(test)


def test_a_file_is_closed_although_nobody_reads_it(tmp_path):
    async def test(engine, caller):
        await run_order(engine, "ok")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            reply = await caller.send("HEAD", f"{API}/runs/ok/archive")
            assert int(reply.headers["content-length"]) > 100
            assert reply.body == b""
        assert len(os.listdir("/proc/self/fd")) == before

    served(test)


def test_a_run_whose_flow_has_changed_says_so():
    graph = hf.Graph("order")
    graph.node(name="other")(lambda state: {})
    changed = graph.chain(hf.START, "other", hf.END).compile()

    async def main() -> None:
        store = MemoryStore()
        async with opened(store) as (engine, _):
            await engine.start(flow, {}, run_id="r")
        async with opened(store, flows=[changed]) as (_, caller):
            told = (await caller.get(f"{API}/runs/r")).json["reason"]
            assert "changed in shape" in told
            assert (await caller.get(f"{API}/runs")).json["runs"][0]["reason"] == told

    asyncio.run(main())
