"""Which answers are sent compressed, and to which clients."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from served_flows import flow, opened

from holdfast.server import compression
from holdfast.server.calls import Answer

LONG = Answer(body=b"x" * compression.BYTES_MIN, headers={"ETag": '"7"'})


@pytest.mark.parametrize(
    ("accepted", "is_sent_so"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip; q=1", True), ("*", False), ("", False), ("gzip;q=0", False),
     ("gzip;q=0.0", False), ("identity", False), ("x-gzip-2", False)],
)  # fmt: skip
def test_a_client_gets_what_it_accepts(accepted, is_sent_so):
    assert compression.is_compressible(LONG, {"accept-encoding": accepted}) is is_sent_so


def test_what_is_short_a_file_or_compressed_already_is_sent_as_it_is():
    for answer in (
        Answer(body=b"{}"),
        Answer(),
        Answer(body=LONG.body, headers={"Content-Encoding": "gzip"}),
    ):
        assert not compression.is_compressible(answer, {"accept-encoding": "gzip"})


def test_a_compressed_answer_has_a_weak_tag_by_which_it_is_still_known():
    sent = compression.compress(LONG)
    assert gzip.decompress(sent.body) == LONG.body
    assert sent.headers == {"ETag": 'W/"7"', "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}


def test_a_long_answer_is_sent_compressed():
    async def main() -> None:
        async with opened() as (engine, caller):
            for number in range(10):
                await engine.start(flow, {}, run_id=f"r{number}")
            plain = await caller.get("/api/v1/runs")
            sent = await caller.get("/api/v1/runs", headers={"accept-encoding": "gzip, deflate, br"})
            assert "content-encoding" not in plain.headers
            assert sent.headers["content-encoding"] == "gzip"
            rows = [json.loads(text)["runs"] for text in (plain.body, gzip.decompress(sent.body))]
            assert [[row["id"] for row in page] for page in rows] == [
                [f"r{n}" for n in reversed(range(10))]
            ] * 2

    asyncio.run(main())
