"""Faults of the PostgreSQL store: a server that is away for a moment, transactions that give way, forks, odd names."""

import re

import psycopg
import pytest
from psycopg import errors as pg

from holdfast.errors import CodecError, RunNotFound, StoreBusy, StoreError, StoreUnusable
from holdfast.storage.contract import Holder
from holdfast.storage.postgres import database
from holdfast.storage.postgres.database import PostgresDatabase, Session
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.storage.upkeep import WHOLE
from holdfast.testing.appends import Log, delete_run, hooked
from postgres_server import drop_schema, execute, shared_url

ME = Holder(id="me", ttl_s=30.0)


@pytest.fixture
def name(request):
    name = "b_" + re.sub(r"\W+", "_", request.node.name.lower())[-50:].strip("_")
    yield name
    drop_schema(shared_url(), name)


@pytest.fixture
def store(name):
    store = PostgresStore(shared_url(), schema=name)
    yield store
    store.close()


def raising(fault):
    def call(*asked, **named):
        raise fault

    return call


# --- opening and closing -----------------------------------------------------------------------------


def test_a_server_that_is_only_busy_at_the_door_is_told_so(name, monkeypatch):
    busy = StoreBusy("the database system is starting up")
    monkeypatch.setattr(PostgresDatabase, "connect", raising(busy))
    with pytest.raises(StoreBusy, match="starting up"):
        PostgresStore(shared_url(), schema=name)


def test_a_schema_whose_table_of_versions_is_empty_is_another_programs(name):
    execute(shared_url(), f"create schema {name}", f"create table {name}.meta (name text, value text)")
    with pytest.raises(StoreUnusable, match="contains tables of another program"):
        PostgresStore(shared_url(), schema=name)


def test_a_set_up_that_fails_is_told_in_our_own_words(store):
    with pytest.raises(StoreError, match="does not exist"):
        store._database.set_up(lambda transaction: transaction.do_text("select * from nothing_of_this_name"))


def test_a_store_of_the_process_before_a_fork_is_refused_and_its_connections_are_left_alone(store):
    ear = store.queues._listener
    store._database._forks -= 1
    ear._forks -= 1
    with pytest.raises(StoreUnusable, match="opened before this process was forked"):
        store.now()
    ear.ring()
    ear.close()
    store._database.close()
    store._database._forks += 1
    ear._forks += 1
    assert store.now() > 0


def test_a_connection_that_turns_out_to_be_unfit_is_closed(store, monkeypatch):
    made = []
    connect = psycopg.Connection.connect

    def remember(*asked, **named):
        made.append(connect(*asked, **named))
        return made[-1]

    monkeypatch.setattr(psycopg.Connection, "connect", remember)
    monkeypatch.setattr(PostgresDatabase, "_require_same_store", raising(StoreUnusable("another one")))
    with pytest.raises(StoreUnusable, match="another one"):
        store._database.connect()
    monkeypatch.setattr(PostgresDatabase, "_require_same_store", raising(pg.UndefinedTable("gone")))
    with pytest.raises(StoreError, match="gone"):
        store._database.connect()
    assert [connection.closed for connection in made] == [True, True]


# --- in use ------------------------------------------------------------------------------------------


def test_the_time_goes_on_while_the_server_is_away(store):
    before = store.now()
    store._time.is_stale = lambda: True
    store._database.read = raising(StoreBusy("away"))
    assert store.now() >= before


def test_one_who_hears_keeps_others_waiting_only_as_long_as_they_want(store):
    ear = store.queues._listener
    with ear._hearing:
        assert ear.hear(0.0) is False


def test_who_finds_every_offer_taken_gives_up_after_a_few_tries(store):
    store.append([Log("r1").create()])
    store.renew(ME)
    tries = []

    def missed(session, *, holder, offers, fates, limit):
        tries.append(offers)
        return [], True

    store.queues._take = missed
    assert store.queues.take(ME, Wanted(flows=("flow",), limit=1)) == []
    assert len(tries) > 1


def test_a_statement_that_cannot_be_kept_or_fails_is_told_in_our_own_words(store):
    store._database.sql["echo"] = "select $1::text"
    with pytest.raises(CodecError, match="cannot be stored"):
        store._database.change("echo", "\ud800")
    store._database.sql["broken"] = "selekt"
    with pytest.raises(StoreError, match="defect in Holdfast"):
        store._database.change("broken")
    with pytest.raises(StoreError, match="defect in Holdfast"):
        store._database.write_alone("broken")


def test_a_question_is_asked_again_on_another_connection_when_one_is_lost(store, monkeypatch):
    ask, faults = store._database._ask_once, [psycopg.OperationalError("lost")]

    def once(query, values):
        if faults:
            raise faults.pop()
        return ask(query, values)

    monkeypatch.setattr(store._database, "_ask_once", once)
    assert store._database.change("time") != []


def test_a_connection_that_is_left_in_a_transaction_is_not_used_again(store):
    connection = store._database.connect()
    connection.execute("begin")
    store._database._give_back(connection)
    assert connection.closed
    assert database._is_stale(connection)


def raise_or(faults, value):
    if faults:
        raise faults.pop()
    return value


def test_a_transaction_that_must_give_way_is_tried_again_and_not_for_ever(store):
    faults = [pg.DeadlockDetected("give way"), pg.SerializationFailure("give way")]
    assert (
        store._database._try_steps(store._database._writer, lambda session: raise_or(faults, "kept"))
        == "kept"
    )
    many = [pg.DeadlockDetected("give way")] * 100
    with pytest.raises(StoreBusy):
        store._database.write("renew", lambda session: raise_or(many, "never"))


def test_a_commit_that_the_server_turned_into_a_rollback_is_no_commit(store):
    class Rolled:
        statusmessage = "ROLLBACK"

    def steps(session: Session):
        with session.transaction() as transaction:
            commit = transaction.commit
            transaction.commit = lambda: (commit(), Rolled())[1]

    with pytest.raises(StoreError, match="was not committed"):
        store._database.write("renew", steps)


def test_a_fault_before_the_first_statement_leaves_nothing_to_roll_back(store):
    class Fault(Exception):
        pass

    def steps(session: Session):
        with session.transaction(pipelined=False) as transaction:
            transaction.do("rollback")
            raise Fault

    with pytest.raises(Fault):
        store._database.write("renew", steps)
    store.renew(ME)


# --- upkeep ------------------------------------------------------------------------------------------


def test_two_who_sweep_at_once_do_not_hinder_each_other(store):
    store.append([Log("r1").create()])
    assert not store.upkeep.delete({"r1": 1})
    reached, swept = [], []

    def another(name):
        reached.append(name)
        if reached == ["sweep.before"]:
            swept.append(store.upkeep.sweep())

    with hooked(another):
        assert store.upkeep.sweep() == 0
    assert swept == [1]


def test_a_whole_run_that_is_adopted_is_trimmed_by_nothing(store):
    store.append([Log("r1").create()])
    store.upkeep.adopt("r1", WHOLE, {"f": b"{}"})
    assert store.definition("f") == b"{}"
    assert store.run("r1").seq == 1


def test_a_run_whose_name_no_store_can_hold_is_not_there(store):
    with pytest.raises(RunNotFound):
        delete_run(store, "\ud800", 1)
