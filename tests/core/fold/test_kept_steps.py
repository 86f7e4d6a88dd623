"""What the log says about a declared step: an exception that is its outcome, its failed tries, and that it has begun."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import commands, events
from holdfast.core.run_state import dump, load
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, outline

DECLINED = ValueError("no", 51)
RAISED = {"type": "ValueError", "message": "('no', 51)", "arguments": ["no", 51]}


def alone(**options: Any) -> History:
    """A run of one node, which has begun."""
    return History("r", outline("START a END", nodes={"a": options})).created().started("a")


def fan() -> History:
    """A run of a fan-out with two items, which have begun."""
    nodes = {"a": {"each": lambda state: [0, 1]}}
    return History("r", outline("START a END", nodes=nodes)).created().settled()


def wanted(run: History) -> list[type]:
    return [type(command) for command in run.commands()]


# --- an exception that is an outcome --------------------------------------------------------------------


@pytest.mark.parametrize("end", ["crash", "retry", "failure"])
def test_an_exception_that_is_an_outcome_is_kept_for_every_later_attempt(end: str) -> None:
    run = alone().step_failed("a", "charge", DECLINED)
    if end == "crash":
        run.taken_up().started("a")
    elif end == "retry":
        run.failed("a", Recoverable("later"), retry_in=0.0).started("a")
    else:
        run.failed("a", DECLINED).settled().taken_up().started("a")
    assert (run.state.nodes["a"].attempt, run.kept("a")) == (2, {"raised:charge": RAISED})


def test_a_new_execution_knows_nothing_of_it() -> None:
    run = alone().step_failed("a", "charge", DECLINED).failed("a", DECLINED).settled()
    run.record(events.RunResumed(fresh=True)).settled()
    assert run.kept("a") == {}


def test_an_outcome_is_progress_and_a_failed_try_is_none() -> None:
    run = alone().taken_up().started("a")
    assert run.state.nodes["a"].crashes == 1
    run.step_failed("a", "charge", Recoverable("busy"), retry_in=0.0)
    assert run.state.nodes["a"].crashes == 1
    run.step_failed("a", "charge", DECLINED)
    assert run.state.nodes["a"].crashes == 0


# --- tries ----------------------------------------------------------------------------------------------


def test_a_failed_try_is_a_wait_until_the_next_one() -> None:
    run = alone()
    until = run.at + 60.0
    run.step_failed("a", "charge", Recoverable("busy"), retry_in=60.0)
    (wait,) = run.state.waits.values()
    assert (wait.slot, wait.until, run.kept("a")) == ("try:charge:2", until, {})
    run.passed(60.0)
    assert (run.state.waits, run.kept("a")) == ({}, {"try:charge:2": [None]})
    run.step_failed("a", "charge", Recoverable("busy"), retry_in=0.0)
    assert (run.state.waits, list(run.kept("a"))) == ({}, ["try:charge:2", "try:charge:3"])


def test_a_crash_keeps_the_count_of_tries_and_the_time_of_the_next_one() -> None:
    run = alone()
    until = run.at + 60.0
    run.step_failed("a", "charge", Recoverable("busy"), retry_in=60.0)
    run.taken_up().started("a")
    (wait,) = run.state.waits.values()
    assert (wait.slot, wait.until) == ("try:charge:2", until)


def test_the_next_event_of_a_step_ends_its_wait() -> None:
    for end in ("result", "outcome", "start"):
        run = alone().step_failed("a", "charge", Recoverable("busy"), retry_in=60.0)
        if end == "result":
            run.stepped("a", "charge", 1)
        elif end == "outcome":
            run.step_failed("a", "charge", DECLINED)
        else:
            run.began_step("a", "charge")
        assert run.state.waits == {}
        assert "try:charge:2" in run.kept("a")


def test_a_retry_makes_the_next_try_due_and_keeps_the_count() -> None:
    run = alone().step_failed("a", "charge", Recoverable("busy"), retry_in=60.0).taken_up()
    run.record(events.NodeScheduled(node="a", iteration=1, why="retry")).settled()
    assert (run.state.waits, run.kept("a")) == ({}, {"try:charge:2": [None]})


def test_steps_whose_names_begin_alike_are_counted_apart() -> None:
    run = alone().step_failed("a", "pay", Recoverable("busy"), retry_in=60.0)
    run.step_failed("a", "pay:EUR", Recoverable("busy"), retry_in=60.0)
    assert [wait.slot for wait in run.state.waits.values()] == ["try:pay:2", "try:pay:EUR:2"]
    run.stepped("a", "pay", 1)
    assert [wait.slot for wait in run.state.waits.values()] == ["try:pay:EUR:2"]


def test_the_count_begins_again_when_the_node_fails() -> None:
    run = alone().step_failed("a", "charge", Recoverable("busy"), retry_in=0.0)
    run.step_failed("a", "other", Recoverable("busy"), retry_in=60.0)
    run.failed("a", Recoverable("later"), retry_in=0.0).started("a")
    assert (run.kept("a"), run.state.waits) == ({}, {})


def test_the_count_of_an_item_begins_again_when_the_item_fails() -> None:
    run = fan()
    for item in (0, 1):
        run.step_failed("a", "charge", Recoverable("busy"), retry_in=0.0, item=item)
    run.item_failed("a", 0, Recoverable("later"), retry_in=0.0)
    assert {item: list(kept) for item, kept in run.state.nodes["a"].kept.items()} == {
        0: [],
        1: ["try:charge:2"],
    }


# --- steps that must not be called twice ----------------------------------------------------------------


def test_a_visit_that_was_interrupted_inside_such_a_step_is_asked_about() -> None:
    run = alone().began_step("a", "charge").taken_up()
    assert wanted(run) == [commands.AskAboutNode]


@pytest.mark.parametrize("options", [{"on_interrupt": "skip"}, {"crash_limit": 1}])
def test_it_is_asked_about_whatever_the_options_say(options: dict[str, Any]) -> None:
    assert wanted(alone(**options).began_step("a", "charge").taken_up()) == [commands.AskAboutNode]


@pytest.mark.parametrize("outcome", ["result", "exception", "failed try"])
def test_a_visit_that_was_interrupted_after_its_outcome_runs_again(outcome: str) -> None:
    run = alone().began_step("a", "charge")
    if outcome == "result":
        run.stepped("a", "charge", 1)
    else:
        run.step_failed("a", "charge", DECLINED, retry_in=0.0 if outcome == "failed try" else None)
    assert wanted(run.taken_up()) == [commands.StartNode]


def test_the_answer_retry_clears_what_was_in_doubt() -> None:
    run = alone().began_step("a", "charge").taken_up().settled().answered("a.1.1.1", "retry")
    assert wanted(run) == [commands.StartNode]
    assert wanted(run.settled().taken_up()) == [commands.StartNode]


def test_an_item_inside_such_a_step_is_asked_about_with_its_node() -> None:
    assert wanted(fan().began_step("a", "charge", item=1).taken_up()) == [commands.AskAboutNode]


def test_a_snapshot_holds_all_of_it() -> None:
    run = alone().began_step("a", "ship").step_failed("a", "charge", Recoverable("busy"), retry_in=9.0)
    run.step_failed("a", "pay", DECLINED)
    assert load(dump(run.state)) == run.state
