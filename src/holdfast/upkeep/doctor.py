"""What is wrong, by what a store tells: runs that cannot go on by themselves and why, and whether the store itself is well.

`examine` gathers; `diagnose` and `look_over` judge, and touch nothing but what they are given. What carries a run on is a
command, and commands are the command line's.

A finding is a *problem* where something is not as it should be, and *waits* where the run is in order and somebody has to speak.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.difference import compatible, difference
from holdfast.core.graph import Flow
from holdfast.core.run_state import OPEN, RunState
from holdfast.errors import HoldfastError, RunNotFound, StoreError
from holdfast.reading import history
from holdfast.reading.reader import rows_of
from holdfast.storage.contract import Query, RunRow, Store, in_order
from holdfast.storage.oversize import references
from holdfast.storage.queues import Queue
from holdfast.storage.rows import unpack
from holdfast.storage.upkeep import Facts

Kind: TypeAlias = Literal[
    "unreadable", "quarantined", "failed", "holder dead", "flow changed", "flow unknown", "queue full", "due", "no taker",
    "interrupted", "paused", "question", "signal", "store",
]  # fmt: skip
WAITS: frozenset[Kind] = frozenset({"question", "signal", "paused"})

PATIENCE_S = 60.0
"""How long a run may be on offer, or past its time, before that is worth a word."""
SKEW_S = 5.0
LOG_BYTES = 256 * 1024 * 1024
SLOT_BYTES = 8 * 1024 * 1024 * 1024
FREE_BYTES = 512 * 1024 * 1024
BLOBS_SAMPLED = 200
LINE_MAX = 400
RUNS_MAX = 10_000
"""Runs whose logs are read: those that have stood still longest."""
_PAGE = 500


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that keeps a run from going on, or the store from being well."""

    kind: Kind
    told: str
    run_id: str | None = None
    """None: it is about the store."""
    flow: str | None = None
    since: float | None = None
    takes: tuple[str, ...] | None = ()
    """Options without which `resume` refuses the flow that is known here; None: it refuses it with any."""

    @property
    def waits(self) -> bool:
        return self.kind in WAITS


