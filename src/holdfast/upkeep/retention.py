"""Deletes what is no longer needed: old checkpoints, events that a base can replace, runs that ended long ago, unused blobs.

- `prune` retires old checkpoints of a run, and deletes snapshots that only they need. It keeps the last few and all events.
- `compact` also replaces the events before the kept checkpoints with a base. It needs the lease, for one short transaction.
- `choose` and `delete` apply policies by age and number to runs that have ended; `sweep` removes what is then unused.

Invariant: nothing is deleted that is still needed, and after each step every run in the store can be resumed. Whether a thing is
needed is checked when it is deleted, not when it was chosen. Each step is small, so that the execution of a run never waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core import run_state
from holdfast.core.kinds import CHECKPOINTS
from holdfast.core.run_state import ENDED, FINAL, RunState, stretches
from holdfast.errors import (
    HoldfastError,
    ResumeRefused,
    RunHeld,
    RunNotFound,
    SchemaTooNew,
    SeqConflict,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    did_you_mean,
    end_sentence,
)
from holdfast.reading import history, verification
from holdfast.reading.reader import rows_of
from holdfast.storage.contract import STATUSES, Holder, Query, RunRow, RunStatus, Store, in_order
from holdfast.storage.oversize import BLOB_OVER, take_out
from holdfast.storage.rows import pack
from holdfast.storage.upkeep import Kept
from holdfast.upkeep import archive

_Aside = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""The type of a function that calls its first argument outside the event loop, and then its second argument with the exception
that the first one raised, or with None.
"""
KEEP_LAST = 5
YOUNG_S = 3600.0
"""A blob younger than this (in seconds) may belong to an append that is not committed yet, so it is not removed."""
_WINDOW = 256
_PAGE = 500
BATCH = 100
"""How many runs are deleted in one transaction at most."""
_BATCH_EVENTS = 10_000
"""How many events they have at most, unless it is one run: a store may have to delete them in the same transaction."""
_RESUMED_MEANWHILE = "the run was resumed in the meantime"
_DELETED_MEANWHILE = "another process has already deleted the run"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of pruning or compacting one run."""

    run_id: str
    kept: int
    """How many checkpoints the run can still go back to."""
    retired: int
    """The number of an event: checkpoints before it are retired, so that the run cannot go back to them. 0 if none are."""
    snapshots: int = 0
    """How many snapshots were deleted."""
    base: int = 0
    """The number of the last event that a base replaces; 0 if the log is complete."""
    events: int = 0
    """How many events the new base replaced."""
    place: str = ""
    """Where the log was archived before it was compacted; empty if it was not archived."""
    why: str = ""
    """Why fewer events were replaced than requested; empty if all requested events were replaced."""


# --- one run -----------------------------------------------------------------------------------------


def prune(store: Store, run_id: str, keep_last: int = KEEP_LAST) -> Pruned:
    """Retire all but the last `keep_last` current checkpoints of a run, and delete the snapshots that only the retired ones
    needed.
    """
    pruned, unneeded = _plan(store, run_id, keep_last)
    if unneeded or pruned.retired > store.upkeep.trimmed(run_id).retired:
        store.upkeep.retire(run_id, pruned.retired, unneeded)
    return pruned


def plan(store: Store, run_id: str, keep_last: int = KEEP_LAST, *, compact: bool = False) -> Pruned:
    """Return what `prune`, or `compact`, would do with a run now. Changes nothing."""
    pruned, _ = _plan(store, run_id, keep_last)
    if not compact:
        return pruned
    row = store.run(run_id)
    last = _last_checkpoints(store, row, keep_last + 1)
    seq, state, why = _base_place(store, row, last[0] if len(last) > keep_last else 0)
    if state is None:
        return msgspec.structs.replace(pruned, why=why)
    return msgspec.structs.replace(pruned, base=seq, events=seq - history.began_after(store, row), why=why)


def _plan(store: Store, run_id: str, keep_last: int) -> tuple[Pruned, list[int]]:
    """Return what retiring old checkpoints of a run comes to, and the seqs of the snapshots that are not needed then."""
    check_count(keep_last, "keep_last")
    row = store.run(run_id)
    last = _last_checkpoints(store, row, keep_last + 1)
    trimmed = store.upkeep.trimmed(run_id)
    if len(last) <= keep_last:
        return Pruned(run_id=run_id, kept=len(last), retired=trimmed.retired, base=trimmed.base), []
    unneeded = _find_unneeded(store.upkeep.snapshots(run_id), row, last[1])
    pruned = Pruned(
        run_id=run_id,
        kept=keep_last,
        retired=max(last[1], trimmed.retired),
        snapshots=len(unneeded),
        base=trimmed.base,
    )
    return pruned, unneeded


def _last_checkpoints(store: Store, row: RunRow, count: int) -> list[int]:
    """Return the last current checkpoints of a run, oldest first. A log may be long, so it is read from its end."""
    parts = stretches(row.rewinds, row.seq)
    found: list[int] = []
    upto = row.seq
    while upto > 0 and len(found) < count:
        after = max(0, upto - _WINDOW)
        rows = store.events(row.run_id, after, upto, kinds=CHECKPOINTS)
        current = [one.seq for one in rows if any(first <= one.seq <= last for first, last in parts)]
        found = current + found
        upto = after
    return found[-count:]


def _find_unneeded(snapshots: Sequence[Kept], row: RunRow, oldest: int) -> list[int]:
    """Return the seqs of the snapshots that are not needed to load the run at its oldest kept checkpoint or later. A base is
    always needed.
    """
    parts = stretches(row.rewinds, oldest)
    serving = max(
        (kept.seq for kept in snapshots if any(first <= kept.seq <= last for first, last in parts)), default=0
    )
    return [kept.seq for kept in snapshots if kept.seq < serving and not kept.base]


def compact(
    store: Store,
    run_id: str,
    keep_last: int = KEEP_LAST,
    *,
    holder: Holder,
    fence: int | None = None,
    rewinds: Sequence[tuple[int, int]] = (),
    archive_to: str | None = None,
    blob_over: int = BLOB_OVER,
    doubt: Callable[[], None] = lambda: None,
) -> Pruned:
    """Prune a run, and replace its events before the kept checkpoints with a base.

    A caller that holds the lease of the run passes its `fence`; otherwise the run is claimed for a moment. `doubt` is called if
    the store does not confirm that the lease was granted or released. `rewinds` are the rewinds that the holder knows, because
    the latest one may not be in the log yet. Raises `RunHeld` if another process executes the run.
    """
    check_count(keep_last, "keep_last")
    row = store.run(run_id)
    row = msgspec.structs.replace(row, rewinds=tuple(sorted({*row.rewinds, *rewinds})))
    last = _last_checkpoints(store, row, keep_last + 1)
    wanted = last[0] if len(last) > keep_last else 0
    seq, state, why = _base_place(store, row, wanted)
    if state is None:
        return msgspec.structs.replace(prune(store, run_id, keep_last), why=why)
    if fence is None and row.held and row.holder is not None:
        raise RunHeld(run_id, row.holder.describe())
    place = archive.archive(store, run_id, archive_to).place if archive_to else ""
    body, blobs = take_out(run_state.dump(state), blob_over)
    for blob in blobs:
        store.blobs.put(blob.digest, blob.body)
    digest, before = history.digest_at(store, row, seq), history.began_after(store, row)
    base: dict[str, Any] = {"body": pack(body), "digest": digest, "holder": holder.id, "place": place}
    pruned = prune(store, run_id, keep_last)
    if fence is not None:
        store.upkeep.compact(run_id, seq, fence=fence, **base)
    else:
        _compact_idle(store, run_id, seq, holder, base, doubt)
    return msgspec.structs.replace(pruned, base=seq, events=seq - before, place=place, why=why)


def _compact_idle(
    store: Store, run_id: str, seq: int, holder: Holder, base: dict[str, Any], doubt: Callable[[], None]
) -> None:
    try:
        lease = store.claim(run_id, holder)
    except StoreBusy:
        doubt()
        raise
    try:
        # The run may have been rewound to before the base while the base was made.
        if _below_rewinds(store.run(run_id), seq) != seq:
            raise ResumeRefused(
                run_id, "it was rewound at the same time. Its log is unchanged; try again.", asked="compacted"
            )
        store.upkeep.compact(run_id, seq, fence=lease.fence, **base)
    finally:
        try:
            store.release(run_id, holder.id, lease.fence)
        except StoreError:
            doubt()


def _base_place(store: Store, row: RunRow, wanted: int) -> tuple[int, RunState | None, str]:
    """Find the latest event, up to the wanted one, at which a base can be made. Return its seq, the state of the run after it,
    and the reason why the base cannot be later.

    No rewind after that event may go back to an event before it, and no visit may be open there whose earlier events the engine
    still reads.
    """
    began, seq, why = history.began_after(store, row), _below_rewinds(row, wanted), ""
    if seq < wanted:
        why = f"the run was rewound to event {seq}"
    while seq > began:
        state = history.load(store, row.run_id, seq, row=row, check=True)
        busy = next((name for name in state.open if _is_read(state, name)), None)
        if busy is None:
            return seq, state, why
        why = f"node {busy!r} has been open since event {_find_start(store, row, state, busy)}"
        seq = _below_rewinds(row, _find_start(store, row, state, busy) - 1)
    return 0, None, why or "the run has no events before its kept checkpoints"


def _below_rewinds(row: RunRow, seq: int) -> int:
    """Return the latest event, up to this one, such that no rewind after it goes back to an earlier event."""
    while True:
        lower = min((to for at, to in row.rewinds if at > seq), default=seq)
        if lower >= seq:
            return seq
        seq = lower


def _is_read(state: RunState, name: str) -> bool:
    """Return whether the engine still reads earlier events of an open visit: its signals, streamed output or items."""
    node = state.nodes[name]
    return bool(node.kept or node.streamed or node.items is not None or node.asked or node.parked)


def _find_start(store: Store, row: RunRow, state: RunState, name: str) -> int:
    """Return the seq of the event with which an open visit began."""
    node = state.nodes[name]
    for found in store.events(row.run_id, 0, state.seq, node=name):
        if (found.iteration, found.execution) == (node.iteration, node.execution):
            return found.seq
    return 0


# --- while runs are executed -------------------------------------------------------------------------


class Keeper:
    """A listener that prunes the runs of an engine as their logs grow. `aside` calls a function outside the event loop; `here`
    contains the ids of the runs that the engine executes now.
    """

    EVERY = 32
    """A run is pruned after this many appends to its log."""

    def __init__(
        self,
        store: Store,
        keep_last: int,
        aside: _Aside,
        here: Container[str],
    ) -> None:
        self._store = store
        self._keep_last = keep_last
        self._aside = aside
        self._here = here
        self._appends: dict[str, int] = {}
        """Run -> how many appends its log got since it was last pruned."""
        self._busy: set[str] = set()

    def saved(self, run_id: str) -> None:
        """Note that new events of a run are durable, or that the engine has stopped executing the run; prune the run if it is
        time.
        """
        count = self._appends[run_id] = self._appends.get(run_id, 0) + 1
        if (count >= self.EVERY or run_id not in self._here) and run_id not in self._busy:
            self._busy.add(run_id)
            self._aside(lambda: self._prune(run_id), lambda _: self._busy.discard(run_id))

    def close(self) -> None:
        """Prune every run that has grown since its last pruning, or whose pruning may not be finished."""
        for run_id in {**self._appends, **dict.fromkeys(self._busy)}:
            self._prune(run_id)

    def _prune(self, run_id: str) -> None:
        self._appends.pop(run_id, None)
        with suppress(HoldfastError):  # a failed pruning must not disturb the run; it is repeated later
            prune(self._store, run_id, self._keep_last)


# --- many runs ---------------------------------------------------------------------------------------


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule for deleting runs: a run may be deleted if it meets all conditions of the policy."""

    flow: str | None = None
    status: tuple[RunStatus, ...] = in_order(FINAL)
    older_than: float | None = None
    """Delete only runs whose last event is older than this many seconds."""
    keep: int | None = None
    """Do not delete the newest N runs of each flow and status."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The decision whether a run is deleted, and why."""

    run_id: str
    flow: str
    status: RunStatus
    updated_at: float
    seq: int
    goes: bool
    why: str
    origin: str | None = None
    """The run that started it."""
    place: str = ""
    """Where the run was archived; empty if it was not archived."""


