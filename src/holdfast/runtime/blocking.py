"""The blocking interface: the verbs of the async engine as plain functions.

The functions open an engine for one verb; `connect` returns an object with the same verbs, which keeps the store open.

`with_engine` opens an engine, uses it and closes it, on an event loop of its own; inside a running loop (a notebook) it does so
in a thread. In the main thread SIGINT and SIGTERM stop the engine in order: nothing new starts, running nodes get `grace`
seconds, the interruption is recorded. A second signal ends the call at once, and so does the first if the call executes nothing
(`wait`, or `run` for a run that another process executes). Then the signal is passed on as `KeyboardInterrupt` or
`SystemExit(143)`, because a library must not swallow it.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

from holdfast.core import requests as records
from holdfast.core.graph import Flow, FlowSource
from holdfast.errors import SettingError, did_you_mean
from holdfast.reading.history import Checkpoint
from holdfast.reading.ledger import Ledger
from holdfast.reading.previews import Preview
from holdfast.reading.relatives import WaitedFor
from holdfast.reading.views import AskedQuestion, EventView, RequestView, Run, RunSummary
from holdfast.runtime.calls.executors import Executor
from holdfast.runtime.clock import Clock
from holdfast.runtime.engine import Edit, Engine
from holdfast.runtime.listeners import Listener
from holdfast.runtime.resources import Resources
from holdfast.runtime.services import open_store_for
from holdfast.runtime.settings import Durability
from holdfast.runtime.verb_signatures import takes, takes_run
from holdfast.storage.contract import RunStatus, Store
from holdfast.upkeep.retention import KEEP_LAST, Deleted, Pruned

E = TypeVar("E")
Opened_co = TypeVar("Opened_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class _Others(TypedDict, total=False):
    """Every option of `Engine` but its store."""

    flows: Iterable[Flow[Any] | FlowSource] | Flow[Any] | FlowSource
    resources: Resources | None
    executors: Mapping[str, Executor] | None
    listeners: Iterable[Listener]
    grace: float | None
    lease_ttl: float | None
    durability: Durability | None
    park_after: float | None
    blobs: str | os.PathLike[str] | None
    blob_over: int | None
    log_limit: int | None
    run_base: str | os.PathLike[str] | None
    threads: int | None
    processes: int | None
    keep_checkpoints: int | None
    clock: Clock | None
    luck: random.Random | None
    inline: bool


class Options(_Others, total=False):
    """Every option of `Engine`, for options that several calls share: `options: hf.Options = {…}; hf.get("r1", **options)`."""

    store: str | os.PathLike[str] | Store | None


OPTIONS = frozenset(Options.__annotations__)


class BlockingEngine(Engine):
    """An engine whose caller blocks until its verb returns."""

    _caller_blocks = True


def with_engine(use: Callable[[Engine], Awaitable[T]], options: Options) -> T:
    """Open an engine, await `use(engine)`, close the engine, and return the result."""
    _refuse_unknown(options)
    engine = BlockingEngine(**options)
    engine.os_signals.always = True
    signals = engine.os_signals
    return wait_for(use, engine, stop=signals.stop_from_outside, pass_on=signals.pass_on)


def wait_for(
    use: Callable[[E], Awaitable[T]],
    opened: AbstractAsyncContextManager[E],
    *,
    stop: Callable[[], object],
    pass_on: Callable[[], object],
) -> T:
    """Open something async, await `use` of it, close it, and return the result: on an event loop of its own or, inside a running
    loop, in a thread. `stop` is called if the wait for that thread is interrupted; `pass_on` before an error is raised, and may
    raise something more important.
    """
    run = _run_in_thread if _inside_a_loop() else _run_here
    return run(use, opened, stop, pass_on)


def _refuse_unknown(options: Options) -> None:
    for name in options:
        if name not in Options.__annotations__:
            known = (
                did_you_mean(name, Options.__annotations__)
                or f"; the options of the engine are {', '.join(Options.__annotations__)}"
            )
            raise SettingError(f"neither this function nor the engine has an option {name!r}{known}")


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(
    use: Callable[[E], Awaitable[T]],
    opened: AbstractAsyncContextManager[E],
    stop: Callable[[], object],
    pass_on: Callable[[], object],
) -> T:
    """Use what is opened in a new thread, and wait for it. If the wait is interrupted (a notebook's stop button), it stops in
    order.
    """
    outcome: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(_run_here(use, opened, stop, pass_on))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            raised.append(error)

    # In the context of the caller: a node that calls this is still inside its run.
    around = contextvars.copy_context()
    thread = threading.Thread(target=around.run, args=(work,), name="holdfast-blocking", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        stop()
        thread.join()
        raise
    if raised:
        raise raised[0]
    return outcome[0]


def _run_here(
    use: Callable[[E], Awaitable[T]],
    opened: AbstractAsyncContextManager[E],
    stop: Callable[[], object],
    pass_on: Callable[[], object],
) -> T:
    async def main() -> T:
        async with opened as entered:
            return await use(entered)

    try:
        return asyncio.run(main())
    except Exception:  # the signal comes first: the caller asked this process to end
        pass_on()
        raise


# --- one object --------------------------------------------------------------------------------------


class Blocking(Protocol[Opened_co]):
    """An object whose methods block: each is an async verb (`blocking`) of what `_use` opens for the call."""

    def _use(self, use: Callable[[Opened_co], Awaitable[T]]) -> T:
        """Await a function of what is opened, and return its result."""


def blocking(
    verb: Callable[Concatenate[E, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[E], P], T]:
    """Return an async verb as a method that blocks, with the signature and the docstring of that verb."""

    @wraps(verb)
    def call(self: Blocking[E], /, *args: P.args, **named: P.kwargs) -> T:
        return self._use(lambda opened: verb(opened, *args, **named))

    return call


class Connection(Blocking[Engine]):
    """The verbs of `Engine` for blocking callers, on one open store and with options that are given once: see `connect`. It may
    be used from several threads.
    """

    run = blocking(Engine.run)
    start = blocking(Engine.start)
    wait = blocking(Engine.wait)
    resume = blocking(Engine.resume)
    retry = blocking(Engine.retry)
    skip = blocking(Engine.skip)
    preview = blocking(Engine.preview)
    cancel = blocking(Engine.cancel)
    pause = blocking(Engine.pause)
    edit = blocking(Engine.edit)
    answer = blocking(Engine.answer)
    signal = blocking(Engine.signal)
    fork = blocking(Engine.fork)
    get = blocking(Engine.get)
    runs = blocking(Engine.runs)
    state = blocking(Engine.state)
    events = blocking(Engine.events)
    questions = blocking(Engine.questions)
    requests = blocking(Engine.requests)
    checkpoints = blocking(Engine.checkpoints)
    ledger = blocking(Engine.ledger)
    prune = blocking(Engine.prune)
    delete = blocking(Engine.delete)

    def __init__(self, options: Options) -> None:
        _refuse_unknown(options)
        options = {**options, "listeners": tuple(options.get("listeners", ()))}
        engine = Engine(**options)  # raises for a wrong option now, not at the first verb
        given = options.get("store")
        self._opened: Store | None = None
        if given is None or isinstance(given, (str, os.PathLike)):
            given = self._opened = open_store_for(engine.settings, options.get("clock"))
        self._flows = engine.flows
        self._options: Options | None = {**options, "store": given, "blobs": None}

    def _use(self, use: Callable[[Engine], Awaitable[T]]) -> T:
        """Await a function of an engine on this store, and return its result."""
        if self._options is None:
            raise SettingError("this connection is closed; open another one with hf.connect(…)")

        async def use_and_remember(engine: Engine) -> T:
            try:
                return await use(engine)
            finally:
                self._flows.update(engine.flows)  # a flow that was run here can be resumed here

        return with_engine(use_and_remember, {**self._options, "flows": list(self._flows.values())})

    def close(self) -> None:
        """Close the store, if it was opened here. Closing twice is harmless."""
        self._options = None
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def connect(store: str | os.PathLike[str] | Store | None = None, **options: Unpack[_Others]) -> Connection:
    """Open a store once for several blocking calls: `with hf.connect("runs.db", flows=[flow]) as holdfast: holdfast.run(flow)`.
    The options are those of `Engine`, and the methods its verbs. A script or notebook may also call `close()` at its end.
    """
    return Connection({**options, "store": store})


# --- the verbs ---------------------------------------------------------------------------------------


def _call(use: Callable[[Engine, Any], Awaitable[T]], given: Mapping[str, Any]) -> T:
    """Call a verb of an engine with its own options, and the engine with the others."""
    said: Any = {name: value for name, value in given.items() if name not in OPTIONS}
    of_engine: Any = {name: value for name, value in given.items() if name in OPTIONS}
    return with_engine(lambda engine: use(engine, said), of_engine)


class _Run(records.RunOptions, Options, total=False): ...


class _Start(records.StartHere, Options, total=False): ...


@takes(records.Start, records.RunOptions, others=OPTIONS)
def run(flow: Flow[S], input: S | Mapping[str, Any] | None = None, **options: Unpack[_Run]) -> Run[S]:
    """Start a run and execute it: see `Engine.run`."""
    return _call(lambda e, said: e.run(flow, input, **said), options)


@takes(records.Start, records.StartHere, others=OPTIONS)
def start(flow: Flow[S], input: S | Mapping[str, Any] | None = None, **options: Unpack[_Start]) -> str:
    """Record a run: see `Engine.start`."""
    return _call(lambda e, said: e.start(flow, input, **said), options)


@takes_run
def wait(
    run: str,
    timeout: float | None = None,
    *,
    until: WaitedFor = "stopped",
    **options: Unpack[Options],
) -> Run[Any]:
    """Wait until a run has stopped or ended: see `Engine.wait`."""
    return with_engine(lambda e: e.wait(run, timeout, until=until), options)


class _Resume(records.ResumeHere, Options, total=False): ...


class _Retry(records.RetryHere, Options, total=False): ...


class _Skip(records.SkipHere, Options, total=False): ...


class _Cancel(records.CancelHere, Options, total=False): ...


class _Pause(records.PauseHere, Options, total=False): ...


class _Edit(records.EditHere, Options, total=False): ...


class _Answer(records.AnswerHere, Options, total=False): ...


class _Signal(records.SignalHere, Options, total=False): ...


@takes(records.Resume, records.ResumeHere, others=OPTIONS)
def resume(run: str, **options: Unpack[_Resume]) -> Run[Any]:
    """Resume a run: see `Engine.resume`."""
    return _call(lambda e, said: e.resume(run, **said), options)


@takes(records.Retry, records.RetryHere, others=OPTIONS)
def retry(run: str, node: str | None = None, **options: Unpack[_Retry]) -> Run[Any]:
    """Retry nodes that failed, were interrupted or wait: see `Engine.retry`."""
    return _call(lambda e, said: e.retry(run, node, **said), options)


@takes(records.Skip, records.SkipHere, others=OPTIONS)
def skip(run: str, node: str, update: Any = None, **options: Unpack[_Skip]) -> Run[Any]:
    """Put an update in place of a node's result and continue: see `Engine.skip`."""
    return _call(lambda e, said: e.skip(run, node, update, **said), options)


@takes(records.Cancel, records.CancelHere, others=OPTIONS)
def cancel(run: str, reason: str | None = None, **options: Unpack[_Cancel]) -> Run[Any]:
    """Cancel a run: see `Engine.cancel`."""
    return _call(lambda e, said: e.cancel(run, reason, **said), options)


@takes(records.Pause, records.PauseHere, others=OPTIONS)
def pause(run: str, reason: str | None = None, **options: Unpack[_Pause]) -> Run[Any]:
    """Pause a run until it is resumed: see `Engine.pause`."""
    return _call(lambda e, said: e.pause(run, reason, **said), options)


@takes(records.Edit, records.EditHere, others=OPTIONS)
def edit(run: str, edit: Edit, **options: Unpack[_Edit]) -> Run[Any]:
    """Change fields of the state of a run that is not running: see `Engine.edit`."""
    return _call(lambda e, said: e.edit(run, edit, **said), options)


@takes(records.Answer, records.AnswerHere, others=OPTIONS)
def answer(run: str, question: str, value: Any, **options: Unpack[_Answer]) -> Run[Any]:
    """Answer a question of a run: see `Engine.answer`."""
    return _call(lambda e, said: e.answer(run, question, value, **said), options)


@takes(records.Signal, records.SignalHere, others=OPTIONS)
def signal(run: str, name: str, payload: Any = None, **options: Unpack[_Signal]) -> Run[Any]:
    """Send a signal to a run: see `Engine.signal`."""
    return _call(lambda e, said: e.signal(run, name, payload, **said), options)


class _Fork(records.ForkHere, Options, total=False): ...


@takes(records.Fork, records.ForkHere, others=OPTIONS)
def fork(run: str, **options: Unpack[_Fork]) -> str:
    """Make a new run that shares the history up to a checkpoint: see `Engine.fork`."""
    return _call(lambda e, said: e.fork(run, **said), options)


def preview(run: str, verb: str, **options: Any) -> Preview:
    """Find out what a verb would do to a run, without doing it: see `Engine.preview`. The options are those of the verb, and
    those of `Engine`.
    """
    of_engine: Any = {name: value for name, value in options.items() if name in Options.__annotations__}
    of_verb = {name: value for name, value in options.items() if name not in of_engine}
    return with_engine(lambda e: e.preview(run, verb, **of_verb), of_engine)


def get(run: str, **options: Unpack[Options]) -> Run[Any]:
    """Get a run as it is now, or as it was at an event (`"r1@17"`): see `Engine.get`."""
    return with_engine(lambda e: e.get(run), options)


def runs(
    *,
    status: RunStatus | Collection[RunStatus] = (),
    flow: str | None = None,
    labels: Mapping[str, str] | None = None,
    parent: str | None = None,
    origin: str | None = None,
    before: str | None = None,
    limit: int = 100,
    **options: Unpack[Options],
) -> list[RunSummary]:
    """List the runs that meet the conditions, newest first: see `Engine.runs`."""
    return with_engine(
        lambda e: e.runs(
            status=status, flow=flow, labels=labels, parent=parent, origin=origin, before=before, limit=limit
        ),
        options,
    )


def state(run: str, checkpoint: str | int | None = None, **options: Unpack[Options]) -> Any:
    """Get the state of a run at a checkpoint: see `Engine.state`."""
    return with_engine(lambda e: e.state(run, checkpoint), options)


@takes_run
def events(
    run: str, after: int = 0, node: str | None = None, kind: str | None = None, **options: Unpack[Options]
) -> list[EventView]:
    """List the stored events of a run, oldest first: see `Engine.events`."""
    return with_engine(lambda e: e.events(run, after, node, kind), options)


@takes_run
def questions(run: str | None = None, **options: Unpack[Options]) -> list[AskedQuestion]:
    """List the open questions of one run, or of all runs: see `Engine.questions`."""
    return with_engine(lambda e: e.questions(run), options)


@takes_run
def requests(run: str, **options: Unpack[Options]) -> list[RequestView]:
    """List the requests to a run that wait or were refused: see `Engine.requests`."""
    return with_engine(lambda e: e.requests(run), options)


@takes_run
def checkpoints(run: str, **options: Unpack[Options]) -> list[Checkpoint]:
    """List the checkpoints from which a run can be resumed or forked: see `Engine.checkpoints`."""
    return with_engine(lambda e: e.checkpoints(run), options)


@takes_run
def ledger(run: str, *, verify: bool = False, **options: Unpack[Options]) -> Ledger:
    """Get every decision in the log of a run: see `Engine.ledger`."""
    return with_engine(lambda e: e.ledger(run, verify=verify), options)


@takes_run
def prune(
    run: str,
    keep_last: int = KEEP_LAST,
    *,
    compact: bool = False,
    archive: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Pruned:
    """Retire the older checkpoints of a run: see `Engine.prune`."""
    return with_engine(lambda e: e.prune(run, keep_last, compact=compact, archive=archive), options)


@takes_run
def delete(run: str, **options: Unpack[Options]) -> Deleted:
    """Delete a run that is over: see `Engine.delete`."""
    return with_engine(lambda e: e.delete(run), options)
