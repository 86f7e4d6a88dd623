"""The suite that the upkeep of every store must pass: the rules of `holdfast.storage.upkeep` as tests.

    from holdfast.testing.upkeep import UpkeepConformance

    class TestMyUpkeep(UpkeepConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test: each call must open the
same data. A store that has no file to copy sets `copies = False`.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.errors import FenceLost, ResumeRefused, RunHeld, RunNotFound, SeqConflict, SettingError
from holdfast.storage import failpoints
from holdfast.storage.contract import Append, Holder, Query, Request, Snapshot, Store
from holdfast.storage.rows import pack
from holdfast.storage.upkeep import WHOLE, Kept, Trimmed
from holdfast.testing.appends import KilledAtFailpoint, Log, Time, delete_run, hooked, kill_at, raises

BASE = b'{"folded":true}'


class UpkeepConformance:
    """Tests for everything that the upkeep of a store promises. Subclass it, name the class `Test…` and implement `open`."""

    copies = True

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder, with this clock."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.time = Time()
        self.opened: list[Store] = []
        self.store = self.another()
        self.holder = Holder(id="engine-1", ttl_s=30.0)
        self.store.renew(self.holder)

    def teardown_method(self) -> None:
        for store in self.opened:
            store.close()
        shutil.rmtree(self.folder)

    def another(self) -> Store:
        """Open the same store again, as another process would."""
        store = self.open(self.folder, self.time)
        self.opened.append(store)
        return store

    def write(self, log: Log, *bodies: bytes, **changes: Any) -> Append:
        append = (log.next if log.seq else log.create)(*bodies, **changes)
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return append

    def create_held(self, run_id: str = "r1", events: int = 9, **changes: Any) -> Log:
        """Create a run that an engine holds, with this number of events (an odd number)."""
        log = Log(run_id, holder=self.holder.id, fence=1)
        self.write(log, **changes)
        while log.seq < events:
            self.write(log, snapshots=(Snapshot(log.seq + 2, b"%d" % (log.seq + 2)),))
        return log

    def create_released(self, run_id: str, events: int = 9, **changes: Any) -> Log:
        """Create a run that no engine holds."""
        log = self.create_held(run_id, events, **changes)
        self.store.release(run_id, self.holder.id, 1)
        return log

    def compact(self, run_id: str, seq: int, **changes: Any) -> None:
        row = self.store.run(run_id)
        digest = self.store.events(run_id, seq - 1, seq)[0].digest
        given = {"body": BASE, "digest": digest, "holder": self.holder.id, "fence": row.fence, **changes}
        self.store.upkeep.compact(run_id, seq, **given)

    def seqs(self, run_id: str = "r1", **piece: Any) -> list[int]:
        return [row.seq for row in self.another().events(run_id, **piece)]

    def sweep_all(self, limit: int = 2) -> int:
        count = 0
        while swept := self.store.upkeep.sweep(limit):
            assert swept <= limit
            count += swept
        return count

    # --- retiring ------------------------------------------------------------------------------------

    def test_a_log_that_was_left_alone_is_whole(self) -> None:
        self.create_held()
        assert self.store.upkeep.trimmed("r1") == self.store.upkeep.trimmed("nobody") == WHOLE

    def test_snapshots_are_listed_without_their_bodies(self) -> None:
        self.create_held(events=5)
        assert self.store.upkeep.snapshots("r1") == [Kept(3, False, 1), Kept(5, False, 1)]
        with raises(RunNotFound, "nobody"):
            self.store.upkeep.snapshots("nobody")

    def test_retiring_keeps_the_events_and_drops_the_snapshots_it_names(self) -> None:
        self.create_held()
        before = self.store.events("r1")
        self.store.upkeep.retire("r1", 6, [3, 5, 77])
        found = self.another().upkeep
        assert found.trimmed("r1").retired == 6
        assert found.trimmed("r1").retired_at == self.time.at
        assert [kept.seq for kept in found.snapshots("r1")] == [7, 9]
        assert self.store.events("r1") == before

    def test_what_is_retired_stays_retired(self) -> None:
        self.create_held()
        self.store.upkeep.retire("r1", 6)
        self.time.pass_s(10)
        self.store.upkeep.retire("r1", 4)
        assert self.store.upkeep.trimmed("r1").retired == 6
        assert self.store.upkeep.trimmed("r1").retired_at == self.time.at - 10
        with raises(RunNotFound, "nobody"):
            self.store.upkeep.retire("nobody", 1)

    # --- references ----------------------------------------------------------------------------------

    def test_what_refers_to_blobs_is_found_without_reading_the_rest(self) -> None:
        log = self.create_held(events=3)
        plain, packed = b'{"$blobs":{"/a":"d"},"a":null}', pack(b'{"$blobs":{"/a":"%s"}}' % (b"d" * 2000))
        self.write(log, plain, packed)
        self.write(log, b'{"a":"$blobs"}', plain)
        self.create_held("neighbour")
        found = self.another().upkeep.referring
        assert found("r1") == [(4, plain), (5, packed), (7, plain)]
        assert found("r1", 4) == [(5, packed), (7, plain)]
        assert found("r1", limit=1) == [(4, plain)]
        assert found("r1", 7) == found("neighbour") == found("nobody") == []
        self.compact("r1", 4)
        assert found("r1") == [(5, packed), (7, plain)]

    # --- compaction ----------------------------------------------------------------------------------

    def test_a_compacted_log_begins_behind_its_base(self) -> None:
        self.create_held()
        after = self.store.events("r1", 5)
        digest = self.store.events("r1", 4, 5)[0].digest
        self.compact("r1", 5, place="file:///archive")
        for _ in range(2):
            assert self.another().events("r1") == after == self.store.events("r1", 2)
            assert self.seqs(kinds=("NodeCompleted",)) == [6, 7, 8, 9]
            assert self.seqs(after=7) == [8, 9]
            assert self.seqs(upto=5) == []
            assert self.seqs(limit=1) == [6]
            base = self.store.snapshot("r1", [(1, 6)])
            assert base == Snapshot(5, BASE, base=True, digest=digest)
            self.sweep_all()
        trimmed = self.store.upkeep.trimmed("r1")
        assert (trimmed.base, trimmed.base_at, trimmed.place) == (5, self.time.at, "file:///archive")
        assert trimmed.base_digest == sha256(BASE).digest()
        assert [kept.seq for kept in self.store.upkeep.snapshots("r1")] == [5, 7, 9]

    def test_a_compacted_run_is_carried_on(self) -> None:
        log = self.create_held()
        self.compact("r1", 8)
        self.write(log)
        self.sweep_all()
        self.write(log)
        assert self.seqs() == [9, 10, 11, 12, 13]
        assert self.store.run("r1").seq == 13

    def test_a_base_takes_the_place_of_a_base(self) -> None:
        self.create_held()
        self.store.upkeep.retire("r1", 4)
        self.compact("r1", 3)
        self.compact("r1", 6)
        assert self.seqs() == [7, 8, 9]
        assert [kept for kept in self.store.upkeep.snapshots("r1") if kept.base] == [Kept(6, True, len(BASE))]
        self.store.upkeep.retire("r1", 8, [6, 7])
        assert [kept.seq for kept in self.store.upkeep.snapshots("r1")] == [6, 9]
        assert (self.store.upkeep.trimmed("r1").retired, self.store.upkeep.trimmed("r1").base) == (8, 6)

    def test_only_the_holder_compacts(self) -> None:
        self.create_held()
        with raises(FenceLost, "r1", "engine-2"):
            self.compact("r1", 5, holder="engine-2")
        with raises(FenceLost, "fence 7"):
            self.compact("r1", 5, fence=7)
        self.store.release("r1", self.holder.id, 1)
        with raises(FenceLost, "no engine holds it"):
            self.compact("r1", 5)
        assert self.seqs() == list(range(1, 10))

    def test_a_place_that_is_not_inside_the_log_is_refused(self) -> None:
        self.create_held()
        self.compact("r1", 5)
        for seq in (0, 4, 5, 9, 10):
            with raises(SeqConflict, "r1", str(seq)):
                self.store.upkeep.compact("r1", seq, body=BASE, digest=b"", holder=self.holder.id, fence=1)
        with raises(RunNotFound, "nobody"):
            self.store.upkeep.compact("nobody", 1, body=BASE, digest=b"", holder=self.holder.id, fence=1)
        assert self.seqs() == [6, 7, 8, 9]

    # --- deletion ------------------------------------------------------------------------------------

    def test_a_deleted_run_is_gone_and_its_neighbours_are_not(self) -> None:
        kept = self.create_released("before", labels={"team": "a"})
        gone = self.create_held("gone", events=7, labels={"team": "a", "b": "c"})
        self.store.post("gone", Request(id="1", verb="cancel"))  # unmet: it does not stop the deletion
        self.write(gone, status="completed", release=True)
        self.create_released("after")
        assert not self.store.upkeep.delete({"gone": 9})
        for _ in range(2):
            assert {row.run_id for row in self.another().runs(Query())} == {"before", "after"}
            assert [row.run_id for row in self.store.runs(Query(labels={"team": "a"}))] == ["before"]
            for ask in (self.store.run, self.store.events, self.store.upkeep.snapshots):
                with raises(RunNotFound, "gone"):
                    ask("gone")
            assert self.store.upkeep.trimmed("gone") == WHOLE
            assert self.seqs("before") == self.seqs("after") == list(range(1, 10))
            self.sweep_all()
        assert self.store.upkeep.facts().unswept == 0
        assert self.store.run("before").seq == kept.seq

    def test_the_id_of_a_deleted_run_may_be_used_again(self) -> None:
        for again in range(3):
            self.create_released("r1", events=9 - 2 * again)
            assert not self.store.upkeep.delete({"r1": 9 - 2 * again})
        self.create_released("older")
        self.create_released("r1")
        assert not self.store.upkeep.delete({"older": 9})
        assert not self.store.upkeep.delete({"r1": 9})
        self.create_released("r1", events=3)
        assert self.seqs() == [1, 2, 3]
        assert self.store.upkeep.snapshots("r1") == [Kept(3, False, 1)]
        self.sweep_all()
        assert self.seqs() == [1, 2, 3]

    def test_a_compacted_run_is_deleted_before_it_was_swept(self) -> None:
        self.create_held("r1")
        self.compact("r1", 5)
        self.store.release("r1", self.holder.id, 1)
        self.create_released("r2")
        assert not self.store.upkeep.delete({"r1": 9})
        self.create_released("r1", events=3)
        self.sweep_all()
        assert self.seqs("r1") == [1, 2, 3]
        assert self.seqs("r2") == list(range(1, 10))

    def test_a_held_run_is_not_deleted_until_its_holder_is_gone(self) -> None:
        self.create_held()
        with raises(RunHeld, "r1", "engine-1"):
            delete_run(self.store, "r1", 9)
        assert self.seqs() == list(range(1, 10))
        self.time.pass_s(31)
        assert not self.store.upkeep.delete({"r1": 9})
        with raises(RunNotFound):
            self.store.run("r1")

    def test_a_run_that_somebody_carried_on_is_not_deleted(self) -> None:
        self.create_released("r1")
        with raises(SeqConflict, "r1", "7", "9"):
            delete_run(self.store, "r1", 7)
        with raises(RunNotFound, "nobody"):
            delete_run(self.store, "nobody", 1)
        assert self.seqs() == list(range(1, 10))

    def test_a_run_with_forks_is_not_deleted(self) -> None:
        self.create_released("r1")
        self.create_released("fork", parent="r1")
        with raises(ResumeRefused, "r1", "fork"):
            delete_run(self.store, "r1", 9)
        assert not self.store.upkeep.delete({"fork": 9})
        assert not self.store.upkeep.delete({"r1": 9})
        assert self.store.runs(Query()) == []

    def test_many_runs_are_deleted_at_once_and_each_refusal_is_told(self) -> None:
        self.create_released("r1")
        self.create_released("fork", parent="r1")
        self.create_released("forked")
        self.create_released("kept", parent="forked")
        self.create_released("moved", events=5)
        self.create_held("held")
        self.create_released("last", events=3)
        ends = {"fork": 9, "r1": 9, "forked": 9, "moved": 3, "nobody": 1, "held": 9, "last": 3}
        refused = self.store.upkeep.delete(ends)
        found = {run_id: type(refusal) for run_id, refusal in refused.items()}
        assert found == {
            "forked": ResumeRefused,
            "moved": SeqConflict,
            "nobody": RunNotFound,
            "held": RunHeld,
        }
        for _ in range(2):
            assert {row.run_id for row in self.another().runs(Query())} == {"forked", "kept", "moved", "held"}
            assert self.seqs("moved") == [1, 2, 3, 4, 5]
            self.sweep_all()
        assert self.store.upkeep.facts().unswept == 0

    def test_a_crash_deletes_all_of_many_runs_or_none(self) -> None:
        ends = {f"r{number}": 3 for number in range(5)}
        for place, left in (("delete.before", 5), ("delete.committed", 0)):
            for run_id in ends:
                if run_id not in {row.run_id for row in self.store.runs(Query())}:
                    self.create_released(run_id, events=3)
            with hooked(kill_at(place)), raises(KilledAtFailpoint):
                self.store.upkeep.delete(ends)
            assert len(self.another().runs(Query())) == left

    # --- crashes -------------------------------------------------------------------------------------

    def test_a_crash_leaves_all_of_a_change_or_nothing(self) -> None:
        def prune() -> None:
            self.store.upkeep.retire("r1", 6, [3])

        def compact() -> None:
            self.compact("r1", 5)

        def delete() -> None:
            self.store.release("r1", self.holder.id, 1)
            assert not self.store.upkeep.delete({"r1": 9})

        for change in (prune, compact, delete):
            self.create_held()
            whole = self.seqs()
            with hooked(kill_at(f"{change.__name__}.before")), raises(KilledAtFailpoint):
                change()
            assert self.seqs() == whole
            assert self.store.upkeep.trimmed("r1") == WHOLE
            self.store.claim("r1", self.holder)
            self.store.release("r1", self.holder.id, self.store.run("r1").fence)
            assert not self.store.upkeep.delete({"r1": 9})

    def test_a_sweep_that_was_cut_is_taken_up_again(self) -> None:
        self.create_held()
        self.create_released("r2")
        self.compact("r1", 5)
        assert not self.store.upkeep.delete({"r2": 9})
        for place in ("sweep.before", "sweep.committed"):
            with hooked(kill_at(place)), raises(KilledAtFailpoint):
                self.store.upkeep.sweep(2)
                failpoints.reach(place)  # for a store whose sweep has nothing to do
            assert self.seqs() == [6, 7, 8, 9]
        self.sweep_all()
        assert self.seqs() == [6, 7, 8, 9]
        assert self.store.upkeep.facts().unswept == 0

    def test_one_sweep_takes_what_several_runs_have_left(self) -> None:
        for run_id in ("r1", "r2", "r3", "last"):
            self.create_released(run_id, events=3)
        for run_id in ("r1", "r2", "r3"):
            assert not self.store.upkeep.delete({run_id: 3})
        left = self.store.upkeep.facts().unswept  # 0 in a store whose deletions leave nothing
        assert self.store.upkeep.sweep(6) == (6 if left else 0)
        assert self.store.upkeep.sweep(6) == (3 if left else 0)
        assert self.another().upkeep.sweep(6) == 0
        assert self.store.upkeep.facts().unswept == 0
        assert self.seqs("last") == [1, 2, 3]

    # --- definitions, facts, backups -----------------------------------------------------------------

    def test_a_definition_goes_only_when_no_run_names_it(self) -> None:
        log = self.create_held("r1", events=3, fingerprint="one", definition=b"1")
        self.write(log, fingerprint="two", definition=b"2")
        assert self.store.upkeep.fingerprints() == ["one", "two"]
        assert self.store.upkeep.drop_definitions([]) == 0
        assert self.store.upkeep.drop_definitions(["two", "three"]) == 0
        assert self.store.upkeep.drop_definitions(["one", "two"]) == 1
        assert self.store.definition("two") == b"2"
        assert self.another().definition("one") is None

    def test_what_came_with_an_archived_run_is_adopted(self) -> None:
        trimmed = Trimmed(
            retired=7, retired_at=1.5, base=5, base_at=2.5, base_digest=b"\x00x", place="file:///a"
        )
        self.store.upkeep.adopt("r1", trimmed, {"old": b"o"})
        assert self.store.upkeep.trimmed("r1") == WHOLE
        self.create_released("r1")
        for _ in range(2):
            self.store.upkeep.adopt("r1", trimmed, {"old": b"other"})
        assert self.another().upkeep.trimmed("r1") == trimmed
        assert self.store.definition("old") == b"o"

    def test_a_run_that_is_adopted_has_no_lower_fence_than_it_had(self) -> None:
        self.create_released("r1")
        before = self.store.run("r1").fence
        self.store.upkeep.adopt("r1", WHOLE, {}, fence=before + 4)
        self.store.upkeep.adopt("r1", WHOLE, {}, fence=before + 2)
        assert self.another().run("r1").fence == before + 4
        lease = self.store.claim("r1", self.holder)
        assert lease.fence == before + 5
        self.store.upkeep.adopt(
            "r1", WHOLE, {}, fence=before + 9
        )  # a held run keeps its fence: its holder must be able to write
        assert self.store.run("r1").fence == before + 5

    def test_a_store_tells_how_it_is(self) -> None:
        facts = self.store.upkeep.facts()
        assert facts.now == self.time.at
        assert facts.schema_version == facts.schema_known
        assert facts.unswept == 0

    def test_a_backup_is_a_new_file_for_its_owner_only(self) -> None:
        self.create_released("r1")
        file = self.folder / "copies" / "runs.backup"
        if not self.copies:
            with raises(SettingError, "archive"):
                self.store.upkeep.backup(str(file))
            return
        self.store.upkeep.backup(str(file))
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        content = file.read_bytes()
        with raises(SettingError, str(file), "exists"):
            self.store.upkeep.backup(str(file))
        with raises(SettingError, "folder"):
            self.store.upkeep.backup(str(self.folder))
        assert file.read_bytes() == content
        assert [found.name for found in file.parent.iterdir()] == [file.name]
