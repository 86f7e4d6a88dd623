"""An edge is a struct in Python and a pair in the log: definitions, their digests and fingerprints do not move."""

from __future__ import annotations

import msgspec

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.difference import difference, fingerprint

REVIEW = Definition(
    name="review",
    nodes={
        "write": NodeOptions(),
        "check": NodeOptions(each=True, timeout_s=60.0),
        "publish": NodeOptions(idempotent=False, on_interrupt="ask"),
    },
    edges=[Edge(START, "write"), Edge("write", "check"), Edge("write", "publish"), Edge("publish", END)],
    branches={"check": ["publish", "write"]},
    state={"draft": "set", "notes": "append"},
)
STORED = (
    b'{"name":"review","nodes":{"write":{},"check":{"each":true,"timeout_s":60.0},'
    b'"publish":{"idempotent":false,"on_interrupt":"ask"}},'
    b'"edges":[["START","write"],["write","check"],["write","publish"],["publish","END"]],'
    b'"branches":{"check":["publish","write"]},"state":{"draft":"set","notes":"append"}}'
)
"""Written by version 1, when an edge was a tuple."""
FINGERPRINT = "f11dc9c23adb16f998d52cb74a5dc4cbdf652020f0830d103c92f33f131679e7"
LAYERED = "f457e0e89e2d635ebd1516ef746fde2f9ba7daf51e261aa194371d9f6f36669b"
REVERSED = "8a004c2224feebdb51a5da19c7400d7044f2230e6d42d1eeb8c107a72735b4f5"


def test_a_definition_is_stored_as_it_always_was_with_its_edges_as_pairs() -> None:
    assert msgspec.json.encode(REVIEW) == STORED


def test_a_definition_that_was_stored_with_pairs_is_read_with_edges() -> None:
    read = msgspec.json.decode(STORED, type=Definition)
    assert read == REVIEW
    assert read.edges[1] == Edge("write", "check")
    assert difference(read, REVIEW).empty


def test_fingerprints_do_not_move() -> None:
    assert fingerprint(REVIEW) == FINGERPRINT
    assert fingerprint(msgspec.json.decode(STORED, type=Definition)) == FINGERPRINT
    assert fingerprint(msgspec.structs.replace(REVIEW, schedule="layered")) == LAYERED
    assert fingerprint(msgspec.structs.replace(REVIEW, edges=REVIEW.edges[::-1])) == REVERSED


def test_every_arrow_of_a_flow_is_an_edge_once_in_the_order_of_declaration() -> None:
    both = msgspec.structs.replace(REVIEW, branches={"write": ["check", END], "check": ["publish"]})
    assert both.arrows() == [*REVIEW.edges, Edge("write", END), Edge("check", "publish")]
