"""Shared by the tests of questions: a flow with a gate, and functions that answer from a new engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import AnswerRefused
from holdfast.reading.views import Run


def answer(stage: Stage, key: str, value: Any, *flows: Flow[Any], **named: Any) -> Run[Any]:
    """Answer a question of the run `r` from a new engine, which knows only the given flows."""
    run: Run[Any] = stage.do(lambda engine: engine.answer("r", key, value, **named), *flows)
    return run


def refused(stage: Stage, key: str, value: Any, *flows: Flow[Any], **named: Any) -> str:
    """Return the message with which the answer is refused. Fails if it is accepted, or if anything is recorded."""
    before = stage.kinds()
    with pytest.raises(AnswerRefused) as told:
        answer(stage, key, value, *flows, **named)
    assert stage.kinds() == before
    assert told.value.run_id == "r"
    return str(told.value)


class Gate:
    """The flow `write -> publish -> after`. `publish` needs approval: by its option `approve`, or a question node before it."""

    def __init__(self, how: str, **options: Any) -> None:
        self.ran: list[str] = []
        graph = Graph("gate", Work)
        for name in ("write", "publish", "after"):
            gated = name == "publish" and how == "approve"
            graph.node(name=name, approve="Publish?" if gated else None)(self.body)
        if how == "node":
            graph.ask("may", "Publish?", **options)
            graph.chain(START, "write", "may", "publish", "after", END)
        else:
            graph.chain(START, "write", "publish", "after", END)
        self.flow = graph.compile()
        self.key = "may.1.1" if how == "node" else "publish.1.1"

    def body(self, state: Work, ctx: hf.Context) -> dict[str, Any]:
        self.ran.append(ctx.node)
        return {"log": [ctx.node]}


@dataclass
class Plan:
    city: str
    days: int = 1
