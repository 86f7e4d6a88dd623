"""The program in the process of a node: find the function, call it with its input, and report how the call ended.

It keeps nothing from one call to the next except the modules that it has imported. It never sees the store and makes no
decisions: it turns a result into changes and an exception into a failure, because that needs the types, which exist only here;
the engine does the rest. `executor` is the other side.

Invariant: this process dies with its engine, whatever the node is doing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import fcntl
import gc
import importlib
import importlib.util
import operator
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import ModuleType
from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.definition import END, START
from holdfast.core.events import Changes
from holdfast.core.graph import Flow, Graph
from holdfast.core.signatures import argument_type, result_type
from holdfast.errors import BudgetExceeded, ContextError, RouterError, SettingError, StateError
from holdfast.runtime import failures, outcomes
from holdfast.runtime.calls.body import Parked, Stopped, executing
from holdfast.runtime.calls.context import BlockingContext, Context, running_loop
from holdfast.runtime.calls.executors import Threads, loading
from holdfast.runtime.calls.fresh_source import spec_of
from holdfast.runtime.calls.process.wire import Answer, AskedByNode, Order, Place, Raised, Returned, Wire
from holdfast.runtime.calls.process.work import DistantAttempt, NoResources

_MAIN = "__holdfast_main__"
"""The module name of the main program's file in this process, so that code under `if __name__ == "__main__"` does not run."""
_REFUSALS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (BudgetExceeded, RouterError, SettingError, StateError, Stopped)
}
"""The exceptions with which the engine refuses a request of the context, except `ContextError`."""


def main(talk: int, life: int, crash: int) -> None:
    """Serve calls from the engine until the engine is gone."""
    for handle in (talk, life, crash):
        os.set_inheritable(handle, False)
    _die_with_engine(life)
    faulthandler.enable(crash)
    wire: Wire[Order | Answer] = Wire(socket.socket(fileno=talk), Order | Answer)
    threads = Threads()
    gc.freeze()  # what is imported by now lives as long as this process, which is ours
    while isinstance(order := wire.receive(), Order):
        end = _NodeCall(order, wire, threads).end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the reader is gone, or the node has closed the stream
                stream.flush()
        wire.send(end)


# --- dying with the engine ---------------------------------------------------------------------------


def _die_with_engine(life: int) -> None:
    """Kill this process when the engine is gone: only the engine can write into the pipe `life`, and it never does, so the pipe
    closes when the engine ends.
    """
    if sys.platform == "linux":  # works even if the node lets no other thread run
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch, args=(life,), name="holdfast-life", daemon=True).start()


