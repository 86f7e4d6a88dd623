"""The suite that the queues of every store must pass: the rules of `holdfast.storage.queues` as tests.

    from holdfast.testing.queues import QueuesConformance

    class TestMyQueues(QueuesConformance):
        def open(self, folder, clock):
            return MyStore(folder / "runs", clock=clock)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test, also while an earlier
store is still open: each call must open the same data. A store that other processes cannot open sets `shared = False`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from holdfast.errors import FenceLost, RunHeld, StoreUnusable
from holdfast.storage.contract import Holder, Lease, Query, Request, Store
from holdfast.storage.leases import alive
from holdfast.storage.queues import FENCE_STEP, Queue, Taken, Wanted
from holdfast.testing.appends import Log, dead_process, in_threads, raises
from holdfast.testing.boards import ANY, HOSTILE, TTL_S
from holdfast.testing.refusals import RefusalsConformance

QUIET_S = 0.2
"""How many seconds a test waits for another notification before it assumes that no more will come."""

_PROGRAM = """
import sys
from holdfast.storage.contract import Holder
from holdfast.storage.queues import Wanted
from holdfast.storage.urls import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while taken := store.queues.take(Holder(id=sys.argv[2], ttl_s=600.0), Wanted(flows=("flow",), limit=3)):
    for one in taken:
        print(one.lease.run_id, flush=True)
