"""Appends that change other runs, in all stores."""

from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.along import AlongConformance
from postgres_server import drop_schema, schema_for, shared_url


class TestMemoryAlong(AlongConformance):
    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteAlong(AlongConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)


class TestPostgresAlong(AlongConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=schema_for(folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        drop_schema(shared_url(), schema_for(self.folder))
