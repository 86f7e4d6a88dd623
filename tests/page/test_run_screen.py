"""The Run screen in a real browser, over a real server."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from page_flows import write_flows

import forked
import holdfast as hf
from holdfast.storage.contract import Holder
from holdfast.storage.urls import open_store

ROOT = Path(__file__).parents[2]
FRAMELESS = """async () => {
    const { createErrorFrames } = await import("/page/parts/error_frames.js");
    const failure = { type: "Timeout", message: "over 5 s", kind: "recoverable", frames: [], traceback: "" };
    document.querySelector(".error-frames").replaceWith(createErrorFrames(failure));
}"""
COMMAND = """async () => {
    const { createCommand } = await import("/page/parts/command.js");
    const part = createCommand();
    const host = document.createElement("div");
    host.style.width = "200px";
    host.append(part.element);
    document.body.append(host);
    const text = "holdfast run file.py --store runs.db --input {}";
    part.update(text);
    const words = [...part.element.querySelectorAll("code > span")];
    const option = words.find((one) => one.textContent.startsWith("--store"));
    const rows = option.getClientRects().length;
    return { rows, whole: part.element.querySelector("code").textContent === text };
}"""
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
MARKUP = "<b>bold</b><img src=x onerror=alert(1)>"
LONG = "a_very_long_name_" * 7
LARGE = 5 * 1024 * 1024


PLACES = {
    "": ".timeline-row",
    "@3": ".checkpoint-bar[data-past]",
    "?view=graph": ".graph-node",
    "?nodes=table": ".node-table tr",
    "?view=state": ".view-pad .field-row",
    "?view=state&from=1": ".view-pad .change",
    "?view=log": ".log li",
    "?view=files": ".view-pad .button",
    "?node=charge": ".error-frames",
    "?node=charge&tab=input": ".panel-pad .field-row",
    "?node=reserve&tab=output": ".panel-pad .change",
    "?node=reserve&tab=change": ".compare-with",
    "?node=charge&tab=steps": ".panel-head [data-key=steps][aria-current]",
    "?node=charge&tab=stream": ".stream",
    "?node=charge&tab=receipts": ".panel-pad .tree",
}
"""Every view and tab of a run that failed -> what is there when it is shown."""


@dataclass
class Ledger:
    total: Annotated[int, hf.add] = 0
    notes: Annotated[list[str], hf.append] = field(default_factory=list)
    label: str = "none"


def build_flows() -> tuple[hf.Flow, hf.Flow, hf.Flow]:
    """A flow whose state has reducers, one with odd names and values, and one with a large state."""
    ledger, odd, large = hf.Graph("ledger", Ledger), hf.Graph("odd"), hf.Graph("large")

    @ledger.node
    def book(state: Ledger) -> dict:
        return {"total": 5, "notes": ["paid"], "label": "done"}

    @odd.node(name=LONG)
    def write(state, ctx):
        ctx.emit(MARKUP)
        ctx.step(MARKUP, lambda: MARKUP)
        return {"מפתח": "مرحبا بالعالم 👩‍👩‍👧", MARKUP: MARKUP}

    @odd.node(each=lambda state: range(3))
    def fan(item):
        if item == 2:
            raise hf.Fatal(MARKUP)
        return {f"item{item}": MARKUP}

    @large.node
    def fill(state):
        return {"rows": ["x" * 1023] * (LARGE // 1024), "small": 1}

    ledger.chain(hf.START, book, hf.END)
    odd.chain(hf.START, LONG, fan, hf.END)
    large.chain(hf.START, fill, hf.END)
    return ledger.compile(), odd.compile(), large.compile()


def build_misrouted() -> hf.Flow:
    """A flow whose router fails after its node has completed."""
    graph = hf.Graph("misrouted")

    @graph.node
    def decide(state):
        return {"score": 3}

    def choose(state):
        return state["score"].name

    graph.edge(hf.START, decide)
    graph.branch(decide, choose, [hf.END])
    return graph.compile()


def build_careful() -> hf.Flow:
    """A flow that continues after a failure."""
    graph = hf.Graph("careful")

    @graph.node(safe_to_fail=True)
    def classify(state):
        raise hf.Fatal("no model")

    graph.chain(hf.START, classify, hf.END)
    return graph.compile()


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing, over runs of every kind that a test looks at."""
    folder = tmp_path_factory.mktemp("shop")
    shop = write_flows(folder)
    serving = serve("shop.py", "--no-work", folder=folder)
    store = serving.store
    ledger, odd, large = build_flows()
    with suppress(hf.RunFailed):
        hf.run(shop.order, {"fails": "card <b>declined</b>"}, run_id="order-broken", store=store)
    hf.run(shop.order, {}, run_id="order-done", store=store, labels={"customer": "acme"})
    hf.run(shop.refund, {"asks": True}, run_id="refund-asks", store=store)
    hf.start(shop.order, {}, run_id="order-gone", store=store)
    hf.cancel("order-gone", store=store, by="ada", reason="withdrawn")
    hf.run(ledger, Ledger(), run_id="booked", store=store)
    hf.run(build_careful(), {}, run_id="careful", store=store)
    rows = [{"id": str(number), "since": "2019"} for number in range(39)] + [{"id": "39", "since": "n/a"}]
    with suppress(hf.RunFailed):
        hf.run(shop.order, {"rows": rows, "tool": "", "fails": "bad row"}, run_id="order-rows", store=store)
    hf.run(shop.refund, {"asks": True}, run_id="refund-rejected", store=store)
    hf.answer("refund-rejected", "ship", "reject", by="ada", reason="change window", store=store)
    with suppress(hf.RunFailed):
        hf.resume("refund-rejected", flows=[shop.refund], store=store)
    hf.run(shop.refund, {"asks": True}, run_id="refund-shipped", store=store)
    hf.answer("refund-shipped", "ship", "approve", by="bo", store=store)
    hf.resume("refund-shipped", flows=[shop.refund], store=store)
    hf.run(large, {}, run_id="large", store=store)
    with suppress(hf.RunFailed):
        hf.run(odd, {}, run_id="odd", store=store, labels={"customer": MARKUP})
    with suppress(hf.RunFailed):
        hf.run(build_misrouted(), {}, run_id="misrouted", store=store)
    hf.run(ledger, Ledger(), run_id="damaged", store=store)
    with closing(sqlite3.connect(store)) as rows, rows:
        rows.execute(
            "update events set body = ? where key = (select max(key) from events where node = 'book')",
            (b"{",),
        )
    return serving


