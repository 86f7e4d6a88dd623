"""The context of a node, its optional second argument: facts about the attempt, and operations whose results outlive a crash.

An `async def` node gets a `Context`; a plain `def` node runs in a thread and gets a `BlockingContext`, whose methods have the
same names and block. A kept result belongs to one execution of one visit (and item): a later attempt finds it; a new
execution, which an operator has asked for, starts with nothing.

A node that waits for long (`sleep`, `wait_for`, `ask`) is unwound and later runs again from its top. The results of its steps are
kept; code outside of steps runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial, wraps
from hashlib import sha256
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from holdfast.core import answers, events
from holdfast.core.child_place import ChildOptions
from holdfast.core.codec import Codec
from holdfast.core.graph import Flow, Node
from holdfast.core.run_state import wait_key
from holdfast.core.slots import CHECKPOINT, Slot
from holdfast.core.step import Step
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import CodecError, ContextError, WaitTimeout
from holdfast.runtime.calls.attempt import Attempt
from holdfast.runtime.calls.body import executing
from holdfast.runtime.calls.child_runs import ChildRun, StartOptions
from holdfast.runtime.calls.spending import check_cost
from holdfast.runtime.calls.steps import Try, course, drive, drive_blocking, require_callable, result_codec
from holdfast.runtime.calls.streams import encode_chunk

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
_ANY: Codec[Any] = Codec.of(Any)
_SECONDS_MAX = 10 * 366 * 86_400


def _require_await(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Mark a method that does nothing unless it is awaited: a node that forgets to await it fails with `ContextError`."""

    @wraps(method)
    def call(*args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        coroutine = method(*args, **named)
        context = cast("Context", args[0])
        first = f"{args[1]!r:.60}" if len(args) > 1 else ""
        context._work.promised(coroutine, f"ctx.{method.__name__}({first}{', …' if len(args) > 2 else ''})")  # noqa: SLF001
        return coroutine

    return call


class _AnyContext:
    """Facts about the attempt: `run_id flow node iteration execution attempt`, `item` in a fan-out; the engine's `resources`."""

    def __init__(
        self,
        work: Attempt,
        *,
        run_id: str,
        flow: str,
        node: str,
        iteration: int,
        execution: int,
        attempt: int,
        item: int | None,
        resources: Mapping[str, Any],
    ) -> None:
        self.run_id = run_id
        self.flow = flow
        self.node = node
        self.iteration = iteration
        self.execution = execution
        self.attempt = attempt
        self.item = item
        self.resources = resources
        self._work = work

    @property
    def cancelled(self) -> bool:
        """True if this attempt was cancelled or timed out. A `def` node with a long loop should check this now and then, and
        return.
        """
        return self._work.body.cancelled

    def kept(self, step: str | Step, *, key: Any = None) -> bool:
        """Return whether the outcome of a step of this execution is in the log: its result, or an exception that is an outcome.
        Then `ctx.step` does not call the step again.
        """
        name = step.name if isinstance(step, Step) else step
        return self._work.is_kept(Slot.step(name, key))

    @property
    def last_checkpoint(self) -> Any:
        """The latest value that this or an earlier attempt gave to `checkpoint`; None if there is none."""
        kept = self._work.kept()
        return _ANY.decode(kept[CHECKPOINT]) if CHECKPOINT in kept else None

    @property
    def artifacts(self) -> Artifacts:
        """The folder for files that this node writes. Needs an engine with `run_base`."""
        return self._work.artifacts()

    def now(self) -> datetime:
        """Return the time of the engine's clock, in UTC; in tests, the time that the test has set. The value is not kept: the
        next attempt gets a later time, unless the node reads the time in a step.
        """
        return datetime.fromtimestamp(self._work.clock_time(), UTC)

    def idempotency_key(self, name: str = "") -> str:
        """Return a key for a service that ignores duplicate requests. The key is the same in every attempt and execution of
        this visit (and item), also after the node was renamed, and in the forks of the run; only `retry(fresh=True)`,
        `fork(fresh=True)` and a fork that repeats the visit on request make a new one. If the plan chooses a key for the task, it
        is that key.
        """
        fresh = self._work.visit.fresh
        chosen = self._work.chosen_key
        if chosen is not None:
            return chosen + (f":{name}" if name else "") + (f"~{fresh}" if fresh else "")
        parts = (self._work.key_root, self._work.key_name, self.iteration, self.item, name, fresh)
        return "hf-" + sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:40]

    def emit(self, chunk: Any) -> None:
        """Stream a chunk of output: followers get it at once, and it outlives the process. A chunk that is streamed inside a
        step is named after the step, and durable when the step is kept.
        """
        self._work.emit(encode_chunk(chunk, self.node), chunk, self._work.called_step())

    def cost(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Add to the cost of the run. The sum survives crashes, resumes and rewinds. Raises `BudgetExceeded` when the cost is
        recorded, if the budget of the run is spent then. Inside a step it does not raise: the step ends and is kept, and then
        nothing more begins.
        """
        self._work.cost(*check_cost(self.node, usd, tokens))

    def __repr__(self) -> str:
        item = f" item {self.item}" if self.item is not None else ""
        name = type(self).__name__
        return f"<{name} {self.run_id} {self.node} {self.iteration}.{self.execution}.{self.attempt}{item}>"


class Context(_AnyContext):
    """The context of an `async def` node."""

    # --- steps ----------------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str | Step,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        key: Any = None,
        **named: Any,
    ) -> T: ...

    @overload
    async def step(
        self, name: str | Step, fn: Callable[..., T], /, *args: Any, key: Any = None, **named: Any
    ) -> T: ...

    @_require_await
    async def step(
        self,
        name: str | Step,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: Any = None,
        type: Any = None,
        **named: Any,
    ) -> Any:
        """Run a step once: call `fn(*args)` and keep its result, or return the result from the log if an earlier attempt of
        this execution has completed the step.

        A step is identified by its name (and `key`), never by the order of calls. The result is always the decoded value, even
        the first time, typed by `type` or by the annotation of `fn`. A plain `def` is called in a thread. An `hf.Step` in place
        of the name says which exceptions are kept too, and how the step is tried again.
        """
        require_callable(self.node, name, fn)
        codec = result_codec(fn, type)
        if isinstance(name, Step):
            return await self._declared_step(name, codec, key, fn, args, named)
        slot = self._work.claim_step(name, key)
        if kept := self._work.kept_step(slot, codec):
            await self._work.give_turns()
            return kept[0]
        try:
            if self._work.has_budget:
                await self._work.require_budget()
            await self._work.settle_withdrawals()
        except BaseException:
            self._work.unclaim_step(slot)
            raise
        with self._work.step(slot):
            value = await self._work.call(fn, args, named)
            return await self._work.keep_step(slot, value, codec)

    async def _declared_step(
        self,
        step: Step,
        codec: Codec[Any],
        key: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        work = self._work
        slot = work.claim_declared(step, key)
        if work.is_kept(slot):
            await work.give_turns()
        if kept := work.kept_result(slot, codec):
            return kept[0]

        place = work.place_of(fn)

        async def call(one: Try) -> Any:
            with work.step(slot), one:
                return await work.call(one.tracked(fn), args, named, place)

        unwinds = work.called_step() is None
        try:
            return await drive(course(work, step, slot, codec, place, unwinds=unwinds), call)
        except BaseException:
            work.unclaim_step(slot)
            raise
        finally:
            place.give_back()

    @_require_await
    async def map(
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        limit: int = 8,
        type: Any = None,
    ) -> list[Any]:
        """Call `fn(item)` for each item, at most `limit` at once, and return the results in order. Each result is kept as the
        step `name[number]`, for exactly that item.

        If a call raises, no more calls start, the running ones finish and are kept, and then the exception is raised.
        """
        if not isinstance(name, str):
            raise ContextError(
                f"node {self.node!r}: ctx.map({name!r:.60}) needs a name as text. To declare outcomes, call ctx.step(hf.Step(…), "
                "…, key=…) for each item."
            )
        if not isinstance(limit, int) or limit < 1:
            raise ContextError(
                f"node {self.node!r}: ctx.map({name!r}, limit={limit!r}): the limit must be a whole number, at least 1"
            )
        self._work.claim(f"map:{name}", f"the map {name!r}")
        listed = list(items)
        results: list[Any] = [None] * len(listed)
        numbers = iter(range(len(listed)))
        failed: list[BaseException] = []

        async def work() -> None:
            for number in numbers:
                if failed:
                    return
                try:
                    key = _digest(listed[number])
                    results[number] = await self.step(
                        f"{name}[{number}]", fn, listed[number], key=key, type=type
                    )
                except Exception as raised:  # noqa: BLE001 - raised again when the other calls have ended
                    failed.append(raised)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(listed))):
                group.create_task(work())
        if failed:
            raise failed[0]
        return results

    @_require_await
    async def checkpoint(self, value: Any) -> None:
        """Keep the progress of this node: the next attempt finds the value in `last_checkpoint`."""
        plain = self._work.encode(value, "checkpoint")
        await self._work.record(events.NodeCheckpointed, value=plain)

    # --- waiting --------------------------------------------------------------------------------------

    @_require_await
    async def sleep(self, seconds: float, *, key: Any = None) -> None:
        """Wait this many seconds. The end is set once: neither a crash nor a restart starts the time again. `key` tells several
        sleeps of a node apart; by default, they are counted from 1.
        """
        self._require_time(f"ctx.sleep({seconds!r})", seconds)
        self._work.refuse_waits("ctx.sleep")
        slot = self._claim_wait(Slot.sleep(self._work.number("sleep") if key is None else key))

        def wanted() -> dict[str, Any]:
            return {"until": self._work.now() + seconds}

        with self._waiting(slot, events.TimerSet, wanted) as begin:
            await begin()
            await self._work.until_kept(slot.text)

    # --- child runs -----------------------------------------------------------------------------------

    @_require_await
    async def start(
        self, flow: Flow[S], input: S | Mapping[str, Any] | None = None, **options: Unpack[StartOptions]
    ) -> ChildRun[S]:
        """Start a child run, and return its handle when that is durable. An attempt that is repeated gets the same child. `key`
        tells several children of this visit apart; by default, it is the name of the flow.

        `run_timeout` limits the time of the child, as `timeout` of `engine.run` does. A child in a `queue` is left to the workers
        of that queue. With `cancel_with_caller`, the child is cancelled with this run, and when this visit is abandoned. The
        `budget` of the child is what is left of this run's, unless it is given one.
        """
        return await self._work.children.start(flow, input, ChildOptions(**options))

    @overload
    async def call(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        *,
        type: None = None,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> S: ...

    @overload
    async def call(
        self,
        flow: Flow[Any],
        input: Any = None,
        *,
        type: Any,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Any: ...

    @_require_await
    async def call(
        self,
        flow: Flow[Any],
        input: Any = None,
        *,
        type: Any = None,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Any:
        """Start a child run, wait for its end, and return its final state: as the state of its flow, or decoded as `type`. While
        it waits, the run needs no process, thread or worker. Raises `ChildFailed` if the child fails or is cancelled.

        The options are those of `start`, but `cancel_with_caller` is true by default. With `timeout`, the call raises
        `WaitTimeout` after `timeout` seconds, and the child is then cancelled too.
        """
        if timeout is not None:
            self._require_time(f"ctx.call(timeout={timeout!r})", timeout)
        self._work.refuse_waits("ctx.call")
        self._work.refuse_inside_step("ctx.call")
        wanted = ChildOptions(**cast("StartOptions", {"cancel_with_caller": True, **options}))
        child = await self._work.children.start(flow, input, wanted, durable=False)
        return await self._work.children.result(child, timeout, type, abandons=wanted.cancel_with_caller)

    @overload
    async def wait_for(
        self, awaited: ChildRun[S], *, timeout: float | None = None, type: None = None
    ) -> S: ...

    @overload
    async def wait_for(
        self, awaited: str | ChildRun[Any], *, timeout: float | None = None, key: Any = None, type: Any = None
    ) -> Any: ...

    @_require_await
    async def wait_for(
        self,
        awaited: str | ChildRun[Any],
        *,
        timeout: float | None = None,
        key: Any = None,
        type: Any = None,
    ) -> Any:
        """Wait for a signal, by its name, and return its payload; or wait for the end of a child run, by the handle that `start`
        returned, and return its final state. Raises `WaitTimeout`, and `ChildFailed` if the child fails or is cancelled. A child
        goes on after a timeout, and the node may wait for it again.
        """
        if timeout is not None:
            self._require_time(f"ctx.wait_for({awaited!r:.60}, timeout={timeout!r})", timeout)
        self._work.refuse_waits("ctx.wait_for")
        if isinstance(awaited, ChildRun):
            return await self._work.children.result(awaited, timeout, type)
        return await self._wait_for_signal(awaited, timeout, key, type)

    async def _wait_for_signal(self, signal: str, timeout: float | None, key: Any, type: Any) -> Any:
        """Wait for a signal and return its payload. A signal that arrived earlier is returned at once; each signal is returned
        only once. Raises `WaitTimeout`.

        With `type`, a signal that does not fit is refused when it is sent. A signal that arrived before the wait, or that only
        code of the type (a validator) rejects, is set aside for a later wait that it fits, and this wait continues.

        Use `timeout` rather than `asyncio.wait_for` or `asyncio.timeout`: it is durable. An asyncio timer ends when the node is
        unwound, after `park_after` seconds at the latest, and the run then waits until the signal comes. A wait that the node
        cancels itself is withdrawn: it gets no signal any more.
        """
        if not isinstance(signal, str) or not signal:
            raise ContextError(
                f"node {self.node!r}: ctx.wait_for({signal!r}) names no signal; give its name as text, or the child run that "
                "ctx.start returned"
            )
        codec = _codec(type)
        number = self._work.number(f"signal:{signal}") if key is None else key
        slot = self._claim_wait(Slot.signal(signal, number))

        def wanted() -> dict[str, Any]:
            return {
                "name": signal,
                "until": None if timeout is None else self._work.now() + timeout,
                "payload_schema": answers.payload_schema_of(type),
                "takes": self._first_fitting(signal, codec),
            }

        with self._waiting(slot, events.SignalAwaited, wanted, signal) as begin:
            await begin()
            while came := await self._work.until_kept(slot.text):
                try:
                    return codec.decode(came[0], path="payload")
                except CodecError as misfit:
                    await self._work.record(
                        events.SignalSetAside, slot=slot.text, name=signal, reason=str(misfit)
                    )
        raise WaitTimeout(
            f"node {self.node!r}: the signal {signal!r} did not arrive within {timeout:g} s. To wait again: "
            f"`holdfast retry {self.run_id} {self.node} --fresh`"
        )

    def _first_fitting(self, signal: str, codec: Codec[Any]) -> int | None:
        """Return the position of the oldest signal of this name that was set aside and fits this wait; None if there is none."""
        for position, payload in self._work.set_aside(signal):
            with suppress(CodecError):
                codec.decode(payload)
                return position
        return None

    @_require_await
    async def ask(
        self,
        question: str,
        *,
        options: Sequence[str] = (),
        schema: Any = None,
        timeout: float | None = None,
        on_timeout: str = "fail",
        key: Any = None,
    ) -> Any:
        """Ask a person a question and return the answer: one of `options`, or a value that fits `schema` (a type), or any
        JSON. Raises `WaitTimeout` if no answer arrives in time, unless `on_timeout` names the option to use then.
        """
        is_list = not isinstance(options, str) and all(isinstance(option, str) for option in options)
        if not is_list or len(set(options)) != len(options):
            raise ContextError(
                f"node {self.node!r}: options={options!r} is not valid: give a list of different strings"
            )
        if not isinstance(question, str) or not question:
            raise ContextError(f"node {self.node!r}: ctx.ask({question!r}) has no question; give it as text")
        if len(options) == 1 or (options and schema is not None):
            raise ContextError(
                f"node {self.node!r}: ctx.ask(options={options!r}, schema={schema!r}) is not valid; give two or more options, "
                "or a schema"
            )
        if on_timeout != "fail" and on_timeout not in options:
            raise ContextError(
                f"node {self.node!r}: on_timeout={on_timeout!r} is not one of the options; use one, or 'fail'"
            )
        if timeout is not None:
            self._require_time(f"ctx.ask({question!r}, timeout={timeout!r})", timeout)
        self._work.refuse_waits("ctx.ask")
        slot = self._claim_wait(Slot.ask(question if key is None else key))

        def wanted() -> dict[str, Any]:
            self._work.warn_of_unused_answers(slot)
            return {
                "key": wait_key(self._work.key_name, self.iteration, self.execution, self.item, slot.text),
                "text": question,
                "options": list(options),
                "about": "ask",
                "answer_schema": answers.schema_of(schema, graph=self.flow) if schema is not None else {},
                "until": None if timeout is None else self._work.now() + timeout,
                "on_timeout": on_timeout,
            }

        with self._waiting(slot, events.QuestionAsked, wanted) as begin:
            await begin()
            came = await self._work.until_kept(slot.text)
        if not came:
            raise WaitTimeout(
                f"node {self.node!r}: the question {question!r} was not answered within {timeout:g} s. To ask again: "
                f"`holdfast retry {self.run_id} {self.node} --fresh`"
            )
        return _codec(schema).decode(came[0], path="answer", node=self.node)

    def _require_time(self, call: str, seconds: Any) -> None:
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= _SECONDS_MAX:
            raise ContextError(
                f"node {self.node!r}: {call} has no valid time to wait; give a number of seconds from 0 to ten years"
            )

    def _claim_wait(self, slot: Slot) -> Slot:
        """Claim the slot of a wait for this attempt, and return the slot."""
        text = slot.text
        self._work.claim(text, f"the wait {text!r}")
        return slot

    def _waiting(
        self,
        slot: Slot,
        kind: type[events.NodeEvent],
        wanted: Callable[[], dict[str, Any]],
        signal: str | None = None,
    ) -> AbstractContextManager[Callable[[], Awaitable[None]]]:
        """Count the node as waiting while the `with` block runs. Yields a function that records the beginning of the wait, as an
        event of this `kind` with the fields that `wanted()` returns.
        """
        work, text = self._work, slot.text

        async def begin() -> None:
            if not work.is_waiting(text) and text not in work.kept() and not work.is_withdrawn(text):
                await work.record(kind, slot=text, **wanted())

        return work.waiting(text, begin, lambda: work.note(kind, slot=text, **wanted()), signal)


class BlockingContext(_AnyContext):
    """The context of a plain `def` node: the same methods as `Context`, which block the node's thread."""

    def __init__(self, inner: Context, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self._loop = loop

    def step(
        self,
        name: str | Step,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: Any = None,
        type: Any = None,
        **named: Any,
    ) -> Any:
        """Run a step once; see `Context.step`. A plain `def` is called in the node's own thread, unless its `hf.Step` has a
        timeout.
        """
        require_callable(self.node, name, fn)
        codec = result_codec(fn, type)
        if isinstance(name, Step):
            return self._declared_step(name, codec, key, fn, args, named)
        slot = self._work.claim_step(name, key)
        if kept := self._work.kept_step(slot, codec):
            return kept[0]
        try:
            if self._work.has_budget:
                self._wait(self._work.require_budget())
            value = self._call(slot, fn, args, named)
            return self._wait(self._work.keep_step(slot, value, codec))
        except BaseException:
            self._work.unclaim_step(slot)
            raise

    def _call(self, slot: Slot, fn: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with self._work.calling(slot):
            value = fn(*args, **named)
            return self._wait(_await(value)) if isinstance(value, Awaitable) else value

    def _declared_step(
        self,
        step: Step,
        codec: Codec[Any],
        key: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        work = self._work
        slot = work.claim_declared(step, key)
        if kept := work.kept_result(slot, codec):
            return kept[0]

        async def call_in_time(one: Try) -> Any:
            place = work.place_of(fn)
            try:
                await work.take_place(place)
                with one:
                    return await work.call(one.tracked(fn), args, named, place)
            finally:
                place.give_back()

        def call(one: Try) -> Any:
            if one.timeout is None:
                return self._call(slot, fn, args, named)
            with work.calling(slot):
                return self._wait(call_in_time(one))

        unwinds = work.blocks and work.called_step() is None
        try:
            return drive_blocking(course(work, step, slot, codec, None, unwinds=unwinds), call, self._wait)
        except BaseException:
            work.unclaim_step(slot)
            raise

    def map(
        self, name: str, fn: Callable[[Any], Any], items: Iterable[Any], *, limit: int = 8, type: Any = None
    ) -> list[Any]:
        """Call `fn(item)` for each item, at most `limit` at once; see `Context.map`."""
        return self._wait(self._inner.map(name, fn, items, limit=limit, type=type))

    def checkpoint(self, value: Any) -> None:
        """Keep the progress of this node; see `Context.checkpoint`."""
        self._wait(self._inner.checkpoint(value))

    def sleep(self, seconds: float, *, key: Any = None) -> None:
        """Wait this many seconds; see `Context.sleep`. The node unwinds at once and later runs again from its top."""
        self._unwind(self._inner.sleep(seconds, key=key))

    @overload
    def wait_for(self, awaited: ChildRun[S], *, timeout: float | None = None, type: None = None) -> S: ...

    @overload
    def wait_for(
        self, awaited: str | ChildRun[Any], *, timeout: float | None = None, key: Any = None, type: Any = None
    ) -> Any: ...

    def wait_for(
        self,
        awaited: str | ChildRun[Any],
        *,
        timeout: float | None = None,
        key: Any = None,
        type: Any = None,
    ) -> Any:
        """Wait for a signal, or for the end of a child run; see `Context.wait_for`."""
        return self._unwind(self._inner.wait_for(awaited, timeout=timeout, key=key, type=type))

    def start(
        self, flow: Flow[S], input: S | Mapping[str, Any] | None = None, **options: Unpack[StartOptions]
    ) -> ChildRun[S]:
        """Start a child run; see `Context.start`."""
        return self._wait(self._inner.start(flow, input, **options))

    @overload
    def call(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        *,
        type: None = None,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> S: ...

    @overload
    def call(
        self,
        flow: Flow[Any],
        input: Any = None,
        *,
        type: Any,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Any: ...

    def call(
        self,
        flow: Flow[Any],
        input: Any = None,
        *,
        type: Any = None,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Any:
        """Start a child run and wait for its end; see `Context.call`."""
        return self._unwind(self._inner.call(flow, input, type=type, timeout=timeout, **options))

    def ask(
        self,
        question: str,
        *,
        options: Sequence[str] = (),
        schema: Any = None,
        timeout: float | None = None,
        on_timeout: str = "fail",
        key: Any = None,
    ) -> Any:
        """Ask a person a question; see `Context.ask`."""
        return self._unwind(
            self._inner.ask(
                question, options=options, schema=schema, timeout=timeout, on_timeout=on_timeout, key=key
            )
        )

    def _unwind(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that unwinds the node. Raises `ContextError` in a thread of an `async def` node, which cannot be
        unwound.
        """
        if not self._work.blocks:
            coroutine.close()
            raise ContextError(
                f"node {self.node!r} is an async def, and this code waits in one of its threads, which cannot be unwound. Wait "
                "in the node itself, outside of steps, and pass the outcome to the code in the thread."
            )
        return self._wait(coroutine)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if running_loop() is self._loop:
            coroutine.close()
            raise ContextError(
                f"node {self.node!r} is a plain function that runs on the event loop itself (inline=True), where a call to its "
                "context would block forever. Make the node an async def, or use an engine with threads (inline=False); in "
                "pytest: holdfast_engine(flow, inline=False)."
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def current() -> Context | BlockingContext:
    """Return the context of the node whose code calls this function: the node's function, its steps, and tasks and threads that
    these start with Python's context variables (as `asyncio.to_thread` does). Raises `ContextError` outside of a node.

    Code that runs on the engine's event loop gets a `Context`, whose methods it awaits; code in a thread gets a
    `BlockingContext`.
    """
    find = executing.get(None)
    call = find() if find is not None else None
    context: Context | BlockingContext | None = call.current_context() if call is not None else None
    if context is None:
        raise ContextError(
            "hf.current() was called outside of a node, or by code that its node left running when it ended. Call it while a "
            "node runs; a thread of your own gets the context if you start it with contextvars.copy_context().run(…)."
        )
    return context


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread; None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _await(value: Awaitable[T]) -> T:
    return await value


def _digest(item: Any) -> str | None:
    """Return a digest of an item, by which a kept result is used only for the item that it belongs to. None if the item cannot
    be encoded as JSON.
    """
    try:
        return sha256(msgspec.json.encode(item, order="deterministic")).hexdigest()[:12]
    except (TypeError, ValueError, RecursionError):
        return None


def _codec(declared: Any) -> Codec[Any]:
    return _ANY if declared is None else Codec.of(declared)


def function_of(node: Node) -> Callable[..., Any]:
    """Return the function that the engine calls for a node: its own or, for a node that calls a flow, one that does so."""
    if node.calls is None:
        return node.fn
    return partial(_call_flow, node)


async def _call_flow(node: Node, given: Any, context: Context) -> Any:
    """Start the child run of a visit, or of an item, wait for its end, and return the update that follows from its result."""
    call = node.calls
    assert call is not None
    flow = context._work.children.find(node.options.calls or "")  # noqa: SLF001
    result = await context.call(
        flow,
        node.fn(given),
        timeout=node.options.timeout_s,
        queue=call.queue,
        priority=call.priority,
        labels=call.labels,
        run_timeout=call.run_timeout,
        budget=call.budget,
    )
    return None if call.output is None else call.output(result)


async def run_generator(context: Context, work: Attempt, fn: Any, given: tuple[Any, ...]) -> Any:
    """Run a node that is an async generator. Its values are chunks, except a last value that is a dict or a state: that is the
    node's result.
    """
    state_type = type(given[0])
    async for value in fn(*given):
        work.release()
        if isinstance(value, (dict, state_type)) and not isinstance(value, str):
            work.hold(value)
        else:
            context.emit(value)
    return work.stream.take_result()
