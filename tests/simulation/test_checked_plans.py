"""The checker finds every violation of what plans and policies promise (invariant I18), and none in what the engine wrote.

A store is made by the real engine, with one run for each way in which a plan decides. Each test changes one thing in a copy of
its file, and repairs the hash chain, so that nothing else is wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forgery import Forger, forged
from hypothesis import given, settings
from hypothesis import strategies as st
from proved_plans import PLANS, flow

import holdfast as hf
from holdfast.core import run_state
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import rehearse
from holdfast.testing.builders import History, crashed_copy
from holdfast.testing.checked_definitions import shape_of
from holdfast.testing.checker import Violation, check
from holdfast.testing.clock import ManualClock
from holdfast.testing.plan_sketches import PlanSketch, SketchedEdge, SketchedNode, draw_plan
from holdfast.testing.random_histories import play_plan
from holdfast.testing.replay import Replay
from holdfast.testing.standings import RewindableState, standing_of


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "runs.db"
    clock = ManualClock(auto=True)
    store = SqliteStore(path, clock=clock.now)
    for name, plan in PLANS.items():
        run = rehearse(
            flow(plan.document()), answers=plan.answers, run_id=name, store=store, clock=clock, **plan.limits
        )
        assert run.status == plan.ends, run.error
    store.close()
    return path


def test_nothing_is_wrong_with_what_the_engine_wrote(lived: Path) -> None:
    assert check(lived, at_end=True) == []


def found(lived: Path, folder: Path, run_id: str, plant: Callable[[Forger], None]) -> list[Violation]:
    path = folder / "runs.db"
    shutil.copy(lived, path)

    def seal(forger: Forger) -> None:
        plant(forger)
        forger.seal()

    return check(forged(path, run_id, seal))


def texts(violations: list[Violation]) -> str:
    return "\n".join(one.text for one in violations if one.invariant == "I18")


def _visit(forger: Forger, kind: str, node: str) -> tuple[int, int, int]:
    event = forger.find(kind, node)
    return event.iteration, event.execution, event.attempt


def evaluate_twice(forger: Forger) -> None:
    first = forger.find("GuardEvaluated", "look")
    forger.insert(first, "GuardEvaluated", "look", _visit(forger, "GuardEvaluated", "look"), **first.told)


def evaluate_afterwards(forger: Forger) -> None:
    guards, route = forger.find("GuardEvaluated", "look"), forger.find("NodeCompleted", "look")
    forger.insert(route, "GuardEvaluated", "look", _visit(forger, "GuardEvaluated", "look"), **guards.told)


def evaluate_without_a_route(forger: Forger) -> None:
    forger.insert(forger.find("GuardEvaluated", "look"), "RunClaimed", holder="another")


def go_where_the_guard_says_no(forger: Forger) -> None:
    forger.find("GuardEvaluated", "look").tell(verdicts={"ship": False, "hold": False})


def go_without_guards(forger: Forger) -> None:
    forger.events.remove(forger.find("GuardEvaluated", "look"))
    _number_again(forger)


def leave_a_doomed_node(forger: Forger) -> None:
    forger.find("NodesSkipped").tell(nodes=["hold"])


def skip_nothing(forger: Forger) -> None:
    forger.events.remove(forger.find("NodesSkipped"))
    _number_again(forger)


def skip_what_can_run(forger: Forger) -> None:
    forger.find("NodesSkipped").tell(nodes=["hold", "store", "ship"])


def begin_what_is_skipped(forger: Forger) -> None:
    forger.insert(forger.find("NodesSkipped"), "NodeStarted", "hold", (1, 1, 1))


def begin_before_all_edges_are_decided(forger: Forger) -> None:
    forger.insert(forger.find("NodesSkipped"), "NodeStarted", "label", (1, 1, 1))


def begin_without_asking(forger: Forger) -> None:
    for kind in ("PolicyDecided", "QuestionAsked", "QuestionAnswered"):
        forger.events.remove(forger.find(kind, "pay"))
    _number_again(forger)


def begin_without_an_answer(forger: Forger) -> None:
    forger.events.remove(forger.find("QuestionAnswered", "pay"))
    _number_again(forger)


def begin_what_is_denied(forger: Forger) -> None:
    decided = forger.find("PolicyDecided", "pay")
    decided.tell(verdict="deny", decisions=[{"policy": "large", "verdict": "deny"}])
    for kind, node in (("QuestionAsked", "pay"), ("QuestionAnswered", "pay"), ("RunResumed", None)):
        forger.events.remove(forger.find(kind, node))
    _number_again(forger)


def allow_what_one_policy_denies(forger: Forger) -> None:
    decisions = [{"policy": "large", "verdict": "ask"}, {"policy": "other", "verdict": "deny"}]
    forger.find("PolicyDecided", "pay").tell(decisions=decisions)


def call_again_what_has_returned(forger: Forger) -> None:
    asked = forger.find("QuestionAnswered", "pay", 1)
    forger.insert(asked, "NodeStarted", "pay", (1, 1, 2), took=0)


def complete_with_something_else(forger: Forger) -> None:
    forger.find("NodeCompleted", "pay").tell(changes={"merge": {"outputs": {"pay": {"paid": 1}}}})


def use_what_was_not_accepted(forger: Forger) -> None:
    answer = forger.find("QuestionAnswered", "pay", 1)
    forger.events.remove(answer)
    _number_again(forger)


def use_what_failed_its_verification(forger: Forger) -> None:
    forger.find("OutputVerified", "draft", 2).tell(ok=False, checks=[{"id": "good", "ok": False}])


def use_what_was_not_verified(forger: Forger) -> None:
    forger.events.remove(forger.find("OutputVerified", "draft", 2))
    _number_again(forger)


def retry_for_another_reason(forger: Forger) -> None:
    failed = forger.find("NodeFailed", "draft")
    failed.tell(failure={**failed.told["failure"], "type": "PolicyDenied"})


def complete_with_a_node_left(forger: Forger) -> None:
    for kind in ("NodeStarted", "NodeCompleted"):
        forger.events.remove(forger.find(kind, "mail"))
    forger.find("NodeCompleted", "label").tell(routes=["END"])
    _number_again(forger)


def _number_again(forger: Forger) -> None:
    for seq, event in enumerate(forger.events, 1):
        event.seq = seq


PLANTED: dict[Callable[[Forger], None], tuple[str, str]] = {
    evaluate_twice: ("guarded", "are evaluated a second time"),
    evaluate_afterwards: ("guarded", "are evaluated although its route is decided"),
    evaluate_without_a_route: ("guarded", "must be followed at once by"),
    go_where_the_guard_says_no: ("guarded", "the guard on the edge 'look' -> 'ship' is false"),
    go_without_guards: ("guarded", "is decided without its guards"),
    leave_a_doomed_node: ("guarded", "leaves nodes that can never run: ['store']"),
    skip_nothing: ("guarded", "comes before the skip of nodes that can never run"),
    skip_what_can_run: ("guarded", "node 'ship' is skipped although it can still run"),
    begin_what_is_skipped: ("guarded", "begins although it has ended or is skipped"),
    begin_before_all_edges_are_decided: ("guarded", "begins before all edges to it are decided"),
    complete_with_a_node_left: ("guarded", "mail"),
    begin_without_asking: ("asked", "was not decided about by its policies"),
    begin_without_an_answer: ("asked", "has no answer by its policies"),
    begin_what_is_denied: ("asked", "was denied by its policies"),
    allow_what_one_policy_denies: ("asked", "the strictest is 'deny'"),
    call_again_what_has_returned: ("asked", "is called again although what it returned is kept"),
    complete_with_something_else: ("asked", "completes with another result"),
    use_what_was_not_accepted: ("asked", "did not pass: ['post']"),
    use_what_failed_its_verification: ("verified", "did not pass: ['verify']"),
    use_what_was_not_verified: ("verified", "did not pass: ['verify']"),
    retry_for_another_reason: ("verified", "for another reason than its verification"),
}
"""What is changed -> in the log of which run, and what the checker says about it."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Callable[[Forger], None], lived: Path, tmp_path: Path) -> None:
    run_id, told = PLANTED[plant]
    assert told in texts(found(lived, tmp_path, run_id, plant))


