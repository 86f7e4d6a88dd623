"""Routes that give the rows of the store, for a store URL that names this server (`holdfast runs --store https://…`).

A client that reads rows says which format it reads (the header `Holdfast-Rows`); a client that is too old is refused. The
format is in `holdfast.storage.http.row_format`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core import VERSION
from holdfast.errors import SchemaTooNew
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import refuse
from holdfast.server.run_files import BINARY
from holdfast.storage.contract import Query, Row, RunRow, Store
from holdfast.storage.http.row_format import (
    EVENTS_BYTES_MAX,
    EVENTS_MAX,
    HEADER,
    ROWS,
    RUNS_MAX,
    Damage,
    StoreAbout,
    StoredDefinition,
    StoredEvents,
    StoredHolders,
    StoredOffers,
    StoredRefusals,
    StoredRequests,
    StoredRuns,
    StoredSnapshot,
    StoredStreams,
    StoredTails,
    StoredUpkeep,
    WantedEvents,
    WantedRefusals,
    WantedRequests,
    WantedTails,
)
from holdfast.storage.queues import Board
from holdfast.storage.upkeep import Facts

T = TypeVar("T", bound=msgspec.Struct)
_NUMBER = re.compile(r"[0-9]{1,6}")


class WantedQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows to give."""

    query: Annotated[str, Meta(max_length=2000)] = "{}"
    """The conditions as a JSON object: for runs, the fields of `Query` in `holdfast.storage.contract`; for other rows,
    those of `WantedEvents`, `WantedTails`, `WantedRequests` and `WantedRefusals` in `holdfast.storage.http.row_format`. Texts
    may have any character.
    """


class StoredSnapshotQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which ranges of seqs to look, each as FIRST-LAST."""

    within: tuple[Annotated[str, Meta(pattern="^[0-9]{1,15}-[0-9]{1,15}$")], ...] = ()


class FingerprintQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which definition to give."""

    fingerprint: Annotated[str, Meta(max_length=200)]


class BlobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which blob to give."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def _store(call: HttpCall[Any, None]) -> Store:
    """Return the store, unless the client reads rows in a format that this server cannot give."""
    given = call.headers.get(HEADER.lower())
    if given is not None and not _NUMBER.fullmatch(given):
        raise refuse("bad-request", f"The header `{HEADER}` is not a number.")
    if given is not None and int(given) < ROWS:
        raise SchemaTooNew(
            f"this server runs Holdfast {VERSION}, and the client reads an older form of its rows. Install Holdfast {VERSION} "
            "where the client runs."
        )
    return call.backend.store


def get_store(call: HttpCall[NoQuery, None]) -> StoreAbout:
    """Say what the store is, and its time."""
    store = _store(call)
    return StoreAbout(
        rows=ROWS,
        version=VERSION,
        url=store.url,
        generation=store.generation,
        now=store.now(),
        refusals=True,
    )


def get_stored_runs(call: HttpCall[WantedQuery, None]) -> StoredRuns:
    """Get the rows of runs that match a query, newest first."""
    query = _read(call.query.query, Query)
    limit = max(0, min(query.limit, RUNS_MAX))
    rows = _store(call).runs(msgspec.structs.replace(query, limit=limit)) if limit else []
    return StoredRuns(rows, more=bool(limit) and len(rows) == limit)


