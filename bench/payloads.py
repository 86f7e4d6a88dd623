"""The content of large states, for Holdfast and for its peers. This module imports only the standard library, because peers have
an environment of their own.

The text is random, so that no store gains from compression that real data would not allow; it is the same in every run.
"""

import random
import string
from typing import Any

GROW_BYTES = 1024
WIDE_FIELDS = 100
_WIDE_ENTRIES = 10
# No quotes and backslashes: JSON escapes them, so 1 KB of text would be more than 1 KB of JSON.
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
