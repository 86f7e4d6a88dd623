"""Finds the problems of a store: runs that cannot continue by themselves, and faults of the store itself.

`reading.diagnosis` says why a run does not move; this module decides what to report and when, finds out how a flow has changed,
and examines the store. It changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core.definition import NodeOptions
from holdfast.core.graph import Flow
from holdfast.core.run_state import OPEN
from holdfast.errors import CapabilityMissing, FlowNotFound, HoldfastError, RunNotFound, StoreError
from holdfast.reading.cases import Case, case_of
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import Diagnosis, diagnose, is_problem
from holdfast.reading.known_flows import Flows, require_flow
from holdfast.reading.reader import rows_of
from holdfast.reading.remedies import CommandLine
from holdfast.storage.contract import Query, RunRow, Store, in_order
from holdfast.storage.oversize import references
from holdfast.storage.queues import Queue
from holdfast.storage.rows import unpack
from holdfast.storage.upkeep import Facts

SKEW_S = 5.0
LOG_BYTES = 256 * 1024 * 1024
SLOT_BYTES = 8 * 1024 * 1024 * 1024
FREE_BYTES = 512 * 1024 * 1024
BLOBS_SAMPLED = 200
RUNS_MAX = 10_000
"""How many runs are examined at most. If there are more, those that were updated least recently are examined."""
_PAGE = 500


# --- judging -----------------------------------------------------------------------------------------


def judge(case: Case, now: float, commands: CommandLine | None = None) -> Diagnosis | None:
    """Return why a run does not continue; None if it has ended, continues by itself, or is expected to be claimed by a live
    worker.
    """
    found = diagnose(case, now, commands)
    return found if is_problem(case, found, now) else None


class Check(msgspec.Struct, frozen=True):
    """Something about the store itself that an examination looks at."""

    title: str
    detail: str
    """What was found, in a few words."""
    fault: str | None = None
    """What is wrong, and what to do about it."""


def look_over(facts: Facts, now: float, damage: list[str]) -> Iterator[Diagnosis]:
    """Yield the problems of the store itself. `now` is the time of this machine."""
    for problem in damage:
        yield _of_store(problem)
    for check in checks(facts, now):
        if check.fault is not None:
            yield _of_store(check.fault)


def checks(facts: Facts, now: float) -> Iterator[Check]:
    """Yield what is looked at in every examination of a store, whether something is wrong or not."""
    if facts.schema_version is not None:
        found = f"version {facts.schema_version}"
        fault = f"the schema of the store has {found}, but this Holdfast knows version {facts.schema_known}"
        yield Check("Schema", found, None if facts.schema_version == facts.schema_known else fault)
    skew = facts.now - now
    fault = (
        f"the clock of the store is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the clock of this machine. "
        "Leases and timers use the clock of the store; synchronize both with NTP"
    )
    yield Check("Clocks", f"{abs(skew):.1f} s apart", fault if abs(skew) > SKEW_S else None)
    yield from _check_durability(facts)
    if facts.log_bytes is not None:
        yield _check_log(facts, facts.log_bytes)
    if facts.free_bytes is not None:
        fault = f"only {facts.free_bytes // 1_000_000} MB are free on the disk of the store; free some space"
        yield Check(
            "Space", f"{_size(facts.free_bytes)} free", fault if facts.free_bytes < FREE_BYTES else None
        )


def _check_durability(facts: Facts) -> Iterator[Check]:
    if facts.settings.get("default_transaction_read_only") == "on":
        yield Check(
            "Writes",
            "none are accepted",
            "the database accepts no writes, because default_transaction_read_only is on: no run can be started, resumed or "
            "answered. Some providers set it when a disk is nearly full; free some space, and switch it off for this user, "
            "database or server",
        )
    known = _SETTINGS.get(facts.kind, {})
    faults = [
        f"{name} is {facts.settings.get(name)!r}, so a crash may lose acknowledged writes. Set {name} to {wanted[0]!r}"
        for name, wanted in known.items()
        if facts.settings.get(name) not in wanted
    ]
    if known:
        found = ", ".join(f"{name} is {facts.settings.get(name)}" for name in known)
        yield Check("Durable writes", found, "; ".join(faults) or None)


def _check_log(facts: Facts, log_bytes: int) -> Check:
    most = LOG_BYTES
    fault = (
        f"the write-ahead log has grown to {log_bytes // 1_000_000} MB: a process has been reading for very long, "
        "or was stopped while reading. End that process"
    )
    if facts.kind == "postgresql":
        most = SLOT_BYTES
        fault = (
            f"a replication slot keeps {log_bytes // 1_000_000} MB of the write-ahead log: the replica is too slow or gone, "
            "and the disk fills up. See pg_replication_slots; drop the slot that is no longer read"
        )
    return Check(
        "Log", f"{_size(log_bytes)}; reported above {_size(most)}", fault if log_bytes > most else None
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.0f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


_SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {"journal_mode": ("wal",), "synchronous": ("2", "3")},
    "postgresql": {
        "fsync": ("on",),
        "synchronous_commit": ("on", "remote_apply", "remote_write", "local"),
        "full_page_writes": ("on",),
    },
}


def _of_store(reason: str) -> Diagnosis:
    return Diagnosis(kind="store", reason=reason)


# --- gathering ---------------------------------------------------------------------------------------


def examine(
    store: Store,
    flows: Flows | None,
    now: float,
    commands: CommandLine | None = None,
    *,
    check: bool = True,
) -> list[Diagnosis]:
    """Return all problems: first those of the store, then those of its runs, oldest first. `flows` are the known flows; if it
    is None, no run is reported because its flow is unknown or has changed. `now` is the time of this machine. Without `check`,
    the database itself is not checked, which reads all of it.
    """
    facts = store.upkeep.facts()
    found = list(look_over(facts, now, store.check() if check else []))
    found += _blobs(store)
    rows, left_out = _rows(store)
    if left_out:
        found.append(
            _of_store(
                f"{len(rows) + left_out} runs have not ended, and only the {len(rows)} that were updated least recently were "
                "examined. Resolve the problems of those runs, then run doctor again"
            )
        )
    examination = _Examination(store, flows, commands or CommandLine())
    of_runs: list[Diagnosis] = []
    for row in rows:
        with suppress(RunNotFound):  # deleted meanwhile
            diagnosis = examination.judge(row, facts.now)
            of_runs += [diagnosis] if diagnosis is not None else []
    return found + sorted(of_runs, key=lambda one: (one.waits, one.since or 0.0))


def _rows(store: Store) -> tuple[list[RunRow], int]:
    """Return the runs to examine, those that were updated least recently first, and how many more there are."""
    count = 0

    def counted() -> Iterator[RunRow]:
        nonlocal count
        for row in rows_of(store, Query(status=in_order(OPEN), limit=_PAGE)):
            count += 1
            yield row

    rows = heapq.nsmallest(RUNS_MAX, counted(), key=lambda row: row.updated_at)
    return rows, count - len(rows)


class _Examination:
    """One examination of the runs of a store."""

    def __init__(self, store: Store, flows: Flows | None, commands: CommandLine) -> None:
        self._store = store
        self._flows = flows
        self._commands = commands
        self._queues: dict[str, Queue] = {queue.name: queue for queue in store.queues.queues()}
        self._holders = store.queues.holders()
        self._definitions: dict[str, Mapping[str, NodeOptions]] = {}

    def judge(self, row: RunRow, now: float) -> Diagnosis | None:
        flow: Flow[Any] | None = None
        lacks: tuple[str, ...] = ()
        try:
            flow = require_flow(self._store, self._flows or {}, row, row.run_id)
        except CapabilityMissing as missing:
            lacks = missing.missing
        except FlowNotFound:
            pass
        except StoreError as fault:
            return judge(Case(row=row, fault=str(fault)), now, self._commands)
        lacks_flow = self._flows is not None and flow is None
        commands = self._commands.without_file() if lacks_flow and not lacks else self._commands
        return judge(self._case(row, flow, lacks), now, commands)

    def _case(self, row: RunRow, flow: Flow[Any] | None, lacks: tuple[str, ...]) -> Case:
        try:
            case = case_of(self._store, row, definitions=self._definitions, holders=self._holders)
            case = compare(self._store, case, flow)
        except RunNotFound:
            raise
        except (HoldfastError, msgspec.MsgspecError) as fault:
            return Case(row=row, fault=str(fault))
        return msgspec.structs.replace(
            case,
            flow_known=self._flows is None or flow is not None,
            lacks=lacks,
            queue=self._queues.get(row.queue),
        )


def _blobs(store: Store) -> Iterator[Diagnosis]:
    """Read some of the blobs that the newest runs refer to, and report those that are missing or damaged."""
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
                yield _of_store(f"event {event.seq} of run {row.run_id!r}: {fault}")
        if left <= 0:
            return
