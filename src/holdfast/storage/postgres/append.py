"""Write appends to PostgreSQL: a lone append in one statement, several in one transaction with few round trips.

This module owns no connection and no lock. Invariants:

- Run rows are locked before they are checked, in the order of run ids, and stay locked until the commit: so nothing changes
  between the check and the write, and two batches cannot deadlock.
- A lone append is checked by the database, in the statement that writes it. If that statement refuses the append, it is checked
  again here, under the lock, so that every store refuses by the same rules and with the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.core.run_state import FINAL
from holdfast.errors import CodecError, RunNotFound, StoreCorrupt
from holdfast.storage import failpoints, verdicts
from holdfast.storage.contract import Append, Row, Verdict
from holdfast.storage.postgres.arrays import Array, Bytes, Flags, Floats, Ints, Texts
from holdfast.storage.postgres.database import (
    Disagree,
    PostgresDatabase,
    Session,
    Transaction,
    Unfit,
    message_of,
)
from holdfast.storage.postgres.setup import not_durable

_encode = msgspec.json.Encoder().encode
_EVENT = (Ints, Ints, Floats, Texts, Texts, Ints, Ints, Ints, Bytes, Bytes, Bytes)
_ROW = _EVENT[2:]
_ONE = (Flags, Texts, Texts, Ints, Ints, Texts, Flags, Texts, Texts, Ints, Texts, Texts, Texts, Floats, Ints, Floats, Bytes,
        *_ROW, *_ROW)  # fmt: skip
_ONE_TYPES = [
    *(kind.element for kind in _ONE),
    *(kind.oid for kind in _ROW),
    *(kind.element for kind in (Ints, Floats, Texts)),
]
_NO_ROW = [None] * len(_ROW)
_NEW_RUN = (Texts, Texts, Texts, Texts, Bytes, Texts, Floats, Texts, Ints, Bytes, Floats, Texts, Ints, Texts, Texts, Texts,
            Floats, Ints, Texts, Texts, Ints, Ints, Floats, Texts)  # fmt: skip
_VIEW = (
    Ints,
    Ints,
    Bytes,
    Floats,
    Texts,
    Texts,
    Ints,
    Texts,
    Texts,
    Texts,
    Floats,
    Texts,
    Ints,
    Floats,
    Texts,
)


class _Head(msgspec.Struct):
    """The end of a run's log, as it will be after the appends of the batch that were accepted so far."""

    key: int | None
    """The key of the run in the database; None if this batch creates the run."""
    seq: int
    fence: int
    holder: str | None


class _Raced(Exception):
    """Another process has just created a run of this batch; the next try finds its row."""


def append(
    database: PostgresDatabase, session: Session, batch: Sequence[Append], refused: dict[int, Verdict]
) -> list[Verdict]:
    """Write a batch, and return a verdict for each append. `refused` has the verdicts of appends that are already refused, by
    their index in the batch.
    """
    verdict: Verdict
    try:
        return _together(database, session, batch, refused)
    except Unfit as fault:
        verdict = CodecError(
            f"a value cannot be stored: {message_of(fault)}", path=f"run {batch[0].run_id!r}"
        )
    except Disagree as fault:
        verdict = StoreCorrupt(
            f"{database.address.url}: run {batch[0].run_id!r} and its log disagree ({message_of(fault)}). Nothing was "
            "written; `holdfast verify` shows where they differ."
        )
    if len(batch) == 1:
        return [verdict]
    # One append of the batch cannot be stored: write each by itself, so that the others are written.
    return [
        refused.get(index) or append(database, session, [lone], {})[0] for index, lone in enumerate(batch)
    ]


def _together(
    database: PostgresDatabase, session: Session, batch: Sequence[Append], refused: dict[int, Verdict]
) -> list[Verdict]:
    if len(batch) == 1 and not refused and _is_plain(batch[0]):
        # The statement writes and commits at once, so a crash before it and a crash within it have the same effect.
        failpoints.reach("append.written")
        told = session.at_once("append_one", _one(database, batch[0]), _ONE_TYPES)
        if told is not None:
            (at,) = Floats.number.unpack(told)
            if at < 0:
                raise not_durable(database.address)
            database.time.hear(at)
            return [None]
    while True:
        try:
            with session.transaction() as transaction:
                judged = _write(database, transaction, batch, refused)
                failpoints.reach("append.written")
        except _Raced:
            continue
        return judged