def policies(
    table: Any, where: str = "[tool.holdfast.retention]"
) -> tuple[list[RetentionPolicy], str | None]:
    """Read the policies of a project (the list `policies`) and the place for its archives (`archive`) from its settings."""
    if not isinstance(table, dict) or not {*table} <= {"archive", "policies"}:
        raise SettingError(
            f"{where} may have only `archive` (a path or URL) and `policies` (a list of tables)"
        )
    found = []
    for number, entry in enumerate(table.get("policies", []), 1):
        if not isinstance(entry, dict):
            raise SettingError(f"{where}: policy {number} must be a table")
        for name in entry:
            if name not in RetentionPolicy.__struct_fields__:
                known = RetentionPolicy.__struct_fields__
                near = did_you_mean(name, known) or f"; the options are {', '.join(known)}"
                raise SettingError(f"{where}: policy {number} has no option {name!r}{near}")
        given = dict(entry)
        if isinstance(given.get("status"), str):
            given["status"] = [given["status"]]
        if "older_than" in given:
            given["older_than"] = seconds(given["older_than"], f"{where}: older_than of policy {number}")
        try:
            found.append(check_policy(msgspec.convert(given, RetentionPolicy)))
        except msgspec.ValidationError as fault:
            raise SettingError(f"{where}: policy {number}: {fault}") from None
    place = table.get("archive")
    if place is not None and not isinstance(place, str):
        raise SettingError(f"{where}: archive must be a path or URL, not {place!r}")
    return found, place


