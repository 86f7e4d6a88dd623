"""A verb is previewed first, and acts only on what the preview showed."""

from __future__ import annotations

import asyncio

import pytest
from served_flows import run_order
from verb_calls import operate

from holdfast.reading import inbox

VERBS = [
    ("resume", {"force": True}),
    ("retry", {}),
    ("skip", {"node": "charge"}),
    ("cancel", {}),
    ("fork", {"fresh": True}),
]


async def preview(operator, path, body):
    seen = await operator.post(f"{path}?preview=1", body)
    assert seen.status == 200, seen.body
    assert seen.headers["etag"] == f'"{seen.json["digest"]}"'
    return seen


@pytest.mark.parametrize(("verb", "body"), VERBS, ids=[verb for verb, _ in VERBS])
def test_a_preview_says_what_would_happen_and_changes_nothing(verb, body):
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        seq = engine.store.run("r1").seq
        seen = await preview(operator, f"runs/r1/{verb}", body)
        assert (seen.json["verb"], seen.json["run_id"], seen.json["refused"]) == (verb, "r1", None)
        assert seen.json["command"].startswith(f"holdfast {verb} r1")
        assert engine.store.run("r1").seq == seq
        assert await engine.requests("r1") == []
        assert len(await engine.runs()) == 1

    operate(test)


@pytest.mark.parametrize(("verb", "body"), VERBS, ids=[verb for verb, _ in VERBS])
def test_a_verb_acts_on_its_preview_although_the_run_has_merely_moved_on(verb, body):
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        seen = await preview(operator, f"runs/r1/{verb}", body)
        await operator.post("runs/r1/signal", {"name": "go"})
        done = await operator.post(
            f"runs/r1/{verb}", body | {"reason": "now"}, headers={"if-match": seen.headers["etag"]}, wait=30
        )
        assert done.status == (201 if verb == "fork" else 200), done.body

    operate(test, works=True)


@pytest.mark.parametrize(("verb", "body"), VERBS, ids=[verb for verb, _ in VERBS])
def test_a_verb_with_a_stale_preview_does_nothing_and_is_answered_with_the_new_one(verb, body):
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        before = len(await engine.runs())
        reply = await operator.post(f"runs/r1/{verb}", body, headers={"if-match": '"stale"'}, key="k1")
        assert (reply.status, reply.json["type"]) == (412, "urn:holdfast:problem:preview-stale"), reply.body
        assert reply.headers["etag"] == f'"{reply.json["preview"]["digest"]}"'
        assert "Now it would" in reply.json["detail"]
        assert await engine.requests("r1") == []
        assert len(await engine.runs()) == before
        again = await operator.post(
            f"runs/r1/{verb}", body, headers={"if-match": reply.headers["etag"]}, key="k1"
        )
        assert again.status in (201, 202)

    operate(test)


def test_a_stale_preview_is_refused_under_the_lease():
    async def test(engine, operator):
        await run_order(engine, "r1", asks=True)
        body = {"restart_at": "reserve", "confirm": []}
        seen = await preview(operator, "runs/r1/resume", body)
        match = {"if-match": seen.headers["etag"]}
        # An answer waits in the inbox before the request: the preview said that the resume closes the question.
        (question,) = await engine.questions("r1")
        answer = inbox.Answer(id="before", key=question.question.key, value="approve")
        engine._services.store.post("r1", inbox.stored_form(answer))
        assert (await operator.post("runs/r1/resume", body, headers=match, key="k1")).status == 202
        working = asyncio.ensure_future(engine.work())
        reply = await operator.post("runs/r1/resume", body, headers=match, key="k1", wait=30)
        assert (reply.status, reply.json["type"]) == (412, "urn:holdfast:problem:preview-stale"), reply.body
        assert reply.json["preview"]["closes"] == []
        (refused,) = await operator.events("r1", "RequestRefused")
        assert refused["body"]["error"] == "PreviewStale"
        await engine.stop("over", grace=0)
        await working

    operate(test)


def test_a_fork_with_a_preview_is_answered_alike_after_its_parent_has_moved_on():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        seen = await preview(operator, "runs/r1/fork", {})
        match = {"if-match": seen.headers["etag"]}
        first = await operator.post("runs/r1/fork", {}, headers=match, key="k1")
        await engine.skip("r1", "charge")
        again = await operator.post("runs/r1/fork", {}, headers=match, key="k1")
        assert (first.status, again.status) == (201, 201), again.body
        assert first.json["id"] == again.json["id"]

    operate(test)


def test_a_refusal_is_part_of_a_preview():
    async def test(engine, operator):
        await run_order(engine, "r1")
        seen = await preview(operator, "runs/r1/retry", {})
        assert seen.json["error"] == "RunOver"
        assert "final" in seen.json["refused"]
        assert (await operator.post("runs/none/retry?preview=1")).status == 404
        assert (await operator.post("runs/r1/retry?preview=1", {"nodes": 1})).status == 422
        assert (await operator.post("runs/r1/retry?preview=perhaps")).status == 400

    operate(test)


def test_a_route_without_a_preview_takes_no_entity_tag():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        for verb, body in (("pause", {}), ("signal", {"name": "go"}), ("edit", {"fields": {"item": "x"}})):
            reply = await operator.post(f"runs/r1/{verb}", body, headers={"if-match": '"x"'})
            assert reply.status == 400, verb
            assert (await operator.post(f"runs/r1/{verb}?preview=1", body)).status == 400
        for wrong in ("x", '"', 'W/"x"', '"a", "b"', "*", ""):
            assert (await operator.post("runs/r1/resume", {}, headers={"if-match": wrong})).status == 400

    operate(test)
