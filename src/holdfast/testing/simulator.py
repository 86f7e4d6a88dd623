"""Simulate several workers with the real engine on one store, and faults between them, all drawn from a seed.

    report = simulate(flow, {"ticket": "T-1"}, seeds=range(200))
    assert report.ok, report

This module owns the simulated processes of a schedule; simulated callers start and operate its runs (`simulator_hands`). A
simulation uses no thread, no socket and no wall clock; the shared store is a memory store unless another is given. The seed also
determines the settings of the engines (durability, how many checkpoints they keep), queues and priorities. One seed is one
schedule: running it again gives the same trace (`Outcome.trace`), on every machine and with every hash seed.

A schedule ends when every run is over. Faults happen first and then stop (`simulator_faults`); a run that does not end by itself
after that is stuck, which is a violation like any other (`simulator_oracle`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from holdfast.core.graph import Flow
from holdfast.errors import HoldfastError, SettingError
from holdfast.reading import history
from holdfast.runtime import engine as engines
from holdfast.runtime import journal, questions, settings
from holdfast.runtime.engine import Engine
from holdfast.runtime.settings import Durability
from holdfast.storage.contract import Holder, Query, Row, RunRow, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import checker
from holdfast.testing import simulator_oracle as oracle
from holdfast.testing.clock import STARTS_AT
from holdfast.testing.fakes import Answer, FakeChild, FakeChildren, Receiver, require_answers
from holdfast.testing.simulator_faults import (
    LEASE_TTL_S,
    STALLS_S,
    Faults,
    FaultyStore,
    LateWriter,
    Ledger,
    SteppedClock,
)
from holdfast.testing.simulator_flows import (
    OUTCOME_TALES,
    RISKY_TALES,
    TALES,
    TRIES,
    WORLD,
    BodyWitness,
    Reached,
    tale,
    watching,
    witness_flow,
)
from holdfast.testing.simulator_forks import ForkedRuns, check_forks
from holdfast.testing.simulator_hands import Answers, Hand, Subject, answers_of
from holdfast.testing.simulator_loop import Hung, Luck, ProcessDied, SimulatedLoop, Stuck, World
from holdfast.testing.simulator_requests import check_made, check_requests

PATIENCE_S = 60.0
"""How many seconds of virtual time a schedule may take; after that its runs are reported as stuck."""
SCHEDULE_CPU_S = 60.0
"""How many seconds of processor time a schedule may take; after that it is reported as hung. It usually takes a few
milliseconds.
"""
_COLLECT_EVERY = 64
_VERIFIED = 4
"""Out of this many schedules, one also compares run rows and snapshots with the fold of the log, and another one also runs the
checker on the store. Logs, node calls and results are checked in all schedules.
"""
_NARROW = "narrow"
"""The name of a queue whose limit is one run at a time."""
_NARROW_SHARE = 0.4
_TIDY_SHARE = 0.15
_ASKING_SHARE = 0.4
OUTCOME_SEEDS = 1_000_000
"""Every second million of seeds, beginning with this one, draws flows whose steps have exceptions as outcomes, are tried again,
or must not be called twice. So the other seeds mean what they meant before such steps existed.
"""
_packed = msgspec.msgpack.Encoder().encode

Disk: TypeAlias = Callable[[Callable[[], float], Callable[[Holder], bool | None]], Store]
"""The type of a function that makes the store of a simulation. Its arguments are a clock, and a function that says whether a
holder is known to be dead.
"""
Effects: TypeAlias = dict[str, Counter[str]]
"""Name of a receiver -> how often each effect on the receiver happened."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one schedule."""

    seed: int
    events: int
    workers: int
    faults: dict[str, int]
    violations: list[str]
    trace: str
    """A hash of everything that happened in the schedule."""
    states: dict[str, Any]
    """Run -> its final state, for completed runs."""
    virtual_s: float = 0.0


