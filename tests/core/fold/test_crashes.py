"""Nodes that kill their process again and again, and nodes that are safe to fail."""

from holdfast.core import events
from holdfast.core.commands import AskAboutNode, FailRun, QuarantineNode, SkipNode, StartNode, WakeAt
from holdfast.errors import Recoverable
from holdfast.testing.builders import History, outline


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def crashed(run: History, times: int, node: str = "a") -> History:
    """The process died inside the node so many times in a row."""
    for _ in range(times):
        run.crashed_in(node).taken_up()
    return run


# --- quarantine --------------------------------------------------------------------------------------


def test_a_node_that_kills_its_process_is_tried_again_below_its_limit():
    assert crashed(told("START a END"), 2).commands() == [StartNode("a", 1, 1, 3, 0)]


def test_a_node_that_has_killed_its_process_as_often_as_it_may_is_quarantined():
    run = crashed(told("START a END"), 3)
    assert run.commands() == [QuarantineNode("a")]
    run.settled()
    assert (run.state.status, run.state.failure.kind, run.state.failure.type, run.state.failure_node) == (
        "failed",
        "fatal",
        "Quarantined",
        "a",
    )
    assert "3 times in a row" in run.state.failure.message


def test_the_limit_is_the_nodes_own():
    run = told("START a END", nodes={"a": {"crash_limit": 1}})
    assert crashed(run, 1).commands() == [QuarantineNode("a")]
    run = told("START a END", nodes={"a": {"crash_limit": 9}})
    assert crashed(run, 8).commands() == [StartNode("a", 1, 1, 9, 0)]


def test_crashes_of_one_node_do_not_count_for_another():
    run = crashed(told("START a b END"), 2).completed("a")
    assert crashed(run, 2, "b").commands() == [StartNode("b", 1, 1, 3, 0)]


def test_a_node_that_gets_on_by_a_step_is_not_quarantined():
    run = told("START a END")
    for number in range(9):
        crashed(run.stepped("a", f"page {number}"), 1)
    assert run.commands() == [StartNode("a", 1, 1, 10, 0)]


def test_a_node_that_gets_on_by_a_checkpoint_is_not_quarantined():
    run = crashed(told("START a END"), 2).checkpointed("a", 5)
    assert run.state.nodes["a"].crashes == 0
    assert crashed(run, 2).commands() == [StartNode("a", 1, 1, 5, 0)]


def test_a_node_that_gets_on_by_a_signal_is_not_quarantined():
    run = crashed(told("START a END"), 2).started("a").awaiting("a", "paid").told("paid", 7)
    assert run.state.nodes["a"].crashes == 0


def test_a_node_that_gets_to_a_wait_and_unwinds_is_not_quarantined():
    run = crashed(told("START a END"), 2).started("a").sleeping("a", 600)
    assert run.state.nodes["a"].crashes == 2
    assert run.parked("a", "sleep:1").state.nodes["a"].crashes == 0


def test_a_fan_out_that_gets_on_by_an_item_is_not_quarantined():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2, 3]}}).settled()
    run.taken_up().settled().taken_up().settled()
    assert run.state.nodes["a"].crashes == 2
    run.item_completed("a", 1)
    assert run.state.nodes["a"].crashes == 0


def test_a_fan_out_that_gets_on_by_a_step_of_an_item_is_not_quarantined():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}}).settled().taken_up().settled()
    assert run.stepped("a", "x", item=1).state.nodes["a"].crashes == 0


def test_a_fan_out_whose_items_wait_can_be_quarantined_and_forced_on():
    run = told("START a END", nodes={"a": {"each": lambda state: [1, 2]}}).settled()
    run.sleeping("a", 600, item=0).parked("a", "sleep:1", item=0)
    for _ in range(3):
        run.taken_up().settled()
    assert (run.state.status, run.state.failure.type) == ("failed", "Quarantined")
    run.taken_up(force=True).settled()
    assert sorted(run.state.nodes["a"].items.running) == [0, 1]
    assert run.item_completed("a", 0).item_completed("a", 1).settled().state.status == "completed"


