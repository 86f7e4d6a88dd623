"""The PostgreSQL store and its server: what is refused at the door, what happens when connections and servers die, and what an
administrator sees in the tables.
"""

import os
import re
import select
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from cutting_proxy import CuttingProxy
from holdfast.errors import (
    CodecError,
    FenceLost,
    RunHeld,
    RunNotFound,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    StoreUnusable,
)
from holdfast.storage import rows, schema, verdicts
from holdfast.storage.contract import Holder, Lease, Query, Request, Snapshot
from holdfast.storage.postgres import setup
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.server_time import LOOK_S, DatabaseTime
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.urls import open_store as open_url
from holdfast.testing.appends import Log, Time, hooked, in_threads, raises
from postgres_server import PostgresServer, execute

ME = Holder(id="me", ttl_s=30.0)
SECRET = "ge:heim%40/ +"
ENCODED = "ge%3Aheim%2540%2F%20%2B"


@pytest.fixture(scope="module")
def server():
    own = PostgresServer()
    own.execute(
        f"create role guarded login password '{SECRET}'",
        "create role locked_out login",
        "create role poor login",
    )
    yield own
    own.remove()


@pytest.fixture
def name(request):
    return "s_" + re.sub(r"\W+", "_", request.node.name.lower())[-50:].strip("_")


@pytest.fixture
def open_store(server, name):
    opened = []

    def open_one(url=None, **options):
        store = PostgresStore(url or server.url(), schema=name, **options)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def started(store, run_id="r1", **changes):
    """A log that `ME` holds."""
    store.renew(ME)
    log = Log(run_id, holder=ME.id, fence=1)
    write(store, log, **changes)
    return log


def write(store, log, *bodies, **changes):
    append = (log.next if log.seq else log.create)(*bodies, **changes)
    assert store.append([append]) == [None]
    log.wrote(append)
    return append


def server_query(server, sql):
    return [row[0] for row in execute(server.url(), sql)]


def kill_backends(server):
    server.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'"
    )


# --- who is not let in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("postgresql://guarded:x{secret}@/postgres?host={folder}", ("user and password", "PGPASSWORD")),
        ("postgresql://guarded@/postgres?host={folder}", ("user and password", "PGPASSWORD")),
        ("postgresql://nobody_here:{secret}@/postgres?host={folder}", ("user and password",)),
        ("postgresql://locked_out:{secret}@/postgres?host={folder}", ("pg_hba.conf", "administrator")),
        ("postgresql://postgres:{secret}@/nowhere?host={folder}", ("no such database", "createdb")),
        ("postgresql://me:{secret}@127.0.0.1:1/db", ("cannot be reached", "127.0.0.1", "host, port")),
        ("postgresql://me:{secret}@no.such.host.invalid/db", ("cannot be reached", "no.such.host.invalid")),
        ("postgresql://me:{secret}@/db?host=/nowhere&connect_timeout=1", ("cannot be reached", "/nowhere")),
        ("postgresql://poor:{secret}@/postgres?host={folder}", ("permission", "grant")),
    ],
)  # fmt: skip
def test_whoever_is_not_let_in_is_told_why_and_what_to_do_without_the_password(server, url, parts):
    with pytest.raises(StoreUnusable) as refusal:
        PostgresStore(url.format(folder=server.folder, secret=ENCODED), schema="refused")
    for part in parts:
        assert part in str(refusal.value)
    assert "heim" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:ge@heim@host/db", "postgresql://me:ge/heim@host/db", "postgresql://me:ge?heim@host/db",
        "postgresql://me:ge#heim@host/db", "postgresql://me:12?heim@host/db", "postgresql://me:12/heim@host/db",
        "postgresql://me:%geheim@host/db", "postgresql://host:geheim/db", "postgresql:/geheim", "postgresql://host/db/geheim",
        "postgresql://me:pw@host/db?geheim", "postgresql://me:pw@host/db?unheimlich=geheim",
        "postgresql://me:pw@host/db?unsafe=geheim",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url):
    with pytest.raises(SettingError) as refusal:
        open_url(url)
    said = "".join(traceback.format_exception(refusal.value))
    assert "geheim" not in said.replace("unheimlich=geheim", "")
    assert "PostgreSQL" in str(refusal.value)


