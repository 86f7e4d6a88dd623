"""Plans over HTTP: checked with all problems at once, started once, described by a schema, and shown as a document again."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest
from hosted import ADMIN, hosting
from served_flows import flow, opened, run_order
from served_plans import BROKEN, ORDER, order, shop

import holdfast as hf
from command_line import caller, furnish
from holdfast.plan import PlanError
from holdfast.server.guard import BODY_BYTES_MAX
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store

API = "/api/v1"
JSON = {"content-type": "application/json"}


def served(test, **options):
    async def main() -> None:
        async with opened(flows=(flow, shop), **options) as (engine, caller):
            await test(engine, caller)

    asyncio.run(main())


async def post(caller, path, body, **headers):
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await caller.send("POST", f"{API}{path}", body=sent, headers={**JSON, **headers})


# --- starting ------------------------------------------------------------------------------------------


def test_a_run_of_a_plan_is_started_and_executed_by_a_worker():
    async def test(engine, caller):
        reply = await post(caller, "/runs", {"flow": "shop", "plan": ORDER, "run_id": "o1"})
        assert reply.status == 201, reply.body
        assert (reply.json["flow"], reply.json["status"]) == ("shop", "pending")
        await engine.work(until="idle")
        run = await engine.get("o1")
        assert run.status == "completed"
        assert run.nodes["pickup"].status == "skipped"
        events = await engine.events("o1")
        assert events[0].by == "admin-ada"

    served(test)


def test_the_same_key_starts_the_plan_once_and_another_plan_is_refused():
    async def test(engine, caller):
        body = {"flow": "shop", "plan": ORDER}
        first = await post(caller, "/runs", body, **{"idempotency-key": "k1"})
        again = await post(caller, "/runs", body, **{"idempotency-key": "k1"})
        assert (first.status, again.status) == (201, 200)
        assert first.json["id"] == again.json["id"]
        other = {"flow": "shop", "plan": order(cents=1)}
        assert (await post(caller, "/runs", other, **{"idempotency-key": "k1"})).status == 422
        taken = await post(caller, "/runs", {**other, "run_id": first.json["id"]})
        assert (taken.status, taken.json["error"]) == (409, "RunExists")
        assert len(engine.store.runs(Query())) == 1

    served(test)


def test_a_plan_with_problems_is_refused_with_all_of_them_and_nothing_is_recorded():
    async def test(engine, caller):
        reply = await post(caller, "/runs", {"flow": "shop", "plan": BROKEN}, **{"idempotency-key": "k1"})
        problem = reply.json
        assert (reply.status, problem["type"], problem["error"]) == (
            422,
            "urn:holdfast:problem:plan-error",
            "PlanError",
        )
        expected = {one.path: one.message for one in shop.check(BROKEN)}
        assert {one["path"]: one["message"] for one in problem["errors"]} == expected
        assert len(expected) == 5
        assert engine.store.runs(Query()) == []
        corrected = await post(caller, "/runs", {"flow": "shop", "plan": ORDER}, **{"idempotency-key": "k1"})
        assert corrected.status == 201

    served(test)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"flow": "shop"}, "plan"),
        ({"flow": "shop", "input": {"a": 1}, "plan": ORDER}, "input"),
        ({"flow": "order", "plan": ORDER}, "plan"),
        ({"flow": "shop", "plan": "order.json"}, "plan"),
        ({"flow": "shop", "plan": [ORDER]}, "plan"),
    ],
)
def test_a_body_that_does_not_fit_the_flow_is_refused(body, field):
    async def test(engine, caller):
        reply = await post(caller, "/runs", body)
        assert (reply.status, reply.json["errors"][0]["path"]) == (422, field), reply.body
        assert engine.store.runs(Query()) == []

    served(test)


# --- checking ------------------------------------------------------------------------------------------


def test_a_plan_is_checked_without_recording_anything():
    async def test(engine, caller):
        good = await post(caller, "/plans/check", {"flow": "shop", "plan": ORDER})
        assert (good.status, good.json) == (
            200,
            {"flow": "shop", "ok": True, "problems": [], "problems_all": 0},
        )
        bad = (await post(caller, "/plans/check", {"flow": "shop", "plan": BROKEN})).json
        assert (bad["ok"], bad["problems_all"]) == (False, 5)
        assert [one["path"] for one in bad["problems"]] == [one.path for one in shop.check(BROKEN)]
        assert engine.store.runs(Query()) == []
        unknown = await post(caller, "/plans/check", {"flow": "shops", "plan": ORDER})
        assert (unknown.status, unknown.json["error"]) == (409, "FlowNotFound")
        assert "did you mean 'shop'" in unknown.json["detail"]
        assert (await post(caller, "/plans/check", {"flow": "order", "plan": ORDER})).status == 422
        assert (await post(caller, "/plans/check", {"flow": "shop"})).status == 422

    served(test)


def wide(number: int) -> dict:
    return {"holdfast": "plan/1", "tasks": [{"id": f"t{n}", "capability": "hold@9"} for n in range(number)]}


def test_large_and_deep_plans_get_clear_problems():
    async def test(_, caller):
        for path in ("/runs", "/plans/check"):
            huge = json.dumps({"flow": "shop", "plan": {"context": {"a": "x" * 5_000_000}}}).encode()
            assert len(huge) > BODY_BYTES_MAX
            assert (await post(caller, path, huge)).status == 413
            deep = b'{"flow": "shop", "plan": {"context": ' + b'{"a":' * 1000 + b"1" + b"}" * 1002
            reply = await post(caller, path, deep)
            assert (reply.status, reply.json["detail"]) == (400, "The body is nested deeper than 64 levels.")
        crowd = (await post(caller, "/plans/check", {"flow": "shop", "plan": wide(20_000)})).json
        assert [(one["path"], one["message"][:23]) for one in crowd["problems"]] == [
            ("tasks", "there are 20,000 tasks;")
        ]
        many = await post(caller, "/runs", {"flow": "shop", "plan": wide(3000)})
        assert many.status == 422
        assert many.json["detail"].startswith("the plan has 3000 problems. The first 20:")
        assert len(many.json["errors"]) == 1000
        assert len(many.body) < 300_000

    served(test)


def test_a_start_token_may_check_and_start_and_a_read_token_may_not():
    async def test(_, caller):
        caller.role = "read"
        for path in ("/runs", "/plans/check"):
            assert (await post(caller, path, {"flow": "shop", "plan": ORDER})).status == 403
        assert (await caller.get(f"{API}/plans/schema?flow=shop")).status == 200
        caller.role = "start"
        for path in ("/runs", "/plans/check"):
            assert (await post(caller, path, {"flow": "shop", "plan": ORDER})).status in (200, 201)

    served(test)


# --- describing ----------------------------------------------------------------------------------------


def test_flows_show_capabilities_and_the_schema_of_their_plans():
    async def test(_, caller):
        found = {one["name"]: one for one in (await caller.get(f"{API}/flows")).json["flows"]}
        assert found["order"]["capabilities"] is None
        assert [one["name"] for one in found["shop"]["capabilities"]] == [
            "charge@2",
            "hold@1",
            "mail@1",
            "ship@1",
        ]
        assert found["shop"]["capabilities"][0] == {
            "name": "charge@2",
            "description": "Charges a card.",
            "idempotent": False,
        }
        assert (found["shop"]["nodes"], found["shop"]["input_schema"]) == ([], None)
        schema = await caller.get(f"{API}/plans/schema?flow=shop")
        assert (schema.status, schema.json) == (200, json.loads(json.dumps(shop.schema())))
        assert (await caller.get(f"{API}/plans/schema?flow=order")).status == 422
        assert (await caller.get(f"{API}/plans/schema?flow=nothing")).status == 409
        assert (await caller.get(f"{API}/plans/schema")).status == 400

    served(test)


def test_the_plan_of_a_run_is_the_document_that_was_sent():
    async def test(engine, caller):
        await engine.run(shop.plan(ORDER), run_id="o1")
        reply = await caller.get(f"{API}/runs/o1/plan")
        assert reply.json["plan"] == ORDER
        assert shop.plan(reply.json["plan"]).fingerprint == reply.json["fingerprint"]
        known = await caller.get(f"{API}/runs/o1/plan", headers={"if-none-match": reply.headers["etag"]})
        assert known.status == 304
        await run_order(engine, "r1")
        none = await caller.get(f"{API}/runs/r1/plan")
        assert (none.status, none.json["detail"]) == (
            404,
            "Run 'r1' has no plan: its flow is a graph in code.",
        )

    served(test)


def test_the_plan_of_a_run_has_the_context_that_it_had_at_an_event():
    async def test(engine, caller):
        await engine.run(shop.plan(order(cents=20_000)), run_id="o1")
        before = (await engine.get("o1")).seq
        await engine.edit("o1", {"context": {"facts": {"order": "1", "cents": 5, "country": "FR"}}})
        plan = (await caller.get(f"{API}/runs/o1/plan")).json["plan"]
        assert plan["context"]["facts"]["cents"] == 5
        earlier = (await caller.get(f"{API}/runs/o1/plan?at={before}")).json
        assert (earlier["seq"], earlier["plan"]) == (before, order(cents=20_000))
        assert (await caller.get(f"{API}/runs/o1/plan?at=99")).status == 404

    served(test)


# --- the client ----------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path):
    with (
        closing(open_store(tmp_path / "runs.db")) as store,
        hosting() as host,
        host.serving(store, flows=[shop]) as url,
    ):
        yield hf.BlockingClient(url, ADMIN)


def test_a_client_starts_checks_and_reads_plans(client, tmp_path):
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER))
    assert client.check_plan("shop", file) == []
    assert client.check_plan(shop, BROKEN) == shop.check(BROKEN)
    assert client.plan_schema("shop") == json.loads(json.dumps(shop.schema()))
    for number, given in enumerate((file, str(file), ORDER, json.dumps(ORDER))):
        run_id = client.start("shop", plan=given, run_id=f"o{number}")
        assert client.plan(run_id) == ORDER
    assert client.plan(client.start(shop.plan(order(cents=5)))) == order(cents=5)
    assert client.get("o0").status == "pending"


def test_a_client_raises_the_problems_of_a_plan(client, tmp_path):
    with pytest.raises(PlanError) as caught:
        client.start("shop", plan=BROKEN)
    assert list(caught.value.problems) == shop.check(BROKEN)
    with pytest.raises(PlanError) as local:
        shop.plan(BROKEN)
    assert str(caught.value) == str(local.value)
    missing = client.check_plan("shop", tmp_path / "none.json")
    assert "cannot be read" in missing[0].message
    with pytest.raises(hf.FlowNotFound):
        client.check_plan("shops", ORDER)
    assert client.runs() == []


# --- the command line ----------------------------------------------------------------------------------


def test_commands_record_and_show_plans_over_http(client, tmp_path, monkeypatch, capsys):
    furnish(tmp_path, monkeypatch, caps="from served_plans import shop\n")
    monkeypatch.setenv("HOLDFAST_TOKEN", ADMIN)
    call = caller(capsys, tries_suggestions=False)
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    words = ("plan", "run", "order.json", "caps.py", "--run-id", "o1", "--no-execute", "--store", client.url)
    ended = call(*words)
    assert ended.code == 0, ended
    assert client.plan("o1") == ORDER
    shown = call("plan", "show", "o1", "--store", client.url)
    assert (shown.code, "Deliver order 4711" in shown.out) == (0, True), shown


# --- texts that are ambiguous or hostile -----------------------------------------------------------------


def test_equal_keys_are_refused_in_a_body_with_very_many_values():
    body = b'{"flow": "shop", "plan": {"tasks": [' + b"1," * 1_100_000 + b'{"a": 1,\n"a": 2}]}}'

    async def test(engine, caller):
        reply = await post(caller, "/runs", body)
        assert (reply.status, reply.json["type"]) == (400, "urn:holdfast:problem:bad-json")
        assert "'a' twice, on lines 1 and 2" in reply.json["detail"]

    served(test)


def test_a_plan_with_two_equal_keys_is_neither_checked_nor_started():
    text = json.dumps({"flow": "shop", "plan": ORDER}, indent=0)
    twice = text.replace('"policies"', '"policies": [],\n"policies"', 1)
    assert twice != text
    first = twice[: twice.index('"policies"')].count("\n") + 1

    async def test(engine, caller):
        for path in ("/plans/check", "/runs"):
            reply = await post(caller, path, twice.encode())
            assert (reply.status, reply.json["type"]) == (400, "urn:holdfast:problem:bad-json")
            assert f"'policies' twice, on lines {first} and {first + 1}" in reply.json["detail"]
            assert [fault["path"] for fault in reply.json["errors"]] == ["plan.policies"]
        assert engine.store.runs(Query()) == []

    served(test)


def test_a_plan_with_too_many_values_is_refused():
    async def test(engine, caller):
        plan = {**ORDER, "context": {"facts": {"all": [1] * 1_000_000}}}
        body = json.dumps({"flow": "shop", "plan": plan}, separators=(",", ":")).encode()
        checked = await post(caller, "/plans/check", body)
        assert "more than 1,000,000 values" in checked.json["problems"][0]["message"], checked.json
        started = await post(caller, "/runs", body)
        assert started.status == 422, started.json
        assert engine.store.runs(Query()) == []

    served(test)
