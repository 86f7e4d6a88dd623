"""Finds runs that should move and do not, says why and what happens next, and offers them again. It never executes anything.

A run is on offer by what its row, its lease and its inbox say; there is no second record that could be wrong, so there is little
to repair: the leases of holders that are gone are given back, which wakes the workers, and what is left is to be told.

Invariant: a sweep changes nothing but leases that keep nobody out any more, as the store sees it in the transaction that gives
them back. One that meets an error of the database tells it in its report, with what it had found, and the next one begins anew.
A run that cannot be read (damaged, deleted meanwhile, or written by a newer version) keeps nobody from seeing the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

import msgspec

from holdfast.core.definition import Definition, NodeOptions
from holdfast.core.run_state import TAKEABLE, NodeState, RunState
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading import history
from holdfast.storage.contract import Query, RunRow, Store, in_order
from holdfast.storage.leases import Holder

Why: TypeAlias = Literal[
    "holder gone", "no taker", "due", "not started", "cut", "waits for retry", "unreadable"
]

PATIENCE_S = 30.0
"""How long a run may be on offer before it is worth a word."""
ROWS_MAX = 10_000
"""Runs that one sweep looks at."""
LOADS_MAX = 200
"""Runs of which one sweep looks into the log."""
_PAGE = 500
_ON_OFFER = "it is on offer: a worker that knows its flow takes it up"
_CUT = {
    "rerun": "it is run again, as attempt {next}",
    "ask": "somebody is asked whether it is run again, skipped, or the run aborted",
    "skip": "it is skipped",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run, or a node of one, that should move and does not."""

    run_id: str
    flow: str
    why: Why
    since: float
    node: str | None = None
    told: str = ""
    """Who it was, or what is wrong, where that is known."""
    next: str
    """What happens next, and by whom."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep found and did."""

    at: float
    findings: tuple[Finding, ...] = ()
    """Those that have stood still longest first."""
    given_back: tuple[str, ...] = ()
    """The holders that were gone: their leases were given back."""
    unknown: dict[str, int] = {}
    """Flow that was not given to whoever sweeps -> how many runs of it wait to be taken up."""
    complete: bool = True
    """False: there are more runs than one sweep looks at."""
    error: str | None = None
    """The database failed in the middle; what is told here was found before."""


class Recovery:
    """Sweeps a store for runs that do not move. `flows`: names of those that are known here; None: all are. `inside`: it also
    looks into their logs for nodes that do not move, which costs some queries for each run.
    """

    def __init__(
        self,
        store: Store,
        *,
        flows: Collection[str] | None = None,
        patience_s: float = PATIENCE_S,
        inside: bool = True,
    ) -> None:
        self._store = store
        self._flows = flows
        self._patience_s = patience_s
        self._inside = inside

    def sweep(self) -> RecoveryReport:
        """Look at every run that should move, and offer again what somebody left. Raises nothing of the store's."""
        return _Sweep(self._store, self._flows, self._patience_s, self._inside).done()


