"""Random flows for the simulator, with nodes of every kind of behaviour, and the result that their runs must compute.

A `Tale` is a nested sketch (`holdfast.testing.flows`) whose nodes have habits: they record steps, sleep, wait for signals, ask,
stream, fail and are retried, fail for good, must not run twice, fan out. The result of a node depends on its name, its
iteration and the signal or answer it got, and, if it never runs in parallel, on the state it was given: `stage` is a hash chain
over all such visits.

Every call of a body (the function of a node) is noted in a `BodyWitness`, outside of any store, and every effect goes to a
receiver that de-duplicates by idempotency key. Invariant: a body that runs twice with the same input returns the same result.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial, wraps
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar, assert_never

import msgspec

from holdfast.core.graph import Flow, Graph, Node, Retry
from holdfast.core.state import add, append, merge
from holdfast.core.step import Step
from holdfast.errors import Recoverable
from holdfast.runtime.calls.context import Context
from holdfast.testing.copied_flows import copy_flow
from holdfast.testing.flows import Plan, Sketch, largest, nested

T = TypeVar("T")
WORLD = "holdfast.world"
"""The key in `ctx.resources` under which the functions of nodes find their `Reached` object."""
TALES = 160
"""The number of different random flows. It is limited, so that compiled flows are used again: compiling a flow takes a quarter of
the time of a schedule.
"""
RISKY_TALES = 60
"""The number of further random flows, for schedules with requests: many of their nodes and items must not run twice."""
OUTCOME_TALES = 60
"""The number of further random flows, in whose nodes steps have exceptions as outcomes, are tried again, or must not be called
twice.
"""
CRASHES_MAX = 1000
_VISITS = (4, 8)
TRIES = 3
_NAPS_S = (0.05, 0.3, 1.1)

Habit = Literal[
    "plain",
    "slow",
    "steps",
    "nap",
    "signal",
    "ask",
    "streams",
    "flaky",
    "doomed",
    "careful",
    "wary",
    "gated",
    "question",
    "saga",
    "single",
]
_HABITS: tuple[Habit, ...] = (
    "plain", "plain", "plain", "plain", "slow", "slow", "slow", "steps", "steps", "steps", "steps", "nap", "signal", "ask",
    "streams", "streams", "flaky", "flaky", "flaky", "doomed", "careful", "careful", "careful", "gated", "question",
)  # fmt: skip
_ITEM_HABITS: tuple[tuple[Habit, ...], ...] = (
    ("plain", "steps", "flaky", "slow"),
    ("careful", "wary", "flaky"),
    ("plain", "saga", "single"),
)
_OUTCOMES_FROM = TALES + RISKY_TALES
_TOLD: dict[Habit, str] = {"signal": "!", "ask": "?", "steps": "+", "nap": "z", "saga": "~"}
_CAREFUL: frozenset[Habit] = frozenset({"careful", "wary"})
"""Habits of nodes that must not run twice; wary ones take their time."""
CHARGE, ONCE = "charge", "once"
STEPS: dict[Habit, tuple[str, ...]] = {
    "steps": ("one", "two"),
    "careful": ("one",),
    "wary": ("one",),
    "saga": (CHARGE, "undo", "undo more"),
    "single": (ONCE,),
}
"""Habit of a node -> the names of the steps that it records."""
SPEAK = "speak"
"""The step of a node that streams: it streams a chunk, too."""


@dataclass
class Voyage:
    """The state of every random flow of the simulator. Only `stage` and the order of `trail` depend on the order of visits."""

    total: Annotated[int, add] = 0
    visits: Annotated[dict[str, int], merge] = field(default_factory=dict)
    trail: Annotated[list[str], append] = field(default_factory=list)
    longest: Annotated[int, largest] = 0
    stage: str = ""
    note: str = ""
    """For edits by callers; no node reads or changes it."""


class BodyCall(msgspec.Struct, frozen=True):
    """A note about a call of a node's function: which process and visit, what happened, and the state it saw."""

    turn: int
    process: str
    run_id: str
    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None
    what: str
    """What happened: `enter` or `exit` of the function, `step …` when a step is done, `kept …` when the function gets the
    result of the step.
    """
    seen: str = ""
    """`stage` and `total` of the state that the function was given."""
    fence: tuple[str | None, int] = (None, 0)
    """The holder and the fence of the run at the time of the note."""

    @property
    def visit(self) -> tuple[str, str, int, int, int | None]:
        return self.run_id, self.node, self.iteration, self.execution, self.item


