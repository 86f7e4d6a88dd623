"""The thread on which an engine reads its store, so that no reading verb and no look into an inbox stops a running node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ReadingThread:
    """One thread for everything that an engine reads and that no step waits for. With `inline` the event loop reads itself.

    It is not one of the threads that call nodes: those may all be busy for hours. It starts with the first call.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._thread: ThreadPoolExecutor | None = None

    async def call(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Await a call on the thread. Calls are made in the order they were asked for."""
        if self._inline:
            return read(*args, **options)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reader")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: read(*args, **options))

    def close(self) -> None:
        """Let the thread end. A call that is still to be made then meets a closed store, and says so."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