def check_policy(policy: RetentionPolicy) -> RetentionPolicy:
    """Return the policy, or raise `SettingError` if it would delete runs that have not ended, or all runs by an oversight."""
    for status in policy.status:
        if status not in ENDED:
            raise SettingError(
                f"a run that is {status} has not ended and is never deleted; choose from {', '.join(in_order(ENDED))}"
            )
    if policy.older_than is None and policy.keep is None:
        raise SettingError(
            "say which runs may be deleted: by age (older_than, e.g. 30d), by how many to keep (keep), or both"
        )
    if policy.keep is not None and policy.keep < 0:
        raise SettingError(f"keep={policy.keep}: give a whole number of runs, 0 or more")
    return policy


def choose(store: Store, wanted: Sequence[RetentionPolicy]) -> Iterator[Choice]:
    """Decide for each run that a policy applies to whether it is deleted, newest first for each policy. The first policy that
    applies decides. A store may have a million runs, so they are read page by page; they may be deleted meanwhile.
    """
    now = store.now()
    for number, policy in enumerate(wanted):
        counts: dict[tuple[str, str], int] = {}
        for row in rows_of(store, Query(flow=policy.flow, status=policy.status, limit=_PAGE)):
            if any(_applies(earlier, row) for earlier in wanted[:number]):
                continue
            rank = counts[row.flow, row.status] = counts.get((row.flow, row.status), 0) + 1
            try:
                why = _stays(store, policy, row, rank, now)
            except RunNotFound:  # another process has deleted it
                continue
            yield Choice(
                run_id=row.run_id, flow=row.flow, status=row.status, updated_at=row.updated_at, seq=row.seq,
                goes=why is None, why=why or _goes(policy), origin=row.origin,
            )  # fmt: skip


