"""Batches of many: what is appended together is what single appends would write."""

import msgspec
import pytest

from holdfast.errors import (
    FenceLost,
    RunExists,
    RunNotFound,
    SeqConflict,
    StoreFull,
)
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Holder, Query, Request, Snapshot
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log

A_THIRD = 1 / 3
"""A time of long ago: JSON need not give back its last bit."""
ME = Holder(id="me", ttl_s=30.0)
NOTE = Request(id="note", verb="signal", body={"name": "note"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


# --- what JSON cannot carry --------------------------------------------------------------------------


def odd_time(log):
    created_at, log.at = log.at, A_THIRD
    return log.create(created_at=created_at)


NOT_FOR_JSON = {
    "an error text": lambda log: log.create(error="it said \u2028 and \x00 no more", status="failed"),
    "a parent": lambda log: log.create(parent="r0"),
    "an origin": lambda log: log.create(origin="r0"),
    "runs that it starts": lambda log: log.create(along=Along(starts=(Log("started").create(origin="odd"),))),
    "a request to another run": lambda log: log.create(along=Along(posts=(("r0", NOTE),))),
    "a time of creation": lambda log: log.create(created_at=A_THIRD),
    "a time of an event": odd_time,
    "no event": lambda log: msgspec.structs.replace(log.create(), rows=()),
}


def ordinary():
    return [Log(f"r{number}").create() for number in range(batches.MANY)]


def told_of(store):
    """Everything that a store tells of its runs."""
    return {
        row.run_id: (row, store.events(row.run_id), store.inbox(run_id=row.run_id))
        for row in store.runs(Query())
    }


@pytest.mark.parametrize("what", NOT_FOR_JSON)
def test_what_json_would_not_carry_exactly_is_kept_as_well_in_a_batch_of_many(what, tmp_path):
    odd = NOT_FOR_JSON[what](Log("odd"))
    assert len(ordinary()) >= batches.MANY
    assert batches.are_separate(ordinary())
    assert not batches.fits(odd)
    together, alone = SqliteStore(tmp_path / "together.db"), SqliteStore(tmp_path / "alone.db")
    batch = [*ordinary(), odd]
    verdicts = together.append(batch)
    assert [alone.append([one])[0] is None for one in batch] == [verdict is None for verdict in verdicts]
    assert told_of(together) == told_of(alone)
    assert len(told_of(together)) >= batches.MANY
    together.close()
    alone.close()


# --- all kinds together ------------------------------------------------------------------------------


class Picky(MemoryBlobs):
    """A place for blobs that keeps none which is bad."""

    def put(self, digest, body):
        if body == b"bad":
            raise StoreFull("no space left")
        super().put(digest, body)


def test_a_large_batch_of_all_kinds_writes_what_single_appends_would_write(path):
    store = SqliteStore(path, blobs=Picky("picky"))
    store.renew(ME)
    old = [Log(f"old{number}", holder="me", fence=1) for number in range(4)]
    for log in old:
        first = log.create()
        assert store.append([first]) == [None]
        log.wrote(first)
    store.post("old2", Request(id="q", verb="pause"))
    batch = [
        old[0].next(release=True, status="interrupted"),
        old[1].next(snapshots=(Snapshot(3, b"{}"),)),
        old[2].next(taken=("q",)),
        old[3].next(blobs=(Blob.of(b"bad"),)),
        Log("defined", holder="me", fence=1).create(definition=b"{}", labels={"team": "a"}, fingerprint="f"),
        Log("again").create(definition=b"{}", fingerprint="f"),
        Log("nobody").next(),
        Log("stranger", holder="unknown", fence=1).create(),
        *(Log(f"new{number}").create() for number in range(batches.MANY)),
    ]
    found = store.append(batch)
    refused = {3: StoreFull, 6: RunNotFound, 7: FenceLost}
    assert {index: type(verdict) for index, verdict in enumerate(found) if verdict is not None} == refused
    assert store.run("old0").holder is None
    assert store.snapshot("old1", [(1, 9)]) == Snapshot(3, b"{}")
    assert store.inbox("me") == []
    assert store.definition("f") == b"{}"
    assert [row.run_id for row in store.runs(Query(labels={"team": "a"}))] == ["defined"]
    assert all(
        store.events(one.run_id)[-1] == one.rows[-1]
        for index, one in enumerate(batch)
        if index not in refused
    )
    store.close()


def test_a_large_batch_of_which_nothing_may_be_written_writes_nothing(store):
    logs = [Log(f"r{number}") for number in range(batches.MANY)]
    assert store.append([log.create() for log in logs]) == [None] * batches.MANY
    stale = [log.next(holder="me", fence=9) for log in logs]
    again = [log.create() for log in logs]
    assert {type(verdict) for verdict in store.append(stale)} <= {FenceLost, SeqConflict}
    assert {type(verdict) for verdict in store.append(again)} == {RunExists}
    assert {row.seq for row in store.runs(Query())} == {1}
