"""The checker finds every violation of what plans and policies promise (invariant I18), and none in what the engine wrote.

A store is made by the real engine, with one run for each way in which a plan decides. Each test changes one thing in a copy of
its file, and repairs the hash chain, so that nothing else is wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forgery import Forger, forged
from proved_plans import PLANS, flow

from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import rehearse
from holdfast.testing.checker import Violation, check
from holdfast.testing.clock import ManualClock


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "runs.db"
    clock = ManualClock(auto=True)
    store = SqliteStore(path, clock=clock.now)
    for name, plan in PLANS.items():
        run = rehearse(
            flow(plan.document()), answers=plan.answers, run_id=name, store=store, clock=clock, **plan.limits
        )
        assert run.status == "completed", run.error
    store.close()
    return path


def test_nothing_is_wrong_with_what_the_engine_wrote(lived: Path) -> None:
    assert check(lived, at_end=True) == []


def found(lived: Path, folder: Path, run_id: str, plant: Callable[[Forger], None]) -> list[Violation]:
    path = folder / "runs.db"
    shutil.copy(lived, path)

    def seal(forger: Forger) -> None:
        plant(forger)
        forger.seal()

    return check(forged(path, run_id, seal))


def texts(violations: list[Violation]) -> str:
    return "\n".join(one.text for one in violations if one.invariant == "I18")


def _visit(forger: Forger, kind: str, node: str) -> tuple[int, int, int]:
    event = forger.find(kind, node)
    return event.iteration, event.execution, event.attempt


def evaluate_twice(forger: Forger) -> None:
    first = forger.find("GuardEvaluated", "look")
    forger.insert(first, "GuardEvaluated", "look", _visit(forger, "GuardEvaluated", "look"), **first.told)


def evaluate_afterwards(forger: Forger) -> None:
    guards, route = forger.find("GuardEvaluated", "look"), forger.find("NodeCompleted", "look")
    forger.insert(route, "GuardEvaluated", "look", _visit(forger, "GuardEvaluated", "look"), **guards.told)


def evaluate_without_a_route(forger: Forger) -> None:
    forger.insert(forger.find("GuardEvaluated", "look"), "RunClaimed", holder="another")


def go_where_the_guard_says_no(forger: Forger) -> None:
    forger.find("GuardEvaluated", "look").tell(verdicts={"ship": False, "hold": False})


def go_without_guards(forger: Forger) -> None:
    forger.events.remove(forger.find("GuardEvaluated", "look"))
    _number_again(forger)


def leave_a_doomed_node(forger: Forger) -> None:
    forger.find("NodesSkipped").tell(nodes=["hold"])


def skip_nothing(forger: Forger) -> None:
    forger.events.remove(forger.find("NodesSkipped"))
    _number_again(forger)


def skip_what_can_run(forger: Forger) -> None:
    forger.find("NodesSkipped").tell(nodes=["hold", "store", "ship"])


def begin_what_is_skipped(forger: Forger) -> None:
    forger.insert(forger.find("NodesSkipped"), "NodeStarted", "hold", (1, 1, 1))


def begin_before_all_edges_are_decided(forger: Forger) -> None:
    forger.insert(forger.find("NodesSkipped"), "NodeStarted", "label", (1, 1, 1))


def begin_without_asking(forger: Forger) -> None:
    for kind in ("PolicyDecided", "QuestionAsked", "QuestionAnswered"):
        forger.events.remove(forger.find(kind, "pay"))
    _number_again(forger)


def begin_without_an_answer(forger: Forger) -> None:
    forger.events.remove(forger.find("QuestionAnswered", "pay"))
    _number_again(forger)


def begin_what_is_denied(forger: Forger) -> None:
    decided = forger.find("PolicyDecided", "pay")
    decided.tell(verdict="deny", decisions=[{"policy": "large", "verdict": "deny"}])
    for kind, node in (("QuestionAsked", "pay"), ("QuestionAnswered", "pay"), ("RunResumed", None)):
        forger.events.remove(forger.find(kind, node))
    _number_again(forger)


def allow_what_one_policy_denies(forger: Forger) -> None:
    decisions = [{"policy": "large", "verdict": "ask"}, {"policy": "other", "verdict": "deny"}]
    forger.find("PolicyDecided", "pay").tell(decisions=decisions)


def call_again_what_has_returned(forger: Forger) -> None:
    asked = forger.find("QuestionAnswered", "pay", 1)
    forger.insert(asked, "NodeStarted", "pay", (1, 1, 2), took=0)


def complete_with_something_else(forger: Forger) -> None:
    forger.find("NodeCompleted", "pay").tell(changes={"merge": {"outputs": {"pay": {"paid": 1}}}})


def use_what_was_not_accepted(forger: Forger) -> None:
    answer = forger.find("QuestionAnswered", "pay", 1)
    forger.events.remove(answer)
    _number_again(forger)


def use_what_failed_its_verification(forger: Forger) -> None:
    forger.find("OutputVerified", "draft", 2).tell(ok=False, checks=[{"id": "good", "ok": False}])


def use_what_was_not_verified(forger: Forger) -> None:
    forger.events.remove(forger.find("OutputVerified", "draft", 2))
    _number_again(forger)


def retry_for_another_reason(forger: Forger) -> None:
    failed = forger.find("NodeFailed", "draft")
    failed.tell(failure={**failed.told["failure"], "type": "PolicyDenied"})


def complete_with_a_node_left(forger: Forger) -> None:
    for kind in ("NodeStarted", "NodeCompleted"):
        forger.events.remove(forger.find(kind, "mail"))
    forger.find("NodeCompleted", "label").tell(routes=["END"])
    _number_again(forger)


def _number_again(forger: Forger) -> None:
    for seq, event in enumerate(forger.events, 1):
        event.seq = seq


PLANTED: dict[Callable[[Forger], None], tuple[str, str]] = {
    evaluate_twice: ("guarded", "are evaluated a second time"),
    evaluate_afterwards: ("guarded", "are evaluated although its route is decided"),
    evaluate_without_a_route: ("guarded", "must be followed at once by"),
    go_where_the_guard_says_no: ("guarded", "the guard on the edge 'look' -> 'ship' is false"),
    go_without_guards: ("guarded", "is decided without its guards"),
    leave_a_doomed_node: ("guarded", "leaves nodes that can never run: ['store']"),
    skip_nothing: ("guarded", "comes before the skip of nodes that can never run"),
    skip_what_can_run: ("guarded", "node 'ship' is skipped although it can still run"),
    begin_what_is_skipped: ("guarded", "begins although it has ended or is skipped"),
    begin_before_all_edges_are_decided: ("guarded", "begins before all edges to it are decided"),
    complete_with_a_node_left: ("guarded", "mail"),
    begin_without_asking: ("asked", "was not decided about by its policies"),
    begin_without_an_answer: ("asked", "has no answer by its policies"),
    begin_what_is_denied: ("asked", "was denied by its policies"),
    allow_what_one_policy_denies: ("asked", "the strictest is 'deny'"),
    call_again_what_has_returned: ("asked", "is called again although what it returned is kept"),
    complete_with_something_else: ("asked", "completes with another result"),
    use_what_was_not_accepted: ("asked", "did not pass: ['post']"),
    use_what_failed_its_verification: ("verified", "did not pass: ['verify']"),
    use_what_was_not_verified: ("verified", "did not pass: ['verify']"),
    retry_for_another_reason: ("verified", "for another reason than its verification"),
}
"""What is changed -> in the log of which run, and what the checker says about it."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Callable[[Forger], None], lived: Path, tmp_path: Path) -> None:
    run_id, told = PLANTED[plant]
    assert told in texts(found(lived, tmp_path, run_id, plant))