def _applies(policy: RetentionPolicy, row: RunRow) -> bool:
    return policy.flow in (None, row.flow) and row.status in policy.status


def _goes(policy: RetentionPolicy) -> str:
    reasons = []
    if policy.older_than is not None:
        reasons.append(f"older than {duration(policy.older_than)}")
    if policy.keep is not None:
        reasons.append(f"not among the newest {policy.keep} runs")
    return " and ".join(reasons)


def _stays(store: Store, policy: RetentionPolicy, row: RunRow, rank: int, now: float) -> str | None:
    if policy.keep is not None and rank <= policy.keep:
        return f"among the newest {policy.keep} {row.status} runs of {row.flow}"
    if policy.older_than is not None and now - row.updated_at < policy.older_than:
        return f"younger than {duration(policy.older_than)}"
    return explain_need(store, row)


def explain_need(store: Store, row: RunRow) -> str | None:
    """Return why a run must be kept; None if it may be deleted."""
    if row.status not in ENDED:
        return f"the run has not ended: it is {row.status}"
    if row.held and row.holder is not None:
        return f"{row.holder.describe()} executes the run"
    if row.status not in FINAL:
        try:
            asked = history.load(store, row.run_id, row=row).questions
        except (StoreError, msgspec.MsgspecError) as fault:
            return f"the run cannot be read, so its questions are unknown: {fault}"
        if asked:
            return f"the run has an open question: {next(iter(asked.values())).text[:80]}"
    return None


