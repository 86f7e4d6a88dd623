from dataclasses import dataclass, field
from itertools import permutations
from typing import Annotated

import pytest

from holdfast import append
from holdfast.core.events import Changes, NodeCompleted
from holdfast.core.writers import Writers
from holdfast.errors import StateError
from holdfast.testing.builders import History, outline


@dataclass
class Page:
    title: str = ""
    body: str = ""
    lines: Annotated[list[str], append] = field(default_factory=list)


def told(*paths, **options) -> History:
    return History("r", outline(*paths, state=Page, **options)).created()


def clash(history: History, *nodes: str, update=None) -> str:
    """The last of these nodes sets what another has set, and is told so."""
    for node in nodes[:-1]:
        history.completed(node, update or {"title": node})
    with pytest.raises(StateError) as caught:
        history.completed(nodes[-1], update or {"title": nodes[-1]})
    return str(caught.value)


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_two_nodes_beside_each_other_that_set_one_field_clash_in_both_orders(schedule):
    for one, other in permutations(["a", "b"]):
        said = clash(told("START a c END", "START b c", schedule=schedule).started("a", "b"), one, other)
        assert repr(one) in said
        assert repr(other) in said
        assert "'title'" in said


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("b", "a")])
def test_the_verdict_does_not_depend_on_whether_they_ran_at_the_same_time(one, other):
    """The second starts when the first has long ended: the graph still does not say who comes last."""
    clash(told(f"START {one} c END", f"START {other} c", max_parallel=1).settled(), one, other)


def test_the_verdict_does_not_depend_on_how_far_apart_they_are():
    for order in (("a", "a2", "b"), ("b", "a", "a2")):
        run = told("START a a2 c END", "START b c").started("a", "b")
        said = None
        for node in order:
            try:
                run.completed(node, {"title": node} if node != "a" else None)
            except StateError as fault:
                said = str(fault)
        assert said is not None


def test_nodes_that_the_graph_orders_do_not_clash():
    run = told("START a b END").completed("a", {"title": "a"}).completed("b", {"title": "b"})
    assert run.state.values["title"] == "b"


def test_different_fields_do_not_clash():
    run = told("START a c END", "START b c").completed("a", {"title": "a"}).completed("b", {"body": "b"})
    assert (run.state.values["title"], run.state.values["body"]) == ("a", "b")


def test_a_field_with_a_reducer_does_not_clash():
    run = told("START a c END", "START b c").completed("a", {"lines": ["a"]}).completed("b", {"lines": ["b"]})
    assert run.state.values["lines"] == ["a", "b"]


def test_the_node_where_two_branches_meet_may_set_what_they_did():
    run = (
        told("START a c END", "START b c")
        .completed("a", {"title": "a"})
        .completed("b")
        .completed("c", {"title": "c"})
    )
    assert run.state.values["title"] == "c"


def test_branches_that_are_chosen_in_different_rounds_of_a_loop_do_not_clash():
    """Their common ancestor has completed in between: it is clear who came last."""
    run = told("START s", "a e", "b e", branches={"s": "a b", "e": "s END"})
    run.completed("s", routes=["a"]).completed("a", {"title": "a"}).completed("e", routes=["s"])
    run.completed("s", routes=["b"]).completed("b", {"title": "b"})
    assert run.state.values["title"] == "b"


def test_the_last_node_of_a_loop_and_what_comes_behind_the_loop_do_not_clash():
    """No forward edge leads from `work` to `after`, but the head has completed between them."""
    run = told("START head", "work head", "after END", branches={"head": "work after"})
    run.completed("head", routes=["work"]).completed("work", {"title": "work"})
    run.completed("head", routes=["after"]).completed("after", {"title": "after"})
    assert run.state.values["title"] == "after"


def test_branches_clash_again_in_every_round():
    run = told("START s a e", "s b e", branches={"e": "s END"})
    run.completed("s").completed("a", {"title": "a"}).completed("b").completed("e", routes=["s"])
    clash(run.completed("s"), "a", "b")


def test_a_node_may_set_again_what_it_has_set_before():
    run = told("START a", branches={"a": "a END"}).completed("a", {"title": "1"}, routes=["a"])
    run.completed("a", {"title": "2"}, routes=["END"])
    assert run.state.values["title"] == "2"


def test_what_is_kept_incrementally_is_what_the_state_says():
    run = told("START a c END", "START b c").started("a", "b").completed("a", {"title": "a", "body": "a"})
    rebuilt = Writers(run.flow.topology, run.state)
    assert (
        run.writers.conflict(run.state, "b", ["body"])
        == rebuilt.conflict(run.state, "b", ["body"])
        == ("body", "a")
    )
    assert run.writers.conflict(run.state, "b", ["lines"]) is None


def test_a_field_that_went_away_counts_as_set():
    run = History("r", outline("START a c END", "START b c")).created({"x": 1, "y": 2}).started("a", "b")
    run.record(NodeCompleted(node="a", iteration=1, changes=Changes(unset=["x"]), routes=["c"]))
    assert run.writers.conflict(run.state, "b", ["x"]) == ("x", "a")
    assert run.writers.conflict(run.state, "b", ["y"]) is None