def _is_plain(append: Append) -> bool:
    """Return whether an append only adds rows to an existing log and updates its run row, as nearly every step of a run does."""
    if append.create is not None or append.has_extras:
        return False
    seq = append.expected_seq
    for row in append.rows:
        seq += 1
        if row.seq != seq:
            return False
    return bool(append.rows)


def _one(database: PostgresDatabase, append: Append) -> list[bytes | None]:
    """Return the parameters of the query `append_one`. Written out without loops, because every step of a lone run needs them."""
    text, whole, real, flag = Texts.encode, Ints.encode, Floats.encode, Flags.encode
    view, rows = append.view, append.rows
    last = rows[-1]
    return [
        flag(database.address.unsafe), text(database.bounds[0]), text(append.run_id), whole(append.expected_seq),
        whole(append.fence), None if append.holder is None else text(append.holder), flag(append.release),
        text(view.status), text(view.fingerprint), whole(view.state_version), _encode(view.active) if view.active else None,
        None if view.error is None else text(view.error), _encode(view.rewinds) if view.rewinds else None,
        None if view.due_at is None else real(view.due_at), whole(last.seq), real(last.at), last.digest,
        *_plain(rows[0]), *(_plain(rows[1]) if len(rows) > 1 else _NO_ROW), *(_arrays(rows[2:]) if len(rows) > 2 else _NO_ROW),
        None if view.asks is None else whole(view.asks), None if view.active_s is None else real(view.active_s),
        None if view.situation is None else text(view.situation),
    ]  # fmt: skip


def _plain(row: Row) -> list[bytes | None]:
    whole, node = Ints.encode, row.node
    return [
        Floats.encode(row.at), row.kind.encode(), None if node is None else node.encode(), whole(row.iteration),
        whole(row.execution), whole(row.attempt), row.salt, row.body, row.digest,
    ]  # fmt: skip


def _arrays(rows: Sequence[Row]) -> list[bytes | None]:
    return [column.binary() for column in _columns(_ROW, [astuple(row)[1:] for row in rows])]


def _write(
    database: PostgresDatabase, transaction: Transaction, batch: Sequence[Append], refused: dict[int, Verdict]
) -> list[Verdict]:
    """Lock the run rows of a batch, accept or refuse its appends, and write the accepted ones. Waits for the server only to get
    the locked rows and the keys of new runs.
    """
    heads, known = _heads(transaction, batch)
    judged = [
        refused.get(index) or _judge(append, heads, known, database.address.url)
        for index, append in enumerate(batch)
    ]
    accepted = [
        one
        for append, verdict in zip(batch, judged, strict=True)
        if verdict is None
        for one in (append, *(append.along.starts if append.along is not None else ()))
    ]
    if accepted:
        _create_runs(transaction, [append for append in accepted if append.create is not None], heads)
        _advance_runs(transaction, accepted, heads)
        events = [(heads[append.run_id].key, *astuple(row)) for append in accepted for row in append.rows]
        transaction.do("write_events", *_columns(_EVENT, events))
        for append in accepted:
            if append.has_extras:
                _write_extras(transaction, append, heads[append.run_id].key)
        ended = [
            (heads[append.run_id].key, append.rows[-1].seq)
            for append in accepted
            if append.view.status in FINAL
        ]
        if ended:
            transaction.do("close_inboxes", *_columns((Ints, Ints), ended))
        left = [
            heads[run_id].key
            for run_id in {append.run_id for append in accepted}
            if heads[run_id].holder is None
        ]
        if left:
            transaction.do("tell", Ints(left))
        _post_along(transaction, accepted)
    return judged


def _heads(transaction: Transaction, batch: Sequence[Append]) -> tuple[dict[str, _Head], set[str]]:
    """Lock the existing runs of a batch. Returns their heads, and the ids of those holders of new runs that the store knows."""
    engines = {append.holder for append in batch if append.create is not None and append.holder is not None}
    asked = transaction.do("known_holders", Texts(sorted(engines))) if engines else None
    ids = {append.run_id for append in batch}
    for append in batch:
        if append.along is not None:
            ids.update(start.run_id for start in append.along.starts)
    locked = transaction.rows("head", Texts(sorted(ids)))
    heads = {run_id: _Head(key, seq, fence, holder) for run_id, key, seq, fence, holder in locked}
    return heads, {engine for (engine,) in asked.fetchall()} if asked is not None else set()


