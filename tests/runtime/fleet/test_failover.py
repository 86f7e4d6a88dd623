"""A worker whose server becomes a replica, as the old primary of a failover does, goes on when it takes writes again. A real
server, and a clock of the test's: nobody waits for the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import StoreReadOnly
from holdfast.storage.contract import Holder, Request
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.testing.appends import Log
from holdfast.testing.clock import ManualClock
from postgres_server import PostgresServer

PATIENCE_S = 110.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    own = PostgresServer()
    yield own
    own.remove()


def become_a_replica(server: PostgresServer) -> None:
    server.stop()
    (server.folder / "data" / "standby.signal").touch()
    server.start()


def be_promoted(server: PostgresServer) -> None:
    server.execute("select pg_promote()")


def become_read_only(server: PostgresServer) -> None:
    server.execute("alter system set default_transaction_read_only = on", "select pg_reload_conf()")


def take_writes(server: PostgresServer) -> None:
    server.execute("alter system reset default_transaction_read_only", "select pg_reload_conf()")


def until_heard(store: Any) -> None:
    """A session takes up a changed setting when it comes to it: wait until the one that writes has."""
    writer = store._database._writer.connection
    while writer.execute("show default_transaction_read_only").fetchone() == ("off",):
        pass


FAILOVERS = [
    pytest.param(become_a_replica, be_promoted, id="replica"),
    pytest.param(become_read_only, take_writes, id="read only"),
]


def flow_of(body: Callable[..., Any]) -> Flow[Any]:
    graph = Graph("one", dict)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


async def trying(engine: hf.Engine, clock: ManualClock, condition: Callable[[], Any]) -> None:
    """Until this holds: time jumps to whatever is due next, when the engine has read what it was about to read."""
    while not condition():
        await engine._open().reading.call(bool)
        clock.advance_to_next()
        await asyncio.sleep(0)


@pytest.mark.parametrize(("away", "back"), FAILOVERS)
def test_a_worker_goes_on_when_its_server_takes_writes_again_and_says_once_that_it_did_not(
    server: PostgresServer, away: Any, back: Any
) -> None:
    async def naps(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.sleep(50)

    flow, clock = flow_of(naps), ManualClock()
    told: list[str] = []
    ended: list[str] = []

    def said() -> int:
        return sum("accepts no writes; the worker tries again" in each for each in told)

    async def main() -> None:
        url = server.url(schema=f"failover_{away.__name__}")
        async with hf.Engine(url, flows=[flow], clock=clock) as engine:
            await engine.start(flow, {}, run_id="r")
            working = asyncio.create_task(
                engine.work(
                    on_report=lambda trouble: told.append(trouble.message),
                    on_end=lambda run: ended.append(run.status),
                )
            )
            await trying(engine, clock, lambda: ended == ["waiting"])
            await asyncio.to_thread(away, server)
            await trying(engine, clock, lambda: working.done() or said())
            began = clock.now()
            await trying(engine, clock, lambda: working.done() or clock.now() > began + 200)
            assert not working.done(), "it was ended for good"
            await asyncio.to_thread(back, server)
            await trying(engine, clock, lambda: working.done() or ended == ["waiting", "completed"])
            engine.stop()
            await working

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert (ended, said()) == (["waiting", "completed"], 1), told


@pytest.mark.parametrize(("away", "back"), FAILOVERS)
def test_what_a_node_did_while_its_server_took_no_writes_is_recorded_and_not_done_again(
    server: PostgresServer, away: Any, back: Any
) -> None:
    done: list[int] = []
    refused: list[StoreReadOnly] = []
    ended: list[str] = []

    async def does(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        done.append(ctx.attempt)
        await asyncio.to_thread(away, server)
        return {"done": True}

    flow = flow_of(does)

    async def main() -> None:
        async with hf.Engine(server.url(schema=f"house_{away.__name__}"), flows=[flow]) as engine:
            append = engine.store.append

            def refused_first(batch: Any) -> Any:
                if done and not refused and away is become_read_only:
                    until_heard(engine.store)
                try:
                    return append(batch)
                except StoreReadOnly as fault:
                    refused.append(fault)
                    if len(refused) == 1:
                        back(server)
                    raise

            engine.store.append = refused_first  # type: ignore[method-assign]
            await engine.start(flow, {}, run_id="r")
            await engine.work(until=lambda: ended, on_end=lambda run: ended.append(run.status))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert refused
    assert (ended, done) == (["completed"], [1])


def test_a_replica_is_refused_at_the_door_as_before(server: PostgresServer) -> None:
    become_a_replica(server)
    try:
        with pytest.raises(StoreReadOnly, match="is a replica"):
            PostgresStore(server.url(), schema="door")
    finally:
        be_promoted(server)


def test_a_server_that_was_made_read_only_refuses_every_verb_alike(server: PostgresServer) -> None:
    """A provider does that when a disk is nearly full: nothing is claimed there that could not be carried on."""
    me = Holder(id="me", ttl_s=30.0)
    store = PostgresStore(server.url(), schema="alike")
    log = Log("r")
    append = log.create(status="pending")
    assert store.append([append]) == [None]
    log.wrote(append)
    store.close()
    options = "-c%20default_transaction_read_only=on"
    store = PostgresStore(server.url(options=options), schema="alike")
    try:
        for use in (
            lambda: store.append([log.next()]),
            lambda: store.append([log.next(), Log("s").create()]),
            lambda: store.claim("r", me),
            lambda: store.queues.take(me, Wanted(flows=("flow",))),
            lambda: store.renew(me),
            lambda: store.post("r", Request(id="q", verb="cancel")),
        ):
            with pytest.raises(StoreReadOnly, match="accepts no writes"):
                use()
        assert (store.run("r").seq, store.run("r").fence) == (1, 0)
    finally:
        store.close()
