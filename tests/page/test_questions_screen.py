"""The Questions screen in a real browser, over a real server."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from desk_flows import crash, write_desk

import forked
import holdfast as hf

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=alert(1)></script><svg/onload=alert(2)>{{7*7}} javascript:alert(3) \u202eevil"
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes nothing."""
    folder = tmp_path_factory.mktemp("desk")
    desk = write_desk(folder)
    serving = serve("desk.py", "--no-work", folder=folder)
    serving.desk = desk
    return serving


@pytest.fixture
def asked(served):
    """Runs that ask, which ask nothing any more after the test: one with a form and a deadline, then two with options."""
    number = next(NUMBERS)
    ids = SimpleNamespace(refund=f"refund-{number}", parcel=f"parcel-{number}-a", other=f"parcel-{number}-b")
    ask(served, ids.parcel, to="carrier")
    ask(served, ids.other, to="carrier")
    ask(served, ids.refund, to="decide")
    yield ids
    for one in hf.questions(store=served.store):
        hf.cancel(one.run_id, store=served.store)


def ask(served, run_id: str, **state) -> None:
    hf.run(served.desk.refund, state, run_id=run_id, store=served.store)


def open_questions(tab, served, run: str | None = None, key: str | None = None, allowed=(), **options):
    one = tab(**options)
    one.allowed = allowed
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    query = "&".join(f"{name}={value}" for name, value in (("run", run), ("key", key)) if value)
    page.goto(f"{served.url}#/questions?{query}")
    return page


def heading(page, name: str):
    found = page.locator(".question").get_by_role("heading", name=name, exact=True)
    found.wait_for()
    return found


def listed(page) -> list[str]:
    page.locator(".question-list code").first.wait_for()
    return page.locator(".question-list code").all_inner_texts()


def answer_button(page):
    return page.get_by_role("button", name="Answer", exact=True)


def posts(page) -> list[dict]:
    """The bodies that the page sends from now on."""
    sent: list[dict] = []
    page.on(
        "request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None
    )
    return sent


def test_the_soonest_deadline_is_first_then_the_oldest_question(tab, served, asked):
    page = open_questions(tab, served)
    heading(page, "Refund order 4698?")
    assert listed(page) == [asked.refund, asked.parcel, asked.other]
    assert page.locator(".question-list a[aria-current] code").inner_text() == asked.refund


def test_a_question_shows_what_follows_the_state_it_sees_and_how_far_the_run_is(tab, served, asked):
    page = open_questions(tab, served)
    heading(page, "Refund order 4698?")
    side = page.locator(".question-side")
    assert side.get_by_text("decide completes, then pay_out").is_visible()
    assert side.get_by_text("Without an answer in time").is_visible()
    assert side.locator("dd", has_text="4200").is_visible()
    assert side.locator(".progress-list code").all_inner_texts() == ["load", "decide", "pay_out"]


def test_a_wrong_value_is_named_at_its_field_and_nothing_is_sent(tab, served, asked):
    page = open_questions(tab, served)
    heading(page, "Refund order 4698?")
    sent = posts(page)
    page.get_by_label("partial").check()
    page.get_by_label("Cents").fill("8490")
    answer_button(page).click()
    page.locator(".form-field.number").get_by_text("At most 4200", exact=True).wait_for()
    assert page.evaluate("document.activeElement.labels[0].textContent") == "Cents *"
    assert sent == []
    page.get_by_label("Cents").fill("4200")
    page.get_by_label("Reason").fill("lamp was broken")
    answer_button(page).dblclick()
    page.get_by_text("Answered by").wait_for()
    assert len(sent) == 1
    assert hf.questions(asked.refund, store=served.store) == []


