"""Fakes for the people and systems around a run: they answer its questions, send it signals and receive what its nodes send.

    run = rehearse(flow, Order(12), answers={"approve": "approve"}, signals=[Signal("paid", {"sum": 12}, after=3600)])

All answers and signals go through the methods of the engine, as in production. Time is a manual clock that jumps over every
wait, so a test of a flow that waits a month takes no time. An answer that fits no node of the flow is refused, so that no test
passes because of a misspelt name. Invariant: an answer depends only on its question, so it can be given again after a crash; a
signal has an id, so the run receives it once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.core.budget import Budget
from holdfast.core.events import QuestionAsked
from holdfast.core.graph import END, START, Flow, Graph
from holdfast.core.run_state import ENDED, Question
from holdfast.errors import (
    AnswerRefused,
    ResumeRefused,
    RunCancelled,
    RunFailed,
    RunNotFound,
    SettingError,
    SignalRefused,
    did_you_mean,
    end_sentence,
    name_known,
)
from holdfast.reading.inbox import AnyRequest
from holdfast.reading.views import Run
from holdfast.runtime.driver import Driver
from holdfast.runtime.engine import Engine
from holdfast.runtime.journal import Journal
from holdfast.runtime.runner import LongWait, Runner
from holdfast.runtime.services import Services
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.watching import watch_flow

S = TypeVar("S")
Answer: TypeAlias = Any
"""A prepared answer: a value, a list of values (one for each time the node asks), or a function of the question."""
FakeChild: TypeAlias = Callable[[Any], Any]
"""A function that stands for a child run: it gets the child's input, and returns its final state, or an update of the input. A
child fails if its function raises an exception."""
Asked: TypeAlias = dict[tuple[str, bool], list[str]]
"""Which questions were asked, in order: (name or key in `answers`, whether about an interrupted node) -> keys of questions."""

_ROUNDS_MAX = 1000
_PATIENCE_S = 5.0


class Signal(msgspec.Struct, frozen=True):
    """A signal to send to a run, `after` seconds after the run was created."""

    name: str
    payload: Any = None
    after: float = 0.0


def require_answers(flow: Flow[Any], answers: Mapping[str, Answer] | None, *, keys: bool = True) -> None:
    """Raise `SettingError` unless `answers` is a dict whose keys are names of nodes. If `keys` is true, keys of questions are
    allowed too.
    """
    if answers is None:
        return
    if not isinstance(answers, Mapping):
        raise SettingError(
            f"answers={answers!r}: give a dict that maps the name of a node to its answer, e.g. {{'approve': 'yes'}}"
        )
    for name in answers:
        if name in flow.nodes or (keys and any(str(name).startswith(f"{node}.") for node in flow.nodes)):
            continue
        near = name_known(str(name), flow.nodes)
        raise SettingError(
            end_sentence(
                f"answers has the name {name!r}, but flow {flow.name!r} has no node of that name{near}"
            )
            + f" Use the name of the node that asks as the key{', or the key of its question' if keys else ''}."
        )


def require_signals(signals: Sequence[Signal]) -> None:
    """Raise `SettingError` if `signals` is not a list of signals."""
    if not isinstance(signals, (str, Mapping, Signal)) and all(isinstance(one, Signal) for one in signals):
        return
    raise SettingError(
        f"signals={signals!r}: give a list of signals, e.g. [Signal('paid', 12, after=3600)], with "
        "`from holdfast.testing import Signal`."
    )


class Receiver:
    """A fake of another system that nodes send requests to. It carries out requests with the same key once, and requests without
    a key every time.

    `done` lists the requests that were carried out, in order. `crash_everywhere` empties the list before each run, and compares
    it after a crash with the list of the undisturbed run.
    """

    def __init__(self, name: str = "receiver") -> None:
        self.name = name
        self.done: list[Any] = []
        self._replies: dict[str, Any] = {}

    def send(self, what: Any, *, key: str | None = None, reply: Any = None) -> Any:
        """Send a request, and return the reply. If the key was used before, nothing is done and the first reply is returned."""
        if key is not None and key in self._replies:
            return self._replies[key]
        self.done.append(what)
        if key is not None:
            self._replies[key] = reply
        return reply

    def reset(self) -> None:
        """Forget all requests and replies."""
        self.done = []
        self._replies = {}


class FakeChildren:
    """Functions that stand for child runs: a child of a flow that has one here runs the function in place of the flow's nodes."""

    def __init__(self, given: Mapping[str, FakeChild] | None) -> None:
        if given is not None and not (isinstance(given, Mapping) and all(map(callable, given.values()))):
            raise SettingError(
                f"children={given!r}: give a dict that maps the name of a flow to a function of the child's input, e.g. "
                "{'pay': lambda order: {'paid': True}}"
            )
        self._given = dict(given or {})
        self._started: dict[str, Flow[Any]] = {}
        """Name -> the flow whose nodes the children of this flow run."""
        self._engines: list[Engine] = []

    def take_the_place_in(self, engine: Engine) -> None:
        """Let an open engine start these in place of the real children. All engines know the flows whose children one of them has
        started, as the workers of a user do.
        """
        self._engines.append(engine)
        for flow in self._started.values():
            engine.add(flow)
        services = engine._open()  # noqa: SLF001
        build = services.build_families

        def build_faked() -> Any:
            families: Any = build()
            know, prepare = families.know, families.prepare
            families.know = lambda flow: know(self._of(flow))
            families.prepare = lambda flow, *args: prepare(self._of(flow), *args)
            return families

        services.build_families = build_faked

    def _of(self, flow: Flow[Any]) -> Flow[Any]:
        known = self._started.get(flow.name)
        if known is None:
            fake = self._given.get(flow.name)
            known = self._started[flow.name] = flow if fake is None else _fake_flow(flow, fake)
            for engine in self._engines:
                engine.add(known)
        return flow if flow.name not in self._given else known

    def require_used(self) -> None:
        """Raise `SettingError` for a name that is probably misspelt: no child of that flow was started, but one of a flow with a
        similar name.
        """
        for name in self._given.keys() - self._started.keys():
            near = did_you_mean(name, self._started.keys() - self._given.keys())
            if near:
                raise SettingError(
                    end_sentence(
                        f"children has the name {name!r}, but no child of such a flow was started{near}"
                    )
                )


