"""The modules of the page, without a browser: Node's test runner over their pure part, the type checker over all of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    assert "# fail 0" in run("node", "--test", "--test-reporter=tap", "tests/page/")


@pytest.mark.skipif(
    NODE is None or not CHECKER.exists(),
    reason="NO TYPE CHECKER: the page's types are not checked; run: npm install",
)
def test_the_types_of_all_modules_agree():
    run(CHECKER, "--project", "tsconfig.json")
