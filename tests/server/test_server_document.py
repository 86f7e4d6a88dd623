"""docs/server.md says what the table and the code say."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.server import access, connection, guard, json_body
from holdfast.server.table import ROUTES
from holdfast.storage.tokens import ROLES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "server.md").read_text("utf-8")


def test_the_document_has_every_route():
    listed = re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \| (\w+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert listed == [(route.method, route.path, route.role or "none", route.summary) for route in ROUTES]


def test_the_document_has_every_role():
    assert tuple(re.findall(r"^\| `(\w+)` \| (?:read|also)", DOCUMENT, re.MULTILINE)) == ROLES


def test_the_document_has_the_limits():
    for limit in (
        f"within {connection.HEAD_S:g} seconds",
        f"{connection.HEAD_BYTES_MAX // 1024} KB and {connection.HEADERS_MAX} headers",
        f"for {connection.WRITE_S:g} seconds",
        f"{guard.BODY_BYTES_MAX >> 20} MB, {json_body.DEPTH_MAX} levels",
        f"within {guard.BODY_SECONDS_MAX:g} seconds",
        f"{access.FAILURES_MAX} wrong tokens per minute",
    ):
        assert limit in DOCUMENT, limit
    assert access.WINDOW_S == 60
