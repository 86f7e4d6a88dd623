"""The web page in a real browser: how long it takes until it shows something, over stores and runs as large as it must bear.

The server is `holdfast serve` in a process of its own, and the browser is chromium, driven by playwright. Times are those of the
browser's own clock, from the beginning of a navigation to the frame in which what is measured was painted.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.parts import Bench
from bench.report import Figure, at_most
from bench.server import SIZES, fill
from bench.server_process import ROOT, TOKEN, ServerProcess, holdfast_server
from holdfast.core.layout import lay_out

# The headless shell is the same browser without windows, and opens a page with two thirds of the work.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _BROWSERS)), None)
# Each window of a whole browser loads two pages for its address bar and starts a process for a page to come, which takes more
# work than the page itself. Playwright disables `PaintHolding`, too; the last list of features replaces its own.
_LEAN = (
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess,PaintHolding"
)
LIST_MS = 1000.0
LAYOUT_MS, RUN_MS, CHANGE_MS = 400.0, 1500.0, 100.0
_NODES, _EVENTS, _GATES = 1000, 10_000, 9
_PAINTED = """selector => new Promise((resolve) => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
        : requestAnimationFrame(look);
    look();
})"""
"""Resolves with the milliseconds since the navigation began, after the frame that shows what a selector finds."""

_CLICKED = """node => new Promise((resolve) => {
    const find = () => [...document.querySelectorAll(".graph-node")].find((one) => one.children[1].textContent.startsWith(node));
    let clicked = false;
    const look = () => {
        if (!clicked) find()?.click();
        clicked = Boolean(find());
        if (document.querySelector(".panel-head h2")?.innerText === node && find().ariaCurrent)
            requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
        else requestAnimationFrame(look);
    };
    look();
})"""
"""Clicks on a node as soon as it is there, and resolves with the milliseconds since the navigation began, after the frame that
shows it as chosen."""
_WATCH = """node => {
    window.changeDrawn = new Promise((resolve) => {
        let heardAt = 0;
        const parse = JSON.parse;
        JSON.parse = (text, ...rest) => {
            const value = parse(text, ...rest);
            if (value?.kind === "NodeCompleted" && value.node === node) heardAt = performance.now();
            return value;
        };
        const look = () => {
            const box = [...document.querySelectorAll(".graph-node")].find((one) => one.children[1].textContent.startsWith(node));
            if (heardAt && box?.dataset.tone === "done") {
                JSON.parse = parse;
                requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - heardAt)));
            } else requestAnimationFrame(look);
        };
        look();
    });
}"""
"""Makes `changeDrawn` a promise of the milliseconds from an event to the frame that shows its node as completed."""


def page(bench: Bench) -> list[Figure]:
    """Measure everything about the page, on SQLite. Without a browser nothing is measured, and one line says how to get one."""
    if CHROMIUM is None or find_spec("playwright") is None:
        print(
            "PAGE NOT MEASURED: chromium or playwright is missing; on Debian: apt-get install chromium-headless-shell; "
            "pip install '.[dev]'",
            file=sys.stderr,
        )
        return []
    return [figure for scene in SCENES for figure in scene(bench)]


@contextmanager
def open_browser(*options: str) -> Iterator[Any]:
    """Open chromium. While it is open, playwright keeps an event loop running, so a scene fills its store before."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", _LEAN, *options])
        yield browser
        browser.close()


def open_page(browser: Any, serving: ServerProcess, fragment: str = "") -> Any:
    """Open the page in a context of its own, as a reader does who has been there before: the token is in the tab, and files
    that have not changed are in the browser's cache.
    """
    opened = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    url = f"http://127.0.0.1:{serving.port}/"
    opened.goto(f"{url}#token={TOKEN}")
    opened.locator(".top-bar").wait_for()
    opened.goto("about:blank")
    opened.goto(f"{url}{fragment}", wait_until="commit")
    return opened


def painted_ms(opened: Any, selector: str) -> float:
    """Return how long it took from the navigation until an element was painted."""
    return float(opened.evaluate(_PAINTED, selector))


def list_runs(bench: Bench) -> list[Figure]:
    """The Runs screen over a store with very many runs."""
    count = SIZES[bench.effort.name].runs
    with bench.fresh() as place:
        bench.progress.say(f"the page over {count:,} runs")
        fill(place, count, 10)
        took = []
        with holdfast_server(str(place.folder / "store.db")) as serving, open_browser() as browser:
            for _ in bench.each_round(f"the Runs screen over {count:,} runs"):
                opened = open_page(browser, serving)
                took.append(painted_ms(opened, ".runs .run-link"))
                opened.context.close()
    return [Figure(f"the Runs screen painted, {count:,} runs", "ms", took, at_most(LIST_MS))]


