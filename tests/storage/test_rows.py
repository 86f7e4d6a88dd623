"""Rows that were altered: bodies that are damaged, and logs that are not what was written."""

import msgspec
import pytest

from holdfast.errors import StoreCorrupt
from holdfast.storage import rows
from holdfast.testing.appends import Log


def test_a_compressed_body_that_is_damaged_is_told_so():
    body = rows.pack(b'{"text":"' + b"long " * 1_000 + b'"}')
    assert rows.unpack(body).startswith(b'{"text":"long ')
    with pytest.raises(StoreCorrupt, match="the compressed data of an event or snapshot cannot be read"):
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
    assert "event 2 (NodeCompleted) was altered after it was written" in why
