"""The Runs screen in a real browser, over a real server."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from page_flows import write_flows

import forked
import holdfast as hf

ROOT = Path(__file__).parents[2]
TABS = """async () => {
    const { tabsFor } = await import("/page/parts/count_tabs.js");
    const known = new Set();
    const keysAt = (running) => tabsFor({ counts: { running, failed: 2 }, attention: 0 }, {}, known).map((one) => one.key);
    return [keysAt(1), keysAt(0)];
}"""
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing, over runs of every kind that needs no live process."""
    folder = tmp_path_factory.mktemp("shop")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    store = serving.store
    for number in range(3):
        hf.run(shop.order, {}, run_id=f"order-{number}", store=store, labels={"customer": "acme"})
    with suppress(hf.RunFailed):
        hf.run(shop.order, {"fails": "card <b>declined</b>"}, run_id="order-broken", store=store)
    hf.run(shop.refund, {"asks": True}, run_id="refund-asks", store=store)
    hf.start(shop.order, {}, run_id="order-pending", store=store, queue="slow")
    hf.start(shop.order, {}, run_id="order-paused", store=store)
    hf.pause("order-paused", store=store)
    hf.start(shop.order, {}, run_id="order-cancelled", store=store)
    hf.cancel("order-cancelled", store=store, by="ada", reason=shop.MARKUP)
    serving.shop = shop
    return serving


def row(page, run_id):
    return page.locator(f'tr[data-key="{run_id}"]')


def shown(page) -> list[str]:
    return [link.inner_text() for link in page.locator(".run-link").all()]


def wait_for_rows(page, count: int) -> None:
    page.wait_for_function("count => document.querySelectorAll('.run-link').length === count", arg=count)


def is_live(page) -> None:
    page.locator(".live-word", has_text=re.compile("^Live$")).wait_for()


