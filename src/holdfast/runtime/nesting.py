"""Knows which runs the executing code is part of, and which runs wait for others, so that no run waits for its own end.

A node may call an engine. A context variable holds the runs around the code that is executing, the outermost first: a node of
run `a` that executes run `b` on any engine of this process is inside `a`, and the nodes of `b` are inside `a` and `b`. Tasks and
threads that a node starts are inside it as well, because they get a copy of its context. A call inside a run that waits for
another run is noted as long as it waits.

Invariant: a call that would make runs of this process wait for each other in a circle is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from holdfast.errors import RunHeld


class RunKey(NamedTuple):
    """Identifies a run among those of all stores that this process uses."""

    store: str
    """The generation id of the store: run ids are unique within a store."""
    run_id: str


class _Outer(NamedTuple):
    """A run that the executing code is part of, and the engine that executes that run."""

    engine: object
    run: RunKey


class _Wait:
    """A call, made inside one or more runs, that waits for another run."""

    def __init__(self, waiting: frozenset[RunKey], target: RunKey) -> None:
        self.waiting = waiting
        self.target = target


_outer: ContextVar[tuple[_Outer, ...]] = ContextVar("holdfast_outer", default=())
_waits: set[_Wait] = set()
_lock = threading.Lock()


def enter(engine: object, store: str, run_id: str) -> None:
    """Note that the code of this context is part of a run from now on. `engine` identifies the engine that executes the run."""
    _outer.set((*_outer.get(), _Outer(engine, RunKey(store, run_id))))


def run_of(engine: object) -> str | None:
    """Return the id of the run of this engine that the executing code is part of; None if there is none."""
    return next((outer.run.run_id for outer in _outer.get() if outer.engine is engine), None)


def is_inside(store: str, run_id: str) -> bool:
    """Return whether the executing code is part of this run, on whichever engine."""
    return any(outer.run == RunKey(store, run_id) for outer in _outer.get())


@contextmanager
def waiting_for(
    store: str,
    run_id: str,
    way_out: str = "Use engine.start, which does not wait, or another run id.",
    *,
    refuse: bool = True,
) -> Iterator[None]:
    """Mark the executing code as waiting for a run inside this context. Raises `RunHeld` if that run itself waits for this
    code, unless `refuse` is false: then the call does not wait for ever.
    """
    wait = _Wait(frozenset(outer.run for outer in _outer.get()), RunKey(store, run_id))
    with _lock:
        if refuse and not wait.waiting.isdisjoint(_awaited_by(wait.target)):
            raise RunHeld(
                run_id,
                "this process, and waits for the node that makes this call",
                f"If this call waited for the run, neither would ever end. {way_out}",
            )
        _waits.add(wait)
    try:
        yield
    finally:
        with _lock:
            _waits.discard(wait)


def _awaited_by(run: RunKey) -> set[RunKey]:
    """Return a run and the runs that its nodes wait for, directly or through others."""
    found, more = {run}, True
    while more:
        reached = {wait.target for wait in _waits if not wait.waiting.isdisjoint(found)}
        more = not reached <= found
        found |= reached
    return found