# --- random plans ------------------------------------------------------------------------------------------


def known(now: RewindableState) -> dict[str, Any]:
    """What a second reading and a snapshot both know of the run of a plan."""
    parts = ("status", "values", "arrivals", "routes", "plan", "paused", "busy", "idle", "schedule")
    visits = {
        name: (*one.here(), one.status, one.routed, one.question, one.returned, one.verdict == "allow")
        for name, one in now.nodes.items()
        if one.status
    }
    return {
        **{part: getattr(now, part) for part in parts},
        "open": list(now.open),
        "failed": list(now.failed),
        "held": set(now.held),
        "caught": set(now.caught),
        "asked": set(now.questions),
        "visits": visits,
    }


@given(st.randoms(use_true_random=True))
@settings(max_examples=60)
def test_the_second_reading_of_the_log_of_a_plan_agrees_with_the_fold(luck: random.Random) -> None:
    sketch = draw_plan(luck, least=3, most=20, handled=True)
    made = sketch.flow()
    history, read, said = History("r", made).created(schedule=luck.choice(["eager", "layered"])), 0, []
    shape = shape_of(made.definition_json)
    replay = Replay(lambda invariant, text: said.append((invariant, text)), shapes=lambda fingerprint: shape)
    for _ in play_plan(history, sketch, luck, trouble=0.05):
        for at, e in history.log[read:]:
            read += 1
            body = json.loads(e.body or b"{}")
            replay.read(read, at, e.kind, (e.node, e.iteration, e.execution, e.attempt), body)
        assert known(replay.now) == known(standing_of(json.loads(run_state.dump(history.state)))), read
    replay.end()
    assert said == []


