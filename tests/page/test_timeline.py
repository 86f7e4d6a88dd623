"""The timeline and the story of a run as a browser draws them, from times that no test could wait for."""

from __future__ import annotations

from typing import Any

import pytest
from page_flows import write_flows

MOUNT = """async ([file, name, view]) => {
    const made = (await import(new URL(`page/parts/${file}.js`, document.baseURI)))[name];
    window.choices = [];
    window.part = made({choose: choice => choices.push(choice)});
    const main = document.querySelector("main");
    main.className = "screen";
    main.replaceChildren(...(part.tools ? [part.tools] : []), part.element);
    window.view = view;
    part.update(view);
}"""
MARKUP = "<b>bold</b>"


def attempt(seq: int, node: str, started_at: float, ended_at: float, **changes: Any) -> dict[str, Any]:
    place = {"iteration": 1, "execution": 1, "attempt": 1, "status": "completed"}
    return {"seq": seq, "node": node, "started_at": started_at, "ended_at": ended_at, **place, **changes}


def view(attempts: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """What the parts are given: a run whose last attempt failed, unless its marks say otherwise."""
    names = list(dict.fromkeys(one["node"] for one in attempts))
    marks = {"status": "completed", "iteration": 1, "execution": 1, "attempt": 1}
    timeline = {
        "run_id": "r", "seq": 34, "started_at": 0, "ended_at": attempts[-1]["ended_at"], "beginning": "", "next": None,
        "holders": [], "attempts": attempts, "items": [], "waits": [], "acts": [], "forks": [],
    }  # fmt: skip
    return {
        "timeline": {**timeline, **changes}, "nodes": [{"name": name, "mark": marks} for name in names],
        "chosen": names[-1], "checkpoint": None, "now": 9000,
    }  # fmt: skip


FAILED = view(
    [
        attempt(2, MARKUP, 0, 2),
        attempt(8, "charge", 2, 4, status="crashed"),
        attempt(14, "charge", 10, 12, attempt=2, status="failed", retry_at=17, error=f"Declined: {MARKUP}"),
        attempt(32, "charge", 8799, 8803, attempt=3, status="failed", error="Declined"),
    ],
    holders=[
        {"seq": 1, "holder": "w-2a9", "started_at": 0, "ended_at": 4, "end": "died"},
        {"seq": 12, "holder": "w-7c1", "started_at": 10, "ended_at": 8803, "end": "released"},
    ],
    waits=[{"seq": 9, "kind": "holder", "started_at": 4, "ended_at": 10, "reason": "no holder"}],
    acts=[{"seq": 30, "at": 8799, "verb": "resume", "by": "ada", "reason": MARKUP}],
)


@pytest.fixture(scope="module")
def serving(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("timeline")
    write_flows(folder)
    return serve("shop.py", "--no-work", folder=folder)


@pytest.fixture
def page(bare_page):
    return bare_page


def test_a_fork_says_in_one_sentence_where_its_earlier_events_are(page):
    words = "Earlier events are in the log of run 'order-4711'."
    forked = {**FAILED, "timeline": {**FAILED["timeline"], "beginning": words}}
    page.evaluate(MOUNT, ["timeline", "createTimeline", forked])
    assert page.locator(".timeline-beginning").inner_text() == words


def test_two_idle_hours_are_a_narrow_strip_that_names_them_and_can_be_unfolded(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", FAILED])
    assert 40 <= page.locator(".fold").bounding_box()["width"] <= 62
    assert page.locator(".fold-words").text_content() == "2 h 26 min"
    page.get_by_label("Fold idle time").uncheck()
    page.locator(".fold").wait_for(state="detached")


KILLED = view(
    [
        attempt(2, "extract", 0, 9, status="crashed"),
        attempt(90, "extract", 4089, 4098, attempt=2),
    ],
    holders=[
        {"seq": 1, "holder": "w-2a9", "started_at": 0, "ended_at": 9, "end": "died"},
        {"seq": 80, "holder": "w-7c1", "started_at": 4089, "ended_at": 4098, "end": "released"},
    ],
    items=[
        {"seq": 3, "node": "extract", "iteration": 1, "execution": 1, "items": 200, "started_at": 0, "ended_at": 9,
         "attempts": 40, "counts": {"completed": 32, "crashed": 8, "pending": 160}, "running": [8] * 10,
         "failed": [0] * 9 + [8], "crashed": [0] * 9 + [8]},
        {"seq": 91, "node": "extract", "iteration": 1, "execution": 1, "items": 200, "started_at": 4089, "ended_at": 4098,
         "attempts": 168, "counts": {"completed": 168}, "running": [8] * 10, "failed": [0] * 10, "crashed": [0] * 10},
    ],
    waits=[{"seq": 70, "kind": "holder", "started_at": 9, "ended_at": 4089, "reason": "no holder"}],
)  # fmt: skip
"""A process dies among 200 items, and another claims the run after 68 minutes."""


def test_the_hour_after_a_crash_among_many_items_is_folded_and_the_items_that_were_killed_are_amber(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", KILLED])
    assert 40 <= page.locator(".fold").bounding_box()["width"] <= 62
    assert page.locator(".timeline-held text").all_text_contents() == ["w-2a9", "killed", "w-7c1 took over"]
    width = page.locator(".timeline").bounding_box()["width"]
    ran = [one.bounding_box()["width"] for one in page.locator(".timeline-row .bar.done").all()]
    assert len(ran) == 2
    assert min(ran) > width / 4
    killed = page.locator(".timeline-row .bar.ask").bounding_box()
    assert 5 < killed["width"] < width / 4


def test_who_died_where_is_drawn_and_markup_stays_text(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", FAILED])
    assert page.locator(".timeline-held text").all_text_contents() == ["w-2a9", "killed", "w-7c1 took over"]
    assert page.locator("path.bar.ask").count() == 1
    assert page.locator(".timeline code").first.text_content() == MARKUP
    assert page.locator(".gem.accent title").text_content() == f"ada resumed: “{MARKUP}”"
    assert page.locator(".timeline b").count() == 0


def test_a_bar_chooses_its_attempt_and_a_label_its_node(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", FAILED])
    page.locator('[data-visit="1.1.2"]').click()
    page.get_by_role("button", name="charge").click()
    assert page.evaluate("choices.map(one => [one.node, one.visit ?? ''])") == [
        ["charge", "1.1.2"],
        ["charge", ""],
    ]


def test_dragging_zooms_time_and_a_double_click_shows_all_of_it(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", FAILED])
    box = page.locator(".timeline").bounding_box()
    whole = page.get_by_role("button", name="Show all of the time")
    assert whole.is_hidden()
    page.mouse.move(box["x"] + 206, box["y"] + 75)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 75, steps=4)
    assert page.locator(".marked").bounding_box()["width"] > 50
    page.mouse.up()
    whole.wait_for()
    assert page.locator(".fold").count() == 0
    assert page.evaluate("choices") == []
    page.mouse.dblclick(box["x"] + 400, box["y"] + 75)
    whole.wait_for(state="hidden")
    assert page.locator(".fold").count() == 1


def test_an_update_keeps_the_focus(page):
    page.evaluate(MOUNT, ["timeline", "createTimeline", FAILED])
    page.get_by_role("button", name="charge").focus()
    page.evaluate("part.update({...view, timeline: {...view.timeline}, now: 9001})")
    assert page.evaluate("document.activeElement.querySelector('code').textContent") == "charge"


def test_of_a_thousand_rows_those_in_view_are_drawn_and_completed_ones_can_be_hidden(page):
    many = view([attempt(seq, f"n{seq}", seq, seq + 1) for seq in range(1000)])
    many["nodes"][500] = {**many["nodes"][500], "mark": {**many["nodes"][500]["mark"], "status": "failed"}}
    page.evaluate(MOUNT, ["timeline", "createTimeline", many])
    labels = page.locator(".timeline-rows code")
    assert labels.count() < 100
    assert page.get_by_role("button", name="n999").is_visible(), "the chosen row is in view"
    page.get_by_label("Hide completed").check()
    page.locator(
        ".timeline-rows code", has_text="n500"
    ).wait_for()  # the rows in view are drawn again in the next frame
    assert labels.all_text_contents() == ["n500", "n999"]


def test_a_story_is_newest_first_and_an_entry_chooses_its_node(page):
    page.evaluate(MOUNT, ["story", "createStory", FAILED])
    assert page.locator(".story-body > :first-child").all_text_contents() == [
        "charge attempt 3 failed, run failed",
        "ada resumed",
        "charge attempt 2 failed",
        "charge attempt 1 crashed",
        MARKUP,
    ]
    assert page.locator(".story .tag:visible").all_text_contents() == ["2 h 26 min"]
    page.get_by_text("attempt 1 crashed").click()
    assert page.evaluate("choices") == [{"node": "charge"}]
