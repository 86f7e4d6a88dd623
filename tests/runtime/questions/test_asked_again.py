"""A gate that is asked about once more asks another question: an answer to the one before never reaches it."""

import asyncio
import random

import pytest

from holdfast import END, START, AnswerRefused, Engine, Graph, ResumeRefused, RunFailed
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


def gated(*, broken=False):
    def publish(state):
        if broken:
            raise ValueError("broken")
        return {"done": True}

    graph = Graph("gated")
    graph.node(name="a")(lambda state: {"n": 1})
    graph.node(name="b", approve="Publish?")(publish)
    return graph.chain(START, "a", "b", END).compile()


def play(*deeds, flow=None):
    """Each deed with an engine of its own, on one store. Returns what the last one returned."""
    clock = ManualClock(auto=True)
    store, flow = MemoryStore(clock=clock.now), flow or gated()

    async def use(deed):
        async with Engine(store, flows=[flow], clock=clock, luck=random.Random(1), inline=True) as engine:
            return await deed(engine, flow)

    for deed in deeds:
        result = asyncio.run(use(deed))
    return result


async def reached(engine, flow):
    return await engine.run(flow, {}, run_id="r")


async def rejected(engine, flow):
    await engine.answer("r", "b", "reject", by="ann")
    with pytest.raises(RunFailed):
        await engine.resume("r")


async def rewound(engine, flow):
    return await engine.resume("r", after="a", force=True)


def test_a_run_that_was_rejected_is_not_resumed_without_force():
    async def resumed(engine, flow):
        with pytest.raises(ResumeRefused, match=r"QuestionRefused.*force=True"):
            await engine.resume("r")

    play(reached, rejected, resumed)


def test_a_gate_that_a_rewind_has_forgotten_is_asked_again_under_a_new_key():
    run = play(reached, rejected, rewound)
    assert (run.status, run.nodes["b"].attempt) == ("waiting", 0)
    assert [question.key for question in run.questions] == ["b.1.2"]


def test_an_answer_behind_a_rewind_is_taken_for_what_it_is():
    async def approved(engine, flow):
        await engine.answer("r", "b", "approve", by="bob")
        return await engine.resume("r")

    run = play(reached, rejected, rewound, approved)
    assert (run.status, run.state["done"]) == ("completed", True)


def test_an_answer_to_a_question_that_a_rewind_has_closed_is_refused():
    async def late(engine, flow):
        with pytest.raises(AnswerRefused):
            await engine.answer("r", "b.1.1", "approve")
        return await engine.get("r")

    run = play(reached, rewound, late)
    assert [question.key for question in run.questions] == ["b.1.2"]


def test_every_rewind_asks_under_a_key_of_its_own():
    run = play(reached, rewound, rewound, rewound)
    assert [question.key for question in run.questions] == ["b.1.4"]


def test_a_gate_that_is_restarted_and_rejected_never_repeats_a_key():
    async def approved(engine, flow):
        await engine.answer("r", "b", "approve")
        with pytest.raises(RunFailed, match="broken"):
            await engine.resume("r")

    async def restarted(engine, flow):
        run = await engine.resume("r", restart_at="b", force=True)
        assert run.status == "waiting"
        return [event.body["key"] for event in await engine.events("r", kind="QuestionAsked")]

    keys = play(reached, approved, restarted, rejected, restarted, flow=gated(broken=True))
    assert len(keys) == len(set(keys)) == 3
