"""Real browsers for the tests of the page: Debian's chromium, with a real `holdfast serve` on loopback.

One browser serves all tests of a test worker. Playwright marks its event loop as running as long as it is open, also between two
calls, and a test that calls `asyncio.run` would then be refused; so the mark is there only while a test uses the browser. Each
test has a context of its own, so that nothing is stored between tests. Every error in the console of a page fails its test.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.page import CHROMIUM, open_browser

import forked
from holdfast.server import page_files

PATIENCE_S = 10
NOTHING = "There is nothing at this address"
VIEWPORT = {"width": 1440, "height": 900}
ONE_PROCESS = "--renderer-process-limit=1"
"""Pages that are open at the same time share a process, because to start one takes a sixth of the work for a page."""
MODULES = re.compile(r"/page/((?:pure|shell|parts|screens)/\w+\.js)$")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser, keep one of the tests that need it, which is skipped: one line then says what is missing."""
    if CHROMIUM is None:
        missing = "chromium is missing; on Debian: apt-get install chromium-headless-shell"
    elif find_spec("playwright") is None:
        missing = "playwright is missing; run: pip install '.[dev]'"
    else:
        return
    in_browser = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    for item in in_browser[:1]:
        item.add_marker(pytest.mark.skip(reason=f"{len(in_browser)} TESTS NEED A BROWSER: {missing}"))
    left_out = in_browser[1:]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


class OpenBrowser:
    """The browser of a test worker, while no test uses it: its event loop is not marked as running."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    @contextmanager
    def use(self) -> Iterator[Any]:
        """Mark the event loop of playwright as running, for calls of the browser."""
        asyncio._set_running_loop(self._loop)
        try:
            yield self._browser
        finally:
            asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def open_browser_of_worker() -> Iterator[OpenBrowser]:
    """The browser of a test worker, which is opened for the first test that uses it."""
    with ExitStack() as until_closed:
        opened = OpenBrowser(until_closed.enter_context(open_browser(ONE_PROCESS)))
        yield opened
        with opened.use():
            until_closed.close()


@pytest.fixture
def browser(open_browser_of_worker: OpenBrowser) -> Iterator[Any]:
    """The browser, for one test. The contexts that a test opens are closed by the test."""
    with open_browser_of_worker.use() as one:
        yield one


class Serving:
    """A process of `holdfast serve` over the store of a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        (folder / "pyproject.toml").touch()
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))
        }
        paths = os.pathsep.join(path for path in sys.path if path)
        self.environment = clean | {"PYTHONPATH": paths, "HOME": str(folder)}
        self.process = self.start(*words, "--port", "0")
        self.link = self.process.stdout.readline().rstrip()
        self.url, _, self.token = self.link.partition("#token=")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `holdfast serve` with these words."""
        return forked.Popen(
            [sys.executable, "-m", "holdfast.cli", "serve", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def restart(self, *words: str) -> None:
        """Start the server again at the same port, after it was stopped."""
        port = self.url.rstrip("/").rpartition(":")[2]
        self.process = self.start(*words, "--port", port)
        self.process.stdout.readline()

    def stop(self) -> None:
        """End the server, whatever it does."""
        self.process.kill()
        self.process.communicate()

    @property
    def store(self) -> Path:
        """The store of the folder, for an engine in the test."""
        return self.folder / ".holdfast" / "runs.db"


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts servers, each in a folder of its own unless one is given, and stops them after the module."""
    begun: list[Serving] = []

    def start(*words: str, folder: Path | None = None) -> Serving:
        begun.append(Serving(folder or tmp_path_factory.mktemp("served"), *words))
        return begun[-1]

    yield start
    for serving in begun:
        if serving.process.poll() is None:
            serving.stop()


