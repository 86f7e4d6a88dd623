"""The queues of every store pass the suite; and what is special about those of a database."""

import threading

import apsw
import psycopg
import pytest

from holdfast.errors import RunHeld, StoreBusy, StoreUnusable
from holdfast.storage import schema
from holdfast.storage.contract import Holder, Query, Request
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres import listener
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log, hooked, raises
from holdfast.testing.queues import QueuesConformance
from postgres_server import drop_schema, execute, lend_schema, return_schema, schema_for, shared_url

ME = Holder(id="me", ttl_s=600.0)
ONE = Wanted(flows=("flow",))
MANY = 100_000


class TestMemoryQueues(QueuesConformance):
    shared = False

    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteQueues(QueuesConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)


class TestPostgresQueues(QueuesConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(shared_url(), self.folder)


def quiet(store):
    while store.queues.hear(0.2):
        pass


def recorded(store, run_id="r1", **changes):
    assert store.append([Log(run_id).create(**{"status": "pending", **changes})]) == [None]


# --- SQLite ------------------------------------------------------------------------------------------

MANY_RUNS = """
insert into {schema}runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                          state_version, fence, queue, priority, due_at)
select '{prefix}' || n, '{flow}', {empty}, '{{}}', n, '{status}', 1, {empty}, n, 'print', 1, 0, '{queue}', {priority}, {due_at}
from {numbers}
"""


CROWD = [
    {"prefix": "mine"},
    {"prefix": "strange", "flow": "strange", "priority": 9},
    {"prefix": "elsewhere", "queue": "elsewhere", "priority": 9},
    {"prefix": "full", "queue": "full", "priority": 9},
    {"prefix": "due", "status": "waiting", "priority": 9, "due_at": "n"},
    {"prefix": "later", "priority": 9, "due_at": "2e10 + n"},
    {"prefix": "failed", "status": "failed"},
]
"""Runs that wait, and what stands in front of them; five of seven are pending."""


def crowd_of(count, prefix, *, numbers, empty, name=""):
    """Statements that make so many runs of each kind."""
    for kind in CROWD:
        told = {
            "flow": "flow",
            "queue": "default",
            "status": "pending",
            "priority": 0,
            "due_at": "null",
            **kind,
        }
        told["prefix"] = prefix + told["prefix"]
        place = f'"{name}".' if name else ""
        yield MANY_RUNS.format(**told, schema=place, numbers=numbers.format(count=count), empty=empty)


@pytest.fixture
def sqlite(tmp_path):
    opened = []

    def open_one():
        opened.append(SqliteStore(tmp_path / "runs.db"))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_a_take_from_sqlite_costs_no_more_where_100_000_runs_wait(sqlite):
    numbers = (
        "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {count}) select n from c)"
    )
    store = sqlite()
    store.queues.limit("full", 0)
    wanted = Wanted(flows=("flow",), queues=("default", "full"))

    def steps():
        counted = []
        for connection in (store._database._writer, *store._database._readers.idle):
            connection.set_progress_handler(lambda: bool(counted.append(1)), 10)
        assert len(store.queues.take(ME, wanted)) == 1
        store.queues.next_due(wanted)
        for connection in (store._database._writer, *store._database._readers.idle):
            connection.set_progress_handler(None)
        return len(counted)

    def crowd(count, prefix):
        for sql in crowd_of(count, prefix, numbers=numbers, empty="x''"):
            store._database._writer.execute(sql)

    crowd(20, "a")
    few = steps()
    crowd(MANY // 4, "b")
    assert steps() <= 2 * few


def test_a_take_from_sqlite_costs_no_more_where_many_runs_have_requests(sqlite):
    store = sqlite()
    wanted = Wanted(flows=("flow",))

    def ask(numbers):
        logs = [Log(f"r{number:05}") for number in numbers]
        assert store.append([log.create(status="failed") for log in logs]) == [None] * len(logs)
        store.queues.post_all([Request(id="q", verb="resume", run_id=log.run_id, at=1.0) for log in logs])

    def steps():
        counted = []
        for connection in (store._database._writer, *store._database._readers.idle):
            connection.set_progress_handler(lambda: bool(counted.append(1)), 10)
        assert len(store.queues.take(ME, wanted)) == 1
        for connection in (store._database._writer, *store._database._readers.idle):
            connection.set_progress_handler(None)
        return len(counted)

    ask(range(20))
    few = steps()
    ask(range(20, 1000))
    assert steps() <= 2 * few


def test_a_take_from_sqlite_goes_by_its_indexes(sqlite):
    store = sqlite()
    for query, indexes in (
        ("offers", ("runs_offered", "runs_due", "runs_by_holder", "inbox_offered", "inbox_waiting")),
        ("next_due", ("runs_due", "runs_by_holder")),
        ("held_runs", ("COVERING INDEX runs_by_holder",)),
        ("held_by", ("runs_by_holder",)),
    ):
        sql = schema.queries("sqlite")[query]
        values = (None,) * max([0, *(int(number) for number in "123456" if f"?{number}" in sql)])
        plan = [row[3] for row in store._database._writer.execute(f"explain query plan {sql}", values)]
        assert not [line for line in plan if line.startswith("SCAN runs")]
        assert all(any(index in line for line in plan) for index in indexes)


def test_an_idle_sqlite_store_is_heard_without_a_query(sqlite):
    store, other = sqlite(), sqlite()
    quiet(store)
    asked = []
    for connection in (store._database._writer, *store._database._readers.idle):
        connection.set_exec_trace(lambda cursor, sql, values: asked.append(sql) or True)
    assert not store.queues.hear(0.3)
    assert asked == []
    recorded(other)
    assert store.queues.hear(20.0)
    assert asked


def test_steps_of_its_own_runs_do_not_wake_who_hears_a_sqlite_store(sqlite):
    store = sqlite()
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    append = log.create()
    store.append([append])
    log.wrote(append)
    quiet(store)
    store.append([log.next()])
    assert not store.queues.hear(0.3)


def test_where_nothing_is_on_offer_nothing_is_written_to_sqlite(sqlite):
    store, other = sqlite(), sqlite()
    recorded(store, flow="strange")
    other._database._writer.execute("begin immediate")  # nobody else could write
    assert store.queues.take(ME, ONE) == []
    other._database._writer.execute("rollback")


def test_a_sqlite_store_of_the_first_version_gets_queues(sqlite, tmp_path):
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    connection.execute(schema.migrations("sqlite")[0])
    connection.execute(
        "insert into runs values (1, 'r1', 'flow', null, x'', '{}', 1, 'pending', 1, x'', 1, 'print', 1, null, null, null, null,"
        " 0, null)"
    )
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.close()
    store = sqlite()
    assert store.generation
    assert [(run.queue, run.priority) for run in store.runs(Query())] == [("default", 0)]
    assert [one.lease.run_id for one in store.queues.take(ME, ONE)] == ["r1"]


# --- PostgreSQL --------------------------------------------------------------------------------------


@pytest.fixture
def name(tmp_path):
    yield schema_for(tmp_path)
    drop_schema(shared_url(), schema_for(tmp_path))


@pytest.fixture
def postgres(name):
    opened = []

    def open_one(**options):
        opened.append(PostgresStore(shared_url(), schema=name, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_take_from_postgres_costs_no_more_where_100_000_runs_wait(postgres, name, analyzed):
    store = postgres()
    wanted = Wanted(flows=("flow",), queues=("default", "full"))
    store.queues.limit("full", 0)
    asked = {}
    read = store._database.read

    def noted(query, *values):
        asked[query] = values
        return read(query, *values)

    store._database.read = noted

    def pages(query):
        """How many pages a query looks at."""
        sql = f"explain (analyze, buffers, format json) {store._database.sql[query]}"
        with store._database.connect() as connection:
            connection.execute(sql, asked[query])  # the plan is made now, with pages of the catalogue
            ((found,),) = connection.execute(sql, asked[query]).fetchall()
        return found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"]

    def crowd(count, prefix):
        execute(
            shared_url(),
            *crowd_of(count, prefix, name=name, numbers="generate_series(1, {count}) as n", empty="''"),
        )
        if analyzed:
            execute(shared_url(), f'analyze "{name}".runs')

    crowd(200, "a")
    assert len(store.queues.take(ME, wanted)) == 1
    crowd(MANY // 4, "b")
    assert len(store.queues.take(ME, wanted)) == 1
    store.queues.next_due(wanted)
    ((all_pages,),) = execute(shared_url(), f"select pg_relation_size('\"{name}\".runs') / 8192")
    assert all_pages > 3000
    assert pages("offers") < 300
    assert pages("next_due") < 100
    assert pages("held_runs") < 100


def test_an_idle_postgres_store_is_heard_without_a_query(postgres, monkeypatch):
    store, other = postgres(), postgres()
    quiet(store)
    asked = []
    run = psycopg.Cursor.execute

    def counted(self, query, *values, **options):
        asked.append(query)
        return run(self, query, *values, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    assert not store.queues.hear(0.5)
    assert asked == []
    recorded(other)
    assert asked
    assert store.queues.hear(20.0)


def test_steps_and_ends_of_runs_wake_nobody_on_postgres(postgres):
    store, listener = postgres(), postgres()
    store.renew(ME)
    logs = [Log(f"r{number}", holder="me", fence=1) for number in range(3)]
    created = [log.create() for log in logs]
    assert store.append(created) == [None] * 3
    for log, append in zip(logs, created, strict=True):
        log.wrote(append)
    quiet(listener)
    assert store.append([logs[0].next(status="completed", release=True)]) == [None]
    assert store.append([log.next() for log in logs[1:]]) == [None, None]
    assert not listener.queues.hear(0.3)


def test_who_hears_is_woken_again_after_the_connection_was_lost(postgres, monkeypatch):
    monkeypatch.setattr(listener, "AGAIN_S", 0.05)
    store, other = postgres(), postgres()
    quiet(store)
    lost = store._queues._listener._connection
    execute(shared_url(), f"select pg_terminate_backend({lost.info.backend_pid}, 60000)")
    assert store.queues.hear(20.0)  # a new connection may have missed something
    assert store._queues._listener._connection is not lost
    quiet(store)
    recorded(other)
    assert store.queues.hear(20.0)


def test_a_database_that_cannot_be_reached_is_waited_for(postgres, monkeypatch):
    monkeypatch.setattr(listener, "AGAIN_S", 0.05)
    store = postgres()
    there, store._database.address.conninfo = store._database.address.conninfo, "postgresql:///?host=/nowhere"
    assert not store.queues.hear(0.3)
    store._database.address.conninfo = there
    assert store.queues.hear(20.0)


def test_behind_a_pool_that_swallows_notifications_one_looks_once_in_a_while(postgres, monkeypatch):
    monkeypatch.setattr(listener, "PROOF_S", 0.2)
    monkeypatch.setattr(listener, "DEAF_S", 0.1)
    store = postgres()
    store._database.sql["listen"] = "select 1"  # all that is left of it there: another session has listened
    assert [store.queues.hear(20.0) for _ in range(4)] == [True] * 4
    assert store._queues._listener._deaf
    assert not store.queues.hear(0.01)


def test_a_run_that_another_transaction_keeps_is_passed_over(postgres, name):
    store = postgres()
    for number in range(3):
        recorded(store, f"r{number}", created_at=float(number))
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f"select from \"{name}\".runs where run_id = 'r0' for update")
        assert [one.lease.run_id for one in store.queues.take(ME, ONE)] == ["r1"]
    assert [one.lease.run_id for one in store.queues.take(ME, ONE)] == ["r0"]


@pytest.fixture
def late(postgres):
    """A store where a holder is late with its renewal, and a way to be back at once before a place is passed."""
    time = [1_000.0]
    store = postgres(clock=lambda: time[0], alive=lambda holder: None)
    other = postgres(clock=lambda: time[0], alive=lambda holder: None)
    holder = Holder(id="late", ttl_s=30.0)
    recorded(store)
    assert store.queues.take(holder, ONE)
    time[0] += 31.0

    def back_at(where):
        return hooked(lambda place: other.renew(holder) if place == where else None)

    return store, back_at


def test_a_holder_that_renews_before_its_runs_are_taken_keeps_them(late):
    store, back_at = late
    with back_at("claim.before"):
        assert store.queues.take(ME, ONE) == []
    assert store.run("r1").held
    assert store.run("r1").holder.id == "late"


def test_a_holder_that_renews_before_its_leases_are_given_back_keeps_them(late):
    store, back_at = late
    with back_at("claim.before"):
        assert store.queues.give_back(["late"]) == []
    assert store.run("r1").held


def test_a_holder_that_is_not_back_loses_what_it_had(late):
    store, _ = late
    assert [one.lease.fence for one in store.queues.take(ME, ONE)] == [2]


def test_what_a_holder_lost_to_itself_it_may_take_again(late):
    store, _ = late
    assert [one.lease.fence for one in store.queues.take(Holder(id="late", ttl_s=30.0), ONE)] == [2]


def test_a_holder_that_is_renewing_keeps_its_runs_and_nobody_waits_for_it(late, name):
    store, _ = late
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f"update \"{name}\".holders set expires_at = 1100 where id = 'late'")
        assert store.queues.take(ME, ONE) == []
    assert store.run("r1").held


def test_a_claim_waits_for_a_holder_that_is_renewing_and_leaves_it_its_run(late, name):
    store, _ = late
    said = []

    def claims():
        with raises(RunHeld):
            store.claim("r1", ME)
        said.append("held")

    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{}%'"
    claimer = threading.Thread(target=claims)
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f"update \"{name}\".holders set expires_at = 1100 where id = 'late'")
        claimer.start()
        while claimer.is_alive() and execute(shared_url(), waits.format(name)) == [(0,)]:
            pass
    claimer.join(20)
    assert said == ["held"]


def test_takes_from_a_queue_with_a_limit_come_one_after_the_other_and_no_others_wait(postgres, name):
    store = postgres(busy_timeout_s=0.2)
    store.queues.limit("mail", 5)
    recorded(store, "r1", queue="mail")
    recorded(store, "r2")
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f'select from "{name}".queues for update')  # another worker is taking
        with raises(StoreBusy):
            store.queues.take(ME, Wanted(flows=("flow",), queues=("mail",)))
        free = store.queues.take(ME, Wanted(flows=("flow",), queues=("default",)))
    assert [one.lease.run_id for one in free] == ["r2"]


def test_a_request_keeps_nobody_from_taking(postgres, name):
    store, other = postgres(), postgres()
    recorded(store)
    got = []

    def take(place):
        if place == "post.committed" and not got:
            got.extend(other.queues.take(ME, ONE))

    with hooked(take):
        store.post("r1", Request(id="q", verb="cancel"))
    assert [one.lease.run_id for one in got] == ["r1"]


def test_a_renewal_does_not_wait_behind_an_append(postgres, name):
    store = postgres()
    store.renew(ME)
    log = Log("r1", holder="me", fence=1)
    append = log.create()
    store.append([append])
    log.wrote(append)
    begun = threading.Event()
    verdicts = []
    with psycopg.connect(shared_url()) as connection:
        connection.execute(f'select from "{name}".runs for update')
        writer = threading.Thread(target=lambda: verdicts.extend(store.append([log.next()])))
        with hooked(lambda place: begun.set() if place == "append.written" else None):
            writer.start()
            assert begun.wait(20)
            store.renew(ME)
        assert verdicts == []
    writer.join(20)
    assert verdicts == [None]


def test_a_store_that_was_restored_under_a_process_is_refused_when_it_connects_again(postgres, name):
    store, restored = postgres(), postgres()
    recorded(store)
    restored.queues.renew_generation()
    assert store.run("r1").status == "pending"
    execute(
        shared_url(),
        f"select pg_terminate_backend({store._database._writer.connection.info.backend_pid}, 60000)",  # and wait until it is gone
    )
    with raises(StoreUnusable, "restored from a backup", "Restart this process"):
        recorded(store, "r2")
    recorded(restored, "r2")
    assert postgres().generation == restored._database.generation


def test_a_postgres_store_of_the_first_version_gets_queues(postgres, name):
    execute(
        shared_url(),
        f'create schema "{name}"',
        schema.migrations("postgres", name)[0],
        f"insert into \"{name}\".meta (name, value) values ('schema_version', '1')",
        f'insert into "{name}".runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at,'
        " fingerprint, state_version, fence) values ('r1', 'flow', '', '{}', 1, 'pending', 1, '', 1, 'print', 1, 0)",
    )
    store = postgres()
    assert [(run.queue, run.priority) for run in store.runs(Query())] == [("default", 0)]
    assert [one.lease.run_id for one in store.queues.take(ME, ONE)] == ["r1"]


def test_a_take_ends_a_transaction_that_was_suspended_in_the_middle_of_a_pipeline_and_keeps_runs_locked(
    tmp_path,
):
    name = schema_for(tmp_path)
    store = PostgresStore(shared_url(), schema=name)
    store._database._bounds = (store._database._bounds[0], "0s")  # how long it may be suspended
    assert store.append([Log("r1").create(status="pending")]) == [None]
    with psycopg.connect(shared_url(), autocommit=True) as suspended:
        session = suspended.pgconn
        session.enter_pipeline_mode()
        session.send_query_params(b"begin", None)
        session.send_query_params(f'select from "{name}".runs for update'.encode(), None)
        session.send_flush_request()
        session.flush()
        of_it = f"select state, wait_event from pg_stat_activity where pid = {suspended.info.backend_pid}"
        while execute(shared_url(), of_it) != [("active", "ClientRead")]:
            pass
        assert store.queues.take(ME, ONE) == []
        while execute(shared_url(), of_it):
            pass
        assert [one.lease.run_id for one in store.queues.take(ME, ONE)] == ["r1"]
        session.finish()
    store.close()
    drop_schema(shared_url(), name)