@given(st.randoms(use_true_random=True))
@settings(max_examples=25)
def test_plans_that_were_cut_rewound_and_forked_have_no_violation(luck: random.Random) -> None:
    asyncio.run(cut_rewound_and_forked(luck))


async def cut_rewound_and_forked(luck: random.Random) -> None:
    clock = ManualClock(auto=True)
    sketch = draw_plan(luck, least=4, most=15, handled=True)
    made = sketch.flow()
    whole, cut = MemoryStore(clock=clock.now), MemoryStore(clock=clock.now)
    options = {"flows": [made], "clock": clock, "luck": luck, "inline": True}
    schedule = luck.choice(["eager", "layered"])
    async with hf.Engine(whole, **options) as engine:
        await engine.start(made, run_id="r", schedule=schedule)
        await see_through(engine, "r")
    assert check(whole, at_end=True) == []
    ends = [row.seq for row in whole.events("r")[:-1] if row.kind not in NEVER_LAST]
    crashed_copy(whole, "r", luck.choice(ends), cut)
    async with hf.Engine(cut, **options) as engine:
        places = [place.seq for place in await engine.checkpoints("r")]
        await engine.resume("r", checkpoint=luck.choice(places), force=True)
        await see_through(engine, "r")
        places = [place.seq for place in await engine.checkpoints("r")]
        fork = await engine.fork("r", checkpoint=luck.choice(places), repeat="run")
        await see_through(engine, fork)
        for run_id in ("r", fork):
            run = await engine.get(run_id)
            outputs = {name: {"n": told["n"]} for name, told in run.state.outputs.items()}
            assert (run.status, outputs) == ("completed", sketch.expect().outputs)
    # The copy has the claims of the log that was cut, and not their fences.
    assert [one for one in check(cut, at_end=True) if one.invariant != "I3"] == []