class Tab:
    """Opens pages that must have no error in their console. Nothing moves in them by itself, because drawing what moves is
    work that no test needs.
    """

    def __init__(self, browser: Any, **options: Any) -> None:
        usual = {"viewport": VIEWPORT, "reduced_motion": "reduce"}
        self.context = browser.new_context(**{**usual, **options})
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.errors: list[str] = []
        self.allowed: tuple[str, ...] = ()
        """Parts of errors that a test expects, such as a connection that is refused while the server is stopped."""
        self.context.route(MODULES, self.send_module)
        self.context.on("console", self.hear)
        self.context.on("weberror", lambda fault: self.note(str(fault.error)))

    @staticmethod
    def send_module(route: Any) -> None:
        """Send a module of the page by itself, to a test of one part. A server sends all of them as one script."""
        name = MODULES.search(route.request.url)[1]
        route.fulfill(body=page_files.modules()[name], content_type=page_files.TYPES[".js"])

    def hear(self, said: Any) -> None:
        """Note an error in the console, with the address that it is about."""
        if said.type == "error":
            self.note(f"{said.text} {said.location['url']}")

    def note(self, text: str) -> None:
        if not any(part in text for part in self.allowed):
            self.errors.append(text)

    def open(self, url: str) -> Any:
        """Open a page."""
        page = self.context.new_page()
        page.goto(url)
        return page


class KeptTab(Tab):
    """A tab that the tests of a module share: to load a page takes five times the work of following a link inside of it."""

    def __init__(self, browser: Any) -> None:
        super().__init__(browser)
        self._pages: dict[str, Any] = {}

    def open(self, url: str) -> Any:
        """Show the first screen of a server, whose link this is. Its page is loaded for the first test alone."""
        origin = url.partition("#")[0]
        if origin not in self._pages:
            self._pages[origin] = super().open(url)
            return self._pages[origin]
        page = self._pages[origin]
        page.evaluate("location.hash = '#/runs'")
        return page

    def page_of(self, url: str) -> Any:
        """Return the page of a server, between two screens."""
        origin = url.partition("#")[0]
        if origin not in self._pages:
            self.open(url).locator(".top-nav").wait_for()
            self.clear()
        return self._pages[origin]

    def clear(self) -> None:
        """Leave what a test has done to the pages. In between they show a screen that leaves its element alone."""
        self.allowed = ()
        for origin, page in self._pages.items():
            page.unroute_all(behavior="wait")
            if page.viewport_size != VIEWPORT:
                page.set_viewport_size(VIEWPORT)
            page.mouse.move(0, 0)
            if page.url != f"{origin}#/nothing":
                page.goto(f"{origin}#/nothing")
                page.get_by_role("heading", name=NOTHING).wait_for()
            page.evaluate("localStorage.clear()")

    def close_pages(self) -> None:
        """Load all pages again for the next test, because this one has failed and may have left anything."""
        for page in self._pages.values():
            page.close()
        self._pages.clear()


class Tabs:
    """Makes the tabs of a test."""

    def __init__(self, browser: Any, kept: KeptTab) -> None:
        self._browser = browser
        self._kept = kept
        self.made: list[Tab] = []

    def __call__(self, **options: Any) -> Tab:
        """Make a tab in a context of its own, for a test that changes more than the page: the token, the clock, the network."""
        self.made.append(Tab(self._browser, **options))
        return self.made[-1]

    def kept(self, **options: Any) -> Any:
        """Return the tab that the tests of the module share, or one of its own if it needs other options."""
        if options:
            return self(**options)
        if self._kept not in self.made:
            self.made.append(self._kept)
        return self._kept


@pytest.fixture(scope="module")
def kept_tab(open_browser_of_worker: OpenBrowser) -> Iterator[KeptTab]:
    """The tab that the tests of a module share."""
    with open_browser_of_worker.use() as one:
        made = KeptTab(one)
    yield made
    with open_browser_of_worker.use():
        made.context.close()


@pytest.fixture
def tab(browser: Any, kept_tab: KeptTab, request: pytest.FixtureRequest) -> Iterator[Tabs]:
    """Makes tabs (`tab.kept()`, `tab()`, or `tab(color_scheme="dark")`), and checks that their consoles had no error."""
    tabs, failures = Tabs(browser, kept_tab), request.session.testsfailed
    yield tabs
    errors = [error for one in tabs.made for error in one.errors]
    for one in tabs.made:
        if one is not kept_tab:
            one.context.close()
    kept_tab.errors = []
    if errors or request.session.testsfailed > failures:
        kept_tab.close_pages()
    elif kept_tab in tabs.made:
        kept_tab.clear()
    assert errors == []


@pytest.fixture
def bare_page(tab: Tabs, serving: Serving) -> Any:
    """A page of the module's server with an empty screen, for tests of parts that put themselves into it."""
    page = tab.kept().page_of(serving.link)
    page.evaluate("document.querySelectorAll('main > *, dialog').forEach((one) => one.remove())")
    return page