class SeededViolation(msgspec.Struct, frozen=True):
    """A violation of an invariant, and the seed that reproduces it."""

    seed: int
    text: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.text}"


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of many schedules. `ok` means that no violation was found."""

    schedules: int
    events: list[int]
    workers: list[int]
    faults: dict[str, int]
    faults_each: list[int]
    violations: list[SeededViolation]

    @property
    def ok(self) -> bool:
        return not self.violations

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        """Return the figures of the report (`figures`), one line each."""
        return "\n".join(f"{name:<24}{value}" for name, value in figures(self).items())


def simulate(
    flow: Flow[Any],
    input: Any = None,
    seeds: Iterable[int] = range(200),
    *,
    answers: Mapping[str, Answer] | Answers | None = None,
    signals: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    children: Mapping[str, FakeChild] | None = None,
    compare: Callable[[dict[str, Any]], Any] = lambda values: values,
    **limits: Any,
) -> SimulationReport:
    """Run a flow once without faults, then once per seed with two or three workers that crash, pause, lose replies and restart.
    The report lists every difference in the final state (`compare(values)` selects what is compared), every node that ran
    although its end was recorded, every effect that happened more or less often at a `Receiver` among `resources`, and every
    run that got stuck. If the run does not complete without faults, the report contains only that.

    Nodes may only compute, and wait through asyncio or their context: a simulated world has no threads and no sockets. A
    schedule that takes a minute of processor time (`SCHEDULE_CPU_S`) is reported as hung, with its stack.
    `answers` maps the name of a node that asks to a value, a list (one value for each iteration of the node) or a function
    of the question; or it is one function for all nodes, `answers(node, iteration, options)`. A question without a prepared
    answer gets `approve`, `retry` or else its first option. `signals` maps names of signals to payloads, `children` names of
    flows to functions that stand for child runs (see `rehearse`); `limits` are `budget`, `schedule` and `scope` of the run. A
    plan brings its own input. Raises `StateError` for a wrong input, and `AnswerRefused` or `SettingError` for an answer that
    no question allows.
    """
    if answers is not None and not callable(answers):
        require_answers(flow, answers, keys=False)
    if signals is not None and not isinstance(signals, Mapping):
        raise SettingError(f"signals={signals!r}: give a dict of names and payloads, e.g. {{'paid': 12}}")
    if flow.input is None:
        flow.state.dump(
            {} if input is None else input
        )  # a wrong input is refused here, not by every worker in turn
    subject = Subject("r", witness_flow(flow), input, limits=limits)
    given: dict[str, Any] = {
        "answers": {} if answers is None else answers,
        "signals": dict(signals or {}),
        "resources": dict(resources or {}),
        "children": children,
    }
    calm, expected = _play(Schedule(0, [subject], calm=True, **given))
    if calm.violations:
        need = "Pass what the flow needs with answers=, signals= and resources="
        wrong = [
            f"without any fault: {text}" + ("" if text.startswith("hung:") else f". {need}")
            for text in calm.violations
        ]
        return report_of([msgspec.structs.replace(calm, violations=wrong)])
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcome, effects = _play(Schedule(seed, [subject], **given))
        differs = _differences(calm, outcome, compare)
        if effects is not None and expected is not None:
            differs += _effect_differences(expected, effects)
        outcomes.append(msgspec.structs.replace(outcome, violations=[*outcome.violations, *differs]))
    return report_of(outcomes)


def _play(scene: Schedule) -> tuple[Outcome, Effects | None]:
    """Run a schedule. Return its outcome, and how often each effect on its receivers happened. The effects are None if the run
    did not complete or was rewound: their number may then differ from that of a run without faults.
    """
    receivers = [one for one in scene.resources.values() if isinstance(one, Receiver)]
    for receiver in receivers:
        receiver.reset()
    outcome = scene.run()
    if "r" not in outcome.states or scene.disk.run("r").rewinds:
        return outcome, None
    return outcome, {receiver.name: Counter(map(repr, receiver.done)) for receiver in receivers}


def _differences(calm: Outcome, outcome: Outcome, compare: Callable[[dict[str, Any]], Any]) -> list[str]:
    ended, expected = outcome.states.get("r"), calm.states.get("r")  # None if the run was cancelled
    if ended is None or expected is None or compare(ended) == compare(expected):
        return []
    return [f"r: the final state is {ended}, but {expected} without faults"]


def _effect_differences(expected: Effects, found: Effects) -> list[str]:
    return [
        f"r: {what:.100} happened {found[name][what]} times at {name!r} (without faults: {usual[what]})"
        for name, usual in expected.items()
        for what in sorted({*usual, *found[name]})
        if usual[what] != found[name][what]
    ]


def simulate_random(seeds: Iterable[int], *, disk: Disk | None = None) -> Iterator[Outcome]:
    """Run schedules of random flows whose final state is known in advance."""
    for number, seed in enumerate(seeds):
        with _without_warnings():
            outcome = schedule(seed, disk=disk).run()
        yield outcome
        if number % _COLLECT_EVERY == 0:
            gc.collect()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Within this, nodes of random flows may do what the engine warns users of, such as to wait by an asyncio timer."""
    log = logging.getLogger("holdfast")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def is_asking(seed: int) -> bool:
    """Return whether the callers of a schedule also leave requests of all kinds, and make forks at any time."""
    return random.Random(f"asks {seed}").random() < _ASKING_SHARE


