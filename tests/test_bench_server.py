"""The part of the benchmark that measures the server does what it says, in a small form."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from bench import http_load, raw, report
from bench.parts import QUICK, Bench
from bench.server import (
    Size,
    _few_runs,
    _filters,
    _memory,
    _questions,
    _rates,
    _slow_read,
    _url,
    fill,
    filters,
)
from bench.server_process import bare_server, holdfast_server
from bench.stores import Place

from holdfast.reading.reader import Reader
from holdfast.server.runs import RunsQuery
from holdfast.storage.contract import Query

RUNS = 120
SIZE = Size(runs=RUNS, requests=60, flat=300)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place("sqlite", tmp_path_factory.mktemp("served"), synced=False)
    fill(made, RUNS, 5)
    asyncio.run(_few_runs(made, large_nodes=20))
    return made


def test_the_runs_of_the_benchmark_are_listed_like_those_of_an_engine(place: Place) -> None:
    store = place.open()
    page = Reader(store).page(Query(limit=RUNS + 10))
    store.close()
    told = {one.row.status: one.found.reason for one in page.runs}
    assert len(page.runs) == RUNS + 3
    assert set(told) == {"completed", "failed", "waiting", "running", "pending", "cancelled"}
    assert "the card was declined" in told["failed"]


def test_every_filter_of_the_route_is_measured() -> None:
    measured = {part.partition("=")[0] for query in filters(RUNS, 0.0).values() for part in query.split("&")}
    assert set(RunsQuery.__struct_fields__) - {"cursor", "limit"} <= measured


def test_the_server_is_measured(place: Place) -> None:
    with holdfast_server(_url(place)) as serving:
        assert _filters(serving, SIZE, 5, 0.0).median < 1000
        assert _questions(serving, SIZE, 5).values
        assert _slow_read(serving, SIZE).values
        bench = Bench(
            place.folder, raw.SqliteCommits(place.folder), report.Progress(), replace(QUICK, rounds=1)
        )
        rates = _rates(bench, serving, SIZE)
        assert all(figure.median > 0 for figure in rates)
        assert [figure.beside["bytes"][0] == 0 for figure in rates] == [False, True, False, False]
        assert _memory(bench, serving, SIZE).median < 20


def test_an_answer_is_read_to_its_end_whatever_pieces_it_comes_in() -> None:
    with bare_server(300_000) as bare:
        load = http_load.send(bare.port, [http_load.get(bare.port, "/bare")], count=40, connections=3)
    assert (load.count, load.size, dict(load.statuses)) == (40, 300_000, {200: 40})
    assert len(load.took_ms) == 40


def test_a_server_that_closes_a_connection_is_an_error(tmp_path: Path) -> None:
    with bare_server(10) as bare, pytest.raises(ConnectionError):
        http_load.send(bare.port, [b"GET http://evil/ HTTP/1.1\r\n\r\n"], count=4, connections=1)
