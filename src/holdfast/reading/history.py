"""Loads the state of a run from its log: from a base or snapshot, and the events after it.

After a rewind, the events that were undone remain in the log as history, but are not part of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from holdfast.core import events, run_state
from holdfast.core.definition import Definition
from holdfast.core.fold import fold
from holdfast.core.graph import Flow, without_functions
from holdfast.core.kinds import CHECKPOINTS, MOVES
from holdfast.core.run_state import FEW, GOING, RunState, stretches
from holdfast.core.situation import FLOW_FILE, Said, said_by, stopping_kind, telling_kind
from holdfast.errors import (
    BlobCorrupt,
    BlobMissing,
    IllegalEvent,
    ResumeRefused,
    RunNotFound,
    SettingError,
    StoreCorrupt,
    end_sentence,
)
from holdfast.storage import definitions
from holdfast.storage.contract import Row, RunRow, Store, View
from holdfast.storage.rows import broken_at, open_body, open_row
from holdfast.storage.upkeep import Trimmed


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the log that a run can be resumed or forked from."""

    id: str
    seq: int
    at: float
    kind: str
    node: str | None
    iteration: int
    execution: int
    layer: int | None
    size: int
    """Stored size of the event, in bytes."""
    current: bool
    """True if the current state of the run includes this checkpoint; False if a rewind went back to before it."""


def split(run: str, checkpoint: str | int | None) -> tuple[str, int | None]:
    """Split `"r1@17"` into run id and seq; the checkpoint may be given separately instead."""
    if not isinstance(run, str):
        raise SettingError(
            f"{run!r} is not a run id. Give a string such as 'r1' or, with a checkpoint, 'r1@17'"
        )
    run_id, _, at = run.partition("@")
    if at and checkpoint is not None and str(checkpoint).rpartition("@")[2] != at:
        raise ResumeRefused(
            run_id, f"two different checkpoints are given: {run!r} and checkpoint={checkpoint!r}; choose one"
        )
    given = at or checkpoint
    if given is None or given == "":
        return run_id, None
    text = str(given).rpartition("@")[2]
    if not text.isdecimal():
        raise ResumeRefused(
            run_id, f"{given!r} is not a checkpoint; `holdfast checkpoints {run_id}` lists them"
        )
    return run_id, int(text)


def load(
    store: Store,
    run_id: str,
    upto: int | None = None,
    *,
    row: RunRow | None = None,
    rows: list[Row] | None = None,
    cold: bool = False,
    check: bool = False,
) -> RunState:
    """Load the state of a run after event `upto` of its log (default: the last). Pass `rows` if the whole log was read already.
    If `cold` is true, snapshots that exist only for speed are not used. If `check` is true, the digest of every event that is
    read is verified, as for a resume.
    """
    row = row or store.run(run_id)
    if row.fault:
        raise StoreCorrupt(row.fault)
    upto = row.seq if upto is None else upto
    base = 0  # true for most logs; only a fork shows in its row that its log may begin later
    if rows:
        base = rows[0].seq - 1
    elif cold or row.parent is not None:
        base = began_after(store, row)
    if not max(base, 1) <= upto <= row.seq:
        raise outside(store, row, upto)
    parts = stretches(row.rewinds, upto)
    within = ([(base, base)] if base else []) if cold else parts
    snapshot = store.snapshot(run_id, within) if within else None
    state = (
        run_state.load(open_body(snapshot.body, store.blobs)) if snapshot is not None else RunState(run_id)
    )
    state.run_id = run_id
    for first_seq, last_seq in parts:
        if last_seq > state.seq:
            after = max(first_seq - 1, state.seq)
            found = store.events(run_id, after, last_seq) if rows is None else _between(rows, after, last_seq)
            if check:
                _refuse_damage(store, row, found)
            _fold(state, found, store)
    if state.seq != upto:
        if upto < began_after(store, row):
            raise outside(store, row, upto)
        raise StoreCorrupt(
            f"run {run_id!r}: the log ends at event {state.seq}, but should reach {upto}. "
            f"`holdfast verify {run_id}` says more; restore the store from a backup."
        )
    return state


def flow_file(store: Store, run_id: str) -> str | None:
    """Return the file that the flow of a run was loaded from when the run was created, if that is recorded; for a child run, else
    the file of its caller, which probably defines both.
    """
    found: str | None = load(store, run_id).options.get(FLOW_FILE)
    caller = store.run(run_id).origin
    if found is not None or caller is None:
        return found
    try:
        of_caller: str | None = load(store, caller).options.get(FLOW_FILE)
    except RunNotFound:
        return None
    file, colon, name = (of_caller or "").rpartition(":")
    return file if colon and name.isidentifier() else of_caller


