"""Finds the problems of a store: runs that cannot continue by themselves, and faults of the store itself.

`reading.diagnosis` says why a run does not move; this module decides what to report and when, finds out how a flow has changed,
and examines the store. It changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from holdfast.core.definition import NodeOptions
from holdfast.core.graph import Flow
from holdfast.core.run_state import OPEN
from holdfast.errors import HoldfastError, RunNotFound, StoreError
from holdfast.reading import remedies
from holdfast.reading.cases import (
    Case,
    case_of,
    case_of_row,
    full_queues,
    group_refusals,
    unreadable_case,
    without_refusers,
)
from holdfast.reading.changes import compare, may_have_changed
from holdfast.reading.diagnosis import Diagnosis, diagnose, is_problem
from holdfast.reading.known_flows import Flows, find_flow_or_lacks
from holdfast.reading.reader import rows_of
from holdfast.reading.remedies import CommandLine
from holdfast.reading.verification import verify
from holdfast.storage.contract import Query, Request, RunRow, RunStatus, Store, in_order
from holdfast.storage.oversize import references
from holdfast.storage.rows import unpack
from holdfast.storage.upkeep import Facts

SKEW_S = 5.0
LOG_BYTES = 256 * 1024 * 1024
SLOT_BYTES = 8 * 1024 * 1024 * 1024
FREE_BYTES = 512 * 1024 * 1024
BLOBS_SAMPLED = 200
RUNS_MAX = 5_000
"""How many runs are examined at most. If there are more, the newest of each status are examined."""
LOGS_MAX = 500
"""How many of these runs are examined by their logs at most; the others by their rows, as lists of runs are. That a log cannot be
read is then found only if it is in the sample that is verified."""
CHECKED_BYTES = 128 * 1024 * 1024
"""The size up to which the database itself is checked, which reads all of it. `holdfast verify` checks any database."""
SAMPLED = 100
"""How many runs are verified at most: half of them are the newest."""
SAMPLED_S = 1.0
SAMPLED_EVENTS = 5_000
_SPAN_MAX_S = 2.0**31
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
    or if it is large, the database itself is not checked.
    """
    facts = store.upkeep.facts()
    found = list(look_over(facts, now, store.check() if check and is_checked(facts) else []))
    found += _blobs(store)
    rows, left_out = _rows(store)
    if left_out:
        more = ", ".join(f"{count:,} {status}" for status, count in left_out.items())
        found.append(
            _of_store(
                f"{len(rows) + sum(left_out.values()):,} runs have not ended, and only the newest {len(rows):,} of them were "
                f"examined; the others are {more} (`holdfast runs --status {next(iter(left_out))}` lists them)"
            )
        )
    rows = without_refusers(store, rows)
    examination = _Examination(store, flows, commands or CommandLine(), rows)
    of_runs: dict[str, Diagnosis] = {}
    for row in rows:
        with suppress(RunNotFound):  # deleted meanwhile
            diagnosis = examination.judge(row, facts.now)
            if diagnosis is not None:
                of_runs[row.run_id] = diagnosis
    callers = {row.run_id: row.origin for row in rows}
    shown = [
        one for run_id, one in of_runs.items() if not _is_of_caller(one, of_runs.get(callers[run_id] or ""))
    ]
    return found + sorted(shown, key=lambda one: (one.waits, one.since or 0.0))


def look_again(
    store: Store,
    flows: Flows | None,
    found: Sequence[Diagnosis],
    since: float,
    commands: CommandLine | None = None,
) -> list[Diagnosis]:
    """Return what an examination found as it is now, without examining the store again: the problems of runs that have moved
    since that time of the store, or that have a request, are judged again, and left out if they are gone.
    """
    ids = list(dict.fromkeys(one.run_id for one in found if one.run_id is not None))
    now, moved, gone = store.now(), dict[str, RunRow](), set(ids)
    for begin in range(0, len(ids), _PAGE):
        some = ids[begin : begin + _PAGE]
        asked = {request.run_id for request in store.queues.waiting(some)}
        for row in store.runs(Query(ids=tuple(some), limit=len(some))):
            gone.discard(row.run_id)
            if row.updated_at >= since or row.run_id in asked or row.held:
                moved[row.run_id] = row
    examination = _Examination(
        store, flows, commands or CommandLine(), without_refusers(store, moved.values())
    )
    judged: dict[str, Diagnosis | None] = {}
    for run_id, row in moved.items():
        with suppress(RunNotFound):  # deleted meanwhile
            judged[run_id] = examination.judge(row, now)
    shown: list[Diagnosis] = []
    for one in found:
        if one.run_id not in moved or one.kind == "unreadable":  # a log that was altered stays so
            shown += [] if one.run_id in gone else [one]
        elif (again := judged.pop(one.run_id, None)) is not None:
            shown.append(again)
    return shown


