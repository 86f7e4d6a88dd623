"""The web page in a real browser: how long it takes until it shows something, over stores and runs as large as it must bear.

The server is `holdfast serve` in a process of its own, and the browser is chromium, driven by playwright. Times are those of the
browser's own clock, from the beginning of a navigation to the frame in which what is measured was painted.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import holdfast as hf
from holdfast.core.layout import lay_out

from bench.parts import Bench
from bench.report import Figure, at_most
from bench.server import SIZES, fill
from bench.server_process import TOKEN, ServerProcess, holdfast_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
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
    const find = () => [...document.querySelectorAll(".graph-node")].find((one) => one.innerText.startsWith(node));
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
            const box = [...document.querySelectorAll(".graph-node")].find((one) => one.innerText.startsWith(node));
            if (heardAt && box?.dataset.tone === "done") {
                JSON.parse = parse;
                requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - heardAt)));
            } else requestAnimationFrame(look);
        };
        look();
    });
}"""
"""Makes `changeDrawn` a promise of the milliseconds from the arrival of the event to the frame that shows its node as completed."""


def page(bench: Bench) -> list[Figure]:
    """Measure everything about the page, on SQLite. Without a browser nothing is measured, and one line says how to get one."""
    if CHROMIUM is None or find_spec("playwright") is None:
        print(
            "PAGE NOT MEASURED: chromium or playwright is missing; on Debian and Ubuntu: apt-get install chromium; "
            "pip install '.[dev]'",
            file=sys.stderr,
        )
        return []
    return [figure for scene in SCENES for figure in scene(bench)]


@contextmanager
def open_browser() -> Iterator[Any]:
    """Open chromium. While it is open, playwright keeps an event loop running, so a scene fills its store before."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
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
            for number in bench.each_round("the screen of a run of 1,000 nodes", min(_GATES, bench.effort.rounds)):
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


SCENES: tuple[Callable[[Bench], list[Figure]], ...] = (list_runs, large_run)
