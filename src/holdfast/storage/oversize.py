"""Values that are too large for a log leave the body of an event, or of a snapshot, and become blobs.

The body then says so *beside* its values, never inside them: its first key is `"$blobs"`, which maps the JSON pointer of each
value that was taken out to the digest of its JSON; in its place is null. No field of an event can have that name, so
a body that begins with it has references, any other has none, and no value of a user can look like one.

What is too large: a value not over the limit stays; text over it goes; of a container the parts over the limit go first, and
if what is left is still over it, the container goes too. So a value that many events hold is one blob, whatever is beside it.

Invariant: `put_back` gives the very bytes that `take_out` was given. The hash chain is over what is stored: the references.
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
"""Bytes of JSON over which a value becomes a blob."""
LOG_BUDGET = 64_000_000
"""Bytes of log for one checkpoint over which a result is refused."""
KEY = "$blobs"
_MARK = b'{"$blobs":'

_encode = msgspec.json.Encoder().encode
_parts: Callable[[bytes | Raw], Any] = msgspec.json.Decoder(dict[str, Raw] | list[Raw]).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_references = msgspec.json.Decoder(dict[str, str]).decode


def take_out(body: bytes, limit: int = BLOB_OVER) -> tuple[bytes, tuple[Blob, ...]]:
    """A body without what is too large for it, and the blobs that hold that."""
    if len(body) <= limit:
        return body, ()
    taken: dict[str, Blob] = {}
    left = _lighten(body, "", limit, taken)
    told = _encode({pointer: blob.digest for pointer, blob in taken.items()})
    body = _MARK + told + (b"}" if "" in taken else b"," + left[1:])
    return body, tuple({blob.digest: blob for blob in taken.values()}.values())


def put_back(body: bytes, blobs: Blobs) -> bytes:
    """A body with everything that was taken out of it. Raises `BlobMissing`, `BlobCorrupt`."""
    if not body.startswith(_MARK):
        return body
    try:
        fields = _fields(body)
        told = _references(fields.pop(KEY))
        tree: Any = fields
        for pointer in sorted(told):  # a container comes before what was taken out of it
            tree = _place(tree, pointer, Raw(blobs.get(told[pointer])))
        return _encode(tree)
    except (msgspec.MsgspecError, LookupError, ValueError) as fault:
        raise StoreCorrupt(f"a body that refers to blobs cannot be read: {fault}") from fault


def references(body: bytes) -> dict[str, str]:
    """JSON pointer -> digest of every blob that a body refers to."""
    if not body.startswith(_MARK):
        return {}
    try:
        return _references(_fields(body)[KEY])
    except msgspec.MsgspecError as fault:
        raise StoreCorrupt(f"a body that refers to blobs cannot be read: {fault}") from fault


def keep_blobs(blobs: Blobs, batch: Iterable[Append]) -> dict[int, Verdict]:
    """Make the blobs of a batch durable, as a store does before it writes a row that refers to them. Those appends whose
    blobs could not be kept are refused, by their place in the batch, with the reason; their neighbours are not.
    """
    refused: dict[int, Verdict] = {}
    for index, append in enumerate(batch):
        try:
            for blob in append.blobs:
                blobs.put(blob.digest, blob.body)
        except StoreError as fault:
            refused[index] = fault
    return refused


def _lighten(value: bytes | Raw, pointer: str, limit: int, taken: dict[str, Blob]) -> bytes:
    """What takes the place of a value that is over the limit."""
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
    """A tree with a value where the pointer leads. Only the way there is opened."""
    if not pointer:
        return value
    step = pointer[1:].partition("/")[0]
    opened = _parts(tree) if isinstance(tree, Raw) else tree
    key = step.replace("~1", "/").replace("~0", "~") if isinstance(opened, dict) else int(step)
    opened[key] = _place(opened[key], pointer[1 + len(step) :], value)
    return opened


def _escape(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
