"""Checks whether a stored run is exactly what was written: its events, hash chain, blobs, row and flow definition."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core import situation
from holdfast.core.difference import fingerprint
from holdfast.core.run_state import RunState
from holdfast.errors import HoldfastError, SchemaTooNew, StoreCorrupt
from holdfast.reading import history
from holdfast.reading.damage import LogDamage, rows_damage
from holdfast.reading.history import view_of
from holdfast.storage import definitions
from holdfast.storage.contract import Row, RunRow, Snapshot, Store
from holdfast.storage.rows import open_body, open_row


class LogVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of one run. An empty list of problems means that the run is exactly what was written."""

    run_id: str
    events: int
    problems: list[str]
    damage: list[LogDamage] = []
    """The events that were removed, altered or added, as the hash chain tells; `problems` has their texts."""
    rest: str = ""
    """Where the events of a compacted log are, as a sentence; empty if the log is complete."""
    too_new: bool = False
    """True if a newer version of Holdfast has written the run, which this one cannot check. Then it need not be damaged."""


def verify(
    store: Store, run_id: str, *, row: RunRow | None = None, definitions: dict[str, list[str]] | None = None
) -> LogVerdict:
    """Check one run: its events, their blobs, its row and the definition of its flow. `row` saves reading the row again.

    A run that moves or is compacted during the check seems damaged for a moment, so only problems that are found twice in
    succession are reported. `definitions` caches the problems of each definition, by fingerprint, for the next run.
    """
    before: list[str] | None = None
    while True:
        try:
            found = _look(store, row or store.run(run_id), definitions if definitions is not None else {})
        except SchemaTooNew as fault:
            return LogVerdict(run_id=run_id, events=0, problems=[str(fault)], too_new=True)
        if not found.problems or found.problems == before:
            return found
        before, row = found.problems, None


def _look(store: Store, row: RunRow, definitions: dict[str, list[str]]) -> LogVerdict:
    rows = store.events(row.run_id)
    problems, damage = _chain_problems(store, row, rows)
    problems = problems or _blob_problems(store, rows)
    if not problems:
        problems = _fold_problems(store, row, rows)
    if not problems:
        if row.fingerprint not in definitions:
            definitions[row.fingerprint] = _definition_problems(store, row.fingerprint)
        problems = definitions[row.fingerprint]
    begins_late = bool(rows) and rows[0].seq > 1
    compacted = begins_late and bool(store.upkeep.trimmed(row.run_id).base)
    rest = history.beginning(store, row) if compacted else ""
    return LogVerdict(run_id=row.run_id, events=len(rows), problems=problems, damage=damage, rest=rest)


def _chain_problems(store: Store, row: RunRow, rows: list[Row]) -> tuple[list[str], list[LogDamage]]:
    """Find missing, altered or added events, and a base that was altered."""
    base = find_base(store, row)
    after, digest = (base.seq, base.digest) if base is not None else (0, b"")
    damage = rows_damage(row.run_id, rows, after=after, digest=digest, end=row.seq, end_digest=row.digest)
    problems = [one.text for one in damage]
    follows = bool(rows) and rows[0].seq == after + 1
    if base is not None and follows and sha256(base.body).digest() != _promised(store, row, rows[0]):
        problems.insert(0, f"the compaction base at event {after} is not what was written")
    return problems, damage


def find_base(store: Store, row: RunRow) -> Snapshot | None:
    """Return the base with which the log of a fork or a compacted run begins; None if the log begins with event 1. It is found
    without the events, because the first of them may be missing.
    """
    places = [kept.seq for kept in store.upkeep.snapshots(row.run_id) if kept.base]
    return store.snapshot(row.run_id, [(places[-1], places[-1])]) if places else None


