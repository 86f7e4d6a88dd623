"""The tokens of a PostgreSQL store. This module owns no connection; it uses the store's `database`."""

from __future__ import annotations

from typing import Any

from holdfast.storage.postgres.database import PostgresDatabase, Session
from holdfast.storage.sql_rows import token_cells, token_of
from holdfast.storage.tokens import Token, token_exists


class PostgresTokens:
    """The tokens of one store."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def add(self, token: Token) -> None:
        if not self._change("add_token", *token_cells(token)):
            raise token_exists(token.id)

    def get(self, token_id: str) -> Token | None:
        found = self._database.read("token", token_id)
        return token_of(found[0]) if found else None

    def all(self) -> list[Token]:
        return [token_of(cells) for cells in self._database.read("tokens")]

    def revoke(self, token_id: str, at: float) -> bool:
        return self.get(token_id) is not None and self._change("revoke_token", token_id, at)

    def _change(self, query: str, *values: Any) -> bool:
        """Execute a query that changes a row, and return whether it did."""

        def write(session: Session) -> bool:
            with session.transaction() as transaction:
                transaction.look()
                return bool(transaction.rows(query, *values))

        return self._database.write("token", write)
