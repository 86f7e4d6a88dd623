"""The timeline of a run: who held it and when, the attempts of its nodes, what they waited for, and what people did.

It is made by folding the log, so that it agrees with the state of the run. A log does not say when a process died: an attempt
that crashed with it ends with the last sign of life, the last event that the process recorded, and `noticed_at` says when another
process noticed.

Reading a part of a long log begins where the oldest attempt that is open at the start of that part began, and it ends when
everything that began in the part has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core import events
from holdfast.core.events import Stored
from holdfast.core.fold import fold
from holdfast.core.kinds import FROM_OUTSIDE, TAKES_OVER
from holdfast.core.run_state import ACTIVE, ENDED, Question, RunState, Wait, stretches
from holdfast.errors import IllegalEvent, RunNotFound, StoreError
from holdfast.reading import history, text, words
from holdfast.reading.spans import (
    ITEMS_DRAWN,
    Act,
    AttemptSpan,
    ForkMade,
    HolderEnd,
    HolderSpan,
    ItemSpan,
    Piece,
    WaitSpan,
    act_of,
    item_span,
)
from holdfast.reading.visits import BY_CALLERS, ERROR_WIDTH, VisitChange, Visits
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.rows import open_row

FORKS_MAX = 50
_ROWS_PER_READ = 1000
_LATE_EVENTS = 100
"""Among how many events the last one is searched that a holder recorded itself."""
_BEGINS_HOLDING = frozenset({"NodeStarted", "NodeScheduled", "QuestionAsked"})
"""Kinds of events that the process which created a run records first, if it executes the run at once."""
_STOPS: dict[str, HolderEnd] = {
    "RunCompleted": "released",
    "RunFailed": "released",
    "RunCancelled": "released",
    "RunInterrupted": "drained",
}
_WAIT_ENDS = {
    "QuestionAnswered": "answered",
    "SignalReceived": "received",
    "ChildEnded": "ended",
    "TimerFired": "time came",
    "WaitWithdrawn": "withdrawn",
}
_ENDS_RETRIES = frozenset({"RunRewound", "RunCancelled", "RunFailed"})
_NO_WAITS = frozenset(
    {"StepCompleted", "NodeStreamed", "NodeCheckpointed", "CostIncurred", "ItemStarted", "ItemsListed"}
)
"""Kinds of events that neither begin nor end a wait, except that an item which starts ends its wait for a retry."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the timeline of a run. Each list is in the order of `seq`, the event with which a piece began."""

    run_id: str
    seq: int
    """The last event of the log."""
    started_at: float
    """When the run was created."""
    ended_at: float
    """The time of the last event."""
    beginning: str
    """Where the earlier events are, if the log was compacted or belongs to a fork; else empty."""
    holders: list[HolderSpan]
    attempts: list[AttemptSpan]
    """Attempts of nodes, and of the items of fan-outs that have at most 8 items."""
    items: list[ItemSpan]
    """The items of larger fan-outs, one span for each attempt of the node."""
    waits: list[WaitSpan]
    acts: list[Act]
    forks: list[ForkMade]
    """Runs that were forked from this one, newest first, the latest ones; only on the first page."""
    next: int | None
    """Pass this as `after` to get the next page; None on the last page."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a timeline is wanted: what overlaps these times and begins after event `after`."""

    from_at: float | None = None
    to_at: float | None = None
    after: int = 0
    limit: int = 1000


