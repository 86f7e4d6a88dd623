"""One visit of a node: why it ran, and what its attempts did."""

from __future__ import annotations

from typing import Any

from holdfast.core import events
from holdfast.reading.node_visits import NodeVisit, VisitWanted, show_visit
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline


def shown(history: History, node: str, **wanted: Any) -> NodeVisit:
    store = MemoryStore(clock=lambda: history.at)
    history.write(store)
    found = show_visit(store, store.run("r"), history.flow.definition, node, VisitWanted(**wanted))
    assert found is not None
    return found


def causes(visit: NodeVisit) -> list[tuple[str, int, str]]:
    return [(cause.node, cause.iteration, cause.why) for cause in visit.causes]


def test_a_loop_is_entered_from_outside_once_and_then_by_its_own_branch() -> None:
    flow = outline("START a b", branches={"b": "a END"})
    history = History("r", flow).created().completed("a").completed("b", routes=["a"]).completed("a")
    assert causes(shown(history, "a", iteration=1)) == [("START", 1, "edge")]
    assert causes(shown(history, "a")) == [("b", 1, "branch")]
    history.completed("b", routes=["a"]).started("a")
    assert causes(shown(history, "a")) == [("b", 2, "branch")]
    assert shown(history, "a").visits == [(1, 1), (2, 1), (3, 1)]


def test_a_node_after_a_loop_has_only_the_causes_since_its_last_visit() -> None:
    flow = outline("START a", "x c", "y c", branches={"a": "x y", "c": "a END"})
    history = History("r", flow).created().completed("a", routes=["x"]).completed("x")
    history.completed("c", routes=["a"]).completed("a", routes=["y"]).completed("y").started("c")
    assert causes(shown(history, "c", iteration=1)) == [("x", 1, "edge")]
    assert causes(shown(history, "c")) == [("y", 1, "edge")]


def test_a_join_has_a_cause_for_each_branch() -> None:
    flow = outline("START a c END", "START b c")
    history = History("r", flow).created().completed("b").completed("a").started("c")
    assert causes(shown(history, "c")) == [("b", 1, "edge"), ("a", 1, "edge")]


def test_a_join_of_many_branches_is_explained_with_few_reads() -> None:
    names = [f"n{number}" for number in range(100)]
    flow = outline("START join END", *(f"START {name} join" for name in names))
    history = History("r", flow).created()
    for name in names:
        history.completed(name)
    store = MemoryStore(clock=lambda: history.at)
    history.started("join").write(store)
    reads = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def events(self, *args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return store.events(*args, **options)

    found = show_visit(Counting(), store.run("r"), flow.definition, "join", VisitWanted())  # type: ignore[arg-type]
    assert found is not None
    assert len(found.causes) == 100
    assert reads < 10


def test_a_visit_whose_router_failed_has_failed_with_the_frames_of_the_router() -> None:
    def choose() -> None:
        raise AttributeError("no attribute 'score'")

    flow = outline("START a", "b END", branches={"a": "b END"})
    history = History("r", flow).created()
    try:
        choose()
    except AttributeError as fault:
        history.misrouted("a", fault)
    visit = shown(history, "a")
    (attempt,) = visit.attempts
    assert (visit.status, attempt.status, attempt.reason) == ("failed", "failed", "routing failed")
    assert attempt.failure is not None
    assert (attempt.failure.type, attempt.failure.frames[-1].function) == ("AttributeError", "choose")
    history.record(events.NodeRouted(node="a", iteration=1, attempt=1, routes=["b"]))
    (attempt,) = shown(history, "a").attempts
    assert (shown(history, "a").status, attempt.status, attempt.failure) == ("completed", "completed", None)


def test_items_that_failed_come_first_then_those_that_have_not_ended() -> None:
    flow = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})
    history = History("r", flow).created({"parts": list("abcd")}).settled()
    history.item_completed("fan", 0).item_failed("fan", 1, OSError("away"), retry_in=9.0)
    history.item_failed("fan", 3, ValueError("broken"))
    visit = shown(history, "fan")
    assert [(one.item, one.status) for one in visit.items or []] == [
        (3, "failed"),
        (2, "running"),
        (1, "waiting"),
        (0, "completed"),
    ]
    page = shown(history, "fan", items_from=1, items=2)
    assert ([one.item for one in page.items or []], page.items_all) == ([2, 1], 4)


