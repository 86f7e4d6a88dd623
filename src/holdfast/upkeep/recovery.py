"""Finds runs that should continue but do not, reports why, and makes them available to workers again. It never executes a run.

Whether a worker may claim a run follows from its row, its lease and its inbox; there is no second record that could be wrong.
So there is little to repair: the leases of dead holders are released, which notifies the workers, and everything else is only
reported.

Invariant: a sweep changes only leases that have already lost their effect, which the store checks in the transaction that
releases them. If the database fails during a sweep, the error is reported with the findings so far, and the next sweep starts
from the beginning. A run that cannot be read (damaged, deleted meanwhile, or of a newer version) does not hide the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from holdfast.core.definition import NodeOptions
from holdfast.core.run_state import TAKEABLE
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading.cases import (
    Case,
    case_of,
    full_queues,
    group_refusals,
    queue_of,
    unreadable_case,
    without_refusers,
)
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import ON_OFFER, REFUSED, Diagnosis, diagnose, may_be_claimed
from holdfast.reading.node_diagnosis import diagnose_nodes
from holdfast.reading.remedies import CommandLine
from holdfast.storage import definitions
from holdfast.storage.contract import Position, Query, RunRow, Store, in_order
from holdfast.storage.leases import Holder
from holdfast.storage.queues import LiveHolder, Queue, Refusal

PATIENCE_S = 30.0
"""How many seconds a run may wait for an idle live worker that takes its flow before it is reported. A run that no live worker
takes is reported at once.
"""
ROWS_MAX = 10_000
"""The number of runs that one sweep examines at most."""
LOADS_MAX = 200
"""The number of runs whose log one sweep reads at most."""
_PAGE = 500
_NODES_MAX = 3
"""For how many nodes of a run the report says what resuming does to them."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one search for runs that do not continue: what it found, and which leases it released."""

    at: float
    findings: tuple[Diagnosis, ...] = ()
    """Runs and nodes that do not continue, beginning with those that have been waiting longest."""
    given_back: tuple[str, ...] = ()
    """The dead holders whose leases were released."""
    unknown: dict[str, int] = {}
    """Flow that is not known here -> how many of its runs no live worker takes."""
    complete: bool = True
    """False if there are more runs than one sweep examines."""
    error: str | None = None
    """The error of the database that ended the sweep early, or None. The findings are those made before the error."""


class Recovery:
    """Searches a store for runs that should continue but do not. `flows` are the names of the known flows; None means that all
    flows are known. If `inside` is true, logs are read too, to find nodes that do not continue; this costs some queries for
    each run.
    """

    def __init__(
        self,
        store: Store,
        *,
        flows: Collection[str] | None = None,
        patience_s: float = PATIENCE_S,
        inside: bool = True,
        commands: CommandLine | None = None,
    ) -> None:
        self._store = store
        self._flows = flows
        self._patience_s = patience_s
        self._inside = inside
        self._commands = commands or CommandLine()

    def sweep(self) -> RecoveryReport:
        """Examine every run that should move, and release the leases of dead processes. An error of the store is not raised but
        reported.
        """
        return _Sweep(self._store, self._flows, self._patience_s, self._inside, self._commands).done()


