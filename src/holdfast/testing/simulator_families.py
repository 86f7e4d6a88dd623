"""Simulated families: runs that call other runs, over three generations, on several workers that crash between any two appends.

    outcome = family_schedule(seed).run()

The flows here are few and fixed; the seed chooses among them, which children fail until they are mended, and what callers and
operators do meanwhile: they rewind, cancel, pause, fork and prune callers and children, mend children that failed, and retry
their callers before or after that. Whatever they do, a run that completes has the result that is known in advance.

Some families are mended from the top: only the first caller is resumed or retried, again and again, with the same request and
with another one, before the causes are gone and afterwards (`TopHand`). Once they are gone, one command is enough.

Invariant: every choice is drawn from the random generator of the schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any

from holdfast.core import events
from holdfast.core.graph import END, START, Flow, Graph
from holdfast.core.run_state import ENDED, FINAL
from holdfast.core.state import append
from holdfast.errors import WaitTimeout
from holdfast.reading import history
from holdfast.runtime.calls.context import Context
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import RunRow
from holdfast.storage.rows import open_row
from holdfast.testing import checker
from holdfast.testing import simulator_oracle as oracle
from holdfast.testing.simulator import Disk, Schedule, family_of
from holdfast.testing.simulator_flows import CRASHES_MAX, WORLD, Reached, clean_up_around
from holdfast.testing.simulator_hands import Hand, Subject

ROOTS = 4
"""The number of different flows of first callers."""
_FAMILY = "holdfast.family"
_COMMANDS = ("RunResumed", "NodeScheduled")
_PACES_S = (0.0, 0.05, 0.4)
"""How long a leaf takes, by its number."""


@dataclass
class Parcel:
    """The state of every flow of a family."""

    n: int = 0
    fails: int = 0
    """A leaf whose number is divisible by this fails until it is mended; 0 if none does."""
    marks: Annotated[list[str], append] = field(default_factory=list)


class Repairs:
    """Which runs were mended, and which runs used each idempotency key."""

    def __init__(self) -> None:
        self.mended: set[str] = set()
        self.keys: dict[str, set[str]] = {}
        self.over_at: int | None = None
        """The seq of the first caller from which on no leaf fails any more; None if leaves may fail."""

    def note(self, ctx: Any) -> None:
        self.keys.setdefault(ctx.idempotency_key(), set()).add(ctx.run_id)


def family_schedule(seed: int, *, disk: Disk | None = None) -> FamilySchedule:
    """Make the schedule of a seed: one family."""
    luck, top = random.Random(f"family {seed}"), random.Random(f"family from the top {seed}")
    number, fails = luck.randrange(ROOTS), luck.choice((0, 0, 0, 2, 3, 5))
    from_top = top.random() < 0.3
    if from_top:
        number, fails = top.choice((0, 2, 3)), top.choice((2, 3, 5))
    return FamilySchedule(
        seed, [Subject("f", root(number), {"n": 1, "fails": fails})], disk=disk, from_top=from_top
    )


# --- flows -------------------------------------------------------------------------------------------


@cache
def leaf() -> Flow[Parcel]:
    """The flow of children that call nobody."""
    graph = Graph("leaf", Parcel)

    @graph.node(crash_limit=CRASHES_MAX)
    async def weigh(state: Parcel, ctx: Context) -> None:
        world: Reached = ctx.resources[WORLD]
        world.die("weigh")
        repairs: Repairs = ctx.resources[_FAMILY]
        repairs.note(ctx)
        await asyncio.sleep(_PACES_S[state.n % 3])
        is_mended = ctx.run_id in repairs.mended or repairs.over_at is not None
        if state.fails and state.n % state.fails == 0 and not is_mended:
            raise ValueError("not mended yet")

    @graph.node(crash_limit=CRASHES_MAX)
    async def stamp(state: Parcel, ctx: Context) -> dict[str, Any]:
        ctx.cost(tokens=1)
        return {"marks": [f"leaf {state.n}"]}

    return graph.chain(START, "weigh", "stamp", END).compile()


@cache
def middle() -> Flow[Parcel]:
    """The flow of children that call others."""
    graph = Graph("middle", Parcel)

    @graph.node(crash_limit=CRASHES_MAX)
    async def load(state: Parcel, ctx: Context) -> dict[str, Any]:
        done = await clean_up_around(ctx, ctx.call(leaf(), {"n": state.n * 10, "fails": state.fails}))
        return {"marks": [f"middle {state.n}", *done.marks]}

    @graph.node(crash_limit=CRASHES_MAX)
    async def side(state: Parcel, ctx: Context) -> dict[str, Any]:
        child = await ctx.start(
            leaf(), {"n": state.n * 10 + 1, "fails": state.fails}, cancel_with_caller=state.n % 2 == 0
        )
        await ctx.step("between", lambda: None)
        return {"marks": (await clean_up_around(ctx, ctx.wait_for(child))).marks}

    return graph.chain(START, "load", "side", END).compile()


@cache
def root(number: int) -> Flow[Parcel]:
    """The flow of a first caller."""
    graph = Graph(f"root{number}", Parcel)
    makers = (_of_branches, _of_items, _of_patience, _of_one)
    return makers[number](graph)


async def _close(state: Parcel, ctx: Context) -> dict[str, Any]:
    await clean_up_around(ctx, ctx.wait_for("go"))
    return {"marks": ["closed"]}


def _of_branches(graph: Graph[Parcel]) -> Flow[Parcel]:
    """Two branches that call at the same time as a third completes, and a call after them."""

    @graph.node(crash_limit=CRASHES_MAX)
    async def one(state: Parcel, ctx: Context) -> dict[str, Any]:
        return {
            "marks": (await clean_up_around(ctx, ctx.call(middle(), {"n": 1, "fails": state.fails}))).marks
        }

    @graph.node(crash_limit=CRASHES_MAX)
    async def two(state: Parcel, ctx: Context) -> dict[str, Any]:
        first = await ctx.start(leaf(), {"n": 2, "fails": state.fails}, key="first")
        second = await ctx.start(
            leaf(), {"n": 3, "fails": state.fails}, key="second", cancel_with_caller=True
        )
        return {
            "marks": (await clean_up_around(ctx, ctx.wait_for(second))).marks
            + (await clean_up_around(ctx, ctx.wait_for(first))).marks
        }

    @graph.node(crash_limit=CRASHES_MAX)
    async def three(state: Parcel, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"marks": ["three"]}

    graph.node(name="close", crash_limit=CRASHES_MAX)(_close)
    for name in ("one", "two", "three"):
        graph.chain(START, name, "close")
    return graph.edge("close", END).compile()


def _of_items(graph: Graph[Parcel]) -> Flow[Parcel]:
    """A fan-out whose items call."""

    @graph.node(each=lambda state: [4, 5, 6], limit=2, crash_limit=CRASHES_MAX)
    async def send(item: int, ctx: Context) -> dict[str, Any]:
        return {"marks": (await clean_up_around(ctx, ctx.call(leaf(), {"n": item, "fails": 0}))).marks}

    graph.node(name="close", crash_limit=CRASHES_MAX)(_close)
    return graph.chain(START, "send", "close", END).compile()


def _of_patience(graph: Graph[Parcel]) -> Flow[Parcel]:
    """A caller that does not wait for long, and then waits again; and one that leaves a child alone."""

    @graph.node(crash_limit=CRASHES_MAX)
    async def hurry(state: Parcel, ctx: Context) -> dict[str, Any]:
        child = await ctx.start(middle(), {"n": 2, "fails": state.fails})
        with suppress(WaitTimeout):
            return {"marks": (await ctx.wait_for(child, timeout=0.05)).marks}
        return {"marks": (await clean_up_around(ctx, ctx.wait_for(child))).marks}

    @graph.node(crash_limit=CRASHES_MAX)
    async def leave(state: Parcel, ctx: Context) -> dict[str, Any]:
        await ctx.start(leaf(), {"n": 8, "fails": 0}, cancel_with_caller=True)
        return {"marks": ["left"]}

    graph.node(name="close", crash_limit=CRASHES_MAX)(_close)
    return graph.chain(START, "hurry", "leave", "close", END).compile()


def _of_one(graph: Graph[Parcel]) -> Flow[Parcel]:
    """A chain of two calls."""

    @graph.node(crash_limit=CRASHES_MAX)
    async def call(state: Parcel, ctx: Context) -> dict[str, Any]:
        return {
            "marks": (await clean_up_around(ctx, ctx.call(middle(), {"n": 3, "fails": state.fails}))).marks
        }

    @graph.node(crash_limit=CRASHES_MAX)
    async def again(state: Parcel, ctx: Context) -> dict[str, Any]:
        return {"marks": (await clean_up_around(ctx, ctx.call(leaf(), {"n": 7, "fails": state.fails}))).marks}

    return graph.chain(START, "call", "again", END).compile()


def _middle_marks(n: int) -> list[str]:
    return [f"middle {n}", f"leaf {n * 10}", f"leaf {n * 10 + 1}"]


_EXPECTED: dict[str, Callable[[int], list[str]]] = {
    "leaf": lambda n: [f"leaf {n}"],
    "middle": _middle_marks,
    "root0": lambda n: [*_middle_marks(1), "leaf 2", "leaf 3", "three", "closed"],
    "root1": lambda n: ["leaf 4", "leaf 5", "leaf 6", "closed"],
    "root2": lambda n: [*_middle_marks(2), "left", "closed"],
    "root3": lambda n: [*_middle_marks(3), "leaf 7"],
}
"""Flow -> the marks of a run that completes, by its number."""


# --- callers and operators ---------------------------------------------------------------------------


class FamilyHand(Hand):
    """The simulated operator of one family."""

    def __init__(self, scene: FamilySchedule, subject: Subject, *, calm: bool) -> None:
        super().__init__(scene, subject, calm=True)
        luck = random.Random(f"operator {scene.seed} {subject.run_id}")
        self._draw = luck
        self._repairs = scene.repairs
        self._signals = [("go", 1)]
        plans = [] if calm else luck.choices(("cancel", "rewind", "rewind", "pause", "fork", "prune"), k=2)
        self._plans = [plan for plan in plans if plan != "fork" or subject.of is None]
        self.cancels = "cancel" in plans
        self._runs_it = luck.random() < 0.5

    async def attend(self) -> None:
        """Start the first caller, and operate its family until all of it is over."""
        while not self._exists():
            await self._ask(self._begin)
        while True:
            rows = list(family_of(self._scene.disk, self._run_id))
            going = [row for row in rows if row.status not in FINAL]
            if not going and not self._scene.disk.queues.waiting([row.run_id for row in rows]):
                return
            if going:
                await self._operate(self._draw.choice(going))
            await self._scene.outside.rest(self._luck.choice((0.02, 0.05, 0.2, 0.6)))

    async def _begin(self, engine: Engine) -> None:
        if self._runs_it and self._subject.of is None:
            await engine.run(self._subject.flow, self._subject.given, run_id=self._run_id)
        else:
            await self._start(engine)

    async def _operate(self, row: RunRow) -> None:
        draw, run_id = self._draw, row.run_id
        if row.status == "failed":
            await self._mend(row)
        elif row.status == "paused":
            await self._ask(lambda engine: engine.resume(run_id), waits=draw.random() < 0.5)
        elif self._plans and draw.random() < 0.3:
            await self._follow(self._plans.pop(), row)
        elif self._signals and draw.random() < 0.3:
            await self._tell()

    async def _follow(self, plan: str, row: RunRow) -> None:
        run_id = row.run_id
        match plan:
            case "cancel":
                await self._ask(lambda engine: engine.cancel(run_id))
            case "pause":
                await self._ask(lambda engine: engine.pause(run_id))
            case "fork":
                self._fork()
            case "prune":
                await self._ask(lambda engine: engine.prune(run_id, 1, compact=self._draw.random() < 0.5))
            case _:
                started = self._scene.disk.events(run_id, kinds=("NodeStarted",))
                if started:
                    node = self._draw.choice(started).node or ""
                    await self._ask(partial(_rewind, run_id, node), waits=False)

    async def _mend(self, row: RunRow) -> None:
        """Mend a child that failed, or retry its caller: in any order, so that callers are often retried too early."""
        disk, run_id, draw = self._scene.disk, row.run_id, self._draw
        state = history.load(disk, run_id)
        failure, node = state.failure, state.failure_node or ""
        if row.flow == "leaf":
            if draw.random() < 0.7:
                self._repairs.mended.add(run_id)
        elif failure is not None and failure.child and disk.run(failure.child).status == "cancelled":
            await self._ask(lambda engine: engine.retry(run_id, node, fresh=True), waits=False)
            return
        if draw.random() < 0.6:
            await self._ask(lambda engine: engine.resume(run_id), waits=False)


class TopHand(FamilyHand):
    """A simulated operator who mends a family from the top: no command names a descendant."""

    def __init__(self, scene: FamilySchedule, subject: Subject, *, calm: bool) -> None:
        super().__init__(scene, subject, calm=True)
        self.cancels = False
        self._commands = 0

    async def _operate(self, row: RunRow) -> None:
        disk, draw = self._scene.disk, self._draw
        rows = list(family_of(disk, self._run_id))
        if any(one.status == "failed" for one in rows) and draw.random() < 0.6:
            self._mend_causes(rows)
            await self._mend_from_top()
        elif self._signals and draw.random() < 0.3:
            await self._tell()

    def _mend_causes(self, rows: list[RunRow]) -> None:
        """Mend the causes of some failures or, if nothing moves, all of them and for good."""
        draw, repairs = self._draw, self._repairs
        failed = [one.run_id for one in rows if one.status == "failed" and one.flow == "leaf"]
        if failed and draw.random() < 0.5:
            repairs.mended.add(draw.choice(failed))
        is_still = rows[0].status == "failed" and all(one.status in ENDED and not one.held for one in rows)
        is_asked = bool(self._scene.disk.queues.waiting([one.run_id for one in rows]))
        if is_still and not is_asked and repairs.over_at is None and draw.random() < 0.5:
            repairs.over_at = rows[0].seq

    async def _mend_from_top(self) -> None:
        draw, run_id = self._draw, self._run_id
        verb = draw.choice(("resume", "resume", "retry"))
        if draw.random() < 0.5:
            await self._ask(lambda engine: getattr(engine, verb)(run_id), waits=draw.random() < 0.3)
            return
        self._commands += draw.random() < 0.7  # otherwise the last one is given again
        id = f"command {verb} {self._commands}"
        for _ in range(draw.choice((1, 2))):
            await self._ask(lambda engine: getattr(engine, verb)(run_id, execute=False, id=id))


async def _rewind(run_id: str, node: str, engine: Engine) -> None:
    await engine.resume(run_id, restart_at=node, force=True)


class FamilySchedule(Schedule):
    """One simulation of a family, with one seed."""

    def __init__(self, seed: int, subjects: list[Subject], *, from_top: bool = False, **options: Any) -> None:
        self.repairs = Repairs()
        self.from_top = from_top
        super().__init__(seed, subjects, resources={_FAMILY: self.repairs}, **options)
        self.tidies, self.asks = False, False

    @property
    def flows(self) -> list[Flow[Any]]:
        return [*super().flows, leaf(), middle()]

    def make_hand(self, subject: Subject, *, calm: bool) -> Hand:
        return (TopHand if self.from_top else FamilyHand)(self, subject, calm=calm)

    def judge_rest(self, walks: dict[str, oracle.Walk]) -> list[str]:
        """Return what the logs of the families, the results of their runs and the keys that they used show."""
        wrong = [str(violation) for violation in checker.check(self.disk)]
        for run_id in self.run_ids():
            row = self.disk.run(run_id)
            if row.status not in FINAL:
                wrong.append(f"{run_id}: the run is {row.status} at the end")
            elif row.status == "completed":
                wrong += self._judge_result(row)
            if row.status == "cancelled":
                wrong += self._judge_cancel(row)
            if self.from_top:
                wrong += self._judge_mending(row)
        for runs in self.repairs.keys.values():
            families = [run_id.partition(".")[0] for run_id in runs]
            if len(set(families)) < len(families):
                wrong.append(f"{sorted(runs)} have the same idempotency key: one of them was started twice")
        return wrong

    def _judge_mending(self, row: RunRow) -> list[str]:
        """Return what was wrong with the mending from the top: the first command after all causes were gone did not mend the
        family, or a descendant was resumed more often than its caller.
        """
        log = [(one.kind, one.seq) for one in self.ledger.rows[row.run_id]]
        if row.origin is not None:
            resumed, asked = self._count_commands(row.run_id), self._count_commands(row.origin)
            return (
                [f"{row.run_id}: resumed {resumed} times, its caller {asked} times"]
                if resumed > asked
                else []
            )
        over_at = self.repairs.over_at
        if over_at is None:
            return []
        commands = [seq for kind, seq in log if kind in _COMMANDS and seq > over_at]
        failed = [seq for kind, seq in log if kind == "RunFailed" and commands and seq > commands[0]]
        return (
            [f"{row.run_id}: failed again at {failed} although it was mended at {commands[0]}"]
            if failed
            else []
        )

    def _count_commands(self, run_id: str) -> int:
        """Return how often a run was resumed, or a node of it retried by hand."""
        log = (open_row(one, self.disk.blobs).event for one in self.ledger.rows[run_id])
        return sum(
            isinstance(event, events.RunResumed)
            or (isinstance(event, events.NodeScheduled) and event.why == "retry")
            for event in log
        )

    def _judge_cancel(self, row: RunRow) -> list[str]:
        """Return which children that end with a cancelled run went on, although nobody had asked them to end."""
        log = [(one, open_row(one, self.disk.blobs).event) for one in self.ledger.rows[row.run_id]]
        if row.rewinds:  # a run that is rewound leaves the children alone that it had
            return []
        commits, wrong = self.ledger.commits, []
        for one, event in log:
            if one.kind != "ChildStarted" or not event.cancels:
                continue
            end = commits[event.run, self.disk.run(event.run).seq]
            asked = [asked.id for asked in self.disk.inbox(run_id=event.run)]
            if end > commits[row.run_id, row.seq] and not any(id.startswith("caller:") for id in asked):
                wrong.append(f"{event.run}: the run was not cancelled with its caller {row.run_id}")
        return wrong

    def _judge_result(self, row: RunRow) -> list[str]:
        values = history.load(self.disk, row.run_id).values
        expected = _EXPECTED[row.flow](values["n"])
        if sorted(values["marks"]) == sorted(expected):
            return []
        return [f"{row.run_id}: the result is {values['marks']}, but should be {expected}"]