def _is_of_caller(one: Diagnosis, caller: Diagnosis | None) -> bool:
    """Return whether the problem of a run is reported with its caller, which failed for it: one command mends both."""
    return caller is not None and one.run_id in caller.failed_for and one.status == "failed"


def is_checked(facts: Facts) -> bool:
    """Return whether `examine` checks the database itself."""
    return (facts.size_bytes or 0) <= CHECKED_BYTES


def _rows(store: Store) -> tuple[list[RunRow], dict[RunStatus, int]]:
    """Return the runs to examine, and how many more there are of each status. All runs of a status are examined if they are few,
    and otherwise the newest, which an index gives without passing the others.
    """
    counts = store.queues.board().counts
    statuses = sorted(in_order(OPEN), key=lambda status: counts.get(status, 0))
    rows: list[RunRow] = []
    left_out: dict[RunStatus, int] = {}
    for number, status in enumerate(statuses):
        share = (RUNS_MAX - len(rows)) // (len(statuses) - number)
        query = Query(status=(status,), limit=min(share, _PAGE))
        some = list(islice(rows_of(store, query), share)) if share else []
        rows += some
        if counts.get(status, 0) > len(some):
            left_out[status] = counts[status] - len(some)
    return rows, {status: left_out[status] for status in in_order(OPEN) if status in left_out}


class _Examination:
    """One examination of the runs of a store."""

    def __init__(
        self, store: Store, flows: Flows | None, commands: CommandLine, rows: Sequence[RunRow] = ()
    ) -> None:
        self._store = store
        self._flows = flows
        self._commands = commands
        self._queues = full_queues(store)
        self._holders = store.queues.holders()
        self._refusals = group_refusals(store, rows, self._holders)
        self._definitions: dict[str, Mapping[str, NodeOptions]] = {}
        self._logs_read = 0
        self._requests: dict[str, list[Request]] = {}
        ids = [row.run_id for row in rows]
        for begin in range(0, len(ids), _PAGE):
            for request in store.queues.waiting(ids[begin : begin + _PAGE]):
                self._requests.setdefault(request.run_id, []).append(request)

    def judge(self, row: RunRow, now: float) -> Diagnosis | None:
        try:
            flow, lacks = find_flow_or_lacks(self._store, self._flows, row, row.run_id)
        except StoreError as fault:
            return judge(unreadable_case(self._store, row, fault, self._holders), now, self._commands)
        lacks_flow = self._flows is not None and flow is None
        commands = self._commands.without_file() if lacks_flow and not lacks else self._commands
        return judge(self._case(row, flow, lacks), now, commands)

    def _case(self, row: RunRow, flow: Flow[Any] | None, lacks: tuple[str, ...]) -> Case:
        refusals = self._refusals.get(row.run_id, ())
        known: dict[str, Any] = {
            "definitions": self._definitions,
            "holders": self._holders,
            "requests": self._requests.get(row.run_id, ()),
            "refusals": refusals,
            "queues": self._queues,
        }
        case = None
        try:
            if self._logs_read >= LOGS_MAX and not row.fault and not may_have_changed(row, flow, refusals):
                case = case_of_row(self._store, row, **known)
            if case is None:
                self._logs_read += 1
                case = case_of(self._store, row, **known)
            case = compare(self._store, case, flow)
        except RunNotFound:
            raise
        except (HoldfastError, msgspec.MsgspecError) as fault:
            return unreadable_case(self._store, row, fault, self._holders)
        return msgspec.structs.replace(
            case,
            flow_known=self._flows is None or flow is not None,
            lacks=lacks,
        )


