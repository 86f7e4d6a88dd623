"""The upkeep of a store: retire, compact, delete, sweep, back up. Every store passes `holdfast.testing.upkeep`.

`holdfast.upkeep.retention` decides which runs are no longer needed; this module knows nothing about events. Every method is one
small transaction, after which each run of the store can be read and resumed:

- A log is *trimmed* in two ways. Its older checkpoints are retired: the run cannot go back to them, but the events stay. Or it is
  compacted: a compaction base replaces the events up to its seq, and `Store.events` begins after it.
- The events that a compaction or a deletion makes obsolete are invisible at once, and `sweep` deletes them in batches, so that
  deleting a log of a million events blocks no other process. After a crash, the next sweep deletes the rest.
- Upkeep cannot race with a holder: a compaction needs the lease, and a deletion is refused while an engine has the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from holdfast.errors import FenceLost, HoldfastError, ResumeRefused, SeqConflict

PIECE = 2000
"""How many events one sweep deletes at most."""


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What upkeep has removed from the log of a run: retired checkpoints and compacted events."""

    retired: int = 0
    """The run can no longer go back to checkpoints before this seq."""
    retired_at: float = 0.0
    base: int = 0
    """The log begins after this seq; 0 if it was never compacted."""
    base_at: float = 0.0
    base_digest: bytes = b""
    """The sha256 of the stored compaction base."""
    place: str = ""
    """The archive to which the log was written before it was compacted; empty if it was not archived."""


WHOLE = Trimmed()


class Kept(msgspec.Struct, frozen=True):
    """A snapshot without its body."""

    seq: int
    base: bool
    size: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a store reports about itself. None means that a fact does not apply to this kind of store or is unknown."""

    kind: str
    now: float
    """The current time of the store's clock."""
    schema_version: int | None = None
    schema_known: int | None = None
    size_bytes: int | None = None
    log_bytes: int | None = None
    """The size of the write-ahead log; on a PostgreSQL server, how much of it the slowest replication slot keeps."""
    free_bytes: int | None = None
    settings: dict[str, str] = {}
    unswept: int = 0
    """How many runs have leftover events of a compaction or a deletion, which `sweep` will delete."""


class Upkeep(Protocol):
    """The methods of a store that keep a store small and intact. They are synchronous, may be called from any thread, and raise
    the errors that every method of a store may raise.
    """

    def trimmed(self, run_id: str) -> Trimmed:
        """Return what upkeep has removed from the log of a run: `WHOLE` if it has removed nothing, or if there is no such run."""

    def snapshots(self, run_id: str) -> list[Kept]:
        """Return the snapshots of a run, oldest first. Raises `RunNotFound`."""

    def referring(self, run_id: str, after: int = 0, limit: int = PIECE) -> list[tuple[int, bytes]]:
        """Return the events after a seq that may refer to blobs, in order, each as its seq and its stored body. The list has all
        events that refer to blobs. It may also have compressed events that do not, because only decompression would show that. It
        is empty if there is no such run.
        """

    def retire(self, run_id: str, before: int, drop: Collection[int] = ()) -> None:
        """Retire the checkpoints before a seq, and delete the snapshots in `drop`, but never a compaction base. If later
        checkpoints are retired already, only the snapshots are deleted. Raises `RunNotFound`.
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
        """Replace the events up to `seq`, which must be before the end of the log, by a compaction base: `body` is the snapshot
        at `seq`, `digest` the digest of that event. Earlier snapshots are deleted. Raises `RunNotFound`, `FenceLost`,
        `SeqConflict`.
        """

    def delete(self, ends: Mapping[str, int]) -> dict[str, HoldfastError]:
        """Delete runs, in this order and in one transaction, with everything that belongs only to them; `ends` has the seq at
        which the log of each must still end. Their blobs are left to the caller, who knows what else refers to them.

        Returns the refusals, by run; the other runs are deleted. A refusal is `RunNotFound`, `RunHeld`, `SeqConflict`, or
        `ResumeRefused` if another run still relies on the run: a run that was forked from it, the run that started it unless that
        is completed or cancelled, or the sender of a request that waits in its inbox. Runs that it started stay, and their
        `origin` names a run that is gone.
        """

    def sweep(self, limit: int = PIECE) -> int:
        """Delete up to `limit` leftover events of compactions and deletions, and return how many were deleted. Returns 0 if none
        are left.
        """

    def fingerprints(self) -> list[str]:
        """Return the fingerprints of all stored definitions, in order."""

    def drop_definitions(self, fingerprints: Collection[str]) -> int:
        """Delete the definitions with these fingerprints, except those that a run row refers to, and return how many were
        deleted.
        """

    def adopt(
        self, run_id: str, trimmed: Trimmed, definitions: Mapping[str, bytes], *, fence: int = 0
    ) -> None:
        """Store what belongs to a run that is restored from an archive: definitions by fingerprint, and what upkeep had removed
        from its log. If no engine holds the run, its fence is raised to `fence`, the last fence granted in the store that the run
        comes from. If the run does not exist yet, only the definitions are stored.
        """

    def facts(self) -> Facts:
        """Return facts about the state of the store, for `holdfast doctor`."""

    def backup(self, file: str, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Write a copy of the whole database, as it is at one moment, to a new file, while runs continue. `progress` is called
        with the amount done and the total. Blobs outside the database are not copied. Raises `SettingError` if the file exists
        or the database's own tool for backups is missing.
        """


# --- refusals, with the same messages in every store ---------------------------------------------------


def refuse_compaction(
    run_id: str, seq: int, *, base: int, end: int, held: tuple[str | None, int], by: tuple[str, int]
) -> None:
    """Refuse a compaction up to `seq` unless the caller (`by`) holds the lease and `seq` is within the log, which begins after
    `base` and ends at `end`.
    """
    if held != by:
        who = f"engine {held[0]!r} holds it with fence {held[1]}" if held[0] else "no engine holds it"
        raise FenceLost(
            f"run {run_id!r} was not compacted: engine {by[0]!r} does not hold it with fence {by[1]}, {who}. Try again."
        )
    if not base < seq < end:
        raise SeqConflict(
            f"run {run_id!r} was not compacted: its log has events {base + 1} to {end}, and a compaction up to event {seq} "
            "must replace at least one of them and leave at least one. Load the run again."
        )


def refuse_deletion(
    run_id: str,
    *,
    seq: int,
    end: int,
    fork: str | None,
    caller: tuple[str, str] | None,
    asked: str | None,
) -> None:
    """Refuse to delete a run that has changed, that was forked (`fork` is the id of the fork), that a run has started which is
    neither completed nor cancelled (`caller` is its id and status), or in whose inbox a request waits (`asked` is its verb).
    """
    if seq != end:
        raise SeqConflict(
            f"run {run_id!r} was not deleted: its log ends at {end}, not at {seq}, because another process has resumed "
            "it. Check whether the run may still be deleted."
        )
    if fork is not None:
        raise ResumeRefused(
            run_id,
            f"run {fork!r} was forked from this run and needs its events. Delete {fork!r} first.",
            asked="deleted",
        )
    if caller is not None:
        raise ResumeRefused(
            run_id,
            f"run {caller[0]!r} started this run and may still need it, because it is {caller[1]}. Wait until {caller[0]!r} is "
            f"completed, or cancel it with `holdfast cancel {caller[0]}`.",
            asked="deleted",
        )
    if asked is not None:
        raise ResumeRefused(
            run_id,
            f"a request ({asked}) waits in the inbox of this run. Handle it with `holdfast resume {run_id}` or with a worker "
            "that knows the flow, or cancel the run if it is no longer needed.",
            asked="deleted",
        )
