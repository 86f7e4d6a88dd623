"""Crash a flow right before and right after each of its durable writes, and let another engine resume the run each time.

    report = crash_everywhere(flow, Order(12))
    assert report.ok, report

First the flow runs undisturbed, and its durable writes are counted (`storage.failpoints`). Then the flow runs once for every
crash: at that write its engine is torn down as if its process had been killed. From then on the engine writes nothing, its event
loop does not run again, and only the store in memory, or the SQLite file, remains. A new engine, which is another holder,
resumes the run. Every difference from the undisturbed run is a finding: another final status or state; other effects of nodes
outside the run; a node that ran again although its end was recorded; and any violation that `checker` finds in the log. An
undisturbed run that does not end as expected is a finding by itself: the nodes that it did not reach were not tested.

Twice more the flow runs without a crash: once each node is unwound at each of its waits, as during a long wait, and once no
coroutine is unwound. What happens only when nodes unwind is a finding: code that cleans up although nothing was cancelled, or
that is not in a step and runs again.

This is the real engine on one thread and a manual clock, so a crash takes milliseconds. No process really dies, so its memory is
not lost: pass a function as `forget` to clear what a real process would lose. Invariant: the order of writes is the same every
time, so the same call gives the same report.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.core.budget import Budget
from holdfast.core.graph import Flow
from holdfast.core.run_state import RunState
from holdfast.errors import RunNotFound, SettingError, did_you_mean
from holdfast.reading import history
from holdfast.reading.ledger import decisions, read_ledger
from holdfast.storage import failpoints
from holdfast.storage.contract import Holder, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.checker import check
from holdfast.testing.clock import STARTS_AT, ManualClock
from holdfast.testing.event_loops import forget
from holdfast.testing.fakes import (
    NEVER_S,
    Answer,
    Asked,
    Audience,
    FakeChild,
    FakeChildren,
    PatientEngine,
    Receiver,
    Signal,
    attend_run,
    require_answers,
    require_signals,
)
from holdfast.testing.watching import watch_flow
from holdfast.testing.witness import Line, visit_of

Moment: TypeAlias = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")
Place: TypeAlias = Literal["memory", "sqlite"]
Ending: TypeAlias = Literal["completed", "failed", "cancelled", "waiting", "paused"]
RUN_ID = "crashed"

_VERBS = ("append", "claim", "post", "release", "renew")
_WAITS = ("TimerSet", "SignalAwaited", "QuestionAsked", "ChildAwaited")
_LAST_ROUNDS = 100
_SHOWN_MAX = 4


class Write(msgspec.Struct, frozen=True):
    """A durable write of the undisturbed run."""

    number: int
    verb: str
    added: str = ""
    """The events that this write added to the log."""

    def __str__(self) -> str:
        return f"write {self.number} ({self.verb}{': ' + self.added if self.added else ''})"


class Crash(msgspec.Struct, frozen=True):
    """A simulated crash: right before or right after one durable write."""

    moment: Moment
    write: Write

    def __str__(self) -> str:
        return f"right {self.moment} {self.write}"


class Unwinding(msgspec.Struct, frozen=True):
    """No crash: each node was unwound at each of its waits, as during a long wait."""

    def __str__(self) -> str:
        return "without a crash: each node was unwound at each of its waits"


class CrashFinding(msgspec.Struct, frozen=True):
    """A difference from the undisturbed run, and the crashes that cause it. Without crashes: the undisturbed run itself did not
    end as expected.
    """

    kind: Literal["end", "state", "effect", "ran again", "log", "step", "decision"]
    text: str
    crashes: tuple[Crash | Unwinding, ...]

    def __str__(self) -> str:
        count = len(self.crashes)
        if not count:
            return f"{self.kind}: {self.text}"
        if isinstance(self.crashes[0], Unwinding):
            more = f"; also after {count - 1} crashes" if count > 1 else ""
            return f"{self.kind}: {self.text}\n      ({self.crashes[0]}{more})"
        times = "1 crash" if count == 1 else f"{count} crashes, first"
        return f"{self.kind}: {self.text}\n      ({times} {self.crashes[0]})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `crash_everywhere`. `ok` means that the undisturbed run ended as expected and no crash changed the result."""

    flow: str
    status: str
    """The status of the undisturbed run when it ended or stopped."""
    unreached: tuple[str, ...] = ()
    """Nodes that the undisturbed run did not reach: they were not tested."""
    writes: tuple[Write, ...]
    crashes: int
    findings: tuple[CrashFinding, ...]
    again: dict[str, int]
    """Node -> how often it was called again after a crash interrupted it. This is correct: each such call is a new attempt."""
    parked: tuple[Crash, ...]
    """Crashes after which the run waits for a decision of the operator, because the interrupted node is not idempotent."""

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
            lines.append(f"  called again because a crash interrupted them: {called}")
        if self.parked:
            lines.append(
                f"  asked the operator what to do after {len(self.parked)} crashes, first {self.parked[0]}"
            )
        if self.unreached and self.crashes:
            lines.append(f"  not reached, so not tested: {', '.join(self.unreached)}")
        return "\n".join(lines)


