"""Deleting very many runs: many in one transaction, and no list of all of them is kept in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from holdfast.storage.contract import Query, Store
from holdfast.storage.urls import open_store
from holdfast.testing.appends import KilledAtFailpoint, Log, hooked, kill_at
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Choice, RetentionPolicy

ALL = [RetentionPolicy(keep=0)]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind = request.param
    store = open_store(f"memory://{tmp_path.name}" if kind == "memory" else str(tmp_path / "runs.db"))
    yield store
    store.close()


def fill(store: Store, count: int, **changes: object) -> None:
    batch = []
    for number in range(count):
        log = Log(f"r{number:04d}")
        log.at = 1000.0 + number
        batch.append(log.create(created_at=log.at, **{"status": "completed", **changes}))
    assert not any(store.append(batch))


def delete_all(store: Store) -> list[Choice]:
    return list(chain.from_iterable(retention.delete_all(store, retention.choose(store, ALL))))


def test_a_hundred_runs_are_deleted_in_one_transaction(store: Store) -> None:
    fill(store, 250)
    reached: list[str] = []
    with hooked(reached.append):
        done = delete_all(store)
    assert reached.count("delete.committed") == 3
    assert [choice.run_id for choice in done if choice.goes] == [
        f"r{number:04d}" for number in range(249, -1, -1)
    ]
    assert store.runs(Query()) == []


def test_runs_with_many_events_are_not_deleted_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 8)
    monkeypatch.setattr(retention, "_BATCH_EVENTS", 3)
    reached: list[str] = []
    with hooked(reached.append):
        assert all(choice.goes for choice in delete_all(store))
    assert reached.count("delete.committed") == 3


def test_after_a_crash_the_next_prune_deletes_the_rest(store: Store) -> None:
    fill(store, 250)
    batches = retention.delete_all(store, retention.choose(store, ALL))
    assert len(next(batches)) == retention.BATCH
    with hooked(kill_at("delete.before")), pytest.raises(KilledAtFailpoint):
        next(batches)
    assert len(store.runs(Query(limit=500))) == 150
    with hooked(kill_at("delete.committed")), pytest.raises(KilledAtFailpoint):
        delete_all(store)
    assert len(store.runs(Query(limit=500))) == 50
    assert len(delete_all(store)) == 50


def test_a_chain_of_forks_goes_from_its_end(store: Store) -> None:
    fill(store, 1)
    for number in range(1, 5):
        log = Log(f"fork{number}")
        log.at = 2000.0 + number
        before = f"fork{number - 1}" if number > 1 else "r0000"
        assert store.append([log.create(created_at=log.at, status="completed", parent=before)]) == [None]
    assert [(choice.run_id, choice.goes) for choice in delete_all(store)] == [
        ("fork4", True),
        ("fork3", True),
        ("fork2", True),
        ("fork1", True),
        ("r0000", True),
    ]


def test_the_memory_of_a_prune_does_not_grow_with_the_number_of_its_runs(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        store = open_store(str(tmp_path / f"{count}.db"))
        fill(store, count)
        gc.collect()
        tracemalloc.start()
        try:
            deleted = sum(len(some) for some in retention.delete_all(store, retention.choose(store, ALL)))
            return tracemalloc.get_traced_memory()[1] if deleted == count else 0
        finally:
            tracemalloc.stop()
            store.close()

    few, many = peak(1500), peak(4500)
    assert 0 < many < few * 1.2
