"""What callers ask for over HTTP becomes a request, once per key, and is answered with what became of it."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from app_client import SECRET, TOKENS, make_token
from served_flows import flow, run_order
from verb_calls import Operator, operate, operated, reach

import holdfast as hf
from holdfast.reading import history
from holdfast.server.asgi import asgi
from holdfast.server.runs import show_run
from holdfast.server.verbs import has_stopped
from holdfast.storage.memory.store import MemoryStore

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# --- start -------------------------------------------------------------------------------------------


def test_a_run_is_started_and_a_worker_executes_it():
    async def test(engine, operator):
        body = {
            "flow": "order",
            "input": {"item": "desk"},
            "run_id": "r1",
            "labels": {"team": "a"},
            "priority": 3,
        }
        made = await operator.post("runs", body)
        assert made.status == 201, made.body
        assert (made.json["id"], made.json["labels"], made.json["priority"]) == ("r1", {"team": "a"}, 3)
        await reach(engine, "r1", "completed")
        (created,) = await operator.events("r1", "RunCreated")
        assert created["by"] == "admin-ada"

    operate(test, works=True)


def test_a_handler_executes_no_node():
    async def test(engine, operator):
        assert (await operator.post("runs", {"flow": "order", "run_id": "r1"})).json["status"] == "pending"
        await run_order(engine, "r2", fails=True)
        seq = engine.store.run("r2").seq
        asked = await operator.post("runs/r2/resume", {"force": True})
        assert asked.status == 202
        assert asked.json["run"]["status"] == "failed"
        assert engine.store.run("r2").seq == seq

    operate(test)


@pytest.mark.parametrize(
    ("path", "body", "folds"),
    [
        ("r1/resume", {}, 1),
        ("r1/retry", {"node": "charge"}, 1),
        ("r1/cancel", {}, 1),
        ("r1/pause", {}, 1),
        ("r2/answer", {"question": "ship", "answer": "approve"}, 1),
        ("r2/signal", {"name": "news"}, 1),
    ],
)
def test_the_log_is_read_as_often_as_a_request_needs_and_not_again_for_the_answer(
    monkeypatch, path, body, folds
):
    async def test(engine, operator):
        await run_order(engine, "r1", fails=path != "r1/pause", asks=path == "r1/pause")
        await run_order(engine, "r2", asks=True)
        loaded = []
        load = history.load

        def counted(store, run_id, *rest, **named):
            loaded.append(run_id)
            return load(store, run_id, *rest, **named)

        monkeypatch.setattr(history, "load", counted)
        reply = await operator.post(f"runs/{path}", body)
        assert reply.status == 202, reply.body
        assert len(loaded) == folds

    operate(test)


def test_the_same_start_is_answered_with_the_same_run():
    async def test(engine, operator):
        body = {"flow": "order", "input": {"item": "desk"}, "run_id": "r1"}
        first, second = await operator.post("runs", body), await operator.post("runs", body)
        assert (first.status, second.status) == (201, 200)
        assert second.json["id"] == "r1"
        other = await operator.post("runs", body | {"input": {"item": "lamp"}})
        assert other.status == 409
        assert other.json["type"].endswith("run-exists")
        used = await operator.post("runs", body | {"input": {"item": "lamp"}, "on_exists": "use"})
        assert (used.status, used.json["state"]["item"]) == (200, "desk")

    operate(test)


def test_without_a_run_id_the_id_follows_from_the_key():
    async def test(engine, operator):
        body = {"flow": "order", "input": {"item": "desk"}}
        first = await operator.post("runs", body, key="k1")
        again = await operator.post("runs", body, key='"k1"')
        other = await operator.post("runs", body, key="k2")
        assert [reply.status for reply in (first, again, other)] == [201, 200, 201]
        assert first.json["id"] == again.json["id"] != other.json["id"]
        for changed in ({"flow": "order", "input": {"item": "lamp"}}, {"flow": "order"}):
            reused = await operator.post("runs", changed, key="k1")
            assert (reused.status, reused.json["type"][-10:]) == (422, "key-reused")
        engine.store.tokens.add(make_token("start", "t1"))
        theirs = await operator.post("runs", body, key="k1", token=f"t1.{SECRET}")
        assert theirs.status == 201
        assert theirs.json["id"] != first.json["id"]

    operate(test)


class Hesitant(MemoryStore):
    """A store that gives a second caller a moment to look for a run before the run is created."""

    def __init__(self):
        super().__init__()
        self.looks = 0
        self.looked_twice = threading.Event()

    def run(self, run_id):
        self.looks += run_id.startswith("http-")
        if self.looks > 1:
            self.looked_twice.set()
        return super().run(run_id)

    def append(self, batch):
        self.looked_twice.wait(0.1)
        return super().append(batch)


def test_sixteen_starts_with_one_key_make_one_run():
    async def test(engine, operator):
        await operator.post(
            "runs", {"flow": "order", "run_id": "r1"}
        )  # now commits count as slow, and get a thread
        replies = await asyncio.gather(
            *(operator.post("runs", {"flow": "order"}, key="k1") for _ in range(16))
        )
        assert sorted(reply.status for reply in replies) == [200] * 15 + [201]
        assert len({reply.json["id"] for reply in replies}) == 1

    operate(test, store=Hesitant())


def test_calls_of_the_clerk_with_one_name_are_made_one_after_the_other():
    async def test(engine, operator):
        clerk, active, most = operator.app.backend.clerk, 0, 0

        async def call(engine):
            nonlocal active, most
            active += 1
            most = max(most, active)
            for _ in range(2000):  # so that others come meanwhile
                await asyncio.sleep(0)
            active -= 1

        first, second = (asyncio.ensure_future(clerk.use_in_turn("r1", call)) for _ in range(2))
        await first
        await asyncio.gather(second, clerk.use_in_turn("r1", call))
        assert most == 1
        assert clerk._turns == {}

    operate(test)


def test_a_flow_that_this_server_does_not_know_is_reported_with_the_command():
    async def test(engine, operator):
        reply = await operator.post("runs", {"flow": "ordr"})
        assert reply.status == 409
        assert "holdfast serve FILE.py" in reply.json["remedy"]
        assert "did you mean 'order'" in reply.json["detail"]

    operate(test)


def test_a_traceparent_is_recorded_and_a_malformed_one_is_ignored():
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "run_id": "r1"}, headers={"traceparent": TRACE})
        (created,) = await operator.events("r1", "RunCreated")
        assert created["body"]["trace_parent"] == TRACE
        for number, wrong in enumerate(
            (
                TRACE.upper(),
                TRACE[:-1],
                f"{TRACE}-x",
                TRACE.replace("0af7", "zzzz"),
                f"ff{TRACE[2:]}",
                "",
                "00-" + "0" * 32 + TRACE[35:],
            )
        ):
            made = await operator.post(
                "runs", {"flow": "order", "run_id": f"w{number}"}, headers={"traceparent": wrong}
            )
            assert made.status == 201
            (created,) = await operator.events(f"w{number}", "RunCreated")
            assert "trace_parent" not in created["body"]

    operate(test)


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({}, 422, ""),
        ({"flow": "order", "by": "eve"}, 422, ""),
        ({"flow": "order", "input": {"itme": "x"}}, 422, "itme"),
        ({"flow": "order", "input": {"quantity": "many"}}, 422, "quantity"),
        ({"flow": "order", "input": [1]}, 422, None),
        ({"flow": "order", "run_id": "../x"}, 422, "run_id"),
        ({"flow": "order", "run_id": "x" * 129}, 422, "run_id"),
        ({"flow": "order", "priority": 10**7}, 422, "priority"),
        ({"flow": "order", "timeout": -1}, 422, "timeout"),
        ({"flow": "order", "timeout": True}, 422, "timeout"),
        ({"flow": "order", "labels": {"a": 1}}, 422, "labels[...]"),
        ({"flow": "order", "labels": {"": "x"}}, 400, None),
        ({"flow": "order", "queue": "a b"}, 422, "queue"),
        ({"flow": "order", "begin_at": 5}, 400, None),
        ({"flow": "order", "begin_at": "2999-01-01T00:00:00Z"}, 400, None),
        ({"flow": "order", "begin_at": "2036-01-01T00:00:00"}, 400, None),
        ({"flow": "order", "begin_at": "soon"}, 422, "begin_at"),
        ({"flow": "order", "on_exists": "use"}, 400, None),
        ({"flow": "order", "on_exists": "replace"}, 422, "on_exists"),
        ({"flow": 5}, 422, "flow"),
        ([], 422, ""),
        (b'{"flow": "order", "flow": "order"}', 400, "flow"),
    ],
)  # fmt: skip
def test_a_start_that_is_not_valid_is_refused(body, status, path):
    async def test(engine, operator):
        reply = await operator.post("runs", body)
        assert reply.status == status, reply.body
        assert reply.json["remedy"]
        if path is not None:
            assert [fault["path"] for fault in reply.json["errors"]] == [path]
        assert (await operator.get("/api/v1/runs")).json["runs"] == []

    operate(test)


# --- verbs -------------------------------------------------------------------------------------------


def test_a_verb_answers_with_the_run_and_the_id_of_its_request():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        asked = await operator.post("runs/r1/retry", {"node": "charge", "reason": "try"}, key="k1")
        assert asked.status == 202
        assert asked.json["request"] == "http:admin:k1"
        assert asked.json["run"]["id"] == "r1"
        (waiting,) = await engine.requests("r1")
        assert (waiting.id, waiting.verb, waiting.by, waiting.reason) == (
            "http:admin:k1",
            "retry",
            "admin-ada",
            "try",
        )
        keyless = await operator.post("runs/r1/retry")
        assert keyless.json["request"].startswith("http:admin:")

    operate(test)


def test_a_caller_that_waits_gets_the_run_when_it_stops():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        edited = await operator.post("runs/r1/edit", {"fields": {"fails": False}})
        assert edited.status == 202
        done = await operator.post("runs/r1/retry", {}, key="k1", wait=30)
        assert done.status == 200, done.body
        assert done.headers["preference-applied"] == "wait=30"
        assert done.json["run"]["status"] == "completed"
        assert (await operator.events("r1", "StateEdited"))[0]["by"] == "admin-ada"

    operate(test, works=True)


def test_a_caller_that_starts_a_run_and_waits_gets_its_end_or_its_first_question():
    async def test(engine, operator):
        done = await operator.post("runs", {"flow": "order", "run_id": "r1"}, wait=30)
        assert (done.status, done.json["status"]) == (201, "completed"), done.body
        assert done.headers["preference-applied"] == "wait=30"
        asked = await operator.post("runs", {"flow": "order", "input": {"asks": True}}, key="k1", wait=30)
        assert [one["key"] for one in asked.json["questions"]] == ["ship.1.1"]
        again = await operator.post("runs", {"flow": "order", "input": {"asks": True}}, key="k1", wait=30)
        assert (again.status, again.json["id"]) == (200, asked.json["id"])
        forked = await operator.post("runs/r1/fork", {"checkpoint": 1, "run_id": "r2"}, wait=30)
        assert (forked.status, forked.json["status"]) == (201, "completed"), forked.body

    operate(test, works=True)


def test_a_caller_that_waits_gets_the_next_question():
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "input": {"fails": True, "asks": True}, "run_id": "r1"})
        await reach(engine, "r1", "failed")
        done = await operator.post(
            "runs/r1/skip", {"node": "charge", "update": {"notes": ["by hand"]}}, wait=30
        )
        assert done.status == 200, done.body
        (question,) = done.json["run"]["questions"]
        assert question["key"] == "ship.1.1"
        answered = await operator.post(
            "runs/r1/answer", {"question": "ship.1.1", "answer": "approve"}, wait=30
        )
        assert answered.status == 200, answered.body
        assert answered.json["run"]["status"] == "completed"

    operate(test, works=True)


def test_a_run_has_stopped_if_it_asks_or_does_not_continue_by_itself():
    async def test(engine, operator):
        await run_order(engine, "r1", asks=True)
        asking = show_run(operator.app.backend, engine.store.run("r1"))
        silent = msgspec.structs.replace(asking, questions=())
        assert has_stopped(asking)
        assert has_stopped(msgspec.structs.replace(asking, status="running"))
        assert has_stopped(silent)
        assert has_stopped(msgspec.structs.replace(silent, status="interrupted"))
        for changes in ({"status": "running"}, {"status": "pending"}, {"due_at": 5.0}, {"answered": True}):
            assert not has_stopped(msgspec.structs.replace(silent, **changes)), changes

    operate(test)


def test_a_caller_that_waits_too_short_gets_202():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        asked = await operator.post("runs/r1/retry", {}, wait=0)
        assert asked.status == 202
        assert asked.headers["preference-applied"] == "wait=0"

    operate(test)


def test_a_refusal_is_answered_to_a_caller_that_waits_also_the_second_time():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        first = await operator.post("runs/r1/retry", {"node": "ship"}, key="k1", wait=30)
        assert first.status == 409, first.body
        assert "not reached" in first.json["detail"]
        again = await operator.post("runs/r1/retry", {"node": "ship"}, key="k1", wait=30)
        assert (again.status, again.json) == (first.status, first.json)
        (refused,) = await operator.events("r1", "RequestRefused")
        assert refused["by"] == "admin-ada"

    operate(test, works=True)


def test_a_request_that_records_needs_no_worker():
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "run_id": "r1"})
        assert (await operator.post("runs/r1/pause")).json["run"]["status"] == "paused"
        assert (await operator.post("runs/r1/signal", {"name": "go", "payload": [1]})).json["run"][
            "signals"
        ] == {"go": 1}
        assert (await operator.post("runs/r1/edit", {"fields": {"item": "desk"}})).json["run"]["state"][
            "item"
        ] == "desk"
        assert (await operator.post("runs/r1/cancel", {"reason": "no"}, wait=5)).json["run"][
            "status"
        ] == "cancelled"

    operate(test)


@pytest.mark.parametrize("key", ["k1", None])
def test_the_same_key_acts_once_and_is_answered_alike(key):
    async def test(engine, operator):
        await run_order(engine, "r1", asks=True)
        body = {"question": "ship", "answer": "reject", "reason": "no stock", "confidence": 0.5}
        replies = await asyncio.gather(*(operator.post("runs/r1/answer", body, key="k1") for _ in range(16)))
        assert {reply.status for reply in replies} == {202}
        assert sum(not reply.json["run"]["repeated"] for reply in replies) == 1
        (answered,) = await operator.events("r1", "QuestionAnswered")
        assert (answered["by"], answered["body"]["confidence"], answered["body"]["reason"]) == (
            "admin-ada",
            0.5,
            "no stock",
        )
        late = await operator.post("runs/r1/answer", body, key=key)
        assert late.status == (202 if key else 422)

    operate(test)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_same_key_for_another_verb_or_body_is_refused(restarts):
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "run_id": "r1"})
        await operator.post("runs/r1/signal", {"name": "go"}, key="k1")
        await operator.post("runs/r1/pause", key="k2")
        if restarts:
            operator = Operator(asgi(engine, tokens=TOKENS))
        for verb, body, key in (
            ("signal", {"name": "stop"}, "k1"),
            ("signal", {"name": "go", "payload": 1}, "k1"),
            ("pause", {}, "k1"),
            ("signal", {"name": "go"}, "k2"),
            ("cancel", {}, "k2"),
        ):
            reused = await operator.post(f"runs/r1/{verb}", body, key=key)
            assert (reused.status, reused.json["type"]) == (422, "urn:holdfast:problem:key-reused"), verb
        assert engine.store.run("r1").status == "paused"

    operate(test)


def test_the_name_of_the_token_is_recorded_and_for_whom_it_calls():
    async def test(engine, operator):
        engine.store.tokens.add(make_token("operate", "t1", name="scout", kind="agent"))
        await operator.post("runs", {"flow": "order", "run_id": "r1"})
        await operator.post("runs/r1/pause", {}, token=f"t1.{SECRET}", headers={"holdfast-for": "ada"})
        (paused,) = await operator.events("r1", "RunPaused")
        assert paused["by"] == "agent:scout/ada"
        assert (await operator.post("runs/r1/pause", {"by": "root"})).status == 422

    operate(test)


def test_an_answer_that_does_not_fit_is_reported_by_its_path():
    async def test(engine, operator):
        await run_order(engine, "r1", asks=True)
        wrong = await operator.post("runs/r1/answer", {"question": "ship.1.1", "answer": "aprove"}, key="k1")
        assert wrong.status == 422
        assert wrong.json["errors"][0]["path"] == "answer"
        assert "did you mean 'approve'" in wrong.json["detail"]
        unknown = await operator.post("runs/r1/answer", {"question": "shop.1.1", "answer": "approve"})
        assert unknown.status == 422
        assert "ship.1.1" in unknown.json["detail"]
        right = await operator.post("runs/r1/answer", {"question": "ship.1.1", "answer": "approve"}, key="k1")
        assert right.status == 202

    operate(test)


def test_an_answer_says_that_an_interrupted_step_has_happened():
    graph, calls = hf.Graph("pay", dict), []

    @graph.node
    async def pay(state, ctx):
        async def charge() -> dict[str, int]:
            calls.append("charge")
            raise ConnectionError("no reply")

        return {"receipt": await ctx.step(hf.Step("charge", idempotent=False), charge)}

    paying = graph.chain(hf.START, "pay", hf.END).compile()

    async def test(engine, operator):
        await engine.run(paying, {}, run_id="r1")
        (asked,) = (await operator.get("/api/v1/runs/r1/questions")).json["questions"]
        (doubt,) = asked["question"]["partial"]["in_doubt"]
        assert (doubt["step"], doubt["result_schema"]["type"]) == ("charge", "object")
        assert "happened" in [one["answer"] for one in asked["outcomes"]]
        body = {"question": "pay", "answer": "happened", "step": "charge", "reason": "the bank shows it"}
        wrong = await operator.post("runs/r1/answer", {**body, "result": {"id": "7"}}, key="k1")
        assert (wrong.status, wrong.json["errors"][0]["path"]) == (422, "result.id")
        without = await operator.post("runs/r1/answer", body, key="k2")
        assert (without.status, "needs the result" in without.json["detail"]) == (400, True)
        no_reason = await operator.post(
            "runs/r1/answer", {**body, "reason": None, "result": {"id": 7}}, key="k3"
        )
        assert no_reason.status == 422
        right = await operator.post("runs/r1/answer", {**body, "result": {"id": 7}}, key="k4")
        assert right.status == 202, right.body
        again = await operator.post("runs/r1/answer", {**body, "result": {"id": 7}}, key="k4")
        assert (again.status, len(await operator.events("r1", "QuestionAnswered"))) == (202, 1)
        late = await operator.post("runs/r1/answer", {**body, "result": {"id": 8}}, key="k5")
        assert "answered 'happened' (the step 'charge') by" in late.json["detail"]
        (said,) = await operator.events("r1", "QuestionAnswered")
        assert said["body"]["stated"] == {"step": "charge", "result": {"id": 7}}
        run = await engine.resume("r1")
        assert (run.status, run.state, calls) == ("completed", {"receipt": {"id": 7}}, ["charge"])

    operate(test, flows=[paying])


def test_an_edit_that_does_not_fit_is_reported_by_its_path():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        for verb, body in (
            ("edit", {"fields": {"quantity": "many"}}),
            ("resume", {"edit": {"quantity": "many"}}),
            ("fork", {"edit": {"quantity": "many"}}),
            ("skip", {"node": "charge", "update": {"quantity": "many"}}),
        ):
            wrong = await operator.post(f"runs/r1/{verb}", body)
            assert wrong.status == 422, verb
            assert wrong.json["errors"][0]["path"] == "quantity", verb
        deep = await operator.post("runs/r1/edit", {"fields": {"prices": {"lamp": "x"}}})
        assert deep.json["errors"][0]["path"].startswith("prices")
        several = {"quantity": "many", "item": "desk", "colour": "red", "fails": 3}
        for verb, body in (
            ("edit", {"fields": several}),
            ("resume", {"edit": several}),
            ("fork", {"edit": several}),
        ):
            wrong = await operator.post(f"runs/r1/{verb}", body)
            assert [one["path"] for one in wrong.json["errors"]] == ["quantity", "colour", "fails"], verb

    operate(test)


def test_a_body_that_names_another_run_is_refused():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        other = await operator.post("runs/r1/resume", {"run_id": "r2"})
        assert (other.status, other.json["errors"][0]["path"]) == (422, "run_id")
        assert (await operator.post("runs/r1/resume", {"run_id": "r1"})).status == 202

    operate(test)


def test_headers_that_change_the_meaning_may_occur_once():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        for name in ("idempotency-key", "if-match", "prefer", "traceparent"):
            reply = await operator.send(
                "POST", "/api/v1/runs/r1/resume", headers=[(name, '"a"'), (name, '"b"')]
            )
            assert reply.status == 400
        for wrong in ("", "a b", "ä", "x" * 256, '""'):
            assert (await operator.post("runs/r1/resume", key=wrong)).status == 400

    operate(test)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("resume", {}),
        ("retry", {}),
        ("skip", {"node": "charge"}),
        ("cancel", {}),
        ("pause", {}),
        ("edit", {"fields": {"item": "x"}}),
        ("answer", {"question": "q", "answer": 1}),
        ("signal", {"name": "go"}),
        ("fork", {}),
    ],
)
def test_a_run_that_does_not_exist_or_is_over_is_reported(verb, body):
    async def test(engine, operator):
        missing = await operator.post(f"runs/none/{verb}", body)
        assert missing.status == 404, missing.body
        await run_order(engine, "r1")
        over = await operator.post(f"runs/r1/{verb}", body, key="k1")
        if verb == "fork":
            assert over.status == 201
        elif verb == "resume":  # nothing is left to do
            assert over.status == 202
        else:
            assert (over.status, over.json["type"]) == (409, "urn:holdfast:problem:run-over"), over.body

    operate(test)


# --- fork --------------------------------------------------------------------------------------------


def test_a_fork_answers_with_the_new_run_and_once_per_key():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        first = await operator.post("runs/r1/fork", {"edit": {"fails": False}, "reason": "again"}, key="k1")
        assert first.status == 201, first.body
        assert (first.json["parent"], first.json["state"]["fails"]) == ("r1", False)
        await operator.post("runs/r1/pause")
        await operator.post("runs/r1/signal", {"name": "go"})  # the parent moves on
        again = await operator.post("runs/r1/fork", {"edit": {"fails": False}, "reason": "again"}, key="k1")
        assert (again.status, again.json["id"]) == (201, first.json["id"])
        reused = await operator.post("runs/r1/fork", {"fresh": True}, key="k1")
        assert (reused.status, reused.json["type"]) == (422, "urn:holdfast:problem:key-reused")
        assert (await operator.post("runs", {"flow": "order"}, key="k1")).status == 422
        taken = await operator.post("runs/r1/fork", {"run_id": "r1"})
        assert taken.status == 409
        assert (await engine.resume(first.json["id"])).status == "completed"

    operate(test)


def test_a_fork_says_what_it_repeats_by_node():
    async def test(engine, operator):
        await run_order(engine, "r1")
        wrong = await operator.post("runs/r1/fork", {"repeat": {"chrge": "run"}})
        assert wrong.status == 400
        assert "charge" in wrong.json["detail"]
        assert (await operator.post("runs/r1/fork", {"repeat": "always"})).status == 422
        assert (await operator.post("runs/r1/fork", {"checkpoint": 9999})).status in (404, 409)
        early = await operator.post("runs/r1/fork", {"checkpoint": 1, "run_id": "f1", "labels": {"a": "b"}})
        assert (early.status, early.json["labels"]) == (201, {"a": "b"})

    operate(test)


# --- runs that cannot be read --------------------------------------------------------------------------


class Damaged(MemoryStore):
    """A store in which the log of one run is damaged."""

    def events(self, run_id, *args, **options):
        rows = super().events(run_id, *args, **options)
        if run_id != "bad":
            return rows
        return [msgspec.structs.replace(row, body=b"\x00damaged") for row in rows]


@pytest.mark.parametrize("verb", ["resume", "retry", "cancel", "pause", "fork"])
def test_a_damaged_run_is_reported_and_never_a_5xx(verb):
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "run_id": "ok"})
        await engine.start(flow, {}, run_id="bad")
        reply = await operator.post(f"runs/bad/{verb}", {})
        assert reply.status == 409, reply.body
        assert reply.json["remedy"]
        assert (await operator.run("ok"))["status"] == "pending"

    operate(test, store=Damaged())


def test_a_run_that_is_deleted_while_its_caller_waits_is_reported():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        waiting = asyncio.ensure_future(operator.post("runs/r1/resume", {"force": True}, wait=60))
        while not await engine.requests("r1"):  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.005)
        await engine.cancel("r1")
        assert (await waiting).status == 409
        assert not engine.store.upkeep.delete({"r1": engine.store.run("r1").seq})
        gone = await operator.post("runs/r1/resume", {}, wait=60)
        assert (gone.status, gone.json["type"]) == (404, "urn:holdfast:problem:run-not-found")

    operate(test)


def test_sixteen_retries_with_one_key_retry_once():
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "input": {"fails": True}, "run_id": "r1"})
        await reach(engine, "r1", "failed")
        replies = await asyncio.gather(
            *(operator.post("runs/r1/retry", {"node": "charge"}, key="k1", wait=30) for _ in range(16))
        )
        assert {reply.status for reply in replies} == {200}, replies[0].body
        assert len({reply.json["request"] for reply in replies}) == 1
        again = [one for one in await operator.events("r1", "NodeScheduled") if one["body"]["why"] == "retry"]
        assert len(again) == 1

    operate(test, works=True)


def test_the_same_key_for_another_run_is_refused():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        await run_order(engine, "r2", fails=True)
        assert (await operator.post("runs/r1/resume", {}, key="k1")).status == 202
        assert (await operator.post("runs/r2/resume", {}, key="k1")).status == 422
        assert (await operator.post("runs/r1/resume", {"reason": "other"}, key="k1")).status == 422
        assert (await operator.post("runs/r1/resume", {}, key="k1")).status == 202

    operate(test)


def test_one_key_that_comes_at_the_same_moment_for_several_runs_acts_on_one():
    async def test(engine, operator):
        for number in range(4):
            await run_order(engine, f"r{number}", fails=True)
        cancels = [operator.post(f"runs/r{number}/cancel", {}, key="k1") for number in range(4)]
        starts = [
            operator.post("runs", {"flow": "order", "run_id": f"s{number}"}, key="k2") for number in range(4)
        ]
        replies = [reply.status for reply in await asyncio.gather(*cancels, *starts)]
        assert sorted(replies[:4]) == [202, 422, 422, 422]
        assert sorted(replies[4:]) == [201, 422, 422, 422]

    operate(test)


def test_a_key_is_free_again_if_its_request_was_not_recorded():
    async def test(engine, operator):
        await run_order(engine, "r1", fails=True)
        assert (await operator.post("runs/r1/answer", {"question": "q", "answer": 1}, key="k1")).status == 422
        assert (await operator.post("runs/r9/cancel", {}, key="k1")).status == 404
        assert (await operator.post("runs/r1/cancel", {}, key="k1")).status == 202

    operate(test)


def test_an_edit_is_left_for_a_worker_if_the_flow_is_not_known_here():
    async def main():
        store = MemoryStore()
        async with hf.Engine(store, flows=[flow]) as other:
            await run_order(other, "r1", fails=True)
        async with operated(store=store, flows=()) as (engine, operator):
            left = await operator.post("runs/r1/edit", {"fields": {"quantity": "many"}}, key="k1")
            assert left.status == 202
            assert [one.verb for one in await engine.requests("r1")] == ["edit"]
            working = hf.Engine(store, flows=[flow])
            async with working:
                await working.work(until="idle")
            refused = await operator.post("runs/r1/edit", {"fields": {"quantity": "many"}}, key="k1", wait=30)
            assert (refused.status, refused.json["type"]) == (409, "urn:holdfast:problem:state-error"), (
                refused.body
            )

    asyncio.run(main())


def test_a_repeated_answer_does_not_answer_the_next_question_of_its_node():
    rounds = hf.Graph("rounds", dict)

    @rounds.node(approve="Again?")
    def turn(state):
        return {"turns": state.get("turns", 0) + 1}

    rounds.edge(hf.START, "turn")
    rounds.branch("turn", lambda state: "turn" if state["turns"] < 3 else hf.END, ["turn", hf.END])
    looping = rounds.compile()

    async def test(engine, operator):
        await engine.run(looping, {}, run_id="r1")
        body = {"question": "turn", "answer": "approve"}
        assert (await operator.post("runs/r1/answer", body, key="k1")).status == 202
        await engine.resume("r1")
        operator = Operator(asgi(engine, tokens=TOKENS))
        again = await operator.post("runs/r1/answer", body, key="k1")
        assert (again.status, again.json["run"]["repeated"]) == (202, True), again.body
        assert len(again.json["run"]["questions"]) == 1
        assert len(await operator.events("r1", "QuestionAnswered")) == 1

    operate(test, flows=(looping,))