"""


class QueuesConformance(RefusalsConformance):
    """Tests for everything that the queues of a store promise. Subclass it, name the class `Test…` and implement `open`."""

    shared = True

    def wait_until_quiet(self, store: Store) -> None:
        """Consume notifications until none has arrived for `QUIET_S` seconds."""
        while store.queues.hear(QUIET_S):
            pass

    # --- offers --------------------------------------------------------------------------------------

    def test_a_pending_run_is_taken_and_then_held(self) -> None:
        self.create_pending("r1")
        assert self.queues.take(self.worker, ANY) == [Taken(Lease("r1", 1, 1), "flow", "pending")]
        run = self.another().run("r1")
        assert (run.holder, run.held, run.fence) == (self.worker, True, 1)
        with raises(RunHeld):
            self.store.claim("r1", self.rival)
        assert self.take(self.rival) == []

    def test_what_was_taken_can_be_written_to(self) -> None:
        log = self.create_pending("r1")
        (one,) = self.queues.take(self.worker, ANY)
        assert self.store.append([log.next(holder=self.worker.id, fence=one.lease.fence)]) == [None]

    def test_queue_and_priority_are_kept_and_found(self) -> None:
        self.create_pending("r1")
        self.create_pending("r2", queue="mail", priority=-7)
        assert [(run.queue, run.priority) for run in map(self.store.run, ("r1", "r2"))] == [
            ("default", 0),
            ("mail", -7),
        ]
        assert [run.run_id for run in self.store.runs(Query(queue="mail"))] == ["r2"]
        assert self.store.runs(Query(queue="none")) == []

    def test_what_a_holder_left_is_on_offer(self) -> None:
        for status in ("running", "interrupted"):
            log = self.create_held(self.rival, status)
            append = log.next(status=status, release=True)
            assert self.store.append([append]) == [None]
        self.create_held(self.rival, "released")
        self.store.release("released", self.rival.id, 1)
        found = {one.lease.run_id: (one.why, one.lease) for one in self.queues.take(self.worker, ANY)}
        assert found == {
            "running": ("running", Lease("running", 2, 3)),
            "interrupted": ("interrupted", Lease("interrupted", 2, 3)),
            "released": ("running", Lease("released", 2, 1)),
        }

    def test_what_has_ended_or_waits_for_somebody_is_not_on_offer(self) -> None:
        for status in ("completed", "cancelled", "failed", "waiting", "paused"):
            self.create_pending(status, status=status)
        assert self.take() == []
        assert self.queues.next_due(ANY) is None

    def test_runs_of_flows_that_are_not_known_are_left_alone(self) -> None:
        self.create_pending("strange", flow="strange", priority=9)
        self.create_pending("known")
        assert self.take() == ["known"]
        assert self.take(flows=()) == []
        run = self.store.run("strange")
        assert (run.status, run.fence, run.holder) == ("pending", 0, None)
        assert self.take(flows=("other", "strange")) == ["strange"]

    def test_only_the_wanted_queues_are_served(self) -> None:
        for queue in ("default", "mail", "video"):
            self.create_pending(queue, queue=queue)
        assert self.take(queues=("mail", "none")) == ["mail"]
        assert self.take(queues=("video", "default"), limit=1) == ["default"]
        assert self.take() == ["video"]

    def test_names_are_taken_as_they_are(self) -> None:
        for number, name in enumerate(HOSTILE):
            self.create_pending(f"r{number}", flow=name, queue=name)
        for name in HOSTILE:
            self.queues.limit(name, 1)
        for number, name in enumerate(HOSTILE):
            assert self.take(flows=(name,), queues=(name,)) == [f"r{number}"]
        assert self.take(flows=HOSTILE, queues=HOSTILE) == []
        assert {queue.name for queue in self.queues.queues()} == set(HOSTILE)

    # --- order ---------------------------------------------------------------------------------------

    def test_the_highest_priority_comes_first_and_then_who_waits_longest(self) -> None:
        for run_id, priority, age in (("b", 1, 5), ("c", 1, 3), ("a", 2, 1), ("e", -3, 99), ("d", 0, 50)):
            self.create_pending(run_id, priority=priority, created_at=self.time.at - age)
        assert self.take(limit=2) == ["a", "b"]
        assert self.take() == ["c", "d", "e"]

    def test_flows_and_queues_of_one_priority_are_served_by_age(self) -> None:
        for number in range(6):
            self.create_pending(
                f"r{number}", flow=f"flow{number % 2}", queue=f"q{number % 3}", created_at=float(number)
            )
        for number in range(6):
            assert self.take(flows=("flow0", "flow1"), limit=1) == [f"r{number}"]

    def test_due_and_orphaned_and_asked_runs_stand_in_one_line_with_the_pending(self) -> None:
        at = self.time.at
        self.create_pending("pending", created_at=at - 10)
        self.create_pending("due", status="waiting", due_at=at - 20, created_at=at - 99)
        self.create_pending("asked", status="paused", created_at=at - 99)
        self.store.post("asked", Request(id="q", verb="resume", at=at - 5))
        self.create_held(msgspec.structs.replace(self.rival, ttl_s=1.0), "orphan", created_at=at - 15)
        self.create_pending("first", status="waiting", due_at=at, priority=1)
        self.time.pass_s(2)
        assert self.take() == ["first", "due", "orphan", "pending", "asked"]

    def test_of_many_asked_runs_those_of_the_highest_priority_and_the_oldest_request_are_taken(self) -> None:
        at = self.time.at
        for run_id, queue, priority, asked_at in (
            ("late", "mail", 0, at - 1),
            ("tie-b", "mail", 0, at - 3),
            ("tie-a", "default", 0, at - 3),
            ("low", "mail", -1, at - 9),
            ("high", "default", 2, at - 1),
        ):
            self.create_pending(run_id, status="failed", queue=queue, priority=priority, created_at=at - 99)
            for number in range(3):  # later requests change nothing
                self.store.post(run_id, Request(id=str(number), verb="resume", at=asked_at + number))
        self.create_pending("other flow", flow="other", status="failed", priority=9, created_at=at - 99)
        self.store.post("other flow", Request(id="q", verb="resume", at=at - 99))
        assert self.take(limit=1, queues=("mail",)) == ["tie-b"]
        assert self.take(limit=2) == ["high", "tie-a"]
        assert self.take() == ["late", "low"]
        assert self.take() == []

    def test_no_more_than_asked_for_are_taken(self) -> None:
        for number in range(5):
            self.create_pending(f"r{number}")
        assert self.take(limit=0) == []
        assert len(self.take(limit=2)) == 2
        assert len(self.take(limit=2)) == 2
        assert len(self.take(limit=2)) == 1

    # --- dead holders --------------------------------------------------------------------------------

    def test_a_run_whose_holder_ran_out_of_time_is_on_offer_and_its_late_write_is_refused(self) -> None:
        log = self.create_held(self.rival, "r1")
        self.create_held(self.rival, "waits", status="waiting", due_at=self.time.at + 99)
        self.time.pass_s(TTL_S - 1)
        assert self.take() == []
        self.time.pass_s(2)
        assert self.queues.take(self.worker, ANY) == [Taken(Lease("r1", 2, 1), "flow", "running")]
        (verdict,) = self.store.append([log.next()])
        assert isinstance(verdict, FenceLost)
        self.store.renew(self.rival)
        assert self.store.run("waits").holder == self.rival

    def test_a_holder_that_goes_on_renewing_keeps_its_runs(self) -> None:
        self.create_held(self.rival, "r1")
        for _ in range(3):
            self.time.pass_s(TTL_S - 1)
            self.store.renew(self.rival)
        assert self.take() == []

    def test_the_runs_of_a_dead_process_are_on_offer_at_once(self) -> None:
        dead = dead_process()
        if alive(dead) is None:
            return  # on this platform it is not known whether a process is alive; only the expiry of leases counts
        for number in range(3):
            self.create_held(dead, f"r{number}", priority=-number)
        assert self.take(limit=2) == ["r0", "r1"]
        assert self.take() == ["r2"]

    def test_a_take_says_that_its_holder_lives(self) -> None:
        self.create_pending("r1")
        self.create_pending("r2")
        assert self.take(limit=1) == ["r1"]
        self.time.pass_s(TTL_S - 1)
        assert self.take(limit=1) == ["r2"]
        self.time.pass_s(2)
        assert self.take(self.rival) == []

    def test_a_holder_that_is_gone_leaves_its_runs_on_offer(self) -> None:
        self.create_pending("r1")
        assert self.take() == ["r1"]
        self.store.renew(msgspec.structs.replace(self.worker, ttl_s=0.0))
        assert self.take(self.rival) == ["r1"]

    def test_the_leases_of_a_holder_are_listed_in_its_name(self) -> None:
        self.create_pending("r1")
        self.create_held(self.rival, "other")
        self.create_held(self.worker, "r2")
        assert self.take() == ["r1"]
        assert self.queues.held_by(self.worker.id) == [Lease("r1", 1, 1), Lease("r2", 1, 1)]
        assert self.queues.held_by("nobody") == []

    def test_holders_that_are_gone_give_back_and_those_that_have_renewed_keep_what_they_have(self) -> None:
        late = Holder(id="late", ttl_s=TTL_S)
        self.create_held(self.rival, "left")
        self.create_held(late, "kept")
        self.time.pass_s(TTL_S + 1)
        self.another().renew(late)
        assert self.queues.give_back(["late", self.rival.id, "nobody"]) == [self.rival.id]
        assert self.store.run("left").holder is None
        assert self.store.run("kept").held
        assert self.queues.give_back([self.rival.id]) == []

    def test_the_dead_give_back_at_once_and_that_is_heard(self) -> None:
        dead = dead_process()
        if alive(dead) is None:
            return  # on this platform it is not known whether a process is alive; only the expiry of leases counts
        self.create_held(dead, "r1")
        self.wait_until_quiet(self.store)
        assert self.queues.give_back([dead.id]) == [dead.id]
        assert self.queues.hear(20.0)
        assert self.store.run("r1").holder is None

    # --- due -----------------------------------------------------------------------------------------

    def test_a_waiting_run_is_on_offer_when_its_time_has_come(self) -> None:
        due_at = self.time.at + 10.5
        self.create_pending("r1", status="waiting", due_at=due_at)
        assert self.queues.next_due(ANY) == due_at
        self.time.pass_s(10)
        assert self.take() == []
        self.time.pass_s(0.5)
        assert self.queues.take(self.worker, ANY) == [Taken(Lease("r1", 1, 1), "flow", "due")]
        assert self.queues.next_due(ANY) is None

    def test_the_next_due_time_is_that_of_what_is_wanted(self) -> None:
        at = self.time.at
        self.create_pending("late", status="waiting", due_at=at + 30, priority=5)
        self.create_pending("soon", status="waiting", due_at=at + 20, queue="mail")
        self.create_pending("strange", status="waiting", due_at=at + 10, flow="strange")
        self.create_pending("running", status="running", due_at=at + 5)
        self.create_held(self.rival, "held", status="waiting", due_at=at + 1)
        assert self.queues.next_due(ANY) == at + 20
        assert self.queues.next_due(msgspec.structs.replace(ANY, queues=("default",))) == at + 30
        assert self.queues.next_due(msgspec.structs.replace(ANY, flows=("none",))) is None
        self.time.pass_s(TTL_S + 1)
        assert self.queues.next_due(ANY) == at + 1

    def test_a_pending_run_that_begins_at_a_time_is_on_offer_from_then_on(self) -> None:
        at = self.time.at
        self.create_pending("r1", due_at=at + 10.5)
        self.create_pending("r2", due_at=at + 9.5, queue="mail")
        assert self.queues.next_due(ANY) == at + 9.5
        assert self.queues.next_due(msgspec.structs.replace(ANY, queues=("default",))) == at + 10.5
        assert [queue.offered for queue in self.queues.queues()] == [0, 0]
        self.time.pass_s(10)
        assert [queue.offered for queue in self.queues.queues()] == [0, 1]
        assert self.queues.take(self.worker, ANY) == [Taken(Lease("r2", 1, 1), "flow", "pending")]
        assert self.queues.next_due(ANY) == at + 10.5
        self.time.pass_s(0.5)
        assert [queue.offered for queue in self.queues.queues()] == [1, 0]
        assert self.queues.take(self.worker, ANY) == [Taken(Lease("r1", 1, 1), "flow", "pending")]
        assert self.queues.next_due(ANY) is None

    def test_runs_that_begin_at_a_time_are_taken_in_the_order_of_their_times(self) -> None:
        at = self.time.at
        self.create_pending("old", created_at=at - 5)
        self.create_pending("late", due_at=at - 1, created_at=at - 99)
        self.create_pending("later", due_at=at + 1, created_at=at - 99, priority=9)
        self.create_pending("early", due_at=at - 20, created_at=at - 30)
        self.create_pending("due", status="waiting", due_at=at - 10, created_at=at - 99)
        self.create_pending("urgent", due_at=at, priority=1)
        assert self.take() == ["urgent", "early", "due", "old", "late"]
        self.time.pass_s(1)
        assert self.take() == ["later"]

    def test_only_a_pending_run_waits_for_its_time_to_begin(self) -> None:
        at = self.time.at
        for status in ("running", "interrupted"):
            self.create_pending(status, status=status, due_at=at + 99, created_at=at - 5)
        found = self.queues.take(self.worker, ANY)
        assert {(one.lease.run_id, one.why) for one in found} == {
            ("running", "running"),
            ("interrupted", "interrupted"),
        }

    def test_a_run_that_begins_later_is_not_begun_because_its_holder_is_gone(self) -> None:
        at = self.time.at
        brief = msgspec.structs.replace(self.rival, ttl_s=1.0)
        self.create_held(brief, "later", status="pending", due_at=at + 20, created_at=at - 9)
        self.create_held(brief, "now", status="pending", created_at=at - 1)
        self.time.pass_s(2)
        assert self.queues.next_due(ANY) == at + 20
        assert self.take() == ["now"]
        self.create_pending("between", due_at=at + 19)
        self.create_pending("after", due_at=at + 21)
        self.time.pass_s(20)
        assert self.take() == ["between", "later", "after"]

    def test_a_request_puts_a_run_on_offer_that_begins_later(self) -> None:
        at = self.time.at
        self.create_pending("r1", due_at=at + 99)
        self.create_pending("r2", due_at=at + 99)
        self.create_pending("r3", due_at=at - 1)
        for run_id in ("r1", "r3"):
            self.store.post(run_id, Request(id="q", verb="resume"))
        assert [(queue.name, queue.offered) for queue in self.queues.queues()] == [("default", 2)]
        found = self.queues.take(self.worker, ANY)
        assert [(one.lease.run_id, one.why) for one in found] == [("r3", "pending"), ("r1", "asked")]

    def test_a_new_run_that_begins_later_is_heard_of(self) -> None:
        self.wait_until_quiet(self.store)
        log = Log("r1")
        assert self.another().append([log.create(status="pending", due_at=self.time.at + 99)]) == [None]
        assert self.queues.hear(20.0)
        assert self.queues.next_due(ANY) == self.time.at + 99

    def test_what_is_passed_over_has_no_next_due_time(self) -> None:
        at = self.time.at
        self.create_pending("first", status="waiting", due_at=at - 1)
        self.create_pending("second", status="waiting", due_at=at + 20)
        self.create_held(self.rival, "left", status="waiting", due_at=at + 1)
        self.time.pass_s(TTL_S + 1)
        assert self.queues.next_due(msgspec.structs.replace(ANY, without=("first",))) == at + 1
        assert self.queues.next_due(msgspec.structs.replace(ANY, without={"first", "left"})) == at + 20
        every = msgspec.structs.replace(ANY, without=("first", "second", "left"))
        assert self.queues.next_due(every) is None
        assert self.queues.take(self.worker, every) == []

    def test_a_queue_at_its_limit_has_no_next_due_time(self) -> None:
        self.queues.limit("default", 1)
        log = self.create_held(self.rival, "held")
        self.create_pending("r1", status="waiting", due_at=self.time.at - 1)
        assert self.queues.next_due(ANY) is None
        assert self.take() == []
        assert self.store.append([log.next(status="completed", release=True)]) == [None]
        assert self.queues.next_due(ANY) == self.time.at - 1
        assert self.take() == ["r1"]

    def test_a_time_that_changes_while_a_run_is_held_counts_when_it_is_left(self) -> None:
        log = self.create_held(self.rival, "r1", status="waiting", due_at=self.time.at + 5)
        assert self.store.append([log.next(status="waiting", due_at=self.time.at + 50, release=True)]) == [
            None
        ]
        assert self.queues.next_due(ANY) == self.time.at + 50
        self.time.pass_s(6)
        assert self.take() == []
        self.time.pass_s(45)
        assert self.take() == ["r1"]

    # --- requests ------------------------------------------------------------------------------------

    def test_a_request_puts_a_run_on_offer_that_waits_is_paused_or_failed(self) -> None:
        for status in ("waiting", "paused", "failed", "completed", "cancelled"):
            log = self.create_held(self.rival, status)
            self.store.post(status, Request(id="one", verb="signal"))
            self.store.post(status, Request(id="two", verb="signal"))
            assert self.store.append([log.next(status=status, release=True)]) == [None]
        found = self.queues.take(self.worker, ANY)
        assert {one.lease.run_id for one in found} == {"waiting", "paused", "failed"}
        assert {one.why for one in found} == {"asked"}

    def test_a_request_that_was_answered_offers_nothing_any_more(self) -> None:
        log = self.create_pending("r1", status="waiting", due_at=self.time.at + 99)
        self.store.post("r1", Request(id="q", verb="signal"))
        (one,) = self.queues.take(self.worker, ANY)
        assert one.why == "asked"
        answered = log.next(
            holder=self.worker.id,
            fence=1,
            status="waiting",
            due_at=self.time.at + 99,
            taken=("q",),
            release=True,
        )
        assert self.store.append([answered]) == [None]
        assert self.take() == []

    def test_a_request_to_a_held_run_is_for_its_holder(self) -> None:
        self.create_held(self.rival, "r1", status="waiting")
        self.store.post("r1", Request(id="q", verb="signal"))
        assert self.take() == []
        self.time.pass_s(TTL_S + 1)
        assert self.take() == ["r1"]

    # --- limits --------------------------------------------------------------------------------------

    def test_no_more_runs_of_a_queue_are_held_than_its_limit(self) -> None:
        for number in range(5):
            self.create_pending(f"r{number}", queue="mail", created_at=float(number))
        self.queues.limit("mail", 2)
        other = self.another().queues
        assert self.take() == ["r0", "r1"]
        assert other.take(self.rival, ANY) == []
        self.store.release("r0", self.worker.id, 1)
        assert [one.lease.run_id for one in other.take(self.rival, ANY)] == ["r0"]
        self.queues.limit("mail", 4)
        assert self.take() == ["r2", "r3"]
        self.queues.limit("mail", 0)
        assert self.take() == []
        self.queues.limit("mail", None)
        assert self.take() == ["r4"]

    def test_a_queue_at_its_limit_hides_nobody_behind_it(self) -> None:
        for number in range(10):
            self.create_pending(f"mail{number}", queue="mail", priority=9)
            self.create_pending(f"paused{number}", status="paused", queue="mail", priority=9)
            self.store.post(f"paused{number}", Request(id="q", verb="resume"))
            self.create_held(
                msgspec.structs.replace(self.rival, ttl_s=1.0), f"orphan{number}", queue="mail", priority=9
            )
        self.create_pending("r1")
        self.queues.limit("mail", 1)
        self.time.pass_s(2)
        assert sorted(self.take(limit=2))[1] == "r1"
        assert self.take(limit=2) == []

    def test_what_the_dead_hold_does_not_count_against_a_limit(self) -> None:
        self.queues.limit("default", 1)
        self.create_held(self.rival, "r1")
        assert self.take() == []
        self.time.pass_s(TTL_S + 1)
        self.create_pending("r2")
        assert self.take(limit=5) == ["r1"]
        assert self.take(limit=5) == []

    def test_what_one_holds_counts_against_a_limit_also_when_it_was_late_with_its_renewal(self) -> None:
        self.queues.limit("default", 1)
        self.create_pending("r1")
        self.create_pending("r2")
        assert self.take() == ["r1"]
        self.time.pass_s(
            TTL_S + 1
        )  # no other holder has claimed the run, and the next `take` revives the lease
        assert self.take(limit=5) == []

    def test_a_limit_holds_however_many_ask_at_once(self) -> None:
        for number in range(30):
            self.create_pending(f"r{number}")
        self.queues.limit("default", 7)
        stores = [self.another() for _ in range(4)]
        found: list[str] = []

        def take(store: Store) -> Callable[[], None]:
            def ask() -> None:
                me = Holder(id=f"w{id(store)}", ttl_s=TTL_S)
                for _ in range(4):
                    found.extend(
                        one.lease.run_id for one in store.queues.take(me, Wanted(flows=("flow",), limit=2))
                    )

            return ask

        in_threads(1, *(take(store) for store in stores))
        assert len(found) == len(set(found)) == 7
        assert self.queues.queues() == [Queue(name="default", limit=7, held=7, offered=23)]

    def test_queues_are_listed_with_what_is_held_and_offered(self) -> None:
        self.create_held(msgspec.structs.replace(self.worker, ttl_s=1.0), "over", queue="a")
        self.time.pass_s(2)
        self.queues.limit("empty", 3)
        self.queues.limit("gone", 3)
        self.queues.limit("gone", None)
        self.create_pending("p1", queue="mail")
        self.create_pending("p2", queue="mail", flow="strange")
        self.create_pending("due", queue="mail", status="waiting", due_at=self.time.at)
        self.create_pending("asked", queue="mail", status="failed")
        self.store.post("asked", Request(id="q", verb="retry"))
        self.create_pending("waits", queue="mail", status="waiting", due_at=self.time.at + 1)
        self.create_held(self.rival, "held", queue="mail")
        self.create_pending("failed", queue="old", status="failed")
        self.create_pending("done", queue="done", status="completed")
        assert self.queues.queues() == [
            Queue(name="a", offered=1),
            Queue(name="empty", limit=3),
            Queue(name="mail", held=1, offered=4),
            Queue(name="old"),
        ]

    def test_a_worker_that_did_not_end_in_order_is_gone_and_stays_so(self) -> None:
        worker = msgspec.structs.replace(self.worker, flows=("flow",), ttl_s=1.0)
        self.create_held(worker, "left")
        self.store.renew(msgspec.structs.replace(self.rival, flows=("flow",)))
        self.store.renew(Holder(id="program", ttl_s=1.0))
        assert self.queues.gone() == []
        self.time.pass_s(2)
        (gone,) = self.queues.gone()
        assert (gone.holder.id, gone.held, gone.seen_at) == (worker.id, 1, self.time.at - 2)
        assert self.queues.give_back([worker.id]) == [worker.id]
        assert [(one.holder.id, one.held) for one in self.queues.gone()] == [(worker.id, 0)]
        self.store.renew(worker)
        assert self.queues.gone() == []
        self.store.renew(msgspec.structs.replace(worker, ttl_s=0.0))  # it ends in order
        self.time.pass_s(2)
        assert self.queues.gone() == []

    def test_queues_are_full_from_their_limit_on(self) -> None:
        self.create_held(self.rival, "held", queue="mail")
        self.create_held(msgspec.structs.replace(self.worker, ttl_s=1.0), "over", queue="lost")
        self.create_pending("p", queue="stopped")
        assert self.queues.full() == []
        for name, limit in {"mail": 1, "stopped": 0, "room": 1, "lost": 1}.items():
            self.queues.limit(name, limit)
        assert [queue.name for queue in self.queues.full()] == ["lost", "mail", "stopped"]
        self.time.pass_s(2)
        found = self.queues.full()
        assert found == [Queue(name="mail", limit=1, held=1), Queue(name="stopped", limit=0)]
        self.queues.limit("mail", 2)
        self.queues.limit("stopped", None)
        assert self.queues.full() == []

    # --- many at once --------------------------------------------------------------------------------

    def test_no_run_is_taken_twice_and_none_is_left_by_threads(self) -> None:
        for number in range(80):
            self.create_pending(f"r{number}", priority=number % 3, queue=f"q{number % 2}")
        stores = [self.another() for _ in range(4)]
        found: list[str] = []

        def work(store: Store) -> Callable[[], None]:
            def take_all() -> None:
                me = Holder(id=f"w{id(store)}", ttl_s=TTL_S)
                while taken := store.queues.take(me, Wanted(flows=("flow",), limit=3)):
                    found.extend(one.lease.run_id for one in taken)

            return take_all

        in_threads(1, *(work(store) for store in stores))
        found.extend(self.take())
        assert sorted(found) == sorted(f"r{number}" for number in range(80))

    def test_no_run_is_taken_twice_among_processes(self) -> None:
        if not self.shared:
            return
        for number in range(60):
            self.create_pending(f"r{number}")
        workers = [self._process(f"p{number}") for number in range(3)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        found = [line for worker in workers for line in worker.communicate(timeout=60)[0].split()]
        assert all(worker.returncode == 0 for worker in workers)
        assert sorted(found) == sorted(f"r{number}" for number in range(60))

    def _process(self, name: str) -> subprocess.Popen[str]:
        """Start a process that waits for a line on its stdin, and then claims every run that it can get."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, self.store.url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    # --- notifications -------------------------------------------------------------------------------

    def test_whoever_hears_is_woken_by_all_that_may_be_taken(self) -> None:
        listener = self.another()
        log = self.create_held(self.rival, "held")
        self.create_held(self.rival, "held2")
        self.queues.limit("default", 2)
        gone = msgspec.structs.replace(self.rival, ttl_s=0.0)
        acts: dict[str, Callable[[], object]] = {
            "a new run": lambda: self.create_pending("new"),
            "a request": lambda: self.store.post("held", Request(id="q", verb="cancel")),
            "an append that gives back": lambda: self.store.append([log.next(status="completed", release=True)]),
            "a lease given back": lambda: self.store.release("held2", self.rival.id, 1),
            "a holder that is gone": lambda: self.store.renew(gone),
            "another limit": lambda: self.queues.limit("default", 5),
        }  # fmt: skip
        for what, act in acts.items():
            if what == "a holder that is gone":
                self.create_held(self.rival, "held3")
            self.wait_until_quiet(listener)
            act()
            assert listener.queues.hear(20.0), what

    def test_a_store_hears_what_it_writes_itself(self) -> None:
        self.wait_until_quiet(self.store)
        self.create_pending("r1")
        assert self.queues.hear(20.0)

    def test_nothing_is_heard_where_nothing_happens(self) -> None:
        self.wait_until_quiet(self.store)
        assert not self.queues.hear(0.05)
        assert not self.queues.hear(0.0)

    def test_a_hush_ends_the_hearing(self) -> None:
        self.wait_until_quiet(self.store)
        self.queues.hush()
        assert not self.queues.hear(120.0)
        heard: list[bool] = []
        listener = threading.Thread(target=lambda: heard.append(self.queues.hear(120.0)), daemon=True)
        listener.start()
        self.queues.hush()
        listener.join(60)
        assert heard == [False]

    def test_a_closed_store_has_no_queues(self) -> None:
        self.create_pending("r1")
        self.store.close()
        for call in (
            lambda: self.queues.take(self.worker, ANY),
            lambda: self.queues.next_due(ANY),
            lambda: self.queues.limit("default", 1),
            self.queues.queues,
            lambda: self.queues.hear(0.0),
        ):
            with raises(StoreUnusable, "closed"):
                call()
        self.queues.hush()

    # --- generations ---------------------------------------------------------------------------------

    def test_a_store_keeps_its_generation(self) -> None:
        assert self.store.generation
        assert self.another().generation == self.store.generation

    def test_a_store_that_was_put_back_knows_no_holder_and_refuses_every_fence_of_before(self) -> None:
        log = self.create_held(self.rival, "r1")
        before = self.store.generation
        assert self.queues.renew_generation() != before
        assert self.another().generation not in {"", before}
        run = self.store.run("r1")
        assert (run.holder, run.fence) == (None, 1 + FENCE_STEP)
        (verdict,) = self.store.append([log.next()])
        assert isinstance(verdict, FenceLost)
        assert self.queues.take(self.worker, ANY) == [
            Taken(Lease("r1", 2 + FENCE_STEP, 1), "flow", "running")
        ]
