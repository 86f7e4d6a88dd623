"""Write appends to SQLite: a lone append with a few short statements, many appends with one statement per kind of row.

This module owns no connection and no lock, and runs within the transactions of `database`. Invariants:

- An append is checked and written in the same transaction, which takes the write lock when it begins; so nothing can change
  between the check and the write.
- An append that cannot be written gets its own error as its verdict; the other appends of the batch are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.core.run_state import FINAL
from holdfast.errors import CodecError, RunNotFound, StoreCorrupt
from holdfast.storage import failpoints, schema, verdicts
from holdfast.storage.contract import Along, Append, Verdict
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.database import Cells, Disagree, SqliteDatabase, Unfit

_SQL = schema.queries("sqlite")
_HEAD, _ADVANCE_RUN, _WRITE_EVENT = _SQL["head"], _SQL["advance_run"], _SQL["write_event"]

_encode = msgspec.json.Encoder().encode


class Appends:
    """Writes the appends of one store."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._cursor = database.cursor
        self.offers = False
        """True if an append has put a run on offer. The store then wakes its workers and resets this to False."""
        self._posts = False
        """True if an accepted append of the batch posts requests to other runs."""

    def append_singly(self, batch: Sequence[Append], refused: dict[int, Verdict]) -> list[Verdict]:
        """Write a batch in which at least one append cannot be stored: find each such append, leave it out, write the others."""
        while True:
            try:
                return self._database.commit(
                    "append", lambda: self.write_batch(batch, refused, together=False)
                )
            except UnfitAppend as unfit:
                refused[unfit.index] = unfit.verdict

    def write_batch(
        self, batch: Sequence[Append], refused: dict[int, Verdict], *, together: bool = True
    ) -> list[Verdict]:
        """Accept or refuse each append of a batch and write the accepted ones, within a transaction. Returns a verdict for each
        append. `refused` has the verdicts of appends that are already refused, by their index in the batch. With `together`, the
        rows of all appends are written at the end; otherwise the rows of each append are written at once, so that an error shows
        which append cannot be stored. Raises `UnfitAppend` for such an append.
        """
        judged: list[Verdict] = []
        rows: list[Cells] = []
        index = 0
        try:
            if together and len(batch) >= batches.MANY and batches.are_separate(batch):
                judged = self._write_many(batch, refused, rows)
            else:
                for index, append in enumerate(batch):
                    if index in refused:
                        judged.append(refused[index])
                        continue
                    judged.append(self._write(append, rows))
                    if not together:
                        self._write_rows(rows)
            if rows:
                self._write_rows(rows)
            if self._posts:
                self._posts = False
                for index, append in enumerate(batch):
                    if judged[index] is None and append.along is not None:
                        self._post_along(append.along, append.rows[-1].at)
        except Unfit as fault:
            raise UnfitAppend(
                index,
                CodecError(f"a value cannot be stored: {fault}", path=f"run {batch[index].run_id!r}"),
            ) from fault
        except Disagree as fault:
            raise UnfitAppend(
                index,
                StoreCorrupt(
                    f"{self._database.path}: run {batch[index].run_id!r} and its log disagree ({fault}). Nothing "
                    "was written; `holdfast verify` shows where they differ."
                ),
            ) from fault
        if failpoints.hook is not None:
            failpoints.reach("append.written")
        return judged

    def _write_many(
        self, batch: Sequence[Append], refused: dict[int, Verdict], rows: list[Cells]
    ) -> list[Verdict]:
        """Accept or refuse many appends, and write the accepted ones in a few statements. An append that these statements cannot
        write is written by itself, except for its rows, which are added to `rows`.
        """
        fitting = {append.run_id: append for append in batch if batches.fits(append)}
        found = batches.heads(self._cursor.execute(_SQL["heads"], (batches.ids(list(fitting.values())),)).get)
        heads = dict(zip(fitting, found, strict=True))
        gathered = batches.Gathered()
        keys: dict[str, int | None] = {}
        judged: list[Verdict] = []
        for index, append in enumerate(batch):
            head = heads.pop(append.run_id, None) if fitting.get(append.run_id) is append else None
            if index in refused:
                judged.append(refused[index])
            elif head is None or (head[0] is None and append.create is None):
                judged.append(self._write(append, rows))
            elif append.create is not None:
                judged.append(self._collect_creation(head, append, keys, gathered))
            else:
                judged.append(self._collect(head, append, gathered))
        self._write_gathered(gathered)
        return judged

    def _collect(self, head: Cells, append: Append, gathered: batches.Gathered) -> Verdict:
        """Accept or refuse an append. Of an accepted one, collect the rows and the run row for the statements that write many
        rows, and write the extras (snapshots, definition, handled requests) at once.
        """
        run, seq, fence, status, asks, holder_id = head
        verdict = verdicts.judge(append, seq=seq, fence=fence, holder=holder_id)
        if verdict is not None:
            return verdict
        gathered.advance(run, status, asks, append)
        self.offers = self.offers or append.release
        gathered.write(run, append)
        if append.has_extras:
            self._write_extras(run, append)
        return None

    def _collect_creation(
        self, head: Cells, append: Append, keys: dict[str, int | None], gathered: batches.Gathered
    ) -> Verdict:
        holder = append.holder
        if holder is not None and holder not in keys:
            keys[holder] = self._cursor.execute(_SQL["holder_key"], (holder,)).get
        key = keys.get(holder) if holder is not None else None
        verdict = verdicts.judge_create(append, exists=head[0] is not None, holder_known=key is not None)
        if verdict is None:
            gathered.create(append, key)
            self.offers = self.offers or key is None or append.release
        return verdict

    def _write_gathered(self, gathered: batches.Gathered) -> None:
        """Execute the statements that write many appends. New runs are inserted first, because their events need their keys."""
        execute = self._cursor.execute
        if gathered.creations:
            made: list[Any] = execute(_SQL["create_runs"], (gathered.created(),)).fetchall()
            keys: dict[str, int] = dict(made)
            defined: set[str] = set()
            labelled: list[int] = []
            for run_id, (append, _) in gathered.creations.items():
                run = keys[run_id]
                gathered.write(run, append)
                if append.create is not None and append.create.labels:
                    labelled.append(run)
                extras = append
                if append.view.fingerprint in defined:
                    extras = msgspec.structs.replace(append, definition=None)
                elif append.definition is not None:
                    defined.add(append.view.fingerprint)
                if extras.has_extras:
                    self._write_extras(run, extras)
            if labelled:
                execute(_SQL["label_runs"], (batches.as_json(labelled),))
        if gathered.advances:
            execute(_SQL["advance_runs"], (batches.as_json(gathered.advances),))
        if gathered.turns:
            execute(_SQL["turn_runs"], (batches.as_json(gathered.turns),))
        if gathered.ends:
            execute(_SQL["close_inboxes"], (batches.as_json(gathered.ends),))
        if gathered.events:
            execute(_SQL["write_events"], gathered.written())

    def _write(self, append: Append, rows: list[Cells]) -> Verdict:
        """Write everything of an append except its rows, which are added to `rows`."""
        head: Cells | None = self._cursor.execute(_HEAD, (append.run_id,)).get
        if append.create is not None:
            holder: int | None = None
            if append.holder is not None:
                holder = self._cursor.execute(_SQL["holder_key"], (append.holder,)).get
            verdict = verdicts.judge_create(append, exists=head is not None, holder_known=holder is not None)
            verdict = verdict or self._judge_along(append)
            if verdict is not None:
                return verdict
            run = self._create(append, holder)
        elif head is None:
            return RunNotFound(append.run_id, self._database.url)
        else:
            run, seq, fence, status, asks, holder_id = head
            verdict = verdicts.judge(append, seq=seq, fence=fence, holder=holder_id) or self._judge_along(
                append
            )
            if verdict is not None:
                return verdict
            self._advance(run, status, asks, append)
        rows.extend([(run, *astuple(row)) for row in append.rows])
        self._write_extras(run, append)
        if append.view.status in FINAL:
            self._cursor.execute(_SQL["close_inbox"], (run, append.rows[-1].seq))
        if append.along is not None:
            for start in append.along.starts:
                self._write(start, rows)
            self._posts = self._posts or bool(append.along.posts)
        return None

    def _judge_along(self, append: Append) -> Verdict:
        return verdicts.judge_along(
            append, lambda run_id: self._cursor.execute(_SQL["run_key"], (run_id,)).get is not None
        )

    def _post_along(self, along: Along, at: float) -> None:
        """Put requests into inboxes, except those that are there already or whose run does not exist or is over."""
        for run_id, request in along.posts:
            self._cursor.execute(_SQL["post_along"], (
                run_id, request.id, request.verb, _encode(request.body).decode(), request.by, request.reason,
                request.at or at, verdicts.digest_request(request)))  # fmt: skip
        self.offers = True

    def _create(self, append: Append, holder: int | None) -> int:
        new, view, last = append.create, append.view, append.rows[-1]
        assert new is not None
        held = holder is not None and not append.release
        self._cursor.execute(_SQL["create_run"], (
            append.run_id, new.flow, new.parent, new.origin, new.input_digest, _encode(new.labels).decode(), new.created_at,
            view.status,
            last.seq, last.digest, last.at, view.fingerprint, view.state_version, _json(view.active), view.error,
            _json(view.rewinds), view.due_at, int(holder is not None), holder if held else None, new.queue,
            new.priority, view.asks, view.active_s, view.situation))  # fmt: skip
        self.offers = self.offers or not held
        run: int = self._cursor.connection.last_insert_rowid()
        for name, value in new.labels.items():
            self._cursor.execute(_SQL["label_run"], (run, name, value, new.created_at))
        return run

    def _advance(self, run: int, status: str, asks: int | None, append: Append) -> None:
        view, last = append.view, append.rows[-1]
        self._cursor.execute(_ADVANCE_RUN, (
            run, last.seq, last.digest, last.at, view.fingerprint, view.state_version, _json(view.active), view.error,
            _json(view.rewinds), view.due_at, view.active_s, view.situation))  # fmt: skip
        self._turn(run, status, asks, append)

    def _turn(self, run: int, status: str, asks: int | None, append: Append) -> None:
        """Write the parts of a run row that seldom change: its status, its number of questions, and the release of its lease."""
        view = append.view
        if status != view.status or asks != view.asks:
            self._cursor.execute(_SQL["turn_run"], (run, view.status, view.asks, append.rows[-1].at))
        if append.release:
            self._cursor.execute(_SQL["release_lease"], (append.run_id, append.holder, append.fence))
            self.offers = True

    def _write_rows(self, rows: list[Cells]) -> None:
        self._cursor.executemany(_WRITE_EVENT, rows)
        rows.clear()

    def _write_extras(self, run: int, append: Append) -> None:
        """Write the snapshots, the definition and the handled requests of an append."""
        for snapshot in append.snapshots:
            self._cursor.execute(_SQL["write_snapshot"],
                                 (run, snapshot.seq, int(snapshot.base), snapshot.digest, snapshot.body))  # fmt: skip
        if append.definition is not None:
            self._cursor.execute(_SQL["write_definition"], (append.view.fingerprint, append.definition))
        for request in append.taken:
            self._cursor.execute(_SQL["take_request"], (run, request, append.rows[-1].seq))


class UnfitAppend(Exception):
    """One append of a batch cannot be stored. The transaction is rolled back, and the batch is written again without it."""

    def __init__(self, index: int, verdict: Verdict) -> None:
        self.index = index
        self.verdict = verdict
        super().__init__(str(verdict))


def _json(values: tuple[Any, ...]) -> str | None:
    return _encode(values).decode() if values else None
