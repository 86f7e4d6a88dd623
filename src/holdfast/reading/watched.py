"""What a person who watches runs sees: all facts about one run, or about a list of runs, read again as they change.

A look at one run is one query for the end of its log, and for its spills. The state of the run is folded on only if the log has
grown; who held the run is read only if its holder has changed. Facts that are not in the log (requests that wait, live workers)
are read at most once a second.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.events import Failure
from holdfast.core.kinds import TAKES_OVER
from holdfast.core.run_state import ENDED, VISIT_OPEN
from holdfast.errors import RunNotFound
from holdfast.reading import attention as attend
from holdfast.reading import history
from holdfast.reading.cases import Case, case_of, later_case, queue_of
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.reading.following import STREAMED
from holdfast.reading.pages import ListedRun
from holdfast.reading.picture import NodeMark, node_marks
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.spans import HolderSpan
from holdfast.reading.stream_tails import StreamingVisit, StreamTail, StreamTails
from holdfast.reading.timeline import Part, timeline
from holdfast.reading.views import Cost, EventView, event_view
from holdfast.storage.contract import Query, RunRow, Store

AGAIN_S = 1.0
"""After how many seconds facts are read again that are not in the log."""
PAGE = 200
"""How many new events are read at a time."""
_HOLDERS_MAX = 3
_HOLDER_EVENTS = 2000
"""In how many of the last events the holders of a run are looked for."""
_RECALLED_MAX = 4
"""Of how many open visits the log is read for what they have streamed."""


class RunSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one run."""

    row: RunRow
    found: Diagnosis
    definition: Definition
    nodes: dict[str, NodeMark]
    """The nodes that the run has reached."""
    failure: Failure | None
    cost: Cost
    active_s: float
    holders: list[HolderSpan]
    """Who held the run last, the latest one at the end."""
    streams: list[StreamTail]
    """What its open visits stream, that which has grown last at the end."""
    at: float
    """The store's time."""

    @property
    def is_over(self) -> bool:
        """True if the run was completed, failed or cancelled."""
        return self.row.status in ENDED


class RunWatch:
    """Looks at one run, and at what its nodes stream or, without `streams`, at its new events. To make one, and every look, may
    raise `RunNotFound` and `StoreError`.
    """

    def __init__(self, reader: Reader, run_id: str, commands: CommandLine, *, streams: bool = True) -> None:
        self._reader, self._store, self._run_id = reader, reader.store, run_id
        self._commands = commands
        self._tails = StreamTails(reader.store, run_id) if streams else None
        self._case = case_of(reader.store, reader.store.run(run_id))
        self._fingerprint, self._definition = self._case.row.fingerprint, reader.definition(self._case.row)
        self._holders: list[HolderSpan] = []
        self._held: tuple[int, bool, bool, int] | None = None
        self._take_overs = 0
        """How many events were read with which an engine took the run over. A lease is claimed before that event is recorded, so
        the holders may have been read in between."""
        self._end = (0, "", False)
        self._read_at = 0.0
        self._after = self._case.row.seq
        self._events: list[EventView] = []
        self.is_behind = False
        """True if the last look has not read all new events."""
        if self._tails is not None:
            self._tails.recall(islice(self._visits(streamed=True), _RECALLED_MAX), self._after)
            self._tails.look()
        self.seen = self._read(self._case)

    def look(self, now: float) -> bool:
        """Look at the run, and return whether something has changed. `now` is the time of the caller's clock. If a look raises,
        the next one finds what this one has not.
        """
        # Spills are read before the log: a chunk that is recorded between the two reads is then found twice, not missed.
        has_grown = self._tails is not None and self._tails.look()
        tail = self._store.feed.look({self._run_id: self._after}, PAGE).get(self._run_id)
        if tail is None:
            raise RunNotFound(self._run_id, self._store.url)
        self._take([event_view(one) for one in history.opened(self._store, self._run_id, tail.rows)])
        self.is_behind = len(tail.rows) == PAGE
        end = (tail.seq, tail.status, tail.held)
        has_changed = end != self._end
        if has_changed or now - self._read_at >= AGAIN_S:
            self._case = later_case(self._store, self._case)
            self.seen = self._read(self._case)
            self._end, self._read_at = end, now
        elif has_grown:
            self.seen = msgspec.structs.replace(self.seen, streams=self._streams())
        return has_changed or has_grown

    def take_events(self) -> list[EventView]:
        """Return the events that looks have found since the last call."""
        events, self._events = self._events, []
        return events

    def _take(self, events: list[EventView]) -> None:
        for event in events:
            self._after = event.seq
            self._take_overs += event.kind in TAKES_OVER
            if self._tails is None:
                self._events.append(event)
            elif event.kind == STREAMED:
                self._tails.record(event)

    def _read(self, case: Case) -> RunSeen:
        row, state = case.row, case.state
        assert state is not None
        if not row.held and row.status not in ENDED:  # as `holdfast show`: whether a live worker takes it
            holders = tuple(self._store.queues.holders())
            queue = queue_of(self._store, row, holders)
            case = msgspec.structs.replace(case, holders=holders, queue=queue)
        if row.fingerprint != self._fingerprint:
            self._fingerprint, self._definition = row.fingerprint, self._reader.definition(row)
        now = self._store.now()
        held = (row.fence, row.held, row.status in ENDED, self._take_overs)
        if held != self._held:
            self._held, self._holders = held, _latest_holders(self._store, row)
        return RunSeen(
            row=row,
            found=diagnose(case, now, self._commands),
            definition=self._definition,
            nodes=node_marks(row, state),
            failure=state.failure,
            cost=Cost(state.usd, state.tokens),
            active_s=state.active_s,
            holders=self._holders,
            streams=self._streams(),
            at=now,
        )

    def _streams(self) -> list[StreamTail]:
        if self._tails is None:
            return []
        self._tails.keep(set(self._visits()))
        return [msgspec.structs.replace(tail) for tail in self._tails.latest]

    def _visits(self, *, streamed: bool = False) -> list[StreamingVisit]:
        """Return the visits that are open; with `streamed`, those of which the log has chunks."""
        state = self._case.state
        assert state is not None
        return [
            StreamingVisit(name, node.iteration, node.execution)
            for name, node in state.nodes.items()
            if node.status in VISIT_OPEN and (node.streamed or not streamed)
        ]


def _latest_holders(store: Store, row: RunRow) -> list[HolderSpan]:
    """Return who held a run last, as its timeline says, from the latest part of a long log."""
    begin = row.seq - _HOLDER_EVENTS
    early = store.events(row.run_id, begin - 1, begin) if begin > 0 else []
    part = Part(from_at=early[0].at if early else None, limit=row.seq + 1)
    return timeline(store, row, part).holders[-_HOLDERS_MAX:]


# --- many runs ---------------------------------------------------------------------------------------


class RunsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a list of runs, and how many runs the store has."""

    runs: list[ListedRun]
    has_more: bool
    counts: dict[str, int]
    """Status -> how many runs of the store have it; statuses without a run are left out."""
    attention: int
    """How many runs of the store need attention."""
    at: float
    """The store's time."""


def look_at_runs(reader: Reader, query: Query, commands: CommandLine, *, attention: bool) -> RunsSeen:
    """Read the runs that meet the conditions, newest first, and the board."""
    runs, has_more = reader.list_runs(query, commands, attention=attention)
    board = reader.store.queues.board()
    return RunsSeen(
        runs=runs,
        has_more=has_more,
        counts=board.counts,
        attention=attend.count(reader.store, board, reader.flows),
        at=board.at,
    )
