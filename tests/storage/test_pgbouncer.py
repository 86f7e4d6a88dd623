"""Behind a real pgbouncer that lends connections by transaction the store keeps every promise: no session is the same twice."""

import functools
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psycopg
import pytest

import holdfast as hf
from holdfast.storage.contract import Holder, Query
from holdfast.storage.postgres import listener
from holdfast.storage.postgres.store import PostgresStore
from holdfast.testing.appends import Log
from holdfast.testing.blobs import BlobsConformance
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.queues import QueuesConformance
from holdfast.testing.upkeep import UpkeepConformance
from pgbouncer_server import PROGRAM, WHY_NOT, PgBouncer
from postgres_server import PostgresServer, _binaries, drop_schema, lend_schema, return_schema, schema_for

PATIENCE_S = 120

if PROGRAM is None:
    pytest.skip(WHY_NOT, allow_module_level=True)


@functools.cache
def server():
    return PostgresServer()


@functools.cache
def pool():
    """Few connections of the server for everybody, so that the next transaction has a good chance of another session."""
    return PgBouncer(server().folder, pool=3)


@pytest.fixture(autouse=True)
def finds_out_soon(monkeypatch):
    """That nothing can be heard through a pool is found out by waiting."""
    monkeypatch.setattr(listener, "PROOF_S", 0.3)


class TestPooledStore(StoreConformance):
    def open(self, folder, clock):
        return PostgresStore(pool().url(), schema=lend_schema(server().url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(server().url(), self.folder)


class TestPooledQueues(QueuesConformance):
    def open(self, folder, clock):
        return PostgresStore(pool().url(), schema=lend_schema(server().url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(server().url(), self.folder)


class TestPooledUpkeep(UpkeepConformance):
    def open(self, folder, clock):
        return PostgresStore(pool().url(), schema=lend_schema(server().url(), folder), clock=clock)

    def setup_method(self):
        self._path = os.environ["PATH"]
        os.environ["PATH"] = f"{_binaries()}{os.pathsep}{self._path}"
        super().setup_method()

    def teardown_method(self):
        super().teardown_method()
        os.environ["PATH"] = self._path
        return_schema(server().url(), self.folder)


class TestPooledBlobs(BlobsConformance):
    def open(self, folder):
        store = PostgresStore(pool().url(), schema=lend_schema(server().url(), folder))
        self.opened.append(store)
        return store.blobs

    def setup_method(self):
        self.opened = []
        super().setup_method()

    def teardown_method(self):
        super().teardown_method()
        for store in self.opened:
            store.close()
        return_schema(server().url(), self.folder)

    def alter(self, digest, change):
        blobs = f'"{lend_schema(server().url(), self.folder)}".blobs'
        with psycopg.connect(server().url()) as connection:
            (stored,) = connection.execute(f"select body from {blobs} where digest = %s", [digest]).fetchone()
            connection.execute(f"update {blobs} set body = %s where digest = %s", [change(stored), digest])


def test_behind_a_pool_no_session_keeps_a_statement(tmp_path):
    """Whoever is next in that session may be anybody. Three transactions at once see all three sessions of the pool."""
    store = PostgresStore(pool().url(), schema=schema_for(tmp_path))
    me = Holder(id="me")
    store.renew(me)
    log = Log("r", holder=me.id, fence=1)
    for number in range(20):
        append = log.next() if number else log.create()
        assert store.append([append]) == [None]
        log.wrote(append)
    with ExitStack() as opened:
        sessions = set()
        for _ in range(3):
            connection = opened.enter_context(psycopg.connect(pool().url(), prepare_threshold=None))
            (session,) = connection.execute(
                "select pg_backend_pid()"
            ).fetchone()  # opens a transaction, which keeps it
            sessions.add(session)
            assert connection.execute("select name from pg_prepared_statements").fetchall() == []
    assert len(sessions) == 3
    store.close()
    drop_schema(server().url(), schema_for(tmp_path))


# --- a fleet -----------------------------------------------------------------------------------------

FLOW = """
import os
from holdfast import END, START, Graph

graph = Graph("pooled", dict)


def note(word):
    handle = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word}\\n".encode())
    os.close(handle)


@graph.node
async def first(state, ctx):
    note(f"{ctx.run_id} first {os.getpid()}")
    return {"first": 1}


@graph.node
def second(state, ctx):
    note(f"{ctx.run_id} second {os.getpid()}")
    return {"second": state["first"] + 1}


flow = graph.chain(START, first, second, END).compile()
"""
RUNS = 60


def test_a_fleet_behind_a_pool_executes_every_node_of_every_run_once(tmp_path):
    (tmp_path / "pooled.py").write_text(FLOW)
    witness = tmp_path / "witness"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    url = pool().url(schema="pooled_fleet")
    PostgresStore(url).close()
    asked = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "worker",
        "pooled.py",
        "--store",
        url,
        "--concurrency",
        "5",
    ]
    workers = [
        subprocess.Popen(
            asked, cwd=tmp_path, env={**kept, "WITNESS": str(witness), "HOLDFAST_LEASE_TTL": "5"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    try:
        store = PostgresStore(url)
        flow = runpy.run_path(str(tmp_path / "pooled.py"))["flow"]
        for number in range(RUNS):  # as a web handler would: through the pool, and only recorded
            hf.start(flow, {}, run_id=f"r{number}", store=url)
        until = time.monotonic() + PATIENCE_S
        while len(store.runs(Query(status=("completed",), limit=1000))) < RUNS:
            assert time.monotonic() < until, [row.status for row in store.runs(Query(limit=1000))]
            assert [worker.poll() for worker in workers] == [None] * 3, [
                worker.stdout.read() for worker in workers
            ]
            store.queues.hear(1.0)
        assert [row.run_id for row in store.runs(Query(limit=1000)) if row.held] == []
        store.close()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        said = [worker.communicate(timeout=PATIENCE_S)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0], said
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
    done = [tuple(line.split()[:2]) for line in witness.read_text().splitlines()]
    assert sorted(done) == sorted(
        (f"r{number}", node) for number in range(RUNS) for node in ("first", "second")
    )
