import random

import pytest

from holdfast.core.run_state import RunState
from holdfast.core.topology import Topology
from holdfast.core.writers import Writers
from holdfast.testing.builders import outline
from holdfast.testing.flows import arbitrary, nested


def shape(*paths, **branches):
    nodes = branches.pop("nodes", None)
    return outline(*paths, branches=branches, nodes=nodes).topology


def waits_for(topology: Topology, join: str) -> set[str]:
    return set(topology.members(topology.joins[join]))


def bodies(topology: Topology) -> dict[str, set[str]]:
    return {topology.names[loop.head]: set(topology.members(loop.body)) for loop in topology.loops}


def numbered(*paths: str, first: str = "", **options) -> Topology:
    """The shape of a graph; nodes are numbered as they are met, those in `first` before all others."""
    return Topology.of(outline(*(f"{name} END" for name in first.split()), *paths, **options).definition)


def loops(topology: Topology) -> dict[str, str]:
    """Head -> its body."""
    return {
        topology.names[loop.head]: " ".join(sorted(topology.members(loop.body))) for loop in topology.loops
    }


def waits(topology: Topology, join: str) -> str:
    """Whom a join waits for."""
    return " ".join(sorted(topology.members(topology.joins[join])))


# --- loops -------------------------------------------------------------------------------------------


def test_a_graph_without_loops_has_no_back_edges():
    topology = shape("START a b d END", "a c d")
    assert not topology.back_edges
    assert topology.loops == ()


def test_an_edge_to_a_node_that_leads_to_it_is_a_back_edge():
    topology = shape("START a b", b="a END")
    assert topology.back_edges == {("b", "a")}
    assert bodies(topology) == {"a": {"a", "b"}}


def test_a_node_may_be_a_loop_of_its_own():
    assert bodies(shape("START a", a="a END")) == {"a": {"a"}}


def test_back_edges_are_found_in_the_order_of_declaration():
    """Two nodes that lead to each other: the one that START is declared to lead to first is the head."""
    assert shape("START a", "START b", a="b END", b="a END").back_edges == {("b", "a")}
    assert shape("START b", "START a", a="b END", b="a END").back_edges == {("a", "b")}


def test_two_back_edges_to_one_head_are_one_loop():
    topology = shape("START a b c", b="c a", c="a END")
    assert topology.back_edges == {("b", "a"), ("c", "a")}
    (loop,) = topology.loops
    assert {topology.names[tail] for tail in loop.tails} == {"b", "c"}
    assert bodies(topology) == {"a": {"a", "b", "c"}}


def test_an_inner_loop_belongs_to_the_body_of_the_outer_one():
    """What leads back only to the head of an inner loop leads back to the outer head through it."""
    topology = shape("START out in", "work in", **{"in": "work last", "last": "out END"})
    assert bodies(topology) == {"out": {"out", "in", "work", "last"}, "in": {"in", "work"}}


def test_what_comes_after_a_loop_is_not_part_of_it():
    assert bodies(shape("START a b", "c END", b="a c")) == {"a": {"a", "b"}}


def test_what_comes_behind_a_loop_is_not_part_of_it_though_it_was_declared_first():
    topology = numbered("START a", first="z", branches={"a": "a z"})
    assert topology.names[0] == "z"
    assert loops(topology) == {"a": "a"}


def test_a_loop_behind_a_loop_is_not_part_of_it():
    topology = numbered("START a b", "c d", branches={"b": "a c", "d": "c END"})
    assert loops(topology) == {"a": "a b", "c": "c d"}


def test_a_loop_within_a_loop_brings_its_own_nodes_and_nothing_behind_it():
    topology = numbered("START a b c", "e END", branches={"b": "c a e", "c": "b"})
    assert loops(topology) == {"a": "a b c", "b": "b c"}


@pytest.mark.parametrize("between", ["START s END", "e END"])
def test_a_loop_within_a_loop_is_found_whatever_is_declared_behind_its_head(between):
    others = {"START s END", "e END"} - {between}
    topology = numbered("START a b", between, *others, branches={"b": "c a", "c": "b e"})
    assert topology.names[2] == between.split()[-2]
    assert loops(topology) == {"a": "a b c", "b": "b c"}


# --- joins -------------------------------------------------------------------------------------------


def test_a_node_with_several_incoming_forward_edges_is_a_join():
    topology = shape("START a b d END", "a c d")
    assert set(topology.joins) == {"d"}
    assert waits_for(topology, "d") == {"a", "b", "c"}


def test_a_node_that_a_back_edge_leads_to_is_no_join_for_that():
    assert shape("START a b", b="a END").joins == {}


def test_a_node_that_says_any_is_no_join():
    assert shape("START a c END", "START b c", nodes={"c": {"join": "any"}}).joins == {}


def test_edges_from_start_count():
    assert set(shape("START a END", "START b a").joins) == {"a"}


def test_a_join_waits_for_a_branch_that_is_still_looping():
    """The last node of the loop has no edge but the one back, and still gets to the join."""
    topology = shape("START s a d END", "s b", "c b", b="c d")
    assert waits_for(topology, "d") == {"s", "a", "b", "c"}


