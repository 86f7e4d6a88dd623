from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.conformance import StoreConformance


class TestSqliteStore(StoreConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)
