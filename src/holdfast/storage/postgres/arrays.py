"""Encode the columns of many rows as PostgreSQL's binary arrays, so that one statement writes a batch of any size.

The driver's own arrays are encoded cell by cell with type checks, which takes longer than the statement itself. Invariant: a
value that cannot be encoded raises (`UnicodeEncodeError`, `struct.error`) before anything is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

# The header of an array: number of dimensions, whether nulls may occur, type of the elements, length, first index.
_HEAD = struct.Struct(">5i")
_EMPTY = struct.Struct(">3i")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Array:
    """The cells of one column, to be sent as an array."""

    __slots__ = ("cells",)
    oid: ClassVar[int]
    """PostgreSQL's type number (OID) of the array."""
    element: ClassVar[int]
    """PostgreSQL's type number (OID) of an element."""
    encode: ClassVar[Callable[[Any], bytes]]
    """The function that encodes one cell."""

    def __init__(self, cells: Sequence[Any]) -> None:
        self.cells = cells

    def binary(self) -> bytes:
        """Return the array in PostgreSQL's binary wire format."""
        if not self.cells:
            return _EMPTY.pack(0, 0, self.element)
        parts = [_HEAD.pack(1, 1, self.element, len(self.cells), 1)]
        encode = type(self).encode
        for cell in self.cells:
            if cell is None:
                parts.append(_NULL)
            else:
                value = encode(cell)
                parts.append(_LENGTH.pack(len(value)))
                parts.append(value)
        return b"".join(parts)


class Texts(Array):
    """A column of text."""

    oid, element, encode = 1009, 25, str.encode


class Bytes(Array):
    """A column of bytea."""

    oid, element, encode = 1001, 17, bytes


class Ints(Array):
    """A column of bigint."""

    number = struct.Struct(">q")
    oid, element, encode = 1016, 20, number.pack


class Floats(Array):
    """A column of double precision."""

    number = struct.Struct(">d")
    oid, element, encode = 1022, 701, number.pack


class Flags(Array):
    """A column of boolean."""

    oid, element, encode = 1000, 16, struct.Struct(">?").pack
