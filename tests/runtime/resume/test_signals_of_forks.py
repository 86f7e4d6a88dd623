"""A fork does not have what its parent received after the first event of the fork, or gave to a visit that it repeats: the user
is told, with the commands that give it to the fork.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import OnServer, Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.forks import list_missed


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    stage.close()


def flow() -> Flow[Any]:
    """prepare -> talk, which waits for two signals and asks; beside them, quick."""
    graph = Graph("talks", dict)

    @graph.node
    async def prepare(state: dict[str, Any], ctx: hf.Context) -> None:
        pass

    @graph.node
    async def talk(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        first = await ctx.wait_for("first")
        second = await ctx.wait_for("second")
        return {"said": [first, second, await ctx.ask("Well?", options=["yes", "no"])]}

    @graph.node
    async def quick(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"go": await ctx.wait_for("go")}

    return graph.chain(START, "prepare", "talk", END).chain("prepare", "quick", END).compile()


def missed(stage: Stage, seq: int) -> list[tuple[str, str, Any]]:
    found = list_missed(stage.store, stage.store.run("r"), seq)
    return [(one.what, one.name, one.value) for one in found]


def test_what_a_fork_does_not_have_is_listed_and_the_listed_words_give_it_to_the_fork(stage: Stage) -> None:
    talks = flow()
    stage.run(talks, {})
    prepared = next(row.seq for row in stage.store.events("r", kinds=("NodeCompleted",)))
    stage.do(lambda engine: engine.signal("r", "first", {"a": 1}), talks)
    stage.resume(talks)
    stage.do(lambda engine: engine.signal("r", "go"), talks)
    stage.resume(talks)
    quick = next(row.seq for row in stage.store.events("r", kinds=("NodeCompleted",), node="quick"))
    stage.do(lambda engine: engine.signal("r", "second", 2), talks)
    stage.resume(talks)
    stage.do(lambda engine: engine.answer("r", "talk", "yes"), talks)
    everything = [
        ("signal", "first", {"a": 1}), ("signal", "go", None), ("signal", "second", 2), ("answer", "talk", "yes"),
    ]  # fmt: skip
    assert missed(stage, prepared) == everything
    without_go = [one for one in everything if one[1] != "go"]  # quick is done there; talk is repeated
    assert missed(stage, quick) == without_go
    preview = stage.do(lambda engine: engine.preview(f"r@{quick}", "fork"), talks)
    assert [(one.what, one.name, one.value) for one in preview.missed] == without_go
    assert preview.missed[0].words() == ["signal", "first", '{"a":1}'.replace(":", ": ")]

    async def give(engine: hf.Engine) -> hf.Run[Any]:
        await engine.fork(f"r@{quick}", run_id="f")
        for one in preview.missed[:-1]:
            await engine.signal("f", one.name, one.value)
        await engine.resume("f")
        await engine.answer("f", preview.missed[-1].name, preview.missed[-1].value)
        return await engine.resume("f")

    assert stage.do(give, talks).state["said"] == [{"a": 1}, 2, "yes"]


def test_a_signal_that_waits_at_the_first_event_of_the_fork_is_in_the_fork_and_not_listed(
    stage: Stage,
) -> None:
    talks = flow()

    async def start(engine: hf.Engine) -> None:
        await engine.start(talks, {}, run_id="r")
        await engine.signal("r", "second", 2)

    stage.do(start, talks)
    stage.resume(talks)
    prepared = next(row.seq for row in stage.store.events("r", kinds=("NodeCompleted",)))
    assert missed(stage, prepared) == []
    stage.do(lambda engine: engine.fork(f"r@{prepared}", run_id="f"), talks)
    assert stage.do(lambda engine: engine.state("f"), talks) is not None
    stage.do(lambda engine: engine.signal("f", "first", 1), talks)
    assert [one.node for one in stage.do(lambda engine: engine.resume("f"), talks).questions] == ["talk"]


def test_a_signal_that_waits_in_the_inbox_of_the_run_is_listed(stage: Stage) -> None:
    talks = flow()
    stage.run(talks, {})
    prepared = next(row.seq for row in stage.store.events("r", kinds=("NodeCompleted",)))
    stage.do(lambda engine: engine.pause("r"), talks)
    stage.do(lambda engine: engine.signal("r", "first", 1), talks)
    assert missed(stage, prepared) == [("signal", "first", 1)]
