"""The part of the benchmark that measures a fleet does what it says."""

from __future__ import annotations

from pathlib import Path

from bench import fleet
from bench.fleet_worker import claimed_flow
from bench.stores import Place

import holdfast as hf
from holdfast.testing import check


def test_the_pending_runs_of_the_benchmark_are_what_a_worker_takes_and_completes(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    store = place.open()
    fleet._record(store, 0, 3)
    fleet._record(store, 3, 5)
    assert fleet._claim_us(store, count=4) > 0
    store.close()
    run = hf.resume("r0000004", store=fleet._url(place), flows=[claimed_flow()])
    assert run.status == "completed"
    assert check(fleet._url(place)) == []