def test_a_failure_between_two_crashes_breaks_the_row():
    run = crashed(told("START a END"), 2).failed("a", Recoverable("later"), retry_in=0.0)
    assert crashed(run, 2).commands() == [StartNode("a", 1, 1, 6, 0)]


def test_a_process_that_was_asked_to_stop_has_not_crashed():
    run = told("START a END")
    for attempt in range(1, 6):
        run.started("a").record(events.NodeInterrupted(node="a", iteration=1, attempt=attempt))
        run.record(events.RunInterrupted()).taken_up()
    assert (run.state.nodes["a"].crashes, run.commands()) == (0, [StartNode("a", 1, 1, 6, 0)])


def test_an_attempt_that_was_lost_with_its_process_has_crashed():
    run = told("START a END").started("a").record(events.NodeInterrupted(node="a", iteration=1, lost=True))
    assert run.state.nodes["a"].crashes == 1


def test_a_node_that_waits_does_not_crash_with_the_process():
    run = told("START a END").started("a").sleeping("a", 600).parked("a", "sleep:1")
    for _ in range(5):
        run.taken_up()
    assert run.state.nodes["a"].crashes == 0


def test_a_plain_resume_leaves_a_quarantined_node_one_crash_from_quarantine():
    run = crashed(told("START a END"), 3).settled().taken_up()
    assert run.state.nodes["a"].crashes == 3
    assert crashed(run, 1).commands() == [QuarantineNode("a")]


def test_force_gives_a_quarantined_node_all_its_chances_again():
    run = crashed(told("START a END"), 3).settled().taken_up(force=True)
    assert run.state.nodes["a"].crashes == 0
    assert crashed(run, 2).commands() == [StartNode("a", 1, 1, 6, 0)]


def test_a_new_iteration_and_a_new_execution_begin_without_crashes():
    run = crashed(told("START a", branches={"a": "a END"}), 2).completed("a", routes=["a"]).started("a")
    assert run.state.nodes["a"].crashes == 0
    run = crashed(told("START a END"), 2).failed("a", ValueError("x")).settled()
    run.record(events.RunResumed(fresh=True)).started("a")
    assert run.state.nodes["a"].crashes == 0


def test_a_rewind_carries_the_crashes_of_what_is_open():
    run = crashed(told("START a END"), 2)
    run.record(events.RunRewound(to=run.state.seq, crashes={"a": 2, "never reached": 1}))
    assert run.state.nodes["a"].crashes == 2


def test_a_node_that_is_asked_about_or_skipped_when_it_is_cut_is_never_quarantined():
    run = told("START a END", nodes={"a": {"idempotent": False, "crash_limit": 1}})
    assert crashed(run, 1).commands() == [AskAboutNode("a")]
    run = told("START a END", nodes={"a": {"on_interrupt": "skip", "crash_limit": 1}})
    assert crashed(run, 1).commands() == [SkipNode("a")]


def test_a_node_is_quarantined_also_when_an_answer_to_another_comes_first():
    run = told("START g END", "START a END", nodes={"g": {"approve": "Go?"}}).settled()
    crashed(run, 3).answered("g", "approve")
    assert run.settled().state.nodes["a"].failure.type == "Quarantined"


def test_what_runs_beside_a_quarantined_node_ends_first():
    run = told("START a END", "START b END", nodes={"a": {"crash_limit": 1}}).started("a", "b").taken_up()
    run.settled()
    assert (run.running, list(run.state.failed), run.commands()) == (["b"], ["a"], [])
    assert run.completed("b").settled().state.failure.type == "Quarantined"


# --- safe to fail ------------------------------------------------------------------------------------

SAFE = {"a": {"safe_to_fail": True}}


