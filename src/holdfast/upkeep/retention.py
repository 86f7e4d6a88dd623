"""What need not be kept: older checkpoints of a run, events that a base can stand for, runs that ended long ago, blobs of nobody.

- `prune` retires the checkpoints of a run but the last few, with the snapshots that only they needed. Nothing of history goes.
- `compact` puts a base in the place of the events before them. It needs the lease, for one short transaction.
- `choose` and `delete` apply policies by age and number to runs that have ended; `sweep` removes what then belongs to nobody.

Invariant: nothing goes that something still needs, and each step leaves a store in which every run can be carried on. What
needs a thing is looked up when it goes, not when it was chosen. Each step is small: a run that is going never waits for this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
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
)
from holdfast.reading import history, verification
from holdfast.reading.reader import rows_of
from holdfast.storage.contract import STATUSES, Holder, Query, RunRow, RunStatus, Store, in_order
from holdfast.storage.oversize import BLOB_OVER, take_out
from holdfast.storage.rows import pack
from holdfast.storage.upkeep import Kept
from holdfast.upkeep import archive

_Aside = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Does something off the event loop, and then reports how it went."""
KEEP_LAST = 5
YOUNG_S = 3600.0
"""A blob that was put later than this may belong to an append that is still on its way."""
_WINDOW = 256
_PAGE = 500
_CARRIED_ON = "it was carried on meanwhile"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run's checkpoints."""

    run_id: str
    kept: int
    """Checkpoints that it can still go back to."""
    retired: int
    """Those before this place it cannot; 0: all of them are left."""
    snapshots: int = 0
    """Snapshots that went."""
    base: int = 0
    """The log begins behind this place; 0: at its beginning."""
    events: int = 0
    """Events that the base stands for, and that went just now."""
    place: str = ""
    """Where the log was archived before."""
    why: str = ""
    """Why less went than was asked for."""


# --- one run -----------------------------------------------------------------------------------------


def prune(store: Store, run_id: str, keep_last: int = KEEP_LAST) -> Pruned:
    """Retire every checkpoint of a run but the last few that it came through, and drop the snapshots that only they needed."""
    checked_count(keep_last, "keep_last")
    row = store.run(run_id)
    last = _last_checkpoints(store, row, keep_last + 1)
    trimmed = store.upkeep.trimmed(run_id)
    if len(last) <= keep_last:
        return Pruned(run_id=run_id, kept=len(last), retired=trimmed.retired, base=trimmed.base)
    oldest = last[1]
    unneeded = _unneeded(store.upkeep.snapshots(run_id), row, oldest)
    if oldest > trimmed.retired or unneeded:
        store.upkeep.retire(run_id, oldest, unneeded)
    retired = max(oldest, trimmed.retired)
    return Pruned(run_id=run_id, kept=keep_last, retired=retired, snapshots=len(unneeded), base=trimmed.base)


def _last_checkpoints(store: Store, row: RunRow, count: int) -> list[int]:
    """Where the last checkpoints are that the run as it is now came through, oldest first. Read from the end: a log is long."""
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


def _unneeded(snapshots: Sequence[Kept], row: RunRow, oldest: int) -> list[int]:
    """Snapshots that no place from the oldest checkpoint on is loaded from: those before the one that serves it. A base stays."""
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
    """Prune a run, and let a base stand for its events before the checkpoints that are left, in the name of a holder: one that
    has the lease already (`fence`), or else it is claimed for a moment; `doubt` is called where the store does not say whether
    it was granted, or given back. `rewinds` are those that the holder knows of: one may be on its way to the log. Raises
    `RunHeld`.
    """
    checked_count(keep_last, "keep_last")
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
        # Somebody may have gone back to before the base while it was made.
        if _below_rewinds(store.run(run_id), seq) != seq:
            raise ResumeRefused(
                run_id, "it was rewound just now. Its log is as it was; try again.", asked="compacted"
            )
        store.upkeep.compact(run_id, seq, fence=lease.fence, **base)
    finally:
        try:
            store.release(run_id, holder.id, lease.fence)
        except StoreError:
            doubt()


def _base_place(store: Store, row: RunRow, wanted: int) -> tuple[int, RunState | None, str]:
    """The latest place up to the wanted one that a base can stand at, with its state; and what kept it from standing later. From
    every place behind it the way back must lead through it, and no visit may be open there whose own events are still read.
    """
    began, seq, why = history.began_after(store, row), _below_rewinds(row, wanted), ""
    if seq < wanted:
        why = f"a rewind went back to event {seq}"
    while seq > began:
        state = history.load(store, row.run_id, seq, row=row, check=True)
        busy = next((name for name in state.open if _is_read(state, name)), None)
        if busy is None:
            return seq, state, why
        why = f"node {busy!r} has been open since event {_started(store, row, state, busy)}"
        seq = _below_rewinds(row, _started(store, row, state, busy) - 1)
    return 0, None, why or "there is nothing before its last checkpoints that a base could stand for"


