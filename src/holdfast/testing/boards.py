"""The part of the conformance suite for queues that is about what a board shows: runs by status, ends, what is on offer, and the
live holders.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.storage.contract import Holder, Query, Request, Store
from holdfast.storage.leases import CallsAtOnce, alive
from holdfast.storage.queues import LiveHolder, OnOffer, Wanted
from holdfast.testing.appends import Log, Time, dead_process

TTL_S = 30.0
HOSTILE = (
    "'",
    '"',
    "a' or '1'='1",
    "%",
    "$.a",
    "[0]",
    "\\",
    " ",
    "\n",
    "é",
    "日本",
    "🐙",
    "null",
    "--",
    "?1",
    "{}",
    ",",
)
ANY = Wanted(flows=("flow",), limit=100)


class BoardConformance:
    """Tests for what a store shows of its runs and engines at a glance. Part of `QueuesConformance`."""

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder, with this clock."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.time = Time()
        self.opened: list[Store] = []
        self.store = self.another()
        self.queues = self.store.queues
        self.worker = Holder(id="worker-1", ttl_s=TTL_S)
        self.rival = Holder(id="worker-2", ttl_s=TTL_S)

    def teardown_method(self) -> None:
        for store in self.opened:
            store.close()
        shutil.rmtree(self.folder)

    def another(self) -> Store:
        """Open the same store again, as another process would."""
        store = self.open(self.folder, self.time)
        self.opened.append(store)
        return store

    def create_pending(self, run_id: str, **changes: Any) -> Log:
        """Create a run that no engine holds; its status is pending unless `changes` has another."""
        log = Log(run_id)
        append = log.create(**{"status": "pending", "created_at": self.time.at, **changes})
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return log

    def create_held(self, holder: Holder, run_id: str, **changes: Any) -> Log:
        """Create a run that this holder holds; its status is running unless `changes` has another."""
        self.store.renew(holder)
        log = Log(run_id, holder=holder.id, fence=1)
        append = log.create(**{"created_at": self.time.at, **changes})
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return log

    def take(self, holder: Holder | None = None, **wanted: Any) -> list[str]:
        """Claim runs from the queues for a holder, and return their ids in order."""
        asked = msgspec.structs.replace(ANY, **wanted)
        return [one.lease.run_id for one in self.queues.take(holder or self.worker, asked)]

    # --- live holders --------------------------------------------------------------------------------

    def end(self, log: Log, at: float, status: str, **changes: Any) -> None:
        log.at = at
        append = log.next(status=status, **changes)
        assert self.store.append([append]) == [None]
        log.wrote(append)

    def test_the_board_counts_runs_by_status_open_questions_and_live_holders(self) -> None:
        empty = self.queues.board()
        assert (empty.counts, empty.asks, empty.holders, len(empty.minutes)) == ({}, 0, (), 60)
        self.create_pending("r1", asks=0)
        self.create_pending("r2", status="waiting", asks=2)
        self.create_pending("r3", status="waiting", asks=1)
        self.create_pending("r4", status="waiting")
        self.create_held(self.worker, "r5")
        board = self.another().queues.board()
        assert (board.at, board.counts) == (self.time.at, {"pending": 1, "waiting": 3, "running": 1})
        assert board.asks == 3
        at = self.time.at
        assert board.holders == (LiveHolder(holder=self.worker, held=1, registered_at=at, seen_at=at),)

    def test_what_is_on_offer_is_counted_by_flow_and_queue(self) -> None:
        at = self.time.at
        self.create_pending("r1", asks=0)
        self.create_pending("r2", flow="other", status="interrupted", asks=0)
        self.create_pending("r3", flow="other", queue="mail", status="waiting", due_at=at, asks=0)
        self.create_pending("later", due_at=at + 1, asks=0)
        self.create_pending("sleeps", status="waiting", due_at=at + 1, asks=0)
        self.create_pending("asks", status="waiting", asks=2)
        self.create_pending("both", queue="mail", status="interrupted", asks=1)
        self.create_pending("old", status="paused")
        self.create_pending("failed", status="failed", asks=1)
        self.create_held(self.worker, "r4", asks=0)
        board = self.another().queues.board()
        assert self.another().queues.offered() == (
            OnOffer("flow", "default", 1),
            OnOffer("flow", "mail", 1, 1),
            OnOffer("other", "default", 1),
            OnOffer("other", "mail", 1, waiting=1),
        )
        assert (board.asks, board.asking) == (4, 2)
        assert self.offered() == {"r1", "r2", "r3", "both"}
        assert self.offered(asks=True) == {"both"}
        assert self.offered(flow="other", queue="mail") == {"r3"}
        assert self.offered(status=("failed", "paused")) == set()
        self.time.pass_s(TTL_S + 1)
        assert self.offered() == {"r1", "r2", "r3", "both", "later", "sleeps", "r4"}
        assert sum(one.runs for one in self.queues.offered()) == 7

    def test_a_run_whose_holder_died_is_on_offer(self) -> None:
        dead = dead_process()
        if alive(dead) is None:
            return  # on this platform it is not known whether a process is alive; only the expiry of leases counts
        self.create_held(dead, "r1")
        self.create_held(dead, "r2", status="completed")
        assert self.queues.offered() == (OnOffer("flow", "default", 1),)
        assert self.offered() == {"r1"}

    def test_the_requests_that_wait_are_listed_for_many_runs_at_once(self) -> None:
        for run_id in ("r1", "r2", "r3"):
            self.create_pending(run_id)
        for number, run_id in enumerate(("r2", "r1", "r3", "r2")):
            self.store.post(run_id, Request(id=f"q{number}", verb="signal", body={"name": "é"}, by="ada"))
        log = self.create_held(self.worker, "r4")
        self.store.post("r4", Request(id="taken", verb="pause"))
        self.store.post("r4", Request(id="left", verb="cancel"))
        append = log.next(taken=("taken",))
        assert self.store.append([append]) == [None]
        found = self.another().queues.waiting(["r4", "none", "r2", "r1", "r2"])
        assert [(one.run_id, one.id) for one in found] == [
            ("r2", "q0"),
            ("r1", "q1"),
            ("r2", "q3"),
            ("r4", "left"),
        ]
        assert (found[0].by, found[0].body, found[0].at) == ("ada", {"name": "é"}, self.time.at)
        assert self.queues.waiting([]) == []

    def offered(self, **conditions: Any) -> set[str]:
        return {row.run_id for row in self.store.runs(Query(offered=True, **conditions))}

    def test_the_board_counts_the_ends_of_the_last_hour_by_the_minute(self) -> None:
        self.time.at = minute = self.time.at // 60 * 60
        logs = [self.create_held(self.worker, f"r{number}") for number in range(6)]
        self.end(logs[0], minute - 61 * 60, "completed")
        self.end(logs[1], minute - 59 * 60, "completed")
        self.end(logs[2], minute - 1, "failed")
        self.end(logs[3], minute, "cancelled")
        self.end(logs[4], minute + 59, "failed")
        self.time.pass_s(59.5)
        restored = Log("r6")
        restored.at = minute - 59 * 60
        assert self.store.append([restored.create(status="completed")]) == [None]
        minutes = self.queues.board().minutes
        assert [one.at for one in minutes] == [minute - 60 * ago for ago in reversed(range(60))]
        assert [(one.completed, one.failed, one.cancelled) for one in minutes[:2]] == [(2, 0, 0), (0, 0, 0)]
        assert (minutes[-2].failed, minutes[-1].failed, minutes[-1].cancelled) == (1, 1, 1)
        assert sum(one.completed for one in minutes) == 2

    def test_a_failed_run_counts_when_it_failed_until_it_is_resumed(self) -> None:
        self.time.at = minute = self.time.at // 60 * 60
        log = self.create_held(self.worker, "r1")
        self.end(log, minute - 120, "failed")
        self.end(log, minute, "failed")  # an event after the failure, such as a signal
        assert [one.at for one in self.queues.board().minutes if one.failed] == [minute - 120]
        self.end(log, minute, "running")
        assert not any(one.failed for one in self.queues.board().minutes)
        self.end(log, minute, "failed", asks=1)
        assert [one.at for one in self.queues.board().minutes if one.failed] == [minute]

    def test_the_board_counts_many_ends_that_are_written_together(self) -> None:
        self.time.at = minute = self.time.at // 60 * 60
        logs = [self.create_held(self.worker, f"r{number}", asks=0) for number in range(40)]
        batch = []
        for log in logs:
            log.at = minute - 60
            batch.append(log.next(status="completed", asks=0, active_s=1.5, situation=None))
        assert self.store.append(batch) == [None] * 40
        assert [(one.at, one.completed) for one in self.queues.board().minutes if one.completed] == [
            (minute - 60, 40)
        ]
        assert self.store.run("r7").active_s == 1.5

    def test_live_holders_are_listed_with_what_they_take_and_how_many_runs_they_hold(self) -> None:
        for number in range(3):
            self.create_pending(f"r{number}")
        mailer = msgspec.structs.replace(
            self.worker, flows=("flow", *HOSTILE), queues=("mail", *HOSTILE), version="1.2.3"
        )
        self.store.renew(mailer)
        assert self.take(mailer, limit=2) == ["r0", "r1"]
        since = self.time.at
        self.time.pass_s(5)
        self.store.renew(mailer)
        self.create_held(self.rival, "r3")
        now = self.time.at
        found = [
            LiveHolder(holder=mailer, held=2, registered_at=since, seen_at=now),
            LiveHolder(holder=self.rival, held=1, registered_at=now, seen_at=now),
        ]
        assert self.another().queues.holders() == self.queues.holders() == found
        assert self.another().run("r0").holder == mailer

    def test_a_holder_says_how_many_of_its_calls_wait_with_every_renewal(self) -> None:
        calls = (CallsAtOnce(executor="process", limit=2, waiting=198),)
        busy = msgspec.structs.replace(self.worker, calls=calls)
        for one in (self.worker, busy, self.worker, busy):
            self.store.renew(one)
            assert [live.holder for live in self.another().queues.holders()] == [one]
            self.time.pass_s(1)

    def test_a_holder_says_anew_what_it_takes_with_every_renewal_and_claim(self) -> None:
        self.create_pending("r1")
        self.create_pending("r2")
        changed = msgspec.structs.replace(self.worker, flows=("flow",), version="2")
        drained = msgspec.structs.replace(self.worker, version="2")
        renewals: tuple[Callable[[Holder], object], ...] = (
            self.store.renew,
            lambda holder: self.store.claim("r1", holder),
            lambda holder: self.take(holder, limit=1),
        )
        self.store.renew(self.worker)
        for renew in renewals:
            renew(changed)
            assert [one.holder for one in self.queues.holders()] == [changed]
            self.store.renew(drained)
            assert [one.holder for one in self.queues.holders()] == [drained]

    def test_a_holder_that_has_expired_ended_or_died_is_not_listed_as_live(self) -> None:
        dead = dead_process()
        self.create_held(self.rival, "r1")
        self.store.renew(self.worker)
        if alive(dead) is not None:
            self.store.renew(dead)
        assert [one.holder.id for one in self.queues.holders()] == [self.worker.id, self.rival.id]
        self.store.renew(msgspec.structs.replace(self.worker, ttl_s=0.0))
        assert [one.holder.id for one in self.queues.holders()] == [self.rival.id]
        self.time.pass_s(TTL_S + 1)
        assert self.queues.holders() == []
        self.store.renew(self.rival)
        assert [(one.holder, one.held) for one in self.queues.holders()] == [(self.rival, 1)]
