"""The reading connections of a SQLite store: a long read delays no other, and there are never more of them than needed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreUnusable
from holdfast.storage.contract import Holder
from holdfast.storage.sqlite import database
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log

ME = Holder(id="me", ttl_s=30.0)
LONG = "with recursive c(n) as (select 1 union all select n + 1 from c where n < 5000) select count(*) from c"
SOON_S = 20.0


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore(tmp_path / "runs.db")
    opened.append([Log("r1").create()])
    yield opened
    opened.close()


class LongReads:
    """Reads in threads of their own that last until `end` is called."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(database.READERS_MAX + 1)
        self._go = threading.Event()
        self.reads: list[Future[object]] = []

    def begin(self) -> None:
        """Begin a read with the connection that is borrowed next, and return when it has begun."""
        begun = threading.Event()

        def look() -> bool:
            begun.set()
            assert self._go.wait(SOON_S)
            return False

        pool = self._store._database._readers
        reader = pool.borrow()
        reader.set_progress_handler(look, 100)
        pool.give_back(reader)
        self.reads.append(self._threads.submit(self._store._database.select, LONG, ()))
        assert begun.wait(SOON_S)

    def end(self) -> None:
        self._go.set()
        assert [read.result(SOON_S) for read in self.reads] == [[(5000,)]] * len(self.reads)
        self._threads.shutdown()


@pytest.fixture
def long_reads(store):
    reads = LongReads(store)
    yield reads
    reads.end()