@pytest.mark.parametrize("name", ["", "Upper", "a-b", 'a"b', "pg_mine", "1st", "x" * 64, "a b"])
def test_a_schema_that_cannot_be_is_refused(name):
    with pytest.raises(SettingError, match="cannot be the schema"):
        PostgresStore("postgresql://host/db", schema=name)


def test_a_password_lets_in_and_is_never_told(server, name):
    server.execute("grant create on database postgres to guarded")
    store = PostgresStore(f"postgresql://guarded:{ENCODED}@/postgres?host={server.folder}", schema=name)
    store.renew(ME)
    try:
        with pytest.raises(RunNotFound) as unknown:
            store.run("r1")
        told = [store.url, repr(store), repr(store._database.address), str(unknown.value), store.blobs.where]
        assert not [text for text in told if "heim" in text]
        assert store.url == f"postgresql://guarded@/postgres?host={server.folder}&schema={name}"
    finally:
        store.close()


def test_secret_options_are_not_part_of_the_url_and_others_are():
    address = Address(
        "postgres://me:pw@a:1,[::1]:2/d%20b?password=geheim&sslpassword=geheim&sslmode=require&unsafe=1"
    )
    assert address.url == "postgresql://me@a:1,[::1]:2/d%20b?sslmode=require&unsafe=1"
    assert "pw" not in repr(address)
    assert "password=geheim" in address.conninfo
    assert Address(address.url).url == address.url


def test_a_store_url_opens_a_postgres_store_in_its_schema(server, name):
    store = open_url(server.url(schema=name))
    try:
        assert store.url == server.url(schema=name)
        assert abs(store.now() - time.time()) < 60
        assert server_query(server, f"select count(*) from {name}.runs") == [0]
    finally:
        store.close()


def test_a_missing_driver_says_which_extra_to_install():
    ask = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from holdfast.storage.urls import open_store\n"
        "open_store(sys.argv[1])"  # a traceback shows the lines of the program
    )
    url = "postgresql://me:geheim@host/db"
    done = subprocess.run([sys.executable, "-c", ask, url], capture_output=True, text=True, check=False)
    assert "holdfast[postgres]" in done.stderr.splitlines()[-1]
    assert "geheim" not in done.stderr


# --- servers and schemas that are refused ------------------------------------------------------------


def test_a_server_that_does_not_wait_for_its_disk_is_refused_unless_told_otherwise(server, name):
    server.execute("create database lax", "alter database lax set synchronous_commit = off")
    url = server.url(database="lax")
    with pytest.raises(StoreUnusable, match=r"synchronous_commit is off.*unsafe=1"):
        PostgresStore(url, schema=name)
    for number, accepted in enumerate(
        (PostgresStore(url, schema=name, unsafe=True), PostgresStore(url + "&unsafe=1", schema=name))
    ):
        log = started(accepted, f"r{number}")
        write(accepted, log)
        assert "unsafe=1" in accepted.url
        accepted.close()


def test_durability_is_looked_at_in_the_transaction_that_commits(server, open_store):
    store = open_store()
    log = started(store)
    server.execute("alter system set synchronous_commit = off", "select pg_reload_conf()")
    try:
        until_refused(lambda: write(store, log))
        for use in (
            lambda: store.append([log.next()]),
            lambda: store.append([Log("a").create(), Log("b").create()]),
            lambda: store.claim("r1", ME),
            lambda: store.renew(ME),
            lambda: store.release("r1", ME.id, 1),
            lambda: store.post("r1", Request(id="q", verb="cancel")),
        ):
            with raises(StoreUnusable, "synchronous_commit is off", "Nothing was written"):
                use()
        assert (store.run("r1").seq, store.run("r1").fence, len(store.runs(Query()))) == (log.seq, 1, 1)
    finally:
        server.execute("alter system reset synchronous_commit", "select pg_reload_conf()")
    until_accepted(store, log)