def test_a_node_that_is_safe_to_fail_lets_the_run_go_on_with_a_warning():
    run = told("START a b END", nodes=SAFE).failed("a", ValueError("no luck"))
    assert run.commands() == [SkipNode("a")]
    run.settled()
    assert (run.running, run.state.nodes["a"].status, run.state.failed) == (["b"], "skipped", {})
    (warned,) = run.state.warnings
    assert (warned.node, warned.iteration, warned.failure.message) == ("a", 1, "no luck")
    skipped = next(stored.event for stored in run.events() if stored.kind == "NodeSkipped")
    assert (skipped.reason, skipped.warning.message) == ("safe_to_fail", "no luck")


def test_a_node_that_is_safe_to_fail_is_retried_first():
    run = told("START a b END", nodes=SAFE).failed("a", Recoverable("later"), retry_in=30.0)
    assert run.commands() == [WakeAt(run.state.nodes["a"].retry_at)]
    assert run.state.warnings == []


def test_a_completed_run_keeps_its_warnings():
    run = told("START a b END", nodes=SAFE).failed("a", ValueError("x")).settled().completed("b").settled()
    assert (run.state.status, len(run.state.warnings)) == ("completed", 1)


def test_every_visit_that_failed_safely_is_a_warning_of_its_own():
    run = told("START b a", branches={"a": "b END"}, nodes=SAFE).completed("b").failed("a", ValueError("x"))
    run.record(events.NodeSkipped(node="a", iteration=1, routes=["b"], warning=run.state.nodes["a"].failure))
    run.completed("b").failed("a", ValueError("y")).settled()
    assert [(warned.iteration, warned.failure.message) for warned in run.state.warnings] == [
        (1, "x"),
        (2, "y"),
    ]


def test_a_quarantined_node_that_is_safe_to_fail_is_passed_over():
    run = crashed(told("START a b END", nodes=SAFE), 3).settled()
    assert (run.running, run.state.warnings[0].failure.type) == (["b"], "Quarantined")


def test_a_fan_out_that_is_safe_to_fail_is_passed_over_when_its_items_have_ended():
    nodes = {"a": {"safe_to_fail": True, "each": lambda state: [1, 2]}}
    run = told("START a b END", nodes=nodes).item_failed("a", 0, ValueError("x"))
    assert run.settled().running == ["a"]
    assert run.item_completed("a", 1).settled().running == ["b"]


def test_a_node_that_is_safe_to_fail_does_not_save_one_that_is_not():
    run = told("START a END", "START b END", nodes=SAFE).started("a", "b").failed("b", ValueError("broken"))
    run.failed("a", ValueError("x")).settled()
    assert (run.state.status, run.state.failure.message, run.state.nodes["a"].status) == (
        "failed",
        "broken",
        "skipped",
    )


def test_a_node_that_is_safe_to_fail_does_not_fail_a_run_that_is_paused():
    run = told("START a b END", nodes=SAFE).started("a").paused().failed("a", ValueError("x"))
    assert not any(isinstance(command, FailRun) for command in run.commands())
    assert run.settled().state.status == "paused"
    assert run.taken_up().settled().running == ["b"]


def test_a_node_that_is_safe_to_fail_holds_its_layer_no_longer():
    run = told("START a c END", "START b c", nodes=SAFE, schedule="layered").started("a", "b").completed("b")
    run.failed("a", ValueError("x")).settled()
    assert run.running == ["c"]


def test_a_cut_fan_out_that_is_not_idempotent_starts_no_item_before_it_is_answered():
    nodes = {"a": {"each": lambda state: [1, 2, 3], "idempotent": False, "limit": 1}}
    run = told("START a END", nodes=nodes).settled().item_completed("a", 0).settled()
    assert list(run.state.nodes["a"].items.running) == [1]
    run.taken_up().settled()
    assert (run.state.status, len(run.state.questions)) == ("waiting", 1)
    assert run.commands() == []
    run.answered("a", "retry")
    assert run.commands(), "only the answer lets it go on"
