"""What the runs of one engine share. Clock, random numbers and threads come from here, so that a test can drive everything from
one thread.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from holdfast.documents.artifacts import Artifacts
from holdfast.errors import ContextError
from holdfast.runtime.calls.executors import Executor, Threads
from holdfast.runtime.calls.shared_task import Stage
from holdfast.runtime.clock import Clock
from holdfast.runtime.commits import Commits
from holdfast.runtime.holdings import Aside, Holdings
from holdfast.runtime.listeners import Listeners
from holdfast.storage.contract import Holder, Store
from holdfast.storage.oversize import BLOB_OVER, LOG_BUDGET

P = ParamSpec("P")
T = TypeVar("T")


def at_once(call: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    """Call a function that may block on the event loop itself: for an engine without threads."""
    try:
        call()
    except Exception as raised:  # noqa: BLE001 - passed on to the caller
        done(raised)
    else:
        done(None)


def in_thread(threads: Threads) -> Aside:
    """Returns how a function that may block is called in a thread."""

    def aside(call: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        future = threads.call(call)
        future.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.exception()))

    return aside


def waker(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Returns how another thread has a function called on the event loop."""

    def wake(call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            loop.call_soon_threadsafe(call)

    return wake


def no_artifacts(run_id: str, flow: str, node: str, visit: str) -> Artifacts:
    """Refuse: this engine has no folder for files."""
    raise ContextError(
        f"node {node!r} wants a folder for its files, and there is none: give the engine run_base=… "
        "(--run-base, HOLDFAST_RUN_BASE)"
    )


class AbandonedCall(Protocol):
    """A call of a node that the engine has abandoned although its thread still runs."""

    key: tuple[str, int | None]
    """The node, and the item."""
    given_up_at: float


class ReadingThread:
    """One thread for everything that an engine reads and that no step waits for. With `inline` the event loop reads itself.

    It is not one of the threads that call nodes: those may all be busy for hours. It starts with the first call.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._thread: ThreadPoolExecutor | None = None

    async def call(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Await a call on the thread. Calls are made in the order they were asked for."""
        if self._inline:
            return read(*args, **options)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reader")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: read(*args, **options))

    def close(self) -> None:
        """Let the thread end. A call that is still to be made then meets a closed store, and says so."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of one engine share."""

    store: Store
    commits: Commits
    clock: Clock
    luck: random.Random
    salts: Callable[[], bytes]
    """Random bytes for one event."""
    holder: Holder
    resources: Mapping[str, Any]
    stage: Stage
    """Where coroutines are called."""
    threads: Threads | None
    """None: functions that may block are called on the event loop."""
    reading: ReadingThread
    """Where the engine reads its store, so that no reading verb and no look into an inbox stops a running node."""
    executors: Mapping[str, Executor] = {}
    """Those that call functions off the event loop, by the `executor` of their node. Empty where the engine calls everything on
    the loop.
    """
    elsewhere: frozenset[str] = frozenset()
    """Those of them that call functions outside of this process."""
    haunted: dict[str, dict[tuple[str, int | None], AbandonedCall]]
    """Run -> abandoned calls whose threads still run: no new attempt starts beside one, not even after a resume."""
    faults: dict[str, BaseException]
    """Run -> the exception for which it has failed here. Whoever drove it takes it out (`Driver.result`)."""
    holdings: Holdings
    """The runs that this engine holds."""
    listeners: Listeners
    """Notified when events are durable, and when nodes are called or stream."""
    aside: Aside = at_once
    """Calls a function that may block, and then another on the event loop."""
    artifacts: Callable[[str, str, str, str], Artifacts] = no_artifacts
    """The folder for the files of a visit: run, flow, node, visit."""
    artifact_names: Callable[[str, str, str], list[str]] = lambda run_id, flow, node: []
    """What is in that folder: run, flow, node."""
    park_after: float = 30.0
    """Seconds that a coroutine waits before it is unwound."""
    log_budget: int = LOG_BUDGET
    """Bytes of log for one checkpoint over which a result is refused."""
    blob_over: int = BLOB_OVER
    """Bytes of JSON over which a value leaves the log and becomes a blob."""
