"""A flow whose nodes can be made to raise, for the tests of resuming.

Each method is called on a new engine, as another process would: only the store connects two calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.reading import verification
from holdfast.storage.memory.store import MemoryStore


@dataclass
class Tale:
    told: Annotated[list[str], append] = field(default_factory=list)
    mood: str = "calm"
    count: int = 0


class Scene:
    """A store, the list of nodes that ran, and the exceptions that nodes raise."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ran: list[str] = []
        self.broken: dict[str, BaseException] = {}

    def body(self, name: str) -> Callable[..., dict[str, Any]]:
        def tell(state: Tale, ctx: hf.Context) -> dict[str, Any]:
            self.ran.append(name)
            if name in self.broken:
                raise self.broken[name]
            return {
                "told": [f"{name} {ctx.iteration}.{ctx.execution} {state.mood}"],
                "count": state.count + 1,
            }

        return tell

    def flow(
        self,
        *names: str,
        graph: Graph[Tale] | None = None,
        nodes: dict[str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> Flow[Tale]:
        """Make a flow that is a chain of these nodes."""
        graph = graph or Graph("tale", Tale)
        for name in names:
            graph.node(name=name, **(nodes or {}).get(name, {}))(self.body(name))
        return graph.chain(START, *names, END).compile(**options)

    def call(self, verb: str, *args: Any, flows: list[Flow[Any]], **given: Any) -> Any:
        async def use() -> Any:
            async with hf.Engine(self.store, flows=flows) as engine:
                return await getattr(engine, verb)(*args, **given)

        return asyncio.run(use())

    def fail_at(self, node: str, flow: Flow[Tale], error: BaseException | None = None, **given: Any) -> None:
        """Execute the run `r` until this node raises; when the run is resumed, the node does not raise."""
        self.broken[node] = error or ValueError("broken")
        with pytest.raises(hf.RunFailed):
            self.call("run", flow, Tale(), run_id="r", flows=[flow], **given)
        del self.broken[node]
        self.ran.clear()

    def seq(self, kind: str, node: str | None = None) -> int:
        """Return the seq of the latest event of this kind."""
        return self.store.events("r", kinds=(kind,), node=node)[-1].seq

    def kinds(self, after: int = 0, run_id: str = "r") -> list[str]:
        return [row.kind for row in self.store.events(run_id, after)]

    def assert_sound(self, run_id: str = "r") -> None:
        assert verification.verify(self.store, run_id).problems == []
