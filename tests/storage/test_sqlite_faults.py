"""Faults of the SQLite store: files that vanish, statements that fail where they hardly ever do."""

import os
import sys

import apsw
import pytest

from holdfast.errors import (
    RunNotFound,
    StoreBusy,
    StoreError,
    StorePoisoned,
    StoreUnusable,
)
from holdfast.storage import schema
from holdfast.storage.contract import Holder
from holdfast.storage.sqlite import upkeep as sqlite_upkeep
from holdfast.storage.sqlite.database import SqliteDatabase
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.upkeep import WHOLE
from holdfast.testing.appends import Log, delete_run, hooked

ME = Holder(id="me", ttl_s=30.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


def execute(path, *statements):
    connection = apsw.Connection(str(path))
    for statement in statements:
        found = connection.execute(statement).fetchall()
    connection.close()
    return found


class Failing:
    """A cursor that fails at statements with this word."""

    def __init__(self, cursor, word, fault):
        self._cursor = cursor
        self._word = word
        self._fault = fault

    def execute(self, sql, *values):
        if self._word in sql:
            raise self._fault
        return self._cursor.execute(sql, *values)

    def __getattr__(self, name):
        return getattr(self._cursor, name)


# --- opening -----------------------------------------------------------------------------------------


def test_a_store_whose_second_connection_fails_leaves_none_open(path, monkeypatch):
    SqliteStore(path).close()
    connect, made = SqliteDatabase.connect, []

    def connect_once(self, **options):
        if made:
            raise apsw.CantOpenError("too many files")
        made.append(connect(self, **options))
        return made[0]

    monkeypatch.setattr(SqliteDatabase, "connect", connect_once)
    with pytest.raises(StoreUnusable, match="too many files"):
        SqliteStore(path)
    with pytest.raises(apsw.ConnectionClosedError):
        made[0].execute("select 1")


def test_a_store_that_has_lost_a_table_is_refused_and_closed(path):
    SqliteStore(path).close()
    execute(path, "drop table meta")
    with pytest.raises(StoreError, match="meta"):
        SqliteStore(path)
    assert not os.path.exists(f"{path}-wal")


def test_a_migration_that_fails_leaves_the_store_as_it_was(path, monkeypatch):
    SqliteStore(path).close()
    before = execute(path, "pragma user_version", "select sql from sqlite_schema order by name")
    known = schema.migrations("sqlite")
    monkeypatch.setattr(
        schema, "migrations", lambda dialect: [*known, "create table more (x); create nonsense"]
    )
    with pytest.raises(StoreError, match="nonsense"):
        SqliteStore(path)
    assert execute(path, "pragma user_version", "select sql from sqlite_schema order by name") == before


def test_turning_a_file_to_wal_waits_its_turn_and_gives_up_in_the_end(store):
    class Busy:
        executed = 0

        def pragma(self, *asked):
            raise apsw.BusyError("somebody else turns it")

        def execute(self, sql):
            self.executed += 1

    busy = Busy()
    with pytest.raises(apsw.BusyError):
        store._database._use_wal(busy)
    assert busy.executed == 2 * 99


def test_a_file_system_without_a_write_ahead_log_is_refused(store):
    class Old:
        def pragma(self, *asked):
            return "delete"

    with pytest.raises(StoreUnusable, match="cannot keep a write-ahead log"):
        store._database._use_wal(Old())


def test_on_a_mac_every_sync_reaches_the_disk(path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    store = SqliteStore(path)
    assert store._database._writer.pragma("fullfsync") == 1
    assert store._database._writer.pragma("checkpoint_fullfsync") == 1
    store.close()


# --- in use ------------------------------------------------------------------------------------------


def test_a_store_of_the_process_before_a_fork_is_refused_and_its_connections_are_left_alone(store):
    store._database._forks -= 1
    with pytest.raises(StoreUnusable, match="opened before this process was forked"):
        store.now()
    store.close()
    store._database._forks += 1
    assert store.now() > 0


def test_a_transaction_that_cannot_be_rolled_back_ends_all_writing(store):
    store.renew(ME)
    whole = store._database.cursor
    store._database.cursor = Failing(whole, "rollback", apsw.IOError("gone"))
    with pytest.raises(RunNotFound):
        store.claim("nobody", ME)
    store._database.cursor = whole
    with pytest.raises(StorePoisoned, match="could not be rolled back"):
        store.renew(ME)


def test_a_file_that_cannot_be_opened_again_is_told_of(store, path):
    os.unlink(path)
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        store.check()
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        store.upkeep.facts()


def test_who_looks_for_news_is_told_that_the_database_is_busy(store):
    store._database.cursor = Failing(store._database.cursor, "data_version", apsw.BusyError("locked"))
    with pytest.raises(StoreBusy):
        store._database.version_of_others()
    store._database.cursor = store._database.cursor._cursor


def test_a_fault_that_nobody_foresaw_is_called_a_defect(store):
    assert "defect in Holdfast" in str(store._database._fault(apsw.MisuseError("what?")))


def test_a_log_of_the_database_that_is_not_there_is_no_news(store, path):
    store.queues._log = f"{path}-gone"
    assert store.queues._look() is None
    assert sqlite_upkeep._size(f"{path}-gone") == 0


# --- upkeep ------------------------------------------------------------------------------------------


def test_two_who_sweep_at_once_do_not_hinder_each_other(store):
    store.append([Log("r1").create(), Log("r2").create()])
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


def test_a_backup_to_a_place_that_cannot_be_is_refused_and_blames_the_place(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="The store itself is intact"):
        store.upkeep.backup(str(tmp_path / "file" / "copy.db"))


def test_a_run_whose_name_no_store_can_hold_is_not_there(store):
    with pytest.raises(RunNotFound):
        delete_run(store, "\ud800", 1)
