"""The limits of the disk and the driver, without an engine.

A "raw" commit is one row in a transaction of its own, written by a plain loop through the driver that the store uses: `apsw` in
the mode of our store (WAL, `synchronous=FULL`), or `psycopg`. While a write-ahead log still grows, syncs take twice as long,
because the size of the file is synced too. So the log is brought to its full size first, here and in the workloads.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import apsw

from bench.stores import Server
from holdfast.storage.files import disk

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_WARM_UP_COMMITS = 1200  # SQLite reuses its log from the start after 1,000 pages
_BODY_BYTES = 120  # about as much as a step of the chain workload stores


class NoDisk(Exception):
    """Durability cannot be measured in this folder."""


def file_system(folder: Path) -> str:
    """Return the file system of a folder; empty if it is unknown. Raises `NoDisk` if it is in memory."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    kind = disk.file_system(str(folder.resolve()), mountinfo)
    if kind in IN_MEMORY:
        raise NoDisk(f"{folder} is on {kind}, which is memory: a sync costs nothing there, so no figure would mean anything. "
                     "Choose a folder on a disk: --folder PATH.")  # fmt: skip
    return kind


def sync_times(folder: Path, count: int = 300) -> list[float]:
    """Return the times of single `fdatasync` calls after a write of 4 KB in place, in seconds, sorted."""
    path = folder / "sync"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        page = os.urandom(4096)
        times = []
        for _ in range(count):
            os.pwrite(handle, page, 0)
            began = time.perf_counter()
            os.fdatasync(handle)
            times.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        path.unlink()
    return sorted(times)


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which this share of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Commits(Protocol):
    """Commits of one row each, in a file or database of their own."""

    rates: list[float]

    def rate(self, count: int = 1000) -> float:
        """Measure commits per second, and add the result to `rates`."""

    def one(self) -> float:
        """Commit once, and return the time in seconds."""

    def close(self) -> None: ...


class _Loop:
    """A plain loop around a function that commits one row."""

    def __init__(self, commit: Callable[[bytes], Any]) -> None:
        self.rates: list[float] = []
        self._execute = commit
        self._body = os.urandom(_BODY_BYTES)
        self._commit(_WARM_UP_COMMITS)

    def rate(self, count: int = 1000) -> float:
        self.rates.append(count / self._commit(count))
        return self.rates[-1]

    def one(self) -> float:
        return self._commit(1)

    def _commit(self, count: int) -> float:
        body, execute = self._body, self._execute
        began = time.perf_counter()
        for _ in range(count):
            execute(body)
        return time.perf_counter() - began


class SqliteCommits(_Loop):
    """Commits of one row each, in a SQLite file of their own."""

    def __init__(self, folder: Path) -> None:
        self._connection = apsw.Connection(str(folder / "raw.db"))
        assert self._connection.pragma("journal_mode", "wal") == "wal"
        self._connection.pragma("synchronous", "full")
        execute = self._connection.cursor().execute
        execute("create table log (key integer primary key, body blob not null) strict")
        super().__init__(lambda body: execute("insert into log (body) values (?)", (body,)))

    def close(self) -> None:
        self._connection.close()


class PostgresCommits(_Loop):
    """Commits of one row each, in a PostgreSQL database of their own."""

    def __init__(self, server: Server) -> None:
        import psycopg

        self._connection = psycopg.connect(server.new_database(), autocommit=True)
        execute = self._connection.execute
        execute("create table log (key bigint generated always as identity primary key, body bytea not null)")
        super().__init__(
            lambda body: execute("insert into log (body) values (%s)", (body,), prepare=True, binary=True)
        )

    def close(self) -> None:
        self._connection.close()
