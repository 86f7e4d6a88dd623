"""The Questions screen in a real browser, over a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from desk_flows import crash, write_desk

import holdfast as hf


@pytest.fixture
def served(serve, tmp_path):
    """A server that executes nothing, over runs that ask."""
    desk = write_desk(tmp_path)
    serving = serve("desk.py", "--no-work", folder=tmp_path)
    serving.desk = desk
    hf.run(desk.refund, {"to": "carrier"}, run_id="parcel-1", store=serving.store)
    hf.run(desk.refund, {"to": "carrier"}, run_id="parcel-2", store=serving.store)
    hf.run(desk.refund, {"to": "decide"}, run_id="refund-1", store=serving.store)
    yield serving
    serving.stop()


def open_questions(tab, served, run: str | None = None, key: str | None = None):
    page = tab().open(served.link)
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/questions" + (f"?run={run}&key={key}" if run else ""))
    page.locator(".question h2").wait_for()
    return page


def listed(page) -> list[str]:
    return page.locator(".question-list code").all_inner_texts()


def test_the_soonest_deadline_is_first_then_the_oldest_question(tab, served):
    page = open_questions(tab, served)
    assert listed(page) == ["refund-1", "parcel-1", "parcel-2"]
    assert page.locator(".question h2").inner_text() == "Refund order 4698?"
    assert page.locator(".question-list a[aria-current] code").inner_text() == "refund-1"


def test_a_question_shows_what_follows_the_state_it_sees_and_how_far_the_run_is(tab, served):
    page = open_questions(tab, served)
    side = page.locator(".question-side")
    assert side.get_by_text("decide completes, then pay_out").is_visible()
    assert side.get_by_text("Without an answer in time").is_visible()
    assert side.locator("dd", has_text="4200").is_visible()
    assert side.locator(".progress-list code").all_inner_texts() == ["load", "decide", "pay_out"]


def test_a_wrong_value_is_named_at_its_field_and_nothing_is_sent(tab, served):
    page = open_questions(tab, served)
    sent = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    page.get_by_label("partial").check()
    page.get_by_label("Cents").fill("8490")
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("At most 4200").wait_for()
    assert sent == []
    page.get_by_label("Cents").fill("4200")
    page.get_by_label("Reason").fill("lamp was broken")
    page.get_by_role("button", name="Answer", exact=True).dblclick()
    page.get_by_text("Answered by").wait_for()
    assert len(sent) == 1
    assert hf.questions("refund-1", store=served.store) == []


def test_a_question_answered_elsewhere_says_by_whom_and_keeps_the_text(tab, served):
    page = open_questions(tab, served)
    page.get_by_label("Note").fill("We are sorry.")
    value = {"decision": "reject", "cents": 1}
    hf.answer("refund-1", "decide", value, by="grace", store=served.store)
    page.get_by_text("Answered by grace").wait_for()
    assert page.get_by_label("Note").input_value() == "We are sorry."
    assert page.get_by_role("button", name="Answered").is_disabled()


def test_an_answer_that_comes_too_late_is_refused_and_says_who_was_first(tab, served):
    one = tab()
    one.allowed = ("422",)  # the browser reports the refusal in its console
    page = one.open(served.link)
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/questions?run=parcel-1&key=carrier.1.1")
    page.get_by_label("air").check()
    hf.answer("parcel-1", "carrier", "sea", by="grace", store=served.store)
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("Answered by grace").wait_for()
    assert page.get_by_label("air").is_checked()


def test_what_was_typed_stays_while_other_questions_are_looked_at(tab, served):
    page = open_questions(tab, served)
    page.get_by_label("Note").fill("We are sorry.")
    page.get_by_label("Note").blur()
    page.keyboard.press("j")
    page.get_by_role("heading", name="Which carrier?").wait_for()
    page.keyboard.press("k")
    page.get_by_role("heading", name="Refund order 4698?").wait_for()
    assert page.get_by_label("Note").input_value() == "We are sorry."


def test_keys_choose_an_option_and_answer(tab, served):
    page = open_questions(tab, served, "parcel-2", "carrier.1.1")
    page.keyboard.press("2")
    assert page.get_by_label("sea").is_checked()
    page.keyboard.press("Control+Enter")
    page.get_by_text("Answered by").wait_for()
    assert hf.questions("parcel-2", store=served.store) == []


def test_a_new_question_waits_until_the_reader_asks_for_it(tab, served):
    page = open_questions(tab, served)
    hf.run(served.desk.refund, {"to": "carrier"}, run_id="parcel-3", store=served.store)
    pill = page.get_by_role("button", name="1 new question")
    pill.wait_for()
    assert listed(page) == ["refund-1", "parcel-1", "parcel-2"]
    pill.click()
    assert listed(page) == ["refund-1", "parcel-1", "parcel-2", "parcel-3"]


def test_a_crashed_node_can_be_retried_skipped_with_a_result_or_aborted(tab, served):
    crash(served.folder, "refund-died", served.store)
    hf.resume("refund-died", flows=[served.desk.refund], store=served.store)
    (asked,) = hf.questions("refund-died", store=served.store)
    page = open_questions(tab, served, "refund-died", asked.question.key)
    cards = page.locator(".question-form .card")
    assert [card.split("\n")[0] for card in cards.all_inner_texts()] == ["retry", "skip", "abort"]
    assert page.get_by_role("heading", name="What is known").is_visible()
    assert page.get_by_label("Result of pay_out").is_hidden()
    page.get_by_label("skip").check()
    page.get_by_label("Result of pay_out").fill('{"paid": ')
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("Not valid JSON").wait_for()
    page.get_by_label("Result of pay_out").fill('{"paid": true}')
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("Answered by").wait_for()


def test_a_token_that_may_only_read_sees_no_form_and_why(tab, served):
    made = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "token", "create", "dashboard", "--role", "read", "--json"],
        cwd=served.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    token = json.loads(made.stdout)["token"]
    page = tab().open(f"{served.url}#token={token}")
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/questions")
    page.get_by_text("Token “dashboard” may only read").wait_for()
    assert page.get_by_role("button", name="Answer", exact=True).count() == 0
    assert page.locator(".question-side").get_by_text("decide completes").is_visible()


def test_on_a_phone_the_list_leads_to_the_question_and_nothing_is_wider_than_the_screen(tab, served):
    page = tab(viewport={"width": 360, "height": 740}).open(served.link)
    page.locator(".run-link").first.wait_for()
    page.goto(f"{served.url}#/questions")
    page.locator(".question-list a").first.click()
    page.get_by_role("heading", name="Refund order 4698?").wait_for()
    assert page.locator(".question-list").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="All questions").click()
    page.locator(".question-list").wait_for()
