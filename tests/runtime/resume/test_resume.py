"""Rows of the table "Resuming": from where a run goes on, with which state, and whether at all.

Each verb is called on an engine of its own, as another process would: nothing but the store connects two calls.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from scenes import Scene, Tale

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History

# --- from where --------------------------------------------------------------------------------------


def test_a_failed_run_goes_on_at_the_node_that_failed(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    run = scene.call("resume", "r", flows=[flow], by="ann", reason="fixed")
    assert (run.status, scene.ran) == ("completed", ["b", "c"])
    assert run.state == Tale(["a 1.1 calm", "b 1.1 calm", "c 1.1 calm"], count=3)
    resumed = scene.call("events", "r", flows=[flow], kind="RunResumed")[0]
    assert (resumed.by, resumed.body["reason"]) == ("ann", "fixed")
    scene.assert_sound()


def test_a_checkpoint_in_the_run_id_rewinds_to_it(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    place = scene.seq("NodeCompleted", "a")
    run = scene.call("resume", f"r@{place}", flows=[flow])
    assert scene.ran == ["b", "c"]
    assert run.state.told == ["a 1.1 calm", "b 1.2 calm", "c 1.2 calm"]
    assert len(scene.store.events("r", kinds=("NodeCompleted",), node="b")) == 2, "nothing is deleted"
    scene.assert_sound()


def test_a_checkpoint_beside_the_run_id_is_the_same(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    place = scene.seq("NodeCompleted", "a")
    scene.call("resume", "r", checkpoint=f"r@{place}", flows=[flow])
    assert scene.ran == ["b", "c"]


def test_a_run_can_be_rewound_to_its_very_beginning_and_again(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    scene.broken["b"] = ValueError("still")
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "r@1", flows=[flow])
    del scene.broken["b"]
    run = scene.call("resume", "r@1", flows=[flow])
    assert scene.ran == ["a", "b", "a", "b"]
    assert run.state == Tale(["a 1.3 calm", "b 1.3 calm"], count=2)
    scene.assert_sound()


@pytest.mark.parametrize("place", ["r@2", "r@999", "r@last", "r@0"])
def test_what_is_no_checkpoint_is_refused_and_nothing_is_recorded(scene: Scene, place: str) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    with pytest.raises(hf.ResumeRefused, match="checkpoints"):
        scene.call("resume", place, flows=[flow])
    assert (scene.kinds(before), scene.ran) == ([], [])
    assert not scene.store.run("r").held


def test_two_places_at_once_are_refused(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="choose one of after and replay"):
        scene.call("resume", "r", after="a", replay=True, flows=[flow])


def test_after_goes_on_behind_the_latest_completion_of_a_node(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.call("resume", "r", after="a", flows=[flow])
    assert scene.ran == ["b", "c"]
    with pytest.raises(hf.ResumeRefused, match="final"):
        scene.call("resume", "r", after="a", flows=[flow])


def test_after_a_node_that_has_not_completed_is_refused(scene: Scene) -> None:
    flow = scene.flow("write", "check", "send")
    scene.fail_at("check", flow)
    with pytest.raises(hf.ResumeRefused, match="'check' has not completed"):
        scene.call("resume", "r", after="check", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="did you mean 'write'"):
        scene.call("resume", "r", after="wirte", flows=[flow])


def test_restart_at_runs_a_node_again_with_the_input_it_had(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    run = scene.call("resume", "r", restart_at="a", flows=[flow])
    assert scene.ran == ["a", "b", "c"]
    assert run.state == Tale(["a 1.2 calm", "b 1.2 calm", "c 1.2 calm"], count=3)
    scene.assert_sound()


def test_restart_at_the_node_that_failed_is_a_new_execution_of_it(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("resume", "r", restart_at="b", flows=[flow])
    assert (scene.ran, run.state.told) == (["b"], ["a 1.1 calm", "b 1.2 calm"])


def test_restart_at_a_node_that_was_never_reached_is_refused(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="'c' was never reached"):
        scene.call("resume", "r", restart_at="c", flows=[flow])
    assert scene.ran == []


def test_replay_in_a_loop_runs_only_the_last_iteration_again(scene: Scene) -> None:
    graph = Graph("tale", Tale)
    graph.node(name="a")(scene.body("a"))
    graph.node(name="b")(scene.body("b"))
    graph.chain(START, "a").branch("a", lambda s: "a" if s.count < 3 else "b", to=["a", "b"]).edge("b", END)
    flow = graph.compile()
    scene.fail_at("b", flow)
    run = scene.call("resume", "r", replay=True, flows=[flow])
    assert scene.ran == ["a", "b"]
    assert run.state.told == ["a 1.1 calm", "a 2.1 calm", "a 3.2 calm", "b 1.2 calm"]
    scene.assert_sound()


def test_replay_before_anything_completed_is_refused(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.fail_at("a", flow)
    with pytest.raises(hf.ResumeRefused, match="no node has completed yet"):
        scene.call("resume", "r", replay=True, flows=[flow])


def test_restart_at_keeps_what_completed_earlier_beside_it_and_redoes_what_came_later(scene: Scene) -> None:
    graph = Graph("tale", Tale)
    for name in ("left", "right", "join"):
        graph.node(name=name)(lambda state, ctx: scene.ran.append(ctx.node) or {"told": [ctx.node]})

    def bad(state: Tale) -> None:
        raise ValueError("broken")

    graph.node(name="bad")(bad)
    graph.chain(START, "left", "join", "bad", END).chain(START, "right", "join")
    flow = graph.compile()
    with pytest.raises(hf.RunFailed):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    completed = [row.node for row in scene.store.events("r", kinds=("NodeCompleted",))]
    scene.ran.clear()
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "r", restart_at=completed[1], flows=[flow])
    assert scene.ran == [completed[1], "join"]


def test_a_rewind_in_a_changed_graph_needs_leave_again(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    scene.broken["c"] = ValueError("broken")
    longer = scene.flow("a", "b", "c")
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "r", on_change="compatible", flows=[longer])
    with pytest.raises(hf.ResumeRefused, match="the flow has changed"):
        scene.call("resume", "r@1", flows=[longer])
    del scene.broken["c"]
    run = scene.call("resume", "r@1", on_change="compatible", flows=[longer])
    assert run.state.told == ["a 1.2 calm", "b 1.2 calm", "c 1.2 calm"]
    scene.assert_sound()


# --- with which state --------------------------------------------------------------------------------


def test_an_edit_is_recorded_and_seen_by_the_node_that_had_begun(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    run = scene.call("resume", "r", edit=lambda s: {"mood": "bright"}, by="ann", flows=[flow])
    assert run.state.told == ["a 1.1 calm", "b 1.1 bright"]
    assert scene.kinds(before)[:2] == ["RunResumed", "StateEdited"]
    edited = scene.call("events", "r", flows=[flow], kind="StateEdited")[0]
    assert (edited.by, edited.body["changes"]["set"]) == ("ann", {"mood": "bright"})
    scene.assert_sound()


@pytest.mark.parametrize(
    "edit",
    [
        {"told": ["once"], "mood": "bright"},
        lambda s: {"told": ["once"], "mood": "bright"},
        lambda s: Tale(["once"], "bright", s.count),
        lambda s: s.told.__setitem__(slice(None), ["once"]) or setattr(s, "mood", "bright"),
    ],
    ids=["fields", "function", "whole state", "in place"],
)
def test_an_edit_replaces_also_what_a_reducer_would_add_to(scene: Scene, edit: Any) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("resume", "r", edit=edit, flows=[flow])
    assert run.state == Tale(["once", "b 1.1 bright"], "bright", 2)


@pytest.mark.parametrize("edit", [{"mod": "bright"}, {"count": "many"}, lambda s: {"count": float("nan")}])
def test_an_edit_that_does_not_fit_the_state_is_refused_and_nothing_is_recorded(
    scene: Scene, edit: Any
) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    with pytest.raises(hf.StateError):
        scene.call("resume", "r", edit=edit, flows=[flow])
    assert (scene.kinds(before), scene.ran) == ([], [])
    assert not scene.store.run("r").held


def test_an_edit_comes_before_the_validation_and_a_refusal_records_neither(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    seen = []

    def calm_only(state: Tale) -> str | None:
        seen.append(state.mood)
        return None if state.mood == "calm" else "only calm tales go on"

    with pytest.raises(hf.ResumeRefused, match="only calm tales go on"):
        scene.call("resume", "r", edit={"mood": "wild"}, validate=calm_only, by="ann", flows=[flow])
    assert (seen, scene.ran, scene.kinds(before)) == (["wild"], [], ["RequestRefused"])
    refused = scene.call("events", "r", flows=[flow], kind="RequestRefused")[0]
    assert (refused.by, refused.body["reason"]) == ("ann", "only calm tales go on")
    assert scene.call("get", "r", flows=[flow]).state.mood == "calm"
    assert scene.call("resume", "r", validate=calm_only, flows=[flow]).status == "completed"
    scene.assert_sound()


@pytest.mark.parametrize(
    ("answer", "goes_on"), [(None, True), (True, True), (False, False), ("", False), ("no", False)]
)
def test_what_a_validation_returns_decides(scene: Scene, answer: Any, goes_on: bool) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    if goes_on:
        assert scene.call("resume", "r", validate=lambda s: answer, flows=[flow]).status == "completed"
    else:
        with pytest.raises(hf.ResumeRefused):
            scene.call("resume", "r", validate=lambda s: answer, flows=[flow])
        assert scene.ran == []


def test_a_validation_of_the_graph_binds_every_resume(scene: Scene) -> None:
    graph = Graph("tale", Tale, validate_resume=lambda s: "closed" if s.mood == "calm" else None)
    flow = scene.flow("a", "b", graph=graph)
    scene.fail_at("b", flow)
    for verb in ("resume", "retry"):
        with pytest.raises(hf.ResumeRefused, match="closed"):
            scene.call(verb, "r", flows=[flow])
    assert scene.ran == []
    assert scene.call("resume", "r", edit={"mood": "open"}, flows=[flow]).status == "completed"


# --- whether at all ----------------------------------------------------------------------------------


def test_a_completed_run_is_returned_and_nothing_runs(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    before = scene.store.run("r").seq
    run = scene.call("resume", "r", flows=[flow])
    assert (run.status, scene.ran, scene.kinds(before)) == ("completed", ["a"], [])


@pytest.mark.parametrize(
    "how", [{"checkpoint": 1}, {"after": "a"}, {"restart_at": "a"}, {"replay": True}, {"edit": {"mood": "x"}}]
)
def test_rewinding_or_editing_a_completed_run_is_refused_with_the_way_out(
    scene: Scene, how: dict[str, Any]
) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match=r"completed, which is final.*fork"):
        scene.call("resume", "r", flows=[flow], **how)
    assert (scene.ran, scene.kinds()[-1]) == (["a"], "RunCompleted")


@pytest.mark.parametrize("how", [{}, {"checkpoint": 1}, {"replay": True}, {"force": True}])
def test_a_cancelled_run_is_refused_with_the_way_out(scene: Scene, how: dict[str, Any]) -> None:
    flow = scene.flow("a", "b")
    scene.call("start", flow, Tale(), run_id="r", flows=[flow])
    assert scene.call("cancel", "r", "not needed", by="ann", flows=[flow]).status == "cancelled"
    with pytest.raises(hf.ResumeRefused, match=r"cancelled, which is final.*fork"):
        scene.call("resume", "r", flows=[flow], **how)
    assert (scene.ran, scene.kinds()[-1]) == ([], "RunCancelled")


def test_a_fatal_failure_is_resumed_only_with_force(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow, hf.Fatal("the account is closed"))
    with pytest.raises(hf.ResumeRefused, match=r"the account is closed.*force=True"):
        scene.call("resume", "r", flows=[flow])
    assert scene.ran == []
    assert scene.call("resume", "r", force=True, flows=[flow]).status == "completed"
    assert scene.ran == ["b"]


def test_a_fatal_failure_can_be_skipped(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow, hf.Fatal("the account is closed"))
    run = scene.call("skip", "r", "b", {"mood": "relieved"}, flows=[flow])
    assert (run.status, scene.ran, run.state.mood) == ("completed", ["c"], "relieved")


def test_rewinding_past_a_node_that_is_not_idempotent_needs_force(scene: Scene) -> None:
    flow = scene.flow("a", "pay", "c", nodes={"pay": {"idempotent": False}})
    scene.fail_at("c", flow)
    for how in (
        {"checkpoint": 1},
        {"after": "a"},
        {"restart_at": "a"},
        {"restart_at": "pay"},
        {"replay": True},
    ):
        with pytest.raises(hf.ResumeRefused, match=r"a node that is not idempotent:\n  pay \(completed"):
            scene.call("resume", "r", flows=[flow], **how)
    assert scene.ran == []
    run = scene.call("resume", "r", after="a", force=True, flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["pay", "c"])


def test_rewinding_behind_a_node_that_is_not_idempotent_needs_no_force(scene: Scene) -> None:
    flow = scene.flow("pay", "b", "c", nodes={"pay": {"idempotent": False}})
    scene.fail_at("c", flow)
    scene.call("resume", "r", after="pay", flows=[flow])
    assert scene.ran == ["b", "c"]


def test_an_engine_without_the_flow_says_which_one_it_needs(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    for verb, args in (("resume", ["r"]), ("retry", ["r"]), ("skip", ["r", "b"])):
        with pytest.raises(hf.FlowNotFound, match="belongs to flow 'tale'"):
            scene.call(verb, *args, flows=[])
    assert not scene.store.run("r").held


def test_pausing_and_cancelling_need_no_flow(scene: Scene) -> None:
    scene.call("start", flow := scene.flow("a"), Tale(), run_id="r", flows=[flow])
    assert scene.call("pause", "r", flows=[]).status == "paused"
    assert scene.call("cancel", "r", flows=[]).status == "cancelled"
    scene.assert_sound()


def test_a_run_that_lives_elsewhere_is_refused_naming_the_holder(scene: Scene) -> None:
    graph = Graph("tale", Tale)
    flows: list[Flow[Any]] = []
    said = []

    @graph.node
    async def a(state: Tale) -> None:
        async with hf.Engine(scene.store, flows=flows) as other:
            for verb in (other.resume, other.retry):
                try:
                    await verb("r")
                except hf.RunHeld as held:
                    said.append(held.holder)

    flows.append(graph.chain(START, "a", END).compile())
    assert scene.call("run", flows[0], Tale(), run_id="r", flows=flows).status == "completed"
    assert said[0].startswith("process ")


def test_a_run_of_this_very_engine_is_refused_as_held_too(scene: Scene) -> None:
    graph = Graph("tale", Tale)

    @graph.node
    async def a(state: Tale, ctx: hf.Context) -> None:
        with pytest.raises(hf.RunHeld, match="this engine"):
            await ctx.resources["engine"][0].resume("r")

    flow = graph.chain(START, "a", END).compile()
    engines: list[hf.Engine] = []

    async def use() -> None:
        async with hf.Engine(scene.store, resources={"engine": engines}) as engine:
            engines.append(engine)
            await engine.run(flow, Tale(), run_id="r")

    asyncio.run(use())


def test_a_dead_holder_keeps_nobody_out(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(
        scene.store, holder=dead_process()
    )
    run = scene.call("resume", "r", flows=[flow])
    assert (run.status, scene.ran, run.nodes["b"].attempt) == ("completed", ["b"], 2)
    scene.assert_sound()


# --- the same run id again ---------------------------------------------------------------------------


def test_the_same_id_and_input_is_the_same_run(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(mood="merry"), run_id="r", flows=[flow])
    run = scene.call("run", flow, {"mood": "merry"}, run_id="r", flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["a"])
    assert scene.call("start", flow, Tale(mood="merry"), run_id="r", flows=[flow]) == "r"
    assert scene.ran == ["a"]


def test_an_unfinished_run_is_carried_on_by_run(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(scene.store)
    assert scene.call("run", flow, Tale(), run_id="r", flows=[flow]).status == "completed"
    assert scene.ran == ["b"]


def test_a_started_run_is_executed_by_resume(scene: Scene) -> None:
    flow = scene.flow("a")
    assert scene.call("start", flow, Tale(), run_id="r", flows=[flow]) == "r"
    assert (scene.ran, scene.store.run("r").status) == ([], "pending")
    assert scene.call("resume", "r", flows=[flow]).status == "completed"


def test_a_failed_run_raises_again_and_nothing_runs(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.fail_at("a", flow)
    with pytest.raises(hf.RunFailed, match="broken") as raised:
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    assert (raised.value.run.status, scene.ran) == ("failed", [])


def test_another_input_or_flow_is_another_run_and_refused(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    other = scene.flow("a", graph=Graph("legend", Tale))
    for verb in ("run", "start"):
        with pytest.raises(hf.RunExists, match="another input") as refused:
            scene.call(verb, flow, Tale(mood="wild"), run_id="r", flows=[flow])
        assert "another exception" not in "".join(traceback.format_exception(refused.value))
        with pytest.raises(hf.RunExists, match=r"another flow \('tale'\)"):
            scene.call(verb, other, Tale(), run_id="r", flows=[other])


def test_start_uses_an_existing_run_of_its_flow_whatever_its_input_where_that_is_asked_for(
    scene: Scene,
) -> None:
    flow = scene.flow("a")
    other = scene.flow("a", graph=Graph("legend", Tale))
    use = {"run_id": "r", "on_exists": "use"}
    assert scene.call("start", flow, Tale(), **use, flows=[flow]) == "r"
    assert scene.call("start", flow, Tale(mood="wild"), **use, flows=[flow]) == "r"
    assert scene.call("get", "r", flows=[flow]).state == Tale()
    with pytest.raises(hf.RunExists, match=r"another flow \('tale'\)"):
        scene.call("start", other, Tale(), **use, flows=[other])


@pytest.mark.parametrize(
    ("given", "told"),
    [({"on_exists": "keep"}, "'refuse' or 'use'"), ({"on_exists": "use"}, "needs a run_id")],
)
def test_an_on_exists_that_says_nothing_is_refused(scene: Scene, given: dict[str, Any], told: str) -> None:
    flow = scene.flow("a")
    with pytest.raises(hf.SettingError, match=told):
        scene.call("start", flow, Tale(), **given, flows=[flow])


@pytest.mark.parametrize("run_id", ["", "a b", "../x", "-r", "r@1", "x" * 129, "ü"])
def test_a_run_id_is_safe_in_files_and_urls(scene: Scene, run_id: str) -> None:
    flow = scene.flow("a")
    with pytest.raises(hf.SettingError, match="not a valid run id"):
        scene.call("start", flow, Tale(), run_id=run_id, flows=[flow])


def test_start_of_a_run_that_this_engine_executes_returns_its_id(scene: Scene) -> None:
    graph = Graph("tale", Tale)
    engines: list[hf.Engine] = []
    said = []

    @graph.node
    async def a(state: Tale) -> None:
        said.append(await engines[0].start(flow, Tale(), run_id="r"))

    flow = graph.chain(START, "a", END).compile()

    async def use() -> None:
        async with hf.Engine(scene.store) as engine:
            engines.append(engine)
            await engine.run(flow, Tale(), run_id="r")

    asyncio.run(use())
    assert said == ["r"]


# --- routing -----------------------------------------------------------------------------------------


def routed_flow(scene: Scene, router: Callable[[Tale], str], **options: Any) -> Flow[Tale]:
    graph = Graph("tale", Tale)
    for name in ("a", "b"):
        graph.node(name=name)(scene.body(name))
    return graph.edge(START, "a").branch("a", router, to=["b", END]).edge("b", END).compile(**options)


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_a_router_that_raised_is_all_that_is_evaluated_again(scene: Scene, schedule: str) -> None:
    asked = []

    def router(state: Tale) -> str:
        asked.append(state.told[0])
        if len(asked) == 1:
            raise LookupError("no route today")
        return "b"

    flow = routed_flow(scene, router, schedule=schedule)
    with pytest.raises(hf.RunFailed, match="no route today"):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    assert scene.kinds()[-2:] == ["RoutingFailed", "RunFailed"]
    assert "NodeCompleted" in scene.kinds()
    run = scene.call("resume", "r", flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["a", "b"])
    assert asked == ["a 1.1 calm", "a 1.1 calm"], "a router sees the state with its node's changes applied"
    scene.assert_sound()


def test_a_routing_decision_is_never_evaluated_again(scene: Scene) -> None:
    asked = []
    flow = routed_flow(scene, lambda s: asked.append(1) or "b")
    scene.fail_at("b", flow)
    scene.call("resume", "r", flows=[flow])
    assert asked == [1]


def test_a_router_that_names_no_target_of_its_own_is_refused_by_name(scene: Scene) -> None:
    flow = routed_flow(scene, lambda s: "bb")
    with pytest.raises(hf.RunFailed, match=r"'bb', which is not one of its targets.*did you mean 'b'"):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])


def test_a_node_whose_router_failed_can_be_retried_by_name(scene: Scene) -> None:
    asked = []

    def router(state: Tale) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise LookupError("no route today")
        return "b"

    flow = routed_flow(scene, router)
    with pytest.raises(hf.RunFailed):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    run = scene.call("retry", "r", flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["a", "b"])


# --- what it costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_the_row_of_a_run_is_read_once_before_a_verb_that_executes_claims_it_and_once_after(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    reads = 0
    kind = type(scene.store)
    read, append = kind.run, kind.append

    def run(self: Any, run_id: str) -> Any:
        nonlocal reads
        reads += read_before_the_append[-1]
        return read(self, run_id)

    def saved(self: Any, *appends: Any) -> Any:
        read_before_the_append.append(False)
        return append(self, *appends)

    read_before_the_append = [True]
    monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr(kind, "append", saved)
    scene.call(verb, "r", flows=[flow])
    assert len(read_before_the_append) > 1
    assert reads == 2