FORK = "-fork"
"""The id of a fork is that of its parent and this suffix."""


def root_of(run_id: str) -> str:
    """Return the id of the run that a run descends from, over all forks."""
    return run_id.partition(FORK)[0]


class BodyWitness:
    """Collects notes about the calls of node functions, and the effects that these have on a receiver."""

    def __init__(self, tick: Callable[[], int], leases: dict[str, tuple[str | None, int]]) -> None:
        self.entries: list[BodyCall] = []
        self.effects: dict[str, tuple[str, str, int, int | None]] = {}
        """Idempotency key -> the visit that used it first."""
        self.keys: dict[tuple[str, str, int, int | None], str] = {}
        self.routed: list[tuple[int, str, str, int, list[str]]] = []
        """One tuple for every call of a branch function: when it was called (`Ledger.tick`), flow, node, iteration, and the
        runs that its process held.
        """
        self.wrong: list[str] = []
        self.chunks: dict[tuple[str, str, int, int, int], dict[str, list[str]]] = {}
        """Attempt of a node -> name of a process -> the chunks that the attempt streamed in that process. Two processes can
        make the same attempt only if the run's durability is not `sync`.
        """
        self.charges: Counter[tuple[str, str, int, int, int | None]] = Counter()
        """Visit -> how often its card was to be charged."""
        self.undone: set[tuple[str, str, int, int, int | None]] = set()
        """The visits that have begun to undo: from then on, their card has cover."""
        self._tick = tick
        self._leases = leases

    def note(self, process: str, ctx: Any, what: str, seen: str = "") -> None:
        self.entries.append(
            BodyCall(
                self._tick(), process, ctx.run_id, ctx.node, ctx.iteration, ctx.execution, ctx.attempt, ctx.item,
                what, seen, self._leases.get(ctx.run_id, (None, 0)),
            )
        )  # fmt: skip

    def holds(self, process: str, run_id: str) -> bool:
        """Return whether the process holds the run now."""
        return self._leases.get(run_id, (None, 0))[0] == process

    def route(self, flow: str, node: str, iteration: int) -> None:
        loop: Any = asyncio.get_running_loop()
        held = [run_id for run_id, (holder, _) in self._leases.items() if holder == loop.name]
        self.routed.append((self._tick(), flow, node, iteration, held))

    def receive(self, ctx: Any) -> None:
        """Receive an effect of a node. A second effect with the same idempotency key counts as the same effect. A run and its
        forks may share their keys.
        """
        key = ctx.idempotency_key()
        whose = (ctx.run_id, ctx.node, ctx.iteration, ctx.item)
        first = self.effects.setdefault(key, whose)
        if (root_of(first[0]), *first[1:]) != (root_of(whose[0]), *whose[1:]):
            self.wrong.append(f"{_named(whose)} and {_named(first)} have the same idempotency key")
        if self.keys.setdefault(whose, key) != key:
            self.wrong.append(f"{_named(whose)} has two idempotency keys")


def _named(visit: tuple[str, str, int, int | None]) -> str:
    run_id, node, iteration, item = visit
    whose = f"node {node!r}" if item is None else f"item {item} of node {node!r}"
    return f"{run_id}: {whose} (iteration {iteration})"


