"""The pictures of the documents, and what they show in words.

`make pictures` opens each screen of a scene (`page_scenes.py`) in a browser and writes two files for it into `docs/pictures`: the
picture, and the accessible tree of the page without times and process ids. `make pictures ARGS=--check` opens the screens again
and compares the words, so that no picture shows a page of the past; it writes nothing.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from page_scenes import Scene, open_scene

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 760}, "has_touch": True}
SCALE = 1.5  # a picture is shown at about two thirds of its pixels
QUALITY = 50

# A picture shows when it was made; what it shows does not depend on it.
CHANGING = [
    (re.compile(r"(?<=\s)/\S+/shop/"), "/FOLDER/"),
    (re.compile(r"\b(?:\d{4}-\d\d-\d\d |\d{1,2} [A-Z][a-z]{2}, )?\d\d:\d\d(?::\d\d)?\b"), "TIME"),
    (re.compile(r"\b(?:\d+(?:\.\d+)? (?:ms|s|min|h|d)\b ?)+(?:ago\b)?|\bnow\b"), "SPAN "),
    (re.compile(r"\bprocess \d+ on [\w.-]+"), "process PID on HOST"),
    (re.compile(r"\bpid \d+"), "pid PID"),
    (re.compile(r': "([0-9a-f]{12})"$', re.MULTILINE), r": \1"),  # one that looks like a number
    (re.compile(r"\b[0-9a-f]{12}\b"), "DIGEST"),
    (re.compile(r"\b[\d.,]+ [KMGT]?B free\b"), "SIZE free"),
    (re.compile(r"\bvm\b|localhost:\d+|127\.0\.0\.1:\d+"), "HOST"),
]


class Screen(NamedTuple):
    """A screen of the page: where it is, what must be there before it is shown, and what is done with it first."""

    fragment: str
    ready: str
    options: dict[str, Any] = DESK
    act: Callable[[Any], None] = lambda page: None
    store: str = "shop"


def _preview(page: Any) -> None:
    page.get_by_role("button", name="Resume from here").click()
    page.locator("dialog.preview .button.filled").wait_for()


def _fill_form(page: Any) -> None:
    page.get_by_label("refund", exact=True).check()
    page.get_by_label("Amount in cents").fill("8490")
    page.get_by_label("Note to the customer").fill("We are sorry that the lamp arrived broken.")
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("At most 4200", exact=True).wait_for()


def _verify(page: Any) -> None:
    page.get_by_role("button", name="Verify").click()
    page.get_by_role("status").filter(has_text="Verified").wait_for()


STREAMED = "body:has-text('· live') .stream:has-text('more than twenty')"
"""The stream is there with all of its chunks, and the page shows the last event."""

SCREENS = {
    "runs": Screen("#/runs", ".run-link"),
    "run": Screen("#/runs/order-4711", ".error-frames"),
    "live": Screen("#/runs/brief-tides-20", STREAMED),
    "checkpoint": Screen("#/runs/brief-storms-07@CHECKPOINT", ".change"),
    "family": Screen("#/runs/order-4800?view=family", ".family li", store="family"),
    "plan": Screen("#/runs/order-4901?node=ship", ".edge-rule", store="plans"),
    "ledger": Screen(
        "#/runs/order-4904?view=ledger", ".ledger tbody:not(.space) td", act=_verify, store="plans"
    ),
    "policy": Screen("#/questions?run=order-4902", "aside .told", store="plans"),
    "preview": Screen("#/runs/brief-storms-07@PLANNED", ".checkpoint-bar[data-past]", act=_preview),
    "questions": Screen("#/questions?run=refund-0094", "form", act=_fill_form),
    "compare": Screen("#/compare?a=order-4711&b=order-4711-newcard&node=charge", ".compare-side >> nth=1"),
    "doctor": Screen("#/doctor", ".finding"),
    "workers": Screen("#/workers", "table >> nth=1"),
    # The list of all runs, which is shown first, has some that are completed.
    "phone-runs": Screen("#/runs?attention=true", "table:not(:has-text('completed')) .run-link", PHONE),
    "phone-run": Screen("#/runs/order-4711", ".story li", PHONE),
    "dark": Screen("#/runs/brief-tides-20", STREAMED, {**DESK, "color_scheme": "dark"}),
    "first-start": Screen("#/runs", ".first-start", store="new"),
}


def words_of(page: Any) -> str:
    """What the page says, without what differs from one time to the next."""
    page.locator(".spark table").evaluate_all(
        "tables => tables.forEach(table => table.remove())"
    )  # ends by the minute
    said = page.locator("body").aria_snapshot()
    for pattern, word in CHANGING:
        said = pattern.sub(word, said)
    return "\n".join(line.rstrip() for line in said.splitlines()) + "\n"


def take(page: Any) -> bytes:
    """A picture of what the page shows. Playwright itself makes none as WebP, which takes a quarter of the bytes."""
    session = page.context.new_cdp_session(page)
    clip = {"x": 0, "y": 0, **page.viewport_size, "scale": SCALE}
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip})
    session.detach()
    return base64.b64decode(shot["data"])


class Studio:
    """Opens the screens of a scene in a browser."""

    def __init__(self, browser: Any, scene: Scene) -> None:
        self.browser = browser
        self.errors: list[str] = []
        """What was written to the console as an error."""
        scene.work()
        self.links = {
            "shop": scene.serve(),
            "new": scene.serve_new(),
            "family": scene.serve_family(),
            "plans": scene.serve_plans(),
        }
        self.places = _places(scene)

    def open(self, screen: Screen) -> Any:
        """Open a screen, and wait until it shows what it must."""
        context = self.browser.new_context(reduced_motion="reduce", **screen.options)
        context.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        context.on("weberror", lambda fault: self.errors.append(str(fault.error)))
        page = context.new_page()
        link = self.links[screen.store]
        page.goto(link)
        page.locator(".live-word", has_text=re.compile("^Live$")).wait_for()
        fragment = screen.fragment
        for name, seq in self.places.items():
            fragment = fragment.replace(name, str(seq))
        page.evaluate("fragment => { location.hash = fragment }", fragment)
        page.locator(screen.ready).first.wait_for()
        screen.act(page)
        page.locator(".skeleton:visible").first.wait_for(state="detached")
        return page

    def show(self) -> Iterator[tuple[str, Any]]:
        """Open all screens, one after the other."""
        for name, screen in SCREENS.items():
            page = self.open(screen)
            yield name, page
            page.context.close()


def _places(scene: Scene) -> dict[str, int]:
    """The checkpoints that pictures show: where the outline and the plan of a text were completed."""
    import holdfast as hf

    points = hf.checkpoints("brief-storms-07", store=scene.store)
    return {
        name: next(point.seq for point in points if point.node == node)
        for name, node in (("CHECKPOINT", "outline"), ("PLANNED", "plan"))
    }


@contextmanager
def open_studio() -> Iterator[Studio]:
    """Make the scene in a folder that is removed afterwards, and open a browser for it."""
    from bench.page import open_browser

    with (
        tempfile.TemporaryDirectory() as place,
        open_scene(Path(place) / "shop") as scene,
        open_browser() as browser,
    ):
        yield Studio(browser, scene)


def write(folder: Path) -> None:
    """Write the pictures and their words into a folder."""
    folder.mkdir(exist_ok=True)
    with open_studio() as studio:
        for name, page in studio.show():
            made = take(page)
            (folder / f"{name}.webp").write_bytes(made)
            (folder / f"{name}.txt").write_text(words_of(page), "utf-8")
            print(f"{name}.webp  {len(made) / 1000:.0f} KB")


def check(folder: Path) -> list[str]:
    """Compare what the screens say with the words in a folder. Return what is wrong, one text for each picture or error."""
    with open_studio() as studio:
        wrong = [text for name, page in studio.show() if (text := compare(folder, name, words_of(page)))]
        return wrong + [f"an error in the console of the page: {error}" for error in studio.errors]


def compare(folder: Path, name: str, said: str) -> str:
    """Say in which lines the words of a picture differ from what its screen says; nothing if they do not."""
    file = folder / f"{name}.txt"
    kept = file.read_text("utf-8") if file.exists() else ""
    if kept == said:
        return ""
    lines = difflib.unified_diff(
        kept.splitlines(), said.splitlines(), "the picture", "the page", "", "", 0, ""
    )
    return "\n    ".join([f"{name}.webp does not show what the page shows:", *lines])


def main(words: list[str] | None = None) -> int:
    """Write the pictures, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description="Make the pictures of the web page in the documents again.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument(
        "--check", action="store_true", help="compare only, and exit with 1 if a picture differs"
    )
    options = parser.parse_args(words)
    if not options.check:
        write(options.folder)
        return 0
    wrong = check(options.folder)
    if wrong:
        print(*wrong, sep="\n")
        print(f"The page has changed: run `make pictures`, and look at the pictures in {options.folder}.")
    else:
        print(f"All {len(SCREENS)} pictures show what the page shows.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