class Patient(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not ended well, as far as it is known."""

    row: RunRow
    state: RunState | None = None
    """None: it cannot be read."""
    fault: str = ""
    flow_known: bool = True
    changes: tuple[str, ...] = ()
    """How the flow that is known differs in shape from the one that the run was made with."""
    takes: tuple[str, ...] | None = ()
    """The options with which the run goes on all the same; None: it cannot."""
    queue: Queue | None = None


# --- judging -----------------------------------------------------------------------------------------


def diagnose(patient: Patient, now: float) -> Finding | None:
    """The first thing that keeps a run from going on; None: it goes on by itself, or it is early to say."""
    row, state = patient.row, patient.state
    kind, told, since = _why(patient, state, now) if state is not None else _unread(patient)
    if kind is None:
        return None
    if kind != "flow changed" and patient.takes is None:
        told += "; its flow has changed in shape since, and this run cannot go on with it"
    return Finding(kind=kind, told=told, run_id=row.run_id, flow=row.flow, since=since, takes=patient.takes)


_Why: TypeAlias = "tuple[Kind | None, str, float]"


def _unread(patient: Patient) -> _Why:
    return "unreadable", f"its log cannot be read: {patient.fault}", patient.row.updated_at


def _why(patient: Patient, state: RunState, now: float) -> _Why:
    row = patient.row
    since = row.updated_at
    if row.status == "failed":
        return _failed(state, since)
    if row.held:
        return _asks(state, since)
    if row.status == "paused":
        return "paused", "paused, until it is resumed", since
    if _asks(state, since)[0] and not (row.due_at is not None and row.due_at <= now):
        return _asks(state, since)
    if patient.changes:
        stuck = "" if patient.takes is not None else "; this run cannot go on with it"
        return "flow changed", f"its flow has changed in shape: {'; '.join(patient.changes)}{stuck}", since
    if row.status == "running" and row.holder is not None:
        return "holder dead", f"{row.holder.describe()}, which executed it, ended without a word", since
    return _offered(patient, now)


def _failed(state: RunState, since: float) -> _Why:
    failure, node = state.failure, state.failure_node
    told = f"{failure.type}: {_first_line(failure.message)}" if failure and failure.message else "it failed"
    where = f"node {node!r}: " if node else ""
    kind: Kind = "quarantined" if failure is not None and failure.type == "Quarantined" else "failed"
    return kind, where + told, since


def _first_line(text: str) -> str:
    """The first line of a text that says something, cut where it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"


def _asks(state: RunState, since: float) -> _Why:
    """What it needs from somebody, if nothing else of it is going on."""
    if state.running:
        return None, "", since
    for question in state.questions.values():
        return (
            "question",
            f"node {question.node!r} asks: {_first_line(question.text)}",
            question.asked_at,
        )
    timed = any(wait.kind == "timer" for wait in state.waits.values())
    for wait in state.waits.values():
        if wait.kind == "signal" and wait.until is None and not timed:
            return "signal", f"node {wait.node!r} waits for the signal {wait.signal!r}", since
    return None, "", since


def _offered(patient: Patient, now: float) -> _Why:
    """Nobody holds it, and nothing stands in its way but that nobody takes it."""
    row, queue = patient.row, patient.queue
    if row.status == "waiting":
        if row.due_at is None or now - row.due_at < PATIENCE_S:
            return None, "", row.updated_at
        kind: Kind = "due"
        since, told = row.due_at, "its time has come, and no worker takes it up"
    else:
        since = row.updated_at
        if now - since < PATIENCE_S:
            return None, "", since
        kind = "no taker" if row.status == "pending" else "interrupted"
        told = {
            "pending": "recorded, and no worker takes it up",
            "running": "left in the middle, and no worker takes it up",
            "interrupted": "its process was asked to stop, and no worker takes it up",
        }.get(row.status, "no worker takes it up")
    if not patient.flow_known:
        return "flow unknown", f"{told}: flow {row.flow!r} is not among those that are known here", since
    if queue is not None and queue.limit is not None and queue.held >= queue.limit:
        return "queue full", f"{told}: queue {queue.name!r} is at its limit of {queue.limit}", since
    return kind, told, since


def look_over(facts: Facts, now: float, damage: list[str]) -> Iterator[Finding]:
    """What is wrong with the store itself. `now` is the time of this machine."""
    for told in damage:
        yield _of_store(told)
    if facts.schema_version != facts.schema_known:
        yield _of_store(
            f"its schema has version {facts.schema_version}, this Holdfast knows {facts.schema_known}"
        )
    skew = facts.now - now
    if abs(skew) > SKEW_S:
        yield _of_store(
            f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's: leases and timers go by it. "
            "Have both kept by NTP"
        )
    if facts.settings.get("default_transaction_read_only") == "on":
        yield _of_store(
            "it takes no writes, because default_transaction_read_only is on: nothing is started, carried on or answered. Some "
            "providers set it when a disk is nearly full; make room, and switch it off for this user, database or server"
        )
    yield from _of_log(facts)
    if facts.free_bytes is not None and facts.free_bytes < FREE_BYTES:
        yield _of_store(f"only {facts.free_bytes // 1_000_000} MB of disk are left for it")
    for name, wanted in _SETTINGS.get(facts.kind, {}).items():
        if facts.settings.get(name) not in wanted:
            found = facts.settings.get(name)
            yield _of_store(f"{name} is {found!r}: what it acknowledges may be lost. Set it to {wanted[0]!r}")


def _of_log(facts: Facts) -> Iterator[Finding]:
    log_bytes = facts.log_bytes or 0
    if facts.kind == "postgresql" and log_bytes > SLOT_BYTES:
        yield _of_store(
            f"a replication slot keeps {log_bytes // 1_000_000} MB of its write-ahead log: who reads it has fallen behind or is "
            "gone, and the disk fills up. See pg_replication_slots; drop the one that nobody reads"
        )
    if facts.kind == "sqlite" and log_bytes > LOG_BYTES:
        yield _of_store(
            f"its write-ahead log has {log_bytes // 1_000_000} MB: somebody reads for very long, or was stopped while reading"
        )


_SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {"journal_mode": ("wal",), "synchronous": ("2", "3")},
    "postgresql": {
        "fsync": ("on",),
        "synchronous_commit": ("on", "remote_apply", "remote_write", "local"),
        "full_page_writes": ("on",),
    },
}


def _of_store(told: str) -> Finding:
    return Finding(kind="store", told=told)


# --- gathering ---------------------------------------------------------------------------------------