def large_run(bench: Bench) -> list[Figure]:
    """The screen of a run of 1,000 nodes and 10,000 events: until a click on a node is answered, and from the arrival of an event
    to the frame that shows it. The last nodes wait for answers, so that there are events to wait for.
    """
    flow = _large_flow()
    layout = [_layout_ms(flow) for _ in bench.each_round("the layout of 1,000 nodes")]
    shown, drawn = [], []
    with bench.fresh() as place:
        url = str(place.folder / "store.db")
        bench.progress.say("a run of 1,000 nodes and 10,000 events")
        run = hf.run(flow, {}, run_id="large", store=url)
        assert run.seq >= _EVENTS, f"only {run.seq} events"
        with holdfast_server(url) as serving, open_browser() as browser:
            for number in bench.each_round(
                "the screen of a run of 1,000 nodes", min(_GATES, bench.effort.rounds)
            ):
                opened = open_page(browser, serving, "#/runs/large?node=n0000")
                shown.append(float(opened.evaluate(_CLICKED, "n0001")))
                opened.locator(".live-dot, [data-live]").first.wait_for()
                drawn.append(_drawn_ms(opened, flow, url, f"gate{number % _GATES}"))
                opened.context.close()
    return [
        Figure("the layout of 1,000 nodes", "ms", layout, at_most(LAYOUT_MS)),
        Figure("a run of 1,000 nodes answers a click", "ms", shown, at_most(RUN_MS)),
        Figure("a change of a run of 1,000 nodes is drawn", "ms", drawn, at_most(CHANGE_MS)),
    ]


def _large_flow() -> hf.Flow[Any]:
    """A flow of four columns with edges between them, in which every node has nine steps; questions come last."""
    graph = hf.Graph("large")

    def work(state: dict[str, Any], ctx: hf.Context) -> None:
        for number in range(9):
            ctx.step(f"step{number}", int)

    names = [f"n{number:04}" for number in range(_NODES - _GATES)]
    for number, name in enumerate(names):
        graph.node(work, name=name)
        graph.edge(names[number - 4] if number >= 4 else hf.START, name)
        if number % 7 == 0 and number > 8:
            graph.edge(names[number - 6], name)
    for number in range(_GATES):
        graph.node(lambda state: None, name=f"gate{number}", approve="Go on?")
        graph.edge(names[-1 - number % 4], f"gate{number}")
        graph.edge(f"gate{number}", hf.END)
    for name in names[-4 + min(4, _GATES) :]:
        graph.edge(name, hf.END)
    return graph.compile()


def _layout_ms(flow: hf.Flow[Any]) -> float:
    begun = time.perf_counter()
    lay_out(flow.definition)
    return (time.perf_counter() - begun) * 1000


def _drawn_ms(opened: Any, flow: hf.Flow[Any], url: str, gate: str) -> float:
    """Answer a question, and return how long the page takes from the arrival of the event to the frame that shows its node as
    completed.
    """
    opened.evaluate(_WATCH, gate)

    def go_on() -> None:
        hf.answer("large", gate, "approve", store=url, flows=[flow])
        hf.resume("large", store=url, flows=[flow])

    going = threading.Thread(target=go_on)
    going.start()
    took = float(opened.evaluate("changeDrawn"))
    going.join()
    return took


# --- a run that moves fast -----------------------------------------------------------------------------

EVENTS_PER_S = 200
FRAME_MS = 100.0
GROWTH_MB = 10.0
_FAST = f"""
import os
import time

import holdfast as hf

graph = hf.Graph("fast")
began = 0.0


@graph.node
def turn(state, ctx):
    global began
    while not os.path.exists(state["go"]):
        time.sleep(0.01)
    began = began or time.time()
    due = began + ctx.iteration / {EVENTS_PER_S // 2}  # a turn is two events
    time.sleep(max(0, due - time.time()))
    return {{"turns": ctx.iteration}}


graph.edge(hf.START, "turn")
graph.branch("turn", lambda state: "turn", ["turn", hf.END])
fast = graph.compile(max_iterations=1_000_000)
"""
_WATCH_FRAMES = """() => {
    window.frames_ms = [];
    let before = performance.now();
    const look = (now) => { frames_ms.push(now - before); before = now; requestAnimationFrame(look); };
    requestAnimationFrame(look);
}"""


@dataclass(frozen=True)
class Watched:
    """What watching a run cost the page."""

    frames_ms: list[float]
    longest_task_ms: float
    """CPU time of the longest task of the page's main thread: what a frame takes on a machine that does nothing else."""
    events_per_s: float
    growth_mb: float
    """By how much the page's memory grew from half-time to the end."""


