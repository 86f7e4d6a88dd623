"""Pictures that a person likes to look at, and that no name can break."""

# ruff: noqa: RUF001 - the signs in the pictures are the ones that are meant

from __future__ import annotations

import re
from itertools import pairwise
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.drawing import MARKS, mermaid, terminal
from holdfast.core.validate import problems
from holdfast.testing.builders import outline


def flow(nodes, *chains, branches=None, **options):
    """`flow("a b", "START a b END", b=NodeOptions(each=True))`: nodes, chains of plain edges, options."""
    edges = [Edge(*pair) for chain in map(str.split, chains) for pair in pairwise(chain)]
    definition = Definition(
        name="flow",
        nodes={name: options.get(name, NodeOptions()) for name in nodes.split()},
        edges=edges,
        branches={source: targets.split() for source, targets in (branches or {}).items()},
    )
    assert problems(definition) == []
    return definition


CHAIN = flow("fetch parse store", "START fetch parse store END")
DIAMOND = flow("split left right merge", "START split left merge END", "split right merge")
LOOP = flow("write check publish", "START write check", "publish END", branches={"check": "write publish"})
FAN_OUT = flow("list fetch merge", "START list fetch merge END", fetch=NodeOptions(each=True))
NESTED = flow(
    "plan draft review polish publish",
    "START plan draft review",
    "publish END",
    branches={"review": "draft polish", "polish": "plan publish"},
)
PARALLEL = flow(
    "intake legal finance tech decide",
    "START intake legal decide END",
    "intake finance decide",
    "intake tech decide",
)
REPAIR = flow(
    "build test fix deploy", "START build test", "fix build", "deploy END", branches={"test": "fix deploy"}
)
TRIAGE = flow(
    "triage bug feature question fix plan reply close",
    "START triage",
    "bug fix close END",
    "feature plan close",
    "question reply close",
    branches={"triage": "bug feature question END"},
)
CROSSED = flow("a b c d e f", "START a b d f END", "a c e f", "b e", "c d")
DEMO = flow(
    "plan research outline style write check publish",
    "START plan research outline write check",
    "START style write",
    "publish END",
    branches={"check": "write publish"},
    research=NodeOptions(each=True),
)


def wide(nodes):
    chains = [f"go w{number} done" for number in range(nodes)]
    return flow(
        " ".join(["go", *(f"w{number}" for number in range(nodes)), "done"]), "START go", *chains, "done END"
    )


def picture(text):
    return dedent(text).strip("\n")


def has_rails(*paths: str, width: int = 80) -> bool:
    """A list names START first and has no END."""
    return terminal(outline(*paths).definition, width=width).splitlines()[-1].startswith("◎")


# --- the terminal ------------------------------------------------------------------------------------


def test_a_chain():
    assert terminal(CHAIN) == picture("""
        ○  START
        ●  fetch
        ●  parse
        ●  store
        ◎  END
    """)


def test_a_diamond():
    assert terminal(DIAMOND) == picture("""
        ○    START
        ●    split
        ├─╮
        ● │  left
        │ ●  right
        ├─╯
        ●    merge
        ◎    END
    """)


def test_a_loop_is_written_at_its_tail():
    assert terminal(LOOP) == picture("""
        ○  START
        ●  write
        ●  check     ◇ publish or ↺ write
        ┆
        ●  publish
        ◎  END
    """)


def test_a_fan_out_is_marked():
    assert terminal(FAN_OUT) == picture("""
        ○  START
        ●  list
        ●  fetch ×N
        ●  merge
        ◎  END
    """)


def test_nested_loops():
    assert terminal(NESTED) == picture("""
        ○  START
        ●  plan
        ●  draft
        ●  review    ◇ polish or ↺ draft
        ┆
        ●  polish    ◇ publish or ↺ plan
        ┆
        ●  publish
        ◎  END
    """)


def test_three_at_once_and_a_join():
    assert terminal(PARALLEL) == picture("""
        ○      START
        ●      intake
        ├─┬─╮
        ● │ │  legal
        │ ● │  finance
        │ │ ●  tech
        ├─┴─╯
        ●      decide
        ◎      END
    """)


def test_a_loop_through_a_node_of_its_own_ends_the_rail_there():
    assert terminal(REPAIR) == picture("""
        ○    START
        ●    build
        ●    test     ◇ fix or deploy
        ├┄╮
        ● ┆  deploy
        │ ●  fix      ↺ build
        ◎    END
    """)


