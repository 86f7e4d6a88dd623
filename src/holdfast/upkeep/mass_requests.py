"""Asks many runs at once: leaves one request in the inbox of each run that matches a query.

The caller may be killed at any instruction and ask again: the id of a request follows from what it asks for and from the last
event of its run, so a run that was asked before is not asked twice, and a run that has failed again since may be asked again. A
caller that has an id of its own for the whole batch uses that instead. Workers carry the requests out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from holdfast.core.requests import RECORDS
from holdfast.core.run_state import FINAL
from holdfast.errors import HoldfastError, RunNotFound, RunOver, SettingError
from holdfast.reading import inbox
from holdfast.reading.reader import rows_of
from holdfast.storage.contract import Query, Request, RunRow, RunStatus, Store, in_order
from holdfast.storage.verdicts import digest_request

BatchVerb: TypeAlias = Literal["resume", "retry", "cancel"]
AT_ONCE = 200
"""How many requests are left in one transaction."""
_PAGE = 1000

DONE = {verb: record.traits.done for verb, record in RECORDS.items() if record.traits.of_many}
"""Verb that may be asked of many runs -> what is true of a run for which it was carried out."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """A run that matches: the columns of its row that are needed, because there may be a million of them."""

    run_id: str
    seq: int
    flow: str
    queue: str
    status: RunStatus
    held: bool


class Tally(msgspec.Struct, kw_only=True):
    """How many of the matching runs were asked, and what became of the others."""

    matched: int = 0
    asked: int = 0
    repeated: int = 0
    """Runs that had been asked before."""
    executing: int = 0
    """Runs that are not asked to continue, because a process executes them."""
    over: int = 0
    """Runs that were completed or cancelled meanwhile."""
    gone: int = 0
    """Runs that were deleted meanwhile."""
    refused: dict[str, str] = {}
    """Runs that refused the request -> why."""

    def add(self, run_id: str, posted: bool | HoldfastError) -> None:
        match posted:
            case True:
                self.asked += 1
            case False:
                self.repeated += 1
            case RunOver():
                self.over += 1
            case RunNotFound():
                self.gone += 1
            case _:
                self.refused[run_id] = str(posted)


def meant(query: Query, verb: str, option: str = "") -> Query:
    """Return the query with the statuses that a verb means if none is given. Raises `SettingError` for runs that are over;
    `option` is how the caller gave the status.
    """
    final = [status for status in query.status if status in FINAL]
    if final:
        raise SettingError(
            f"{option}status={final[0]}: a run that is {final[0]} cannot be {DONE[verb]}. `holdfast fork RUN` makes a new run "
            "from one of its checkpoints."
        )
    return (
        query
        if query.status
        else msgspec.structs.replace(query, status=in_order(RECORDS[verb].traits.of_many))
    )


def find(store: Store, query: Query) -> list[Match]:
    """Return the runs that match, newest first."""
    return [_match(row) for row in rows_of(store, msgspec.structs.replace(query, limit=_PAGE))]


def _match(row: RunRow) -> Match:
    return Match(row.run_id, row.seq, row.flow, row.queue, row.status, row.held)


def leave_all(
    store: Store,
    request: inbox.AnyRequest,
    found: Sequence[Match],
    tally: Tally,
    tell: Callable[[str, int, int], object] = lambda what, done, of: None,
    *,
    id: str | None = None,
) -> list[Match]:
    """Leave the request in each run, with the given id or with one that follows from what is asked for. Returns the runs that
    have it now, also those that had it before. `tell` is called with the progress.
    """
    asked: list[Match] = []
    done = 0
    for some in _in_batches(found):
        ready = [one for one in some if not one.held or request.verb == "cancel"]
        left = [_for_run(request, one, id) for one in ready]
        for one, posted in zip(ready, store.queues.post_all(left), strict=True):
            tally.add(one.run_id, posted)
            asked += [one] if isinstance(posted, bool) else []
        tally.executing += len(some) - len(ready)
        done += len(some)
        tell("requests", done, len(found))
    return asked


def _in_batches(found: Sequence[Match]) -> Iterator[Sequence[Match]]:
    return (found[start : start + AT_ONCE] for start in range(0, len(found), AT_ONCE))


def _for_run(request: inbox.AnyRequest, one: Match, id: str | None) -> Request:
    """Return the stored form of the request for one run. The same request to a run that has not moved has the same id."""
    stored = inbox.stored_form(request)
    given = id if id is not None else id_for(stored, one)
    return msgspec.structs.replace(stored, id=inbox.stored_id(given, request.verb), run_id=one.run_id)


def id_for(stored: Request, one: Match) -> str:
    """Return the id of a request to one run that follows from what is asked for and from the last event of the run."""
    return f"where:{digest_request(stored).hex()[:16]}:{one.seq}"