def examine(store: Store, flows: Mapping[str, Flow[Any]] | None, now: float) -> list[Finding]:
    """Everything that is wrong: the store first, then its runs, those that have stood still longest first. `flows`: those that
    are known here; None: nobody said.
    """
    facts = store.upkeep.facts()
    found = list(look_over(facts, now, store.check()))
    found += _blobs(store)
    queues = {queue.name: queue for queue in store.queues.queues()}
    rows, left_out = _rows(store)
    if left_out:
        found.append(
            _of_store(
                f"{len(rows) + left_out} of its runs have not ended, and only the {len(rows)} that have stood still longest were "
                "looked at. See to those, and look again"
            )
        )
    of_runs: list[Finding] = []
    for row in rows:
        with suppress(RunNotFound):  # deleted meanwhile
            finding = diagnose(_patient(store, row, flows, queues), facts.now)
            of_runs += [finding] if finding is not None else []
    return found + sorted(of_runs, key=lambda one: (one.waits, one.since or 0.0))


def _rows(store: Store) -> tuple[list[RunRow], int]:
    """The runs to look at, those that have stood still longest first, and how many more there are."""
    count = 0

    def counted() -> Iterator[RunRow]:
        nonlocal count
        for row in rows_of(store, Query(status=in_order(OPEN), limit=_PAGE)):
            count += 1
            yield row

    rows = heapq.nsmallest(RUNS_MAX, counted(), key=lambda row: row.updated_at)
    return rows, count - len(rows)


def _patient(
    store: Store, row: RunRow, flows: Mapping[str, Flow[Any]] | None, queues: Mapping[str, Queue]
) -> Patient:
    flow = flows.get(row.flow) if flows is not None else None
    try:
        state = history.load(store, row.run_id, row=row)
        changes, takes = _changes(store, row, flow, state)
    except RunNotFound:
        raise
    except (HoldfastError, msgspec.MsgspecError) as fault:
        return Patient(row=row, fault=str(fault))
    return Patient(
        row=row,
        state=state,
        flow_known=flows is None or flow is not None,
        changes=changes,
        takes=takes,
        queue=queues.get(row.queue),
    )


def _changes(
    store: Store, row: RunRow, flow: Flow[Any] | None, state: RunState
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """How the flow differs in shape, and the options with which `resume` takes it."""
    if flow is None or flow.fingerprint == row.fingerprint:
        return (), ()
    stored = store.definition(row.fingerprint)
    if stored is None:
        return ("the definition that it was made with is not in the store",), None
    old = msgspec.json.decode(stored, type=Definition)
    found = difference(old, flow.definition)
    return ((), ()) if found.only_options else (tuple(found.lines()), _takes(old, flow.definition, state))


def _takes(old: Definition, new: Definition, state: RunState) -> tuple[str, ...] | None:
    """What `resume` has to be told so that a run goes on with a flow of another shape; None: it cannot. Which of several nodes
    that came has the new name of one that went is left to who knows it: NEW.
    """
    completed = {name for name, node in state.nodes.items() if node.completed_seq}
    pending = {*state.open, *state.arrivals, *state.held}
    found = difference(old, new)
    paired = len(found.nodes_added) == len(found.nodes_removed)
    rename = dict(zip(found.nodes_removed, found.nodes_added, strict=True)) if paired else {}
    again = difference(old, new, rename=rename)
    if rename and msgspec.structs.replace(again, renamed=[]).only_options:
        return _renames(rename)
    reasons = compatible(old, new, completed=completed, pending=pending)
    if not reasons:
        return _COMPATIBLE
    if rename and not compatible(old, new, completed=completed, pending=pending, rename=rename):
        return (*_renames(rename), *_COMPATIBLE)
    gone = [name for name in found.nodes_removed if name in completed | pending]
    if len(found.nodes_added) > len(gone) == len(reasons):  # nothing else is in the way
        return (*_renames(dict.fromkeys(gone, "NEW")), *_COMPATIBLE)
    return None


_COMPATIBLE = ("--on-change", "compatible")


def _renames(rename: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for pair in rename.items() for word in ("--rename", "=".join(pair)))


def _blobs(store: Store) -> Iterator[Finding]:
    """Look at some of the blobs that the newest runs refer to."""
    left = BLOBS_SAMPLED
    for row in store.runs(Query(limit=_PAGE)):
        try:
            events = store.events(row.run_id, max(0, row.seq - 50))
        except RunNotFound:  # deleted meanwhile
            continue
        for event in events:
            try:
                for digest in references(unpack(event.body)).values():
                    left -= 1
                    store.blobs.get(digest)
            except StoreError as fault:
                yield Finding(kind="store", told=f"event {event.seq} of run {row.run_id!r}: {fault}")
        if left <= 0:
            return