def _fake_flow(flow: Flow[Any], fake: FakeChild) -> Flow[Any]:
    """Return a flow of the same name and state, with one node that calls the function."""
    graph: Graph[Any] = Graph(flow.name, flow.state.type)

    @graph.node(name="fake")
    async def call(state: Any) -> Any:
        result = fake(state)
        return await result if inspect.isawaitable(result) else result

    return graph.chain(START, "fake", END).compile()


NEVER_S = 1e8
"""The `park_after` of an engine that keeps coroutines in memory, in seconds. The clock jumps there if no signal comes."""


class _PatientDriver(Driver):
    """A driver that stops driving a run that only waits, instead of waiting until it can continue."""

    async def drive(
        self, journal: Journal, runner: Runner | None = None, requests: list[AnyRequest] | None = None
    ) -> Run[Any]:
        runner = runner or Runner(journal)
        runner.patience_s, runner.on_long_wait = _PATIENCE_S, LongWait.LEAVE
        return await super().drive(journal, runner, requests)

    async def _watch_inbox(self) -> None:
        """Look at the inbox, unless nodes stay in memory: the clock would jump from look to look during a wait of a month, and
        this engine passes its own requests on at once.
        """
        if self.services.park_after < NEVER_S:
            await super()._watch_inbox()


class PatientEngine(Engine):
    """An engine on one thread that stops driving a run that only waits, so that the test can move the clock past the wait. With
    `unwinds`, each wait unwinds its node at once, unless an asyncio timer may cancel the wait or the caller chose `park_after`.
    """

    _driver_type = _PatientDriver

    def __init__(
        self, store: Store, clock: ManualClock, luck: random.Random, *, unwinds: bool = False, **options: Any
    ) -> None:
        # No thread renews the lease here, so it must outlast any jump of the clock.
        chosen = {"park_after": 1.0, "lease_ttl": 1e9, **options}
        super().__init__(store, clock=clock, luck=luck, inline=True, **chosen)
        self.unwinds = unwinds
        self._unwinds_soon = unwinds and "park_after" not in options

    def _open(self) -> Services:
        services = super()._open()
        if self._unwinds_soon:
            services.park_soon = 0.0
        return services


