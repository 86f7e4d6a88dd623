"""What a worker says of runs that it was not made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.runtime.worker import Trouble


def flow_called(name: str) -> Flow[Any]:
    graph = Graph(name, dict)
    graph.node(name="only")(lambda state: {})
    return graph.chain(START, "only", END).compile()


@pytest.mark.parametrize(
    ("count", "said"), [(1, "a run of flow 'one' waits,"), (2, "2 runs of flow 'one' wait,")]
)
def test_runs_of_a_flow_it_was_not_given_are_told_in_one_sentence(
    tmp_path: Path, count: int, said: str
) -> None:
    stage = Stage("sqlite", tmp_path)
    told: list[Trouble] = []
    one = flow_called("one")

    async def starts(engine: hf.Engine) -> None:
        for number in range(count):
            await engine.start(one, {}, run_id=f"r{number}")

    stage.do(starts)
    over_at = stage.clock.now() + 300
    stage.do(
        lambda engine: engine.work(until=lambda: stage.clock.now() > over_at, on_report=told.append),
        flow_called("another"),
    )
    stage.close()
    assert [trouble.message.startswith(said) for trouble in told] == [True], told
