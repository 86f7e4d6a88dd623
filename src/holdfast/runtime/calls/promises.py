"""`Promises`: the coroutines that the methods of a context have returned to a node, which the node must await."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

from holdfast.errors import ContextError

_PROMISES_MAX = 100


class Promises:
    """Finds a method of a context that a node has called without awaiting it: it has done nothing."""

    def __init__(self) -> None:
        self._promises: list[tuple[Coroutine[Any, Any, Any], str]] = []

    def add(self, coroutine: Coroutine[Any, Any, Any], told: str) -> None:
        """Note that the node has called a method of its context, and must await the coroutine that it got."""
        self._promises.append((coroutine, told))
        if len(self._promises) > _PROMISES_MAX:
            self._promises = [promise for promise in self._promises if _is_untouched(promise[0])]

    def refuse_forgotten(self, node: str) -> None:
        """Raise `ContextError` if the node called a method of its context without awaiting it."""
        for coroutine, told in self._promises:
            if _is_untouched(coroutine):
                coroutine.close()
                raise ContextError(
                    f"node {node!r} called {told} and did not await it, so it was not done: await {told}"
                )


def _is_untouched(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