def show(tab, served, fragment: str, **options):
    one = tab(**options)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, fragment)
    return page


def go(page, fragment: str) -> None:
    """Follow a link inside the page."""
    page.evaluate("fragment => { location.hash = fragment }", f"#/runs/{fragment}")


def head(page):
    return page.locator(".standing")


def chosen_in(page) -> tuple[str, str]:
    """The chosen node, as the panel and the graph have it."""
    return page.locator(".panel-head h2").inner_text(), page.locator(
        ".graph-node[aria-current] .node-name"
    ).inner_text()


def test_the_sentence_is_the_reason_of_show_and_the_first_button_its_first_remedy(tab, served):
    told = forked.run(
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


@pytest.mark.parametrize(
    ("run", "word"),
    [
        ("order-broken", "failed"),
        ("order-done", "completed"),
        ("refund-asks", "waiting"),
        ("order-gone", "cancelled"),
    ],
)
def test_every_status_has_a_glyph_and_a_word_in_head_graph_and_timeline(tab, served, run, word):
    page = show(tab, served, run)
    head(page).locator(".status-word", has_text=word).wait_for()
    assert head(page).locator(".status svg").count() == 1
    nodes = page.locator(".graph-node")
    nodes.first.wait_for()
    for node in nodes.all():
        assert node.locator("svg").count() >= 1
        said = node.get_attribute("aria-label") or node.inner_text()
        assert re.search("completed|failed|not reached|waiting|waits|skipped", said), said
    labels = page.locator("button.timeline-label")
    labels.first.wait_for()
    for label in labels.all():
        assert label.locator("svg").count() == 1
        said = label.text_content()
        assert re.search("completed|failed|not reached|waiting|waits|skipped", said), said


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
    assert "Fatal card <b>declined</b>" in error.locator("header").inner_text()
    assert error.locator(".frame-place").first.inner_text().partition(" in ")[0].endswith("/shop.py")
    raised = error.locator(".frame-line.raised")
    source = (
        (served.folder / "shop.py")
        .read_text()
        .splitlines()[int(raised.locator(".line-number").inner_text()) - 1]
    )
    assert source.strip() == raised.locator("code").inner_text() == 'raise hf.Fatal(state["fails"])'
    assert page.locator(".visit-side").get_by_text("reserve completed").is_visible()


def test_a_router_that_failed_is_shown_at_its_node_with_the_line_that_raised(tab, served):
    page = show(tab, served, "misrouted")
    page.locator(".error-frames").get_by_text("AttributeError").wait_for()
    assert 'return state["score"].name' in page.locator(".frame-line.raised").inner_text()
    assert page.locator(".panel-head .status-word").inner_text() == "failed"
    assert "routing failed" in page.locator(".visit-rows.attempts li").inner_text()
    assert "routing failed" in page.locator(".graph-node").first.text_content()
    assert page.locator("rect.bar.fail").count() == 1
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator(".story").get_by_text("routing failed: AttributeError").wait_for()


def test_the_first_checkpoint_is_compared_with_now_and_an_event_of_the_log_opens_at_its_node(tab, served):
    page = show(tab, served, "booked@1?node=book&tab=change")
    page.locator(".compare-with").get_by_text("now, @").wait_for()
    assert page.get_by_text("the checkpoint before").count() == 0
    go(page, "booked?view=log")
    page.locator(".log li", has_text="node started").locator(".log-seq").click()
    page.wait_for_url("**/#/runs/booked@2?node=book")


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


def test_change_shows_path_operation_before_and_after(tab, served):
    page = show(tab, served, "booked?node=book&tab=change")
    page.locator(".change").nth(2).wait_for()
    found = {
        change.locator(".change-path").inner_text(): (
            change.locator(".tag").inner_text(),
            change.locator(".was code").text_content(),
            change.locator(".now code").text_content(),
        )
        for change in page.locator(".change").all()
    }
    assert found == {
        "total": ("add 5", "0", "5"),
        "notes": ("append", "", '["paid"]'),
        "label": ("set", '"none"', '"done"'),
    }


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
    page.locator(".log li").nth(1).wait_for(state="detached")
    page.get_by_label("Kind").select_option("RunForked")
    page.locator(".log li").first.wait_for(state="detached")
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
    go(page, "order-done@999")
    page.get_by_text("There is no event @999 to show").wait_for()
    page.get_by_role("button", name="Back to now").first.click()
    page.locator(".graph-node").first.wait_for()
    for place in ("node=nothing", "node=reserve&visit=7.1", "node=reserve&visit=1.1&item=4"):
        go(page, f"order-done?{place}")
        page.locator(".run-panel .banner").wait_for()
        assert page.locator(".graph-node").first.is_visible()
        go(page, "order-done?node=reserve")
        page.locator(".run-panel .banner").wait_for(state="hidden")


def test_a_damaged_run_says_so_once_and_offers_the_command_that_looks_into_it(tab, served):
    one = tab()
    one.allowed = ("409",)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, "damaged")
    page.locator(".run > .banner", has_text="Stored data is damaged").wait_for()
    assert page.locator(".banner:visible").count() == 1
    assert "holdfast verify damaged" in page.locator(".banner:visible").inner_text()
    assert head(page).locator(".status-word").inner_text() == "unreadable"
    assert head(page).locator(".button:visible").count() == 0
    go(page, "order-done")
    page.locator(".graph-node").first.wait_for()


