"""Wait for notifications of a PostgreSQL server that a run has come on offer, on a connection of its own (LISTEN).

The transaction that puts a run on offer also sends the notification, so the run is visible when the notification arrives.
Invariants:

- Waiting runs no query, and a notification that is sent between two waits ends the second.
- After every new connection, `hear` returns True, because notifications may have been missed before.
- A lost connection is replaced here, at most once per `AGAIN_S`; the waiting worker does not see an error.
- Behind a pool that lends connections by transaction (pgbouncer), notifications never arrive. So each new connection must receive
  a notification that this process sends through another connection. If it does not, it is marked as deaf, and `hear` returns True
  every `DEAF_S`.
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
from holdfast.storage.postgres.database import Lost, PostgresConnection, PostgresDatabase

DEAF_S = 1.0
"""How often, in seconds, `hear` returns True if notifications cannot arrive."""
PROOF_S = 5.0
"""How long, in seconds, the test notification of a new connection may take."""
AGAIN_S = 1.0
"""How long, in seconds, to wait before connecting again after a connection was lost or failed."""


class PostgresListener:
    """Waits for notifications about one store. `timer` only measures intervals: it need not be the time of day."""

    def __init__(self, database: PostgresDatabase, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._timer = timer
        self._forks = process.count
        self._hearing = threading.Lock()
        self._connection: PostgresConnection | None = None
        self._next_at = 0.0
        """The time at which to connect again. On a connection that receives no notifications, the time at which `hear` returns
        True next."""
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
        """Open a connection that listens, and send the test notification. Returns False if the connection failed."""
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
        """Read what the server sent, and return whether it was a notification; otherwise the connection has ended."""
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
        """Return the time at which to stop waiting even if no notification arrives."""
        if self._connection is None or self._deaf:
            return self._next_at
        return until if self._proof_by is None else self._proof_by

    def _wait(self, seconds: float) -> tuple[bool, bool]:
        """Wait, and return whether `ring` was called, and whether the server sent something."""
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
        """Make the call of `hear` that is waiting return at once, or the next call if none is waiting."""
        if self._forks != process.count:
            return  # after a fork, the pipe belongs to the parent process
        with self._closing:
            if not self._closed:
                with suppress(BlockingIOError):  # the pipe is full of earlier rings, which is enough
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
