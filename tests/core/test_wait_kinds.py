"""The kind of a wait is derived from what is stored: snapshots of every version keep their bytes."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from holdfast.core import run_state
from holdfast.core.run_state import RunState, Wait, WaitKind

TIMER = b'{"node":"a","iteration":1,"execution":1,"slot":"sleep:1","until":60.0}'
SIGNAL = b'{"node":"a","iteration":1,"execution":1,"slot":"signal:paid:1","item":2,"signal":"paid"}'
CHILD = b'{"node":"a","iteration":1,"execution":1,"slot":"child:pay:1","until":60.0,"child":"r.1f"}'
STORED: dict[WaitKind, bytes] = {"timer": TIMER, "signal": SIGNAL, "child": CHILD}


@pytest.mark.parametrize("kind", get_args(WaitKind))
def test_a_wait_that_an_earlier_version_stored_has_its_kind_and_is_stored_as_the_same_bytes(
    kind: WaitKind,
) -> None:
    wait = msgspec.json.decode(STORED[kind], type=Wait)
    assert wait.kind == kind
    assert msgspec.json.encode(wait) == STORED[kind]


def test_the_stored_fields_of_a_wait_do_not_include_its_kind() -> None:
    assert Wait.__struct_fields__ == (
        "node",
        "iteration",
        "execution",
        "slot",
        "item",
        "signal",
        "until",
        "payload_schema",
        "child",
        "abandons",
    )


def test_a_snapshot_with_both_kinds_of_waits_keeps_its_bytes_when_it_is_loaded_and_stored_again() -> None:
    waits = {"a": msgspec.json.decode(TIMER, type=Wait), "b": msgspec.json.decode(SIGNAL, type=Wait)}
    stored = run_state.dump(RunState("r", waits=waits))
    assert stored == b'{"state":{"run_id":"r","waits":{"a":' + TIMER + b',"b":' + SIGNAL + b'}},"inputs":{}}'
    assert run_state.dump(run_state.load(stored)) == stored


def test_the_awaited_signals_are_those_of_the_waits_for_a_signal_in_their_order() -> None:
    names = (None, "paid", "seen", None, "paid")
    waits = [Wait("a", 1, 1, f"slot {number}", signal=name) for number, name in enumerate(names)]
    assert run_state.awaited_signals(waits) == ["paid", "seen", "paid"]
