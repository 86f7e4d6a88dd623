"""A node that asks first and is refused, or not answered: what an operator can do with it, without it ever running."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.memory.store import MemoryStore


class Gated:
    """write -> publish, which wants an approval; what really ran is in `ran`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.store = MemoryStore()
        graph = Graph("gated", dict)

        @graph.node
        def write(state: dict[str, Any]) -> None:
            self.ran.append("write")

        @graph.node(approve="Publish it?")
        def publish(state: dict[str, Any]) -> None:
            self.ran.append("publish")

        graph.chain(START, "write", "publish", END)
        self.flow = graph.compile()
        assert hf.run(self.flow, {}, run_id="r1", store=self.store).status == "waiting"

    def do(self, verb: str, *given: Any, **options: Any) -> hf.Run[Any]:
        return getattr(hf, verb)("r1", *given, store=self.store, flows=[self.flow], **options)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_refused_node_can_be_skipped(resumed: bool) -> None:
    gated = Gated()
    gated.do("answer", "publish", "reject")
    if resumed:
        with pytest.raises(hf.RunFailed):
            gated.do("resume")
    run = gated.do("skip", "publish")
    assert (run.status, gated.ran) == ("completed", ["write"])


def test_a_node_that_asks_first_can_be_skipped_instead_of_answered() -> None:
    gated = Gated()
    run = gated.do("skip", "publish", {"by": "hand"})
    assert (run.status, run.state, run.questions, gated.ran) == ("completed", {"by": "hand"}, (), ["write"])


def test_a_node_that_asks_first_is_not_tried_without_an_answer() -> None:
    gated = Gated()
    with pytest.raises(hf.ResumeRefused, match="Answer the question"):
        gated.do("retry", "publish")
    assert gated.ran == ["write"]


def test_a_refusal_that_nobody_has_taken_up_yet_fails_the_run_and_is_not_asked_again() -> None:
    gated = Gated()
    (asked,) = gated.do("get").questions
    gated.do("answer", "publish", "reject")
    with pytest.raises(hf.RunFailed, match="QuestionRefused"):
        gated.do("resume")
    with pytest.raises(hf.ResumeRefused, match="fatal"):
        gated.do("resume")
    run = gated.do("resume", force=True)
    assert (run.status, gated.ran) == ("waiting", ["write"])
    assert [question.key for question in run.questions] != [asked.key]
