"""Executors call the functions of nodes outside of the engine's event loop: their contract, and the one that uses threads.

This module defines a call and how the executor reports its end. `body` and the runner decide when a call begins, how long it
may take, and what its end means for the run. An executor never sees the log: the holder of the lease records what a node keeps
and returns.

Invariant: the executor calls `left` exactly once for every submitted call, when its code has really stopped running. The suite
`holdfast.testing.executors` tests this for every executor. The engine knows an executor by its `traits`; nodes choose one by
its name.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.core import definition, validate
from holdfast.core.graph import Flow, FlowSource, Node, executor_problems
from holdfast.errors import GraphError, SettingError, did_you_mean
from holdfast.storage import failpoints

ExecutorTraits: TypeAlias = definition.ExecutorTraits
Left: TypeAlias = Callable[[Any, BaseException | None], None]
"""The type of the function to which an executor reports how a call ended: the result (from another process, as `Changes`), or
the exception. May be called from any thread.
"""

_IDLE_S = 10.0
"""Seconds for which an idle thread waits for the next call before it ends."""
loading = threading.Event()
"""Set while the process of a node imports the file that defines the node."""


class Killed(BaseException):
    """The error that an executor reports for a call that it has killed. It is a `BaseException`, so that `except Exception`
    does not catch it.
    """


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a node's function."""

    flow: Flow[Any]
    node: Node
    item: int | None
    plain: Any
    """The node's input, as plain data. It is part of the run's state, which changes later: an executor must read it before
    `submit` returns.
    """
    given: Any
    """The node's input with its declared type: the node's own copy, for an executor that calls the function in this process."""
    context: Any = None
    """The `BlockingContext` of the call, if the function takes one."""
    work: Any = None
    """The `Attempt` of the call, for an executor that calls the function in another process. An executor in this process does
    not need it, but must run the function in a copy of the context variables that `submit` was called with, so that
    `hf.current` finds the call.
    """
    returned: Callable[[], None] | None = None
    """A function that makes the node's files durable. The executor calls it after the node's function has returned, in a thread
    that may block.
    """


class Handle(Protocol):
    """A call that was submitted to an executor."""

    def kill(self) -> bool:
        """Kill the call, whatever it is doing; `left` reports `Killed` soon. Returns False if the call cannot be killed, only
        abandoned. Does not wait, and may be called at any time and more than once.
        """


class Executor(Protocol):
    """Calls functions of nodes, as many at once as the engine submits: the engine enforces the limits, also `traits.at_once`."""

    @property
    def traits(self) -> ExecutorTraits:
        """The properties of the executor that the engine must know. They never change."""

    def submit(self, call: Call, left: Left) -> Handle:
        """Begin a call. Must not raise: an error at the beginning is reported through `left`, as the end of the call."""

    def close(self) -> None:
        """Kill the calls that still run, as far as that is possible, and release all resources."""


class Threads:
    """Daemon threads for plain functions, reused while they are idle. (With asyncio's own threads, an abandoned
    thread would keep the process alive.)
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], Callable[[], None]]) -> None:
        """Call a function in a thread, and then the function that it returns, which reports the end of the call."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._work, name="holdfast-node", daemon=True).start()
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue
            report = call()
            del call
            with self._lock:
                self._idle += 1
            report()  # only now: it may lead to the next call, which this thread can make
            del report

    def call(self, fn: Callable[[], Any], ended: Callable[[], None] | None = None) -> asyncio.Future[Any]:
        """Call a plain function in a thread; the future has its result. A caller that cancels the future does not stop the
        thread: `ended` is called when the thread has really returned.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def finish(value: Any, error: BaseException | None) -> None:
            if ended is not None:
                ended()
            if not result.done():
                if error is None:
                    result.set_result(value)
                else:
                    result.set_exception(error)

        def work() -> Callable[[], None]:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(fn)
            except StopIteration as raised:  # a future does not accept this exception
                error = RuntimeError(f"a step raised {raised!r}")
            except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
                error = raised

            def report() -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(finish, value, error)

            return report

        self.submit(work)
        return result


class ThreadExecutor:
    """Calls plain functions in daemon threads of this process."""

    traits = definition.BUILT_IN_EXECUTORS["thread"]

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def submit(self, call: Call, left: Left) -> ThreadExecutor:
        context = contextvars.copy_context()

        def work() -> Callable[[], None]:
            value, error = None, None
            try:
                if failpoints.hook is not None:
                    failpoints.reach("node.enter")
                if call.context is None:
                    value = context.run(call.node.fn, call.given)
                else:
                    value = context.run(call.node.fn, call.given, call.context)
                if call.returned is not None:
                    call.returned()
                if failpoints.hook is not None:
                    failpoints.reach("node.exit")
            except BaseException as raised:  # noqa: BLE001 - a thread must not die of a node's SystemExit
                error = raised
            return partial(left, value, error)

        self._threads.submit(work)
        return self

    def kill(self) -> bool:
        """Return False: a thread cannot be killed."""
        return False

    def close(self) -> None:
        """Nothing to do: the threads are daemons, and end after they have been idle for a while."""


def check_given(given: Mapping[str, Executor]) -> dict[str, Executor]:
    """Check the executors, by name, that a caller gives to an engine. Raises `SettingError`."""
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


def refuse_uncallable(flow: Flow[Any] | FlowSource, given: Mapping[str, Executor]) -> None:
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
