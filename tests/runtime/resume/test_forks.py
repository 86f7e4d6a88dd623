"""Forks: from where they go on, and what they need of their parent."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import Scene, Tale

import holdfast as hf
from holdfast.reading.forks import fork_place, plan_fork

# --- forks -------------------------------------------------------------------------------------------


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


def test_a_parent_that_moves_on_while_it_is_forked_is_forked_as_it_was(scene: Scene) -> None:
    flow = scene.flow("a", "b", "c")
    scene.fail_at("c", flow)
    row = scene.store.run("r")
    scene.call("resume", "r", flows=[flow])
    assert scene.store.run("r").seq > row.seq
    place = fork_place(scene.store, row, None)
    assert place == scene.seq("NodeCompleted", "b")
    assert plan_fork(scene.store, row, place, flow).seq == place


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
    with pytest.raises(hf.ResumeRefused, match="not a checkpoint"):
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