class _Sweep:
    """One search of a store for runs that do not continue."""

    def __init__(
        self,
        store: Store,
        flows: Collection[str] | None,
        patience_s: float,
        inside: bool,
        commands: CommandLine,
    ) -> None:
        self._store = store
        self._flows = flows
        self._patience_s = patience_s
        self._inside = inside
        self._commands = commands
        self._now = 0.0
        self._findings: list[Diagnosis] = []
        self._unknown: dict[str, int] = {}
        self._holders: tuple[LiveHolder, ...] = ()
        self._queues: dict[str, Queue] = {}
        self._definitions: dict[str, Mapping[str, NodeOptions]] = {}
        self._refusals: dict[str, list[Refusal]] = {}
        """The refusals of the runs of one page."""
        self._gone: dict[str, Holder] = {}
        self._given_back: list[str] = []
        self._loads = LOADS_MAX
        self._complete = True

    def done(self) -> RecoveryReport:
        error: str | None = None
        try:
            self._now, self._holders = self._store.now(), tuple(self._store.queues.holders())
            self._queues = full_queues(self._store)
            for row in self._rows():
                self._look_at(row)
            self._offer_again()
        except HoldfastError as fault:
            error = str(fault)
        return RecoveryReport(
            at=self._now,
            findings=tuple(
                sorted(self._findings, key=lambda found: (found.since or 0.0, found.run_id or ""))
            ),
            given_back=tuple(self._given_back),
            unknown=self._unknown,
            complete=self._complete,
            error=error,
        )

    def _rows(self) -> Iterator[RunRow]:
        page = self._page(None)
        for _ in range(0, ROWS_MAX, _PAGE):
            free = without_refusers(self._store, page)
            self._refusals = group_refusals(self._store, free, self._holders)
            yield from free
            if len(page) < _PAGE:
                return
            page = self._page(page[-1].position)
        self._complete = False

    def _page(self, after: Position | None) -> list[RunRow]:
        return self._store.runs(Query(status=in_order(TAKEABLE), after=after, limit=_PAGE))

    def _offer_again(self) -> None:
        """Release the leases of dead holders. If such a holder turns out to be alive, the store refuses its writes, because its
        fence is too old.
        """
        if self._gone:
            gone = self._store.queues.give_back(self._gone)
            self._given_back.extend(self._gone[engine].describe() for engine in gone)

    # --- runs -----------------------------------------------------------------------------------------

    def _look_at(self, row: RunRow) -> None:
        if row.held:
            return
        is_known = self._flows is None or row.flow in self._flows
        case = self._case(row)
        if case is None:
            return
        case = msgspec.structs.replace(case, flow_known=is_known)
        found = diagnose(case, self._now, self._commands)
        nodes = (
            list(diagnose_nodes(row, case.state, case.nodes, self._now, self._commands)) if case.state else []
        )
        if row.holder is not None:
            self._gone[row.holder.id] = row.holder
        elif found.kind not in ON_OFFER | REFUSED and not case.fault:
            self._findings += nodes  # the run is well, but says when it goes on
            return
        elif may_be_claimed(case, found, self._now, self._patience_s):
            return
        elif not is_known:
            self._unknown[row.flow] = self._unknown.get(row.flow, 0) + 1
        self._findings.append(_with_nodes(found, nodes))

    def _case(self, row: RunRow) -> Case | None:
        """Read a run as far as the sweep needs it: its log only if the run should move. Returns None if the run was deleted
        meanwhile.
        """
        is_idle = row.status == "waiting" and row.due_at is None and row.run_id not in self._refusals
        if not self._inside or is_idle:
            return self._bare_case(row)
        if self._loads <= 0:
            self._complete = False
            return self._bare_case(row)
        self._loads -= 1
        refusals = self._refusals.get(row.run_id, ())
        try:
            self._read_definition(row.fingerprint)
            case = case_of(
                self._store,
                row,
                definitions=self._definitions,
                holders=self._holders,
                refusals=refusals,
                queues=self._queues,
            )
            return compare(self._store, case, None)
        except RunNotFound:
            return None
        except (HoldfastError, msgspec.MsgspecError) as fault:
            newer = "; a newer version of Holdfast may have written it" if _is_unknown(fault) else ""
            found = unreadable_case(self._store, row, fault, self._holders)
            return msgspec.structs.replace(found, fault=f"{fault}{newer}")

    def _bare_case(self, row: RunRow) -> Case:
        """Return the case of a run whose log is not read."""
        refusals = tuple(self._refusals.get(row.run_id, ()))
        return Case(
            row=row,
            holders=self._holders,
            refusals=refusals,
            queue=queue_of(self._store, row, self._holders, self._queues),
        )

    def _read_definition(self, fingerprint: str) -> None:
        """Read the definition of a flow, so that a run whose flow cannot be read is reported even if its log can be."""
        if fingerprint not in self._definitions:
            stored = self._store.definition(fingerprint)
            self._definitions[fingerprint] = definitions.decode(stored).nodes if stored is not None else {}


def _with_nodes(found: Diagnosis, nodes: list[Diagnosis]) -> Diagnosis:
    """Return the diagnosis of a run whose command to resume it says what that does to the nodes that do not move."""
    if not nodes:
        return found
    words = "; ".join(
        f"{one.node}: {one.remedies[0].words}" if len(nodes) > 1 else one.remedies[0].words
        for one in nodes[:_NODES_MAX]
    )
    told = tuple(
        msgspec.structs.replace(one, words=words) if one.verb == "resume" else one for one in found.remedies
    )
    return msgspec.structs.replace(found, remedies=told)


def _is_unknown(fault: Exception) -> bool:
    """Return whether the error means that this version of Holdfast does not know what is stored."""
    return isinstance(fault, msgspec.MsgspecError) or isinstance(fault.__cause__, msgspec.MsgspecError)
