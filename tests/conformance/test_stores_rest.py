"""What both SQL stores stand on, in its rarer turns: batches that JSON cannot carry, bodies and chains that were altered, forks,
and places that are only looked at.
"""

import msgspec
import pytest

from holdfast.errors import StoreCorrupt, StoreUnusable
from holdfast.storage import process, rows
from holdfast.storage.contract import Query
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres import store as postgres
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.writer import Writer
from holdfast.testing.appends import Log
from postgres_server import drop_schema, shared_url

A_THIRD = 1 / 3
"""A time of long ago: JSON need not give back its last bit."""


# --- batches of many ---------------------------------------------------------------------------------


def odd_time(log):
    created_at, log.at = log.at, A_THIRD
    return log.create(created_at=created_at)


NOT_FOR_JSON = {
    "an error text": lambda log: log.create(error="it said \u2028 and \x00 no more", status="failed"),
    "a parent": lambda log: log.create(parent="r0"),
    "a time of creation": lambda log: log.create(created_at=A_THIRD),
    "a time of an event": odd_time,
    "no event": lambda log: msgspec.structs.replace(log.create(), rows=()),
}


def ordinary():
    return [Log(f"r{number}").create() for number in range(batches.MANY)]


def told_of(store):
    """Everything that a store tells of its runs."""
    return {row.run_id: (row, store.events(row.run_id)) for row in store.runs(Query())}


@pytest.mark.parametrize("what", NOT_FOR_JSON)
def test_what_json_would_not_carry_exactly_is_kept_as_well_in_a_batch_of_many(what, tmp_path):
    odd = NOT_FOR_JSON[what](Log("odd"))
    assert batches.are_many(ordinary())
    assert not batches.fits(odd)
    together, alone = SqliteStore(tmp_path / "together.db"), SqliteStore(tmp_path / "alone.db")
    batch = [*ordinary(), odd]
    verdicts = together.append(batch)
    assert [alone.append([one])[0] is None for one in batch] == [verdict is None for verdict in verdicts]
    assert told_of(together) == told_of(alone)
    assert len(told_of(together)) >= batches.MANY
    together.close()
    alone.close()


# --- rows that were altered --------------------------------------------------------------------------


def test_a_compressed_body_that_is_damaged_is_told_so():
    body = rows.pack(b'{"text":"' + b"long " * 1_000 + b'"}')
    assert rows.unpack(body).startswith(b'{"text":"long ')
    with pytest.raises(StoreCorrupt, match="a compressed body cannot be read"):
        rows.unpack(body[:-20] + b"?" * 20)


def test_the_first_place_is_named_where_a_log_is_not_what_was_written():
    written = Log("r").create(b"1", b"2", b"3").rows
    assert rows.broken_at("r", written, after=0, digest=b"") is None
    assert rows.broken_at("r", written[1:], after=0, digest=b"") == (
        1,
        "event 1 is missing (the next one is 2)",
    )
    altered = [written[0], msgspec.structs.replace(written[1], body=b"two"), written[2]]
    where, why = rows.broken_at("r", altered, after=0, digest=b"")
    assert where == 2
    assert "event 2 (NodeCompleted) is not what was written" in why


# --- forks -------------------------------------------------------------------------------------------


def test_a_child_neither_writes_with_nor_closes_what_is_its_parents(monkeypatch):
    store = MemoryStore()
    writer = Writer(store)
    append = Log("r").create()
    with monkeypatch.context() as child:
        child.setattr(process, "count", process.count + 1)
        with pytest.raises(StoreUnusable, match="before the process was forked"):
            writer.try_commit((append,))
        writer.close()
    assert store.runs(Query()) == []
    assert writer.try_commit((append,)) == [None]  # the parent's works on
    writer.close()


# --- looking, and slips ------------------------------------------------------------------------------


def test_a_schema_that_is_only_looked_at_is_left_as_it_is():
    url = f"{shared_url()}"
    name = "rest_looked_at"
    drop_schema(url, name)
    there = f"{url}{'&' if '?' in url else '?'}schema={name}"
    assert not postgres.is_there(there)
    assert not postgres.is_there(there)  # the first look has made nothing
    PostgresStore(url, schema=name).close()
    try:
        assert postgres.is_there(there)
    finally:
        drop_schema(url, name)
    assert not postgres.is_there(there)


def test_an_option_of_a_url_with_a_slip_in_it_is_told_with_the_one_that_was_meant():
    assert "connect_timeout" in Address("postgresql://me@host/db?conect_timeout=3").slip
    assert Address("postgresql://me@host/db?connect_timeout=3").slip == ""
    assert Address("postgresql://me@host/db?zzz=3").slip == ""