def refuse_needed(store: Store, row: RunRow) -> None:
    """Refuse to delete a run that must be kept, unless a process holds it: the store then says which. Raises `ResumeRefused`."""
    need = None if row.held else explain_need(store, row)
    if need is not None:
        advice = f"Cancel it first: `holdfast cancel {row.run_id}`"
        raise ResumeRefused(row.run_id, f"{end_sentence(need)} {advice}", asked="deleted")


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was deleted."""

    run_id: str
    flow: str
    status: RunStatus
    events: int
    """The number of its last event."""


def delete_run(store: Store, run_id: str) -> Deleted:
    """Delete one run that is over, and its log. Its blobs are removed by the next `sweep`, if no other run refers to them. Raises
    `RunNotFound`, `RunHeld`, and `ResumeRefused` if the run is not over or another run needs it.
    """
    row = store.run(run_id)
    refuse_needed(store, row)
    for refused in store.upkeep.delete({run_id: row.seq}).values():
        raise refused
    if spilled := store.blobs.spilled(run_id):
        store.blobs.unspill(run_id, list(spilled))
    while store.upkeep.sweep():
        pass
    return Deleted(run_id=run_id, flow=row.flow, status=row.status, events=row.seq)


def delete(store: Store, choices: Sequence[Choice], archive_to: str | None = None) -> list[Choice]:
    """Delete chosen runs in one transaction; if `archive_to` is given, archive them there first. Returns the choices, updated
    with what happened. A run that has changed since it was chosen, or that is still needed, is kept.
    """
    if not choices:
        return []
    ids = tuple(choice.run_id for choice in choices)
    rows = {row.run_id: row for row in store.runs(Query(ids=ids, limit=len(ids)))}
    callers = _find_callers(store, choices)
    reasons: dict[str, str] = {}
    places: dict[str, str] = {}
    for choice in choices:
        row, caller = rows.get(choice.run_id), callers.get(choice.run_id)
        why = _DELETED_MEANWHILE if row is None else _RESUMED_MEANWHILE if row.seq != choice.seq else None
        if why is None and row is not None:
            why = _explain_keeping(store, row, caller)
        if why is None and archive_to:
            places[choice.run_id], why = _archive(store, choice.run_id, archive_to)
        if why is not None:
            reasons[choice.run_id] = why
    going = {choice.run_id: choice.seq for choice in choices if choice.run_id not in reasons}
    if going:
        refused = store.upkeep.delete(going)
        reasons |= {run_id: _explain_refusal(refusal) for run_id, refusal in refused.items()}
        for run_id in going.keys() - refused.keys():
            if spilled := store.blobs.spilled(run_id):
                store.blobs.unspill(run_id, list(spilled))
    return [
        msgspec.structs.replace(
            choice,
            goes=choice.run_id not in reasons,
            why=reasons.get(choice.run_id, choice.why),
            place=places.get(choice.run_id, ""),
        )
        for choice in choices
    ]


def _explain_keeping(store: Store, row: RunRow, caller: RunRow | None) -> str | None:
    """Return why a chosen run must be kept after all; None if it may be deleted."""
    try:
        why = explain_need(store, row) or _explain_fork(store, row)
    except RunNotFound:
        return _DELETED_MEANWHILE
    return why or (_describe_caller(caller) if caller is not None else None)


def _explain_refusal(refusal: HoldfastError) -> str:
    if isinstance(refusal, RunNotFound):
        return _DELETED_MEANWHILE
    return _RESUMED_MEANWHILE if isinstance(refusal, SeqConflict) else str(refusal)


def _archive(store: Store, run_id: str, place: str) -> tuple[str, str | None]:
    """Archive a run. Returns where the archive is and None, or an empty text and the reason if the run is damaged: a damaged
    run must not stop the deletion of other runs. A problem of the archive's place is raised, because it concerns all runs.
    """
    try:
        return archive.archive(store, run_id, place).place, None
    except RunNotFound:
        return "", _DELETED_MEANWHILE
    except SchemaTooNew as fault:
        return "", f"the run cannot be archived: {fault}"
    except StoreCorrupt:
        problem = _problem(store, run_id)
        if not problem:
            raise
    return "", f"the run cannot be archived, because its log is damaged: {problem}"


def _problem(store: Store, run_id: str) -> str:
    """Return the first problem that `verify` finds in a run; empty if it finds none."""
    try:
        problems = verification.verify(store, run_id).problems
    except (StoreCorrupt, SchemaTooNew) as fault:
        return str(fault)
    return problems[0] if problems else ""


def delete_all(
    store: Store, choices: Iterable[Choice], archive_to: str | None = None
) -> Iterator[list[Choice]]:
    """Delete the chosen runs, many in one transaction, and yield what happened to them after each. A run is deleted after the
    runs forked from it, and after the run that started it, if that may still need it: such runs come last, and no others are
    remembered.
    """
    needed: list[Choice] = []
    for some in _batches(choices, archive_to):
        ready, later = _separate(store, [choice for choice in some if choice.goes])
        yield [choice for choice in some if not choice.goes] + delete(store, ready, archive_to)
        needed += later
    while needed:
        left: list[Choice] = []
        for some in _batches(needed, archive_to):
            ready, later = _separate(store, some)
            yield delete(store, ready, archive_to)
            left += later
        if len(left) == len(needed):
            for some in _batches(left, archive_to):
                yield delete(store, some, archive_to)  # each result says why it is kept
            return
        needed = left


def _batches(choices: Iterable[Choice], archive_to: str | None) -> Iterator[list[Choice]]:
    """Yield the choices in lists that one transaction deletes. Runs that are archived are deleted one by one: each as soon as its
    archive is complete.
    """
    batch: list[Choice] = []
    events = 0
    for choice in choices:
        size = choice.seq if choice.goes else 0
        if batch and (archive_to or len(batch) == BATCH or events + size > _BATCH_EVENTS):
            yield batch
            batch, events = [], 0
        batch.append(choice)
        events += size
    if batch:
        yield batch


def _separate(store: Store, choices: Sequence[Choice]) -> tuple[list[Choice], list[Choice]]:
    """Separate the choices that can be deleted now from those of runs that another run needs which may be deleted, too."""
    callers = _find_callers(store, choices)
    ready: list[Choice] = []
    later: list[Choice] = []
    for choice in choices:
        caller = callers.get(choice.run_id)
        waits = (caller is not None and caller.status in ENDED) or _find_fork(store, choice) is not None
        (later if waits else ready).append(choice)
    return ready, later


def preview_deletion(store: Store, choose: Callable[[], Iterable[Choice]]) -> Iterator[Choice]:
    """Yield what `delete_all` would do with the runs that `choose` yields, as far as that is known without deleting. A run is
    kept if a run that was forked from it is kept, or the run that started it is kept and may still need it. The runs are chosen
    twice, so that only those are remembered that another run needs.
    """
    needed_by: dict[str, list[tuple[str, str]]] = {}
    for some in _batches((choice for choice in choose() if choice.goes), None):
        callers = _find_callers(store, some)
        for choice in some:
            forks = rows_of(store, Query(parent=choice.run_id, limit=_PAGE))
            needs = [(row.run_id, _describe_fork(row.run_id)) for row in forks]
            if caller := callers.get(choice.run_id):
                needs.append((caller.run_id, _describe_caller(caller)))
            if needs:
                needed_by[choice.run_id] = needs
    others = {other for needs in needed_by.values() for other, _ in needs}
    going: set[str] = set()
    tangled: list[Choice] = []
    for choice in choose():
        if choice.goes and choice.run_id in others:
            going.add(choice.run_id)
        if choice.goes and choice.run_id in needed_by:
            tangled.append(choice)
            going.add(choice.run_id)
        else:
            yield choice
    kept = _find_kept(going, needed_by)
    for choice in tangled:
        why = kept.get(choice.run_id)
        yield msgspec.structs.replace(choice, goes=False, why=why) if why is not None else choice


def _find_kept(going: set[str], needed_by: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Return why runs of `going` are kept, which other runs need: those that are not going, or kept for this reason."""
    kept: dict[str, str] = {}
    while True:
        needed = {
            run_id: why
            for run_id, needs in needed_by.items()
            for other, why in reversed(needs)
            if run_id not in kept and (other not in going or other in kept)
        }
        if not needed:
            return kept
        kept |= needed


