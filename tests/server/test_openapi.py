"""The OpenAPI document is valid, and the server keeps it: random requests get answers that fit their schema, and no 5xx."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import openapi_spec_validator
import pytest
import schemathesis
from app_client import SECRET, TOKENS
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi import checks
from served_flows import flow, opened, run_order

import holdfast as hf
from holdfast.server import connection
from holdfast.server.asgi import Application, asgi
from holdfast.server.openapi import document
from holdfast.server.table import ROUTES
from holdfast.storage.memory.store import MemoryStore

CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "12"))
SCHEMA = schemathesis.openapi.from_dict(msgspec.json.decode(document(ROUTES)))


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


def test_the_document_is_valid():
    async def main() -> None:
        async with opened() as (_, caller):
            openapi_spec_validator.validate((await caller.get("/api/v1/openapi.json")).json)

    asyncio.run(main())


def test_the_document_says_what_fields_and_parameters_mean():
    found = msgspec.json.decode(document(ROUTES))
    schemas = found["components"]["schemas"]
    assert schemas["HolderSpan"]["properties"]["end"]["description"].startswith(
        "`released`: the run had ended"
    )
    inherited = schemas["RunEntry"]["properties"]["due_at"]["description"]
    assert inherited.startswith("The earliest time at which the run continues by itself")
    parameters = found["paths"]["/api/v1/runs/{id}/timeline"]["get"]["parameters"]
    described = {one["name"]: one["schema"].get("description") for one in parameters}
    assert described["from"] == "Leave out what ended before this time."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server with a few runs, in a thread of its own."""
    ready, hosts = threading.Event(), []
    listening = connection.listen("127.0.0.1", 0)

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow]) as engine:
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
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    hosts[0].stop()
    thread.join(30)


@pytest.mark.parametrize(
    "operation", [found.ok() for found in SCHEMA.get_all_operations()], ids=lambda one: one.label
)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_every_answer_fits_its_schema(url, operation, mode):
    @seed(18)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer admin.{SECRET}"})
        case.validate_response(answer, checks=CHECKS)

    with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
        check()
