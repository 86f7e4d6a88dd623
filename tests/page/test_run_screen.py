"""The Run screen in a real browser, over a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from page_flows import write_flows

import holdfast as hf

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing, over a run that failed, one that asks and one that completed."""
    folder = tmp_path_factory.mktemp("shop")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    with suppress(hf.RunFailed):
        hf.run(shop.order, {"fails": "card <b>declined</b>"}, run_id="order-broken", store=serving.store)
    hf.run(shop.order, {}, run_id="order-done", store=serving.store, labels={"customer": "acme"})
    hf.run(shop.refund, {"asks": True}, run_id="refund-asks", store=serving.store)
    serving.shop = shop
    return serving


def show(tab, served, fragment: str, **options):
    one = tab(**options)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    page.evaluate("fragment => { location.hash = fragment }", f"#/runs/{fragment}")
    return page


def head(page):
    return page.locator(".standing")


def chosen_in(page) -> tuple[str, str]:
    """The chosen node, as the panel and the graph have it."""
    return page.locator(".panel-head h2").inner_text(), page.locator(
        ".graph-node[aria-current] .node-name"
    ).inner_text()


def test_the_sentence_is_the_reason_of_show_and_the_first_button_its_first_remedy(tab, served):
    told = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "show", "order-broken", "--json", "--store", str(served.store)],
        capture_output=True, text=True, check=True, cwd=served.folder,
    )  # fmt: skip
    run = json.loads(told.stdout)
    page = show(tab, served, "order-broken")
    head(page).locator(".button.filled").wait_for()
    assert page.locator(".standing-reason").inner_text().lower() == run["reason"].lower()
    assert page.locator(".standing-reason").text_content() == run["reason"]
    assert head(page).locator(".button.filled").get_attribute("data-verb") == run["remedies"][0]["verb"]
    assert head(page).locator(".status-word").inner_text() == "failed"
    assert page.locator("b").count() == 0


def test_a_run_that_ended_as_it_should_has_no_filled_button(tab, served):
    page = show(tab, served, "order-done")
    head(page).get_by_role("button", name="Fork").wait_for()
    assert head(page).locator(".button.filled").count() == 0
    assert head(page).get_by_text("customer=acme").is_visible()


def test_the_panel_opens_at_what_failed_with_exception_file_line_and_source(tab, served):
    page = show(tab, served, "order-broken")
    page.locator(".error-frames").wait_for()
    assert chosen_in(page) == ("charge", "charge")
    error = page.locator(".error-frames")
    assert "card <b>declined</b>" in error.inner_text()
    assert "shop.py" in error.inner_text()
    assert "raise hf.Fatal" in error.locator(".frame-line.raised").inner_text()
    assert page.locator(".visit-side").get_by_text("reserve completed").is_visible()


def test_a_node_chosen_in_the_graph_is_chosen_everywhere_and_in_the_address(tab, served):
    page = show(tab, served, "order-broken")
    page.locator(".graph-node", has_text="reserve").click()
    page.locator(".panel-head h2", has_text="reserve").wait_for()
    assert "node=reserve" in page.url
    assert chosen_in(page) == ("reserve", "reserve")
    page.locator(".timeline-row", has_text="charge").locator("button").first.click()
    page.locator(".panel-head h2", has_text="charge").wait_for()
    assert chosen_in(page) == ("charge", "charge")


def test_the_arrow_shows_the_checkpoint_before_everywhere_and_escape_returns_to_now(tab, served):
    page = show(tab, served, "order-broken")
    page.locator(".error-frames").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".checkpoint-bar[data-past]").wait_for()
    seq = int(re.search(r"@(\d+)", page.url).group(1))
    page.locator(".graph-head", has_text=f"as it was at @{seq}").wait_for()
    page.locator(".panel-head h2", has_text="reserve").wait_for()
    assert chosen_in(page) == ("reserve", "reserve")
    change = page.locator(".change")
    change.first.wait_for()
    assert change.locator(".change-path").all_inner_texts() == ["reserved"]
    assert change.locator(".tag").all_inner_texts() == ["set"]
    assert change.locator(".now code").inner_text() == "true"
    page.keyboard.press("Escape")
    page.locator(".error-frames").wait_for()
    assert "@" not in page.url


def test_digits_choose_tabs_and_n_the_next_problem(tab, served):
    page = show(tab, served, "order-broken?node=reserve")
    page.locator(".panel-head h2", has_text="reserve").wait_for()
    page.keyboard.press("2")
    page.locator(".panel-head [aria-current]", has_text="Input").wait_for()
    page.locator(".field-name", has_text="fails").wait_for()
    page.keyboard.press("n")
    page.locator(".panel-head h2", has_text="charge").wait_for()