def _watch(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _limit_memory(limit: int | None) -> Iterator[None]:
    if limit is None:
        yield
        return
    # Linux limits the memory that is written to; the address space is many times larger with only a few threads.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


# --- one call ----------------------------------------------------------------------------------------


class _NodeCall:
    """One call of a node's function."""

    def __init__(self, order: Order, wire: Wire[Order | Answer], threads: Threads) -> None:
        self._order = order
        self._wire = wire
        self._turn = threading.Lock()
        self._before = set(threading.enumerate())
        self._work: DistantAttempt | None = None
        if order.told is not None:
            self._work = DistantAttempt(order, order.told, self._ask, threads)

    def end(self) -> Returned | Raised:
        """Make the call, and return how it ended."""
        try:
            return Returned(self._changes(), self._is_spent())
        except BaseException as raised:  # noqa: BLE001 - every exception is reported to the engine
            return self._describe_error(raised)

    def _changes(self) -> Changes:
        order = self._order
        flow = _build_flow(order)
        node = flow.nodes[order.node]
        if order.is_wired:
            given = Codec.of(argument_type(node.fn)).decode(order.plain, path="input", node=order.node)
        elif order.item is None:
            given = flow.state.load(order.plain)
        else:
            codec = flow.item_codecs[order.node]
            given = codec.decode(order.plain, path=f"item {order.item}", node=order.node)
        with _limit_memory(order.memory_limit):
            call = self._call_async if node.is_async else self._call_plain
            returned = call(node.fn, given, takes_context=node.takes_context)
        if order.is_wired:
            output = Codec.of(result_type(node.fn)).encode(returned, path="output", node=order.node)
            return outcomes.put_output(order.node, output)
        if order.item is None:
            return outcomes.find_changes(flow, order.node, order.plain, given, returned)
        return flow.state.changes(returned, {}, node=order.node)

    def _call_async(self, fn: Any, given: Any, *, takes_context: bool) -> Any:
        return asyncio.run(self._coroutine(fn, given, takes_context=takes_context))

    async def _coroutine(self, fn: Any, given: Any, *, takes_context: bool) -> Any:
        if self._work is None:
            return await fn(given)
        here = _Here(self._context(self._work), asyncio.get_running_loop())
        executing.set(lambda: here)
        with self._work.coroutine():
            try:
                value = await (fn(given, here.context) if takes_context else fn(given))
            except Exception as raised:
                if failures.find_spent_budget(raised) is not None:  # steps that run beside end first
                    await self._work.running.until_none()
                raise
            self._work.refuse_forgotten()
        return value

    def _call_plain(self, fn: Any, given: Any, *, takes_context: bool) -> Any:
        if self._work is None:
            return fn(given)
        with _run_loop_in_thread() as loop:
            here = _Here(self._context(self._work), loop)
            arguments = (given, here.current_context()) if takes_context else (given,)
            return copy_context().run(_call_inside, here, fn, arguments)

    def _context(self, work: DistantAttempt) -> Context:
        order, told = self._order, self._order.told
        assert told is not None
        return Context(
            work,
            run_id=told.run_id,
            flow=told.flow,
            node=order.node,
            iteration=told.iteration,
            execution=told.execution,
            attempt=told.attempt,
            item=order.item,
            resources=NoResources(order.node),
        )

    def _ask(self, verb: str, given: dict[str, Any]) -> Any:
        """Send a request of the context to the engine, and return the engine's reply. May be called from any thread."""
        with self._turn:
            self._wire.send(AskedByNode(verb, given))
            answer = self._wire.receive()
        assert isinstance(answer, Answer)
        if answer.parked is not None:
            raise Parked(answer.parked)
        if answer.refused is not None:
            raise _REFUSALS.get(answer.refused_as, ContextError)(answer.refused)
        return answer.value

    def _describe_error(self, raised: BaseException) -> Raised:
        failure = failures.describe(raised)
        limit = self._order.memory_limit
        if isinstance(raised, MemoryError) and limit is not None:
            text = f"the process of node {self._order.node!r} reached its memory limit of {limit:,} bytes"
            advice = "Raise memory_limit=…, or give the node less data at once."
            failure = msgspec.structs.replace(failure, message=text, advice=advice)
        return Raised(
            failure=failure,
            names=[self._name(kind) for kind in type(raised).__mro__],
            retry_after=failures.retry_after(raised, now=time.time()),
            parked=raised.slots if isinstance(raised, Parked) else None,
            spent=isinstance(raised, MemoryError) or self._is_spent(),
            kept=failures.kept_steps(raised),
        )

    def _name(self, kind: type) -> str:
        """Return the full name that a class has in the engine's process."""
        places = (self._order.function, self._order.state)
        mains = {place.loaded_as or _MAIN for place in places if place.module == "__main__"}
        return f"__main__.{kind.__qualname__}" if kind.__module__ in mains else failures.name_of(kind)

    def _is_spent(self) -> bool:
        """Return whether a thread of this call still runs, so that the process must not serve another call."""
        left = set(threading.enumerate()) - self._before
        ours = {thread for thread in left if thread.name.startswith("holdfast-")}
        return bool(left - ours) or (self._work is not None and self._work.is_at_work)


class _Here:
    """What code inside the node's call can ask about that call."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self.context = context
        self._loop = loop

    def current_context(self) -> Context | BlockingContext:
        return self.context if running_loop() is self._loop else BlockingContext(self.context, self._loop)


def _call_inside(here: _Here, fn: Any, arguments: tuple[Any, ...]) -> Any:
    executing.set(lambda: here)
    return fn(*arguments)


@contextmanager
def _run_loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread, for the context of a plain function."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="holdfast-context", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# --- finding the function ----------------------------------------------------------------------------


def _build_flow(order: Order) -> Flow[Any]:
    """Build a flow with only this node: of the real flow, the call needs only the types of state and items."""
    graph: Graph[Any] = Graph("process", _find(order.state))
    listed = operator.attrgetter(order.items_of) if order.items_of else _no_items
    each = None if order.item is None else listed
    graph.node(name=order.node, each=each)(_find(order.function))
    return graph.chain(START, order.node, END).compile()


def _no_items(state: Any) -> list[Any]:
    return []


def _find(place: Place) -> Any:
    found: Any = _module(place)
    for part in place.name.split("."):
        found = getattr(found, part)
    return found


def _module(place: Place) -> ModuleType:
    name = place.loaded_as or (_MAIN if place.module == "__main__" else place.module)
    if name in sys.modules:
        return sys.modules[name]
    loading.set()
    try:
        if name != _MAIN and not _is_single_file(name, place.file) and _is_importable(name, place.file):
            return importlib.import_module(name)
        return _from_file(name, str(place.file))
    finally:
        loading.clear()


def _is_single_file(name: str, file: str | None) -> bool:
    """Return whether the module is a single .py file outside of a package, like a file of flows. Such a file is loaded from its
    source.
    """
    if file is None or "." in name or os.path.basename(file) == "__init__.py":
        return False
    return file.endswith(".py") and os.path.isfile(file)


def _is_importable(name: str, file: str | None) -> bool:
    """Return whether importing a module of this name loads this file. It does not if the engine has loaded the file by its
    path.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and (
        file is None or (spec.origin is not None and os.path.abspath(spec.origin) == file)
    )


def _from_file(name: str, file: str) -> ModuleType:
    spec = spec_of(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(
            f"{file} is not a Python file, so the process of a node cannot import it. Move the function into a .py file."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