def until_refused(use):
    """The server tells its processes of new settings one by one."""
    for _ in range(10_000):
        try:
            use()
        except StoreUnusable:
            return
    raise AssertionError("never refused")


def until_accepted(store, log):
    for _ in range(10_000):
        try:
            write(store, log)
        except StoreUnusable:
            continue
        return
    raise AssertionError("never accepted again")


def test_fsync_off_a_replica_and_an_old_server_are_refused(server):
    address = Address(server.url())
    fit = (160_000, False, "on", "on", "UTF8")
    setup.require_fit(address, fit)
    for place, fact, said in (
        (0, 130_012, "PostgreSQL 13"), (1, True, "replica"), (2, "off", "fsync is off"), (4, "LATIN1", "encoding is LATIN1"),
    ):  # fmt: skip
        with raises(StoreUnusable, said):
            setup.require_fit(address, (*fit[:place], fact, *fit[place + 1 :]))


def test_a_real_replica_is_refused():
    replica = PostgresServer()
    try:
        replica.stop()
        (replica.folder / "data" / "standby.signal").touch()
        replica.start()
        with raises(StoreUnusable, "is a replica", "primary"):
            PostgresStore(replica.url())
    finally:
        replica.remove()


def test_a_real_server_with_fsync_off_is_refused():
    lax = PostgresServer(fsync="off")
    try:
        with raises(StoreUnusable, "fsync is off"):
            PostgresStore(lax.url())
        PostgresStore(lax.url(), unsafe=True).close()
    finally:
        lax.remove()


def test_a_newer_schema_is_refused_and_left_alone(server, name, open_store):
    open_store()
    server.execute(f"update {name}.meta set value = '99' where name = 'schema_version'")
    with raises(SchemaTooNew, "version 99", name):
        open_store()
    assert server_query(server, f"select value from {name}.meta where name = 'schema_version'") == ["99"]


def test_tables_of_another_program_are_left_alone(server, name, open_store):
    server.execute(f"create schema {name}", f"create table {name}.customers (id int)")
    with raises(StoreUnusable, "another program", "customers", "schema="):
        open_store()
    assert server_query(
        server, f"select count(*) from pg_class where relnamespace = '{name}'::regnamespace"
    ) == [1]


def test_a_schema_that_an_administrator_made_is_used(server, name):
    server.execute(f"create schema {name} authorization poor")
    store = PostgresStore(server.url(user="poor"), schema=name)
    started(store)
    store.close()


def test_tables_that_went_away_are_named(server, name, open_store):
    store = open_store()
    server.execute(f"drop schema {name} cascade")
    for use in (lambda: store.renew(ME), lambda: store.runs(Query())):
        with raises(StoreUnusable, "tables have changed"):
            use()