def test_a_state_of_megabytes_is_shown_without_its_large_values_until_one_is_asked_for(tab, served):
    page = show(tab, served, "order-done")
    page.locator(".graph-node").first.wait_for()
    sizes = {}
    page.on("response", lambda one: sizes.update({one.url: int(one.headers.get("content-length", 0))}))
    go(page, "large?view=state")
    page.locator(".field-row", has_text="small").wait_for()
    for tab_name in ("output", "input", "overview", "change"):
        go(page, f"large?node=fill&tab={tab_name}")
        page.locator(f'.panel-head [data-key="{tab_name}"][aria-current]').wait_for()
    page.locator(".change-path", has_text="rows").wait_for()
    assert {url for url, size in sizes.items() if size > 20_000} == set()
    go(page, "large?view=state")
    page.get_by_role("button", name=re.compile(r"Show \d+\.\d KB")).click()
    page.locator(".tree-size", has_text="5,120 items").wait_for()
    assert page.locator(".tree-leaf").count() < 300


def test_markup_and_long_names_stay_text_in_every_view_and_tab(tab, served):
    page = show(tab, served, "odd", viewport={"width": 360, "height": 800})
    head(page).locator(".standing-reason", has_text="<b>bold</b>").wait_for()
    for place, seen in (
        (f"?node={LONG}&tab=output", ".change-path"),
        (f"?node={LONG}&tab=steps", ".panel-pad .told"),
        (f"?node={LONG}&tab=stream", ".stream-text"),
        (f"?node={LONG}&tab=receipts", ".panel-pad .tree"),
        ("?node=fan", ".error-frames"),
        ("?node=fan&tab=input", ".field-name"),
        ("?view=state", ".view-pad .tree-string"),
        ("?view=log", ".log li"),
        ("?view=graph", ".graph-node"),
        ("", ".story-list li"),
    ):
        go(page, f"odd{place}")
        page.locator(seen).first.wait_for()
        assert page.locator("b, main img").count() == 0, place
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, place