def _below_rewinds(row: RunRow, seq: int) -> int:
    """The latest place up to this one that no rewind behind it went back to before."""
    while True:
        lower = min((to for at, to in row.rewinds if at > seq), default=seq)
        if lower >= seq:
            return seq
        seq = lower


def _is_read(state: RunState, name: str) -> bool:
    """Whether somebody looks into the log for what an open visit did: which signals it took, what it streamed, its items."""
    node = state.nodes[name]
    return bool(node.kept or node.streamed or node.items is not None or node.asked or node.parked)


def _started(store: Store, row: RunRow, state: RunState, name: str) -> int:
    """Where an open visit began, in the log."""
    node = state.nodes[name]
    for found in store.events(row.run_id, 0, state.seq, node=name):
        if (found.iteration, found.execution) == (node.iteration, node.execution):
            return found.seq
    return 0


# --- as a run goes on --------------------------------------------------------------------------------


class Keeper:
    """A listener that prunes the runs of an engine as their logs grow, off its event loop (`aside`). `here`: the runs that the
    engine executes.
    """

    EVERY = 32
    """Appends to a run between two looks at it."""

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
        """Runs that have grown since they were looked at -> by how many appends."""
        self._busy: set[str] = set()

    def saved(self, run_id: str) -> None:
        """New events of a run are durable, or the engine has stopped executing it."""
        count = self._appends[run_id] = self._appends.get(run_id, 0) + 1
        if (count >= self.EVERY or run_id not in self._here) and run_id not in self._busy:
            self._busy.add(run_id)
            self._aside(lambda: self._prune(run_id), lambda _: self._busy.discard(run_id))

    def close(self) -> None:
        """Prune once more every run that has grown, or that a thread may not have finished."""
        for run_id in {**self._appends, **dict.fromkeys(self._busy)}:
            self._prune(run_id)

    def _prune(self, run_id: str) -> None:
        self._appends.pop(run_id, None)
        with suppress(HoldfastError):  # the next look finds it again; a run never suffers from this
            prune(self._store, run_id, self._keep_last)


# --- many runs ---------------------------------------------------------------------------------------


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs need not be kept. Every condition must hold."""

    flow: str | None = None
    status: tuple[RunStatus, ...] = in_order(FINAL)
    older_than: float | None = None
    """Seconds since its last event."""
    keep: int | None = None
    """The newest so many of each flow and status stay."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a run, and why."""

    run_id: str
    flow: str
    status: RunStatus
    updated_at: float
    seq: int
    goes: bool
    why: str
    place: str = ""
    """Where it was archived."""


def policies(table: Any, where: str = "[tool.holdfast.retention]") -> tuple[list[Policy], str | None]:
    """The policies of a project, and where it archives: `archive`, and a list `policies` of tables."""
    if not isinstance(table, dict) or not {*table} <= {"archive", "policies"}:
        raise SettingError(
            f"{where} has `archive` (a place) and `policies` (a list of tables), and nothing else"
        )
    found = []
    for number, entry in enumerate(table.get("policies", []), 1):
        if not isinstance(entry, dict):
            raise SettingError(f"{where}: policy {number} must be a table")
        for name in entry:
            if name not in Policy.__struct_fields__:
                known = Policy.__struct_fields__
                near = did_you_mean(name, known) or f"; it has {', '.join(known)}"
                raise SettingError(f"{where}: policy {number} has no option {name!r}{near}")
        given = dict(entry)
        if isinstance(given.get("status"), str):
            given["status"] = [given["status"]]
        if "older_than" in given:
            given["older_than"] = seconds(given["older_than"], f"{where}: older_than of policy {number}")
        try:
            found.append(checked(msgspec.convert(given, Policy)))
        except msgspec.ValidationError as fault:
            raise SettingError(f"{where}: policy {number}: {fault}") from None
    place = table.get("archive")
    if place is not None and not isinstance(place, str):
        raise SettingError(f"{where}: archive must be a place, not {place!r}")
    return found, place


def checked(policy: Policy) -> Policy:
    """A policy that makes sense: only runs that have ended may go, and not all of them by an oversight."""
    for status in policy.status:
        if status not in ENDED:
            raise SettingError(
                f"a run that is {status} has not ended and is never deleted; choose among {', '.join(in_order(ENDED))}"
            )
    if policy.older_than is None and policy.keep is None:
        raise SettingError(
            "say which runs may go: by age (older_than, e.g. 30d), or how many stay (keep), or both"
        )
    if policy.keep is not None and policy.keep < 0:
        raise SettingError(f"keep={policy.keep}: give a number of runs, or 0")
    return policy


