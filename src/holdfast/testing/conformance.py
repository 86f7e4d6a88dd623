"""The suite that every store must pass: the rules of `holdfast.storage.contract` as tests. The test file of a store is ten lines:

    from holdfast.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test, also while an earlier
store is still open: each call must open the same data. A store that loses its data when it is closed sets `persistent = False`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import (
    CodecError,
    FenceLost,
    RunExists,
    RunHeld,
    RunNotFound,
    SeqConflict,
    StoreError,
    StoreFull,
    StoreUnusable,
)
from holdfast.storage import failpoints, rows
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Append, Holder, Position, Query, Request, Snapshot
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.testing.appends import KilledAtFailpoint, Log, hooked, in_threads, kill_at, raises
from holdfast.testing.leases import TTL_S, LeaseConformance

HOSTILE = (
    "'", '"', "a' or '1'='1", "%", "_", "*", "$.a", "a.b", "[0]", "\\", "", " ", "\n", "é", "日本", "🐙", "null", "--", "?1",
)  # fmt: skip


class Refusing(MemoryBlobs):
    """A blob store in which every `put` fails."""

    def __init__(self, fault: StoreError) -> None:
        super().__init__()
        self._fault = fault

    def put(self, digest: str, body: bytes) -> None:
        raise self._fault


class StoreConformance(LeaseConformance):
    """Tests for everything that a store promises. Subclass it, name the class `Test…` and implement `open`."""

    # --- appending and reading -----------------------------------------------------------------------

    def test_what_was_appended_is_read_back(self) -> None:
        log = self.start_run()
        first = self.store.events("r1")
        second = self.write(log, b'{"a":1}', b'{"b":2}')
        assert self.store.events("r1") == [*first, *second.rows]
        assert self.another().events("r1") == [*first, *second.rows]

    def test_the_run_row_holds_what_was_written_once_and_the_view_of_the_last_append(self) -> None:
        log = self.start_run(
            flow="review", input_digest=b"\x00\xff", created_at=12.5, labels={"team": "a"}, parent="r0"
        )
        last = self.write(
            log, status="waiting", fingerprint="new", state_version=3, active=("a", "b"), error="no", rewinds=((5, 2),),
            due_at=9.5, asks=2, active_s=1.25, situation='{"running":[]}',
        )  # fmt: skip
        run = self.store.run("r1")
        assert (run.run_id, run.flow, run.input_digest, run.created_at, run.labels, run.parent) == (
            "r1", "review", b"\x00\xff", 12.5, {"team": "a"}, "r0")  # fmt: skip
        assert (run.status, run.fingerprint, run.state_version) == ("waiting", "new", 3)
        assert (run.active, run.error, run.rewinds, run.due_at) == (("a", "b"), "no", ((5, 2),), 9.5)
        assert (run.asks, run.active_s, run.situation) == (2, 1.25, '{"running":[]}')
        assert (run.seq, run.digest, run.updated_at) == (
            last.rows[-1].seq,
            last.rows[-1].digest,
            last.rows[-1].at,
        )
        self.write(log)
        run = self.store.run("r1")
        assert (run.status, run.active, run.error, run.rewinds, run.due_at) == ("running", (), None, (), None)
        assert (run.asks, run.active_s, run.situation) == (None, None, None)

    def test_rows_come_back_exactly(self) -> None:
        log = self.start_run()
        log.at = 1_700_000_000.123456
        body = bytes(range(256)) * 40
        appended = self.write(log, body, b"", node="nœud 日本 '; drop table events; --")
        assert self.store.events("r1", after=1) == list(appended.rows)
        if self.persistent:
            assert self.reopen().events("r1", after=1) == list(appended.rows)

    def test_a_piece_of_a_log_is_read_by_after_and_upto(self) -> None:
        log = self.start_run()
        for _ in range(4):
            self.write(log)
        assert [row.seq for row in self.store.events("r1", after=3)] == [4, 5, 6, 7, 8, 9]
        assert [row.seq for row in self.store.events("r1", after=3, upto=6)] == [4, 5, 6]
        assert [row.seq for row in self.store.events("r1", upto=2)] == [1, 2]
        assert [row.seq for row in self.store.events("r1", after=3, upto=100, limit=2)] == [4, 5]
        assert self.store.events("r1", after=9) == []
        assert self.store.events("r1", after=5, upto=3) == []
        assert self.store.events("r1", upto=0) == []
        assert self.store.events("r1", limit=0) == []

    def test_events_are_found_by_kind_and_node(self) -> None:
        log = self.start_run()
        self.write(log, b"", kind="NodeStarted", node="a")
        self.write(log, b"", kind="NodeCompleted", node="a")
        self.write(log, b"", kind="NodeStarted", node="b")
        self.write(log, b"", kind="RunPaused", node=None)
        found = self.store.events
        assert [row.seq for row in found("r1", after=1, node="a")] == [2, 3]
        assert [row.seq for row in found("r1", after=1, kinds=["NodeStarted"])] == [2, 4]
        assert [row.seq for row in found("r1", after=1, kinds={"NodeStarted", "RunPaused"}, limit=2)] == [
            2,
            4,
        ]
        assert [row.seq for row in found("r1", kinds=("NodeStarted",), node="b")] == [4]
        assert all(
            found("r1", node=hostile) == [] and found("r1", kinds=[hostile]) == [] for hostile in HOSTILE
        )

    def test_the_chain_holds_over_many_appends(self) -> None:
        log = self.start_run()
        for n in range(50):
            self.write(log, b"x" * n * 100, b"")
        assert rows.broken_at("r1", self.store.events("r1"), after=0, digest=b"") is None
        assert self.store.run("r1").digest == log.digest

    def test_an_append_is_found_by_its_id(self) -> None:
        log = self.start_run()
        append = self.write(log)
        identity = append.rows[0].salt
        assert self.store.appended("r1", 2, identity)
        assert not self.store.appended("r1", 2, b"another")
        assert not self.store.appended("r1", 3, identity)
        assert not self.store.appended("r1", 99, identity)
        assert not self.store.appended("r2", 2, identity)

    def test_definitions_are_kept_once_per_fingerprint(self) -> None:
        log = self.start_run(fingerprint="f1", definition=b"one")
        self.write(log, fingerprint="f1", definition=b"changed")
        self.write(log, fingerprint="f2", definition=b"two")
        assert self.store.definition("f1") == b"one"
        assert self.store.definition("f2") == b"two"
        assert self.store.definition("f3") is None

    def test_an_empty_batch_does_nothing(self) -> None:
        assert self.store.append([]) == []

    def test_read_verbs_do_not_know_an_unknown_run(self) -> None:
        for run_id in ("r9", *HOSTILE, "\ud800"):
            for ask in (
                self.store.run,
                self.store.events,
                lambda r: self.store.events(r, kinds=["NodeStarted"]),
                lambda r: self.store.snapshot(r, [(0, 9)]),
                lambda r: self.store.claim(r, self.holder),
                lambda r: self.store.post(r, Request(id="q", verb="cancel")),
                lambda r: self.store.post(r, Request(id="q", verb="cancel"), only_look=True),
                lambda r: self.store.inbox(run_id=r),
            ):
                with raises(RunNotFound):
                    ask(run_id)

    # --- refusals ------------------------------------------------------------------------------------

    def test_a_run_is_created_once(self) -> None:
        self.start_run()
        self.require_refused(Log("r1").create(), RunExists, "r1")
        self.require_refused(Log("r1", holder=self.holder.id).create(), RunExists, "r1")

    def test_an_append_to_no_run_is_refused(self) -> None:
        self.require_refused(Log("r1", holder=self.holder.id, fence=1).next(), RunNotFound, "r1")

    def test_an_append_behind_another_end_is_refused(self) -> None:
        log = self.start_run()
        self.write(log)
        for seq in (0, 1, 2, 4, 50):
            stray = Log("r1", holder=self.holder.id, fence=1, seq=seq)
            self.require_refused(stray.next(snapshots=(Snapshot(seq, b"s"),)), SeqConflict, "r1")

    def test_rows_that_leave_a_gap_are_refused(self) -> None:
        log = self.start_run()
        good = log.next(b"1", b"2", b"3")
        for chosen in ((), (good.rows[1],), (good.rows[0], good.rows[2]), (good.rows[0], good.rows[0])):
            self.require_refused(msgspec.structs.replace(good, rows=chosen), SeqConflict, "r1")
        new = Log("r2").create()
        self.require_refused(msgspec.structs.replace(new, rows=()), SeqConflict, "r2")

    def test_a_stale_fence_is_refused(self) -> None:
        log = self.start_run()
        self.store.claim("r1", self.holder)
        self.require_refused(log.next(), FenceLost, "r1")
        self.require_refused(log.next(fence=3), FenceLost, "r1")
        self.write(log, fence=2)

    def test_an_append_by_another_engine_is_refused(self) -> None:
        log = self.start_run()
        self.store.renew(self.rival)
        self.require_refused(log.next(holder=self.rival.id), FenceLost, "r1")
        self.require_refused(log.next(holder=None), FenceLost, "r1")
        self.require_refused(log.next(holder="nobody"), FenceLost, "r1")

    def test_an_append_to_a_run_nobody_holds_is_refused(self) -> None:
        log = Log("r1")
        self.write(log)
        self.require_refused(log.next(), FenceLost, "no engine holds it")
        self.require_refused(log.next(holder=self.holder.id), FenceLost)

    def test_an_engine_the_store_does_not_know_cannot_create_for_itself(self) -> None:
        self.require_refused(Log("r1", holder="nobody").create(), FenceLost, "Renew the holder")

    def test_text_that_no_store_can_keep_is_refused_and_its_neighbours_are_written(self) -> None:
        for name, change in (
            ("a", {"labels": {"x": "\ud800"}}),
            ("b", {"error": "\udfff"}),
            ("c", {"flow": "\ud800"}),
        ):
            verdicts = self.store.append(
                [Log(f"{name}1").create(), Log(name).create(**change), Log(f"{name}2").create()]
            )
            assert [type(verdict) for verdict in verdicts] == [type(None), CodecError, type(None)]
            assert self.contents(name) is None
            assert self.store.run(f"{name}1").seq == self.store.run(f"{name}2").seq == 1

    # --- batches -------------------------------------------------------------------------------------

    def test_each_append_of_a_batch_has_its_own_verdict(self) -> None:
        kept, stale, behind = self.start_run("kept"), self.start_run("stale"), self.start_run("behind")
        self.store.claim("stale", self.holder)
        self.write(behind)
        batch = [
            stale.next(),
            kept.next(b"1"),
            Log("new", holder=self.holder.id).create(),
            Log("kept").create(),
            Log("behind", holder=self.holder.id, fence=1, seq=1).next(),
            Log("none", holder=self.holder.id, fence=1).next(),
            behind.next(),
        ]
        verdicts = self.store.append(batch)
        assert [type(v).__name__ for v in verdicts] == [
            "FenceLost", "NoneType", "NoneType", "RunExists", "SeqConflict", "RunNotFound", "NoneType"]  # fmt: skip
        assert [self.store.run(run).seq for run in ("kept", "stale", "new", "behind")] == [2, 1, 1, 5]
        with raises(RunNotFound):
            self.store.run("none")

    def test_appends_of_one_batch_to_one_run_follow_each_other(self) -> None:
        log = Log("r1", holder=self.holder.id, fence=1)
        batch = [log.create()]
        log.wrote(batch[0])
        batch.append(log.next(b"1"))
        log.wrote(batch[1])
        late = log.next(b"late")
        batch.append(log.next(b"2", release=True))
        log.wrote(batch[2])
        batch += [late, log.next(b"3")]
        verdicts = self.store.append(batch)
        assert [type(v).__name__ for v in verdicts] == [
            "NoneType",
            "NoneType",
            "NoneType",
            "FenceLost",
            "FenceLost",
        ]
        assert [row.body for row in self.store.events("r1")] == [b"{}", b"1", b"2"]

    def test_of_two_creations_in_one_batch_the_first_stands(self) -> None:
        first, second = Log("r1").create(b"first"), Log("r1").create(b"second")
        verdicts = self.store.append([first, second])
        assert verdicts[0] is None
        assert isinstance(verdicts[1], RunExists)
        assert [row.body for row in self.store.events("r1")] == [b"first"]

    # --- crashes -------------------------------------------------------------------------------------

    def test_every_write_passes_its_failpoints(self) -> None:
        log = self.start_run()
        reached: list[str] = []
        with hooked(reached.append):
            self.write(log)
            self.store.claim("r1", self.holder)
            self.store.post("r1", Request(id="q", verb="cancel"))
            self.store.release("r1", self.holder.id, 2)
            self.store.renew(self.holder)
        pairs = [
            f"{verb}.{place}"
            for verb in ("claim", "post", "release", "renew")
            for place in ("before", "committed")
        ]
        assert reached == ["append.before", "append.written", "append.committed", *pairs]
        assert set(reached) == {
            name
            for name in failpoints.FAILPOINTS
            if not name.startswith(("node.", failpoints.OF_TOKENS, *failpoints.OF_UPKEEP))
        }

    def test_a_crash_before_the_commit_leaves_nothing_and_one_after_it_everything(self) -> None:
        log = self.start_run()
        before = self.contents("r1")
        for place, kept in (("append.before", False), ("append.written", False), ("append.committed", True)):
            append = log.next(b"1", snapshots=(Snapshot(2, b"s"),), status="paused")
            with raises(KilledAtFailpoint), hooked(kill_at(place)):
                self.store.append([append, Log(f"beside {place}").create()])
            assert (self.contents("r1") == before) is not kept
            assert self.store.appended("r1", 2, append.rows[0].salt) is kept
            assert bool(self.store.runs(Query(status=("paused",)))) is kept

    def test_a_rival_that_takes_over_just_before_an_append_wins(self) -> None:
        log = self.start_run()
        self.time.pass_s(TTL_S + 1)

        def take_over(place: str) -> None:
            if place == "append.before":
                failpoints.install(None)
                self.store.claim("r1", self.rival)

        with hooked(take_over):
            (verdict,) = self.store.append([log.next()])
        assert isinstance(verdict, FenceLost)

    # --- snapshots and forks -------------------------------------------------------------------------

    def test_the_latest_snapshot_within_the_ranges_is_found(self) -> None:
        log = self.start_run()
        for seq in (2, 3, 4, 5, 6):
            self.write(log, b"", snapshots=(Snapshot(seq, b"at %d" % seq, digest=b"d"),) if seq != 5 else ())
        find = self.store.snapshot
        assert find("r1", [(0, 100)]) == Snapshot(6, b"at 6", False, b"d")
        assert find("r1", [(0, 5)]) == Snapshot(4, b"at 4", False, b"d")
        assert find("r1", [(3, 3)]) == Snapshot(3, b"at 3", False, b"d")
        assert find("r1", [(0, 2), (5, 5)]) == Snapshot(2, b"at 2", False, b"d")
        assert find("r1", [(4, 4), (0, 3)]) == Snapshot(4, b"at 4", False, b"d")
        assert find("r1", [(5, 5), (7, 9)]) is None
        assert find("r1", []) is None

    def test_nothing_but_a_base_replaces_a_base(self) -> None:
        log = self.start_run(snapshots=(Snapshot(1, b"base", base=True),))
        self.write(log, snapshots=(Snapshot(1, b"other"), Snapshot(2, b"old")))
        assert self.store.snapshot("r1", [(1, 1)]) == Snapshot(1, b"base", base=True)
        self.write(log, snapshots=(Snapshot(1, b"new base", base=True), Snapshot(2, b"new")))
        assert self.store.snapshot("r1", [(1, 1)]) == Snapshot(1, b"new base", base=True)
        assert self.store.snapshot("r1", [(2, 2)]) == Snapshot(2, b"new")

    def test_a_fork_begins_behind_its_base(self) -> None:
        log = self.start_run()
        self.write(log)
        base = Snapshot(3, b"fold", base=True, digest=log.digest)
        fork = Log("r2", holder=self.holder.id, fence=1, seq=3, digest=log.digest)
        append = self.write_fork(fork, base)
        self.write(fork)
        assert [row.seq for row in self.store.events("r2")] == [4, 5, 6]
        assert [row.seq for row in self.store.events("r2", after=4, upto=5)] == [5]
        assert self.store.snapshot("r2", [(0, 9)]) == base
        assert self.store.run("r2").seq == 6
        assert self.store.run("r2").parent == "r1"
        assert self.store.appended("r2", 4, append.rows[0].salt)
        assert not self.store.appended("r2", 3, append.rows[0].salt)
        assert rows.broken_at("r2", self.store.events("r2"), after=3, digest=base.digest) is None

    def write_fork(self, fork: Log, base: Snapshot) -> Append:
        append = fork.create(parent="r1", snapshots=(base,))
        assert append.expected_seq == base.seq
        assert self.store.append([append]) == [None]
        fork.wrote(append)
        return append

    # --- blobs ---------------------------------------------------------------------------------------

    def test_the_blobs_of_an_append_are_kept_and_another_way_in_finds_them(self) -> None:
        blobs = (Blob.of(b"one"), Blob.of(b"two"))
        log = self.start_run(blobs=blobs)
        self.write(log, blobs=blobs[:1])
        assert list(self.another().blobs.digests()) == sorted(blob.digest for blob in blobs)
        assert [self.another().blobs.get(blob.digest) for blob in blobs] == [b"one", b"two"]

    def test_blobs_are_durable_before_the_rows_that_refer_to_them(self) -> None:
        blob = Blob.of(b"value")
        found: list[list[str]] = []

        def look(place: str) -> None:
            if place == "append.before":
                found.append(list(self.store.blobs.digests()))

        with raises(KilledAtFailpoint), hooked(kill_at("append.written")):
            self.store.append([Log("r1").create(blobs=(blob,))])
        assert self.contents("r1") is None
        with hooked(look):
            self.start_run("r2", blobs=(Blob.of(b"another"),))
        assert found == [sorted((blob.digest, Blob.of(b"another").digest))]

    def test_an_append_whose_blob_cannot_be_kept_is_refused_and_its_neighbours_are_written(self) -> None:
        log = self.start_run()
        fault = StoreFull("no space left")
        self.store.blobs = Refusing(fault)
        try:
            verdicts = self.store.append(
                [log.next(b"1", blobs=(Blob.of(b"x"),)), Log("r2").create(), log.next(b"2")]
            )
        finally:
            self.store.blobs = self.another().blobs
        assert verdicts == [fault, None, None]
        assert [row.body for row in self.store.events("r1", after=1)] == [b"2"]

    # --- listing -------------------------------------------------------------------------------------

    def test_runs_are_listed_newest_first_and_page_by_page(self) -> None:
        for number, created_at in enumerate((5.0, 3.0, 4.0, 4.0, 1.0)):
            self.write(Log(f"r{number}"), created_at=created_at)
        listed = self.store.runs(Query())
        assert [run.run_id for run in listed] == ["r0", "r3", "r2", "r1", "r4"]
        assert listed[0] == self.store.run("r0")
        paged: list[str] = []
        after: Position | None = None
        while page := self.store.runs(Query(limit=2, after=after)):
            paged += [run.run_id for run in page]
            after = page[-1].position
        assert paged == ["r0", "r3", "r2", "r1", "r4"]
        assert self.store.runs(Query(limit=0)) == []

    def test_a_listing_continues_after_a_run_that_was_deleted(self) -> None:
        for number in range(4):
            self.write(Log(f"r{number}"), created_at=float(number), status="completed", labels={"team": "x"})
        first = self.store.runs(Query(limit=2))
        assert not self.store.upkeep.delete({first[-1].run_id: first[-1].seq})
        for conditions in (
            {},
            {"status": ("completed", "failed")},
            {"flow": "flow"},
            {"labels": {"team": "x"}},
        ):
            rest = self.store.runs(Query(after=first[-1].position, **conditions))
            assert [run.run_id for run in rest] == ["r1", "r0"]

    def test_runs_are_found_by_status_flow_parent_and_labels(self) -> None:
        self.write(Log("a"), flow="one", status="failed", labels={"team": "x", "kind": "big"})
        self.write(Log("b"), flow="two", status="running", labels={"team": "x"}, parent="a")
        self.write(Log("c"), flow="one", status="completed", labels={"team": "y"})

        def found(**conditions: Any) -> list[str]:
            return sorted(run.run_id for run in self.store.runs(Query(**conditions)))

        assert found(flow="one") == ["a", "c"]
        assert found(status=("failed", "running")) == ["a", "b"]
        assert found(parent="a") == ["b"]
        assert found(labels={"team": "x"}) == ["a", "b"]
        assert found(labels={"team": "x", "kind": "big"}) == ["a"]
        assert found(labels={"team": "x"}, flow="two", status=("running",), parent="a") == ["b"]
        assert found(labels={"kind": "x"}) == found(labels={"nothing": ""}) == found(flow="none") == []
        assert found(status=("failed", "failed", "running")) == ["a", "b"]
        assert found(flow="one", status=("completed", "running")) == ["c"]
        shape = self.store.run("a").fingerprint
        assert found(without_fingerprint="another") == ["a", "b", "c"]
        assert found(flow="one", without_fingerprint=shape) == []

    def test_runs_are_found_by_their_ids_and_by_how_their_ids_begin(self) -> None:
        for run_id in ("a", "ab", "ab-1", "ab-2", "ac", "b", "é1", "é2"):
            self.write(Log(run_id))

        def found(**conditions: Any) -> list[str]:
            return sorted(run.run_id for run in self.store.runs(Query(**conditions)))

        assert found(ids=("b", "ab", "b", "unknown")) == ["ab", "b"]
        assert found(ids=()) == []
        assert found(ids=("b", "ab"), prefix="a") == ["ab"]
        assert found(prefix="ab") == ["ab", "ab-1", "ab-2"]
        assert found(prefix="é") == ["é1", "é2"]
        assert found(prefix="ab", flow="flow", status=("running",)) == ["ab", "ab-1", "ab-2"]
        assert found(prefix="ab", flow="none") == found(prefix="z") == found(prefix="\U0010ffff") == []
        for hostile in HOSTILE:
            assert found(prefix=hostile) == [one for one in found() if one.startswith(hostile)]
            assert found(ids=(hostile,)) == []

    def test_runs_are_found_by_when_they_were_created(self) -> None:
        for number in range(6):
            self.write(Log(f"r{number}"), created_at=float(number), labels={"team": "x"}, parent="p")

        def found(**conditions: Any) -> list[str]:
            return [run.run_id for run in self.store.runs(Query(**conditions))]

        for walk in ({}, {"flow": "flow"}, {"labels": {"team": "x"}}, {"parent": "p"}, {"queue": "default"}):
            assert found(created=(2.0, 4.0), **walk) == ["r3", "r2"]
            assert found(created=(None, 2.0), **walk) == ["r1", "r0"]
            assert found(created=(4.0, None), **walk) == ["r5", "r4"]
            assert found(created=(1.0, 4.0), after=Position(3.0, "r3"), **walk) == ["r2", "r1"]
            assert found(created=(1.0, 3.0), after=Position(5.0, "r5"), **walk) == ["r2", "r1"]

    def test_runs_with_open_questions_are_found_and_so_are_those_of_which_it_is_unknown(self) -> None:
        asks = self.start_run("asks", asks=2)
        self.start_run("quiet", asks=0)
        self.start_run("unknown")
        self.start_run("over", status="completed")

        def found() -> list[str]:
            return sorted(run.run_id for run in self.store.runs(Query(asks=True)))

        assert found() == ["asks", "unknown"]
        self.write(asks, asks=0)
        assert found() == ["unknown"]
        self.write(asks, asks=1)
        assert found() == ["asks", "unknown"]

    def test_the_status_of_a_listing_follows_the_log(self) -> None:
        log = self.start_run()
        for status in ("running", "waiting", "running", "failed"):
            self.write(log, status=status)
            assert [run.run_id for run in self.store.runs(Query(status=(status,)))] == ["r1"]
        assert self.store.runs(Query(status=("running", "waiting"))) == []

    def test_hostile_keys_and_values_are_only_ever_compared(self) -> None:
        for number, text in enumerate(HOSTILE):
            self.write(Log(f"r{number}"), flow=text, labels={text: text[::-1], "n": str(number)})
        for number, text in enumerate(HOSTILE):
            assert [run.run_id for run in self.store.runs(Query(labels={text: text[::-1]}))] == [f"r{number}"]
            assert [run.run_id for run in self.store.runs(Query(flow=text))] == [f"r{number}"]
            assert self.store.run(f"r{number}").labels == {text: text[::-1], "n": str(number)}
        for label, value in (("\ud800", "x"), ("n", "0\x00"), ("n\x00", "0"), ("n", "\ud800")):
            assert self.store.runs(Query(labels={label: value})) == []
        assert self.store.runs(Query(flow="\ud800")) == []

    # --- the store as a whole ------------------------------------------------------------------------

    def test_everything_survives_being_closed(self) -> None:
        if not self.persistent:
            return
        log = self.start_run(labels={"a": "b"}, definition=b"flow", snapshots=(Snapshot(1, b"s"),))
        self.write(log)
        self.store.post("r1", Request(id="q", verb="cancel"))
        before = self.contents("r1")
        self.reopen()
        assert self.contents("r1") == before
        assert self.store.definition("print") == b"flow"
        assert self.store.runs(Query(labels={"a": "b"}))[0].held
        self.write(log)

    def test_a_closed_store_refuses_every_verb(self) -> None:
        log = self.start_run()
        self.store.close()
        self.store.close()
        for use in self.every_verb(log):
            with raises(StoreUnusable):
                use()

    def every_verb(self, log: Log) -> list[Callable[[], object]]:
        store = self.store
        return [
            lambda: store.append([log.next()]),
            lambda: store.appended("r1", 1, b""),
            lambda: store.run("r1"),
            lambda: store.runs(Query()),
            lambda: store.events("r1"),
            lambda: store.snapshot("r1", [(0, 1)]),
            lambda: store.definition("print"),
            lambda: store.claim("r1", self.holder),
            lambda: store.renew(self.holder),
            lambda: store.release("r1", self.holder.id, 1),
            lambda: store.post("r1", Request(id="q", verb="cancel")),
            lambda: store.inbox(self.holder.id),
            store.now,
            store.check,
        ]

    def test_a_forked_child_is_refused_every_verb(self) -> None:
        if not hasattr(os, "fork"):
            return
        log = self.start_run()
        child = os.fork()
        if child == 0:
            refusals = 0
            for use in self.every_verb(log):
                try:
                    use()
                except StoreUnusable:
                    refusals += 1
                except BaseException:  # noqa: BLE001 - the child process must end here, whatever happens
                    os._exit(255)
            self.store.close()
            os._exit(refusals)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 14
        self.write(log)

    def test_time_is_the_clocks(self) -> None:
        assert self.store.now() == self.time.at
        self.time.pass_s(-100.5)
        assert self.store.now() == self.time.at

    def test_a_healthy_store_has_nothing_wrong_with_it(self) -> None:
        self.start_run()
        assert self.store.check() == []

    def test_the_url_opens_the_store_and_holds_its_scheme(self) -> None:
        assert "://" in self.store.url
        assert self.another().url == self.store.url

    def test_what_goes_in_and_comes_out_is_shared_with_nobody(self) -> None:
        labels, body = {"a": "b"}, {"list": [1]}
        self.start_run(labels=labels)
        self.store.post("r1", Request(id="q", verb="signal", body=body))
        labels["a"] = "changed"
        body["list"].append(2)
        self.store.run("r1").labels["a"] = "changed"
        self.store.runs(Query())[0].labels.clear()
        self.store.inbox(self.holder.id)[0].body["list"].append(3)
        self.store.events("r1").clear()
        assert self.store.run("r1").labels == {"a": "b"}
        assert self.store.inbox(self.holder.id)[0].body == {"list": [1]}
        assert len(self.store.events("r1")) == 1

    # --- many at once --------------------------------------------------------------------------------

    def test_of_many_threads_that_append_behind_the_same_end_one_wins(self) -> None:
        self.start_run()
        rounds, threads = 20, 6
        together = threading.Barrier(threads)
        wins: list[int] = []

        def compete() -> None:
            for _ in range(rounds):
                together.wait()
                run = self.store.run("r1")
                append = Log("r1", holder=self.holder.id, fence=1, seq=run.seq, digest=run.digest).next(b"1")
                together.wait()
                (verdict,) = self.store.append([append])
                assert verdict is None or isinstance(verdict, SeqConflict)
                if verdict is None:
                    wins.append(append.rows[0].seq)

        in_threads(threads, compete)
        assert wins == list(range(2, rounds + 2))
        assert rows.broken_at("r1", self.store.events("r1"), after=0, digest=b"") is None

    def test_of_many_engines_that_claim_a_run_at_once_one_gets_it(self) -> None:
        for number in range(10):
            self.write(Log(f"r{number}"))
        claimed: list[str] = []

        together = threading.Barrier(4)

        def claim_all() -> None:
            store = self.open(self.folder, self.time)
            engine = Holder(id=f"engine {together.wait()}", ttl_s=TTL_S)
            for number in range(10):
                try:
                    claimed.append(store.claim(f"r{number}", engine).run_id)
                except RunHeld:
                    continue
            store.close()

        in_threads(4, claim_all)
        assert sorted(claimed) == [f"r{number}" for number in range(10)]

    def test_a_reader_sees_whole_appends_only(self) -> None:
        log = self.start_run()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seqs = [row.seq for row in self.store.events("r1")]
                assert seqs == list(range(1, len(seqs) + 1))
                assert len(seqs) % 2 == 1

        def write() -> None:
            try:
                for _ in range(100):
                    self.write(log)
            finally:
                done.set()

        in_threads(1, read, write)
