"""What a run may cost, and what `decide` does when that is spent. The scope of a run is decided here too."""

from __future__ import annotations

import msgspec
import pytest

import holdfast as hf
from holdfast.core import events, run_state
from holdfast.core.budget import Spent, check_budget, explain, left_of, raised, reached
from holdfast.core.commands import (
    AskFirst,
    CompleteLayer,
    CompleteRun,
    FailItems,
    FailRun,
    PauseRun,
    ScheduleNode,
    SkipNode,
    StartItem,
    StartNode,
)
from holdfast.errors import SchemaTooNew, SettingError, StoreCorrupt
from holdfast.testing.builders import History, outline


def told(*paths: str, budget=None, scope=None, schedule=None, **options) -> History:
    """A run of such a graph, just created with these limits."""
    limits = {"budget": budget} if budget else {}
    limits |= {"scope": scope} if scope else {}
    return History("r", outline(*paths, **options)).created(schedule=schedule, **limits)


def starts(history: History) -> list[str]:
    return [command.node for command in history.commands() if isinstance(command, StartNode)]


def fault(history: History) -> str:
    (command,) = history.commands()
    assert isinstance(command, FailRun)
    assert (command.failure.kind, command.failure.type) == ("partial", "BudgetExceeded")
    return command.failure.message


# --- the arithmetic ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({}, "limits nothing"),
        ({"usd": 0}, "above 0"),
        ({"usd": -1.5}, "above 0"),
        ({"usd": True}, "above 0"),
        ({"usd": "5"}, "above 0"),
        ({"usd": float("nan")}, "above 0"),
        ({"active_s": float("inf")}, "above 0"),
        ({"tokens": 1.5}, "whole number"),
    ],
)
def test_a_budget_that_limits_nothing_or_less_than_nothing_is_refused(limits, wrong):
    with pytest.raises(SettingError, match=wrong):
        hf.Budget(**limits)


def test_a_budget_is_given_as_such_or_as_a_mapping_and_nothing_else():
    assert check_budget({"usd": 5}) == hf.Budget(usd=5.0)
    with pytest.raises(SettingError, match="did you mean 'tokens'"):
        check_budget({"token": 5})
    with pytest.raises(SettingError, match=r"hf\.Budget\(usd="):
        check_budget(5)


def test_amounts_that_add_up_to_a_limit_reach_it():
    assert reached(hf.Budget(usd=1), Spent(sum([0.1] * 10), 0, 0)) == ["usd"]
    assert reached(hf.Budget(usd=1, tokens=10), Spent(0.9, 9, 99.0)) == []


def test_what_is_left_is_never_less_than_nothing():
    left = left_of(hf.Budget(usd=1, tokens=10), Spent(0.25, 12, 3.0))
    assert (left.usd, left.tokens, left.active_s) == (0.75, 0, None)


def test_the_message_says_which_limit_how_much_and_a_command_with_more():
    budget, spent = hf.Budget(usd=5, tokens=1000), Spent(5.25, 10, 1.0)
    message = explain("r1", budget, spent, "work.py")
    assert "has spent 5.25 usd of a budget of 5" in message
    assert "tokens of a budget" not in message
    assert f"`holdfast resume r1 work.py --budget {raised(budget, spent)}`" in message
    assert not reached(raised(budget, spent), spent)


# --- deciding --------------------------------------------------------------------------------------------


def test_a_run_within_its_budget_is_decided_as_any_other():
    run = told("START a b END", budget={"usd": 5})
    assert starts(run.started("a").spent("a", usd=4.9).completed("a")) == ["b"]


def test_nothing_begins_once_the_budget_is_spent_and_the_run_fails():
    run = told("START a b END", budget={"usd": 5, "tokens": 100}).started("a").spent("a", tokens=100)
    assert run.commands() == []
    assert "100 tokens of a budget of 100" in fault(run.completed("a"))


def test_what_runs_is_not_stopped():
    run = told("START a c END", "START b END", budget={"usd": 5}).started("a", "b").spent("a", usd=5)
    assert run.completed("a").commands() == []
    assert "5 usd" in fault(run.completed("b"))


