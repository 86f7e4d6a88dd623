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

from holdfast.core.definition import Definition, NodeOptions
from holdfast.core.run_state import TAKEABLE, RunState
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading import history
from holdfast.reading.diagnosis import Case, Diagnosis, diagnose, diagnose_nodes
from holdfast.reading.remedies import CommandLine, Remedy
from holdfast.storage.contract import Query, RunRow, Store, in_order
from holdfast.storage.leases import Holder

PATIENCE_S = 30.0
"""How many seconds a run may wait for a worker before it is reported."""
ROWS_MAX = 10_000
"""The number of runs that one sweep examines at most."""
LOADS_MAX = 200
"""The number of runs whose log one sweep reads at most."""
_PAGE = 500


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one search for runs that do not continue: what it found, and which leases it released."""

    at: float
    findings: tuple[Diagnosis, ...] = ()
    """Runs and nodes that do not continue, beginning with those that have been waiting longest."""
    given_back: tuple[str, ...] = ()
    """The dead holders whose leases were released."""
    unknown: dict[str, int] = {}
    """Flow that is not known here -> how many of its runs wait for a worker."""
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
            yield from page
            if len(page) < _PAGE:
                return
            page = self._page_behind(page)
        self._complete = False

    def _page(self, before: str | None) -> list[RunRow]:
        return self._store.runs(Query(status=in_order(TAKEABLE), before=before, limit=_PAGE))

    def _page_behind(self, page: list[RunRow]) -> list[RunRow]:
        """Return the page of runs after this page. The last run of the page may have been deleted meanwhile; then the last one
        that still exists is used.
        """
        for row in reversed(page):
            try:
                return self._page(row.run_id)
            except RunNotFound:
                continue
        self._complete = False
        return []

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
        goes = row.status != "waiting" or row.due_at is not None
        loaded = self._load(row) if self._inside and goes else None
        commands = self._commands.for_flow_of(loaded[0].options.get(history.FLOW_FILE) if loaded else None)
        found = diagnose(Case(row=row, flow_known=is_known), self._now, commands)
        if row.holder is not None:
            self._gone[row.holder.id] = row.holder
            self._report(row, found, commands, is_known=True)
        elif found.kind != "waiting" and self._now - (found.since or 0.0) > self._patience_s:
            self._report(row, found, commands, is_known=is_known)
        if loaded is not None:
            self._findings += diagnose_nodes(row, *loaded, self._now, commands)

    def _report(self, row: RunRow, found: Diagnosis, commands: CommandLine, *, is_known: bool) -> None:
        """Report a run that waits for a worker. The first remedy is to start a worker, the second to resume the run."""
        if not is_known:
            self._unknown[row.flow] = self._unknown.get(row.flow, 0) + 1
        words = (
            f"start a worker that knows its flow and serves its queue ({row.queue}): it claims the run"
            if is_known
            else f"start a worker that knows flow {row.flow!r}: it claims the run"
        )
        work = Remedy("work", {}, words, commands.line("worker", *commands.file_words()))
        self._findings.append(msgspec.structs.replace(found, remedies=(work, *found.remedies)))

    def _load(self, row: RunRow) -> tuple[RunState, Mapping[str, NodeOptions]] | None:
        """Load a run, and the options of its nodes. A run that cannot be read is reported."""
        if self._loads <= 0:
            self._complete = False
            return None
        self._loads -= 1
        try:
            state = history.load(self._store, row.run_id, row=row)
            stored = self._store.definition(row.fingerprint)
            return state, msgspec.json.decode(stored, type=Definition).nodes if stored is not None else {}
        except RunNotFound:  # deleted meanwhile
            return None
        except (HoldfastError, msgspec.MsgspecError) as fault:
            newer = "; a newer version of Holdfast may have written it" if _is_unknown(fault) else ""
            self._findings.append(diagnose(Case(row=row, fault=f"{fault}{newer}"), self._now, self._commands))
            return None


def _is_unknown(fault: Exception) -> bool:
    """Return whether the error means that this version of Holdfast does not know what is stored."""
    return isinstance(fault, msgspec.MsgspecError)