def test_many_processes_that_open_a_new_store_at_once_make_it_once(server, name):
    ask = (
        "import sys; from holdfast.storage.postgres.store import PostgresStore; from holdfast.testing.appends import Log\n"
        "print('ready', flush=True); input()\n"
        "store = PostgresStore(sys.argv[1], schema=sys.argv[2]); print(store.append([Log(sys.argv[3]).create()])); store.close()"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", ask, server.url(), name, f"r{number}"], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in range(6)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == ["[None]\n"] * 6
    assert server_query(server, f"select count(*) from {name}.runs") == [6]
    assert server_query(server, f"select count(*) from {name}.meta where name = 'generation'") == [1]


# --- connections and servers that die ----------------------------------------------------------------


def test_a_connection_that_was_dropped_between_two_verbs_is_replaced_unnoticed(server, open_store):
    store = open_store()
    log = started(store)
    for use in (
        lambda: write(store, log),
        lambda: store.renew(ME),
        lambda: store.post("r1", Request(id="q", verb="cancel")),
        lambda: store.run("r1"),
        lambda: store.blobs.spill("r1", "a", b"x"),
        lambda: store.claim("r1", ME),
    ):
        kill_backends(server)
        wait_until_closed(store)
        use()
    assert store.run("r1").seq == log.seq


def wait_until_closed(store):
    """What the server says at the end of a connection arrives a moment later."""
    for connection in (store._database._writer.connection, *store._database._idle):
        if connection is not None:
            assert select.select([connection.pgconn.socket], [], [], 10)[0]


def test_a_connection_that_dies_before_an_append_is_sent_leaves_nothing(server, open_store):
    store = open_store()
    log = started(store)
    for append in (log.next(b"lone"), log.next(b"with more", snapshots=(Snapshot(2, b"s"),))):

        def kill(place):
            if place == "append.written":
                kill_backends(server)

        with hooked(kill), raises(StoreBusy, "is unknown"):
            store.append([append])
        assert not store.appended("r1", 2, append.rows[0].salt)
    write(store, log)


@pytest.mark.parametrize("direction", ["to_server", "from_server"])
@pytest.mark.parametrize("kind", ["lone", "batch"])
def test_a_connection_cut_at_any_byte_of_an_append_loses_and_repeats_nothing(
    server, open_store, direction, kind
):
    """What the engine does with an unknown outcome: look it up by the id of the append, then write it if it is not there."""
    with CuttingProxy(server.folder) as proxy:
        store = open_store(proxy.url())
        logs = [started(store, f"r{number}") for number in range(1 if kind == "lone" else 3)]
        kept = lost = 0
        for offset in offsets(direction, kind):
            appends = [log.next(b"%d" % offset) for log in logs]
            proxy.cut(direction, offset)
            try:
                store.append(appends)
            except StoreBusy:
                there = [store.appended(each.run_id, each.rows[0].seq, each.rows[0].salt) for each in appends]
                assert len(set(there)) == 1, "half a batch was kept"
                kept, lost = kept + there[0], lost + (not there[0])
                if not there[0]:
                    assert store.append(appends) == [None] * len(appends)
                cut = True
            else:
                proxy.cut(direction, None)
                cut = False
            for log, append in zip(logs, appends, strict=True):
                log.wrote(append)
        assert not cut, "the last cut was to be behind the end"
        assert kept if direction == "from_server" else lost
        for log in logs:
            events = store.events(log.run_id)
            assert rows.broken_at(log.run_id, events, after=0, digest=b"") is None
            assert [int(row.body) for row in events[1:]] == list(offsets(direction, kind))
        store.close()


def offsets(direction, kind):
    """Every few bytes, up to behind the end of what is sent."""
    if direction == "to_server":
        return range(0, 4200 if kind == "batch" else 1900, 97)
    return range(0, 900 if kind == "batch" else 120, 23 if kind == "batch" else 3)


def test_a_server_that_is_restarted_at_once_is_survived(server, open_store):
    store = open_store()
    log = started(store)
    for _ in range(3):
        server.restart("immediate")
        write(store, log)
    server.stop("immediate")
    before = store.now()
    for use in (lambda: store.append([log.next()]), lambda: store.run("r1"), lambda: store.renew(ME)):
        with raises(StoreBusy, "cannot be reached"):
            use()
    assert store.now() >= before
    server.start()
    assert store.run("r1").seq == log.seq
    write(store, log)
    assert rows.broken_at("r1", store.events("r1"), after=0, digest=b"") is None


def test_a_run_that_somebody_keeps_locked_is_busy_and_not_waited_for_for_ever(server, name, open_store):
    store = open_store(busy_timeout_s=0.05)
    log = started(store)
    with psycopg.connect(server.url()) as holder:
        holder.execute(f"select 1 from {name}.runs for update")
        for use in (
            lambda: store.append([log.next()]),
            lambda: store.append([log.next(), Log("r2").create()]),
            lambda: store.claim("r1", ME),
        ):
            with raises(StoreBusy, "pg_stat_activity"):
                use()
    write(store, log)


def test_nobody_takes_a_run_over_once_a_batch_is_being_judged(server, name, open_store, monkeypatch):
    store, rival = open_store(), open_store(busy_timeout_s=0.05)
    logs = [started(store), started(store, "r2")]
    server.execute(f"update {name}.holders set expires_at = 0")
    judge, tried = verdicts.judge, []

    def take_over(append, **head):
        tried.append(append.run_id)
        with raises(StoreBusy):
            rival.claim(append.run_id, Holder(id="rival"))
        return judge(append, **head)

    monkeypatch.setattr(verdicts, "judge", take_over)
    assert store.append([log.next() for log in logs]) == [None, None]
    assert tried == ["r1", "r2"]
    assert rival.claim("r1", Holder(id="rival")) == Lease("r1", 2, 3)


def test_a_process_that_stands_still_within_a_batch_does_not_keep_others_out_for_ever(
    server, name, open_store, monkeypatch
):
    store, rival = open_store(), open_store(busy_timeout_s=0.05)
    log = started(store)
    server.execute(f"update {name}.holders set expires_at = 0")
    store._database._bounds = ("1s", "100ms")
    judge, leases = verdicts.judge, []

    def stand_still(append, **head):
        while not leases:
            with suppress(StoreBusy):
                leases.append(rival.claim("r1", Holder(id="rival")))
        return judge(append, **head)

    monkeypatch.setattr(verdicts, "judge", stand_still)
    append = log.next(snapshots=(Snapshot(2, b"s"),))
    with raises(StoreBusy):
        store.append([append])
    assert not store.appended("r1", 2, append.rows[0].salt)
    assert isinstance(store.append([append])[0], FenceLost)


def prepared(store):
    writer = store._database._writer.connection
    return [
        name for (name,) in writer.execute("select name from pg_prepared_statements order by 1").fetchall()
    ]


def test_a_session_keeps_nothing_but_the_statement_of_a_lone_append(open_store):
    """Nothing that a transaction sets stays: a pool may hand the next one to any session."""
    store = open_store()
    log = started(store)

    def settings():
        ask = "select name, setting from pg_settings where source = 'session' or name ~ 'search_path|_timeout' order by 1"
        return store._database._writer.connection.execute(ask).fetchall()

    before = settings()
    for _ in range(10):
        write(store, log)
        write(store, log, snapshots=(Snapshot(1, b"s"),))
        store.claim("r1", ME)
        log.fence += 1
    assert settings() == before
    assert prepared(store) == ["holdfast_append_one"]


@pytest.mark.parametrize("done_to_it", ["deallocate all", "discard all"])
def test_an_append_whose_statement_the_session_forgot_is_written_all_the_same(open_store, done_to_it):
    """Something between store and server that looks like no pool, and is one."""
    store = open_store()
    log = started(store)
    write(store, log)
    assert prepared(store) == ["holdfast_append_one"]
    store._database._writer.connection.execute(done_to_it)
    for _ in range(3):
        write(store, log)
    assert [row.seq for row in store.events("r1")] == list(range(1, log.seq + 1))
    assert prepared(store) == []


def test_an_append_is_written_where_the_session_has_another_statement_of_that_name(open_store):
    store = open_store()
    log = started(store)
    store._database._writer.connection.execute("prepare holdfast_append_one as select 1")
    write(store, log)
    write(store, log)
    assert [row.seq for row in store.events("r1")] == list(range(1, log.seq + 1))


def test_two_processes_that_write_the_same_runs_in_any_order_do_not_wait_in_a_circle(open_store):
    stores = [open_store(), open_store()]
    runs = [started(stores[0], f"r{number}").run_id for number in range(8)]
    verdicts = []

    def fight(store, order):
        for _ in range(25):
            batch = []
            for run_id in order:
                run = store.run(run_id)
                batch.append(Log(run_id, holder=ME.id, fence=1, seq=run.seq, digest=run.digest).next(b"1"))
            verdicts.extend(store.append(batch))

    in_threads(1, lambda: fight(stores[0], runs), lambda: fight(stores[1], runs[::-1]))
    written = sum(store is None for store in verdicts)
    assert sum(stores[0].run(run_id).seq - 1 for run_id in runs) == written > 0


def test_two_processes_that_create_the_same_runs_at_once_create_each_once(open_store):
    stores = [open_store() for _ in range(2)]
    together = threading.Barrier(2)
    made = []

    def create(store):
        for number in range(20):
            together.wait()
            batch = [Log(f"r{number}-{part}").create() for part in range(3)]
            made.extend(verdict is None for verdict in store.append(batch))

    in_threads(1, lambda: create(stores[0]), lambda: create(stores[1]))
    assert sum(made) == 60
    assert len(stores[0].runs(Query(limit=1000))) == 60


# --- values ------------------------------------------------------------------------------------------


def test_nul_and_numbers_out_of_range_are_refused_and_their_neighbours_are_written(open_store):
    store = open_store()
    log = started(store)
    for number, change in enumerate(
        ({"flow": "a\x00b"}, {"labels": {"x": "\x00"}}, {"state_version": 2**70}, {"error": "\x00"})
    ):
        verdicts = store.append(
            [Log(f"a{number}").create(), Log(f"b{number}").create(**change), Log(f"c{number}").create()]
        )
        assert [type(verdict) for verdict in verdicts] == [type(None), CodecError, type(None)]
        (verdict,) = store.append([log.next(error="\x00")])
        assert isinstance(verdict, CodecError)
    assert len(store.runs(Query())) == 9
    for request in (Request(id="\x00", verb="cancel"), Request(id="q", verb="cancel", reason="\x00")):
        with raises(CodecError):
            store.post("r1", request)
    with raises(CodecError):
        store.post("r1", Request(id="\x00", verb="cancel"), only_look=True)
    for use in (store.run, store.events, lambda run_id: store.claim(run_id, ME)):
        with raises(RunNotFound):
            use("a\x00b")
    write(store, log)


def test_long_labels_are_found(open_store):
    store = open_store()
    labels = {"x" * 5000: "y" * 9000, "short": "z"}
    write(store, Log("r1"), labels=labels)
    assert [run.run_id for run in store.runs(Query(labels=labels))] == ["r1"]
    assert store.run("r1").labels == labels


def test_a_log_that_disagrees_with_its_run_row_is_corrupt_and_its_neighbours_are_written(
    server, name, open_store
):
    store = open_store()
    log, other = started(store), started(store, "r2")
    write(store, log)
    server.execute(f"update {name}.runs set seq = 1 where run_id = 'r1'")
    stale = Log("r1", holder=ME.id, fence=1, seq=1)
    for batch in ([stale.next()], [other.next(b"1"), stale.next()]):
        verdict = store.append(batch)[-1]
        assert isinstance(verdict, StoreCorrupt)
        assert "holdfast verify" in str(verdict)
    assert store.run("r2").seq == 2


# --- time and leases ---------------------------------------------------------------------------------


def test_time_is_the_databases_whatever_the_clock_of_this_machine_says(server, open_store):
    local = Time(at=77.0)
    store = open_store(local=local)
    (database,) = server_query(server, "select extract(epoch from clock_timestamp())::float8")
    assert abs(store.now() - database) < 5
    local.pass_s(3)
    later = store.now()
    assert 2 < later - database < 8
    local.pass_s(-2)
    assert store.now() >= later


def test_reading_the_time_asks_the_server_once_in_a_while_only(open_store):
    local = Time()
    store = open_store(local=local)
    asked = []
    read = store._database.read
    store._database.read = lambda query, *values: asked.append(query) or read(query, *values)
    for _ in range(100):
        store.now()
        local.pass_s(LOOK_S / 50)
    assert asked == ["time"]


def test_time_never_goes_back_and_the_quickest_answer_is_believed():
    local = Time(at=0.0)
    kept = DatabaseTime(local)
    kept.hear(1000.0)
    kept.hear(999.0)  # an answer that was a second on its way
    assert kept.now() == 1000.0
    kept.hear(1000.5)
    assert kept.now() == 1000.5
    local.pass_s(LOOK_S)
    kept.hear(900.0)  # the server's clock was set back
    assert kept.now() == 1000.5
    local.pass_s(101)
    assert kept.now() == 1001.0


def test_leases_run_out_by_the_databases_clock(server, name, open_store):
    one, two = open_store(local=Time(at=0.0)), open_store(local=Time(at=10.0**9))
    started(one)
    rival = Holder(id="rival", ttl_s=30.0)
    with raises(RunHeld):
        two.claim("r1", rival)
    assert two.run("r1").held
    server.execute(f"update {name}.holders set expires_at = expires_at - 31")
    assert not one.run("r1").held
    assert two.claim("r1", rival).fence == 2


# --- what an administrator sees ----------------------------------------------------------------------


def test_events_can_be_asked_in_plain_sql(server, name, open_store):
    store = open_store()
    log = started(store)
    write(
        store,
        log,
        b'{"changes": {"draft": "About T-1"}}',
        rows.pack(b'{"long": "%s"}' % (b"x" * 5000)),
        b"",
        b"\xff",
        b'"\\u0000"',
    )
    found = execute(
        server.url(), f"select kind, node, body from {name}.events_json where run_id = 'r1' order by seq"
    )
    assert [body for _, _, body in found] == [{}, {"changes": {"draft": "About T-1"}}, None, None, None, None]
    draft = (
        f"select body->'changes'->>'draft' from {name}.events_json where kind = 'NodeCompleted' and seq = 2"
    )
    assert server_query(server, draft) == ["About T-1"]


def test_a_healthy_store_is_well_and_a_broken_index_is_told(server, name, open_store):
    store = open_store()
    assert store.check() == []
    server.execute(
        f"update pg_index set indisvalid = false where indexrelid = '{name}.runs_by_age'::regclass"
    )
    (fault,) = store.check()
    assert "runs_by_age" in fault
    assert "reindex" in fault


CATALOGUE = """
select table_name::text, column_name::text, concat_ws(' ', ordinal_position, data_type, collation_name, is_nullable, is_identity)
from information_schema.columns where table_schema = '{name}'
union all
select tablename::text, indexname::text, indexdef from pg_indexes where schemaname = '{name}'
union all
select relname::text, relkind::text, reloptions::text from pg_class where relnamespace = '{name}'::regnamespace
union all
select proname::text, '', pg_get_functiondef(oid) from pg_proc where pronamespace = '{name}'::regnamespace
union all
select attrelid::regclass::text, attname::text, attstorage::text
from pg_attribute join pg_class on pg_class.oid = attrelid where relnamespace = '{name}'::regnamespace
order by 1, 2, 3
"""


def test_the_schema_is_the_sum_of_the_migrations(server):
    def made_by(name, *scripts):
        server.execute(f"create schema {name}", *scripts)
        found = execute(server.url(), CATALOGUE.format(name=name))
        return [tuple((cell or "").replace(name, "") for cell in row) for row in found]

    written_down = (Path(schema.__file__).parent / "postgres" / "sql" / "schema.sql").read_text()
    one = made_by("sum_one", *schema.migrations("postgres", "sum_one"))
    two = made_by("sum_two", schema.within(written_down, "sum_two"))
    assert len(one) > 80
    assert one == two


def test_every_query_is_used():
    folder = Path(schema.__file__).parent
    source = (folder / "walks.py").read_text()
    source += "".join(file.read_text() for file in folder.glob("postgres/*.py"))
    unused = [query for query in schema.queries("postgres") if f'"{query}"' not in source]
    assert unused == []


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        ({}, "runs_by_age"),
        ({"flow": "f7"}, "runs_by_flow"),
        ({"parent": "p7"}, "runs_by_parent"),
        ({"status": ("failed",)}, "runs_by_status"),
        ({"status": ("failed", "running")}, "runs_by_status"),
        ({"flow": "f7", "status": ("failed", "running")}, "runs_by_flow"),
        ({"queue": "q7"}, "runs_by_queue"),
        ({"asks": True}, "runs_asking"),
        ({"labels": {"n": "7"}}, "labels_by_value"),
        ({"ids": ("r7",)}, "runs_run_id_key"),
        ({"prefix": "r7"}, "runs_run_id_key"),
        ({"created": (1.0, 2.0)}, "runs_by_age"),
    ],
)
def test_a_listing_goes_by_an_index(server, name, open_store, conditions, index):
    store = open_store()
    store.append([
        Log(f"r{number}").create(flow=f"f{number}", parent=f"p{number}", queue=f"q{number}", labels={"n": str(number)},
                                 created_at=float(number), asks=int(number % 50 == 0))
        for number in range(500)
    ])  # fmt: skip
    server.execute(f"analyze {name}.runs", f"analyze {name}.labels")
    store._database.sql["runs"] = "explain " + store._database.sql["runs"]
    plans = []
    read = store._database.read_joined
    store._database.read_joined = lambda parts, values: plans.extend(read(parts, values)) or []
    store.runs(Query(**conditions, limit=10))
    assert index in " ".join(line for (line,) in plans)


