"""Attempts to break what is promised of a fleet: each takes an interleaving, or a value at the edge, that once did."""

import asyncio
import gc
import itertools
import os
import socket
import tempfile
import threading
import time
from contextlib import suppress

import psycopg
import pytest

from cutting_proxy import CuttingProxy
from holdfast import END, START, Engine, Graph
from holdfast.errors import CodecError, ResumeRefused, StoreBusy
from holdfast.reading.verification import verify
from holdfast.runtime import creation, worker
from holdfast.runtime.calls.process.executor import _Child
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Holder, Query, Request
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres import database
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log, Time, delete_run
from holdfast.upkeep import retention
from postgres_server import drop_schema, lend_schema, return_schema, schema_for, shared_server, shared_url

ME = Holder(id="me", ttl_s=3000.0)
PATIENCE_S = 30
HOUR_S = 3600.0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    match request.param:
        case "memory":
            opened = MemoryStore(tmp_path.name)
        case "sqlite":
            opened = SqliteStore(tmp_path / "runs.db")
        case _:
            opened = PostgresStore(shared_url(), schema=lend_schema(shared_url(), tmp_path))
    opened.renew(ME)
    yield opened
    opened.close()
    if request.param == "postgres":
        return_schema(shared_url(), tmp_path)


def until(come, told):
    """Wait for something that another thread, process or server is about to do."""
    ends_at = time.monotonic() + PATIENCE_S
    while not come():
        assert time.monotonic() < ends_at, f"never came: {told}"


def written(store, log, append):
    assert store.append([append]) == [None]
    log.wrote(append)
    return append


# --- what is needed stays ----------------------------------------------------------------------------


def test_a_blob_that_is_put_again_while_a_sweep_stands_still_stays(tmp_path, monkeypatch):
    """A sweep that is stopped for over an hour, or takes as long, behind the moment at which nothing referred to the blob."""
    clock = Time()
    store = SqliteStore(tmp_path / "runs.db", blobs=MemoryBlobs(clock=clock))
    store.renew(ME)
    blob = Blob.of(b'"a large value"')
    store.blobs.put(blob.digest, blob.body)
    clock.pass_s(2 * HOUR_S)
    real = store.runs

    def look_and_stand_still(query):
        page = real(query)
        if not page and not real(Query()):
            body = b'{"$blobs":{"/v":"%s"},"v":null}' % blob.digest.encode()
            log = Log("r1", holder=ME.id, fence=1)
            written(store, log, log.create(body, blobs=(blob,)))
            clock.pass_s(1.5 * HOUR_S)
        return page

    monkeypatch.setattr(store, "runs", look_and_stand_still)
    assert retention.sweep(store).blobs == 0
    assert store.blobs.get(blob.digest) == blob.body
    clock.pass_s(HOUR_S)
    monkeypatch.undo()
    store.release("r1", ME.id, 1)
    assert not store.upkeep.delete({"r1": 1})
    assert retention.sweep(store).blobs == 1
    store.close()