def _judge(append: Append, heads: dict[str, _Head], known: set[str], url: str) -> Verdict:
    head = heads.get(append.run_id)
    if append.create is not None:
        verdict = verdicts.judge_create(append, exists=head is not None, holder_known=append.holder in known)
    elif head is None:
        return RunNotFound(append.run_id, url)
    else:
        verdict = verdicts.judge(append, seq=head.seq, fence=head.fence, holder=head.holder)
    if verdict is None:
        verdict = verdicts.judge_along(append, heads.__contains__)
    if verdict is None:
        for start in append.along.starts if append.along is not None else ():
            heads[start.run_id] = _Head(key=None, seq=start.rows[-1].seq, fence=0, holder=None)
        fence = head.fence if head is not None else int(append.holder is not None)
        heads[append.run_id] = _Head(
            key=head.key if head is not None else None,
            seq=append.rows[-1].seq,
            fence=fence,
            holder=None if append.release else append.holder,
        )
    return verdict


def _create_runs(transaction: Transaction, new: list[Append], heads: dict[str, _Head]) -> None:
    """Insert run rows in the order of their ids, so that two processes that create the same runs cannot deadlock."""
    if not new:
        return
    rows = []
    for append in sorted(new, key=lambda append: append.run_id):
        create, view, last = append.create, append.view, append.rows[-1]
        assert create is not None
        rows.append((
            append.run_id, create.flow, create.parent, create.origin, create.input_digest, _encode(create.labels).decode(),
            create.created_at,
            view.status, last.seq, last.digest, last.at, view.fingerprint, view.state_version, _json(view.active), view.error,
            _json(view.rewinds), view.due_at, int(append.holder is not None), None if append.release else append.holder,
            create.queue, create.priority, view.asks, view.active_s, view.situation,
        ))  # fmt: skip
    made = transaction.rows("create_runs", *_columns(_NEW_RUN, rows))
    if len(made) < len(new):
        raise _Raced
    for run_id, key in made:
        heads[run_id].key = key
    labels = [
        (heads[append.run_id].key, name, value, append.create.created_at)
        for append in new
        if append.create is not None
        for name, value in append.create.labels.items()
    ]
    if labels:
        transaction.do("label_runs", *_columns((Ints, Texts, Texts, Floats), labels))


def _advance_runs(transaction: Transaction, accepted: list[Append], heads: dict[str, _Head]) -> None:
    """Update each existing run row once, however many appends of the batch are for that run."""
    last_of = {append.run_id: append for append in accepted}
    rows = []
    for run_id, append in last_of.items():
        if append.create is not None:
            continue  # its row was inserted just now
        view, last, head = append.view, append.rows[-1], heads[run_id]
        rows.append((
            head.key, last.seq, last.digest, last.at, view.status, view.fingerprint, view.state_version, _json(view.active),
            view.error, _json(view.rewinds), view.due_at, head.holder, view.asks, view.active_s, view.situation,
        ))  # fmt: skip
    if rows:
        transaction.do("advance_runs", *_columns(_VIEW, rows))


def _write_extras(transaction: Transaction, append: Append, run: int | None) -> None:
    """Write the snapshots, the definition and the handled requests of an append."""
    for snapshot in append.snapshots:
        transaction.do("write_snapshot", run, snapshot.seq, snapshot.base, snapshot.digest, snapshot.body)
    if append.definition is not None:
        transaction.do("write_definition", append.view.fingerprint, append.definition)
    if append.taken:
        transaction.do("take_requests", run, Texts(append.taken), append.rows[-1].seq)


def _post_along(transaction: Transaction, accepted: list[Append]) -> None:
    """Put the requests of appends into the inboxes of other runs. This locks no run row: the holder of such a run may have just
    locked it, and wait for a row of this transaction. So such a run may end at the same time, without seeing the request. A
    request that waits for a run that is over is read as unmet, and hinders nothing; `close_strays` marks it later.
    """
    posts = [
        (run_id, request, append.rows[-1].at)
        for append in accepted
        if append.along is not None
        for run_id, request in append.along.posts
    ]
    if not posts:
        return
    posts.sort(key=lambda post: (post[0], post[1].id))
    rows = [
        (run_id, request.id, request.verb, _encode(request.body).decode(), request.by, request.reason, request.at or at,
         verdicts.digest_request(request))
        for run_id, request, at in posts
    ]  # fmt: skip
    transaction.do("post_along", *_columns((Texts, Texts, Texts, Texts, Texts, Texts, Floats, Bytes), rows))
    transaction.do("notify")


def _columns(arrays: Sequence[type[Array]], rows: Iterable[tuple[Any, ...]]) -> list[Array]:
    return [array(cells) for array, cells in zip(arrays, zip(*rows, strict=True), strict=True)]


def _json(values: tuple[Any, ...]) -> str | None:
    return _encode(values).decode() if values else None
