"""Which tests `make test` runs. A test of the engine that can run on several stores runs on one of them, and a test that has the
mark `rotating` runs with a quarter of its cases; everything else always runs.

The store of a test follows from its name alone, so it is the same in every run and a bisection is reliable. The quarter follows
from a printed seed, by default the date: `--rotation SEED` repeats it. `--stores all --rotation all` runs everything, and
`--left-out` only what `make test` leaves out, as `make prove` does.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

STORES = ("sqlite", "postgres", "memory")
ON_ONE_STORE = ("tests/runtime/", "tests/acceptance/")
"""Folders whose subject is the engine. It knows stores only by their contract, which every store passes in tests/storage."""

ON_EVERY_STORE = (
    "tests/acceptance/test_kill_everywhere.py",
    "tests/acceptance/test_many_requests.py",
    "tests/acceptance/test_rolling_deploy.py",
    "tests/acceptance/test_skewed_clocks.py",
    "tests/runtime/fleet/",
    "tests/runtime/upkeep/",
)
"""Tests among these whose subject is the store: leases, queues, retention, archives and backups."""

_STORE = re.compile(rf"(?<=[\[-])({'|'.join(STORES)})(?=[\]-])")
_QUARTER = 4


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection of tests")
    group.addoption(
        "--stores",
        choices=["one", "all"],
        default="one",
        help="one store for each test of the engine, or all",
    )
    group.addoption(
        "--rotation",
        metavar="SEED",
        default=None,
        help="chooses a quarter of rotating cases (default: the date); all: every case",
    )
    group.addoption("--left-out", action="store_true", help="run only the tests that are otherwise left out")


def draw_seed(config: pytest.Config) -> str:
    """Return the seed of the rotation: the one that was asked for, or the date."""
    if config.option.rotation is None:
        config.option.rotation = time.strftime("%Y-%m-%d", time.gmtime())
    return config.option.rotation


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the items that do not run off a list, or all others."""
    found = left_out(items, stores=config.option.stores, seed=draw_seed(config))
    runs = [item for item in items if (item in found) == config.option.left_out]
    config.hook.pytest_deselected(items=[item for item in items if (item in found) != config.option.left_out])
    items[:] = runs


def left_out(items: Sequence[pytest.Item], *, stores: str, seed: str) -> set[pytest.Item]:
    """Return the items that do not run."""
    found: set[pytest.Item] = set()
    if stores == "one":
        found |= _on_other_stores(items)
    if seed != "all":
        found |= _in_other_quarters((item for item in items if item.get_closest_marker("rotating")), seed)
    return found


def _on_other_stores(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return those items that exist on several stores and have another one than the one that their name chooses."""
    same: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        name = item.nodeid
        if (
            name.startswith(ON_ONE_STORE)
            and not name.startswith(ON_EVERY_STORE)
            and (store := _STORE.search(name))
        ):
            same[_STORE.sub("*", name, count=1)][store[1]] = item
    return {
        item
        for name, by_store in same.items()
        for store, item in by_store.items()
        if store != choose_store(name, by_store)
    }


def choose_store(name: str, stores: Iterable[str]) -> str:
    """Return the store of a test: a third of them each, or SQLite where a test does not run on the store that is chosen."""
    known = set(stores)
    chosen = STORES[_hash(name) % len(STORES)]
    return chosen if chosen in known else min(known, key=STORES.index)


def _in_other_quarters(items: Iterable[pytest.Item], seed: str) -> set[pytest.Item]:
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    drawn = (sorted(some, key=lambda item: _hash(f"{seed} {item.nodeid}")) for some in cases.values())
    return {item for some in drawn for item in some[-(-len(some) // _QUARTER) :]}


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
