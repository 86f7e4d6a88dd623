"""Check, for the checker, that the logs of callers and of their children agree (invariant I16 in docs/testing.md).

A child has one caller, whose log starts it once; its caller has each of its ends once, with the status that the child's own log
has at that event; and when a caller is cancelled, so are the children that end with it. Nothing here reads a store: `checker`
collects a `FamilyLog` for each run that has a caller or children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from holdfast.testing.checked import RunFacts, StoredRequest
from holdfast.testing.replay import FINAL, Replay
from holdfast.testing.replayed_children import Ended, Started

Say: TypeAlias = Callable[[str, str | None, int | None, str], None]
Inboxes: TypeAlias = Mapping[str, Mapping[str, StoredRequest]]
"""Run -> id of a request -> the request, handled or not."""

_ENDED = FINAL | {"failed"}


class FamilyLog(msgspec.Struct, frozen=True, kw_only=True):
    """What the log of a run shows of its caller and its children."""

    run: RunFacts
    is_compacted: bool
    started: list[Started]
    ended: list[Ended]
    own_ends: dict[int, str]
    abandoned: list[str]
    needed: AbstractSet[str]
    """The children whose end an open visit may still use."""
    awaited: AbstractSet[str]
    """The children for whose end the run waits."""
    values: bytes | None
    """The digest of the final state of a run that completed."""
    state_version: int
    repeats: bool
    """True if an operator asked for a visit from scratch, or an older version renamed nodes: then a visit may have several
    children with one key."""


def log_of(run: RunFacts, replay: Replay, *, is_compacted: bool) -> FamilyLog | None:
    """Return what a log shows of a family; None if the run has neither a caller nor children, nor had any that a
    compaction has removed from its log.
    """
    now, children = replay.now, replay.children
    is_alone = now.origin is None and run.origin is None and not children.started and not now.children
    if is_alone and not is_compacted:
        return None
    return FamilyLog(
        run=run,
        is_compacted=is_compacted,
        started=children.started,
        ended=children.ended,
        own_ends=children.own_ends,
        abandoned=children.abandoned,
        needed={name for name, child in now.children.items() if not child.is_final and now.is_open(child)},
        awaited={wait["child"] for wait in now.waits.values() if wait.get("child")},
        values=children.digest_of(now.values) if run.status == "completed" else None,
        state_version=now.state_version,
        repeats=replay.asked_fresh or replay.renames_keys,
    )


def check_families(
    logs: Mapping[str, FamilyLog], runs: AbstractSet[str], inboxes: Inboxes, say: Say, *, at_end: bool
) -> None:
    """Check all families of a store. `runs` are the ids of all runs: those that are missing were deleted."""
    for log in logs.values():
        _check_starts(log, logs, runs, say)
        _check_ends(log, logs, say)
        _check_waits(log, logs, inboxes, say)
        _check_cancelled(log, logs, inboxes, say, at_end=at_end)
        _check_origin(log, logs, runs, say)
        _check_told(log, logs, inboxes, say)


def _check_starts(log: FamilyLog, logs: Mapping[str, FamilyLog], runs: AbstractSet[str], say: Say) -> None:
    """Check that each `ChildStarted` names one run, which exists and is a child of this run."""
    run_id = log.run.run_id
    created: dict[str, list[Started]] = {}
    keys: dict[object, str] = {}
    for one in log.started:
        if not one.adopted:
            created.setdefault(one.run, []).append(one)
        first = keys.setdefault(one.place, one.run)
        if first != one.run and not log.repeats:
            text = f"the child {one.run!r} is started where {first!r} was started before: a visit has one child for a key"
            say("I16", run_id, one.seq, text)
        child = logs.get(one.run)
        if one.run not in runs and one.run in log.needed:
            say("I16", run_id, one.seq, f"the run starts the child {one.run!r}, which does not exist")
        elif one.run in runs and (child is None or child.run.origin != run_id):
            origin = None if child is None else child.run.origin
            text = f"the run starts the child {one.run!r}, but the caller of that run is {origin!r}"
            say("I16", run_id, one.seq, text)
    for name, starts in created.items():
        child = logs.get(name)
        if len(starts) > 1 and child is not None and child.run.created_at <= starts[-2].at:
            say("I16", run_id, starts[-1].seq, f"the child {name!r} is created a second time")


def _check_ends(log: FamilyLog, logs: Mapping[str, FamilyLog], say: Say) -> None:
    """Check that each recorded end is an end that the child's own log has."""
    started = {one.run for one in log.started}
    for end in log.ended:
        child = logs.get(end.run)
        if end.run not in started and not log.is_compacted:
            text = f"the log has an end of {end.run!r}, which it has not started"
            say("I16", log.run.run_id, end.seq, text)
        if child is None or (child.is_compacted and end.end not in child.own_ends):
            continue  # the child was deleted, or the first part of its log
        own = child.own_ends.get(end.end)
        if own != end.status:
            text = (
                f"the child {end.run!r} is recorded as {end.status} at its event {end.end}, but its log has "
                + (f"that it is {own} there" if own else "no end there")
            )
            say("I16", log.run.run_id, end.seq, text)
        elif end.status == "completed" and (
            end.values != child.values or end.state_version not in (None, child.state_version)
        ):
            text = f"the result of the child {end.run!r} is not its final state"
            say("I16", log.run.run_id, end.seq, text)


