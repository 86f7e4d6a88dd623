"""Group commit: together, in order, each with its own verdict, and never told too early."""

import os
import threading

import pytest

from holdfast.errors import FenceLost, RunExists, StoreFull, StoreUnusable
from holdfast.storage import process
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Append, Holder, Query, Request, Snapshot
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.writer import QUICK_S, InlineWriter, Writer
from holdfast.testing.appends import KilledAtFailpoint, Log, hooked, kill_at

ME = Holder(id="me", ttl_s=30.0)


@pytest.fixture
def store():
    store = MemoryStore()
    store.renew(ME)
    return store


class Gate:
    """A store whose commits wait until they are let through; it keeps the size of every batch."""

    def __init__(self, store):
        self._store = store
        self.batches = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.fault = None

    def append(self, batch):
        self.batches.append([append.run_id for append in batch])
        self.entered.release()
        assert self.open.acquire(timeout=30)
        if self.fault is not None:
            raise self.fault
        return self._store.append(batch)


class Outcomes:
    """What each append was told, in the order it was told."""

    def __init__(self):
        self.told = []
        self._one = threading.Semaphore(0)

    def of(self, name):
        def done(error):
            self.told.append((name, error))
            self._one.release()

        return done

    def wait(self, count):
        for _ in range(count):
            assert self._one.acquire(timeout=30)
        return self.told


def commit_alone(writer: Writer | InlineWriter, append: Append) -> bool:
    """Commit one append on this thread; raises what became of it. False: not now."""
    outcomes = writer.try_commit((append,))
    if outcomes is None:
        return False
    if outcomes[0] is not None:
        raise outcomes[0]
    return True


@pytest.fixture
def gate(store):
    return Gate(store)


@pytest.fixture
def outcomes():
    return Outcomes()


@pytest.fixture
def writer_of():
    made = []

    def make(store, *args, **options):
        made.append(Writer(store, *args, **options))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def test_an_append_is_told_only_after_its_commit(store, gate, outcomes, writer_of):
    writer_of(gate).submit(Log("r1").create(), outcomes.of("r1"))
    assert gate.entered.acquire(timeout=30)
    assert outcomes.told == []
    assert store.runs(Query()) == []
    gate.open.release()
    assert outcomes.wait(1) == [("r1", None)]
    assert store.run("r1").seq == 1


def test_everything_that_waits_is_committed_together_in_order(gate, outcomes, writer_of):
    writer = writer_of(gate)
    for number in range(10):
        writer.submit(Log(f"r{number}").create(), outcomes.of(number))
        if number == 0:
            assert gate.entered.acquire(timeout=30)
    gate.open.release(2)
    assert outcomes.wait(10) == [(number, None) for number in range(10)]
    assert gate.batches == [["r0"], [f"r{number}" for number in range(1, 10)]]


def test_each_append_of_a_batch_gets_its_own_verdict(store, gate, outcomes, writer_of):
    store.append([Log("taken").create()])
    writer = writer_of(gate)
    writer.submit(Log("first").create(), outcomes.of("first"))
    assert gate.entered.acquire(timeout=30)
    writer.submit(Log("a").create(), outcomes.of("a"))
    writer.submit(Log("taken").create(), outcomes.of("taken"))
    writer.submit(Log("taken", holder="me", fence=4, seq=1).next(), outcomes.of("stale"))
    writer.submit(Log("b").create(), outcomes.of("b"))
    gate.open.release(2)
    told = outcomes.wait(5)
    assert [(name, type(error)) for name, error in told[1:]] == [
        ("a", type(None)), ("taken", RunExists), ("stale", FenceLost), ("b", type(None))]  # fmt: skip


def test_a_batch_that_fails_as_a_whole_tells_everyone_and_the_next_goes_on(gate, outcomes, writer_of):
    writer = writer_of(gate)
    writer.submit(Log("r0").create(), outcomes.of(0))
    assert gate.entered.acquire(timeout=30)
    for number in (1, 2):
        writer.submit(Log(f"r{number}").create(), outcomes.of(number))
    gate.open.release()
    outcomes.wait(1)
    assert gate.entered.acquire(timeout=30)
    gate.fault = StoreFull("no space")
    gate.open.release()
    assert outcomes.wait(2)[1:] == [(1, gate.fault), (2, gate.fault)]
    gate.fault = None
    gate.open.release()
    writer.submit(Log("r1").create(), outcomes.of("again"))
    assert outcomes.wait(1)[-1] == ("again", None)


