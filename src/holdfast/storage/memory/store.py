"""The store in memory: the reference implementation of a store, and a fast one for tests. Its data survives `close`, but not the
process.

Invariant: it behaves exactly like the other stores, including their errors. All appends of a batch are judged before any is
applied, values are copied on the way in and out, and text that other stores cannot store is refused here too.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from holdfast.core.run_state import ENDED, FINAL
from holdfast.errors import CodecError, RunHeld, RunNotFound, StoreUnusable
from holdfast.storage import failpoints, leases, process, verdicts
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import (
    Along,
    Append,
    Feed,
    Holder,
    Lease,
    Position,
    Query,
    Request,
    Row,
    RunRow,
    Snapshot,
    Verdict,
)
from holdfast.storage.memory.data import Data, RunHead, StoredRun, may_ask
from holdfast.storage.memory.feed import MemoryFeed
from holdfast.storage.memory.queues import MemoryQueues, is_offered
from holdfast.storage.memory.tokens import MemoryTokens
from holdfast.storage.memory.upkeep import MemoryUpkeep
from holdfast.storage.oversize import keep_blobs
from holdfast.storage.queues import Queues
from holdfast.storage.tokens import Tokens
from holdfast.storage.upkeep import Upkeep

_encode = msgspec.msgpack.Encoder().encode  # refuses text that cannot be encoded, as a database would
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder(dict[str, Any]).decode


_named: dict[str, Data] = {}


class MemoryStore:
    """A store in memory. All stores with the same `name` in this process share their data; without a name, a store is private."""

    def __init__(
        self,
        name: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        alive: leases.Alive = leases.alive,
        blobs: Blobs | None = None,
    ) -> None:
        self.url = f"memory://{name or ''}"
        self._data = Data() if name is None else _named.setdefault(name, Data())
        self.blobs: Blobs = blobs or self._data.blobs
        self._clock = clock
        self._alive = alive
        self._forks = process.count
        self._closed = False
        self.generation = self._data.generation
        self.queues: Queues = MemoryQueues(self._use, self.now, self._renew, self.post, alive)
        self.upkeep: Upkeep = MemoryUpkeep(self.url, self._use, self.now, alive)
        self.tokens: Tokens = MemoryTokens(self._use)
        self.feed: Feed = MemoryFeed(self._use, self.now, alive)

    # --- logs ----------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        self._require_usable()
        refused = keep_blobs(self.blobs, batch)
        with self._use() as data:
            failpoints.reach("append.before")
            heads: dict[str, RunHead] = {}  # the heads of runs after the appends judged so far
            judged = [
                refused.get(index) or self._judge(data, append, heads) for index, append in enumerate(batch)
            ]
            failpoints.reach("append.written")
            for append, verdict in zip(batch, judged, strict=True):
                if verdict is None:
                    self._apply(data, append)
            for append, verdict in zip(batch, judged, strict=True):
                if verdict is None and append.along is not None:
                    self._post_along(data, append.along, append.rows[-1].at)
            failpoints.reach("append.committed")
            return judged

    def _judge(self, data: Data, append: Append, heads: dict[str, RunHead]) -> Verdict:
        head = heads.get(append.run_id)
        if head is None and append.run_id in data.runs:
            head = data.runs[append.run_id].head
        if append.create is not None:
            known = append.holder in data.holders
            verdict = verdicts.judge_create(append, exists=head is not None, holder_known=known)
        elif head is None:
            return RunNotFound(append.run_id, self.url)
        else:
            verdict = verdicts.judge(append, seq=head.seq, fence=head.fence, holder=head.holder)
        if verdict is None:
            verdict = verdicts.judge_along(append, lambda run_id: run_id in data.runs or run_id in heads)
        starts = append.along.starts if append.along is not None else ()
        for one in (append, *starts):
            verdict = verdict or _unfit(one)
        if verdict is None:
            heads[append.run_id] = _next(head, append)
            heads.update({start.run_id: _next(None, start) for start in starts})
        return verdict

    def _apply(self, data: Data, append: Append) -> None:
        run = data.runs.get(append.run_id)
        if run is None:
            assert append.create is not None
            run = data.runs[append.run_id] = StoredRun(append.create, append.view)
        run.head = _next(run.head if append.create is None else None, append)
        if append.view.status not in ENDED:
            run.ended_at = None
        elif append.create is not None or append.view.status != run.view.status:
            run.ended_at = append.rows[-1].at
        run.view = append.view
        run.rows.extend(append.rows)
        if append.has_extras:
            _write_extras(data, run, append)
        if append.view.status in FINAL:
            for request in run.requests:
                data.handle(append.run_id, request, append.rows[-1].seq, unmet=True)
        data.turned(append.run_id)
        if append.along is not None:
            for start in append.along.starts:
                self._apply(data, start)

    def _post_along(self, data: Data, along: Along, at: float) -> None:
        """Put requests into inboxes, except those that are there already or whose run does not exist or is over."""
        for run_id, request in along.posts:
            run = data.runs.get(run_id)
            if run is not None and run.view.status not in FINAL and request.id not in run.requests:
                self._put(data, run_id, request, request.at or at, verdicts.digest_request(request))

    def _put(self, data: Data, run_id: str, request: Request, at: float, digest: bytes) -> None:
        body = _copied(request.body)
        waiting = msgspec.structs.replace(request, body=body, run_id=run_id, at=at, taken=0, unmet=False)
        data.post(run_id, waiting, digest)

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        with self._use() as data:
            run = data.runs.get(run_id)
            return run is not None and any(row.salt == append_id for row in _between(run, seq - 1, seq))

    def events(
        self,
        run_id: str,
        after: int = 0,
        upto: int | None = None,
        *,
        kinds: Collection[str] = (),
        node: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        with self._use():
            found = _between(self._run(run_id), after, upto)
        if kinds or node is not None:
            found = [
                row
                for row in found
                if (not kinds or row.kind in kinds) and (node is None or row.node == node)
            ]
        return found if limit is None else found[: max(limit, 0)]

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        with self._use():
            snapshots = self._run(run_id).snapshots
            seqs = [seq for seq in snapshots if any(first <= seq <= last for first, last in within)]
            return snapshots[max(seqs)] if seqs else None

    def definition(self, fingerprint: str) -> bytes | None:
        with self._use() as data:
            return data.definitions.get(fingerprint)

    # --- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow:
        with self._use():
            return self._row(run_id, self._run(run_id))

    def runs(self, query: Query) -> list[RunRow]:
        with self._use() as data:
            begins_after = query.begins_after
            found = (
                Position(run.new.created_at, run_id)
                for run_id, run in data.runs.items()
                if _fits(run_id, run, query) and (not query.offered or self._is_offered(run_id, run))
            )
            later = (place for place in found if begins_after is None or place < begins_after)
            listed = heapq.nlargest(max(query.limit, 0), later)
            return [self._row(place.run_id, data.runs[place.run_id]) for place in listed]

    def _is_offered(self, run_id: str, run: StoredRun) -> bool:
        holder, expires_at = self._data.holders.get(run.head.holder or "", (None, 0.0))
        now = self.now()
        return not leases.is_held(holder, expires_at, now, self._alive) and is_offered(run_id, run, now)

    def _row(self, run_id: str, run: StoredRun) -> RunRow:
        holder, expires_at = self._data.holders.get(run.head.holder or "", (None, 0.0))
        new, view, last = run.new, run.view, run.rows[-1]
        return RunRow(
            run_id=run_id, flow=new.flow, status=view.status, seq=last.seq, digest=last.digest, fingerprint=view.fingerprint,
            state_version=view.state_version, created_at=new.created_at, updated_at=last.at, input_digest=new.input_digest,
            labels=dict(new.labels), parent=new.parent, origin=new.origin, queue=new.queue, priority=new.priority,
            active=tuple(view.active), error=view.error, rewinds=tuple(view.rewinds),
            due_at=view.due_at, asks=view.asks, active_s=view.active_s,
            situation=view.situation, fence=run.head.fence, holder=holder,
            held=leases.is_held(holder, expires_at, self.now(), self._alive),
        )  # fmt: skip

    def _run(self, run_id: str) -> StoredRun:
        run = self._data.runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id, self.url)
        return run

    # --- leases --------------------------------------------------------------------------------------

    def claim(self, run_id: str, holder: Holder) -> Lease:
        with self._use() as data:
            failpoints.reach("claim.before")
            run = self._run(run_id)
            old, expires_at = data.holders.get(run.head.holder or "", (None, 0.0))
            if (
                old is not None
                and old.id != holder.id
                and leases.is_held(old, expires_at, self.now(), self._alive)
            ):
                raise RunHeld(run_id, old.describe())
            self._renew(data, holder)
            run.head = msgspec.structs.replace(run.head, fence=run.head.fence + 1, holder=holder.id)
            if (
                old is not None
                and old.id != holder.id
                and not old.flows
                and self._alive(old) is False
                and old.id not in _find_holders(data)
            ):
                data.drop_holder(old.id)
            failpoints.reach("claim.committed")
            return Lease(run_id, run.head.fence, run.head.seq)

    def renew(self, holder: Holder) -> None:
        with self._use() as data:
            failpoints.reach("renew.before")
            if holder.ttl_s > 0:
                self._renew(data, holder)
            else:
                data.drop_holder(holder.id)
                for run in data.runs.values():
                    if run.head.holder == holder.id:
                        run.head = msgspec.structs.replace(run.head, holder=None)
                data.tell()
            self._drop_old_holders(data)
            failpoints.reach("renew.committed")

    def _drop_old_holders(self, data: Data) -> None:
        since = self.now() - leases.KEPT_S
        old = [engine for engine, (_, expires_at) in data.holders.items() if expires_at < since]
        holding = _find_holders(data) if old else set()
        for engine in old:
            if engine not in holding:
                data.drop_holder(engine)

    def _renew(self, data: Data, holder: Holder) -> None:
        data.registered.setdefault(holder.id, self.now())
        known, _ = data.holders.get(holder.id, (holder, 0.0))
        data.holders[holder.id] = (
            msgspec.structs.replace(
                known,
                ttl_s=holder.ttl_s,
                flows=holder.flows,
                queues=holder.queues,
                version=holder.version,
                calls=holder.calls,
            ),
            self.now() + holder.ttl_s,
        )

    def release(self, run_id: str, holder: str, fence: int) -> None:
        with self._use() as data:
            failpoints.reach("release.before")
            run = data.runs.get(run_id)
            if run is not None and (run.head.holder, run.head.fence) == (holder, fence):
                run.head = msgspec.structs.replace(run.head, holder=None)
                data.tell()
            failpoints.reach("release.committed")

    # --- the inbox -----------------------------------------------------------------------------------

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        with self._use() as data:
            failpoints.reach("post.before")
            run = self._run(run_id)
            digest = verdicts.digest_request(request)
            posted = run.requests.get(request.id)
            known = (posted.request.verb, posted.digest) if posted is not None else (None, None)
            new = verdicts.is_new_request(run_id, request, digest, run.view.status, *known)
            if new and not only_look:
                self._put(data, run_id, request, request.at or self.now(), digest)
            failpoints.reach("post.committed")
            return new

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> list[Request]:
        with self._use() as data:
            if run_id is not None and holder is None:
                found = [posted.request for posted in self._run(run_id).requests.values()]
            else:
                found = [
                    request
                    for request in data.waiting.values()
                    if run_id in (None, request.run_id) and data.runs[request.run_id].head.holder == holder
                ]
            return [msgspec.structs.replace(request, body=_copied(request.body)) for request in found]

    # --- the store as a whole ------------------------------------------------------------------------

    def now(self) -> float:
        if (
            self._closed or self._forks != process.count
        ):  # checked inline, because every step calls this method
            self._require_usable()
        return float(self._clock())

    def check(self) -> list[str]:
        self._require_usable()
        return []

    def close(self) -> None:
        self.queues.hush()
        self._closed = True

    def _use(self) -> Data:
        if self._closed or self._forks != process.count:
            self._require_usable()  # before the lock is taken: a lock held at a fork is never released in the child
        return self._data

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} was closed. Open it again.")
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.url} was opened before this process was forked, and the parent process would not see "
                "what this process writes. Use a SQLite file to share runs between processes."
            )


def _copied(body: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the body of a request. JSON has whole numbers of any size, as in a database; msgpack has not."""
    return _from_json(_to_json(body))


