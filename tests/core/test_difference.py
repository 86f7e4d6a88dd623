"""Two flows are the same exactly when nothing that matters differs; a run goes on with another only where that is safe."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions, QuestionOptions
from holdfast.core.difference import compatible, difference, fingerprint
from holdfast.testing.builders import outline

REVIEW = Definition(
    name="review",
    nodes={
        "write": NodeOptions(timeout_s=60, retry={"attempts": 4, "backoff": 1.0}),
        "check": NodeOptions(),
        "publish": NodeOptions(idempotent=False, on_interrupt="ask"),
    },
    edges=[Edge(START, "write"), Edge("write", "check"), Edge("publish", END)],
    branches={"check": ["publish", "write"]},
    state={"draft": "set", "notes": "append"},
)


def changed(**fields):
    return msgspec.structs.replace(REVIEW, **fields)


def with_options(node, **options):
    return changed(nodes={**REVIEW.nodes, node: msgspec.structs.replace(REVIEW.nodes[node], **options)})


def with_node_before(new, target):
    """REVIEW with a node on the edge that leads to `target`."""
    source = next(edge.source for edge in REVIEW.edges if edge.target == target)
    edges = [edge for edge in REVIEW.edges if edge.target != target]
    nodes = {**REVIEW.nodes, new: NodeOptions()}
    return changed(nodes=nodes, edges=[*edges, Edge(source, new), Edge(new, target)])


def renamed(old, new):
    def now(name):
        return new if name == old else name

    return changed(
        nodes={now(name): options for name, options in REVIEW.nodes.items()},
        edges=[Edge(now(edge.source), now(edge.target)) for edge in REVIEW.edges],
        branches={
            now(source): [now(target) for target in targets] for source, targets in REVIEW.branches.items()
        },
    )


ASKED = QuestionOptions(text="Ship?", options=["ship", "wait"], into="draft", timeout_s=60)


def asking(**options):
    """REVIEW with a question in place of `check`; by default ASKED."""
    return with_options("check", question=msgspec.structs.replace(ASKED, **options))


TUNED = {
    "timeout": with_options("write", timeout_s=10),
    "no timeout": with_options("write", timeout_s=None),
    "retry": with_options("write", retry={"attempts": 5, "backoff": 1.0}),
    "limit": with_options("write", limit=3),
    "idempotent": with_options("publish", idempotent=True),
    "on_interrupt": with_options("write", on_interrupt="skip"),
    "approve": with_options("write", approve="Write?"),
    "agent": with_options("write", agent="writer"),
    "safe_to_fail": with_options("write", safe_to_fail=True),
    "crash_limit": with_options("write", crash_limit=9),
    "iterations": changed(max_iterations=10),
    "endless": changed(max_iterations=None),
    "parallel": changed(max_parallel=2),
    "version": changed(state_version=2),
    "a field": changed(state={**REVIEW.state, "owner": "set"}),
    "no field": changed(state={"draft": "set"}),
    "a reducer": changed(state={"draft": "append", "notes": "append"}),
}
RESHAPED = {
    "name": changed(name="other"),
    "schedule": changed(schedule="layered"),
    "join": with_options("write", join="any"),
    "each": with_options("write", each=True),
    "question": asking(),
    "its text": asking(text="Ship it?"),
    "its options": asking(options=["wait", "ship"]),
    "its form": asking(options=[], answer_schema={"type": "integer"}),
    "its field": asking(into=None),
    "its time": asking(timeout_s=61),
    "its way out": asking(on_timeout="wait"),
    "a node": with_node_before("polish", "check"),
    "an edge": changed(edges=[*REVIEW.edges, Edge("write", END)]),
    "no edge": changed(edges=REVIEW.edges[:-1]),
    "a target": changed(branches={"check": ["publish", "write", END]}),
    "no target": changed(branches={"check": ["publish"]}),
    "another order of targets": changed(branches={"check": ["write", "publish"]}),
    "an edge instead of a branch": changed(
        branches={}, edges=[*REVIEW.edges, Edge("check", "publish"), Edge("check", "write")]
    ),
}
ALL = {**TUNED, **RESHAPED}


# --- fingerprint -------------------------------------------------------------------------------------


def test_the_fingerprint_never_changes_between_versions_of_holdfast():
    """It stands in stores: whoever changes it makes every run of every user look changed."""
    assert fingerprint(REVIEW) == "0dab8761283275cc02e4b65635c543c2eb98edf95baa5a19fa12cc89216ee333"


def test_everything_in_a_definition_counts():
    prints = {fingerprint(definition) for definition in ALL.values()}
    assert len(prints | {fingerprint(REVIEW)}) == len(ALL) + 1


def test_a_definition_that_was_stored_and_read_back_has_the_same_fingerprint():
    odd = with_options("write", retry={"attempts": 2, "max_delay": float("inf"), "on": ["TimeoutError"]})
    for definition in (REVIEW, odd, *ALL.values()):
        again = msgspec.json.decode(msgspec.json.encode(definition), type=Definition)
        assert fingerprint(again) == fingerprint(definition)
        assert difference(definition, again).empty


def test_a_question_counts_by_what_it_says_however_its_numbers_are_spelt():
    assert fingerprint(asking(timeout_s=60.0)) == fingerprint(asking(timeout_s=60))
    assert difference(asking(timeout_s=60.0), asking(timeout_s=60)).empty


def test_a_question_that_was_stored_and_read_back_is_the_same_question():
    stored = msgspec.json.decode(msgspec.json.encode(asking()), type=Definition)
    assert stored.nodes["check"].question == ASKED
    assert stored.nodes["check"].gated


def test_options_at_their_defaults_are_not_stored():
    assert b"crash_limit" not in msgspec.json.encode(REVIEW)
    assert b"question" not in msgspec.json.encode(REVIEW)


def test_another_question_is_told_with_what_it_was():
    (line,) = difference(asking(), asking(options=["wait", "ship"])).lines()
    assert line.startswith('~ node "check": question {"text": "Ship?", "options": ["ship", "wait"]')
    assert '-> {"text": "Ship?", "options": ["wait", "ship"]' in line
    (line,) = difference(REVIEW, with_options("write", approve="Write?")).lines()
    assert line == '~ node "write": approve null -> Write?'


def test_order_that_means_nothing_does_not_count():
    moved = changed(
        nodes=dict(reversed(REVIEW.nodes.items())),
        edges=REVIEW.edges[::-1],
        state=dict(reversed(REVIEW.state.items())),
    )
    assert fingerprint(moved) == fingerprint(REVIEW)
    assert difference(REVIEW, moved).empty


def test_the_order_of_nodes_counts_where_a_layer_merges_by_it():
    layered = changed(schedule="layered")
    moved = msgspec.structs.replace(layered, nodes=dict(reversed(layered.nodes.items())))
    assert fingerprint(moved) != fingerprint(layered)
    assert difference(layered, moved).lines() == ["~ order of nodes"]


def test_the_order_of_edges_from_one_node_counts():
    forked = changed(edges=[*REVIEW.edges, Edge(START, "check")])
    turned = msgspec.structs.replace(forked, edges=forked.edges[::-1])
    assert fingerprint(turned) != fingerprint(forked)
    assert difference(forked, turned).lines() == ["~ order of edges from START"]


# --- difference --------------------------------------------------------------------------------------


def test_a_flow_does_not_differ_from_itself():
    same = difference(REVIEW, REVIEW)
    assert same.empty
    assert same.only_options
    assert same.lines() == []


@pytest.mark.parametrize("what", ALL)
def test_another_fingerprint_means_a_difference_both_ways(what):
    for one, other in ((REVIEW, ALL[what]), (ALL[what], REVIEW)):
        found = difference(one, other)
        assert not found.empty
        assert found.lines()
        assert found.only_options == (what in TUNED)


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("timeout", ['~ node "write": timeout_s 60 -> 10']),
        ("no timeout", ['~ node "write": timeout_s 60 -> null']),
        ("retry", ['~ node "write": retry {"attempts": 4, "backoff": 1} -> {"attempts": 5, "backoff": 1}']),
        ("on_interrupt", ['~ node "write": on_interrupt rerun -> skip']),
        (
            "a node",
            ['+ node "polish"', "- edge write -> check", "+ edge write -> polish", "+ edge polish -> check"],
        ),
        ("a target", ["+ branch check -> END"]),
        ("no target", ["- branch check -> write"]),
        ("another order of targets", ["~ order of branch targets from check"]),
        ("a field", ['+ state field "owner" (set)']),
        ("no field", ['- state field "notes" (append)']),
        ("a reducer", ['~ state field "draft": set -> append']),
        ("schedule", ["~ flow: schedule eager -> layered"]),
        ("iterations", ["~ flow: max_iterations 1000 -> 10"]),
        ("endless", ["~ flow: max_iterations 1000 -> null"]),
    ],
)
def test_a_difference_is_printed_so_that_it_can_be_read(what, lines):
    assert difference(REVIEW, ALL[what]).lines() == lines


def test_a_node_that_went_takes_its_arrows_along():
    gone = changed(
        nodes={name: options for name, options in REVIEW.nodes.items() if name != "publish"},
        edges=REVIEW.edges[:-1],
        branches={"check": [END, "write"]},
    )
    assert difference(REVIEW, gone).lines() == [
        '- node "publish"', "- edge publish -> END", "- branch check -> publish", "+ branch check -> END",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a node", ["node polish is new"]),
        ("a target", ["branch check to END is new"]),
        ("another order of targets", ["order of branch targets from check has changed"]),
        ("schedule", ["its schedule has changed"]),
        ("timeout", []),
    ],
)
def test_a_change_of_shape_is_told_in_a_few_words(what, words):
    assert list(difference(REVIEW, ALL[what]).words()) == words


def test_a_renamed_node_is_the_same_node():
    found = difference(REVIEW, renamed("check", "review"), rename={"check": "review"})
    assert found.lines() == ['~ node "check" is now "review"']
    assert not found.empty
    assert not found.only_options


def test_a_renamed_node_can_have_other_options_too():
    new = renamed("check", "review")
    new = msgspec.structs.replace(new, nodes={**new.nodes, "review": NodeOptions(limit=2)})
    assert '~ node "review": limit 16 -> 2' in difference(REVIEW, new, rename={"check": "review"}).lines()


def test_two_nodes_can_change_names():
    swapped = changed(
        nodes={
            "check": REVIEW.nodes["write"],
            "write": REVIEW.nodes["check"],
            "publish": REVIEW.nodes["publish"],
        },
        edges=[Edge(START, "check"), Edge("check", "write"), Edge("publish", END)],
        branches={"write": ["publish", "check"]},
    )
    rename = {"write": "check", "check": "write"}
    assert len(difference(REVIEW, swapped, rename=rename).lines()) == 2
    assert compatible(REVIEW, swapped, completed=["write"], pending=["check"], rename=rename) == []


def test_only_nodes_that_there_were_and_that_have_another_name_now_are_renamed():
    old, new = outline("START a b END").definition, outline("START a c END").definition
    told = difference(old, new, rename={"a": "a", "nobody": "somebody", "b": "c"})
    assert told.renamed == [("b", "c")]
    assert (told.nodes_added, told.nodes_removed) == ([], [])


def test_a_difference_is_told_in_the_letters_in_which_it_was_written():
    asked = [
        outline("START a END", asks={"a": {"options": options}}).definition
        for options in (["ä", "b"], ["ö", "b"])
    ]
    (line,) = difference(*asked).lines()
    assert '"ä"' in line
    assert '"ö"' in line


# --- may a run go on? --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", TUNED)
def test_a_run_goes_on_when_only_options_changed(what):
    assert compatible(REVIEW, TUNED[what], completed=["write"], pending=["check"]) == []


def test_a_run_goes_on_when_a_node_was_added_behind_what_completed():
    assert (
        compatible(REVIEW, with_node_before("notify", END), completed=["write", "check"], pending=["publish"])
        == []
    )


def test_a_run_goes_on_when_a_node_went_that_it_never_reached():
    gone = changed(nodes={n: o for n, o in REVIEW.nodes.items() if n != "publish"}, edges=REVIEW.edges[:-1],
                   branches={"check": [END, "write"]})  # fmt: skip
    assert compatible(REVIEW, gone, completed=["write"], pending=["check"]) == []


def refusal(new, completed="", pending="", **rename):
    found = compatible(REVIEW, new, completed=completed.split(), pending=pending.split(), rename=rename)
    assert len(found) == 1, found
    return found[0]


def test_a_completed_node_that_is_gone_is_refused_with_the_likely_new_name():
    reason = refusal(renamed("write", "rewrite"), completed="write", pending="check")
    assert reason.startswith("node 'write', which the run completed, is no longer in the flow")
    assert "rename={'write': 'rewrite'} (--rename write=rewrite)" in reason
    assert "fork" in reason
    assert "the old code" in reason


def test_a_pending_node_that_is_gone_is_refused():
    reason = refusal(renamed("check", "judge"), pending="check")
    assert reason.startswith("node 'check', which the run has yet to finish, is no longer in the flow")
    assert "rename={'check': 'judge'}" in reason


def test_a_rename_lets_the_run_go_on():
    new = renamed("write", "rewrite")
    assert compatible(REVIEW, new, completed=["write"], pending=["check"], rename={"write": "rewrite"}) == []


def test_a_new_node_upstream_of_a_completed_one_is_refused():
    reason = refusal(with_node_before("outline", "write"), completed="write", pending="check")
    assert reason.startswith("node 'outline' is new and comes before 'write'")
    assert "fork" in reason


def test_a_new_node_is_upstream_also_through_other_nodes_and_round_a_loop():
    looped = with_node_before("polish", "check")
    assert (
        "node 'polish' is new and in a loop with 'write', which the run completed: it comes after 'write', and through the loop "
        "also before it; fork the run from before 'write', or resume with the old code"
    ) in refusal(looped, completed="write", pending="check")
    assert compatible(REVIEW, looped, completed=[], pending=["write"]) == []


def test_a_new_node_that_the_run_would_pass_by_is_refused():
    reason = refusal(with_node_before("outline", "write"), pending="write")
    assert (
        "'outline' is new and comes before 'write', which the run has reached already, so it would not run"
        in reason
    )


@pytest.mark.parametrize("option", ["join", "each"])
def test_the_join_and_the_items_of_a_pending_node_must_not_change(option):
    new = RESHAPED[option]
    assert f"node 'write', which the run has yet to finish, had {option}=" in refusal(new, pending="write")
    assert compatible(REVIEW, new, completed=["write"], pending=["check"]) == []


def test_another_schedule_is_refused():
    assert "schedule='eager'" in refusal(changed(schedule="layered"), pending="write")


def test_another_flow_is_refused():
    assert "belongs to flow 'review'" in refusal(changed(name="other"), pending="write")


@pytest.mark.parametrize(
    ("rename", "part"),
    [
        ({"wirte": "write"}, "the run's flow has no node 'wirte'; did you mean 'write'?"),
        ({"check": "chekc"}, "this flow has no node 'chekc'; did you mean 'check'?"),
        ({"check": "write"}, "node 'write' of the run's flow is 'write' already"),
        ({"check": "publish", "write": "publish"}, "is 'publish' already"),
    ],
)
def test_a_rename_that_makes_no_sense_is_refused(rename, part):
    found = compatible(REVIEW, REVIEW, completed=[], pending=[], rename=rename)
    assert found
    assert any(part in reason for reason in found), found


def test_two_nodes_cannot_become_one():
    new = renamed("check", "judge")
    found = compatible(REVIEW, new, completed=[], pending=[], rename={"check": "judge", "write": "judge"})
    assert [reason for reason in found if "node 'check' of the run's flow is 'judge' already" in reason]


def test_all_reasons_come_at_once():
    new = with_node_before("outline", "write")
    new = msgspec.structs.replace(
        new, schedule="layered", nodes={n: o for n, o in new.nodes.items() if n != "publish"}
    )
    assert len(compatible(REVIEW, new, completed=["write"], pending=["publish"])) == 3


def test_code_that_became_a_question_is_another_node_and_a_reworded_question_is_not():
    asks = QuestionOptions(text="Publish?", options=["yes", "no"])
    reworded = QuestionOptions(text="Shall it be published?", options=["yes", "no"])
    became = with_options("publish", idempotent=True, on_interrupt="rerun", question=asks)
    assert not difference(REVIEW, became).only_options
    assert difference(
        became, with_options("publish", idempotent=True, on_interrupt="rerun", question=reworded)
    ).only_options
    (told,) = compatible(REVIEW, became, completed={"write"}, pending={"publish"})
    assert "had question=false and has true now" in told


def test_a_node_that_is_gone_and_was_reached_again_has_yet_to_finish():
    old, new = outline("START a b", branches={"b": "b END"}).definition, outline("START a END").definition
    (refusal,) = compatible(old, new, completed=["a", "b"], pending=["b"])
    assert "'b', which the run has yet to finish, is no longer in the flow" in refusal
    (refusal,) = compatible(old, new, completed=["a", "b"], pending=[])
    assert "'b', which the run completed, is no longer in the flow" in refusal