class _Died(BaseException):
    """Raised at the failpoint where the simulated process dies, and at every failpoint that its code reaches later."""


class _Outcome(msgspec.Struct, frozen=True):
    """How a run ended, and the effects that were observed."""

    status: str
    values: dict[str, Any]
    state: Any
    steps: dict[tuple[str, int, int | None], dict[str, int]]
    """Visit (node, iteration, item) -> the steps that it has completed, each with the attempt that did it."""
    appended: dict[str, list[str]]
    """Field -> the nodes that appended to it, in the order of declaration."""
    effects: dict[str, Any]
    asked: Asked
    """The questions that prepared answers were given to."""
    asks: bool
    """True if the run waits for the operator to decide about an interrupted node."""
    log: tuple[str, ...]
    decisions: list[dict[str, Any]]
    """What the run has decided, without what an interruption adds: see `reading.ledger.decisions`."""
    again: Counter[str]
    unreached: tuple[str, ...]
    why: str
    """Why the run stopped, and which answer, signal or resource it lacked."""
    waits: bool
    """True if a node has waited."""


class _Watch:
    """Counts the durable writes of a run, and lets the engine die at one of them. It is called at every failpoint."""

    def __init__(
        self, store: Store | None = None, crash: Crash | None = None, *, unwinds: bool = False
    ) -> None:
        self.writes: list[Write] = []
        self.dead = False
        self.died: Callable[[], None] = lambda: None
        self.unwinds = unwinds
        """True if the engine unwinds its nodes at each of their waits."""
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
            self.writes.append(Write(self._count, verb, self._describe_append() if verb == "append" else ""))
        crash = self._crash
        moment = "before" if place == "before" else "after"
        if crash is not None and (crash.write.number, crash.moment) == (self._count, moment):
            self.dead = True
            self.died()
            raise _Died

    def _describe_append(self) -> str:
        """Return the kinds and nodes of the events that the latest append added."""
        assert self._store is not None
        with suppress(RunNotFound):
            rows = self._store.events(RUN_ID, self._seq)
            self._seq += len(rows)
            words = [f"{row.kind} {row.node}" if row.node else row.kind for row in rows]
            more = f", {len(words) - _SHOWN_MAX} more" if len(words) > _SHOWN_MAX else ""
            return ", ".join(words[:_SHOWN_MAX]) + more
        return ""


