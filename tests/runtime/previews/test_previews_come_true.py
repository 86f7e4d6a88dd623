"""What a preview says is what then happens: random flows, stopped at random, and each verb with random options, which is
previewed and then carried out.

What has begun and what ran is read from the log alone, without the code that makes previews.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

import holdfast as hf
from holdfast.core import consequences
from holdfast.core.events import Stored
from holdfast.core.run_state import RunState
from holdfast.errors import HoldfastError
from holdfast.reading import history, inbox
from holdfast.runtime import rehearsals, runner, unheld_runs
from holdfast.runtime.door import Door
from holdfast.storage.contract import Query
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.testing.builders import crashed_copy
from holdfast.testing.clock import ManualClock
from holdfast.testing.flows import Sketch, arbitrary, attended, nested, with_risks

VISITS_MAX = 12
SEEDS = 200
FAULTS: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("as drawn"),
    lambda: hf.Fatal("as drawn"),
    lambda: hf.Recoverable("as drawn"),
    lambda: ConnectionError("as drawn"),
)


class Visit(NamedTuple):
    node: str
    iteration: int


class World:
    """A store with a run `r`, of a random flow, and engines that use it one after the other."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(f"previews {seed}")
        self.sketch = self._sketch()
        self.flow = self.sketch.flow(schedule=self.luck.choice(("eager", "eager", "layered")))
        self.clock = ManualClock(auto=True)
        self.store = MemoryStore(clock=self.clock.now)
        self.calls = 0
        self.fails_at: dict[int, Callable[[], Exception]] = {}

    def _sketch(self) -> Sketch:
        for _ in iter(int, 1):  # for ever
            drawn = arbitrary(self.luck) if self.luck.random() < 0.2 else nested(self.luck, depth=2)
            sketch = with_risks(attended(drawn, self.luck) if self.luck.random() < 0.5 else drawn, self.luck)
            if sketch.visits is not None and sum(sketch.visits.values()) <= VISITS_MAX:
                return sketch
        raise AssertionError

    def witness(self, ctx: Any) -> None:
        self.calls += 1
        if (fault := self.fails_at.pop(self.calls, None)) is not None:
            raise fault()

    def do(self, deed: Callable[[hf.Engine], Awaitable[Any]], *flows: hf.Flow[Any]) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                self.store,
                flows=flows or [self.flow],
                clock=self.clock,
                luck=random.Random(1),
                inline=True,
                resources={"witness": self.witness},
            ) as engine:
                return await deed(engine)

        return asyncio.run(main())

    # --- the run before the verb ----------------------------------------------------------------------

    def begin(self) -> None:
        """Execute the run until something stops it: a failure, a question, a crash, or its end."""
        for _ in range(self.luck.choice((0, 1, 1, 2))):
            self.fails_at[self.luck.randrange(1, VISITS_MAX)] = self.luck.choice(FAULTS)
        self.do(lambda engine: go_on(engine, self.sketch, "r", self.flow, self.luck.randrange(6)))
        if self.luck.random() < 0.3:
            self.rewind()
        if self.luck.random() < 0.4:
            self.crash()
        self.fails_at.clear()

    def rewind(self) -> None:
        """Go back to a checkpoint, and fail once more after it."""
        if self.store.run("r").status == "completed":
            return
        self.fails_at[self.calls + self.luck.randrange(1, 6)] = self.luck.choice(FAULTS)
        seq = self.luck.choice(history.checkpoints(self.store, "r")).seq
        with suppress(hf.RunFailed):
            self.do(lambda engine: engine.resume("r", checkpoint=seq, force=True))

    def crash(self) -> None:
        """Go on in the world in which the process died after one of the events."""
        other = MemoryStore(clock=self.clock.now)
        crashed_copy(self.store, "r", self.luck.randrange(1, self.store.run("r").seq + 1), other)
        self.store = other

    def log(self, run_id: str = "r") -> list[Stored]:
        return [open_row(row, self.store.blobs) for row in self.store.events(run_id)]

    def contents(self) -> list[Any]:
        """Everything that a preview must leave as it is."""
        rows = self.store.runs(Query(limit=100))
        logs = [self.store.events(row.run_id) for row in rows]
        return [msgspec.to_builtins(rows), logs, self.store.inbox(run_id="r"), self.store.blobs.spilled("r")]

    # --- the verb -------------------------------------------------------------------------------------

    def draw(self) -> tuple[str, dict[str, Any]]:
        luck, nodes = self.luck, [*self.sketch.nodes, "nowhere"]
        stuck = list(history.load(self.store, "r").open) or nodes
        points = [point.seq for point in history.checkpoints(self.store, "r")]
        verb = luck.choice(("resume", "resume", "resume", "retry", "skip", "fork", "fork", "cancel"))
        if verb == "resume":
            place = luck.choice(
                ({}, {"checkpoint": luck.choice(points)}, {"after": luck.choice(nodes)}, {"restart_at": luck.choice(nodes)},
                 {"replay": True})
            )  # fmt: skip
            given: dict[str, Any] = dict(place)
            given |= {"force": True} if luck.random() < 0.2 else {}
            if luck.random() < 0.2:
                given["confirm"] = [luck.choice(nodes)]
            return verb, given
        if verb == "retry":
            given = {"node": luck.choice(luck.choice((stuck, nodes)))} if luck.random() < 0.6 else {}
            return verb, given | ({"fresh": True} if luck.random() < 0.3 else {})
        if verb == "skip":
            return verb, {"node": luck.choice(luck.choice((stuck, stuck, nodes)))}
        if verb == "fork":
            repeat = luck.choice(
                ("ask", "run", "skip", {luck.choice(nodes): luck.choice(("ask", "run", "skip"))})
            )
            given = {"checkpoint": luck.choice(points)} if luck.random() < 0.8 else {}
            return verb, given | {"repeat": repeat} | ({"fresh": True} if luck.random() < 0.2 else {})
        return verb, {}


