"""A store on a server: it reads what the store of the server reads, and says plainly what is possible only over there."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import pytest
from hosted import ADMIN, Hosting, hosting

from holdfast.storage.http.store import RemoteStore
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.queues import QueuesConformance

HOST: list[Hosting] = []


@pytest.fixture(scope="module", autouse=True)
def host():
    with hosting() as made:
        HOST.append(made)
        yield made
        HOST.clear()


class _Parted:
    """A part of a store: the named verbs are those of the store on the server, the others those of the server's own store."""

    def __init__(self, here: Any, there: Any, remote: set[str]) -> None:
        self._here, self._there, self._remote = here, there, remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there if name in self._remote else self._here, name)


READ = {"run", "runs", "events", "snapshot", "definition", "now", "check", "generation"}


class ReadOverHttp(_Parted):
    """A store that writes by itself and reads through a server."""

    def __init__(self, here: Any, opened: ExitStack, server: str) -> None:
        self._opened = opened
        there = RemoteStore(server, token=ADMIN)
        opened.callback(there.close)
        super().__init__(here, there, READ)
        self.blobs = _Parted(here.blobs, there.blobs, {"get", "spilled"})
        self.queues = _Parted(here.queues, there.queues, {"holders", "queues", "board"})
        self.upkeep = _Parted(here.upkeep, there.upkeep, {"trimmed", "snapshots", "facts"})

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> Any:
        read = self._there.inbox if holder is None else self._here.inbox
        return read(holder, run_id=run_id)

    def close(self) -> None:
        self._opened.close()
        self._here.close()


LEFT_OUT = {
    "test_a_closed_store_refuses_every_verb",
    "test_a_forked_child_is_refused_every_verb",
    "test_the_url_opens_the_store_and_holds_its_scheme",
    "test_blobs_are_durable_before_the_rows_that_refer_to_them",
    "test_an_append_whose_blob_cannot_be_kept_is_refused_and_its_neighbours_are_written",
}
"""What is about writing, or about the store object of the tests itself."""


class _OverHttp:
    """Serves the store of a conformance suite."""

    def make(self, folder: Any, clock: Any) -> Any:
        raise NotImplementedError

    def open(self, folder: Any, clock: Any) -> Any:
        here, opened = self.make(folder, clock), ExitStack()
        return ReadOverHttp(here, opened, opened.enter_context(HOST[0].serving(self.make(folder, clock))))


class TestMemoryOverHttp(_OverHttp, StoreConformance):
    persistent = False

    def make(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteOverHttp(_OverHttp, StoreConformance):
    def make(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)


class TestQueuesOverHttp(_OverHttp, QueuesConformance):
    shared = False

    def make(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


def _reads(test: Any) -> bool:
    """Return whether a test of a suite is about what a store on a server reads."""
    source = inspect.getsource(test)
    return any(
        f"{verb}(" in source
        for verb in (".events", ".runs", ".snapshot", ".definition", ".board", ".holders")
    )


for suite in (TestMemoryOverHttp, TestSqliteOverHttp, TestQueuesOverHttp):
    tests = {name for name in dir(suite) if name.startswith("test_")}
    for name in tests:
        if name in LEFT_OUT or not _reads(getattr(suite, name)):
            setattr(suite, name, None)
