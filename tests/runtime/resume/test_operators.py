"""What an operator may do with a run that nobody holds: retry, skip, cancel, pause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scenes import Scene, Tale

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.contract import Request
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History

# --- operators, on runs that nobody holds ------------------------------------------------------------


def test_retry_tries_the_failed_node_again(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("retry", "r", by="ann", flows=[flow])
    assert (run.status, scene.ran, run.nodes["b"].attempt) == ("completed", ["b"], 2)
    scene.assert_sound()


def test_a_fresh_retry_is_a_new_execution(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("retry", "r", "b", fresh=True, flows=[flow])
    assert (run.nodes["b"].execution, run.nodes["b"].attempt) == (2, 1)
    scene.assert_sound()


def test_skip_puts_an_update_in_place_of_the_result(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    run = scene.call("skip", "r", "b", {"told": ["skipped"]}, by="ann", reason="broken", flows=[flow])
    assert (run.status, scene.ran, run.nodes["b"].status) == ("completed", ["c"], "skipped")
    assert run.state.told == ["a 1.1 calm", "skipped", "c 1.1 calm"]
    skipped = scene.call("events", "r", flows=[flow], kind="NodeSkipped")[0]
    assert (skipped.by, skipped.body["reason"]) == ("ann", "broken")
    scene.assert_sound()


def test_a_skip_that_does_not_fit_the_state_is_refused_and_nothing_is_recorded(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    with pytest.raises(hf.StateError, match="did you mean 'mood'"):
        scene.call("skip", "r", "b", {"moood": "x"}, flows=[flow])
    assert scene.kinds(before) == []
    assert not scene.store.run("r").held


def test_skip_and_retry_name_what_they_cannot_do(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="'a' is completed"):
        scene.call("skip", "r", "a", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="'c' is not reached"):
        scene.call("retry", "r", "c", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="no node 'd'"):
        scene.call("retry", "r", "d", flows=[flow])
    assert (scene.ran, scene.kinds()[-1]) == ([], "RunFailed")


def test_cancel_ends_a_failed_run_for_good(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    assert scene.call("cancel", "r", "given up", by="ann", flows=[flow]).status == "cancelled"
    assert (scene.store.run("r").status, scene.ran) == ("cancelled", [])
    cancelled = scene.call("events", "r", flows=[flow], kind="RunCancelled")[0]
    assert (cancelled.by, cancelled.body["reason"]) == ("ann", "given up")
    scene.assert_sound()


def test_cancel_ends_an_interrupted_run_for_good(scene: Scene) -> None:
    graph, entered = Graph("tale", Tale), asyncio.Event()

    @graph.node
    async def a(state: Tale) -> None:
        entered.set()
        await asyncio.Event().wait()

    flow = graph.chain(START, "a", END).compile()

    async def stopped() -> None:
        async with hf.Engine(scene.store, grace=0.0) as engine:
            running = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            await entered.wait()
            engine.stop()
            assert (await asyncio.wait_for(running, 5)).status == "interrupted"

    asyncio.run(stopped())
    assert scene.call("cancel", "r", flows=[flow]).status == "cancelled"


def test_cancel_ends_a_run_whose_process_died(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(
        scene.store, holder=dead_process()
    )
    assert scene.call("cancel", "r", flows=[flow]).status == "cancelled"
    assert scene.kinds()[-1] == "RunCancelled"
    with pytest.raises(hf.RunCancelled):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    scene.assert_sound()


def test_a_cancel_that_a_dead_holder_never_took_up_is_obeyed_by_the_next(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(
        scene.store, holder=dead_process()
    )
    scene.store.post("r", Request(id="please", verb="cancel", by="ann"))
    with pytest.raises(hf.RunCancelled):
        scene.call("resume", "r", flows=[flow])
    assert (scene.ran, scene.store.run("r").status) == ([], "cancelled")


def test_a_run_whose_caller_gave_up_waiting_is_free_and_can_be_resumed(scene: Scene) -> None:
    graph, entered, gone = Graph("tale", Tale), asyncio.Event(), []

    @graph.node
    async def a(state: Tale) -> dict[str, Any]:
        entered.set()
        if not gone:
            await asyncio.Event().wait()
        return {"told": ["a"]}

    flow = graph.chain(START, "a", END).compile()

    async def give_up() -> None:
        async with hf.Engine(scene.store) as engine:
            run = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            await entered.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert not scene.store.run("r").held
            gone.append(True)
            assert (await engine.resume("r")).state.told == ["a"]

    asyncio.run(give_up())
    scene.assert_sound()


def test_a_pending_run_is_paused_and_resumed(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("start", flow, Tale(), run_id="r", flows=[flow])
    assert scene.call("pause", "r", "lunch", by="ann", flows=[flow]).status == "paused"
    assert scene.store.run("r").status == "paused"
    assert scene.call("resume", "r", flows=[flow]).status == "completed"
    scene.assert_sound()


def test_pausing_a_paused_run_only_records_that_it_was_asked_for_again(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("start", flow, Tale(), run_id="r", flows=[flow])
    scene.call("pause", "r", flows=[flow])
    before = scene.store.run("r").seq
    assert scene.call("pause", "r", flows=[flow]).status == "paused"
    assert scene.kinds(before) == ["RunPaused"]
    assert not scene.store.run("r").held


def test_pausing_a_failed_run_is_refused(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="failed"):
        scene.call("pause", "r", flows=[flow])
    assert not scene.store.run("r").held


def test_operators_leave_final_runs_alone(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    for verb, args in (("retry", ["r"]), ("skip", ["r", "a"]), ("cancel", ["r"]), ("pause", ["r"])):
        with pytest.raises(hf.ResumeRefused, match="completed, which is final"):
            scene.call(verb, *args, flows=[flow])


async def engine_follow(engine: hf.Engine) -> Any:
    """Follow `r`, which may not be there yet."""
    while True:
        try:
            await engine.get("r")
        except hf.RunNotFound:
            await asyncio.sleep(0)
        else:
            break
    async for event in engine.follow("r"):
        yield event


def test_a_refusal_keeps_the_time_at_which_the_run_wants_attention(scene: Scene) -> None:
    flow = scene.flow("a", nodes={"a": {"retry": hf.Retry(attempts=3, backoff=3600.0)}})

    async def wait_and_leave() -> None:
        scene.broken["a"] = hf.Recoverable("busy")
        async with hf.Engine(scene.store, flows=[flow]) as engine:
            running = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            async for event in engine_follow(engine):
                if event.kind == "NodeFailed":
                    break
            running.cancel()

    asyncio.run(wait_and_leave())
    due_at = scene.store.run("r").due_at
    assert due_at is not None
    with pytest.raises(hf.ResumeRefused):
        scene.call("resume", "r", validate=lambda s: "no", flows=[flow])
    assert scene.store.run("r").due_at == due_at
