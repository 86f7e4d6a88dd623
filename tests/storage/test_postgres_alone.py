"""What goes to PostgreSQL as one statement of its own, lone appends and renewals; and what a deletion waits for."""

import random
import signal
import threading

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.errors import RunHeld, StoreBusy, StoreUnusable
from holdfast.storage.contract import Holder
from holdfast.storage.postgres.store import PostgresStore
from holdfast.testing.appends import Log, delete_run, raises
from postgres_server import drop_schema, execute, schema_for, shared_url

ME = Holder(id="me", ttl_s=600.0)
WAITS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{}%'"


@pytest.fixture
def name(tmp_path):
    yield schema_for(tmp_path)
    drop_schema(shared_url(), schema_for(tmp_path))


@pytest.fixture
def postgres(name):
    opened = []

    def open_store(**options):
        opened.append(PostgresStore(shared_url(), schema=name, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def begun(store):
    """A run in my hands, and its log."""
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    append = log.create()
    assert store.append([append]) == [None]
    log.wrote(append)
    return log


def backend(store):
    return store._database._writer.connection.info.backend_pid


def wait_for_lock(name, thread):
    while thread.is_alive() and execute(shared_url(), WAITS.format(name)) == [(0,)]:
        pass
    assert thread.is_alive()


def told_apart(number, row):
    """A row no cell of which is also in another row or column."""
    return replace(
        row,
        at=row.at + number / 8,
        kind=f"kind{number}",
        node=f"node{number}" if number % 3 else None,
        iteration=1000 + number,
        execution=2000 + number,
        attempt=3000 + number,
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 11, 300])
def test_a_lone_append_of_any_length_is_read_back_as_it_was_written(postgres, rows):
    store = postgres()
    log = begun(store)
    append = log.next(*(b'{"n":%d}' % number for number in range(rows)))
    append = replace(append, rows=tuple(map(told_apart, range(rows), append.rows)))
    assert store.append([append]) == [None]
    assert store.events("r1", after=1) == list(append.rows)
    assert store.run("r1").digest == append.rows[-1].digest


def test_a_lone_append_larger_than_every_buffer_on_its_way_is_written(postgres):
    store = postgres()
    log = begun(store)
    append = log.next(random.Random(7).randbytes(20_000_000))
    assert store.append([append]) == [None]
    assert store.events("r1", after=1)[0].body == append.rows[0].body


def test_a_lone_append_that_waits_too_long_for_its_run_says_so_and_the_connection_is_kept(postgres, name):
    store = postgres(busy_timeout_s=0.1)
    log = begun(store)
    before = backend(store)
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f'select from "{name}".runs for update')
        with raises(StoreBusy, "kept a run locked for too long"):
            store.append([log.next()])
    assert store.append([log.next()]) == [None]
    assert backend(store) == before


def test_a_server_that_goes_while_a_lone_append_waits_leaves_its_outcome_unknown(postgres, name):
    store = postgres()
    log = begun(store)
    said = []

    def write():
        with raises(StoreBusy, "is unknown"):
            store.append([log.next()])
        said.append("unknown")

    writer = threading.Thread(target=write)
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f'select from "{name}".runs for update')
        writer.start()
        wait_for_lock(name, writer)
        execute(shared_url(), f"select pg_terminate_backend({backend(store)})")
        writer.join(20)
    assert said == ["unknown"]
    assert store.append([log.next()]) == [None]


def test_a_signal_is_heard_while_a_lone_append_waits(postgres, name):
    """By whoever waits in the main thread; what was sent is then of unknown outcome, and its connection is not used again."""
    store = postgres()
    log = begun(store)
    before = backend(store)

    class Heard(BaseException): ...

    def hear(number, frame):
        raise Heard

    def call():
        wait_for_lock(name, threading.main_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    handler = signal.signal(signal.SIGUSR1, hear)
    try:
        with psycopg.connect(shared_url()) as connection:
            connection.execute(f'select from "{name}".runs for update')
            caller = threading.Thread(target=call)
            caller.start()
            with pytest.raises(Heard):
                store.append([log.next()])
            caller.join(20)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    store.append([log.next()])
    assert backend(store) != before


def test_a_renewal_alone_is_refused_by_a_server_that_does_not_wait_for_its_disk(postgres, name):
    store = postgres()
    store.renew(ME)
    before = execute(shared_url(), f'select expires_at from "{name}".holders')
    store._database._renewer.connection.execute("set synchronous_commit = off")
    with raises(StoreUnusable, "synchronous_commit is off"):
        store.renew(ME)
    assert execute(shared_url(), f'select expires_at from "{name}".holders') == before
    unsafe = postgres(unsafe=True)
    unsafe.renew(ME)
    unsafe._database._renewer.connection.execute("set synchronous_commit = off")
    unsafe.renew(ME)
    assert execute(shared_url(), f'select expires_at from "{name}".holders') > before


def test_a_renewal_alone_waits_for_its_row_no_longer_than_it_may(postgres, name):
    store = postgres(busy_timeout_s=0.1)
    store.renew(ME)
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f'select from "{name}".holders for update')
        with raises(StoreBusy, "kept a run locked for too long"):
            store.renew(ME)
    store.renew(ME)


def test_a_deletion_waits_for_a_holder_that_just_renews_and_spares_its_run(postgres, name):
    time = [1000.0]
    store = postgres(clock=lambda: time[0], alive=lambda holder: None)
    log = begun(store)
    time[0] += 10_000.0  # its lease has run out
    said = []

    def delete():
        with raises(RunHeld, "r1"):
            delete_run(store, "r1", log.seq)
        said.append("held")

    deleter = threading.Thread(target=delete)
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f"update \"{name}\".holders set expires_at = 20000 where id = 'me'")
        deleter.start()
        wait_for_lock(name, deleter)
    deleter.join(20)
    assert said == ["held"]
    assert store.run("r1").seq == log.seq


def test_an_ear_that_was_closed_hears_nothing_and_opens_no_connection_any_more(postgres):
    store = postgres()
    ear = store.queues._listener
    assert ear.hear(5.0), "what came before it listened may have been missed"
    ear.close()
    assert not ear.hear(0.0)
    assert ear._connection is None
