"""The screens Workers and Doctor in a real browser, over a real server."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from subprocess import DEVNULL

import pytest
from page_flows import write_flows

import forked
import holdfast as hf
from holdfast.storage.urls import open_store


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    """A server that executes `order`, a queue with a run that no worker takes, a run that failed, and one that asks."""
    folder = tmp_path_factory.mktemp("overview")
    shop = write_flows(folder)
    serving = serve("shop.py:order", folder=folder)
    serving.shop = shop
    with suppress(hf.RunFailed):
        hf.run(shop.refund, {"fails": "declined"}, run_id="refund-broken", store=serving.store)
    hf.run(shop.refund, {"asks": True}, run_id="refund-asks", store=serving.store)
    hf.start(shop.refund, {}, run_id="refund-waits", store=serving.store, queue="slow")
    return serving


def open_screen(tab, served, name: str):
    page = tab().open(served.link)
    page.locator(".run-link").first.wait_for()
    page.get_by_role("link", name=name).first.click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    return page


def test_workers_shows_who_is_alive_and_what_waits(tab, served):
    page = open_screen(tab, served, "Workers")
    page.get_by_text(
        re.compile(r"^1 process is alive and executes 0 runs\. 1 run waits for a worker\.$")
    ).wait_for()
    process = page.get_by_role("table", name="Workers").locator("tbody tr", has_text="takes runs")
    assert process.get_by_text("order").is_visible()
    waiting = page.get_by_role("table", name="Queues").get_by_role("row", name="slow")
    assert waiting.locator("td").nth(1).inner_text() == "1"
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.get_by_role("columnheader", name="Runs held").is_visible()
    held = page.get_by_role("table", name="Workers").locator("td.w-held").first
    assert held.inner_text() == "0"
    assert held.evaluate("cell => cell.getBoundingClientRect().right") <= 360


def test_an_admin_sets_the_limit_of_a_queue(tab, served):
    page = open_screen(tab, served, "Workers")
    page.get_by_role("button", name="Set limit… of queue slow").click()
    page.get_by_label("Runs at the same time").fill("-1")
    page.keyboard.press("Enter")
    page.get_by_text("At least 0").wait_for()
    page.get_by_label("Runs at the same time").fill("5")
    page.keyboard.press("Enter")
    page.get_by_text("0 of 5").wait_for()


def test_doctor_lists_problems_and_waits_with_command_and_button(tab, served):
    page = open_screen(tab, served, "Doctor")
    page.get_by_role("button", name="Examine again").click()
    broken = page.locator(".finding", has_text="refund-broken")
    broken.wait_for()
    assert broken.locator(".status").inner_text() == "failed"
    assert "resume refund-broken" in broken.locator(".command code").inner_text()
    assert broken.get_by_role("link", name="Resume refund-broken").is_visible()
    asks = page.locator("section", has_text="Wait for a person or a program").locator(".finding")
    assert asks.locator(".run-link").all_inner_texts() == ["refund-asks"]
    health = page.locator(".store-health li")
    assert [text.split("\n")[0] for text in health.all_inner_texts()] == [
        "Schema",
        "Clocks",
        "Durable writes",
        "Log",
        "Space",
        "Logs of runs",
    ]
    assert "journal_mode is wal" in health.nth(2).inner_text()
    page.locator('.top-nav .count[data-tone="fail"]').wait_for()


def test_the_two_engines_of_a_server_are_one_process(tab, served):
    page = open_screen(tab, served, "Workers")
    page.get_by_text(re.compile(r"^1 process is alive and executes 0 runs\.")).wait_for()
    assert page.get_by_role("table", name="Workers").locator("td.w-worker").count() == 1


def test_a_question_that_was_answered_is_not_offered_any_more(tab, served):
    hf.run(served.shop.refund, {"asks": True}, run_id="refund-answered", store=served.store)
    page = open_screen(tab, served, "Doctor")
    page.get_by_role("button", name="Examine again").click()
    asks = page.locator(".finding", has_text="refund-answered")
    asks.wait_for()
    hf.answer("refund-answered", "ship", "approve", store=served.store)
    hf.resume("refund-answered", flows=[served.shop.refund], store=served.store)
    page.get_by_role("link", name="Workers").first.click()
    page.get_by_role("link", name="Doctor").first.click()
    page.locator(".finding", has_text="refund-asks").wait_for()
    asks.wait_for(state="detached")


def test_a_stopped_queue_is_named_wherever_a_run_waits_for_it(tab, served):
    store = open_store(str(served.store))
    try:
        store.queues.limit("still", 0)
    finally:
        store.close()
    hf.start(served.shop.order, {}, run_id="order-stopped", store=served.store, queue="still")
    page = open_screen(tab, served, "Workers")
    row = page.get_by_role("table", name="Queues").get_by_role("row", name="still")
    row.get_by_text("stopped").wait_for()
    page.get_by_role("link", name="Runs").first.click()
    page.locator("tr", has_text="order-stopped").get_by_text("queue 'still' is stopped").wait_for()
    page.get_by_role("link", name="Doctor").first.click()
    page.get_by_role("button", name="Examine again").click()
    finding = page.locator(".finding", has_text="order-stopped")
    finding.get_by_text("queue 'still' is stopped").wait_for()
    assert finding.locator(".command code").inner_text().endswith("queue still --no-limit")
    page.evaluate("location.hash = '#/runs/order-stopped'")
    page.locator(".standing-sentence", has_text="queue 'still' is stopped").wait_for()


def test_a_worker_that_was_killed_stays_as_gone(tab, served):
    page = open_screen(tab, served, "Workers")
    words = [sys.executable, "-m", "holdfast.cli", "worker", "shop.py:refund", "--queue", "other"]
    worker = forked.Popen(words, cwd=served.folder, env=served.environment, stdout=DEVNULL, stderr=DEVNULL)
    try:
        row = page.get_by_role("table", name="Workers").get_by_role("row", name=f"process {worker.pid} on")
        row.get_by_text("takes runs").wait_for()
        page.get_by_text("2 processes are alive").wait_for()
    finally:
        worker.kill()
        worker.wait()
    row.get_by_text("gone").wait_for()
    page.get_by_text("1 process is alive").wait_for()
    hf.run(served.shop.order, {}, run_id="after-it", store=served.store)
    page.reload()
    row.get_by_text("gone").wait_for()