async def go_on(engine: hf.Engine, sketch: Sketch, run_id: str, flow: Any, patience: int) -> None:
    """Execute a run, and answer what it asks this many times. A node that failed once does not fail again."""
    try:
        run = await (engine.run(flow, run_id=run_id) if flow is not None else engine.resume(run_id))
        while run.status == "waiting" and patience:
            patience -= 1
            for question in run.questions:
                await engine.answer(run_id, question.key, answer(sketch, question))
            run = await engine.resume(run_id)
    except (
        hf.RunFailed,
        hf.ResumeRefused,
    ):  # it failed, and for some failures only `force` would let it go on
        pass


def answer(sketch: Sketch, question: Any) -> str:
    if question.about in ("interrupt", "repeat"):
        return {"interrupt": "retry", "repeat": "run"}[question.about]
    iteration = int(question.key.removeprefix(question.node).split(".")[1])
    return sketch.answer_to(question.node, iteration)


def begun(
    log: Iterable[Stored], sketch: Sketch, stretches: Iterable[tuple[int, int]]
) -> set[tuple[Visit, int | None]]:
    """The visits that have begun, with each item of a fan-out that has: those that no rewind has undone."""
    parts = list(stretches)
    inside = [one for one in log if any(first <= one.seq <= last for first, last in parts)]
    return set(starts(inside, sketch))


def starts(log: Iterable[Stored], sketch: Sketch) -> Iterable[tuple[Visit, int | None]]:
    for stored in log:
        event = stored.event
        if stored.kind == "NodeStarted" and not event.woken and event.node not in sketch.items:
            yield Visit(event.node, event.iteration), None
        if stored.kind == "ItemStarted":
            yield Visit(event.node, event.iteration), event.item


def visits(nodes: Iterable[Any]) -> set[Visit]:
    return {Visit(one.node, iteration) for one in nodes for iteration in range(one.first, one.last + 1)}


async def carry_out(engine: hf.Engine, verb: str, given: dict[str, Any]) -> str:
    """Carry out a verb. Returns the run that it executes or has made."""
    try:
        made = await getattr(engine, verb)("r", **given)
    except (hf.RunFailed, hf.RunCancelled):
        return "r"
    return made if verb == "fork" else "r"


def _without_items(sketch: Sketch, told: set[Visit], known: set[tuple[Visit, int | None]]) -> set[Visit]:
    """The visits of fan-outs of which no item had begun: the node runs again, but no function of it is called a second time."""
    return {
        visit for visit in told if visit.node in sketch.items and not any(one == visit for one, _ in known)
    }


