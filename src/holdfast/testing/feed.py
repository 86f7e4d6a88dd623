"""The suite that the feed of every store must pass: the rules of `holdfast.storage.contract.Feed` as tests.

    from holdfast.testing.feed import FeedConformance

    class TestMyFeed(FeedConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.storage.contract import NO_EVENTS, Store
from holdfast.storage.leases import Holder
from holdfast.testing.appends import Log, Time, dead_process

ALL = 1000


class FeedConformance:
    """Tests for everything that the feed of a store promises. Subclass it, name the class `Test…` and implement `open`."""

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.clock = Time()
        self.store = self.open(self.folder, self.clock)
        self.feed = self.store.feed
        self.holder = Holder(id="engine-1", ttl_s=30.0)

    def teardown_method(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def create(self, run_id: str, events: int = 1, holder: Holder | None = None) -> Log:
        """Create a run with this many events, held by `holder` (default: by the holder of the test)."""
        owner = holder or self.holder
        self.store.renew(owner)
        log = Log(run_id, holder=owner.id, fence=1)
        append = log.create(*[b"{}"] * events)
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return log

    def move(self, log: Log, events: int = 1, status: str = "running") -> None:
        append = log.next(*[b"{}"] * events, status=status)
        assert self.store.append([append]) == [None]
        log.wrote(append)

    def seqs(self, after: dict[str, int], limit: int = ALL) -> dict[str, list[int]]:
        return {
            run_id: [row.seq for row in tail.rows] for run_id, tail in self.feed.look(after, limit).items()
        }

    def test_it_has_the_end_of_each_log_and_the_events_after_a_place(self) -> None:
        one = self.create("r1", 3)
        self.create("r2", 2)
        self.create("r3", 9)
        self.move(one, 2, "waiting")
        found = self.feed.look({"r1": 3, "r2": 2, "r3": 0}, ALL)
        assert {run_id: (tail.seq, tail.status, tail.held) for run_id, tail in found.items()} == {
            "r1": (5, "waiting", True), "r2": (2, "running", True), "r3": (9, "running", True),
        }  # fmt: skip
        for run_id, after in {"r1": 3, "r2": 2, "r3": 0}.items():
            assert found[run_id].rows == self.store.events(run_id, after)

    def test_it_has_no_more_events_of_each_run_than_were_asked_for(self) -> None:
        self.create("r1", 9)
        self.create("r2", 9)
        assert self.seqs({"r1": 1, "r2": 7}, 3) == {"r1": [2, 3, 4], "r2": [8, 9]}
        assert self.seqs({"r1": 1}, 0) == {"r1": []}

    def test_a_place_after_the_end_gives_no_events_of_any_run(self) -> None:
        self.create("r1", 3)
        self.create("r2", 3)
        for after in (3, 4, NO_EVENTS, 2**40, 2**60):
            assert self.seqs({"r1": after, "r2": after}) == {"r1": [], "r2": []}

    def test_unknown_runs_are_left_out_and_hide_no_other(self) -> None:
        self.create("r1")
        for other in ("r2", "R1", "r1 ", "", "'", "%", "\0", "\ud800", "x" * 200):
            assert self.seqs({other: 0, "r1": 0}) == {"r1": [1]}, other
        assert self.feed.look({}, ALL) == {}

    def test_a_run_that_is_deleted_is_left_out(self) -> None:
        log = self.create("r1")
        self.move(log, 1, "completed")
        self.store.release("r1", self.holder.id, 1)
        assert not self.store.upkeep.delete({"r1": log.seq})
        assert self.feed.look({"r1": 0}, ALL) == {}

    def test_a_lease_that_has_expired_or_was_released_does_not_hold(self) -> None:
        self.create("r1")
        self.create("r2", holder=Holder(id="engine-2", ttl_s=60.0))
        self.create("r3", holder=Holder(id="engine-3", ttl_s=60.0))
        self.store.release("r3", "engine-3", 1)
        self.clock.pass_s(31.0)
        found = self.feed.look({"r1": 0, "r2": 0, "r3": 0}, ALL)
        assert {run_id: tail.held for run_id, tail in found.items()} == {"r1": False, "r2": True, "r3": False}
        for run_id, tail in found.items():
            assert tail.held == self.store.run(run_id).held

    def test_a_dead_process_does_not_hold(self) -> None:
        self.create("r1", holder=dead_process())
        assert not self.feed.look({"r1": 0}, ALL)["r1"].held

    def test_a_compacted_log_begins_after_its_base(self) -> None:
        self.create("r1", 9)
        digest = self.store.events("r1", 4, 5)[0].digest
        self.store.upkeep.compact("r1", 5, body=b"{}", digest=digest, holder=self.holder.id, fence=1)
        assert self.seqs({"r1": 2}) == {"r1": [6, 7, 8, 9]}
        assert self.seqs({"r1": 2}, 2) == {"r1": [6, 7]}
        assert self.seqs({"r1": 7}) == {"r1": [8, 9]}

    def test_it_answers_for_a_thousand_runs_at_once(self) -> None:
        logs = [Log(f"r{number}", holder=self.holder.id, fence=1) for number in range(1000)]
        self.store.renew(self.holder)
        assert set(self.store.append([log.create(b"{}", b"{}") for log in logs])) == {None}
        assert self.seqs(dict.fromkeys((log.run_id for log in logs), 1)) == {log.run_id: [2] for log in logs}
