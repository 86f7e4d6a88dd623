"""The modules of the page, without a browser: Node's test runner over their pure part, the type checker over all of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "holdfast" / "server" / "page"
NODE = shutil.which("node")
CHECKER = ROOT / "node_modules" / ".bin" / "tsc"


def run(*words: str | Path) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(
    NODE is None, reason="NO NODE: the page's modules are not tested; on Debian: apt install nodejs npm"
)
def test_the_pure_modules_pass_their_tests():
    assert "# fail 0" in run("node", "--test-reporter=tap", Path(__file__).with_name("all_tests.js"))


@pytest.mark.skipif(
    NODE is None or not CHECKER.exists(),
    reason="NO TYPE CHECKER: the page's types are not checked; run: npm install",
)
def test_the_types_of_all_modules_agree():
    run(CHECKER, "--project", "tsconfig.json")


FOLDERS = {
    "pure": {"pure"},
    "shell": {"pure", "shell"},
    "parts": {"pure", "shell", "parts"},
    "screens": {"pure", "shell", "parts", "screens"},
}
"""Folder of the page -> the folders that its modules may import."""
IMPURE = re.compile(
    r"\b(?:document|window|location|history|localStorage|sessionStorage|navigator|fetch|Date\.now|setTimeout)\b"
)


@pytest.mark.parametrize(
    "file", sorted(PAGE.glob("*/*.js")), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_a_module_imports_only_what_its_folder_may(file):
    text = file.read_text("utf-8")
    imported = {
        (file.parent / path).resolve().parent.name
        for path in re.findall(r'^(?:import|export) .*from "([^"]+)"', text, re.MULTILINE)
    }
    assert imported <= FOLDERS[file.parent.name]
    if file.parent.name == "pure":
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        assert IMPURE.findall(code) == []


@pytest.mark.parametrize("file", sorted(PAGE.rglob("*.js")), ids=lambda file: file.stem)
def test_a_module_says_what_it_owns_and_is_small(file):
    lines = file.read_text("utf-8").splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= 400
    assert [number for number, line in enumerate(lines, 1) if len(line) > 130] == []
