"""What a node is told about itself, and what it can do there that outlives a crash: its second argument, if it takes one.

An `async def` node gets a `Context`; a plain `def` node runs in a thread and gets a `BlockingContext`, whose methods have the
same names and wait. What either of them keeps belongs to one execution of one visit (and item): a later attempt finds it, an
execution that was asked for anew starts with nothing.

A node that waits (`sleep`, `wait_for`, `ask`) for long is unwound and later runs again from its top: its steps are kept, what it
does outside of steps is done again.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from hashlib import sha256
from typing import Any, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast.core import answers, events
from holdfast.core.codec import Codec
from holdfast.core.run_state import wait_key
from holdfast.core.slots import CHECKPOINT, Slot
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import CodecError, ContextError, WaitTimeout
from holdfast.runtime.calls.attempt import Work
from holdfast.runtime.calls.streams import written

T = TypeVar("T")
P = ParamSpec("P")
_ANY: Codec[Any] = Codec.of(Any)
_SECONDS_MAX = 10 * 366 * 86_400


def _to_be_awaited(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """A method that does nothing unless it is awaited; a node that forgets to is told."""

    @wraps(method)
    def call(*args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        coroutine = method(*args, **named)
        context = cast("Context", args[0])
        first = f"{args[1]!r:.60}" if len(args) > 1 else ""
        context._work.promised(coroutine, f"ctx.{method.__name__}({first}{', …' if len(args) > 2 else ''})")  # noqa: SLF001
        return coroutine

    return call


class _Told:
    """Who is running: `run_id flow node iteration execution attempt` (and `item`, in a fan-out), and the engine's `resources`."""

    def __init__(
        self,
        work: Work,
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
        """Whether this attempt was cancelled or timed out. A `def` node in a long loop asks this now and then and returns."""
        return self._work.body.cancelled

    @property
    def last_checkpoint(self) -> Any:
        """What an earlier attempt (or this one) last gave to `checkpoint`; None where there is nothing."""
        kept = self._work.kept()
        return _ANY.decode(kept[CHECKPOINT]) if CHECKPOINT in kept else None

    @property
    def artifacts(self) -> Artifacts:
        """The folder for files that this node makes. Needs an engine with `run_base`."""
        return self._work.artifacts()

    def idempotency_key(self, name: str = "") -> str:
        """A key for a receiver that de-duplicates: the same for every attempt and execution of this visit (and item). Only
        `retry(fresh=True)` makes a new one.
        """
        fresh = self._work.visit.fresh
        parts = (self.run_id, self.node, self.iteration, self.item, name, fresh)
        return "hf-" + sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:40]

    def emit(self, chunk: Any) -> None:
        """Stream a piece of output: followers see it at once, and what was streamed outlives the process."""
        self._work.emit(written(chunk, self.node), chunk)

    def cost(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Add to what the run has cost. Kept across crashes, resumes and rewinds."""
        self._work.cost(*_cost(self.node, usd, tokens))

    def __repr__(self) -> str:
        item = f" item {self.item}" if self.item is not None else ""
        name = type(self).__name__
        return f"<{name} {self.run_id} {self.node} {self.iteration}.{self.execution}.{self.attempt}{item}>"


class Context(_Told):
    """The context of an `async def` node."""

    # --- steps ----------------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        key: Any = None,
        **named: Any,
    ) -> T: ...

    @overload
    async def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, key: Any = None, **named: Any
    ) -> T: ...

    @_to_be_awaited
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: Any = None,
        type: Any = None,
        **named: Any,
    ) -> Any:
        """Do a piece of work once: call `fn(*args)` and keep what it returns, or take it from the log where an earlier attempt
        of this execution has done it.

        It is known by its name (and `key`), never by the order of calls. What is returned is the decoded value, also the first
        time, typed by `type` or the annotation of `fn`. A plain `def` is called in a thread.
        """
        _require_callable(self.node, name, fn)
        codec = _result_codec(fn, type)
        slot = self._work.claim_step(name, key)
        if kept := self._work.kept_step(slot, codec):
            return kept[0]
        with self._work.step(slot):
            value = await self._work.call(fn, args, named)
            return await self._work.keep_step(slot, value, codec)

    @_to_be_awaited
    async def map(
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        limit: int = 8,
        type: Any = None,
    ) -> list[Any]:
        """`fn(item)` for each, at most `limit` at once; each result is kept as the step `name[number]` of that very item.
        Returns them in order.
        When one raises, no more are started, those under way end and are kept, and then it is raised.
        """
        if not isinstance(limit, int) or limit < 1:
            raise ContextError(f"ctx.map({name!r}, limit={limit!r}): at least 1 at once")
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
                except Exception as raised:  # noqa: BLE001 - raised again when the others have ended
                    failed.append(raised)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(listed))):
                group.create_task(work())
        if failed:
            raise failed[0]
        return results

    @_to_be_awaited
    async def checkpoint(self, value: Any) -> None:
        """Keep how far this node has come: `last_checkpoint` of the next attempt."""
        plain = self._work.encode(value, "checkpoint")
        await self._work.record(events.NodeCheckpointed, value=plain)

    # --- waiting --------------------------------------------------------------------------------------

    @_to_be_awaited
    async def sleep(self, seconds: float, *, key: Any = None) -> None:
        """Wait. The time is set once; neither a crash nor a restart begins it anew. `key`: by default, the how-manieth it is."""
        self._require_time(f"ctx.sleep({seconds!r})", seconds)
        self._work.refuse_waits("ctx.sleep")
        slot = self._claim_wait(Slot.sleep(self._work.number("sleep") if key is None else key))
        if self._is_new(slot):
            until = self._work.now() + seconds
            await self._work.record(events.TimerSet, slot=slot.text, until=until)
        await self._work.until_kept(slot.text)

    @_to_be_awaited
    async def wait_for(
        self, signal: str, *, timeout: float | None = None, key: Any = None, type: Any = None
    ) -> Any:
        """Wait for a signal and return its payload; one that came before is taken at once, each only once. Raises
        `WaitTimeout`.
        """
        if not isinstance(signal, str) or not signal:
            raise ContextError(f"node {self.node!r}: {signal!r} is no name of a signal")
        if timeout is not None:
            self._require_time(f"ctx.wait_for({signal!r}, timeout={timeout!r})", timeout)
        self._work.refuse_waits("ctx.wait_for")
        number = self._work.number(f"signal:{signal}") if key is None else key
        slot = self._claim_wait(Slot.signal(signal, number))
        if self._is_new(slot):
            until = None if timeout is None else self._work.now() + timeout
            await self._work.record(events.SignalAwaited, slot=slot.text, name=signal, until=until)
        came = await self._work.until_kept(slot.text)
        if not came:
            raise WaitTimeout(
                f"node {self.node!r}: the signal {signal!r} did not come in {timeout:g} s. "
                "retry(…, fresh=True) (--fresh) waits anew"
            )
        return _codec(type).decode(came[0], path=f"signal {signal!r}", node=self.node)

    @_to_be_awaited
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
        """Ask somebody, and return the answer: one of `options`, or what fits `schema` (a type), or any JSON. Raises
        `WaitTimeout` when nobody answers in time, unless `on_timeout` names the option that is then taken.
        """
        is_list = not isinstance(options, str) and all(isinstance(option, str) for option in options)
        if not is_list or len(set(options)) != len(options):
            raise ContextError(f"node {self.node!r}: options={options!r} must be different words")
        if not isinstance(question, str) or not question:
            raise ContextError(
                f"node {self.node!r}: ctx.ask({question!r}) asks nothing; give the question as text"
            )
        if len(options) == 1 or (options and schema is not None):
            raise ContextError(
                f"node {self.node!r}: a question has two or more options, or a schema; not options={options!r}, schema={schema!r}"
            )
        if on_timeout != "fail" and on_timeout not in options:
            raise ContextError(
                f"node {self.node!r}: on_timeout={on_timeout!r} is not one of the options; use one, or 'fail'"
            )
        if timeout is not None:
            self._require_time(f"ctx.ask({question!r}, timeout={timeout!r})", timeout)
        self._work.refuse_waits("ctx.ask")
        slot = self._claim_wait(Slot.ask(question if key is None else key))
        if self._is_new(slot):
            self._work.warn_of_unused_answers(slot)
            await self._work.record(
                events.QuestionAsked,
                key=wait_key(self.node, self.iteration, self.execution, self.item, slot.text),
                text=question,
                options=list(options),
                about="ask",
                answer_schema=answers.schema_of(schema, graph=self.flow) if schema is not None else {},
                slot=slot.text,
                until=None if timeout is None else self._work.now() + timeout,
                on_timeout=on_timeout,
            )
        came = await self._work.until_kept(slot.text)
        if not came:
            raise WaitTimeout(
                f"node {self.node!r}: nobody answered {question!r} in {timeout:g} s. retry(…, fresh=True) (--fresh) asks anew"
            )
        return _codec(schema).decode(came[0], path="answer", node=self.node)

    def _require_time(self, told: str, seconds: Any) -> None:
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= _SECONDS_MAX:
            raise ContextError(
                f"node {self.node!r}: {told} is no time to wait; give seconds from 0 to ten years"
            )

    def _claim_wait(self, slot: Slot) -> Slot:
        """Take the slot of a wait for this attempt."""
        text = slot.text
        self._work.claim(text, f"the wait {text!r}")
        return slot

    def _is_new(self, slot: Slot) -> bool:
        text = slot.text
        return not self._work.is_waiting(text) and text not in self._work.kept()


class BlockingContext(_Told):
    """The context of a plain `def` node: the same methods, which block the node's thread."""

    def __init__(self, inner: Context, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self._loop = loop

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        key: Any = None,
        type: Any = None,
        **named: Any,
    ) -> Any:
        """Do a piece of work once; see `Context.step`. A plain `def` is called right here, in the node's own thread."""
        _require_callable(self.node, name, fn)
        codec = _result_codec(fn, type)
        slot = self._work.claim_step(name, key)
        if kept := self._work.kept_step(slot, codec):
            return kept[0]
        try:
            value = fn(*args, **named)
            if isinstance(value, Awaitable):
                value = self._wait(_await(value))
            return self._wait(self._work.keep_step(slot, value, codec))
        except BaseException:
            self._work.unclaim_step(slot)
            raise

    def map(
        self, name: str, fn: Callable[[Any], Any], items: Iterable[Any], *, limit: int = 8, type: Any = None
    ) -> list[Any]:
        """`fn(item)` for each, at most `limit` at once; see `Context.map`."""
        return self._wait(self._inner.map(name, fn, items, limit=limit, type=type))

    def checkpoint(self, value: Any) -> None:
        """Keep how far this node has come; see `Context.checkpoint`."""
        self._wait(self._inner.checkpoint(value))

    def sleep(self, seconds: float, *, key: Any = None) -> None:
        """Wait; see `Context.sleep`. The node unwinds at once and later runs again from its top."""
        self._wait(self._inner.sleep(seconds, key=key))

    def wait_for(
        self, signal: str, *, timeout: float | None = None, key: Any = None, type: Any = None
    ) -> Any:
        """Wait for a signal; see `Context.wait_for`."""
        return self._wait(self._inner.wait_for(signal, timeout=timeout, key=key, type=type))

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
        """Ask somebody; see `Context.ask`."""
        return self._wait(
            self._inner.ask(
                question, options=options, schema=schema, timeout=timeout, on_timeout=on_timeout, key=key
            )
        )

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if _running_loop() is self._loop:
            coroutine.close()
            raise ContextError(
                f"node {self.node!r} is a plain function that runs on the event loop itself (inline=True), where its context "
                "would wait for ever. Make it an async def, or use an engine with threads: inline=False, which for the fixture "
                "of pytest is holdfast_engine(flow, inline=False)."
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _await(value: Awaitable[T]) -> T:
    return await value


def _cost(node: str, usd: Any, tokens: Any) -> tuple[float, int]:
    fits = (
        isinstance(usd, (int, float))
        and not isinstance(usd, bool)
        and 0 <= usd < 1e12
        and isinstance(tokens, int)
        and not isinstance(tokens, bool)
        and 0 <= tokens < 2**40
    )
    if not fits:
        raise ContextError(f"node {node!r}: ctx.cost(usd={usd!r}, tokens={tokens!r}): give amounts from 0 up")
    return float(usd), tokens


def _require_callable(node: str, name: Any, fn: Any) -> None:
    if not callable(fn):
        raise ContextError(
            f"node {node!r}: the step {name!r} is given {fn!r}, which cannot be called; give a function"
        )


def _digest(item: Any) -> str | None:
    """What tells an item from another in its place: results belong to items, not to numbers. None: it is no data."""
    try:
        return sha256(msgspec.json.encode(item, order="deterministic")).hexdigest()[:12]
    except (TypeError, ValueError, RecursionError):
        return None


def _codec(declared: Any) -> Codec[Any]:
    return _ANY if declared is None else Codec.of(declared)


def _result_codec(fn: Callable[..., Any], declared: Any) -> Codec[Any]:
    """How a step's result is kept: by the type that was given, or that the function says it returns."""
    if declared is not None:
        return Codec.of(declared)
    try:
        return _hinted_codec(fn)
    except TypeError:  # it cannot be looked up
        return _ANY


@lru_cache(maxsize=1024)
def _hinted_codec(fn: Callable[..., Any]) -> Codec[Any]:
    try:
        returned = typing.get_type_hints(fn, include_extras=True).get("return", Any)
        return _ANY if returned in (Any, None) else Codec.of(cast("Any", returned))
    except (NameError, TypeError, AttributeError, CodecError):  # it says nothing, or nothing that JSON keeps
        return _ANY
