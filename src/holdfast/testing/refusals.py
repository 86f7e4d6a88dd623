"""What every store must promise about refusals: the rows in which workers record which runs they cannot continue."""

from __future__ import annotations

from holdfast.storage.leases import Holder, alive
from holdfast.storage.queues import REFUSALS_MAX, Refusal
from holdfast.testing.appends import Log, dead_process
from holdfast.testing.boards import ANY, TTL_S, BoardConformance


class RefusalsConformance(BoardConformance):
    """Tests for the refusals of a store. It is a part of `QueuesConformance`."""

    def refuse(self, holder: Holder, run_id: str, *, seq: int = 1, reason: str = "changed") -> Refusal:
        """Register a holder, let it refuse a run, and return the row."""
        self.store.renew(holder)
        given = Refusal(run_id=run_id, holder=holder.id, seq=seq, reason=reason, fingerprint="f2")
        self.queues.refuse(given)
        return Refusal(
            run_id=run_id, holder=holder.id, seq=seq, reason=reason, fingerprint="f2", at=self.time.at
        )

    def test_a_refusal_is_found_by_its_run(self) -> None:
        for name in ("r1", "r2", "r3"):
            self.create_pending(name)
        one, two = self.refuse(self.worker, "r1"), self.refuse(self.rival, "r2")
        found = self.another().queues
        assert found.refusals(["r1", "r3", "unknown"]) == [one]
        assert found.refusals([]) == []
        assert sorted(found.refusals(), key=lambda row: row.run_id) == [one, two]

    def test_a_worker_has_one_refusal_per_run_however_often_it_tries(self) -> None:
        self.create_pending("r1")
        for number in range(3):
            self.time.pass_s(1)
            last = self.refuse(self.worker, "r1", reason=f"try {number}")
        assert self.queues.refusals(["r1"]) == [last]
        other = self.refuse(self.rival, "r1")
        assert self.queues.refusals(["r1"]) == [last, other]

    def test_a_refusal_counts_until_the_run_moves(self) -> None:
        log = self.create_pending("r1")
        self.refuse(self.worker, "r1")
        (taken,) = self.queues.take(self.rival, ANY)
        assert len(self.queues.refusals(["r1"])) == 1, (
            "a claim alone changes nothing: the worker may refuse the run too"
        )
        assert self.store.append([log.next(holder=self.rival.id, fence=taken.lease.fence)]) == [None]
        assert self.queues.refusals(["r1"]) == []
        assert self.queues.refusals() == []
        self.refuse(self.worker, "r1", seq=1)
        assert self.queues.refusals(["r1"]) == [], "the run has moved before the refusal was recorded"
        again = self.refuse(self.worker, "r1", seq=self.store.run("r1").seq)
        assert self.queues.refusals(["r1"]) == [again]

    def test_a_refusal_goes_with_the_worker(self) -> None:
        self.create_pending("r1")
        self.refuse(self.worker, "r1")
        self.refuse(self.rival, "r1")
        self.store.renew(Holder(id=self.worker.id, ttl_s=0.0))
        assert [one.holder for one in self.queues.refusals(["r1"])] == [self.rival.id]
        self.store.renew(self.worker)
        assert [one.holder for one in self.queues.refusals(["r1"])] == [self.rival.id]
        self.time.pass_s(TTL_S + 1)
        assert self.queues.refusals(["r1"]) == []
        self.store.renew(self.rival)
        assert [one.holder for one in self.queues.refusals(["r1"])] == [self.rival.id], "it was only late"
        self.time.pass_s(TTL_S + 1)
        assert self.queues.give_back([self.rival.id]) == [self.rival.id]
        self.store.renew(self.rival)
        assert self.queues.refusals(["r1"]) == []

    def test_a_dead_worker_leaves_no_refusal(self) -> None:
        dead = dead_process()
        if alive(dead) is None:
            return  # on this platform it is not known whether a process is alive
        self.create_pending("r1")
        self.refuse(dead, "r1")
        assert self.queues.refusals(["r1"]) == []
        assert self.queues.give_back([dead.id]) == [dead.id]

    def test_a_refusal_goes_with_the_run_and_with_a_new_generation(self) -> None:
        log = self.create_pending("r1", status="completed")
        self.create_pending("r2")
        self.refuse(self.worker, "r1")
        self.refuse(self.worker, "r2")
        assert not self.store.upkeep.delete({"r1": 1})
        assert [one.run_id for one in self.queues.refusals()] == ["r2"]
        assert self.store.append([log.create(status="pending", created_at=self.time.at)]) == [None]
        assert self.queues.refusals(["r1"]) == []
        self.queues.renew_generation()
        self.store.renew(self.worker)
        assert self.queues.refusals() == []

    def test_a_holder_that_is_not_registered_refuses_nothing(self) -> None:
        self.create_pending("r1")
        self.queues.refuse(Refusal(run_id="r1", holder="unknown", seq=1, reason="changed"))
        self.store.renew(self.worker)
        self.queues.refuse(Refusal(run_id="unknown", holder=self.worker.id, seq=1, reason="changed"))
        assert self.queues.refusals() == []
        assert self.queues.refusals(["r1", "unknown"]) == []

    def test_the_definition_of_a_refusal_is_kept_as_long_as_the_refusal(self) -> None:
        self.create_pending("r1")
        self.store.renew(self.worker)
        given = Refusal(
            run_id="r1", holder=self.worker.id, seq=1, reason="changed", fingerprint="new", too_new=True
        )
        self.queues.refuse(given, b"definition")
        assert self.another().definition("new") == b"definition"
        (found,) = self.queues.refusals(["r1"])
        assert found.too_new
        assert self.store.upkeep.drop_definitions(["new"]) == 0
        self.store.renew(Holder(id=self.worker.id, ttl_s=0.0))
        assert self.store.upkeep.drop_definitions(["new"]) == 1

    def test_refusals_of_all_runs_are_bounded(self) -> None:
        names = [f"r{number}" for number in range(REFUSALS_MAX + 1)]
        self.store.append([Log(name).create(status="pending") for name in names])
        self.store.renew(self.worker)
        for name in names:
            self.queues.refuse(
                Refusal(run_id=name, holder=self.worker.id, seq=1, reason="changed", fingerprint="f2")
            )
        assert len(self.queues.refusals()) == REFUSALS_MAX
        assert len(self.queues.refusals(names)) == REFUSALS_MAX + 1
