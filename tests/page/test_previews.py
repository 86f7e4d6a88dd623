"""The dialog before a verb, on the screen of a run, in a real browser over a real server and real workers."""

from __future__ import annotations

import itertools
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from desk_flows import write_desk

import forked
import holdfast as hf

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
NUMBERS = itertools.count(1)
DIALOG = "dialog.preview"


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing."""
    folder = tmp_path_factory.mktemp("previews")
    desk = write_desk(folder)
    serving = serve("desk.py", "--no-work", folder=folder)
    serving.desk = desk
    return serving


def start(served, **state) -> str:
    """Execute a run until it ends, fails or asks."""
    run_id = f"run-{next(NUMBERS)}"
    with suppress(hf.RunFailed):
        hf.run(served.desk.refund, state, run_id=run_id, store=served.store)
    return run_id


def work(served) -> None:
    """Let a worker process execute what there is to execute."""
    words = [sys.executable, "-m", "holdfast.cli", "worker", "desk.py", "--until-idle"]
    forked.run(words, cwd=served.folder, env=served.environment, check=True, capture_output=True)


def show(tab, served, place: str, allowed=(), **options):
    one = tab.kept(**options)
    one.allowed = allowed
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, place)
    return page


def go(page, place: str) -> None:
    page.evaluate("place => { location.hash = place }", f"#/runs/{place}")


def rows(page) -> dict[str, str]:
    """The rows of the dialog, by their title with the count."""
    page.locator(f"{DIALOG} .preview-body > *").first.wait_for()
    return {
        row.locator("h3").inner_text(): " ".join(row.locator(".preview-content").inner_text().split())
        for row in page.locator(f"{DIALOG} .preview-row").all()
    }


def act(page):
    return page.locator(f"{DIALOG} footer .filled")


def test_a_preview_lists_what_the_api_returned_and_waits_for_a_tick_for_each_node_that_is_not_idempotent(
    tab, served
):
    run = start(served, fails="declined", stays=True)
    page = show(tab, served, f"{run}@3?do=resume")
    page.get_by_role("heading", name=f"Continue from {run}@3").wait_for()
    tick = page.get_by_label("Run pay_out again")
    tick.wait_for()
    found = hf.preview(run, "resume", checkpoint=3, flows=[served.desk.refund], store=served.store)
    assert [node.node for node in found.confirm] == ["pay_out"]
    assert rows(page)["Kept 1"] == " ".join(node.node for node in found.kept) == "load"
    assert act(page).is_disabled()
    assert page.get_by_text("Needs the tick above").is_visible()
    tick.check()
    page.wait_for_function("() => !document.querySelector('dialog.preview footer .filled').disabled")
    assert act(page).inner_text() == "Resume from @3"


def test_a_fork_asks_about_a_node_that_is_not_idempotent_unless_another_choice_is_made(tab, served):
    run = start(served)
    page = show(tab, served, f"{run}@3?do=fork")
    choice = page.get_by_role("group", name="What the fork does with pay_out")
    choice.wait_for()
    assert choice.locator(".card").all_inner_texts() == ["Ask", "Run again", "Skip"]
    assert choice.get_by_label("Ask").is_checked()
    assert "Asked about first 1" in rows(page)
    choice.get_by_label("Run again").check()
    page.locator(f"{DIALOG} h3", has_text="Run again 2").wait_for()
    choice.get_by_label("Skip").check()
    page.locator(f"{DIALOG} h3", has_text="Skipped 1").wait_for()
    assert act(page).is_enabled()


def test_a_run_is_forked_from_an_earlier_checkpoint_with_an_edited_state_and_continues(tab, served):
    run = start(served, fails="declined")
    page = show(tab, served, f"{run}@3")
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_role("group", name="What the fork does with pay_out").get_by_label("Run again").check()
    page.get_by_role("button", name="Edit state first…").click()
    page.get_by_label("State as JSON").fill('{"fails": null, "charged": 1}')
    page.wait_for_function("() => !document.querySelector('dialog.preview footer .filled').disabled")
    act(page).click()
    page.locator(DIALOG).wait_for(state="detached")
    page.wait_for_url(f"**/#/runs/{run}-fork-1")
    made = page.url.rpartition("/")[2]
    work(served)
    page.locator(".standing .status-word", has_text="completed").wait_for()
    state = hf.state(made, store=served.store)
    assert (state["fails"], state["charged"], state["paid"]) == (None, 1, True)
    assert hf.get(run, store=served.store).status == "failed"


def test_a_preview_that_became_stale_is_refused_and_the_change_is_named(tab, served):
    run = start(served, to="carrier")
    page = show(tab, served, f"{run}?do=cancel", allowed=("412",))
    assert rows(page)["Questions close 1"] == "Which carrier?"
    hf.answer(run, "carrier", "air", store=served.store)
    act(page).click()
    page.get_by_text("The run moved on while you looked.").wait_for()
    assert (
        "Nothing was done. The list below is new: “Which carrier?” is no longer in “Questions close”."
        in page.locator(f"{DIALOG} .banner").inner_text()
    )
    assert "Questions close 1" not in rows(page)
    assert hf.get(run, store=served.store).status != "cancelled"
    act(page).click()
    page.locator(DIALOG).wait_for(state="detached")
    assert hf.get(run, store=served.store).status == "cancelled"


def test_an_event_that_changes_nothing_in_the_preview_does_not_stop_the_action(tab, served):
    run = start(served, to="carrier")
    page = show(tab, served, f"{run}?do=cancel")
    rows(page)
    hf.signal(run, "weather", {"rain": True}, store=served.store)
    act(page).click()
    page.locator(DIALOG).wait_for(state="detached")
    assert hf.get(run, store=served.store).status == "cancelled"


def test_a_double_click_asks_once_and_the_request_shows_everywhere_until_a_worker_has_carried_it_out(
    tab, served
):
    flag = served.folder / "died"
    run = start(served, fails="declined", once=str(flag))
    page = show(tab, served, f"{run}?do=retry&node=pay_out")
    rows(page)
    page.get_by_label("Reason").fill("card <b>updated</b>")
    sent = []
    page.on("request", lambda one: sent.append(one.url) if one.method == "POST" else None)
    act(page).dblclick()
    page.get_by_text("Retry asked").wait_for()
    assert len([url for url in sent if "preview=" not in url]) == 1
    assert [one.verb for one in hf.requests(run, store=served.store)] == ["retry"]
    page.reload()
    page.get_by_text("Retry asked").wait_for()
    other = show(tab, served, run)
    other.get_by_text("Retry asked").wait_for()
    other.get_by_text("No worker that knows flow refund has claimed it yet").wait_for(timeout=15_000)
    assert " worker desk.py" in other.locator(".requests .command code").inner_text()
    flag.touch()
    work(served)
    page.locator(".standing .status-word", has_text="completed").wait_for()
    page.get_by_text("Retry asked").wait_for(state="detached")
    assert other.locator("b", has_text="updated").count() == 0


def test_a_resume_that_is_refused_offers_the_same_with_what_it_lacks(tab, served):
    run = start(served, fails="declined")
    page = show(tab, served, f"{run}@3?do=resume")
    page.get_by_role("heading", name="Refused").wait_for()
    assert act(page).is_disabled()
    assert page.get_by_text("It would be refused").is_visible()
    page.get_by_role("button", name="Preview that").click()
    page.locator(f"{DIALOG} h3", has_text="Kept").wait_for()


@pytest.mark.parametrize("verb", ["resume", "retry", "skip", "fork", "cancel", "pause"])
def test_every_verb_works_by_keyboard(tab, served, verb):
    if verb == "pause":
        run = hf.start(served.desk.refund, {}, store=served.store)
    else:
        run = start(served, to="carrier") if verb == "cancel" else start(served, fails="declined")
    page = show(tab, served, f"{run}?node=pay_out")
    page.locator(".standing .status-word").wait_for()
    keys = {"resume": "r", "retry": "t", "skip": "s", "fork": "o"}
    if verb in keys:
        page.locator(".panel-head h2", has_text="pay_out").wait_for()
        page.keyboard.press(keys[verb])
    else:
        page.locator(f'.standing [data-verb="{verb}"]').focus()
        page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('dialog.preview footer .filled')?.disabled === false"
    )
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Reason"
    for _ in range(9):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('dialog.preview footer .filled')"):
            break
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.keyboard.press("Enter")
    assert answered.value.status in (200, 201, 202)
    page.locator(DIALOG).wait_for(state="detached")


def test_a_key_that_is_pressed_before_the_run_was_read_opens_its_dialog_afterwards(tab, served):
    run = start(served, fails="declined")
    one = tab()
    held = []

    def hold(request):
        held.append(request)

    one.context.route(re.compile(rf"/runs/{run}(\?|$)"), hold)
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    go(page, f"{run}?node=pay_out")
    page.locator(".panel-head h2", has_text="pay_out").wait_for()
    page.keyboard.press("t")
    page.wait_for_function("() => location.hash.includes('do=retry')")
    assert page.locator(DIALOG).count() == 0
    for request in held:
        request.continue_()
    one.context.unroute_all()
    page.locator(f"{DIALOG} footer .filled:enabled", has_text="Retry pay_out").wait_for()
    assert "do=" not in page.evaluate("location.hash")


def test_escape_closes_the_dialog_and_the_focus_returns_to_its_opener(tab, served):
    run = start(served)
    page = show(tab, served, run)
    opener = page.locator(".standing").get_by_role("button", name="Fork")
    opener.focus()
    page.keyboard.press("Enter")
    page.locator(DIALOG).wait_for()
    page.keyboard.press("Escape")
    page.locator(DIALOG).wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.verb") == "fork"


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_axe_finds_nothing_in_any_dialog_and_nothing_is_wider_than_the_screen(tab, served, theme, width):
    failed, asks = start(served, fails="declined"), start(served, to="decide")
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 800}}
    page = show(tab, served, failed, **options)
    page.add_script_tag(path=AXE)
    places = [
        f"{failed}@3?do=fork", f"{failed}@3?do=resume", f"{failed}?do=retry&node=pay_out", f"{failed}?do=skip&node=pay_out",
        f"{asks}?do=cancel", f"{asks}?do=pause",
    ]  # fmt: skip
    for place in places:
        go(page, place)
        page.locator(
            f"{DIALOG} footer .filled:not(:disabled), {DIALOG} footer .hint:not(:empty)"
        ).first.wait_for()
        edit = page.locator(f"{DIALOG} footer .quiet-button").first
        if edit.is_visible() and "skip" in place:
            edit.click()
            page.get_by_label("Result as JSON").fill("{")
            page.get_by_text("Not valid JSON").wait_for()
        page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
        found = page.evaluate("axe.run('dialog').then(result => result.violations)")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        dialog = page.locator(DIALOG)
        assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth"), place
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")


def test_a_fork_gets_a_name_in_the_dialog_and_is_compared_with_its_parent_by_an_action_of_its_own(
    tab, served
):
    run = start(served)
    page = show(tab, served, f"{run}@3?do=fork")
    name = page.get_by_label("Name of the fork")
    page.wait_for_function("() => document.querySelector('dialog [aria-label=\"Name of the fork\"]')?.value")
    assert name.input_value() == f"{run}-fork-1"
    name.fill(f"{run}-other-card")
    page.get_by_role("group", name="What the fork does with pay_out").get_by_label("Skip").check()
    page.locator(f"{DIALOG} h3", has_text="Skipped 1").wait_for()
    act(page).click()
    page.wait_for_url(f"**/#/runs/{run}-other-card")
    fact = page.locator(".facts > div", has_text="Forked from")
    fact.get_by_role("link", name=run, exact=True).click()
    page.wait_for_url(f"**/#/runs/{run}")
    page.go_back()
    fact.get_by_role("link", name="Compare with").click()
    page.wait_for_url(f"**/#/compare?a={run}&b={run}-other-card")
    go(page, f"{run}?do=fork")
    page.wait_for_function("() => document.querySelector('dialog [aria-label=\"Name of the fork\"]')?.value")
    assert page.get_by_label("Name of the fork").input_value() == f"{run}-fork-1"
