"""What an engine makes of what a node returns: an update, a whole state, or a fault that says where."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from engines import Work, failure_of, one_node, quickly

import holdfast as hf
from holdfast import END, START, Graph, add, append

# --- what a node returns -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("text", "the node returned a str"),
        (["list"], "the node returned a list"),
        ({"plian": "x"}, "did you mean 'plain'"),
        ({"plain": 3}, "plain"),
        ({"number": float("nan")}, "number"),
        ({"log": "not a list"}, "log"),
        ({"plain": "a\0b"}, "plain"),
        ({"plain": "\ud800"}, "plain"),
        ({"seen": {1: 1}}, "seen"),
        ({"plain": object()}, "plain"),
    ],
)
def test_what_does_not_fit_the_state_fails_the_node_and_says_where(returned: Any, said: str) -> None:
    run = failure_of(one_node(lambda state: returned))
    assert run.error.kind == "partial"
    assert said in run.error.message
    assert "'only'" in run.error.message
    assert run.state == Work()


def test_a_node_that_changed_its_input_and_returned_nothing_is_told_to_return_it() -> None:
    def body(state: Work) -> None:
        state.log.append("lost")

    run = failure_of(one_node(body))
    assert "'log'" in run.error.message
    assert "Return the state" in run.error.message


def test_what_a_node_does_to_its_input_changes_nothing_that_another_node_sees() -> None:
    graph = Graph("two", Work)

    @graph.node
    def spoil(state: Work) -> dict[str, Any]:
        state.pages.append("spoiled")
        return {"log": ["spoil"]}

    @graph.node
    def look(state: Work) -> dict[str, Any]:
        return {"log": [f"saw {state.pages}"]}

    run = quickly(graph.chain(START, "spoil", "look", END).compile(), Work(pages=["clean"]))
    assert run.state.log == ["spoil", "saw ['clean']"]


class Notes(TypedDict):
    notes: Annotated[list[str], append]
    total: Annotated[int, add]


def test_a_dict_state_that_comes_back_itself_is_a_whole_state() -> None:
    def body(state: Notes) -> Notes:
        state["notes"].append("new")
        state["total"] += 1
        return state

    run = quickly(one_node(body, Notes), {"notes": ["old"], "total": 5})
    assert run.state == {"notes": ["old", "new"], "total": 6}


def test_a_key_taken_from_an_open_dict_state_is_gone() -> None:
    def body(state: dict[str, Any]) -> dict[str, Any]:
        del state["gone"]
        return state

    assert quickly(one_node(body, dict), {"gone": 1, "kept": 2}).state == {"kept": 2}


def test_a_node_is_told_who_it_is() -> None:
    seen = []

    def body(state: Work, ctx: hf.Context) -> None:
        seen.append(
            (
                ctx.run_id,
                ctx.flow,
                ctx.node,
                ctx.iteration,
                ctx.execution,
                ctx.attempt,
                ctx.item,
                ctx.resources["db"],
                ctx.cancelled,
            )
        )

    quickly(one_node(body), resources={"db": "pool"})
    assert seen == [("r", "one", "only", 1, 1, 1, None, "pool", False)]


# --- parallel writers --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_two_parallel_nodes_that_set_one_plain_field_are_refused_by_name(schedule: str) -> None:
    graph = Graph("two", Work)

    @graph.node
    def left(state: Work) -> dict[str, Any]:
        return {"plain": "left"}

    @graph.node
    def right(state: Work) -> dict[str, Any]:
        return {"plain": "right"}

    graph.chain(START, "left", END).chain(START, "right", END)
    run = failure_of(graph.compile(schedule=schedule))
    for name in ("'left'", "'right'", "'plain'"):
        assert name in run.error.message


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_parallel_nodes_may_share_a_field_with_a_reducer(schedule: str) -> None:
    graph = Graph("two", Work)
    for name in ("left", "right"):
        graph.node(name=name)(lambda state, ctx: {"log": [ctx.node], "total": 1, "seen": {ctx.node: 1}})
        graph.chain(START, name, END)
    run = quickly(graph.compile(schedule=schedule))
    assert (run.state.log, run.state.total, run.state.seen) == (["left", "right"], 2, {"left": 1, "right": 1})


def test_nodes_one_behind_the_other_may_set_one_field() -> None:
    graph = Graph("two", Work)
    for name in ("a", "b"):
        graph.node(name=name)(lambda state, ctx: {"plain": ctx.node})
    assert quickly(graph.chain(START, "a", "b", END).compile()).state.plain == "b"