class Reached:
    """A resource for the nodes of one simulated process: nodes note their calls through it, and the process may die at these
    points.
    """

    def __init__(self, process: str, witness: BodyWitness, die: Callable[[str], None]) -> None:
        self.process = process
        self.witness = witness
        self.die = die

    def enter(self, ctx: Any, seen: str = "") -> None:
        self.die("node.enter")
        self.witness.note(self.process, ctx, "enter", seen)
        self.witness.receive(ctx)

    def exit(self, ctx: Any) -> None:
        self.witness.note(self.process, ctx, "exit")
        self.die("node.exit")


@lru_cache(maxsize=4096)
def chain_stage(stage: str, mark: str) -> str:
    """Return the next value of the state field `stage`: a hash of the previous value and the text that identifies the visit."""
    return sha256(f"{stage}>{mark}".encode()).hexdigest()[:8]


class Tale:
    """A random flow of the simulator, the habits of its nodes, and the expected result of its runs."""

    def __init__(self, sketch: Sketch, habits: dict[str, Habit], flow: Flow[Voyage]) -> None:
        self.sketch = sketch
        self.habits = habits
        self.flow = flow
        self._told = {name: _TOLD[habit] for name, habit in habits.items() if habit in _TOLD}
        assert sketch.visits is not None
        self.visits = {name: count for name, count in sketch.visits.items() if count}
        self.expected = self._expected()

    def is_careful(self, node: str) -> bool:
        """Return whether the node must not run twice."""
        return self.habits.get(node) in _CAREFUL

    def _expected(self) -> dict[str, Any]:
        """Return the final state, without `stage`, that every completed run must have, whatever faults happened."""
        total, trail = 0, []
        visits: dict[str, int] = {}
        for name, count in self.visits.items():
            if self.habits.get(name) == "question":
                continue
            for iteration in range(1, count + 1):
                items = range(self.sketch.items[name]) if name in self.sketch.items else (None,)
                for item in items:
                    total += 1
                    trail.append(self.mark(name, iteration, item))
                    visits[name] = iteration
        return {
            "total": total, "visits": visits, "trail": sorted(trail), "longest": max(visits.values(), default=0),
        }  # fmt: skip

    def mark(self, node: str, iteration: int, item: int | None = None) -> str:
        """Return the text that a visit appends to the list `trail` in the state. It names the node, the iteration and the item,
        and ends with a suffix for the habit (the kind of behaviour) of the node.
        """
        told = self._told.get(node, "")
        return f"{node}.{iteration}{told}" if item is None else f"{node}.{iteration}[{item}]{told}"

    def update(self, node: str, iteration: int, item: int | None, stage: str) -> dict[str, Any]:
        """Return the update that a visit returns if it was given this `stage`."""
        mark = self.mark(node, iteration, item)
        update = {"total": 1, "visits": {node: iteration}, "trail": [mark], "longest": iteration}
        if item is None and node in self.sketch.alone:
            update["stage"] = chain_stage(stage, mark)
        return update

    def signals(self) -> list[tuple[str, Any]]:
        """Return the signals that are sent to a run: every visit waits for a name of its own. A node that waits for a payload
        of one type is first sent a payload that does not fit.
        """
        sent: list[tuple[str, Any]] = []
        for node, count in self.visits.items():
            if self.habits.get(node) != "signal":
                continue
            for name in (f"{node}.{iteration}" for iteration in range(1, count + 1)):
                if signal_manner(node) == "pickily":
                    sent += [(name, {"word": UNFIT}), (name, {"word": name})]
                else:
                    sent.append((name, name))
        return sent