def _find_fork(store: Store, choice: Choice) -> str | None:
    found = store.runs(Query(parent=choice.run_id, limit=1))
    return found[0].run_id if found else None


def _explain_fork(store: Store, row: RunRow) -> str | None:
    found = store.runs(Query(parent=row.run_id, limit=1))
    return _describe_fork(found[0].run_id) if found else None


def _describe_fork(run_id: str) -> str:
    return f"run {run_id!r} was forked from it"


def _find_callers(store: Store, choices: Sequence[Choice]) -> dict[str, RunRow]:
    """Return the runs that started these runs and may still need them, by the ids of these runs."""
    origins = sorted({choice.origin for choice in choices if choice.origin is not None})
    pages = [Query(ids=tuple(origins[at : at + _PAGE]), limit=_PAGE) for at in range(0, len(origins), _PAGE)]
    rows = {row.run_id: row for page in pages for row in store.runs(page) if row.status not in FINAL}
    return {choice.run_id: rows[choice.origin] for choice in choices if choice.origin in rows}


def _describe_caller(row: RunRow) -> str:
    return f"run {row.run_id!r} started it and may still need it: it is {row.status}"


# --- what is unused ----------------------------------------------------------------------------------


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """How much was removed because no run refers to it any more."""

    events: int = 0
    blobs: int = 0
    pieces: int = 0
    """The number of incomplete blobs that killed processes had left."""
    spills: int = 0
    """The number of runs whose spills were removed: output that nodes streamed and that is not in the log."""
    definitions: int = 0
    kept: tuple[str, ...] = ()
    """Unused things that were kept, and why."""


