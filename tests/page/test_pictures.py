"""The pictures in the documents show the page as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_scenes import open_scene
from pictures import FOLDER, SCREENS, Studio, take, words_of

ROOT = Path(__file__).parents[2]
BYTES_MAX = 100_000


@pytest.fixture(scope="module")
def studio(browser, tmp_path_factory):
    with open_scene(tmp_path_factory.mktemp("scene") / "shop") as scene:
        yield Studio(browser, scene)


@pytest.mark.parametrize("name", SCREENS)
def test_a_picture_in_the_documents_shows_what_the_page_shows(studio, name, tmp_path):
    page = studio.open(SCREENS[name])
    (tmp_path / f"{name}.webp").write_bytes(take(page))
    said = words_of(page)
    page.context.close()
    assert said == (FOLDER / f"{name}.txt").read_text("utf-8"), (
        "The page has changed: run `make pictures`, and look at the pictures in docs/pictures."
    )
    assert studio.errors == []


def test_every_picture_is_small_and_shown_in_a_document():
    shown = "\n".join(file.read_text("utf-8") for file in (ROOT / "README.md", ROOT / "docs" / "page.md"))
    used = set(re.findall(r"pictures/([\w-]+)\.webp", shown))
    assert used == set(SCREENS) == {file.stem for file in FOLDER.glob("*.webp")}
    assert [file.name for file in FOLDER.glob("*.webp") if file.stat().st_size > BYTES_MAX] == []
