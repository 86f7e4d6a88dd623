"""Convert rows that SQLite and PostgreSQL store in the same columns to structs and back: run rows, ends of logs, holders,
tokens, the generation of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.validate import RUN_ID
from holdfast.errors import StoreCorrupt
from holdfast.storage.contract import NO_EVENTS, Holder, Request, Row, RunRow, Tail
from holdfast.storage.leases import CallsAtOnce
from holdfast.storage.tokens import Token

_encode = msgspec.json.Encoder().encode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
_calls = msgspec.json.Decoder(tuple[CallsAtOnce, ...]).decode
_pairs = msgspec.json.Decoder(tuple[tuple[int, int], ...]).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_strings = msgspec.json.Decoder(dict[str, str]).decode


def holder_of(cells: tuple[Any, ...]) -> Holder | None:
    """Return the holder from the columns of a row, or None if the run has no holder."""
    return None if cells[0] is None else read_holder(cells)


def read_holder(cells: Sequence[Any], calls: str | None = None) -> Holder:
    """Return the holder from the columns of a row. `calls` is a column that only the list of holders has."""
    engine, host, boot, pid_namespace, pid, process_started, ttl_s, flows, queues, version = cells
    return Holder(
        id=engine, host=host, boot=boot, pid_namespace=pid_namespace, pid=pid, process_started=process_started, ttl_s=ttl_s,
        flows=_names(flows) if flows else (), queues=_names(queues) if queues else (), version=version,
        calls=_calls(calls) if calls else (),
    )  # fmt: skip


def holder_cells(holder: Holder, at: float | None) -> tuple[Any, ...]:
    """Return a holder as parameters of the query `renew_holder`. `at` is the parameter for the time: SQLite wants to know when
    the leases expire, PostgreSQL what time it is (None: the server knows).
    """
    return (
        holder.id, holder.host, holder.boot, holder.pid_namespace, holder.pid, holder.process_started, holder.ttl_s, at,
        _encode(holder.flows).decode() if holder.flows else None,
        _encode(holder.queues).decode() if holder.queues else None, holder.version,
        _encode(holder.calls).decode() if holder.calls else None,
    )  # fmt: skip


def run_row(cells: tuple[Any, ...], holder: Holder | None, held: bool) -> RunRow:
    """Return a `RunRow` from the columns that both databases select for it. If some cannot be read, its `fault` says so."""
    (run_id, flow, status, seq, digest, fingerprint, state_version, created_at, updated_at, input_digest, labels, parent, origin,
     active, error, rewinds, due_at, fence, queue, priority, asks, active_s, situation) = cells[:23]  # fmt: skip
    try:
        return RunRow(
            run_id=run_id, flow=flow, status=status, seq=seq, digest=digest, fingerprint=fingerprint, state_version=state_version,
            created_at=created_at, updated_at=updated_at, input_digest=input_digest, labels=_strings(labels), parent=parent,
            origin=origin, active=_names(active) if active else (), error=error,
            rewinds=_pairs(rewinds) if rewinds else (), due_at=due_at,
            fence=fence, holder=holder, held=held, queue=queue, priority=priority, asks=asks, active_s=active_s,
            situation=situation,
        )  # fmt: skip
    except msgspec.MsgspecError as fault:
        return RunRow(
            run_id=run_id, flow=flow, status=status, seq=seq, digest=digest, fingerprint=fingerprint, state_version=state_version,
            created_at=created_at, updated_at=updated_at, input_digest=input_digest, labels={}, parent=parent,
            origin=origin, active=(), error=error, rewinds=(), due_at=due_at,
            fence=fence, holder=holder, held=held, queue=queue, priority=priority,
            fault=f"run {run_id!r}: the row of this run is damaged ({fault}). Restore the store from a backup. The "
                  "other runs are not affected: each can still be shown and archived by its id.",
        )  # fmt: skip


def require_whole(row: RunRow) -> RunRow:
    """Return the row of a run. Raises `StoreCorrupt` if it could not be read."""
    if row.fault:
        raise StoreCorrupt(row.fault)
    return row


def askable(after: Mapping[str, int]) -> dict[str, int]:
    """Leave out what cannot be the id of a run, because a database would refuse the whole query, and limit the seqs: SQLite keys
    events by run << 32 | seq, so a larger seq would select events of another run.
    """
    return {run_id: min(seq, NO_EVENTS) for run_id, seq in after.items() if RUN_ID.fullmatch(run_id)}


def tails_of(
    found: Iterable[tuple[Any, ...]], is_held: Callable[[Holder, tuple[Any, ...]], bool], first: int
) -> dict[str, Tail]:
    """Return the ends of logs from the rows of the query `feed`, whose columns of holders begin at `first`."""
    tails: dict[str, Tail] = {}
    known: dict[str, bool] = {}  # each holder is checked once, however many runs it holds
    last = first + len(Holder.__struct_fields__) - 1  # without `calls`, which only the list of holders has
    for cells in found:
        run_id, holder_id = cells[0], cells[first]
        tail = tails.get(run_id)
        if tail is None:
            if holder_id is not None and holder_id not in known:
                known[holder_id] = is_held(read_holder(cells[first:last]), cells)
            tail = tails[run_id] = Tail(cells[1], cells[2], known.get(holder_id, False), [])
        if cells[last] is not None:
            tail.rows.append(Row(*cells[last:]))
    return tails


def request_of(cells: tuple[Any, ...]) -> Request:
    """Return a request from the columns that the queries `inbox` and `inbox_of` select."""
    request, verb, body, by, reason, run_id, at, taken, unmet = cells
    return Request(id=request, verb=verb, body=_object(body) if body else {}, by=by, reason=reason, run_id=run_id, at=at,
                   taken=taken, unmet=bool(unmet))  # fmt: skip


def token_cells(token: Token) -> tuple[Any, ...]:
    """Return a token as parameters of the query `add_token`."""
    return msgspec.structs.astuple(token)


def token_of(cells: tuple[Any, ...]) -> Token:
    """Return a token from the columns that the queries `token` and `tokens` select. Raises `StoreCorrupt` if they cannot be
    read.
    """
    found = dict(zip(Token.__struct_fields__, cells, strict=True))
    try:
        return msgspec.convert(found, Token)
    except msgspec.ValidationError as fault:
        raise StoreCorrupt(
            f"the row of the token {found['id']!r} is damaged ({fault}). Restore the store from a backup."
        ) from fault


def generation_of(where: str, found: Sequence[tuple[str, ...]]) -> str:
    """Return the generation of a store, from the rows of the query `generation`. Raises `StoreCorrupt` if there is none."""
    if not found:
        raise StoreCorrupt(
            f"{where} is damaged: the random id of the store (its generation) is missing. Restore it from a backup."
        )
    return found[0][0]