def schedule(seed: int, *, disk: Disk | None = None) -> Schedule:
    """Make the schedule of a seed, with one or two runs of random flows."""
    luck, asks = random.Random(f"subjects {seed}"), is_asking(seed)
    least, most = 0, TALES + RISKY_TALES if asks else TALES
    if seed // OUTCOME_SEEDS % 2:
        least = TALES + RISKY_TALES
        most = least + OUTCOME_TALES
    tales = [tale(luck.randrange(least, most)) for _ in range(luck.choice((1, 1, 1, 2)))]
    if len({one.flow.name for one in tales}) < len(tales):
        tales = tales[:1]
    narrow = _NARROW if len(tales) > 1 and luck.random() < _NARROW_SHARE else None
    subjects = [
        Subject(f"r{number}", one.flow, None, one, queue=narrow, priority=luck.choice((0, 0, 5)))
        for number, one in enumerate(tales)
    ]
    if asks:
        subjects = [
            msgspec.structs.replace(subject, waits_s=luck.choice((0.0, 0.0, 0.0, 0.5, 2.0)))
            for subject in subjects
        ]
    return Schedule(seed, subjects, disk=disk)


def report_of(outcomes: Iterable[Outcome]) -> SimulationReport:
    """Combine all outcomes into one report."""
    listed = list(outcomes)
    faults: Counter[str] = Counter()
    for outcome in listed:
        faults.update(outcome.faults)
    return SimulationReport(
        schedules=len(listed),
        events=[outcome.events for outcome in listed],
        workers=[outcome.workers for outcome in listed],
        faults=dict(sorted(faults.items())),
        faults_each=[sum(outcome.faults.values()) for outcome in listed],
        violations=[SeededViolation(outcome.seed, text) for outcome in listed for text in outcome.violations],
    )


def figures(report: SimulationReport) -> dict[str, str]:
    """Return the figures that are printed for a report, as name -> value."""
    if not report.schedules:
        return {"schedules": "0"}
    events, each = sorted(report.events), report.faults_each

    def share(part: float) -> int:
        return events[min(len(events) - 1, int(part * len(events)))]

    return {
        "schedules": str(report.schedules),
        "events, mean": f"{sum(events) / len(events):.1f}",
        "events, distribution": f"min {events[0]}, 10 % {share(0.1)}, half {share(0.5)}, 90 % {share(0.9)}, max {events[-1]}",
        "workers, mean": f"{sum(report.workers) / len(events):.2f} (least {min(report.workers)})",
        "faults, mean": f"{sum(each) / len(each):.2f} (least {min(each)}, most {max(each)})",
        "faults by kind": ", ".join(f"{kind} {count}" for kind, count in report.faults.items()),
        "violations": str(len(report.violations))
        + "".join(f"\n  {violation}" for violation in report.violations[:20]),
    }


# --- processes ---------------------------------------------------------------------------------------


class SimulatedEngine(Engine):
    """The real engine, for use in a simulated process."""

    def settle(self, steady: SteppedClock, writer: LateWriter | None) -> None:
        """Install simulated versions of what a real machine provides: a monotonic clock, and (with `writer`) a writer thread."""
        self._holdings.now = steady.now
        if writer is not None:
            self._open().commits._writer = writer  # type: ignore[assignment]  # noqa: SLF001