def watch_fast_run(bench: Bench) -> list[Figure]:
    """A run with 200 events a second, executed by a worker and watched by a page: its longest frame, and its memory."""
    seconds = 5 if bench.effort.name == "quick" else 60
    with bench.fresh() as place:
        bench.progress.say(f"the page of a run with {EVENTS_PER_S} events a second, for {seconds} s")
        with holdfast_server(str(place.folder / "store.db")) as serving, open_browser() as browser:
            seen = watch(browser, serving, place.folder, seconds)
    where = f"{EVENTS_PER_S} events/s for {seconds} s"
    frames = sorted(seen.frames_ms)
    note = f"{seen.events_per_s:.0f} events/s; {len(frames):,} frames, p99 {frames[int(len(frames) * 0.99)]:.0f} ms"
    note += f"; CPU of the longest task {seen.longest_task_ms:.0f} ms"
    return [
        Figure(
            f"the longest frame of a run that is watched, {where}",
            "ms",
            frames[-1:],
            at_most(FRAME_MS),
            note=note,
        ),
        Figure(
            f"growth of the page's memory in the second half, {where}",
            "MB",
            [seen.growth_mb],
            at_most(GROWTH_MB),
        ),
    ]


def watch(browser: Any, serving: ServerProcess, folder: Path, seconds: float) -> Watched:
    """Watch a run for a time. The folder has the store of the server, as `store.db`."""
    (folder / "fast.py").write_text(_FAST, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "holdfast.cli"]
    more: dict[str, Any] = {"env": environment, "cwd": folder, "stdout": subprocess.DEVNULL}
    given = json.dumps({"go": str(folder / "go")})
    start = ["start", "fast.py", "--run-id", "fast", "--input", given, "--store", "store.db"]
    subprocess.run([*command, *start], check=True, **more)
    opened = open_page(browser, serving, "#/runs/fast")
    with subprocess.Popen([*command, "worker", "fast.py", "--store", "store.db"], **more) as worker:
        try:
            opened.locator(".timeline .bar").first.wait_for()
            session = opened.context.new_cdp_session(opened)
            browser.start_tracing(page=opened, categories=["toplevel"])
            opened.evaluate(_WATCH_FRAMES)
            first = _last_seq(opened)
            (folder / "go").touch()
            opened.wait_for_timeout(seconds * 500)
            middle = _heap_mb(session)
            opened.wait_for_timeout(seconds * 500)
            frames, last = opened.evaluate("frames_ms"), _last_seq(opened)
            task = _longest_task_ms(json.loads(browser.stop_tracing()))
            return Watched(frames, task, (last - first) / seconds, _heap_mb(session) - middle)
        finally:
            worker.kill()
            opened.context.close()  # it asks for frames as long as it is open


def _longest_task_ms(trace: Any) -> float:
    """Return the CPU time of the longest task of the page's main thread, from a trace."""
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    names = (one for one in events if one.get("name") == "thread_name")
    main = {(one["pid"], one["tid"]) for one in names if one["args"]["name"] == "CrRendererMain"}
    tasks = (one for one in events if "RunTask" in one["name"] and (one["pid"], one["tid"]) in main)
    return max(float(one.get("tdur", 0)) for one in tasks) / 1000


def _last_seq(opened: Any) -> int:
    """Return the last event that the page shows."""
    return int(opened.locator(".view-head [data-key=log] .tab-count").inner_text().replace(",", ""))


def _heap_mb(session: Any) -> float:
    """Return the memory of the page's objects after everything that is not used any more was collected, in megabytes."""
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1024**2


# --- a slow line ---------------------------------------------------------------------------------------

FIRST_ROWS_MS = 3000.0
_SLOW = {"offline": False, "latency": 600, "downloadThroughput": 50_000, "uploadThroughput": 50_000}


def slow_line(bench: Bench) -> list[Figure]:
    """The first rows on a slow line, for a reader who has never been there: nothing is in the browser's cache."""
    took = []
    with bench.fresh() as place:
        bench.progress.say("the page on a slow line")
        fill(place, 200, 10)
        with holdfast_server(str(place.folder / "store.db")) as serving, open_browser() as browser:
            for _ in bench.each_round("the first rows on a slow line"):
                opened = browser.new_context().new_page()
                session = opened.context.new_cdp_session(opened)
                session.send("Network.enable")
                session.send("Network.emulateNetworkConditions", _SLOW)
                opened.goto(f"http://127.0.0.1:{serving.port}/#token={TOKEN}", wait_until="commit")
                took.append(painted_ms(opened, ".runs .run-link"))
                opened.context.close()
    return [Figure("the first rows with 600 ms and 50 KB/s, cold", "ms", took, at_most(FIRST_ROWS_MS))]


SCENES: tuple[Callable[[Bench], list[Figure]], ...] = (list_runs, slow_line, large_run, watch_fast_run)
