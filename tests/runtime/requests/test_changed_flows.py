"""A run whose flow has changed cannot be continued by a worker that has the new flow; requests that only record something to it
are carried out all the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from asking import Order, post, refused, waiting, works
from harness import Stage, Work

from holdfast import END, START, Flow, Graph
from holdfast.reading import inbox


def changed_order() -> Flow[Work]:
    """The flow `order` with another node at its end."""
    graph = Graph("order", Work)
    for name in ("charge", "send", "file"):
        graph.node(name=name, idempotent=name != "charge")(lambda state: {})
    return graph.chain(START, "charge", "send", "file", END).compile()


@pytest.mark.parametrize("status", ["pending", "paused"])
@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (inbox.Cancel(id="q"), "RunCancelled"),
        (inbox.Pause(id="q"), "RunPaused"),
        (inbox.Signal(id="q", name="news"), "SignalReceived"),
        (inbox.Edit(id="q", fields={"plain": "cocoa"}), "StateEdited"),
    ],
)
def test_a_request_that_needs_no_flow_does_not_wait_for_the_old_one(
    stage: Stage, status: str, request_: Any, kind: str
) -> None:
    flow = Order().flow
    stage.do(lambda engine: engine.start(flow, {"plain": "tea"}, run_id="r"))
    if status == "paused":
        stage.verb(flow, "pause")
    post(stage, request_)
    works(stage, changed_order())
    assert stage.kinds()[-1] == kind
    assert (waiting(stage), refused(stage), stage.problems()) == ([], [], [])
    assert stage.store.run("r").holder is None


def test_the_requests_after_it_are_carried_out_too(stage: Stage) -> None:
    flow = Order().flow
    stage.do(lambda engine: engine.start(flow, {"plain": "tea"}, run_id="r"))
    post(
        stage, inbox.Signal(id="a", name="news"), inbox.Edit(id="b", fields={"zzz": 1}), inbox.Cancel(id="c")
    )
    works(stage, changed_order())
    assert stage.kinds()[1:] == ["SignalReceived", "RequestRefused", "RunCancelled"]
    assert waiting(stage) == []
