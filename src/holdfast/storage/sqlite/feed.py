"""The feed of a SQLite store. This module owns no connection; it uses the store's `database`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.storage import leases
from holdfast.storage.contract import NO_EVENTS, Tail
from holdfast.storage.sql_rows import askable, tails_of
from holdfast.storage.sqlite.database import SqliteDatabase

_encode = msgspec.json.Encoder().encode


class SqliteFeed:
    """The feed of one store."""

    def __init__(self, database: SqliteDatabase, alive: leases.Alive) -> None:
        self._database = database
        self._alive = alive

    def look(self, after: Mapping[str, int], limit: int) -> dict[str, Tail]:
        wanted = _encode(askable(after)).decode()
        cells = self._database.read("feed", wanted, min(max(limit, 0), NO_EVENTS))
        return tails_of(
            cells, lambda holder, row: leases.is_held(holder, row[3], self._database.now(), self._alive), 4
        )
