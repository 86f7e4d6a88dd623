"""A store of the version before run rows told what a listing shows: its runs are listed by everything that was known of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.storage import schema
from holdfast.storage.contract import Query, Store
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.storage.sqlite.store import SqliteStore
from postgres_server import drop_schema, execute, schema_for, shared_url

STATUSES = ("running", "completed", "waiting", "failed")
LABELS = [{"team": "x", "n": "0"}, {"team": "y"}, {"team": "x", "a' ": '"'}, {}]
RUN = (
    "insert into {runs} (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,"
    " state_version, fence) values ('r{n}', 'flow', {empty}, '{labels}', {n}, '{status}', 9, {empty}, {at}, 'print', 1, 0)"
)
LABEL = "insert into {labels} (run, name, value) select key, '{name}', '{value}' from {runs} where run_id = 'r{n}'"


def older(dialect: str, name: str | None = None) -> tuple[str, ...]:
    """Return the migrations before the one that this file is about."""
    known = schema.migrations(dialect, name)
    return known[: next(number for number, text in enumerate(known) if "runs_asking" in text)]


def contents(place: str, empty: str) -> Iterator[str]:
    now = time.time()
    runs, labels = f"{place}runs", f"{place}labels"
    for n, (status, told) in enumerate(zip(STATUSES, LABELS, strict=True)):
        quoted = json.dumps(told).replace("'", "''")
        yield RUN.format(runs=runs, n=n, empty=empty, labels=quoted, status=status, at=now - 60)
        for name, value in told.items():
            yield LABEL.format(labels=labels, runs=runs, n=n, name=name.replace("'", "''"), value=value)


def sqlite(folder: Path) -> Store:
    path = folder / "runs.db"
    connection = apsw.Connection(str(path))
    for statement in (*older("sqlite"), *contents("", "x''")):
        connection.execute(statement)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", len(older("sqlite")))
    connection.close()
    return SqliteStore(path)


def postgres(folder: Path) -> Store:
    name = schema_for(folder)
    version = f"insert into \"{name}\".meta (name, value) values ('schema_version', '{len(older('postgres', name))}')"
    execute(
        shared_url(),
        f'create schema "{name}"',
        *older("postgres", name),
        version,
        *contents(f'"{name}".', "''"),
    )
    return PostgresStore(shared_url(), schema=name)


@pytest.fixture(params=[sqlite, postgres])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = request.param(tmp_path)
    yield store
    store.close()
    if request.param is postgres:
        drop_schema(shared_url(), schema_for(tmp_path))


def test_runs_of_an_older_version_are_found_by_all_that_was_known_of_them(store: Store) -> None:
    def found(**conditions: object) -> list[str]:
        return [run.run_id for run in store.runs(Query(**conditions))]

    assert found() == ["r3", "r2", "r1", "r0"]
    assert found(labels={"team": "x"}) == ["r2", "r0"]
    assert found(labels={"a' ": '"', "team": "x"}) == ["r2"]
    assert found(labels={"team": "x"}, status=("running",)) == ["r0"]
    assert found(flow="flow", status=("failed", "running")) == ["r3", "r0"]
    assert found(asks=True) == [
        "r3",
        "r2",
        "r0",
    ]  # it is unknown whether these ask; a completed run never does
    assert {(row.asks, row.active_s, row.situation) for row in store.runs(Query())} == {(None, None, None)}


def test_runs_that_ended_just_before_the_migration_are_on_the_board(store: Store) -> None:
    board = store.queues.board()
    assert board.counts == dict.fromkeys(STATUSES, 1)
    assert sum(one.completed for one in board.minutes) == sum(one.failed for one in board.minutes) == 1


def test_a_run_of_an_older_version_is_deleted_with_its_labels(store: Store) -> None:
    assert not store.upkeep.delete({"r1": 9})
    assert store.runs(Query(labels={"team": "y"})) == []
