"""`hf.connect`: one object for blocking callers, with the verbs of the engine; store, flows and options are said once."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.runtime import blocking
from holdfast.storage.memory.store import MemoryStore

ROOT = Path(hf.__file__).parents[2]
VERBS = [
    name
    for name, found in vars(blocking).items()
    if inspect.isfunction(found) and hasattr(hf.Engine, name) and name in hf.__all__
]


def counting() -> Flow[dict[str, Any]]:
    graph: Graph[dict[str, Any]] = Graph("counting")

    @graph.node
    def one(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    return graph.ask("sure", "Sure?").chain(START, one, "sure", END).compile()


def test_store_and_flows_are_said_once(tmp_path: Path) -> None:
    flow = counting()
    with hf.connect(tmp_path / "runs.db", flows=[flow], blobs=tmp_path / "blobs") as holdfast:
        assert holdfast.start(flow, {"n": 1}, run_id="r") == "r"
        assert holdfast.resume("r").status == "waiting"
        (asked,) = holdfast.questions("r")
        holdfast.answer("r", asked.question.key, "approve", by="ada")
        assert holdfast.resume("r").state == {"n": 2}
        assert [run.id for run in holdfast.runs(status="completed")] == ["r"]
        assert holdfast.state("r@1") == {"n": 1}


def test_a_flow_that_was_run_on_a_connection_can_be_resumed_on_it() -> None:
    with hf.connect("memory://remembered") as holdfast:
        assert holdfast.run(counting(), {"n": 1}, run_id="r").status == "waiting"
        holdfast.answer("r", "sure", "approve")
        assert holdfast.resume("r").status == "completed"


def test_a_connection_has_every_blocking_verb() -> None:
    assert len(VERBS) == 23
    assert [verb for verb in VERBS if not hasattr(hf.Connection, verb)] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_a_connection_is_the_verb_of_the_engine(verb: str) -> None:
    ours, theirs = getattr(hf.Connection, verb), getattr(hf.Engine, verb)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert not inspect.iscoroutinefunction(ours)


OF_ONE_RUN = [verb for verb in VERBS if verb not in ("run", "start", "runs")]


@pytest.mark.parametrize("verb", OF_ONE_RUN)
@pytest.mark.parametrize("owner", [hf.Engine, hf.Connection, hf.Client, hf.BlockingClient, hf])
def test_the_run_that_a_verb_is_about_is_called_run(owner: Any, verb: str) -> None:
    parameters = [name for name in inspect.signature(getattr(owner, verb)).parameters if name != "self"]
    assert parameters[0] == "run"


def test_the_run_may_be_given_as_run_id_too(tmp_path: Path) -> None:
    flow = counting()
    with hf.connect(tmp_path / "runs.db", flows=[flow]) as holdfast:
        holdfast.run(flow, {"n": 1}, run_id="r")
        for by_name, by_place in (
            (holdfast.events(run_id="r"), holdfast.events("r")),
            (holdfast.questions(run_id="r"), holdfast.questions("r")),
            (holdfast.wait(run_id="r").seq, holdfast.wait(run="r").seq),
            (hf.checkpoints(run_id="r", store=tmp_path / "runs.db"), holdfast.checkpoints("r")),
        ):
            assert by_name == by_place


def test_a_store_that_was_opened_here_is_closed_and_one_that_was_given_is_not(tmp_path: Path) -> None:
    given = MemoryStore()
    with hf.connect(given) as holdfast:
        holdfast.start(counting(), {"n": 1}, run_id="r")
    assert given.run("r").status == "pending"
    with hf.connect(tmp_path / "runs.db") as holdfast:
        opened = holdfast._opened
        assert opened is not None
        assert holdfast.runs() == []
    with pytest.raises(hf.SettingError, match=r"closed; open another one with hf\.connect"):
        holdfast.runs()
    with pytest.raises(hf.StoreError, match="closed"):
        opened.run("r")
    holdfast.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lease_ttl": 0.1}, "lease_ttl"),
        ({"colour": "red"}, "an option 'colour'"),
        ({"flows": [Graph("g")]}, "compile"),
    ],
)
def test_wrong_options_are_refused_when_the_connection_is_opened(options: Any, told: str) -> None:
    with pytest.raises(hf.SettingError, match=told):
        hf.connect(MemoryStore(), **options)


def test_several_threads_use_one_connection_at_once(tmp_path: Path) -> None:
    flow = counting()
    with hf.connect(tmp_path / "runs.db", flows=flow) as holdfast, ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda n: holdfast.run(flow, {"n": n}, run_id=f"r{n}"), range(12)))
        assert [run.state["n"] for run in runs] == list(range(1, 13))
        assert {run.status for run in holdfast.runs()} == {"waiting"}


def test_a_connection_works_inside_a_running_loop() -> None:
    """As in a notebook."""
    holdfast = hf.connect(MemoryStore())

    async def cell() -> str:
        return holdfast.run(counting(), {"n": 1}).status

    assert asyncio.run(cell()) == "waiting"
    assert len(holdfast.runs()) == 1
    holdfast.close()


def test_after_a_signal_the_run_is_in_order_and_the_connection_is_still_open() -> None:
    graph: Graph[dict[str, Any]] = Graph("signalled")

    @graph.node
    async def one(state: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        return {"one": True}

    graph.node(name="two")(lambda state: {"two": True})
    flow = graph.chain(START, "one", "two", END).compile()
    with hf.connect(MemoryStore()) as holdfast:
        with pytest.raises(KeyboardInterrupt):
            holdfast.run(flow, {}, run_id="r")
        assert holdfast.get("r").status == "interrupted"
        assert holdfast.resume("r").state == {"one": True, "two": True}


# --- types -------------------------------------------------------------------------------------------

TYPED = """
from dataclasses import dataclass
from typing import assert_type