def _check_waits(log: FamilyLog, logs: Mapping[str, FamilyLog], inboxes: Inboxes, say: Say) -> None:
    """Check that no run waits for a child that has ended, unless the report of that end waits in its inbox."""
    inbox = inboxes.get(log.run.run_id, {})
    for name in log.awaited:
        child = logs.get(name)
        if child is None or child.run.status not in _ENDED or not child.own_ends:
            continue
        asked = inbox.get(f"child:{name}:{max(child.own_ends)}")
        if asked is None or asked.taken:
            text = (
                f"the run waits for the child {name!r}, which is {child.run.status} and reports nothing more"
            )
            say("I16", log.run.run_id, None, text)


def _check_cancelled(
    log: FamilyLog, logs: Mapping[str, FamilyLog], inboxes: Inboxes, say: Say, *, at_end: bool
) -> None:
    """Check that the children that end with a run were asked to end when it was cancelled."""
    for name in log.abandoned:
        child = logs.get(name)
        if child is None or child.run.status in FINAL:
            continue
        asked = [one for one in inboxes.get(name, {}) if one.startswith(f"caller:{log.run.run_id}:")]
        if at_end or not asked:
            text = f"the caller {log.run.run_id!r} was cancelled, but this child is still {child.run.status}"
            say("I16", name, None, text)


def _check_origin(log: FamilyLog, logs: Mapping[str, FamilyLog], runs: AbstractSet[str], say: Say) -> None:
    """Check that the log of the caller of a run starts the run."""
    run_id, origin = log.run.run_id, log.run.origin
    if origin is None or origin not in runs:
        return
    caller = logs.get(origin)
    created = {one.run for one in caller.started if not one.adopted} if caller is not None else set()
    if run_id not in created and not (caller is not None and caller.is_compacted):
        say("I16", run_id, None, f"the caller of the run is {origin!r}, whose log does not start it")


def _check_told(log: FamilyLog, logs: Mapping[str, FamilyLog], inboxes: Inboxes, say: Say) -> None:
    """Check that the caller of a run has every end of it: in its log, or in its inbox."""
    run_id, caller = log.run.run_id, logs.get(log.run.origin or "")
    if caller is None:
        return
    recorded = {end.end for end in caller.ended if end.run == run_id}
    for seq, status in log.own_ends.items():
        asked = inboxes.get(caller.run.run_id, {}).get(f"child:{run_id}:{seq}")
        if seq in recorded:
            continue
        if asked is None and caller.run.status not in FINAL:
            text = f"the run is {status}, but its caller {caller.run.run_id!r} was not told"
            say("I16", run_id, seq, text)
        elif asked is not None and asked.taken and not asked.unmet and not caller.is_compacted:
            text = f"the run is {status}, and its caller {caller.run.run_id!r} took the report without recording it"
            say("I16", run_id, seq, text)