def timeline(store: Store, row: RunRow, part: Part, forks: Iterable[RunRow] = ()) -> Timeline:
    """Return a part of the timeline of a run. `forks` are runs that were forked from it."""
    base = history.began_after(store, row)
    drawn = _Drawing(store, row, _first_seq(store, row, base, part))
    for stored in _events_after(store, row, drawn.state.seq):
        if part.to_at is not None and stored.at > part.to_at and not drawn.is_open:
            break
        drawn.add(stored)
    pieces = [piece for piece in drawn.finish() if piece.seq > part.after and _overlaps(piece, part)]
    pieces.sort(key=lambda piece: piece.seq)
    shown = _page(pieces, part.limit)
    return Timeline(
        run_id=row.run_id,
        seq=row.seq,
        started_at=row.created_at,
        ended_at=row.updated_at,
        beginning=history.beginning(store, row),
        holders=[piece for piece in shown if isinstance(piece, HolderSpan)],
        attempts=[piece for piece in shown if isinstance(piece, AttemptSpan)],
        items=[piece for piece in shown if isinstance(piece, ItemSpan)],
        waits=[piece for piece in shown if isinstance(piece, WaitSpan)],
        acts=[piece for piece in shown if isinstance(piece, Act)],
        forks=[_fork_made(store, fork) for fork in forks],
        next=shown[-1].seq if len(shown) < len(pieces) else None,
    )


def _overlaps(piece: Piece, part: Part) -> bool:
    started_at, ended_at = (
        (piece.at, piece.at) if isinstance(piece, Act) else (piece.started_at, piece.ended_at)
    )
    return (part.to_at is None or started_at <= part.to_at) and (
        part.from_at is None or ended_at is None or ended_at >= part.from_at
    )


def _page(pieces: list[Piece], limit: int) -> list[Piece]:
    """Return the first pieces, at least `limit`: pieces that began with the same event stay together."""
    end = min(limit, len(pieces))
    while 0 < end < len(pieces) and pieces[end].seq == pieces[end - 1].seq:
        end += 1
    return pieces[:end]


def _fork_made(store: Store, fork: RunRow) -> ForkMade:
    event: Any = None
    with suppress(RunNotFound, StoreError):  # deleted meanwhile, or damaged: its row is known
        first = store.events(fork.run_id, kinds=("RunForked",), limit=1)
        event = open_row(first[0], store.blobs).event if first else None
    return ForkMade(
        run_id=fork.run_id,
        to=event.to if event is not None else None,
        at=fork.created_at,
        by=event.by if event is not None else None,
        reason=event.reason if event is not None else None,
    )


# --- where to begin ------------------------------------------------------------------------------------


def _events_after(store: Store, row: RunRow, seq: int) -> Iterator[Stored]:
    """Yield the events of a log, read in parts."""
    while seq < row.seq:
        rows = store.events(row.run_id, seq, row.seq, limit=_ROWS_PER_READ)
        if not rows:
            return
        yield from history.opened(store, row.run_id, rows)
        seq = rows[-1].seq


def _first_seq(store: Store, row: RunRow, base: int, part: Part) -> int:
    """Return the event after which reading begins, so that everything that is open where the part begins is read as well."""
    begins = (
        part.after if part.from_at is None else max(part.after, _seq_before(store, row, base, part.from_at))
    )
    if begins <= max(base, 1):
        return base
    state = history.load(store, row.run_id, min(begins, row.seq), row=row)
    times = [_started_at(store, row, name, state) for name in state.open]
    times += [question.asked_at for question in state.questions.values()]
    return min(begins, _seq_before(store, row, base, min(filter(None, times), default=state.at)))


def _started_at(store: Store, row: RunRow, name: str, state: RunState) -> float:
    """Return when the latest attempt of a node started; 0 if none has. The state of a fan-out has the time at which one of its
    items woke up, if all of them waited.
    """
    node = state.nodes[name]
    if node.items is None:
        return node.started_at
    started = store.events(row.run_id, 0, state.seq, kinds=("NodeStarted",), node=name)
    return started[-1].at if started else node.started_at


def _seq_before(store: Store, row: RunRow, base: int, at: float) -> int:
    """Return the last event before a time; `base` if there is none. Times never decrease within a log."""
    low, high = base, row.seq
    while low < high:
        middle = (low + high + 1) // 2
        found = store.events(row.run_id, middle - 1, middle)
        if found and found[0].at < at:
            low = middle
        else:
            high = middle - 1
    return low


# --- drawing -------------------------------------------------------------------------------------------