class _Life:
    """Runs one engine, on an event loop of its own, until its work is finished or the engine dies."""

    def __init__(self, stage: _Stage, watch: _Watch) -> None:
        self._stage = stage
        self._watch = watch
        self._clock = stage.clock
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._trouble)
        self._engine: PatientEngine | None = None

    def live(self) -> bool:
        """Start or resume the run, and drive it until it ends or stops. Return False if the engine died."""
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

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an error of the event loop, unless the engine is dead: a killed process would report nothing."""
        if not self._watch.dead:
            loop.default_exception_handler(context)

    async def _work(self) -> None:
        stage = self._stage
        luck = random.Random(f"{stage.plan.seed} {len(stage.dead)}")
        self._engine = PatientEngine(
            stage.store, self._clock, luck, unwinds=self._watch.unwinds, **stage.options
        )
        async with self._engine as engine:
            stage.children.take_the_place_in(engine)
            audience = Audience(stage.plan.answers, stage.plan.signals, asked=stage.asked)
            await attend_run(
                engine, stage.flow, stage.plan.input, run_id=RUN_ID, audience=audience, clock=self._clock,
                limits=stage.plan.limits,
            )  # fmt: skip

    def bury(self) -> None:
        """Unwind the coroutines and close the async generators that the dead engine left. Nothing that they still do is written
        to the store or observed.
        """
        loop = self._loop
        if loop.is_closed():
            return
        failpoints.install(self._watch)
        try:
            left = asyncio.all_tasks(loop)
            for rest in left:
                rest.cancel()
            self._run_until_done(left)
            self._run_until_done({loop.create_task(loop.shutdown_asyncgens())})
        finally:
            failpoints.install(None)
            loop.close()

    def _run_until_done(self, left: set[asyncio.Task[Any]]) -> None:
        """Run the loop until these tasks have ended, but not for ever: code that waits in a `finally` may never end. The loop is
        stopped after every round, and not by `run_until_complete`: the end of the engine's own task stops it as well.
        """
        for _ in range(_LAST_ROUNDS):
            if all(rest.done() for rest in left):
                break
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        for rest in left:
            forget(rest)


class _Plan(msgspec.Struct, frozen=True):
    """The arguments of `crash_everywhere`."""

    flow: Flow[Any]
    input: Any
    answers: Mapping[str, Answer] | None
    signals: Sequence[Signal]
    store: Place
    resources: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
    children: Mapping[str, FakeChild] | None
    observe: Callable[[], Any] | None
    reset: Callable[[], object] | None
    forget: Callable[[], object] | None
    ignore: frozenset[str]
    same: Callable[[Any, Any], bool] | None
    seed: int
    limits: dict[str, Any]
    options: dict[str, Any]

    @property
    def has_rules(self) -> bool:
        """True if the flow is a plan, or policies judge its nodes: then its decisions are compared too."""
        return self.flow.guards is not None or any(one.options.judged for one in self.flow.nodes.values())


class _Stage:
    """Everything around one run of the flow: its store, its clock, the holders that died, and the receivers."""

    def __init__(self, plan: _Plan, folder: str, asked: Asked | None = None) -> None:
        self.plan = plan
        self.asked: Asked = {place: list(keys) for place, keys in (asked or {}).items()}
        """The questions of the undisturbed run, then those of this one: a question gets its own answer wherever it is asked."""
        self.clock = ManualClock(STARTS_AT, auto=True)
        self.dead: set[str] = set()
        self.children = FakeChildren(plan.children)
        self.seen: list[Line] = []
        self.flow = self._watched_flow()
        if plan.reset is not None:
            plan.reset()
        resources = plan.resources() if callable(plan.resources) else plan.resources
        self.options = {**plan.options, "resources": dict(resources or {})}
        self.receivers = [one for one in self.options["resources"].values() if isinstance(one, Receiver)]
        for receiver in self.receivers:
            receiver.reset()
        self._file = tempfile.mktemp(suffix=".db", dir=folder) if plan.store == "sqlite" else None
        self.store = self._open_store()

    def _watched_flow(self) -> Flow[Any]:
        return watch_flow(self.plan.flow, lambda what, ctx: self.seen.append({"what": what, **visit_of(ctx)}))

    def _open_store(self) -> Store:
        if self._file is None:
            return MemoryStore(clock=self._now, alive=self._alive)
        return SqliteStore(self._file, clock=self._now, alive=self._alive)

    def _now(self) -> float:
        return self.clock.now()

    def _alive(self, holder: Holder) -> bool | None:
        return holder.id not in self.dead

    def restart(self) -> None:
        """Restart as a new process would: drop what was only in memory, and open the store again."""
        self.clock = ManualClock(self.clock.now(), auto=True)
        self.flow = self._watched_flow()
        if self.plan.forget is not None:
            self.plan.forget()
        if self._file is not None:
            self._left, self.store = self.store, self._open_store()

    def outcome(self) -> _Outcome:
        """Return how the run ended, its effects outside, and what the checker found in its log."""
        state = history.load(self.store, RUN_ID)
        effects = {receiver.name: list(receiver.done) for receiver in self.receivers}
        if self.plan.observe is not None:
            effects[""] = _copy(self.plan.observe())
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
            steps=self._steps(),
            appended=self._appended(),
            effects=effects,
            asked=self.asked,
            asks=any(question.about == "interrupt" for question in state.questions.values()),
            log=tuple(
                f"{v.invariant}: {v.text}" for v in check(self.store, testified=self.seen, at_end=True)
            ),
            decisions=decisions(read_ledger(self.store, RUN_ID)),
            again=again,
            unreached=tuple(name for name in self.plan.flow.nodes if name not in state.nodes),
            why=_why(state),
            waits=bool(self.store.events(RUN_ID, kinds=_WAITS, limit=1)),
        )

    def _steps(self) -> dict[tuple[str, int, int | None], dict[str, int]]:
        found: dict[tuple[str, int, int | None], dict[str, int]] = {}
        for row in self.store.events(RUN_ID, kinds=("StepCompleted",)):
            event = open_row(row, self.store.blobs).event
            visit = (event.node, event.iteration, event.item)
            found.setdefault(visit, {})[event.step] = event.attempt
        return found

    def _appended(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for row in self.store.events(RUN_ID, kinds=("NodeCompleted", "ItemCompleted")):
            event = open_row(row, self.store.blobs).event
            for field in event.changes.append:
                found.setdefault(field, set()).add(event.node)
        return {
            field: [name for name in self.plan.flow.nodes if name in nodes] for field, nodes in found.items()
        }

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
    children: Mapping[str, FakeChild] | None = None,
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
    budget: Budget | None = None,
    schedule: Literal["eager", "layered"] | None = None,
    scope: Collection[str] | None = None,
    **options: Any,
) -> Report:
    """Crash a flow at each of its durable writes, resume it, and report every difference that a crash makes.

    `answers` and `signals` are given to the run, and `children` are functions that stand for its children (`fakes`). Two
    things record the effects of nodes outside the run: each `Receiver` among `resources`, and `observe()`, whose result is
    compared; `reset()` is called before each run. `forget()` is called at each crash, to clear what a process would lose with
    its memory. `ignore` names fields of the state that may differ; `same(undisturbed, resumed)` compares states in place of
    equality. At most `limit` crashes are tried, spread evenly.
    `budget`, `schedule` and `scope` are those of the run.
    `ends` is the expected status of the undisturbed run; if that run ends otherwise, this is the only finding, and no crash is
    tried. `options` are options of `Engine`. Raises `SettingError` for a wrong argument, and `AnswerRefused` for an answer that
    its question does not allow.
    """
    _refuse_running_loop()
    _require_one_of("store", store, get_args(Place))
    _require_one_of("ends", ends, get_args(Ending))
    _require_crashes(moments, limit)
    require_answers(flow, answers)
    require_signals(signals)
    plan = _Plan(
        flow, input, answers, signals, store, resources, children, observe, reset, forget, frozenset(ignore), same, seed,
        {"budget": budget, "schedule": schedule, "scope": scope}, options,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-") as folder:
        writes, undisturbed = _run_undisturbed(plan, folder)
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
    """Run the flow once for each crash, and report the differences from the undisturbed run."""
    found: dict[tuple[Any, str], list[Crash | Unwinding]] = {}
    again: Counter[str] = Counter()
    parked: list[Crash] = []
    if undisturbed.waits:
        unwound = _unwind(plan, folder, undisturbed.asked)
        differences = {*_findings(plan, undisturbed, unwound), *_effects_of_unwinding(plan, folder, unwound)}
        for finding in sorted(differences):
            found.setdefault(finding, []).append(Unwinding())
    for crash in crashes:
        resumed = _crash_and_resume(plan, folder, crash, undisturbed.asked)
        again += resumed.again - undisturbed.again
        if resumed.asks and not undisturbed.asks:
            parked.append(crash)
        changes = list(_findings(plan, undisturbed, resumed))
        causes = _steps_that_were_not_kept(undisturbed, resumed) if changes else ()
        for finding in (*changes, *causes):
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
        "crash_everywhere runs its own event loops and cannot be called while one is running. Call it from a plain function."
    )


def _require_one_of(name: str, given: Any, known: Sequence[str]) -> None:
    if given not in known:
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        raise SettingError(f"{name}={given!r}: give one of {', '.join(map(repr, known))}{near}")


def _require_crashes(moments: Any, limit: Any) -> None:
    """Raise `SettingError` if the call would try no crash at all."""
    if isinstance(moments, str) or not moments:
        raise SettingError(
            f"moments={moments!r}: give a list, e.g. ['after'], or leave it out to try both moments"
        )
    for moment in moments:
        _require_one_of("moments", moment, MOMENTS)
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise SettingError(f"limit={limit!r}: give the number of crashes to try, 1 or more, or None for all")


def _wrong_end(undisturbed: _Outcome, ends: str) -> str:
    """Return the text of the finding that the undisturbed run did not end as expected."""
    never = f" It did not reach: {', '.join(undisturbed.unreached)}." if undisturbed.unreached else ""
    why = f": {undisturbed.why}" if undisturbed.why else "."
    return (
        f"without any crash the run is {undisturbed.status}, not {ends}{why}{never} No crash was tried. If the run is "
        f"expected to end like this, pass ends={undisturbed.status!r}."
    )


def _why(state: RunState) -> str:
    """Return why a run stopped, and which argument of `crash_everywhere` would have let it continue."""
    if state.failure is not None:
        at = f" at node {state.failure_node!r}" if state.failure_node else ""
        lacks = (
            " If the key is one of ctx.resources, pass it with resources={…}."
            if state.failure.type == "KeyError"
            else ""
        )
        return f"it failed{at} ({state.failure.describe()}).{lacks}"
    waits = [
        f"node {asked.node!r} asks {asked.text!r}{_options(asked.options)}; pass answers={{{asked.node!r}: …}}"
        for asked in state.questions.values()
    ]
    waits += [
        f"node {wait.node!r} waits for the signal {wait.signal!r}; pass signals=[Signal({wait.signal!r}, …)]"
        for wait in state.waits.values()
        if wait.kind == "signal"
    ]
    return "; ".join(waits) + "." if waits else ""


def _options(options: Sequence[str]) -> str:
    return f" ({', '.join(options)})" if options else ""


def _run_undisturbed(plan: _Plan, folder: str, asked: Asked | None = None) -> tuple[list[Write], _Outcome]:
    stage = _Stage(plan, folder, asked)
    watch = _Watch(stage.store)
    try:
        _Life(stage, watch).live()
        return watch.writes, stage.outcome()
    finally:
        stage.close()


def _unwind(plan: _Plan, folder: str, asked: Asked) -> _Outcome:
    """Run the flow without a crash, and unwind each node at each of its waits. Return how the run ended."""
    stage = _Stage(plan, folder, asked)
    try:
        _Life(stage, _Watch(stage.store, unwinds=True)).live()
        return stage.outcome()
    finally:
        stage.close()


def _effects_of_unwinding(plan: _Plan, folder: str, unwound: _Outcome) -> list[tuple[str, str]]:
    """Return the findings about effects that a run has only because its nodes were unwound. The undisturbed run may have them
    too, because it unwinds a node that waits for long. So the flow runs once more, and no coroutine is unwound.
    """
    if "park_after" in plan.options:
        return []
    patient = msgspec.structs.replace(plan, options={**plan.options, "park_after": NEVER_S})
    _, stayed = _run_undisturbed(patient, folder, unwound.asked)
    return list(_effect_findings(stayed, unwound)) if stayed.status == unwound.status else []


def _crash_and_resume(plan: _Plan, folder: str, crash: Crash, asked: Asked) -> _Outcome:
    """Start a new run, crash it at this write, and let another engine resume it. Return how it ended."""
    stage = _Stage(plan, folder, asked)
    first = _Life(stage, _Watch(crash=crash))
    try:
        if not first.live():
            stage.restart()
            _Life(stage, _Watch(stage.store)).live()
        return stage.outcome()
    finally:
        first.bury()
        stage.close()


def _findings(plan: _Plan, undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    """Yield every difference between the two runs, as the kind of the finding and a sentence."""
    for line in resumed.log:
        if line not in undisturbed.log:
            yield ("ran again" if line.startswith("I5") else "log"), line.partition(": ")[2]
    yield from _effect_findings(undisturbed, resumed)
    if resumed.asks and not undisturbed.asks:
        return  # the operator decides how the run continues
    if plan.has_rules and resumed.status == undisturbed.status:
        yield from _other_decisions(undisturbed, resumed)
    if resumed.status != undisturbed.status:
        yield "end", f"the resumed run is {resumed.status}, the undisturbed run is {undisturbed.status}"
    elif plan.same is not None:
        if not plan.same(undisturbed.state, resumed.state):
            yield (
                "state",
                f"the state differs: undisturbed {undisturbed.state!r:.200}, resumed {resumed.state!r:.200}",
            )
    else:
        for field in sorted({*undisturbed.values, *resumed.values} - plan.ignore):
            expected: Any = undisturbed.values.get(field)
            found: Any = resumed.values.get(field)
            if expected == found:
                continue
            nodes = _parallel_appenders(plan, resumed.appended.get(field, []))
            if nodes and _count(expected) == _count(found):
                yield "state", _other_order(field, expected, found, nodes)
            else:
                yield "state", f"{field} is {found!r:.100}, but {expected!r:.100} without a crash"


def _other_decisions(undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    """Yield what only one of the two runs has decided: by guards, policies, verification, answers and skips."""
    mine, other = (_count(one.decisions) for one in (undisturbed, resumed))
    for told in mine - other:
        yield "decision", f"only the run without a crash has the decision {told:.300}"
    for told in other - mine:
        yield "decision", f"the run without a crash has not the decision {told:.300}"


def _steps_that_were_not_kept(undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    """Yield the cause of a difference: a step that completed only after the crash, in a visit that had kept other steps. Without
    the crash it raised an exception, which the node has caught, and which was not kept.
    """
    for (node, iteration, item), steps in resumed.steps.items():
        before = undisturbed.steps.get((node, iteration, item), {})
        for step, attempt in steps.items():
            if step not in before and any(earlier < attempt for earlier in steps.values()):
                told = (
                    f"node {node!r} completed the step {step!r} in attempt {attempt}, after the crash; without a crash, the step "
                    "did not complete. If it raised an exception that the node caught, as in a saga that undoes what it did, "
                    f"declare that exception as an outcome, so that it is kept: hf.Step({step!r}, raises=(…,))."
                )
                yield "step", told


def _parallel_appenders(plan: _Plan, nodes: list[str]) -> list[str]:
    """Return those of these nodes that run in parallel with another one, where the order of their completions counts."""
    topology = plan.flow.topology
    if (plan.limits["schedule"] or plan.flow.definition.schedule) != "eager":
        return []
    mask = sum(1 << topology.index[name] for name in nodes)
    return [name for name in nodes if any(topology.parallel(name, mask))]


def _other_order(field: str, expected: Any, found: Any, nodes: list[str]) -> str:
    """Return the text of the finding that parallel nodes appended the same items in another order."""
    named_nodes = f"{', '.join(map(repr, nodes[:-1]))} and {nodes[-1]!r}"
    return (
        f"{field} has the same items in another order: {found!r:.100}, but {expected!r:.100} without a crash. The nodes "
        f"{named_nodes} run in parallel, and what parallel nodes append is stored in the order in which they complete. For a "
        'fixed order, compile the flow with schedule="layered", or make the field a dict with the reducer merge, with a key for '
        "each node. If the order does not matter, pass same=…."
    )


def _effect_findings(undisturbed: _Outcome, resumed: _Outcome) -> Iterable[tuple[str, str]]:
    for name, expected in undisturbed.effects.items():
        found = resumed.effects[name]
        where = f" at {name!r}" if name else ""
        if found == expected or resumed.asks:
            continue
        if not (isinstance(expected, list) and isinstance(found, list)):
            yield "effect", f"{found!r:.100} was observed{where}, but {expected!r:.100} without a crash"
            continue
        more, less = (_count(one) - _count(other) for one, other in ((found, expected), (expected, found)))
        for what, times in more.items():
            usual = _count(expected)[what]
            yield "effect", f"{what:.100} happened {usual + times} times{where} (without a crash: {usual})"
        for what, times in less.items():
            yield "effect", f"{what:.100} did not happen{where} ({times} missing)"
        if not more and not less:
            yield "effect", f"the same effects happened{where} in another order: {found!r:.100}"


def _count(values: list[Any]) -> Counter[str]:
    return Counter(map(repr, values))


def _copy(observed: Any) -> Any:
    return (
        list(observed)
        if isinstance(observed, (list, tuple))
        else dict(observed)
        if isinstance(observed, dict)
        else observed
    )
