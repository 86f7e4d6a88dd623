"""The part of the benchmark that asks many runs does what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import asking
from bench.stores import Place

from holdfast.reading.reader import Reader
from holdfast.storage.urls import open_store


def test_every_failed_run_of_the_benchmark_gets_one_request_from_the_command_and_one_alone(
    tmp_path: Path,
) -> None:
    place, url, runs = Place("sqlite", tmp_path), str(tmp_path / "store.db"), 20
    asyncio.run(asking._fail(url, runs))
    assert asking._one_command(place, url) > 0
    assert asking._one_command(place, url) > 0
    assert asyncio.run(asking._singly(url, runs)) > 0
    store = open_store(url)
    for number in range(runs):
        assert store.run(f"r{number}").status == "failed"
        assert [one.verb for one in Reader(store).requests(f"r{number}")] == ["resume", "resume"]
    store.close()