class Process:
    """A worker of the simulated world: a series of processes, one after the other, each with its own event loop and engine."""

    def __init__(self, scene: Schedule, name: str) -> None:
        self.scene = scene
        self.name = name
        self.boots = 0
        self.loop: SimulatedLoop
        self.engine: SimulatedEngine | None = None
        self.clock: SteppedClock

    def boot(self) -> None:
        scene = self.scene
        self.boots += 1
        loop = self.loop = SimulatedLoop(scene.world, f"{self.name}.{self.boots}")
        self.clock = SteppedClock(scene.world, loop)
        self.engine = None
        store = FaultyStore(scene.disk, scene.world, loop, scene.faults, scene.ledger, self.crash)
        loop.spawn(self._live(loop, store))

    async def _live(self, loop: SimulatedLoop, store: FaultyStore) -> None:
        scene = self.scene
        engine = SimulatedEngine(
            store,
            flows=scene.flows_of(self.name),
            resources={**scene.resources, WORLD: Reached(loop.name, scene.witness, self._maybe_die)},
            grace=0.2,
            lease_ttl=LEASE_TTL_S,
            durability=scene.durability,
            park_after=scene.park_after_s,
            keep_checkpoints=scene.keep_checkpoints,
            clock=self.clock,
            luck=random.Random(f"{scene.seed} {loop.name}"),
            inline=True,
        )
        await engine.__aenter__()
        scene.children.take_the_place_in(engine)
        writer = LateWriter(store, loop, scene.luck) if scene.writes_late else None
        engine.settle(SteppedClock(scene.world, loop), writer)
        self.engine = engine
        self._renew(engine, loop)
        while engine is self.engine:
            with suppress(HoldfastError):
                await engine.work(
                    concurrency=scene.concurrency,
                    on_end=lambda run: None,  # the oracle looks at the log
                    on_report=scene.reports.append,
                )
            await asyncio.sleep(0.1)

    def _renew(self, engine: SimulatedEngine, loop: SimulatedLoop) -> None:
        """Renew leases regularly, as the renewal thread of a real engine does, also when the engine is idle."""
        if engine._services is not None:  # noqa: SLF001
            engine._holdings.keep()  # noqa: SLF001
        loop.call_later(LEASE_TTL_S / 3, self._renew, engine, loop)

    def _maybe_die(self, place: str) -> None:
        """Crash the process with some probability. Called inside the functions of nodes."""
        if self.loop.dead:
            raise ProcessDied
        faults = self.scene.faults
        if faults.left and faults.luck.random() < faults.rate / 2 and faults.strike("crash in node"):
            self.crash()
            raise ProcessDied

    def crash(self) -> None:
        """Kill the process, and start another one in its place some time later."""
        if not self.loop.dead:
            self.loop.kill()
            self.scene.ledger.died(self.loop.name)
            self.engine = None
            wait = self.scene.luck.choice((0.0, 0.1, 1.0, 1.5 * LEASE_TTL_S))
            self.scene.outside.call_later(wait, self.boot)

    def pause(self, seconds: float) -> None:
        """Suspend the process, with its timers and its lease renewals, for this many seconds."""
        self.loop.asleep_until = self.scene.world.now + seconds

    def drain(self) -> None:
        """Stop the process gracefully, and start another one when it has stopped."""
        engine, self.engine = self.engine, None
        if engine is None or self.loop.dead:
            return

        async def leave() -> None:
            loop = self.loop
            with suppress(HoldfastError):
                await engine.close()
            self.scene.outside.call_soon(self.boot)
            self.scene.ledger.died(loop.name)
            loop.kill()

        self.loop.spawn(leave())