def _promised(store: Store, row: RunRow, first: Row) -> bytes:
    """Return the digest that the base of a log must have: it was recorded by the fork or the compaction that made the base."""
    trimmed = store.upkeep.trimmed(row.run_id)
    if trimmed.base:
        return trimmed.base_digest
    try:
        return bytes.fromhex(getattr(open_row(first, store.blobs).event, "base_digest", ""))
    except ValueError:  # the event was altered, and no base matches
        return b""


def _blob_problems(store: Store, rows: list[Row]) -> list[str]:
    """Find missing or damaged blobs that the events refer to. (The fold reads the blobs that snapshots refer to.)"""
    problems: list[str] = []
    for row in rows:
        try:
            open_body(row.body, store.blobs)
        except StoreCorrupt as fault:
            problems.append(f"event {row.seq} ({row.kind}): {fault}")
    return problems


def _fold_problems(store: Store, row: RunRow, rows: list[Row]) -> list[str]:
    """Find differences between the run row or the snapshot and the result of folding all events."""
    begins = rows[0].seq
    rewinds = (
        # Rewinds before a base are no longer in the log; the base takes them into account.
        *((seq, to) for seq, to in row.rewinds if seq < begins),
        *((found.seq, open_row(found, store.blobs).event.to) for found in rows if found.kind == "RunRewound"),
    )
    problems: list[str] = []
    logged = msgspec.structs.replace(row, rewinds=rewinds)
    try:
        cold = history.load(store, row.run_id, row=logged, rows=rows, cold=True)
        warm = history.load(store, row.run_id, row=logged, rows=rows)
    except SchemaTooNew:
        raise
    except HoldfastError as fault:
        return [str(fault)]
    for name, node in warm.nodes.items():  # an older version did not count what a node receives as progress
        known = cold.nodes.get(name)
        node.crashes = min(node.crashes, node.crashes if known is None else known.crashes)
    if cold != warm:
        problems.append("the stored snapshot is not the fold of the events before it")
    for name, folded in _row_of(store, cold, rewinds, row).items():
        if getattr(row, name) != folded:
            problems.append(f"the run row has {name} {getattr(row, name)!r}, but the log says {folded!r}")
    return problems


def _definition_problems(store: Store, named: str) -> list[str]:
    """Find problems of a stored flow definition, which all runs of that flow share under its fingerprint."""
    stored = store.definition(named)
    if stored is None:
        return [f"the definition of its flow ({named[:12]}) is not in the store"]
    if is_definition(stored, named):
        return []
    return [f"the definition of its flow ({named[:12]}) is not what was written"]


def is_definition(stored: bytes, named: str) -> bool:
    """Return whether a stored flow definition is the one that this fingerprint names."""
    try:
        return fingerprint(definitions.decode(stored)) == named
    except (StoreCorrupt, ValueError):
        return False


def _row_of(
    store: Store, state: RunState, rewinds: tuple[tuple[int, int], ...], row: RunRow
) -> dict[str, Any]:
    """Return the fields that the run row must have according to the fold of its log. (`due_at` is not part of the fold.)"""
    view = msgspec.structs.asdict(view_of(state, rewinds, row.due_at, _situation_of(store, state, row)))
    if row.asks is None:  # the row was last written by a version that did not compute these
        view |= dict.fromkeys(("asks", "active_s", "situation"))
    return {
        **view,
        "flow": state.flow,
        "labels": state.labels,
        "parent": state.parent,
        "origin": state.origin,
        "created_at": state.created_at,
        "updated_at": state.at,
    }


def _situation_of(store: Store, state: RunState, row: RunRow) -> str | None:
    """Return the situation that the run row must have. A row may leave it to the log. Who paused the run, and why, may be known
    only to the row: that event may have been compacted.
    """
    try:
        stored = situation.load(row.situation, ())
    except StoreCorrupt:
        stored = situation.Situation()
    if stored.cut:
        return row.situation
    said = history.find_said(store, row, state)
    if said is None and stored.said is not None and store.upkeep.trimmed(row.run_id).base:
        said = stored.said
    return situation.row_text(state, said)
