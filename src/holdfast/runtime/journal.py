"""`Journal` encodes, folds and saves the events of one run while this engine holds it. Every event of a run is appended here;
only `upkeep.archive` also appends, when it restores a log that was written here before.

- An event is encoded before it is folded, because the fold may append to a list that belongs to the event.
- All events recorded since the last save go into one append, in one transaction. `saved_seq` is the last durable event.
- A failed append is not merely logged. It is sent again for up to the TTL of a lease, and if its outcome is unknown, the store
  is asked first whether it was stored. After that, `StoreError` is raised and the log stays as it was.
- An append includes a snapshot if the tail of events since the last snapshot is long (4,000 events), heavy (2 MB, and four
  times the size of the state), or has many events while the state is light. Loading a run then stays quick, and the cost of
  snapshots per step constant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.core import event_encoding, events, run_state, situation
from holdfast.core.event_encoding import Encoded, encode
from holdfast.core.events import Event, Stored, Values
from holdfast.core.fold import fold
from holdfast.core.graph import Flow
from holdfast.core.kinds import CHECKPOINTS, ENDS, HEARD, MOVES, OURS, RESULTS
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import RunState
from holdfast.core.situation import SAYS, Said, Situation, said_by, telling_kind
from holdfast.core.state import StateType
from holdfast.core.writers import Writers
from holdfast.errors import (
    FenceLost,
    HoldfastError,
    LogLimit,
    RunExists,
    SeqConflict,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from holdfast.reading import ends, history, inbox
from holdfast.reading.chunks import Streamer
from holdfast.reading.history import view_of
from holdfast.reading.previews import Mended
from holdfast.runtime.failures import NodeFaults
from holdfast.runtime.inputs import Inputs, is_large
from holdfast.runtime.services import Services
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Append, NewRun, Request, Row, RunRow, Snapshot
from holdfast.storage.oversize import take_out
from holdfast.storage.rows import pack, seal_row
from holdfast.storage.writer import Done

SNAPSHOT_BYTES_MIN = 2 * 1024 * 1024
SNAPSHOT_EVENTS_MAX = 4000
"""How many events after the last snapshot lead to a new one. (3,200 events of 700 bytes were read and folded in 30 to 45 ms. If
the state grows with the log, more frequent snapshots would double the storage.)
"""
SNAPSHOT_EVENTS_LIGHT = 250
"""How many events after the last snapshot lead to a new one if the state is light: folding them takes longer than loading the
state (15 µs per event, 1 µs per 200 bytes of state).
"""
_SMALL_BYTES = 128 * 1024
_LIGHT_FOR_EVENT = 200
"""A state is light if it has at most this many bytes per event since the last snapshot."""
_LIGHT_FOR_EVENT_SMALL = 400
"""Bytes per event up to which a small state, such as that of a thousand nodes, counts as light. (With this limit for ten
thousand nodes, snapshots took a sixth of the time.)
"""
WARN_BYTES = 500_000
"""Bytes of log since the last step or checkpoint above which a warning is logged."""
_LIGHT_BYTES = 50_000
_LARGE_EVENT = 1_000
"""Bytes of an event below which it sets no value that is worth a proof that no code has changed it."""
_GROWN = 8_000
"""Bytes of events from which on values that grow step by step may be worth such a proof."""
_NodeStarted = events.NodeStarted
_ROW_BYTES = 64
_RETRY_S = 0.05
_LATER = StoreBusy("tried again later")
_log = logging.getLogger("holdfast")


class Journal:
    """The state and the log of a run to which this engine may append."""

    create: NewRun | None = None
    definition: bytes | None = None
    bases: tuple[Snapshot, ...] = ()
    base_blobs: tuple[Blob, ...] = ()
    """The blobs that `bases` refer to."""
    urgent = False
    """True if an event was recorded that must be saved at once, whatever the durability, because other processes wait for it."""
    executes = False
    """True if this engine executes the run, and does not only record something: then `ready` and `writers` exist, and are updated
    with every event.
    """
    ready: Readiness
    writers: Writers
    is_previewed = False
    renamed: Mapping[str, str] = MappingProxyType({})
    """The old and the new names of the nodes that were renamed when the run was resumed."""
    """True if the run was resumed in this journal for a caller that acts on a preview."""
    at = 0.0
    _stamp = "0.0"
    _situation: str | None = None
    """The situation of the run, as the last append has written it into the run's row."""
    _steady: tuple[int, int] | None = None
    """How many nodes ran and were open when the situation was that of a plain run. It stays the same as long as nodes only start
    and complete, and as many of them run; None if it must be computed."""
    _tail_bytes = 0
    """Bytes in the bodies of events since the last snapshot."""
    _since_checkpoint = 0
    _until_step = 0
    """How many of these bytes are before the end of the last step."""
    _blobs: tuple[Blob, ...] = ()
    """The blobs that unsaved events refer to."""
    _state_bytes = 16 * 1024
    """Bytes of the last snapshot; before the first snapshot, an assumed size."""
    _given_up: BaseException | None = None
    _sent: Append | None = None
    """The append that is under way; there is never more than one."""
    _done: Done | None = None
    """Called when the append under way is durable, or has failed."""
    _waited = 0.0
    """For how many seconds the append under way has been retried."""

    def __init__(
        self, services: Services, flow: Flow[Any], state: RunState, *, row: RunRow | None, fence: int
    ) -> None:
        self.services = services
        self.flow = flow
        self.state = state
        self.inputs: Inputs | StateType[Any] = flow.state
        """Makes the states that calls get. They are simply copies as long as the state has no large value."""
        self.fence = fence
        self.saved_seq = row.seq if row is not None else 0
        self.digest = row.digest if row is not None else b""
        """The digest of the hash chain up to the last recorded event."""
        self.unsaved: list[Row] = []
        """Recorded events that are not in an append yet."""
        self.rewinds = row.rewinds if row is not None else ()
        self.taken: list[str] = []
        self.last_answers: dict[str, events.QuestionAnswered] = {}
        """Node -> the last answer to a question of it that was recorded here, which may not be in the store yet."""
        self.due_at = row.due_at if row is not None else None
        self._said: dict[str, Said] = {}
        """Kind of event -> what the latest event of that kind says, of those that this journal has recorded, and of the one
        of which the row tells."""
        self._last: str | None = ""
        """The kind of the last event that may have moved the run; empty if it says nothing, None if it is not known."""
        if row is not None and (row.situation is not None or row.asks is None):
            self._last = None
            with suppress(StoreCorrupt):  # then the row leaves it to the log
                self._recall(situation.load(row.situation, ()), is_known=row.asks is not None)
        self._tail_from = state.seq
        self._light = min(_LIGHT_BYTES, services.blob_over, services.log_limit)
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._senders: list[asyncio.Future[None]] = []
        self.starts: list[Append] = []
        """The first appends of child runs, which the next append of this run creates."""
        self.posts: list[tuple[str, Request]] = []
        """Requests that the next append of this run leaves in the inboxes of other runs."""
        self.family: tuple[Mended, ...] = ()
        """The child runs because of which this run had failed, and what becomes of them: see `runtime/mending`."""
        self.faults = NodeFaults()
        self.spills: list[str] = []
        """Keys of the spills to delete after the next save, because the log has their chunks then."""
        self.streamed: dict[Streamer, int] = {}
        """Attempt that has unwound -> how many chunks it had streamed by then."""

    def _recall(self, before: Situation, *, is_known: bool) -> None:
        """Keep what the row tells about the event for which the run is where it is."""
        said = before.said
        if said is not None:
            self._said[said.kind] = said
        if is_known and not before.cut:
            self._last = said.kind if said is not None else ""

    def begin_execution(self) -> None:
        """Find out which nodes are due, and which may write in parallel, from now on."""
        topology, state = self.flow.topology, self.state
        self.ready, self.writers = Readiness(topology, state), Writers(topology, state)
        self.executes = True
        if any(map(is_large, state.values.values())):
            self._hand_values_on()

    def load(self, values: Values) -> Any:
        """Return the state with these values for one call of a node or a router, which may change it. Raises `StateError`."""
        return self.inputs.load(values)

    def _hand_values_on(self) -> None:
        """Hand large values of the state from call to call, because it may have some."""
        if self.inputs is self.flow.state:
            self.inputs = Inputs(self.flow.state)

    @property
    def fault(self) -> BaseException | None:
        """The exception for which the run has failed, if it was raised in this process."""
        failed = self.state.status == "failed"
        return self.faults.get(self.state.failure_node or "") if failed else None

    @property
    def awaited(self) -> bool:
        """True if an attempt waits until an event is durable."""
        return bool(self._waiters)

    def kinds_since(self, seq: int) -> set[str]:
        """Return the kinds of all events after `seq`: those in the store, and those that are recorded here and not saved yet."""
        under_way = self._sent.rows if self._sent is not None else ()
        stored = self.services.store.events(self.state.run_id, seq)
        return {row.kind for row in (*stored, *under_way, *self.unsaved) if row.seq > seq}

    def tick(self, at: float | None = None) -> float:
        """Set the time of the events that are recorded next: now, or the time given, but never before the last event."""
        at = self.services.store.now() if at is None else at
        at = max(at, self.state.at)
        if at != self.at:
            self.at, self._stamp = at, repr(at)
        return at

    def record(self, event: Event, *, seq: int | None = None) -> None:
        """Encode and fold one event. It is durable after the next `save`."""
        encoded, state, at = encode(event), self.state, self.at
        if seq is None:
            seq = state.seq + 1
        if (
            type(event) is _NodeStarted
        ):  # half of all events are of this kind, and have no fields of their own
            fold(state, Stored(seq, at, event))
            if self.executes:
                self.ready.observe(state, event)
        else:
            if encoded.kind not in OURS:
                self._check(event, encoded)
            since = self._since_checkpoint + (size := len(encoded.body))
            if size >= _LARGE_EVENT:
                self._hand_values_on()
            if since > self._light:
                encoded = self._weighed(event, encoded)
                since = self._since_checkpoint + len(encoded.body)
            if encoded.kind in CHECKPOINTS:
                self._since_checkpoint = self._until_step = 0
            elif (
                encoded.kind != "NodeStreamed"
            ):  # chunks were checked one by one, and must not cause the refusal of a result
                self._since_checkpoint = since
                if encoded.kind == "StepCompleted":
                    self._until_step = since
            fold(state, Stored(seq, at, event))
            if self.executes:
                self.ready.observe(state, event)
                self.writers.observe(state, event)
            self._tail_bytes += len(encoded.body)
        row = seal_row(self.digest, state.run_id, seq, at, self._stamp, encoded, self.services.salts())
        self.unsaved.append(row)
        self.digest = row.digest

    def record_child_end(self, end: inbox.ChildEnd) -> None:
        """Record the end of a child run, unless it is recorded already because the log of the child was read."""
        child = self.state.children.get(end.run)
        if child is not None and end.seq == child.ended:
            return
        said = inbox.own_fields(end)
        if end.status == "completed" and end.values is None:
            said["values"] = history.load(self.services.store, end.run).values
        self.record(events.ChildEnded(**said))

    def cancel_children(self, node: str, item: int | None, reason: str) -> None:
        """Leave a request to cancel, with the next append, for the children of a visit or item that is abandoned, if they end
        with their caller.
        """
        children = [
            (run, child)
            for run, child in self.state.children.items()
            if child.node == node and (item is None or child.item == item)
        ]
        self.posts += ends.cancels(self.state, children, reason)

    def cancel_child(self, run_id: str, reason: str) -> None:
        """Leave a request to cancel a child, with the next append, if the child ends with its caller."""
        self.posts += ends.cancels(self.state, [(run_id, self.state.children[run_id])], reason)

    def _check(self, event: Event, encoded: Encoded) -> None:
        """Look at an event that is not merely a step: refuse it if it could not be decoded again, such as one with a name that is
        not text. Raises `SettingError`.
        """
        self.urgent = self.urgent or isinstance(event, HEARD)
        self._steady = None
        if encoded.kind in SAYS:
            self._said[encoded.kind] = said_by(event)
        try:
            event_encoding.decode(encoded)
        except StoreCorrupt as fault:
            raise SettingError(f"this value cannot be recorded: {fault.__cause__ or fault}") from fault

    def _weighed(self, event: Event, encoded: Encoded) -> Encoded:
        """Move values that are too large for a log into blobs. Logs a warning if the events since the last step or checkpoint are
        large in total, and raises `LogLimit` if a result would bring those since the last checkpoint over `log_limit`.
        """
        body, taken = take_out(encoded.body, self.services.blob_over)
        weight = self._since_checkpoint + len(body)
        where = f"run {self.state.run_id!r}, node {encoded.node!r}"
        if weight > self.services.log_limit and isinstance(event, RESULTS):
            raise LogLimit(
                f"the log since the last checkpoint has {weight:,} bytes, which is over its limit of "
                f"{self.services.log_limit:,}. Keep large values outside of the log (ctx.artifacts, hf.Asset), or raise "
                "log_limit and resume",
                node=encoded.node,
            )
        since_step = weight - self._until_step
        if self._since_checkpoint - self._until_step <= WARN_BYTES < since_step:
            _log.warning(
                "%s: wrote %s bytes of log since the last step or checkpoint, which is a lot. Keep large values outside of the "
                "log (ctx.artifacts, hf.Asset).",
                where,
                f"{since_step:,}",
            )
        self._blobs += taken
        return msgspec.structs.replace(encoded, body=body) if taken else encoded

    def save(self, done: Done, *, release: bool = False) -> None:
        """Make all recorded events durable in one append, then call `done(None)`, possibly before this method returns;
        `done(error)` if the append failed.
        """
        append = self._append(release=release)
        self._sent, self._done, self._waited = append, done, 0.0
        self.services.commits.commit(append, self._on_committed, self.services.holdings.moving)

    async def save_and_wait(self, *, release: bool = False) -> None:
        """Make all recorded events durable, and return when they are. Raises the error that `save` passes to `done`."""
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not acknowledged.done():
                if error is None:
                    acknowledged.set_result(None)
                else:
                    acknowledged.set_exception(error)

        self.save(done, release=release)
        await acknowledged

    def first_append(self) -> Append:
        """Return the append that creates a run which another run starts. It is written with an append of that run."""
        return self._append(release=False)

    def until_saved(self, seq: int) -> asyncio.Future[None]:
        """Return a future that is done when the log is durable up to `seq`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((seq, waiter))
        return waiter

    def give_up(self, error: BaseException) -> None:
        """Save nothing more, not even an append that was to be sent again, and fail the futures that wait for a save."""
        self._given_up = error
        self._wake_senders()
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _on_committed(self, error: BaseException | None) -> None:
        """Called when the append under way is durable or has failed: finish it, or send it again."""
        if error is not None and (
            isinstance(error, (StoreBusy, StoreFull, StoreReadOnly)) or self._refuses_itself(error)
        ):
            assert isinstance(error, HoldfastError)
            error = self._again(error)
            if error is _LATER:
                return
        self._over(error)

    def _refuses_itself(self, error: BaseException) -> bool:
        """Return whether an append that was sent again may have been refused only because it is already stored: a database may
        commit an append after its connection was lost, and after a lookup did not find the append. `FenceLost` counts only for
        an append that releases the lease; otherwise the lease is really lost.
        """
        if not self._waited or self._sent is None:
            return False
        return isinstance(error, (SeqConflict, RunExists)) or (
            self._sent.release and isinstance(error, FenceLost)
        )

    def _over(self, error: BaseException | None) -> None:
        append, done = self._sent, self._done
        assert append is not None
        assert done is not None
        self._sent = self._done = None
        if error is None:
            self._moved(append)
        done(error)

    def _again(self, fault: HoldfastError) -> BaseException | None:
        """Handle an append that failed or whose outcome is unknown. Returns None if the append is stored, `_LATER` if it will
        be sent again, and otherwise the error.
        """
        services, append = self.services, self._sent
        assert append is not None
        known = True
        try:
            if services.store.appended(append.run_id, append.rows[0].seq, append.rows[0].salt):
                return None
        except (StoreBusy, StoreReadOnly):
            known = False  # without a lookup, the append is not sent again: if it is stored already, it would be refused
        except StoreError as lost:
            return lost
        if known and self._refuses_itself(fault):
            return fault
        if self._waited >= services.holder.ttl_s:
            kind = type(fault) if isinstance(fault, (StoreFull, StoreReadOnly)) else StoreBusy
            if append.create is not None:
                return kind(
                    f"run {append.run_id!r} could not be recorded for {self._waited:.0f} s ({fault}). Start it again when the "
                    "store works, with the same id: it is then the same run, even if this start was stored after all."
                )
            return kind(
                f"run {append.run_id!r}: its events could not be recorded for {self._waited:.0f} s, so the run was stopped "
                f"({fault}). All acknowledged events are safe; resume the run when the store works again."
            )
        pause = min(_RETRY_S * (1 + self._waited), 1.0)
        self._waited += pause

        def later() -> None:
            try:
                if (
                    self._given_up is not None
                ):  # the caller already has the error that the events are not recorded
                    self._over(self._given_up)
                elif known:
                    services.commits.commit(append, self._on_committed, services.holdings.moving)
                else:
                    self._on_committed(fault)
            except StoreError as closed:  # the engine was closed meanwhile, and no caller is left
                self._over(closed)

        services.clock.call_at(services.clock.now() + pause, later)
        return _LATER

    def _moved(self, append: Append) -> None:
        """Update the journal after an append has become durable, and wake the attempts that waited for it."""
        self.saved_seq = append.rows[-1].seq
        if self._waiters:
            self._wake_waiters()
        if self.create is not None or self.definition is not None:
            self.create = self.definition = None
            self.bases, self.base_blobs = (), ()
        if append.taken:
            del self.taken[: len(append.taken)]
            self._wake_senders()
        if append.along is not None:
            self.services.families.moved(append.along)
        if self.services.listeners.hear_saves:
            self.services.listeners.saved(append.run_id)

    def until_taken(self) -> asyncio.Future[None]:
        """Return a future that is done when requests from the inbox were handled, or when nothing more is saved here."""
        sender: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(sender)
        return sender

    def _wake_senders(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            if not sender.done():
                sender.set_result(None)

    def _wake_waiters(self) -> None:
        saved = [waiter for seq, waiter in self._waiters if seq <= self.saved_seq]
        self._waiters = [(seq, waiter) for seq, waiter in self._waiters if seq > self.saved_seq]
        for waiter in saved:
            if not waiter.done():
                waiter.set_result(None)

    def _append(self, *, release: bool) -> Append:
        rows, self.unsaved = tuple(self.unsaved), []
        blobs, self._blobs = self.base_blobs + self._blobs, ()
        self.urgent = False
        snapshots, taken = (self.bases, ()) if self.bases else self._snapshots()
        if self._steady != (self.state.running, len(self.state.open)):
            self._situation = self._situate(rows)
        return Append(
            run_id=self.state.run_id,
            expected_seq=rows[0].seq - 1,
            rows=rows,
            view=view_of(self.state, self.rewinds, self.due_at, self._situation),
            holder=self.services.holder.id if self.fence else None,
            fence=self.fence,
            create=self.create,
            definition=self.definition,
            snapshots=snapshots,
            taken=tuple(self.taken),
            release=release,
            blobs=blobs + taken,
            along=self._along(rows) if self._has_along else None,
        )

    @property
    def _has_along(self) -> bool:
        return bool(self.starts or self.posts or self.state.origin is not None or self.state.children)

    def _along(self, rows: tuple[Row, ...]) -> Along | None:
        """Return what the append changes in other runs: the children that it creates, the end that it reports to the caller of
        this run, and the children that are cancelled with this run.
        """
        starts, self.starts = tuple(self.starts), []
        posts, self.posts = self.posts, []
        if any(row.kind in ENDS for row in rows):
            posts += ends.posts(self.state)
        return Along(starts=starts, posts=tuple(posts)) if starts or posts else None

    def _situate(self, rows: tuple[Row, ...]) -> str | None:
        """Return the situation of the run for its row, after these events."""
        state = self.state
        last: str | None = rows[-1].kind
        if last not in MOVES:
            last = next((row.kind for row in reversed(rows) if row.kind in MOVES), self._last)
        self._last = last
        self._steady = None
        if state.is_plain:
            if state.running:
                self._steady = (state.running, len(state.open))
            return situation.row_text(state, None) if state.options.keys() & situation.OPTIONS else None
        kind = telling_kind(state, last)
        if kind is None and last is None:
            return situation.left_to_log(state)
        return situation.row_text(state, self._said.get(kind) if kind is not None else None)

    def _snapshots(self) -> tuple[tuple[Snapshot, ...], tuple[Blob, ...]]:
        """Return the snapshot for this append, if it is time for one, and the blobs that it refers to."""
        tail_events = self.state.seq - self._tail_from
        tail_bytes = self._tail_bytes + _ROW_BYTES * tail_events
        if self._tail_bytes >= _GROWN and self.flow.state.grows:
            self._hand_values_on()
        heavy = max(SNAPSHOT_BYTES_MIN, 4 * self._state_bytes)
        if tail_bytes < heavy and tail_events < SNAPSHOT_EVENTS_MAX:
            light_for_event = (
                _LIGHT_FOR_EVENT_SMALL if self._state_bytes <= _SMALL_BYTES else _LIGHT_FOR_EVENT
            )
            light = self._state_bytes + tail_bytes <= light_for_event * tail_events
            if tail_events < SNAPSHOT_EVENTS_LIGHT or not light:
                return (), ()
        body = run_state.dump(self.state)
        self._state_bytes = len(body)
        self._tail_bytes, self._tail_from = 0, self.state.seq
        lighter, blobs = take_out(body, self.services.blob_over)
        return (Snapshot(self.state.seq, pack(lighter)),), blobs
