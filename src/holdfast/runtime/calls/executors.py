"""The contract of an executor: whoever calls the plain functions of nodes, somewhere else than on the event loop.

Owns what a call is and how its end is told; not whether it may be called, how long it may take, or what its end means for
the run (`bodies`, `runner`). An executor never sees the log: what a node keeps, and what it returned, goes through
the holder of the lease.

Invariant: `left` is called exactly once for every call that was submitted, when its code has really stopped running. The
suite `holdfast.testing.executors` holds every executor to this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.core.graph import Flow, Node
from holdfast.errors import SettingError

Left: TypeAlias = Callable[[Any, BaseException | None], None]
"""How a call ended: what it returned (where it ran elsewhere, as `Changes`), or what it raised. Called from any thread."""

loading = threading.Event()
"""Set while the process of a node imports the file that the node is in."""


class Killed(BaseException):
    """How a call ends that its executor has killed. A signal of the engine: no node can catch it."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a node's function."""

    flow: Flow[Any]
    node: Node
    item: int | None
    plain: Any
    """What it is given, as plain data. It is the fold's own: read it before `submit` returns, or not at all."""
    given: Any
    """The same, typed: the node's own copy, for whoever calls it in this process."""
    context: Any = None
    """The `BlockingContext` of the call, where the function takes one."""
    work: Any = None
    """What goes on inside it (`runtime.work.Work`), where it takes a context: for whoever calls it in another process."""
    returned: Callable[[], None] | None = None
    """To be called, where it may block, when the function has returned: its files are made durable."""


class Handle(Protocol):
    """A call that was submitted."""

    def kill(self) -> bool:
        """Put an end to it, whatever it does; `left` tells `Killed` soon. False: it cannot be killed, only be abandoned.
        Does not wait, and may be called at any time and more than once.
        """


class Executor(Protocol):
    """Calls functions of nodes, as many at once as it is asked to: limits are kept by whoever asks."""

    def submit(self, call: Call, left: Left) -> Handle:
        """Begin a call. Nothing that goes wrong is raised here: it is how the call ends."""

    def close(self) -> None:
        """Kill what still runs, as far as that is possible, and give everything back."""


def refuse_while_loading() -> None:
    """A file that runs a flow as it is imported would do so in the process of every node, which imports it too."""
    if loading.is_set():
        raise SettingError(
            "this file runs a flow when it is imported, and the process of a node with executor='process' imports it to "
            "find the node. Put what runs it under if __name__ == '__main__':"
        )
