"""The contract of an executor: it calls the functions of nodes, outside of the engine's event loop.

This module defines a call and how the executor reports its end. `body` and the runner decide when a call begins, how long it
may take, and what its end means for the run. An executor never sees the log: the holder of the lease records what a node keeps
and returns.

Invariant: the executor calls `left` exactly once for every submitted call, when its code has really stopped running. The suite
`holdfast.testing.executors` tests this for every executor. The engine knows an executor by its `traits`; nodes choose one by
its name.
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
"""Reports how a call ended: its result (from another process, as `Changes`) or its exception. Called from any thread."""

loading = threading.Event()
"""Set while the process of a node imports the file that defines the node."""


class Killed(BaseException):
    """The error of a call that its executor has killed. A signal of the engine: `except Exception` in a node misses it."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a node's function."""

    flow: Flow[Any]
    node: Node
    item: int | None
    plain: Any
    """The node's input, as plain data. It belongs to the fold: an executor must read it before `submit` returns."""
    given: Any
    """The same input, typed: the node's own copy, for an executor that calls the function in this process."""
    context: Any = None
    """The `BlockingContext` of the call, if the function takes one."""
    work: Any = None
    """The `Attempt` that the function belongs to, where it takes a context: for an executor that calls it in another process."""
    returned: Callable[[], None] | None = None
    """The executor calls this after the function has returned, in a thread that may block: it makes the node's files durable."""


class Handle(Protocol):
    """A call that was submitted."""

    def kill(self) -> bool:
        """Kill the call, whatever it is doing; `left` reports `Killed` soon. Returns False if the call cannot be killed, only
        abandoned. Does not wait, and may be called at any time and more than once.
        """


class Executor(Protocol):
    """Calls functions of nodes, as many at once as the engine submits: the engine enforces the limits."""

    @property
    def traits(self) -> ExecutorTraits:
        """What the engine must know about the executor. The traits never change."""

    def submit(self, call: Call, left: Left) -> Handle:
        """Begin a call. It never raises: an error while the call begins is reported as its end, through `left`."""

    def close(self) -> None:
        """Kill the calls that still run, as far as that is possible, and release all resources."""


def check_given(given: Mapping[str, Executor]) -> dict[str, Executor]:
    """Check the executors that a caller gives to an engine, by their names. Raises `SettingError`."""
    if not isinstance(given, Mapping):
        raise SettingError(
            f"executors={given!r} is not a mapping: give names and executors, such as executors={{'ray': …}}"
        )
    for name, executor in given.items():
        if not isinstance(name, str) or not validate.NODE_ID.fullmatch(name):
            raise SettingError(
                f"executors={{{name!r}: …}}: {name!r} cannot name an executor. Use up to 128 letters, digits, '.', '_' and "
                "'-', starting with a letter, digit or '_'."
            )
        if name in definition.BUILT_IN_EXECUTORS:
            raise SettingError(
                f"executors={{{name!r}: …}}: every engine has an executor of this name already. Give yours another name, "
                "and use that name in @graph.node(executor=…)."
            )
        lacks = [part for part in ("submit", "close", "traits") if not hasattr(executor, part)]
        if lacks:
            raise SettingError(
                f"executors={{{name!r}: {executor!r}}} is not an executor: it has no {' and no '.join(lacks)}. "
                "Implement the protocol holdfast.runtime.calls.executors.Executor."
            )
    return dict(given)


def refuse_uncallable(flow: Flow[Any], given: Mapping[str, Executor]) -> None:
    """Refuse a flow with a node that no executor of the engine can call. Raises `SettingError` if the engine does not have
    the node's executor, `GraphError` if that executor cannot call the node's function.
    """
    problems: list[str] = []
    for node in flow.nodes.values():
        name = node.options.executor
        if name in given:
            problems += executor_problems(node, flow.state.type, given[name].traits)
        elif name not in definition.BUILT_IN_EXECUTORS:
            known = [*definition.BUILT_IN_EXECUTORS, *given]
            raise SettingError(
                f"flow {flow.name!r}: node {node.name!r} has executor={name!r}, but this engine has only "
                f"{', '.join(map(repr, known))}{did_you_mean(name, known) or '.'} Use one of these, or register yours: "
                f"Engine(executors={{{name!r}: …}})."
            )
    if problems:
        raise GraphError(flow.name, problems)


def names_elsewhere(executors: Mapping[str, Executor]) -> frozenset[str]:
    """The names of the executors that call functions outside of this process."""
    return frozenset(name for name, executor in executors.items() if not executor.traits.here)


def refuse_while_loading() -> None:
    """Refuse to run a flow while the process of a node imports its file: every such process would run the flow again."""
    if loading.is_set():
        raise SettingError(
            "this file runs a flow when it is imported, and the process of a node with executor='process' imports the file to "
            "find the node's function. Move the code that runs the flow under if __name__ == '__main__':"
        )