def test_a_run_whose_last_node_spent_the_budget_is_completed():
    assert told("START a END", budget={"usd": 5}).started("a").spent("a", usd=9).completed(
        "a"
    ).commands() == [CompleteRun()]


def test_the_costs_of_children_count():
    run = told("START a b END", budget={"usd": 5}).started("a").spent("a", usd=2)
    run.record(events.ChildEnded(run="c", seq=3, status="completed", usd=3.0))
    assert "5 usd" in fault(run.completed("a"))


def test_the_time_of_attempts_that_run_counts_until_the_last_event():
    run = told("START a END", "START b c END", budget={"active_s": 10.0}).started("a", "b")
    run.at += 4
    assert run.spent("b").commands() == []
    assert run.completed("b").state.spent().active_s >= 10.0  # a second for each event
    assert run.commands() == []
    assert "seconds of activity" in fault(run.completed("a"))


def test_no_attempt_is_retried_or_repeated_over_the_budget():
    run = told("START a END", budget={"usd": 1}).started("a").spent("a", usd=1)
    run.failed("a", hf.Recoverable("later"), retry_in=60)
    assert "1 usd" in fault(run)  # and does not wait for the retry
    cut = told("START a END", budget={"usd": 1}).started("a").spent("a", usd=1).taken_up()
    assert "1 usd" in fault(cut)


def test_an_attempt_that_only_waited_continues():
    run = told("START a END", budget={"usd": 1}).started("a").spent("a", usd=1)
    run.awaiting("a", "paid").parked("a", "signal:paid:1").told("paid")
    assert [(command.node, command.woken) for command in run.commands()] == [("a", True)]


def test_a_gate_is_not_asked_over_the_budget():
    run = told("START a b END", budget={"usd": 1}, nodes={"b": {"approve": "Really?"}})
    assert "1 usd" in fault(run.started("a").spent("a", usd=1).completed("a"))
    free = told("START a b END", budget={"usd": 2}, nodes={"b": {"approve": "Really?"}})
    assert [type(one) for one in free.started("a").spent("a", usd=1).completed("a").commands()] == [AskFirst]


def test_no_item_begins_over_the_budget_and_the_fan_out_fails_when_none_runs():
    run = told("START a END", budget={"usd": 1}, nodes={"a": {"each": lambda state: [1, 2, 3], "limit": 1}})
    run.started("a").perform(StartItem("a", 0, 1)).spent("a", usd=1)
    assert run.commands() == []
    (command,) = run.item_completed("a", 0).commands()
    assert (type(command), command.item, command.failure.type) == (FailItems, 1, "BudgetExceeded")
    run.perform(command)
    assert "run 'r' has spent 1 usd" in fault(run)
    assert run.state.nodes["a"].failure.item == 1
    assert [type(one) for one in run.settled().taken_up(budget=hf.Budget(usd=9)).commands()] == [StartNode]
    run.started("a")
    assert [one for one in run.commands() if isinstance(one, StartItem)] == [StartItem("a", 1, 1)]


def test_a_spent_budget_is_not_a_failure_that_a_node_may_have():
    run = told("START a END", budget={"usd": 1}, nodes={"a": {"safe_to_fail": True}}).started("a")
    run.spent("a", usd=1).failed("a", hf.BudgetExceeded("spent"))
    assert not any(isinstance(command, SkipNode) for command in run.commands())
    assert run.commands()[0].failure.type == "BudgetExceeded"


def test_a_paused_run_does_not_fail_before_it_is_resumed():
    run = told("START a b END", budget={"usd": 1}).started("a").spent("a", usd=1).paused().completed("a")
    assert run.commands() == []
    assert "1 usd" in fault(run.taken_up())


def test_a_resume_with_a_higher_budget_continues_and_one_without_does_not():
    run = told("START a b END", budget={"usd": 1}).started("a").spent("a", usd=1).completed("a").settled()
    assert run.state.status == "failed"
    assert "1 usd" in fault(run.taken_up())
    assert starts(run.settled().taken_up(budget=hf.Budget(usd=2))) == ["b"]
    assert run.state.budget == hf.Budget(usd=2)