@cache
def tale(number: int) -> Tale:
    """Make the random flow with this number: the same number always gives the same flow."""
    luck = random.Random(number)
    while True:
        sketch = nested(luck, depth=2)
        assert sketch.visits is not None
        if _VISITS[0] <= sum(sketch.visits.values()) <= _VISITS[1]:
            break
    sketch = replace(sketch, items={name: 2 * count for name, count in sketch.items.items()})
    visits = sketch.visits or {}
    habits: dict[str, Habit] = {}
    doomed = False
    for name in sketch.nodes:
        habit: Habit = luck.choice(_HABITS)
        if number >= TALES and habit in ("plain", "slow", "careful"):
            habit = luck.choice((habit, "wary"))
        if name in sketch.plans and habit in ("question", "doomed"):
            habit = "steps"
        if number >= _OUTCOMES_FROM and habit not in ("question", "doomed", "gated"):
            habit = luck.choice((habit, "saga", "saga", "single"))
        if name in sketch.items:
            habit = luck.choice(_ITEM_HABITS[(number >= TALES) + (number >= _OUTCOMES_FROM)])
        # `skip` names a node, not a visit: a skip that arrives late could skip the next visit, so such a node has one visit.
        if habit == "doomed" and (doomed or name not in sketch.alone or visits[name] != 1):
            habit = "flaky"
        doomed = doomed or habit == "doomed"
        habits[name] = habit
    schedule: Literal["eager", "layered"] = "layered" if luck.random() < 0.15 else "eager"
    return _compile(sketch, habits, schedule, luck.choice((64, 64, 2)))


def _compile(
    sketch: Sketch, habits: dict[str, Habit], schedule: Literal["eager", "layered"], max_parallel: int
) -> Tale:
    graph = Graph(sketch.name, Voyage)
    made: list[Tale] = []
    for name in sketch.nodes:
        _add(graph, sketch, name, habits[name], made)
    for source, target in sketch.edges:
        graph.edge(source, target)
    for source, plan in sketch.plans.items():
        graph.branch(source, _router(sketch.name, source, plan), to=plan.targets)
    flow = graph.compile(schedule=schedule, max_parallel=max_parallel, max_iterations=1000)
    made.append(Tale(sketch, habits, flow))
    return made[0]


def _add(graph: Graph[Voyage], sketch: Sketch, name: str, habit: Habit, made: list[Tale]) -> None:
    join: Literal["all", "any"] = "any" if name in sketch.any_joins else "all"
    if habit == "question":
        graph.ask(name, f"{name}?", options=["approve", "reject"], join=join)
        return
    body = _item_body(made, habit) if name in sketch.items else _BODIES.get(habit, _slow)(made)
    tries = Retry(attempts=TRIES, backoff=0.1, factor=2.0, jitter=0.1)
    graph.node(
        name=name,
        join=join,
        limit=2 if len(name) % 2 else 8,
        each=(lambda state, n=sketch.items[name]: range(n)) if name in sketch.items else None,
        approve=f"{name}?" if habit == "gated" else None,
        idempotent=habit not in _CAREFUL,
        retry=None if habit in _CAREFUL else tries,
        timeout=20.0 if habit in ("slow", "steps") else None,
        crash_limit=CRASHES_MAX,
    )(body)


def _router(flow: str, source: str, plan: Plan) -> Callable[[Voyage], tuple[str, ...]]:
    def route(state: Voyage) -> tuple[str, ...]:
        iteration = state.visits[source]
        if watching:
            watching[-1].route(flow, source, iteration)
        return plan.at(iteration)

    return route


watching: list[BodyWitness] = []
"""The last element is the `BodyWitness` of the running schedule. Branch functions get only the state, so they find it here."""

# --- bodies ------------------------------------------------------------------------------------------


def _plain(made: list[Tale]) -> Callable[..., Any]:
    def plain(state: Voyage, ctx: Context) -> dict[str, Any]:
        world: Reached = ctx.resources[WORLD]
        world.enter(ctx, f"{state.stage}/{state.total}")
        update = made[0].update(ctx.node, ctx.iteration, None, state.stage)
        world.exit(ctx)
        return update

    return plain


