"""Remembers what the keys of requests were used for, so that the same key for something else is refused at once.

What a key must never do twice is durable: the inbox of a run and the ids of new runs see to that. This memory is of one process,
and finds the other mistakes: the same key for another run, or with another reason.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.server.problems import refuse

KEPT_MAX = 10_000


class UsedKeys:
    """The keys that were used lately."""

    def __init__(self) -> None:
        self._uses: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def check(self, token_id: str, key: str | None, asked: tuple[Any, ...]) -> None:
        """Raise `Refused` if the key was used for something else."""
        used = self._uses.get((token_id, key)) if key is not None else None
        if used is not None and used != _digest(asked):
            raise refuse("key-reused", "The key of this request was used for another request.")

    def add(self, token_id: str, key: str | None, asked: tuple[Any, ...]) -> None:
        """Remember what a key was used for."""
        if key is not None:
            self._uses[token_id, key] = _digest(asked)
            self._uses.move_to_end((token_id, key))
            if len(self._uses) > KEPT_MAX:
                self._uses.popitem(last=False)


def _digest(asked: tuple[Any, ...]) -> bytes:
    return sha256(msgspec.json.encode(asked, order="sorted")).digest()