def open_files(path: Path) -> int:
    """How many open files of this process belong to a database."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the folder itself, which was open while it was listed
            continue
    return sum(name.startswith(str(path)) for name in names)


def in_thread(call, *args) -> Future:
    found: Future = Future()

    def run() -> None:
        try:
            found.set_result(call(*args))
        except Exception as fault:
            found.set_exception(fault)

    threading.Thread(target=run, daemon=True).start()
    return found


def test_a_long_read_delays_no_other_read(store, long_reads):
    long_reads.begin()
    assert in_thread(store.run, "r1").result(SOON_S).run_id == "r1"
    assert not long_reads.reads[0].done()


def test_a_long_read_delays_no_write_and_later_reads_see_it(store, long_reads):
    long_reads.begin()
    assert store.append([Log("r2").create()]) == [None]
    assert in_thread(store.run, "r2").result(SOON_S).run_id == "r2"


def test_one_thread_reads_with_one_connection(store):
    first = store._database._readers.idle[:]
    for _ in range(50):
        store.run("r1")
    assert store._database._readers.idle == first
    assert len(first) == 1


def test_a_read_waits_only_if_all_connections_are_in_use(store, long_reads):
    for _ in range(database.READERS_MAX):
        long_reads.begin()
    waiting = in_thread(store.run, "r1")
    assert not waiting.done()
    long_reads.end()
    assert waiting.result(SOON_S).run_id == "r1"
    assert len(store._database._readers.idle) == database.READERS_MAX


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="NOT TESTED: this system does not list open files"
)
def test_the_number_of_open_files_is_bounded(store, long_reads):
    before = open_files(Path(store.path))
    for _ in range(database.READERS_MAX):
        long_reads.begin()
    waiting = [in_thread(store.run, "r1") for _ in range(20)]
    assert open_files(Path(store.path)) <= before + 2 * (database.READERS_MAX - 1)
    long_reads.end()
    assert {one.result(SOON_S).run_id for one in waiting} == {"r1"}
    assert open_files(Path(store.path)) <= before + 2 * (database.READERS_MAX - 1)
    store.close()
    assert open_files(Path(store.path)) == 0


def test_every_connection_has_the_same_settings_and_cannot_write(store, long_reads):
    for _ in range(3):
        long_reads.begin()
    long_reads.end()
    names = (
        "query_only", "synchronous", "journal_mode", "trusted_schema", "busy_timeout", "cache_size", "temp_store"
    )  # fmt: skip
    found = {tuple(one.pragma(name) for name in names) for one in store._database._readers.idle}
    assert len(store._database._readers.idle) == 3
    assert len(found) == 1
    for one in store._database._readers.idle:
        with pytest.raises(apsw.ReadOnlyError):
            one.execute("delete from runs")


def test_closing_waits_for_a_read_and_leaves_one_file(store, long_reads):
    long_reads.begin()
    long_reads.begin()
    closing = in_thread(store.close)
    assert not closing.done()
    long_reads.end()
    closing.result(SOON_S)
    assert [file.name for file in Path(store.path).parent.iterdir()] == ["runs.db"]
    with pytest.raises(StoreUnusable, match="was closed"):
        store.run("r1")


def test_a_read_that_waits_while_the_store_is_closed_is_refused(store, long_reads):
    for _ in range(database.READERS_MAX):
        long_reads.begin()

    def read() -> object:
        try:
            return store.run("r1").run_id
        except StoreUnusable as refused:
            return str(refused)

    waiting = [in_thread(read) for _ in range(3)]
    closing = in_thread(store.close)
    while not store._database._closed:
        pass
    long_reads.end()
    closing.result(SOON_S)
    for one in waiting:  # either it was before the close, or it is refused; but it ends
        assert one.result(SOON_S) == "r1" or "was closed" in one.result(SOON_S)


def test_a_connection_is_not_opened_to_a_file_that_was_put_in_its_place(store, long_reads, tmp_path):
    other = SqliteStore(tmp_path / "other.db")
    other.append([Log("stranger").create()])
    other.close()
    long_reads.begin()
    os.replace(tmp_path / "other.db", store.path)
    waiting = in_thread(store.run, "r1")
    long_reads.end()
    assert waiting.result(SOON_S).run_id == "r1"
    assert len(store._database._readers.idle) == 1


def test_a_read_waits_for_another_if_no_connection_can_be_opened(store, long_reads, monkeypatch):
    def fail(**options: object) -> apsw.Connection:
        raise apsw.CantOpenError("too many open files")

    long_reads.begin()
    monkeypatch.setattr(store._database, "connect", fail)
    waiting = in_thread(store.run, "r1")
    long_reads.end()
    assert waiting.result(SOON_S).run_id == "r1"
    assert len(store._database._readers.idle) == 1


def test_the_log_of_the_database_is_bounded_although_somebody_always_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_ROOM_FOR_LOG_BYTES", 1_000_000)
    monkeypatch.setattr(database, "_FOLD_S", 0.0)
    ticks = iter(range(10**9))
    store = SqliteStore(tmp_path / "runs.db", clock=lambda: float(next(ticks)))
    # SQLite folds its log by itself after 1,000 pages, but can restart it only if nothing reads.
    stop = threading.Event()
    store.append([Log("r1").create()])

    def read() -> None:
        while not stop.is_set():
            store._database.select(LONG.replace("5000", "20000") + " where exists (select 1 from runs)", ())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.renew(ME)
    log, sizes = Log("r2", holder="me", fence=1), []
    try:
        for _ in range(300):
            append = (log.next if log.seq else log.create)(os.urandom(30_000))
            assert store.append([append]) == [None]
            log.wrote(append)
            sizes.append(Path(f"{store.path}-wal").stat().st_size)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        store.close()
    assert max(sizes) < 4_000_000 < Path(store.path).stat().st_size


def test_a_read_that_lasts_does_not_keep_a_large_log_from_being_written(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_ROOM_FOR_LOG_BYTES", 100_000)
    store = SqliteStore(tmp_path / "runs.db", clock=lambda: 1.0)  # folding is tried once
    snapshot = store._database.connect()
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    store.append([append := log.create()])
    log.wrote(append)
    snapshot.execute("begin")
    snapshot.execute("select count(*) from events").fetchall()
    for _ in range(30):
        append = log.next(os.urandom(10_000))
        assert store.append([append]) == [None]
        log.wrote(append)
    store._database._folded_at = store._database._looked_at = 0.0
    append = log.next()
    assert store.append([append]) == [None]  # waits for the reader a moment, and goes on without it
    assert store.events("r1")[-1].seq == store.run("r1").seq > log.seq
    snapshot.close()
    store.close()
