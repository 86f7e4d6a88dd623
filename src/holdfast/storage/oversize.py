"""Move values that are too large for a log out of the body of an event or a snapshot and into blobs.

The references to these blobs are *beside* the values of the body, never inside them: the first key of the body is `"$blobs"`,
which maps the JSON pointer of each value that was moved to the digest of its JSON; the value itself is replaced by null. No field
of an event can have that name, so a body has references if it begins with that key, and no value of a user can look like a
reference.

Which values are moved: a value not over the limit stays, and a text over the limit is moved. In a container, the parts over the
limit are moved first; if the rest is still over the limit, the container is moved too. So a large value that many events contain
is stored as one blob, whatever other values are beside it.

Invariant: `put_back` returns exactly the bytes that were given to `take_out`. The hash chain covers the stored body, with the
references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.storage.blobs import Blob, Blobs
from holdfast.storage.contract import Append, Verdict

BLOB_OVER = 1_000_000
"""A value with more bytes of JSON than this becomes a blob."""
LOG_LIMIT = 64_000_000
"""A result is refused if storing it needs more bytes of the log than this, for one checkpoint."""
KEY = "$blobs"
_MARK = b'{"$blobs":'

_encode = msgspec.json.Encoder().encode
_parts: Callable[[bytes | Raw], Any] = msgspec.json.Decoder(dict[str, Raw] | list[Raw]).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_references = msgspec.json.Decoder(dict[str, str]).decode


def take_out(body: bytes, limit: int = BLOB_OVER) -> tuple[bytes, tuple[Blob, ...]]:
    """Move the values over `limit` bytes out of a body. Returns the new body, which refers to blobs, and these blobs."""
    if len(body) <= limit:
        return body, ()
    taken: dict[str, Blob] = {}
    left = _lighten(body, "", limit, taken)
    told = _encode({pointer: blob.digest for pointer, blob in taken.items()})
    body = _MARK + told + (b"}" if "" in taken else b"," + left[1:])
    return body, tuple({blob.digest: blob for blob in taken.values()}.values())


def put_back(body: bytes, blobs: Blobs, *, without: str | None = None) -> bytes:
    """Undo `take_out`: put the values from the blobs back into the body. Raises `BlobMissing`, `BlobCorrupt`. If a field of the
    event is given that is a list, its blobs are not read: the list is empty, or has null for its large entries.
    """
    if not body.startswith(_MARK):
        return body
    try:
        fields = _fields(body)
        told = _references(fields.pop(KEY))
        tree: Any = fields
        for pointer in sorted(told):  # a container is put back before the values that were moved out of it
            if without is None or pointer.split("/")[1:2] != [without]:
                tree = _place(tree, pointer, Raw(blobs.get(told[pointer])))
            elif pointer == f"/{without}":
                fields[without] = Raw(b"[]")
        return _encode(tree)
    except (msgspec.MsgspecError, LookupError, ValueError) as fault:
        raise StoreCorrupt(
            f"the blob references of an event or snapshot cannot be read: {fault}. `holdfast verify` lists the damage"
        ) from fault


def references(body: bytes) -> dict[str, str]:
    """Return the digests of the blobs that a body refers to, by the JSON pointer of the value that each blob contains."""
    if not body.startswith(_MARK):
        return {}
    try:
        return _references(_fields(body)[KEY])
    except msgspec.MsgspecError as fault:
        raise StoreCorrupt(
            f"the blob references of an event or snapshot cannot be read: {fault}. `holdfast verify` lists the damage"
        ) from fault


def keep_blobs(blobs: Blobs, batch: Iterable[Append]) -> dict[int, Verdict]:
    """Make the blobs of a batch durable; a store calls this before it writes the rows that refer to them. Returns the appends
    whose blobs could not be stored: index in the batch -> the error. The other appends are not affected.
    """
    refused: dict[int, Verdict] = {}
    for index, append in enumerate(batch):
        try:
            for blob in append.all_blobs:
                blobs.put(blob.digest, blob.body)
        except StoreError as fault:
            refused[index] = fault
    return refused


def _lighten(value: bytes | Raw, pointer: str, limit: int, taken: dict[str, Blob]) -> bytes:
    """Return the JSON that replaces a value over the limit: the container without its largest parts, or null. Adds the blobs to
    `taken`, by JSON pointer.
    """
    json = bytes(value)
    if json[:1] in (b"{", b"["):
        parts = _parts(json)
        for key, part in list(parts.items() if isinstance(parts, dict) else enumerate(parts)):
            if len(part) > limit:
                parts[key] = Raw(_lighten(part, f"{pointer}/{_escape(key)}", limit, taken))
        json = _encode(parts)
        if len(json) <= limit:
            return json
    taken[pointer] = Blob.of(json)
    return b"null"


def _place(tree: Any, pointer: str, value: Raw) -> Any:
    """Return a JSON tree in which `value` is at the position that `pointer` names. Only the containers on the way there are
    decoded.
    """
    if not pointer:
        return value
    step = pointer[1:].partition("/")[0]
    opened = _parts(tree) if isinstance(tree, Raw) else tree
    key = step.replace("~1", "/").replace("~0", "~") if isinstance(opened, dict) else int(step)
    opened[key] = _place(opened[key], pointer[1 + len(step) :], value)
    return opened


def _escape(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