# --- the scope -------------------------------------------------------------------------------------------


def test_only_nodes_in_scope_start_and_then_the_run_is_paused():
    run = told("START a b END", "START c END", scope=["a"])
    assert [type(one) for one in run.commands()] == [StartNode, ScheduleNode]
    assert run.commands()[1].why == "not in scope"
    run.completed("a").settled()
    assert (run.state.status, run.state.nodes["c"].status, run.state.nodes["b"].status) == (
        "paused",
        "pending",
        "pending",
    )
    assert run.commands() == []
    assert starts(run.taken_up(scope=["a", "b"])) == ["b"]
    assert starts(run.completed("b").settled().taken_up(scope=["*"])) == ["c"]
    assert run.state.scope is None


def test_a_run_whose_first_node_is_not_in_scope_is_paused_at_once():
    run = told("START a b END", scope=["b"])
    run.settled()
    assert (run.state.status, run.events()[-1].event.reason) == ("paused", "scope")


def test_a_join_waits_for_what_is_not_in_scope():
    run = told("START a c END", "START b c", scope=["a", "c"]).completed("a").settled()
    assert run.state.status == "paused"
    assert "c" not in run.state.nodes


def test_a_layer_is_complete_only_with_the_nodes_that_are_not_in_scope():
    run = told("START a c END", "START b c", scope=["a", "c"], schedule="layered").completed("a")
    run.settled()
    assert (run.state.status, list(run.state.held)) == ("paused", ["a"])
    run.taken_up(scope=["*"]).completed("b")
    assert [type(one) for one in run.commands()] == [CompleteLayer]


def test_a_run_waits_for_its_questions_before_it_is_paused_for_its_scope():
    run = told("START a END", "START b END", scope=["a"], nodes={"a": {"approve": "Really?"}})
    run.settled()
    assert run.state.status == "waiting"
    run.answered("a", "approve").completed("a")
    run.settled()
    assert run.state.status == "paused"


def test_a_renamed_node_stays_in_scope():
    run = told("START a b END", scope=["a"])
    run.record(events.FlowChanged(fingerprint=run.state.fingerprint, rename={"a": "z"}))
    assert run.state.scope == {"z": None}


def test_a_run_in_which_everything_left_is_in_scope_is_completed():
    assert told("START a END", scope=["a"]).completed("a").commands() == [CompleteRun()]


def test_over_budget_and_out_of_scope_the_run_is_paused():
    run = told("START a b END", scope=["a"], budget={"usd": 1}).started("a").spent("a", usd=1).completed("a")
    assert [type(one) for one in run.commands()] == [PauseRun]


# --- snapshots -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [{"budget": {"usd": 5}}, {"scope": ["a"]}], ids=lambda one: next(iter(one))
)
def test_a_snapshot_with_a_limit_has_a_form_that_older_readers_refuse(limits):
    state = told("START a b END", **limits).started("a").state
    written = run_state.dump(state)
    assert run_state.load(written) == state
    assert "state" not in msgspec.json.decode(written)
    with pytest.raises(SchemaTooNew, match="version 3"):
        run_state.load(written.replace(b'{"v":2', b'{"v":3', 1))
    with pytest.raises(StoreCorrupt, match="snapshot"):
        run_state.load(b'{"v":2,"run":7}')


def test_a_snapshot_without_limits_has_the_form_that_it_always_had():
    written = msgspec.json.decode(run_state.dump(told("START a END").started("a").state))
    assert [*written] == ["state", "inputs"]


def test_a_failure_of_a_node_comes_before_the_budget():
    run = (
        told("START a b END", budget={"usd": 1})
        .started("a")
        .spent("a", usd=1)
        .failed("a", ValueError("broken"))
    )
    (command,) = run.commands()
    assert isinstance(command, FailRun)
    assert command.node == "a"
