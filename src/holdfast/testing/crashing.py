"""Crash a flow everywhere: once right before and once right behind each of its durable writes, and have another engine resume it.

    report = crash_everywhere(flow, Order(12))
    assert report.ok, report

First the flow runs undisturbed, and its durable writes are counted (`storage.failpoints`). Then it runs once for every crash: at
that write its engine is torn down as if it had been killed. From there on nothing that it does is written, its event loop
never goes on, and the store in memory, or the SQLite file, is all that is left. A new engine, which is another holder, carries
the run on. What differs from the undisturbed run is a finding: the end, the state, what nodes did outside, a node that ran again
although it had been recorded, and whatever `checker` finds in the log. An undisturbed run that does not end as it should is a
finding by itself: what it never came to was not tested.

All of it is the real engine on one thread and a manual clock, so a crash takes milliseconds. What a process forgets when it dies
is not forgotten here by itself, since no process dies: `forget` says what to clear. Invariant: a crash is a place in an order of
events that is the same every time; the same call gives the same report.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.core.graph import Flow
from holdfast.core.run_state import RunState
from holdfast.errors import RunNotFound, SettingError, did_you_mean, named
from holdfast.reading import history
from holdfast.storage import failpoints
from holdfast.storage.contract import Holder, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.checker import check
from holdfast.testing.clock import STARTS_AT, ManualClock
from holdfast.testing.event_loops import forget
from holdfast.testing.fakes import (
    Answer,
    Audience,
    PatientEngine,
    Receiver,
    Signal,
    attend_run,
    require_answers,
    require_signals,
)
from holdfast.testing.watching import watched
from holdfast.testing.witness import Line, visit_of

Moment: TypeAlias = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")
Place: TypeAlias = Literal["memory", "sqlite"]
Ending: TypeAlias = Literal["completed", "failed", "cancelled", "waiting", "paused"]
RUN_ID = "crashed"

_VERBS = ("append", "claim", "post", "release", "renew")
_LAST_ROUNDS = 100
_SHOWN_MAX = 4


class Write(msgspec.Struct, frozen=True):
    """A durable write of the undisturbed run."""

    number: int
    verb: str
    told: str = ""
    """What it added to the log."""

    def __str__(self) -> str:
        return f"write {self.number} ({self.verb}{': ' + self.told if self.told else ''})"


class Crash(msgspec.Struct, frozen=True):
    """Where an engine died."""

    moment: Moment
    write: Write

    def __str__(self) -> str:
        return f"right {self.moment} {self.write}"


class CrashFinding(msgspec.Struct, frozen=True):
    """Something that differs from the undisturbed run, and the crashes that show it; none: the undisturbed run itself does."""

    kind: Literal["end", "state", "effect", "ran again", "log"]
    text: str
    crashes: tuple[Crash, ...]

    def __str__(self) -> str:
        count = len(self.crashes)
        if not count:
            return f"{self.kind}: {self.text}"
        times = "1 crash" if count == 1 else f"{count} crashes, first"
        return f"{self.kind}: {self.text}\n      ({times} {self.crashes[0]})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a flow that was crashed everywhere. `ok`: it ended as it should, and a crash makes no difference to it."""

    flow: str
    status: str
    """How the undisturbed run ended, or stands."""
    unreached: tuple[str, ...] = ()
    """Nodes that the undisturbed run never came to: nothing is known of them."""
    writes: tuple[Write, ...]
    crashes: int
    findings: tuple[CrashFinding, ...]
    again: dict[str, int]
    """Node -> how often it was called again because a crash had cut it: that is its right, and its attempt says so."""
    parked: tuple[Crash, ...]
    """Crashes after which the run asks somebody what to do, as a node that is not idempotent does."""

    @property
    def ok(self) -> bool:
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        found = len(self.findings)
        counted = f"{found or 'no'} finding{'' if found == 1 else 's'}"
        tried = f"{len(self.writes)} durable writes, {self.crashes} crashes"
        lines = [f"flow {self.flow!r}: {self.status}, {tried}, {counted}"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.again:
            called = ", ".join(f"{name} ({times})" for name, times in sorted(self.again.items()))
            lines.append(f"  called again after a crash cut them: {called}")
        if self.parked:
            lines.append(f"  asked somebody what to do: {len(self.parked)} times, first {self.parked[0]}")
        if self.unreached and self.crashes:
            lines.append(f"  never reached, and so not tested: {', '.join(self.unreached)}")
        return "\n".join(lines)


class _Died(BaseException):
    """What a failpoint raises from the moment on at which a process would have died."""


class _Outcome(msgspec.Struct, frozen=True):
    """How a run ended, and what was seen of it."""

    status: str
    values: dict[str, Any]
    state: Any
    effects: dict[str, Any]
    asks: bool
    """It waits for somebody to say what becomes of a node that was cut."""
    log: tuple[str, ...]
    again: Counter[str]
    unreached: tuple[str, ...]
    why: str
    """Why it went no further, and what it was not given."""


class _Watch:
    """Stands at the failpoints: counts the writes, and lets the engine die at one of them."""

    def __init__(self, store: Store | None = None, crash: Crash | None = None) -> None:
        self.writes: list[Write] = []
        self.dead = False
        self.died: Callable[[], None] = lambda: None
        self._store = store
        self._crash = crash
        self._count = 0
        self._seq = 0

    def __call__(self, name: str) -> None:
        if self.dead:
            raise _Died
        verb, _, place = name.partition(".")
        if verb not in _VERBS or place not in ("before", "committed"):
            return
        if place == "before":
            self._count += 1
        elif self._crash is None:
            self.writes.append(Write(self._count, verb, self._told() if verb == "append" else ""))
        crash = self._crash
        moment = "before" if place == "before" else "after"
        if crash is not None and (crash.write.number, crash.moment) == (self._count, moment):
            self.dead = True
            self.died()
            raise _Died

    def _told(self) -> str:
        """What the latest append added, in few words."""
        assert self._store is not None
        with suppress(RunNotFound):
            rows = self._store.events(RUN_ID, self._seq)
            self._seq += len(rows)
            words = [f"{row.kind} {row.node}" if row.node else row.kind for row in rows]
            more = f", {len(words) - _SHOWN_MAX} more" if len(words) > _SHOWN_MAX else ""
            return ", ".join(words[:_SHOWN_MAX]) + more
        return ""


class _Life:
    """One engine on an event loop of its own, until it has done its work or dies."""

    def __init__(self, stage: _Stage, watch: _Watch) -> None:
        self._stage = stage
        self._watch = watch
        self._clock = stage.clock
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._trouble)
        self._engine: PatientEngine | None = None

    def live(self) -> bool:
        """Carry the run on. False: the engine died."""
        self._watch.died = self._loop.stop
        work = self._loop.create_task(self._work())
        work.add_done_callback(lambda _: self._loop.stop())
        failpoints.install(self._watch)
        try:
            self._loop.run_forever()
        finally:
            failpoints.install(None)
        if self._watch.dead:
            assert self._engine is not None
            services = self._engine._services  # noqa: SLF001 - a dead engine cannot be asked
            if services is not None:
                self._stage.dead.add(services.holder.id)
            return False
        try:
            work.result()
        finally:
            self._loop.close()
        return True

    def _trouble(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        """The dead have no complaints."""
        if not self._watch.dead:
            loop.default_exception_handler(told)

    async def _work(self) -> None:
        stage = self._stage
        luck = random.Random(f"{stage.plan.seed} {len(stage.dead)}")
        self._engine = PatientEngine(stage.store, self._clock, luck, **stage.options)
        async with self._engine as engine:
            audience = Audience(stage.plan.answers, stage.plan.signals)
            await attend_run(
                engine, stage.flow, stage.plan.input, run_id=RUN_ID, audience=audience, clock=self._clock
            )

    def bury(self) -> None:
        """Let what the dead engine has left unwind. Whatever it still does is neither written nor looked at any more."""
        loop = self._loop
        if loop.is_closed():
            return
        failpoints.install(self._watch)
        try:
            left = asyncio.all_tasks(loop)
            for rest in left:
                rest.cancel()
            for _ in range(_LAST_ROUNDS):
                if all(rest.done() for rest in left):
                    break
                loop.call_soon(loop.stop)
                loop.run_forever()
            for rest in left:
                forget(rest)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            failpoints.install(None)
            loop.close()


class _Plan(msgspec.Struct, frozen=True):
    """What `crash_everywhere` was asked for."""

    flow: Flow[Any]
    input: Any
    answers: Mapping[str, Answer] | None
    signals: Sequence[Signal]
    store: Place
    resources: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
    observe: Callable[[], Any] | None
    reset: Callable[[], object] | None
    forget: Callable[[], object] | None
    ignore: frozenset[str]
    same: Callable[[Any, Any], bool] | None
    seed: int
    options: dict[str, Any]


class _Stage:
    """One run of the flow: its store, its clock, those who died, and the world outside as the run finds it."""

    def __init__(self, plan: _Plan, folder: str) -> None:
        self.plan = plan
        self.clock = ManualClock(STARTS_AT, auto=True)
        self.dead: set[str] = set()
        self.seen: list[Line] = []
        self.flow = watched(plan.flow, lambda what, ctx: self.seen.append({"what": what, **visit_of(ctx)}))
        if plan.reset is not None:
            plan.reset()
        resources = plan.resources() if callable(plan.resources) else plan.resources
        self.options = {**plan.options, "resources": dict(resources or {})}
        self.receivers = [one for one in self.options["resources"].values() if isinstance(one, Receiver)]
        for receiver in self.receivers:
            receiver.reset()
        self._file = tempfile.mktemp(suffix=".db", dir=folder) if plan.store == "sqlite" else None
        self.store = self._opened()

    def _opened(self) -> Store:
        if self._file is None:
            return MemoryStore(clock=self._now, alive=self._alive)
        return SqliteStore(self._file, clock=self._now, alive=self._alive)

    def _now(self) -> float:
        return self.clock.now()

    def _alive(self, holder: Holder) -> bool | None:
        return holder.id not in self.dead

    def crashed(self) -> None:
        """The process is gone, with everything that was only in its memory. The store is opened anew."""
        self.clock = ManualClock(self.clock.now(), auto=True)
        if self.plan.forget is not None:
            self.plan.forget()
        if self._file is not None:
            self._left, self.store = self.store, self._opened()

    def outcome(self) -> _Outcome:
        """How the run stands, and what the world has seen of it."""
        state = history.load(self.store, RUN_ID)
        effects = {receiver.name: list(receiver.done) for receiver in self.receivers}
        if self.plan.observe is not None:
            effects[""] = _copied(self.plan.observe())
        entered = Counter(
            (line["node"], line["iteration"], line["item"]) for line in self.seen if line["what"] == "enter"
        )
        again: Counter[str] = Counter()
        for (node, _, _), times in entered.items():
            again[node] += times
        return _Outcome(
            status=state.status,
            values=state.values,
            state=self.plan.flow.state.load(state.values),
            effects=effects,
            asks=any(question.about == "interrupt" for question in state.questions.values()),
            log=tuple(
                f"{v.invariant}: {v.text}" for v in check(self.store, testified=self.seen, at_end=True)
            ),
            again=again,
            unreached=tuple(name for name in self.plan.flow.nodes if name not in state.nodes),
            why=_why(state),
        )

    def close(self) -> None:
        self.store.close()
        if self._file is not None and hasattr(self, "_left"):
            self._left.close()


def crash_everywhere(
    flow: Flow[Any],
    input: Any = None,
    *,
    answers: Mapping[str, Answer] | None = None,
    signals: Sequence[Signal] = (),
    resources: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    observe: Callable[[], Any] | None = None,
    reset: Callable[[], object] | None = None,
    forget: Callable[[], object] | None = None,
    ignore: Iterable[str] = (),
    same: Callable[[Any, Any], bool] | None = None,
    store: Place = "memory",
    moments: Sequence[Moment] = MOMENTS,
    limit: int | None = None,
    seed: int = 0,
    ends: Ending = "completed",
    **options: Any,
) -> Report:
    """Crash a flow at each of its durable writes, resume it, and report what a crash makes a difference to.

    `answers` and `signals` are what it is told (`fakes`). What its nodes do outside is seen by each `Receiver` among `resources`
    and by `observe()`, whose result is compared; `reset()` is called before each run. `forget()` is called at each crash and
    clears what a process keeps in its memory. `ignore` names fields of the state that may differ; `same(undisturbed, resumed)`
    compares states in place of equality. At most `limit` crashes are tried, spread evenly. `ends` is how the undisturbed run is
    to end; where it does not, that is the only finding, and nothing is crashed. `options` are the engine's. Raises
    `SettingError`, and `AnswerRefused` for an answer that its question does not allow.
    """
    _refuse_running_loop()
    _require_one_of("store", store, get_args(Place))
    _require_one_of("ends", ends, get_args(Ending))
    _require_crashes(moments, limit)
    require_answers(flow, answers)
    require_signals(signals)
    plan = _Plan(
        flow, input, answers, signals, store, resources, observe, reset, forget, frozenset(ignore), same, seed, options
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-") as folder:
        writes, undisturbed = _undisturbed(plan, folder)
        crashes = [Crash(moment, write) for write in writes for moment in moments]
        if limit is not None and len(crashes) > limit:
            crashes = [crashes[number * len(crashes) // limit] for number in range(limit)]
        if undisturbed.status != ends:
            wrong = CrashFinding("end", _wrong_end(undisturbed, ends), ())
            return _report(plan, writes, undisturbed, findings=(wrong,))
        return _crash_at(crashes, plan, folder, writes, undisturbed)


def _crash_at(
    crashes: list[Crash], plan: _Plan, folder: str, writes: list[Write], undisturbed: _Outcome
) -> Report:
    """Crash the flow there, once in each run, and gather what differs."""
    found: dict[tuple[Any, str], list[Crash]] = {}
    again: Counter[str] = Counter()
    parked: list[Crash] = []
    for crash in crashes:
        resumed = _crashed(plan, folder, crash)
        again += resumed.again - undisturbed.again
        if resumed.asks and not undisturbed.asks:
            parked.append(crash)
        for finding in _findings(plan, undisturbed, resumed):
            found.setdefault(finding, []).append(crash)
    findings = tuple(CrashFinding(kind, text, tuple(where)) for (kind, text), where in found.items())
    return _report(
        plan,
        writes,
        undisturbed,
        crashes=len(crashes),
        findings=findings,
        again=dict(again),
        parked=tuple(parked),
    )


def _report(plan: _Plan, writes: list[Write], undisturbed: _Outcome, **found: Any) -> Report:
    tried: dict[str, Any] = {"crashes": 0, "again": {}, "parked": (), **found}
    return Report(
        flow=plan.flow.name,
        status=undisturbed.status,
        unreached=undisturbed.unreached,
        writes=tuple(writes),
        **tried,
    )


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SettingError(
        "crash_everywhere runs event loops of its own, and one is running here. Call it from plain code."
    )


def _require_one_of(name: str, given: Any, known: Sequence[str]) -> None:
    if given not in known:
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        raise SettingError(f"{name}={given!r}: it is one of {', '.join(map(repr, known))}{near}")


def _require_crashes(moments: Any, limit: Any) -> None:
    """Refuse a call that would crash nothing, and so find nothing."""
    if isinstance(moments, str) or not moments:
        raise SettingError(
            f"moments={moments!r}: give a list, e.g. ['after']; without it both moments are tried"
        )
    for moment in moments:
        _require_one_of("moments", moment, MOMENTS)
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise SettingError(f"limit={limit!r}: give the number of crashes to try, 1 or more, or None for all")


def _wrong_end(undisturbed: _Outcome, ends: str) -> str:
    """What is said of an undisturbed run that did not end as it should."""
    never = f" Never reached: {', '.join(undisturbed.unreached)}." if undisturbed.unreached else ""
    why = f": {undisturbed.why}" if undisturbed.why else "."
    return (
        f"without any crash the run is {undisturbed.status}, not {ends}{why}{never} Nothing was crashed. Where it is meant to "
        f"end so, say ends={undisturbed.status!r}."
    )


def _why(state: RunState) -> str:
    """Why a run went no further, with what would have let it."""
    if state.failure is not None:
        at = f" at node {state.failure_node!r}" if state.failure_node else ""
        lacks = (
            " resources={…} gives it what it looks for in ctx.resources."
            if state.failure.type == "KeyError"
            else ""
        )
        return f"it failed{at} ({named(state.failure.type, state.failure.message)}).{lacks}"
    waits = [
        f"node {asked.node!r} asks {asked.text!r}{_options(asked.options)}, and answers={{{asked.node!r}: …}} says nothing to it"
        for asked in state.questions.values()
    ]
    waits += [
        f"node {wait.node!r} waits for the signal {wait.signal!r}, and signals=[Signal({wait.signal!r}, …)] does not have it"
        for wait in state.waits.values()
        if wait.kind == "signal"
    ]
    return "; ".join(waits) + "." if waits else ""


def _options(options: Sequence[str]) -> str:
    return f" ({', '.join(options)})" if options else ""


def _undisturbed(plan: _Plan, folder: str) -> tuple[list[Write], _Outcome]:
    stage = _Stage(plan, folder)
    watch = _Watch(stage.store)
    try:
        _Life(stage, watch).live()
        return watch.writes, stage.outcome()
    finally:
        stage.close()


def _crashed(plan: _Plan, folder: str, crash: Crash) -> _Outcome:
    """The run, with a crash there and an engine that carries it on."""
    stage = _Stage(plan, folder)
    first = _Life(stage, _Watch(crash=crash))
    try:
        if not first.live():
            stage.crashed()
            _Life(stage, _Watch(stage.store)).live()
        return stage.outcome()
    finally:
        first.bury()
        stage.close()


def _findings(plan: _Plan, undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    """What differs, as kind and sentence."""
    for told in resumed.log:
        if told not in undisturbed.log:
            yield ("ran again" if told.startswith("I5") else "log"), told.partition(": ")[2]
    yield from _effect_findings(undisturbed, resumed)
    if resumed.asks and not undisturbed.asks:
        return  # somebody decides how it goes on
    if resumed.status != undisturbed.status:
        yield "end", f"the resumed run is {resumed.status}, the undisturbed one {undisturbed.status}"
    elif plan.same is not None:
        if not plan.same(undisturbed.state, resumed.state):
            yield (
                "state",
                f"the states are not the same: {undisturbed.state!r:.200} and {resumed.state!r:.200}",
            )
    else:
        for field in sorted({*undisturbed.values, *resumed.values} - plan.ignore):
            expected, found = (values.get(field) for values in (undisturbed.values, resumed.values))
            if expected != found:
                yield "state", f"{field} is {found!r:.100}, undisturbed it is {expected!r:.100}"


def _effect_findings(undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    for name, expected in undisturbed.effects.items():
        found = resumed.effects[name]
        where = f" at {name!r}" if name else ""
        if found == expected or resumed.asks:
            continue
        if not (isinstance(expected, list) and isinstance(found, list)):
            yield "effect", f"{found!r:.100} was observed{where}, undisturbed it is {expected!r:.100}"
            continue
        more, less = (
            _counted(one) - _counted(other) for one, other in ((found, expected), (expected, found))
        )
        for what, times in more.items():
            usual = _counted(expected)[what]
            yield "effect", f"{what:.100} happened {usual + times} times{where}, undisturbed {usual}"
        for what, times in less.items():
            yield "effect", f"{what:.100} did not happen{where} ({times} missing)"
        if not more and not less:
            yield "effect", f"the same things happened{where} in another order: {found!r:.100}"


def _counted(effects: list[Any]) -> Counter[str]:
    return Counter(map(repr, effects))


def _copied(observed: Any) -> Any:
    return (
        list(observed)
        if isinstance(observed, (list, tuple))
        else dict(observed)
        if isinstance(observed, dict)
        else observed
    )
