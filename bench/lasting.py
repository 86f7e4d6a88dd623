"""The cost of a long history or a large state: bytes stored, time per step as a run grows, and time to resume a run."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Annotated, Any, NamedTuple

import holdfast as hf
from bench import payloads
from bench.stores import Place
from bench.workloads import (
    CHAIN_NODES,
    Counter,
    Took,
    chain_flow,
    loop_flow,
    now,
    since,
    steady,
    step_of,
    timed,
    warm_up,
    with_engine,
)
from holdfast import Engine, Flow, append

# --- states that grow or are wide ----------------------------------------------------------------------


@dataclass
class Letters:
    """A state with a list that grows with each step."""

    step: int = 0
    letters: Annotated[list[str], append] = field(default_factory=list)


class Grown(NamedTuple):
    """A run whose state grew by 1 KB per step."""

    stored_bytes: int
    step_s: list[float]
    """When each step began, in seconds."""

    def step_us(self, first: int, last: int) -> float:
        """Return the average time of a step in microseconds, between two steps."""
        return (self.step_s[last] - self.step_s[first]) / (last - first) * 1e6


def grow(place: Place, steps: int, *, loop: bool) -> Grown:
    """Append 1 KB of random text to a list in each step of a chain, or of a loop over one node. Bytes are counted after close."""
    texts = payloads.texts(steps)
    began: list[float] = []

    async def write(state: Letters) -> dict[str, Any]:
        began.append(time.perf_counter())
        return {"step": state.step + 1, "letters": [texts[state.step]]}

    flow = (loop_flow if loop else chain_flow)("grow", steps, write, Letters)

    async def work(engine: Engine) -> None:
        run, _ = await timed(lambda: engine.run(flow, run_id="measured"))
        assert (run.status, len(run.state.letters)) == ("completed", steps)
        began.append(time.perf_counter())

    with_engine(place, work)
    return Grown(place.stored_bytes(), began)


class Widened(NamedTuple):
    """A run with a large state of which each step changed a little."""

    stored_bytes: int
    """Bytes written by the steps alone, without the first state and the warm-up, in whole pages."""
    took: Took


def wide(place: Place, steps: int, *, typed: bool) -> Widened:
    """Run a loop that changes one number per step in a state of 1 MB: a type with many fields, or a plain dict."""
    fields = payloads.wide()

    async def count_typed(state: Any) -> dict[str, Any]:
        return {"step": state.step + 1}

    async def count_plain(state: dict[str, Any]) -> dict[str, Any]:
        return {"step": state["step"] + 1}

    kind = make_dataclass("Wide", [("step", int), *((name, list[str]) for name in fields)])
    flow = loop_flow("wide", steps, count_typed if typed else count_plain, kind if typed else dict)

    given = {"step": 0, **fields}
    first = kind(**given) if typed else given

    async def measured(engine: Engine) -> Took:
        await warm_up(engine, place)
        if place.kind == "memory":  # a store in memory was lost with the engine that started the run
            run, took = await timed(lambda: engine.run(flow, first, run_id="measured"))
        else:
            run, took = await timed(lambda: engine.resume("measured"))
        assert (run.status, step_of(run.state)) == ("completed", steps), run
        return took

    stored = []
    for begin in (
        lambda engine: engine.start(flow, first, run_id="measured"),
        lambda engine: warm_up(engine, place),
    ):
        with_engine(place, begin)
        stored.append(place.stored_bytes())
    took = with_engine(place, measured, flows=[flow])
    of_warm_up = stored[1] - stored[0]
    return Widened(place.stored_bytes() - stored[1] - of_warm_up, took)


# --- resuming ------------------------------------------------------------------------------------------


class Resumed(NamedTuple):
    """A run that another engine resumed."""

    to_node: Took
    """From the call of `resume` to the first line of the first node."""
    open_s: float
    """The time to open the engine and its store, before `resume` is called."""


class _Visits:
    """A node function that fails at one step until `going_on` is set, and notes when it reached that step."""

    def __init__(self, stops_at: int) -> None:
        self.stops_at = stops_at
        self.at: list[Took] = []
        self.going_on = False

    async def count(self, state: Counter) -> dict[str, Any]:
        if state.step == self.stops_at:
            self.at.append(now())
            if not self.going_on:
                raise RuntimeError("fails until `going_on` is set")
        return {"step": state.step + 1}


def resume(place: Place, stops_at: int, nodes: int = CHAIN_NODES) -> Resumed:
    """Resume a chain that failed in one of its nodes, with another engine in this process."""
    visits = _Visits(stops_at)
    flow = chain_flow("resume", nodes, visits.count)
    _fail(place, flow, lambda engine: engine.run(flow, run_id="measured"))
    visits.going_on = True
    with steady():
        return asyncio.run(_resumed(place, flow, visits, nodes))


def _fail(place: Place, flow: Flow[Any], call: Callable[[Engine], Any]) -> None:
    async def work(engine: Engine) -> None:
        try:
            await call(engine)
        except hf.RunFailed:
            return
        raise AssertionError("the run should have failed")

    with_engine(place, work, flows=[flow])


async def _resumed(place: Place, flow: Flow[Any], visits: _Visits, steps: int) -> Resumed:
    """Resume with a new engine, to the step at which the node fails again, or to the end."""
    opened_at = now()
    store = place.open()
    try:
        async with Engine(store, flows=[flow]) as engine:
            began, open_s = now(), since(opened_at).wall_s
            try:
                run = await engine.resume("measured")
            except hf.RunFailed:
                assert not visits.going_on
            else:
                assert (run.status, run.state.step) == ("completed", steps), run
    finally:
        store.close()
    reached = visits.at[-1]
    return Resumed(Took(reached.wall_s - began.wall_s, reached.cpu_s - began.cpu_s), open_s)


# --- a long history ------------------------------------------------------------------------------------


class History(NamedTuple):
    """One loop of very many steps, stopped midway and resumed several times."""

    events: int
    """Events in its log when it was resumed."""
    resumed: list[Resumed]
    early_us: float
    """CPU time per step near step 100."""
    late_us: float
    """CPU time per step at the end."""


def history(place: Place, steps: int, stops_at: int, *, times: int, window: int) -> History:
    """Run a loop that fails at one step, resume it a few times so that it fails there again, and then let it run to its end."""
    visits = _Visits(stops_at)
    marks: dict[int, float] = {}
    edges = {100, 100 + window, steps - window - 1, steps - 1}

    async def count(state: Counter) -> dict[str, Any]:
        if state.step in edges:
            marks[state.step] = time.process_time()
        return await visits.count(state)

    flow = loop_flow("history", steps, count)
    hasty = replace(place, synced=False)
    _fail(hasty, flow, lambda engine: engine.run(flow, run_id="measured"))
    resumed = []
    for _ in range(times):
        with steady():
            resumed.append(asyncio.run(_resumed(place, flow, visits, steps)))
    seen = _events(place)
    visits.going_on = True
    with steady():
        asyncio.run(_resumed(hasty, flow, visits, steps))
    early, late = ((marks[at + window] - marks[at]) / window * 1e6 for at in (100, steps - window - 1))
    return History(seen, resumed, early, late)


def history_of(place: Place, steps: int, *, window: int) -> tuple[float, float]:
    """Run a long loop; return the CPU time per step near step 100 and at the end, in microseconds."""
    marks: list[float] = []
    edges = {100, 100 + window, steps - window - 1, steps - 1}

    async def count(state: Counter) -> dict[str, Any]:
        if state.step in edges:
            marks.append(time.process_time())
        return {"step": state.step + 1}

    flow = loop_flow("history", steps, count)
    with steady():
        with_engine(place, lambda engine: engine.run(flow, run_id="measured"))
    began, warm, late, ended = marks
    return (warm - began) / window * 1e6, (ended - late) / window * 1e6


def _events(place: Place) -> int:
    store = place.open()
    try:
        return store.run("measured").seq
    finally:
        store.close()
