"""A replication slot that nobody reads fills the disk of a server, and the doctor says so before it is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.contract import Store
from holdfast.storage.urls import open_store
from holdfast.upkeep import doctor
from postgres_server import PostgresServer


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


def told(store: Store) -> list[str]:
    return [finding.reason for finding in doctor.examine(store, None, store.now())]


def test_what_a_slot_keeps_of_the_log_is_told_once_it_is_much(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(server.url())
    assert store.upkeep.facts().log_bytes is None
    server.execute("select pg_create_physical_replication_slot('gone', true)", "create table t as select 1")
    kept = store.upkeep.facts().log_bytes
    assert kept is not None
    assert 0 < kept < doctor.SLOT_BYTES
    assert told(store) == []
    monkeypatch.setattr(doctor, "SLOT_BYTES", kept - 1)
    (finding,) = told(store)
    assert finding.startswith("a replication slot keeps ")
    assert "pg_replication_slots" in finding
    store.close()


def test_the_log_of_a_file_is_judged_by_its_own_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LOG_BYTES", 10)
    monkeypatch.setattr(doctor, "FREE_BYTES", 0)
    store = open_store(str(tmp_path / "runs.db"))
    store.queues.limit("mail", 1)
    assert [one.partition(":")[0] for one in told(store)] == ["the write-ahead log has grown to 0 MB"]
    store.close()
