"""What the fold makes of a run as a whole: its failure, its status, its layers and its seconds."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from holdfast import add, append
from holdfast.core import events
from holdfast.core.commands import FailRun
from holdfast.core.event_encoding import encode
from holdfast.core.events import Changes
from holdfast.core.run_state import dump
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, failure, outline


def told(*paths: str, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def of(history: History, node: str) -> dict:
    visit = history.state.nodes[node]
    return {
        "node": node,
        "iteration": visit.iteration,
        "execution": visit.execution,
        "attempt": visit.attempt,
    }


@dataclass
class Notes:
    n: int = 0
    total: Annotated[int, add] = 0
    lines: Annotated[list[str], append] = field(default_factory=list)


def routing_failed(history: History, node: str) -> History:
    return history.record(events.RoutingFailed(**of(history, node), failure=failure("no way")))


# --- failures ----------------------------------------------------------------------------------------


def test_a_run_that_fails_at_the_limit_of_a_loop_tells_the_limit_and_not_what_its_node_had():
    run = told("START a", branches={"a": "a END"}, max_iterations=1).completed("a", routes=["a"])
    (command,) = run.commands()
    assert isinstance(command, FailRun)
    run.settled()
    assert run.state.failure == command.failure
    assert run.state.failure_node == "a"


def test_a_run_that_fails_because_of_no_node_tells_why():
    run = told("START a END").record(events.RunFailed(failure=failure("out of time")))
    assert run.state.failure == failure("out of time")
    assert run.state.failure_node is None


def test_a_run_tells_the_failure_of_its_node_where_there_is_one():
    run = told("START a END").failed("a", ValueError("mine"))
    run.record(events.RunFailed(node="a", failure=failure("told")))
    assert run.state.failure.message == "mine"


# --- names -------------------------------------------------------------------------------------------


def test_a_run_that_failed_at_a_node_tells_its_new_name_once_it_was_renamed():
    run = told("START a b END").completed("a").failed("b", ValueError("no")).settled()
    assert (run.state.status, run.state.failure_node) == ("failed", "b")
    run.record(events.FlowChanged(fingerprint="q", rename={"b": "z"}))
    assert run.state.failure_node == "z"


def test_a_run_that_failed_at_a_node_still_tells_it_where_another_was_renamed():
    run = told("START a b END").completed("a").failed("b", ValueError("no")).settled()
    run.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert run.state.failure_node == "b"


def test_a_run_that_failed_at_no_node_fails_at_none_after_a_renaming():
    run = told("START a END").record(events.RunFailed(failure=failure("out of time")))
    run.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert run.state.failure_node is None


def renamed(run: History, **rename: str) -> History:
    return run.record(events.FlowChanged(fingerprint="q", rename=rename, keeps_keys=True))


def test_a_state_in_which_nothing_was_renamed_stores_no_key_names():
    run = told("START a END").started("a")
    assert b"key_names" not in dump(run.state)
    run.record(events.FlowChanged(fingerprint="q"))
    assert b"key_names" not in dump(run.state)


def test_a_renamed_node_keeps_the_first_name_for_its_keys():
    run = renamed(renamed(told("START a END"), a="b"), b="c")
    assert run.state.key_name("c") == "a"
    assert renamed(run, c="a").state.key_name("a") == "a"


def test_a_node_that_gets_a_freed_name_gets_other_keys():
    run = renamed(told("START a b END"), a="c")
    assert (run.state.key_name("c"), run.state.key_name("a")) == ("a", "a~2")
    renamed(run, a="d")
    assert [run.state.key_name(name) for name in ("c", "d", "a")] == ["a", "a~2", "a~3"]


def test_nodes_that_swap_their_names_swap_no_keys():
    run = renamed(told("START a b END"), a="b", b="a")
    assert (run.state.key_name("a"), run.state.key_name("b")) == ("b", "a")
    assert renamed(run, a="b", b="a").state.key_names == {}


def test_an_older_version_cannot_read_a_rename_that_keeps_the_keys():
    """It would call a step that was cut with another key."""
    kept = events.FlowChanged(fingerprint="q", rename={"a": "b"}, keeps_keys=True)
    assert b'"v":2' in encode(kept).body
    assert b'"v"' not in encode(events.FlowChanged(fingerprint="q", rename={"a": "b"})).body
    assert dump(renamed(told("START a END"), a="b").state).startswith(b'{"v":2')


def test_a_rename_by_an_older_version_made_the_keys_from_the_new_name():
    run = told("START a END").started("a").asking("a", "Pay?")
    run.record(events.FlowChanged(fingerprint="q", rename={"a": "z"}))
    assert run.state.key_name("z") == "z"
    assert list(run.state.questions) == ["z.1.1:ask:Pay?"]


# --- status ------------------------------------------------------------------------------------------


def chain(**options) -> History:
    return History("r", outline("START a b END", **options)).created()


def test_a_paused_run_is_paused_when_its_running_nodes_have_ended():
    told = chain().started("a").paused()
    assert told.state.status == "running"
    told.completed("a")
    assert told.state.status == "paused"
    told.taken_up()
    assert told.state.status == "running"


def test_a_failed_run_stays_failed_whatever_is_answered_while_another_node_waits():
    run = told("START a END", "START b END", "START c END").started("a", "b", "c")
    for node in ("b", "c"):
        run.asking(node, "Sure?").parked(node, "ask:Sure?")
    run.failed("a", ValueError("broken")).settled()
    assert (run.state.status, run.state.waiting) == ("failed", 2)
    run.answered("b", "yes")
    assert (run.state.status, run.state.waiting) == ("failed", 1)


# --- layers ------------------------------------------------------------------------------------------


def test_what_a_layer_changed_is_applied_in_node_order_when_it_is_complete():
    flow = outline("START a c END", "START b c", state=Notes, schedule="layered")
    told = (
        History("r", flow)
        .created()
        .started("a", "b")
        .completed("b", {"lines": ["b"]})
        .completed("a", {"lines": ["a"]})
    )
    assert told.state.values["lines"] == []
    assert list(told.state.held) == ["b", "a"]
    told.settled()
    assert told.state.values["lines"] == ["a", "b"]
    assert (told.state.layer, told.state.held, told.running) == (1, {}, ["c"])


def test_a_router_of_a_layer_that_failed_is_asked_again_with_its_layer():
    run = told("START a", "START c END", branches={"a": "a END"}, schedule="layered").started("a", "c")
    run.record(events.NodeCompleted(**of(run, "a"), changes=Changes(), routes=None))
    run.completed("c")
    routing_failed(run, "a")
    assert "a" in run.state.held
    run.settled().taken_up()
    assert (run.state.nodes["a"].routed, list(run.state.open)) == (True, [])


# --- seconds -----------------------------------------------------------------------------------------


def test_the_seconds_of_attempts_that_ended_count_for_the_node_and_the_run():
    told = chain().started("a").failed("a", Recoverable("later"), retry_in=0.0).started("a").completed("a")
    assert told.state.nodes["a"].seconds == 2.0
    assert told.state.active_s == 2.0


@pytest.mark.parametrize(("lost", "seconds"), [(True, 2.0), (False, 7.0)])
def test_an_attempt_that_was_lost_counts_as_far_as_the_log_knows_and_another_up_to_its_end(lost, seconds):
    run = told("START a END").started("a")
    run.at = run.state.nodes["a"].started_at + 2.0
    run.checkpointed("a", 1)
    run.at = run.state.nodes["a"].started_at + 7.0
    run.record(events.NodeInterrupted(**of(run, "a"), reason="?", lost=lost))
    assert run.state.nodes["a"].seconds == seconds
    assert run.state.active_s == seconds


@pytest.mark.parametrize(("later", "seconds"), [(0.25, 0.25), (-3.0, 0.0)])
def test_an_attempt_counts_as_long_as_it_took_and_never_less_than_nothing(later, seconds):
    run = told("START a END").started("a")
    run.at = run.state.nodes["a"].started_at + later
    run.completed("a")
    assert (run.state.nodes["a"].seconds, run.state.active_s) == (seconds, seconds)
