"""Planted bugs about runs that workers refuse: see `planted`. They are found by simulated deploys."""

from __future__ import annotations

from planting import deploy_bug, patched, rewritten

from holdfast.reading.cases import Case
from holdfast.runtime.worker import Worker
from holdfast.storage.memory.data import Data
from holdfast.storage.memory.queues import MemoryQueues


@deploy_bug
def the_refusal_of_a_worker_that_has_gone_stays():
    forgets = "self.refusals = {key: one for key, one in self.refusals.items() if key[0] != engine}"
    with patched(
        rewritten(Data, "drop_holder", forgets, "pass"),
        rewritten(MemoryQueues, "refusals", "and one.holder in live", ""),
    ):
        yield


@deploy_bug
def a_refusal_counts_although_the_run_has_moved():
    with patched(
        rewritten(MemoryQueues, "refusals", "and data.runs[one.run_id].head.seq == one.seq", ""),
    ):
        yield


@deploy_bug
def the_worker_that_can_take_the_run_is_overlooked():
    refused = property(lambda self: bool(self.refusers))
    with patched(
        (Case, "is_refused", refused),
        (Case, "takers", property(lambda self: [])),
    ):
        yield


@deploy_bug
def a_worker_refuses_without_recording_why():
    with patched(rewritten(Worker, "_record_refusal", "store.queues.refuse(refusal, definition)", "")):
        yield


@deploy_bug
def the_remedy_does_not_say_how_the_flow_changed():
    """The definition that the worker knows is not stored, so the suggested resume is refused."""
    with patched(
        rewritten(
            Worker,
            "_record_refusal",
            "store.queues.refuse(refusal, definition)",
            "store.queues.refuse(refusal)",
        ),
    ):
        yield