def _read(text: str, kind: type[T]) -> T:
    """Read the conditions of a query. Raises `Refused`."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        unknown = sorted(given.keys() - set(kind.__struct_fields__))
        if unknown:
            raise refuse("bad-parameter", f"This server does not know the condition {unknown[0][:80]!r}.")
        return msgspec.convert(given, kind)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise refuse("bad-parameter", f"The parameter 'query' is not valid: {fault}.") from None


def get_stored_run(call: HttpCall[NoQuery, None]) -> RunRow:
    """Get the row of a run."""
    return _store(call).run(call.values["id"])


def get_stored_events(call: HttpCall[WantedQuery, None]) -> StoredEvents:
    """Get rows of the log of a run, in order."""
    query = _read(call.query.query, WantedEvents)
    limit = max(0, min(query.limit, EVENTS_MAX))
    rows = _store(call).events(
        call.values["id"], query.after, query.upto, kinds=query.kinds, node=query.node, limit=limit
    )
    given = _within_size(rows)
    return StoredEvents(given, more=bool(limit) and (len(given) < len(rows) or len(rows) == limit))


def get_stored_tails(call: HttpCall[WantedQuery, None]) -> StoredTails:
    """Get the ends of the logs of some runs, for a client that follows them."""
    query = _read(call.query.query, WantedTails)
    store, limit = _store(call), max(0, min(query.limit, EVENTS_MAX))
    found = store.feed.look(query.after, limit)
    for tail in found.values():
        tail.rows = _within_size(tail.rows)
    return StoredTails(found)


def _within_size(rows: list[Row]) -> list[Row]:
    """Return the first rows, up to the size of an answer; at least one, if there is one."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row.body)
        if size > EVENTS_BYTES_MAX and number:
            return rows[:number]
    return rows


def get_stored_snapshot(call: HttpCall[StoredSnapshotQuery, None]) -> StoredSnapshot:
    """Get the latest snapshot of a run in some ranges of its log."""
    ranges = [
        (int(first), int(last)) for first, _, last in (text.partition("-") for text in call.query.within)
    ]
    return StoredSnapshot(_store(call).snapshot(call.values["id"], ranges))


def get_stored_inbox(call: HttpCall[NoQuery, None]) -> StoredRequests:
    """Get all requests that a run ever got."""
    return StoredRequests(_store(call).inbox(run_id=call.values["id"]))


def get_stored_upkeep(call: HttpCall[NoQuery, None]) -> StoredUpkeep:
    """Get what upkeep has removed from the log of a run, and which snapshots there are."""
    upkeep, run_id = _store(call).upkeep, call.values["id"]
    snapshots = upkeep.snapshots(run_id)
    return StoredUpkeep(upkeep.trimmed(run_id), snapshots)


def get_stored_streams(call: HttpCall[NoQuery, None]) -> StoredStreams:
    """Get what the nodes of a run have streamed that is not in its log yet."""
    store = _store(call)
    store.run(call.values["id"])
    return StoredStreams(store.blobs.spilled(call.values["id"]))


def get_stored_definition(call: HttpCall[FingerprintQuery, None]) -> StoredDefinition:
    """Get the definition of a flow by its fingerprint."""
    return StoredDefinition(_store(call).definition(call.query.fingerprint))


def get_stored_blob(call: HttpCall[BlobQuery, None]) -> Answer:
    """Get a value that is stored beside the logs, by its digest."""
    body = _store(call).blobs.get(call.query.digest)
    headers = {"Content-Disposition": "attachment", "Cache-Control": "private, max-age=31536000, immutable"}
    return Answer(body=body, media_type=BINARY, headers=headers)


def get_stored_holders(call: HttpCall[NoQuery, None]) -> StoredHolders:
    """Get the live engines that use the store."""
    return StoredHolders(_store(call).queues.holders())


def get_stored_waiting(call: HttpCall[WantedQuery, None]) -> StoredRequests:
    """Get the requests that wait for some runs."""
    return StoredRequests(_store(call).queues.waiting(_read(call.query.query, WantedRequests).run_ids))


def get_stored_refusals(call: HttpCall[WantedQuery, None]) -> StoredRefusals:
    """Get why live workers cannot continue some runs."""
    return StoredRefusals(_store(call).queues.refusals(_read(call.query.query, WantedRefusals).run_ids))


def get_stored_offers(call: HttpCall[NoQuery, None]) -> StoredOffers:
    """Get how many runs of each flow and queue are on offer, apart from those with requests."""
    return StoredOffers(_store(call).queues.offered())


def get_stored_board(call: HttpCall[NoQuery, None]) -> Board:
    """Get how many runs have each status, how many ended lately, and the live engines."""
    return _store(call).queues.board()


def get_stored_facts(call: HttpCall[NoQuery, None]) -> Facts:
    """Get what the store reports about itself: its size, version and settings."""
    return _store(call).upkeep.facts()


def check_store(call: HttpCall[NoQuery, None]) -> Damage:
    """Check the store as a whole for damage, which may take long."""
    return Damage(_store(call).check())
