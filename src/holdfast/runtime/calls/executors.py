"""The contract of an executor: it calls the plain functions of nodes, somewhere else than on the event loop.

Owns what a call is and how its end is told; not whether it may be called, how long it may take, or what its end means for
the run (`bodies`, `runner`). An executor never sees the log: what a node keeps, and what it returned, goes through
the holder of the lease.

Invariant: `left` is called exactly once for every call that was submitted, when its code has really stopped running. The
suite `holdfast.testing.executors` holds every executor to this. What an engine has to know of one are its `traits`; its name
is only how nodes choose it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.core import definition, validate
from holdfast.core.graph import Flow, Node, executor_problems
from holdfast.errors import GraphError, SettingError, did_you_mean

ExecutorTraits: TypeAlias = definition.ExecutorTraits
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
    """Calls functions of nodes, as many at once as it is asked to: the engine keeps the limits."""

    @property
    def traits(self) -> ExecutorTraits:
        """What the engine has to know. They never change."""

    def submit(self, call: Call, left: Left) -> Handle:
        """Begin a call. Nothing that goes wrong is raised here: it is how the call ends."""

    def close(self) -> None:
        """Kill what still runs, as far as that is possible, and give everything back."""


def check_given(given: Mapping[str, Executor]) -> dict[str, Executor]:
    """Check the executors that a caller gives to an engine, by their names. Raises `SettingError`."""
    if not isinstance(given, Mapping):
        raise SettingError(f"executors={given!r}: give names and executors, such as executors={{'ray': …}}")
    for name, executor in given.items():
        if not isinstance(name, str) or not validate.NODE_ID.fullmatch(name):
            raise SettingError(
                f"executors={{{name!r}: …}}: {name!r} cannot name an executor; use letters, digits, '.', '_' or '-'"
            )
        if name in definition.BUILT_IN_EXECUTORS:
            raise SettingError(
                f"executors={{{name!r}: …}}: every engine has an executor of this name already. Give yours another name, "
                "and name it in @graph.node(executor=…)."
            )
        lacks = [part for part in ("submit", "close", "traits") if not hasattr(executor, part)]
        if lacks:
            raise SettingError(
                f"executors={{{name!r}: {executor!r}}} is not an executor: it has no {' and no '.join(lacks)}. "
                "holdfast.runtime.calls.executors.Executor is what it has to be."
            )
    return dict(given)


def refuse_uncallable(flow: Flow[Any], given: Mapping[str, Executor]) -> None:
    """Refuse a flow with a node that no executor of the engine can call: `SettingError` where the engine does not know
    its executor, `GraphError` where that cannot call the function.
    """
    problems: list[str] = []
    for node in flow.nodes.values():
        name = node.options.executor
        if name in given:
            problems += executor_problems(node, flow.state.type, given[name].traits)
        elif name not in definition.BUILT_IN_EXECUTORS:
            known = [*definition.BUILT_IN_EXECUTORS, *given]
            raise SettingError(
                f"flow {flow.name!r}: node {node.name!r} has executor={name!r}, and this engine knows only "
                f"{', '.join(map(repr, known))}{did_you_mean(name, known) or '.'} Name one of these, or give the engine yours: "
                f"Engine(executors={{{name!r}: …}})."
            )
    if problems:
        raise GraphError(flow.name, problems)


def names_elsewhere(executors: Mapping[str, Executor]) -> frozenset[str]:
    """The names of the executors that call functions outside of this process."""
    return frozenset(name for name, executor in executors.items() if not executor.traits.here)


def refuse_while_loading() -> None:
    """A file that runs a flow as it is imported would do so in the process of every node, which imports it too."""
    if loading.is_set():
        raise SettingError(
            "this file runs a flow when it is imported, and the process of a node with executor='process' imports it to "
            "find the node. Put what runs it under if __name__ == '__main__':"
        )
