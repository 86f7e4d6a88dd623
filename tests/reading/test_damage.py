"""Which events of a log were removed, altered or added is found in one pass over the hash chain."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.event_encoding import Encoded
from holdfast.reading.damage import LogDamage, rows_damage
from holdfast.storage.contract import Row
from holdfast.storage.rows import chain, seal

replace = msgspec.structs.replace


def rows(count: int, *, after: int = 0, digest: bytes = b"") -> list[Row]:
    encoded = [
        Encoded(("NodeStarted", "NodeCompleted")[number % 2], f"n{number}", 1, 1, 1, b'{"took":%d}' % number)
        for number in range(count)
    ]
    salts = b"".join(sha256(b"%d" % number).digest()[:16] for number in range(count))
    return list(seal(digest, "r1", after, 7.5, encoded, salts))


LOG = rows(12)
END = LOG[-1]


def find(
    found: list[Row], *, end: Row = END, after: int = 0, digest: bytes = b"", end_digest: bytes | None = None
) -> list[LogDamage]:
    return rows_damage(
        "r1", found, after=after, digest=digest, end=end.seq, end_digest=end_digest or end.digest
    )


def put(row: Row, *others: Row) -> list[Row]:
    """Return the log with these rows in place of those with the same seq."""
    given = {one.seq: one for one in (row, *others)}
    return [given.get(one.seq, one) for one in LOG]


def test_a_log_as_it_was_written_has_no_damage() -> None:
    assert find(LOG) == []
    base = rows(5, after=40, digest=b"d" * 32)
    assert find(base, end=base[-1], after=40, digest=b"d" * 32) == []


ALTERATIONS = {
    "body": lambda row: replace(row, body=row.body + b" "),
    "no body": lambda row: replace(row, body=b""),
    "salt": lambda row: replace(row, salt=bytes(16)),
    "time": lambda row: replace(row, at=row.at + 0.001),
    "kind": lambda row: replace(row, kind="RunCompleted"),
    "node": lambda row: replace(row, node="other"),
    "no node": lambda row: replace(row, node=None),
    "iteration": lambda row: replace(row, iteration=2),
    "execution": lambda row: replace(row, execution=2),
    "attempt": lambda row: replace(row, attempt=2),
    "digest": lambda row: replace(row, digest=bytes(32)),
    "a byte moved from the salt to the body": lambda row: replace(
        row, salt=row.salt[:-1], body=row.salt[-1:] + row.body
    ),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
@pytest.mark.parametrize("place", range(len(LOG)))
def test_an_altered_row_is_named_whatever_was_altered(alteration: str, place: int) -> None:
    (found,) = find(put(ALTERATIONS[alteration](LOG[place])))
    assert (found.what, found.seq, found.upto) == ("altered", place + 1, place + 1)
    assert f"event {place + 1} (" in found.text


@pytest.mark.parametrize("place", range(len(LOG)))
def test_a_removed_row_is_named_also_the_last_one(place: int) -> None:
    (found,) = find([row for row in LOG if row is not LOG[place]])
    assert (found.what, found.seq, found.upto, found.kind) == ("missing", place + 1, place + 1, None)
    assert f"event {place + 1} is missing" in found.text


@pytest.mark.parametrize("place", range(len(LOG)))
def test_an_altered_row_whose_digest_was_computed_again_is_named(place: int) -> None:
    before = LOG[place - 1].digest if place else b""
    altered = replace(LOG[place], body=b"{}")
    (found,) = find(put(replace(altered, digest=chain(before, "r1", altered))))
    assert found.is_about(place + 1), (
        "the next row does not fit: the chain cannot tell which of the two was altered"
    )
    assert f"event {place + 1} (" in found.text


def test_a_row_after_the_end_is_named_as_added() -> None:
    (found,) = find(rows(13), end=END)
    assert (found.what, found.seq) == ("added", 13)


def test_rows_that_are_missing_in_succession_are_one_damage() -> None:
    (found,) = find([*LOG[:3], *LOG[7:]])
    assert (found.seq, found.upto) == (4, 7)
    assert (
        found.text
        == "events 4 to 7 are missing, after event 3 (NodeStarted) and before event 8 (NodeCompleted)"
    )
    (found,) = find([])
    assert (found.seq, found.upto) == (1, 12)


def test_the_first_row_after_a_base_is_named_if_it_is_missing() -> None:
    base = rows(5, after=40, digest=b"d" * 32)
    (found,) = find(base[1:], end=base[-1], after=40, digest=b"d" * 32)
    assert (found.what, found.seq) == ("missing", 41)


def test_the_rows_after_a_damage_are_checked_too() -> None:
    damaged = put(ALTERATIONS["body"](LOG[2]), ALTERATIONS["body"](LOG[6]), ALTERATIONS["digest"](LOG[9]))
    assert [one.seq for one in find(damaged)] == [3, 7, 10]


@pytest.mark.parametrize(("one", "other"), [(2, 8), (4, 5), (0, 11), (10, 11), (0, 1)])
def test_rows_that_changed_places_are_both_named(one: int, other: int) -> None:
    first, second = LOG[one], LOG[other]
    swapped = put(replace(second, seq=first.seq), replace(first, seq=second.seq))
    found = find(swapped)
    assert any(damage.is_about(first.seq) for damage in found)
    assert any(damage.is_about(second.seq) for damage in found)


def test_another_digest_in_the_run_row_is_reported_with_the_last_event() -> None:
    (found,) = find(LOG, end_digest=bytes(32))
    assert found.seq == 12
    assert "the run row was altered" in found.text


@given(st.data())
def test_any_byte_of_any_row_that_changes_is_found(data: st.DataObject) -> None:
    row = LOG[data.draw(st.integers(0, len(LOG) - 1))]
    column = data.draw(st.sampled_from(["body", "salt", "digest"]))
    old: bytes = getattr(row, column)
    place = data.draw(st.integers(0, len(old) - 1))
    other = bytes([old[place] ^ data.draw(st.integers(1, 255))])
    changed = replace(row, **{column: old[:place] + other + old[place + 1 :]})
    assert [damage.seq for damage in find(put(changed))] == [row.seq]