@pytest.mark.rotating
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_preview_says_is_what_then_happens(seed: int) -> None:
    world = World(seed)
    world.begin()
    verb, given = world.draw()
    before, head = world.contents(), history.load(world.store, "r")
    asked_before = set(head.questions)
    preview = world.do(lambda engine: engine.preview("r", verb, **given))
    assert world.contents() == before, "a preview changes nothing"
    if preview.confirm and verb == "resume":
        names = [one.node for one in preview.confirm]
        if preview.refused and "not idempotent" in preview.refused:
            with pytest.raises(hf.ResumeRefused) as refused:
                world.do(lambda engine: engine.resume("r", **given))
            assert refused.value.reason == preview.refused
            given = {**given, "confirm": names}
            confirmed = world.do(lambda engine: engine.preview("r", verb, **given))
            assert confirmed.digest == preview.digest, "confirm is decided after the preview"
            preview = confirmed
    if preview.refused:
        with pytest.raises(HoldfastError) as refused:
            world.do(lambda engine: carry_out(engine, verb, given))
        said = getattr(refused.value, "reason", str(refused.value))
        assert isinstance(refused.value, getattr(hf, preview.error or ""))
        assert said == preview.refused
        return
    known = begun(world.log(), world.sketch, head.stretches())
    if verb == "fork":  # what a rewind has undone counts too, if it is not idempotent
        known |= {one for one in starts(world.log(), world.sketch) if one[0].node in world.sketch.risky}
    with pytest.raises(hf.PreviewStale):
        world.do(lambda engine: carry_out(engine, verb, {**given, "expects": "another preview"}))
    assert [stored.seq for stored in world.log()][-1] == head.seq
    run_id = world.do(lambda engine: carry_out(engine, verb, {**given, "expects": preview.digest}))
    if verb != "fork":
        closed = asked_before - set(history.load(world.store, "r").questions)
        assert closed == {question.key for question in preview.closes}
        at_once = [stored for stored in world.log() if stored.seq > head.seq]
        assert not visits(preview.asks) & {visit for visit, _ in starts(at_once, world.sketch)}
    world.do(
        lambda engine: go_on(engine, world.sketch, run_id, None, 50) if verb != "cancel" else asyncio.sleep(0)
    )
    later = [stored for stored in world.log(run_id) if run_id != "r" or stored.seq > head.seq]
    ran = {visit for visit, item in starts(later, world.sketch) if (visit, item) in known}
    told, asked = visits(preview.rerun), visits(preview.asks)
    assert told <= ran | _without_items(world.sketch, told, known)
    assert ran <= told | asked
    assert not visits(preview.kept) & ran
    if verb == "resume" and preview.at is not None:
        risky = {one.node for one in (*preview.rerun, *preview.asks) if one.node in world.sketch.risky}
        assert {one.node for one in preview.confirm} >= risky


# --- planted bugs ------------------------------------------------------------------------------------


def the_digest_is_not_checked_under_the_lease(plant: pytest.MonkeyPatch) -> None:
    for place in (unheld_runs, runner):
        plant.setattr(place, "refuse_stale", lambda *args, **named: None)


def a_preview_writes(plant: pytest.MonkeyPatch) -> None:
    real = Door.preview

    def preview(self: Door, run: str, *args: Any) -> hf.Preview:
        with suppress(hf.RunOver):
            self._leave(run, inbox.Pause(id="noticed"))
        return real(self, run, *args)

    plant.setattr(Door, "preview", preview)


def a_question_before_a_visit_is_forgotten(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(consequences, "_later", lambda after, options, name, iteration: "run")


def an_open_visit_is_taken_for_done(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(RunState, "is_done", lambda self, name, iteration: iteration <= self.nodes[name].iteration)


def a_question_that_closes_is_not_listed(plant: pytest.MonkeyPatch) -> None:
    real = consequences.survey

    def survey(*args: Any) -> Any:
        return msgspec.structs.replace(real(*args), questions=())

    plant.setattr(rehearsals, "survey", survey)


@pytest.mark.parametrize(
    "bug",
    [
        the_digest_is_not_checked_under_the_lease,
        a_preview_writes,
        a_question_before_a_visit_is_forgotten,
        an_open_visit_is_taken_for_done,
        a_question_that_closes_is_not_listed,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            test_what_a_preview_says_is_what_then_happens(seed)
        except (AssertionError, pytest.fail.Exception, HoldfastError):
            return
    pytest.fail(f"{SEEDS} seeds do not find it")
