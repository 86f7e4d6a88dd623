"""The programs of PostgreSQL, where they fail or are too old for what they are asked: what they say, and the way out."""

import os
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import PGconn

from holdfast.errors import SettingError, StoreError
from holdfast.storage.postgres import upkeep as postgres_upkeep
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.database import _refusal
from holdfast.storage.postgres.store import PostgresStore
from postgres_server import drop_schema, shared_url

TOO_OLD = {
    "pg_dump": "pg_dump: error: aborting because of server version mismatch",
    "pg_restore": "pg_restore: error: unsupported version (1.16) in file header",
}
"""What the real ones print; there is only one version of them here."""


@pytest.fixture
def old_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, said in TOO_OLD.items():
        stand_in = tmp_path / program
        stand_in.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def name(request):
    name = "b_" + re.sub(r"\W+", "_", request.node.name.lower())[-50:].strip("_")
    yield name
    drop_schema(shared_url(), name)


@pytest.fixture
def store(name):
    store = PostgresStore(shared_url(), schema=name)
    yield store
    store.close()


def test_what_psql_says_itself_comes_before_what_failed_because_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "psql"
    stand_in.write_text("#!/bin/sh\ncat > /dev/null\necho 'psql: error: the disk is full' >&2\nexit 3\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    address = Address("postgresql://me@/db?host=/nowhere")
    with (
        pytest.raises(StoreError, match="psql failed: psql: error: the disk is full"),
        postgres_upkeep.script(address),
    ):
        raise StoreError("nobody takes what is written")


def test_a_connection_that_ended_without_a_reason_is_gone() -> None:
    ended = PGconn.connect(b"host=/nowhere")
    assert isinstance(_refusal(ended, None), psycopg.OperationalError)
    assert "nowhere" in str(_refusal(ended, None))


@pytest.mark.usefixtures("old_programs")
@pytest.mark.parametrize("program", TOO_OLD)
def test_a_program_that_is_older_than_the_server_is_told_with_the_way_out(program: str) -> None:
    with pytest.raises(StoreError) as refused:
        postgres_upkeep.call(program, None, "--list", "copy")
    told = str(refused.value)
    assert TOO_OLD[program] in told
    assert f"Put the {program} of a PostgreSQL at least as new as the server" in told


def test_another_fault_of_a_program_is_told_in_its_own_words_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "pg_dump"
    stand_in.write_text("#!/bin/sh\nexit 7\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(StoreError) as refused:
        postgres_upkeep.call("pg_dump", None)
    assert str(refused.value) == "PostgreSQL: pg_dump failed: exit code 7"


def test_a_machine_without_the_programs_of_postgresql_says_so(store, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match="there is no pg_dump on this machine"):
        store.upkeep.backup(str(tmp_path / "copy"))


def test_a_program_of_postgresql_that_fails_is_quoted(monkeypatch, tmp_path):
    (tmp_path / "pg_dump").write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    (tmp_path / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="pg_dump failed: no luck"):
        postgres_upkeep.call("pg_dump", None)


@pytest.mark.parametrize(
    ("conninfo", "plain", "password"),
    [
        ("postgresql://me:se%20cret@host/db", "postgresql://me@host/db", "se cret"),
        (
            "postgresql://host/db?password=x%21&a=b",
            "postgresql://host/db?application_name=holdfast&a=b",
            "x!",
        ),
        ("postgresql://host/db", "postgresql://host/db", ""),
    ],
)
def test_a_password_is_handed_over_apart_from_the_address(conninfo, plain, password):
    assert postgres_upkeep._apart(conninfo) == (plain, password)