def _slow(made: list[Tale]) -> Callable[..., Any]:
    return _coroutine(made, lambda ctx: asyncio.sleep(0.01 * (ctx.iteration % 3)))


def _coroutine(made: list[Tale], inside: Callable[[Context], Any]) -> Callable[..., Any]:
    async def body(state: Voyage, ctx: Context) -> dict[str, Any]:
        world: Reached = ctx.resources[WORLD]
        world.enter(ctx, f"{state.stage}/{state.total}")
        await inside(ctx)
        update = made[0].update(ctx.node, ctx.iteration, None, state.stage)
        world.exit(ctx)
        return update

    return body


async def _keep_steps(ctx: Context, names: tuple[str, ...]) -> None:
    world: Reached = ctx.resources[WORLD]
    for name in names:
        kept = await ctx.step(name, _do_step, ctx, name)
        if kept != f"{ctx.node}.{ctx.iteration}.{ctx.execution}.{ctx.item}.{name}":
            world.witness.wrong.append(f"{ctx!r}: the step {name!r} returned {kept!r}")
        world.witness.note(world.process, ctx, f"kept {name}")


async def _take_time(ctx: Context) -> None:
    await asyncio.sleep(0.05)
    await _keep_steps(ctx, STEPS["wary"])


def _do_step(ctx: Context, name: str) -> str:
    world: Reached = ctx.resources[WORLD]
    world.witness.note(world.process, ctx, f"step {name}")
    world.die("step")
    return f"{ctx.node}.{ctx.iteration}.{ctx.execution}.{ctx.item}.{name}"


class Declined(Exception):
    """The outcome of the step `charge`."""


_CHARGE = Step(CHARGE, raises=(Declined,), retry=Retry(attempts=TRIES, backoff=0.1, jitter=0.1))
_ONCE = Step(ONCE, idempotent=False)


def _visit(ctx: Context) -> tuple[str, str, int, int, int | None]:
    return ctx.run_id, ctx.node, ctx.iteration, ctx.execution, ctx.item


def _charge(ctx: Context) -> str:
    """Fail a few times, and then be declined, as long as nothing is undone: then a call succeeds, which must not happen."""
    world: Reached = ctx.resources[WORLD]
    world.witness.note(world.process, ctx, f"step {CHARGE}")
    world.die("step")
    world.witness.charges[_visit(ctx)] += 1
    if world.witness.charges[_visit(ctx)] <= sum(map(ord, ctx.node)) % (2 * TRIES):
        raise ConnectionError("no line")
    if _visit(ctx) in world.witness.undone:
        return "charged"
    raise Declined(ctx.node, ctx.iteration)


async def _undo(ctx: Context) -> None:
    """Be declined, and undo what was done before."""
    world: Reached = ctx.resources[WORLD]
    wrong = world.witness.wrong
    try:
        charged = await ctx.step(_CHARGE, _charge, ctx)
        if world.witness.holds(world.process, ctx.run_id):  # otherwise it may not know what is recorded
            wrong.append(f"{ctx!r}: the card was declined, and then {charged}")
    except Declined as declined:
        if declined.args != (ctx.node, ctx.iteration) or not ctx.kept(CHARGE):
            wrong.append(f"{ctx!r}: the step {CHARGE!r} raised {declined!r}")
        world.witness.note(world.process, ctx, f"kept {CHARGE}")
        world.witness.undone.add(_visit(ctx))
    await _keep_steps(ctx, STEPS["saga"][1:])


async def _call_once(ctx: Context) -> None:
    world: Reached = ctx.resources[WORLD]
    await asyncio.sleep(0.01)
    got = await ctx.step(_ONCE, _do_step, ctx, ONCE)
    if got != f"{ctx.node}.{ctx.iteration}.{ctx.execution}.{ctx.item}.{ONCE}":
        world.witness.wrong.append(f"{ctx!r}: the step {ONCE!r} returned {got!r}")
    world.witness.note(world.process, ctx, f"kept {ONCE}")


