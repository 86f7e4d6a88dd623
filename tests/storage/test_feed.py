"""The feeds of all stores: what followers read."""

from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.feed import FeedConformance
from postgres_server import lend_schema, return_schema, shared_url


class TestMemoryFeed(FeedConformance):
    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteFeed(FeedConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)


class TestPostgresFeed(FeedConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(shared_url(), self.folder)
