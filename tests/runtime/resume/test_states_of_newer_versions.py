"""What old code gets of a run whose state newer code has upgraded: no dict in place of its type, but the reason."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from scenes import Scene, Tale

import holdfast as hf
from holdfast import Graph

BOTH_VERSIONS = r"run 'r' has a state of version 2, and flow 'tale' has version 1 here.*holdfast state r"


@pytest.fixture
def old(scene: Scene) -> hf.Flow[Tale]:
    """Let newer code upgrade the run `r`, which fails then, and return the flow of the old code."""
    flow = scene.flow("a", "b")
    scene.fail_at("b", flow)
    scene.broken["b"] = ValueError("broken")
    graph = Graph("tale", Tale, version=2, upgrades={1: lambda values: {**values, "mood": "upgraded"}})
    with pytest.raises(hf.RunFailed):
        scene.call("resume", "r", flows=[scene.flow("a", "b", graph=graph)])
    return flow


@pytest.mark.parametrize(
    "read",
    [
        lambda scene, old: scene.call("get", "r", flows=[old]),
        lambda scene, old: scene.call("get", f"r@{scene.seq('StateUpgraded')}", flows=[old]),
        lambda scene, old: scene.call("signal", "r", "hello", flows=[old]),
        lambda scene, old: scene.call("cancel", "r", flows=[old]),
        lambda scene, old: scene.call("resume", "r", execute=False, flows=[old]),
    ],
)
def test_the_state_of_a_run_that_newer_code_has_upgraded_is_refused_when_it_is_read(
    scene: Scene, old: hf.Flow[Tale], read: Callable[[Scene, hf.Flow[Tale]], hf.Run[Tale]]
) -> None:
    run = read(scene, old)
    assert (run.id, run.state_version) == ("r", 2)
    with pytest.raises(hf.StateError, match=BOTH_VERSIONS):
        _ = run.state


@pytest.mark.parametrize("edit", [{"mood": "old"}, lambda tale: {"mood": tale.mood + "?"}])
def test_an_edit_by_old_code_is_refused_although_its_fields_would_fit(
    scene: Scene, old: hf.Flow[Tale], edit: Any
) -> None:
    graph = Graph("tale", Tale, version=2, upgrades={1: lambda values: {**values, "mood": "upgraded"}})
    new = scene.flow("a", "b", graph=graph)
    scene.call("edit", "r", {"mood": "new"}, flows=[new])
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
        ("edit", (edit,), {}),
        ("fork", (), {"edit": edit, "run_id": "f"}),
    )
    for verb, given, named in calls:
        with pytest.raises(hf.ResumeRefused, match=r"version 2, and .* version 1\. .*: use the newer code"):
            scene.call(verb, "r", *given, **named, flows=[old])
    scene.call("fork", "r", edit=edit, run_id="g", flows=[new])
    assert scene.call("get", "g", flows=[new]).state_version == 2


def test_a_fork_whose_state_has_an_older_version_is_edited_when_it_is_resumed(
    scene: Scene, old: hf.Flow[Tale]
) -> None:
    graph = Graph("tale", Tale, version=2, upgrades={1: lambda values: {**values, "mood": "upgraded"}})
    new = scene.flow("a", "b", graph=graph)
    with pytest.raises(hf.ResumeRefused, match="resume the fork with edit=…"):
        scene.call("fork", "r", edit={"mood": "new"}, run_id="f", flows=[new])
    scene.call("fork", "r", run_id="f", flows=[new])
    del scene.broken["b"]
    assert scene.call("resume", "f", edit={"mood": "new"}, flows=[new]).state.mood == "new"


def test_waiting_for_such_a_run_raises_its_failure_and_only_its_state_is_refused(
    scene: Scene, old: hf.Flow[Tale]
) -> None:
    with pytest.raises(hf.RunFailed, match="broken") as failed:
        scene.call("wait", "r", flows=[old])
    with pytest.raises(hf.StateError, match=BOTH_VERSIONS):
        _ = failed.value.run.state


def test_the_state_verb_refuses_a_state_of_a_newer_version_with_the_same_reason(
    scene: Scene, old: hf.Flow[Tale]
) -> None:
    with pytest.raises(hf.StateError, match=BOTH_VERSIONS):
        scene.call("state", "r", flows=[old])
    assert scene.call("state", f"r@{scene.seq('RunCreated')}", flows=[old]) == Tale()


def test_a_run_with_a_newer_state_can_be_listed_shown_copied_and_encoded(
    scene: Scene, old: hf.Flow[Tale]
) -> None:
    assert [one.id for one in scene.call("runs", flows=[old])] == ["r"]
    run = scene.call("get", "r", flows=[old])
    assert repr(run) == f"<Run 'r' of 'tale': failed in 'b', {run.seq} events>"
    assert msgspec.json.decode(msgspec.json.encode(run))["state"]["mood"] == "upgraded"
    for other in (copy.copy(run), pickle.loads(pickle.dumps(run))):
        with pytest.raises(hf.StateError, match="version 2"):
            _ = other.state


def test_without_its_flow_the_state_of_a_run_is_plain_data_whatever_its_version(
    scene: Scene, old: hf.Flow[Tale]
) -> None:
    assert scene.call("get", "r", flows=[]).state["mood"] == "upgraded"
    assert scene.call("state", "r", flows=[])["mood"] == "upgraded"


def test_a_state_of_the_same_version_that_does_not_fit_the_type_is_refused_when_it_is_read(
    scene: Scene,
) -> None:
    class Narrow(msgspec.Struct):
        told: list[str]

    scene.fail_at("b", scene.flow("a", "b"))
    graph: Any = Graph("tale", Narrow)
    run = scene.call("get", "r", flows=[scene.flow("a", "b", graph=graph)])
    with pytest.raises(hf.StateError, match=r"run 'r': .*mood.*holdfast state r"):
        _ = run.state


def test_a_state_of_an_older_version_is_plain_data_until_the_run_is_resumed(scene: Scene) -> None:
    scene.fail_at("b", scene.flow("a", "b"))
    graph = Graph("tale", Tale, version=2, upgrades={1: lambda values: values})
    new = scene.flow("a", "b", graph=graph)
    run: hf.Run[Any] = scene.call("get", "r", flows=[new])
    assert (run.state_version, run.state["mood"]) == (1, "calm")
    assert scene.call("resume", "r", flows=[new]).state.mood == "calm"
