"""What is asked before a node begins, and inside it: gates, question nodes, refusals, timeouts, asking again."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from holdfast import append
from holdfast.core import events, fold
from holdfast.core.commands import (
    AskFirst,
    CompleteLayer,
    DueAt,
    ExpireQuestion,
    FailRun,
    ScheduleNode,
    StartNode,
    WakeAt,
)
from holdfast.core.events import Stored
from holdfast.errors import AnswerRefused, IllegalEvent, Recoverable
from holdfast.testing.builders import History, outline

GATED = {"approve": "Publish?"}


@dataclass
class Review:
    draft: str = ""
    grade: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)


def told(*paths, **options) -> History:
    return History("r", outline(*paths, **options)).created()


def gate(**options) -> History:
    """`b` is gated and has been reached."""
    return told("START a b c END", nodes={"b": GATED}, **options).completed("a").settled()


def asks(**options) -> History:
    """`q` is a question node and has been reached."""
    return told("START a q c END", asks={"q": options}, state=Review).completed("a").settled()


def kinds(history: History, node: str) -> list[str]:
    return [stored.kind for stored in history.events() if getattr(stored.event, "node", None) == node]


def refused(history: History, event: events.Event) -> str:
    before = deepcopy(history.state)
    with pytest.raises(IllegalEvent) as caught:
        fold.fold(history.state, Stored(history.state.seq + 1, history.at, event))
    assert history.state == before
    return str(caught.value)


def rewound(history: History, seq: int, **carried) -> History:
    """The same run, gone back to that place of its log."""
    other = History("r", history.flow)
    for stored in history.events()[:seq]:
        other.record(stored.event)
    return other.record(events.RunRewound(to=seq, **carried))


@dataclass
class Notes:
    n: int = 0


def of(history: History, node: str) -> dict:
    visit = history.state.nodes[node]
    return {
        "node": node,
        "iteration": visit.iteration,
        "execution": visit.execution,
        "attempt": visit.attempt,
    }


def wanted(history: History) -> list[tuple[type, str]]:
    return [(type(command), command.node) for command in history.commands()]


# --- gates -------------------------------------------------------------------------------------------


def test_a_gated_node_is_asked_about_and_does_not_start():
    run = told("START a b END", nodes={"b": GATED}).completed("a")
    assert run.commands() == [AskFirst("b", 1, 1)]
    run.settled()
    assert (run.state.status, run.state.nodes["b"].status, run.commands()) == ("waiting", "waiting", [])
    question = run.state.questions["b.1.1"]
    assert (question.node, question.text, question.options) == ("b", "Publish?", ["approve", "reject"])
    assert (question.about, question.approving) == ("gate", ["approve"])


def test_a_run_whose_first_node_is_gated_waits():
    run = told("START a END", nodes={"a": GATED}).settled()
    assert (run.state.status, list(run.state.questions)) == ("waiting", ["a.1.1"])


def test_an_approval_starts_the_node_as_a_first_attempt_that_takes_up_its_arrivals():
    run = gate().answered("b", "approve", by="ann")
    assert run.commands() == [StartNode("b", 1, 1, 1, 1)]
    assert run.settled().running == ["b"]
    assert (run.state.arrivals, run.state.questions, run.state.nodes["b"].attempt) == ({}, {}, 1)


def test_an_answered_run_that_nobody_carries_on_is_pending():
    assert gate().answered("b", "approve").state.status == "pending"


def test_an_answer_is_a_checkpoint_that_a_rewind_to_it_does_not_forget():
    run = gate().answered("b", "approve")
    assert rewound(run, run.state.seq).commands() == [StartNode("b", 1, 1, 1, 1)]


def test_a_rejection_fails_the_run_fatally_and_the_node_never_ran():
    run = gate().answered("b", "reject", by="ann").settled()
    assert (run.state.status, run.state.failure.kind, run.state.failure.type) == (
        "failed",
        "fatal",
        "QuestionRefused",
    )
    assert "'Publish?' was answered 'reject' by ann" in run.state.failure.message
    assert run.state.nodes["b"].tries == 0
    assert kinds(run, "b") == ["QuestionAsked", "QuestionAnswered", "RunFailed"]


def test_after_a_rejection_force_asks_again_under_a_new_key_and_does_not_start_the_node():
    run = gate().answered("b", "reject").settled().taken_up(force=True)
    assert run.commands() == [AskFirst("b", 1, 1)]
    run.settled()
    assert (run.state.status, list(run.state.questions), run.running) == ("waiting", ["b.1.1#2"], [])
    run.answered("b", "reject").settled().taken_up(force=True).settled()
    assert list(run.state.questions) == ["b.1.1#3"]
    assert run.answered("b", "approve").settled().running == ["b"]


def test_a_question_that_is_pending_survives_whoever_carries_the_run():
    run = gate().taken_up().settled()
    assert (run.state.status, list(run.state.questions), run.running) == ("waiting", ["b.1.1"], [])
    assert kinds(run, "b") == ["QuestionAsked"]


def test_a_plain_retry_of_a_gated_node_is_not_asked_about_again():
    run = gate().answered("b", "approve").failed("b", Recoverable("later"), retry_in=0.0)
    assert run.commands() == [StartNode("b", 1, 1, 2, 0)]


def test_a_crash_of_a_gated_node_is_not_asked_about_again():
    run = gate().answered("b", "approve").crashed_in("b").taken_up()
    assert run.commands() == [StartNode("b", 1, 1, 2, 0)]


def test_a_gate_is_asked_again_for_the_next_iteration():
    run = told("START a", branches={"a": "a END"}, nodes={"a": GATED}).settled().answered("a", "approve")
    run.completed("a", routes=["a"])
    assert run.commands() == [AskFirst("a", 2, 1)]
    assert list(run.settled().state.questions) == ["a.2.1"]


def test_a_gate_is_asked_again_for_a_new_execution():
    run = gate().answered("b", "approve").crashed_in("b")
    run.record(events.RunRewound(to=run.state.seq, executions={"b": {1: 1}}))
    assert run.commands() == [AskFirst("b", 1, 2)]
    assert list(run.settled().state.questions) == ["b.1.2"]
    run.answered("b", "approve")
    assert run.commands() == [StartNode("b", 1, 2, 1, 0)]


def test_a_rejected_execution_that_is_done_over_is_asked_again_under_a_new_key():
    run = gate().answered("b", "approve").crashed_in("b")
    run.record(events.RunRewound(to=run.state.seq, executions={"b": {1: 1}})).settled()
    run.answered("b", "reject").settled()
    assert run.state.status == "failed"
    run.taken_up(force=True).settled()
    assert (list(run.state.questions), run.running) == (["b.1.2#2"], [])
    assert run.answered("b", "approve").settled().running == ["b"]


def test_a_gate_is_asked_again_for_a_fresh_try():
    run = gate().answered("b", "approve").failed("b", ValueError("x")).settled()
    run.record(events.RunResumed(fresh=True))
    assert run.commands() == [AskFirst("b", 1, 2)]
    run.settled()
    assert run.running == []


def test_a_rewind_to_before_the_answer_asks_again():
    run = gate()
    asked_at = run.state.seq
    run.answered("b", "approve").started("b")
    back = rewound(run, asked_at, executions={"b": {1: 1}})
    assert (back.state.questions, back.commands()) == ({}, [AskFirst("b", 1, 2)])


def test_parallel_branches_go_on_while_a_gate_waits():
    run = (
        told("START a b END", "START x y z END", nodes={"b": GATED})
        .started("a", "x")
        .completed("a")
        .settled()
    )
    assert (run.state.status, run.running) == ("running", ["x"])
    run.completed("x").settled().completed("y").settled()
    assert run.running == ["z"]
    run.completed("z").settled()
    assert (run.state.status, run.commands()) == ("waiting", [])


def test_a_gate_holds_its_layer():
    run = told("START a c END", "START b d END", nodes={"b": GATED}, schedule="layered").settled()
    assert run.running == ["a"]
    run.completed("a").settled()
    assert (run.state.status, run.running, list(run.state.held)) == ("waiting", [], ["a"])
    run.answered("b", "approve").completed("b")
    assert run.commands() == [CompleteLayer(1, ("a", "b"))]


def test_a_join_waits_for_a_branch_behind_a_gate():
    run = told("START a b d END", "START c d", nodes={"b": GATED}).started("a", "c").completed("a").settled()
    run.completed("c").settled()
    assert (run.state.status, run.running) == ("waiting", [])
    run.answered("b", "approve").completed("b")
    assert run.commands() == [StartNode("d", 1, 1, 1, 2)]


def test_a_gated_join_is_asked_about_once_and_takes_up_all_its_arrivals():
    run = told("START a d END", "START b d", nodes={"d": GATED}).started("a", "b").completed("a").settled()
    assert run.state.questions == {}
    run.completed("b").settled().answered("d", "approve")
    assert run.commands() == [StartNode("d", 1, 1, 1, 2)]


def test_a_gated_node_that_takes_any_is_asked_about_for_each_arrival():
    nodes = {"d": {**GATED, "join": "any"}}
    run = told("START a d END", "START b d", nodes=nodes).completed("a").completed("b").settled()
    assert list(run.state.questions) == ["d.1.1"]
    run.answered("d", "approve").completed("d").settled()
    assert list(run.state.questions) == ["d.2.1"]
    run.answered("d", "approve").completed("d").settled()
    assert run.state.status == "completed"


def test_a_gate_takes_no_slot_while_it_waits():
    run = told("START a END", "START b END", nodes={"a": GATED}, max_parallel=1).settled()
    assert (list(run.state.questions), run.running) == (["a.1.1"], ["b"])


def test_an_approved_node_waits_for_a_free_slot():
    run = told("START a END", "START b END", nodes={"a": GATED}, max_parallel=1).settled()
    run.answered("a", "approve").settled()
    assert run.running == ["b"]
    assert run.completed("b").settled().running == ["a"]


def test_nothing_is_asked_and_nothing_approved_starts_while_the_run_is_paused():
    run = told("START a b END", nodes={"b": GATED}).started("a").paused().completed("a").settled()
    assert (run.state.questions, run.state.status) == ({}, "paused")
    run = gate().paused().answered("b", "approve").settled()
    assert (run.state.status, run.running) == ("paused", [])
    assert run.taken_up().settled().running == ["b"]


def test_a_gated_fan_out_lists_its_items_only_when_it_is_approved():
    nodes = {"a": {**GATED, "each": lambda state: [1, 2]}}
    run = told("START a END", nodes=nodes).settled()
    assert run.state.nodes["a"].items is None
    run.answered("a", "approve").settled()
    assert run.state.nodes["a"].items.running == {0: 1, 1: 1}


def test_a_gate_that_waits_can_be_skipped_with_the_arrivals_that_it_holds():
    run = gate().record(events.NodeSkipped(node="b", iteration=1, took=1, routes=["c"]))
    assert (run.state.questions, run.state.arrivals) == ({}, {"c": 1})
    assert run.commands() == [StartNode("c", 1, 1, 1, 1)]
    rejected = (
        gate().answered("b", "reject").record(events.NodeSkipped(node="b", iteration=1, took=1, routes=["c"]))
    )
    assert (rejected.state.failed, rejected.settled().running) == ({}, ["c"])


def test_a_question_stays_open_when_another_node_fails_and_the_run_with_it():
    run = (
        told("START a END", "START b END", nodes={"a": GATED})
        .settled()
        .failed("b", ValueError("x"))
        .settled()
    )
    assert (run.state.status, list(run.state.questions)) == ("failed", ["a.1.1"])
    run.answered("a", "approve")
    assert run.state.status == "failed"
    assert run.taken_up().settled().running == ["b", "a"]


def test_a_renamed_gate_is_still_asked_about():
    renamed = History("r", outline("START a z c END", nodes={"z": GATED}))
    for stored in gate().events():
        renamed.record(stored.event)
    renamed.record(events.FlowChanged(fingerprint="q", rename={"b": "z"}))
    assert (renamed.commands(), list(renamed.state.questions)) == ([], ["b.1.1"])
    assert renamed.answered("b.1.1", "approve").settled().running == ["z"]


# --- answers -----------------------------------------------------------------------------------------


def alone_asking(*options: str, **more) -> History:
    return told("START a END").started("a").asking("a", "Sure?", *options, **more)


def test_the_same_question_is_not_asked_twice():
    run = alone_asking()
    again = events.QuestionAsked(
        node="a", iteration=1, key="a.1.1:ask:Sure?", text="Sure?", about="ask", slot="ask:Sure?"
    )
    assert "is already open" in refused(run, again)


def test_an_answer_to_nothing_that_is_asked_is_refused():
    answer = events.QuestionAnswered(node="b", iteration=1, key="b.1.1", answer="approve")
    run = gate().answered("b", "approve")
    assert "was not asked, or is already answered" in refused(run, answer)
    other = events.QuestionAnswered(node="b", iteration=1, key="b.1.2", answer="approve")
    assert "not asked" in refused(gate(), other)


def test_an_answer_to_a_node_that_has_ended_is_refused():
    run = gate().answered("b", "approve").completed("b")
    late = events.QuestionAnswered(node="b", iteration=1, key="b.1.1", answer="reject")
    assert "is completed" in refused(run, late)


def test_who_said_it_why_and_how_sure_they_are_is_in_the_log():
    run = gate().answered("b", "approve", by="agent:judge", reason="fits", confidence=0.9)
    said = run.events()[-1].event
    assert (said.by, said.reason, said.confidence, said.refused) == ("agent:judge", "fits", 0.9, False)


# --- question nodes ----------------------------------------------------------------------------------


def test_a_question_node_without_options_of_its_own_asks_for_an_approval():
    run = asks()
    assert run.state.questions["q.1.1"].options == ["approve", "reject"]
    assert run.answered("q", "approve").settled().running == ["c"]
    assert kinds(run, "q") == ["QuestionAsked", "QuestionAnswered", "NodeStarted", "NodeCompleted"]


def test_a_question_node_goes_on_only_with_its_first_option():
    run = asks(options=["ship", "wait", "drop"]).answered("q", "ship").settled()
    assert run.running == ["c"]
    for answer in ("wait", "drop"):
        run = asks(options=["ship", "wait", "drop"]).answered("q", answer).settled()
        assert (run.state.status, run.state.failure.type, run.state.nodes["q"].tries) == (
            "failed",
            "QuestionRefused",
            0,
        )


def test_a_question_node_with_a_field_goes_on_with_every_option_and_the_field_takes_it():
    for answer in ("ship", "wait"):
        run = asks(options=["ship", "wait"], into="draft").answered("q", answer).settled()
        assert (run.running, run.state.values["draft"]) == (["c"], answer)
        assert run.state.writers["draft"].keys() == {"q"}


def test_the_answer_of_a_question_node_fits_the_field_that_takes_it():
    run = asks(into="grade")
    assert run.state.questions["q.1.1"].answer_schema == {"type": "integer"}
    with pytest.raises(AnswerRefused, match="grade"):
        run.answered("q", "two")
    assert run.answered("q", 2).settled().state.values["grade"] == 2


def test_a_field_with_a_reducer_takes_the_answer_as_any_update():
    run = asks(into="notes").answered("q", ["fine"]).settled()
    assert run.state.values["notes"] == ["fine"]


def test_a_refused_question_node_is_asked_again_by_force():
    run = asks().answered("q", "reject").settled().taken_up(force=True).settled()
    assert list(run.state.questions) == ["q.1.1#2"]
    assert run.answered("q", "approve").settled().running == ["c"]


def test_a_question_node_in_a_loop_is_asked_each_time_and_keeps_no_answer():
    run = told("START q a", asks={"q": {}}, branches={"a": "q END"}).settled().answered("q", "approve")
    run.settled()
    assert run.state.nodes["q"].answer is None
    run.completed("a", routes=["q"]).settled()
    assert (list(run.state.questions), run.state.nodes["q"].approved) == (["q.2.1"], False)


def test_two_question_nodes_beside_each_other_get_each_its_own_answer():
    asked = {"p": {"into": "draft"}, "q": {"into": "grade"}}
    run = told("START p END", "START q END", asks=asked, state=Review).settled()
    run.answered("q", 5).settled().answered("p", "text").settled()
    assert (run.state.status, run.state.values["draft"], run.state.values["grade"]) == (
        "completed",
        "text",
        5,
    )


def test_a_question_node_that_failed_is_asked_about_again():
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes)
    run.record(events.NodeStarted(node="q", iteration=1, took=1))
    run.failed("q", ValueError("could not be asked")).settled().taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


def test_a_question_node_that_was_cut_before_anybody_was_asked_asks():
    run = told("START q END", asks={"q": {"into": "n"}}, state=Notes)
    run.record(events.NodeStarted(node="q", iteration=1, took=1)).taken_up()
    assert run.commands() == [AskFirst("q", 1, 1)]


# --- nobody answers ----------------------------------------------------------------------------------


def test_a_question_with_a_timeout_is_due_then_and_nobody_need_wait_for_it():
    run = asks(timeout=60.0)
    assert run.commands() == [DueAt(run.state.questions["q.1.1"].until)]
    run.at += 60
    assert run.commands() == [ExpireQuestion("q.1.1")]


def test_nobodys_answer_fails_the_node_and_a_resume_asks_again():
    run = asks(timeout=60.0).passed(60)
    assert (run.state.status, run.state.failure.kind, run.state.failure.type) == (
        "failed",
        "partial",
        "QuestionTimeout",
    )
    assert run.state.questions == {}
    run.taken_up().settled()
    assert (list(run.state.questions), run.state.status) == (["q.1.1#2"], "waiting")


def test_nobodys_answer_takes_the_option_that_stands_for_it():
    run = asks(options=["ship", "wait"], into="draft", timeout=60.0, on_timeout="wait").passed(60)
    assert (run.running, run.state.values["draft"]) == (["c"], "wait")
    assert next(s.event.by for s in run.events() if s.kind == "QuestionAnswered") == "timeout"


def test_nobodys_answer_is_never_an_approval():
    run = asks(options=["ship", "wait"], timeout=60.0, on_timeout="wait").passed(60)
    assert (run.state.status, run.state.failure.type) == ("failed", "QuestionRefused")


def test_an_answer_before_its_time_ends_the_timer():
    run = asks(timeout=60.0).answered("q", "approve").settled()
    assert run.commands() == []
    assert run.passed(100).running == ["c"]


def test_a_question_beside_a_timer_wakes_the_run_at_the_earlier_of_the_two():
    run = told("START q END", "START a END", asks={"q": {"timeout": 30.0}}).settled()
    run.sleeping("a", 90).parked("a", "sleep:1")
    assert run.commands() == [WakeAt(run.state.questions["q.1.1"].until)]


# --- questions inside a node -------------------------------------------------------------------------


def test_a_node_that_asks_without_unwinding_runs_until_the_answer_comes():
    run = alone_asking("yes", "no")
    assert (run.state.status, run.state.nodes["a"].status) == ("running", "running")
    run.answered("a", "no")
    assert (run.kept("a"), run.state.status, run.running) == ({"ask:Sure?": ["no"]}, "running", ["a"])


def test_every_answer_to_a_question_inside_a_node_wakes_it():
    for answer in ("yes", "no"):
        run = alone_asking("yes", "no").parked("a", "ask:Sure?").answered("a", answer)
        assert run.commands() == [StartNode("a", 1, 1, 1, 0, woken=True)]
        assert run.kept("a") == {"ask:Sure?": [answer]}


def test_an_answer_that_comes_while_the_attempt_unwinds_makes_it_due_at_once():
    run = alone_asking().answered("a", 1).parked("a", "ask:Sure?")
    assert run.commands() == [StartNode("a", 1, 1, 1, 0, woken=True)]


def test_a_question_inside_a_node_that_nobody_answers_wakes_it_with_nothing():
    run = alone_asking(timeout=60).parked("a", "ask:Sure?").passed(60)
    assert (run.running, run.kept("a"), run.state.failed) == (["a"], {"ask:Sure?": []}, {})


def test_a_question_inside_a_node_takes_its_option_when_nobody_answers():
    run = alone_asking("yes", "no", timeout=60, on_timeout="no").parked("a", "ask:Sure?").passed(60)
    assert (run.running, run.kept("a")) == (["a"], {"ask:Sure?": ["no"]})


def test_a_question_inside_a_node_survives_a_crash_and_is_not_asked_twice():
    run = alone_asking().taken_up().started("a")
    assert list(run.state.questions) == ["a.1.1:ask:Sure?"]
    assert run.answered("a", "yes").kept("a") == {"ask:Sure?": ["yes"]}


def test_an_answer_to_a_node_that_was_cut_is_there_for_the_next_attempt():
    run = alone_asking().taken_up().answered("a", "yes").started("a")
    assert (run.state.nodes["a"].attempt, run.kept("a")) == (2, {"ask:Sure?": ["yes"]})


def test_a_run_that_was_woken_by_an_answer_and_that_nobody_carries_on_is_pending():
    for wake in (lambda run: run.answered("a", 1), lambda run: run.told("go")):
        run = alone_asking().awaiting("a", "go").parked("a", "ask:Sure?", "signal:go:1")
        assert wake(run).state.status == "pending"


# --- what was cut ------------------------------------------------------------------------------------


def cut() -> History:
    return told("START a b END", nodes={"a": {"idempotent": False}}).crashed_in("a").taken_up().settled()


def test_a_visit_that_was_cut_goes_on_with_the_answer_retry():
    assert cut().answered("a", "retry").commands() == [StartNode("a", 1, 1, 2, 0)]


def test_a_visit_that_was_cut_is_passed_over_with_the_answer_skip_and_an_update():
    run = cut().answered("a", "skip", update={"n": 5}).settled()
    assert (run.running, run.state.values, run.state.nodes["a"].status) == (["b"], {"n": 5}, "skipped")


def test_a_question_about_a_cut_visit_comes_before_a_node_that_failed_beside_it_ends_the_run():
    nodes = {"a": {"idempotent": False}}
    run = (
        told("START a END", "START b END", nodes=nodes)
        .started("a", "b")
        .failed("b", ValueError("x"))
        .taken_up()
    )
    run.settled()
    assert list(run.state.questions) == ["a.1.1.1"]


def test_a_run_that_waits_for_an_answer_has_not_failed():
    run = cut()
    assert not any(isinstance(command, FailRun) for command in run.commands())
    assert run.state.status == "waiting"


def test_nobody_waits_for_the_times_of_a_paused_run():
    run = (
        told("START q END", "START a b END", asks={"q": {"timeout": 60.0}}).settled().paused().completed("a")
    )
    assert run.commands() == [ScheduleNode("b", 1, 1, "paused")]
    run = (
        told("START s END", "START a b END")
        .settled()
        .sleeping("s", 60)
        .parked("s", "sleep:1")
        .paused()
        .completed("a")
    )
    assert run.commands() == [ScheduleNode("b", 1, 1, "paused")]


# --- questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduled", [True, False])
def test_a_question_about_a_cut_attempt_is_dropped_when_the_node_is_tried_again_without_an_answer(scheduled):
    run = told("START a END", nodes={"a": {"on_interrupt": "ask"}}).crashed_in("a").taken_up().settled()
    assert len(run.state.questions) == 1
    if scheduled:
        run.record(events.NodeScheduled(**of(run, "a"), why="retry"))
    else:
        run.record(events.RunResumed(nodes=["a"]))
    assert run.state.questions == {}
    assert wanted(run) == [(StartNode, "a")]