def extend(store: Store, state: RunState, row: RunRow) -> bool:
    """Fold newer events onto a state, up to the end of the log. Returns False if events are missing; then the caller must load
    the run instead.
    """
    _fold(state, store.events(row.run_id, state.seq, row.seq), store)
    return state.seq == row.seq


def _between(rows: list[Row], after: int, upto: int) -> list[Row]:
    """Return the events with a seq above `after` and up to `upto`, from the rows of a log without gaps."""
    begins = rows[0].seq if rows else 1
    return rows[max(after + 1 - begins, 0) : upto + 1 - begins]


def _refuse_damage(store: Store, row: RunRow, rows: list[Row]) -> None:
    if not rows:
        return
    after = rows[0].seq - 1
    broken = broken_at(row.run_id, rows, after=after, digest=digest_at(store, row, after) if after else b"")
    if broken is not None:
        raise StoreCorrupt(
            f"run {row.run_id!r} cannot continue, because its log is damaged: {broken[1]}. "
            f"`holdfast verify {row.run_id}` says more; restore the store from a backup, or fork the run from a "
            "checkpoint before that event."
        )


def began_after(store: Store, row: RunRow) -> int:
    """Return the seq after which a log begins: 0, or the last event that was compacted, or the event from which the run was
    forked.
    """
    compacted = store.upkeep.trimmed(row.run_id).base
    if compacted or row.parent is None:
        return compacted
    return store.events(row.run_id, limit=1)[0].seq - 1


def outside(store: Store, row: RunRow, seq: int) -> RunNotFound:
    """Return the error for an event that the log does not have. If the event was compacted or belongs to the parent of a fork,
    the error says so.
    """
    base = began_after(store, row)
    before = beginning(store, row) if seq < base else ""
    return RunNotFound(
        f"{row.run_id}@{seq}",
        hint=f"The log of run {row.run_id!r} has events {base + 1} to {row.seq}.{f' {before}' if before else ''}",
    )


def beginning(store: Store, row: RunRow) -> str:
    """Return a sentence that says where the earlier events of a compacted or forked log are; empty for a complete log."""
    trimmed = store.upkeep.trimmed(row.run_id)
    if trimmed.base:
        rest = f"the whole log is archived at {trimmed.place}" if trimmed.place else "they were not archived"
        return f"Events up to {trimmed.base} were compacted on {day(trimmed.base_at)}; {rest}."
    return "" if row.parent is None else f"Earlier events are in the log of run {row.parent!r}."


def retirement(trimmed: Trimmed) -> str:
    """Return a sentence that says which checkpoints were retired and when; empty if none were."""
    if not trimmed.retired:
        return ""
    return f"Checkpoints before event {trimmed.retired} were retired on {day(trimmed.retired_at)}."


def day(at: float) -> str:
    """Format an instant as a date and time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def opened(store: Store, run_id: str, rows: Iterable[Row], *, chunks: bool = True) -> Iterator[events.Stored]:
    """Yield the events in rows of a run; without `chunks`, streamed chunks may be left out (see `open_row`). Raises
    `StoreCorrupt` with the run and the event for a row that cannot be read.
    """
    blobs = store.blobs
    for row in rows:
        try:
            yield open_row(row, blobs, chunks=chunks)
        except (BlobMissing, BlobCorrupt):  # their messages already have the remedy
            raise
        except StoreCorrupt as fault:
            raise StoreCorrupt(
                f"run {run_id!r}, event {row.seq}: {end_sentence(str(fault))} `holdfast verify {run_id}` says more; restore the "
                "store from a backup, or continue with the undamaged runs."
            ) from fault


def _fold(state: RunState, rows: list[Row], store: Store) -> None:
    try:
        for event in opened(store, state.run_id, rows, chunks=False):
            fold(state, event)
    except IllegalEvent as fault:
        raise impossible(state.run_id, fault) from fault


def impossible(run_id: str, fault: IllegalEvent) -> StoreCorrupt:
    """Return the error for a log with an event that its state does not allow."""
    return StoreCorrupt(
        f"the log of run {run_id!r} contains an event that is not possible there: {fault}. "
        f"`holdfast verify {run_id}` says more; if the log is damaged, restore the store from a backup."
    )


def defined(stored: bytes, run_id: str) -> Definition:
    """Decode the stored definition of a run's flow."""
    try:
        return definitions.decode(stored)
    except StoreCorrupt as fault:
        raise StoreCorrupt(
            f"run {run_id!r}: the definition of its flow cannot be read ({fault.__cause__}). `holdfast verify {run_id}` says "
            "more; restore the store from a backup."
        ) from fault


