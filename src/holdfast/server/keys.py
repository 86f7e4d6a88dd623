"""Remembers what the keys of requests were used for, so that the same key for something else is refused at once.

What a key must never do twice is durable: the inbox of a run and the ids of new runs see to that. This memory is of one process,
and finds the other mistakes: the same key for another run, or with another reason.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.server.problems import refuse

KEPT_MAX = 10_000


class _Use(msgspec.Struct):
    """What a key is used for."""

    digest: bytes
    requests: int = 0
    """How many requests use the key now."""
    is_recorded: bool = False


class UsedKeys:
    """The keys that were used lately. Threads may share it."""

    def __init__(self) -> None:
        self._uses: OrderedDict[tuple[str, str], _Use] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def use(self, token_id: str, key: str | None, asked: tuple[Any, ...]) -> Iterator[None]:
        """Use a key for what is done inside. Raises `Refused` if it was used for something else, or is being used for it at this
        moment. An exception inside says that the request was not recorded: then the key is free again.
        """
        if key is None:
            yield
            return
        name, digest = (token_id, key), digest_of(asked)
        with self._lock:
            use = self._uses.setdefault(name, _Use(digest))
            if use.digest != digest:
                raise refuse("key-reused", "The key of this request was used for another request.")
            use.requests += 1
            self._uses.move_to_end(name)
            if len(self._uses) > KEPT_MAX:
                self._uses.popitem(last=False)
        try:
            yield
            use.is_recorded = True
        except Exception:
            with self._lock:
                if use.requests == 1 and not use.is_recorded and self._uses.get(name) is use:
                    del self._uses[name]
            raise
        finally:
            with self._lock:
                use.requests -= 1


def digest_of(asked: tuple[Any, ...]) -> bytes:
    """Return a digest of what a request asks for: equal requests have equal ones."""
    return sha256(msgspec.json.encode(asked, order="sorted")).digest()
