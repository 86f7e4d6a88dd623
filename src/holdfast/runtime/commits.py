"""Who commits an append: the event loop by itself, or the writer thread for many together.

A lone append is committed right here where the writer allows it: a hop to a thread and back costs about as
much as a commit. While several runs move, the appends of one pass of the event loop are gathered first and
handed over together, so that they share one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.storage.contract import Append
from holdfast.storage.writer import Done, InlineWriter, Writer


class Commits:
    """The way of an append to the store. `done` is called on the event loop, perhaps before `commit` returns."""

    def __init__(self, writer: Writer | InlineWriter, moving: Callable[[], int]) -> None:
        self._writer = writer
        self._moving = moving
        """How many runs move in this engine."""
        self._gathered: list[tuple[Append, Done]] = []

    def commit(self, append: Append, done: Done) -> None:
        """Make an append durable, then say so; or say why it is not."""
        if self._gathered:
            self._gathered.append((append, done))
        elif self._moving() > 1:
            self._gathered.append((append, done))
            asyncio.get_running_loop().call_soon(self._hand_over)
        else:
            self._commit_now(append, done)

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        if len(gathered) == 1:
            self._commit_now(*gathered[0])
        else:
            self._writer.submit_all(gathered)

    def _commit_now(self, append: Append, done: Done) -> None:
        try:
            committed = self._writer.try_commit(append)
        except HoldfastError as refused:
            done(refused)
            return
        if committed:
            done(None)
        else:
            self._writer.submit_all([(append, done)])

    def close(self) -> None:
        """Commit what was handed over, and end the writer."""
        self._writer.close()
