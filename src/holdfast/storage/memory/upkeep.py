"""The upkeep of a store in memory: the reference implementation of `holdfast.storage.upkeep`.

Events that other stores leave to `sweep` are deleted here at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from hashlib import sha256

import msgspec

from holdfast.errors import HoldfastError, ResumeRefused, RunHeld, RunNotFound, SeqConflict, SettingError
from holdfast.storage import failpoints, leases
from holdfast.storage.contract import Snapshot
from holdfast.storage.memory.data import Data, StoredRun
from holdfast.storage.oversize import references
from holdfast.storage.rows import unpack
from holdfast.storage.upkeep import PIECE, WHOLE, Facts, Kept, Trimmed, refuse_compaction, refuse_deletion


class MemoryUpkeep:
    """The upkeep of a memory store. `use` gives access to its data; `now` is the method of the store."""

    def __init__(
        self,
        url: str,
        use: Callable[[], AbstractContextManager[Data]],
        now: Callable[[], float],
        alive: leases.Alive,
    ) -> None:
        self._url = url
        self._use = use
        self._now = now
        self._alive = alive

    def trimmed(self, run_id: str) -> Trimmed:
        with self._use() as data:
            run = data.runs.get(run_id)
            return WHOLE if run is None else run.trimmed

    def snapshots(self, run_id: str) -> list[Kept]:
        with self._use() as data:
            kept = self._run(data, run_id).snapshots
            return [Kept(seq, kept[seq].base, len(kept[seq].body)) for seq in sorted(kept)]

    def referring(self, run_id: str, after: int = 0, limit: int = PIECE) -> list[tuple[int, bytes]]:
        with self._use() as data:
            rows = data.runs[run_id].rows if run_id in data.runs else []
            found = [(row.seq, row.body) for row in rows if row.seq > after and references(unpack(row.body))]
            return found[:limit]

    def retire(self, run_id: str, before: int, drop: Collection[int] = ()) -> None:
        with self._use() as data:
            failpoints.reach("prune.before")
            run = self._run(data, run_id)
            for seq in drop:
                if seq in run.snapshots and not run.snapshots[seq].base:
                    del run.snapshots[seq]
            if before > run.trimmed.retired:
                run.trimmed = msgspec.structs.replace(run.trimmed, retired=before, retired_at=self._now())
            failpoints.reach("prune.committed")

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
        with self._use() as data:
            failpoints.reach("compact.before")
            run = self._run(data, run_id)
            base, head = run.rows[0].seq - 1, run.head
            refuse_compaction(
                run_id, seq, base=base, end=head.seq, held=(head.holder, head.fence), by=(holder, fence)
            )
            run.snapshots = {place: kept for place, kept in run.snapshots.items() if place > seq}
            run.snapshots[seq] = Snapshot(seq, body, base=True, digest=digest)
            run.rows = run.rows[seq - base :]
            run.trimmed = msgspec.structs.replace(
                run.trimmed, base=seq, base_at=self._now(), base_digest=sha256(body).digest(), place=place
            )
            failpoints.reach("compact.committed")

    def delete(self, ends: Mapping[str, int]) -> dict[str, HoldfastError]:
        refused: dict[str, HoldfastError] = {}
        with self._use() as data:
            failpoints.reach("delete.before")
            for run_id, seq in ends.items():
                try:
                    self._refuse_deletion(data, run_id, seq)
                except (RunNotFound, RunHeld, SeqConflict, ResumeRefused) as refusal:
                    refused[run_id] = refusal
                    continue
                del data.runs[run_id]
                data.unended.pop(run_id, None)
                data.refusals = {key: one for key, one in data.refusals.items() if one.run_id != run_id}
                for key in [key for key in data.waiting if key[0] == run_id]:
                    del data.waiting[key]
            failpoints.reach("delete.committed")
        return refused

    def _refuse_deletion(self, data: Data, run_id: str, seq: int) -> None:
        run = self._run(data, run_id)
        holder, expires_at = data.holders.get(run.head.holder or "", (None, 0.0))
        if holder is not None and leases.is_held(holder, expires_at, self._now(), self._alive):
            raise RunHeld(run_id, holder.describe())
        forks = sorted(name for name, other in data.runs.items() if other.new.parent == run_id)
        origin = run.new.origin
        caller = data.unended.get(origin) if origin is not None else None
        asked = next((request.verb for key, request in data.waiting.items() if key[0] == run_id), None)
        refuse_deletion(
            run_id,
            seq=seq,
            end=run.head.seq,
            fork=forks[0] if forks else None,
            caller=(origin, caller.view.status) if origin is not None and caller is not None else None,
            asked=asked,
        )

    def sweep(self, limit: int = PIECE) -> int:
        with self._use():
            failpoints.reach("sweep.before")
            failpoints.reach("sweep.committed")
            return 0

    def fingerprints(self) -> list[str]:
        with self._use() as data:
            return sorted(data.definitions)

    def drop_definitions(self, fingerprints: Collection[str]) -> int:
        with self._use() as data:
            in_use = {run.view.fingerprint for run in data.runs.values()}
            in_use |= {refusal.fingerprint for refusal in data.refusals.values()}
            dropped = [name for name in set(fingerprints) - in_use if name in data.definitions]
            for name in dropped:
                del data.definitions[name]
            return len(dropped)

    def adopt(
        self, run_id: str, trimmed: Trimmed, definitions: Mapping[str, bytes], *, fence: int = 0
    ) -> None:
        with self._use() as data:
            for fingerprint, body in definitions.items():
                data.definitions.setdefault(fingerprint, body)
            if run_id in data.runs:
                run = data.runs[run_id]
                run.trimmed = trimmed
                if run.head.holder is None:
                    run.head = msgspec.structs.replace(run.head, fence=max(run.head.fence, fence))

    def facts(self) -> Facts:
        return Facts(kind="memory", now=self._now())

    def backup(self, file: str, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        raise SettingError(
            f"{self._url} is in memory, which has no file to copy. Archive its runs one by one: holdfast archive RUN --to FILE"
        )

    def _run(self, data: Data, run_id: str) -> StoredRun:
        run = data.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id, self._url)
        return run
