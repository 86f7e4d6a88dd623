"""A store with very many runs: what the board, the doctor and a prune cost there.

`python -m bench.million` makes a store of a million runs in the current folder, which takes minutes and 700 MB, measures, and
removes it. CPU time counts, because it says the same on a busy machine. A prune deletes the oldest tenth of the runs that
are over.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.listings import fill
from bench.stores import Place
from holdfast.reading import attention
from holdfast.storage.contract import Store
from holdfast.upkeep import doctor, retention
from holdfast.upkeep.retention import RetentionPolicy

_APART_S = 0.5


class Measured(NamedTuple):
    """How long something took, and its result."""

    name: str
    wall_s: float
    cpu_s: float
    result: str


def measure(place: Place, count: int) -> list[Measured]:
    """Fill a store with this many runs, and measure what `bench.million` is about."""
    store = place.open()
    try:
        fill(store, count)
        return [
            _timed("the board", lambda: f"{sum(store.queues.board().counts.values()):,} runs"),
            _timed("runs that need attention", lambda: str(attention.count(store, store.queues.board(), {}))),
            _timed("doctor", lambda: f"{len(_examine(store)):,} findings"),
            _timed("prune", lambda: _prune(store, count)),
        ]
    finally:
        store.close()


def _timed(name: str, work: Callable[[], str]) -> Measured:
    began, cpu_began = time.perf_counter(), time.process_time()
    result = work()
    return Measured(name, time.perf_counter() - began, time.process_time() - cpu_began, result)


def _examine(store: Store) -> list[Any]:
    """Do what `holdfast doctor` does."""
    found = doctor.examine(store, None, store.now())
    return [*found, *doctor.verify_sample(store, time.time, known=found).damaged]


def _prune(store: Store, count: int) -> str:
    policy = RetentionPolicy(older_than=count * 0.9 * _APART_S)
    deleted = kept = 0
    for choices in retention.delete_all(store, retention.choose(store, [policy])):
        deleted += sum(choice.goes for choice in choices)
        kept += sum(not choice.goes for choice in choices)
    retention.sweep(store)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{deleted:,} runs deleted, {kept:,} kept; {peak:.0f} MB at most, in all"


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.million", description=main.__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.folder) as name:
        for one in measure(Place("sqlite", Path(name)), asked.runs):
            print(f"{one.name:25} {one.wall_s:9.3f} s, {one.cpu_s:9.3f} s of CPU; {one.result}")


if __name__ == "__main__":
    main()
