"""A run that moves while it is looked at: in a real browser, over a real server, with real workers that are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from bench import page as bench_page
from bench.server_process import holdfast_server
from live_flows import Hands, write_live

import holdfast as hf
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock

DELAYS = """() => {
    window.delays = [];
    let seen = 0;
    new MutationObserver(() => {
        const text = document.querySelector(".stream-text").textContent.slice(seen);
        const whole = text.slice(0, text.lastIndexOf("\\n") + 1);
        seen += whole.length;
        const now = (performance.timeOrigin + performance.now()) / 1000;
        for (const [, at] of whole.matchAll(/ at ([0-9.]+)/g)) delays.push(now - Number(at));
    }).observe(document.querySelector(".stream"), { subtree: true, childList: true, characterData: true });
}"""
"""Notes how long after it was streamed each line is shown."""


@pytest.fixture(scope="module")
def serving(serve, tmp_path_factory):
    """A server that executes runs of the flows `text` and `agent`, and leaves all others to workers."""
    folder = tmp_path_factory.mktemp("live")
    write_live(folder)
    return serve("live.py:text", "live.py:agent", folder=folder)


@pytest.fixture(scope="module")
def hands(serving):
    made = Hands(serving.folder, serving.store)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def worker(hands):
    """A worker for the flows that the server does not execute."""
    return hands.work("live.py:order", "live.py:story")


def start(hands, flow: str, run_id: str, **given):
    given = {"until": str(hands.file(run_id)), **given}
    hands.call("start", f"live.py:{flow}", "--run-id", run_id, "--input", json.dumps(given))


def show(tab, serving, fragment: str, **options):
    page = tab(**options).open(serving.link)
    page.locator(".top-bar").wait_for()
    page.evaluate("fragment => { location.hash = fragment }", f"#/runs/{fragment}")
    page.locator(".standing").wait_for()
    return page


def status(page, word: str):
    return page.locator(".standing .status-word", has_text=word)


def test_a_run_is_watched_to_its_end_while_its_worker_is_killed_and_another_takes_over(tab, serving, hands):
    first = hands.work("live.py:order")
    start(hands, "order", "o-1")
    page = show(tab, serving, "o-1")
    held = page.locator(".timeline-held")
    held.get_by_text(f"pid {first.pid}").wait_for()
    page.evaluate("window.sameDocument = true")
    first.send_signal(signal.SIGKILL)
    first.wait()
    held.get_by_text("killed", exact=True).wait_for(timeout=30_000)
    page.locator(".timeline path.bar.ask").wait_for()
    status(page, "crashed").wait_for()
    attempt = page.locator(".run-panel .attempts li", has_text="attempt 1")
    attempt.get_by_text("its process died").wait_for()
    assert "running" not in page.locator(".run-panel").inner_text()
    second = hands.work("live.py:order")
    held.get_by_text(f"pid {second.pid} took over").wait_for(timeout=30_000)
    assert held.get_by_text("killed", exact=True).is_visible()
    hands.file("o-1").touch()
    page.locator(".timeline-row text", has_text="1.5 s").wait_for()
    status(page, "completed").wait_for()
    page.locator(".graph-node[data-tone=done]", has_text="charge").wait_for()
    bars = page.locator('.timeline-row [data-visit^="1.1."]')
    page.locator(".bar.live").wait_for(state="detached")
    bars.nth(3).wait_for()
    assert bars.evaluate_all("all => all.map(one => one.getAttribute('class'))") == [
        "bar done",
        "bar ask",
        "bar fail",
        "bar done",
    ]
    assert page.evaluate("sameDocument")
    second.terminate()


def test_a_run_that_is_paused_while_its_node_runs_is_pausing_in_the_head_and_in_the_list(tab, serving, hands):
    first = hands.work("live.py:order")
    start(hands, "order", "o-9")
    page = show(tab, serving, "o-9")
    page.locator(".timeline-held").get_by_text(f"pid {first.pid}").wait_for()
    status(page, "running").wait_for()
    hands.call("pause", "o-9", "--by", "ada", "--reason", "tea time")
    status(page, "pausing").wait_for()
    told = page.locator(".standing").inner_text()
    assert "a pause by ada is recorded (tea time), so the run is paused when charge has ended" in told
    assert page.get_by_role("button", name="Pause").count() == 0
    page.evaluate("location.hash = '#/runs?prefix=o-9'")
    page.locator(".status-word", has_text="pausing").wait_for()
    page.evaluate("location.hash = '#/runs/o-9'")
    first.send_signal(signal.SIGKILL)
    first.wait()
    status(page, "crashed").wait_for(timeout=30_000)
    second = hands.work("live.py:order")
    status(page, "paused").wait_for(timeout=30_000)
    assert "by ada" in page.locator(".standing").inner_text()
    second.terminate()


def test_two_idle_hours_between_two_attempts_are_a_narrow_strip_that_names_them(tab, serving):
    clock = ManualClock(time.time() - 9000)
    graph = hf.Graph("slow")

    @graph.node
    async def charge(state):
        clock.advance(2)
        if clock.now() < began + 60:
            raise hf.Fatal("declined")

    graph.chain(hf.START, charge, hf.END)
    flow, began = graph.compile(), clock.now()

    async def make(engine) -> None:
        with pytest.raises(hf.RunFailed):
            await engine.run(flow, {}, run_id="s-1")
        clock.advance(7200)
        await engine.resume("s-1", force=True, by="ada", reason="card updated")

    execute(serving, flow, make, clock)
    page = show(tab, serving, "s-1")
    page.locator(".fold").wait_for()
    assert 40 <= page.locator(".fold").bounding_box()["width"] <= 62
    assert page.locator(".fold-words").all_text_contents() == ["2 h"]
    assert page.locator(".timeline text", has_text="ada resumed: “card updated”").is_visible()


@pytest.mark.parametrize(("flow", "limit_s"), [("text", 0.5), ("story", 2.0)])
def test_chunks_appear_soon_and_scrolling_up_stops_following(tab, serving, hands, worker, flow, limit_s):
    start(hands, flow, flow, lines=40, pause=0.05)
    page = show(tab, serving, f"{flow}?tab=stream")
    text = page.locator(".stream-text")
    text.get_by_text("It begins <b>here</b>.").wait_for()
    page.evaluate(DELAYS)
    hands.file(flow).touch()
    text.get_by_text("39 at ").wait_for()
    delays = sorted(page.evaluate("delays"))
    assert len(delays) == 40
    assert delays[36] < limit_s, delays
    assert page.locator(".stream-badge").inner_text().startswith("live · 41 chunks")
    at_end = "(one) => one.scrollHeight - one.scrollTop - one.clientHeight < 2"
    assert text.evaluate(at_end)
    text.evaluate("one => { one.scrollTop = 0 }")
    page.get_by_role("button", name="Follow").wait_for()
    hands.let_end(flow)
    page.locator(".stream-badge", has_text="42 chunks").wait_for()
    assert text.evaluate("one => one.scrollTop") == 0
    text.evaluate("one => { one.scrollTop = one.scrollHeight }")
    text.get_by_text("the end").wait_for()
    status(page, "completed").wait_for()
    assert text.inner_text().count("It begins") == 1


def test_what_an_agent_streams_is_shown_as_soon_as_it_streams_unless_the_reader_chose_another_tab(
    tab, serving, hands
):
    start(hands, "agent", "a-1")
    page = show(tab, serving, "a-1")
    panel = page.locator(".run-panel")

    def is_shown(node: str, opened: str) -> None:
        panel.locator("h2", has_text=node).wait_for()
        panel.locator(".panel-head [aria-current]", has_text=opened).wait_for()

    def let(step: str) -> None:
        (serving.folder / f"a-1.go.{step}").touch()

    is_shown("think", "Overview")  # nothing is streamed yet
    let("1")
    panel.locator(".stream-text", has_text="thought 1").wait_for()
    is_shown("think", "Stream")
    let("1.said")
    is_shown("act", "Overview")
    let("1.done")
    is_shown("think", "Stream")  # it has streamed before
    let("2")
    panel.locator(".stream-text", has_text="thought 2").wait_for()
    panel.locator(".panel-head").get_by_role("link", name="Overview").click()
    is_shown("think", "Overview")
    for step in ("2.said", "2.done", "3"):
        let(step)
    page.locator(".panel-head", has_text="iteration 3").wait_for()
    is_shown("think", "Overview")
    for step in ("3.said", "3.done"):
        let(step)
    status(page, "completed").wait_for()
    is_shown("think", "Overview")


def test_a_server_that_comes_back_continues_where_it_was_without_a_gap(tab, serving, hands, worker):
    start(hands, "order", "o-2")
    one = tab()
    one.allowed = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY_RESPONSE",
    )
    page = one.open(serving.link)
    page.locator(".top-bar").wait_for()
    page.evaluate("location.hash = '#/runs/o-2?view=log'")
    seqs = page.locator(".log-seq")
    page.locator(".log code", has_text="charge").first.wait_for()
    before = seqs.all_inner_texts()
    serving.stop()
    page.get_by_text("Not live since").wait_for(timeout=25_000)
    assert seqs.all_inner_texts() == before
    hands.file("o-2").touch()  # the run goes on without the server
    serving.restart("live.py:text", "live.py:agent")
    status(page, "completed").wait_for(timeout=40_000)
    page.get_by_text("Not live since").wait_for(state="hidden")
    page.locator(".view-tools .new-pill").click()
    page.locator(".log summary", has_text="run completed").wait_for()
    shown = [int(seq[1:]) for seq in seqs.all_inner_texts()]
    assert shown == list(range(shown[0], 0, -1))
    assert shown[0] == int(page.locator('.view-head [data-key="log"] .tab-count').inner_text())


def test_after_a_reset_the_run_is_read_anew_and_the_place_stays(tab, serving, hands, worker):
    start(hands, "order", "o-5")
    one, held = tab(), []
    page = one.open(serving.link)
    page.locator(".top-bar").wait_for()
    page.route("**/live?run=o-5", lambda route: held.insert(0, route), times=1)
    with page.expect_request("**/live?run=o-5"):
        page.evaluate("location.hash = '#/runs/o-5?node=charge&view=log'")
    page.locator(".checkpoint-bar .dot").first.wait_for()
    with page.expect_request(lambda asked: "/checkpoints?after=0" in asked.url):
        held[0].fulfill(
            headers={"Content-Type": "text/event-stream"},
            body='id: 1\nevent: reset\ndata: {"seq": 1}\n\n',
        )
    hands.file("o-5").touch()
    status(page, "completed").wait_for()
    assert page.evaluate("location.hash") == "#/runs/o-5?node=charge&view=log"


def test_a_browser_whose_clock_is_an_hour_off_shows_how_long_it_took(tab, serving, hands, worker):
    start(hands, "order", "o-3", pays=True)
    one = tab()
    one.context.add_init_script("const real = Date.now; Date.now = () => real() + 3_600_000;")
    page = one.open(serving.link)
    page.locator(".top-bar").wait_for()
    page.evaluate("location.hash = '#/runs/o-3'")
    page.locator(".timeline .bar.live").wait_for()
    row = page.locator(".timeline-row", has_text="charge")
    assert row.locator(".timeline-time").inner_text().endswith(" s")
    assert "h" not in page.locator(".standing-facts").inner_text().partition("Last event")[2].split("\n")[0]
    hands.file("o-3").touch()
    status(page, "completed").wait_for()


def test_of_a_stream_of_ten_megabytes_the_end_is_shown_and_little_is_kept(tab, serving, hands):
    start(hands, "text", "t-10", lines=1000, width=10_000)
    page = show(tab, serving, "t-10?tab=stream")
    text = page.locator(".stream-text")
    text.get_by_text("It begins").wait_for()
    hands.file("t-10").touch()
    page.locator(".stream-badge", has_text="1,001 chunks").wait_for(timeout=30_000)
    text.get_by_text("999 at ").wait_for()
    hands.let_end("t-10")
    status(page, "completed").wait_for(timeout=30_000)
    text.get_by_text("the end").wait_for(timeout=30_000)
    assert text.evaluate("one => one.textContent.length") <= 100_000
    assert page.get_by_text("The beginning is in the log.").is_visible()
    assert heap_mb(page) < 60
    page.locator(".panel-head").get_by_role("link", name="Overview").click()
    page.locator(".visit-side").wait_for()


def test_a_run_of_ten_thousand_events_is_drawn(tab, serving):
    graph = hf.Graph("fan")

    @graph.node(each=lambda state: list(range(5000)), limit=5000)
    async def embed(item):
        return {}

    graph.chain(hf.START, embed, hf.END)
    flow = graph.compile()
    execute(serving, flow, lambda engine: engine.run(flow, {}, run_id="f-1"))
    page = show(tab, serving, "f-1")
    page.locator(".timeline-row", has_text="5,000").locator("path.bar.done").wait_for()
    assert int(page.locator('.view-head [data-key="log"] .tab-count').inner_text().replace(",", "")) > 10_000
    assert heap_mb(page) < 60


def test_two_hundred_events_a_second_make_no_long_task_and_keep_little_memory(browser, tmp_path):
    with holdfast_server(str(tmp_path / "store.db")) as serving:
        seen = bench_page.watch(browser, serving, tmp_path, 4)
    assert seen.events_per_s > 50
    assert seen.longest_task_ms < bench_page.FRAME_MS
    assert seen.growth_mb < bench_page.GROWTH_MB


def execute(serving, flow, act, clock: ManualClock | None = None) -> None:
    """Let an engine in this process act on the store of the server."""

    async def make() -> None:
        with closing(SqliteStore(serving.store, **({"clock": clock.now} if clock else {}))) as store:
            async with hf.Engine(
                store, flows=[flow], inline=True, **({"clock": clock} if clock else {})
            ) as engine:
                await act(engine)

    with ThreadPoolExecutor() as threads:  # playwright has an event loop in this one
        threads.submit(asyncio.run, make()).result()


def heap_mb(page) -> float:
    """The memory of the page's objects, without those that are not used any more."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1024**2


