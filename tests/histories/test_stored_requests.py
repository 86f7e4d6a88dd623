"""The stored form of requests: bytes and digest never change, because an inbox may have requests of any version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.core.events import Failure
from holdfast.reading import inbox
from holdfast.storage.verdicts import digest_request

GOLDEN = json.loads(Path(__file__).with_name("stored_requests.json").read_text("utf-8"))
"""Written by the version before the requests were records of `core.requests`."""
SAID: dict[str, Any] = {"id": "q1", "by": "eve", "reason": "because"}
REQUESTS: dict[str, inbox.AnyRequest] = {
    "pause": inbox.Pause(**SAID),
    "pause bare": inbox.Pause(),
    "cancel": inbox.Cancel(**SAID, expects="d1"),
    "cancel bare": inbox.Cancel(),
    "answer": inbox.Answer(**SAID, key="a:1", value="skip", update={"n": 1}, confidence=0.5),
    "answer bare": inbox.Answer(key="k"),
    "answer stated": inbox.Answer(key="k", value="happened", stated=inbox.Stated({"x": 1}, "pay", 2)),
    "signal": inbox.Signal(**SAID, name="go", payload=[1, None]),
    "signal bare": inbox.Signal(name="go"),
    "retry": inbox.Retry(**SAID, node="a", fresh=True, confirm=["r.c/x"], expects="d"),
    "retry bare": inbox.Retry(),
    "skip": inbox.Skip(**SAID, node="a", update={"n": 2}, expects="d"),
    "skip bare": inbox.Skip(node="a"),
    "edit": inbox.Edit(**SAID, fields={"n": 3}),
    "edit changes": inbox.Edit(changes={"set": {"n": 1}}, seen=7),
    "resume": inbox.Resume(
        **SAID,
        checkpoint=3,
        after="a",
        restart_at="b",
        replay=True,
        edit={"n": 1},
        force=True,
        confirm=["a"],
        on_change="compatible",
        rename={"a": "b"},
        budget=hf.Budget(usd=5, tokens=10),
        scope=["a", "*"],
        expects="d",
    ),
    "resume bare": inbox.Resume(),
    "resume changes": inbox.Resume(changes={"set": {"n": 1}}, seen=4),
    "child-ended": inbox.ChildEnd(
        id="c",
        run="r.c",
        seq=4,
        status="failed",
        failure=Failure("partial", "E", "m"),
        usd=1.5,
        tokens=3,
        state_version=2,
    ),
    "child-ended bare": inbox.ChildEnd(run="r.c", seq=4, status="completed", values={"n": 1}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_is_stored_as_it_always_was(case: str) -> None:
    stored = inbox.stored_form(REQUESTS[case])
    assert [msgspec.json.encode(stored).decode(), digest_request(stored).hex()] == GOLDEN[case]


@pytest.mark.parametrize("case", REQUESTS)
def test_a_stored_request_is_read_as_it_was_made(case: str) -> None:
    assert inbox.read(inbox.stored_form(REQUESTS[case])) == REQUESTS[case]


def test_every_verb_has_a_golden_request() -> None:
    assert {request.verb for request in REQUESTS.values()} == set(inbox.RECORDS)
    assert set(GOLDEN) == set(REQUESTS)
