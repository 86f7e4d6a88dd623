"""`ReceivedRequests`: the requests to a run that its runner has received, in the order in which they are to be carried out.

A runner hears of requests from its own process at once, and of those from other processes when the inbox is read. The order of
the inbox counts: what another process asked for earlier comes before what was asked here. A request that this runner cannot
carry out stays in the inbox (`is_left`), and so does what must wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.run_state import FINAL, HALTED
from holdfast.errors import StoreError
from holdfast.reading import inbox
from holdfast.reading.inbox import AnyRequest
from holdfast.runtime import recorders
from holdfast.runtime.journal import Journal
from holdfast.storage.contract import Request


class ReceivedRequests:
    """The requests of one runner. It is true while one of them waits to be carried out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known = set(journal.taken)
        self._waiting: list[AnyRequest] = []
        self._left: list[AnyRequest] = []
        """Those that stay in the inbox, oldest first."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def know(self, request: AnyRequest) -> None:
        """Note that a request is carried out."""
        self._known.add(request.id)

    def add(self, requests: Iterable[AnyRequest]) -> bool:
        """Add the requests that are not known yet. Returns whether there are any."""
        new = [one for one in requests if one.id not in self._known]
        self._known.update(one.id for one in new)
        self._waiting += new
        return bool(new)

    def defer(self, request: AnyRequest) -> None:
        """Have a request carried out later."""
        self._waiting.append(request)

    def read_inbox(self) -> bool:
        """Add the requests that have arrived in the inbox. Returns whether there are any."""
        return self.add(map(inbox.read, self._inbox()))

    def take(self) -> list[AnyRequest]:
        """Remove and return all requests that wait, with those in the inbox that this runner has not heard of. If the inbox
        cannot be read, none is returned: they are found there again when it is read next.
        """
        taken, self._waiting = self._waiting, []
        if not self._journal.saved_seq:
            return taken
        try:
            stored = self._inbox()
        except StoreError:
            self._known.difference_update(one.id for one in taken)
            return []
        ours = {one.id: one for one in taken}
        listed = [
            ours.pop(one.id) if one.id in ours else inbox.read(one)
            for one in stored
            if one.id in ours or one.id not in self._known
        ]
        self._known.update(one.id for one in listed)
        return [*listed, *ours.values()]

    def _inbox(self) -> list[Request]:
        services = self._journal.services
        return services.store.inbox(services.holder.id, run_id=self._journal.state.run_id)

    def is_left(self, request: AnyRequest) -> bool:
        """Leave a request in the inbox, if this runner cannot carry it out: for the engine that resumes the run, or until the
        append that ends the run marks it as unmet. A resume of a paused run waits there until this engine has released the run,
        and what was asked after it waits for it. Returns whether the request is left.
        """
        state = self._journal.state
        if recorders.follows(request, self._left):
            is_left = True
        elif state.status in HALTED:
            is_left = not isinstance(request, (inbox.Cancel, inbox.Edit))
        else:
            is_left = state.status in FINAL or (isinstance(request, inbox.Resume) and state.paused)
        if is_left:
            self._left.append(request)
        return is_left

    def waits_for_edit(self, request: AnyRequest) -> bool:
        """Return whether a request must wait for an older edit, which itself waits for nodes that unwind."""
        if recorders.supersedes(request) or isinstance(request, (inbox.Signal, inbox.ChildEnd)):
            return False
        return any(isinstance(one, inbox.Edit) for one in self._waiting)

    def settle_left(self, request: AnyRequest) -> None:
        """Record what becomes of the older requests that were left in the inbox, now that a pause or a cancel was carried out: it
        supersedes those that would let the run continue, and after a pause, what only waited for them is carried out.
        """
        left, self._left = self._left, []
        for one in left:
            if one.traits.executes:
                recorders.supersede(self._journal, one, request)
            elif isinstance(request, inbox.Pause):
                self._waiting.append(one)
