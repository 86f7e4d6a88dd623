"""The checker finds what begins although the budget of a run is spent, or although it is not in scope (invariant I17)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import events
from holdfast.core.run_state import RunState
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import check
from holdfast.testing.builders import History, outline


def found(history: History) -> list[str]:
    store = MemoryStore()
    history.write(store)
    return [one.text for one in check(store) if one.invariant == "I17"]


def spent(**budget: Any) -> History:
    flow = outline("START a b END", nodes={"b": {"each": lambda state: [1, 2]}})
    return History("r", flow).created(budget=budget).started("a").spent("a", usd=2, tokens=20).completed("a")


def start(history: History, node: str = "b") -> History:
    """Record the start of a node that `decide` does not let begin."""
    return history.record(events.NodeStarted(node=node, iteration=1))


def test_a_start_over_the_budget_is_found() -> None:
    assert "begins although the budget of the run is spent (2 of 2 usd)" in found(start(spent(usd=2)))[0]
    assert found(start(spent(tokens=21))) == []


def test_the_time_of_nodes_counts() -> None:
    assert "active_s" in found(start(spent(active_s=1)))[0]
    assert found(start(spent(active_s=60))) == []


def test_an_item_over_the_budget_is_found() -> None:
    history = start(spent(usd=3))
    history.record(events.ItemsListed(node="b", iteration=1, items=[1, 2]))
    history.record(events.ItemStarted(node="b", iteration=1, item=0)).spent("b", usd=1)
    assert found(history) == []
    history.record(events.ItemStarted(node="b", iteration=1, item=1))
    assert "item 1 of node 'b'" in found(history)[0]


def test_a_child_over_the_budget_is_found_unless_it_is_adopted() -> None:
    history = start(spent(usd=3)).spent("b", usd=1)
    history.record(
        events.ChildStarted(node="b", iteration=1, slot="child:x", run="x", flow="f", adopted=True)
    )
    assert found(history) == []
    history.record(events.ChildStarted(node="b", iteration=1, slot="child:y", run="y", flow="f"))
    assert "the child 'y' of node 'b' begins" in found(history)[0]


def test_the_cost_of_a_child_counts() -> None:
    history = spent(usd=3).record(events.ChildEnded(run="x", seq=4, status="completed", usd=1.0))
    assert found(start(history))


def test_a_start_out_of_scope_is_found() -> None:
    history = History("r", outline("START a b END")).created(scope=["a"]).completed("a")
    assert "starts although the node is not in the scope" in found(start(history))[0]
    wider = History("r", outline("START a b END")).created(scope=["a"]).completed("a").settled()
    assert found(wider.taken_up(scope=["a", "b"]).started("b")) == []


def test_a_budget_that_a_resume_resets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the bug that a resume forgets what was spent: the engine goes on, and the checker says so."""
    spent_before = RunState.spent

    def forgetful(state: RunState) -> Any:
        state.usd = 0.0 if state.status == "running" and "b" not in state.nodes else state.usd
        return spent_before(state)

    history = spent(usd=2).settled()
    assert history.state.status == "failed"
    monkeypatch.setattr(RunState, "spent", forgetful)
    assert found(history.taken_up().started("b"))
