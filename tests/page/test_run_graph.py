"""The graph of a run on its screen, in a real browser over a real server: choosing, checkpoints, keys, and large flows."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import graph_flows
import pytest
from graph_flows import LARGE, LONG

import holdfast as hf


@pytest.fixture(scope="module")
def served(serve):
    serving = serve(str(Path(graph_flows.__file__)), "--no-work")
    for flow in (graph_flows.order, graph_flows.fan, graph_flows.large):
        with suppress(hf.RunFailed):
            hf.run(flow, {}, run_id=f"{flow.name}-1", store=serving.store)
    return serving


@pytest.fixture
def show(tab, served):
    def open_run(fragment: str, **options):
        page = tab(**options).open(served.link)
        page.locator(".run-link").first.wait_for(state="attached")
        page.evaluate("fragment => { location.hash = fragment }", f"#/runs/{fragment}")
        page.locator(".graph-node").first.wait_for(state="attached")
        return page

    return open_run


def box(page, name: str):
    """The box of a node in the graph."""
    return page.locator(".graph-node").filter(has=page.get_by_text(name, exact=True))


def test_a_node_chosen_in_graph_table_or_timeline_is_chosen_in_all_and_in_the_address(show):
    page = show("order-1")

    def wait_until_chosen(name: str) -> None:
        page.locator(".panel-head h2", has_text=name).wait_for()
        page.locator(".graph-node[aria-current], .node-button[aria-current]", has_text=name).wait_for()
        page.locator(".timeline-row[data-chosen]", has_text=name).wait_for()
        page.wait_for_url(f"**node={name}*")

    box(page, "validate").click()
    wait_until_chosen("validate")
    page.locator(".timeline-row", has_text="fraud_check").locator("button").first.click()
    wait_until_chosen("fraud_check")
    page.get_by_role("link", name="Table").click()
    page.locator(".node-button[aria-current]", has_text="fraud_check").wait_for()
    page.get_by_role("row").filter(has_text="check").get_by_role("button", name="check", exact=True).click()
    wait_until_chosen("check")
    page.get_by_role("link", name="Graph", exact=True).click()
    wait_until_chosen("check")
    page.go_back()
    page.locator(".node-button[aria-current]", has_text="check").wait_for()


def test_left_shows_graph_playhead_panel_and_address_at_the_checkpoint_before_and_escape_returns(show):
    page = show("order-1")
    slider = page.get_by_role("slider", name="Checkpoint")
    assert slider.get_attribute("aria-valuetext").startswith("Now @")
    last = int(slider.get_attribute("aria-valuemax"))
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(r"@\d+"))
    seq = re.search(r"@(\d+)", page.url)[1]
    page.locator(".graph-head", has_text=f"as it was at @{seq}").wait_for()
    page.locator(".timeline", has_text=f"@{seq}").wait_for()
    page.locator(".panel-head h2", has_text="check").wait_for()
    page.locator(".graph-node[aria-current]", has_text="check").wait_for()
    assert slider.get_attribute("aria-valuetext").startswith(f"@{seq} after check completed")
    assert slider.get_attribute("aria-valuenow") == str(last - 1)
    slider.focus()
    slider.press("Home")
    page.locator(".bar-words", has_text="after the run began").wait_for()
    assert page.get_by_role("button", name="Checkpoint before").is_disabled()
    page.locator(".graph-node.node:not(.ahead)").first.wait_for(state="detached")
    page.locator(".graph-node.again").nth(4).wait_for()
    assert page.locator(".graph-node:not(.again) .node-name").all_inner_texts() == ["ship"]
    page.keyboard.press("Escape")
    page.locator(".checkpoint-bar:not([data-past])").wait_for()
    assert "@" not in page.url
    page.locator(".graph-node", has_text="charge").filter(has_text="failed").wait_for()


def test_arrow_keys_follow_the_lines_of_the_graph(show):
    page = show("order-1?node=validate")
    page.locator(".graph-node[aria-current]", has_text="validate").focus()
    visited = []
    for key in ("Down", "Right", "Down", "Down", "Down", "Up", "Up"):
        page.keyboard.press(f"Arrow{key}")
        visited.append(page.evaluate("document.activeElement.querySelector('.node-name').innerText"))
    assert visited == ["fraud_check", "reserv…e_end", "charge", "check", "ship", "check", "charge"]
    page.keyboard.press("Enter")
    page.wait_for_url("**node=charge*")
    assert "@" not in page.url, "the arrows are not those of the checkpoint bar"


def test_the_badge_of_a_loop_chooses_an_iteration(show):
    page = show("order-1")
    page.get_by_label("Iterations of charge").select_option("Iteration 1")
    page.wait_for_url("**node=charge&visit=1.1*")
    page.locator(".panel-head", has_text="iteration 1").wait_for()


def test_a_fan_of_1000_is_one_node_and_its_list_begins_with_failures(show):
    page = show("fan-1")
    assert page.locator(".graph-node").count() == 1
    fan = page.get_by_role("button", name=re.compile("embed .1,000 .* 10 failed · 990 of 1,000"))
    fan.click()
    items = page.locator(".visit-main li", has_text=re.compile(r"item \d+"))
    items.nth(10).wait_for()
    texts = items.all_inner_texts()
    assert all("broken" in text for text in texts[:10])
    assert "part 50 · Fatal" in texts[0]
    assert "broken" not in texts[10]
    items.first.click()
    page.get_by_text("item 50 · part 50").wait_for()


def test_a_name_as_long_as_can_be_is_cut_in_the_middle_and_told_in_full(show):
    page = show("order-1")
    cut = page.locator(".graph-node", has_text="reser")
    assert cut.get_attribute("title").startswith(LONG)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    page.get_by_role("link", name="Table").click()
    page.get_by_role("button", name=LONG).click()
    page.wait_for_url(f"**node={LONG}*")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_a_run_of_1000_nodes_folds_what_completed_and_draws_a_change_in_little_time(show, served):
    page = show("large-1")
    assert page.locator(".graph-node").count() < 100
    page.locator(".graph-overview").wait_for()
    page.get_by_role("button", name="completed").first.click()
    page.locator(".graph-node").nth(100).wait_for(state="attached")
    last = f"c0_{LARGE // 4 - 1:03}"
    box(page, last).filter(has_text="waits for an answer").wait_for(state="attached")
    page.evaluate(WATCH, last)
    hf.answer("large-1", last, "approve", store=served.store, flows=[graph_flows.large])
    hf.resume("large-1", store=served.store, flows=[graph_flows.large])
    assert page.evaluate("changeDrawn") < 1000, "ms; bench/page.py measures it on a quiet machine"
    page.get_by_role("link", name="Table").click()
    page.locator(".node-table").get_by_role("button", name="c0_000").wait_for()
    assert page.get_by_role("table", name="Nodes").get_attribute("aria-rowcount") == str(LARGE + 1)


WATCH = """node => {
    window.changeDrawn = new Promise((resolve) => {
        let heardAt = 0;
        const parse = JSON.parse;
        JSON.parse = (text, ...rest) => {
            const value = parse(text, ...rest);
            if (value?.kind === "NodeCompleted" && value.node === node) heardAt = performance.now();
            return value;
        };
        const look = () => {
            const box = [...document.querySelectorAll(".graph-node")].find((one) => one.children[1].textContent.startsWith(node));
            if (heardAt && box?.dataset.tone === "done") resolve(performance.now() - heardAt);
            else requestAnimationFrame(look);
        };
        look();
    });
}"""
"""Makes `changeDrawn` a promise of the milliseconds from the arrival of an event to the frame that shows its node completed."""