def stand_in(store: Store, state: RunState) -> Flow[Any]:
    """Return what the store knows about the flow of a run, for a process that does not know the flow: it has no functions.
    Raises `StoreCorrupt`.
    """
    stored = store.definition(state.fingerprint)
    if stored is None:
        raise StoreCorrupt(
            f"run {state.run_id!r}: the definition of its flow ({state.fingerprint[:12]}) is not in the store. Restore the store "
            "from a backup."
        )
    flow = without_functions(defined(stored, state.run_id))
    flow.fingerprint = state.fingerprint
    return flow


def digest_at(store: Store, row: RunRow, seq: int) -> bytes:
    """Return the digest of an event. It depends on all events up to that event (a hash chain)."""
    if seq == row.seq:
        return row.digest
    found = store.events(row.run_id, seq - 1, seq)
    if found:
        return found[0].digest
    base = store.snapshot(row.run_id, [(seq, seq)])
    if base is None or not base.base:
        raise RunNotFound(f"{row.run_id}@{seq}")
    return base.digest


def checkpoints(store: Store, run_id: str, row: RunRow | None = None) -> list[Checkpoint]:
    """Return every checkpoint that the run can be resumed or forked from, oldest first: those that it has had when its row was
    read, because it may move on meanwhile.
    """
    row = row or store.run(run_id)
    retired = store.upkeep.trimmed(run_id).retired
    parts = stretches(row.rewinds, row.seq)
    layered = _schedule(store, row) == "layered"
    layer = 0
    listed = []
    for found in store.events(run_id, upto=row.seq, kinds=CHECKPOINTS):
        if found.kind == "LayerCompleted":
            layer = open_row(found, store.blobs).event.layer
        if found.seq < retired:
            continue
        listed.append(
            Checkpoint(
                id=f"{run_id}@{found.seq}",
                seq=found.seq,
                at=found.at,
                kind=found.kind,
                node=found.node,
                iteration=found.iteration,
                execution=found.execution,
                layer=layer + (found.kind != "LayerCompleted") if (layered and found.node) or layer else None,
                size=len(found.body),
                current=any(first <= found.seq <= last for first, last in parts),
            )
        )
    return listed


def _schedule(store: Store, row: RunRow) -> str:
    """Return the schedule of a run, which need not be that of its flow."""
    first = store.events(row.run_id, limit=1, kinds=("RunCreated",))
    for stored in opened(store, row.run_id, first):
        return str(stored.event.schedule)
    return load(store, row.run_id, row=row).schedule  # the log of a fork, or a compacted one


def find_said(store: Store, row: RunRow, state: RunState) -> Said | None:
    """Find in the log what the event says that stopped a run, or its last one, if that came from outside; None if there is no
    such event, or if it was compacted.
    """
    kind = stopping_kind(state)
    if kind is not None:
        found = store.events(row.run_id, kinds=(kind,))
    elif state.status in GOING and not state.running:
        found = [last for last in _latest_that_moved(store, row) if telling_kind(state, last.kind)]
    else:
        found = []
    return next((said_by(stored.event) for stored in opened(store, row.run_id, found[-1:])), None)


def _latest_that_moved(store: Store, row: RunRow) -> list[Row]:
    """Return the last event of a run that may have moved it: refusals and edits after it do not."""
    seq, found = row.seq, list[Row]()
    while seq and not found:
        latest = store.events(row.run_id, seq - 1, seq)
        found = [event for event in latest if event.kind in MOVES]
        seq = seq - 1 if latest else 0
    return found


def view_of(
    state: RunState, rewinds: tuple[tuple[int, int], ...], due_at: float | None, situation: str | None
) -> View:
    """Return the part of a run's row that every append rewrites, computed from its state. `situation` is computed by the caller,
    because it seldom changes with a step.
    """
    failure = state.failure
    return View(
        status=state.status if state.status != "new" else "pending",
        fingerprint=state.fingerprint,
        state_version=state.state_version,
        active=tuple(islice(state.open, FEW)),
        error=failure.describe()[:500] if failure is not None else None,
        rewinds=rewinds,
        due_at=due_at,
        asks=len(state.questions),
        active_s=state.active_s,
        situation=situation,
    )
