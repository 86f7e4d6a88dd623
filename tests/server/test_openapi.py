"""The OpenAPI document is valid, and the server keeps it: random requests get answers that fit their schema, and no 5xx.

`make prove` sends thousands of them; here there are a few for every operation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import openapi_spec_validator
import pytest
from served_flows import opened
from storms import MODES, OPERATIONS, send_random, served

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "4"))


def test_the_document_is_valid():
    async def main() -> None:
        async with opened() as (_, caller):
            openapi_spec_validator.validate((await caller.get("/api/v1/openapi.json")).json)

    asyncio.run(main())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_answer_fits_its_schema(url, operation, mode):
    send_random(url, operation, mode, examples=EXAMPLES, chosen=18)
