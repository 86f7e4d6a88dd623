"""A node that calls a flow: what the definition says of it, and every mistake at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.core import drawing, svg
from holdfast.core.definition import NodeOptions
from holdfast.core.graph import END, START, Flow, Graph
from holdfast.errors import GraphError


@dataclass
class State:
    amount: int = 0


def flow_of(name: str) -> Flow[State]:
    graph = Graph(name, State)
    graph.node(name="only")(lambda state: None)
    return graph.chain(START, "only", END).compile()


PAY = flow_of("pay")


async def later(state: Any) -> Any:
    return state


def problems(flow: Any = PAY, **options: Any) -> list[str]:
    graph: Graph[Any] = Graph("order", State)
    given: dict[str, Any] = {"input": lambda state: state, **options}
    graph.call("settle", flow, **given).chain(START, "settle", END)
    try:
        graph.compile()
    except GraphError as refused:
        return list(refused.problems)
    return []


def order(**options: Any) -> Flow[State]:
    graph = Graph("order", State)
    graph.call("settle", PAY, input=lambda state: state, **options)
    return graph.chain(START, "settle", END).compile()


def test_the_definition_names_the_flow_that_is_called() -> None:
    assert order().definition.nodes["settle"] == NodeOptions(calls="pay")
    assert order().called == (PAY,)


def test_pictures_show_the_flow_that_is_called() -> None:
    assert "settle (calls pay)" in drawing.terminal(order().definition)
    assert "calls pay" in drawing.mermaid(order().definition)
    assert "calls pay" in svg.draw(order().definition)


def test_a_flow_without_calls_does_not_mention_them() -> None:
    assert b"calls" not in PAY.definition_json


def test_another_called_flow_is_another_fingerprint() -> None:
    graph = Graph("order", State)
    graph.call("settle", flow_of("refund"), input=lambda state: state)
    assert graph.chain(START, "settle", END).compile().fingerprint != order().fingerprint


def test_a_flow_may_call_itself() -> None:
    graph = Graph("deep", State)
    graph.call("again", graph, input=lambda state: state)
    flow = graph.chain(START, "again", END).compile()
    assert flow.definition.nodes["again"].calls == "deep"
    assert flow.called == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"flow": "pay"}, "calls 'pay', which is not a flow; give what graph.compile() returns"),
        ({"flow": Graph("pay", State)}, "calls a graph that is not compiled, which is not a flow"),
        ({"input": None}, "has input=None; give a function of the state"),
        ({"input": None, "each": lambda state: []}, "has input=None; give a function of the item"),
        ({"input": lambda: 1}, "give a function of the state"),
        ({"input": later}, "has an async def as input"),
        ({"output": 3}, "has output=3; give a function of the result"),
        ({"output": later}, "has an async def as output"),
        ({"each": [1]}, "has each=[1]; give a function of the state"),
        ({"retry": 3}, "calls a flow, so retry=3 has no meaning"),
        ({"limit": 0}, "limit=0 lets no item run"),
        ({"timeout": 0}, "timeout=0 is not a time limit"),
        ({"join": "none"}, "join='none' does not exist"),
        ({"approve": ""}, "approve='' asks nothing"),
        ({"queue": "a b"}, "queue='a b' cannot name a queue"),
        ({"priority": 1.5}, "priority=1.5 is not a priority"),
        ({"labels": {"a": 1}}, "labels={'a': 1} are not labels"),
        ({"run_timeout": 0}, "run_timeout=0 is not a time limit"),
    ],
)
def test_a_mistake_is_a_problem_of_the_graph(options: dict[str, Any], told: str) -> None:
    (problem,) = problems(**options)
    assert problem.startswith("node 'settle'")
    assert told in problem


def test_all_mistakes_are_reported_at_once() -> None:
    assert len(problems(None, input=1, output=2, retry=3, queue="", timeout=-1)) == 6
