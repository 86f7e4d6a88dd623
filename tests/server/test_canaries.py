"""Secrets appear in no log, answer or metric, wherever a client puts them."""

from __future__ import annotations

import asyncio
import logging

from app_client import SECRET, TOKENS, Caller, make_token
from served_flows import flow
from verb_calls import Operator

import holdfast as hf
from holdfast.server.asgi import asgi
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.tokens import digest_of

CANARY = "CANARY0123456789abcdefCANARY"


class Broken(MemoryStore):
    """A store whose reads fail, with a message that nobody outside may see."""

    def run(self, run_id):
        raise ZeroDivisionError(f"{CANARY} {run_id}")


def test_a_canary_is_in_no_answer_log_or_metric(caplog):
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
            app = asgi(engine, tokens=[*TOKENS, make_token(token_id="t9", digest=digest_of(CANARY))])
            caller = Caller(app)
            answers = [
                await caller.get("/api/v1/meta", token=f"t9.{CANARY}"),
                await caller.get("/api/v1/meta", token=f"t8.{CANARY}"),
                await caller.get("/api/v1/meta", token=CANARY),
                await caller.get("/api/v1/meta", token=None, headers={"authorization": f"Basic {CANARY}"}),
                await caller.get(f"/api/v1/runs?token={CANARY}"),
                await caller.get(f"/api/v1/runs?limit={CANARY}"),
                await caller.get("/api/v1/meta", headers={"origin": f"http://{CANARY}"}),
                await caller.get("/api/v1/meta", host=CANARY),
                await caller.get("/api/v1/meta", headers={"cookie": CANARY}),
                await caller.get(f"/{CANARY}"),
                await caller.send("POST", "/api/v1/runs", body=CANARY.encode()),
                await caller.get("/metrics"),
            ]
            assert {answer.status for answer in answers} == {200, 400, 401, 403, 404, 415, 421}
            for answer in answers:
                assert CANARY.encode() not in answer.body
                assert CANARY not in str(answer.headers)
                assert SECRET.encode() not in answer.body
            app.stop()

    asyncio.run(main())
    assert CANARY not in caplog.text
    assert SECRET not in caplog.text


def test_the_secret_of_a_new_token_is_in_one_answer_and_nowhere_else(caplog, tmp_path):
    caplog.set_level(logging.DEBUG)

    async def main() -> str:
        async with hf.Engine(tmp_path / "runs.db", flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS)
            operator = Operator(app)
            made = await operator.post("tokens", {"name": "bob", "role": "operate"}, key="k1")
            secret = made.json["token"].partition(".")[2]
            others = [
                await operator.post("tokens", {"name": "bob", "role": "operate"}, key="k1"),
                await operator.post("runs", {"flow": "order", "run_id": "r1"}, token=made.json["token"]),
                await operator.post("runs/r1/pause", {"by": "eve"}, token=made.json["token"]),
                await operator.post("runs/r1/pause", {}, token=made.json["token"]),
                await operator.get("/api/v1/runs/r1/events", token=made.json["token"]),
                await operator.get("/api/v1/tokens"),
                await operator.get("/metrics"),
            ]
            assert [reply.status for reply in others] == [409, 201, 422, 202, 200, 200, 200]
            assert not [
                reply for reply in others if secret.encode() in reply.body + str(reply.headers).encode()
            ]
            app.stop()
            return secret

    secret = asyncio.run(main())
    assert secret not in caplog.text
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_the_text_of_a_defect_is_not_sent():
    async def main() -> None:
        async with hf.Engine(Broken(), flows=[flow]) as engine:
            app = asgi(engine, tokens=TOKENS)
            answer = await Caller(app).get("/api/v1/runs/r1")
            assert answer.status == 500
            assert CANARY.encode() not in answer.body
            app.stop()

    asyncio.run(main())
