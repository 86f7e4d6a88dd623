"""Runs of plans in a real browser, over a real server: guards on the edges, policies, verification, budget, ledger, questions."""

from __future__ import annotations

import re
import runpy
import sqlite3
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

import holdfast as hf

SCENE = Path(__file__).parent / "scene" / "delivery.py"
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    (folder / "delivery.py").write_text(SCENE.read_text("utf-8"))
    serving = serve("delivery.py", "--no-work", folder=folder)
    serving.scene = runpy.run_path(str(SCENE), run_name="delivery")
    serving.scene["make_runs"](serving.store)
    return serving


def open_place(tab, served, fragment: str, **options):
    page = tab(**options).open(served.link)
    page.locator(".run-link").first.wait_for()
    page.evaluate("fragment => { location.hash = fragment }", fragment)
    return page


def marks(page) -> dict[str, str]:
    """The words of the marks on the edges -> their classes."""
    page.locator(".edge-rule").first.wait_for(state="attached")
    return {
        mark.locator("title").text_content(): mark.get_attribute("class").split()[1:]
        for mark in page.locator(".edge-rule").all()
    }


def node(page, name: str):
    """The box of a node."""
    return page.locator(f".graph-node:has(.node-name:text-is('{name}'))")


def side(page, title: str) -> list[str]:
    """The lines below a heading beside the visit."""
    heading = page.locator(".visit-side h3", has_text=re.compile(f"^{title}$"))
    heading.wait_for()
    return heading.locator("xpath=..").locator(".told").all_inner_texts()


def test_edges_say_whether_they_were_taken_and_skipped_nodes_why(tab, served):
    page = open_place(tab, served, "#/runs/order-4901?node=ship")
    assert marks(page) == {
        "if context.facts.country in policy.countries: taken": ["taken"],
        "if !(context.facts.country in policy.countries): not taken": [],
        "on VerificationFailed: not taken": ["error"],
    }
    assert side(page, "Why it ran") == [
        (
            'charge led here: context.facts.country in policy.countries is true (context.facts.country = "DE", '
            'policy.countries = ["DE","FR"]) @6'
        )
    ]
    assert side(page, "Policies") == [
        'address allows it (context.facts.country = "DE") @9',
        "insurance allows its result @11",
    ]
    node(page, "pickup").click()
    page.get_by_text("It was skipped: the edge from charge was not taken.").wait_for()
    assert "skipped" in node(page, "pickup").inner_text()
    assert side(page, "Why it ran")[0].startswith("charge did not lead here: !(context.facts.country in")


def test_the_head_has_title_goal_and_a_meter_for_each_limit_of_the_budget(tab, served):
    page = open_place(tab, served, "#/runs/order-4901")
    page.get_by_text("Deliver order 4901 · the customer has the goods").wait_for()
    assert page.locator(".facts > div", has_text="Budget").first.inner_text().split("\n")[:2] == [
        "Budget",
        "$0.31 of $2.00",
    ]
    meters = page.locator(".facts .meter")
    assert [meter.get_attribute("data-tone") for meter in meters.all()] == ["accent", "ask"]
    widths = [meter.locator("span").evaluate("one => one.style.width") for meter in meters.all()]
    assert widths == ["15.5%", "80%"]


def test_a_failed_verification_shows_what_was_returned_and_the_edge_that_took_it(tab, served):
    page = open_place(tab, served, "#/runs/order-4904?node=charge")
    assert marks(page)["on VerificationFailed: taken"] == ["taken", "error"]
    assert side(page, "Verification") == [
        "amount did not pass: another amount was charged (output.cents = 4300, input.cents = 4200) @5"
    ]
    page.get_by_text('{"id":"ch-4904","cents":4300}').wait_for()
    page.get_by_text("It failed, and the run continued with apologise.", exact=True).wait_for()
    assert node(page, "charge").get_attribute("title") == "charge · failed → apologise"
    assert page.locator(".panel-head .status-word").inner_text() == "failed, taken by apologise"
    assert page.locator(".run-panel .attempts .told, .run-panel .attempts li").count() == 1
    bar = page.locator(".timeline-row", has_text="charge").locator(".bar")
    assert bar.get_attribute("class") == "bar fail"
    assert page.locator(".timeline", has_text="run failed").count() == 0
    node(page, "apologise").click()
    page.get_by_role("link", name="Input", exact=True).click()
    page.locator(".fields", has_text="another amount was charged").wait_for()


