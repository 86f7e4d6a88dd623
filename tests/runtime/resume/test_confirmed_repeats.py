"""A rewind past nodes that are not idempotent: all of them are named, with when each ran, and must be confirmed by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scenes import Scene

import holdfast as hf
from holdfast import Flow
from holdfast.storage.rows import open_row

ONCE = {"idempotent": False}
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def scene() -> Scene:
    return Scene()


def paid(scene: Scene) -> Flow[Any]:
    """A run `r` in which `pay` and `mail` have completed, and `ship` has failed; none of them is idempotent."""
    flow = scene.flow("a", "pay", "mail", "ship", nodes={"pay": ONCE, "mail": ONCE, "ship": ONCE})
    scene.fail_at("ship", flow)
    return flow


def refusal(scene: Scene, flow: Flow[Any], **asked: object) -> str:
    with pytest.raises(hf.ResumeRefused) as refused:
        scene.call("resume", "r", flows=[flow], **asked)
    assert scene.ran == []
    return str(refused.value)


def test_the_refusal_lists_every_node_with_when_it_ran_and_the_option_that_confirms_them(
    scene: Scene,
) -> None:
    said = refusal(scene, paid(scene), after="a")
    assert re.search(
        rf"would repeat 3 nodes that are not idempotent:\n  pay \(completed at {TIME}\)\n"
        rf"  mail \(completed at {TIME}\)\n  ship \(failed at {TIME}\)\n",
        said,
    )
    assert 'confirm=["pay", "mail", "ship"] (--confirm pay --confirm mail --confirm ship)' in said


@pytest.mark.parametrize("confirm", [["pay"], ["pay", "ship"], ("mail",)])
def test_confirming_some_of_them_is_not_enough(scene: Scene, confirm: list[str]) -> None:
    assert "would repeat 3 nodes that" in refusal(scene, paid(scene), after="a", confirm=confirm)


def test_confirmed_nodes_run_again_and_the_log_names_them(scene: Scene) -> None:
    flow = paid(scene)
    run = scene.call("resume", "r", after="a", confirm=["ship", "pay", "mail"], flows=[flow])
    assert (run.status, scene.ran) == ("completed", ["pay", "mail", "ship"])
    (row,) = scene.store.events("r", kinds=("RunRewound",))
    assert open_row(row, scene.store.blobs).event.confirmed == ["ship", "pay", "mail"]
    scene.assert_sound()


def test_force_confirms_all_of_them(scene: Scene) -> None:
    flow = paid(scene)
    assert scene.call("resume", "r", after="a", force=True, flows=[flow]).status == "completed"


def test_only_the_nodes_that_would_run_again_need_to_be_confirmed(scene: Scene) -> None:
    flow = paid(scene)
    assert 'confirm=["ship"]' in refusal(scene, flow, after="mail")
    assert scene.call("resume", "r", after="mail", confirm=["ship"], flows=[flow]).status == "completed"


def test_a_confirm_of_a_node_that_the_flow_does_not_have_is_refused_by_name(scene: Scene) -> None:
    assert "confirm names 'pya', but flow 'tale' has no such node; did you mean 'pay'?" in refusal(
        scene, paid(scene), after="a", confirm=["pya"]
    )


def test_a_confirm_of_a_node_that_would_not_run_again_is_refused_by_name(scene: Scene) -> None:
    flow = paid(scene)
    said = refusal(scene, flow, after="mail", confirm=["ship", "pay"])
    assert "confirm names 'pay', which would not run again if the run goes back to event" in said
    said = refusal(scene, flow, confirm=["pay"])
    assert (
        "confirm names 'pay', which would not run again if the run continues from the end of its log" in said
    )


def test_a_failed_node_may_be_confirmed_without_a_rewind_because_it_runs_again(scene: Scene) -> None:
    flow = paid(scene)
    assert scene.call("resume", "r", confirm=["ship"], flows=[flow]).status == "completed"


@pytest.mark.parametrize("confirm", ["pay", [3], 5])
def test_a_confirm_that_is_not_a_list_of_names_is_refused(scene: Scene, confirm: object) -> None:
    with pytest.raises(hf.SettingError, match="confirm="):
        scene.call("resume", "r", after="a", confirm=confirm, flows=[paid(scene)])
    assert scene.ran == []
