"""What a node is by its function. Mutants that nobody had looked at got past the tests here (docs/mutants.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest

from holdfast import END, START, Context, Graph
from holdfast.errors import CodecError


@dataclass
class Notes:
    n: int = 0


async def alone(state: Notes) -> None: ...


async def with_context(state: Notes, ctx: Context) -> None: ...


async def streaming(state: Notes):
    yield state.n


def blocking(state: Notes) -> None: ...


def compiled(fn, **options):
    graph = Graph("flow", Notes)
    graph.node(name="a", **options)(fn)
    graph.edge(START, "a")
    graph.edge("a", END)
    return graph.compile()


@pytest.mark.parametrize(
    ("fn", "plain"), [(alone, True), (with_context, False), (streaming, False), (blocking, False)]
)
def test_a_node_is_plain_where_it_is_a_coroutine_that_wants_the_state_and_nothing_else(fn, plain):
    assert compiled(fn).nodes["a"].is_plain is plain


def test_an_item_must_fit_what_the_function_asks_of_it():
    def visit(item: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    codec = compiled(visit, each=lambda state: [1]).item_codecs["a"]
    assert codec.encode(1) == 1
    with pytest.raises(CodecError, match=">= 1"):
        codec.encode(0)
