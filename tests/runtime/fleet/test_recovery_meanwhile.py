"""A sweep while somebody deletes runs: it goes on with what is left."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.reading import history
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import recovery
from holdfast.upkeep.recovery import Recovery


def store_of(*ids: str) -> MemoryStore:
    """Runs that nobody carries on, and has not for a minute."""
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)
    for run_id in ids:
        story = History(run_id, outline("START a b END"), starts_at=clock.now()).created()
        story.completed("a").started("b").write(store)
    clock.advance(60)
    return store


def delete(store: MemoryStore, run_id: str) -> None:
    assert not store.upkeep.delete({run_id: store.run(run_id).seq})


def test_a_sweep_goes_on_where_a_whole_page_was_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "_PAGE", 2)
    store = store_of("r0", "r1", "r2")
    runs = store.runs

    def deletes_what_it_lists(query: Any) -> Any:
        page = runs(query)
        for row in page:
            delete(store, row.run_id)
        return page

    monkeypatch.setattr(store, "runs", deletes_what_it_lists)
    report = Recovery(store, inside=False).sweep()
    assert (report.complete, report.error) == (True, None)
    assert runs(recovery.Query()) == []


def test_a_run_that_is_deleted_before_its_log_is_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of("r0", "r1")
    load = history.load

    def deletes_the_first(held: Any, run_id: str, **options: Any) -> Any:
        if run_id == "r0":
            delete(store, run_id)
        return load(held, run_id, **options)

    monkeypatch.setattr(history, "load", deletes_the_first)
    report = Recovery(store).sweep()
    assert report.error is None
    assert [(found.run_id, found.crashed) for found in report.findings] == [("r1", True)]
