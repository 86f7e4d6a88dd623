"""How a PostgreSQL store learns that a run has come on offer: a connection of its own that listens.

A transaction that puts a run on offer also notifies, so what was notified can be seen. Invariants:

- Waiting costs no query, and what was notified between two waits is heard by the second.
- What may have been missed counts as heard: after every new connection.
- A lost connection is replaced here, once in a while; the waiting worker is not bothered with it.
- Behind a pool that lends connections by transaction (pgbouncer) nothing ever arrives. So each new connection has to hear a
  notification that this process sends itself by another way. One that does not is deaf, and every `DEAF_S` counts as heard.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import StoreBusy
from holdfast.storage import process
from holdfast.storage.postgres.database import Connection, Lost, PostgresDatabase

DEAF_S = 1.0
"""How often to look where nothing can be heard."""
PROOF_S = 5.0
"""How long the notification of a new connection to itself may take."""
AGAIN_S = 1.0
"""How long to wait with the next connection after one that was lost or could not be made."""


class PostgresListener:
    """Hears what is notified in the schema of a store. `timer` only has to run evenly."""

    def __init__(self, database: PostgresDatabase, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._timer = timer
        self._forks = process.count
        self._hearing = threading.Lock()
        self._connection: Connection | None = None
        self._next_at = 0.0
        """When to connect, or where nothing can be heard when to look."""
        self._proof_by: float | None = None
        self._deaf = False
        self._closing = threading.Lock()
        self._closed = False
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)

    def hear(self, timeout_s: float) -> bool:
        self._database.require_usable()
        until = self._timer() + timeout_s
        if not self._hearing.acquire(timeout=max(timeout_s, 0.0)):
            return False
        try:
            return not self._closed and self._hear(until)
        finally:
            self._hearing.release()

    def _hear(self, until: float) -> bool:
        while True:
            self._database.require_usable()
            now = self._timer()
            if self._connection is None and now >= self._next_at:
                if self._listen():
                    return True
                continue
            self._judge(now)
            if self._deaf and now >= self._next_at:
                self._next_at = now + DEAF_S
                return True
            rung, spoke = self._wait(min(until, self._wake_at(until)) - now)
            if rung:
                return False
            if spoke and self._understand():
                return True
            if self._timer() >= until:
                return False

    def _listen(self) -> bool:
        """Have a connection that listens. True: what was notified before it did may have been missed."""
        try:
            self._connection = self._database.connect()
            self._connection.execute(self._database.sql["listen"])
            self._database.change("notify")
        except (*Lost, StoreBusy):
            self._drop()
            return False
        self._proof_by = self._timer() + PROOF_S
        self._deaf = False
        return True

    def _understand(self) -> bool:
        """Whether what the server said is a notification; otherwise it said that the connection ends."""
        assert self._connection is not None
        heard = False
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies() is not None:
                heard = True
        except Lost:
            self._drop()
            return False
        if heard:
            self._proof_by, self._deaf = None, False
        return heard

    def _judge(self, now: float) -> None:
        if self._proof_by is not None and now >= self._proof_by:
            self._proof_by, self._deaf, self._next_at = None, True, now

    def _wake_at(self, until: float) -> float:
        """When something is to be done even if nothing is heard."""
        if self._connection is None or self._deaf:
            return self._next_at
        return until if self._proof_by is None else self._proof_by

    def _wait(self, seconds: float) -> tuple[bool, bool]:
        """Whether the bell rang, and whether the server sent something."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.pgconn.socket, select.POLLIN)
        ready = {file for file, _ in poll.poll(max(seconds, 0.0) * 1000)}
        if self._bell in ready:
            os.read(self._bell, 4096)
            return True, False
        return False, bool(ready)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._proof_by, self._deaf, self._next_at = None, False, self._timer() + AGAIN_S

    def ring(self) -> None:
        """Have who hears return at once, or the next one who does."""
        if self._forks != process.count:
            return  # the pipe is the parent's
        with self._closing:
            if not self._closed:
                with suppress(BlockingIOError):  # it has been rung often enough already
                    os.write(self._ring, b"!")

    def close(self) -> None:
        if self._forks != process.count:
            return
        self.ring()
        with self._hearing, self._closing:
            if self._closed:
                return
            self._closed = True
            self._drop()
            os.close(self._bell)
            os.close(self._ring)
