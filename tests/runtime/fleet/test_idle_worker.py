"""What a worker that has nothing to do asks of its database, counted where it is executed: by SQLite itself, and by the log of a
PostgreSQL server. The clock is the test's, so that a minute passes at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import PATIENCE_S, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.contract import Store
from holdfast.storage.leases import this_process
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from postgres_server import PostgresServer

MINUTE_S = 60.0
RENEWALS = 6
"""Of a lease of 30 s, in a minute: the thread that renews goes by a clock of its own, so they are made here."""

Asked = Callable[[], list[str]]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[tuple[str, Asked]]:
    asked: list[str] = []

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda statement: asked.append(statement["sql"]))

    apsw.connection_hooks.append(hook)
    yield str(tmp_path / "runs.db"), lambda: list(asked)
    apsw.connection_hooks.remove(hook)


@pytest.fixture(scope="module")
def talkative() -> Iterator[PostgresServer]:
    """A server that tells every statement it executes, those around a transaction included."""
    server = PostgresServer(log_statement="all", log_min_messages="log")
    yield server
    server.remove()


@pytest.fixture
def postgres(talkative: PostgresServer) -> tuple[str, Asked]:
    def asked() -> list[str]:
        said = (talkative.folder / "log").read_text(errors="replace")
        return re.findall(r"LOG:\s+(?:statement|execute [^:]*): (.*)", said)

    return talkative.url(), asked


def never_needed() -> Flow[Any]:
    graph = Graph("never", dict)

    @graph.node
    async def begin(state: dict[str, Any]) -> None: ...

    return graph.chain(START, begin, END).compile()


async def idle_minute(url: str, asked: Asked) -> list[str]:
    """What is asked within a minute, from one look of a worker at rest to another."""
    clock = ManualClock()

    async def rests() -> None:
        """Wait until it has nothing to do. It takes a breath where it has heard something that was not for it."""
        while True:
            await until(lambda: clock.next_at is not None)
            if (clock.next_at or 0.0) >= clock.now() + 0.5:
                return
            clock.advance_to_next()
            await asyncio.sleep(0)

    store: Store = open_store(url, clock=clock.now)
    holder = this_process(engine_id="idle")
    async with hf.Engine(store, flows=[never_needed()], clock=clock, lease_ttl=30) as engine:
        working = asyncio.create_task(engine.work())
        for _ in range(3):  # what is new to it is heard, and taken for news
            await rests()
            clock.advance_to_next()
        await rests()
        before, ends_at = len(asked()), clock.now() + MINUTE_S
        while clock.now() < ends_at:
            clock.advance_to_next()
            await rests()
        for _ in range(RENEWALS):
            store.renew(holder)
        found = asked()[before:]
        engine.stop()
        await working
    store.close()
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_idle_worker_asks_less_than_once_a_second(kind: str, request: pytest.FixtureRequest) -> None:
    url, asked = request.getfixturevalue(kind)
    found = asyncio.run(asyncio.wait_for(idle_minute(url, asked), 3 * PATIENCE_S))
    assert 0 < len(found) <= MINUTE_S, "\n".join(found)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_renewal_is_one_statement_and_once_an_hour_the_forgotten_go(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url, asked = request.getfixturevalue(kind)
    clock = ManualClock()
    with_clock = open_store(url, clock=clock.now)
    holder = this_process(engine_id="renews")
    try:
        with_clock.renew(holder)
        before = len(asked())
        for _ in range(5):
            clock.advance(10.0)
            with_clock.renew(holder)
        # SQLite also tells of the look at the version that is a part of the statement.
        once = [statement for statement in asked()[before:] if statement != "PRAGMA user_version"]
        assert len(once) == 5, "\n".join(once)
        clock.advance(3600.0)
        before = len(asked())
        with_clock.renew(holder)
        assert any("delete from" in statement for statement in asked()[before:])
    finally:
        with_clock.close()