NEVER_LAST = ("GuardEvaluated", "PolicyDecided", "OutputVerified", "NodeReturned")
"""Events that others follow in the same append, so that a crash cannot make one the last of a log."""


async def see_through(engine: hf.Engine, run_id: str) -> None:
    """Resume a run and approve what it asks, until it is over."""
    for _ in range(200):
        run = await engine.get(run_id)
        if run.status == "completed":
            return
        asked = await engine.questions(run_id)
        for one in asked:
            await engine.answer(run_id, one.question.key, one.question.options[0])
        await engine.resume(run_id)
    raise AssertionError(f"{run_id} does not end: {run.status} {run.error}")


def test_a_denial_that_an_edge_took_is_another_execution_after_a_rewind() -> None:
    nodes = (SketchedNode("a", 1), SketchedNode("b", 2, ends="denied"), SketchedNode("c", 3))
    edges = (SketchedEdge("a", "b"), SketchedEdge("b", "c", None, ("PolicyDenied",)))
    made, clock = PlanSketch(nodes, edges).flow(), ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)

    async def main() -> None:
        async with hf.Engine(store, flows=[made], clock=clock, inline=True) as engine:
            await engine.run(made, run_id="r", scope=["a", "b"])
            await engine.resume("r", after="a", force=True, scope=["*"])

    asyncio.run(main())
    assert [row.execution for row in store.events("r", kinds=("PolicyDecided", "NodeSkipped"))] == [
        1,
        1,
        2,
        2,
    ]
    assert check(store) == []


@given(st.randoms(use_true_random=True))
@settings(max_examples=25)
def test_plans_that_operators_repair_in_any_way_have_no_violation(luck: random.Random) -> None:
    """A failure that no edge takes is skipped with or without an output, resumed, judged again, repeated or rewound."""
    asyncio.run(repaired(luck))


@pytest.mark.parametrize("seed", [9, 11])
def test_no_number_of_an_execution_is_used_again(seed: int) -> None:
    """9 goes back to what an earlier rewind has left behind; 11 skips a visit that was denied before it began, after a rewind."""
    asyncio.run(repaired(random.Random(seed)))


async def repaired(luck: random.Random) -> None:
    clock = ManualClock(auto=True)
    store, made = MemoryStore(clock=clock.now), draw_plan(luck, least=4, most=14).flow()
    async with hf.Engine(store, flows=[made], clock=clock, luck=luck, inline=True) as engine:
        await engine.start(made, run_id="r", schedule=luck.choice(["eager", "layered"]))
        for _ in range(300):
            run = await engine.get("r")
            if run.status == "completed":
                break
            with suppress(hf.RunFailed, hf.ResumeRefused):
                await (repair if run.status == "failed" else answer_all)(engine, run, luck)
        else:
            pytest.fail(f"the run is {run.status}: {run.error}")
    assert check(store, at_end=True) == []


async def repair(engine: hf.Engine, run: hf.Run[Any], luck: random.Random) -> None:
    node = next(name for name, one in run.nodes.items() if one.status == "failed")
    match luck.choice(("skip", "skip", "output", "resume", "retry", "fresh", "rewind")):
        case "skip":
            await engine.skip("r", node)
        case "output":
            await engine.skip("r", node, {"n": 7})
        case "resume":
            await engine.resume("r", force=True)
        case "retry":
            await engine.retry("r", node)
        case "fresh":
            await engine.retry("r", node, fresh=True)
        case _:
            places = [place.seq for place in await engine.checkpoints("r")]
            await engine.resume("r", checkpoint=luck.choice(places), force=True)


async def answer_all(engine: hf.Engine, run: hf.Run[Any], luck: random.Random) -> None:
    for found in await engine.questions("r"):
        options = found.question.options
        await engine.answer("r", found.question.key, options[-1 if luck.random() < 0.1 else 0])
    await engine.resume("r")