def test_a_read_token_sees_no_verb_and_why(tab, served):
    made = forked.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", "reader", "--role", "read", "--store", str(served.store)],
        capture_output=True, text=True, check=True, cwd=served.folder,
    )  # fmt: skip
    token = re.search(r"[0-9a-f]{12}\.[\w-]{20,}", made.stdout + made.stderr).group(0)
    page = tab().open(f"{served.url}#token={token}")
    page.locator(".run-link").first.wait_for()
    go(page, "order-broken?do=resume")
    head(page).get_by_text("Token “reader” may only read").wait_for()
    assert head(page).locator(".acts .button").count() == 0
    page.keyboard.press("r")
    head(page).get_by_role("button", name="More actions").click()
    assert "Copy command" in page.locator(".menu:visible button").first.inner_text()
    assert page.locator(".menu:visible .menu-item").count() == 0
    assert page.locator("dialog").count() == 0


def test_every_verb_works_by_keyboard(tab, served):
    page = show(tab, served, "order-broken")
    page.locator(".error-frames").wait_for()
    dialog = page.locator("dialog.preview")
    for key, title in (
        ("r", "Resume order-broken"),
        ("t", "Retry charge"),
        ("s", "Skip charge"),
        ("o", "Fork"),
    ):
        page.keyboard.press(key)
        dialog.locator("h2", has_text=title).wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    opener = head(page).get_by_role("button", name="More actions")
    opener.focus()
    page.keyboard.press("Enter")
    page.locator(".menu-item:focus", has_text="Cancel").wait_for()
    page.keyboard.press("Enter")
    dialog.locator("h2", has_text="Cancel order-broken").wait_for()


@pytest.mark.parametrize("width", [360, 1000])
def test_the_run_never_scrolls_sideways(tab, served, width):
    page = show(tab, served, "order-broken", viewport={"width": width, "height": 800})
    for place, seen in PLACES.items():
        go(page, f"order-broken{place}")
        page.locator(seen).first.wait_for(state="attached")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, place


def test_a_phone_has_a_story_and_its_actions_at_the_bottom(tab, served):
    page = show(tab, served, "order-broken", viewport={"width": 390, "height": 844})
    page.locator(".story-list li").first.wait_for()
    assert page.locator(".story-list li").first.locator(".story-body").inner_text().startswith("charge")
    assert page.locator(".view-head a:visible").all_inner_texts() == [
        "Story",
        "Graph",
        "State",
        "Log",
        "Ledger",
    ]
    bar = page.locator(".acts-bar").bounding_box()
    assert bar["y"] + bar["height"] > 700


def test_a_story_that_is_being_loaded_has_no_button_without_words(tab, served):
    one, held = tab(viewport={"width": 390, "height": 844}), []
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    page.route("**/timeline*", lambda route: held.insert(0, route))
    go(page, "order-broken")
    page.locator(".story").wait_for(state="attached")
    assert "" not in page.locator("button:visible").evaluate_all(
        'all => all.map(one => one.textContent || one.ariaLabel || "")'
    )
    held[0].continue_()
    page.locator(".story-list li").first.wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_axe_finds_nothing_on_a_run(tab, served, theme, width):
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 900}}
    page = show(tab, served, "order-broken", **options)
    head(page).wait_for()
    page.add_script_tag(path=AXE)
    # The themes have the same elements: in the dark, only colours can be wrong.
    rules = {"runOnly": ["color-contrast"]} if theme == "dark" else {}
    for place, seen in PLACES.items():
        go(page, f"order-broken{place}")
        page.locator(seen).first.wait_for(state="attached")
        found = page.evaluate("rules => axe.run(rules).then(result => result.violations)", rules)
        told = [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
        ]
        assert not told, place + "\n" + "\n".join(told)


