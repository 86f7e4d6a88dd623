"""The tests of ADR-016 by their names, with what we resolved where that record contradicts itself (research/seeds.md,
seed 000):

replay runs the last completed node again with the input it had, so it never applies anything twice; a validation that
says no leaves one trace in the log, its refusal, and runs nothing.
"""

# ruff: noqa: N802 - the names are the record's own

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History


@dataclass
class Counted:
    counter: int = 0


def three_nodes(executed: list[str]) -> Flow[Counted]:
    """a -> b -> c; each notes its name and counts one up, by returning the whole state it was given."""
    graph = Graph("three", Counted)

    def count(name: str) -> None:
        def body(state: Counted) -> Counted:
            executed.append(name)
            return Counted(state.counter + 1)

        graph.node(name=name)(body)

    for name in ("a", "b", "c"):
        count(name)
    return graph.chain(START, "a", "b", "c", END).compile()


def crashed_before_c(flow: Flow[Counted], store: MemoryStore) -> None:
    History("r", flow).created(Counted()).completed("a", Counted(1)).completed(
        "b", Counted(2)
    ).crashed_before("c").write(store)


def resume(flow: Flow[Counted], store: MemoryStore, **wishes: object) -> hf.Run[Counted]:
    async def use() -> hf.Run[Counted]:
        async with hf.Engine(store, flows=[flow]) as engine:
            return await engine.resume("r", **wishes)

    return asyncio.run(use())


def test_Resume_FromLatestCheckpoint() -> None:
    executed: list[str] = []
    flow, store = three_nodes(executed), MemoryStore()
    crashed_before_c(flow, store)
    run = resume(flow, store)
    assert executed == ["c"]
    assert (run.status, run.state) == ("completed", Counted(3))


def test_Resume_ReplayNode() -> None:
    executed: list[str] = []
    flow, store = three_nodes(executed), MemoryStore()
    crashed_before_c(flow, store)
    run = resume(flow, store, replay=True)
    assert executed == ["b", "c"]
    clean = hf.run(three_nodes([]), Counted(), store=MemoryStore())
    assert run.state == clean.state == Counted(3)
    assert (run.nodes["b"].iteration, run.nodes["b"].execution) == (1, 2)


def test_Resume_ReplayNode_of_a_node_that_died_after_it_runs_the_node_before() -> None:
    """Scenario 2 of the record: the crash came inside c. Replay means b, the last one completed; c follows as ever."""
    executed: list[str] = []
    flow, store = three_nodes(executed), MemoryStore()
    History("r", flow).created(Counted()).completed("a", Counted(1)).completed("b", Counted(2)).crashed_in(
        "c"
    ).write(store)
    assert resume(flow, store, replay=True).state == Counted(3)
    assert executed == ["b", "c"]


def test_Resume_ValidationFailure() -> None:
    executed: list[str] = []
    flow, store = three_nodes(executed), MemoryStore()
    crashed_before_c(flow, store)
    before = store.run("r").seq

    def changed(state: Counted) -> None:
        raise ValueError("external state changed")

    with pytest.raises(hf.ResumeRefused, match="external state changed") as refused:
        resume(flow, store, validate=changed, edit={"counter": 9})
    assert refused.value.reason == "external state changed"
    assert executed == []
    assert [row.kind for row in store.events("r", before)] == ["RequestRefused"]
    assert not store.run("r").held
    assert resume(flow, store).state == Counted(3)