import holdfast as hf


@dataclass
class Trip:
    city: str


flow = hf.Graph("trip", Trip).compile()
options: hf.Options = {"store": "runs.db", "flows": [flow], "grace": 3}
assert_type(hf.run(flow, {"city": "Oslo"}, **options), hf.Run[Trip])
assert_type(hf.start(flow, Trip("Oslo"), run_id="r", on_exists="use", **options), str)
hf.answer("r", "sure", "approve", by="ada", **options)
with hf.connect(**options) as holdfast:
    assert_type(holdfast, hf.Connection)
    assert_type(holdfast.run(flow, Trip("Oslo"), run_id="r"), hf.Run[Trip])
    assert_type(holdfast.start(flow, {"city": "Oslo"}), str)
    assert_type(holdfast.runs(flow="trip"), list[hf.RunSummary])
    holdfast.answer("r", "sure", "approve", by="ada", confidence=0.9)
with hf.connect("runs.db", flows=flow, park_after=1) as other:
    other.cancel("r", "enough")


async def work() -> None:
    async with hf.Engine(**options) as engine:
        await engine.work(until="idle")


async def calls(state: Trip, ctx: hf.Context) -> None:
    assert_type(await ctx.call(flow, Trip("Oslo")), Trip)
    child = await ctx.start(flow, {"city": "Oslo"}, queue="slow")
    assert_type(child, hf.ChildRun[Trip])
    assert_type(await ctx.wait_for(child), Trip)


def calls_blocking(state: Trip, ctx: hf.BlockingContext) -> None:
    assert_type(ctx.call(flow, Trip("Oslo")), Trip)
    assert_type(ctx.wait_for(ctx.start(flow, Trip("Oslo"))), Trip)


caller = hf.Graph("caller", Trip)
caller.call("go", flow, input=lambda trip: Trip(trip.city), output=lambda went: {"city": went.city})
caller.call("all", flow, each=lambda trip: [trip.city], input=lambda city: {"city": city.upper()})


async def library() -> str:
    return str(await hf.current().step("word", str, 3))
"""
WRONG = """
import holdfast as hf

with hf.connect("runs.db") as holdfast:
    holdfast.get(3)
    holdfast.cancel("r", colour="red")
    holdfast.start(hf.Graph("g"))
hf.connect(colour="red")
options: hf.Options = {"grace": "long"}
"""


def test_connections_and_shared_options_pass_a_strict_type_checker(tmp_path: Path) -> None:
    for name, text in (("typed.py", TYPED), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "strict"), "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith("wrong.py")] == []
    assert [int(line.split(":")[1]) for line in errors] == [5, 6, 7, 8, 9]
