"""The checker: find violations of Holdfast's invariants in a store, and contradictions between its logs and a witness file. A
witness file lists what nodes, callers and readers saw, and is written independently of the store (`holdfast.testing.witness`).

    violations = check("runs.db", "witness.jsonl")
    python -m holdfast.testing.checker runs.db --witness witness.jsonl

The checker reads rows (`checked`), interprets them by its own rules (`replay`), and compares the result with the run rows, the
snapshots and the lines of a witness (`witness`). It imports nothing of the fold, of `decide` or of the runtime, so that it does
not share a mistake of the engine. It checks the invariants of `docs/testing.md`: I1 to I18, L1 to L4 and D1. Invariant: a check
takes time linear in the number of events, and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.storage.contract import Store
from holdfast.testing import testimony
from holdfast.testing.checked import (
    RunFacts,
    SnapshotFacts,
    Source,
    StoredRequest,
    open_body,
    source_of,
    unpack,
)
from holdfast.testing.checked_definitions import CheckedFlow, shape_of
from holdfast.testing.checked_families import FamilyLog, check_families, log_of
from holdfast.testing.handled_requests import Refusals, check_requests
from holdfast.testing.replay import FINAL, Replay
from holdfast.testing.standings import RewindableState, standing_of, told_by
from holdfast.testing.witness import Line, Testimony

Place: TypeAlias = Store | str | os.PathLike[str]
Say: TypeAlias = Callable[[str, str], None]

WAL_BYTES_MAX = 64 * 1024 * 1024
"""The largest allowed size of a SQLite write-ahead log when no process uses the store."""
USAGE, UNREADABLE = 2, 6
"""Exit codes, the same as those of the `holdfast` command (`holdfast.cli.exits`)."""
_PER_RUN_MAX = 20
_decode = json.JSONDecoder().decode


class Violation(msgspec.Struct, frozen=True):
    """A broken invariant: which one, in which run, at which event, and a sentence that says what is wrong."""

    invariant: str
    run_id: str | None
    seq: int | None
    text: str

    def __str__(self) -> str:
        run = f" run {self.run_id!r}" if self.run_id is not None else ""
        event = f" event {self.seq}" if self.seq is not None else ""
        return f"{self.invariant}{run}{event}: {self.text}"


def check(
    store: Place,
    witness: str | os.PathLike[str] | None = None,
    *,
    testified: Sequence[Line] = (),
    at_end: bool = False,
    now: float | None = None,
    secrets: Iterable[str] = (),
    takeover_s: float | None = None,
) -> list[Violation]:
    """Check a store, and return the violations found: an empty list if there are none. With `witness`, the path of a file that
    a `Witness` wrote, also check that the logs agree with what nodes, callers and readers saw.

    `testified` are further lines of a witness, given as dicts. Pass `at_end=True` when all faults are over and the workers had
    time to finish: then every run must have ended or wait for an answer, a signal or a time, and no lease or request may be
    left. If `now` is given too, no timer may be overdue at that time. None of `secrets` may occur anywhere in the store. If
    `takeover_s` is given, another engine must have claimed the runs of a dead engine at most that many seconds after its death,
    which the witness noted. Raises `StoreError` for a store that cannot be read.
    """
    source = source_of(store)
    try:
        found = Checking(source, Testimony(witness, list(testified)), [secret.encode() for secret in secrets])
        found.takeover_s = takeover_s
        for run in source.runs():
            found.run(run, at_end=at_end, now=now)
        found.store_as_a_whole(at_end=at_end)
        if at_end:
            found.leftovers(store)
        return found.violations
    finally:
        source.close()


def compare(one: Place, other: Place) -> list[Violation]:
    """Compare the logs of two stores (invariant I14 in docs/testing.md), and return the first difference for each run. Times
    and random values are not compared.
    """
    violations: list[Violation] = []
    left, right = source_of(one), source_of(other)
    try:
        mine, theirs = ({run.run_id: run for run in source.runs()} for source in (left, right))
        for run_id in sorted(mine.keys() ^ theirs.keys()):
            where = "one" if run_id in mine else "other"
            violations.append(Violation("I14", run_id, None, f"only the {where} store has this run"))
        for run_id in sorted(mine.keys() & theirs.keys()):
            violations += _first_difference(
                run_id, _meaning(left, mine[run_id]), _meaning(right, theirs[run_id])
            )
    finally:
        left.close()
        right.close()
    return violations


def trace(store: Place) -> str:
    """Return a digest of all logs of a store. Two simulations with the same seed must give the same digest (invariant D1 in
    docs/testing.md).
    """
    source = source_of(store)
    try:
        digest = sha256()
        for run in sorted(source.runs(), key=lambda run: run.run_id):
            for event in source.events(run):
                seq, at, kind, node, iteration, execution, attempt, _, body, _ = event
                header = (run.run_id, seq, at, kind, node, iteration, execution, attempt)
                digest.update(repr(header).encode() + unpack(body))
        return digest.hexdigest()
    finally:
        source.close()


class Checking:
    """One check of a store, and the `violations` that it has found so far."""

    def __init__(self, source: Source, seen: Testimony, secrets: list[bytes]) -> None:
        self.violations: list[Violation] = []
        self.takeover_s: float | None = None
        self._source = source
        self._seen = seen
        self._secrets = secrets
        self._fingerprints: dict[str, str] = {}
        self._shapes: dict[str, CheckedFlow | None] = {}
        """Fingerprint -> what that definition says; None if it is not in the store, or cannot be read."""
        self._lineages: dict[str, str] = {}
        """Fork -> the run whose idempotency keys it shares."""
        self._runs: dict[str, tuple[RunFacts, Refusals]] = {}
        """Run -> its row, and what its log shows of requests."""
        self._families: dict[str, FamilyLog] = {}
        """Run that has a caller or children -> what its log shows of them."""

    # --- one run ----------------------------------------------------------------------------------------

    def run(self, run: RunFacts, *, at_end: bool, now: float | None) -> None:
        """Check one run: read its log, and compare it with the row of the run and with the lines of the witness file about it."""
        before = len(self.violations)

        def say(invariant: str, text: str, seq: int | None = None) -> None:
            if len(self.violations) < before + _PER_RUN_MAX:
                self.violations.append(Violation(invariant, run.run_id, seq, text))

        self._runs[run.run_id] = run, Refusals()
        self._fingerprints.setdefault(run.fingerprint, run.run_id)
        seen = self._seen.of(run.run_id)
        notes = testimony.Notes(seen)
        replay = self._log(run, notes, say)
        if replay.now.lineage:
            self._lineages[run.run_id] = replay.now.lineage
        family = log_of(run, replay, is_compacted=replay.base > 0)
        if family is not None:
            self._families[run.run_id] = family
        _compare_row(run, replay, say)
        if self._secrets:
            self._look_for_secrets(json.dumps(run, default=repr).encode(), "the run row", run.run_id, None)
        killed = self._seen.others.get("killed", [])
        testimony.check_run(seen, notes, run, replay, say, killed, self.takeover_s)
        if at_end:
            _require_over_or_waiting(run, replay.now, now, say)

    def _log(self, run: RunFacts, notes: testimony.Notes, say: Callable[..., None]) -> Replay:
        """Check the log of a run in one pass: seqs, times, hash chain, the meaning of the events, and the snapshots."""
        source, run_id, secrets = self._source, run.run_id, self._secrets
        snapshots = {snapshot.seq: snapshot for snapshot in source.snapshots(run)}
        replay = Replay(
            lambda invariant, text: say(invariant, text, replay.seq),
            _rewind_targets(source, run),
            self._shape,
        )
        read, marks, asked = replay.read, notes.marks, self._runs[run_id][1]
        last_seq, last_at, previous = None, float("-inf"), b""
        for seq, at, kind, node, iteration, execution, attempt, salt, body, digest in source.events(run):
            if last_seq is None:
                last_seq, previous = self._beginning(run, seq, body, snapshots, replay, say)
            if seq != last_seq + 1:
                say(
                    "I1",
                    f"the log has event {seq} right after event {last_seq}: seqs must grow by one",
                    seq,
                )
            if at < last_at:
                say("I1", f"the event has the time {at!r}, but the event before it {last_at!r}", seq)
            last_seq, last_at = seq, at
            header = f"{run_id}\n{seq}\n{at!r}\n{kind}\n{node or ''}\n{iteration}\n{execution}\n{attempt}\n"
            previous = sha256(previous + header.encode() + sha256(salt + body).digest()).digest()
            if previous != digest:
                say(
                    "I12",
                    f"the hash chain is broken: {kind} or an event before it was changed after it was written",
                    seq,
                )
                previous = digest
            fields = self._open(body, seq, say) if body else {}
            try:
                read(seq, at, kind, (node or "", iteration, execution, attempt), fields)
            except (TypeError, ValueError, LookupError, AttributeError) as fault:
                say("I2", f"{kind} has fields that no event of this kind can have ({fault!r})", seq)
            if seq in snapshots:
                self._snapshot(snapshots.pop(seq), replay.now, say)
            if marks:
                notes.mark(seq, kind, salt, digest, fields)
            if kind in Refusals.KINDS:
                asked.note(seq, kind, fields)
            if secrets:
                self._look_for_secrets(unpack(body), kind, run_id, seq)
        replay.end()
        _end_of_the_log(run, last_seq, previous, snapshots, say)
        return replay

    def _shape(self, fingerprint: str) -> CheckedFlow | None:
        """Return what the definition with this fingerprint says; None if the store does not have it, or it cannot be read."""
        if fingerprint not in self._shapes:
            for name, body in {fingerprint: b"", **self._source.definitions({fingerprint})}.items():
                try:
                    self._shapes[name] = shape_of(body) if body else None
                except (ValueError, LookupError, TypeError, AttributeError):
                    self._shapes[name] = None
        return self._shapes[fingerprint]

    def _beginning(
        self,
        run: RunFacts,
        first: int,
        body: bytes,
        snapshots: dict[int, SnapshotFacts],
        replay: Replay,
        say: Callable[..., None],
    ) -> tuple[int, bytes]:
        """Return the seq and the digest that the first event continues from: those of the base if the log was compacted or
        forked, otherwise 0 and no digest.
        """
        if first == 1:
            return 0, b""
        base = snapshots.pop(first - 1, None)
        if base is None or not base.base:
            say("I13", f"the log begins with event {first}, but no base replaces the events before it", first)
            return first - 1, b""
        snapshot = self._open(base.body, base.seq, say)
        compacted = self._source.base(run)
        promised = compacted.hex() if compacted else self._open(body, first, say).get("base_digest")
        if promised != sha256(base.body).hexdigest():
            say(
                "I12",
                "the base is not the one that was stored when the log was compacted or forked",
                base.seq,
            )
        last_folded = told_by(snapshot).get("seq", 0)
        if last_folded != base.seq:
            say(
                "I13",
                f"the base replaces the events up to {last_folded}, but the log continues after event {base.seq}",
                base.seq,
            )
        replay.begin_from(base.seq, snapshot)
        return base.seq, base.digest

    def _open(self, body: bytes, seq: int, say: Callable[..., None]) -> Line:
        """Decode the stored data of an event or a snapshot, with the values of its blobs. Report blobs that are missing and
        data that cannot be read.
        """
        try:
            if (
                body[:2] == b'{"' and body[2:3] != b"$"
            ):  # fast path for nearly every body: not compressed, without blobs
                plain: Line = _decode(body.decode())
                return plain
            fields, missing = open_body(body, self._source)
        except (ValueError, LookupError, TypeError) as fault:
            say("I12", f"the stored data cannot be read: {fault}", seq)
            return {}
        for digest in missing:
            say(
                "I13",
                f"the stored data refers to the blob {digest[:12]}…, which is missing or was changed",
                seq,
            )
        return fields

    def _snapshot(self, snapshot: SnapshotFacts, now: RewindableState, say: Callable[..., None]) -> None:
        """Check that a snapshot is the state of the run after the events up to its seq."""
        fields = self._open(snapshot.body, snapshot.seq, say)
        if not fields:
            return
        if self._secrets:
            self._look_for_secrets(json.dumps(fields).encode(), "a snapshot", None, snapshot.seq)
        kept = standing_of(fields)
        last_folded = told_by(fields).get("seq", 0)
        if last_folded != snapshot.seq:
            say(
                "I2",
                f"the snapshot is stored for event {snapshot.seq}, but has the state after event {last_folded}",
                snapshot.seq,
            )
        for part in (
            "status",
            "values",
            "arrivals",
            "fingerprint",
            "state_version",
            "open",
            "failed",
            "aside",
            "lineage",
            "origin",
            "plan",
            "routes",
            "budget",
            "scope",
        ):
            mine, theirs = getattr(now, part), getattr(kept, part)
            if mine != theirs:
                say(
                    "I2",
                    f"the snapshot has {part} {_short(theirs)}, but by the events it is {_short(mine)}",
                    snapshot.seq,
                )
        children, stored_children = (
            {
                run: (child.node, child.ended, child.is_final, child.cancels)
                for run, child in one.children.items()
            }
            for one in (now, kept)
        )
        if children != stored_children:
            text = f"the snapshot has the children {_short(stored_children)}, but by the events they are {_short(children)}"
            say("I2", text, snapshot.seq)
        statuses = {name: visit.status for name, visit in now.nodes.items() if visit.status}
        stored = {name: visit.status for name, visit in kept.nodes.items()}
        if statuses != stored:
            say(
                "I2",
                f"the snapshot has the nodes {_short(stored)}, but by the events they are {_short(statuses)}",
                snapshot.seq,
            )

    def _look_for_secrets(self, text: bytes, where: str, run_id: str | None, seq: int | None) -> None:
        for secret in self._secrets:
            if secret in text:
                text_found = f"a secret ({secret.decode()[:4]}…) is stored in {where}"
                self.violations.append(Violation("I15", run_id, seq, text_found))

    # --- the store --------------------------------------------------------------------------------------

    def store_as_a_whole(self, *, at_end: bool) -> None:
        """Check the flow definitions, the requests, events whose run does not exist, and the lines of the witness file that
        belong to no stored run.
        """
        say = self._say
        for key, first, count in self._source.strangers():
            say("I13", None, first, f"the store has {count} events of a run that does not exist (key {key})")
        definitions = self._source.definitions(set(self._fingerprints))
        for fingerprint, run_id in self._fingerprints.items():
            if fingerprint and fingerprint not in definitions:
                say(
                    "I12",
                    run_id,
                    None,
                    f"the definition of the run's flow ({fingerprint[:12]}) is not in the store",
                )
        for fingerprint, body in definitions.items():
            self._look_for_secrets(body, f"the definition {fingerprint[:12]}", None, None)
        self._requests(at_end=at_end)
        self._check_lineages()
        self._check_origins()
        for run_id, seen in self._seen.runs.items():
            if run_id not in self._runs:
                testimony.check_missing_run(run_id, seen, say)
        testimony.check_others(self._seen.others, self._seen.runs, self._lineages, say, at_end=at_end)

    def _requests(self, *, at_end: bool) -> None:
        """Check the requests in the inbox, and that the inbox has every request that, according to the witness file, was
        acknowledged.
        """
        inboxes: dict[str, dict[str, StoredRequest]] = {}
        for asked in self._source.inbox():
            run, _ = self._runs.get(asked.run_id or "", (None, None))
            if run is None:
                self._say("I13", None, None, f"the request {asked.id!r} belongs to a run that does not exist")
                continue
            inboxes.setdefault(run.run_id, {})[asked.id] = asked
            if asked.taken > run.seq:
                text = (
                    f"the request {asked.id!r} is marked as recorded by an event that the log does not have"
                )
                self._say("I9", run.run_id, asked.taken, text)
            elif at_end and not asked.taken and run.status not in FINAL:
                self._say(
                    "L3", run.run_id, None, f"the request {asked.id!r} ({asked.verb}) is still in the inbox"
                )
            self._look_for_secrets(asked.body, f"the request {asked.id!r}", run.run_id, None)
        check_families(self._families, self._runs.keys(), inboxes, self._say, at_end=at_end)
        for run_id, (run, log) in self._runs.items():
            inbox = inboxes.get(run_id, {})
            if inbox or log.refused:
                is_compacted = self._source.base(run) is not None
                check_requests(run, [*inbox.values()], log, self._say, is_compacted=is_compacted)
        for run_id, seen in self._seen.runs.items():
            for line in seen.get("asked", ()):
                if line["id"] not in inboxes.get(run_id, {}):
                    text = f"the request {line['id']!r} was acknowledged, but the inbox does not have it"
                    self._say("I9", run_id, None, text)

    def _check_lineages(self) -> None:
        """Check that a fork has the idempotency keys of its parent, or its own (invariant I8 in docs/testing.md)."""
        for run_id, lineage in self._lineages.items():
            parent = self._runs[run_id][0].parent
            if parent in self._runs and lineage != (of_parent := self._lineages.get(parent, parent)):
                text = f"the fork has the idempotency keys of run {lineage!r}, but its parent those of {of_parent!r}"
                self._say("I8", run_id, None, text)

    def _check_origins(self) -> None:
        """Check that no run was started by itself, or by a run that it has started (invariant I16 in docs/testing.md). A run that
        has started another may be deleted before it.
        """
        seen: set[str] = set()
        for run_id in self._runs:
            path: list[str] = []
            at: str | None = run_id
            while at in self._runs and at not in seen and at not in path:
                path.append(at)
                at = self._runs[at][0].origin
            if at in path:
                self._say(
                    "I16",
                    at,
                    None,
                    f"the run was started by itself, or by a run that it started: {path[-1]!r}",
                )
            seen.update(path)

    def leftovers(self, store: Place) -> None:
        """Check that no large write-ahead log is left beside the SQLite file (invariant L3 in docs/testing.md)."""
        path = store if isinstance(store, (str, os.PathLike)) else getattr(store, "path", None)
        wal = f"{path}-wal"
        if path is not None and os.path.exists(wal) and os.stat(wal).st_size > WAL_BYTES_MAX:
            self._say(
                "L3",
                None,
                None,
                f"the write-ahead log still has {os.stat(wal).st_size:,} bytes (at most {WAL_BYTES_MAX:,})",
            )

    def _say(self, invariant: str, run_id: str | None, seq: int | None, text: str) -> None:
        self.violations.append(Violation(invariant, run_id, seq, text))


def _rewind_targets(source: Source, run: RunFacts) -> frozenset[int]:
    """Return the seqs of the events that rewinds of the run go back to."""
    found = set()
    for _, body in source.rewinds(run):
        try:
            found.add(open_body(body, source)[0].get("to", 0))
        except ValueError:
            continue  # reported when the event itself is read
    return frozenset(found)


def _end_of_the_log(
    run: RunFacts,
    last: int | None,
    digest: bytes,
    snapshots: dict[int, SnapshotFacts],
    say: Callable[..., None],
) -> None:
    if last != run.seq:
        say("I1", f"the log ends at event {last or 0}, but the run row says event {run.seq}", last)
    elif digest != run.digest:
        say("I12", "the digest in the run row is not that of the last event", last)
    for seq in snapshots:
        say("I13", "a snapshot is stored for an event that the log does not have", seq)


def _compare_row(run: RunFacts, replay: Replay, say: Callable[..., None]) -> None:
    """Check that the row of a run agrees with its log (invariants I2 and I3 in docs/testing.md)."""
    now = replay.now
    rewinds = [pair for pair in run.rewinds if pair[0] > replay.base]
    columns = {
        "status": (run.status, now.status),
        "flow": (run.flow, now.flow),
        "labels": (run.labels, now.labels),
        "parent": (run.parent, now.parent),
        "origin": (run.origin, now.origin),
        "created_at": (run.created_at, now.created_at),
        "updated_at": (run.updated_at, replay.at),
        "state_version": (run.state_version, now.state_version),
        "active": (list(run.active), list(now.open)[:5]),
        "rewinds": (rewinds, replay.rewinds),
        "an error": (run.error is not None, now.failed_with is not None),
    }
    if run.asks is not None:
        columns |= _listed(run, now)
    for name, (row, log) in columns.items():
        if row != log:
            say("I2", f"the run row has {name} {_short(row)}, but by the log it is {_short(log)}", replay.seq)
    if not replay.take_ups and now.status == "pending" and run.due_at != replay.begin_at:
        text = f"the run row says that the run begins at {run.due_at!r}, but by the log it is {replay.begin_at!r}"
        say("I2", text, replay.seq)
    if run.fingerprint != now.fingerprint:
        say(
            "I12",
            f"the run row has flow {run.fingerprint[:12]}, but by the log it is {now.fingerprint[:12]}",
            replay.seq,
        )
    if len(replay.take_ups) > run.fence:
        say(
            "I3",
            f"the run was claimed {len(replay.take_ups)} times, each time with a higher fence, but its fence is only {run.fence}",
            replay.seq,
        )


def _listed(run: RunFacts, now: RewindableState) -> dict[str, tuple[Any, Any]]:
    """Return what a listing shows of a run: as its row has it, and as it is by the log."""
    told = run.situation
    columns: dict[str, tuple[Any, Any]] = {
        "open questions": (run.asks, len(now.questions)),
        "active seconds": (round(run.active_s or 0.0, 3), round(now.active_s, 3)),
    }
    if not told.get("cut"):
        running = [name for name in now.open if now.nodes[name].status == "running"]
        waits = [(wait.get("signal"), wait.get("until")) for wait in now.waits.values()]
        columns |= {
            "running nodes": (told.get("running", run.active), running[:5]),
            "questions": ([one["key"] for one in told.get("questions", ())], list(now.questions)[:3]),
            "waits": ([(one.get("signal"), one.get("until")) for one in told.get("waits", ())], waits[:5]),
        }
    return columns


def _require_over_or_waiting(
    run: RunFacts, now: RewindableState, at: float | None, say: Callable[..., None]
) -> None:
    """Check that a run has ended or waits for something, and that no engine holds its lease (invariants L1 and L3 in
    docs/testing.md).
    """
    overdue = run.due_at is not None and at is not None and run.due_at <= at
    is_early = run.status == "pending" and run.due_at is not None and not overdue
    signals = any(wait.get("signal") or wait.get("child") for wait in now.waits.values())
    if is_early:
        pass  # the run begins at a time, and waits for it
    elif run.status in ("pending", "running", "interrupted"):
        say("L1", f"the run is still {run.status}, but should have ended or wait for something", run.seq)
    elif run.status == "waiting" and overdue:
        say("L1", f"the run was due at {run.due_at!r}, but no worker has claimed it", run.seq)
    elif run.status == "waiting" and not now.questions and not signals and run.due_at is None:
        say(
            "L1",
            "the run is waiting, but has no question, no awaited signal, no child and no timer",
            run.seq,
        )
    if run.holder is not None:
        say("L3", f"the run is {run.status}, but engine {run.holder!r} still holds its lease", run.seq)


def _meaning(source: Source, run: RunFacts) -> Iterable[tuple[object, ...]]:
    for seq, _, kind, node, iteration, execution, attempt, _, body, _ in source.events(run):
        yield seq, kind, node, iteration, execution, attempt, unpack(body)


def _first_difference(
    run_id: str, one: Iterable[tuple[object, ...]], other: Iterable[tuple[object, ...]]
) -> list[Violation]:
    left, right = list(one), list(other)
    for mine, theirs in zip(left, right, strict=False):
        if mine != theirs:
            text = f"one store has {_short(mine[1:])}, the other {_short(theirs[1:])}"
            return [Violation("I14", run_id, int(str(mine[0])), text)]
    if len(left) != len(right):
        text = f"one store has {len(left)} events, the other {len(right)}"
        return [Violation("I14", run_id, min(len(left), len(right)) + 1, text)]
    return []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a store from the command line. Return the exit code: 0 without violations, 1 with violations, 6 if the store cannot
    be read, 2 for wrong arguments; the last two are the exit codes of the `holdfast` command.
    """
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.checker",
        description="Check the invariants of a store, and print every violation.",
    )
    parser.add_argument("store", help="path of a SQLite file, or the URL of a store")
    parser.add_argument(
        "--witness",
        help="path of a file that holdfast.testing.Witness wrote: also check that the logs agree with it",
    )
    parser.add_argument(
        "--at-end",
        action="store_true",
        help="also require that every run has ended, or waits for an answer, a signal or a time",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        help="text that must not occur anywhere in the store; may be given several times",
    )
    given = parser.parse_args(arguments)
    if given.witness is not None and not os.path.exists(given.witness):
        parser.error(f"there is no witness file at {given.witness}")
    try:
        found = check(given.store, given.witness, at_end=given.at_end, secrets=given.secret)
    except HoldfastError as fault:
        sys.stderr.write(f"error: {fault}\n")
        return UNREADABLE if isinstance(fault, StoreError) else USAGE
    for violation in found:
        sys.stdout.write(f"{violation}\n")
    counted = f"{len(found) or 'no'} violation{'' if len(found) == 1 else 's'}"
    sys.stdout.write(f"{_without_password(given.store)}: {counted}\n")
    return 1 if found else 0


def _without_password(store: str) -> str:
    """Return a path as it is, and a URL without its password."""
    if "://" not in store:
        return store
    from holdfast.storage import urls

    return urls.shown(store)


if __name__ == "__main__":
    sys.exit(main())
