"""Random flows that are forked at every checkpoint, and forks that die after every commit: no visit of a node that is not
idempotent runs again unless a decision says so, and a receiver that de-duplicates by key applies each effect once.

    python tests/proof/forked_flows.py 500 0        # 500 flows, seed 0

The flows have loops, fan-outs, parallel nodes, joins and layers; about half of their nodes are not idempotent. Their runs
complete, or die in the middle, go back to an earlier checkpoint, are compacted, or are forks themselves. What may run again is
decided here from the logs alone, without the code that the engine uses for it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import holdfast as hf
from holdfast.core.events import Stored
from holdfast.reading import history
from holdfast.reading.verification import verify
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.testing import check
from holdfast.testing.builders import crashed_copy
from holdfast.testing.clock import ManualClock
from holdfast.testing.flows import Sketch, arbitrary, attended, nested, with_risks

VISITS_MAX = 10
_LUCK = random.Random(1)


class Visit(NamedTuple):
    """One visit of a node, or one item of it."""

    node: str
    iteration: int
    item: int | None


class Call(NamedTuple):
    """One call of a node's function."""

    run_id: str
    visit: Visit
    key: str


class Violation(Exception):
    """A promise about forks is broken."""


class CountedStore(MemoryStore):
    """Remembers the last event of every commit."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock.now)
        self.commits: dict[str, list[int]] = {}

    def append(self, batch: Any) -> Any:
        for append in batch:
            self.commits.setdefault(append.run_id, []).append(append.rows[-1].seq)
        return super().append(batch)


@dataclass
class World:
    """A store and the calls of node functions."""

    sketch: Sketch
    flow: hf.Flow[Any]
    seed: str
    loop: asyncio.AbstractEventLoop
    clock: ManualClock = field(default_factory=lambda: ManualClock(auto=True))
    store: CountedStore = field(init=False)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = CountedStore(self.clock)

    def note(self, ctx: Any) -> None:
        self.calls.append(Call(ctx.run_id, Visit(ctx.node, ctx.iteration, ctx.item), ctx.idempotency_key()))

    def do(self, deed: Callable[[hf.Engine], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            resources = {"witness": self.note}
            async with hf.Engine(
                self.store, flows=[self.flow], clock=self.clock, luck=_LUCK, inline=True, resources=resources
            ) as engine:
                return await deed(engine)

        return self.loop.run_until_complete(main())

    def use(self, verb: str, *args: Any, **given: Any) -> Any:
        return self.do(lambda engine: getattr(engine, verb)(*args, **given))

    def finish(self, run_id: str, **given: Any) -> None:
        """Resume a run, and answer what it asks, until it is completed."""

        async def to_the_end(engine: hf.Engine) -> str:
            run = await engine.resume(run_id, **given)
            while run.status == "waiting":
                for question in run.questions:
                    await engine.answer(run_id, question.key, self.answer(run_id, question))
                run = await engine.resume(run_id)
            return str(run.status)

        status = self.do(to_the_end)
        if status != "completed":
            raise Violation(f"{run_id} is {status}")

    def answer(self, run_id: str, question: Any) -> str:
        if question.about == "interrupt":
            return "retry"
        if question.about != "repeat":
            iteration = int(question.key.removeprefix(question.node).split(".")[1])
            return self.sketch.answer_to(question.node, iteration)
        # A node with a branch needs a result with which its router can choose.
        stuck = question.node in self.sketch.plans and "result" not in question.partial
        luck = random.Random(f"{self.seed} {run_id} {question.node} {question.partial['iteration']}")
        return "run" if stuck else luck.choice(("run", "skip"))

    def log(self, run_id: str) -> list[Stored]:
        return [open_row(row, self.store.blobs) for row in self.store.events(run_id)]

    def died_at(self, run_id: str, seq: int) -> World:
        """The world in which the process that executed a run died after an event. What it called until then is known."""
        other = World(self.sketch, self.flow, self.seed, self.loop, self.clock)
        crashed_copy(self.store, run_id, seq, other.store)
        return other


# --- what the logs say ---------------------------------------------------------------------------------


def begun_in(log: list[Stored], sketch: Sketch) -> set[Visit]:
    """The visits and items of risky nodes that have begun anywhere in a log."""
    found = set()
    for stored in log:
        event = stored.event
        if stored.kind == "ItemStarted" or (stored.kind == "NodeStarted" and event.node not in sketch.items):
            found.add(Visit(event.node, event.iteration, getattr(event, "item", None)))
    return {visit for visit in found if visit.node in sketch.risky}


def way_to(log: list[Stored], seq: int) -> list[Stored]:
    """The events of a log that led to an event."""
    by_seq = {stored.seq: stored for stored in log}
    came = []
    while seq in by_seq:
        stored = by_seq[seq]
        came.append(stored)
        seq = stored.event.to if stored.kind == "RunRewound" else seq - 1
    return came[::-1]


def done_in(way: list[Stored]) -> set[tuple[str, int]]:
    ended = ("NodeCompleted", "NodeSkipped")
    return {(stored.event.node, stored.event.iteration) for stored in way if stored.kind in ended}


def decided_in(log: list[Stored]) -> set[tuple[str, int]]:
    """The visits that a fork was told to run again."""
    first = log[0].event
    found = {(one.node, one.iteration) for one in first.visits if first.repeat.get(one.node) == "run"}
    answers = [stored.event for stored in log if stored.kind == "QuestionAnswered"]
    repeats = {
        stored.event.key
        for stored in log
        if stored.kind == "QuestionAsked" and stored.event.about == "repeat"
    }
    return found | {
        (one.node, one.iteration) for one in answers if one.key in repeats and one.answer == "run"
    }


# --- parents ------------------------------------------------------------------------------------------


@dataclass
class Parent:
    """A run that is forked: its world, its id, what it and its ancestors have begun, and what they had done where it began."""

    world: World
    run_id: str
    log: list[Stored]
    begun: set[Visit]
    done: set[tuple[str, int]] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)


def drawn(seed: str, luck: random.Random, loop: asyncio.AbstractEventLoop) -> World:
    while True:
        sketch = nested(luck, depth=2) if luck.random() < 0.3 else arbitrary(luck, most=5)
        if sketch.visits is None or sum(sketch.visits.values()) <= VISITS_MAX:
            break
    sketch = with_risks(attended(sketch, luck) if luck.random() < 0.2 else sketch, luck)
    schedule = luck.choice(("eager", "eager", "layered"))
    return World(sketch, sketch.flow(schedule=schedule, max_parallel=luck.choice((1, 3, 64))), seed, loop)


def make_parent(
    seed: str, luck: random.Random, loop: asyncio.AbstractEventLoop, seen: Counter[str]
) -> Parent:
    """A run with a past."""
    world = drawn(seed, luck, loop)
    world.use("start", world.flow, run_id="r")
    world.finish("r")
    calls = list(world.calls)
    if luck.random() < 0.6:
        world = world.died_at("r", luck.randrange(1, world.store.run("r").seq + 1))
        if luck.random() < 0.5 and world.store.run("r").status != "completed":
            place = luck.choice(history.checkpoints(world.store, "r")).seq
            world.finish("r", checkpoint=place, force=True)
            calls += world.calls
            world = world.died_at("r", luck.randrange(1, world.store.run("r").seq + 1))
            seen.update(rewound=world.store.run("r").rewinds != ())
    log = world.log("r")
    parent = Parent(world, "r", log, begun_in(log, world.sketch), calls=calls)
    if luck.random() < 0.2:
        parent = make_fork(parent, luck)
        seen.update(forks_of_forks=1)
    if luck.random() < 0.3:
        kept = world.use("prune", parent.run_id, luck.randrange(1, 3), compact=True)
        seen.update(compacted=bool(kept.events))
    seen.update(
        risky=bool(parent.begun), loops=bool(world.flow.topology.loops), fan_outs=bool(world.sketch.items)
    )
    return parent


def make_fork(parent: Parent, luck: random.Random) -> Parent:
    """A fork of a run, executed to its end, as the parent of other forks."""
    world = parent.world
    place = luck.choice(history.checkpoints(world.store, parent.run_id)).seq
    world.use("fork", f"{parent.run_id}@{place}", run_id="p")
    done = parent.done | done_in(way_to(parent.log, place))
    world.finish("p")
    log = world.log("p")
    calls = [*parent.calls, *world.calls]
    return Parent(world, "p", log, parent.begun | begun_in(log, world.sketch), done, calls)


# --- forks --------------------------------------------------------------------------------------------


def repeats(parent: Parent, luck: random.Random) -> Any:
    """What the caller of the fork decides beforehand."""
    draw, sketch = luck.random(), parent.world.sketch
    if draw < 0.7:
        return "ask"
    if draw < 0.85:
        return "run"
    plain = [name for name in sketch.nodes if name in sketch.risky and name not in sketch.plans]
    return {name: luck.choice(("ask", "skip", "run")) for name in plain}


Life = tuple[list[Stored], list[Call]]
"""The log of a fork, and the calls that were made while it was written."""


def judge(parent: Parent, place: int, lives: list[Life], how: str) -> None:
    """Raise `Violation` if calls of a fork repeat what was begun, or use a key that they should not. If the fork died, it has two
    lives: the calls of the first one may have had their effects.
    """
    done = parent.done | done_in(way_to(parent.log, place))
    keys: dict[Visit, set[str]] = {}
    own: dict[Visit, set[str]] = {}
    repeated = decided_in(parent.log) if parent.run_id == "p" else set()
    for call in parent.calls:
        if call.run_id != "p" or call.visit[:2] not in repeated:
            keys.setdefault(call.visit, set()).add(call.key)
    for log, calls in lives:
        decided = decided_in(log)
        for call in calls:
            visit, again = call.visit, call.visit[:2] in decided
            if visit[:2] in done:
                raise Violation(f"{how}: {visit} was done, and runs again")
            if visit in parent.begun and not again:
                raise Violation(f"{how}: {visit} was begun, and runs again although nobody decided so")
            (own if again and visit in parent.begun else keys).setdefault(visit, set()).add(call.key)
    for visit, used in [*keys.items(), *own.items()]:
        if len(used) > 1:
            raise Violation(f"{how}: {visit} has {len(used)} keys, so its effect is applied more than once")
    for visit, used in own.items():
        if used & keys.get(visit, set()):
            raise Violation(f"{how}: {visit} was to run again, and has the key of its first run")


def prove_flow(seed: str, loop: asyncio.AbstractEventLoop, seen: Counter[str]) -> None:
    """Fork a random run at every checkpoint, execute the fork, and let it die after every commit. Raises `Violation`."""
    luck = random.Random(seed)
    parent = make_parent(seed, luck, loop, seen)
    world = parent.world
    for point in history.checkpoints(world.store, parent.run_id):
        fork_id, before = f"f{point.seq}", len(world.calls)
        world.use("fork", point.id, run_id=fork_id, repeat=repeats(parent, luck))
        world.finish(fork_id)
        fork, first = world.log(fork_id), world.calls[before:]
        judge(parent, point.seq, [(fork, first)], f"fork at {point.seq}")
        if problems := verify(world.store, fork_id).problems:
            raise Violation(f"fork at {point.seq}: {problems}")
        asked = sum(stored.kind == "QuestionAsked" and stored.event.about == "repeat" for stored in fork)
        seen.update(forks=1, asked=asked, decided=len(decided_in(fork)), skipped=len(skips(fork)))
        for seq in world.store.commits[fork_id][:-1]:
            other = world.died_at(fork_id, seq)
            other.finish(fork_id)
            lives = [(fork, first), (other.log(fork_id), other.calls)]
            judge(parent, point.seq, lives, f"fork at {point.seq} died at {seq}")
            seen.update(deaths=1)
    # A copy of a run that died has no leases.
    if violations := [one for one in check(world.store) if one.run_id != "r" or one.invariant != "I3"]:
        raise Violation(str(violations[:3]))


def skips(fork: list[Stored]) -> list[Stored]:
    return [stored for stored in fork if stored.kind == "NodeSkipped" and stored.event.reason == "repeat"]


def main(flows: int, seed: int = 0) -> dict[str, Any]:
    """Prove this many flows. Returns counts, and the violations with the seeds that show them."""
    seen: Counter[str] = Counter()
    violations = []
    loop = asyncio.new_event_loop()
    for number in range(flows):
        name = f"forked {seed} {number}"
        try:
            prove_flow(name, loop, seen)
        except Exception as fault:  # a defect in one flow must not hide those in the next
            violations.append(f"seed {name!r}: {type(fault).__name__}: {fault}")
    loop.close()
    return {"flows": flows, **seen, "violations": len(violations), "told": violations}


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
