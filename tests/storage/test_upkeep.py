import os

import apsw

from holdfast.errors import SettingError
from holdfast.storage.contract import Query
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import raises
from holdfast.testing.upkeep import UpkeepConformance
from postgres_server import _binaries, lend_schema, return_schema, shared_url


class TestMemoryUpkeep(UpkeepConformance):
    copies = False

    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteUpkeep(UpkeepConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)

    def test_what_a_deletion_leaves_is_swept_in_pieces(self):
        self.create_released("r1")
        self.create_released("r2")
        assert not self.store.upkeep.delete({"r1": 9})
        assert self.store.upkeep.facts().unswept == 1
        assert self.sweep_all(limit=4) == 9
        events = apsw.Connection(str(self.folder / "runs.db")).execute("select count(*) from events").get
        assert events == 9

    def test_the_number_of_a_deleted_run_is_never_taken_with_its_events(self):
        self.create_released("r1")
        self.create_released("r2")
        self.create_released("r3")
        for run_id in ("r2", "r1", "r3"):  # what is left of r2 and r1 is in the way once r3 is gone
            assert not self.store.upkeep.delete({run_id: 9})
        assert self.store.upkeep.facts().unswept == 0
        for run_id in ("n1", "n2", "n3"):
            self.create_released(run_id, events=1)
        assert [self.seqs(run_id) for run_id in ("n1", "n2", "n3")] == [[1], [1], [1]]

    def test_a_backup_is_of_one_moment_while_runs_go_on(self):
        log = self.create_held(events=2001)
        told = []

        def go_on(done, of):
            told.append((done, of))
            self.write(log)

        self.store.upkeep.backup(str(self.folder / "copy"), go_on)
        assert told[-1][0] == told[-1][1] > 0
        copy = SqliteStore(self.folder / "copy")
        assert copy.run("r1").seq == 2001
        assert len(copy.events("r1")) == 2001
        assert copy.check() == []
        copy.close()
        assert self.store.run("r1").seq == 2001 + 2 * len(told)


class TestPostgresUpkeep(UpkeepConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder), clock=clock)

    def setup_method(self):
        self.path = os.environ["PATH"]
        os.environ["PATH"] = f"{_binaries()}{os.pathsep}{self.path}"
        super().setup_method()

    def teardown_method(self):
        os.environ["PATH"] = self.path
        super().teardown_method()
        return_schema(shared_url(), self.folder)

    def test_without_the_programs_of_postgresql_it_is_told_what_to_do(self):
        os.environ["PATH"] = str(self.folder)
        with raises(SettingError, "pg_dump", "Install the client programs"):
            self.store.upkeep.backup(str(self.folder / "copy"))
        assert self.store.runs(Query()) == []
