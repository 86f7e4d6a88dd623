"""Check a disk after a crash, in a process that knows only the disk and the reports of the process that died.

- The store opens; its pages, its indexes and every run in it are sound.
- Every acknowledged fact is there.
- The facts of one verb are all there, or none of them is.
- A fact that was refused as "not written" is not there. Only `StorePoisoned` leaves the outcome open.
- A refusal is an error of Holdfast, with a message that names the store.
- A file with its final name is complete, whether it was acknowledged or not.

`inspect` returns a sentence for each problem; an empty list means that the disk is as it must be.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec
from hands import ARCHIVES, COPY, DAY_S, FORKS, RUNS, STORE, Fact, values_of
from processes import Known, contents, digest

import holdfast.errors
from holdfast.documents import scribe
from holdfast.errors import (
    HoldfastError,
    RunExists,
    RunNotFound,
    RunOver,
    StoreCorrupt,
    StoreError,
)
from holdfast.reading import history, verification
from holdfast.storage.contract import Query
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import checker
from holdfast.upkeep import archive

OUTCOME_OPEN = frozenset({"StorePoisoned"})
WRITTEN_ONCE = frozenset({
    "row", "snapshot", "fence", "request", "taken", "unmet", "retired", "base", "deleted",
})  # fmt: skip
"""Kinds of facts that only one verb makes true: if the verb was refused, they must not hold."""
LATER = 1_700_000_000.0 + 1_000 * DAY_S


@dataclass
class Verb:
    name: str
    facts: list[Fact]
    also: list[Fact]
    ended: str = ""
    """`done`, the name of the error with which the verb was refused, or empty if the process died before the verb ended."""
    message: str = ""


@dataclass
class Account:
    """The reports of one process: the verbs that it called, and how they ended."""

    verbs: list[Verb] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        words = msgspec.json.decode(line)
        if "verb" in words:
            self.verbs.append(Verb(words["name"], words["facts"], words["also"]))
        elif "done" in words:
            self.verbs[words["done"]].ended = "done"
        elif "refused" in words:
            verb = self.verbs[words["refused"]]
            verb.ended, verb.message = words["error"], words["message"]
        else:
            self.defects.append(words["defect"])

    @classmethod
    def of(cls, lines: Iterable[str]) -> Account:
        account = cls()
        for line in lines:
            account.hear(line)
        return account

    @property
    def acknowledged(self) -> int:
        return sum(verb.ended == "done" for verb in self.verbs)

    @property
    def refused(self) -> int:
        return sum(verb.ended not in ("done", "") for verb in self.verbs)


def inspect(disk: Path, accounts: list[Account]) -> list[str]:
    """Return the problems of a disk, given the reports of the processes that wrote to it."""
    problems = [defect for account in accounts for defect in account.defects]
    problems += [line for account in accounts for verb in account.verbs for line in _of_refusal(verb)]
    problems += _of_files(disk, [verb for account in accounts for verb in account.verbs])
    if not (disk / STORE).exists() and not any(
        verb.ended == "done" and verb.name == "open" for account in accounts for verb in account.verbs
    ):
        return problems
    try:
        store = SqliteStore(disk / STORE, clock=lambda: LATER)
    except HoldfastError as fault:
        return [*problems, f"the store does not open: {type(fault).__name__}: {fault}"]
    try:
        problems += _of_store(store)
        problems += _of_copy(disk / COPY)
        truth = Truth(store, disk)
        verbs = [verb for account in accounts for verb in account.verbs]
        for index, verb in enumerate(verbs):
            problems += _of_verb(truth, verb, verbs[index + 1 :])
    except HoldfastError as fault:
        problems.append(f"the store cannot be read: {type(fault).__name__}: {fault}")
    finally:
        store.close()
    return problems


def inspect_end(disk: Path, *, files: bool, asks: bool) -> list[str]:
    """Return the problems of a disk after all runs were resumed: the store must be sound, the runs must have ended as expected,
    and (with `asks`) every request to them was carried out or refused, or is unmet.
    """
    store = SqliteStore(disk / STORE, clock=lambda: LATER)
    try:
        problems = _of_store(store)
        for run in store.runs(Query())[:2]:
            problems += _of_end(store, run.run_id)
            if files:
                problems += _of_receipts(store, disk, run.run_id)
        if asks:
            problems += [str(violation) for violation in checker.check(store)]
    finally:
        store.close()
    return problems


# --- the parts ---------------------------------------------------------------------------------------


def _of_refusal(verb: Verb) -> list[str]:
    if verb.ended in ("", "done") or verb.name == "files":
        return []
    kind = getattr(holdfast.errors, verb.ended, None)
    if kind is None or not issubclass(kind, (StoreError, RunExists, RunNotFound, RunOver)):
        return [f"{verb.name} was refused with {verb.ended}, which is not a StoreError: {verb.message}"]
    if issubclass(kind, StoreCorrupt) or "defect in Holdfast" in verb.message:
        return [f"{verb.name} on a failing disk wrongly raises {verb.ended}: {verb.message}"]
    if kind in _OF_THE_DISK and not any(place in verb.message for place in (STORE.name, ARCHIVES.name)):
        return [f"{verb.name}: the message of {verb.ended} does not name the store: {verb.message}"]
    return []


_OF_THE_DISK = (holdfast.errors.StoreFull, holdfast.errors.StorePoisoned, holdfast.errors.StoreUnusable)


def _of_files(disk: Path, verbs: list[Verb]) -> list[str]:
    """Check that every file with its final name is complete: it has a content that a process was about to write."""
    told: dict[str, set[str]] = {}
    for kind, *words in (fact for verb in verbs for fact in verb.also):
        if kind == "file":
            told.setdefault(words[0], set()).add(words[1])
    found = {name: disk / name for name in told if (disk / name).exists()}
    return [
        f"{name} is not complete: its content is not what any process wrote there"
        for name, file in found.items()
        if hashlib.sha256(file.read_bytes()).hexdigest() not in told[name]
    ]


sound = Known()
"""The contents of stores that were found sound. Many disks have the same content for SQLite; it is checked once."""


def _of_store(store: SqliteStore) -> list[str]:
    held = _held(store)
    if held is not None and held in sound:
        return []
    problems = [f"check: {line}" for line in store.check()]
    # A log that is being put back from an archive is incomplete, and its run row says so; it must be complete in the end.
    for run in (run for run in store.runs(Query()) if run.error != archive._UNFINISHED):
        verdict = verification.verify(store, run.run_id)
        problems += [f"verify {run.run_id}: {line}" for line in verdict.problems]
    if held is not None and not problems:
        sound.add(held)
    return problems


def _held(store: SqliteStore) -> str | None:
    """Return a digest of every page that SQLite reads, and of every blob; None if SQLite cannot read them all."""
    try:
        pages = store._database._readers.idle[0].serialize("main")
    except apsw.Error:
        return None
    blobs = digest(contents(Path(f"{store.path}.blobs")))
    return hashlib.sha256(hashlib.sha256(pages).digest() + blobs.encode()).hexdigest()


_copies: dict[bytes, list[str]] = {}
"""Digest of a backup -> its problems. The same backup is on many disks; it is checked once."""


def _of_copy(copy: Path) -> list[str]:
    """Check that a backup with its final name is complete."""
    if not copy.exists():
        return []
    content = copy.read_bytes()
    known = hashlib.sha256(content).digest()
    if known not in _copies:
        with tempfile.TemporaryDirectory(dir=copy.parent.parent) as folder:
            alone = Path(folder) / copy.name
            alone.write_bytes(content)
            _copies[known] = _of_alone(alone)
    return _copies[known]


def _of_alone(copy: Path) -> list[str]:
    store = SqliteStore(copy, clock=lambda: LATER)
    try:
        lacks = [] if store.runs(Query()) else ["it has no runs"]
        return [f"the backup: {line}" for line in _of_store(store) + lacks]
    finally:
        store.close()


def _of_verb(truth: Truth, verb: Verb, later: list[Verb]) -> list[str]:
    if verb.ended == "done":
        expected = [*verb.facts, *verb.also]
        return [
            f"{verb.name} was acknowledged, but not on the disk: {fact}"
            for fact in expected
            if not truth.holds(fact, later)
        ]
    own = [
        fact
        for fact in verb.facts
        if fact[0] in WRITTEN_ONCE
        and not any(fact in one.facts for one in later)
        # A worker may have taken the run later, which raises its fence too.
        and not (fact[0] == "fence" and any(one.name == "take" for one in later))
    ]
    there = [fact for fact in own if truth.holds(fact, later)]
    if there and len(there) < len(own):
        lacks = next(fact for fact in own if fact not in there)
        return [f"only a part of {verb.name} is on the disk: {there[0]}, but not {lacks}"]
    if there and verb.ended and verb.ended not in OUTCOME_OPEN:
        return [f"{verb.name} was refused with {verb.ended} ({verb.message}), but is on the disk: {there[0]}"]
    return []


def _of_end(store: SqliteStore, run_id: str) -> list[str]:
    state = history.load(store, run_id)
    problems = []
    if state.status != "completed":
        problems.append(f"run {run_id} was resumed, but is {state.status}")
    expected = values_of(FORKS.get(run_id, run_id))
    if state.values != expected:
        problems.append(f"run {run_id} ended with a wrong state")
    seen: set[tuple[str, int]] = set()
    for row in store.events(run_id, kinds=["NodeCompleted"]):
        event = open_row(row, store.blobs).event
        if (event.node, event.iteration) in seen:
            problems.append(f"run {run_id}: node {event.node} completed twice")
        seen.add((event.node, event.iteration))
    return problems


def _of_receipts(store: SqliteStore, disk: Path, run_id: str) -> list[str]:
    rebuilt = scribe.rebuild(disk / RUNS, store, run_id)
    return [
        f"receipts of {run_id}: {kind} {names}"
        for kind in ("missing", "torn", "different")
        if (names := getattr(rebuilt, kind))
    ]


# --- facts -------------------------------------------------------------------------------------------


class Truth:
    """Decides whether a fact is true on a disk."""

    def __init__(self, store: SqliteStore, disk: Path) -> None:
        self._store = store
        self._disk = disk

    def holds(self, fact: Fact, later: list[Verb]) -> bool:
        """Return whether a fact is true. `later` are the verbs that were called afterwards, which may have replaced it."""
        kind, *words = fact
        return bool(_HOLDS[kind](self, later, *words))

    def one(self, sql: str, *values: Any) -> Any:
        found = self._store._database.select(sql, values)
        return found[0][0] if found else None

    def run(self, run_id: str) -> Any:
        try:
            return self._store.run(run_id)
        except RunNotFound:
            return None

    def row(self, later: list[Verb], run_id: str, seq: int, salt: str) -> bool:
        return self._store.appended(run_id, seq, bytes.fromhex(salt)) or self._is_over(later, run_id, seq)

    def _is_over(self, later: list[Verb], run_id: str, seq: int) -> bool:
        """Return whether a later deletion or compaction has removed this event."""
        for fact in (fact for verb in later for fact in verb.facts):
            if fact == ["deleted", run_id] or (fact[:2] == ["base", run_id] and seq <= fact[2]):
                return self.holds(fact, [])
        return False

    def retired(self, later: list[Verb], run_id: str, before: int) -> bool:
        return self._store.upkeep.trimmed(run_id).retired >= before

    def base(self, later: list[Verb], run_id: str, seq: int) -> bool:
        return self._store.upkeep.trimmed(run_id).base >= seq

    def deleted(self, later: list[Verb], run_id: str) -> bool:
        return self.run(run_id) is None

    def limit(self, later: list[Verb], queue: str, limit: int) -> bool:
        return any((found.name, found.limit) == (queue, limit) for found in self._store.queues.queues())

    def copy(self, later: list[Verb], name: str) -> bool:
        return (self._disk / name).exists()

    def snapshot(self, later: list[Verb], run_id: str, seq: int) -> bool:
        dropped = any(verb.name in ("retire", "compact", "delete") for verb in later)
        return dropped or (
            self.run(run_id) is not None and self._store.snapshot(run_id, [(seq, seq)]) is not None
        )

    def definition(self, later: list[Verb], fingerprint: str) -> bool:
        return self._store.definition(fingerprint) is not None

    def fence(self, later: list[Verb], run_id: str, fence: int) -> bool:
        run = self.run(run_id)
        return run is not None and run.fence >= fence

    def free(self, later: list[Verb], run_id: str, holder: str, fence: int) -> bool:
        run = self.run(run_id)
        return run is None or run.fence > fence or run.holder is None or run.holder.id != holder

    def until(self, later: list[Verb], holder: str, expires_at: float) -> bool:
        """Return whether a lease lasts until this time, or was replaced. Later processes may drop an expired holder."""
        found = self.one("select expires_at from holders where id = ?1", holder)
        replaced = any(verb.name in ("renew", "claim", "give back") for verb in later)
        return replaced if found is None else found >= expires_at

    def gone(self, later: list[Verb], holder: str) -> bool:
        return self.one("select 1 from holders where id = ?1", holder) is None

    def request(self, later: list[Verb], run_id: str, request: str) -> bool:
        sql = "select 1 from inbox join runs on runs.key = inbox.run where runs.run_id = ?1 and id = ?2"
        return self.one(sql, run_id, request) is not None

    def taken(self, later: list[Verb], run_id: str, request: str) -> bool:
        sql = "select taken from inbox join runs on runs.key = inbox.run where runs.run_id = ?1 and id = ?2"
        return bool(self.one(sql, run_id, request))

    def unmet(self, later: list[Verb], run_id: str, request: str) -> bool:
        sql = "select unmet from inbox join runs on runs.key = inbox.run where runs.run_id = ?1 and id = ?2"
        return bool(self.one(sql, run_id, request))

    def version(self, later: list[Verb], version: int) -> bool:
        return self.one("pragma user_version") >= version

    def blob(self, later: list[Verb], digest: str) -> bool:
        try:
            return bool(self._store.blobs.get(digest))
        except StoreCorrupt:
            return any(["unwanted", digest] in verb.also for verb in later)

    def unwanted(self, later: list[Verb], digest: str) -> bool:
        """Return True: a blob that no run refers to may be missing, and may reappear after a power loss."""
        return True

    def archive(self, later: list[Verb], name: str) -> bool:
        """Return whether the archive exists and is complete."""
        try:
            return any(isinstance(part, archive.End) for part in archive.read(self._disk / ARCHIVES / name))
        except StoreError:
            return False

    def spill(self, later: list[Verb], run_id: str, key: str, length: int) -> bool:
        removed = any(verb.name == "unspill" for verb in later)
        return removed or len(self._store.blobs.spilled(run_id).get(key, b"")) >= length

    def file(self, later: list[Verb], name: str, digest: str) -> bool:
        wanted = {digest} | {
            fact[2] for verb in later for fact in verb.also if fact[0] == "file" and fact[1] == name
        }
        try:
            return hashlib.sha256((self._disk / name).read_bytes()).hexdigest() in wanted
        except FileNotFoundError:
            return False


_FACTS = (
    "row retired base deleted limit copy snapshot definition fence free until gone request taken unmet version blob unwanted "
    "archive spill file"
)
_HOLDS: dict[str, Callable[..., bool]] = {name: getattr(Truth, name) for name in _FACTS.split()}
