"""What a run that ends reports to its caller and asks of its children: the requests that go with its last append.

- The caller gets a `ChildEnd` under an id made of the child and the seq of its end, so that each end arrives once, and the end of
  a child that failed, was resumed and ended again is another one.
- When a run is cancelled, its children with `cancel_with_caller` get a `Cancel`; their own last append passes it on to their
  children.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

import msgspec

from holdfast.core.events import Failure, Reported
from holdfast.core.run_state import Child, RunState
from holdfast.reading import inbox
from holdfast.storage.contract import Request

VALUES_BYTES_MAX = 32 * 1024
"""Bytes of JSON up to which the final state of a child is in the request to its caller. A larger one is read from its log."""
_End = Literal["completed", "failed", "cancelled"]


def posts(state: RunState) -> list[tuple[str, Request]]:
    """Return the requests that a run leaves in the inboxes of other runs with the append in which it ends."""
    found: list[tuple[str, Request]] = []
    if state.origin is not None:
        found.append((state.origin, inbox.stored_form(report(state))))
    if state.status == "cancelled":
        found += cancels(state, state.children.items(), f"its caller {state.run_id!r} was cancelled")
    return found


def cancels(state: RunState, children: Iterable[tuple[str, Child]], reason: str) -> list[tuple[str, Request]]:
    """Return the requests that cancel those of these children that end with their caller and have not ended."""
    return [
        (
            run,
            inbox.stored_form(
                inbox.Cancel(id=f"caller:{state.run_id}:{state.seq}", by=state.run_id, reason=reason)
            ),
        )
        for run, child in children
        if child.cancels and not child.is_final
    ]


def end_id(run: str, seq: int) -> str:
    """Return the id of the request that reports the end of a child."""
    return f"child:{run}:{seq}"


def report(state: RunState) -> inbox.ChildEnd:
    """Return the report of a run that has ended, for its caller."""
    reported = state.reported or Reported()
    values = state.values if state.status == "completed" else None
    if values is not None and len(msgspec.json.encode(values)) > VALUES_BYTES_MAX:
        values = None
    return inbox.ChildEnd(
        id=end_id(state.run_id, reported.seq),
        run=state.run_id,
        seq=reported.seq,
        status=cast("_End", state.status),
        values=values,
        failure=_failure_of(state),
        usd=reported.usd - reported.usd_before,
        tokens=reported.tokens - reported.tokens_before,
        state_version=state.state_version if state.status == "completed" else None,
    )


def _failure_of(state: RunState) -> Failure | None:
    if state.failure is None:
        return None
    return msgspec.structs.replace(state.failure, traceback="", child="")