def test_a_join_in_a_loop_waits_for_this_round_only():
    """`d` waits for what leads to it within the body, not for the tail that starts the next round."""
    topology = shape("START s a d e", "s b d", e="s END")
    assert waits_for(topology, "d") == {"s", "a", "b"}


def test_a_join_never_waits_for_itself():
    for seed in range(200):
        topology = arbitrary(random.Random(seed)).flow().topology
        assert all(not mask >> topology.index[join] & 1 for join, mask in topology.joins.items())


def test_a_join_in_an_inner_loop_does_not_wait_for_what_comes_behind_that_loop():
    """Otherwise `late`, which waits for the inner loop to be over, and `early` would wait for each other for ever."""
    topology = shape("START out in", "x early in", "p late", **{"in": "x early p late", "late": "out END"})
    assert waits_for(topology, "early") == {"out", "in", "x"}
    assert waits_for(topology, "late") == {"out", "in", "x", "early", "p"}


def test_a_join_waits_for_what_comes_before_it_and_not_for_a_loop_behind_it():
    topology = numbered("START a j", "START b j", "j x", branches={"x": "x END"})
    assert waits(topology, "j") == "a b"


def test_a_join_waits_for_a_loop_before_it_and_not_for_what_was_declared_first():
    topology = numbered("START a", "START b j", "j z", first="z", branches={"a": "a j"})
    assert topology.names[0] == "z"
    assert waits(topology, "j") == "a b"


def test_a_join_waits_for_all_of_a_loop_that_one_of_its_branches_may_still_go_round():
    topology = numbered("START a b", "START c j END", "d a", branches={"b": "d j"})
    assert loops(topology) == {"a": "a b d"}
    assert waits(topology, "j") == "a b c d"


# --- nodes beside each other -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "alone"),
    [
        (["START a END"], "a"),
        (["START a b c END"], "a b c"),
        (["START a b d END", "a c d"], "a d"),
        (["START a END", "START b END"], ""),
        (["START a b c d END", "b d"], "a b c d"),
    ],
)
def test_a_node_is_alone_where_every_other_comes_before_or_after_it(paths, alone):
    assert outline(*paths).topology.alone == set(alone.split())


def test_what_a_node_wrote_that_the_flow_does_not_know_yet_is_no_conflict():
    """A run that is taken up with a changed flow: the renaming is recorded later."""
    flow = outline("START a END", "START b END")
    state = RunState("r", status="running", writers={"n": {"old name": 3}})
    assert Writers(flow.topology, state).conflict(state, "a", ["n"]) is None


# --- all graphs --------------------------------------------------------------------------------------


def sketches():
    yield from (nested(random.Random(f"topology {seed}")) for seed in range(150))
    yield from (arbitrary(random.Random(f"topology {seed}"), most=12) for seed in range(1500))


def test_no_joins_wait_for_each_other_in_any_graph():
    for sketch in sketches():
        topology = Topology.of(sketch.definition())
        left = {
            join: {other for other in topology.joins if mask >> topology.index[other] & 1}
            for join, mask in topology.joins.items()
        }
        while free := [join for join, others in left.items() if not others & left.keys()]:
            for join in free:
                del left[join]
        assert not left, (sketch.edges, sketch.plans)


def test_forward_edges_have_no_cycle_and_lead_everywhere():
    for sketch in sketches():
        topology = Topology.of(sketch.definition())
        reached = {"START"}
        arrows = [(arrow.source, arrow.target) for arrow in sketch.definition().arrows()]
        forward = [arrow for arrow in arrows if arrow not in topology.back_edges]
        for _ in sketch.nodes:
            reached |= {target for source, target in forward if source in reached}
        assert reached >= set(sketch.nodes)
        assert all(not mask >> number & 1 for number, mask in enumerate(topology.ancestors))


def test_ancestors_and_descendants_are_two_views_of_one_relation():
    for seed in range(100):
        topology = Topology.of(arbitrary(random.Random(seed)).definition())
        pairs = {
            (above, below)
            for below in topology.names
            for above in topology.members(topology.ancestors[topology.index[below]])
        }
        assert pairs == {
            (above, below)
            for above in topology.names
            for below in topology.members(topology.descendants[topology.index[above]])
        }


def test_parallel_nodes_are_those_that_no_forward_path_orders():
    topology = shape("START s a b d END", "s c d")
    everyone = (1 << len(topology.names)) - 1
    assert set(topology.parallel("a", everyone)) == {"c"}
    assert set(topology.parallel("c", everyone)) == {"a", "b"}
    assert set(topology.parallel("s", everyone)) == set()
    assert set(topology.common_ancestors("b", "c")) == {"s"}


def test_a_very_deep_graph_needs_no_recursion():
    names = [f"n{number}" for number in range(5_000)]
    topology = Topology.of(outline(" ".join(["START", *names, "END"])).definition)
    assert topology.ancestors[4_999].bit_count() == 4_999