# --- verifying a sample ------------------------------------------------------------------------------


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs of a store were verified, as `holdfast verify` does, and what was found."""

    runs: int
    of: int
    """How many runs the store has."""
    at: float
    damaged: tuple[Diagnosis, ...] = ()
    too_new: int = 0
    """How many runs could not be verified, because a newer version of Holdfast has written them."""

    @property
    def detail(self) -> str:
        if self.too_new:
            return f"{self._verified}; {self.too_new:,} more of a newer version of Holdfast, which can verify them"
        return self._verified

    @property
    def _verified(self) -> str:
        if self.runs == self.of:
            return f"all {self.of:,} runs verified" if self.of != 1 else "the only run verified"
        return f"{self.runs:,} of {self.of:,} runs verified: the newest, and others by chance"

    def check(self) -> Check:
        count = len(self.damaged)
        fault = f"{'1 log is' if count == 1 else f'{count:,} logs are'} not what was written ({self.detail})"
        return Check("Logs of runs", self.detail, fault if count else None)


def verify_sample(
    store: Store,
    clock: Callable[[], float],
    commands: CommandLine | None = None,
    *,
    known: Sequence[Diagnosis] = (),
) -> Sample:
    """Verify the newest runs of a store, and others by chance, so that damage is found without reading all of it. It takes at
    most about `SAMPLED_S` seconds by the clock, and leaves out logs of more than `SAMPLED_EVENTS` events. `known` are findings
    that are not reported again.
    """
    began = clock()
    rows = store.runs(Query(limit=SAMPLED + 1))
    count = len(rows)
    if count > SAMPLED:
        count = sum(store.queues.board().counts.values())
        rows = [*_mixed(rows[: SAMPLED // 2], _by_chance(store, rows[0].created_at, random.Random(began)))]  # noqa: S311
    unreadable = {one.run_id for one in known if one.kind == "unreadable"}
    definitions: dict[str, list[str]] = {}
    verified: dict[str, list[str]] = {}
    too_new: set[str] = set()
    for row in rows:
        if clock() - began > SAMPLED_S:
            break
        if row.run_id in verified or row.run_id in unreadable or row.seq > SAMPLED_EVENTS:
            continue
        with suppress(RunNotFound):  # deleted meanwhile
            problems = _verified(store, row, definitions)
            if problems is None:
                too_new.add(row.run_id)
            else:
                verified[row.run_id] = problems
    damaged = tuple(
        _damaged(row, verified[row.run_id], commands or CommandLine())
        for row in {row.run_id: row for row in rows}.values()
        if verified.get(row.run_id)
    )
    of = max(count, len(verified) + len(too_new))
    return Sample(runs=len(verified), of=of, at=began, damaged=damaged, too_new=len(too_new))


def _mixed(newest: list[RunRow], others: Iterator[RunRow]) -> Iterator[RunRow]:
    """Yield a new run and one by chance in turn, so that both are verified if the time does not suffice for all."""
    for row in newest:
        yield row
        yield from islice(others, 1)


def _by_chance(store: Store, newest: float, luck: random.Random) -> Iterator[RunRow]:
    """Yield runs that were created at random times, each found by an index."""

    def before(at: float) -> list[RunRow]:
        return store.runs(Query(created=(None, at), limit=1))

    span = 1.0
    while span < _SPAN_MAX_S and before(newest - span):
        span *= 2
    while True:
        yield from before(newest - luck.random() * span) or before(newest)


def _verified(store: Store, row: RunRow, definitions: dict[str, list[str]]) -> list[str] | None:
    """Return what is wrong with a run; None if a newer version of Holdfast has written it."""
    try:
        found = verify(store, row.run_id, definitions=definitions)
    except RunNotFound:
        raise
    except (HoldfastError, msgspec.MsgspecError) as fault:
        return [str(fault)]
    return None if found.too_new else found.problems


def _damaged(row: RunRow, problems: list[str], commands: CommandLine) -> Diagnosis:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Diagnosis(
        kind="unreadable",
        reason=f"its log is not what was written: {problems[0]}{more}",
        remedies=(remedies.look(commands, "verify", row.run_id, "see what is wrong with its log"),),
        run_id=row.run_id,
        flow=row.flow,
        status=row.status,
        since=row.updated_at,
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