DEPLOYED = """
import holdfast as hf

graph = hf.Graph("parcel")


@graph.node
async def pack(state, ctx):
    return {"packed": await ctx.wait_for("go")}


for name in NODES:
    graph.node(name=name)(lambda state: {})

flow = graph.chain(hf.START, "pack", *NODES, hf.END).compile()
"""


def test_a_run_that_workers_refuse_after_a_deploy_says_why_in_the_head_and_in_the_list(tab, serving, hands):
    for file, nodes in (("before", "[]"), ("after", '["thank"]')):
        (serving.folder / f"{file}.py").write_text(DEPLOYED.replace("NODES", nodes), "utf-8")
    hands.call("start", "before.py", "--run-id", "p-1")
    page = show(tab, serving, "p-1")
    why = page.locator(".standing")
    why.get_by_text("no live worker takes flow 'parcel'").wait_for()
    refusing = hands.work("after.py")
    why.get_by_text(f"no live worker can continue it: process {refusing.pid} on ").wait_for(timeout=30_000)
    assert "Its flow has changed in shape: node thank is new" in why.inner_text()
    why.get_by_text("Resume it; completed work does not run again (with the flow as it is now).").wait_for()
    page.evaluate("location.hash = '#/runs?attention=true'")
    page.locator("tr, li", has_text="p-1").get_by_text("no live worker can continue it").first.wait_for()
    page.evaluate("location.hash = '#/runs/p-1'")
    taking = hands.work("before.py")
    why.get_by_text("pack waits for the signal 'go'").wait_for(timeout=30_000)
    assert "no live worker" not in why.inner_text()
    for worker in (refusing, taking):
        worker.terminate()