class Schedule:
    """One simulation with one seed: its processes, callers, faults and store, from the start to the outcome."""

    def __init__(
        self,
        seed: int,
        subjects: list[Subject],
        *,
        disk: Disk | None = None,
        calm: bool = False,
        answers: Mapping[str, Answer] | Answers | None = None,
        signals: dict[str, Any] | None = None,
        resources: dict[str, Any] | None = None,
        children: Mapping[str, FakeChild] | None = None,
    ) -> None:
        luck: random.Random = Luck(seed)
        self.luck = luck
        self.seed = seed
        self.subjects = list(subjects)
        self.resources = resources or {}
        self.children = FakeChildren(children)
        self.answers = answers_of(answers)
        self.signals = signals or {}
        self.world = World(luck)
        self.faults = Faults(luck)
        if calm:
            self.faults.left = 0
        self.ledger = Ledger(lambda: self.world.now + self.store_offset)
        self.witness = BodyWitness(self.ledger.tick, self.ledger.leases)
        self.store_offset = 0.0
        self.writes_late = luck.random() < 0.5
        self.concurrency = luck.choice((1, 2, 4))
        self.park_after_s = luck.choice((0.02, 0.5, 5.0))
        self.snapshot_every = luck.choice((4, 9, 30, 4000))
        self.sees_the_dead = luck.random() < 0.5
        self._draw_ways(random.Random(f"ways {seed}"), calm=calm)
        self.asks = not calm and is_asking(seed)
        self.reports: list[Any] = []
        self.disk = (disk or _memory)(lambda: self.world.now + self.store_offset, self._alive)
        if any(subject.queue == _NARROW for subject in subjects):
            self.disk.queues.limit(_NARROW, 1)
            self.ledger.limits[_NARROW] = 1
        self.outside = SimulatedLoop(self.world, "outside")
        self.processes = [Process(self, f"w{number}") for number in range(luck.choice((2, 2, 3)))]
        self.attending: list[asyncio.Task[None]] = []
        self._unattended = 0
        self._over = self.outside.create_future()
        """Done when all simulated callers have finished, because their run is over or because the caller raised an exception."""
        self.hands = [self.make_hand(subject, calm=calm) for subject in subjects]

    @property
    def flows(self) -> list[Flow[Any]]:
        """The flows that every engine knows."""
        return [subject.flow for subject in self.subjects]

    def flows_of(self, process: str) -> list[Flow[Any]]:
        """Return the flows that the engine of a process knows when it starts."""
        return self.flows

    def make_hand(self, subject: Subject, *, calm: bool) -> Hand:
        """Return the simulated caller of a run."""
        return Hand(self, subject, calm=calm)

    def run_ids(self) -> list[str]:
        """Return the ids of all runs of the schedule, callers before their children."""
        return [row.run_id for subject in self.subjects for row in family_of(self.disk, subject.run_id)]

    def _draw_ways(self, luck: random.Random, *, calm: bool) -> None:
        """Choose the settings of the engines, and whether logs are pruned while runs continue."""
        ways: tuple[Durability, ...] = ("sync", "sync", "sync", "sync", "async", "exit")
        self.durability: Durability = luck.choice(ways) if not calm else "sync"
        if (
            self.durability == "exit"
        ):  # with this durability there are fewer store calls at which a fault can happen
            self.faults.first_at = min(self.faults.first_at, 4)
        self.tidies = not calm and luck.random() < _TIDY_SHARE
        self.keep_checkpoints = luck.choice((None, 2)) if self.tidies else None

    def run(self) -> Outcome:
        """Run the schedule, and check the result."""
        stuck: list[str] = []
        with still(self.snapshot_every), self.world.limit_cpu(SCHEDULE_CPU_S):
            watching.append(self.witness)
            try:
                self._play()
            except (Stuck, Hung) as fault:
                stuck.append(f"{fault}; {self._describe_runs()}")
            finally:
                watching.pop()
                self.world.end()
        return self._outcome(stuck)

    def _play(self) -> None:
        for process in self.processes:
            process.boot()
        for hand in self.hands:
            self._spawn(hand)
        self.outside.spawn(self._torment())
        self.world.go_on(self._over.done, STARTS_AT + PATIENCE_S)
        for attended in self.attending:
            if not attended.done():
                raise Stuck(f"the runs are not over after {PATIENCE_S:.0f} s of virtual time")
            attended.result()

    def now(self) -> float:
        """Return the time of the simulated world."""
        return self.world.now

    def attend(self, subject: Subject) -> None:
        """Add a run to the schedule, with a simulated caller of its own."""
        hand = self.make_hand(subject, calm=False)
        self.subjects.append(subject)
        self.hands.append(hand)
        self._spawn(hand)

    def _spawn(self, hand: Hand) -> None:
        attended = self.outside.spawn(hand.attend())
        attended.add_done_callback(self._attended)
        self.attending.append(attended)
        self._unattended += 1

    def _attended(self, _: object) -> None:
        self._unattended -= 1
        if not self._unattended:
            self._over.set_result(None)

    def _describe_runs(self) -> str:
        found = []
        for run_id in self.run_ids():
            with suppress(HoldfastError):
                row = self.disk.run(run_id)
                holder = row.holder.id if row.holder is not None else None
                found.append(
                    f"{row.run_id} is {row.status} at event {row.seq}, held by {holder}, open nodes: {row.active}"
                )
        return "; ".join(found) or "no run was created"

    def _alive(self, holder: Holder) -> bool | None:
        """Return False if it is known that the holder's process is dead, and None if it is not known."""
        if not self.sees_the_dead:
            return None
        return None if holder.id in self.world.names else False

    async def _torment(self) -> None:
        """Cause the faults of whole processes (crashes, pauses, drains) and of clocks, and spurious wake-ups."""
        luck = self.luck
        while True:
            await self.outside.rest(luck.choice((0.03, 0.2, 0.9) if self.faults.left else (0.2, 0.9)))
            process = luck.choice(self.processes)
            if process.engine is not None and luck.random() < 0.3:
                self._wake(process)
            if self.faults.left and luck.random() < 0.25:
                kind = luck.choice(("crash", "pause", "pause", "drain", "clock step", "store clock step"))
                if kind in ("crash", "pause", "drain") and process.engine is None:
                    continue
                self.faults.strike(kind)
                self._strike(kind, process)

    def _strike(self, kind: str, process: Process) -> None:
        luck = self.luck
        if kind == "crash":
            process.crash()
        elif kind == "pause":
            process.pause(luck.choice(STALLS_S))
        elif kind == "drain":
            process.drain()
        elif kind == "clock step":
            process.clock.offset += luck.choice((-3600.0, -1.0, 1.0, 3600.0))
        else:
            self.store_offset += luck.choice((0.5, 1.5 * LEASE_TTL_S, -0.5, -3.0))

    def _wake(self, process: Process) -> None:
        """Wake the engine of a process without a reason, as duplicate or late notifications do."""
        engine = process.engine
        assert engine is not None
        for run_id in self.run_ids():
            process.loop.call_soon(engine._holdings.wake, run_id)  # noqa: SLF001
        if engine._worker is not None:  # noqa: SLF001
            process.loop.call_soon(engine._worker.look)  # noqa: SLF001

    # --- afterwards -----------------------------------------------------------------------------------

    def _outcome(self, stuck: list[str]) -> Outcome:
        run_ids = self.run_ids()
        wrong = [*stuck, *self.world.escaped, *self.witness.wrong]
        logs: dict[str, list[Row]] = {}
        bases: dict[str, int] = {}
        for run_id in run_ids:
            try:
                logs[run_id] = self.disk.events(run_id)
                bases[run_id] = self.disk.upkeep.trimmed(run_id).base
            except HoldfastError as fault:
                wrong.append(f"{run_id}: {fault}")
        wrong += oracle.check_acknowledged(logs, bases, self.ledger)
        for run_id, base in bases.items():
            logs[run_id][:0] = [row for row in self.ledger.rows[run_id] if row.seq <= base]
            wrong += oracle.check_base(run_id, logs[run_id], base)
        if wrong or self.seed % _VERIFIED == 0:
            wrong += oracle.verify_runs(self.disk, run_ids)
        elif self.seed % _VERIFIED == 1:
            wrong += [str(violation) for violation in checker.check(self.disk)]
        states: dict[str, Any] = {}
        walks: dict[str, oracle.Walk] = {}
        for subject, hand in zip(self.subjects, self.hands, strict=True):
            if subject.run_id in logs:
                run_id = subject.run_id
                walks[run_id] = oracle.walk_log(self.disk, run_id, logs[run_id], subject.tale, TRIES)
                wrong += self._judge(subject, hand, walks[run_id], states, looks=not stuck and not wrong)
        wrong += self.judge_rest(walks)
        return Outcome(
            seed=self.seed,
            events=sum(map(len, logs.values())),
            workers=len(self.processes),
            faults=dict(self.faults.happened),
            violations=wrong,
            trace=self._trace(logs),
            states=states,
            virtual_s=self.world.now - STARTS_AT,
        )

    def judge_rest(self, walks: dict[str, oracle.Walk]) -> list[str]:
        """Return what several runs together show: what forks repeated unasked, and effects that happened twice."""
        forks = [subject for subject in self.subjects if subject.of is not None]
        if not forks:
            return []
        runs = ForkedRuns(
            logs={run_id: walk.log for run_id, walk in walks.items()},
            tales={subject.run_id: subject.tale for subject in self.subjects},
            fresh=frozenset(subject.run_id for subject in forks if subject.fresh),
            forked={
                subject.run_id: hand.forked for subject, hand in zip(self.subjects, self.hands, strict=True)
            },
            ledger=self.ledger,
        )
        return check_forks(runs, self.witness)

    def _judge(
        self, subject: Subject, hand: Hand, walk: oracle.Walk, states: dict[str, Any], *, looks: bool
    ) -> list[str]:
        """Return the violations that the log of a run and the calls of its nodes show. If `looks` is true, also check its final
        state and its answers.
        """
        fork = subject.of is not None
        wrong = [*hand.requests.wrong]
        wrong += check_made(subject.run_id, walk.log, hand.requests.made, self.ledger)
        if not fork:
            wrong += walk.wrong
            wrong += oracle.check_bodies(walk, self.witness, self.ledger)
            wrong += oracle.check_streams(walk, self.witness)
            wrong += oracle.check_routes(walk, self.witness, self.ledger)
        if looks and not wrong:
            row = self.disk.run(subject.run_id)
            values = history.load(self.disk, subject.run_id, row=row).values
            wrong += oracle.check_result(row, walk, values, cancelled=hand.cancels, fork=fork)
            wrong += oracle.check_answers(row, walk, hand.acknowledged)
            wrong += check_requests(subject.run_id, walk.log, self.disk, self.ledger)
            wrong += oracle.check_confirmed(walk, hand.requests.made)
            if row.status == "completed":
                states[subject.run_id] = values
        return wrong

    def _trace(self, logs: dict[str, list[Row]]) -> str:
        """Return a hash of everything that was written and done in the schedule, in order."""
        happened = (
            self.world.turns,
            self.world.now,
            sorted(self.faults.happened.items()),
            list(self.ledger.accepted.items()),
            self.witness.entries,
            [[run_id, [(row.seq, row.digest) for row in rows]] for run_id, rows in logs.items()],
        )
        return sha256(_packed(happened)).hexdigest()