def test_a_branch_from_start_is_drawn_like_any_other():
    flow = outline("a END", "b END", branches={"START": "a b"})
    assert terminal(flow.definition) == picture("""
        ○    START   ◇ a or b
        ├┄╮
        ● ┆  a
        │ ●  b
        ├─╯
        ◎    END
    """)


def test_a_branch_is_dashed_as_far_as_it_reaches():
    assert terminal(TRIAGE) == picture("""
        ○        START
        ●        triage     ◇ bug or feature or question or END
        ├┄┬┄┬┄╮
        ● ┆ ┆ ┆  bug
        ● ┆ ┆ ┆  fix
        │ ● ┆ ┆  feature
        │ ● ┆ ┆  plan
        │ │ ● ┆  question
        │ │ ● ┆  reply
        ├─┴─╯ ┆
        ●     ┆  close
        ├┄┄┄┄┄╯
        ◎        END
    """)


def test_rails_that_cross_pass_over_each_other():
    assert terminal(CROSSED) == picture("""
        ○        START
        ●        a
        ├─╮
        ● │      b
        ├─│─╮
        │ ● │    c
        │ ├─│─╮
        ├─│─│─╯
        ● │ │    d
        │ ├─╯
        │ ●      e
        ├─╯
        ●        f
        ◎        END
    """)


def test_the_demo_flow():
    assert terminal(DEMO) == picture("""
        ○    START
        ├─╮
        ● │  plan
        ● │  research ×N
        ● │  outline
        │ ●  style
        ├─╯
        ●    write
        ●    check         ◇ publish or ↺ write
        ┆
        ●    publish
        ◎    END
    """)


def test_a_run_shows_how_far_each_node_has_come():
    statuses = {
        "plan": "completed",
        "research": "completed",
        "outline": "failed",
        "style": "skipped",
        "write": "waiting",
    }
    notes = {
        "plan": "1.2 s",
        "research": "5 items",
        "write": "3×",
        "unheard-of": "a note that is far too long to be shown",
    }
    assert terminal(DEMO, statuses, notes=notes) == picture("""
        ○    START
        ├─╮
        ✓ │  plan          1.2 s
        ✓ │  research ×N   5 items
        ✗ │  outline
        │ »  style
        ├─╯
        …    write         3×
        ·    check                   ◇ publish or ↺ write
        ┆
        ·    publish
        ◎    END
    """)


def test_the_picture_in_ascii():
    assert terminal(
        DEMO, {"plan": "completed", "write": "running"}, notes={"write": "3×"}, ascii=True
    ) == picture(r"""
        o    START
        +-\
        v |  plan
        . |  research xN
        . |  outline
        | .  style
        +-/
        >    write         3x
        .    check              ? publish or ^ write
        :
        .    publish
        @    END
    """)


def test_twelve_nodes_side_by_side_still_have_rails():
    lines = terminal(wide(12)).splitlines()
    assert lines[2] == "├─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─╮"
    assert lines[8] == "│ │ │ │ │ ● │ │ │ │ │ │  w5"
    assert lines[15] == "├─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─╯"


def test_a_flow_that_is_too_wide_becomes_a_list():
    lines = terminal(wide(20), {"go": "completed"}, notes={"go": "1 s"}, width=40).splitlines()
    assert lines[:4] == [
        "○ START         → go",
        "✓ go      1 s   → w0, w1, w2, w3, w4, w…",
        "· w0            → done",
        "· w1            → done",
    ]
    assert len(lines) == 23


def test_a_flow_that_is_too_long_becomes_a_list_and_takes_no_time():
    names = [f"n{number}" for number in range(5_000)]
    long = flow(" ".join(names), " ".join([START, *names]), branches={names[-1]: f"{names[0]} END"})
    lines = terminal(long).splitlines()
    assert lines[1] == "● n0      → n1"
    assert lines[-1] == "● n4999   ◇ END or ↺ n0"


def test_a_list_says_both_where_edges_lead_and_what_a_branch_may_choose():
    both = msgspec.structs.replace(wide(20), branches={"w0": ["go", END]})
    assert terminal(both).splitlines()[2] == "● w0      → done ◇ END or ↺ go"


def test_what_a_branch_may_choose_is_cut_before_the_name_is():
    lines = terminal(TRIAGE, width=40).splitlines()
    assert lines[1] == "●        triage     ◇ bug or feature or…"
    assert max(map(len, lines)) <= 40


def test_a_node_that_does_not_wait_for_all_says_so():
    either = flow("a b first", "START a first END", "START b first", first=NodeOptions(join="any"))
    assert "first (any)" in terminal(either)


