"""A backup that nobody could use where it is to go is refused before anything of it is in the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import SchemaTooNew, StoreError, StoreUnusable
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.postgres.store import PostgresStore
from postgres_server import PostgresServer, _binaries, execute


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.execute("create database other")
    yield server
    server.remove()


@pytest.fixture
def store(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    store = PostgresStore(server.url(schema="mine"))
    yield store
    store.close()


def schemas(server: PostgresServer) -> list[tuple[str]]:
    """What a restore has left where the backup was to go."""
    return execute(server.url(database="other"), "select nspname from pg_namespace where nspname = 'mine'")


def test_a_backup_of_a_newer_holdfast_leaves_no_schema_behind(
    server: PostgresServer, store: PostgresStore, tmp_path: Path
) -> None:
    server.execute("update mine.meta set value = '999' where name = 'schema_version'")
    back_up(store, str(tmp_path / "copy"))
    with pytest.raises(SchemaTooNew, match=r"copy has schema version 999.*Nothing was changed"):
        restore(str(tmp_path / "copy"), server.url(database="other", schema="mine"))
    assert schemas(server) == []


def test_a_server_that_may_lose_what_it_acknowledges_is_refused_before_anything_is_restored(
    server: PostgresServer, store: PostgresStore, tmp_path: Path
) -> None:
    server.execute("alter database other set synchronous_commit = off")
    back_up(store, str(tmp_path / "copy"))
    there = server.url(database="other", schema="mine")
    with pytest.raises(StoreUnusable, match=r"synchronous_commit is off.*Nothing was written"):
        restore(str(tmp_path / "copy"), there)
    assert schemas(server) == []
    restore(str(tmp_path / "copy"), f"{there}&unsafe=1")  # as it says


def test_a_role_that_the_backup_grants_something_to_is_asked_for(
    server: PostgresServer, store: PostgresStore, tmp_path: Path
) -> None:
    server.execute("create role web", "grant usage on schema mine to web")
    back_up(store, str(tmp_path / "copy"))
    server.execute("drop owned by web", "drop role web")
    there = server.url(database="other", schema="mine")
    with pytest.raises(
        StoreError, match=r'role "web" does not exist.* create it first \(create role "web"\)'
    ):
        restore(str(tmp_path / "copy"), there)
    assert schemas(server) == []
    server.execute('create role "web"')
    restore(str(tmp_path / "copy"), there)
    (allowed,) = execute(
        there.replace("&schema=mine", ""), "select has_schema_privilege('web', 'mine', 'usage')"
    )
    assert allowed == (True,)
