"""docs/server.md says what the table and the code say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.verb_options import options_of
from holdfast.reading import inbox
from holdfast.server import (
    access,
    connection,
    guard,
    json_body,
    live,
    open_streams,
    verb_headers,
    verb_inputs,
    waiting,
)
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
        f"At most {open_streams.STREAMS_MAX:,} clients",
        f"at most {live.PAGES_MAX} pages",
        f"every {open_streams.HEARTBEAT_S:g} seconds",
        f"does not read for {open_streams.STUCK_S:g} seconds",
        f"larger than {live.FRAME_BYTES_MAX >> 10} KB",
        f"nested deeper than {json_body.DEPTH_MAX} levels",
        f"At most {waiting.WAIT_S_MAX:g} seconds are waited",
        f"up to {verb_headers.KEY_MAX} ASCII characters",
    ):
        assert limit in DOCUMENT, limit
    assert access.WINDOW_S == 60


def test_the_document_names_every_field_of_a_body_that_is_not_called_like_the_option_of_its_verb():
    told = DOCUMENT.partition("**Verbs.**")[2].partition("\n- **")[0]
    for verb, body in verb_inputs.BODIES.items():
        options = options_of((RECORDS | MAKING)[verb])
        sent = set(body.__struct_fields__) - {"flow", "input", "plan", "run_id"}
        assert sent - set(options) <= set(re.findall(r"`(\w+)`", told)), verb
        assert set(options) - sent - {"run_id"} <= set(re.findall(r"`(\w+)`", told)), verb


@pytest.mark.parametrize("verb", ["resume", "retry", "skip", "cancel", "pause", "edit", "signal"])
def test_a_body_has_the_fields_of_the_request_in_the_inbox(verb):
    body = set(verb_inputs.BODIES[verb].__struct_fields__)
    request = set(getattr(inbox, verb.capitalize()).__struct_fields__)
    assert body <= request
    # Functions of the caller cannot be sent; the id, the time, the caller and the preview are not in the body.
    assert request - body <= {"id", "at", "by", "changes", "seen", "expects"}
