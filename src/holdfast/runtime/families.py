"""`Families` creates the child runs of nodes, and executes the families of the runs that this engine executes.

A family is a run with its children, their children, and so on. `Engine.run` and `Engine.resume` execute the family of their run,
as a worker limited to it would: at most `concurrency` children at a time, and none that waits in a queue for workers. Whichever
engine claims a child first executes it.

Invariants
- A child is created in the append of its caller's `ChildStarted`, and reports its end in its own last append. This module only
  makes things happen sooner: what it does not do, because its process dies, a worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.core.graph import Flow
from holdfast.reading import inbox
from holdfast.runtime import creation
from holdfast.runtime.calls.children import ChildOptions, Place
from holdfast.runtime.services import Services
from holdfast.storage.contract import Along, Append


class Families:
    """Creates child runs, and delivers what an append of this engine has left for other runs."""

    services: Services

    def __init__(self, flows: Mapping[str, Flow[Any]], add: Callable[[Flow[Any]], None]) -> None:
        """`flows` are those that the engine knows, by name; `add` makes another one known."""
        self._flows = flows
        self._add = add

    def find(self, name: str) -> Flow[Any] | None:
        """Return the flow of this name that the engine knows; None if it knows none."""
        return self._flows.get(name)

    def prepare(self, flow: Flow[Any], given: Any, place: Place, options: ChildOptions) -> Append:
        """Return the first append of a child run. Raises `StateError` and `SettingError` if input or options do not fit."""
        self._add(flow)
        return creation.child_append(self.services, flow, given, place, options)

    def moved(self, along: Along) -> None:
        """Pass requests on to the runs that this engine executes. Other engines find them in the inboxes."""
        for run_id, request in along.posts:
            held = self.services.holdings.get(run_id)
            if held is not None:
                held.request(inbox.read(replace(request, run_id=run_id, at=self.services.store.now())))
