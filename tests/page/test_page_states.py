"""What the page shows while something is slow, wrong, damaged or lost, over real servers."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from contextlib import closing, suppress

import apsw
import pytest
from page_flows import write_flows

import forked
import holdfast as hf
from holdfast.storage.sqlite.store import SqliteStore

PAYLOADS = (
    "<img src=x onerror=alert(1)>",
    "</script><svg/onload=alert(2)>",
    "javascript:alert(3)",
    "{{7*7}}",
    "\u202egnp.exe",
    "\x1b]0;x\x07",
)


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing, over a few runs."""
    folder = tmp_path_factory.mktemp("states")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    serving.shop = shop
    for number in range(6):
        hf.start(shop.order, {}, run_id=f"order-{number}", store=serving.store)
    with suppress(hf.RunFailed):
        hf.run(shop.refund, {"fails": "declined"}, run_id="refund-broken", store=serving.store)
    return serving


def row(page, run_id):
    return page.locator(f'tr[data-key="{run_id}"]')


def open_runs(tab, served, fragment="", **options):
    one = tab(**options)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    if fragment:
        page.goto(served.url + fragment)
    return one, page


def is_live(page) -> None:
    page.locator(".live-word", has_text=re.compile("^Live$")).wait_for()


def make_token(served, name: str) -> dict[str, str]:
    made = forked.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", name, "--role", "operate", "--json"],
        cwd=served.folder, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return json.loads(made)


def test_a_slow_answer_shows_the_layout_in_grey_and_a_quick_one_does_not(tab, served):
    one = tab()
    page = one.context.new_page()
    held = []
    page.route("**/api/v1/runs?*", lambda route: held.extend([route]))
    page.goto(served.link)
    page.locator(".skeleton").wait_for()
    assert page.locator(".skeleton-row").count() == 15
    held[0].continue_()
    row(page, "order-0").wait_for()
    assert page.locator(".skeleton").count() == 0


def test_an_error_is_in_its_pane_with_a_way_out_and_the_rest_works(tab, served):
    one, page = open_runs(tab, served)
    one.allowed = ("503",)
    problem = {
        "type": "urn:holdfast:problem:store", "title": "The store cannot be used", "status": 503,
        "detail": "The disk is full.", "remedy": "Look at the log of the server.",
    }  # fmt: skip
    page.route("**/api/v1/runs?*", lambda route: route.fulfill(status=503, json=problem))
    page.goto(f"{served.url}#/runs?flow=order")
    banner = page.locator(".runs > .banner", has_text="The store cannot be used")
    banner.wait_for()
    assert "The disk is full. Look at the log of the server." in banner.inner_text()
    assert page.locator(".count-tab", has_text="pending").is_visible()
    page.unroute("**/api/v1/runs?*")
    banner.get_by_role("button", name="Try again").click()
    banner.wait_for(state="hidden")
    row(page, "order-0").wait_for()


def test_a_damaged_and_a_deleted_run_say_so_and_the_rest_works(tab, served):
    shop, store = served.shop, served.store
    for name in ("damaged", "deleted"):
        with suppress(hf.RunFailed):
            hf.run(shop.order, {"fails": "x"}, run_id=name, store=store)
    with closing(apsw.Connection(str(store))) as database:
        database.execute("update runs set situation = '{' where run_id = 'damaged'")
        database.execute(
            "update events set body = x'00' where key >> 32 = (select key from runs where run_id = 'damaged')"
        )
    _, page = open_runs(tab, served)
    row(page, "deleted").get_by_text("failed").first.wait_for()
    assert row(page, "damaged").locator(".status").inner_text() == "unreadable"
    is_live(page)
    with closing(SqliteStore(store)) as opened:
        assert not opened.upkeep.delete({"deleted": opened.run("deleted").seq})
    row(page, "deleted").get_by_text("Deleted from the store").wait_for()
    assert row(page, "deleted").locator(".status").inner_text() == "deleted"
    assert row(page, "order-0").locator(".status").inner_text() == "pending"


def test_a_server_that_falls_silent_raises_the_banner_within_25_s(tab, served):
    one = tab()
    page = one.context.new_page()
    page.clock.install()
    page.goto(served.link)
    row(page, "order-0").wait_for()
    is_live(page)
    served.process.send_signal(signal.SIGSTOP)  # connections stay open, and nothing comes
    try:
        page.clock.fast_forward(18_000)
        assert not page.get_by_text("Not live since").is_visible()
        page.clock.fast_forward(6_000)
        page.get_by_text("Not live since").wait_for()
        assert row(page, "order-0").is_visible()
        assert re.fullmatch(r"\d\d:\d\d:\d\d", row(page, "order-0").locator("time").inner_text())
    finally:
        served.process.send_signal(signal.SIGCONT)
    page.get_by_role("button", name="Try now").click()
    is_live(page)
    page.get_by_text("Not live since").wait_for(state="hidden")