def test_each_kind_of_schema_has_its_control(tab, served, asked):
    run_id = f"every-{asked.refund}"
    ask(served, run_id, to="every")
    page = open_questions(tab, served, run_id)
    heading(page, "How is it packed?")
    controls = {
        field.locator("label, legend").first.inner_text().removesuffix(" *"): field.get_attribute(
            "class"
        ).split()[-1]
        for field in page.locator(".question-form > .schema-form > .form-group > *").all()
    }
    assert controls == {
        "Box": "cards", "Carrier": "select", "Fragile": "checkbox", "Weight": "number", "Sku": "line", "Note": "area",
        "Lines": "rows", "Tags": "json",
    }  # fmt: skip
    sent = posts(page)
    page.get_by_label("Weight").fill("heavy")
    page.get_by_label("Tags").fill("{")
    page.get_by_role("button", name="Add a row").click()
    answer_button(page).click()
    page.get_by_text("Not a number").wait_for()
    faults = page.locator(".fault:visible").all_inner_texts()
    assert [fault.split(":")[0] for fault in faults] == [
        "Required", "Required", "Not a number", "Required", "Required", "Required", "Not valid JSON",
    ]  # fmt: skip
    assert sent == []
    page.get_by_label("small").check()
    page.get_by_label("Carrier").select_option("rail")
    page.get_by_label("Fragile").check()
    page.get_by_label("Weight").fill("1.5")
    page.get_by_label("Sku").first.fill(HOSTILE)
    page.get_by_label("Piece", exact=False).fill("2")
    page.locator(".form-row").get_by_label("Sku").fill("A1")
    page.get_by_label("Tags").fill('{"a": 1}')
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()
    assert [one["answer"] for one in sent] == [{
        "box": "small", "carrier": "rail", "fragile": True, "weight": 1.5, "sku": HOSTILE,
        "lines": [{"pieces": 2, "sku": "A1"}], "tags": {"a": 1},
    }]  # fmt: skip
    assert page.locator(".question img, .question svg[onload]").count() == 0


def test_a_question_answered_elsewhere_says_by_whom_and_keeps_the_text(tab, served, asked):
    page = open_questions(tab, served)
    page.get_by_label("Note").fill("We are sorry.")
    value = {"decision": "reject", "cents": 1, "note": HOSTILE}
    hf.answer(asked.refund, "decide", value, by="grace", store=served.store)
    page.get_by_text("Answered by grace").wait_for()
    assert HOSTILE.split("\u202e", maxsplit=1)[0] in page.locator(".question-form .banner").inner_text()
    assert page.get_by_label("Note").input_value() == "We are sorry."
    assert page.get_by_role("button", name="Answered").is_disabled()


def test_an_answer_that_comes_too_late_is_refused_and_says_who_was_first(tab, served, asked):
    page = open_questions(
        tab, served, asked.parcel, allowed=("422",)
    )  # the browser reports a refusal in its console
    page.get_by_label("air").check()
    hf.answer(asked.parcel, "carrier", "sea", by="grace", store=served.store)
    answer_button(page).click()
    page.get_by_text("Answered by grace").wait_for()
    assert page.get_by_label("air").is_checked()


def test_a_question_that_was_withdrawn_says_so(tab, served, asked):
    page = open_questions(tab, served, asked.parcel)
    page.get_by_label("air").check()
    hf.cancel(asked.parcel, store=served.store)
    page.get_by_text("The question was withdrawn").wait_for()
    assert page.get_by_role("button", name="Closed").is_disabled()
    assert page.locator(".question-list a", has_text=asked.parcel).get_by_text("closed").last.is_visible()


def test_a_run_that_asks_nothing_and_one_that_is_not_there_say_so(tab, served, asked):
    hf.run(served.desk.refund, {}, run_id=f"done-{asked.refund}", store=served.store)
    page = open_questions(tab, served, f"done-{asked.refund}")
    page.get_by_role("heading", name="This run asks nothing").wait_for()
    page = open_questions(tab, served, "nothing", "x", allowed=("404",))
    page.locator(".question-detail .banner", has_text="no run 'nothing'").wait_for()


def test_what_was_typed_stays_while_other_questions_are_looked_at(tab, served, asked):
    page = open_questions(tab, served)
    page.get_by_label("Note").fill("We are sorry.")
    page.get_by_label("Note").blur()
    page.keyboard.press("j")
    heading(page, "Which carrier?")
    page.keyboard.press("k")
    heading(page, "Refund order 4698?")
    assert page.get_by_label("Note").input_value() == "We are sorry."


