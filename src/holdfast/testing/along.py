"""The suite that every store must pass whose appends change other runs: the rules of `holdfast.storage.contract.Along` as tests.

    from holdfast.testing.along import AlongConformance

    class TestMyAlong(AlongConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test: each call must open the same
data.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import CodecError, FenceLost, ResumeRefused, RunExists, SeqConflict, StoreFull
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Append, Query, Request, Store, Verdict
from holdfast.storage.leases import Holder
from holdfast.testing.appends import (
    KilledAtFailpoint,
    Log,
    Time,
    delete_run,
    hooked,
    in_threads,
    kill_at,
    raises,
)
from holdfast.testing.conformance import Refusing
from holdfast.testing.queues import QUIET_S

CHILDREN = ("child-a", "child-b", "child-c")
END = Request(id="end", verb="child_ended", body={"status": "completed"}, by="engine")


class AlongConformance:
    """Tests for everything that an append promises about other runs. Subclass it, name the class `Test…` and implement `open`."""

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.clock = Time()
        self.store = self.open(self.folder, self.clock)
        self.holder = Holder(id="engine-1", ttl_s=30.0)
        self.store.renew(self.holder)
        self.log = self.create("caller")

    def teardown_method(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def create(self, run_id: str, **changes: Any) -> Log:
        log = Log(run_id, holder=self.holder.id, fence=1)
        append = log.create(**changes)
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return log

    def start(self, run_id: str, **changes: Any) -> Append:
        return Log(run_id).create(status="pending", origin="caller", **changes)

    def family(self, *ids: str, posts: tuple[tuple[str, Request], ...] = (), **changes: Any) -> Append:
        """An append of the caller that starts these runs."""
        along = Along(starts=tuple(self.start(run_id) for run_id in ids), posts=posts)
        return self.log.next(along=along, **changes)

    def write(self, append: Append) -> Verdict:
        (verdict,) = self.store.append([append])
        return verdict

    def ids(self, **conditions: Any) -> list[str]:
        return sorted(row.run_id for row in self.store.runs(Query(**conditions)))

    # --- starts --------------------------------------------------------------------------------------

    def test_an_append_creates_the_runs_that_it_starts(self) -> None:
        assert self.write(self.family(*CHILDREN)) is None
        assert self.store.run("caller").seq == 3
        for run_id in CHILDREN:
            row = self.store.run(run_id)
            assert (row.origin, row.parent, row.status, row.seq) == ("caller", None, "pending", 1)
            assert (row.holder, row.fence) == (None, 0)
            assert [event.seq for event in self.store.events(run_id)] == [1]

    def test_the_runs_that_one_run_started_are_found(self) -> None:
        self.write(self.family(*CHILDREN))
        self.create("other")
        assert self.ids(origin="caller") == list(CHILDREN)
        assert self.ids(origin="caller", status=("completed",)) == []
        assert self.ids(origin="child-a") == []
        assert [row.run_id for row in self.store.runs(Query(origin="caller", limit=2))] == [
            "child-c",
            "child-b",
        ]

    def test_a_started_run_is_on_offer_at_once_with_its_labels_and_definition(self) -> None:
        start = self.start(
            "child", labels={"of": "caller"}, queue="slow", definition=b"flow", fingerprint="own"
        )
        assert self.write(self.log.next(along=Along(starts=(start,)))) is None
        assert self.ids(labels={"of": "caller"}, queue="slow", offered=True) == ["child"]
        assert self.store.definition("own") == b"flow"

    def test_a_start_of_a_run_that_exists_refuses_the_whole_append(self) -> None:
        self.create("child-b")
        before = self.store.run("caller")
        verdict = self.write(self.family(*CHILDREN, posts=(("child-b", END),)))
        assert isinstance(verdict, RunExists)
        assert "child-b" in str(verdict)
        assert self.store.run("caller") == before
        assert self.ids() == ["caller", "child-b"]
        assert self.store.inbox(run_id="child-b") == []

    def test_two_starts_of_one_id_refuse_the_whole_append(self) -> None:
        assert isinstance(self.write(self.family("child", "child")), RunExists)
        assert isinstance(self.write(self.family("caller")), RunExists)
        assert self.ids() == ["caller"]

    def test_an_append_that_is_refused_starts_nothing_and_posts_nothing(self) -> None:
        other = self.create("other")
        for append, kind in (
            (self.family("child", posts=(("other", END),), fence=7), FenceLost),
            (
                Log("caller", holder="engine-1", fence=1).next(along=Along(starts=(self.start("child"),))),
                SeqConflict,
            ),
        ):
            assert isinstance(self.write(append), kind)
        assert self.ids() == ["caller", other.run_id]
        assert self.store.inbox(run_id="other") == []

    def test_a_start_that_cannot_be_stored_refuses_its_append_and_the_neighbours_are_written(self) -> None:
        bad = self.log.next(
            along=Along(starts=(self.start("good"), self.start("bad", labels={"a": "\ud800"})))
        )
        verdicts = self.store.append([bad, Log("beside").create()])
        assert [type(verdict) for verdict in verdicts] == [CodecError, type(None)]
        assert self.ids() == ["beside", "caller"]

    def test_of_two_appends_of_a_batch_that_start_one_run_the_first_stands(self) -> None:
        other = self.create("other")
        rival = other.next(along=Along(starts=(self.start("child"),)))
        verdicts = self.store.append([self.family("child"), rival, Log("child").create()])
        assert [type(verdict) for verdict in verdicts] == [type(None), RunExists, RunExists]
        assert self.store.run("other").seq == 1

    def test_a_large_batch_with_starts_is_judged_one_by_one(self) -> None:
        logs = [self.create(f"run-{number:03}") for number in range(60)]
        batch = [
            log.next(along=Along(starts=(self.start(f"child-{number % 40:03}"),)) if number % 2 else None)
            for number, log in enumerate(logs)
        ]
        verdicts = self.store.append(batch)
        refused = [number for number, verdict in enumerate(verdicts) if verdict is not None]
        assert refused == [number for number in range(41, 60) if number % 2]
        assert all(isinstance(verdicts[number], RunExists) for number in refused)
        assert len(self.ids(prefix="child-")) == 20

    def test_a_run_that_a_large_batch_creates_cannot_be_started_by_it_too(self) -> None:
        fill = [Log(f"fill-{number:02}").create() for number in range(40)]
        for run_id, places in (("before", (5, 30)), ("after", (30, 5))):
            caller = self.create(f"caller-of-{run_id}")
            batch: list[Append] = [self.create(f"{run_id}-{one.run_id}").next() for one in fill]
            start = caller.next(along=Along(starts=(self.start(run_id),)))
            batch[places[0]], batch[places[1]] = Log(run_id).create(), start
            verdicts = self.store.append(batch)
            refused = [number for number, verdict in enumerate(verdicts) if verdict is not None]
            assert refused == [max(places)]
            assert isinstance(verdicts[max(places)], RunExists)
            assert self.store.run(run_id).seq == 1

    def test_a_started_run_goes_on_like_any_other(self) -> None:
        self.write(self.family("child"))
        lease = self.store.claim("child", self.holder)
        start = self.store.events("child")[-1]
        log = Log("child", holder=self.holder.id, fence=lease.fence, seq=1, digest=start.digest)
        assert self.write(log.next(status="completed")) is None
        assert self.store.run("child").origin == "caller"

    def test_starts_and_requests_are_news_for_workers(self) -> None:
        self.create("other", status="waiting", release=True)
        for along in (Along(starts=(self.start("child"),)), Along(posts=(("other", END),))):
            append = self.log.next(along=along)
            while self.store.queues.hear(QUIET_S):
                pass
            assert self.write(append) is None
            self.log.wrote(append)
            assert self.store.queues.hear(20.0)

    # --- blobs ---------------------------------------------------------------------------------------

    def test_the_blobs_of_a_start_are_durable_before_its_rows(self) -> None:
        blob = Blob.of(b"large input")
        append = self.log.next(along=Along(starts=(self.start("child", blobs=(blob,)),)))
        with raises(KilledAtFailpoint), hooked(kill_at("append.before")):
            self.store.append([append])
        assert list(self.store.blobs.digests()) == [blob.digest]
        assert self.write(append) is None
        assert self.store.blobs.get(blob.digest) == b"large input"

    def test_a_start_whose_blob_cannot_be_kept_refuses_the_whole_append(self) -> None:
        fault = StoreFull("no space left")
        kept, self.store.blobs = self.store.blobs, Refusing(fault)
        try:
            append = self.log.next(along=Along(starts=(self.start("child", blobs=(Blob.of(b"x"),)),)))
            assert self.write(append) == fault
        finally:
            self.store.blobs = kept
        assert self.ids() == ["caller"]

    # --- posts ---------------------------------------------------------------------------------------

    def test_a_request_is_posted_with_the_append(self) -> None:
        child = self.create("child")
        assert self.write(child.next(status="completed", along=Along(posts=(("caller", END),)))) is None
        (waiting,) = self.store.inbox(self.holder.id)
        assert (waiting.run_id, waiting.id, waiting.verb, waiting.by) == (
            "caller",
            "end",
            "child_ended",
            "engine",
        )
        assert (waiting.body, waiting.at, waiting.taken) == ({"status": "completed"}, child.at, 0)
        assert self.store.post("caller", END) is False

    def test_a_request_that_was_posted_before_is_not_posted_again(self) -> None:
        self.store.post("caller", END)
        self.write(self.log.next(taken=("end",)))
        child = self.create("child")
        changed = Request(id="end", verb="child_ended", body={"status": "failed"})
        assert self.write(child.next(along=Along(posts=(("caller", changed), ("caller", END))))) is None
        assert self.store.inbox(self.holder.id) == []
        assert len(self.store.inbox(run_id="caller")) == 1

    def test_a_request_to_a_run_that_is_over_or_missing_is_dropped(self) -> None:
        for status in ("completed", "cancelled"):
            self.create(status, status=status)
        failed = self.create("failed", status="failed")
        posts = tuple((run_id, END) for run_id in ("completed", "cancelled", "missing", failed.run_id))
        assert self.write(self.log.next(along=Along(posts=posts))) is None
        assert [request.run_id for request in self.store.inbox(self.holder.id)] == ["failed"]
        assert self.store.inbox(run_id="completed") == []

    def test_a_request_to_a_run_that_the_same_append_starts_waits_for_it(self) -> None:
        assert self.write(self.family("child", posts=(("child", END),))) is None
        assert [request.id for request in self.store.inbox(run_id="child")] == ["end"]

    def test_a_request_to_a_run_that_its_batch_creates_or_ends_comes_after_that(self) -> None:
        for size in (3, 60):
            fill = [self.create(f"fill-{size}-{number}").next() for number in range(size - 3)]
            caller, ends = self.create(f"caller-{size}"), self.create(f"ends-{size}")
            posts = tuple((f"{name}-{size}", END) for name in ("created", "ends"))
            over = ends.next(status="completed")
            batch = [caller.next(along=Along(posts=posts)), *fill, over, Log(f"created-{size}").create()]
            assert self.store.append(batch) == [None] * size
            assert [request.taken for request in self.store.inbox(run_id=f"created-{size}")] == [0]
            assert self.store.inbox(run_id=f"ends-{size}") == []

    def test_a_request_that_cannot_be_stored_refuses_its_append_and_the_neighbours_are_written(self) -> None:
        self.create("other")
        for bad in (
            Request(id="end", verb="v", body={"a": "\ud800"}),
            Request(id="\ud800", verb="v", body={}),
        ):
            append = self.family("child", posts=(("other", END), ("other", bad)))
            beside = self.create("beside").next()
            verdicts = self.store.append([append, beside])
            assert [type(verdict) for verdict in verdicts] == [CodecError, type(None)]
            assert self.ids() == ["beside", "caller", "other"]
            assert self.store.inbox(run_id="other") == []
            self.store.release("beside", self.holder.id, 1)
            assert not self.store.upkeep.delete({"beside": beside.rows[-1].seq})

    def test_a_run_that_ends_while_a_request_comes_is_over_and_no_request_waits_for_it(self) -> None:
        other = self.open(self.folder, self.clock)
        try:
            for number in range(20):
                self.race(
                    other, self.create(f"ends-{number}"), Request(id=f"r{number}", verb="note", body={})
                )
        finally:
            other.close()

    def race(self, other: Store, ends: Log, request: Request) -> None:
        """End a run while another append posts a request to it."""
        over = ends.next(status="completed", release=True)
        append = self.log.next(along=Along(posts=((ends.run_id, request),)))
        gate = threading.Barrier(2)

        def write(store: Store, one: Append) -> None:
            gate.wait()
            assert store.append([one]) == [None]

        in_threads(1, lambda: write(self.store, append), lambda: write(other, over))
        self.log.wrote(append)
        assert all(one.taken and one.unmet for one in self.store.inbox(run_id=ends.run_id))
        assert self.store.queues.waiting([ends.run_id]) == []
        assert not self.store.upkeep.delete({ends.run_id: over.rows[-1].seq})

    def test_two_runs_that_post_to_each_other_again_and_again_both_go_on(self) -> None:
        left, right = self.log, self.create("right")
        ways = [self.store, self.open(self.folder, self.clock)]
        gate = threading.Barrier(2)

        def post(store: Store, log: Log, other: str) -> None:
            gate.wait()
            for number in range(25):
                request = Request(id=f"{log.run_id}-{number}", verb="note", body={})
                append = log.next(along=Along(posts=((other, request),)))
                assert store.append([append]) == [None]
                log.wrote(append)

        try:
            in_threads(1, lambda: post(ways[0], left, "right"), lambda: post(ways[1], right, "caller"))
        finally:
            ways[1].close()
        assert len(self.store.inbox(self.holder.id)) == 50

    # --- deletion ------------------------------------------------------------------------------------

    def start_ended(self, child: str, **changes: Any) -> None:
        """Start a run that is completed at once."""
        start = Log(child).create(status="completed", origin=self.log.run_id)
        append = self.log.next(along=Along(starts=(start,)), **changes)
        assert self.write(append) is None
        self.log.wrote(append)

    def test_a_run_is_not_deleted_while_the_run_that_started_it_may_need_it(self) -> None:
        self.start_ended("child")
        for status in ("running", "waiting", "paused", "interrupted", "failed"):
            append = self.log.next(status=status)
            assert self.write(append) is None
            self.log.wrote(append)
            with raises(ResumeRefused, "child", "caller", status):
                delete_run(self.store, "child", 1)
        assert self.store.run("child").status == "completed"

    def test_a_run_is_deleted_when_the_run_that_started_it_is_over(self) -> None:
        for status, child in (("completed", "child-a"), ("cancelled", "child-b")):
            self.log = self.create(f"caller-{status}")
            self.start_ended(child, status=status, release=True)
            assert not self.store.upkeep.delete({child: 1})
        assert self.ids() == ["caller", "caller-cancelled", "caller-completed"]

    def test_a_run_outlives_the_run_that_started_it(self) -> None:
        self.start_ended("child", status="failed", release=True)
        assert not self.store.upkeep.delete({"caller": 3})
        assert self.store.run("child").origin == "caller"
        assert self.ids(origin="caller") == ["child"]
        assert not self.store.upkeep.delete({"child": 1})
        assert self.ids() == []

    # --- crashes -------------------------------------------------------------------------------------

    def test_a_crash_before_the_commit_leaves_nothing_and_one_after_it_everything(self) -> None:
        self.create("other")
        for place, kept in (("append.before", False), ("append.written", False), ("append.committed", True)):
            append = self.family("child", posts=(("other", END),))
            with raises(KilledAtFailpoint), hooked(kill_at(place)):
                self.store.append([append])
            assert self.store.appended("caller", append.rows[0].seq, append.rows[0].salt) is kept
            assert self.ids(origin="caller") == (["child"] if kept else [])
            assert len(self.store.inbox(run_id="other")) == int(kept)

    def test_of_many_engines_that_start_the_same_run_one_does(self) -> None:
        logs = [self.create(f"caller-{number}") for number in range(6)]
        verdicts: list[Verdict] = []

        def start(log: Log) -> None:
            verdicts.extend(self.store.append([log.next(along=Along(starts=(self.start("child"),)))]))

        in_threads(1, *(lambda log=log: start(log) for log in logs))
        assert sorted(type(verdict).__name__ for verdict in verdicts) == ["NoneType"] + ["RunExists"] * 5
        assert sorted(self.store.run(log.run_id).seq for log in logs) == [1] * 5 + [3]

    def test_of_two_engines_that_start_the_same_runs_in_another_order_one_starts_them_all(self) -> None:
        stores = [self.store, self.open(self.folder, self.clock)]
        logs = [self.create("left"), self.create("right")]
        gate = threading.Barrier(2)
        won: list[str] = []

        def start(store: Store, log: Log, *ids: str) -> None:
            starts = tuple(Log(run_id).create(origin=log.run_id) for run_id in ids)
            append = log.next(along=Along(starts=starts))
            gate.wait()
            (verdict,) = store.append([append])
            assert verdict is None or isinstance(verdict, RunExists)
            if verdict is None:
                won.append(log.run_id)
                log.wrote(append)

        try:
            for number in range(20):
                ids = [f"{name}-{number}" for name in ("a", "b", "c")]
                in_threads(
                    1,
                    partial(start, stores[0], logs[0], *ids),
                    partial(start, stores[1], logs[1], *reversed(ids)),
                )
                assert len(won) == number + 1
                assert {self.store.run(run_id).origin for run_id in ids} == {won[-1]}
        finally:
            stores[1].close()