def sweep(store: Store, *, blobs_too: bool = True) -> Swept:
    """Remove events that compactions and deletions left, blobs and definitions that no run refers to, and spills (streamed
    output that is not in the log) of runs that are over. Pass `blobs_too=False` if other stores may keep their blobs in the
    same place: then no blob is removed.
    """
    events = 0
    while count := store.upkeep.sweep():
        events += count
    spills = _sweep_spills(store)
    # The order matters: first the time is read, then what exists, then what is in use. So a thing that is added in between is
    # never taken for unused, nor is a blob that is put again meanwhile, however long the sweep takes or is suspended.
    before = store.blobs.now() - YOUNG_S if blobs_too else 0.0
    unwanted, unnamed = set(store.blobs.digests()) if blobs_too else set(), set(store.upkeep.fingerprints())
    unreadable = _strike_used(store, unwanted, unnamed)
    if unreadable is not None:
        return Swept(events=events, spills=spills, kept=(f"blobs and definitions: {unreadable}",))
    gone = sum(store.blobs.expire(digest, before) for digest in sorted(unwanted))
    pieces = store.blobs.tidy(before) if blobs_too else 0
    definitions = store.upkeep.drop_definitions(sorted(unnamed))
    kept_told = []
    if left := len(unwanted) - gone:
        nouns = "unreferenced blob" if left == 1 else "unreferenced blobs"
        kept_told.append(f"{left} {nouns}: younger than {duration(YOUNG_S)}")
    if not blobs_too:
        kept_told.append(f"blobs at {store.blobs.where}: other stores may keep their blobs there")
    return Swept(
        events=events,
        blobs=gone,
        pieces=pieces,
        spills=spills,
        definitions=definitions,
        kept=tuple(kept_told),
    )


