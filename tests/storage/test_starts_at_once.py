"""Two processes that open a new store, or an older one, at once: one lifts it, the other waits and finds it done. The second
comes exactly when the first has looked and not yet written.
"""

import threading

import pytest

from holdfast.storage import schema
from holdfast.storage.contract import Query
from holdfast.storage.postgres import setup
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.database import SqliteDatabase
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log
from postgres_server import drop_schema, execute, schema_for, shared_url

PATIENCE_S = 60
WAITS = """
select count(*) from pg_locks where locktype = 'advisory' and not granted
and (classid::bigint << 32) | objid::bigint = hashtextextended('holdfast {name}', 0)
"""


class Second:
    """Opens the same store in a thread of its own."""

    def __init__(self, open_one):
        self._open = open_one
        self.store = None
        self.error = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        try:
            self.store = self._open()
        except BaseException as error:
            self.error = error

    def ended(self):
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "it waits for ever"
        if self.error is not None:
            raise self.error
        return self.store


@pytest.fixture
def name(tmp_path):
    yield schema_for(tmp_path)
    drop_schema(shared_url(), schema_for(tmp_path))


def works(store, run_id):
    assert store.append([Log(run_id).create()]) == [None]
    assert store.run(run_id).seq == 1


@pytest.mark.parametrize("version", [0, 1], ids=["new", "of an older version"])
def test_the_second_start_on_postgresql_waits_until_the_first_has_lifted_the_schema(
    name, version, monkeypatch
):
    if version:
        made = schema.migrations("postgres", name)[:version]
        meta = f"update {name}.meta set value = '{version}' where name = 'schema_version'"
        insert = f"insert into {name}.meta (name, value) values ('schema_version', '{version}') on conflict do nothing"
        execute(shared_url(), f"create schema {name}", *made, insert, meta)
    second = Second(lambda: PostgresStore(shared_url(), schema=name))
    look = setup._version
    looks = []

    def looked(address, transaction, known):
        found = look(address, transaction, known)
        looks.append(found)
        if len(looks) == 1:
            second.thread.start()
            # Whoever asks for the lock is seen there; whoever does not has looked, or is done.
            while (
                execute(shared_url(), WAITS.format(name=name)) == [(0,)]
                and len(looks) == 1
                and second.thread.is_alive()
            ):
                pass
            assert len(looks) == 1, "both have looked, and both lift it"
            assert second.thread.is_alive(), "the second did not wait"
        return found

    monkeypatch.setattr(setup, "_version", looked)
    first = PostgresStore(shared_url(), schema=name)
    try:
        other = second.ended()
        try:
            assert looks == [version, len(schema.migrations("postgres"))]
            assert first.generation == other.generation
            works(first, "a")
            works(other, "b")
            assert {row.run_id for row in first.runs(Query())} == {"a", "b"}
        finally:
            other.close()
    finally:
        first.close()


def test_the_second_start_on_sqlite_finds_the_file_lifted_and_lifts_nothing(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    look = SqliteDatabase._version
    opened, looks = [], []

    def looked(self, connection, known):
        found = look(self, connection, known)
        looks.append(found)
        if len(looks) == 1:  # it has seen that there is nothing, and has not yet taken the lock
            opened.append(SqliteStore(path))
        return found

    monkeypatch.setattr(SqliteDatabase, "_version", looked)
    first = SqliteStore(path)
    opened.append(first)
    try:
        known = len(schema.migrations("sqlite"))
        assert looks[0] == 0
        assert looks[-1] == known
        assert opened[0].generation == first.generation
        for number, store in enumerate(opened):
            works(store, f"r{number}")
    finally:
        for store in opened:
            store.close()
