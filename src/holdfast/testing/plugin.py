"""The pytest plugin: fixtures for tests of flows. It is there as soon as Holdfast is installed; nothing needs to be named.

    def test_a_crash_makes_no_difference(crash_everywhere):
        crash_everywhere(flow, Order(12))

The fixtures are `manual_clock`, `holdfast_store`, `holdfast_engine` and `crash_everywhere`; the marker `holdfast` chooses what
they are. It owns no logic of its own. Invariant: importing it costs next to nothing, since every pytest run in the environment
does; what a fixture needs is imported when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.runtime.engine import Engine
    from holdfast.storage.contract import Store
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crashing import Report

_MARKER = (
    "holdfast(store='memory', auto=True, check=True): what the fixtures of Holdfast are in this test: a store in 'memory' or a "
    "'sqlite' file, a clock that jumps over waits by itself or stands still, and whether the store is checked at the end"
)
_OPTIONS = {"store": "memory", "auto": True, "check": True}


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the nearest marker says, and the rest by default."""
    marker = request.node.get_closest_marker("holdfast")
    given = dict(marker.kwargs) if marker is not None else {}
    unknown = [name for name in given if name not in _OPTIONS]
    if (
        unknown
        or (marker is not None and marker.args)
        or given.get("store", "memory") not in ("memory", "sqlite")
    ):
        raise pytest.UsageError(f"@pytest.mark.holdfast does not take {marker!r}; it is {_MARKER}")
    return {**_OPTIONS, **given}


@pytest.fixture
def manual_clock(request: pytest.FixtureRequest) -> ManualClock:
    """A clock that the test owns. It jumps over waits by itself, unless the marker says `auto=False`."""
    from holdfast.testing.clock import ManualClock

    return ManualClock(auto=_options(request)["auto"])


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, manual_clock: ManualClock) -> Iterator[Store]:
    """A store of the test's own, on its clock. What is in it at the end is checked: see `holdfast.testing.check`."""
    from holdfast.testing.checker import check

    options = _options(request)
    if options["store"] == "memory":
        from holdfast.storage.memory.store import MemoryStore

        store: Store = MemoryStore(clock=manual_clock.now)
    else:
        from holdfast.storage.sqlite.store import SqliteStore

        store = SqliteStore(request.getfixturevalue("tmp_path") / "runs.db", clock=manual_clock.now)
    yield store
    violations = check(store) if options["check"] else []
    store.close()
    if violations:
        pytest.fail(
            "the store does not hold what it may hold:\n" + "\n".join(map(str, violations)), pytrace=False
        )


@pytest.fixture
def holdfast_engine(holdfast_store: Store, manual_clock: ManualClock) -> Callable[..., Engine]:
    """Makes engines on the test's store and clock that do everything on one thread, for `async with`. A plain `def` node that
    waits by its context needs `inline=False`.
    """

    def engine(*flows: Any, **options: Any) -> Engine:
        import random

        from holdfast.runtime.engine import Engine

        chosen = {"clock": manual_clock, "luck": random.Random(0), "inline": True, **options}
        return Engine(holdfast_store, flows=flows, **chosen)

    return engine


@pytest.fixture
def crash_everywhere() -> Callable[..., Report]:
    """Crashes a flow everywhere and fails the test when that makes a difference. With `check=False` it only reports."""

    def crash(*args: Any, check: bool = True, **options: Any) -> Report:
        from holdfast.testing.crashing import crash_everywhere as crash_flow

        report = crash_flow(*args, **options)
        if check and not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return crash