def test_every_status_has_a_mark_and_an_unknown_one_is_shown_as_such():
    for status, mark in MARKS.items():
        assert f"{mark}  fetch" in terminal(CHAIN, {"fetch": status})
    assert "?  fetch" in terminal(CHAIN, {"fetch": "puzzled"})


def test_a_note_cannot_colour_the_terminal_or_break_the_line():
    drawn = terminal(CHAIN, notes={"fetch": "\x1b[31mred\nnext\u202e"})
    assert "?[31mred?next?" in drawn
    assert len(drawn.splitlines()) == 5


@pytest.mark.parametrize(
    ("paths", "least"),
    [(("START a b END",), 4), (("START aa b END", "START cc b"), 7), (("START abcdef END",), 9)],
)
def test_rails_are_drawn_as_soon_as_they_and_the_longest_name_fit(paths, least):
    assert has_rails(*paths, width=least)
    assert not has_rails(*paths, width=least - 1)


def test_rails_are_drawn_up_to_sixty_nodes():
    chain = [f"n{number}" for number in range(61)]
    assert has_rails(" ".join(["START", *chain[:60], "END"]))
    assert not has_rails(" ".join(["START", *chain, "END"]))


def test_rails_are_drawn_up_to_fourteen_beside_each_other():
    beside = [f"START n{number} END" for number in range(15)]
    assert has_rails(*beside[:14])
    assert not has_rails(*beside)


# --- Mermaid -----------------------------------------------------------------------------------------


def test_the_demo_flow_in_mermaid():
    assert mermaid(DEMO, {"plan": "completed", "style": "completed", "research": "running"}) == picture("""
        flowchart TD
            first(["START"])
            n0["plan"]
            n1[["research #215;N"]]
            n2["outline"]
            n3["style"]
            n4["write"]
            n5["check"]
            n6["publish"]
            last(["END"])
            first --> n0
            first --> n3
            n0 --> n1
            n1 --> n2
            n2 --> n4
            n3 --> n4
            n4 --> n5
            n5 -.-> n6
            n5 -. again .-> n4
            n6 --> last
            classDef running fill:#dbeafe,stroke:#2563eb,color:#1e3a8a
            class n1 running
            classDef completed fill:#dcfce7,stroke:#16a34a,color:#14532d
            class n0,n3 completed
    """)


def test_a_plain_edge_that_closes_a_loop_says_so_in_mermaid():
    assert "    n2 -- again --> n0" in mermaid(REPAIR).splitlines()


def test_every_status_has_a_colour_and_an_unknown_one_none():
    for status in MARKS:
        assert f"    class n0 {status}" in mermaid(CHAIN, {"fetch": status})
    assert "classDef" not in mermaid(CHAIN, {"fetch": "puzzled; click n0 evil"})


@given(st.text(min_size=1).filter(lambda name: name not in (START, END)))
def test_no_name_breaks_out_of_its_label(name):
    """Names are checked when a graph is built; a definition read from a store has only its word for it."""

    def lines(node):
        one = Definition(name="flow", nodes={node: NodeOptions()}, edges=[Edge(START, node), Edge(node, END)])
        return mermaid(one, {node: "completed"}).split("\n")

    *before, label, end, first, last, colours, members = lines(name)
    assert re.fullmatch(r' {4}n0\["([A-Za-z0-9 ._-]|#\d+;)*"\]', label)
    assert [*before, '    n0["x"]', end, first, last, colours, members] == lines("x")


# --- any flow ----------------------------------------------------------------------------------------


@st.composite
def flows(draw):
    """Valid flows: a tree from START, more arrows onward, and branches back."""
    names = draw(
        st.lists(
            st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,9}", fullmatch=True),
            min_size=1,
            max_size=20,
            unique=True,
        )
    )
    names = [name for name in names if name not in (START, END)] or ["only"]
    edges, branches = {Edge(START, names[0]): None}, {}
    for number, name in enumerate(names):
        for before in draw(st.sets(st.integers(0, number - 1), min_size=1, max_size=3)) if number else ():
            if draw(st.booleans()):
                edges[Edge(names[before], name)] = None
            else:
                branches.setdefault(names[before], []).append(name)
    for number, name in enumerate(names):
        if not any(edge.source == name for edge in edges) and name not in branches:
            edges[Edge(name, END)] = None
        if draw(st.integers(0, 3)) == 0:
            branches.setdefault(name, []).append(names[draw(st.integers(0, number))])
    nodes = {name: NodeOptions(each=draw(st.booleans())) for name in names}
    definition = Definition(name="flow", nodes=nodes, edges=list(edges), branches=branches)
    assert problems(definition) == []
    return definition


STATUSES = st.sampled_from([*MARKS, "puzzled"])


