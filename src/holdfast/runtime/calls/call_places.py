"""`CallPlaces` limits how many functions an engine calls at the same time in threads, or in processes; further calls wait in
order for a place.

The runner takes a place before it records that a node starts: a call that waits for a place has not begun, so its timeout does
not run, it does not count as active, and a crash does not interrupt it. A step that is called in a thread takes a place before
its own time begins.

- A call gives its place back when it ends, when the engine abandons it (a thread cannot be killed, and must not keep all others
  from running), and while it only waits in its process.
- Code that has a place and calls a step in another thread waits for that step: it lends its place to the step. So a node
  that has the last place can end. Threads that wait in this way come on top of the limit, at most as many as there are places.

Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar

Came = Callable[[], object]


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CallPlaces:
    """The places for calls of one kind."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._queue: OrderedDict[CallPlace, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._queue)

    def ask(self, came: Came) -> CallPlace:
        """Ask for a place. It is taken at once if one is free and no call waits; otherwise `came` is called when it is taken."""
        place = CallPlace(self)
        place.ask(came)
        return place

    def take_or_queue(self, place: CallPlace) -> bool:
        """Take a place if one is free and no call waits, or put it into the queue. Returns whether it is taken."""
        if self.taken < self.limit and not self._queue:
            self.taken += 1
            return True
        self._queue[place] = None
        return False

    def leave_queue(self, place: CallPlace) -> None:
        """Remove a place that is not wanted any more from the queue."""
        self._queue.pop(place, None)

    def pass_on(self) -> None:
        """Give a place that is free now to the call that has waited longest."""
        self.taken -= 1
        while self._queue and self.taken < self.limit:
            place, _ = self._queue.popitem(last=False)
            self.taken += 1
            place.come()


class CallPlace:
    """A place that one call has, or waits for."""

    __slots__ = ("_borrowers", "_came", "_future", "_is_borrowed", "_lender", "_places", "_user", "is_taken")

    def __init__(self, places: CallPlaces | None, lender: CallPlace | None = None) -> None:
        """Without `places`, the call needs no place. `lender` is the place of the code that makes the call, and waits for it."""
        self._places = places
        self._lender = lender
        self.is_taken = places is None
        self._is_borrowed = False
        self._came: Came | None = None
        self._future: asyncio.Future[None] | None = None
        self._user: CallPlace | None = None
        self._borrowers: OrderedDict[CallPlace, None] | None = None

    @property
    def is_wanted(self) -> bool:
        """True if other calls wait for this place."""
        return self.is_taken and self._places is not None and self._places.waiting > 0

    def ask(self, came: Came) -> None:
        """Take the place if one is free; otherwise `came` is called when it is taken."""
        places, lender = self._places, self._lender
        if self.is_taken or self._came is not None or places is None:
            return
        if lender is not None and lender.lend(self):
            self._is_borrowed = self.is_taken = True
            return
        self.is_taken = places.take_or_queue(self)
        if not self.is_taken:
            self._came = came
            if lender is not None:
                lender.promise(self)

    async def take(self) -> None:
        """Return when the place is taken. The caller must give it back, also if this is cancelled."""
        if self.is_taken:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def came() -> None:
            if not future.done():
                future.set_result(None)

        self.ask(came)
        if not self.is_taken:
            self._future = future
            await future

    def give_back(self) -> None:
        """Give the place back, or stop waiting for it. It may be taken again. Does nothing if it is neither taken nor wanted."""
        places = self._places
        if places is None:
            return
        if self.is_taken:
            self.is_taken = False
            if self._is_borrowed and self._lender is not None:
                self._is_borrowed = False
                self._lender.end_loan()
            else:
                places.pass_on()
        elif self._came is not None:
            self._came = None
            places.leave_queue(self)
            if self._lender is not None:
                self._lender.forget(self)
            if self._future is not None and not self._future.done():
                self._future.cancel()

    def come(self, *, borrowed: bool = False) -> None:
        """Note that the place is taken now, and notify the call that waited for it."""
        came, self._came = self._came, None
        self.is_taken, self._is_borrowed = True, borrowed
        if not borrowed and self._lender is not None:
            self._lender.forget(self)
        assert came is not None
        came()

    # --- lending --------------------------------------------------------------------------------------

    def lend(self, to: CallPlace) -> bool:
        """Lend this place to a call that the code in this place waits for, unless it is lent already. Returns whether it is."""
        if not self.is_taken or self._user is not None:
            return False
        self._user = to
        return True

    def promise(self, to: CallPlace) -> None:
        """Lend this place to a call as soon as it is not lent any more, unless that call gets another place before."""
        if self._borrowers is None:
            self._borrowers = OrderedDict()
        self._borrowers[to] = None

    def end_loan(self) -> None:
        """Take the lent place back, and lend it to the next call that waits for it."""
        self._user = None
        if self._borrowers and self.is_taken:
            self._user, _ = self._borrowers.popitem(last=False)
            assert self._places is not None
            self._places.leave_queue(self._user)
            self._user.come(borrowed=True)

    def forget(self, borrower: CallPlace) -> None:
        """Note that a call does not want this place any more."""
        if self._borrowers is not None:
            self._borrowers.pop(borrower, None)


held: ContextVar[CallPlace | None] = ContextVar("holdfast_place", default=None)
"""The place of the call that the executing code belongs to, in a thread."""
