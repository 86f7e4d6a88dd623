"""A branch from START: the router chooses where a run begins, once, before the run is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import in_engine, kinds, quickly

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import RouterError
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import check, crash_everywhere


def triage(router: Callable[[dict[str, Any]], Any], **options: Any) -> Flow[dict[str, Any]]:
    graph: Graph[dict[str, Any]] = Graph("triage")

    @graph.node
    def urgent(state: dict[str, Any]) -> dict[str, Any]:
        return {"urgent": True}

    @graph.node
    def routine(state: dict[str, Any]) -> dict[str, Any]:
        return {"routine": True}

    @graph.node
    def close(state: dict[str, Any]) -> None: ...

    graph.branch(START, router, to=[urgent, routine, END])
    return graph.chain(urgent, close, END).edge(routine, close).compile(**options)


@pytest.mark.parametrize("schedule", ["eager", "layered"])
@pytest.mark.parametrize(
    ("chosen", "nodes"),
    [
        ("urgent", {"urgent", "close"}),
        (["urgent", "routine"], {"urgent", "routine", "close"}),
        (END, set()),
    ],
    ids=["one", "several", "end"],
)
def test_the_router_of_start_chooses_where_a_run_begins(chosen: Any, nodes: set[str], schedule: str) -> None:
    store = MemoryStore()
    run = quickly(triage(lambda state: state["to"], schedule=schedule), {"to": chosen}, store=store)
    assert (run.status, set(run.nodes)) == ("completed", nodes)
    (created,) = hf.events("r", kind="RunCreated", store=store)
    assert created.body["starts"] == ([chosen] if isinstance(chosen, str) else chosen)


@pytest.mark.parametrize("verb", ["run", "start"])
def test_if_the_router_of_start_raises_nothing_is_recorded_and_the_caller_gets_the_error(verb: str) -> None:
    store = MemoryStore()

    def router(state: dict[str, Any]) -> str:
        raise KeyError("priority")

    with pytest.raises(
        RouterError, match=r"router of 'START' raised KeyError.*No run was recorded"
    ) as raised:
        in_engine(lambda engine: getattr(engine, verb)(triage(router), {}, run_id="r"), store)
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(hf.RunNotFound):
        store.run("r")


def test_a_router_of_start_that_names_no_target_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(RouterError, match=r"did you mean 'urgent'\? No run was recorded"):
        quickly(triage(lambda state: "urgnt"), {})
    with pytest.raises(RouterError, match=r"returned \['urgent'\], which is not one of its targets"):
        quickly(triage(lambda state: [["urgent"]]), {})


def test_the_router_of_start_is_not_called_again_for_a_run_that_exists() -> None:
    calls: list[dict[str, Any]] = []
    store = MemoryStore()

    def router(state: dict[str, Any]) -> str:
        calls.append(dict(state))
        return "urgent"

    flow = triage(router)

    async def use(engine: hf.Engine) -> None:
        for _ in range(2):
            assert await engine.start(flow, {"n": 1}, run_id="r") == "r"
        with pytest.raises(hf.RunExists, match="another input"):
            await engine.start(flow, {"n": 2}, run_id="r")
        assert (await engine.resume("r")).status == "completed"
        assert (await engine.run(flow, {"n": 1}, run_id="r")).status == "completed"
        fork = await engine.fork("r", checkpoint=1, edit={"n": 3})
        assert "routine" not in (await engine.resume(fork)).nodes

    in_engine(use, store)
    assert calls == [{"n": 1}]
    assert kinds(store).count("RunCreated") == 1


@pytest.mark.parametrize("chosen", ["urgent", ["urgent", "routine"], END], ids=["one", "several", "end"])
def test_a_crash_makes_no_difference_to_a_branch_from_start(chosen: Any) -> None:
    report = crash_everywhere(triage(lambda state: state["to"]), {"to": chosen})
    assert report.ok, report


def test_a_run_whose_input_was_edited_keeps_the_choice_of_the_router(tmp_path: Path) -> None:
    flow = triage(lambda state: "urgent" if state["hot"] else "routine")
    with hf.connect(tmp_path / "runs.db", flows=flow) as holdfast:
        holdfast.start(flow, {"hot": True}, run_id="r")
        assert set(holdfast.resume("r", edit={"hot": False}).nodes) == {"urgent", "close"}
    assert check(tmp_path / "runs.db") == []
