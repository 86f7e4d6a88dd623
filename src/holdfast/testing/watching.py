"""Watched flows: `watch_flow` copies a flow and reports every call of a node to an observer.

In a watched flow, sync and async nodes alike run in step with the event loop. A plain function gets a thread of its own, because
it may use a context; but the loop blocks while the function works, and performs the function's calls to the context: so a test
with a manual clock controls their order too. Invariant: a watched flow has the fingerprint of the original; either can resume a
run of the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast.core.graph import Flow, Node
from holdfast.runtime.calls.body import executing
from holdfast.runtime.calls.context import BlockingContext, Context, function_of
from holdfast.testing.copied_flows import copy_flow

S = TypeVar("S")
T = TypeVar("T")
Seen: TypeAlias = Callable[[str, Any], None]
"""The type of an observer: a function that is called with `enter` or `exit`, and with the context of the node's call."""


def watch_flow(flow: Flow[S], seen: Seen) -> Flow[S]:
    """Return a copy of the flow that calls `seen` when a node is called and when it returns."""
    return copy_flow(flow, lambda node: _watch_node(node, seen))


def _watch_node(node: Node, seen: Seen) -> Node:
    if node.options.question is not None:
        return node  # a question node has no function
    function = function_of(node)

    def arguments(given: Any, ctx: Any) -> tuple[Any, ...]:
        return (given, ctx) if node.takes_context else (given,)

    async def awaited(given: Any, ctx: Context) -> Any:
        seen("enter", ctx)
        returned = await function(*arguments(given, ctx))
        seen("exit", ctx)
        return returned

    async def streamed(given: Any, ctx: Context) -> AsyncIterator[Any]:
        seen("enter", ctx)
        async for chunk in function(*arguments(given, ctx)):
            yield chunk
        seen("exit", ctx)

    async def called(given: Any, ctx: Context) -> Any:
        seen("enter", ctx)
        returned = await _in_step(function, arguments, given, ctx)
        seen("exit", ctx)
        return returned

    fn = streamed if node.streams else awaited if node.is_async else called
    return msgspec.structs.replace(node, fn=fn, takes_context=True, is_async=not node.streams, calls=None)


class _Handed(BlockingContext):
    """The context of a node function (plain `def`) that runs in a thread. The event loop is blocked while the function runs.
    When the function waits, streams or reports a cost through its context, the thread blocks until the event loop has handled
    the call.
    """

    def __init__(self, inner: Context, requests: queue.SimpleQueue[Any]) -> None:
        super().__init__(inner, asyncio.get_running_loop())
        self._requests = requests
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def current_context(self) -> BlockingContext:
        """For `hf.current`: the node finds the context that it would be given."""
        return self

    def _unwind(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._wait(coroutine)

    def emit(self, chunk: Any) -> None:
        step = contextvars.copy_context()  # names the step that streams the chunk
        self._wait(_as_coroutine(lambda: step.run(self._inner.emit, chunk)))

    def cost(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        self._wait(_as_coroutine(lambda: self._inner.cost(usd=usd, tokens=tokens)))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._requests.put((coroutine, self._answers))
        value, error = self._answers.get()
        if error is not None:
            raise error
        returned: T = value
        return returned


async def _as_coroutine(call: Callable[[], T]) -> T:
    return call()


async def _in_step(
    fn: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]], given: Any, ctx: Context
) -> Any:
    """Call a plain function in a thread, so that either the function runs or the event loop, never both at once."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handed = _Handed(ctx, requests)
    variables = contextvars.copy_context()
    variables.run(executing.set, lambda: handed)

    def work() -> None:
        ended: tuple[Any, BaseException | None]
        try:
            ended = (variables.run(fn, *arguments(given, handed)), None)
        except BaseException as raised:  # noqa: BLE001 - raised again in the caller
            ended = (None, raised)
        requests.put((None, ended))

    threading.Thread(target=work, name="holdfast-watched", daemon=True).start()
    while True:
        coroutine, reply = requests.get()  # blocks the loop on purpose
        if coroutine is None:
            value, error = reply
            if error is not None:
                raise error
            return value
        answer: tuple[Any, BaseException | None]
        try:
            answer = (await coroutine, None)
        except BaseException as raised:  # noqa: BLE001 - raised in the function's thread, a cancellation too
            answer = (None, raised)
        reply.put(answer)