class Audience:
    """Gives one run its prepared answers and signals. An answer is looked up by the question's key, then by its node's name.

    Which answer of a list a question gets is decided once, when the question is first seen, and noted in `asked`. Pass the
    `asked` of an audience to another one, and both give the same answers to the same questions.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer] | None = None,
        signals: Sequence[Signal] = (),
        *,
        asked: Asked | None = None,
    ) -> None:
        self._answers = dict(answers or {})
        self._signals = sorted(enumerate(signals), key=lambda numbered: numbered[1].after)
        self._asked: Asked = {} if asked is None else asked

    def answer_to(self, question: Question | QuestionAsked) -> list[Any]:
        """Return the prepared answer as a list with one element, or an empty list if there is none. The same question always
        gets the same answer.
        """
        place = question.key if question.key in self._answers else question.node
        if place not in self._answers:
            return []
        given = self._answers[place]
        # A question about an interrupted node has the name of that node too, but accepts only `retry`, `skip` and `abort`.
        cut = question.about == "interrupt" and place == question.node
        if callable(given):
            said = [given(question)]
        elif isinstance(given, list):
            meant = [answer for answer in given if not cut or answer in question.options]
            asked = self._asked.setdefault((place, cut), [])
            if question.key not in asked:
                asked.append(question.key)
            number = asked.index(question.key)
            said = meant[number : number + 1]
        else:
            said = [given]
        return [answer for answer in said if not cut or answer in question.options]

    async def attend(
        self, engine: Engine, run_id: str, going: asyncio.Future[Any], clock: ManualClock
    ) -> None:
        """Answer the run's questions and send its signals while the engine drives it. If the engine unwinds each wait, the
        answers to `ctx.ask` and the signals that are due at once come when the run has stopped (`step_in`).
        """
        while not going.done():
            with suppress(RunNotFound):
                started_at = engine.store.run(run_id).created_at
                break
            await asyncio.sleep(0)
        else:
            return
        unwinds = isinstance(engine, PatientEngine) and engine.unwinds
        sending = asyncio.ensure_future(self._send_signals(engine, run_id, started_at, clock, later=unwinds))
        try:
            async for event in engine.follow(run_id):
                if event.kind == "QuestionAsked":
                    await self._answer_all(engine, run_id, inside=not unwinds)
            await asyncio.wait(
                {going}
            )  # a run that was resumed may only sleep now, and a signal may come before its time
        finally:
            sending.cancel()
            (trouble,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(trouble, SignalRefused):
                raise trouble

    async def step_in(self, engine: Engine, run_id: str, clock: ManualClock) -> bool:
        """Let a run that only waits continue: give it its answers or its next signal, or move the clock to the end of its wait.
        Return False if none of these is possible.
        """
        if await self._answer_all(engine, run_id):
            return True
        row = engine.store.run(run_id)
        if (
            row.status == "pending" and row.due_at is None
        ):  # the audience answered while the engine released the run
            return True
        due_at = row.due_at if row.due_at is not None and row.status in ("waiting", "pending") else None
        for number, signal in self._signals:
            send_at = row.created_at + signal.after
            if not self._is_sent(engine, run_id, number) and (due_at is None or send_at <= due_at):
                clock.advance(max(0.0, send_at - clock.now()))
                await self._signal(engine, run_id, number, signal)
                return True
        if due_at is not None:
            clock.advance(max(0.0, due_at - clock.now()))
        return due_at is not None

    async def _answer_all(self, engine: Engine, run_id: str, *, inside: bool = True) -> bool:
        """Answer the open questions, and return whether there was any answer. `inside`: also those that a node asks inside."""
        said = False
        for asked in await engine.questions(run_id):
            if asked.question.about == "ask" and not inside:
                continue
            for answer in self.answer_to(asked.question):
                try:
                    await engine.answer(run_id, asked.question.key, answer, by="audience")
                    said = True
                except AnswerRefused:
                    if await _is_open(engine, run_id, asked.question.key):
                        raise
                except ResumeRefused:
                    continue  # the run has ended in the meantime
        return said

    async def _send_signals(
        self, engine: Engine, run_id: str, started_at: float, clock: ManualClock, *, later: bool
    ) -> None:
        """Send each signal when its time has come; with `later`, only those that come later than the start of the run."""
        for number, signal in self._signals:
            if self._is_sent(engine, run_id, number) or (later and signal.after <= 0):
                continue
            due = asyncio.Event()
            clock.call_at(started_at + signal.after, due.set)
            await due.wait()
            await self._signal(engine, run_id, number, signal)

    async def _signal(self, engine: Engine, run_id: str, number: int, signal: Signal) -> None:
        with suppress(ResumeRefused):  # the run has ended
            await engine.signal(run_id, signal.name, signal.payload, id=f"audience-{number}", by=_by(number))

    def _is_sent(self, engine: Engine, run_id: str, number: int) -> bool:
        rows = engine.store.events(run_id, kinds=("SignalReceived",))
        return any(f'"by":"{_by(number)}"'.encode() in row.body for row in rows)


async def _is_open(engine: Engine, run_id: str, key: str) -> bool:
    """Return whether a question is still open. If the engine refused an answer to an open question, the answer itself was
    wrong.
    """
    asked = [found.question for found in await engine.questions(run_id) if found.question.key == key]
    return any(one.until is None or one.until > engine.store.now() for one in asked)


def _by(number: int) -> str:
    return f"audience {number + 1}"


async def attend_run(
    engine: Engine,
    flow: Flow[S],
    given: Any,
    *,
    run_id: str,
    audience: Audience,
    clock: ManualClock,
    limits: Mapping[str, Any] | None = None,
) -> Run[S]:
    """Start or resume a run, and drive it until it ends or waits for an answer or a signal that the audience does not have.
    `limits` are its budget, schedule and scope.
    """
    for _ in range(_ROUNDS_MAX):
        going = asyncio.ensure_future(_go(engine, flow, given, run_id, limits or {}))
        attending = asyncio.ensure_future(audience.attend(engine, run_id, going, clock))
        try:
            run: Run[S] = await going
        finally:
            attending.cancel()
            (trouble,) = await asyncio.gather(attending, return_exceptions=True)
        if isinstance(trouble, (AnswerRefused, SignalRefused)):
            raise trouble
        if run.status in ENDED:
            return run
        has_moved = (
            engine.store.run(run_id).seq > run.seq
        )  # an answer was recorded just after the run had stopped
        if not has_moved and not await audience.step_in(engine, run_id, clock):
            return run
    raise AssertionError(
        f"run {run_id!r} was answered {_ROUNDS_MAX} times and still asks. Check whether it asks in a loop."
    )


async def _go(
    engine: Engine, flow: Flow[Any], given: Any, run_id: str, limits: Mapping[str, Any]
) -> Run[Any]:
    try:
        return await engine.run(flow, given, run_id=run_id, **limits)
    except (RunFailed, RunCancelled) as ended:
        return ended.run  # type: ignore[no-any-return]


def rehearse(
    flow: Flow[S],
    input: Any = None,
    *,
    answers: Mapping[str, Answer] | None = None,
    signals: Sequence[Signal] = (),
    run_id: str = "rehearsal",
    budget: Budget | None = None,
    schedule: Literal["eager", "layered"] | None = None,
    scope: Collection[str] | None = None,
    children: Mapping[str, FakeChild] | None = None,
    store: Store | None = None,
    clock: ManualClock | None = None,
    **options: Any,
) -> Run[S]:
    """Run a flow with prepared answers and signals, on a manual clock and one thread. A failed run is returned, not raised.
    Each wait inside a node unwinds the node before its answer or signal comes, as a long wait does: code that is not in a step
    runs again, and so does cleaning code around the wait.

    `children` maps names of flows to functions, each of which stands for the child runs of that flow: it gets the child's input,
    and returns its final state, or a dict of changes. Without one, the child runs its own flow, in the same test.
    `budget`, `schedule` and `scope` are those of the run. Pass `store` (default: in memory) and `clock` to inspect them
    afterwards; `options` are options of `Engine`. Raises `AnswerRefused` for an answer that its question does not allow,
    `SignalRefused` for a signal that does not fit the wait for it, and `SettingError` for an answer that fits no node.
    """
    require_answers(flow, answers)
    require_signals(signals)
    time = clock or ManualClock(auto=True)
    place = store or MemoryStore(clock=time.now)
    # In a watched flow, plain `def` nodes may also wait through their context, although the engine has no threads here.
    twin = watch_flow(flow, lambda what, ctx: None)

    limits = {"budget": budget, "schedule": schedule, "scope": scope}

    async def main() -> Run[S]:
        fakes = FakeChildren(children)
        async with PatientEngine(place, time, random.Random(0), unwinds=True, **options) as engine:
            fakes.take_the_place_in(engine)
            audience = Audience(answers, signals)
            run = await attend_run(
                engine, twin, input, run_id=run_id, audience=audience, clock=time, limits=limits
            )
        fakes.require_used()
        return run

    return asyncio.run(main())