def choose(store: Store, wanted: Sequence[Policy]) -> list[Choice]:
    """What the policies would do with each run they are about, newest first. The first policy that is about a run decides."""
    now = store.now()
    chosen: dict[str, Choice] = {}
    for policy in wanted:
        counts: dict[tuple[str, str], int] = {}
        for row in rows_of(store, Query(flow=policy.flow, status=policy.status, limit=_PAGE)):
            rank = counts[row.flow, row.status] = counts.get((row.flow, row.status), 0) + 1
            if row.run_id not in chosen:
                try:
                    why = _stays(store, policy, row, rank, now)
                except RunNotFound:  # somebody else has deleted it
                    continue
                chosen[row.run_id] = Choice(
                    run_id=row.run_id, flow=row.flow, status=row.status, updated_at=row.updated_at, seq=row.seq,
                    goes=why is None, why=why or _goes(policy),
                )  # fmt: skip
    return list(chosen.values())


def _goes(policy: Policy) -> str:
    reasons = []
    if policy.older_than is not None:
        reasons.append(f"older than {duration(policy.older_than)}")
    if policy.keep is not None:
        reasons.append(f"not among the newest {policy.keep}")
    return " and ".join(reasons)


def _stays(store: Store, policy: Policy, row: RunRow, rank: int, now: float) -> str | None:
    if policy.keep is not None and rank <= policy.keep:
        return f"among the newest {policy.keep} {row.status} runs of {row.flow}"
    if policy.older_than is not None and now - row.updated_at < policy.older_than:
        return f"younger than {duration(policy.older_than)}"
    return needed(store, row)


def needed(store: Store, row: RunRow) -> str | None:
    """What still needs a run; None: nothing does."""
    if row.status not in ENDED:
        return f"it is {row.status}: it has not ended"
    if row.held and row.holder is not None:
        return f"{row.holder.describe()} holds it"
    if row.status not in FINAL:
        try:
            asked = history.load(store, row.run_id, row=row).questions
        except (StoreError, msgspec.MsgspecError) as fault:
            return f"it cannot be read, so nobody knows what it asks: {fault}"
        if asked:
            return f"it asks: {next(iter(asked.values())).text[:80]}"
    return None


def delete(store: Store, choice: Choice, archive_to: str | None = None) -> Choice:
    """Archive a run that was chosen, if asked to, and delete it: what became of it. Only one that is still as it was chosen,
    and that nothing needs.
    """
    place = ""
    try:
        row = store.run(choice.run_id)
        why = _CARRIED_ON if row.seq != choice.seq else needed(store, row) or _forked(store, row)
        if why is None and archive_to:
            place, why = _archived(store, choice.run_id, archive_to)
        if why is None:
            store.upkeep.delete(choice.run_id, choice.seq)
            if spilled := store.blobs.spilled(choice.run_id):
                store.blobs.unspill(choice.run_id, list(spilled))
    except RunNotFound:
        why = "somebody else has deleted it"
    except SeqConflict:
        why = _CARRIED_ON
    except (ResumeRefused, RunHeld) as refused:
        why = str(refused)
    return msgspec.structs.replace(choice, goes=why is None, why=why or choice.why, place=place)


def _archived(store: Store, run_id: str, place: str) -> tuple[str, str | None]:
    """Where a run was archived, or why it cannot be: it is itself damaged, which must not keep the others from going. What is
    wrong with the place is raised: it would keep all of them.
    """
    try:
        return archive.archive(store, run_id, place).place, None
    except (StoreCorrupt, SchemaTooNew):
        problem = _problem(store, run_id)
        if not problem:
            raise
    return "", f"it cannot be archived, because it is not whole: {problem}"


def _problem(store: Store, run_id: str) -> str:
    """What is wrong with a run; empty: nothing is."""
    try:
        problems = verification.verify(store, run_id).problems
    except (StoreCorrupt, SchemaTooNew) as fault:
        return str(fault)
    return problems[0] if problems else ""


def delete_all(store: Store, choices: Sequence[Choice], archive_to: str | None = None) -> Iterator[Choice]:
    """What becomes of each that was chosen, one at a time. A run goes after the runs that were forked from it, if they go."""
    waiting = [choice for choice in choices if choice.goes]
    yield from (choice for choice in choices if not choice.goes)
    while waiting:
        done: set[str] = set()
        for choice in waiting:
            if _forked_id(store, choice) is None:
                done.add(choice.run_id)
                yield delete(store, choice, archive_to)
        waiting = [choice for choice in waiting if choice.run_id not in done]
        if not done:
            yield from (delete(store, choice, archive_to) for choice in waiting)  # each says what keeps it
            return


