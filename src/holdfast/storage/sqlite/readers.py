"""The connections with which a SQLite store reads: each is used by one thread at a time.

A read borrows a connection and gives it back. One connection is opened with the store. Another is opened only when all others are
in use, so that a long read delays no other; there are at most `READERS_MAX`. The connection that was given back last is borrowed
first, so a program that reads in one thread uses one connection, whose prepared statements and pages stay warm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.errors import StoreError

C = TypeVar("C")

READERS_MAX = 10
"""How many connections a store opens for reading: enough for the threads of a server, of an engine and of its worker. Each has
two open files, and up to 2 MB of pages in memory."""


class Readers(Generic[C]):
    """Lends connections. `connect` opens another one; it raises a `StoreError` if that is not possible."""

    def __init__(self, first: C, connect: Callable[[], C]) -> None:
        self.idle = [first]
        self._connect = connect
        self._count = 1
        self._changed = threading.Condition(threading.Lock())

    def borrow(self) -> C:
        """Return a connection that no other thread uses. The caller must give it back."""
        with self._changed:
            while not self.idle:
                if self._count < READERS_MAX:
                    self._count += 1
                    break
                self._changed.wait()
            else:
                return self.idle.pop()
        try:
            return self._connect()
        except BaseException as fault:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
                if not isinstance(fault, StoreError):
                    raise
                while not self.idle:  # such as when this process has too many open files
                    if not self._count:
                        raise
                    self._changed.wait()
                return self.idle.pop()

    def give_back(self, reader: C) -> None:
        with self._changed:
            self.idle.append(reader)
            self._changed.notify()

    def take_all(self, wait_s: float) -> list[C]:
        """Wait until all connections were given back, and return them. One that is not given back in time is left out."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.idle) == self._count, wait_s)
            taken, self.idle, self._count = self.idle, [], 0
            self._changed.notify_all()
            return taken
