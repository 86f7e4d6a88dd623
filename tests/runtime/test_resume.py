"""Every row of the table "Resuming": from where a run goes on, with which state and flow, whether at all, and what an
operator may do with it.

Each verb is called on an engine of its own, as another process would: nothing but the store connects two calls.
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
from holdfast.storage.contract import Request
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History


@dataclass
class Tale:
    told: Annotated[list[str], append] = field(default_factory=list)
    mood: str = "calm"
    count: int = 0


class Scene:
    """A store, the nodes that ran, and whether a node is to raise."""

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
        """A chain of these nodes."""
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
        """Run `r` until this node raises; afterwards it does not any more."""
        self.broken[node] = error or ValueError("broken")
        with pytest.raises(hf.RunFailed):
            self.call("run", flow, Tale(), run_id="r", flows=[flow], **given)
        del self.broken[node]
        self.ran.clear()

    def seq(self, kind: str, node: str | None = None) -> int:
        """Where the latest event of this kind is."""
        return self.store.events("r", kinds=(kind,), node=node)[-1].seq

    def kinds(self, after: int = 0, run_id: str = "r") -> list[str]:
        return [row.kind for row in self.store.events(run_id, after)]

    def assert_sound(self, run_id: str = "r") -> None:
        assert verification.verify(self.store, run_id).problems == []


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- from where ---------------------------------------------------------------------------------------


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


# --- with which state ---------------------------------------------------------------------------------


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
    assert (seen, scene.ran, scene.kinds(before)) == (["wild"], [], ["ResumeRefused"])
    refused = scene.call("events", "r", flows=[flow], kind="ResumeRefused")[0]
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


# --- whether at all -----------------------------------------------------------------------------------


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
        with pytest.raises(hf.ResumeRefused, match=r"'pay' again, which is not idempotent.*force=True"):
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


# --- the same run id again ----------------------------------------------------------------------------


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
        with pytest.raises(hf.RunExists, match="another input"):
            scene.call(verb, flow, Tale(mood="wild"), run_id="r", flows=[flow])
        with pytest.raises(hf.RunExists, match=r"another flow \('tale'\)"):
            scene.call(verb, other, Tale(), run_id="r", flows=[other])


@pytest.mark.parametrize("run_id", ["", "a b", "../x", "-r", "r@1", "x" * 129, "ü"])
def test_a_run_id_is_safe_in_files_and_urls(scene: Scene, run_id: str) -> None:
    flow = scene.flow("a")
    with pytest.raises(hf.SettingError, match="no run id"):
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


# --- forks --------------------------------------------------------------------------------------------


def test_a_fork_goes_on_from_the_latest_checkpoint_and_leaves_its_parent_alone(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    before = scene.kinds()
    fork = scene.call("fork", "r", run_id="f", edit={"mood": "bright"}, by="ann", reason="try", flows=[flow])
    assert (fork, scene.ran) == ("f", [])
    view = scene.call("get", "f", flows=[flow])
    assert (view.status, view.parent, view.state.mood) == ("pending", "r", "bright")
    run = scene.call("resume", "f", flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["c"])
    assert run.state.told == ["a 1.1 calm", "b 1.1 calm", "c 1.1 bright"]
    assert (scene.kinds(), scene.store.run("r").status) == (before, "failed")
    scene.assert_sound("f")


def test_a_seq_means_the_same_place_in_a_fork(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    place = scene.seq("NodeCompleted", "a")
    scene.call("fork", f"r@{place}", run_id="f", flows=[flow])
    first = scene.store.events("f")[0]
    assert (first.kind, first.seq) == ("RunForked", place + 1)
    assert scene.call("state", f"f@{place + 1}", flows=[flow]) == scene.call(
        "state", f"r@{place}", flows=[flow]
    )
    assert scene.call("resume", "f", flows=[flow]).status == "completed"


def test_a_fork_needs_nothing_of_its_parent(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    scene.call("fork", "r", checkpoint=scene.seq("NodeCompleted", "b"), run_id="f", flows=[flow])
    del scene.store._data.runs["r"]
    scene.assert_sound("f")
    scene.ran.clear()
    run = scene.call("resume", "f", flows=[flow])
    assert (scene.ran, run.state.told) == (["c"], ["a 1.1 calm", "b 1.1 calm", "c 1.1 calm"])
    scene.assert_sound("f")


def test_completed_and_cancelled_runs_can_be_forked(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    scene.call("fork", "r@1", run_id="f", flows=[flow])
    scene.call("cancel", "f", flows=[flow])
    place = scene.store.events("f")[0].seq
    scene.call("fork", f"f@{place}", run_id="g", edit={"mood": "new"}, flows=[flow])
    run = scene.call("resume", "g", flows=[flow])
    assert (run.status, run.parent, run.state.mood) == ("completed", "f", "new")
    scene.assert_sound("g")


def test_a_fork_of_a_rewound_run_verifies(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.broken["c"] = ValueError("again")
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "r", after="a", flows=[flow])
    del scene.broken["c"]
    scene.call("fork", "r", run_id="f", flows=[flow])
    run = scene.call("resume", "f", flows=[flow])
    assert run.state.told == ["a 1.1 calm", "b 1.2 calm", "c 1.2 calm"]
    for run_id in ("r", "f"):
        scene.assert_sound(run_id)


def test_a_fork_can_be_rewound_to_its_own_beginning(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.call(
        "fork",
        "r",
        checkpoint=scene.seq("NodeCompleted", "a"),
        run_id="f",
        labels={"who": "fork"},
        flows=[flow],
    )
    first = scene.store.events("f")[0].seq
    scene.broken["c"] = ValueError("again")
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "f", flows=[flow])
    del scene.broken["c"]
    run = scene.call("resume", f"f@{first}", flows=[flow])
    assert (run.state.told, run.parent, run.labels) == (
        ["a 1.1 calm", "b 1.2 calm", "c 1.2 calm"],
        "r",
        {"who": "fork"},
    )
    scene.assert_sound("f")


@pytest.mark.parametrize("how", [{"replay": True}, {"restart_at": "a"}, {"restart_at": "b"}, {"after": "a"}])
def test_a_place_before_a_fork_began_is_done_over_or_refused_with_the_way_out(
    scene: Scene, how: dict[str, Any]
) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.call("fork", "r", run_id="f", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="fork"):
        scene.call("resume", "f", flows=[flow], **how)
    assert not scene.store.run("f").held


def test_after_the_node_at_which_a_fork_began_keeps_what_the_fork_is(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.call("fork", "r", run_id="f", labels={"who": "fork"}, flows=[flow])
    run = scene.call("resume", "f", after="b", flows=[flow])
    assert (run.status, run.parent, run.labels) == ("completed", "r", {"who": "fork"})
    scene.assert_sound("f")


def test_the_state_of_a_fork_before_it_began_is_told_to_be_elsewhere(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    scene.call("fork", "r", run_id="f", flows=[flow])
    with pytest.raises(hf.RunNotFound, match="f@1"):
        scene.call("state", "f@1", flows=[flow])


def test_a_fork_of_an_unknown_flow_only_records(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    assert scene.call("fork", "r", run_id="f", flows=[]) == "f"
    with pytest.raises(hf.FlowNotFound):
        scene.call("fork", "r", run_id="g", edit={"mood": "x"}, flows=[])
    assert scene.call("resume", "f", flows=[flow]).status == "completed"


def test_a_fork_onto_a_taken_id_or_from_no_checkpoint_is_refused(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    with pytest.raises(hf.RunExists):
        scene.call("fork", "r", run_id="r", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="no checkpoint"):
        scene.call("fork", "r@2", flows=[flow])
    with pytest.raises(hf.RunNotFound):
        scene.call("fork", "nobody", flows=[flow])


def test_checkpoints_say_which_of_them_the_run_came_through(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    scene.call("resume", "r", after="a", flows=[flow])
    points = scene.call("checkpoints", "r", flows=[flow])
    assert [(point.kind, point.node, point.execution, point.current) for point in points] == [
        ("RunCreated", None, 0, True),
        ("NodeCompleted", "a", 1, True),
        ("NodeCompleted", "b", 1, False),
        ("NodeCompleted", "b", 2, True),
        ("NodeCompleted", "c", 2, True),
    ]
    assert all(point.id == f"r@{point.seq}" and point.size >= 0 for point in points)
    assert [point.seq for point in points] == sorted(point.seq for point in points)


# --- operators, on runs that nobody holds --------------------------------------------------------------


def test_retry_tries_the_failed_node_again(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("retry", "r", by="ann", flows=[flow])
    assert (run.status, scene.ran, run.nodes["b"].attempt) == ("completed", ["b"], 2)
    scene.assert_sound()


def test_a_fresh_retry_is_a_new_execution(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    run = scene.call("retry", "r", "b", fresh=True, flows=[flow])
    assert (run.nodes["b"].execution, run.nodes["b"].attempt) == (2, 1)
    scene.assert_sound()


def test_skip_puts_an_update_in_place_of_the_result(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    run = scene.call("skip", "r", "b", {"told": ["skipped"]}, by="ann", reason="broken", flows=[flow])
    assert (run.status, scene.ran, run.nodes["b"].status) == ("completed", ["c"], "skipped")
    assert run.state.told == ["a 1.1 calm", "skipped", "c 1.1 calm"]
    skipped = scene.call("events", "r", flows=[flow], kind="NodeSkipped")[0]
    assert (skipped.by, skipped.body["reason"]) == ("ann", "broken")
    scene.assert_sound()


def test_a_skip_that_does_not_fit_the_state_is_refused_and_nothing_is_recorded(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    before = scene.store.run("r").seq
    with pytest.raises(hf.StateError, match="did you mean 'mood'"):
        scene.call("skip", "r", "b", {"moood": "x"}, flows=[flow])
    assert scene.kinds(before) == []
    assert not scene.store.run("r").held


def test_skip_and_retry_name_what_they_cannot_do(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="'a' is completed"):
        scene.call("skip", "r", "a", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="'c' is not reached"):
        scene.call("retry", "r", "c", flows=[flow])
    with pytest.raises(hf.ResumeRefused, match="no node 'd'"):
        scene.call("retry", "r", "d", flows=[flow])
    assert (scene.ran, scene.kinds()[-1]) == ([], "RunFailed")


def test_cancel_ends_a_failed_run_for_good(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    assert scene.call("cancel", "r", "given up", by="ann", flows=[flow]).status == "cancelled"
    assert (scene.store.run("r").status, scene.ran) == ("cancelled", [])
    cancelled = scene.call("events", "r", flows=[flow], kind="RunCancelled")[0]
    assert (cancelled.by, cancelled.body["reason"]) == ("ann", "given up")
    scene.assert_sound()


def test_cancel_ends_an_interrupted_run_for_good(scene: Scene) -> None:
    graph, entered = Graph("tale", Tale), asyncio.Event()

    @graph.node
    async def a(state: Tale) -> None:
        entered.set()
        await asyncio.Event().wait()

    flow = graph.chain(START, "a", END).compile()

    async def stopped() -> None:
        async with hf.Engine(scene.store, grace=0.0) as engine:
            running = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            await entered.wait()
            engine.stop()
            assert (await asyncio.wait_for(running, 5)).status == "interrupted"

    asyncio.run(stopped())
    assert scene.call("cancel", "r", flows=[flow]).status == "cancelled"


async def engine_follow(engine: hf.Engine) -> Any:
    """Follow `r`, which may not be there yet."""
    while True:
        try:
            await engine.get("r")
        except hf.RunNotFound:
            await asyncio.sleep(0)
        else:
            break
    async for event in engine.follow("r"):
        yield event


def test_cancel_ends_a_run_whose_process_died(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(
        scene.store, holder=dead_process()
    )
    assert scene.call("cancel", "r", flows=[flow]).status == "cancelled"
    assert scene.kinds()[-1] == "RunCancelled"
    with pytest.raises(hf.RunCancelled):
        scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    scene.assert_sound()


def test_a_cancel_that_a_dead_holder_never_took_up_is_obeyed_by_the_next(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    History("r", flow).created(Tale()).completed("a").crashed_in("b").write(
        scene.store, holder=dead_process()
    )
    scene.store.post("r", Request(id="please", verb="cancel", by="ann"))
    with pytest.raises(hf.RunCancelled):
        scene.call("resume", "r", flows=[flow])
    assert (scene.ran, scene.store.run("r").status) == ([], "cancelled")


def test_a_run_whose_caller_gave_up_waiting_is_free_and_can_be_resumed(scene: Scene) -> None:
    graph, entered, gone = Graph("tale", Tale), asyncio.Event(), []

    @graph.node
    async def a(state: Tale) -> dict[str, Any]:
        entered.set()
        if not gone:
            await asyncio.Event().wait()
        return {"told": ["a"]}

    flow = graph.chain(START, "a", END).compile()

    async def give_up() -> None:
        async with hf.Engine(scene.store) as engine:
            run = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            await entered.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert not scene.store.run("r").held
            gone.append(True)
            assert (await engine.resume("r")).state.told == ["a"]

    asyncio.run(give_up())
    scene.assert_sound()


def test_a_pending_run_is_paused_and_resumed(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("start", flow, Tale(), run_id="r", flows=[flow])
    assert scene.call("pause", "r", "lunch", by="ann", flows=[flow]).status == "paused"
    assert scene.store.run("r").status == "paused"
    assert scene.call("resume", "r", flows=[flow]).status == "completed"
    scene.assert_sound()


def test_pausing_a_paused_run_changes_nothing(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("start", flow, Tale(), run_id="r", flows=[flow])
    scene.call("pause", "r", flows=[flow])
    before = scene.store.run("r").seq
    assert scene.call("pause", "r", flows=[flow]).status == "paused"
    assert scene.kinds(before) == []
    assert not scene.store.run("r").held


def test_pausing_a_failed_run_is_refused(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match="failed"):
        scene.call("pause", "r", flows=[flow])
    assert not scene.store.run("r").held


def test_operators_leave_final_runs_alone(scene: Scene) -> None:
    flow = scene.flow("a")
    scene.call("run", flow, Tale(), run_id="r", flows=[flow])
    for verb, args in (("retry", ["r"]), ("skip", ["r", "a"]), ("cancel", ["r"]), ("pause", ["r"])):
        with pytest.raises(hf.ResumeRefused, match="completed, which is final"):
            scene.call(verb, *args, flows=[flow])


def test_a_refusal_keeps_the_time_at_which_the_run_wants_attention(scene: Scene) -> None:
    flow = scene.flow("a", nodes={"a": {"retry": hf.Retry(attempts=3, backoff=3600.0)}})

    async def wait_and_leave() -> None:
        scene.broken["a"] = hf.Recoverable("busy")
        async with hf.Engine(scene.store, flows=[flow]) as engine:
            running = asyncio.create_task(engine.run(flow, Tale(), run_id="r"))
            async for event in engine_follow(engine):
                if event.kind == "NodeFailed":
                    break
            running.cancel()

    asyncio.run(wait_and_leave())
    due_at = scene.store.run("r").due_at
    assert due_at is not None
    with pytest.raises(hf.ResumeRefused):
        scene.call("resume", "r", validate=lambda s: "no", flows=[flow])
    assert scene.store.run("r").due_at == due_at


# --- changed flows ------------------------------------------------------------------------------------


def test_an_unchanged_flow_made_anew_goes_on_without_a_word(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    scene.call("resume", "r", flows=[scene.flow("a", "b")])
    assert "FlowChanged" not in scene.kinds()


def test_changed_options_go_on_and_are_recorded(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    run = scene.call(
        "resume", "r", flows=[scene.flow("a", "b", nodes={"b": {"timeout": 60}}, max_iterations=5)]
    )
    assert (run.status, "FlowChanged" in scene.kinds()) == ("completed", True)
    scene.assert_sound()


def test_a_compatible_change_goes_on_only_with_leave(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    longer = scene.flow("a", "b", "c")
    before = scene.store.run("r").seq
    with pytest.raises(hf.ResumeRefused, match="on_change") as refused:
        scene.call("resume", "r", flows=[longer])
    assert "'c'" in refused.value.reason or " c" in refused.value.reason
    assert (scene.ran, scene.kinds(before)) == ([], [])
    run = scene.call("resume", "r", on_change="compatible", by="ann", flows=[longer])
    assert (run.status, scene.ran) == ("completed", ["b", "c"])
    assert scene.call("events", "r", flows=[longer], kind="FlowChanged")[0].by == "ann"
    scene.assert_sound()


def test_an_incompatible_change_is_refused_with_the_difference(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    for names in (("b",), ("a", "c"), ("new", "a", "b")):
        with pytest.raises(hf.ResumeRefused, match="cannot follow") as refused:
            scene.call("resume", "r", on_change="compatible", flows=[scene.flow(*names)])
        assert "The difference:" in refused.value.reason
        assert any(way_out in refused.value.reason for way_out in ("rename", "old code", "fork"))
    assert scene.ran == []


def test_a_renamed_node_keeps_what_it_has_done(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    renamed = scene.flow("first", "second")
    run = scene.call(
        "resume", "r", on_change="compatible", rename={"a": "first", "b": "second"}, flows=[renamed]
    )
    assert (run.status, scene.ran) == ("completed", ["second"])
    assert run.nodes["first"].status == run.nodes["second"].status == "completed"
    assert "a" not in run.nodes
    scene.assert_sound()


# --- state upgrades -----------------------------------------------------------------------------------


@dataclass
class NewTale:
    told: Annotated[list[str], append] = field(default_factory=list)
    feeling: str = "unknown"
    count: int = 0


def feeling_for_mood(values: dict[str, Any]) -> dict[str, Any]:
    values["feeling"] = f"rather {values.pop('mood')}"
    return values


def upgraded_flow(scene: Scene, **given: Any) -> Flow[NewTale]:
    graph = Graph("tale", NewTale, version=2, upgrades={1: feeling_for_mood}, **given)
    for name in ("a", "b"):

        def body(state: NewTale, ctx: hf.Context) -> dict[str, Any]:
            scene.ran.append(ctx.node)
            return {"told": [f"{ctx.node} {state.feeling}"]}

        graph.node(name=name)(body)
    return graph.chain(START, "a", "b", END).compile()


def test_a_state_of_an_older_version_is_upgraded_with_the_inputs_of_what_is_open(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    flow = upgraded_flow(scene)
    run = scene.call("resume", "r", on_change="compatible", flows=[flow])
    assert run.state == NewTale(["a 1.1 calm", "b rather calm"], "rather calm", 1)
    upgraded = scene.call("events", "r", flows=[flow], kind="StateUpgraded")[0]
    assert upgraded.body["state_version"] == 2
    assert upgraded.body["inputs"]["b"]["feeling"] == "rather calm"
    scene.assert_sound()


def test_the_old_state_can_still_be_read_after_an_upgrade(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    flow = upgraded_flow(scene)
    scene.call("resume", "r", on_change="compatible", flows=[flow])
    assert scene.call("state", "r@1", flows=[flow])["mood"] == "calm"
    assert scene.call("get", "r", flows=[]).state["feeling"] == "rather calm"


def test_an_upgrade_that_raises_is_refused_and_nothing_is_recorded(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    graph = Graph("tale", NewTale, version=2, upgrades={1: lambda values: {"told": values["nowhere"]}})
    flow = scene.flow("a", "b", graph=graph)
    before = scene.store.run("r").seq
    with pytest.raises(hf.ResumeRefused, match=r"could not be upgraded from version 1 to 2.*nowhere"):
        scene.call("resume", "r", on_change="compatible", flows=[flow])
    assert (scene.kinds(before), scene.ran) == ([], [])


def test_a_state_that_no_upgrade_leads_from_is_refused_naming_its_version(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    graph = Graph("tale", NewTale, version=3, upgrades={2: feeling_for_mood})
    with pytest.raises(hf.ResumeRefused, match=r"from version 1 to 3.*no upgrade from version 1"):
        scene.call("resume", "r", on_change="compatible", flows=[scene.flow("a", "b", graph=graph)])
    assert scene.ran == []


def test_a_state_of_a_newer_version_is_refused(scene: Scene) -> None:
    graph = Graph("tale", Tale, version=2, upgrades={1: lambda values: values})
    scene.fail_at("b", scene.flow("a", "b", graph=graph))
    with pytest.raises(hf.ResumeRefused, match=r"version 2.*newer code"):
        scene.call("resume", "r", on_change="compatible", flows=[scene.flow("a", "b")])


def test_a_cut_layer_holds_changes_that_no_upgrade_can_lift_and_is_refused(scene: Scene) -> None:
    def two(state: type[Any], **given: Any) -> Flow[Any]:
        graph = Graph("tale", state, **given)
        for name in ("left", "right"):
            graph.node(name=name)(lambda state, ctx: scene.ran.append(ctx.node))
            graph.chain(START, name, END)
        return graph.compile(schedule="layered")

    old = two(Tale)
    history = History("r", old).created(Tale()).started("left", "right").completed("left", {"mood": "bright"})
    history.write(scene.store, holder=dead_process())
    new = two(NewTale, version=2, upgrades={1: feeling_for_mood})
    with pytest.raises(hf.ResumeRefused, match=r"'left'.*old code"):
        scene.call("resume", "r", on_change="compatible", flows=[new])
    assert scene.call("resume", "r", flows=[old]).state.mood == "bright"


def test_a_cut_fan_out_holds_changes_that_no_upgrade_can_lift_and_is_refused(scene: Scene) -> None:
    def fan(state: type[Any], **given: Any) -> Flow[Any]:
        graph = Graph("tale", state, **given)
        graph.node(name="fan", each=lambda state: [1, 2])(lambda item: scene.ran.append(str(item)))
        return graph.chain(START, "fan", END).compile()

    old = fan(Tale)
    history = History("r", old).created(Tale()).started("fan").item_completed("fan", 0, {"mood": "bright"})
    history.write(scene.store, holder=dead_process())
    new = fan(NewTale, version=2, upgrades={1: feeling_for_mood})
    with pytest.raises(hf.ResumeRefused, match=r"'fan'.*old code"):
        scene.call("resume", "r", on_change="compatible", flows=[new])
    assert scene.call("resume", "r", flows=[old]).state.mood == "bright"


# --- routing ------------------------------------------------------------------------------------------


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