# --- the engine --------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
import holdfast as hf
from holdfast import END, START, Graph

graph = Graph("killed", dict)
witness, step = sys.argv[2], sys.argv[3]

def note(word):
    with open(witness, "a") as file:
        file.write(word + "\\n")

@graph.node
def first(state):
    note("first")
    return {"first": 1}

@graph.node
def second(state, ctx):
    note(f"second {ctx.attempt}")
    if step == "run":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"second": state["first"] + 1}

graph.edge(START, "first").edge("first", "second").edge("second", END)
flow = graph.compile()
if step == "run":
    hf.run(flow, {}, run_id="r1", store=sys.argv[1])
else:
    run = hf.resume("r1", store=sys.argv[1], flows=[flow])
    print(run.status, run.state)
"""


def test_a_killed_run_is_resumed_from_where_it_was(server, name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    witness = tmp_path / "witness"

    def play(step):
        command = [sys.executable, str(program), server.url(schema=name), str(witness), step]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=without_settings())

    assert play("run").returncode == -9
    resumed = play("resume")
    assert resumed.stdout == "completed {'first': 1, 'second': 2}\n", resumed.stderr
    assert witness.read_text().splitlines() == ["first", "second 1", "second 2"]


def test_a_run_goes_on_when_its_server_is_restarted_under_it(server, name, tmp_path):
    import holdfast as hf
    from holdfast import END, START, Graph

    graph = Graph("restarted", dict)
    done = []

    @graph.node
    def first(state):
        done.append("first")
        server.restart("immediate")
        return {"first": 1}

    @graph.node
    def second(state):
        done.append("second")
        server.stop("immediate")
        threading.Thread(target=server.start).start()  # what this node did has to wait to be recorded
        return {"second": 2}

    graph.edge(START, "first").edge("first", "second").edge("second", END)
    run = hf.run(graph.compile(), {}, run_id="r1", store=server.url(schema=name))
    assert (run.status, run.state, done) == ("completed", {"first": 1, "second": 2}, ["first", "second"])


def without_settings():
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
