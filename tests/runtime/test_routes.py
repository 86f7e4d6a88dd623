"""Where a run goes from a node is one `Route` for every caller; events store its targets and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import events
from holdfast.core.graph import END, START, Graph
from holdfast.errors import RouterError
from holdfast.runtime import outcomes
from holdfast.runtime.outcomes import Route
from holdfast.testing.builders import History


def flow(**options: Any):
    graph = Graph("review", state=dict)
    for name in ("write", "check", "publish"):
        graph.node(lambda state: None, name=name)
    graph.edge(START, "write").edge("write", "check").edge("write", "publish")
    graph.branch("check", lambda state: state["next"], to=["publish", "write", END])
    return graph.edge("publish", END).compile(**options)


def test_plain_edges_lead_to_all_their_targets_without_a_reason() -> None:
    assert outcomes.route(flow(), "write", {}) == Route(["check", "publish"])


@pytest.mark.parametrize(
    ("chosen", "to"), [("write", ["write"]), (["write", "publish"], ["publish", "write"]), ([END], [END])]
)
def test_a_router_chooses_the_targets_of_the_route(chosen: Any, to: list[str]) -> None:
    assert outcomes.route(flow(), "check", {"next": chosen}) == Route(to)


def test_a_router_that_names_another_node_gives_no_route() -> None:
    with pytest.raises(RouterError, match=r"'check' returned 'pubish'.*did you mean 'publish'"):
        outcomes.route(flow(), "check", {"next": "pubish"})


def test_a_route_can_hold_the_evidence_of_a_way() -> None:
    route = Route(["publish"], {"publish": "score >= 3: 4"})
    assert (route.to, route.why["publish"]) == (["publish"], "score >= 3: 4")
    with pytest.raises(AttributeError):
        route.to = []  # type: ignore[misc]


def test_the_events_that_record_a_route_store_its_targets_only() -> None:
    begun = History("r", flow()).created({"next": "publish"}).completed("write").completed("check")
    completed = [event for event in _events(begun) if isinstance(event, events.NodeCompleted)]
    assert [event.routes for event in completed] == [["check", "publish"], ["publish"]]
    layered = History("r", flow(schedule="layered")).created({"next": END}).completed("write").settled()
    (merged,) = [event for event in _events(layered) if isinstance(event, events.LayerCompleted)]
    assert merged.routes == {"write": ["check", "publish"]}
    for event in (*completed, merged):
        assert "why" not in msgspec.to_builtins(event)


def _events(history: History) -> list[events.Event]:
    return [stored.event for stored in history.events()]