async def _nap(ctx: Context) -> None:
    began = ctx.last_checkpoint
    if began is None:
        await ctx.checkpoint(ctx.iteration)
    elif began != ctx.iteration:
        ctx.resources[WORLD].witness.wrong.append(f"{ctx!r}: got the wrong checkpoint {began!r}")
    await clean_up_around(ctx, ctx.sleep(_NAPS_S[ctx.iteration % 3]))


@dataclass
class Word:
    """The payload of a signal that some nodes wait for. Its JSON Schema allows every word, but the type itself rejects one."""

    word: str

    def __post_init__(self) -> None:
        if self.word == UNFIT:
            raise ValueError("this word does not fit")


UNFIT = "unfit"
_PATIENCE_S = 0.1


def signal_manner(node: str) -> Literal["plainly", "impatiently", "pickily"]:
    """Return how a node waits for its signals: without a limit (plainly), for a moment and then again (impatiently), or for a
    payload of one type (pickily).
    """
    manners: tuple[Literal["plainly", "impatiently", "pickily"], ...] = ("plainly", "impatiently", "pickily")
    return manners[sum(map(ord, node)) % len(manners)]


async def clean_up_around(ctx: Context, wait: Awaitable[T]) -> T:
    """Await something, with code around it that cleans up as if the node were cancelled: while it only unwinds, that must have no
    effect. (After a real cancel the code does nothing, so that a schedule is the same as without it.)
    """
    try:
        return await wait
    except asyncio.CancelledError:
        if not ctx.cancelled:
            await ctx.step("release", _release, ctx)
        raise


def _release(ctx: Context) -> None:
    ctx.resources[WORLD].witness.wrong.append(f"{ctx!r}: cleaned up although nothing was cancelled")


async def _take_first(ctx: Context, name: str) -> Any:
    """Wait for a signal for a moment, withdraw the wait, sleep, and wait again: no signal is lost, whenever the node runs again.
    Nodes with an even iteration use an asyncio timer, the others a race between two tasks.
    """
    if ctx.iteration % 2 == 0:
        try:
            async with asyncio.timeout(_PATIENCE_S):  # the same on every Python, unlike `asyncio.wait_for`
                return await ctx.wait_for(name)
        except TimeoutError:
            return await ctx.wait_for(name, key="again")
    waiting = asyncio.ensure_future(ctx.wait_for(name))
    timer = asyncio.ensure_future(ctx.sleep(_PATIENCE_S, key="patience"))
    await asyncio.wait([waiting, timer], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.01)
    waiting.cancel()
    timer.cancel()
    await asyncio.gather(waiting, timer, return_exceptions=True)
    if await ctx.step("came", _has_come, waiting) and not waiting.cancelled():
        return waiting.result()
    # From here on the first wait is of no interest, so it must not receive the signal when the node runs again.
    await clean_up_around(ctx, ctx.sleep(_NAPS_S[2], key="nap"))
    return await clean_up_around(ctx, ctx.wait_for(name, key="again"))


async def _has_come(waiting: asyncio.Future[Any]) -> bool:
    return not waiting.cancelled()


async def _await_signal(ctx: Context) -> None:
    name = f"{ctx.node}.{ctx.iteration}"
    match signal_manner(ctx.node):
        case "plainly":
            payload = await clean_up_around(ctx, ctx.wait_for(name))
        case "impatiently":
            payload = await _take_first(ctx, name)
        case "pickily":
            payload = (await clean_up_around(ctx, ctx.wait_for(name, type=Word))).word
        case unknown:
            assert_never(unknown)
    if payload != name:
        ctx.resources[WORLD].witness.wrong.append(f"{ctx!r}: waited for {name!r}, but got {payload!r}")


