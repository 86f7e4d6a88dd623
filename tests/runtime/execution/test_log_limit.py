"""How much a run may write into its log between two checkpoints."""

import asyncio
import logging

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import LogLimit


def flow_of(size, *, steps=0, checkpoints=0):
    graph = Graph("heavy", dict)

    @graph.node
    async def heavy(state, ctx):
        for number in range(steps):
            await ctx.step(f"part{number}", lambda: "x" * size)
        for _ in range(checkpoints):
            await ctx.checkpoint("x" * size)
        return {} if steps or checkpoints else {"parts": ["x" * (size // 10)] * 10}

    return graph.edge(START, "heavy").edge("heavy", END).compile()


def ran(flow, **options):
    async def main():
        async with hf.Engine("memory://", **options) as engine:
            return await engine.run(flow, {})

    return asyncio.run(main())


def test_a_heavy_checkpoint_is_warned_about_once_and_names_run_and_node(caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert ran(flow_of(200_000, checkpoints=5)).status == "completed"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "node 'heavy'" in told
    assert "bytes of log since the last step or checkpoint" in told


def test_a_long_agent_whose_steps_are_small_is_not_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert ran(flow_of(60_000, steps=20)).status == "completed"
    assert not caplog.records


def test_one_heavy_step_of_a_long_agent_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert ran(flow_of(700_000, steps=2), blob_over=1_000_000, log_limit=10_000_000).status == "completed"
    told = [record.getMessage() for record in caplog.records]
    assert ["wrote 700," in one for one in told] == [True, True]


def test_a_light_run_is_not_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        ran(flow_of(2_000, steps=20))
    assert not caplog.records


@pytest.mark.parametrize("flow", [flow_of(900_000), flow_of(90_000, steps=10)], ids=["result", "steps"])
def test_a_result_over_the_limit_is_refused_and_nothing_of_it_is_kept(flow):
    with pytest.raises(hf.RunFailed, match="over its limit of 400,000") as failed:
        ran(flow, log_limit=400_000)
    run = failed.value.run
    assert (run.error.type, run.error.kind) == (LogLimit.__name__, "partial")
    assert "parts" not in run.state


def test_what_becomes_a_blob_does_not_weigh():
    graph = Graph("blob", dict)

    @graph.node
    async def large(state):
        return {"text": "x" * 2_000_000}

    flow = graph.edge(START, "large").edge("large", END).compile()
    assert len(ran(flow, log_limit=100_000).state["text"]) == 2_000_000
