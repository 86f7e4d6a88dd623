"""Decides where an append is committed: on the event loop, or by the writer thread together with others.

As long as commits are quick, appends are committed on the event loop: a hop to a thread and back costs about as much as a commit,
and two threads that both want the interpreter cost more. While several runs move, the appends of one pass of the event loop
are gathered first, so that they share a commit; a few at a time, so that the loop is never held up for long. When commits are
slow, the writer thread makes them.
"""

from __future__ import annotations

import asyncio

from holdfast.storage.contract import Append
from holdfast.storage.writer import Done, InlineWriter, Writer

FEW = 32
"""At most this many appends share a commit on the event loop: about two milliseconds of work."""
MANY = 128
"""If at least this many runs may append soon, the writer thread commits: it needs the interpreter only a few times per batch."""


class Commits:
    """Commits the appends of an engine. `done` is called on the event loop, possibly before `commit` returns."""

    def __init__(self, writer: Writer | InlineWriter) -> None:
        self._writer = writer
        self._gathered: list[tuple[Append, Done]] = []
        self._moving = 0

    def commit(self, append: Append, done: Done, moving: int) -> None:
        """Make an append durable, then call `done(None)`, or `done(error)` if that failed. `moving` is the number of runs of
        this engine that may append soon.
        """
        self._moving = moving
        if self._gathered:
            self._gathered.append((append, done))
        elif moving > 1:
            self._gathered.append((append, done))
            asyncio.get_running_loop().call_soon(self._hand_over)
        else:
            self._commit_now(append, done)

    def _hand_over(self) -> None:
        """Commit the first few gathered appends; the rest follow in the next passes of the event loop."""
        few, self._gathered = self._gathered[:FEW], self._gathered[FEW:]
        many = self._moving >= MANY
        outcomes = None if many else self._writer.try_commit([append for append, _ in few])
        if outcomes is None:
            few, self._gathered = few + self._gathered, []
            self._writer.submit_all(few)
            return
        if self._gathered:
            asyncio.get_running_loop().call_soon(self._hand_over)
        for (_, done), outcome in zip(few, outcomes, strict=True):
            done(outcome)

    def _commit_now(self, append: Append, done: Done) -> None:
        outcomes = self._writer.try_commit((append,))
        if outcomes is None:
            self._writer.submit_all([(append, done)])
        else:
            done(outcomes[0])

    def close(self) -> None:
        """Commit the appends that the writer has, and end the writer."""
        self._writer.close()
