"""A watch that looks between the claim of a lease and the event that records it shows the new holder afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.watched import RunWatch


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_holder_that_was_claimed_and_not_recorded_at_a_look_is_shown_by_the_next_one(
    kind: str, tmp_path: Path
) -> None:
    stage = Stage(kind, tmp_path)
    dies, watches, seen = [True], list[RunWatch](), list[list[str | None]]()

    def look(state: Any) -> None:
        for watch in watches:
            assert watch.look(0.0)  # the lease is claimed, and the log does not say so yet

    def flow() -> Flow[Any]:
        graph = Graph("one", dict, validate_resume=look)

        @graph.node
        async def only(state: dict[str, Any], ctx: hf.Context) -> None:
            if dies:
                await stage.dies(ctx)
            watches[0].look(0.0)
            seen.append([holder.end for holder in watches[0].seen.holders])

        return graph.chain(START, "only", END).compile()

    stage.crash(flow(), {})
    dies.clear()
    watches.append(RunWatch(Reader(stage.store), "r", CommandLine()))

    async def use(engine: hf.Engine) -> None:
        await engine.resume("r")

    stage.do(use, flow())
    assert seen == [["died", None]]
    stage.close()
