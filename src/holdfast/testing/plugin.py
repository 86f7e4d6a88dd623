"""The pytest plugin: fixtures for tests of flows. pytest loads it when Holdfast is installed; no setting is needed.

    def test_a_crash_makes_no_difference(crash_everywhere):
        crash_everywhere(flow, Order(12))

The fixtures are `manual_clock`, `holdfast_store`, `holdfast_engine` and `crash_everywhere`; the marker `holdfast` sets their
options. The plugin has no logic of its own. Invariant: importing it costs next to nothing, because every pytest run in the
environment imports it; a fixture imports what it needs when a test uses it.
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
    "holdfast(store='memory', auto=True, check=True): options of the Holdfast fixtures in this test: a store in 'memory' or a "
    "'sqlite' file, a clock that jumps over waits by itself (auto) or only when advanced, and a check of the store at the end"
)
_OPTIONS = {"store": "memory", "auto": True, "check": True}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of the nearest `holdfast` marker, completed with the defaults."""
    marker = request.node.get_closest_marker("holdfast")
    given = dict(marker.kwargs) if marker is not None else {}
    unknown = [name for name in given if name not in _OPTIONS]
    if (
        unknown
        or (marker is not None and marker.args)
        or given.get("store", "memory") not in ("memory", "sqlite")
    ):
        raise pytest.UsageError(f"@pytest.mark.holdfast does not accept {marker!r}. Use {_MARKER}")
    return {**_OPTIONS, **given}


@pytest.fixture
def manual_clock(request: pytest.FixtureRequest) -> ManualClock:
    """A clock that the test controls. It jumps over waits by itself, unless the marker has `auto=False`."""
    from holdfast.testing.clock import ManualClock

    return ManualClock(auto=_options(request)["auto"])


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, manual_clock: ManualClock) -> Iterator[Store]:
    """A new store for this test, on its manual clock. After the test, `holdfast.testing.check` checks it."""
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
            "holdfast.testing.check found violations in the store of this test:\n"
            + "\n".join(map(str, violations)),
            pytrace=False,
        )


@pytest.fixture
def holdfast_engine(holdfast_store: Store, manual_clock: ManualClock) -> Callable[..., Engine]:
    """A factory of engines that use the store and the clock of the test, for `async with`. The engines run everything on one
    thread; a plain `def` node that waits through its context needs `inline=False`.
    """

    def engine(*flows: Any, **options: Any) -> Engine:
        import random

        from holdfast.runtime.engine import Engine

        chosen = {"clock": manual_clock, "luck": random.Random(0), "inline": True, **options}
        return Engine(holdfast_store, flows=flows, **chosen)

    return engine


@pytest.fixture
def crash_everywhere() -> Callable[..., Report]:
    """Crash a flow at every durable write, and fail the test if a crash changes the result. If it is called with `check=False`,
    it only returns the report.
    """

    def crash(*args: Any, check: bool = True, **options: Any) -> Report:
        from holdfast.testing.crashing import crash_everywhere as crash_flow

        report = crash_flow(*args, **options)
        if check and not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return crash
