"""The part of the conformance suite for stores that is about leases, fences and the inbox: which engine may write to a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import (
    CodecError,
    FenceLost,
    RunHeld,
    RunNotFound,
)
from holdfast.storage.contract import Append, Holder, Lease, Query, Request, Store
from holdfast.storage.leases import alive, this_process
from holdfast.testing.appends import Log, Time, dead_process, raises

TTL_S = 30.0


class LeaseConformance:
    """Tests for what a store promises about leases and the inbox. Part of `StoreConformance`."""

    persistent = True

    def open(self, folder: Path, clock: Callable[[], float]) -> Store:
        """Open the store in this folder, with this clock."""
        raise NotImplementedError("implement open(folder, clock): return your store, opened in that folder")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.time = Time()
        self.opened: list[Store] = []
        self.store = self.another()
        self.holder = Holder(id="engine-1", ttl_s=TTL_S)
        self.rival = Holder(id="engine-2", ttl_s=TTL_S)
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

    def reopen(self) -> Store:
        self.store.close()
        self.store = self.another()
        return self.store

    def write(self, log: Log, *bodies: bytes, **changes: Any) -> Append:
        """Append to a log; the append must succeed."""
        append = (log.next if log.seq else log.create)(*bodies, **changes)
        assert self.store.append([append]) == [None]
        log.wrote(append)
        return append

    def start_run(self, run_id: str = "r1", **changes: Any) -> Log:
        """Create a run that the first engine holds."""
        log = Log(run_id, holder=self.holder.id, fence=1)
        self.write(log, **changes)
        return log

    def require_refused(self, append: Append, kind: type[Exception], *parts: str) -> None:
        """Require that the store refuses this append and stores nothing of it."""
        before = self.contents(append.run_id)
        (verdict,) = self.store.append([append])
        with raises(kind, *parts):
            if verdict is not None:
                raise verdict
        assert self.contents(append.run_id) == before

    def contents(self, run_id: str) -> object:
        try:
            snapshot = self.store.snapshot(run_id, [(0, 10**9)])
            return (
                self.store.run(run_id),
                self.store.events(run_id),
                snapshot,
                self.store.inbox(self.holder.id),
            )
        except RunNotFound:
            return None

    # --- leases --------------------------------------------------------------------------------------

    def test_a_created_run_is_held_at_once_with_fence_1(self) -> None:
        self.start_run()
        run = self.store.run("r1")
        assert (run.fence, run.held, run.holder) == (1, True, self.holder)

    def test_a_run_created_by_nobody_can_be_claimed(self) -> None:
        log = Log("r1")
        self.write(log)
        run = self.store.run("r1")
        assert (run.fence, run.held, run.holder) == (0, False, None)
        assert self.store.claim("r1", self.rival) == Lease("r1", 1, 1)
        assert self.store.run("r1").holder == self.rival

    def test_a_held_run_cannot_be_claimed_by_another(self) -> None:
        log = self.start_run()
        before = self.contents("r1")
        with raises(RunHeld, "r1", "engine-1"):
            self.another().claim("r1", self.rival)
        assert self.contents("r1") == before
        self.write(log)

    def test_the_same_holder_claims_again_and_the_fence_grows(self) -> None:
        log = self.start_run()
        self.write(log)
        assert self.store.claim("r1", self.holder) == Lease("r1", 2, 3)
        assert self.store.claim("r1", self.holder) == Lease("r1", 3, 3)

    def test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_cannot_write(self) -> None:
        log = self.start_run()
        self.time.pass_s(TTL_S - 1)
        assert self.store.run("r1").held
        with raises(RunHeld):
            self.store.claim("r1", self.rival)
        self.time.pass_s(2)
        assert not self.store.run("r1").held
        lease = self.store.claim("r1", self.rival)
        assert lease.fence == 2
        self.require_refused(log.next(), FenceLost, "engine-2")
        self.write(log, holder=self.rival.id, fence=lease.fence)

    def test_a_lease_that_ran_out_still_writes_until_somebody_takes_it(self) -> None:
        log = self.start_run()
        self.time.pass_s(TTL_S * 10)
        self.write(log)

    def test_renewal_keeps_every_lease_of_a_holder(self) -> None:
        self.start_run("r1")
        self.start_run("r2")
        for _ in range(3):
            self.time.pass_s(TTL_S - 1)
            self.store.renew(self.holder)
        for run_id in ("r1", "r2"):
            with raises(RunHeld):
                self.store.claim(run_id, self.rival)

    def test_a_claim_renews_its_holder(self) -> None:
        self.start_run("r1")
        self.time.pass_s(TTL_S - 1)
        self.start_run("r2")
        self.store.claim("r2", self.holder)
        self.time.pass_s(2)
        assert self.store.run("r1").held

    def test_a_late_renewal_does_not_bring_a_lost_lease_back(self) -> None:
        log = self.start_run()
        self.time.pass_s(TTL_S + 1)
        self.store.claim("r1", self.rival)
        self.store.renew(self.holder)
        assert self.store.run("r1").holder == self.rival
        self.require_refused(log.next(), FenceLost)

    def test_a_holder_that_is_gone_holds_nothing(self) -> None:
        log = self.start_run("r1")
        self.start_run("r2")
        self.store.renew(msgspec.structs.replace(self.holder, ttl_s=0.0))
        assert [(run.held, run.holder) for run in self.store.runs(Query())] == [(False, None)] * 2
        self.require_refused(log.next(), FenceLost, "no engine holds it")
        assert self.store.claim("r1", self.rival).fence == 2

    def test_a_released_run_can_be_claimed_and_its_old_holder_cannot_write(self) -> None:
        log = self.start_run()
        self.store.release("r1", self.holder.id, 1)
        assert not self.store.run("r1").held
        self.require_refused(log.next(), FenceLost, "no engine holds it")
        assert self.store.claim("r1", self.rival).fence == 2

    def test_a_release_of_another_lease_does_nothing(self) -> None:
        self.start_run()
        before = self.contents("r1")
        self.store.release("r1", self.rival.id, 1)
        self.store.release("r1", self.holder.id, 7)
        self.store.release("r9", self.holder.id, 1)
        assert self.contents("r1") == before

    def test_an_append_can_give_the_lease_back(self) -> None:
        log = self.start_run()
        self.write(log, release=True, status="completed")
        run = self.store.run("r1")
        assert (run.held, run.holder, run.fence, run.status) == (False, None, 1, "completed")
        self.write(Log("r2", holder=self.holder.id), release=True)
        assert self.store.run("r2").holder is None

    def test_a_dead_process_is_taken_over_at_once(self) -> None:
        dead = dead_process()
        if alive(dead) is None:
            return  # on this platform it cannot be known whether a process is alive; only the expiry of the lease counts
        self.store.renew(dead)
        self.write(Log("r1", holder=dead.id))
        assert not self.store.run("r1").held
        assert self.store.claim("r1", self.rival).fence == 2

    def test_a_holder_that_ran_out_long_ago_and_holds_nothing_is_forgotten(self) -> None:
        self.store.renew(self.rival)
        self.start_run("held")
        self.time.pass_s(10 * 86_400)
        self.store.renew(Holder(id="newcomer", ttl_s=TTL_S))
        self.require_refused(Log("r1", holder=self.rival.id).create(), FenceLost, "Renew the holder")
        assert self.store.run("held").holder == self.holder
        self.write(Log("r1", holder=self.holder.id))

    def test_a_process_on_another_host_holds_until_its_time_runs_out(self) -> None:
        far = msgspec.structs.replace(dead_process(), host="elsewhere", boot="another")
        self.store.renew(far)
        self.write(Log("r1", holder=far.id))
        with raises(RunHeld, "elsewhere"):
            self.store.claim("r1", self.rival)
        self.time.pass_s(far.ttl_s + 1)
        assert self.store.claim("r1", self.rival).fence == 2

    def test_two_engines_of_one_process_are_two_holders(self) -> None:
        one, two = this_process(TTL_S, "one"), this_process(TTL_S, "two")
        self.store.renew(one)
        self.write(Log("r1", holder="one"))
        assert self.store.run("r1").holder == one
        with raises(RunHeld, str(os.getpid())):
            self.store.claim("r1", two)

    # --- the inbox -----------------------------------------------------------------------------------

    def test_requests_wait_in_the_order_they_came_for_the_holder_of_their_run(self) -> None:
        self.start_run("r1")
        self.start_run("r2")
        self.write(Log("r3"))
        for run_id, request in (("r1", "b"), ("r2", "c"), ("r3", "x"), ("r1", "a")):
            self.time.pass_s(1)
            sent = Request(id=request, verb="signal", body={"n": [1, None, "é"]}, by="me", reason="why")
            assert self.another().post(run_id, sent)
        found = self.store.inbox(self.holder.id)
        assert [(r.run_id, r.id) for r in found] == [("r1", "b"), ("r2", "c"), ("r1", "a")]
        assert found[0] == msgspec.structs.replace(sent, id="b", run_id="r1", at=self.time.at - 3)
        assert self.store.inbox(self.rival.id) == []
        self.store.claim("r3", self.rival)
        assert [r.id for r in self.store.inbox(self.rival.id)] == ["x"]

    def test_a_request_is_left_once_per_run(self) -> None:
        self.start_run("r1")
        self.start_run("r2")
        assert self.store.post("r1", Request(id="q", verb="cancel", at=5.0))
        assert not self.store.post("r1", Request(id="q", verb="pause"))
        assert self.store.post("r2", Request(id="q", verb="cancel"))
        assert [(r.run_id, r.verb) for r in self.store.inbox(self.holder.id)] == [
            ("r1", "cancel"),
            ("r2", "cancel"),
        ]
        assert self.store.inbox(self.holder.id)[0].at == 5.0

    def test_a_request_leaves_the_inbox_with_the_append_that_answers_it(self) -> None:
        log = self.start_run("r1")
        self.start_run("r2")
        for run_id in ("r1", "r2"):
            self.store.post(run_id, Request(id="q", verb="cancel"))
        self.require_refused(log.next(fence=9, taken=("q",)), FenceLost)
        self.write(log, taken=("q", "never posted"))
        assert [r.run_id for r in self.store.inbox(self.holder.id)] == ["r2"]

    def test_a_request_that_was_taken_is_not_accepted_again(self) -> None:
        log = self.start_run()
        self.store.post("r1", Request(id="q", verb="signal"))
        self.write(log, taken=("q",))
        assert not self.store.post("r1", Request(id="q", verb="signal"))
        assert self.store.inbox(self.holder.id) == []

    def test_a_request_that_no_store_can_keep_is_refused(self) -> None:
        self.start_run()
        for request in (
            Request(id="\ud800", verb="signal"),
            Request(id="q", verb="signal", body={"x": ["\ud800"]}),
        ):
            with raises(CodecError):
                self.store.post("r1", request)
        assert self.store.inbox(self.holder.id) == []
