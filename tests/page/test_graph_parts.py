"""The graph of a run, the table of its nodes and its checkpoint bar, each put into a page of a real server by itself."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from page_flows import write_flows

import holdfast as hf
from holdfast.server.drawings import FlowPictureQuery, flow_picture

MOUNT = """async ([file, name, value]) => {
    const made = await import(new URL(`page/parts/${file}.js`, document.baseURI));
    window.said = [];
    const say = (word) => (...given) => said.push([word, ...given]);
    const words = ["choose", "chooseIteration", "reshape", "go", "fork", "resume"];
    window.part = made[name](Object.fromEntries(words.map((word) => [word, say(word)])));
    part.element.style.height = "640px";
    document.querySelector("main").replaceChildren(part.element);
    window.show = (next) => part.update(window.value = next);
    show(value);
    for (const _ of "12") await new Promise(requestAnimationFrame); // it is drawn when its size is known
}"""


@pytest.fixture(scope="module")
def serving(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    write_flows(folder)
    return serve("shop.py", "--no-work", folder=folder)


@pytest.fixture
def page(bare_page):
    return bare_page


def build(nodes: dict[str, dict[str, Any]], edges: list[tuple[str, str]]) -> hf.Graph:
    """A graph of nodes that do nothing."""
    graph = hf.Graph("brief")
    for name, options in nodes.items():

        @graph.node(name=name, **options)
        def work(state):
            return {}

    for source, target in edges:
        graph.edge(source, target)
    return graph


def drawn(graph: hf.Graph, **shape: Any) -> dict[str, Any]:
    """The picture of a flow, as the server sends it."""
    definition = graph.compile(max_iterations=5).definition
    return msgspec.to_builtins(flow_picture(definition, "f", FlowPictureQuery(**shape)))


def mark(status: str, **more: Any) -> dict[str, Any]:
    return {
        "status": status,
        "iteration": 1,
        "execution": 1,
        "attempt": 1,
        "tries": 1,
        "seconds": 2.4,
        **more,
    }


def brief() -> dict[str, Any]:
    """A run in the second round of a loop, beside which a node stands that is not idempotent."""
    graph = build(
        {"plan": {}, "photos": {"idempotent": False}, "write": {}, "check": {}, "publish": {"approve": "Publish?"}},
        [(hf.START, "plan"), (hf.START, "photos"), ("plan", "write"), ("photos", "write"), ("write", "check"),
         ("publish", hf.END)],
    )  # fmt: skip
    graph.branch("check", lambda state: "publish", ["publish", "write"])
    nodes = {
        "plan": mark("completed"),
        "photos": mark("completed"),
        "write": mark("running", iteration=2, started_at=100),
        "check": mark("completed"),
    }
    states = {
        "nodes": nodes,
        "taken": [("write", "check"), ("check", "write")],
        "chosen": {"check": ["write"]},
    }
    return {"picture": drawn(graph), "states": states, "now": 106.2, "at": None, "node": "write"}


def test_a_node_is_a_button_that_says_its_status_and_arrows_follow_the_lines(page):
    page.evaluate(MOUNT, ["graph", "createGraph", brief()])
    write = page.get_by_role("button", name="running write 6.2 s iteration 2")
    assert write.get_attribute("aria-current") == "true"
    assert page.locator(".graph-node[tabindex='0']").count() == 1
    write.focus()
    visited = []
    for key in ("Down", "Down", "Up", "Up", "Up", "Right"):
        page.keyboard.press(f"Arrow{key}")
        visited.append(page.evaluate("document.activeElement.querySelector('.node-name').innerText"))
    assert visited == ["check", "publish", "check", "write", "plan", "photos"]
    page.keyboard.press("Enter")
    assert page.evaluate("said") == [["choose", "photos"]]
    assert page.get_by_role("button", name=re.compile("completed photos .* 1 attempt")).is_visible()


def test_a_live_change_touches_the_node_that_it_concerns(page):
    page.evaluate(MOUNT, ["graph", "createGraph", brief()])
    touched = page.evaluate(
        """() => {
            const seen = new MutationObserver(() => {});
            const all = {subtree: true, childList: true, attributes: true, characterData: true};
            seen.observe(document.querySelector(".graph-scroller"), all);
            const next = structuredClone(value);
            next.states.nodes.write.status = "completed";
            show({...next, picture: value.picture});
            const boxes = seen.takeRecords().map(({target}) => target.parentElement?.closest(".graph-node") ?? target);
            return [...new Set(boxes.map(box => box.querySelector(".node-name")?.innerText))];
        }"""
    )
    assert touched == ["write"]


def test_the_badge_of_a_loop_counts_its_rounds_and_chooses_one(page):
    page.evaluate(MOUNT, ["graph", "createGraph", brief()])
    badge = page.get_by_label("Iterations of write")
    assert badge.input_value() == "↺ 2 of 5"
    badge.select_option("Iteration 1")
    assert badge.input_value() == "↺ 2 of 5"
    assert page.evaluate("said") == [["chooseIteration", "write", 1]]


def test_nodes_that_would_run_again_are_marked_in_the_past(page):
    page.evaluate(MOUNT, ["graph", "createGraph", brief()])
    page.evaluate("show({...value, at: 9, again: new Set(['write', 'check'])})")
    assert page.locator(".graph-node.again .node-name").all_inner_texts() == ["write", "check"]


def test_a_stack_opens_in_place_and_a_member_that_failed_is_drawn_alone(page):
    names = [f"load_{number}" for number in range(24)]
    edges = [(hf.START, name) for name in names] + [(name, "merge") for name in names] + [("merge", hf.END)]
    graph = build({name: {} for name in [*names, "merge"]}, edges)
    nodes = {name: mark("failed" if name == "load_7" else "completed") for name in names}
    value = {
        **brief(),
        "picture": drawn(graph),
        "states": {"nodes": nodes, "taken": [], "chosen": {}},
        "node": None,
    }
    page.evaluate(MOUNT, ["graph", "createGraph", value])
    assert page.evaluate("said") == [["reshape", {"open": [], "alone": ["load_7"]}]]
    page.evaluate("picture => show({...value, picture})", drawn(graph, alone=["load_7"]))
    assert page.get_by_role("button", name="load_7").is_visible()
    page.get_by_role("button", name="open 23").click()
    open_ = {"open": ["stack:load_0"], "alone": ["load_7"]}
    assert page.evaluate("said.slice(1)") == [["reshape", open_]]
    page.evaluate("picture => show({...value, picture})", drawn(graph, **open_))
    assert page.locator(".graph-node.node").count() == 25
    page.get_by_role("button", name="close").locator(".node-time").click()
    assert page.evaluate("said.slice(2)") == [["reshape", {"open": [], "alone": ["load_7"]}]]


def test_a_completed_stretch_of_a_large_flow_is_one_box_that_opens(page):
    names = [f"n{number}" for number in range(80)]
    graph = build({name: {} for name in names}, [*pairwise([hf.START, *names, hf.END])])
    nodes = {name: mark("completed") for name in names[:70]}
    states = {"nodes": nodes, "taken": [], "chosen": {}}
    page.evaluate(
        MOUNT, ["graph", "createGraph", {**brief(), "picture": drawn(graph), "states": states, "node": "n70"}]
    )
    assert page.locator(".graph-node").count() == 11
    assert page.locator(".graph-overview").is_visible()
    page.get_by_role("button", name="70 completed").click()
    assert page.locator(".graph-node").count() == 80
    assert page.evaluate("document.activeElement.querySelector('.node-name').innerText") == "n0"


def test_the_table_has_all_nodes_and_chooses_one(page):
    page.evaluate(MOUNT, ["node_table", "createNodeTable", brief()])
    rows = page.get_by_role("row").all_inner_texts()
    assert [row.split()[:2] for row in rows[1:4]] == [
        ["completed", "plan"],
        ["completed", "photos"],
        ["running", "write"],
    ]
    assert "iteration 2" in rows[3]
    assert len(rows) == 6
    page.get_by_role("button", name="photos").click()
    assert page.evaluate("said") == [["choose", "photos"]]


def bar(at: int | None = None, places: int = 5, **more: Any) -> dict[str, Any]:
    checkpoints = [
        {"seq": 3 * number + 1, "at": 1000 + number, "kind": "NodeCompleted", "node": "plan",
         "iteration": 1, "execution": 1, "current": True}
        for number in range(places)
    ]  # fmt: skip
    acts = [{"seq": 9, "at": 1002.5, "verb": "resume", "by": "ada"}]
    end = {"seq": 3 * places + 5, "at": 2000}
    given = {"checkpoints": checkpoints, "acts": acts, "end": end, "at": at, "live": True, "operates": True}
    return {**given, **more}


def test_the_checkpoint_bar_is_a_slider_over_the_places_of_a_run(page):
    page.evaluate(MOUNT, ["checkpoint_bar", "createCheckpointBar", bar()])
    slider = page.get_by_role("slider", name="Checkpoint")
    assert slider.get_attribute("aria-valuetext") == "Now @20 · live"
    assert page.locator(".dot").count() == 7
    assert page.locator(".dot.person").get_attribute("title") == "@9 ada resumed"
    slider.press("ArrowLeft")
    slider.press("Home")
    assert page.evaluate("said") == [["go", 13], ["go", 1]]
    assert page.get_by_role("button", name="Back to now").is_hidden()


def test_the_bar_in_the_past_has_the_ways_out_of_there(page):
    page.evaluate(MOUNT, ["checkpoint_bar", "createCheckpointBar", bar(at=4)])
    assert "@4 after plan completed" in page.locator(".bar-words").inner_text()
    for name in ("Back to now", "Fork from here…", "Resume from here…", "Next checkpoint"):
        page.get_by_role("button", name=name).click()
    assert page.evaluate("said") == [["go", None], ["fork", 4], ["resume", 4], ["go", 7]]
    page.evaluate("show({...value, operates: false})")
    assert page.get_by_role("button", name="Fork from here…").is_hidden()


def test_above_60_places_those_around_are_drawn_and_a_field_leads_to_the_others(page):
    page.evaluate(MOUNT, ["checkpoint_bar", "createCheckpointBar", bar(places=500)])
    assert page.locator(".dot").count() == 60
    page.get_by_label("Go to event").fill("@100")
    page.get_by_label("Go to event").press("Enter")
    assert page.evaluate("said") == [["go", 100]]
