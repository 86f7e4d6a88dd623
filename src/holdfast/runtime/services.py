"""The services that all runs of one engine share. Clock, random numbers and threads come from here, so that a test can drive
everything from one thread: also the thread in which the store is read (`ReadingThread`) or written (`Commits`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast.core import events
from holdfast.core.child_place import ChildOptions, ChildPlace
from holdfast.core.definition import BUILT_IN_EXECUTORS
from holdfast.core.graph import Flow, Node
from holdfast.core.requests import OnChange
from holdfast.core.run_state import RunState
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import ContextError, SettingError
from holdfast.reading.known_flows import Flows
from holdfast.reading.views import Run
from holdfast.runtime.calls.call_places import CallPlaces
from holdfast.runtime.calls.executors import Executor, Threads, loading
from holdfast.runtime.calls.shared_task import Stage
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.holdings import Holdings
from holdfast.runtime.listeners import Listeners
from holdfast.runtime.settings import Settings
from holdfast.storage.contract import Along, Append, Holder, Store
from holdfast.storage.leases import CallsAtOnce
from holdfast.storage.oversize import BLOB_OVER, LOG_LIMIT
from holdfast.storage.rows import SALT_BYTES
from holdfast.storage.urls import open_store
from holdfast.storage.writer import Done, InlineWriter, Writer

P = ParamSpec("P")
T = TypeVar("T")

APPENDS_FEW = 32
"""At most this many appends share a commit on the event loop: about two milliseconds of work."""
RUNS_MANY = 128
"""If at least this many runs may append soon, the writer thread commits: it needs the interpreter only a few times per batch."""


def refuse_while_loading() -> None:
    """Refuse to run a flow while the process of a node imports its file: every such process would run the flow again."""
    if loading.is_set():
        raise SettingError(
            "this file runs a flow when it is imported, and the process of a node with executor='process' imports the file to "
            "find the node's function. Move the code that runs the flow under if __name__ == '__main__':"
        )


def waker(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """Return a function with which other threads can have a function called on the event loop."""

    def wake(call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            loop.call_soon_threadsafe(call)

    return wake


def no_artifacts(run_id: str, flow: str, node: str, visit: str) -> Artifacts:
    """Raise `ContextError`, because this engine has no folder for the files of nodes."""
    raise ContextError(
        f"node {node!r} uses a folder for its files, but the engine has none. Give the engine run_base=… "
        "(--run-base, HOLDFAST_RUN_BASE)."
    )


class AbandonedCall(Protocol):
    """A call of a node that the engine has abandoned although its thread still runs."""

    key: tuple[str, int | None]
    """The name of the node, and the number of the item if it is a fan-out."""
    given_up_at: float
    timed_out: bool
    """True if the engine gave the call up because it took too long."""


class FamilyExecutor(Protocol):
    """Creates child runs, and executes them where this engine may: see `runtime/families`."""

    @property
    def flows(self) -> Flows:
        """The flows that the engine knows, by name."""

    def is_at_rest(self, run_id: str) -> bool:
        """Return whether the family of a run is executed here, and can only wait."""

    def know(self, flow: Flow[Any]) -> None:
        """Make a flow known, so that this engine can execute the children of this flow. Raises `SettingError`."""

    def prepare(self, flow: Flow[Any], given: Any, place: ChildPlace, options: ChildOptions) -> Append:
        """Return the first append of a child run. Raises `StateError` and `SettingError` if input or options do not fit."""

    async def finish(self, run_id: str, run: Run[Any], *, is_new: bool) -> Run[Any]:
        """Execute the family of a run that was driven, until all of it has ended or can only wait."""

    async def abandon(self, run_id: str) -> None:
        """Stop executing the family of a run that cannot be driven any more."""

    async def follow(self, run_id: str) -> None:
        """Execute the family of a run that only waits, as `finish` does."""

    async def settle(self) -> None:
        """Wait until the children of runs that were cancelled here are cancelled, if no engine executes them."""

    def moved(self, along: Along) -> None:
        """Note that an append is durable which has started children, or left requests for other runs."""

    def asked(self, run_id: str) -> None:
        """Note that a request to a run was carried out which no engine executes."""


class ReadingThread:
    """The one thread in which an engine reads its store while its nodes run. With `inline`, the reads are made on the event
    loop.

    It is separate from the threads that call nodes, because those may all be busy for hours. It starts with the first call.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._thread: ThreadPoolExecutor | None = None

    async def call(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call `read` in the thread, and return its result. Calls are made one after the other, in order."""
        if self._inline:
            return read(*args, **options)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reader")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: read(*args, **options))

    def close(self) -> None:
        """Let the thread end. Calls that are still queued find the store closed, and raise an error that says so."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


class Commits:
    """Commits the appends of an engine, and decides where: on the event loop, or by the writer thread together with others.
    `done` is called on the event loop, possibly before `commit` returns.

    As long as commits are quick, appends are committed on the event loop: a hop to a thread and back costs about as much as a
    commit, and two threads that both want the interpreter cost more. While several runs move, the appends of one pass of the
    event loop are gathered first, so that they share a commit; a few at a time, so that the loop is never held up for long. When
    commits are slow, the writer thread makes them.
    """

    def __init__(self, writer: Writer | InlineWriter) -> None:
        self._writer = writer
        self._gathered: list[tuple[Append, Done]] = []
        self._moving = 0

    def commit(self, append: Append, done: Done, moving: int) -> None:
        """Make an append durable, then call `done(None)`, or `done(error)` if that failed. `moving` is the number of runs of
        this engine that may append soon.
        """
        self._moving = moving
        if self._gathered:
            self._gathered.append((append, done))
        elif moving > 1:
            self._gathered.append((append, done))
            asyncio.get_running_loop().call_soon(self._hand_over)
        else:
            self._commit_now(append, done)

    def _hand_over(self) -> None:
        """Commit the first few gathered appends; the rest follow in the next passes of the event loop."""
        few, self._gathered = self._gathered[:APPENDS_FEW], self._gathered[APPENDS_FEW:]
        many = self._moving >= RUNS_MANY
        outcomes = None if many else self._writer.try_commit([append for append, _ in few])
        if outcomes is None:
            few, self._gathered = few + self._gathered, []
            self._writer.submit_all(few)
            return
        if self._gathered:
            asyncio.get_running_loop().call_soon(self._hand_over)
        for (_, done), outcome in zip(few, outcomes, strict=True):
            done(outcome)

    def _commit_now(self, append: Append, done: Done) -> None:
        outcomes = self._writer.try_commit((append,))
        if outcomes is None:
            self._writer.submit_all([(append, done)])
        else:
            done(outcomes[0])

    def close(self) -> None:
        """Commit the appends that the writer has, and end the writer."""
        self._writer.close()


@dataclass
class AcceptedChanges:
    """Which changes of their flow the runs of a worker follow: the options of `resume` with these names."""

    on_change: OnChange = "refuse"
    rename: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Services:
    """The services that all runs of one engine share. Threads and executors are made when they are first used: an engine that
    only records or reads needs none of them.
    """

    store: Store
    commits: Commits
    clock: Clock
    luck: random.Random
    salts: Callable[[], bytes]
    """A function that returns random bytes for one event."""
    holder: Holder
    """The identity of this engine. A method of a store that registers the holder gets `holdings.holder`, which also says what the
    worker of this engine takes."""
    resources: Mapping[str, Any]
    inline: bool
    """True if the engine has no threads: it calls every function on the event loop, although it may block."""
    reading: ReadingThread
    """The thread in which the engine reads its store, so that reading runs or an inbox never delays a running node."""
    given_executors: Mapping[str, Executor] = field(default_factory=dict)
    """The executors that the caller has given to the engine, by name. The engine does not close them."""
    build_executors: Callable[[Threads], Mapping[str, Executor]] = lambda threads: {}
    """A function that makes the executors that every engine has."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Name of an executor that every engine has -> how many calls it makes at the same time."""
    haunted: dict[str, dict[tuple[str, int | None], AbandonedCall]]
    """Run -> node and item -> the abandoned call whose thread still runs: no new attempt of that node or item starts beside it,
    not even after a resume.
    """
    warned: set[tuple[str, ...]] = field(default_factory=set)
    """Flow and node for which a warning was logged that is given only once."""
    faults: dict[str, BaseException]
    """Run -> the exception for which it has failed in this process. `Driver.result` removes the entry."""
    holdings: Holdings
    """The runs that this engine holds."""
    run_options: Callable[[Flow[Any], dict[str, Any]], dict[str, Any]]
    """A function that takes a flow and the options of its queue, and returns all options that this engine gives a new run."""
    build_families: Callable[[], FamilyExecutor]
    """A function that makes `families`."""
    listeners: Listeners
    """The listeners, which are notified when events are durable, and when nodes are called or stream."""
    artifacts: Callable[[str, str, str, str], Artifacts] = no_artifacts
    """A function that takes run id, flow, node and visit, and returns the folder for the files of that visit."""
    artifact_names: Callable[[str, str, str], list[str]] = lambda run_id, flow, node: []
    """A function that takes run id, flow and node, and returns the names of the files that the node has written."""
    park_after: float = 30.0
    """Seconds that a waiting coroutine stays in memory, at most, before it is unwound."""
    park_soon: float = 30.0
    """Seconds that a waiting coroutine stays in memory if nothing in the node can cancel its wait. Shorter than `park_after` in
    an engine whose caller blocks until the run returns.
    """
    accepts: AcceptedChanges = field(default_factory=AcceptedChanges)
    """The changes of flows with which this engine continues runs, unless a request says otherwise."""
    on_refused: Callable[[RunState, events.RequestRefused], None] = lambda state, refused: None
    """A function that is called when this engine has refused a request: its worker reports that."""
    log_limit: int = LOG_LIMIT
    """Bytes of log for one checkpoint above which a result is refused."""
    blob_over: int = BLOB_OVER
    """Bytes of JSON above which a value is stored as a blob instead of in the log."""

    elsewhere: frozenset[str] = field(init=False)
    """The names of the executors that call functions outside of this process."""
    places: dict[str, CallPlaces] = field(init=False)
    """Name of an executor -> the places for its calls. Executors without a limit are missing."""
    _own_executors: dict[str, Executor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        given = {name: executor.traits for name, executor in self.given_executors.items()}
        known = {} if self.inline else BUILT_IN_EXECUTORS | given
        self.elsewhere = frozenset(name for name, traits in known.items() if not traits.here)
        limits = {name: self.limits.get(name, traits.at_once) for name, traits in known.items()}
        self.places = {name: CallPlaces(limit) for name, limit in limits.items() if limit is not None}

    @cached_property
    def stage(self) -> Stage:
        """The queue that runs the coroutines of nodes which take no context."""
        return Stage(0.0) if self.inline else Stage()

    @cached_property
    def threads(self) -> Threads | None:
        """The threads for functions that may block; None if they are called on the event loop."""
        return None if self.inline else Threads()

    @cached_property
    def executors(self) -> Mapping[str, Executor]:
        """The executors that call functions off the event loop, by the name in the option `executor` of a node. Empty if the
        engine calls every function on the event loop.
        """
        if self.threads is None:
            return {}
        self._own_executors.update(self.build_executors(self.threads))
        return {**self._own_executors, **self.given_executors}

    def waiting_calls(self) -> tuple[CallsAtOnce, ...]:
        """Return the calls that wait for a place, by executor. May be called from any thread."""
        return tuple(
            CallsAtOnce(executor=name, limit=places.limit, waiting=waiting)
            for name, places in self.places.items()
            if (waiting := places.waiting)
        )

    def places_of(self, node: Node) -> CallPlaces | None:
        """Return the places for calls of a node's function; None if it needs none, because the event loop calls it."""
        name = node.options.executor
        if (node.is_async or node.streams) and name not in self.elsewhere:
            return None
        return self.places.get(name)

    @cached_property
    def families(self) -> FamilyExecutor:
        """Creates the child runs of nodes, and executes them where this engine may."""
        return self.build_families()

    @property
    def made_families(self) -> FamilyExecutor | None:
        """`families`, if something has needed it; otherwise None. So a run that starts no child costs nothing more."""
        return self.families if "families" in self.__dict__ else None

    def unsaving(self) -> Services:
        """Return a copy for a journal that is never saved: its salts are not random, and it may be used in any thread."""
        dry = copy(self)
        dry.salts = lambda: bytes(SALT_BYTES)
        return dry

    def aside(self, call: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Call a function which may block, in a thread if the engine has threads, and then `done` on the event loop."""
        if self.threads is not None:
            future = self.threads.call(call)
            future.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.exception()))
            return
        try:
            call()
        except Exception as raised:  # noqa: BLE001 - passed on to the caller
            done(raised)
        else:
            done(None)

    def close(self) -> None:
        """End the reading thread, the engine's own executors and the writer."""
        self.reading.close()
        for executor in self._own_executors.values():
            executor.close()
        self.commits.close()


def open_store_for(options: Settings, clock: Clock | None) -> Store:
    """Open the store that the options name. A clock that the caller gives is also the clock of the store."""
    own_clock = None if clock is None or type(clock) is SystemClock else clock.now
    return open_store(options.store, clock=own_clock, blobs=options.blobs)
