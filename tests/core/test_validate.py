"""Every problem of a graph is found at once, and one mistake makes one problem."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product

import msgspec
import pytest

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions, QuestionOptions
from holdfast.core.graph import Graph
from holdfast.core.validate import NODE_ID, RUN_ID, node_problems, problems, upgrade_problems
from holdfast.errors import GraphError


def flow(nodes, *chains, branches=None, **settings):
    """`flow("a b", "START a b END")`: nodes, and chains of plain edges."""
    edges = [Edge(*pair) for chain in map(str.split, chains) for pair in pairwise(chain)]
    options = {name: NodeOptions() for name in nodes.split()}
    return Definition(
        **{"name": "flow", "nodes": options, "edges": edges, "branches": branches or {}, **settings}
    )


def the_problem(definition):
    return the_problem_of(definition, ())


def the_problem_of(definition, waiting):
    found = problems(definition, waiting=waiting)
    assert len(found) == 1, found
    return found[0]


def lift(values):
    return values


NO_TARGETS = "the branch from 'a' has no targets"
LETTERS = "the branch from 'b' has the letters of 'publish' as its targets"
TWICE = "the branch from 'c' lists 'publish' more than once"


def test_a_sound_graph_has_no_problems():
    review = flow(
        "write check publish", "START write check", "publish END", branches={"check": ["publish", "write"]}
    )
    assert problems(review) == []


def test_a_branch_back_to_its_own_node_is_sound():
    assert problems(flow("poll", "START poll", branches={"poll": ["poll", END]})) == []


def test_an_empty_graph_is_one_problem():
    assert "has no nodes" in the_problem(flow(""))
    assert "has no nodes" in the_problem(flow("", "START END"))


def test_a_graph_without_entry_is_one_problem_however_many_nodes_it_has():
    problem = the_problem(flow("a b c", "a b c END"))
    assert "nothing leads from START" in problem
    assert ".edge(START, 'a')" in problem


def test_an_unknown_name_is_one_problem_with_the_name_that_was_meant():
    problem = the_problem(flow("write check", "START write chekc", "check END"))
    assert "'chekc'" in problem
    assert "did you mean 'check'?" in problem


def test_a_node_that_was_never_added_does_not_cut_off_its_neighbours():
    problem = the_problem(flow("write publish", "START write forgotten publish END"))
    assert "no node is named 'forgotten'" in problem
    assert "add that node" in problem


@pytest.mark.parametrize(("start", "end"), [("start", "end"), ("__start__", "__end__"), ("Start", "End")])
def test_the_ends_in_another_spelling_are_recognised(start, end):
    found = problems(flow("write", f"{start} write {end}"))
    assert [problem.rsplit("; ", 1)[1] for problem in found] == [
        "did you mean 'START'?",
        "did you mean 'END'?",
    ]


def test_an_unknown_branch_target_is_named_with_its_branch():
    problem = the_problem(flow("a publish", "START a", "publish END", branches={"a": ["publsh", END]}))
    assert "branch from 'a'" in problem
    assert "did you mean 'publish'?" in problem


def test_an_unknown_branch_source_is_named():
    problem = the_problem(flow("check", "START check END", branches={"chekc": [END]}))
    assert "no node is named 'chekc'" in problem


def test_edges_into_start_out_of_end_and_past_every_node_are_problems():
    found = problems(flow("a", "START a END", "a START", "END a", "START END"))
    assert len(found) == 3
    for part, problem in zip(
        ["leads into START", "leads out of END", "bypasses every node"], found, strict=True
    ):
        assert part in problem


def test_a_branch_cannot_leave_from_the_end():
    assert "cannot begin at END" in the_problem(flow("a", "START a END", branches={END: ["a"]}))


def test_a_branch_may_lead_from_start_into_the_graph():
    assert problems(flow("a b", "a END", "b END", branches={START: ["a", "b", END]})) == []


def test_a_branch_from_start_that_only_ends_leads_nowhere():
    found = problems(flow("a", "a END", branches={START: [END]}))
    assert "nothing leads from START" in found[0]


def test_a_branch_into_start_is_a_problem():
    assert "leads into START" in the_problem(flow("a", "START a", branches={"a": [START, END]}))


def test_a_branch_without_targets_is_one_problem():
    assert "has no targets" in the_problem(flow("a", "START a", branches={"a": []}))


def test_a_branch_that_lists_a_target_twice_is_a_problem():
    problem = the_problem(flow("a b", "START a", "b END", branches={"a": ["b", END, "b"]}))
    assert "lists 'b' more than once" in problem


def test_a_string_for_a_list_of_targets_is_one_problem():
    problem = the_problem(flow("a publish", "START a", "publish END", branches={"a": list("publish")}))
    assert "write to=['publish']" in problem


def test_an_unreachable_node_is_named():
    problem = the_problem(flow("a orphan", "START a END", "orphan END"))
    assert problem.startswith("node 'orphan' cannot be reached from START")


def test_what_hangs_on_an_unreachable_node_is_listed_with_it():
    problem = the_problem(flow("a z y x", "START a END", "x y z END"))
    assert problem.startswith("node 'x' (and with it 'y', 'z') cannot be reached")


def test_an_unreachable_loop_is_one_problem():
    problem = the_problem(flow("a x y", "START a END", "x y", branches={"y": ["x", END]}))
    assert problem.startswith("node 'x' (and with it 'y') cannot be reached")


def test_a_node_without_a_way_out_is_told_to_lead_to_end():
    problem = the_problem(flow("a b", "START a b"))
    assert problem == "no edge or branch leaves node 'b' (and with it 'a'); add .edge('b', END)"


def test_a_loop_of_branches_without_a_way_to_end_is_one_problem():
    problem = the_problem(flow("a b c", "START a c END", "a b", branches={"b": ["b"]}))
    assert problem.startswith("no path from node 'b' leads to END")


def test_a_plain_self_loop_is_told_to_use_a_branch():
    problem = the_problem(flow("a", "START a a", "a END"))
    assert "node 'a' leads to itself" in problem
    assert ".branch('a', router, to=['a', …])" in problem


def test_a_loop_of_plain_edges_only_can_never_end():
    assert "the loop a -> b -> a is made of plain edges only" in the_problem(flow("a b", "START a b a"))


def test_a_loop_is_found_behind_an_edge_that_leads_out_of_it():
    assert "the loop a -> b -> a" in the_problem(flow("out a b", "START out END", "START a out", "a b a"))


def test_a_branch_beside_a_loop_of_plain_edges_does_not_end_it():
    definition = flow("a b", "START a b a", branches={"b": [END, "b"]})
    assert "the loop a -> b -> a" in the_problem(definition)


def test_a_plain_edge_back_is_sound_where_a_branch_leaves_the_loop():
    assert problems(flow("test fix", "START test", "fix test", branches={"test": ["fix", END]})) == []


def test_two_loops_of_plain_edges_are_two_problems():
    found = problems(flow("a b c d e", "START a b a", "START c d e c", "e END"))
    assert ["a -> b -> a" in found[0], "c -> d -> e -> c" in found[1], len(found)] == [True, True, 2]


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 129, "ü", "a\n", 7])
def test_a_bad_flow_name_is_a_problem(name):
    assert "cannot name a flow" in the_problem(flow("a", "START a END", name=name))


@pytest.mark.parametrize(
    ("setting", "value"),
    [*product(["max_iterations", "max_parallel"], [0, -1, 1.5, True, "3"]), ("max_parallel", None)],
)
def test_a_bad_number_is_a_problem(setting, value):
    assert f"{setting}={value!r}" in the_problem(flow("a", "START a END", **{setting: value}))


def test_the_iteration_limit_has_a_limit():
    assert problems(flow("a", "START a END", max_iterations=1_000_000)) == []
    assert "1_000_000" in the_problem(flow("a", "START a END", max_iterations=1_000_001))


def test_a_loop_that_waits_needs_no_end_without_a_limit():
    for loop in (
        flow("a", "START a a", max_iterations=None),
        flow("b a", "START b a b", max_iterations=None),
    ):
        assert problems(loop, waiting={"a"}) == []
        limited = msgspec.structs.replace(loop, max_iterations=1000)
        assert len(problems(limited, waiting={"a"})) == 1
    by_branch = flow("b a", "START b a", branches={"a": ["b"]}, max_iterations=None)
    assert problems(by_branch, waiting={"b"}) == []
    limited = the_problem(msgspec.structs.replace(by_branch, max_iterations=1000))
    assert "compile(max_iterations=None)" in limited


@pytest.mark.parametrize(
    "options", [{"approve": "Go on?"}, {"question": QuestionOptions(text="Well?")}, {"calls": "child"}]
)
def test_a_question_and_a_child_run_are_waits(options):
    loop = flow("a b", "START a b a", max_iterations=None)
    assert "the loop a -> b -> a" in the_problem(loop)
    nodes = {**loop.nodes, "b": NodeOptions(**options)}
    assert problems(msgspec.structs.replace(loop, nodes=nodes)) == []


def test_a_loop_that_cannot_wait_is_refused_also_beside_one_that_waits():
    """A run cannot leave `b`, and a visit of `b` waits for nothing."""
    beside = flow("a b", "START a", "START b", branches={"a": ["a", "b"], "b": ["b"]}, max_iterations=None)
    problem = the_problem_of(beside, {"a"})
    assert problem.startswith("no path from node 'b' leads to END")
    assert "must be able to wait" in problem
    plain = flow("a b c", "START a b c b", "c a", max_iterations=None)
    assert "the loop b -> c -> b" in the_problem_of(plain, {"a"})


def test_a_node_that_waits_and_leads_nowhere_is_still_a_problem():
    assert "no edge or branch leaves node 'a'" in the_problem_of(
        flow("a", "START a", max_iterations=None), {"a"}
    )


def test_an_unknown_schedule_is_a_problem():
    assert "'eager' or 'layered'" in the_problem(flow("a", "START a END", schedule="lazy"))


def test_all_problems_come_at_once_and_in_the_same_order_each_time():
    broken = flow(
        "a b c d", "START a c", "b b", "b nowhere", branches={"c": ["c", "c"]}, name="?", max_parallel=0
    )
    found = problems(broken)
    parts = ["'?'", "max_parallel", "'nowhere'", "lists 'c'", "node 'b' leads to itself", "node 'b' cannot", "node 'd' cannot",
             "from node 'c'", "leaves node 'd'"]  # fmt: skip
    assert len(found) == len(parts), found
    assert all(part in problem for part, problem in zip(parts, found, strict=True)), found
    assert found == problems(broken)


def test_ten_thousand_nodes_are_checked_well_within_a_second():
    names = [f"n{number}" for number in range(10_000)]
    chain = flow(" ".join(names), " ".join([START, *names, END]))
    tangled = [*chain.edges, *(Edge(f"n{5_000 + k}", f"n{5_000 - k}") for k in range(1, 5_000))]
    cut = [edge for edge in chain.edges if edge.source != "n5000"] + [
        Edge(f"zzz{number}", "n3") for number in range(500)
    ]
    begun = time.process_time()
    assert problems(chain) == []
    assert len(problems(msgspec.structs.replace(chain, edges=tangled))) == 1
    assert len(problems(msgspec.structs.replace(chain, edges=cut))) == 502
    assert time.process_time() - begun < 10, "on a busy machine; the square of so many takes minutes"


# --- branches and reach ------------------------------------------------------------------------------


def test_a_branch_from_an_end_hides_no_other_fault():
    found = problems(flow("a", "START a END", branches={END: ["a"], "a": []}))
    assert len(found) == 2
    assert "cannot begin at END" in found[0]
    assert "has no targets" in found[1]


@pytest.mark.parametrize(
    ("lost", "who", "them"),
    [
        ("b", "node 'b' cannot", "it"),
        ("b c", "node 'b' (and with it 'c') cannot", "them"),
        ("b c d e f g h i", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 'h', 'i') cannot", "them"),
        ("b c d e f g h i j", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 2 more, 'j') cannot", "them"),
        ("b c d e f g h i j k", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 3 more, 'k') cannot", "them"),
    ],
)
def test_nodes_that_cannot_be_reached_are_told_together_and_shortly(lost, who, them):
    assert problems(flow(f"a {lost}", "START a END", f"{lost} END")) == [
        f"{who} be reached from START; add an edge or a branch that leads to 'b', or remove {them}"
    ]


def test_a_loop_ends_with_the_suggested_branch_and_not_with_an_edge_to_end_beside_it():
    loop = flow("a b c", "START a", "b c", branches={"a": ["b", END], "c": ["b"]})
    assert "to=['c', END]" in the_problem(loop)
    assert problems(flow("a b c", "START a", branches={"a": ["b", END], "b": ["c", END], "c": ["b"]})) == []


def test_nodes_that_lead_nowhere_are_told_together_with_the_first_to_be_mended():
    problem = the_problem(flow("a b c", "START a", "b c", branches={"a": ["b", END], "c": ["b"]}))
    assert problem == (
        "no path from node 'b' (and with it 'c') leads to END; in place of what leaves 'b' now, add a branch that may end it: "
        ".branch('b', router, to=['c', END]). If its runs live for ever and wait in a loop, use compile(max_iterations=None)"
    )


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        ({END: ["a"], "a": []}, ["a branch cannot begin at END", NO_TARGETS]),
        ({"a": [], "b": list("publish")}, [NO_TARGETS, LETTERS]),
        ({"b": list("publish"), "a": []}, [LETTERS, NO_TARGETS]),
        ({"b": list("publish"), "c": ["publish", "publish"]}, [LETTERS, TWICE]),
        ({"a": [], "c": ["publish", "publish"]}, [NO_TARGETS, TWICE]),
    ],
)
def test_two_faulty_branches_are_two_problems(faulty, words):
    chains = ["START a", "a b c publish END"]
    found = [one for one in problems(flow("a b c publish", *chains, branches=faulty)) if "branch" in one]
    assert all(any(one.startswith(word) for one in found) for word in words), found


# --- one node ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "_a", "9", "fetch.page-2", "a" * 128])
def test_a_good_node_has_no_problems(name):
    assert node_problems(name, NodeOptions(timeout_s=0.1, limit=1, join="any"), taken=False) == []


def the_node_problem(name, *, taken=False, **options):
    found = node_problems(name, NodeOptions(**options), taken=taken)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("name", ["a b", ".a", "-a", "a/b", "a" * 129, "é", "a\n", 'a"]'])
def test_a_bad_node_name_is_refused(name):
    assert the_node_problem(name).startswith(f"{name!r} cannot name a node")


@pytest.mark.parametrize("name", ["<lambda>", ""])
def test_a_function_without_a_name_is_told_to_take_one(name):
    assert "name='…'" in the_node_problem(name, taken=True)


@pytest.mark.parametrize("name", [START, END])
def test_a_reserved_name_is_refused(name):
    assert "an end of the graph" in the_node_problem(name)


def test_a_duplicate_name_is_refused():
    assert "two nodes are named 'a'" in the_node_problem("a", taken=True)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "60", True])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    assert f"node 'a': timeout={timeout!r}" in the_node_problem("a", timeout_s=timeout)


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, None])
def test_a_limit_that_lets_nothing_run_is_refused(limit):
    assert f"node 'a': limit={limit!r}" in the_node_problem("a", limit=limit)


@pytest.mark.parametrize("option", ["join", "on_interrupt"])
def test_an_unknown_choice_is_refused(option):
    assert f"{option}='some' does not exist" in the_node_problem("a", **{option: "some"})


def test_never_twice_and_always_again_contradict_each_other():
    assert "idempotent=False" in the_node_problem("a", idempotent=False, on_interrupt="rerun")
    for choice in ("ask", "skip"):
        assert node_problems("a", NodeOptions(idempotent=False, on_interrupt=choice), taken=False) == []


def test_all_problems_of_a_node_come_at_once():
    options = NodeOptions(timeout_s=0, limit=0, join="no", on_interrupt="no")
    assert len(node_problems("a b", options, taken=False)) == 5


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
def test_a_crash_limit_below_one_is_refused(limit):
    assert the_node_problem("a", crash_limit=limit) == (
        f"node 'a': crash_limit={limit!r} never lets the node run; use a whole number from 1 up"
    )


@pytest.mark.parametrize("approve", ["", "  ", True, 7])
def test_an_approval_that_asks_nothing_is_refused(approve):
    assert the_node_problem("a", approve=approve) == (
        f"node 'a': approve={approve!r} asks nothing; give the question, such as approve='Publish?'"
    )


@pytest.mark.parametrize("agent", ["", "two words", "../x", None, 7])
def test_an_agent_that_could_not_name_a_file_is_refused(agent):
    assert f"agent={agent!r} cannot name an agent" in the_node_problem("a", agent=agent)


# --- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_a_limit_of_memory_is_a_number_of_bytes(limit):
    (problem,) = node_problems("a", NodeOptions(executor="process", memory_limit=limit), taken=False)
    assert "is not an amount of memory" in problem


def test_a_limit_of_memory_needs_a_process():
    assert node_problems("a", NodeOptions(executor="process", memory_limit=1), taken=False) == []
    (problem,) = node_problems("a", NodeOptions(memory_limit=1), taken=False)
    assert "needs a process of its own" in problem


# --- questions ---------------------------------------------------------------------------------------


@dataclass
class Review:
    draft: str = ""
    grade: int = 0


def ask_problems(*args, **options):
    """What compiling says about a graph whose only node is this question."""
    graph = Graph("g", Review).ask(*args, **options).edge(START, args[0]).edge(args[0], END)
    try:
        graph.compile()
    except GraphError as fault:
        return fault.problems
    return []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"options": ["ship", "wait"]},
        {"into": "draft"},
        {"into": "grade", "schema": int},
        {"options": ["ship", "wait"], "into": "draft", "timeout": 60, "on_timeout": "ship"},
        {"options": ["ship", "wait"], "timeout": 60, "on_timeout": "wait"},
        {"timeout": 0.5, "on_timeout": "fail"},
    ],
)
def test_a_sound_question_has_no_problems(options):
    assert ask_problems("q", "Ship it?", **options) == []
    assert ask_problems("q", lambda state: f"Ship {state.draft}?", **options) == []


@pytest.mark.parametrize("name", ["", "a b", START])
def test_a_question_needs_a_name_like_any_node(name):
    problem = node_problems(name, NodeOptions(question=QuestionOptions(text="?", into="x")), taken=False)
    assert len(problem) == 1


def test_a_question_with_the_name_of_a_node_is_refused():
    graph = Graph("g", Review)
    graph.node(name="q")(lambda state: None)
    graph.ask("q", "Ship it?").edge(START, "q").edge("q", END)
    with pytest.raises(GraphError, match="two nodes are named 'q'"):
        graph.compile()


def the_question_problem(**options):
    found = ask_problems("q", "Ship it?", **options)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("options", [["yes", "yes"], ["yes", ""], ["yes", 7]])
def test_options_that_are_not_different_words_are_refused(options):
    assert (
        the_question_problem(options=options)
        == f"question 'q': options={options!r} must be different texts that are not empty"
    )


def test_a_single_option_leaves_nothing_to_decide():
    assert the_question_problem(options=["yes"]) == (
        "question 'q': with 'yes' as the only option there is nothing to decide; give another option"
    )


def test_an_answer_that_nothing_takes_is_refused():
    assert the_question_problem(schema=int) == (
        "question 'q': its answer is not used; name a field with into='…', or give options"
    )


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "60", True])
def test_a_time_that_nobody_could_answer_in_is_refused(timeout):
    assert the_question_problem(timeout=timeout) == (
        f"question 'q': timeout={timeout!r} is not a time limit; use seconds above 0"
    )


def test_an_answer_for_nobody_must_be_one_of_the_options():
    assert the_question_problem(options=["ship", "wait"], into="draft", on_timeout="drop") == (
        "question 'q': on_timeout='drop' is not one of its options; use one, or 'fail'"
    )


def test_nobodys_answer_must_not_be_an_approval():
    assert the_question_problem(options=["ship", "wait"], on_timeout="ship") == (
        "question 'q': on_timeout='ship' would continue without an approval; use another option, or 'fail'"
    )
    assert "without an approval" in the_question_problem(on_timeout="approve")


def test_a_field_that_the_state_does_not_have_is_refused_with_the_one_that_was_meant():
    problem = the_question_problem(into="grad")
    assert problem.startswith("question 'q' puts its answer into 'grad', which Review does not have")
    assert "did you mean 'grade'?" in problem


def test_a_state_without_declared_fields_takes_any_answer():
    graph = Graph("g").ask("q", "Who?", into="owner").edge(START, "q").edge("q", END)
    assert graph.compile().definition.nodes["q"].question.into == "owner"


def test_a_type_that_no_answer_can_be_checked_against_is_refused():
    problem = the_question_problem(schema=Callable, into="draft")
    assert problem.startswith("question 'q': an answer cannot be a")


def test_all_problems_of_a_question_come_at_once():
    asked = QuestionOptions(text="?", options=["yes"], timeout_s=0, on_timeout="no")
    assert len(node_problems("q", NodeOptions(question=asked, agent="?"), taken=False)) == 4


# --- versions and ids --------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "upgrades"), [(1, []), (3, []), (3, [2]), (4, [2, 3]), (3, [1, 2])])
def test_upgrades_that_lead_to_the_version_are_sound(version, upgrades):
    assert upgrade_problems(version, dict.fromkeys(upgrades, dict)) == []


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "2"])
def test_a_version_below_the_first_is_refused(version):
    assert f"version={version!r}" in upgrade_problems(version, {})[0]


@pytest.mark.parametrize(
    ("version", "upgrades", "part"),
    [
        (2, [2], "raise version= to 3"),
        (2, [0, 1], "upgrades[0] does not start at a version"),
        (4, [1, 3], "add upgrades for 2"),
        (9, [1, 8], "add upgrades for 2 to 7"),
        (5, [2], "add upgrades for 3 to 4"),
        (10**12, [1], "add upgrades for 2 to 999999999999"),
    ],
)
def test_upgrades_that_lead_nowhere_are_refused(version, upgrades, part):
    found = upgrade_problems(version, dict.fromkeys(upgrades, dict))
    assert len(found) == 1, found
    assert part in found[0]


def test_an_upgrade_that_cannot_be_called_is_refused():
    assert upgrade_problems(2, {1: "add_owner"}) == [
        "upgrades[1] is not a function; give one that takes the old values and returns the new ones"
    ]


def test_run_ids_begin_with_a_letter_or_a_digit_and_node_ids_may_begin_with_an_underscore():
    assert [bool(RUN_ID.fullmatch(text)) for text in ("r1", "R.1_a-b", "_r", "", "a" * 129, "r1@3", "r\n")] == [
        True, True, False, False, False, False, False,
    ]  # fmt: skip
    assert NODE_ID.fullmatch("_r")


# --- upgrades ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "given", "span"),
    [(3, [1], "2"), (4, [1], "2 to 3"), (5, [1, 4], "2 to 3"), (4, [1, 3], "2"), (9, [2, 3], "4 to 8")],
)
def test_the_upgrades_that_are_missing_are_named(version, given, span):
    assert upgrade_problems(version, dict.fromkeys(given, lift)) == [
        f"a state of version {span.split()[0]} cannot be upgraded to version {version}; add upgrades for {span}"
    ]


def test_an_upgrade_beyond_the_version_is_one_problem():
    assert upgrade_problems(2, {1: lift, 5: lift}) == [
        "upgrades[5] starts at version 5, but the state is at version 2; raise version= to 6 or remove the upgrade"
    ]


def test_an_upgrade_that_starts_at_no_version_is_one_problem():
    (problem,) = upgrade_problems(2, {1: lift, "x": lift})
    assert "does not start at a version" in problem


@pytest.mark.parametrize(("version", "given"), [(1, []), (2, [1]), (3, [1, 2]), (3, [2]), (3, [])])
def test_upgrades_without_a_gap_are_sound(version, given):
    assert upgrade_problems(version, dict.fromkeys(given, lift)) == []


def test_an_upgrade_from_version_zero_is_one_problem():
    assert upgrade_problems(2, {0: lambda values: values}) == [
        "upgrades[0] does not start at a version; versions are whole numbers from 1 up"
    ]