@given(flows(), st.data(), st.integers(0, 120))
def test_every_flow_can_be_drawn_and_every_node_has_one_row(definition, data, width):
    names = list(definition.nodes)
    statuses = data.draw(st.dictionaries(st.sampled_from(names), STATUSES))
    notes = data.draw(st.dictionaries(st.sampled_from(names), st.text(max_size=20)))
    drawn = terminal(definition, statuses, width=width, notes=notes)
    first_words = [found[1] for row in drawn.splitlines() if (found := re.match(r"\W*([\w.-]+)", row))]
    assert sorted(word for word in first_words if word not in (START, END)) == sorted(names)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", drawn)
    in_ascii = terminal(definition, statuses, width=width, notes=notes, ascii=True)
    assert in_ascii.isascii()
    assert in_ascii.count("\n") == drawn.count("\n")


@given(flows())
def test_rails_are_never_torn(definition):
    """Every rail that leaves a row downwards is met by the row below, and the other way round."""
    rows = terminal(definition, width=10_000).splitlines()
    if "→" in rows[0]:
        return  # a list: it has no rails
    column = rows[0].index(START)
    rails = [row[:column].ljust(column) for row in rows]
    down, up = set("○│┆├┬╮"), set("◎│┆├┴╯")
    for above, below in pairwise(rails):
        for upper, lower in zip(above, below, strict=True):
            if upper in down:
                assert lower in up | {"●"}, f"{above}\n{below}"
            if lower in up:
                assert upper in down | {"●"}, f"{above}\n{below}"


@given(flows(), st.data())
def test_mermaid_is_balanced_and_draws_every_arrow_once(definition, data):
    statuses = data.draw(st.dictionaries(st.sampled_from(list(definition.nodes)), STATUSES))
    drawn = mermaid(definition, statuses)
    for opened, closed in ("[]", "()", "{}"):
        assert drawn.count(opened) == drawn.count(closed)
    assert drawn.count('"') == 2 * (len(definition.nodes) + 2)
    assert len(re.findall(r"->", drawn)) == len(definition.arrows())
    assert drawn.isascii()


# --- plans -------------------------------------------------------------------------------------------

PLAN = Definition(
    name="shop",
    nodes={name: NodeOptions(join="every") for name in ("charge", "ship", "pickup", "call", "tell")},
    edges=[
        Edge(START, "charge"),
        Edge("charge", "ship"),
        Edge("charge", "pickup"),
        Edge("charge", "call"),
        Edge("ship", "tell"),
        Edge("call", "tell"),
        Edge("pickup", END),
        Edge("tell", END),
    ],
    plan={
        "edges": [
            {"from": "charge", "to": "ship", "guard": 'facts.country in ["DE"]'},
            {"from": "charge", "to": "pickup", "guard": "!facts.home", "on_error": False},
            {"from": "charge", "to": "call", "on_error": ["partial", "TimeoutError"]},
            {"from": "ship", "to": "tell", "on_error": True, "guard": "facts.loud"},
            {"from": "call", "to": "tell"},
        ]
    },
)


def test_a_plan_has_its_guards_and_error_edges_beside_the_nodes_that_they_lead_to():
    assert terminal(PLAN) == dedent("""\
        ○      START
        ●      charge
        ├┄┬┄╮
        ● ┆ ┆  ship     ◇ if facts.country in ["DE"]
        ┆ ● ┆  pickup   ◇ if !facts.home
        ┆ │ ●  call     ↯ on partial or TimeoutError
        ├─│─╯
        ● │    tell     ↯ from ship on any failure if facts.loud
        ├─╯
        ◎      END""")


def test_the_picture_of_a_run_says_which_conditions_were_met():
    statuses = {"charge": "completed", "ship": "running", "pickup": "skipped", "call": "skipped"}
    drawn = terminal(PLAN, statuses, routes={"charge": ["ship"], "call": [], "pickup": []})
    assert '▶ ┆ ┆  ship     ◇ if facts.country in ["DE"]: taken' in drawn
    assert "◇ if !facts.home: not taken" in drawn
    assert "↯ on partial or TimeoutError: not taken" in drawn
    assert drawn.count("taken") == 3, "whether ship fails is not decided"


def test_a_flowchart_has_conditions_as_labels_that_no_guard_can_break():
    drawn = mermaid(PLAN)
    assert 'n0 -.->|"if facts.country in #91;#34;DE#34;#93;"| n1' in drawn
    assert 'n0 -.->|"on partial or TimeoutError"| n3' in drawn
    assert "n3 --> n4" in drawn
