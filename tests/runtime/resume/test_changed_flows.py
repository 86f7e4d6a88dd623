"""With which flow a run goes on: changed options, renamed nodes, and states of another version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from scenes import Scene, Tale

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History

# --- changed flows -----------------------------------------------------------------------------------


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


def test_a_rename_to_a_node_that_is_not_there_is_refused_as_such(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    with pytest.raises(hf.ResumeRefused, match=r"\(--rename b=zz\): this flow has no node 'zz'"):
        scene.call("resume", "r", rename={"b": "zz"}, flows=[scene.flow("a", "second")])


def test_a_retry_of_another_node_names_those_that_can_be_retried(scene: Scene) -> None:
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    with pytest.raises(hf.ResumeRefused, match=r"'a' is completed; .* can be tried again, here 'b'"):
        scene.call("retry", "r", node="a", flows=[flow])


# --- state upgrades ----------------------------------------------------------------------------------


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
