"""Which runs the executing code is part of. A node may call an engine; it must not wait there for its own end.

A context variable holds the runs around the code that is executing, the outermost first: a node of run `a` that executes run
`b` on any engine of this process is inside `a`, and the nodes of `b` are inside `a` and `b`. Tasks and threads that a node
starts are inside it as well, because they get a copy of its context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Outer(NamedTuple):
    """A run around the executing code."""

    engine: object
    """What identifies the engine that executes it: its `Holdings`."""
    store: str
    """The generation of its store: run ids are unique within one."""
    run_id: str


_outer: ContextVar[tuple[Outer, ...]] = ContextVar("holdfast_outer", default=())


def enter(engine: object, store: str, run_id: str) -> None:
    """The code of this context is part of a run from now on."""
    _outer.set((*_outer.get(), Outer(engine, store, run_id)))


def run_of(engine: object) -> str | None:
    """The run of this engine that the executing code is part of; None: there is none."""
    return next((outer.run_id for outer in _outer.get() if outer.engine is engine), None)
