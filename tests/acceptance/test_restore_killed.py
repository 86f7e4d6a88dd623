"""A restore into PostgreSQL that is killed leaves no store that takes itself for the one of the backup."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
from holdfast.errors import StoreError
from holdfast.storage.contract import Query
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.leases import this_process
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.queues import FENCE_STEP
from holdfast.testing.appends import Log
from postgres_server import PostgresServer, _binaries, execute

RESTORE = "import sys; from holdfast.storage.files.restoring import restore; restore(*sys.argv[1:])"
DEADLY = """#!/bin/sh
# Stands for a program of PostgreSQL: does what it does, and kills who called it before, within or after the N-th call.
exec 9> {ended}
echo >> {calls}
if [ "$(wc -l < {calls})" -ne {number} ]; then exec {real} "$@"; fi
case {when} in
    before) kill -9 $PPID ;;
    within) {real} "$@" | head -c 3000; kill -9 $PPID ;;
    after) {real} "$@"; kill -9 $PPID ;;
esac
"""
CALLS = (("pg_restore", 1), ("psql", 1), ("pg_restore", 2), ("psql", 2), ("pg_restore", 3))
"""All that a restore calls."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.execute("create database other")
    yield server
    server.remove()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def backup(server: PostgresServer, tmp_path: Path, programs: None) -> tuple[str, str]:
    """A backup of a store in which a run is held, and the generation of that store."""
    store = PostgresStore(server.url(schema="mine"))
    holder = this_process(600.0, "holder")
    store.renew(holder)
    if not store.runs(Query()):
        assert store.append([Log("r").create(holder=holder.id)]) == [None]
    back_up(store, str(tmp_path / "copy"))
    store.close()
    return str(tmp_path / "copy"), store.generation


def elsewhere(server: PostgresServer) -> str:
    """Where there is no store yet."""
    execute(
        server.url(database="other"),
        "set client_min_messages = warning",
        "drop schema if exists mine cascade",
    )
    return server.url(database="other", schema="mine")


def generations(server: PostgresServer) -> list[str]:
    """Of the store that a restore left; none where it left no store."""
    url = server.url(database="other")
    if execute(url, "select to_regnamespace('mine')::text") == [(None,)]:
        return []
    return [value for (value,) in execute(url, "select value from mine.meta where name = 'generation'")]


def killed(folder: Path, call: tuple[str, int], when: str, *words: str) -> int:
    """Restore in a process that is killed at a call of a program: how it ended, once all that it called has ended too."""
    folder.mkdir()
    os.mkfifo(folder / "ended")
    for program in ("pg_restore", "psql"):
        number = call[1] if call[0] == program else 0
        shim = folder / program
        shim.write_text(
            DEADLY.format(
                ended=folder / "ended",
                calls=folder / f"{program}.calls",
                number=number,
                when=when,
                real=_binaries() / program,
            )
        )
        shim.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    ended = os.open(folder / "ended", os.O_RDONLY | os.O_NONBLOCK)
    done = forked.run([sys.executable, "-c", RESTORE, *words], env={**os.environ, "PATH": path}, check=False)
    os.set_blocking(ended, True)
    assert os.read(ended, 1) == b""  # as soon as nobody has it open for writing
    os.close(ended)
    return done.returncode


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_killed_restore_leaves_no_store_or_a_new_one(
    server: PostgresServer, backup: tuple[str, str], tmp_path: Path, when: str
) -> None:
    copy, generation = backup
    for number, call in enumerate(CALLS):
        there = elsewhere(server)
        assert killed(tmp_path / str(number), call, when, copy, there) == -signal.SIGKILL
        left = generations(server)
        assert generation not in left, f"killed {when} {call}"
        if not left:
            restore(copy, there)  # nothing is in the way


def test_a_restore_calls_nothing_else_that_it_could_be_killed_at(
    server: PostgresServer, backup: tuple[str, str], tmp_path: Path
) -> None:
    assert killed(tmp_path / "unharmed", ("none", 1), "before", backup[0], elsewhere(server)) == 0
    for program in ("pg_restore", "psql"):
        made = (tmp_path / "unharmed" / f"{program}.calls").read_text().count("\n")
        assert [(program, number + 1) for number in range(made)] == [
            call for call in CALLS if call[0] == program
        ]


def test_a_restored_store_is_new_when_it_is_first_seen(
    server: PostgresServer, backup: tuple[str, str]
) -> None:
    copy, generation = backup
    there = elsewhere(server)
    restore(copy, there)
    new = PostgresStore(there)
    row = new.run("r")
    assert (new.generation != generation, row.holder, row.fence) == (True, None, FENCE_STEP + 1)
    new.close()


def test_a_damaged_backup_leaves_nothing_in_the_database(
    server: PostgresServer, backup: tuple[str, str]
) -> None:
    copy, _ = backup
    content = Path(copy).read_bytes()
    Path(copy).write_bytes(content[:-200])
    with pytest.raises(StoreError, match="pg_restore failed"):
        restore(copy, elsewhere(server))
    assert generations(server) == []


def test_what_the_database_refuses_is_told_in_its_words(
    server: PostgresServer, backup: tuple[str, str]
) -> None:
    copy, _ = backup
    there = elsewhere(server)
    server.execute("drop role if exists reader", "create role reader login")
    with pytest.raises(StoreError, match=r"psql failed: .*permission denied for database other"):
        restore(copy, there.replace("postgres@", "reader@"))
    assert generations(server) == []
