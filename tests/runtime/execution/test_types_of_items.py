"""The type of the items of a fan-out: that of the function's argument, or that of the field which `each` returns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import process_nodes as nodes
import pytest

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.storage.memory.store import MemoryStore


@dataclass
class Part:
    number: int = 0


@dataclass
class Box:
    parts: list[Part] = field(default_factory=list)
    kept: Annotated[tuple[Part, ...], "as they came"] = ()
    seen: Annotated[list[str], append] = field(default_factory=list)


class Crate(TypedDict, total=False):
    parts: list[Part]
    seen: Annotated[list[str], append]


def packed(state: Any, given: Any, each: Callable[[Any], Any]) -> Any:
    """The items as the function got them."""
    graph: Graph[Any] = Graph("box", state)
    graph.node(name="look", each=each)(lambda part: {"seen": [repr(part)]})
    run = hf.run(graph.chain(START, "look", END).compile(), given, store=MemoryStore())
    return run.state["seen"] if isinstance(run.state, dict) else run.state.seen


@pytest.mark.parametrize(
    "each",
    [lambda box: box.parts, operator.attrgetter("parts"), lambda box: box.kept],
    ids=["lambda", "getter", "tuple"],
)
def test_items_have_the_declared_type_of_the_field_that_each_returns(each: Callable[[Any], Any]) -> None:
    assert packed(Box, Box([Part(1)], (Part(1),)), each) == ["Part(number=1)"]


def test_items_of_a_typed_dict_have_the_declared_type() -> None:
    assert packed(Crate, {"parts": [Part(2)]}, lambda crate: crate["parts"]) == ["Part(number=2)"]


def test_the_children_of_a_call_get_items_of_the_declared_type() -> None:
    child: Graph[Part] = Graph("child", Part)
    child.node(name="count")(lambda part: {"number": part.number + 1})
    graph: Graph[Box] = Graph("box", Box)
    graph.call(
        "sub",
        child.chain(START, "count", END).compile(),
        each=lambda box: box.parts,
        input=lambda part: Part(part.number),
        output=lambda part: {"seen": [str(part.number)]},
    )
    run = hf.run(graph.chain(START, "sub", END).compile(), Box([Part(1), Part(7)]), store=MemoryStore())
    assert run.state.seen == ["2", "8"]


def test_a_process_gets_items_of_the_declared_type() -> None:
    graph: Graph[nodes.Parcel] = Graph("parcel", nodes.Parcel)
    graph.node(name="weigh", each=lambda parcel: parcel.pages, executor="process")(nodes.weigh)
    pages = [nodes.Page("a", nodes.NOON)]
    run = hf.run(graph.chain(START, "weigh", END).compile(), nodes.Parcel(pages), store="memory://")
    assert run.state.log == ["Page of 2020"]


@pytest.mark.parametrize("how", ["node", "call"])
def test_items_whose_type_is_unknown_are_refused_with_the_annotation_to_add(how: str) -> None:
    graph: Graph[Box] = Graph("box", Box)
    each: Any = lambda box: [part for part in box.parts if part.number]  # noqa: E731
    if how == "node":
        graph.node(name="look", each=each)(lambda part: None)
    else:
        child: Graph[Part] = Graph("child", Part)
        child.node(name="count")(lambda part: None)
        graph.call("look", child.chain(START, "count", END).compile(), each=each, input=lambda part: part)
    with pytest.raises(hf.RunFailed) as failed:
        hf.run(graph.chain(START, "look", END).compile(), Box([Part(1)]), store=MemoryStore())
    assert failed.value.run.error.message == (
        "node 'look': item 0: a Part cannot be kept, because the type of the items is not known; annotate the argument of the "
        f"function that gets an item, as in def {'look' if how == 'node' else 'input'}(item: Part)"
    )


def test_a_function_that_does_more_than_return_a_field_is_not_understood() -> None:
    from holdfast.core.signatures import element_type, returned_field

    others = [
        lambda a: a.b.c,
        lambda a, b: a.b,
        lambda a: a.b(),
        lambda a: a["b"]["c"],
        lambda a: a + "b",
        lambda a: a[0],
        len,
    ]
    assert [returned_field(fn) for fn in others] == [""] * len(others)
    types = [list, dict[str, int], tuple[int, str], list[int] | None, Any, str]
    assert [element_type(declared) for declared in types] == [Any] * len(types)
