"""The web page in a real browser: how long it takes until it shows something, over stores and runs as large as it must bear.

The server is `holdfast serve` in a process of its own, and the browser is chromium, driven by playwright. Times are those of the
browser's own clock, from the beginning of a navigation to the frame in which what is measured was painted.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from bench.parts import Bench
from bench.report import Figure, at_most
from bench.server import SIZES, fill
from bench.server_process import TOKEN, ServerProcess, holdfast_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIST_MS = 1000.0
_PAINTED = """selector => new Promise((resolve) => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
        : requestAnimationFrame(look);
    look();
})"""
"""Resolves with the milliseconds since the navigation began, after the frame that shows what a selector finds."""


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


SCENES: tuple[Callable[[Bench], list[Figure]], ...] = (list_runs,)
