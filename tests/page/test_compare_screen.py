"""The Compare screen in a real browser, over a real server."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from desk_flows import write_desk

import holdfast as hf

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A run that failed, and a fork of it that completed with another card."""
    folder = tmp_path_factory.mktemp("compare")
    desk = write_desk(folder)
    serving = serve("desk.py", "--no-work", folder=folder)
    store = serving.store
    with suppress(hf.RunFailed):
        hf.run(desk.refund, {"fails": "declined", "card": "<b>old</b>"}, run_id="order-1", store=store)
    forked = hf.fork(
        "order-1", checkpoint=3, run_id="order-1-new", edit={"fails": None, "card": "new"}, repeat="run",
        by="ada", reason="another card", flows=[desk.refund], store=store,
    )  # fmt: skip
    hf.resume(forked, flows=[desk.refund], store=store)
    serving.desk = desk
    return serving


def open_compare(tab, served, query: str, allowed=(), **options):
    one = tab(**options)
    one.allowed = allowed
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/compare{query}")
    page.get_by_role("heading", name="Compare", exact=True).wait_for()
    return page


PAIR = "?a=order-1&b=order-1-new"


def test_a_fork_is_shown_beside_its_origin_with_the_history_that_they_share(tab, served):
    page = open_compare(tab, served, PAIR)
    page.get_by_role("img", name="Shared history, @1 to @3. A failed at").wait_for()
    first, second = page.locator(".compare-side").all()
    assert first.locator(".status").inner_text() == "failed"
    assert "Forked from A at @3 by ada: “another card”" in second.inner_text()
    assert "Edited fails, card" in second.inner_text()


def test_nodes_have_what_they_did_in_both_runs(tab, served):
    page = open_compare(tab, served, PAIR)
    table = page.get_by_role("table", name="Nodes of both runs")
    table.wait_for()
    cells = {
        row.locator("td").first.inner_text(): row.locator("td").all_inner_texts()
        for row in table.locator("tbody:not(.space) tr").all()
    }
    assert list(cells) == ["load", "pay_out", "mail"]
    assert cells["load"][3] == "shared with A"
    assert cells["pay_out"][1] == "1 attempt"
    assert cells["mail"][1] == "not reached"
    assert cells["mail"][-1] == "mailed"


def test_a_chosen_node_is_in_the_address_and_shows_its_fields_only(tab, served):
    page = open_compare(tab, served, PAIR)
    state = page.get_by_role("region", name="State")
    state.wait_for()
    assert state.locator(".change-path").all_inner_texts() == ["fails", "card", "paid", "mailed"]
    assert state.locator(".was code").nth(1).inner_text() == '"<b>old</b>"'
    assert state.get_by_text("edited before B continued").count() == 2
    page.get_by_role("link", name="pay_out").click()
    assert "node=pay_out" in page.url
    state.locator(".change-path").nth(1).wait_for(state="detached")
    assert state.locator(".change-path").all_inner_texts() == ["paid"]
    assert state.locator(".was code").inner_text() == "not set"


def test_the_sides_can_be_swapped_and_another_run_chosen(tab, served):
    page = open_compare(tab, served, PAIR)
    page.get_by_role("link", name="Swap").click()
    page.locator(".compare-side").first.get_by_text("order-1-new").wait_for()
    page.goto(f"{served.url}#/compare?a=order-1&b=order-1")
    page.get_by_role("button", name="Choose another run…").click()
    page.get_by_label("Id of a run").fill("order-1-new")
    page.keyboard.press("Enter")
    page.locator(".compare-side").nth(1).get_by_text("order-1-new").wait_for()


def test_a_run_that_is_not_there_is_named(tab, served):
    page = open_compare(
        tab, served, "?a=order-1&b=gone", allowed=("404",), viewport={"width": 360, "height": 740}
    )
    page.get_by_text("There is no such run").wait_for()
    assert page.get_by_text("no run 'gone'").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Choose another run…").click()
    page.get_by_label("Id of a run").fill("order-1-new")
    page.keyboard.press("Enter")
    page.locator(".compare-side").nth(1).get_by_text("order-1-new").wait_for()


def test_runs_that_share_nothing_are_compared_without_a_shared_line(tab, served):
    hf.run(served.desk.refund, {"card": "other"}, run_id="order-2", store=served.store)
    page = open_compare(tab, served, "?a=order-1&b=order-2")
    page.get_by_role("img", name="No shared history. A failed at").wait_for()
    assert page.locator(".compare-lines > circle").count() == 0
    assert page.get_by_text("shared with A").count() == 0


def test_a_run_does_not_differ_from_itself(tab, served):
    page = open_compare(tab, served, "?a=order-1&b=order-1")
    page.get_by_role("region", name="State").get_by_text("Nothing differs.").wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(tab, served, theme, width):
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 740}}
    page = open_compare(tab, served, f"{PAIR}&node=pay_out", **options)
    page.get_by_role("table", name="Nodes of both runs").wait_for()
    page.get_by_role("button", name="Choose another run…").click()
    page.get_by_label("Id of a run").wait_for()
    menu = page.locator(".menu:visible").bounding_box()
    assert 0 <= menu["x"] <= menu["x"] + menu["width"] <= width
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
