"""`make test` prints how far it is in lines that a person can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from progress import describe

CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
import progress
import pytest
import workers

def pytest_addoption(parser):
    workers.add_options(parser)

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.register(workers.Workers(config.option.workers), "workers")
    progress.begin(config)
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_one(number):
    assert number != 7
"""


def test_a_line_says_how_many_tests_are_done_and_for_how_long() -> None:
    assert describe(1360, 6841, 0, 125.0) == "  1,360 of 6,841 tests (19 %), 2:05"
    assert describe(6841, 6841, 2, 601.0) == "  6,841 of 6,841 tests (100 %), 10:01, 2 failed"


def lines_of(folder: Path, *options: str) -> list[str]:
    (folder / "conftest.py").write_text(CONFTEST.format(tests=str(Path(__file__).parent)), "utf-8")
    (folder / "test_some.py").write_text(TESTS, "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--workers",
        "2",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
        *options,
        ".",
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    ).stdout.splitlines()


def test_progress_is_printed_in_lines_and_a_failure_at_once(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    done = [line for line in lines if " of 40 tests (" in line]
    assert len(done) == 20
    assert done[-1].startswith("     40 of 40 tests (100 %), 0:")
    assert done[-1].endswith("1 failed")
    assert lines.index("FAILED test_some.py::test_one[7] (call)") < lines.index(done[-1])
    assert not [line for line in lines if ".." in line]


def test_a_quiet_run_prints_what_pytest_prints(tmp_path: Path) -> None:
    assert not [line for line in lines_of(tmp_path, "-q") if "of 40 tests" in line]
