"""The page in a hostile or unlucky world: names and links that are traps, lost answers, too many windows; in a real browser."""

from __future__ import annotations

import importlib.util
import itertools
import re
import signal
from contextlib import suppress

import pytest
from desk_flows import write_desk

import holdfast as hf

NUMBERS = itertools.count(1)
DIALOG = "dialog.preview"
HOSTILE = '''
"""A flow whose names are those of every JavaScript object, and whose values are markup."""
import holdfast as hf

MARKUP = "<img src=x onerror=alert(1)>\\u202eevil\\x1b[31m javascript:alert(1)"
graph = hf.Graph("constructor")


@graph.node(name="constructor")
def one(state, ctx):
    ctx.emit("<script>alert(1)</script>" + MARKUP)
    return {"__proto__": {"polluted": 1}, "constructor": MARKUP, "toString": "W" * 20_000}


@graph.node(name="__proto__", idempotent=False)
def two(state):
    return {"two": {"__proto__": {"polluted": True}, "<b>": 1}}


@graph.node(name="toString")
def three(state):
    if state.get("fails"):
        raise ValueError(MARKUP + "W" * 3000)
    return {}


@graph.node(name="valueOf")
def never(state):
    return {}


graph.chain(hf.START, "constructor", "__proto__", "toString")
graph.branch("toString", lambda state: "valueOf" if state.get("more") else hf.END, ["valueOf", hf.END])
graph.edge("valueOf", hf.END)
flow = graph.compile()
'''


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing, with runs of a hostile flow."""
    folder = tmp_path_factory.mktemp("attacks")
    file = folder / "hostile.py"
    file.write_text(HOSTILE)
    spec = importlib.util.spec_from_file_location("hostile", file)
    hostile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hostile)
    desk = write_desk(folder)
    serving = serve("hostile.py", "desk.py", "--no-work", "--rate", "1000", folder=folder)
    serving.desk = desk
    labels = {"constructor": "<b>x</b>", "__proto__": hostile.MARKUP.replace("\x1b", "")}
    hf.run(hostile.flow, {}, run_id="whole", store=serving.store, labels=labels)
    with suppress(hf.RunFailed):
        hf.run(hostile.flow, {"fails": True}, run_id="broken", store=serving.store)
    return serving


def start(served, **state) -> str:
    """Execute a run until it ends, fails or asks."""
    run_id = f"run-{next(NUMBERS)}"
    with suppress(hf.RunFailed):
        hf.run(served.desk.refund, state, run_id=run_id, store=served.store)
    return run_id


def show(tab, served, place: str, allowed=()):
    one = tab()
    one.allowed = allowed
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, place)
    return page


def go(page, place: str) -> None:
    page.evaluate("place => { location.hash = place }", place)


def act(page):
    return page.locator(f"{DIALOG} footer .filled")


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_a_parameter_with_the_name_of_what_every_object_has_is_only_a_parameter(tab, served, name):
    page = show(tab, served, f"#/workers?{name}=x")
    page.get_by_role("table", name="Queues").wait_for()
    go(page, f"#/runs/whole?do={name}")
    page.locator(".standing .status-word", has_text="completed").wait_for()
    page.wait_for_url(re.compile(r"#/runs/whole$"))
    assert page.locator("dialog").count() == 0


def test_nodes_and_fields_with_the_names_of_what_every_object_has_are_shown_as_any_other(tab, served):
    page = show(tab, served, "#/runs/broken")
    page.locator(".panel-head h2", has_text="toString").wait_for()
    for node, word in {"constructor": "completed", "__proto__": "completed", "toString": "failed"}.items():
        go(page, f"#/runs/broken?node={node}")
        page.locator(".panel-head h2", has_text=node).wait_for()
        assert word in page.locator(f".graph-node[title^='{node} ']").text_content()
    go(page, "#/runs/broken?node=valueOf")
    page.locator(".panel-head h2", has_text="valueOf").wait_for()
    go(page, "#/runs/whole?view=state")
    page.locator(".field-name", has_text="__proto__").wait_for()
    go(page, "#/compare?a=whole&b=broken&node=__proto__")
    page.get_by_role("heading", name="State, as __proto__ set it").wait_for()
    assert page.evaluate("({}).polluted") is None
    assert page.locator("main :is(img, script)").count() == 0


def test_the_choice_for_a_node_called_proto_is_sent(tab, served):
    page = show(tab, served, "#/runs/whole@1?do=fork")
    choice = page.get_by_role("group", name="What the fork does with __proto__")
    choice.get_by_label("Skip").check()
    page.locator(f"{DIALOG} h3", has_text="Skipped 1").wait_for()


def test_a_link_with_another_token_that_is_opened_in_the_same_tab_is_taken_out_of_the_address(tab, served):
    page = show(tab, served, "#/workers", allowed=("401",))
    page.get_by_role("table", name="Queues").wait_for()
    go(page, f"#token={served.token}")
    page.locator(".run-link").first.wait_for()
    page.wait_for_url(f"{served.url}#/runs")
    go(page, "#token=wrong%20token")
    page.get_by_role("heading", name="The token is not valid any more").wait_for()
    assert "token" not in page.url


def test_a_token_that_no_header_can_carry_is_not_sent(tab, served):
    one = tab()
    one.allowed = ("401",)
    page = one.open(served.url)
    field = page.get_by_label("Token, or the link with it")
    field.fill("a\u2013b")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('#token').validity.patternMismatch")
    field.fill(f" {served.link} ")
    page.keyboard.press("Enter")
    page.locator(".run-link").first.wait_for()


def test_a_place_that_is_chosen_before_the_server_has_said_who_asks_is_shown_afterwards(tab, served):
    one = tab()
    page = one.context.new_page()
    held = []

    def hold(route):
        held.append(route)

    page.route("**/api/v1/meta", hold)
    page.goto(served.link)
    page.wait_for_function("() => location.hash === '#/runs'")
    go(page, "#/runs/whole@5")
    page.wait_for_function("() => location.hash === '#/runs/whole@5'")
    held[0].continue_()
    page.locator(".standing .status-word", has_text="completed").wait_for()


def test_verbs_work_where_a_browser_offers_less_because_the_address_is_not_of_https(tab, served):
    run = start(served, to="carrier")
    one = tab()
    one.context.add_init_script("delete Crypto.prototype.randomUUID; delete Navigator.prototype.locks")
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, f"#/runs/{run}?do=cancel")
    act(page).click()
    page.locator(DIALOG).wait_for(state="detached")
    assert hf.get(run, store=served.store).status == "cancelled"


def test_many_windows_do_not_take_all_connections_of_the_browser_from_each_other(tab, served):
    """A browser has six connections to a server, and each of these windows follows two streams."""
    runs = [start(served, to="carrier") for _ in range(4)]
    one = tab()
    one.open(served.link).locator(".run-link").first.wait_for()
    for run in runs:
        page = one.open(f"{served.url}#/runs/{run}")
        page.locator(".standing .status-word", has_text="waiting").wait_for()
    hf.answer(run, "carrier", "air", store=served.store)
    hf.cancel(run, store=served.store)
    page.locator(".standing .status-word", has_text="cancelled").wait_for()
    assert page.locator(".live-word").inner_text() == "Live"


def open_dialog(page, place: str) -> None:
    go(page, place)
    page.wait_for_function(f"() => document.querySelector('{DIALOG} footer .filled')?.disabled === false")


def test_a_verb_whose_answer_is_lost_is_done_once_whatever_the_reader_changes_afterwards(tab, served):
    run = start(served)
    page = show(tab, served, "#/workers", allowed=("ERR_FAILED", "422"))
    open_dialog(page, f"#/runs/{run}?do=fork")

    def lose(route):
        route.fetch()
        route.abort()

    page.route("**/fork", lose)
    count = len(hf.runs(store=served.store))
    act(page).click()
    page.locator(DIALOG).get_by_text("The server does not answer").wait_for()
    page.unroute("**/fork")
    page.get_by_label("Reason").fill("another reason")
    for _ in range(2):
        act(page).click()
        page.locator(DIALOG).get_by_text("What you asked before may have been done").wait_for()
    page.get_by_label("Reason").fill("")
    act(page).click()
    page.locator(DIALOG).wait_for(state="detached")
    assert len(hf.runs(store=served.store)) == count + 1


def test_a_server_that_is_killed_in_a_verb_and_started_again_does_it_once(tab, served):
    run = start(served)
    page = show(tab, served, "#/workers", allowed=("ERR_",))
    open_dialog(page, f"#/runs/{run}?do=fork")
    count = len(hf.runs(store=served.store))
    served.process.send_signal(signal.SIGSTOP)
    act(page).dblclick(no_wait_after=True)
    served.stop()
    page.locator(DIALOG).get_by_text("The server does not answer").wait_for()
    served.restart("hostile.py", "desk.py", "--no-work", "--rate", "1000")
    page.locator(DIALOG).get_by_role("button", name="Try again").click()
    page.locator(DIALOG).wait_for(state="detached")
    assert len(hf.runs(store=served.store)) == count + 1


def test_the_back_button_closes_a_dialog_unless_it_waits_for_an_answer(tab, served):
    one, other = start(served, to="carrier"), start(served, to="carrier")
    page = show(tab, served, f"#/runs/{one}")
    page.locator(".run-id", has_text=one).wait_for()
    open_dialog(page, f"#/runs/{other}?do=cancel")
    page.go_back()
    page.locator(DIALOG).wait_for(state="detached")
    page.locator(".run-id", has_text=one).wait_for()
    open_dialog(page, f"#/runs/{other}?do=cancel")
    held = []

    def hold(route):
        held.append(route)

    page.route("**/cancel", hold)
    act(page).click()
    page.go_back()
    page.locator(".run-id", has_text=one).wait_for()
    assert page.locator(DIALOG).get_by_role("heading", name=f"Cancel {other}").is_visible()
    held[0].continue_()
    page.locator(DIALOG).wait_for(state="detached")
    assert [hf.get(run, store=served.store).status for run in (one, other)] == ["waiting", "cancelled"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 500, "body": "<h1>x</h1>"}, "which is not from Holdfast"),
        ({"status": 200, "body": "<h1>x</h1>"}, "The server does not answer"),
        ({"status": 201, "body": '{"id": "ru'}, "The server does not answer"),
        ({"status": 403, "json": {"title": "<b>No</b>", "status": 403, "type": "x"}}, "<b>No</b>"),
        (
            {"status": 429, "json": {"title": "Busy"}, "headers": {"Retry-After": "99999999999"}},
            "again in 60 s",
        ),
    ],
)
def test_an_answer_that_is_not_the_servers_is_said_in_words_and_the_dialog_stays(tab, served, answer, words):
    page = show(tab, served, "#/workers", allowed=("the server responded",))
    open_dialog(page, "#/runs/whole?do=fork")
    page.route("**/fork", lambda route: route.fulfill(**answer))
    act(page).click()
    page.locator(".banner", has_text=words).wait_for()
    assert page.locator(DIALOG).is_visible()


def test_a_proxy_that_answers_with_a_page_of_its_own_is_not_live_and_is_asked_less_and_less_often(
    tab, served
):
    page = tab().context.new_page()
    page.clock.install()
    asked = []

    def answer(route):
        asked.append(route)
        route.fulfill(status=200, body="<h1>Sign in</h1>", content_type="text/html")

    page.route("**/api/v1/live*", answer)
    page.goto(served.link)
    page.get_by_text("Not live since").wait_for()
    for seconds in (1, 2, 4):
        page.get_by_text(re.compile(rf"Trying again (in {seconds} s|now)")).wait_for()
        page.clock.run_for(seconds * 1000)
    page.get_by_text(re.compile(r"Trying again in [78] s")).wait_for()
    assert page.locator(".live-word").inner_text() == "Not live"
