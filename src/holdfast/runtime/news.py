"""One thread that waits for news from the store, for all parts of an engine that wait for runs on offer or for requests.

No part polls the database while nothing happens: the thread waits where the store can notify it (`Queues.hear`), and sets events
on the event loop. News says only that a look is worthwhile. The thread lives as long as a listener is there.
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
"""Between two rings: a busy store tells without end, and one look sees it all."""


class Ear:
    """What an engine hears of its store."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, asyncio.Event] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def listen(self, news: asyncio.Event) -> None:
        """Set this whenever something is heard, until `leave`."""
        self._listeners[id(news)] = news
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
                self._thread.start()

    def leave(self, news: asyncio.Event) -> None:
        """Do not set this event any more."""
        self._listeners.pop(id(news), None)
        if not self._listeners:
            self._queues.hush()

    async def heard(self, clock: Clock, seconds: float) -> None:
        """Wait until something is heard, at most this long."""
        news = asyncio.Event()
        timer = clock.call_at(clock.now() + seconds, news.set)
        self.listen(news)
        try:
            await news.wait()
        finally:
            timer.cancel()
            self._listeners.pop(id(news), None)  # the thread may stay: the same caller waits again soon

    def close(self) -> None:
        """Hear no more."""
        self._closed.set()
        with suppress(StoreError):
            self._queues.hush()

    def _hear(self) -> None:
        """In the thread. What the store cannot tell now is waited for: nothing is lost but time."""
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
                if quiet > 1 and not self._listeners:  # one that came meanwhile saw a thread and started none
                    self._thread = None
                    return
            self._closed.wait(_BREATH_S)

    def _ring(self) -> None:
        for news in list(self._listeners.values()):
            news.set()
