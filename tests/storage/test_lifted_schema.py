"""A newer Holdfast lifts a store while an older process uses it: the older one writes nothing more."""

from contextlib import closing

import apsw
import pytest

from holdfast.errors import SchemaTooNew
from holdfast.storage.contract import Holder
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import Wanted
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log, raises
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, execute, schema_for, shared_url

ME = Holder(id="me", ttl_s=600.0)
ONE = Wanted(flows=("flow",))
LIFTED = (SchemaTooNew, "was migrated to schema version 99", "knows versions up to", "newer version")


class Sqlite:
    """A store in a file, and the newer Holdfast that lifts it."""

    def __init__(self, folder, clock):
        self._path = folder / "runs.db"
        self.store = SqliteStore(self._path, clock=clock.now)

    def lift(self):
        with closing(apsw.Connection(str(self._path))) as newer:
            newer.pragma("user_version", 99)

    def remove(self):
        self.store.close()


class Postgres:
    """The same in a schema of a database."""

    def __init__(self, folder, clock):
        self._schema = schema_for(folder)
        self.store = PostgresStore(shared_url(), schema=self._schema, clock=clock.now)

    def lift(self):
        execute(
            shared_url(), f"update \"{self._schema}\".meta set value = '99' where name = 'schema_version'"
        )

    def remove(self):
        self.store.close()
        drop_schema(shared_url(), self._schema)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=[Sqlite, Postgres])
def place(request, tmp_path, clock):
    made = request.param(tmp_path, clock)
    yield made
    made.remove()


def recorded(store, run_id="r1"):
    log = Log(run_id)
    assert store.append([log.create(status="pending")]) == [None]
    return log


def test_a_renewal_finds_out_that_the_schema_was_lifted(place):
    recorded(place.store)
    place.store.renew(ME)
    place.lift()
    with raises(*LIFTED):
        place.store.renew(ME)


def test_a_lifted_store_gives_no_run_to_an_older_worker(place):
    recorded(place.store)
    place.lift()
    with raises(*LIFTED):
        place.store.queues.take(ME, ONE)
    with raises(*LIFTED):
        place.store.claim("r1", ME)
    assert (place.store.run("r1").fence, place.store.run("r1").holder) == (0, None)


def test_what_found_out_once_writes_nothing_more(place):
    recorded(place.store)
    place.lift()
    for _ in range(2):
        with raises(*LIFTED):
            place.store.renew(ME)
    with raises(*LIFTED):
        recorded(place.store, "r2")
    with raises(*LIFTED):
        place.store.release("r1", "me", 1)
    assert place.store.run("r1").seq == 1


def test_an_append_to_a_lifted_file_is_refused_within_a_moment(tmp_path, clock):
    place = Sqlite(tmp_path, clock)
    recorded(place.store)
    place.lift()
    clock.advance(1.0)
    for _ in range(2):  # the second one too, at the same time of the clock
        with raises(*LIFTED):
            recorded(place.store, "r2")
    place.remove()


def test_an_append_over_a_new_connection_to_a_lifted_schema_is_refused(tmp_path, clock):
    place = Postgres(tmp_path, clock)
    recorded(place.store)
    place.lift()
    pid = place.store._database._writer.connection.info.backend_pid
    execute(shared_url(), f"select pg_terminate_backend({pid}, 20000)")
    with raises(*LIFTED):
        recorded(place.store, "r2")
    place.remove()
