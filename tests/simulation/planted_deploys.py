"""Planted bugs about deploys, with runs that workers refuse and renamed nodes: see `planted`. Simulated deploys find them."""

from __future__ import annotations

from msgspec.structs import replace
from planting import deploy_bug, patched, rewritten

from holdfast.reading.cases import Case
from holdfast.runtime.calls import child_runs
from holdfast.runtime.calls.context import Context
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


# --- nodes that a deploy renames ---------------------------------------------------------------------


@deploy_bug
def a_renamed_node_starts_another_child():
    real = child_runs.place_of

    def place_of(state, *inside):
        return real(replace(state, key_names={}), *inside)

    with patched((child_runs, "place_of", place_of)):
        yield


@deploy_bug
def a_renamed_node_pays_with_another_key():
    with patched(rewritten(Context, "idempotency_key", "self._work.key_name", "self.node")):
        yield