def test_a_link_with_a_verb_opens_its_dialog_once(tab, served):
    page = show(tab, served, "order-broken?do=skip&node=charge")
    dialog = page.locator("dialog.preview")
    dialog.wait_for()
    assert dialog.locator("h2").inner_text() == "Skip charge of order-broken"
    assert "do=" not in page.url
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("o")
    page.locator("dialog.preview h2", has_text="Fork order-broken").wait_for()


def test_the_views_show_state_difference_log_and_files(tab, served):
    page = show(tab, served, "order-broken?view=state")
    page.locator(".field-name", has_text="reserved").wait_for()
    page.get_by_role("link", name="Difference").click()
    page.locator(".change-path", has_text="reserved").wait_for()
    page.get_by_role("link", name=re.compile("^Log")).click()
    page.locator(".log li").first.wait_for()
    kinds = page.locator(".log summary > span:first-of-type").all_inner_texts()
    assert kinds[0] == "run failed"
    assert kinds[-1] == "run created"
    page.get_by_label("Kind").select_option("NodeFailed")
    page.wait_for_function("document.querySelectorAll('.log li').length === 1")
    page.get_by_role("link", name="Files").click()
    page.get_by_role("button", name="Download the archive").wait_for()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Download the archive").click()
    assert saving.value.suggested_filename == "order-broken.holdfast"


def test_a_run_a_node_and_a_checkpoint_that_are_not_there_say_so(tab, served):
    one = tab()
    one.allowed = ("404",)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    page.evaluate("location.hash = '#/runs/nothing'")
    page.get_by_text("There is no such run").wait_for()
    page.get_by_role("button", name="All runs").click()
    page.locator(".run-link").first.wait_for()
    page.evaluate("location.hash = '#/runs/order-done@999'")
    page.get_by_text("There is no event @999 to show").wait_for()
    page.get_by_role("button", name="Back to now").first.click()
    page.locator(".graph-node").first.wait_for()
    page.evaluate("location.hash = '#/runs/order-done?node=nothing'")
    page.locator(".run-panel .banner").wait_for()


def test_a_read_token_sees_no_verb_and_why(tab, served):
    made = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", "reader", "--role", "read", "--store", str(served.store)],
        capture_output=True, text=True, check=True, cwd=served.folder,
    )  # fmt: skip
    token = re.search(r"[0-9a-f]{12}\.[\w-]{20,}", made.stdout + made.stderr).group(0)
    page = tab().open(f"{served.url}#token={token}")
    page.locator(".run-link").first.wait_for()
    page.evaluate("location.hash = '#/runs/order-broken'")
    head(page).get_by_text("may read runs and not operate them").wait_for()
    assert head(page).locator(".acts .button").count() == 0


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_the_run_never_scrolls_sideways(tab, served, width):
    page = show(tab, served, "order-broken", viewport={"width": width, "height": 800})
    head(page).wait_for()
    for view in ("", "?view=graph", "?view=state", "?view=log", "?view=files", "?node=charge&tab=steps"):
        page.evaluate("view => { location.hash = `#/runs/order-broken${view}` }", view)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_a_phone_has_a_story_and_its_actions_at_the_bottom(tab, served):
    page = show(tab, served, "order-broken", viewport={"width": 390, "height": 844})
    page.locator(".story-list li").first.wait_for()
    assert page.locator(".story-list li").first.inner_text().startswith("charge")
    assert page.locator(".view-head a:visible").all_inner_texts() == ["Story", "Graph", "State", "Log"]
    bar = page.locator(".acts-bar").bounding_box()
    assert bar["y"] + bar["height"] > 700


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_on_a_run(tab, served, theme, width):
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 900}}
    page = show(tab, served, "order-broken", **options)
    page.locator(".error-frames").wait_for(state="attached")
    page.add_script_tag(path=AXE)
    for place in (
        "",
        "@3",
        "?nodes=table",
        "?view=state",
        "?view=log",
        "?view=files",
        "?node=charge&tab=steps",
    ):
        page.evaluate("place => { location.hash = `#/runs/order-broken${place}` }", place)
        page.wait_for_timeout(400)
        found = page.evaluate("axe.run().then(result => result.violations)")
        told = [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
        ]
        assert not told, place + "\n" + "\n".join(told)
