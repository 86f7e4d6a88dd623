"""The part of the conformance suite for stores that is about leases, fences and the inbox: which engine may write to a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import (
    CodecError,
    FenceLost,
    RequestExists,
    RunHeld,
    RunNotFound,
    RunOver,
)
from holdfast.storage import failpoints
from holdfast.storage.contract import Append, Holder, Lease, Query, Request, Store
from holdfast.storage.leases import alive, this_process
from holdfast.testing.appends import Log, Time, dead_process, hooked, in_threads, raises

TTL_S = 30.0
_MANY = 40
"""Enough appends at once that every store writes them as a batch."""


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

    def test_the_requests_that_wait_for_one_run_are_found_among_those_of_its_holder(self) -> None:
        log = self.start_run("r1")
        self.start_run("r2")
        for run_id, request in (("r1", "b"), ("r2", "same"), ("r1", "same"), ("r1", "a")):
            self.store.post(run_id, Request(id=request, verb="signal"))
        found = self.store.inbox(self.holder.id, run_id="r1")
        assert [(r.run_id, r.id) for r in found] == [("r1", "b"), ("r1", "same"), ("r1", "a")]
        assert self.store.inbox(self.rival.id, run_id="r1") == []
        assert self.store.inbox(self.holder.id, run_id="none") == []
        self.write(log, taken=("b", "same"))
        assert [r.id for r in self.store.inbox(self.holder.id, run_id="r1")] == ["a"]
        assert [r.id for r in self.store.inbox(self.holder.id, run_id="r2")] == ["same"]

    def test_a_request_is_left_once_per_run(self) -> None:
        self.start_run("r1")
        self.start_run("r2")
        assert self.store.post("r1", Request(id="q", verb="cancel", at=5.0))
        assert not self.store.post("r1", Request(id="q", verb="cancel", by="ann", reason="again"))
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

    def test_a_look_leaves_no_request_and_says_whether_one_was_left(self) -> None:
        log = self.start_run()
        request = Request(id="q", verb="signal")
        assert self.store.post("r1", request, only_look=True)
        assert self.store.inbox(self.holder.id) == []
        assert self.store.post("r1", request)
        assert not self.store.post("r1", request, only_look=True)
        self.write(log, taken=("q",))
        assert not self.store.post("r1", request, only_look=True)
        with raises(RunNotFound):
            self.store.post("none", request, only_look=True)

    def test_requests_to_many_runs_are_stored_together_and_judged_one_by_one(self) -> None:
        self.start_run("r1")
        self.start_run("r2")
        self.write(self.start_run("over"), status="completed")
        self.store.post("r2", Request(id="old", verb="cancel"))
        batch = [
            Request(id="q", verb="resume", body={"force": True}, by="ada", reason="fixed", run_id="r2"),
            Request(id="q", verb="resume", run_id="none"),
            Request(id="q", verb="resume", run_id="over"),
            Request(id="q", verb="resume", body={"force": True}, run_id="r1"),
            Request(id="old", verb="cancel", run_id="r2"),
            Request(id="old", verb="resume", run_id="r2"),
            Request(id="q", verb="resume", body={"force": True}, run_id="r1"),
            Request(id="q", verb="pause", run_id="r1"),
        ]
        told = [
            one if isinstance(one, bool) else type(one).__name__ for one in self.store.queues.post_all(batch)
        ]
        assert told == [True, "RunNotFound", "RunOver", True, False, "RequestExists", False, "RequestExists"]
        left = {(one.run_id, one.id): one for one in self.store.inbox(self.holder.id)}
        assert sorted(left) == [("r1", "q"), ("r2", "old"), ("r2", "q")]
        kept = left["r2", "q"]
        assert (kept.verb, kept.body, kept.by, kept.reason) == ("resume", {"force": True}, "ada", "fixed")
        assert kept.at == self.store.now()
        assert not any(isinstance(one, bool) and one for one in self.store.queues.post_all(batch))
        assert self.store.queues.post_all([]) == []

    def test_batches_that_are_posted_at_once_leave_each_request_once(self) -> None:
        runs = [f"r{number}" for number in range(10)]
        for run_id in runs:
            self.start_run(run_id)
        batch = [Request(id="q", verb="resume", run_id=run_id) for run_id in runs]
        posted: list[Any] = []
        stores = [self.another() for _ in range(8)]

        def ask() -> None:
            store = stores.pop()
            posted.extend(store.queues.post_all(batch if len(stores) % 2 else batch[::-1]))

        in_threads(8, ask)
        assert sorted(map(bool, posted)) == [False] * (7 * len(runs)) + [True] * len(runs)
        assert sorted(one.run_id for one in self.store.inbox(self.holder.id)) == runs

    def test_a_batch_with_a_request_that_cannot_be_stored_leaves_none(self) -> None:
        self.start_run()
        bad = Request(id="bad", verb="signal", body={"text": "\ud800"}, run_id="r1")
        with raises(CodecError):
            self.store.queues.post_all([Request(id="good", verb="signal", run_id="r1"), bad])
        assert self.store.inbox(self.holder.id) == []

    def test_a_request_with_the_id_of_another_is_refused_and_named(self) -> None:
        log = self.start_run()
        body = {"name": "parcel", "payload": {"a": 1, "b": [2, {"d": 4, "c": 3}]}}
        turned = {"payload": {"b": [2, {"c": 3, "d": 4}], "a": 1}, "name": "parcel"}
        others = (
            Request(id="q", verb="answer", body=body),
            Request(id="q", verb="signal"),
            Request(id="q", verb="signal", body={**body, "payload": {"a": 1, "b": []}}),
        )
        assert self.store.post("r1", Request(id="q", verb="signal", body=body))
        for taken in ((), ("q",)):
            self.write(log, taken=taken)
            for only_look in (False, True):
                assert not self.another().post(
                    "r1", Request(id="q", verb="signal", body=turned), only_look=only_look
                )
                for other in others:
                    with raises(RequestExists, "'r1'", "'q'", "(signal)"):
                        self.store.post("r1", other, only_look=only_look)
        assert [(r.verb, r.taken) for r in self.store.inbox(run_id="r1")] == [("signal", log.seq)]

    def test_all_requests_of_a_run_are_listed_oldest_first_with_what_became_of_them(self) -> None:
        log = self.start_run()
        self.start_run("r2")
        for request in ("b", "a", "c"):
            self.time.pass_s(1)
            sent = Request(
                id=request, verb="signal", body={"n": 1}, by="me", reason="why", taken=7, unmet=True
            )
            self.store.post("r1", sent)
            self.store.post("r2", sent)
        self.write(log, taken=("a",))
        self.write(log, taken=("a",))
        sent = Request(
            id="b", verb="signal", body={"n": 1}, by="me", reason="why", run_id="r1", at=self.time.at - 2
        )
        handled = msgspec.structs.replace(sent, id="a", body={}, at=self.time.at - 1, taken=3)
        latest = msgspec.structs.replace(sent, id="c", at=self.time.at)
        assert self.another().inbox(run_id="r1") == [sent, handled, latest]
        assert [r.id for r in self.store.inbox(self.holder.id) if r.run_id == "r1"] == ["b", "c"]
        with raises(RunNotFound, "none"):
            self.store.inbox(run_id="none")

    def test_a_run_that_is_over_takes_no_request(self) -> None:
        for status in ("completed", "cancelled"):
            log = self.start_run(status)
            self.store.post(status, Request(id="early", verb="signal"))
            self.write(log, taken=("early",), status=status, release=True)
            for only_look in (False, True):
                with raises(RunOver, repr(status), f"it is {status}"):
                    self.store.post(status, Request(id="late", verb="cancel"), only_look=only_look)
                assert not self.store.post(status, Request(id="early", verb="signal"), only_look=only_look)
                with raises(RequestExists):
                    self.store.post(status, Request(id="early", verb="cancel"), only_look=only_look)
            assert [r.id for r in self.store.inbox(run_id=status)] == ["early"]
        log = self.start_run("failed")
        self.write(log, status="failed", release=True)
        assert self.store.post("failed", Request(id="late", verb="retry"))

    def test_a_request_that_waits_when_its_run_ends_is_unmet(self) -> None:
        for status in ("completed", "cancelled"):
            log = self.start_run(status)
            self.start_run(f"not {status}")
            for run_id in (status, f"not {status}"):
                for request in ("one", "two", "three"):
                    self.store.post(run_id, Request(id=request, verb="signal", body={"n": 1}))
            self.write(log, status="failed", taken=("one",))
            assert [(r.id, r.unmet) for r in self.store.inbox(run_id=status)] == [
                ("one", False),
                ("two", False),
                ("three", False),
            ]
            self.write(log, status=status, taken=("three",))
            found = self.store.inbox(run_id=status)
            assert [(r.id, r.taken, r.unmet) for r in found] == [
                ("one", log.seq - 2, False),
                ("two", log.seq, True),
                ("three", log.seq, False),
            ]
            assert [r.body for r in found] == [{}, {}, {}]
            waiting = self.store.inbox(self.holder.id)
            assert [(r.run_id, r.id) for r in waiting if r.run_id.endswith(status)] == [
                (f"not {status}", request) for request in ("one", "two", "three")
            ]
            assert not self.store.post(status, Request(id="two", verb="signal", body={"n": 1}))

    def test_requests_of_many_runs_that_end_in_one_batch_are_unmet(self) -> None:
        logs = [self.start_run(f"r{number}") for number in range(_MANY)]
        for log in logs:
            for request in ("one", "two"):
                self.store.post(log.run_id, Request(id=request, verb="signal"))
        batch = [
            log.next(taken=("one",), status="completed" if number % 2 else "waiting", release=True)
            for number, log in enumerate(logs)
        ]
        assert self.store.append(batch) == [None] * _MANY
        for number, log in enumerate(logs):
            found = [(r.id, r.taken, r.unmet) for r in self.store.inbox(run_id=log.run_id)]
            unmet = ("two", 3, True) if number % 2 else ("two", 0, False)
            assert found == [("one", 3, False), unmet]

    def test_a_batch_that_ends_a_run_it_has_just_advanced_leaves_no_request_waiting(self) -> None:
        log = self.start_run()
        self.store.post("r1", Request(id="one", verb="signal"))
        self.store.post("r1", Request(id="two", verb="signal"))
        first = log.next(b"1", taken=("one",))
        log.wrote(first)
        assert self.store.append([first, log.next(b"2", status="completed", release=True)]) == [None, None]
        assert [(r.id, r.taken, r.unmet) for r in self.store.inbox(run_id="r1")] == [
            ("one", 2, False),
            ("two", 3, True),
        ]

    def test_an_append_that_is_refused_leaves_every_request_waiting(self) -> None:
        log = self.start_run()
        self.store.post("r1", Request(id="q", verb="signal"))
        self.require_refused(log.next(fence=9, status="completed"), FenceLost)
        assert [r.unmet for r in self.store.inbox(self.holder.id)] == [False]

    def test_a_request_that_comes_just_before_the_end_of_its_run_is_unmet(self) -> None:
        log, other = self.start_run(), self.another()

        def ask(place: str) -> None:
            if place == "append.before":
                failpoints.install(None)
                assert other.post("r1", Request(id="q", verb="cancel"))

        with hooked(ask):
            self.write(log, status="completed", release=True)
        assert [(r.id, r.taken, r.unmet) for r in self.store.inbox(run_id="r1")] == [("q", log.seq, True)]

    def test_a_request_that_comes_just_after_the_end_of_its_run_is_refused(self) -> None:
        log, other = self.start_run(), self.another()
        last = log.next(status="completed", release=True)

        def end(place: str) -> None:
            if place == "post.before":
                failpoints.install(None)
                assert other.append([last]) == [None]

        with hooked(end), raises(RunOver, "'r1'"):
            self.store.post("r1", Request(id="q", verb="cancel"))
        assert self.store.inbox(run_id="r1") == []

    def test_no_request_is_lost_that_comes_while_its_run_ends(self) -> None:
        rounds, threads = 12, 3
        logs = [self.start_run(f"r{number}") for number in range(rounds)]
        accepted: list[tuple[str, str]] = []
        together = threading.Barrier(threads + 1)

        def ask() -> None:
            store, name = self.open(self.folder, self.time), str(threading.get_ident())
            for log in logs:
                together.wait()
                try:
                    assert store.post(log.run_id, Request(id=name, verb="signal"))
                    accepted.append((log.run_id, name))
                except RunOver:
                    continue
            store.close()

        def end_all() -> None:
            for log in logs:
                together.wait()
                self.write(log, status="completed", release=True)

        in_threads(1, end_all, *[ask] * threads)
        stored = [request for log in logs for request in self.store.inbox(run_id=log.run_id)]
        assert sorted((r.run_id, r.id) for r in stored) == sorted(accepted)
        assert all(r.unmet and r.taken == 3 for r in stored)

    def test_of_many_callers_that_leave_one_request_at_once_one_leaves_it(self) -> None:
        self.start_run()
        together = threading.Barrier(16)
        posted: list[bool] = []

        def ask() -> None:
            together.wait()
            posted.append(self.store.post("r1", Request(id="q", verb="signal", body={"n": 1})))

        in_threads(16, ask)
        assert sorted(posted) == [False] * 15 + [True]
        assert [r.id for r in self.store.inbox(self.holder.id)] == ["q"]

    def test_a_request_that_no_store_can_keep_is_refused(self) -> None:
        self.start_run()
        for request in (
            Request(id="\ud800", verb="signal"),
            Request(id="q", verb="signal", body={"x": ["\ud800"]}),
        ):
            with raises(CodecError):
                self.store.post("r1", request)
        assert self.store.inbox(self.holder.id) == []