def test_the_excerpt_of_an_input_shows_both_ends_of_a_long_value(tab, served):
    page = show(tab, served, "order-rows?node=charge")
    excerpt = page.locator(".visit-side .excerpt code")
    excerpt.get_by_text("n/a").wait_for()
    text = excerpt.inner_text()
    assert text.startswith('{ "rows": [{"id":"0","since":"2019"}')
    assert re.search(r'….*\{"id":"39","since":"n/a"\}\], "tool": "", ', text)


def test_an_item_of_a_fan_out_shows_its_own_value_and_what_it_returned(tab, served):
    page = show(tab, served, "odd?node=fan&item=0&tab=output")
    panel = page.locator(".run-panel")
    panel.get_by_text("item0", exact=True).wait_for()
    assert panel.locator(".status-word").first.inner_text() == "completed"
    panel.locator(".panel-head").get_by_role("link", name="Input").click()
    panel.locator(".field-row").wait_for()
    assert panel.locator(".field-row").all_inner_texts() == ["item\n0"]
    page.evaluate("location.hash = '#/runs/odd?node=fan&item=2&tab=output'")
    panel.get_by_text("It has not completed.").wait_for()
    assert panel.locator(".status-word").first.inner_text() == "failed"


def test_a_node_that_was_refused_says_what_was_asked_and_who_answered_what_and_why(tab, served):
    page = show(tab, served, "refund-rejected?node=ship")
    asked = page.locator(".visit-main h3", has_text="Asked").locator("xpath=..").locator(".told")
    asked.nth(1).wait_for()
    question, answer = asked.all_inner_texts()
    assert question.startswith("Ship ")
    assert answer.startswith("ada answered “reject”, “change window”: the node failed")
    assert not page.get_by_text("The run has not reached this node.").is_visible()


def test_the_timeline_the_checkpoints_and_why_it_ran_say_what_was_answered(tab, served):
    page = show(tab, served, "refund-shipped?node=ship")
    why = page.locator(".visit-side h3", has_text="Why it ran").locator("xpath=..")
    why.get_by_text("Attempt 1: bo answered “approve”").wait_for()
    gem = page.locator(".timeline .gem.accent title", has_text="bo answered")
    assert gem.text_content() == "bo answered “approve” to ship.1.1"
    assert (
        page.locator(".checkpoint-bar .dot.person[title*='bo answered “approve” to ship.1.1']").count() == 1
    )


def test_from_an_earlier_checkpoint_a_run_that_is_over_for_good_is_forked_and_another_resumed_by_one_button(
    tab, served
):
    page = show(tab, served, "order-done@3")
    fork = page.get_by_role("button", name="Fork")
    fork.wait_for()
    assert "filled" in fork.get_attribute("class").split()
    assert page.get_by_role("button", name="Resume").count() == 0
    page.evaluate("location.hash = '#/runs/order-broken@3'")
    resume = page.get_by_role("button", name="Resume")
    resume.wait_for()
    assert resume.inner_text() == "Resume from here…"
    assert page.get_by_role("button", name="Fork").inner_text() == "Fork from here…"
    assert page.locator(".button.filled:visible").count() == 1


def test_a_node_that_may_fail_is_shown_as_failed_and_not_as_skipped(tab, served):
    page = show(tab, served, "careful")
    page.get_by_text("It failed, and the run continued without its result.").wait_for()
    assert page.locator(".panel-head .status-word").inner_text() == "failed, run continues"
    assert page.locator(".run-panel .attempts li").inner_text().count("Fatal") == 1
    assert "skipped" not in page.locator(".run-body").inner_text()
    assert page.locator(".timeline-row .bar").get_attribute("class") == "bar fail"


