"""What an append writes beside its rows and the run row is asked with one property, of every store."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.storage.contract import Along, Append, Snapshot, View

BARE = Append(
    run_id="r",
    expected_seq=0,
    rows=(),
    view=View(status="running", fingerprint="f", state_version=1),
)
EXTRAS = {"snapshots": (Snapshot(1, b"{}"),), "definition": b"", "taken": ("request",), "along": Along()}
ROW_ONLY = {"run_id", "expected_seq", "rows", "view", "holder", "fence", "create", "release", "blobs"}
"""Written with the rows and the run row, or before them."""


def test_an_append_of_rows_alone_has_no_extras() -> None:
    assert not BARE.has_extras
    assert not msgspec.structs.replace(BARE, release=True, holder="h", fence=2).has_extras


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_append_with_something_beside_its_rows_has_extras(extra: str) -> None:
    assert msgspec.structs.replace(BARE, **{extra: EXTRAS[extra]}).has_extras


def test_every_field_of_an_append_is_known_to_be_an_extra_or_not() -> None:
    assert set(Append.__struct_fields__) == ROW_ONLY | set(EXTRAS)