def test_a_batch_is_bounded_by_count_and_by_size(gate, outcomes, writer_of):
    writer = writer_of(gate, batch_appends_max=3, batch_bytes_max=1000)
    for name in "abcde":
        writer.submit(Log(name).create(b"small"), outcomes.of(name))
        if name == "a":
            assert gate.entered.acquire(timeout=30)
    writer.submit(Log("f").create(os.urandom(5000)), outcomes.of("f"))
    writer.submit(Log("g").create(os.urandom(600)), outcomes.of("g"))
    writer.submit(
        Log("h").create(b"x", snapshots=(Snapshot(1, b"x" * 300),), blobs=(Blob.of(b"x" * 300),)),
        outcomes.of("h"),
    )
    start = Log("started").create(os.urandom(400), blobs=(Blob.of(b"x" * 300),))
    writer.submit(Log("i").create(b"x", along=Along(starts=(start,))), outcomes.of("i"))
    note = Request(id="note", verb="note", body={"text": "x" * 600})
    writer.submit(Log("j").create(b"x", along=Along(posts=(("a", note),))), outcomes.of("j"))
    gate.open.release(10)
    outcomes.wait(10)
    assert gate.batches == [["a"], ["b", "c", "d"], ["e"], ["f"], ["g"], ["h"], ["i"], ["j"]]


def test_a_batch_wakes_once_and_the_callbacks_run_where_the_waker_puts_them(gate, writer_of):
    woken, told = [], []
    first_woken, second_woken = threading.Event(), threading.Event()

    def wake(tell_all):
        woken.append(tell_all)
        (first_woken if len(woken) == 1 else second_woken).set()

    writer = writer_of(gate, wake)
    writer.submit(Log("r0").create(), told.append)
    assert gate.entered.acquire(timeout=30)
    for number in range(1, 6):
        writer.submit(Log(f"r{number}").create(), told.append)
    gate.open.release(2)
    assert first_woken.wait(30)
    assert second_woken.wait(30)
    assert told == []
    for tell_all in woken:
        tell_all()
    assert len(woken) == 2
    assert told == [None] * 6


def test_a_callback_that_raises_is_reported_and_hurts_nobody(store, outcomes, writer_of, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))

    def broken(error):
        raise ValueError("mine")

    writer = writer_of(store)
    writer.submit(Log("r1").create(), broken)
    writer.submit(Log("r2").create(), outcomes.of("r2"))
    assert outcomes.wait(1) == [("r2", None)]
    assert [str(error) for error in reported] == ["mine"]


def test_a_crash_inside_a_commit_is_told_to_those_who_wait(store, outcomes, writer_of):
    writer = writer_of(store)
    with hooked(kill_at("append.written")):
        writer.submit(Log("r1").create(), outcomes.of("r1"))
        ((_, error),) = outcomes.wait(1)
    assert isinstance(error, KilledAtFailpoint)
    assert store.runs(Query()) == []


def test_close_commits_what_waits_and_then_refuses_more(store, gate, outcomes, writer_of):
    writer = writer_of(gate)
    for number in range(5):
        writer.submit(Log(f"r{number}").create(), outcomes.of(number))
    gate.open.release(5)
    writer.close()
    writer.close()
    assert len(outcomes.told) == len(store.runs(Query())) == 5
    with pytest.raises(StoreUnusable, match="closed"):
        writer.submit(Log("late").create(), outcomes.of("late"))
    with pytest.raises(StoreUnusable, match="closed"):
        commit_alone(writer, Log("late").create())


# --- the lone append ---------------------------------------------------------------------------------


def test_a_lone_append_is_committed_by_its_caller(store, writer_of):
    writer = writer_of(store)
    assert commit_alone(writer, Log("r1").create())
    assert store.run("r1").seq == 1
    assert writer._thread is None


def test_a_lone_append_raises_its_verdict(store, writer_of):
    writer = writer_of(store)
    assert commit_alone(writer, Log("r1").create())
    with pytest.raises(RunExists):
        commit_alone(writer, Log("r1").create())
    assert commit_alone(writer, Log("r2").create())


def test_a_lone_append_that_the_store_cannot_take_leaves_the_writer_usable(gate, outcomes, writer_of):
    writer = writer_of(gate)
    gate.open.release(2)
    gate.fault = StoreFull("no space")
    with pytest.raises(StoreFull):
        commit_alone(writer, Log("r1").create())
    gate.fault = None
    writer.submit(Log("r1").create(), outcomes.of("r1"))
    assert outcomes.wait(1) == [("r1", None)]


def test_nobody_overtakes_an_append_that_waits_or_is_under_way(store, gate, outcomes, writer_of):
    writer = writer_of(gate)
    writer.submit(Log("r1").create(), outcomes.of("r1"))
    assert gate.entered.acquire(timeout=30)
    assert not commit_alone(writer, Log("r2").create())
    writer.submit(Log("r3").create(), outcomes.of("r3"))
    assert not commit_alone(writer, Log("r2").create())
    gate.open.release(2)
    outcomes.wait(2)
    writer.close()
    assert gate.batches == [["r1"], ["r3"]]


def test_nobody_overtakes_an_append_that_the_thread_has_not_taken_up(store, outcomes, writer_of):
    writer = writer_of(store)
    writer._thread = threading.current_thread()  # one that takes nothing up
    writer.submit(Log("r1").create(), outcomes.of("r1"))
    assert not commit_alone(writer, Log("r2").create())
    assert store.runs(Query()) == []


