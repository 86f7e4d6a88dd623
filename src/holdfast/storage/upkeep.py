"""The upkeep of a store: retire, compact, delete, sweep, back up. Every store passes `holdfast.testing.upkeep`.

Which run is no longer wanted, and what still needs it, is decided in `holdfast.upkeep.retention`; nothing here knows events.
Every verb is one small transaction that leaves a store in which each run can be read and resumed:

- A log is *trimmed* in two ways. Its older checkpoints are retired: no run can go back to them, the events stay. Or it is
  compacted: a base replaces the events up to its place, and `Store.events` begins after it.
- The events that a compaction or a deletion makes obsolete are invisible at once, and removed by `sweep`, a piece at a time: a
  log of a million events blocks no other process. A crash in between leaves the rest to the next sweep.
- Nothing that is written here can race with a holder: a compaction needs the lease, a deletion needs that no engine has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from holdfast.errors import FenceLost, ResumeRefused, SeqConflict

PIECE = 2000
"""Events that one sweep removes."""


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken from a log."""

    retired: int = 0
    """The run can no longer go back to checkpoints before this place."""
    retired_at: float = 0.0
    base: int = 0
    """The log begins after this place; 0: it was never compacted."""
    base_at: float = 0.0
    base_digest: bytes = b""
    """sha256 of the base as stored."""
    place: str = ""
    """Where the log was archived before it was compacted; empty: nowhere."""


WHOLE = Trimmed()


class Kept(msgspec.Struct, frozen=True):
    """A snapshot without its body."""

    seq: int
    base: bool
    size: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store reports about itself; None: that does not apply, or cannot be seen from here."""

    kind: str
    now: float
    """Its own clock, asked just now."""
    schema_version: int | None = None
    schema_known: int | None = None
    size_bytes: int | None = None
    log_bytes: int | None = None
    """The write-ahead log beside it; of a server, what the slowest replication slot keeps of it."""
    free_bytes: int | None = None
    settings: dict[str, str] = {}
    unswept: int = 0
    """Logs of which a compaction or deletion has left something to sweep."""


class Upkeep(Protocol):
    """The methods of a store that keep a store small and intact. They are synchronous, may be called from any thread, and raise
    the errors that every method of a store may raise.
    """

    def trimmed(self, run_id: str) -> Trimmed:
        """What was taken from the log of a run; `WHOLE` also where there is no such run."""

    def snapshots(self, run_id: str) -> list[Kept]:
        """The snapshots of a run, oldest first. Raises `RunNotFound`."""

    def referring(self, run_id: str, after: int = 0, limit: int = PIECE) -> list[tuple[int, bytes]]:
        """Events after a place whose bodies may refer to blobs, in order: seq, and the body as stored. Those that do are among
        them, and those that are compressed, which must be opened to see that; none of a run that is not there.
        """

    def retire(self, run_id: str, before: int, drop: Collection[int] = ()) -> None:
        """Retire the checkpoints before a place, and drop these snapshots; a base stays. A place before the one that is known
        already changes nothing. Raises `RunNotFound`.
        """

    def compact(
        self,
        run_id: str,
        seq: int,
        *,
        body: bytes,
        digest: bytes,
        holder: str,
        fence: int,
        place: str = "",
    ) -> None:
        """Let a base (its stored fold, and the chain there) replace the events up to `seq`, all of them below the end of the
        log; earlier snapshots go. Raises `RunNotFound`, `FenceLost`, `SeqConflict`.
        """

    def delete(self, run_id: str, seq: int) -> None:
        """Remove a run whose log still ends at `seq`, with everything that is its own; its blobs are left to the caller, who
        knows what else refers to them. Raises `RunNotFound`, `RunHeld`, `SeqConflict`, and `ResumeRefused` where another run
        names it as its parent, or where it can still be resumed and a request waits in its inbox: the sender relies on it.
        """

    def sweep(self, limit: int = PIECE) -> int:
        """Remove up to so many events that compactions and deletions have left: how many there were. 0: nothing is left."""

    def fingerprints(self) -> list[str]:
        """Of every definition that is kept, in order."""

    def drop_definitions(self, fingerprints: Collection[str]) -> int:
        """Drop these definitions, unless the row of a run names them: how many went."""

    def adopt(
        self, run_id: str, trimmed: Trimmed, definitions: Mapping[str, bytes], *, fence: int = 0
    ) -> None:
        """Keep what belongs to a run that was put back from an archive: definitions by fingerprint, and what was taken from its
        log before. A run that no engine holds has that fence from then on, where its own is lower: as many were granted
        in the store it comes from. If the run is not there yet, only the definitions are kept.
        """

    def facts(self) -> Facts:
        """How the store is, for `holdfast doctor`."""

    def backup(self, file: str, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Write a copy of the whole database, as it is at one moment, to a new file, while runs go on. `progress` is called with
        how much is done, and of how much. Blobs outside of the database are not in it. Raises `SettingError` where the
        file exists or the database's own means are missing.
        """


# --- what is refused, in the same words by every store ---------------------------------------------------


def refuse_compaction(
    run_id: str, seq: int, *, base: int, end: int, held: tuple[str | None, int], by: tuple[str, int]
) -> None:
    """Refuse a base for the events up to `seq` unless that is within a log that begins after `base` and ends at `end`."""
    if held != by:
        who = f"engine {held[0]!r} holds it with fence {held[1]}" if held[0] else "no engine holds it"
        raise FenceLost(
            f"run {run_id!r} was not compacted: engine {by[0]!r} does not hold it with fence {by[1]}, {who}. Try again."
        )
    if not base < seq < end:
        raise SeqConflict(
            f"run {run_id!r} was not compacted: event {seq} must come after event {base}, where its log begins, "
            f"and before event {end}, where it ends. Load the run again."
        )


def refuse_deletion(run_id: str, *, seq: int, end: int, child: str | None, asked: str | None) -> None:
    """Refuse to delete a run that changed, has a child (`child`: a fork of it) or a waiting request (`asked`: its verb)."""
    if seq != end:
        raise SeqConflict(
            f"run {run_id!r} was not deleted: its log ends at {end}, not at {seq}. Another process has resumed "
            "it; look at the run again."
        )
    if child is not None:
        raise ResumeRefused(
            run_id,
            f"run {child!r} was forked from it and needs its events. Delete {child!r} first.",
            asked="deleted",
        )
    if asked is not None:
        raise ResumeRefused(
            run_id,
            f"a request ({asked}) waits in its inbox. A worker that knows its flow carries it out, or `holdfast "
            f"resume {run_id}`; cancel the run if it is no longer needed.",
            asked="deleted",
        )