def foretold(store: Store, choices: Sequence[Choice]) -> list[Choice]:
    """What `delete_all` would make of them, as far as that can be known without doing it: a run from which one was forked that
    stays, stays as well.
    """
    going = {choice.run_id for choice in choices if choice.goes}
    forks = {
        run_id: [row.run_id for row in rows_of(store, Query(parent=run_id, limit=_PAGE))] for run_id in going
    }
    kept: dict[str, str] = {}
    while True:
        needed_by = {
            run_id: fork for run_id in going for fork in reversed(forks[run_id]) if fork not in going
        }
        if not needed_by:
            break
        kept |= needed_by
        going -= set(needed_by)
    return [
        msgspec.structs.replace(choice, goes=False, why=_forked_told(kept[choice.run_id]))
        if choice.run_id in kept
        else choice
        for choice in choices
    ]


def _forked_id(store: Store, choice: Choice) -> str | None:
    found = store.runs(Query(parent=choice.run_id, limit=1))
    return found[0].run_id if found else None


def _forked(store: Store, row: RunRow) -> str | None:
    found = store.runs(Query(parent=row.run_id, limit=1))
    return _forked_told(found[0].run_id) if found else None


def _forked_told(run_id: str) -> str:
    return f"run {run_id!r} was forked from it"


# --- what belongs to nobody --------------------------------------------------------------------------


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed because nothing refers to it any more."""

    events: int = 0
    blobs: int = 0
    pieces: int = 0
    """What puts had left that were killed."""
    spills: int = 0
    """Runs whose partial streams went."""
    definitions: int = 0
    kept: tuple[str, ...] = ()
    """What stays that belongs to nobody, and why."""


def sweep(store: Store, *, blobs_too: bool = True) -> Swept:
    """Remove what compactions and deletions left, blobs and definitions that no run refers to, and partial streams of runs that
    are over. `blobs_too=False`: other stores may keep theirs in the same place.
    """
    events = 0
    while count := store.upkeep.sweep():
        events += count
    spills = _sweep_spills(store)
    # First the time, then what is there, then what is in use: a thing that comes in between is not taken for one of nobody, nor
    # is a blob that is put again meanwhile, however long all of this takes or this process is stopped in it.
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
        nouns = "blob that nothing refers" if left == 1 else "blobs that nothing refers"
        kept_told.append(f"{left} {nouns} to: younger than {duration(YOUNG_S)}")
    if not blobs_too:
        kept_told.append(f"blobs at {store.blobs.where}: other stores may keep theirs there")
    return Swept(
        events=events,
        blobs=gone,
        pieces=pieces,
        spills=spills,
        definitions=definitions,
        kept=tuple(kept_told),
    )


def _strike_used(store: Store, digests: set[str], fingerprints: set[str]) -> str | None:
    """Take out what any run refers to: blobs by digest, definitions by fingerprint. Returns why that could not be found out."""
    for row in rows_of(store, Query(limit=_PAGE)) if fingerprints else ():
        fingerprints.discard(row.fingerprint)
    # Nearly always the rows have named every definition, and there is no blob: then no log is read.
    for row in rows_of(store, Query(limit=_PAGE)) if digests or fingerprints else ():
        try:
            if digests:
                digests -= archive.references(store, row)
            if fingerprints:
                fingerprints -= archive.fingerprints(store, row)
        except RunNotFound:  # deleted meanwhile, it needs nothing any more
            continue
        except (HoldfastError, msgspec.MsgspecError) as fault:  # the latter: a newer version wrote it
            return f"run {row.run_id!r} cannot be read, and may refer to any of them ({fault})"
        if not digests and not fingerprints:
            break
    return None


def _sweep_spills(store: Store) -> int:
    count = 0
    for run_id in store.blobs.spilling():
        with suppress(RunNotFound):  # one that is saved at its exit is not there yet
            row = store.run(run_id)
            if row.status in FINAL and not row.held:
                store.blobs.unspill(run_id, list(store.blobs.spilled(run_id)))
                count += 1
    return count


# --- words -------------------------------------------------------------------------------------------


def checked_count(count: Any, name: str) -> int:
    """A number of things to keep: at least one."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SettingError(f"{name}={count!r}: give a whole number, at least 1")
    return count


def seconds(text: Any, what: str) -> float:
    """A length of time as people write it: `90s`, `45m`, `12h`, `30d`, `2w`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text) if isinstance(text, str) else None
    if match is None:
        raise SettingError(f"{what} must be a length of time such as 90s, 45m, 12h, 30d or 2w, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def duration(length_s: float) -> str:
    """The same, the other way round."""
    for unit in ("w", "d", "h", "m"):
        if length_s >= _UNITS[unit] and length_s % _UNITS[unit] == 0:
            return f"{length_s / _UNITS[unit]:g}{unit}"
    return f"{length_s:g}s"


def status_of(text: str) -> RunStatus:
    """A status by its name."""
    for status in STATUSES:
        if status == text:
            return status
    raise SettingError(f"{text!r} is no status; there are {', '.join(STATUSES)}")