def test_the_token_leaves_the_address_and_a_reload_works(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    assert "token" not in page.url
    assert served.token not in page.evaluate(
        "JSON.stringify(history.state) + location.href + document.cookie"
    )
    page.reload()
    wait_for_rows(page, 8)


SLOW_LINE_S, SLOW_LINE_BYTES_PER_S, FIRST_ROWS_S = 0.6, 50_000, 3.0


def test_the_first_rows_come_within_three_seconds_on_a_slow_line(tab, served):
    one = tab()
    page = one.context.new_page()
    held: list[Any] = []

    def hold(route):
        held.append(route)

    page.route("**/api/v1/live*", lambda route: None)
    page.route("**/api/v1/meta", hold)
    with page.expect_request("**/api/v1/runs?*"):  # it waits for no other answer
        page.goto(served.link)
    page.locator("body").wait_for()
    held[0].continue_()
    wait_for_rows(page, 8)
    loaded = page.evaluate(
        "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
        ".map(one => [new URL(one.name).pathname, one.transferSize])"
    )
    first = dict(loaded)
    api = {f"/api/v1/{name}" for name in ("meta", "board", "runs")}
    assert set(first) == {"/", "/page/page.css", "/page/page.js", *api}
    more = 50 / 8 * first["/api/v1/runs"]  # a screen full of rows, which take no more than these
    turns = 3  # the index, then script and styles, then the rows
    took = turns * SLOW_LINE_S + (sum(first.values()) + more) / SLOW_LINE_BYTES_PER_S
    assert took < FIRST_ROWS_S, first


def test_a_run_opened_in_a_new_tab_gets_the_token_from_the_open_one(tab, served):
    one = tab()
    page = one.open(served.link)
    wait_for_rows(page, 8)
    with one.context.expect_page() as opening:
        page.locator(".run-link").first.click(modifiers=["ControlOrMeta"])
    other = opening.value
    other.locator(".top-bar").wait_for()
    assert other.locator("dialog").count() == 0


def test_without_a_token_the_page_asks_for_one_and_keeps_the_place(tab, served):
    one = tab()
    one.allowed = ("401",)
    page = one.open(f"{served.url}#/runs?status=failed")
    page.get_by_label("Token, or the link with it").fill("wrong.token")
    page.keyboard.press("Enter")
    page.get_by_text("The token is not valid any more").wait_for()
    page.get_by_label("Token, or the link with it").fill(served.link)
    page.get_by_role("button", name="Continue").click()
    wait_for_rows(page, 1)
    assert page.url.endswith("#/runs?status=failed")


def test_every_row_has_the_glyph_and_the_word_of_its_status(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    words = {
        "order-0": "completed", "order-broken": "failed", "refund-asks": "waiting", "order-pending": "pending",
        "order-paused": "paused", "order-cancelled": "cancelled",
    }  # fmt: skip
    for run_id, word in words.items():
        status = row(page, run_id).locator(".status")
        assert status.inner_text() == word
        assert status.locator("svg.glyph").count() == 1


def test_the_reason_is_the_sentence_of_the_api(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    said = page.evaluate(
        """async token => (await (await fetch("api/v1/runs", {headers: {Authorization: `Bearer ${token}`}})).json())
        .runs.map(run => [run.id, run.reason])""",
        served.token,
    )
    for run_id, reason in said:
        assert row(page, run_id).locator(".sentence").text_content() == reason


def test_markup_in_data_stays_text(tab, served):
    one = tab()
    page = one.open(served.link)
    wait_for_rows(page, 8)
    assert served.shop.MARKUP in row(page, "order-cancelled").inner_text()
    assert "<b>declined</b>" in row(page, "order-broken").inner_text()
    assert page.locator("main img, main script, main b").count() == 0


def test_a_filter_is_in_the_fragment_and_shows_the_same_rows_elsewhere(tab, served):
    one = tab()
    page = one.open(served.link)
    wait_for_rows(page, 8)
    page.get_by_role("button", name="Flow").click()
    page.get_by_role("link", name="refund", exact=True).click()
    wait_for_rows(page, 1)
    assert page.url.endswith("#/runs?flow=refund")
    other = one.open(page.url)
    wait_for_rows(other, 1)
    assert shown(other) == ["refund-asks"]
    page.go_back()
    wait_for_rows(page, 8)


def test_no_match_names_the_filters_and_each_can_be_taken_off(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    page.goto(f"{served.url}#/runs?flow=refund&status=failed")
    page.get_by_role("heading", name="No run matches").wait_for()
    assert page.locator(".chip").all_inner_texts() == ["failed", "flow refund"]
    page.get_by_role("link", name="Remove filter failed").click()
    wait_for_rows(page, 1)
    page.goto(f"{served.url}#/runs?flow=refund&status=failed")
    page.get_by_role("link", name="Clear both").click()
    wait_for_rows(page, 8)


def test_the_first_way_out_is_a_button_unless_the_token_may_only_read(tab, served):
    one = tab()
    page = one.open(served.link)
    wait_for_rows(page, 8)
    assert row(page, "order-broken").get_by_role("link", name="Resume order-broken").is_visible()
    assert row(page, "refund-asks").get_by_role("link", name="Answer refund-asks").is_visible()
    assert row(page, "order-0").locator("a.button:visible").count() == 0
    made = forked.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", "dashboard", "--role", "read", "--json"],
        cwd=served.folder, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    token = re.search(r'"token": ?"([^"]+)"', made)[1]
    reader = tab().open(f"{served.url}#token={token}")
    wait_for_rows(reader, 8)
    assert reader.locator("a.button:visible").count() == 0


def test_rows_are_moved_through_and_opened_by_keys(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    ids = shown(page)
    for key in ("j", "j", "k", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.key") == ids[1]
    page.keyboard.press("/")
    page.keyboard.type("jk")  # a field is a field: letters are text in it
    assert page.get_by_label("Find a run").input_value() == "jk"
    page.keyboard.press("Escape")
    page.locator(".run-link").first.focus()
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    page.get_by_label("Use letter keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == ids[0]


def test_a_run_is_found_by_the_beginning_of_its_id(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    page.keyboard.press("/")
    page.keyboard.type("refund")
    page.keyboard.press("Enter")
    wait_for_rows(page, 1)
    assert page.url.endswith("#/runs?find=refund")
    field = page.get_by_role("searchbox", name="Find a run")
    assert field.input_value() == "refund"
    page.get_by_role("link", name="Doctor").click()
    page.get_by_role("heading", name="Doctor").wait_for()
    assert field.input_value() == "", "nothing is filtered by it here"


def test_the_field_that_finds_runs_also_takes_a_label_and_says_what_it_cannot_find(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    page.keyboard.press("/")
    page.keyboard.type("two words")
    page.keyboard.press("Enter")
    field = page.get_by_role("searchbox", name="Find a run")
    assert not field.evaluate("field => field.validity.valid")
    assert field.get_attribute("title") == "The beginning of a run id, or a label as name=value"
    wait_for_rows(page, 8)
    field.fill("no=body")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/runs?label=no%3Dbody")


@pytest.fixture(scope="module")
def changing(serve, tmp_path_factory):
    """A server whose runs the tests change."""
    folder = tmp_path_factory.mktemp("changing")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    for number in range(60):
        hf.start(shop.order, {}, run_id=f"order-{number:02}", store=serving.store)
    serving.shop = shop
    return serving


def test_a_new_run_raises_the_pill_and_no_row_moves_before_the_click(tab, changing):
    page = tab.kept().open(changing.link)
    wait_for_rows(page, 50)
    is_live(page)
    page.goto(f"{changing.url}#/runs?flow=refund")
    page.get_by_role("heading", name="No run matches").wait_for()
    hf.start(changing.shop.refund, {}, run_id="refund-1", store=changing.store)
    wait_for_rows(page, 1)  # nothing was there that could move
    hf.start(changing.shop.refund, {}, run_id="refund-2", store=changing.store)
    page.get_by_role("button", name="1 new run").wait_for()
    assert shown(page) == ["refund-1"]
    page.get_by_role("button", name="1 new run").click()
    assert shown(page) == ["refund-2", "refund-1"]


def test_a_status_that_changes_updates_its_row_and_keeps_the_focus(tab, changing):
    page = tab.kept().open(changing.link)
    wait_for_rows(page, 50)
    page.goto(f"{changing.url}#/runs?flow=order")
    is_live(page)
    page.get_by_role("button", name="Show 50 more").click()
    wait_for_rows(page, 60)
    row(page, "order-30").focus()
    page.evaluate("scrollTo(0, 700)")
    hf.cancel("order-30", store=changing.store)
    row(page, "order-30").get_by_text("cancelled").first.wait_for()
    assert page.evaluate("document.activeElement.dataset.key") == "order-30"
    assert page.evaluate("scrollY") == 700
    hf.cancel("order-05", store=changing.store)  # on the second page, which no stream covers
    row(page, "order-05").get_by_text("cancelled").first.wait_for()


def test_of_many_rows_only_those_in_view_are_in_the_document(tab, changing):
    many = 210
    for number in range(many):
        hf.start(changing.shop.order, {}, run_id=f"many-{number:03}", store=changing.store)
    page = tab.kept().open(changing.link)
    page.locator(".run-link").first.wait_for()
    page.goto(f"{changing.url}#/runs?find=many")
    for loaded in range(50, many, 50):
        page.get_by_text(f"{loaded} runs").wait_for()
        page.get_by_role("button", name="Show 50 more").click()
    page.get_by_text(f"{many} runs").wait_for()
    assert page.locator(".run-link").count() < 150
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    row(page, "many-000").wait_for()
    assert row(page, "many-209").count() == 0
    row(page, "many-005").focus()
    for _ in range(30):
        page.keyboard.press("k")
    assert page.evaluate("document.activeElement.dataset.key") == "many-035"
    assert row(page, "many-035").is_visible()


def test_a_server_that_stops_raises_the_banner_and_the_data_stays(tab, serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopping")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    hf.start(shop.order, {}, run_id="order-1", store=serving.store)
    one = tab()
    one.allowed = ("net::ERR_", "Failed to fetch")
    page = one.open(serving.link)
    wait_for_rows(page, 1)
    is_live(page)
    serving.stop()
    page.get_by_text("Not live since").wait_for()
    page.get_by_role("button", name="Try now").click()
    page.get_by_text("Not live since").wait_for()
    assert shown(page) == ["order-1"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", row(page, "order-1").locator("time").inner_text())
    hf.cancel("order-1", store=serving.store)
    serving.restart("shop.py", "--no-work")
    row(page, "order-1").get_by_text("cancelled").first.wait_for(timeout=30_000)
    page.get_by_text("Not live since").wait_for(state="hidden")


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_tab_is_closed_and_catches_up_when_it_is_seen_again(tab, changing):
    page = tab.kept().open(changing.link)
    wait_for_rows(page, 50)
    page.goto(f"{changing.url}#/runs?find=order-4")
    wait_for_rows(page, 10)
    is_live(page)
    page.evaluate(HIDE, True)
    page.locator(".live-word", has_text="Paused").wait_for()
    hf.cancel("order-42", store=changing.store)
    page.evaluate(HIDE, False)
    row(page, "order-42").get_by_text("cancelled").first.wait_for()
    is_live(page)


def test_an_empty_store_shows_the_command_and_the_first_run_replaces_it(tab, serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    page = tab(permissions=["clipboard-read", "clipboard-write"]).open(serving.link)
    page.get_by_role("heading", name="No runs yet").wait_for()
    page.get_by_role("button", name="Copy command").nth(1).click()
    assert page.evaluate("navigator.clipboard.readText()") == "holdfast demo"
    is_live(page)
    hf.start(shop.order, {}, run_id="first", store=serving.store)
    wait_for_rows(page, 1)
    assert page.get_by_role("heading", name="No runs yet").count() == 0


def test_a_link_to_nothing_says_so(tab, served):
    page = tab.kept().open(served.link)
    wait_for_rows(page, 8)
    page.goto(f"{served.url}#/nothing")
    page.get_by_role("heading", name="There is nothing at this address").wait_for()
    page.get_by_role("link", name="Show all runs").click()
    wait_for_rows(page, 8)


def test_a_screen_is_scrolled_where_it_was_left(tab, changing):
    page = tab.kept().open(changing.link)
    wait_for_rows(page, 50)
    is_live(page)
    page.evaluate("scrollTo(0, 600)")
    page.get_by_role("link", name="Workers").first.click()
    page.get_by_role("heading", name="Workers").wait_for()
    with page.expect_response(re.compile("/api/v1/live")):
        page.go_back()
    wait_for_rows(page, 50)
    assert page.evaluate("scrollY") == 600


@pytest.mark.parametrize("is_open", [True, False], ids=["after its stream is open", "before"])
def test_a_newer_server_offers_to_reload_when_the_tab_was_hidden(tab, changing, is_open):
    page = tab.kept().open(changing.link)
    wait_for_rows(page, 50)
    is_live(page)
    if not is_open:
        page.route("**/api/v1/live*", lambda route: None)  # is never answered
        with page.expect_request(re.compile("/api/v1/live")):
            page.get_by_role("link", name="Workers").first.click()

    def say_newer(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "version": "99.0"})

    page.route("**/api/v1/meta", say_newer)
    page.evaluate(HIDE, True)
    page.unroute("**/api/v1/live*")
    page.evaluate(HIDE, False)
    page.get_by_text("The server is now version 99.0").wait_for()
    assert page.get_by_role("button", name="Reload").is_visible()


def test_the_theme_is_the_system_s_until_the_reader_switches(tab, served):
    one = tab(color_scheme="dark")
    page = one.open(served.link)
    wait_for_rows(page, 8)
    canvas = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(canvas) == "rgb(14, 17, 22)"
    page.get_by_role("button", name="Switch theme").click()
    assert page.evaluate(canvas) == "rgb(246, 247, 249)"
    page.reload()
    assert page.evaluate(canvas) == "rgb(246, 247, 249)"


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_the_page_never_scrolls_sideways(tab, served, width):
    page = tab(viewport={"width": width, "height": 800}).open(served.link)
    wait_for_rows(page, 8)
    for fragment in ("#/runs", "#/workers", "#/doctor"):
        page.evaluate("fragment => { location.hash = fragment }", fragment)
        page.locator("main h1").wait_for(state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(tab, served, theme, width):
    one = tab(color_scheme=theme, bypass_csp=True, viewport={"width": width, "height": 900})
    page = one.open(served.link)
    wait_for_rows(page, 8)
    page.add_script_tag(path=AXE)
    shown = {
        "#/runs": ".run-link", "#/runs?flow=none": ".no-match", "#/workers": ".gauge", "#/doctor": ".finding",
        "#/nothing": ".alone",
    }  # fmt: skip
    for fragment, element in shown.items():
        page.evaluate("fragment => { location.hash = fragment }", fragment)
        page.locator(element).first.wait_for()
        found = page.evaluate("axe.run().then(result => result.violations)")
        told = [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
        ]
        assert not told, fragment + "\n" + "\n".join(told)


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
def test_axe_finds_nothing_before_there_is_a_run_or_a_token(tab, serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    for theme in ("light", "dark"):
        for link, element in ((serving.link, ".first-start"), (serving.url, "dialog")):
            one = tab(color_scheme=theme, bypass_csp=True, viewport={"width": 390, "height": 800})
            one.allowed = ("401",)
            page = one.open(link)
            page.locator(element).wait_for()
            page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
            page.add_script_tag(path=AXE)
            found = page.evaluate("axe.run().then(result => result.violations)")
            assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found] == [], (theme, element)


def test_the_policy_lets_no_text_become_markup(tab, served):
    one = tab()
    one.allowed = ("Trusted",)
    page = one.open(served.link)
    wait_for_rows(page, 8)
    said = page.evaluate(
        """() => { try { document.body.innerHTML = "<b>x</b>"; return "" } catch (error) { return error.name } }"""
    )
    assert said == "TypeError"


def test_each_key_is_listed_once(tab, served):
    page = tab.kept().open(served.link)
    page.locator(".run-link").first.wait_for()
    page.keyboard.press("?")
    listed = page.locator(".keys td:first-child")
    listed.first.wait_for()
    assert listed.all_inner_texts().count("/") == 1


def test_a_count_that_falls_to_zero_keeps_its_place(tab, served):
    page = tab.kept().open(served.link)
    page.locator(".count-tab").first.wait_for()
    before, after = page.evaluate(TABS)
    assert before == after == ["all", "running", "failed"]