class _Drawing:
    """Collects the pieces of a timeline, event by event."""

    def __init__(self, store: Store, row: RunRow, after: int) -> None:
        self.store, self.row = store, row
        self.state = history.load(store, row.run_id, after, row=row) if after else RunState(row.run_id)
        self.bars: list[AttemptSpan] = []
        self.waits: list[WaitSpan] = []
        self.holders: list[HolderSpan] = []
        self.acts: list[Act] = []
        self.waiting: dict[Any, WaitSpan] = {}
        """Open waits: timers, signals and questions by their key, retries by node and item."""
        self.fans: dict[tuple[str, int, int], int] = {}
        """Visit of a fan-out -> how many items it has."""
        self.visits = Visits.of(self.state)
        self.seen_status: str = self.state.status
        """The status after the last event that the holder recorded."""
        if after:
            self._begin_open(after)

    @property
    def is_open(self) -> bool:
        """Whether an attempt or a wait has begun and not ended yet."""
        return bool(self.waiting) or any(self.visits.drawn())

    def _begin_open(self, seq: int) -> None:
        """Begin the pieces that are open in the state with which reading begins. Their exact beginning is not known."""
        state = self.state
        for visit in self.visits.latest.values():
            if visit.size is not None:
                self.fans[visit.node, *visit.place] = visit.size
        self.bars = [attempt.span for attempt in self.visits.drawn() if attempt.span is not None]
        for name in state.open:
            node = state.nodes[name]
            if node.status != "running" and node.retry_at is not None:
                self._begin_retry(
                    seq, node.ended_at, node.retry_at, node=name, iteration=node.iteration, execution=node.execution,
                    item=None,
                )  # fmt: skip
        self._compare_waits(seq, state.at, "")
        for wait in self.waiting.values():
            if wait.node is not None and wait.kind in ("timer", "signal", "child"):
                wait.started_at = min(state.at, state.nodes[wait.node].started_at or state.at)
        if state.status in ACTIVE:
            self._begin_holding(seq)

    def _begin_holding(self, seq: int) -> None:
        """Begin the span of the process that holds the run where reading begins."""
        run_id = self.row.run_id
        rows = self.store.events(run_id, 0, seq, kinds=TAKES_OVER)[-1:]
        rows = rows or self.store.events(run_id, 0, seq, kinds=_BEGINS_HOLDING, limit=1)
        for stored in history.opened(self.store, run_id, rows):
            holder = getattr(stored.event, "holder", None) or None
            self.holders.append(HolderSpan(seq=stored.seq, holder=holder, started_at=stored.at))

    def add(self, stored: Stored) -> None:
        """Add one event."""
        kind = stored.kind
        takes_over = kind in TAKES_OVER
        if takes_over:
            self._end_holding(stored)
        self._follow_holder(stored, kind, takes_over=takes_over)
        self._fold(stored)
        for change in self.visits.read(stored):
            self._draw(change, stored)
        if kind in _ENDS_RETRIES:
            self._end_retries(stored.at)
        if kind not in _NO_WAITS and (self.waiting or self.state.waits or self.state.questions):
            self._compare_waits(stored.seq, stored.at, kind)
        act = act_of(stored)
        if act is not None:
            self.acts.append(act)
        if kind not in BY_CALLERS:
            self.seen_status = self.state.status

    def _fold(self, stored: Stored) -> None:
        if isinstance(stored.event, events.RunRewound):
            self.state = history.load(self.store, self.row.run_id, stored.event.to, row=self.row)
        try:
            fold(self.state, stored)
        except IllegalEvent as fault:
            raise history.impossible(self.row.run_id, fault) from fault

    # --- holders ---

    def _end_holding(self, stored: Stored) -> None:
        """End what the previous holder did, because another one, or the same one again, takes over."""
        outlived = bool(getattr(stored.event, "outlived", False))
        ended = self.holders[-1] if self.holders else None
        if ended is not None and ended.end is None:
            died = self.state.running > 0 or self.seen_status in ("running", "pending")
            ended.end = "replaced" if outlived else "died" if died else "released"
            ended.ended_at = self.visits.seen_at
            ended.noticed_at = stored.at if ended.end == "died" else None
        if ended is not None and ended.end in ("died", "drained", "replaced"):
            self._add_gap(ended, stored.at)

    def _add_gap(self, ended: HolderSpan, until: float | None) -> None:
        """Add the time in which no process held the run."""
        assert ended.ended_at is not None
        if until is None or until > ended.ended_at:
            self.waits.append(
                WaitSpan(
                    seq=self.visits.seen_seq,
                    kind="holder",
                    started_at=ended.ended_at,
                    ended_at=until,
                    reason="no holder",
                )
            )

    def _follow_holder(self, stored: Stored, kind: str, *, takes_over: bool) -> None:
        event = stored.event
        if takes_over:
            holder = getattr(event, "holder", None) or None
            self.holders.append(HolderSpan(seq=stored.seq, holder=holder, started_at=stored.at))
        elif kind in FROM_OUTSIDE:
            return
        elif not self.holders or self.holders[-1].end is not None:
            if not (kind in _BEGINS_HOLDING and getattr(event, "why", "") != "retry"):
                return
            self.holders.append(HolderSpan(seq=stored.seq, holder=None, started_at=stored.at))
        now = self.holders[-1]
        if isinstance(event, events.NodeInterrupted) and event.lost:
            now.end, now.ended_at, now.noticed_at = "died", self.visits.seen_at, stored.at
        if kind in _STOPS and now.end is None:
            now.end, now.ended_at = _STOPS[kind], stored.at

    # --- attempts ---

    def _draw(self, change: VisitChange, stored: Stored) -> None:
        """Add the span of an attempt that began, and begin and end its wait for a retry."""
        visit, attempt = change.visit, change.attempt
        if change.how in ("refused", "routed"):
            return
        if visit.size is not None:
            self.fans[visit.node, *visit.place] = visit.size
        if attempt.span is not None and attempt.span.seq == stored.seq:
            self.bars.append(attempt.span)
        self._end_retry(visit.node, attempt.item, stored.at)
        if change.how == "ended" and change.cause is None and attempt.retry_at is not None:
            self._begin_retry(
                stored.seq, stored.at, attempt.retry_at, node=visit.node, iteration=attempt.iteration,
                execution=attempt.execution, item=attempt.item,
            )  # fmt: skip

    # --- waits ---

    def _begin_retry(self, seq: int, at: float, until: float, *, node: str, **place: Any) -> None:
        wait = WaitSpan(
            seq=seq, kind="retry", node=node, started_at=at, until=until,
            reason=f"retry in {text.duration(until - at)}", **place,
        )  # fmt: skip
        self.waits.append(wait)
        self.waiting["retry", node, place["item"]] = wait

    def _end_retry(self, node: str, item: int | None, at: float) -> None:
        wait = self.waiting.pop(("retry", node, item), None)
        if wait is not None:
            wait.ended_at = at
            wait.ended_by = "time came" if wait.until is not None and at >= wait.until else None

    def _end_retries(self, at: float) -> None:
        for key in [key for key in self.waiting if isinstance(key, tuple)]:
            self._end_retry(key[1], key[2], at)

    def _compare_waits(self, seq: int, at: float, kind: str) -> None:
        """Begin and end waits, as the state has them after an event."""
        state = self.state
        for key in state.waits.keys() - self.waiting.keys():
            self._begin_wait(key, state.waits[key], seq, at)
        for key in state.questions.keys() - self.waiting.keys():
            self._begin_question(key, state.questions[key], seq)
        for gone in self.waiting.keys() - state.waits.keys() - state.questions.keys():
            if not isinstance(gone, tuple):
                wait = self.waiting.pop(gone)
                wait.ended_at, wait.ended_by = at, _WAIT_ENDS.get(kind)

    def _begin_wait(self, key: str, wait: Wait, seq: int, at: float) -> None:
        self.waiting[key] = began = WaitSpan(
            seq=seq, kind=wait.kind, node=wait.node, iteration=wait.iteration, execution=wait.execution,
            item=wait.item, started_at=at, until=wait.until, reason=words.waited_for(wait.slot), child=wait.child,
        )  # fmt: skip
        self.waits.append(began)

    def _begin_question(self, key: str, question: Question, seq: int) -> None:
        iteration, execution, _ = self.state.place(question.node)
        self.waiting[key] = began = WaitSpan(
            seq=seq, kind="question", node=question.node, iteration=iteration, execution=execution,
            item=question.item, started_at=question.asked_at, until=question.until, key=key,
            reason=text.one_line(question.text, ERROR_WIDTH),
        )  # fmt: skip
        self.waits.append(began)

    # --- the end ---

    def finish(self) -> list[Piece]:
        """Return all pieces, after the last event was added."""
        if self.state.seq == self.row.seq:
            self._finish_holder()
        elif self.holders and self.holders[-1].end is None:
            self._skip_to_end_of_holding()
        kept = stretches(self.row.rewinds, self.row.seq)
        if len(kept) > 1:
            undoable: list[AttemptSpan | WaitSpan] = [*self.bars, *self.waits]
            for piece in undoable:
                piece.current = any(first <= piece.seq <= last for first, last in kept)
        large = {visit for visit, items in self.fans.items() if items > ITEMS_DRAWN}
        bands: dict[int, tuple[AttemptSpan, list[AttemptSpan]]] = {}
        single: list[AttemptSpan] = []
        of_node: dict[str, AttemptSpan] = {}
        for bar in self.bars:
            if bar.item is None:
                of_node[bar.node] = bar
            elif (bar.node, bar.iteration, bar.execution) in large:
                whole = of_node.get(bar.node, bar)
                bands.setdefault(whole.seq, (whole, []))[1].append(bar)
                continue
            single.append(bar)
        waits = [
            wait
            for wait in self.waits
            if wait.item is None or (wait.node, wait.iteration, wait.execution) not in large
        ]
        items = [
            item_span(bars, self.fans[whole.node, whole.iteration, whole.execution], whole, self.state.at)
            for whole, bars in bands.values()
        ]
        return [*self.holders, *single, *items, *waits, *self.acts]

    def _skip_to_end_of_holding(self) -> None:
        """Say about the last holder how it ended, if that is after the events that were read."""
        store, row = self.store, self.row
        rows = store.events(row.run_id, self.state.seq, kinds=TAKES_OVER | _STOPS.keys(), limit=1)
        if rows and rows[0].kind in _STOPS:
            self.holders[-1].end, self.holders[-1].ended_at = _STOPS[rows[0].kind], rows[0].at
            return
        upto = rows[0].seq - 1 if rows else row.seq
        late = store.events(row.run_id, max(self.state.seq, upto - _LATE_EVENTS), upto)
        own = next((one for one in reversed(late) if one.kind not in BY_CALLERS), None)
        if own is not None:
            self.state = history.load(store, row.run_id, own.seq, row=row)
            self.visits.seen_at, self.visits.seen_seq = own.at, own.seq
            self.seen_status = self.state.status
        for stored in history.opened(store, row.run_id, rows):
            self._end_holding(stored)
        if not rows:
            self._finish_holder()

    def _finish_holder(self) -> None:
        """Say about the last holder what the row of the run says: whether it holds the run now, or has died."""
        row = self.row
        last = self.holders[-1] if self.holders else None
        died = not row.held and (self.state.running > 0 or self.seen_status == "running")
        if last is not None and last.end is None:
            if row.holder is not None:
                last.holder = last.holder or row.holder.describe()
            if not row.held:
                last.end, last.ended_at = ("died" if died else "released"), self.visits.seen_at
        if died:
            self.visits.presume_dead()
        if last is not None and last.end in ("died", "drained") and row.status not in ENDED:
            self._add_gap(last, None)