def test_a_failed_fan_out_names_the_item_in_a_field() -> None:
    flow = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})
    history = History("r", flow).created({"parts": ["x", "y"]}).settled()
    history.item_completed("fan", 0).item_failed("fan", 1, ValueError("torn")).settled()
    (attempt,) = shown(history, "fan").attempts
    assert attempt.failure is not None
    assert (attempt.failure.message, attempt.failure.item) == ("torn", 1)


def test_no_item_of_a_cancelled_fan_out_runs_or_waits() -> None:
    flow = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"], "limit": 3}})
    history = History("r", flow).created({"parts": list("abcd")}).settled()
    history.item_completed("fan", 0).item_failed("fan", 1, OSError("away"), retry_in=9.0)
    history.record(events.NodeInterrupted(node="fan", iteration=1, reason="the run is cancelled"))
    history.record(events.RunCancelled())
    statuses = {one.item: one.status for one in shown(history, "fan").items or []}
    assert statuses == {0: "completed", 1: "cancelled", 2: "cancelled", 3: "pending"}, "the last never began"
    assert shown(history, "fan", item=2).status == "cancelled"


def test_items_are_shown_with_their_labels() -> None:
    flow = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"], "label": str.upper}})
    history = History("r", flow).created({"parts": ["x", "y"]}).started("fan")
    history.record(events.ItemsListed(node="fan", iteration=1, items=["x", "y"], labels=["X", "Y"]))
    assert [one.label for one in shown(history, "fan").items or []] == ["X", "Y"]
    assert [one.label for one in shown(history, "fan", item=1).items or []] == ["Y"]


def test_a_fan_out_whose_items_all_wait_is_shown_as_waiting_and_not_as_crashed() -> None:
    flow = outline("START fan END", nodes={"fan": {"each": lambda state: state["parts"]}})
    history = History("r", flow).created({"parts": ["x", "y"]}).started("fan").settled()
    for item in (0, 1):
        history.sleeping("fan", 60.0, item=item).parked("fan", "sleep:1", item=item)
    (attempt,) = shown(history, "fan").attempts
    assert (attempt.status, attempt.left) == ("waiting", None)


def test_an_empty_result_of_a_step_is_shown_as_it_is() -> None:
    history = History("r", outline("START a END")).created().stepped("a", "find", [])
    (step,) = shown(history, "a").steps
    assert step.result.value == []


def test_an_attempt_has_crashed_as_soon_as_another_process_has_claimed_the_run() -> None:
    history = History("r", outline("START a END")).created().stepped("a", "charge")
    history.record(events.RunClaimed(holder="w2"))
    store = MemoryStore(clock=lambda: history.at)
    history.write(store, holder=this_process())
    found = show_visit(store, store.run("r"), history.flow.definition, "a", VisitWanted())
    assert found is not None
    (attempt,) = found.attempts
    assert attempt.status == "crashed"
    assert attempt.left is not None
    assert attempt.left.steps == ["charge"]


def test_an_attempt_whose_process_lost_the_run_and_lives_is_interrupted() -> None:
    history = History("r", outline("START a END")).created().started("a")
    history.record(events.RunClaimed(holder="w2", outlived=True)).completed("a")
    assert [attempt.status for attempt in shown(history, "a").attempts] == ["interrupted", "completed"]


def test_the_answer_to_an_earlier_visit_is_not_why_the_next_one_began() -> None:
    flow = outline("START a", branches={"a": "a END"})
    history = History("r", flow).created().started("a").asking("a", "Go on?", "yes")
    history.answered(next(iter(history.state.questions)), "yes").completed("a", routes=["a"]).started("a")
    (attempt,) = shown(history, "a", iteration=2).attempts
    assert attempt.because is None
