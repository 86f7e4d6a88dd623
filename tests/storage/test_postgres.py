import psycopg

from holdfast.storage.postgres.store import PostgresStore
from holdfast.testing.blobs import BlobsConformance
from holdfast.testing.conformance import StoreConformance
from postgres_server import lend_schema, return_schema, shared_url


class TestPostgresStore(StoreConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(shared_url(), self.folder)


class TestPostgresBlobs(BlobsConformance):
    def open(self, folder):
        store = PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder))
        self.opened.append(store)
        return store.blobs

    def setup_method(self):
        self.opened = []
        super().setup_method()

    def teardown_method(self):
        super().teardown_method()
        for store in self.opened:
            store.close()
        return_schema(shared_url(), self.folder)

    def alter(self, digest, change):
        blobs = f'"{lend_schema(shared_url(), self.folder)}".blobs'
        with psycopg.connect(shared_url()) as connection:
            (stored,) = connection.execute(f"select body from {blobs} where digest = %s", [digest]).fetchone()
            connection.execute(f"update {blobs} set body = %s where digest = %s", [change(stored), digest])
