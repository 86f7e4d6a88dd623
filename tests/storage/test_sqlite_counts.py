"""The board of a SQLite store reads how many runs have each status, and does not count them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage import schema
from holdfast.storage.contract import STATUSES, Holder, Query
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import KilledAtFailpoint, Log, hooked, kill_at, raises


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    yield store
    store.close()


def counted(store: SqliteStore) -> dict[str, int]:
    return dict(Counter(row.status for row in store.runs(Query(limit=500))))


def test_the_counts_are_those_of_the_rows_whatever_happens_to_runs(store: SqliteStore) -> None:
    luck = random.Random(7)
    logs: dict[str, Log] = {}
    holder = Holder(id="engine-1", ttl_s=30.0)
    store.renew(holder)
    for step in range(150):
        batch = []
        for number in range(luck.choice((1, 1, 3))):
            if logs and luck.random() < 0.6:
                log = logs[luck.choice(list(logs))]
                if any(append.run_id == log.run_id for append in batch):
                    continue
                batch.append(log.next(status=luck.choice(STATUSES)))
            else:
                log = logs[f"r{step}-{number}"] = Log(f"r{step}-{number}", holder=holder.id, fence=1)
                batch.append(log.create(status=luck.choice(STATUSES)))
        for append, refused in zip(batch, store.append(batch), strict=True):
            assert refused is None
            logs[append.run_id].wrote(append)
        if step % 5 == 4:
            gone = luck.sample(list(logs), min(3, len(logs)))
            for run_id in gone:
                store.release(run_id, holder.id, 1)
            assert not store.upkeep.delete({run_id: logs.pop(run_id).seq for run_id in gone})
        assert store.queues.board().counts == counted(store), step


def test_a_deletion_that_was_cut_short_counts_nothing_twice(store: SqliteStore) -> None:
    for number in range(4):
        assert store.append([Log(f"r{number}").create(status="completed")]) == [None]
    with hooked(kill_at("delete.before")), raises(KilledAtFailpoint):
        store.upkeep.delete({"r0": 1, "r1": 1})
    assert store.queues.board().counts == counted(store)
    assert {*store.upkeep.delete({"r0": 1, "nobody": 1, "r1": 7})} == {"nobody", "r1"}
    assert store.queues.board().counts == counted(store) == {"completed": 3}


def test_the_counts_are_read_without_the_runs(store: SqliteStore) -> None:
    connection = store._database.connect()
    try:
        plan = connection.execute(
            f"explain query plan {schema.queries('sqlite')['count_statuses']}"
        ).fetchall()
    finally:
        connection.close()
    assert [cells[-1] for cells in plan] == ["SCAN counts"]
