"""What the runs of one engine share. Clock, random numbers and threads come from here, so that a test can drive everything from
one thread.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.documents.artifacts import Artifacts
from holdfast.errors import ContextError
from holdfast.runtime.calls.body import Body, Threads
from holdfast.runtime.calls.executors import Executor
from holdfast.runtime.calls.shared_task import Stage
from holdfast.runtime.clock import Clock
from holdfast.runtime.commits import Commits
from holdfast.runtime.holdings import Aside, Holdings
from holdfast.runtime.listeners import Listeners
from holdfast.storage.contract import Holder, Store
from holdfast.storage.oversize import BLOB_OVER, LOG_BUDGET
from holdfast.storage.rows import SALT_BYTES


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
    executors: Mapping[str, Executor] = {}
    """Those that call functions off the event loop, by the `executor` of their node. Empty where the engine calls everything on
    the loop.
    """
    elsewhere: frozenset[str] = frozenset()
    """Those of them that call functions outside of this process."""
    haunted: dict[str, dict[tuple[str, int | None], Body]]
    """Run -> threads that were given up and still run: no new attempt starts beside one, not even after a resume."""
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
    """Seconds that a coroutine waits, at most, before it is unwound."""
    park_soon: float = 30.0
    """The same for a wait that nothing in the node can end: an engine whose caller blocks unwinds such a wait earlier."""
    log_budget: int = LOG_BUDGET
    """Bytes of log for one checkpoint over which a result is refused."""
    blob_over: int = BLOB_OVER
    """Bytes of JSON over which a value leaves the log and becomes a blob."""


_SALTS = struct.Struct(f"{SALT_BYTES}s" * 1024)


class Salts:
    """Random bytes for events, fetched from the system for many at a time: every call for them releases the GIL, which
    other threads then hold.
    """

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def take(self) -> bytes:
        if not self._kept:
            self._kept = list(_SALTS.unpack(os.urandom(_SALTS.size)))
        return self._kept.pop()