def test_whoever_is_told_may_commit_a_lone_append(store, writer_of):
    writer = writer_of(store)
    committed, told = [], threading.Event()

    def go_on(error):
        committed.append(commit_alone(writer, Log("r2").create()))
        told.set()

    writer.submit(Log("r1").create(), go_on)
    assert told.wait(30)
    assert committed == [True]


def test_an_append_that_comes_during_a_lone_commit_follows_it(store, gate, outcomes, writer_of):
    writer = writer_of(gate)
    committing = threading.Thread(target=commit_alone, args=(writer, Log("lone").create()))
    committing.start()
    assert gate.entered.acquire(timeout=30)
    writer.submit(Log("next").create(), outcomes.of("next"))
    assert not commit_alone(writer, Log("other").create())
    assert gate.batches == [["lone"]]
    gate.open.release(2)
    outcomes.wait(1)
    committing.join()
    assert gate.batches == [["lone"], ["next"]]


def test_slow_commits_go_to_the_thread_until_they_are_quick_again(store, outcomes, writer_of):
    now, cost = [0.0], [0.0]

    class Disk:
        def append(self, batch):
            now[0] += cost[0]
            return store.append(batch)

    writer = writer_of(Disk(), timer=lambda: now[0])
    assert writer.quick
    cost[0] = 20 * QUICK_S
    assert commit_alone(writer, Log("slow").create())
    assert not writer.quick
    assert not commit_alone(writer, Log("r").create())
    cost[0] = QUICK_S / 10
    for number in range(20):
        writer.submit(Log(f"r{number}").create(), outcomes.of(number))
        outcomes.wait(1)
    assert writer.quick


@pytest.mark.parametrize("started", [False, True], ids=["its own", "of a run that it starts"])
def test_an_append_with_blobs_goes_to_the_thread_and_is_no_measure_of_others(
    store, outcomes, writer_of, started
):
    times = iter(range(0, 1000, 10))
    writer = writer_of(store, timer=lambda: next(times))
    heavy = Log("heavy").create(blobs=(Blob.of(b"x" * 100),))
    if started:
        heavy = Log("caller").create(along=Along(starts=(heavy,)))
    assert writer.try_commit((Log("light").create(), heavy)) is None
    assert list(store.blobs.digests()) == []
    writer.submit(heavy, outcomes.of("heavy"))
    assert outcomes.wait(1) == [("heavy", None)]
    assert list(store.blobs.digests()) == [heavy.all_blobs[0].digest]
    assert writer.quick


def test_a_forked_child_is_refused(store, outcomes, writer_of):
    writer = writer_of(store)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (
            lambda: writer.submit(Log("r").create(), print),
            lambda: commit_alone(writer, Log("r").create()),
        ):
            try:
                use()
            except StoreUnusable:
                refused += 1
        writer.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


# --- inline, and on a real disk ----------------------------------------------------------------------


def test_the_inline_writer_does_the_same_on_the_callers_thread(store):
    writer, told, woken = InlineWriter(store), [], []
    writer.submit(Log("r1").create(), told.append)
    writer.submit(Log("r1").create(), told.append)
    assert [type(error) for error in told] == [type(None), RunExists]
    assert writer.quick
    assert commit_alone(writer, Log("r2").create())
    with pytest.raises(RunExists):
        commit_alone(writer, Log("r2").create())
    waking = InlineWriter(store, woken.append)
    waking.submit(Log("r3").create(), told.append)
    assert len(told) == 2
    woken[0]()
    assert told[2] is None
    writer.close()
    with pytest.raises(StoreUnusable):
        writer.submit(Log("r4").create(), told.append)


def test_many_threads_share_few_commits(tmp_path, outcomes, writer_of):
    store = SqliteStore(tmp_path / "runs.db")
    commits = []
    writer = writer_of(store)

    def submit(thread):
        for number in range(25):
            writer.submit(Log(f"t{thread}-{number}").create(), outcomes.of((thread, number)))

    with hooked(lambda name: commits.append(name) if name == "append.committed" else None):
        threads = [threading.Thread(target=submit, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        told = outcomes.wait(200)
        for thread in threads:
            thread.join()
    assert {error for _, error in told} == {None}
    for thread in range(8):
        assert [number for (of, number), _ in told if of == thread] == list(range(25))
    assert len(store.runs(Query(limit=1000))) == 200
    assert len(commits) < 100
    store.close()


# --- forks -------------------------------------------------------------------------------------------


def test_a_child_neither_writes_with_nor_closes_what_is_its_parents(monkeypatch):
    store = MemoryStore()
    writer = Writer(store)
    append = Log("r").create()
    with monkeypatch.context() as child:
        child.setattr(process, "count", process.count + 1)
        with pytest.raises(StoreUnusable, match="before this process was forked"):
            writer.try_commit((append,))
        writer.close()
    assert store.runs(Query()) == []
    assert writer.try_commit((append,)) == [None]  # the parent's works on
    writer.close()