def test_a_blob_that_is_put_between_two_sweeps_that_meet_stays(tmp_path, monkeypatch):
    """One sweep has found the old blob aside and is about to remove it, when the other puts the new one there."""
    blobs = FileBlobs(tmp_path)
    blob = Blob.of(b"wanted again")
    blobs.put(blob.digest, blob.body)
    path = blobs._path(blob.digest)
    old = time.time() - 2 * HOUR_S
    os.utime(path, (old, old))
    kind, before = type(path), time.time() - HOUR_S
    replace, unlink, stat = os.replace, kind.unlink, kind.stat
    about_to_move, may_move, moved, first_is_over = (threading.Event() for _ in range(4))

    def in_second():
        return threading.current_thread().name == "second"

    def stopped_replace(source, target):
        if in_second() and source == path:
            about_to_move.set()
            may_move.wait(PATIENCE_S)
        replace(source, target)

    def stopped_unlink(place, missing_ok=False):
        if not in_second() and place.name.startswith("."):
            FileBlobs(tmp_path).put(blob.digest, blob.body)
            may_move.set()
            moved.wait(PATIENCE_S)
        unlink(place, missing_ok)

    def stopped_stat(place, **options):
        if in_second() and place.name.startswith("."):
            moved.set()
            first_is_over.wait(PATIENCE_S)
        return stat(place, **options)

    monkeypatch.setattr(os, "replace", stopped_replace)
    monkeypatch.setattr(kind, "unlink", stopped_unlink)
    monkeypatch.setattr(kind, "stat", stopped_stat)
    second = threading.Thread(name="second", target=lambda: FileBlobs(tmp_path).expire(blob.digest, before))
    second.start()
    assert about_to_move.wait(PATIENCE_S)
    assert blobs.expire(blob.digest, before)
    first_is_over.set()
    second.join(PATIENCE_S)
    assert blobs.get(blob.digest) == blob.body
    assert os.listdir(path.parent) == [blob.digest]


def test_a_run_is_not_deleted_while_a_request_waits_that_was_acknowledged(store):
    log = Log("r1", holder=ME.id, fence=1)
    written(store, log, log.create(status="failed", release=True))
    assert store.post("r1", Request(id="x", verb="retry"))
    with pytest.raises(ResumeRefused, match="a request \\(retry\\) waits in the inbox of this run"):
        delete_run(store, "r1", 1)
    assert [taken.why for taken in store.queues.take(ME, Wanted(flows=("flow",)))] == ["asked"]
    log.fence = store.run("r1").fence
    written(store, log, log.next(b"{}", status="failed", taken=("x",), release=True))
    assert not store.upkeep.delete({"r1": 2})
    assert store.runs(Query()) == []


def test_a_request_that_came_too_late_keeps_no_run_that_is_over(store):
    log = Log("r1", holder=ME.id, fence=1)
    written(store, log, log.create(status="running"))
    assert store.post("r1", Request(id="x", verb="pause"))
    written(store, log, log.next(b"{}", status="completed", release=True))
    assert not store.upkeep.delete({"r1": 2})
    assert store.runs(Query()) == []


def test_a_fork_is_whole_whose_parent_is_deleted_and_swept_while_it_is_made(tmp_path, monkeypatch):
    async def use():
        flow = chain("f", first, second)
        async with Engine(tmp_path / "runs.db", flows=[flow]) as engine:
            await engine.run(flow, {}, run_id="parent")
            made = creation.fork_journal

            def meanwhile(*given, **options):
                journal = made(*given, **options)
                assert not engine.store.upkeep.delete({"parent": engine.store.run("parent").seq})
                retention.sweep(engine.store)
                return journal

            monkeypatch.setattr(creation, "fork_journal", meanwhile)
            await engine.fork("parent", run_id="child", checkpoint=3)
            return (await engine.resume("child")).status, verify(engine.store, "child").problems

    assert asyncio.run(use()) == ("completed", [])


# --- one must not stop the others ----------------------------------------------------------------------


def chain(name, *nodes):
    graph = Graph(name, state=dict)
    places = [START, *(node.__name__ for node in nodes), END]
    for node in nodes:
        graph.node(node)
    for source, target in itertools.pairwise(places):
        graph.edge(source, target)
    return graph.compile()


def first(state):
    return {"first": True}


def second(state):
    return {"second": True}


async def work_until_good_is_done(engine, told):
    await asyncio.wait_for(
        engine.work(
            until=lambda: engine.store.run("good").status == "completed", concurrency=2, on_report=told.append
        ),
        PATIENCE_S,
    )


def test_more_runs_that_cannot_be_taken_up_than_a_worker_remembers_starve_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_REMEMBERED_MAX", 5)
    bad = [f"bad-{number}" for number in range(20)]

    async def use():
        old = chain("f", first)
        async with Engine(tmp_path / "runs.db", flows=[old]) as engine:
            for run_id in bad:
                await engine.start(old, {}, run_id=run_id)
        told, new = [], chain("f", first, second)
        async with Engine(tmp_path / "runs.db", flows=[new]) as engine:
            await engine.start(new, {}, run_id="good")
            await work_until_good_is_done(engine, told)
        return told

    assert sorted(trouble.run_id for trouble in asyncio.run(use())) == sorted(bad)