class _Sweep:
    """One sweep."""

    def __init__(self, store: Store, flows: Collection[str] | None, patience_s: float, inside: bool) -> None:
        self._store = store
        self._flows = flows
        self._patience_s = patience_s
        self._inside = inside
        self._now = 0.0
        self._findings: list[Finding] = []
        self._unknown: dict[str, int] = {}
        self._gone: dict[str, Holder] = {}
        self._given_back: list[str] = []
        self._loads = LOADS_MAX
        self._complete = True

    def done(self) -> RecoveryReport:
        error: str | None = None
        try:
            self._now = self._store.now()
            for row in self._rows():
                self._look_at(row)
            self._offer_again()
        except HoldfastError as fault:
            error = str(fault)
        return RecoveryReport(
            at=self._now,
            findings=tuple(sorted(self._findings, key=lambda found: (found.since, found.run_id))),
            given_back=tuple(self._given_back),
            unknown=self._unknown,
            complete=self._complete,
            error=error,
        )

    def _rows(self) -> Iterator[RunRow]:
        page = self._page(None)
        for _ in range(0, ROWS_MAX, _PAGE):
            yield from page
            if len(page) < _PAGE:
                return
            page = self._page_behind(page)
        self._complete = False

    def _page(self, before: str | None) -> list[RunRow]:
        return self._store.runs(Query(status=in_order(TAKEABLE), before=before, limit=_PAGE))

    def _page_behind(self, page: list[RunRow]) -> list[RunRow]:
        """The next page, by the last run of this one that is still there: somebody may be deleting."""
        for row in reversed(page):
            try:
                return self._page(row.run_id)
            except RunNotFound:
                continue
        self._complete = False
        return []

    def _offer_again(self) -> None:
        """Give back the leases of holders that are gone. One that comes back meets a higher fence, as after a takeover."""
        if self._gone:
            gone = self._store.queues.give_back(self._gone)
            self._given_back.extend(self._gone[engine].describe() for engine in gone)

    # --- runs -----------------------------------------------------------------------------------------

    def _look_at(self, row: RunRow) -> None:
        if row.held:
            return
        waits = self._now - row.updated_at
        if row.holder is not None:
            self._gone[row.holder.id] = row.holder
            self._find(row, "holder gone", row.updated_at, told=row.holder.describe(), next=_ON_OFFER)
        elif row.status != "waiting" and waits > self._patience_s:
            self._find(row, "no taker", row.updated_at, next=self._taker(row))
        elif row.due_at is not None and self._now - row.due_at > self._patience_s:
            self._find(row, "due", row.due_at, next=self._taker(row))
        if self._inside and (row.status != "waiting" or row.due_at is not None):
            self._look_inside(row)

    def _taker(self, row: RunRow) -> str:
        if self._flows is None or row.flow in self._flows:
            return f"{_ON_OFFER}; is one running, has it this queue ({row.queue}), and is that not full?"
        self._unknown[row.flow] = self._unknown.get(row.flow, 0) + 1
        return f"it waits for a worker that knows flow {row.flow!r}"

    def _find(
        self, row: RunRow, why: Why, since: float, *, next: str, node: str | None = None, told: str = ""
    ) -> None:
        self._findings.append(
            Finding(run_id=row.run_id, flow=row.flow, why=why, since=since, node=node, told=told, next=next)
        )

    # --- nodes ----------------------------------------------------------------------------------------

    def _look_inside(self, row: RunRow) -> None:
        if self._loads <= 0:
            self._complete = False
            return
        self._loads -= 1
        try:
            state = history.load(self._store, row.run_id, row=row)
            stored = self._store.definition(row.fingerprint)
            options = msgspec.json.decode(stored, type=Definition).nodes if stored is not None else {}
        except RunNotFound:  # deleted meanwhile
            return
        except msgspec.MsgspecError as fault:
            told = f"it holds something that is not known here ({fault})"
            newer = "a newer version of Holdfast may have written it; look at it with that one"
            self._find(row, "unreadable", row.updated_at, told=told, next=newer)
            return
        except HoldfastError as fault:
            told = f"`holdfast verify {row.run_id}` says where its log is damaged"
            self._find(row, "unreadable", row.updated_at, told=str(fault), next=told)
            return
        for name, node in state.nodes.items():
            self._look_at_node(row, state, name, node, options.get(name, NodeOptions()))

    def _look_at_node(
        self, row: RunRow, state: RunState, name: str, node: NodeState, options: NodeOptions
    ) -> None:
        if node.status == "running":
            what = _CUT[options.on_interrupt].format(next=node.attempt + 1)
            told = f"attempt {node.attempt} was started and has not ended"
            self._find(row, "cut", node.started_at, node=name, told=told, next=what)
        elif node.status == "waiting" and node.retry_at is not None:
            left = node.retry_at - self._now
            when = f"in {left:.0f} s" if left > 0 else "as soon as a worker takes the run up"
            failed = node.failure.type if node.failure is not None else "it"
            told = f"attempt {node.attempt} failed ({failed})"
            self._find(
                row, "waits for retry", node.ended_at, node=name, told=told, next=f"it is tried again {when}"
            )
        elif node.status == "pending" and (name in state.open or name in state.arrivals):
            attempt = max(node.attempt, 1)
            told = "it is due and was not started"
            self._find(
                row,
                "not started",
                row.updated_at,
                node=name,
                told=told,
                next=f"it starts, as attempt {attempt}",
            )
