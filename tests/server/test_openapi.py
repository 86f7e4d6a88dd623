"""The OpenAPI document is valid, and the server keeps it: random requests get answers that fit their schema, and no 5xx.

`make prove` sends thousands of them; here there are a few for every operation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import msgspec
import openapi_spec_validator
import pytest
from served_flows import opened
from storms import MODES, OPERATIONS, send_random, served

from holdfast.server.openapi import document
from holdfast.server.table import ROUTES

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "4"))


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
    with served() as address:
        yield address


# Hypothesis counts the references of a generator that schemathesis registers; Python 3.14 counts fewer.
@pytest.mark.filterwarnings("ignore:It looks like `register_random` was passed an object")
@pytest.mark.rotating
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_answer_fits_its_schema(url, operation, mode):
    send_random(url, operation, mode, examples=EXAMPLES, chosen=18)
