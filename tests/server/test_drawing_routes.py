"""What the routes answer from which a run is drawn: its timeline, the picture of its flow, its nodes, and its questions."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from served_flows import Order, flow, opened, run_order

import holdfast as hf
from holdfast.core import VERSION, events
from holdfast.reading.inbox import Pause, stored_form
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History

API = "/api/v1"


def served(test, **options):
    async def main() -> None:
        async with opened(**options) as (engine, caller):
            await test(engine, caller)

    asyncio.run(main())


async def get(caller, path: str):
    reply = await caller.get(f"{API}/{path}")
    assert reply.status == 200, reply.body
    return reply.json


# --- the timeline ----------------------------------------------------------------------------------------


def test_a_timeline_has_holders_attempts_waits_and_acts():
    async def test(engine, caller):
        await run_order(engine, "r", parts=[1, 2], asks=True)
        await engine.answer("r", "ship.1.1", "approve", by="ada", reason="fine")
        await engine.resume("r", by="bob")
        told = await get(caller, "runs/r/timeline")
        assert [one["end"] for one in told["holders"]] == ["released", "released"]
        assert [(one["node"], one.get("item")) for one in told["attempts"]] == [
            ("reserve", None), ("weigh", None), ("weigh", 0), ("weigh", 1), ("charge", None), ("ship", None)
        ]  # fmt: skip
        (wait,) = told["waits"]
        assert (wait["kind"], wait["key"], wait["ended_by"]) == ("question", "ship.1.1", "answered")
        acts = [(act["verb"], act.get("by"), act.get("reason")) for act in told["acts"]]
        assert acts == [("start", None, None), ("answer", "ada", "fine"), ("resume", "bob", None)]

    served(test)


def test_a_timeline_comes_in_pages_and_windows():
    async def test(engine, caller):
        await run_order(engine, "r", parts=list(range(20, 40)))
        whole = await get(caller, "runs/r/timeline")
        assert [(one["items"], one["counts"]) for one in whole["items"]] == [(20, {"completed": 20})]
        page = await get(caller, "runs/r/timeline?limit=2")
        rest = await get(caller, f"runs/r/timeline?after={page['next']}")
        for part in ("holders", "attempts", "items", "waits", "acts"):
            assert page[part] + rest[part] == whole[part]
        late = whole["attempts"][-1]["started_at"]
        window = await get(caller, f"runs/r/timeline?from={late}&to={late}")
        assert [one["node"] for one in window["attempts"]] == ["weigh", "charge"]
        for wrong in ("from=x", "from=-1", "limit=0", "limit=5001", "after=-1", "form=1"):
            assert (await caller.get(f"{API}/runs/r/timeline?{wrong}")).status == 400, wrong
        assert (await caller.get(f"{API}/runs/none/timeline")).status == 404

    served(test)


def test_a_timeline_that_has_not_changed_is_not_sent_again_but_a_new_fork_is_a_change():
    async def test(engine, caller):
        await run_order(engine, "r")
        reply = await caller.get(f"{API}/runs/r/timeline")
        tag = {"if-none-match": reply.headers["etag"]}
        assert (await caller.get(f"{API}/runs/r/timeline", headers=tag)).status == 304
        await engine.fork("r", checkpoint=3, run_id="f", by="ada")
        told = await caller.get(f"{API}/runs/r/timeline", headers=tag)
        assert [(one["run_id"], one["to"], one["by"]) for one in told.json["forks"]] == [("f", 3, "ada")]

    served(test)


# --- the picture -----------------------------------------------------------------------------------------


def test_a_picture_has_its_geometry_apart_from_the_states_of_nodes():
    async def test(engine, caller):
        await run_order(engine, "r", parts=[1, 13, 2])
        states = await get(caller, "runs/r/picture")
        assert {name: node["status"] for name, node in states["nodes"].items()} == {
            "reserve": "completed",
            "weigh": "failed",
        }
        assert states["nodes"]["weigh"]["error"] == "ValueError: item 1: no such part"
        assert states["nodes"]["weigh"]["items"] == {
            "all": 3, "completed": 2, "failed": 1, "running": 0, "waiting": 0,
            "marks": ["completed", "failed", "completed"],
        }  # fmt: skip
        assert states["taken"] == [["START", "reserve"], ["reserve", "weigh"]]
        reply = await caller.get(f"{API}/pictures/{states['fingerprint']}")
        assert reply.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert VERSION in reply.headers["etag"]
        drawn = reply.json
        assert {box["name"] for box in drawn["boxes"]} == {"START", "END", *flow.nodes}
        assert drawn["nodes"]["weigh"] == {"each": True}
        assert drawn["nodes"]["ship"] == {"asks": True}
        tag = {"if-none-match": reply.headers["etag"]}
        again = await caller.get(f"{API}/pictures/{states['fingerprint']}", headers=tag)
        assert (again.status, again.body) == (304, b"")

    served(test)


def test_a_picture_shows_the_states_at_an_earlier_event_and_what_a_branch_chose():
    async def test(engine, caller):
        await run_order(engine, "r", asks=True)
        now = await get(caller, "runs/r/picture")
        assert now["chosen"] == {"charge": ["ship"]}
        assert ["charge", "ship"] in now["taken"]
        assert ["charge", "END"] not in now["taken"]
        assert (now["nodes"]["ship"]["status"], now["nodes"]["ship"]["waits_for"]) == ("waiting", "question")
        then = await get(caller, "runs/r/picture?at=2")
        assert {name: node["status"] for name, node in then["nodes"].items()} == {"reserve": "running"}
        assert then["nodes"]["reserve"].get("crashed", False) is False, "it was running then"
        assert (then["seq"], then["end"], then["chosen"]) == (2, now["seq"], {})
        for wrong in ("at=0", "at=999"):
            reply = await caller.get(f"{API}/runs/r/picture?{wrong}")
            assert (reply.status, "has events 1 to" in reply.json["detail"]) == (404, True), reply.body
        reply = await caller.get(f"{API}/runs/r/picture?at=2")
        known = await caller.get(
            f"{API}/runs/r/picture?at=2", headers={"if-none-match": reply.headers["etag"]}
        )
        assert known.status == 304

    served(test)


def test_a_node_whose_process_died_is_marked_as_crashed():
    store = MemoryStore()
    History("r", flow).created(Order()).completed("reserve", {}).started("weigh").write(store)

    async def test(engine, caller):
        node = (await get(caller, "runs/r/picture"))["nodes"]["weigh"]
        assert (node["status"], node["crashed"]) == ("running", True)

    served(test, store=store)


def test_the_flow_of_a_run_is_drawn_also_where_no_process_knows_it():
    async def test(engine, caller):
        states = await get(caller, "runs/r/picture")
        assert (await get(caller, f"pictures/{states['fingerprint']}"))["flow"] == "order"

    store = MemoryStore()
    History("r", flow).created(Order()).write(store)
    served(test, store=store, flows=())


def test_the_picture_of_a_flow_without_a_limit_has_none():
    graph = hf.Graph("endless")

    @graph.node
    async def wait(state, ctx): ...

    endless = graph.chain(hf.START, wait, wait).compile(max_iterations=None)

    async def test(engine, caller):
        states = await get(caller, "runs/r/picture")
        assert (await get(caller, f"pictures/{states['fingerprint']}"))["max_iterations"] is None

    store = MemoryStore()
    History("r", endless).created({}).write(store)
    served(test, store=store, flows=[endless])


def test_a_picture_of_a_flow_that_is_unknown_or_with_unknown_nodes_is_refused():
    async def test(engine, caller):
        known = await get(caller, f"pictures/{flow.fingerprint}")
        assert known["fingerprint"] == flow.fingerprint, "it has no run yet"
        for path, status in (
            ("0" * 64, 404),
            ("x" * 64, 400),
            (f"{flow.fingerprint}?alone=nobody", 400),
            (f"{flow.fingerprint}?open=stack:nobody", 400),
            (f"{flow.fingerprint}?open=nobody", 400),
        ):
            reply = await caller.get(f"{API}/pictures/{path}")
            assert (reply.status, bool(reply.json["remedy"])) == (status, True), path

    served(test)


# --- a visit ---------------------------------------------------------------------------------------------


def test_a_crashed_attempt_says_what_it_left_and_the_next_why_it_began():
    store = MemoryStore()
    history = History("r", flow).created(Order()).completed("reserve", {}).settled()
    history.stepped("charge", "pay", 42)
    history.streamed("charge", "charging…\n", "half")
    history.record(events.RunClaimed(holder="w2")).settled()
    history.write(store)

    async def test(engine, caller):
        first, second = (await get(caller, "runs/r/nodes/charge"))["attempts"]
        assert first["status"] == "crashed"
        assert first["left"] == {
            "steps": ["pay"], "chunks": 2, "last_lines": ["charging…", "half"], "files": [], "checkout": {},
        }  # fmt: skip
        assert (second["because"]["kind"], second["because"]["holder"]) == ("claimed", "w2")
        assert second["status"] == "crashed", "no process executes the run"

    served(test, store=store)


def test_an_attempt_after_a_resume_names_who_resumed_and_why():
    async def test(engine, caller):
        await run_order(engine, "r", fails=True)
        with suppress(hf.RunFailed):
            await engine.resume("r", force=True, by="ada", reason="card updated")
        visit = await get(caller, "runs/r/nodes/charge")
        assert [one["status"] for one in visit["attempts"]] == ["failed", "failed"]
        because = visit["attempts"][1]["because"]
        assert (because["kind"], because["by"], because["reason"]) == ("resumed", "ada", "card updated")
        assert visit["attempts"][0]["because"] is None
        assert visit["attempts"][1]["failure"]["traceback"].endswith("Fatal: card declined\n")

    served(test)


def test_a_visit_is_shown_as_it_was_and_one_item_by_itself():
    async def test(engine, caller):
        await run_order(engine, "r", parts=[1, 13])
        then = await get(caller, "runs/r/nodes/weigh?at=6")
        assert (then["status"], then["attempts"][0]["status"]) == ("running", "running")
        item = await get(caller, "runs/r/nodes/weigh?item=1")
        assert [(one["status"], one["failure"]["type"]) for one in item["attempts"]] == [
            ("failed", "ValueError")
        ]
        assert [one["item"] for one in item["items"]] == [1]
        assert (item["status"], item["input"], item["output"]) == ("failed", {"item": {"value": 13}}, None)
        done = await get(caller, "runs/r/nodes/weigh?item=0")
        assert (done["status"], done["input"]) == ("completed", {"item": {"value": 1}})
        assert done["output"] == {"append": {"notes": {"value": ["part 1"]}}}
        assert (await get(caller, "runs/r/nodes/ship"))["visits"] == [], "not reached"
        for wrong in ("weigh?item=2", "charge?item=0", "weigh?at=0", "weigh?at=99", "weigh?execution=2"):
            reply = await caller.get(f"{API}/runs/r/nodes/{wrong}")
            assert (reply.status, bool(reply.json["remedy"])) == (404, True), wrong

    served(test)


def test_a_compacted_run_is_drawn_from_where_its_log_begins():
    async def test(engine, caller):
        await run_order(engine, "r", parts=[1, 2], asks=True)
        pruned = await engine.prune("r", keep_last=1, compact=True)
        told = await get(caller, "runs/r/timeline")
        assert [one["node"] for one in told["attempts"]] == ["charge"]
        assert told["beginning"].startswith(f"Events up to {pruned.base} were compacted")
        states = await get(caller, "runs/r/picture")
        assert [node["status"] for node in states["nodes"].values()] == ["completed"] * 3 + ["waiting"]
        assert ["weigh", "charge"] in states["taken"]
        visit = await get(caller, "runs/r/nodes/reserve")
        assert (visit["visits"], visit["attempts"]) == ([], []), "its events are gone"
        reply = await caller.get(f"{API}/runs/r/picture?at=2")
        assert (reply.status, "compacted" in reply.json["detail"]) == (404, True)

    served(test)


# --- questions and requests --------------------------------------------------------------------------------


def test_a_question_says_what_follows_from_each_answer_and_which_state_it_sees():
    async def test(engine, caller):
        await run_order(engine, "r", asks=True)
        (question,) = (await get(caller, "runs/r/questions"))["questions"]
        assert [(one["answer"], one["effect"], one["words"]) for one in question["outcomes"]] == [
            ("approve", "begins", "ship begins"),
            ("reject", "fails", "ship fails, and with it the run"),
        ]
        assert (question["closing"], question["then"], question["state"]) == (None, None, None)
        (one,) = (await get(caller, "runs/r/questions?key=ship.1.1"))["questions"]
        assert one["state"]["notes"] == {"value": ["reserved", "paid 42"]}
        reply = await caller.get(f"{API}/runs/r/questions?key=ship.1.2")
        assert (reply.status, "ship.1.1" in reply.json["detail"]) == (404, True)

    served(test)


def test_a_closed_question_says_who_answered_and_what_it_saw():
    async def test(engine, caller):
        await run_order(engine, "r", asks=True)
        await engine.answer("r", "ship.1.1", "approve", by="ada", reason="fine", confidence=0.9)
        await engine.resume("r")
        (question,) = (await get(caller, "runs/r/questions?key=ship.1.1"))["questions"]
        closing = question["closing"]
        assert (closing["how"], closing["answer"], closing["by"]) == ("answered", "approve", "ada")
        assert (closing["reason"], closing["confidence"], closing["refused"]) == ("fine", 0.9, False)
        assert question["state"]["notes"] == {"value": ["reserved", "paid 42"]}
        assert (await get(caller, "runs/r/questions?open=true"))["questions"] == []

    served(test)


def test_requests_that_wait_or_were_refused_are_listed():
    async def test(engine, caller):
        await run_order(engine, "r", asks=True)
        engine.store.post("r", stored_form(Pause(id="request:http:t:k", by="ada", reason="lunch")))
        (request,) = (await get(caller, "runs/r/requests"))["requests"]
        assert (request["id"], request["verb"], request["status"]) == ("http:t:k", "pause", "waiting")
        assert (request["by"], request["reason"], request["refused"]) == ("ada", "lunch", None)
        assert (await caller.get(f"{API}/runs/none/requests")).status == 404

    served(test)


# --- two runs ----------------------------------------------------------------------------------------------


def test_a_comparison_lists_nodes_side_by_side():
    async def test(engine, caller):
        await run_order(engine, "a", fails=True)
        place = next(one.seq for one in await engine.checkpoints("a") if one.node == "weigh")
        await engine.fork(
            "a", checkpoint=place, run_id="b", edit={"fails": False}, by="ada", reason="new card"
        )
        await engine.resume("b")
        told = await get(caller, "compare?a=a&b=b")
        assert (told["forked"]["by"], told["forked"]["body"]["reason"]) == ("ada", "new card")
        nodes = {one["node"]: one for one in told["nodes"]}
        assert [name for name, one in nodes.items() if one["shared"]] == ["reserve", "weigh"]
        charge = nodes["charge"]
        assert (charge["a"]["status"], charge["b"]["status"], charge["differs"]) == (
            "failed",
            "completed",
            ["notes"],
        )
        assert told["equal"] == 5

    served(test)


def test_a_node_that_a_fork_repeats_is_not_shared_and_an_edit_before_the_fork_is():
    async def test(engine, caller):
        await run_order(engine, "a", asks=True)
        await engine.edit("a", {"item": "chair"}, by="eve")
        place = (await engine.checkpoints("a"))[-1].seq
        await engine.fork("a", checkpoint=place, run_id="b")
        assert (await get(caller, "compare?a=b&b=a"))["edits"] == [], "it was made before the fork"
        await engine.fork("a", checkpoint=1, run_id="c")
        await engine.resume("c")
        told = await get(caller, "compare?a=a&b=c")
        assert [one["shared"] for one in told["nodes"]] == [False] * 4
        assert told["shared"] == {"run_id": "a", "seq": 1}

    served(test)


@pytest.mark.parametrize(
    "path", ["state", "state?at=3", "diff?from=1", "diff?from=1&to=3", "events", "picture"]
)
def test_what_has_not_changed_is_not_sent_again(path):
    async def test(engine, caller):
        await run_order(engine, "r")
        reply = await caller.get(f"{API}/runs/r/{path}")
        tag = {"if-none-match": reply.headers["etag"]}
        assert reply.headers["cache-control"] == "private, no-cache"
        assert (await caller.get(f"{API}/runs/r/{path}", headers=tag)).status == 304
        await run_order(engine, "other", item="chair")
        other = await caller.get(f"{API}/runs/other/{path}", headers=tag)
        assert other.status == 200

    served(test)
