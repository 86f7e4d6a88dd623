"""The pictures in the documents. Whether they show the page as it is, `make pictures ARGS=--check` compares."""

from __future__ import annotations

import re
from pathlib import Path

from pictures import FOLDER, SCREENS, compare

ROOT = Path(__file__).parents[2]
BYTES_MAX = 100_000


def test_every_picture_is_small_and_shown_in_a_document():
    shown = "\n".join(file.read_text("utf-8") for file in (ROOT / "README.md", ROOT / "docs" / "page.md"))
    used = set(re.findall(r"pictures/([\w-]+)\.webp", shown))
    assert used == set(SCREENS) == {file.stem for file in FOLDER.glob("*.webp")}
    assert [file.name for file in FOLDER.glob("*.webp") if file.stat().st_size > BYTES_MAX] == []


def test_a_picture_of_another_page_is_named_with_the_lines_that_differ(tmp_path):
    (tmp_path / "runs.txt").write_text("- heading\n- link of the past\n", "utf-8")
    assert compare(tmp_path, "runs", "- heading\n- link of the past\n") == ""
    wrong = compare(tmp_path, "runs", "- heading\n- link of today\n")
    assert wrong.startswith("runs.webp does not show")
    assert "-- link of the past\n" in wrong
    assert wrong.endswith("+- link of today")


def test_a_picture_without_words_differs(tmp_path):
    assert compare(tmp_path, "runs", "- heading\n").startswith("runs.webp does not show")