def test_an_expired_token_asks_for_another_and_keeps_the_place(tab, served):
    token = make_token(served, "guest")
    one = tab()
    one.allowed = ("401",)
    page = one.open(f"{served.url}#token={token['token']}")
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/runs?flow=refund")
    row(page, "refund-broken").wait_for()
    is_live(page)
    row(page, "refund-broken").focus()
    answer = page.request.delete(
        f"{served.url}api/v1/tokens/{token['id']}",
        headers={"Authorization": f"Bearer {served.token}", "Idempotency-Key": "revoke-1"},
    )
    assert answer.ok, answer.text()
    page.evaluate("location.hash = '#/workers'")
    page.get_by_role("heading", name="The token is not valid any more").wait_for()
    page.get_by_label("Token, or the link with it").fill(served.link)
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Queues").wait_for()
    page.go_back()
    row(page, "refund-broken").wait_for()
    assert page.url.endswith("#/runs?flow=refund")
    assert "guest" not in page.locator(".token-name").inner_text()


def test_a_busy_server_is_asked_again_when_it_says(tab, serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("busy")
    shop = write_flows(folder)
    busy = serve("shop.py", "--no-work", "--rate", "1", folder=folder)
    hf.start(shop.order, {}, run_id="order-1", store=busy.store)
    one = tab()
    one.allowed = ("429",)
    page = one.open(busy.link)
    page.get_by_text(re.compile(r"Too many requests\. Trying again in \d s\.")).wait_for()
    row(page, "order-1").wait_for()
    is_live(page)


def test_times_follow_the_clock_of_the_server(tab, served):
    hf.start(served.shop.order, {}, run_id="order-now", store=served.store)
    one = tab()
    page = one.context.new_page()
    page.clock.install(time=time.time() + 3600)
    page.goto(served.link)
    row(page, "order-now").wait_for()
    assert re.fullmatch(r"now|\d+ s", row(page, "order-now").locator("time").inner_text())
    page.goto(f"{served.url}#/runs?since=15min")
    page.locator(".button[data-chosen]").wait_for()
    row(page, "order-now").wait_for()


def test_markup_in_labels_errors_and_reasons_stays_text(tab, served):
    shop, store = served.shop, served.store
    for number, payload in enumerate(PAYLOADS):
        with suppress(hf.RunFailed):
            hf.run(
                shop.order,
                {"fails": payload},
                run_id=f"hostile-{number}",
                store=store,
                labels={"note": payload},
            )
        hf.start(shop.order, {}, run_id=f"gone-{number}", store=store)
        hf.cancel(f"gone-{number}", store=store, by=payload, reason=payload)
    one, page = open_runs(tab, served)
    page.on("dialog", lambda dialog: one.note(f"a dialog: {dialog.message}"))
    for number, payload in enumerate(PAYLOADS):
        assert payload in row(page, f"hostile-{number}").locator(".c-labels").text_content()
        if (
            payload.isascii() and payload.isprintable()
        ):  # what would change the text around it is escaped in a reason
            assert payload in row(page, f"hostile-{number}").locator(".c-reason").text_content()
            assert payload in row(page, f"gone-{number}").locator(".c-reason").text_content()
    page.goto(f"{served.url}#/doctor")
    page.get_by_role("button", name="Examine again").click()
    page.locator(".finding", has_text="hostile-0").first.wait_for()
    assert page.locator("main :is(img, script, iframe), a[href^='javascript']").count() == 0


def test_the_first_way_out_is_reached_by_keys(tab, served):
    _, page = open_runs(tab, served, "#/runs?flow=refund")
    page.wait_for_function("() => document.querySelectorAll('.run-link').length === 1")
    page.keyboard.press("j")
    page.keyboard.press("a")
    page.get_by_role("dialog").get_by_role("heading").first.wait_for()
    assert "#/runs/refund-broken" in page.url


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_log_that_was_compacted_meanwhile_is_read_anew_and_the_place_stays(tab, served):
    shop, store = served.shop, served.store
    hf.run(shop.refund, {"asks": True}, run_id="refund-old", store=store)
    _, page = open_runs(tab, served, "#/runs/refund-old?node=reserve")
    page.locator(".panel-head h2", has_text="reserve").wait_for()
    page.evaluate(HIDE, True)
    hf.answer("refund-old", "ship", "approve", store=store, flows=[shop.refund])
    hf.resume("refund-old", store=store, flows=[shop.refund])
    words = [sys.executable, "-m", "holdfast.cli", "prune", "refund-old", "--compact", "--keep-last", "1"]
    forked.run(words, cwd=served.folder, env=served.environment, check=True, capture_output=True)
    page.evaluate(HIDE, False)
    page.locator(".standing .status-word", has_text="completed").wait_for()
    first = hf.checkpoints("refund-old", store=store)[0].seq
    assert first > 1
    assert page.url.endswith("?node=reserve")
    assert page.locator(".panel-head h2").inner_text() == "reserve"
    page.locator('.dot[title^="@1 "]').wait_for(state="detached")
    page.locator(f'.dot[title^="@{first} "]').wait_for()