def _unfit(append: Append) -> CodecError | None:
    try:
        _encode((append.run_id, append.rows, append.view, append.create))
    except (UnicodeEncodeError, OverflowError) as fault:
        return CodecError(f"a value cannot be stored: {fault}", path=f"run {append.run_id!r}")
    return None


def _write_extras(data: Data, run: StoredRun, append: Append) -> None:
    """Store the snapshots, the definition and the handled requests of an append."""
    for snapshot in append.snapshots:
        there = run.snapshots.get(snapshot.seq)
        if there is None or snapshot.base >= there.base:
            run.snapshots[snapshot.seq] = snapshot
    if append.definition is not None:
        data.definitions.setdefault(append.view.fingerprint, append.definition)
    for request in append.taken:
        data.handle(append.run_id, request, append.rows[-1].seq)


def _next(head: RunHead | None, append: Append) -> RunHead:
    """Return the head of a run after an accepted append. `head` is the head before the append, or None if the append creates the
    run.
    """
    fence = head.fence if head is not None else int(append.holder is not None)
    return RunHead(append.rows[-1].seq, fence, None if append.release else append.holder)


def _find_holders(data: Data) -> set[str | None]:
    return {run.head.holder for run in data.runs.values()}


def _between(run: StoredRun, after: int, upto: int | None) -> list[Row]:
    """Return the rows with `after < seq <= upto`. Seqs have no gaps, so their index in the list can be computed."""
    first = run.rows[0].seq
    end = len(run.rows) if upto is None else max(upto - first + 1, 0)
    return run.rows[max(after - first + 1, 0) : end]


def _fits(run_id: str, run: StoredRun, query: Query) -> bool:
    created_from = query.created[0]
    return (
        (not query.status or run.view.status in query.status)
        and (query.ids is None or run_id in query.ids)
        and run_id.startswith(query.prefix)
        and (not query.asks or may_ask(run.view))
        and (created_from is None or run.new.created_at >= created_from)
        and (query.flow is None or run.new.flow == query.flow)
        and (query.parent is None or run.new.parent == query.parent)
        and (query.origin is None or run.new.origin == query.origin)
        and (query.queue is None or run.new.queue == query.queue)
        and query.without_fingerprint != run.view.fingerprint
        and query.labels.items() <= run.new.labels.items()
    )