def test_keys_choose_an_option_and_answer(tab, served, asked):
    page = open_questions(tab, served, asked.other)
    heading(page, "Which carrier?")
    page.keyboard.press("2")
    assert page.get_by_label("sea").is_checked()
    page.keyboard.press("Control+Enter")
    page.get_by_text("Answered by").wait_for()
    assert hf.questions(asked.other, store=served.store) == []


def test_a_new_question_waits_until_the_reader_asks_for_it(tab, served, asked):
    page = open_questions(tab, served)
    assert listed(page) == [asked.refund, asked.parcel, asked.other]
    ask(served, f"late-{asked.parcel}", to="carrier")
    pill = page.get_by_role("button", name="1 new question")
    pill.wait_for()
    assert listed(page) == [asked.refund, asked.parcel, asked.other]
    pill.click()
    assert listed(page) == [asked.refund, asked.parcel, asked.other, f"late-{asked.parcel}"]


def test_a_crashed_node_can_be_retried_skipped_with_a_result_or_aborted(tab, served, asked):
    run_id = f"died-{asked.refund}"
    crash(served.folder, run_id, served.store)
    hf.resume(run_id, flows=[served.desk.refund], store=served.store)
    page = open_questions(tab, served, run_id)
    page.get_by_role("heading", name="What is known").wait_for()
    assert page.locator(".question-form .card").all_inner_texts() == ["retry", "skip", "abort"]
    assert page.get_by_label("Result of pay_out").is_hidden()
    page.get_by_label("skip").check()
    page.get_by_label("Result of pay_out").fill('{"paid": ')
    answer_button(page).click()
    page.get_by_text("Not valid JSON").wait_for()
    page.get_by_label("Result of pay_out").fill('{"paid": true}')
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()


def test_a_step_that_has_happened_is_stated_with_its_result_one_after_the_other(tab, served, asked):
    run_id = f"sent-{asked.refund}"
    hf.run(served.desk.parcels, {}, run_id=run_id, store=served.store)
    page = open_questions(tab, served, run_id)
    page.get_by_role("heading", name="What is known").wait_for()
    assert page.get_by_label("Number").is_hidden()
    page.get_by_label("What to do").select_option("label has happened")
    page.get_by_label("Result of label").fill("printed")
    sent = posts(page)
    answer_button(page).click()
    assert sent == []  # the reason is required
    page.get_by_label("Reason").fill("it lies on the counter")
    answer_button(page).click()
    page.get_by_label("send has happened").check()  # one step less: the choices are cards now
    assert page.locator(".question-form .card").all_inner_texts() == [
        "retry",
        "skip",
        "abort",
        "send has happened",
    ]
    page.get_by_label("Number").fill("7")
    page.get_by_label("Reason").fill("the carrier shows it")
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()
    run = hf.resume(run_id, flows=[served.desk.parcels], store=served.store)
    assert (run.status, run.state["sent"]) == ("completed", ["printed", 7])
    assert [one.get("step") for one in sent] == ["label", "send"]


def test_an_answer_by_form_lets_the_run_continue(tab, served, asked):
    page = open_questions(tab, served)
    page.get_by_label("reject").check()
    page.get_by_label("Cents").fill("1")
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()
    page.get_by_role("link", name="Open the run").click()
    page.locator(".standing .status-word").wait_for()
    work = [sys.executable, "-m", "holdfast.cli", "worker", "desk.py", "--until-idle"]
    forked.run(work, cwd=served.folder, env=served.environment, check=True, capture_output=True)
    page.locator(".standing .status-word", has_text="completed").wait_for()
    assert hf.state(asked.refund, store=served.store)["paid"] is True


