"""docs/server.md says what the table and the code say."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.server import access, connection, guard
from holdfast.server.table import ROUTES
from holdfast.storage.tokens import ROLES

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "server.md").read_text("utf-8")


def test_the_document_has_every_route():
    listed = re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \| (\w+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert listed == [(route.method, route.path, route.role or "none", route.summary) for route in ROUTES]


def test_the_document_has_every_role():
    listed = re.search(r"one of the roles (.+), each of which includes those before it", DOCUMENT)
    assert tuple(re.findall(r"`(\w+)`", listed[1])) == ROLES


def test_the_document_has_the_limits():
    for limit in (
        f"within {connection.HEAD_S:g} seconds",
        f"{connection.HEAD_BYTES_MAX // 1024} KB and {connection.HEADERS_MAX} headers",
        f"for {connection.WRITE_S:g} seconds",
        f"over {guard.BODY_BYTES_MAX >> 20} MB",
        f"{access.FAILURES_MAX} wrong tokens per minute",
    ):
        assert limit in DOCUMENT, limit
    assert access.WINDOW_S == 60