def family_of(disk: Store, run_id: str) -> Iterator[RunRow]:
    """Yield the rows of a run and of all its descendants, callers first."""
    with suppress(HoldfastError):
        yield disk.run(run_id)
    for row in sorted(disk.runs(Query(origin=run_id)), key=lambda row: row.run_id):
        yield from family_of(disk, row.run_id)


# --- isolation from the machine ----------------------------------------------------------------------


@contextmanager
def still(snapshot_every: int) -> Iterator[None]:
    """Isolate the engine from the machine: from its settings, its processes and its git checkouts. Take a snapshot after every
    `snapshot_every` events, so that short runs test snapshots too.
    """
    calm: list[tuple[Any, str, Any]] = [
        (settings, "project_table", lambda folder=None: {}),
        (settings, "resolve", partial(settings.resolve, environment={})),
        (engines, "this_process", _simulated_process),
        (questions, "checkout", lambda folder=".": None),
        (journal, "SNAPSHOT_EVENTS_MAX", snapshot_every),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in calm]
    collects = gc.isenabled()
    gc.disable()  # a finaliser would run at a different moment each time, and the schedule would not be repeatable
    try:
        for place, name, value in calm:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        if collects:
            gc.enable()


def _simulated_process(ttl_s: float = 30.0) -> Holder:
    loop: Any = asyncio.get_running_loop()
    return Holder(id=loop.name, ttl_s=ttl_s)


def _memory(clock: Callable[[], float], alive: Callable[[Holder], bool | None]) -> Store:
    return MemoryStore(clock=clock, alive=alive)
