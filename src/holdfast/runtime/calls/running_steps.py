"""`RunningSteps`: the functions of steps that an attempt is calling at this moment, in any task or thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from holdfast.reading.chunks import Step
from holdfast.runtime.calls.body import executing

_calling: ContextVar[tuple[object, str, int] | None] = ContextVar("holdfast_step", default=None)
"""The step whose function is being called: its `RunningSteps`, its name, and the number of this call, counted from 1."""


class RunningSteps:
    """The calls of steps that have begun and not ended. Only `until_none` needs the event loop."""

    def __init__(self) -> None:
        self._calls: set[object] = set()
        self._ended: asyncio.Future[None] | None = None
        self._counts: dict[str, int] = {}
        """Name of a step -> how often this attempt has called it."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    @contextmanager
    def calling(self, step: str) -> Iterator[None]:
        """Note that the function of a step is being called inside this context."""
        call, before = object(), _calling.get()
        self.note_call(step)
        _calling.set((self, step, self._counts[step]))
        self._calls.add(call)
        try:
            yield
        finally:
            _calling.set(before)
            self._calls.remove(call)
            ended = self._ended
            if ended is not None and not self._calls:
                with suppress(RuntimeError):  # the loop is closed: the engine has abandoned this attempt
                    ended.get_loop().call_soon_threadsafe(_complete, ended)

    def note_call(self, step: str) -> None:
        """Count a call of a step, here or in the process in which the node's function runs."""
        self._counts[step] = self._counts.get(step, 0) + 1

    def has_called(self, step: str) -> bool:
        """Return whether this attempt has called a step."""
        return step in self._counts

    def called_step(self) -> Step | None:
        """The step of this attempt that the executing code belongs to, in any task or thread; None outside of steps."""
        found = _calling.get()
        return found[1:] if found is not None and found[0] is self else None

    def is_inside(self) -> bool:
        """Return whether the executing code belongs to a step. Code in a thread that was started without Python's context
        variables, as `ThreadPoolExecutor` does, belongs to a step if one is being called.
        """
        return self.called_step() is not None or (executing.get(None) is None and bool(self))

    async def until_none(self) -> None:
        """Return when no function of a step is being called any more."""
        while self._calls:
            ended = self._ended
            if ended is None or ended.done():
                ended = self._ended = asyncio.get_running_loop().create_future()
            if not self._calls:  # a thread has ended before it could see the future
                return
            await asyncio.wait([ended])


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