def test_a_token_that_may_only_read_sees_no_form_and_why(tab, served, asked):
    made = forked.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", f"reader-{asked.refund}", "--role", "read", "--json"],
        cwd=served.folder, env=served.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    page = tab().open(f"{served.url}#token={json.loads(made.stdout)['token']}")
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/questions")
    page.get_by_text(re.compile("Token “reader-.*” may only read")).wait_for()
    assert answer_button(page).count() == 0
    assert page.locator(".question-side").get_by_text("decide completes").is_visible()


def test_on_a_phone_the_list_leads_to_the_question_and_nothing_is_wider_than_the_screen(tab, served, asked):
    ask(served, f"every-{asked.refund}", to="every", text=HOSTILE + "x" * 300)
    page = open_questions(tab, served, viewport={"width": 360, "height": 740})
    page.locator(".question-list a").first.click()
    heading(page, "Refund order 4698?")
    assert page.locator(".question-list").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="All questions").click()
    page.locator(".question-list a").last.click()
    heading(page, "How is it packed?")
    page.get_by_role("button", name="Add a row").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_markup_in_a_question_its_options_and_the_state_stays_text(tab, served, asked):
    run_id = f"hostile-{asked.refund}"
    ask(served, run_id, to="hostile", claim=HOSTILE)
    page = open_questions(tab, served, run_id)
    page.locator(".question h2", has_text="<img src=x").wait_for()
    assert page.locator(".question-list strong", has_text="</script>").is_visible()
    assert page.locator(".card", has_text="<b>yes</b>").is_visible()
    assert page.locator(".question-side dd", has_text="onerror").is_visible()
    page.get_by_label("<b>yes</b>").check()
    page.get_by_label("Reason").fill(HOSTILE)
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()
    assert page.locator(".banner", has_text="{{7*7}}").is_visible()
    assert page.locator("main img, main b, main [onload]").count() == 0


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE: accessibility is not tested; run: npm install")
@pytest.mark.rotating
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_axe_finds_nothing_on_any_question(tab, served, asked, theme, width):
    ask(served, f"every-{asked.refund}", to="every")
    options = {"color_scheme": theme, "bypass_csp": True, "viewport": {"width": width, "height": 800}}
    page = open_questions(tab, served, **options)
    page.locator(".question-list a").first.wait_for()
    page.add_script_tag(path=AXE)
    for run in ("", asked.refund, asked.parcel, f"every-{asked.refund}"):
        page.evaluate("run => { location.hash = `#/questions?run=${run}` }", run)
        page.locator(".question-list a" if not run else f".question-head:has-text('{run}')").first.wait_for()
        if run == f"every-{asked.refund}":
            page.get_by_role("button", name="Add a row").click()
            answer_button(page).click()
            page.get_by_text("Required").first.wait_for()
        found = page.evaluate("axe.run().then(result => result.violations)")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], run
        assert page.evaluate("document.documentElement.scrollWidth") <= width, run


def test_the_question_of_a_fork_about_a_node_that_is_not_idempotent_says_what_is_known_and_is_answered(
    tab, served, asked
):
    origin, fork = f"paid-{asked.refund}", f"again-{asked.refund}"
    hf.run(served.desk.refund, {}, run_id=origin, store=served.store)
    hf.fork(origin, checkpoint=3, run_id=fork, flows=[served.desk.refund], store=served.store)
    hf.resume(fork, flows=[served.desk.refund], store=served.store)
    page = open_questions(tab, served, fork)
    page.get_by_role("heading", name="What is known").wait_for()
    known = page.locator(".question-side section", has_text="What is known")
    assert origin in known.inner_text()
    assert "paid" in known.inner_text()  # what it has returned there
    assert page.locator(".question-form .card").all_inner_texts() == ["run", "skip", "abort"]
    page.get_by_label("run", exact=True).check()
    answer_button(page).click()
    page.get_by_text("Answered by").wait_for()


def test_a_row_of_the_list_keeps_the_time_apart_from_the_run(tab, served, asked):
    page = open_questions(tab, served, asked.parcel)
    row = page.locator(".question-list a", has_text=asked.parcel)
    row.wait_for()
    run, when = (row.locator("span").nth(at).bounding_box() for at in (-2, -1))
    assert when["x"] - (run["x"] + run["width"]) >= 8
