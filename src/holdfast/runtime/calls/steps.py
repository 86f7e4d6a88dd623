"""The course of a declared step (`core/step`): which exception is kept, which try comes next, and what the node gets.

A step with a plain name needs none of this. The `Attempt` records and waits; `Context.step` and `BlockingContext.step`
make the calls that the course asks for, each in its own way.

Invariants
- The node gets an exception that is an outcome only as it would get it from the log: made again from its arguments, never the
  object that the step has raised. So what cannot be kept is missing from the first time on.
- Nothing is imported by name: an exception is made with one of the classes in the `raises` of the code.
- An outcome is durable before the node gets it. `StepStarted` is durable before a step with `idempotent=False` is called.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast

from holdfast.core import answers, events
from holdfast.core.codec import Codec
from holdfast.core.events import NodeEvent
from holdfast.core.graph import Retry
from holdfast.core.slots import Slot, begun_text, raised_text
from holdfast.core.step import Step
from holdfast.errors import BudgetExceeded, CodecError, ContextError, Recoverable
from holdfast.runtime import failures
from holdfast.runtime.calls.call_places import CallPlace
from holdfast.runtime.clock import Clock

_ANY: Codec[Any] = Codec.of(Any)


class Work(Protocol):
    """The part of an attempt that the course of a step uses."""

    @property
    def clock(self) -> Clock: ...

    def kept(self) -> dict[str, Any]: ...

    async def record(self, kind: type[NodeEvent], **fields: Any) -> None: ...

    async def keep_step(self, slot: Slot, value: Any, codec: Codec[Any]) -> Any: ...

    def encode(self, value: Any, path: str) -> Any: ...

    def now(self) -> float: ...

    def failed_tries(self, step: str) -> tuple[int, str | None]: ...

    async def take_place(self, place: CallPlace) -> None: ...

    async def until_try(self, slot: str, *, unwinds: bool) -> None: ...

    def reclaim_step(self, slot: Slot) -> None: ...

    @property
    def has_budget(self) -> bool: ...

    async def require_budget(self) -> None: ...

    async def settle_withdrawals(self) -> None: ...

    def warn_once(self, key: tuple[str, ...], told: str) -> None: ...

    def jitter(self, retry: Retry, error: BaseException, tries: int) -> float | None: ...

    @property
    def place(self) -> tuple[str, str]: ...


Course: TypeAlias = Generator[Any, Any, Any]
"""The course of a step: see `course`."""


def course(
    work: Work, step: Step, slot: Slot, codec: Codec[Any], place: CallPlace | None, *, unwinds: bool
) -> Course:
    """Go through the tries of a step whose result is not kept. Yields coroutines, whose results it is sent, and each `Try`, for
    which it is sent the pair of the function's result and exception. Returns the result of the step, or raises its exception.
    `unwinds`: whether the node may be unwound while it waits for the next try. Each try is made in `place`, if there is one; the
    caller gives it back in the end.
    """
    label = slot.label
    if raised_text(label) in work.kept():
        raise _made_again(work, step, label)
    while True:
        tries, wait = work.failed_tries(label) if step.retry is not None else (0, None)
        if wait is not None:
            yield work.until_try(wait, unwinds=unwinds)
        if place is not None:
            yield work.take_place(place)
        if work.has_budget:
            yield work.require_budget()
        yield work.settle_withdrawals()
        if not step.idempotent:
            _refuse_in_doubt(work, step, label)
            yield work.record(events.StepStarted, step=label, result_schema=_schema_of(codec))
        one = Try(work.clock, step)
        value, error = yield one
        if place is not None:
            place.give_back()
        if error is None:
            return (yield work.keep_step(slot, value, codec))
        if type(error) in step.raises:
            yield _keep_exception(work, step, slot, error)
            raise _made_again(work, step, label)
        if isinstance(error, step.raises):
            _warn_of_subclass(work, step, error)
        delay = _delay(work, step, one, error, tries + 1)
        if delay is None:
            if not step.idempotent and not _is_uncertain(
                error
            ):  # the exception says that the effect did not happen
                failure = failures.describe(error)
                yield work.record(events.StepFailed, step=label, failure=failure, retry_at=work.now())
            raise error
        retry_at = work.now() + delay
        yield work.record(events.StepFailed, step=label, failure=failures.describe(error), retry_at=retry_at)
        work.reclaim_step(slot)


def _schema_of(codec: Codec[Any]) -> dict[str, Any]:
    """Return the schema that the result of a step has to fit, for a caller who states it."""
    return {} if codec is _ANY or codec.type is Any else answers.payload_schema_of(codec.type)


def _refuse_in_doubt(work: Work, step: Step, label: str) -> None:
    """Refuse to call a step again that this execution has called, if it is unknown whether it had its effect."""
    if begun_text(label) in work.kept():
        raise ContextError(
            f"node {work.place[1]!r} calls the step {step.name!r} again, which is not idempotent, and it is not known whether "
            "the first call had an effect. Let the exception of that call leave the node: the run then asks what to do."
        )


def _delay(work: Work, step: Step, one: Try, error: Exception, tries: int) -> float | None:
    """Return the seconds until the next try of a step; None if there is none. A thread that still runs could have its effect
    beside the next try.
    """
    if not isinstance(step.retry, Retry) or one.runs_on or (one.is_overdue and not step.idempotent):
        return None
    return work.jitter(step.retry, error, tries)


def _is_uncertain(error: Exception) -> bool:
    """Return whether it is unknown if the step had its effect, because its connection broke, no reply came, or the budget of the
    run was spent when it called another step, or a child.
    """
    if isinstance(error, BudgetExceeded):
        return True
    return failures.classify(error) == "recoverable" and not isinstance(error, Recoverable)


# --- one try -------------------------------------------------------------------------------------------


class Try:
    """One call of a step's function. As a context manager, it cancels the current task when the time is over, as
    `asyncio.timeout` does, but by the clock of the engine.
    """

    is_overdue = False
    """True if the call took longer than the step's `timeout`."""
    runs_on = False
    """True if the call is overdue and its thread still runs: a thread cannot be stopped."""
    _is_in_thread = False

    def __init__(self, clock: Clock, step: Step) -> None:
        self._clock = clock
        self._name, self.timeout = step.name, step.timeout

    def tracked(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to call: a plain function also notes when it runs."""
        if self.timeout is None or inspect.iscoroutinefunction(fn):
            return fn

        def noting(*args: Any, **named: Any) -> Any:
            self._is_in_thread = True
            try:
                return fn(*args, **named)
            finally:
                self._is_in_thread = False

        return noting

    def __enter__(self) -> None:
        if self.timeout is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._before = task, task.cancelling()
            self._timer = self._clock.call_at(self._clock.now() + self.timeout, self._end)

    def _end(self) -> None:
        self.is_overdue = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.timeout is None:
            return
        self._timer.cancel()
        if self.is_overdue and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            self.runs_on = self._is_in_thread
            more = ", and its thread still runs, so it is not tried again" if self.runs_on else ""
            raise TimeoutError(f"the step {self._name!r} took longer than {self.timeout:g} s{more}") from None


# --- exceptions that are outcomes ----------------------------------------------------------------------


async def _keep_exception(work: Work, step: Step, slot: Slot, error: Exception) -> None:
    """Record an exception as the outcome of a step. Raises `ContextError` if it could not be made again from its arguments."""
    node = work.place[1]
    kind = type(error).__name__
    says = f"node {node!r}: the step {slot.label!r} raised {kind}: {failures.message(error)}"
    try:
        arguments = work.encode(list(error.args), f"the arguments of {kind}")
    except CodecError as fault:
        raise ContextError(
            f"{says}. It is in raises=, but cannot be kept: {fault}. Give the exception only arguments that JSON can represent."
        ) from error
    why = _difference(type(error), arguments, error)
    if why is not None:
        raise ContextError(
            f"{says}. It is in raises=, but cannot be kept: {kind}(*args) {why}. Pass all arguments of its __init__ on to "
            "super().__init__(…), and build its text in __str__."
        ) from error
    failure = failures.describe(error, kind="partial")
    await work.record(events.StepFailed, step=slot.label, failure=failure, arguments=arguments)
    work.reclaim_step(slot)


def _difference(kind: type[Exception], arguments: list[Any], error: Exception) -> str | None:
    """Return how an exception that is made again differs from the original; None if it does not."""
    try:
        again = kind(*arguments)
        text, before = str(again), str(error)
    except Exception as fault:  # noqa: BLE001 - code of the user
        return f"raises {type(fault).__name__}: {fault}"
    return None if text == before else f"has another text: {text!r} and not {before!r}"


def _made_again(work: Work, step: Step, label: str) -> Exception:
    """Return the exception that is the outcome of a step, made again from the log. Raises `ContextError` if the code does not
    allow that any more.
    """
    run_id, node = work.place
    kept = work.kept()[raised_text(label)]
    kind = next((one for one in step.raises if one.__name__ == kept["type"]), None)
    says = f"node {node!r}: the log says that the step {label!r} raised {kept['type']}: {kept['message']}"
    remedy = f"or call the step again: `holdfast retry {run_id} {node} --fresh` repeats the node with all its steps"
    if kind is None:
        raise ContextError(
            f"{says}, but its raises= does not list that class any more. List it again, {remedy}."
        )
    try:
        error = kind(*kept["arguments"])
    except Exception as fault:
        raise ContextError(
            f"{says}, but {kept['type']} cannot be made again: {type(fault).__name__}: {fault}. Let the class take the arguments "
            f"{kept['arguments']!r} again, {remedy}."
        ) from fault
    failures.mark_kept(error, failures.KeptBy(run_id, label))
    return error


def refuse_undeclared(work: Work, slot: Slot) -> None:
    """Raise `ContextError`, because a step with a plain name has an exception as its outcome: it was declared with `raises`."""
    _made_again(work, Step(slot.name), slot.label)


def _warn_of_subclass(work: Work, step: Step, error: Exception) -> None:
    node, kind = work.place[1], type(error).__name__
    listed = next(one.__name__ for one in step.raises if isinstance(error, one))
    work.warn_once(
        (node, step.name, kind),
        f"node {node!r}: the step {step.name!r} raised {kind}, a subclass of {listed}, which is in its raises=. {kind} itself is "
        f"not, so it is not kept: the next attempt calls the step again. Add {kind} to raises= if it is an outcome.",
    )


# --- drivers --------------------------------------------------------------------------------


async def drive(run: Course, call: Callable[[Try], Awaitable[Any]]) -> Any:
    """Drive the course of a step on the event loop."""
    sent: Any = None
    while True:
        try:
            wanted = run.send(sent)
        except StopIteration as end:
            return end.value
        if not isinstance(wanted, Try):
            sent = await wanted
            continue
        try:
            sent = await call(wanted), None
        except Exception as raised:  # noqa: BLE001 - the course decides what it means
            sent = None, raised


def drive_blocking(
    run: Course, call: Callable[[Try], Any], wait: Callable[[Coroutine[Any, Any, Any]], Any]
) -> Any:
    """Drive the course of a step in the thread of a plain function."""
    sent: Any = None
    while True:
        try:
            wanted = run.send(sent)
        except StopIteration as end:
            return end.value
        if not isinstance(wanted, Try):
            sent = wait(wanted)
            continue
        try:
            sent = call(wanted), None
        except Exception as raised:  # noqa: BLE001 - the course decides what it means
            sent = None, raised


def require_callable(node: str, name: Any, fn: Any) -> None:
    """Raise `ContextError` if the function of a step cannot be called."""
    if not callable(fn):
        raise ContextError(
            f"node {node!r}: the step {name!r} got {fn!r}, which cannot be called; give a function"
        )


def result_codec(fn: Callable[..., Any], declared: Any) -> Codec[Any]:
    """Return the codec for a step's result: for the type that the caller gives, or for the function's return annotation."""
    if declared is not None:
        return Codec.of(declared)
    try:
        return _hinted_codec(fn)
    except TypeError:  # the function is not hashable
        return _ANY


@lru_cache(maxsize=1024)
def _hinted_codec(fn: Callable[..., Any]) -> Codec[Any]:
    try:
        returned = typing.get_type_hints(fn, include_extras=True).get("return", Any)
        return _ANY if returned in (Any, None) else Codec.of(cast("Any", returned))
    except (NameError, TypeError, AttributeError, CodecError):
        return _ANY  # no usable annotation, or a type that JSON cannot keep
