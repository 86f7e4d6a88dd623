"""Which runs need attention: the listing, the board and the doctor agree about every run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.core import events
from holdfast.reading import attention, diagnosis
from holdfast.reading.reader import Reader
from holdfast.storage.contract import Holder, Query, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.queues import Refusal
from holdfast.testing.builders import History, outline
from holdfast.upkeep import doctor

FLOW = outline("START a END")
ASKS = outline("START a END", nodes={"a": {"approve": "Go on?"}})
WORKER = Holder(id="worker", ttl_s=600.0, host="here", pid=os.getpid(), flows=(FLOW.name,))


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    store = MemoryStore(clock=clock)
    yield store
    store.close()


def listed(store: Store, **conditions: Any) -> list[str]:
    found, cursor = [], None
    while True:
        page = Reader(store).page(Query(**conditions), cursor, attention=True)
        found += [one.row.run_id for one in page.runs]
        assert all(one.needs_attention for one in page.runs)
        cursor = page.next
        if cursor is None:
            return found


def counted(store: Store) -> int:
    return attention.count(store, store.queues.board(), {})


def examined(store: Store) -> set[str | None]:
    """Return the runs of which the doctor reports a problem, or a question."""
    found = doctor.examine(store, None, store.now(), check=False)
    return {one.run_id for one in found if one.run_id and one.kind not in ("paused", "signal")}


def fill(store: Store) -> None:
    """Write a run of each kind: three ask, failed or crashed; the others need nothing."""
    History("asks", ASKS).created().settled().write(store)
    History("fails", FLOW).created().started("a").failed("a", ValueError("no luck")).settled().write(store)
    History("crashed", FLOW).created().started("a").write(store)
    History("done", FLOW).created().completed("a").settled().write(store)
    History("paused", FLOW).created().record(events.RunPaused(by="ada", reason=None)).write(store)
    History("held", FLOW).created().started("a").write(store, holder=Holder(id="h", ttl_s=600.0))


def test_runs_that_ask_failed_or_crashed_need_attention(store: Store) -> None:
    fill(store)
    assert set(listed(store)) == examined(store) == {"asks", "fails", "crashed"}
    assert counted(store) == 3
    assert listed(store, limit=1) == listed(store)
    assert listed(store, status=("failed",)) == ["fails"]
    assert listed(store, status=("waiting",)) == ["asks"]
    assert listed(store, status=("running", "completed")) == ["crashed"]
    assert listed(store, flow="none") == []


def test_a_run_that_a_busy_worker_will_claim_needs_none_and_is_not_even_read(
    store: Store, clock: Clock
) -> None:
    for number in range(30):
        History(f"r{number}", FLOW).created().write(store)
    clock.at += 10 * diagnosis.PATIENCE_S
    store.claim("r0", WORKER)
    assert (listed(store), counted(store), examined(store)) == ([], 0, set())
    assert not any(
        part.offered for part in attention.parts(Query(), store.queues.offered(), store.queues.holders())
    )


def test_a_run_that_an_idle_worker_does_not_claim_needs_attention_after_a_while(
    store: Store, clock: Clock
) -> None:
    History("r", FLOW, starts_at=clock.at).created().write(store)
    store.renew(WORKER)
    assert (listed(store), counted(store), examined(store)) == ([], 0, set())
    clock.at += diagnosis.PATIENCE_S + 1
    assert (listed(store), counted(store), examined(store)) == (["r"], 1, {"r"})


def test_a_run_that_no_live_worker_takes_needs_attention_at_once(store: Store, clock: Clock) -> None:
    History("r", FLOW, starts_at=clock.at).created().write(store)
    store.renew(msgspec.structs.replace(WORKER, flows=("another",)))
    assert (listed(store), counted(store), examined(store)) == (["r"], 1, {"r"})


@pytest.mark.parametrize("is_busy", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_run_of_a_changed_flow_needs_attention_once_every_live_worker_has_refused_it(
    store: Store, *, is_busy: bool, is_known: bool
) -> None:
    changed = outline("START a b END")
    History("old", FLOW).created().started("a").write(store)
    History("new", changed).created().started("a").write(store)
    History("busy", changed).created().started("a").write(store)
    other = msgspec.structs.replace(WORKER, id="other")
    for worker in (WORKER, other):
        store.renew(worker)
    if is_busy:
        store.claim("busy", WORKER)
    flows = {changed.name: changed} if is_known else {}

    def found() -> tuple[list[tuple[str, str]], int, list[str]]:
        page = Reader(store, flows).page(Query(), attention=True)
        told = doctor.examine(store, flows or None, store.now(), check=False)
        return (
            [(one.row.run_id, one.found.kind) for one in page.runs],
            attention.count(store, store.queues.board(), flows),
            [one.run_id for one in told if one.run_id],
        )

    seq, definition = store.run("old").seq, changed.definition_json
    assert found() == ([], 0, [])
    store.queues.refuse(
        Refusal(run_id="old", holder="worker", seq=seq, reason="changed", fingerprint=changed.fingerprint),
        definition,
    )
    assert found() == ([], 0, []), "the other worker has not refused it"
    store.queues.refuse(Refusal(run_id="old", holder="other", seq=seq, reason="changed"))
    assert found() == ([("old", "flow changed")], 1, ["old"])
    store.renew(msgspec.structs.replace(WORKER, ttl_s=0.0))
    store.renew(msgspec.structs.replace(other, id="another"))
    assert found() == ([], 0, []), "a new worker may have the code for it"


def test_a_run_that_asks_and_crashed_counts_once(store: Store) -> None:
    both = outline("START a END", "START b END", nodes={"a": {"approve": "Go on?"}})
    History("both", both).created().started("b").settled().write(store)
    assert store.run("both").asks == 1
    assert (listed(store), counted(store)) == (["both"], 1)


def test_a_run_of_many_flows_that_no_worker_takes_is_found(store: Store) -> None:
    for number in range(7):
        graph = hf.Graph(f"flow{number}")
        graph.node(name="a")(lambda state: {})
        History(f"r{number}", graph.chain(hf.START, "a", hf.END).compile()).created().write(store)
    assert len(attention.parts(Query(), store.queues.offered(), store.queues.holders())) == 3
    assert len(listed(store, limit=2)) == counted(store) == 7


def test_a_page_ends_early_if_too_many_runs_had_to_be_looked_at(store: Store, clock: Clock) -> None:
    History("late", FLOW, starts_at=1.0).created().write(store)
    clock.at += 10 * diagnosis.PATIENCE_S
    for number in range(20):
        History(f"r{number}", FLOW, starts_at=clock.at).created().write(store)
    store.renew(WORKER)
    first = Reader(store).page(Query(limit=2), attention=True)
    assert first.runs == []
    assert first.next is not None
    assert listed(store, limit=2) == ["late"]


def test_a_run_that_is_due_needs_attention_if_no_worker_takes_it(store: Store, clock: Clock) -> None:
    retried = outline("START a END", nodes={"a": {"retry": hf.Retry(attempts=3)}})
    history = History("r", retried, starts_at=clock.at).created().started("a")
    history.failed("a", ValueError("no luck"), retry_in=100.0).settled().write(store)
    run = store._data.runs["r"]
    run.view = msgspec.structs.replace(run.view, due_at=clock.at + 100)
    clock.at += 50
    assert (listed(store), counted(store), examined(store)) == ([], 0, set())
    clock.at += 100
    assert (listed(store), counted(store), examined(store)) == (["r"], 1, {"r"})
    assert listed(store, status=("pending",)) == []