def test_a_worker_forgets_what_it_passed_over_and_did_not_meet_again(monkeypatch):
    monkeypatch.setattr(worker, "_REMEMBERED_MAX", 1)
    told = worker._PassedOver(until=100.0, seconds=5.0, told="", seq=1)
    here = worker.Worker.__new__(worker.Worker)
    here._passed_over = {"gone": told, "met": worker._PassedOver(until=104.0, seconds=20.0, told="", seq=1)}
    here._services = type("Services", (), {"clock": type("Clock", (), {"now": lambda self: 106.0})()})()
    here._forget_passed_over()
    assert list(here._passed_over) == ["met"]
    assert here._forgets_at == 2


def test_a_blob_that_the_disk_does_not_give_ends_no_worker(tmp_path):
    """Who restarts a worker would restart it for ever: the run with that blob is taken first."""

    async def use():
        flow, told = chain("f", first), []
        async with Engine(tmp_path / "runs.db", flows=[flow], blob_over=1000) as engine:
            await engine.start(flow, {"large": "x" * 5000}, run_id="bad", priority=9)
            (digest,) = engine.store.blobs.digests()
            path = engine.store.blobs._path(digest)
            path.unlink()
            path.symlink_to(path.name)  # reading it is an error of the file system, as on a bad sector
            await engine.start(flow, {}, run_id="good")
            await work_until_good_is_done(engine, told)
            return engine.store.run("bad").status, told

    status, told = asyncio.run(use())
    assert status == "pending"
    assert [trouble.run_id for trouble in told] == ["bad"]


def test_a_place_behind_every_log_is_not_in_the_log_of_another_run(store):
    for number in range(4):
        log = Log(f"r{number}", holder=ME.id, fence=1)
        written(store, log, log.create())
    for number in range(4):
        for last in (2**32 - 1, 2**32, 2**33 - 1, 2**34, 2**62):
            assert [row.seq for row in store.events(f"r{number}", upto=last)] == [1]
            assert store.events(f"r{number}", after=last) == []
        assert len(store.events(f"r{number}", limit=2**62)) == 1


def test_a_run_for_each_priority_costs_a_take_no_more_than_one_priority_for_all(tmp_path):
    """Counted in steps of SQLite's own machine, which no other process can lengthen."""

    def steps(name, priority):
        store = SqliteStore(tmp_path / name)
        store.append([Log(f"r{n}").create(status="pending", priority=priority(n)) for n in range(400)])
        count = [0]

        def counted():
            count[0] += 1
            return False

        for connection in (*store._database._readers.idle, store._database._writer):
            connection.set_progress_handler(counted, 20)
        (taken,) = store.queues.take(ME, Wanted(flows=("flow",)))
        got = store.run(taken.lease.run_id).priority
        store.close()
        return count[0], got

    one_for_all, _ = steps("one.db", lambda n: 7)
    one_each, got = steps("each.db", lambda n: n)
    assert got == 399
    assert one_each <= 2 * one_for_all + 20


# --- replies that do not come ------------------------------------------------------------------------


class Locked:
    """Somebody has the row of a run locked, so that what is appended to it waits in the server."""

    def __init__(self, schema, run_id):
        self._schema = schema
        self._connection = psycopg.connect(shared_url())
        self._connection.execute(f"select from {schema}.runs where run_id = %s for update", [run_id])

    def waiting(self):
        asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        with psycopg.connect(shared_url(), autocommit=True) as connection:
            return connection.execute(asked, [f"%{self._schema}%.append_one%"]).fetchone()[0]

    def free(self):
        self._connection.rollback()
        self._connection.close()