def _strike_used(store: Store, digests: set[str], fingerprints: set[str]) -> str | None:
    """Remove from the sets the digests of all blobs and the fingerprints of all definitions that a run refers to. Returns why a
    run could not be read, or None if all were read.
    """
    for row in rows_of(store, Query(limit=_PAGE)) if fingerprints else ():
        fingerprints.discard(row.fingerprint)
    # Usually the rows have named every definition and there is no blob, so no log is read.
    for row in rows_of(store, Query(limit=_PAGE)) if digests or fingerprints else ():
        try:
            if digests:
                digests -= archive.references(store, row)
            if fingerprints:
                fingerprints -= archive.fingerprints(store, row)
        except RunNotFound:  # deleted meanwhile
            continue
        except (HoldfastError, msgspec.MsgspecError) as fault:  # MsgspecError: a newer version wrote the run
            return f"run {row.run_id!r} cannot be read, and may refer to any of them ({fault})"
        if not digests and not fingerprints:
            break
    return None


def _sweep_spills(store: Store) -> int:
    count = 0
    for run_id in store.blobs.spilling():
        with suppress(RunNotFound):  # a run with durability "exit" is not in the store yet
            row = store.run(run_id)
            if row.status in FINAL and not row.held:
                store.blobs.unspill(run_id, list(store.blobs.spilled(run_id)))
                count += 1
    return count


# --- words -------------------------------------------------------------------------------------------


def check_count(count: Any, name: str) -> int:
    """Return the number, or raise `SettingError` if it is not a whole number of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SettingError(f"{name}={count!r}: give a whole number, at least 1")
    return count


def seconds(text: Any, what: str) -> float:
    """Convert a length of time (`90s`, `45m`, `12h`, `30d`, `2w`) to seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text) if isinstance(text, str) else None
    if match is None:
        raise SettingError(f"{what} must be a length of time such as 90s, 45m, 12h, 30d or 2w, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def duration(length_s: float) -> str:
    """Convert seconds to a length of time (`90s`, `45m`, `12h`, `30d`, `2w`)."""
    for unit in ("w", "d", "h", "m"):
        if length_s >= _UNITS[unit] and length_s % _UNITS[unit] == 0:
            return f"{length_s / _UNITS[unit]:g}{unit}"
    return f"{length_s:g}s"


def status_of(text: str) -> RunStatus:
    """Return the status with this name. `check_policy` refuses the status of a run that has not ended."""
    for status in STATUSES:
        if status == text:
            return status
    ended = in_order(ENDED)
    raise SettingError(
        f"{text!r} is not a status of a run that may be deleted; choose from {', '.join(ended)}{did_you_mean(text, ended)}"
    )
