"""Storms of requests: random ones made from the OpenAPI document, and the same key many times at once.

`make test` runs them in a small form, `make prove` at full size.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import schemathesis
from app_client import SECRET, TOKENS, Reply
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi import checks
from served_flows import flow, run_order
from served_plans import ORDER, shop
from verb_calls import Operator, operated

import holdfast as hf
from holdfast.server import connection
from holdfast.server.asgi import Application, asgi
from holdfast.server.openapi import document
from holdfast.server.table import ROUTES
from holdfast.storage.contract import Query
from holdfast.storage.memory.store import MemoryStore

CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(msgspec.json.decode(document(ROUTES)))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
MODES = list(schemathesis.GenerationMode)
AT_ONCE = 16

# --- random requests ---------------------------------------------------------------------------------


class Hasty:
    """A clock that runs a hundred times as fast, because some of the random requests wait for a minute."""

    def now(self) -> float:
        return time.monotonic() * 100

    def call_at(self, at: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, at - self.now()) / 100, call)


async def end_streams(app: Application) -> None:
    """End every stream soon, because the caller reads answers to their end."""
    while True:
        await asyncio.sleep(0.02)
        for stream in app.backend.streams._open:
            stream.end()


@contextmanager
def served() -> Iterator[str]:
    """Serve a few runs in a thread of its own, and yield the address."""
    ready, hosts = threading.Event(), []
    listening = connection.listen("127.0.0.1", 0)

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow, shop]) as engine:
            await engine.run(shop.plan(ORDER), run_id="a0")
            for run_id, input in {
                "0": {},
                "A": {"fails": True},
                "a": {"asks": True},
                "00": {"parts": [1, 13]},
            }.items():
                await run_order(engine, run_id, **input)
            app = asgi(engine, tokens=TOKENS, clock=Hasty())
            hosts.append(connection.Host(app, listening))
            ready.set()
            ending = asyncio.ensure_future(end_streams(app))
            await hosts[0].host()
            ending.cancel()
            app.stop()

    thread = threading.Thread(target=connection.run, args=(main,))
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        hosts[0].stop()
        thread.join(30)


def send_random(
    url: str, operation: Any, mode: Any, *, examples: int, chosen: int, seen: Counter[int] | None = None
) -> None:
    """Send random requests of one operation; `chosen` is the seed. A 5xx, or an answer that does not fit its schema, raises."""
    counted = Counter[int]() if seen is None else seen

    @seed(chosen)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer admin.{SECRET}"})
        counted[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
        check()


def random_requests(wanted: int, chosen: int) -> dict[str, Any]:
    """Send so many random requests to all operations, in rounds. Returns how many, by status, and what was wrong."""
    seen: Counter[int] = Counter()
    violations: dict[str, str] = {}
    with served() as url:
        for number in range(1000):
            for operation in OPERATIONS:
                for mode in MODES:
                    if sum(seen.values()) >= wanted and number:
                        break
                    try:
                        send_random(url, operation, mode, examples=12, chosen=chosen + number, seen=seen)
                    except BaseException as fault:
                        if isinstance(fault, KeyboardInterrupt):
                            raise
                        violations[f"{mode.value} {operation.label}"] = str(fault)[:500]
            if sum(seen.values()) >= wanted:
                break
    return {
        "requests": sum(seen.values()),
        "operations": len(OPERATIONS),
        "statuses": dict(sorted(seen.items())),
        "violations": [f"{name}: {what}" for name, what in violations.items()],
    }


# --- the same key, at once ---------------------------------------------------------------------------

VERBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "answer": ({"asks": True}, {"question": "ship", "answer": "approve"}),
    "signal": ({"asks": True}, {"name": "paid", "payload": 1}),
    "pause": ({"asks": True}, {}),
    "cancel": ({"asks": True}, {"reason": "no stock"}),
    "retry": ({"fails": True}, {}),
    "resume": ({"fails": True}, {}),
    "edit": ({"fails": True}, {"fields": {"item": "chair"}}),
    "fork": ({}, {}),
    "start": ({}, {"flow": "order", "input": {"item": "chair"}}),
}
"""Verb -> the input of the run that it is sent to, and the body."""
NEW_RUN = ("start", "fork")


async def same_key(operator: Operator, engine: hf.Engine, verb: str, run_id: str) -> list[str]:
    """Send a verb with one key many times at once, and return what is wrong: it must act once."""
    path = "runs" if verb == "start" else f"runs/{run_id}/{verb}"
    body, key = VERBS[verb][1], f"key-{run_id}"
    known = _run_ids(engine)
    replies = await asyncio.gather(*(operator.post(path, body, key=key) for _ in range(AT_ONCE)))
    wrong = [] if _acted_once(verb, replies) else [f"{verb} {run_id}: {[_brief(one) for one in replies]}"]
    left = [one.id for one in engine.store.inbox(run_id=run_id) if one.id.endswith(f":{key}")]
    made = _run_ids(engine) - known
    if (len(made), len(left)) != ((1, 0) if verb in NEW_RUN else (0, 1)):
        wrong.append(f"{verb} {run_id}: runs made: {made}, requests left: {left}")
    other = {"flow": "order"} if verb == "start" else {**body, "reason": "another one"}
    changed = await operator.post(path, other, key=key)
    if changed.status != 422 or not changed.json["type"].endswith(":key-reused"):
        wrong.append(f"{verb} {run_id}: the same key with another body: {_brief(changed)}")
    return wrong


def _run_ids(engine: hf.Engine) -> set[str]:
    return {row.run_id for row in engine.store.runs(Query(limit=10**6))}


def _acted_once(verb: str, replies: list[Reply]) -> bool:
    statuses = Counter(one.status for one in replies)
    if verb in NEW_RUN:  # a start that was made before is answered with 200, a fork as it was answered first
        first = statuses[201] == 1 if verb == "start" else statuses[201] >= 1
        return first and set(statuses) <= {200, 201} and len({one.json["id"] for one in replies}) == 1
    return set(statuses) == {202} and sum(not one.json["run"]["repeated"] for one in replies) == 1


def _brief(reply: Reply) -> tuple[int, bytes]:
    return reply.status, reply.body[:200]


async def same_keys(rounds: int, folder: Path) -> dict[str, Any]:
    """Send every verb with one key many times at once, to so many runs, on SQLite."""
    wrong: list[str] = []
    async with operated(store=str(folder / "runs.db")) as (engine, operator):
        for number in range(rounds):
            for verb, (input, _) in VERBS.items():
                run_id = f"{verb}{number}"
                await run_order(engine, run_id, **input)
                wrong += await same_key(operator, engine, verb, run_id)
    return {"runs": rounds * len(VERBS), "requests": rounds * len(VERBS) * (AT_ONCE + 1), "violations": wrong}
