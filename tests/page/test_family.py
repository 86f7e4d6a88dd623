"""The family of a run on its screen: callers, child runs and their questions, in a real browser, over a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast as hf

SOURCE = (Path(__file__).parent / "scene" / "basket.py").read_text("utf-8")


def serve_run(serve, folder: Path, flow: str, run_id: str):
    """Start a server that executes nothing, over one run of a flow and its family."""
    (folder / "basket.py").write_text(SOURCE)
    serving = serve("basket.py", "--no-work", folder=folder)
    flows: dict = {}
    exec(SOURCE, flows)
    hf.run(flows[flow], {}, run_id=run_id, store=serving.store)
    return serving


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    return serve_run(serve, tmp_path_factory.mktemp("family"), "ordered", "order-1")


def member(served, flow: str) -> str:
    """The id of the run of a flow."""
    (run,) = hf.runs(flow=flow, store=served.store)
    return run.id


def open_run(tab, served, fragment: str, **options):
    page = tab(**options).open(served.link)
    page.locator(".run-link").first.wait_for()
    page.evaluate("fragment => { location.hash = fragment }", f"#/runs/{fragment}")
    return page


def rows(page) -> list[tuple[str, str, str]]:
    """Status, id with its indentation, and words of each row of the tree."""
    page.locator(".view-pad .family li").first.wait_for()
    return [
        tuple(
            one.locator(part).text_content()
            for part in (".status-word", ".cut > span >> nth=0", ".hint >> nth=0")
        )
        for one in page.locator(".view-pad .family li").all()
    ]


def test_the_family_is_a_tree_with_status_flow_and_reason_and_leads_to_each_run(tab, served):
    payment, parcel, review = (member(served, flow) for flow in ("payment", "parcel", "review"))
    page = open_run(tab, served, "order-1")
    page.get_by_role("link", name="Family").click()
    page.wait_for_url("**/#/runs/order-1?view=family")
    shown = rows(page)
    assert [(status, text) for status, text, _ in shown] == [
        ("waiting", "order-1"),
        ("failed", f"\u2003{parcel}"),
        ("waiting", f"\u2003{payment}"),
        ("waiting", f"\u2003\u2003{review}"),
    ]
    assert shown[3][2] == "review · called by charge · look asks: Is this card fine?"
    assert page.locator(".family [aria-current]").get_attribute("href") == "#/runs/order-1"
    assert page.locator(".family [data-tone=ask]").count() == 1
    page.locator(f".family a[href='#/runs/{review}']").click()
    page.wait_for_url(f"**/#/runs/{review}")
    page.get_by_role("link", name="Family").click()
    page.locator(".family a[href='#/runs/order-1']:not([aria-current])").wait_for()
    assert [(status, text) for status, text, _ in rows(page)] == [
        ("waiting", "order-1"),
        ("more", "\u2003all its child runs"),
        ("waiting", f"\u2003{payment}"),
        ("waiting", f"\u2003\u2003{review}"),
    ]


def test_a_node_leads_to_the_runs_that_it_called_and_a_run_to_its_caller(tab, served):
    payment = member(served, "payment")
    page = open_run(tab, served, "order-1")
    called = page.locator(".run-panel .family a")
    called.first.wait_for()
    assert page.locator(".panel-head h2").inner_text() == "settle"
    assert "waits for a child" in page.locator(".graph-node").first.text_content()
    assert called.count() == 2
    page.locator(f".run-panel .family a[href='#/runs/{payment}']").click()
    page.wait_for_url(f"**/#/runs/{payment}")
    page.locator(".facts div", has_text="Called by").get_by_role("link", name="order-1").click()
    page.wait_for_url("**/#/runs/order-1")


def test_the_question_of_a_grandchild_is_answered_from_the_caller(tab, served):
    review = member(served, "review")
    page = open_run(tab, served, "order-1")
    page.locator(".standing [data-verb=answer]").click()
    page.wait_for_url(f"**/#/questions?run={review}")
    page.get_by_text("Is this card fine?").first.wait_for()


def test_the_list_of_runs_shows_the_child_runs_of_one_run(tab, served):
    page = open_run(tab, served, "order-1")
    page.evaluate("location.hash = '#/runs?origin=order-1'")
    page.get_by_text("Caller: order-1").wait_for()
    page.locator(".run-link", has_text=re.compile("^order-1$")).wait_for(state="detached")
    assert set(page.locator(".run-link").all_inner_texts()) == {
        member(served, "payment"),
        member(served, "parcel"),
    }
    page.get_by_text("Caller: order-1").click()
    page.get_by_role("link", name="any caller").click()
    page.locator(".run-link", has_text=re.compile("^order-1$")).wait_for()
    assert not page.get_by_text("Caller", exact=True).is_visible()


def test_the_tree_follows_a_child_run_that_moves_without_its_caller(tab, serve, tmp_path):
    serving = serve_run(serve, tmp_path, "ordered", "order-1")
    page = open_run(tab, serving, "order-1?view=family")
    page.locator(".family .status-word", has_text="failed").first.wait_for()
    hf.cancel(member(serving, "parcel"), store=serving.store)
    page.locator(".run-view .family .status-word", has_text="cancelled").wait_for()
    in_panel = page.locator(".run-panel .family .status-word", has_text="cancelled")
    in_panel.wait_for(state="attached")


def test_a_run_without_a_family_has_no_view_of_it(tab, serve, tmp_path):
    serving = serve_run(serve, tmp_path, "reviewed", "review-1")
    page = open_run(tab, serving, "review-1")
    page.get_by_role("link", name="Files").wait_for()
    page.locator(".facts").get_by_text("Held by").wait_for()
    assert page.get_by_role("link", name="Family").count() == 0