def test_a_run_is_read_once_and_one_that_is_not_there_is_asked_for_once(tab, served):
    one = tab()
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/api/v1/")[2]))
    go(page, "order-done")
    page.locator(".timeline-row").first.wait_for()
    page.locator(".graph-node").first.wait_for()
    with page.expect_request(lambda request: "/runs?id=order-done" in request.url):
        pass  # the row is read again after a while: by then, nothing else was
    for part in ("picture", "timeline?", "requests"):
        assert sum(url.startswith(f"runs/order-done/{part}") for url in asked) == 1, part
    one.allowed = ("404",)
    asked.clear()
    go(page, "nothing-there")
    page.locator(".run > .banner", has_text="nothing-there").wait_for()
    assert [url for url in asked if url.startswith("runs/nothing-there")] == ["runs/nothing-there?brief=true"]


def test_the_graph_view_of_a_narrow_window_has_its_chosen_tab_in_a_wide_one(tab, served):
    page = show(tab, served, "order-done?view=graph")
    page.locator(".view-head a[aria-current]", has_text="Timeline").wait_for()
    page.set_viewport_size({"width": 1000, "height": 900})
    page.locator(".view-head a[aria-current]", has_text="Graph").wait_for()


def test_the_place_of_an_event_between_two_checkpoints_is_the_same_everywhere(tab, served):
    events = {one.seq for one in hf.events("order-broken", store=served.store)}
    checkpoints = {one.seq for one in hf.checkpoints("order-broken", store=served.store)}
    seq = max(one for one in events - checkpoints if 1 < one < max(events))
    page = show(tab, served, f"order-broken@{seq}")
    page.locator(".checkpoint-bar[data-past]").wait_for()
    assert page.locator(".bar-words strong").inner_text() == f"@{seq}"
    page.locator(".timeline .place-words", has_text=f"@{seq}").wait_for()
    assert page.locator(".graph-head .hint").inner_text() == f"as it was at @{seq}"
    assert page.locator(".facts > div", has_text="Attempts").count() == 0  # the facts are those of now


def test_a_waiting_run_does_not_ask_for_a_resume_that_a_worker_does(tab, served):
    with closing(open_store(str(served.store))) as store:
        store.renew(Holder(id="w", host="box", pid=7, ttl_s=600.0, flows=("refund",)))
        page = show(tab, served, "refund-asks")
        page.get_by_text("A worker resumes the run once it is answered.").wait_for()
        store.renew(Holder(id="w", host="box", pid=7, ttl_s=0.0, flows=("refund",)))


def test_an_error_without_frames_has_no_empty_foot_and_its_kind_is_explained(tab, served):
    page = show(tab, served, "order-broken?node=charge")
    page.locator(".error-frames footer").wait_for()
    kind = page.locator(".error-frames header .tag")
    assert "no retry helps" in kind.get_attribute("title")
    page.evaluate(FRAMELESS)
    assert page.locator(".error-frames footer").count() == 0


def test_a_row_of_the_log_shows_that_it_opens(tab, served):
    page = show(tab, served, "order-done?view=log")
    mark = page.locator(".log summary .glyph").first
    mark.wait_for()
    closed = mark.evaluate("one => getComputedStyle(one).transform")
    page.locator(".log summary").first.click()
    page.wait_for_function(
        "closed => getComputedStyle(document.querySelector('.log [open] .glyph')).transform !== closed",
        arg=closed,
    )


def test_an_option_of_a_command_is_not_broken(tab, served):
    page = show(tab, served, "order-done")
    broken = page.evaluate(COMMAND, served.url)
    assert broken == {"rows": 1, "whole": True}


def test_with_forced_colours_what_is_chosen_is_outlined(tab, served):
    page = show(tab, served, "order-broken?node=charge", forced_colors="active")
    page.locator(".error-frames").wait_for()
    for part in (
        ".tabs a[aria-current]", ".segments a[aria-current]", ".graph-node[aria-current]", ".timeline-row[data-chosen]",
    ):  # fmt: skip
        style = page.locator(part).first.evaluate("one => getComputedStyle(one).outlineStyle")
        assert style == "solid", part


def test_on_a_phone_the_glyph_of_a_story_entry_is_beside_its_first_line(tab, served):
    page = show(tab, served, "order-broken", viewport={"width": 360, "height": 740})
    entry = page.locator(".story-list li", has_text="charge").first
    entry.wait_for()
    glyph, row = entry.locator(".glyph").first.bounding_box(), entry.bounding_box()
    assert glyph["y"] - row["y"] < 8
