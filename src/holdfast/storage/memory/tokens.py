"""The tokens of the memory store: the reference implementation of `Tokens`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from holdfast.storage import failpoints
from holdfast.storage.memory.data import Data
from holdfast.storage.tokens import Token, token_exists


class MemoryTokens:
    """The tokens of a memory store. `use` gives access to its data."""

    def __init__(self, use: Callable[[], AbstractContextManager[Data]]) -> None:
        self._use = use

    def add(self, token: Token) -> None:
        with self._use() as data:
            if token.id in data.tokens:
                raise token_exists(token.id)
            failpoints.reach("token.before")
            data.tokens[token.id] = token
            failpoints.reach("token.committed")

    def get(self, token_id: str) -> Token | None:
        with self._use() as data:
            return data.tokens.get(token_id)

    def all(self) -> list[Token]:
        with self._use() as data:
            return sorted(data.tokens.values(), key=lambda token: (token.created_at, token.id))

    def revoke(self, token_id: str, at: float) -> bool:
        with self._use() as data:
            token = data.tokens.get(token_id)
            if token is None or token.revoked_at is not None:
                return False
            failpoints.reach("token.before")
            data.tokens[token_id] = msgspec.structs.replace(token, revoked_at=at)
            failpoints.reach("token.committed")
            return True
