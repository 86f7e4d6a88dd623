"""A request that changes nothing, because the run is already as it asks, is carried out and does not wait."""

from __future__ import annotations

from asking import leave, waiting, works
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import inbox
from holdfast.storage.contract import Request


def asks() -> hf.Flow[Work]:
    graph = Graph("asks", Work)
    graph.ask("which", "Which?", options=["this", "that"])
    return graph.chain(START, "which", END).compile()


def test_a_run_that_is_paused_twice_is_resumed_once(stage: Stage) -> None:
    flow = asks()
    stage.run(flow)
    leave(stage, "pause", id="one", reason="lunch")
    leave(stage, "pause", id="two", reason="tea")
    assert waiting(stage) == []
    assert [one.reason for one in stage.told("RunPaused")] == ["lunch", "tea"]
    assert stage.verb(flow, "resume").status == "waiting"


def test_a_worker_carries_out_a_pause_of_a_paused_run(stage: Stage) -> None:
    flow = asks()
    stage.run(flow)
    leave(stage, "pause")
    stage.store.post("r", Request(id="late", verb="pause"))
    works(stage, flow)
    assert (waiting(stage), stage.store.run("r").status) == ([], "paused")


def test_a_request_that_was_carried_out_is_told_from_one_to_another_run_with_the_same_id(
    stage: Stage,
) -> None:
    flow = asks()
    for run_id in ("r", "other"):
        stage.run(flow, run_id=run_id)
    leave(stage, "pause", id="same")
    handled = inbox.read(stage.store.inbox(run_id="r")[0])
    stage.store.post("other", Request(id=handled.id, verb="pause"))

    async def claim_again(engine: hf.Engine) -> None:
        engine._holdings.claim("other")
        assert engine._holdings.claim_for("r", handled) is None

    stage.do(claim_again, flow)
    assert stage.store.run("r").holder is None