def cut_all(proxy):
    with proxy._lock:
        ends = list(proxy._open)
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_goes_on_whose_append_is_committed_after_it_was_looked_for_in_vain(tmp_path, nodes):
    """The connection is cut while the server waits with the append. It is looked up, is not there, and is sent again; then the
    first comes to be, and the second is refused because of it.
    """
    shared_url()
    schema, called = schema_for(tmp_path), []

    def meanwhile(locked, proxy):
        try:
            until(lambda: locked.waiting() == 1, "the append waits")
            cut_all(proxy)
            until(lambda: locked.waiting() == 2, "the append was sent again")
        finally:
            locked.free()

    async def a(state):
        called.append("a")
        threading.Thread(target=meanwhile, args=(Locked(schema, "r"), proxy), daemon=True).start()
        return {}

    async def b(state):
        called.append("b")
        return {}

    async def use():
        flow = chain("f", a, b) if nodes == 2 else chain("f", a)
        async with Engine(f"{proxy.url()}&schema={schema}", flows=[flow]) as engine:
            return (await engine.run(flow, {}, run_id="r")).status, engine.store.run("r").held

    with CuttingProxy(shared_server().folder) as proxy:
        assert asyncio.run(use()) == ("completed", False)
    assert called == ["a", "b"][:nodes]
    drop_schema(shared_url(), schema)


# --- what is left behind -----------------------------------------------------------------------------


def test_processes_that_cannot_be_started_leave_no_files_open(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError):
            _Child()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


class Silent(CuttingProxy):
    """Keeps every connection, and from a moment on passes nothing on: a pool that is stopped, a way that lost its other end."""

    def __init__(self, server_folder):
        self.speaks = threading.Event()
        self.speaks.set()
        super().__init__(server_folder)

    def _allowed(self, direction, count):
        self.speaks.wait(PATIENCE_S)
        return count

    def __exit__(self, *_):
        self.speaks.set()
        super().__exit__(*_)


@pytest.mark.parametrize("verb", ["read", "lone append", "transaction", "renewal"])
def test_a_server_that_is_silent_on_an_open_connection_is_given_up(tmp_path, monkeypatch, verb):
    """No timeout of TCP ends that wait: whoever is in between acknowledges everything."""
    shared_url()
    schema = schema_for(tmp_path)
    with Silent(shared_server().folder) as proxy:
        store = PostgresStore(proxy.url(), schema=schema)
        store.renew(ME)
        log = Log("r", holder=ME.id, fence=1)
        written(store, log, log.create())
        written(store, log, log.next())
        store.renew(ME)
        monkeypatch.setattr(database, "SILENT_S", 0.3)
        proxy.speaks.clear()
        append = log.next()
        verbs = {
            "read": lambda: store.run("r"),
            "lone append": lambda: store.append([append]),
            "transaction": lambda: store.claim("r", ME),
            "renewal": lambda: store.renew(ME),
        }
        with pytest.raises(StoreBusy, match="has not answered"):
            verbs[verb]()
        monkeypatch.undo()
        proxy.speaks.set()
        assert store.run("r").seq in (3, 5)  # what was sent may have arrived: it is looked up
        log.fence = store.claim("r", ME).fence  # what was sent and arrives only now is refused
        if not store.appended("r", append.rows[0].seq, append.rows[0].salt):
            written(store, log, log.next())
        store.close()
    drop_schema(shared_url(), schema)


def test_an_id_that_is_too_long_for_an_index_is_refused_for_good_and_not_for_now(tmp_path):
    shared_url()
    store = PostgresStore(shared_url(), schema=schema_for(tmp_path))
    assert store.append([Log("r").create(status="waiting")]) == [None]
    with pytest.raises(CodecError, match="cannot be stored"):
        store.post("r", Request(id=os.urandom(10_000).hex(), verb="signal"))
    assert store.post("r", Request(id="short", verb="signal"))
    store.close()
    drop_schema(shared_url(), schema_for(tmp_path))