async def _ask(ctx: Context) -> None:
    answer = await clean_up_around(ctx, ctx.ask("which?", options=["this", "that"]))
    if answer != answer_to(ctx.node, ctx.iteration, ["this", "that"]):
        ctx.resources[WORLD].witness.wrong.append(f"{ctx!r}: got the wrong answer {answer!r}")


def answer_to(node: str, iteration: int, options: list[str]) -> str:
    """Return the answer to a question, chosen so that every run continues and ends in the same state."""
    for yes in ("approve", "retry", "run"):
        if yes in options:
            return yes
    return options[iteration % len(options)]


async def _stream(ctx: Context) -> None:
    world: Reached = ctx.resources[WORLD]
    attempt = (ctx.run_id, ctx.node, ctx.iteration, ctx.execution, ctx.attempt)
    said = world.witness.chunks.setdefault(attempt, {})[world.process] = []

    def say(number: int) -> None:
        chunk = f"{ctx.node}.{ctx.iteration}.{ctx.attempt}.{number}"
        ctx.emit(chunk)
        said.append(chunk)

    for number in range(3):
        say(number)
        await asyncio.sleep(0.01)
    await ctx.step(SPEAK, say, 3)
    ctx.cost(tokens=1)


async def _fail_first(ctx: Context) -> None:
    await asyncio.sleep(0)
    if ctx.attempt < TRIES:
        raise Recoverable("as drawn")


async def _fail_always(ctx: Context) -> None:
    await asyncio.sleep(0)
    raise Recoverable("as drawn")


_INSIDE: dict[Habit, Callable[[Context], Any]] = {
    **{habit: partial(_keep_steps, names=names) for habit, names in STEPS.items()},
    "wary": _take_time,
    "saga": _undo,
    "single": _call_once,
    "nap": _nap,
    "signal": _await_signal,
    "ask": _ask,
    "streams": _stream,
    "flaky": _fail_first,
    "doomed": _fail_always,
}
_BODIES: dict[str, Callable[[list[Tale]], Callable[..., Any]]] = {
    "plain": _plain,
    "gated": _plain,
    **{habit: partial(_coroutine, inside=inside) for habit, inside in _INSIDE.items()},
}


def _item_body(made: list[Tale], habit: Habit) -> Callable[..., Any]:
    inside = _INSIDE.get(habit)

    async def visit_item(item: int, ctx: Context) -> dict[str, Any]:
        world: Reached = ctx.resources[WORLD]
        world.enter(ctx)
        if inside is not None:
            await inside(ctx)
        else:
            await asyncio.sleep(0.01 * (item % 2))
        update = made[0].update(ctx.node, ctx.iteration, item, "")
        world.exit(ctx)
        return update

    return visit_item


# --- users' flows ------------------------------------------------------------------------------------


def witness_flow(flow: Flow[Any]) -> Flow[Any]:
    """Return a copy of the flow whose nodes note in the `BodyWitness` of the schedule when they are called and when they
    return.
    """

    def change(node: Node) -> Node:
        if node.options.question is not None or node.streams or node.calls is not None:
            return node
        return msgspec.structs.replace(node, fn=_witness_node(node), takes_context=True)

    return copy_flow(flow, change)


def _witness_node(node: Node) -> Callable[..., Any]:
    def given(value: Any, ctx: Context) -> tuple[Any, ...]:
        return (value, ctx) if node.takes_context else (value,)

    @wraps(node.fn)
    def plain(value: Any, ctx: Context) -> Any:
        world: Reached = ctx.resources[WORLD]
        world.enter(ctx)
        returned = node.fn(*given(value, ctx))
        world.exit(ctx)
        return returned

    @wraps(node.fn)
    async def coroutine(value: Any, ctx: Context) -> Any:
        world: Reached = ctx.resources[WORLD]
        world.enter(ctx)
        returned = await node.fn(*given(value, ctx))
        world.exit(ctx)
        return returned

    return coroutine if node.is_async else plain
