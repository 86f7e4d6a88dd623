"""A holder that is renewed by one statement alone: what may go wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.errors import CodecError, StoreError
from holdfast.storage.leases import this_process
from holdfast.storage.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    store.renew(this_process(60.0, "first"))  # the first one also forgets old holders, in a transaction
    yield store
    store.close()


def test_a_holder_whose_name_is_no_text_is_refused(store: SqliteStore) -> None:
    with pytest.raises(CodecError, match="cannot be stored"):
        store.renew(this_process(60.0, "half of a pair: \ud800"))
    store.renew(this_process(60.0, "second"))


def test_what_the_database_refuses_is_told_as_its_fault(store: SqliteStore, tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "runs.db"))
    other.execute("create trigger full before insert on holders begin select raise(abort, 'no more'); end")
    other.close()
    with pytest.raises(StoreError, match="no more"):
        store.renew(this_process(60.0, "second"))
