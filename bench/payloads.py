"""The content of large states, for Holdfast and for its peers. This module imports only the standard library, because peers have
an environment of their own.

The text is random, so that no store gains from compression that real data would not allow; it is the same in every run.
"""

import json
import random
import string
from typing import Any

GROW_BYTES = 1024
WIDE_FIELDS = 100
_WIDE_ENTRIES = 10
# No quotes and backslashes: JSON escapes them, so 1 KB of text would be more than 1 KB of JSON.
_TAGS = ("new", "paid", "gift", "late", "export", "fragile", "returned", "wholesale")
_ROW_BYTES = 86  # about as much as one row is in JSON, with its comma
_LETTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - set('"\\'))).encode()
_TABLE = bytes(_LETTERS[number % len(_LETTERS)] for number in range(256))


def texts(count: int, size: int = GROW_BYTES, seed: int = 7) -> list[str]:
    """Return random texts of printable characters."""
    luck = random.Random(seed)
    return [luck.randbytes(size).translate(_TABLE).decode() for _ in range(count)]


def wide() -> dict[str, list[str]]:
    """Return about 1 MB of text in a hundred fields, each a list of ten texts."""
    told = iter(texts(WIDE_FIELDS * _WIDE_ENTRIES, seed=11))
    return {f"field_{number}": [next(told) for _ in range(_WIDE_ENTRIES)] for number in range(WIDE_FIELDS)}


def wide_bytes(fields: dict[str, Any]) -> int:
    """Return the size of all texts in these fields, in bytes."""
    return sum(len(text) for entries in fields.values() for text in entries)


def rows(size: int) -> list[dict[str, Any]]:
    """Return rows of a table, about this many bytes as JSON."""
    luck = random.Random(13)
    return [
        {
            "id": number,
            "name": luck.randbytes(20).translate(_TABLE).decode(),
            "tags": luck.sample(_TAGS, 2),
            "amount": luck.randrange(10_000_000) / 100,
        }
        for number in range(size // _ROW_BYTES)
    ]


def rows_by_name(size: int) -> dict[str, dict[str, Any]]:
    """Return the same rows as a dict."""
    return {f"row-{row['id']}": row for row in rows(size)}


def messages(count: int) -> list[dict[str, Any]]:
    """Return the messages of an agent and its tools, 200 letters each; every second one calls a tool."""
    return [
        {"role": "tool", "content": text, "call": f"call-{number - 1}"}
        if number % 2
        else {
            "role": "assistant",
            "content": text,
            "calls": [
                {"id": f"call-{number}", "name": "read", "arguments": {"path": text[:20], "limit": 50}}
            ],
        }
        for number, text in enumerate(texts(count, 200, seed=17))
    ]


def json_bytes(value: Any) -> int:
    """Return the size of a value as JSON, in bytes."""
    return len(json.dumps(value, separators=(",", ":")))
