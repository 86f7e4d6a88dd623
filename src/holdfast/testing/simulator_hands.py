"""The simulated callers and operators of runs: they start, answer, signal, pause, cancel, rewind, fork and prune them.

This module owns all calls to the engines from outside. It reads the store as any reader may, uses engines only through their
public methods, and trusts their replies: a signal that an engine has acknowledged is (nearly always) not sent again, so that a
run that lost it is stuck. Invariant: every choice is drawn from the random generator of the schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.core import answers
from holdfast.core.events import Failure, NodeEvent, QuestionAnswered, QuestionAsked
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, HAPPENED, DoubtfulStep
from holdfast.errors import (
    AnswerRefused,
    HoldfastError,
    RunFailed,
    SettingError,
    StateError,
)
from holdfast.reading import history
from holdfast.reading.inbox import Stated
from holdfast.runtime import questions
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row
from holdfast.testing.fakes import Answer
from holdfast.testing.simulator_faults import Faults, Ledger
from holdfast.testing.simulator_flows import FORK, Tale, answer_to
from holdfast.testing.simulator_loop import SimulatedLoop, Stuck
from holdfast.testing.simulator_requests import Requester

Answers: TypeAlias = Callable[[str, int, list[str]], Any]
"""A function that answers questions: (node, iteration, options) -> the answer."""


_GENERATIONS = 2
"""How many forks may descend from each other."""


class Subject(msgspec.Struct, frozen=True):
    """A run in a simulation, and the arguments that it is started with."""

    run_id: str
    flow: Flow[Any]
    given: Any = None
    tale: Tale | None = None
    of: str | None = None
    """The run that this run is forked from; None if it is not a fork."""
    fresh: bool = False
    """True if this fork has idempotency keys of its own."""
    queue: str | None = None
    priority: int = 0
    waits_s: float = 0.0
    """How many seconds after its start the run begins."""
    limits: dict[str, Any] = {}
    """Further options of the run: `budget`, `schedule` and `scope`."""


class EngineProcess(Protocol):
    """A process of the simulated world. Callers can use it while it has an engine, that is, while it is not down."""

    loop: SimulatedLoop

    @property
    def engine(self) -> Engine | None: ...


class Scene(Protocol):
    """The part of a `Schedule` that a simulated caller (`Hand`) uses."""

    seed: int
    luck: random.Random
    disk: Store
    faults: Faults
    ledger: Ledger
    asks: bool
    answers: Callable[[QuestionAsked], Any]
    signals: dict[str, Any]
    tidies: bool
    outside: SimulatedLoop

    @property
    def processes(self) -> Sequence[EngineProcess]: ...

    def attend(self, subject: Subject) -> None:
        """Add a run to the schedule, with a simulated caller of its own."""

    def now(self) -> float:
        """Return the time of the simulated world."""


class Hand:
    """The simulated caller of one run: starts it, answers its questions, sends its signals, and may pause, cancel, rewind, fork
    or prune it.
    """

    def __init__(self, scene: Scene, subject: Subject, *, calm: bool) -> None:
        self._scene = scene
        self._subject = subject
        self._luck = scene.luck
        self._run_id = subject.run_id
        told = subject.tale.signals() if subject.tale is not None else []
        self._signals: list[tuple[str, Any]] = told + list(scene.signals.items())
        drawn = self._luck.random()
        self.cancels = not calm and drawn < 0.04
        self._pauses = 1 if not calm and 0.04 <= drawn < 0.2 else 0
        self._rewinds = 1 if not calm and 0.2 <= drawn < 0.35 and subject.of is None else 0
        self._tidies = 4 if scene.tidies else 0
        self._read = 0
        """How many rows of the log were already searched for questions."""
        self._open: dict[str, Any] = {}
        self._doubts: dict[str, list[DoubtfulStep]] = {}
        """Key of a question -> the steps of which this caller says that they have happened."""
        self.forked: dict[str, int] = {}
        """Reason of an attempt to make this run, which is a fork -> when the attempt began (`Ledger.tick`)."""
        self.acknowledged: set[str] = set()
        """Keys of the questions whose answer an engine has acknowledged."""
        self._forks = not calm and 0.3 <= drawn < 0.4 and subject.tale is not None and subject.of is None
        asks = scene.asks and not calm
        self.requests = Requester(
            scene,
            self._run_id,
            subject.tale if asks else None,
            self._ask,
            rewinds=subject.of is None and not self._rewinds,
        )
        self._chance = random.Random(f"hand {scene.seed} {self._run_id}")
        """For choices that only callers make which leave requests."""
        self._forks_any_time = (
            asks and subject.tale is not None and not scene.tidies and self._chance.random() < 0.6
        )
        self._forks_any_time = self._forks_any_time and self._run_id.count(FORK) < _GENERATIONS

    async def attend(self) -> None:
        """Start the run, and operate it until it is over."""
        while not self._exists():
            await self._ask(self._start)
        while True:
            row = self._scene.disk.run(self._run_id)
            if row.status in FINAL:
                if (self._forks or self._forks_any_time) and row.status == "completed":
                    self._fork()
                elif self._scene.asks and self._subject.tale is not None and self._chance.random() < 0.3:
                    await self.requests.ask_in_vain()
                return
            await self._see_to(row.status)
            await self._scene.outside.rest(self._luck.choice((0.05, 0.2, 0.6)))

    def _exists(self) -> bool:
        with suppress(HoldfastError):
            return bool(self._scene.disk.run(self._run_id))
        return False

    async def _start(self, engine: Engine) -> None:
        subject = self._subject
        if subject.of is not None:
            attempt = f"attempt {len(self.forked) + 1}"
            self.forked[attempt] = self._scene.ledger.tick()
            await engine.fork(
                self._place(), run_id=self._run_id, repeat=self._repeat(), fresh=subject.fresh, reason=attempt
            )
            return
        begins = self._scene.disk.now() + subject.waits_s
        await engine.start(
            subject.flow,
            subject.given,
            run_id=self._run_id,
            queue=subject.queue,
            priority=subject.priority,
            begin_at=datetime.fromtimestamp(begins, UTC) if subject.waits_s else None,
            **subject.limits,
        )

    async def _see_to(self, status: str) -> None:
        luck, run_id, chance = self._luck, self._run_id, self._chance
        if self.requests.left and chance.random() < 0.4:
            await self.requests.ask_something()
            return
        if self._forks_any_time and chance.random() < 0.15:
            self._fork()
        if status == "paused" and luck.random() < 0.5:
            if self._scene.asks and self._subject.tale is not None and chance.random() < 0.7:
                await self.requests.resume()
            else:
                await self._ask(lambda engine: engine.resume(run_id), waits=False)
        elif status == "failed":
            await self._repair()
        elif self.cancels and self._scene.faults.happened and luck.random() < 0.3:
            await self.requests.cancel()
        elif self._pauses and luck.random() < 0.5:
            self._pauses -= 1
            await self._ask(lambda engine: engine.pause(run_id))
        elif self._rewinds and status == "waiting" and luck.random() < 0.5:
            await self._rewind()
        elif self._signals and luck.random() < 0.6:
            await self._tell()
        if self._tidies and luck.random() < 0.5:
            await self._tidy()
        await self._answer()

    async def _tidy(self) -> None:
        """Ask an engine to prune the run: to retire older checkpoints, and often to compact older events into a base."""
        self._tidies -= 1
        kept, compact = self._luck.choice((1, 1, 2)), self._luck.random() < 0.8
        await self._ask(lambda engine: engine.prune(self._run_id, kept, compact=compact))

    async def _rewind(self) -> None:
        """Ask an engine to repeat a completed node, and everything after it."""
        disk = self._scene.disk
        done = [row.node or "" for row in disk.events(self._run_id, kinds=("NodeCompleted",))]
        if not done:
            return
        self._rewinds -= 1
        node = self._luck.choice(done)
        go_back = _go_back_and_tidy if self._tidies else _go_back
        await self._ask(partial(go_back, self._run_id, node), waits=False)

    def _fork(self) -> None:
        """Fork the run."""
        self._forks = self._forks_any_time = False
        fresh = self._scene.asks and self._chance.random() < 0.2
        child = f"{self._run_id}{FORK}"
        self._scene.attend(
            msgspec.structs.replace(self._subject, run_id=child, of=self._run_id, fresh=fresh, waits_s=0.0)
        )

    def _place(self) -> str:
        """Return one of the checkpoints of the parent."""
        assert self._subject.of is not None
        places = history.checkpoints(self._scene.disk, self._subject.of)
        if self._scene.tidies:  # older checkpoints may be retired before the fork is made
            places = places[-1:]
        elif self._scene.asks and self._chance.random() < 0.7:
            risky = self._risky_places(self._subject.of)
            places = [place for place in places if place.seq in risky] or places
        return self._luck.choice(places).id

    def _risky_places(self, run_id: str) -> set[int]:
        """Return the events of a run after which a visit is open that must not run twice."""
        tale = self._subject.tale
        is_open: set[str | None] = set()
        found = set()
        for row in self._scene.ledger.rows[run_id]:
            if row.kind == "NodeStarted" and tale is not None and tale.is_careful(row.node or ""):
                is_open.add(row.node)
            elif row.kind in ("NodeCompleted", "NodeSkipped"):
                is_open.discard(row.node)
            if is_open:
                found.add(row.seq)
        return found

    def _repeat(self) -> Any:
        """Return what the fork does with what its parent has begun. Nothing is skipped without a result: the final state of the
        fork would differ.
        """
        subject, drawn = self._subject, self._chance.random()
        if not self._scene.asks or drawn < 0.5 or subject.tale is None or subject.of is None:
            return "ask"
        choices = ["run", "ask"]
        if self._scene.disk.run(subject.of).status == "completed":
            choices.append("skip")
        if drawn < 0.8:
            return self._chance.choice(choices)
        return {
            name: self._chance.choice(choices)
            for name in subject.tale.habits
            if subject.tale.is_careful(name)
        }

    async def _tell(self) -> None:
        """Send a signal until an engine acknowledges it, and sometimes once more."""
        number = self._luck.randrange(len(self._signals))
        name, payload = self._signals[number]
        acknowledged = await self._ask(
            lambda engine: engine.signal(self._run_id, name, payload, id=f"{self._run_id} {name} {payload}")
        )
        if acknowledged and self._luck.random() < 0.9:
            del self._signals[number]

    async def _answer(self) -> None:
        """Answer, with some probability, each question that is open in the log."""
        scene, blobs = self._scene, self._scene.disk.blobs
        rows = scene.ledger.rows.get(self._run_id, [])  # the log itself may be compacted
        for row in rows[self._read :]:
            if row.kind == "QuestionAsked":
                question = open_row(row, blobs).event
                self._open[question.key] = self._choose_answer(question)
            elif row.kind == "QuestionAnswered":
                self._note_answer(open_row(row, blobs).event)
        self._read = len(rows)
        for key, value in list(self._open.items()):
            if self._luck.random() < 0.7 and await self._ask(partial(_answer, self._run_id, key, value)):
                self.acknowledged.add(key)

    def _note_answer(self, answered: QuestionAnswered) -> None:
        """Note that a question is closed; or that it is open about the next step, because one of several was stated."""
        doubts = self._doubts.get(answered.key, [])
        if answered.stated is not None:
            doubts[:] = [
                one for one in doubts if (one.step, one.item) != (answered.stated.step, answered.stated.item)
            ]
        if answered.stated is None or not doubts:
            self._open.pop(answered.key, None)
        elif answered.key in self._open:
            self._open[answered.key] = _state(answered, doubts[0])

    def _choose_answer(self, question: QuestionAsked) -> Any:
        """Return the answer to a question. Raise `AnswerRefused` for an answer that the question of a user's flow does not allow:
        the engine would refuse it again and again.
        """
        if question.about == "repeat" and self._subject.tale is not None:
            return self._decide(question)
        value = self._scene.answers(question)
        doubts = msgspec.convert(question.partial.get("in_doubt", []), list[DoubtfulStep])
        is_stated = (
            self._scene.seed + sum(map(ord, question.key))
        ) % 2  # no draw: other choices stay as they are
        if doubts and is_stated and self._subject.tale is not None:
            self._doubts[question.key] = doubts
            return _state(question, doubts[0])
        if self._subject.tale is None:
            _require_fitting(self._subject, question, value)
        return value

    def _decide(self, question: QuestionAsked) -> str:
        """Decide whether a visit runs again, or is skipped with the result that it had."""
        known = question.partial
        has_result = "result" in known or ("items" in known and known["items_done"] == len(known["items"]))
        return self._chance.choice(("run", "skip")) if has_result and self._scene.asks else "run"

    async def _repair(self) -> None:
        """Skip a node of a random flow that is meant to fail for good, with the result that it should have returned. Raise
        `Stuck` for any other failure.
        """
        state = history.load(self._scene.disk, self._run_id)
        tale = self._subject.tale
        node = state.failure_node
        if tale is None or node is None or tale.habits.get(node) != "doomed":
            _require_no_thread(node, state.failure)
            failure = state.failure.describe() if state.failure is not None else ""
            raise Stuck(f"{self._run_id} failed at {node}: {failure}")
        update = tale.update(node, state.nodes[node].iteration, None, state.values["stage"])
        if self._scene.asks and self._chance.random() < 0.7:
            await self.requests.skip(node, update)
        else:
            await self._ask(lambda engine: engine.skip(self._run_id, node, update), waits=False)

    async def _ask(self, do: Callable[[Engine], Any], *, waits: bool = True) -> bool:
        """Call a random engine. Return False if the engine refused or did not reply. A call without a reply may have taken
        effect.
        """
        open_ones = [process for process in self._scene.processes if process.engine is not None]
        if not open_ones:
            await self._scene.outside.rest(0.1)
            return False
        process = self._luck.choice(open_ones)
        said: list[bool] = []

        async def go(engine: Engine) -> None:
            try:
                await do(engine)
            except RunFailed:
                said.append(True)
            except HoldfastError:
                said.append(False)
            else:
                said.append(True)

        assert process.engine is not None
        process.loop.spawn(go(process.engine))
        for wait in (0.01, 0.05, 0.2, 0.5, 1.0, 2.0) if waits else ():
            await self._scene.outside.rest(wait)
            if said or process.loop.dead:
                break
        return said == [True]


def answers_of(given: Answers | Mapping[str, Answer] | None) -> Callable[[QuestionAsked], Any]:
    """Return the function that answers questions, made from `simulate(answers=…)`: from a function of node, iteration and options
    (default: `answer_to` of the random flows), or from a dict by node, whose values may be lists (one answer for each iteration)
    or functions of the question. A question that the dict does not answer gets a default answer.
    """
    if not isinstance(given, Mapping):
        says = given or answer_to
        return lambda question: says(question.node, question.iteration, question.options)

    def answer(question: QuestionAsked) -> Any:
        for said in _said_in(given, question):
            return said
        if not question.options:
            raise SettingError(
                f"node {question.node!r} asks {question.text!r}, but has no answer: give answers={{{question.node!r}: …}}."
            )
        return next(
            (yes for yes in ("approve", "retry", "run") if yes in question.options), question.options[0]
        )

    return answer


def _said_in(answers: Mapping[str, Answer], question: QuestionAsked) -> list[Any]:
    if question.node not in answers:
        return []
    given = answers[question.node]
    if callable(given):
        said = [given(question)]
    elif isinstance(given, list):
        said = given[question.iteration - 1 : question.iteration]
    else:
        said = [given]
    # A question of the engine about a node has the name of that node too, but accepts only its own options.
    ours = question.about in ("interrupt", "repeat")
    return [one for one in said if not ours or one in question.options]


def _require_fitting(subject: Subject, question: QuestionAsked, value: Any) -> None:
    """Raise `AnswerRefused` for an answer that the engine would refuse."""
    asked = subject.flow.nodes[question.node].options.question
    try:
        if asked is not None and asked.into is not None:
            plain = subject.flow.state.accept_field(asked.into, value)
        else:
            plain = questions.plain(value, "answer")
    except StateError as fault:
        raise AnswerRefused(subject.run_id, question.key, str(fault)) from fault
    wrong = answers.misfit(plain, question.options, question.answer_schema or None)
    if wrong is not None:
        raise AnswerRefused(subject.run_id, question.key, wrong)


def _require_no_thread(node: str | None, failure: Failure | None) -> None:
    if failure is not None and failure.type == "ContextError" and "(inline=True)" in failure.message:
        raise SettingError(
            f"node {node!r} is a plain function that waits through its context. This needs a thread, which a simulated world "
            "does not have. Make the node an async def, or use crash_everywhere or rehearse."
        )


async def _go_back(run_id: str, node: str, engine: Engine) -> None:
    await engine.resume(run_id, restart_at=node)


async def _go_back_and_tidy(run_id: str, node: str, engine: Engine) -> None:
    """Rewind the run, and prune it before the rewind is recorded."""
    going = asyncio.ensure_future(engine.resume(run_id, restart_at=node))
    await asyncio.sleep(0)
    with suppress(HoldfastError):
        await engine.prune(run_id, 1, compact=True)
    await going


def _state(about: NodeEvent, doubt: DoubtfulStep) -> Stated:
    """Return the answer that a step of a random flow has happened, with the result that it would have had."""
    visit = f"{about.node}.{about.iteration}.{about.execution}.{doubt.item}"
    return Stated(f"{visit}.{doubt.step}", doubt.step, doubt.item)


async def _answer(run_id: str, key: str, value: Any, engine: Engine) -> None:
    if isinstance(value, Stated):
        said = {"step": value.step, "item": value.item, "result": value.result}
        await engine.answer(run_id, key, HAPPENED, **said, by="hand", reason="its effect was seen")
        return
    await engine.answer(run_id, key, value)
