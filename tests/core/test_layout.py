"""Where boxes and lines of a picture are: promises that hold for every flow, and the shapes that people meet most."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.demo_flow import flow as demo
from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.difference import fingerprint
from holdfast.core.layout import Geometry, crossings, lay_out
from holdfast.core.layout import geometry as g
from holdfast.core.layout.boxes import group_nodes
from holdfast.core.layout.crossings import count_crossings, reduce_crossings
from holdfast.core.layout.lanes import Reach, find_lanes
from holdfast.core.layout.layers import arrange
from holdfast.core.layout.routing import Departure, Pin, route
from holdfast.core.validate import problems
from holdfast.testing.builders import outline


def random_flow(nodes: int, edges: int, loops: int, seed: int) -> Definition:
    """Every node is reached from START and reaches END; some lines are branches, some close loops."""
    luck = random.Random(seed)
    names = [f"n{number}" for number in range(nodes)]
    plain = {Edge(luck.choice([START, *names[:number]]), name) for number, name in enumerate(names)}
    for _ in range(edges if nodes > 1 else 0):
        first, last = sorted(luck.sample(range(nodes), 2))
        plain.add(Edge(names[first], names[last]))
    plain |= {Edge(name, END) for name in names if all(edge.source != name for edge in plain)}
    branches = {
        name: [END, *luck.sample(names, luck.randint(0, min(3, nodes)))]
        for name in luck.sample([START, *names], min(loops, nodes))
    }
    ordered = sorted(plain, key=lambda edge: (edge.source, edge.target))
    options = {name: NodeOptions(each=luck.random() < 0.2) for name in names}
    definition = Definition(name="random", nodes=options, edges=ordered, branches=branches)
    assert problems(definition) == []
    return definition


flows = st.builds(
    random_flow,
    nodes=st.integers(1, 40),
    edges=st.integers(0, 60),
    loops=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)


def definition(*paths: str, branches: dict[str, str] | None = None, **options: object) -> Definition:
    return outline(*paths, branches=branches, **options).definition


def equal_neighbours(count: int) -> Definition:
    return definition("START go", *(f"go w{number} done" for number in range(count)), "done END")


LOOP = definition("START write check", "publish END", branches={"check": "write publish"})
SELF_LOOP = definition("START poll", "use END", branches={"poll": "poll use"})
DIAMOND = definition("START split left merge END", "split right merge")
NESTED = definition(
    "START plan draft review", "publish END", branches={"review": "draft polish", "polish": "plan publish"}
)
REPAIR = definition("START build test", "fix build", "deploy END", branches={"test": "fix deploy"})
LONG_REPAIR = definition("START build test", "look fix build", branches={"test": "look END"})
SIDE_BY_SIDE = definition(
    "START a b", "START x y", "z END", "c END", branches={"b": "a c", "y": "x z"}
)  # two loops, one beside the other
STARTS = definition("START a b END", "START c END", "START d e f END")
MIXED = definition(
    "START a b c END", "a c", "d END", branches={"a": "d END"}, nodes={"d": {"each": lambda state: []}}
)
BRANCHED_START = definition("a END", "b END", "START c END", branches={"START": "a b"})
EXAMPLES = [
    LOOP,
    SELF_LOOP,
    DIAMOND,
    NESTED,
    REPAIR,
    LONG_REPAIR,
    SIDE_BY_SIDE,
    STARTS,
    MIXED,
    BRANCHED_START,
    demo.definition,
]


def box(geometry: Geometry, name: str) -> g.Box:
    return next(found for found in geometry.boxes if found.name == name)


def middle(found: g.Box) -> float:
    return found.x + found.w / 2


def line(geometry: Geometry, source: str, target: str) -> g.EdgeLine:
    return next(found for found in geometry.lines if (found.source, found.target) == (source, target))


def pieces(found: g.EdgeLine):
    """Every straight piece of a line, as x1, y1, x2, y2 with x1 <= x2 and y1 <= y2."""
    for (x1, y1), (x2, y2) in pairwise(found.points):
        yield min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def overlap(one: g.Box, other: g.Box) -> bool:
    return (
        one.x < other.x + other.w
        and other.x < one.x + one.w
        and one.y < other.y + other.h
        and other.y < one.y + one.h
    )


# --- promises for every flow ---------------------------------------------------------------------------


def assert_boxes_are_apart(geometry: Geometry) -> None:
    outer = [found for found in geometry.boxes if found.stack is None]
    assert not [(one.name, other.name) for one, other in combinations(outer, 2) if overlap(one, other)]
    for found in geometry.boxes:
        assert found.x >= 0
        assert found.y >= 0
        assert found.x + found.w <= geometry.width
        assert found.y + found.h <= geometry.height


def assert_lines_begin_and_end_at_their_boxes(geometry: Geometry) -> None:
    boxes = {found.name: found for found in geometry.boxes if found.stack is None}
    for found in geometry.lines:
        source, target = boxes[found.source], boxes[found.target]
        (x, y), (tx, ty) = found.points[0], found.points[-1]
        assert source.x <= x <= source.x + source.w
        assert y == source.y + source.h or (source.kind == "start" and x == source.x)
        assert target.x <= tx <= target.x + target.w
        assert ty == target.y or (found.kind == "loop" and tx == target.x + target.w)
        assert all(x1 == x2 or y1 == y2 for x1, y1, x2, y2 in pieces(found))
        assert all(0 <= x <= geometry.width and 0 <= y <= geometry.height for x, y in found.points)


def assert_lines_cross_no_box(geometry: Geometry) -> None:
    for found in geometry.lines:
        for x1, y1, x2, y2 in pieces(found):
            for other in geometry.boxes:
                inside_x = x1 < other.x + other.w and x2 > other.x
                inside_y = y1 < other.y + other.h and y2 > other.y
                assert not (inside_x and inside_y), (found, other)


def assert_forward_lines_lead_down(geometry: Geometry) -> None:
    boxes = {found.name: found for found in geometry.boxes}
    for found in geometry.lines:
        if found.kind != "loop":
            source, target = boxes[found.source], boxes[found.target]
            assert source.y + source.h < target.y
            assert all(before[1] <= after[1] for before, after in pairwise(found.points))


def assert_loops_run_at_the_right_side(geometry: Geometry) -> None:
    for found in geometry.lines:
        if found.kind == "loop":
            x1, y1, _, y2 = max(pieces(found), key=lambda piece: (piece[0] == piece[2], piece[0]))
            beside = [other for other in geometry.boxes if other.y < y2 and other.y + other.h > y1]
            assert x1 >= max(other.x + other.w for other in beside) + g.LINE_GAP


def assert_lines_share_a_piece_only_if_both_lead_to_both_ends(geometry: Geometry) -> None:
    """Two lines that meet seem to be one: then each source must really lead to each target."""
    leads = {(found.source, found.target) for found in geometry.lines}
    level: dict[int, list[tuple[int, int, g.EdgeLine]]] = {}
    for found in geometry.lines:
        for x1, y1, x2, y2 in pieces(found):
            if y1 == y2:
                level.setdefault(y1, []).append((x1, x2, found))
    for placed in level.values():
        for (a1, a2, one), (b1, b2, other) in combinations(placed, 2):
            if a1 < b2 and b1 < a2:
                assert (one.source, other.target) in leads
                assert (other.source, one.target) in leads


def assert_lines_pass_no_diamond_of_another(geometry: Geometry) -> None:
    leads = {(found.source, found.target) for found in geometry.lines if found.branch}
    for found in geometry.lines:
        for x1, y1, x2, y2 in pieces(found):
            for other in geometry.boxes:
                if other.diamond and y1 == y2 == other.diamond[1] and x1 < other.diamond[0] < x2:
                    assert (other.name, found.target) in leads


def assert_every_edge_is_drawn(flow: Definition, geometry: Geometry) -> None:
    where = {START: START, END: END}
    for found in geometry.boxes:
        if found.stack is None:
            where |= dict.fromkeys(found.members or (found.name,), found.name)
    assert set(flow.nodes) <= where.keys()
    expected = {(where[edge.source], where[edge.target]) for edge in flow.arrows()}
    assert sorted((found.source, found.target) for found in geometry.lines) == sorted(expected)


def assert_sound(flow: Definition, geometry: Geometry) -> None:
    assert_boxes_are_apart(geometry)
    assert_lines_begin_and_end_at_their_boxes(geometry)
    assert_forward_lines_lead_down(geometry)
    assert_loops_run_at_the_right_side(geometry)
    assert_lines_share_a_piece_only_if_both_lead_to_both_ends(geometry)
    assert_lines_pass_no_diamond_of_another(geometry)
    assert_every_edge_is_drawn(flow, geometry)
    assert box(geometry, END).y == max(found.y for found in geometry.boxes)
    if all(found.stack is None for found in geometry.boxes):
        assert_lines_cross_no_box(geometry)


@given(flows)
def test_every_picture_keeps_its_promises(flow: Definition) -> None:
    assert_sound(flow, lay_out(flow))


@pytest.mark.parametrize("flow", EXAMPLES)
def test_every_example_keeps_its_promises(flow: Definition) -> None:
    assert_sound(flow, lay_out(flow))


@given(flows, st.randoms(use_true_random=False))
def test_flows_with_one_fingerprint_have_one_picture(flow: Definition, luck: random.Random) -> None:
    nodes = list(flow.nodes.items())
    sources = list(dict.fromkeys(edge.source for edge in flow.edges))
    branches = list(flow.branches.items())
    for order in (nodes, sources, branches):
        luck.shuffle(order)
    edges = [edge for source in sources for edge in flow.edges if edge.source == source]
    other = msgspec.structs.replace(flow, nodes=dict(nodes), edges=edges, branches=dict(branches))
    assert fingerprint(other) == fingerprint(flow)
    assert lay_out(other) == lay_out(flow)


@given(flows)
def test_lines_cross_no_more_often_than_in_the_order_of_the_walk(flow: Definition) -> None:
    rows = arrange(group_nodes(flow, (), ()))
    naive = count_crossings(rows)
    reduce_crossings(rows)
    assert count_crossings(rows) <= naive


def test_a_further_sweep_never_makes_a_picture_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for sweeps in range(2, 9):
        monkeypatch.setattr(crossings, "_SWEEPS_MAX", sweeps)
        rows = arrange(group_nodes(random_flow(90, 13, 0, seed=0), (), ()))
        reduce_crossings(rows)
        found.append(count_crossings(rows))
    assert found == sorted(found, reverse=True)


@given(flows)
def test_a_picture_is_the_same_after_a_way_through_json(flow: Definition) -> None:
    geometry = lay_out(flow)
    assert msgspec.json.decode(msgspec.json.encode(geometry), type=Geometry) == geometry


# --- shapes --------------------------------------------------------------------------------------------


def test_a_box_has_the_size_of_its_kind():
    geometry = lay_out(demo.definition)
    sizes = {found.name: (found.kind, found.w, found.h) for found in geometry.boxes}
    assert sizes["plan"] == ("node", 164, 48)
    assert sizes["research"] == ("node", 164, 60)
    assert sizes[START] == ("start", 12, 12)
    assert sizes[END] == ("end", 12, 12)


def test_the_longest_way_is_one_straight_line():
    geometry = lay_out(demo.definition)
    way = (START, "plan", "research", "outline", "write", "check", "publish", END)
    assert len({middle(box(geometry, name)) for name in way}) == 1


def test_a_side_way_leads_straight_down_and_then_joins():
    geometry = lay_out(demo.definition)
    style, write = box(geometry, "style"), box(geometry, "write")
    bend = write.y - g.LEAD
    assert line(geometry, "style", "write").points == (
        (middle(style), style.y + style.h),
        (middle(style), bend),
        (middle(write), bend),
        (middle(write), write.y),
    )


def test_a_loop_leaves_its_diamond_and_enters_its_head_from_the_right():
    geometry = lay_out(LOOP)
    write, check = box(geometry, "write"), box(geometry, "check")
    found = line(geometry, "check", "write")
    lane = write.x + write.w + g.LANE_REACH
    x, y = check.diamond
    assert y - g.DIAMOND // 2 == check.y + check.h + 12
    assert (found.kind, found.branch) == ("loop", True)
    assert found.points == (
        (x, check.y + check.h),
        (x, y),
        (lane, y),
        (lane, write.y + write.h // 2),
        (write.x + write.w, write.y + write.h // 2),
    )
    assert found.badge == (lane, (y + write.y + write.h // 2) // 2)
    assert line(geometry, "check", "publish").kind == "branch"


def test_a_diamond_is_symmetric():
    geometry = lay_out(DIAMOND)
    left, right = box(geometry, "left"), box(geometry, "right")
    assert right.x - (left.x + left.w) == g.SIBLING_GAP
    assert left.y == right.y
    for name in (START, "split", "merge", END):
        assert middle(box(geometry, name)) == (middle(left) + middle(right)) / 2


def test_rows_that_straight_lines_connect_are_closer_than_others():
    geometry = lay_out(DIAMOND)
    split, left, merge, end = (box(geometry, name) for name in ("split", "left", "merge", END))
    assert left.y - (split.y + split.h) == 36
    assert end.y - (merge.y + merge.h) == 24


def test_inner_loops_are_inside_outer_ones_and_no_badge_covers_another_lane():
    geometry = lay_out(NESTED)
    inner, outer = line(geometry, "review", "draft"), line(geometry, "polish", "plan")
    assert outer.badge[0] - inner.badge[0] > g.BADGE_W // 2
    assert abs(outer.badge[1] - inner.badge[1]) >= g.BADGE_H


def test_loops_to_one_node_share_a_lane_and_one_badge():
    flow = definition("START a b c", "d END", branches={"b": "a c", "c": "a d"})
    geometry = lay_out(flow)
    loops = [found for found in geometry.lines if found.kind == "loop"]
    assert len({found.points[2][0] for found in loops}) == 1
    assert [found.badge is None for found in loops] == [False, True]


def test_a_loop_enters_from_above_if_another_box_is_at_the_right_of_its_head():
    geometry = lay_out(SIDE_BY_SIDE)
    left = min((box(geometry, name) for name in ("a", "x")), key=lambda found: found.x)
    found = next(found for found in geometry.lines if found.kind == "loop" and found.target == left.name)
    assert found.points[-1] == (left.x + left.w - 20, left.y)
    assert_sound(SIDE_BY_SIDE, geometry)


def test_a_node_that_leads_only_back_is_at_the_right_side():
    geometry = lay_out(REPAIR)
    assert box(geometry, "fix").x > box(geometry, "deploy").x


def test_plain_edges_leave_a_node_beside_its_diamond():
    geometry = lay_out(MIXED)
    a = box(geometry, "a")
    assert line(geometry, "a", "b").points[0] == (middle(a) - 32, a.y + a.h)
    assert line(geometry, "a", "d").points[0] == (middle(a), a.y + a.h)


def test_plain_edges_leave_a_branching_start_at_its_side():
    geometry = lay_out(BRANCHED_START)
    start = box(geometry, START)
    assert line(geometry, START, "c").points[0] == (start.x, start.y + start.h // 2)
    assert line(geometry, START, "a").points[0] == (middle(start), start.y + start.h)


@pytest.mark.parametrize(("count", "stacked"), [(5, False), (6, True), (998, True)])
def test_six_nodes_with_the_same_neighbours_are_one_box(count: int, stacked: bool) -> None:
    geometry = lay_out(equal_neighbours(count))
    stacks = [found for found in geometry.boxes if found.kind == "stack"]
    assert len(stacks) == stacked
    if stacked:
        assert stacks[0].name == "stack:w0"
        assert stacks[0].members == tuple(f"w{number}" for number in range(count))
        assert len(geometry.boxes) == 5
        assert (stacks[0].w, stacks[0].h) == (284, 52)
        assert geometry.width == 284 + 2 * g.MARGIN


def test_nodes_with_other_kinds_of_edges_are_in_other_stacks():
    chosen = {"go": " ".join(f"b{number}" for number in range(6))}
    paths = [f"go p{number} done" for number in range(6)] + [f"b{number} done" for number in range(6)]
    geometry = lay_out(definition("START go", *paths, "done END", branches=chosen))
    assert [found.name for found in geometry.boxes if found.kind == "stack"] == ["stack:p0", "stack:b0"]


@pytest.mark.parametrize("count", [6, 7, 24, 998])
def test_an_open_stack_shows_its_members_in_rows_of_four(count: int) -> None:
    flow = equal_neighbours(count)
    geometry = lay_out(flow, open={"stack:w0"})
    assert_sound(flow, geometry)
    stack = box(geometry, "stack:w0")
    cells = [found for found in geometry.boxes if found.stack == "stack:w0"]
    assert tuple(found.name for found in cells) == stack.members
    assert not [pair for pair in pairwise(cells) if overlap(*pair)]
    rows: dict[int, list[g.Box]] = {}
    for found in cells:
        assert stack.x < found.x
        assert found.x + found.w < stack.x + stack.w
        assert stack.y < found.y
        assert found.y + found.h < stack.y + stack.h
        rows.setdefault(found.y, []).append(found)
    assert [len(row) for row in rows.values()] == [4] * (count // 4) + [count % 4] * (count % 4 > 0)


def test_a_member_can_be_drawn_beside_its_stack():
    flow = equal_neighbours(8)
    geometry = lay_out(flow, alone={"w0", "w3"})
    assert box(geometry, "stack:w0").members == ("w1", "w2", "w4", "w5", "w6", "w7")
    assert box(geometry, "w3").y == box(geometry, "w0").y == box(geometry, "stack:w0").y
    assert_sound(flow, geometry)


@pytest.mark.parametrize(("beside", "stacked"), [(4, True), (5, False)])
def test_a_stack_of_two_is_a_box_and_a_stack_of_one_is_a_node(beside: int, stacked: bool) -> None:
    geometry = lay_out(equal_neighbours(6), alone={f"w{number}" for number in range(beside)})
    assert {found.kind for found in geometry.boxes} == {"start", "end", "node"} | (
        {"stack"} if stacked else set()
    )


def test_a_wide_layer_is_wrapped():
    flow = definition(*(f"START a{number} b{number} END" for number in range(20)))
    geometry = lay_out(flow)
    assert_sound(flow, geometry)
    heights = [found.y for found in geometry.boxes if found.kind == "node"]
    assert max(heights.count(y) for y in heights) <= g.COLUMNS
    assert geometry.width < 2000


def test_a_chain_of_a_thousand_is_one_straight_column():
    flow = definition(" ".join([START, *(f"c{number}" for number in range(1000)), END]))
    geometry = lay_out(flow)
    assert geometry.width == g.NODE_W + 2 * g.MARGIN
    assert {len(found.points) for found in geometry.lines} == {2}


def test_a_way_past_very_many_rows_is_straight_at_the_left_side():
    names = [f"c{number}" for number in range(200)]
    flow = definition(f"START {' '.join(names)} END", branches=dict.fromkeys(names[:-1], END))
    geometry = lay_out(flow)
    left = min(found.x for found in geometry.boxes)
    away = [line(geometry, name, END) for name in names[:-2]]
    assert {min(x for x, _ in found.points) for found in away} == {left - g.LINE_GAP}
    assert max(len(found.points) for found in away) <= 6


def test_lines_to_a_node_and_from_it_share_no_way():
    flow = definition("START a b c d e f END", "START d", "a d", branches={"d": "e END"})
    graph = group_nodes(flow, (), ())
    rows = arrange(graph)
    assert len(rows.row_of) - len(graph.boxes) == 3 + 2  # past a, b and c; past e and f


def test_parts_that_only_meet_at_the_ends_are_side_by_side():
    geometry = lay_out(STARTS)
    assert box(geometry, "a").y == box(geometry, "c").y == box(geometry, "d").y


def test_rows_are_longer_where_very_many_lines_pass_them():
    flow = random_flow(2000, 2000, 20, seed=1)
    began = time.process_time()
    geometry = lay_out(flow)
    assert time.process_time() - began < 20  # about 1 s
    heights = [found.y for found in geometry.boxes]
    assert max(heights.count(y) for y in set(heights)) > g.COLUMNS
    assert_boxes_are_apart(geometry)
    assert_forward_lines_lead_down(geometry)


# --- gaps and lanes --------------------------------------------------------------------------------------


def departure(item: int, x: int, *targets: tuple[int, int], branch: bool = False) -> Departure:
    return Departure(Pin(item), x, tuple((Pin(target), place) for target, place in targets), branch)


def tracks(*departures: Departure, boxes: int = 100) -> list[int | None]:
    gap = route(departures, boxes)
    return [gap.tracks.get((found.source, found.branch)) for found in departures]


def test_a_straight_line_needs_no_track():
    assert tracks(departure(1, 50, (3, 50))) == [None]


def test_lines_to_the_same_items_share_a_track_and_others_do_not():
    same = ((5, 0), (6, 200))
    assert tracks(departure(1, 0, *same), departure(2, 200, *same)) == [0, 0]
    assert tracks(departure(1, 0, (5, 90)), departure(2, 300, (6, 200))) == [0, 0]
    assert tracks(departure(1, 0, (5, 190)), departure(2, 400, (6, 100))) == [0, 1]


def test_a_line_that_comes_down_where_another_continues_has_the_higher_track():
    first, other = departure(1, 100, (5, 300)), departure(2, 0, (6, 100))
    assert tracks(first, other) == [0, 1]
    assert tracks(other, first) == [1, 0]


def test_lines_that_exchange_their_places_do_not_cover_each_other():
    left, right = departure(1, 0, (6, 200)), departure(2, 200, (5, 0))
    gap = route([left, right], 100)
    assert sorted(gap.tracks.values()) == [0, 1]
    assert gap.enters == {((Pin(1), False), 6): 190}
    only_source = route([departure(1, 0, (106, 200)), departure(2, 200, (105, 0))], 100)
    assert only_source.leaves == {(Pin(2), False): 190}


def test_a_branch_keeps_the_first_track_unless_another_diamond_is_in_its_way():
    left = departure(1, 0, (5, -100), (6, 400), branch=True)
    right = departure(2, 200, (7, 200), (8, 300), branch=True)
    plain = departure(3, 500, (9, 560))
    assert tracks(left, right, plain) == [1, 0, 0]


def test_a_lane_keeps_away_from_lines_that_enter_the_rows_beside_it():
    reach = Reach(head=1, first_row=1, last_row=2, top=0, bottom=200)
    free = find_lanes([reach], [0, 100, 100, 0], [[], [50], [50], [300]])
    taken = find_lanes([reach], [0, 100, 100, 0], [[], [50], [50], [140]])
    assert free[1].x == 100 + g.LANE_REACH
    assert taken[1].x == 100 + g.LANE_REACH + g.LINE_GAP
