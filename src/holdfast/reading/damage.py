"""Finds which events of a log are not what was written: one pass over the hash chain that goes on after the first damage.

The digest of a row covers its header, the salted hash of its body and the digest of the row before. Each row has its digest
beside it, so that after a damaged row the next ones can still be checked. What the chain tells:

- A missing seq was removed. The run row says where the log ends, so this includes the last rows.
- A row that does not fit its digest was altered, if the next row fits that digest. If the next row fits the digest that the row
  should have, only the digest was altered.
- If the digest of an altered row was computed again, the row fits, and the next one does not: the chain cannot tell that from an
  alteration of the next row. Both are named (`LogDamage.or_seq`).
- If all digests up to the end and that in the run row were computed again, the log is another log. Only a copy that was made
  before tells: an exported ledger, an archive or a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.storage.contract import Row
from holdfast.storage.rows import SALT_BYTES, Header, content_of, link

DIGEST_BYTES = 32
What: TypeAlias = Literal["missing", "altered", "added"]


class LogDamage(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a log that are not what was written: one event that was altered or added, or events in succession that are
    missing.
    """

    what: What
    seq: int
    upto: int
    """The last of the events that are missing; otherwise the same as `seq`."""
    kind: str | None = None
    """The kind that the row has now; None if it is missing."""
    type: str | None = None
    """The type of the ledger's entry about this event; None if it has none, or if the event is missing."""
    or_seq: int | None = None
    """The event before, if that one may have been altered instead, together with its digest."""
    text: str

    def is_about(self, seq: int) -> bool:
        """Return whether the event with this seq is named."""
        return self.seq <= seq <= self.upto or seq == self.or_seq


class Sealed(Header, Protocol):
    """A row, or a line of an exported ledger: a header, and the digest beside it."""

    @property
    def digest(self) -> bytes: ...


S = TypeVar("S", bound=Sealed)


def find_damage(
    run_id: str,
    rows: Sequence[S],
    content: Callable[[S], bytes | None],
    *,
    after: int,
    digest: bytes,
    end: int,
    end_digest: bytes,
) -> list[LogDamage]:
    """Return all damage to a log that begins after the event `after`, whose digest is `digest`, and ends with the event `end`.
    `content` returns the salted hash of a row's body, or None for a row that cannot have been written like this.
    """
    found: list[LogDamage] = []
    previous: bytes | None = digest  # None if the digest of the row before is lost
    before: S | None = None

    def fits(number: int, candidate: bytes) -> bool:
        """Return whether what comes after a row fits this digest of it: the next row, or the digest in the run row."""
        if rows[number].seq == end:
            return candidate == end_digest
        following = rows[number + 1] if number + 1 < len(rows) else None
        if following is None or following.seq != rows[number].seq + 1:
            return False
        inside = content(following)
        return inside is not None and link(candidate, run_id, following, inside) == following.digest

    for number, row in enumerate(rows):
        if row.seq <= after or row.seq > end:
            found.append(_added(row, end))
            continue
        if row.seq > after + 1:
            found.append(_missing(after + 1, row.seq - 1, before, row))
            previous, before = None, None
        after = row.seq
        inside = content(row)
        made = link(previous, run_id, row, inside) if previous is not None and inside is not None else None
        if made == row.digest or (previous is None and inside is not None):
            # Without the digest before, only the next row can confirm this one.
            previous, before = row.digest, row
            continue
        if fits(number, row.digest):
            previous = row.digest
            found.append(_altered(row, before if inside is not None else None))
        elif made is not None and fits(number, made):
            previous = made
            found.append(_digest_altered(row))
        else:
            previous = None
            found.append(_altered(row, None))
        before = row
    if after < end:
        found.append(_missing(after + 1, end, before, None))
    elif previous is not None and previous != end_digest:
        found.append(_end_altered(before, end))
    return found


def rows_damage(
    run_id: str, rows: Sequence[Row], *, after: int, digest: bytes, end: int, end_digest: bytes
) -> list[LogDamage]:
    """Return all damage to the rows of a log."""
    return find_damage(
        run_id, rows, _content_as_written, after=after, digest=digest, end=end, end_digest=end_digest
    )


def _content_as_written(row: Row) -> bytes | None:
    """Return the salted hash of a row's body; None if the row has a form in which no row is written, although the digest may fit:
    a byte that was moved from the salt to the body, or an empty name in place of none.
    """
    if len(row.salt) != SALT_BYTES or len(row.digest) != DIGEST_BYTES or row.node == "":
        return None
    return content_of(row)


# --- what it says ------------------------------------------------------------------------------------


def _altered(row: Sealed, before: Sealed | None) -> LogDamage:
    other = (
        f" (or event {before.seq} ({before.kind}) was, if its digest was computed again)"
        if before is not None
        else ""
    )
    return LogDamage(
        what="altered",
        seq=row.seq,
        upto=row.seq,
        kind=row.kind,
        or_seq=before.seq if before is not None else None,
        text=f"event {row.seq} ({row.kind}) was altered after it was written{other}",
    )


def _digest_altered(row: Sealed) -> LogDamage:
    text = f"the digest of event {row.seq} ({row.kind}) was altered; the event itself is as it was written"
    return LogDamage(what="altered", seq=row.seq, upto=row.seq, kind=row.kind, text=text)


def _end_altered(last: Sealed | None, end: int) -> LogDamage:
    kind = last.kind if last is not None else None
    text = (
        f"the digest in the run row is not that of event {end} ({kind}), the last one: the event was altered and its digest "
        "computed again, or the run row was altered"
    )
    return LogDamage(what="altered", seq=end, upto=end, kind=kind, text=text)


def _added(row: Sealed, end: int) -> LogDamage:
    where = (
        f"the log ends at event {end}" if row.seq > end else "the log has an event with this number already"
    )
    text = f"event {row.seq} ({row.kind}) was added: {where}"
    return LogDamage(what="added", seq=row.seq, upto=row.seq, kind=row.kind, text=text)


def _missing(first: int, last: int, before: Sealed | None, following: Sealed | None) -> LogDamage:
    subject = f"event {first} is missing" if first == last else f"events {first} to {last} are missing"
    places = [f"after event {before.seq} ({before.kind})"] if before is not None else []
    places += [
        f"before event {following.seq} ({following.kind})"
        if following is not None
        else "at the end of the log"
    ]
    return LogDamage(what="missing", seq=first, upto=last, text=f"{subject}, {' and '.join(places)}")
