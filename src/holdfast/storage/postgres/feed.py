"""The feed of a PostgreSQL store. This module owns no connection; it uses the store's `database`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.storage import leases
from holdfast.storage.contract import Tail
from holdfast.storage.postgres.arrays import Ints, Texts
from holdfast.storage.postgres.database import PostgresDatabase
from holdfast.storage.sql_rows import askable, tails_of


class PostgresFeed:
    """The feed of one store. `given_now` returns the time that a test has set, or None: then the database's clock counts."""

    def __init__(
        self, database: PostgresDatabase, given_now: Callable[[], float | None], alive: leases.Alive
    ) -> None:
        self._database = database
        self._given_now = given_now
        self._alive = alive

    def look(self, after: Mapping[str, int], limit: int) -> dict[str, Tail]:
        given, wanted = self._given_now(), askable(after)
        cells = self._database.read("feed", Texts(list(wanted)), Ints(list(wanted.values())), max(limit, 0))
        return tails_of(
            cells,
            lambda holder, row: leases.is_held(
                holder, row[4], row[3] if given is None else given, self._alive
            ),
            5,
        )
