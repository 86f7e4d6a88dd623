"""Definitions of flows as bytes: the only module that encodes them for a store and decodes what a store has.

The definition of a graph in code is stored as JSON. That of a plan, which may have thousands of nodes and their rules, is packed
as the bodies of events are.
"""

from __future__ import annotations

import msgspec

from holdfast.core.definition import Definition
from holdfast.errors import StoreCorrupt
from holdfast.storage.rows import pack, unpack

_decode = msgspec.json.Decoder(Definition).decode


def encode(definition: Definition, json: bytes) -> bytes:
    """Return a definition, whose JSON is given, as a store keeps it."""
    return pack(json) if definition.plan else json


def decode(stored: bytes) -> Definition:
    """Return a stored definition. Raises `StoreCorrupt`."""
    try:
        return _decode(unpack(stored))
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise StoreCorrupt(f"the definition of a flow cannot be read: {fault}") from fault