def test_the_ledger_is_a_table_that_can_be_verified(tab, served):
    page = open_place(tab, served, "#/runs/order-4901")
    page.get_by_role("link", name="Ledger").click()
    rows = page.get_by_role("table", name="Decisions").locator("tbody:not(.space) tr")
    rows.first.wait_for()
    ledger = hf.ledger("order-4901", store=served.store)
    assert [row.locator(".l-digest").inner_text() for row in rows.all()] == [
        entry.digest[:12] for entry in ledger.entries
    ]
    assert rows.nth(1).locator("td").all_inner_texts()[1:4] == [
        "policy",
        "large-amounts",
        "charge is allowed: below 500 euros",
    ]
    page.get_by_role("button", name="Verify").focus()
    page.keyboard.press("Enter")
    page.get_by_role("status").filter(has_text="Verified: the log is exactly what was written").wait_for()
    page.get_by_label("Type").select_option("guard")
    rows.nth(1).wait_for(state="detached")
    assert "charge leads to ship, not to pickup" in rows.first.inner_text()
    rows.first.get_by_role("link", name="@6").click()
    page.wait_for_url("**/#/runs/order-4901@6?view=ledger")


def test_a_ledger_that_was_altered_says_so_and_marks_the_row(tab, served):
    hf.run(served.scene["order"](order="4999"), run_id="altered", store=served.store)
    with closing(sqlite3.connect(served.store, isolation_level=None)) as db:
        db.execute(
            "update events set attempt = 7 where kind = 'GuardEvaluated' and key >> 32 = "
            "(select key from runs where run_id = 'altered')"
        )
    page = open_place(tab, served, "#/runs/altered?view=ledger")
    page.get_by_role("button", name="Verify").click()
    said = page.get_by_role("status").filter(has_text="Not what was written: ")
    said.wait_for()
    assert page.locator(".ledger a[data-tone=fail]").all_inner_texts() == ["@6"]


def test_a_policy_that_asks_about_a_result_shows_what_was_returned(tab, served):
    page = open_place(tab, served, "#/questions?run=order-4902")
    page.get_by_role("heading", name="Send this parcel without insurance?").wait_for()
    about = page.get_by_role("complementary", name="What to know")
    about.get_by_role("heading", name="What it returned").wait_for()
    said = about.inner_text()
    assert '{"tracking":"T-4902"}' in said
    assert "insurance asks about its result: Send this parcel without insurance? @11" in said
    assert "approve: ship completes, then tell" in said
    assert about.get_by_role("heading", name="Input of ship@1").count() == 1
    page.locator(".question-list a", has_text="Charge 890.00 euros?").click()
    page.get_by_role("heading", name="Charge 890.00 euros?").wait_for()
    page.get_by_text("large-amounts asks about it: Charge 890.00 euros?").wait_for()
    page.get_by_role("heading", name="Input of charge@2").wait_for()
    assert page.get_by_role("heading", name="What it returned").count() == 0


def test_markup_in_a_plan_stays_text(tab, served):
    made = deepcopy(served.scene["ORDER"])
    made |= {"title": MARKUP, "goal": {"text": MARKUP}}
    made["context"]["facts"] |= {"country": MARKUP}
    made["policies"][0] |= {"rule": "context.facts.country == 'DE'", "reason": MARKUP, "capability": "hold@1"}
    with pytest.raises(hf.RunFailed):
        hf.run(served.scene["delivery"].plan(made), run_id="markup", store=served.store)
    page = open_place(tab, served, "#/runs/markup?node=pickup")
    page.get_by_text(f"{MARKUP} · {MARKUP}").wait_for()
    assert MARKUP in side(page, "Policies")[0]
    assert MARKUP in side(page, "Why it ran")[0]
    page.get_by_role("link", name="Ledger").click()
    page.locator(".ledger", has_text=MARKUP).wait_for()
    assert page.locator("img").count() == 0


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 360), ("dark", 360)])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(tab, served, theme, width):
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 740}}
    page = open_place(tab, served, "#/runs/order-4904?node=charge", **options)
    page.add_script_tag(path=AXE)
    for fragment, ready in {
        "#/runs/order-4904?node=charge": ".visit-side .told",
        "#/runs/order-4901?view=graph&node=pickup": ".facts .meter",
        "#/runs/order-4901?view=ledger": ".ledger tbody:not(.space) td",
        "#/questions?run=order-4902": "aside .told",
    }.items():
        page.evaluate("fragment => { location.hash = fragment }", fragment)
        page.locator(ready).first.wait_for()
        found = page.evaluate("axe.run().then(result => result.violations)")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], fragment
        assert page.evaluate("document.documentElement.scrollWidth") <= width, fragment


def test_the_cells_of_the_ledgers_head_are_in_line(tab, served):
    page = open_place(tab, served, "#/runs/order-4901?view=ledger")
    page.locator(".ledger tbody:not(.space) td").first.wait_for()
    tops = page.locator(".ledger th").evaluate_all("""all => all.map((one) => {
        const range = document.createRange();
        range.selectNodeContents(one);
        return Math.round(range.getBoundingClientRect().top);
    })""")
    assert len(set(tops)) == 1, tops
