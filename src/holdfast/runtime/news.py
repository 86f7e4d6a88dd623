"""One thread that listens to the store, for every part of an engine that waits for due runs or for requests.

An idle engine does not poll the database: the thread blocks until the store has news (`Queues.hear`), and then wakes the
listeners on the event loop. News does not say what has changed, only that reading the store is worthwhile. The thread ends when
it has no listeners.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from holdfast.errors import StoreError
from holdfast.runtime.clock import Clock
from holdfast.storage.queues import Queues

_HEAR_S = 30.0
_BREATH_S = 0.01
"""Seconds between two wake-ups: a busy store has news all the time, and a listener that reads the store once finds all of it."""


class Ear:
    """Listens to the store of an engine, and wakes its listeners."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, asyncio.Event] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def listen(self, news: asyncio.Event) -> None:
        """Set this event whenever the store has news, until `leave`."""
        self._listeners[id(news)] = news
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
                self._thread.start()

    def leave(self, news: asyncio.Event) -> None:
        """Stop setting this event."""
        self._listeners.pop(id(news), None)
        if not self._listeners:
            self._queues.hush()

    async def wait(self, clock: Clock, seconds: float) -> None:
        """Wait until the store has news, at most this many seconds."""
        news = asyncio.Event()
        timer = clock.call_at(clock.now() + seconds, news.set)
        self.listen(news)
        try:
            await news.wait()
        finally:
            timer.cancel()
            self._listeners.pop(id(news), None)  # the thread stays: the caller soon waits again

    def close(self) -> None:
        """Stop listening to the store."""
        self._closed.set()
        with suppress(StoreError):
            self._queues.hush()

    def _hear(self) -> None:
        """Listen, in the thread. While the store fails, wake the listeners each second and try again, so that no news is lost."""
        quiet = 0
        while not self._closed.is_set():
            try:
                heard = self._queues.hear(_HEAR_S)
            except StoreError:
                self._closed.wait(1.0)
                heard = True
            with suppress(RuntimeError):  # the loop is closed
                if heard:
                    self._loop.call_soon_threadsafe(self._ring)
            quiet = 0 if heard or self._listeners else quiet + 1
            with self._lock:
                # Checked under the lock: a listener that came meanwhile saw this thread, and started no other.
                if quiet > 1 and not self._listeners:
                    self._thread = None
                    return
            self._closed.wait(_BREATH_S)

    def _ring(self) -> None:
        for news in list(self._listeners.values()):
            news.set()
