"""`--workers N`: every test is executed once and reported, whatever becomes of the process that executes it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

CONFTEST = """
import os, sys
sys.path.insert(0, {tests!r})
import pytest
import workers

def pytest_addoption(parser):
    workers.add_options(parser)

def pytest_configure(config):
    if config.option.workers:
        config.pluginmanager.register(workers.Workers(config.option.workers), "workers")

def note(word):
    with open({notes!r}, "a") as file:
        file.write(f"{{word}} {{os.getpid()}}\\n")

note("collected")

@pytest.fixture(scope="session")
def session_fixture(tmp_path_factory):
    note("session begins")
    yield tmp_path_factory.mktemp("some")
    note("session ends")

@pytest.fixture(scope="module")
def module_fixture(session_fixture):
    note("module begins")
    yield session_fixture
    note("module ends")
"""
TESTS = """
import os, signal, pytest

@pytest.mark.parametrize("number", range(4))
def test_one(module_fixture, number):
    print("said by the test")
    assert module_fixture.is_dir()
"""
KILLED = TESTS + "    if number == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
FAILED = TESTS + "    assert number != 1\n"


def run(
    folder: Path, files: dict[str, str], *options: str
) -> tuple[subprocess.CompletedProcess[str], Counter[str]]:
    """Run the tests, and return how that ended and how often each note was made, in processes other than the first."""
    notes = folder / "notes"
    (folder / "conftest.py").write_text(
        CONFTEST.format(tests=str(Path(__file__).parent), notes=str(notes)), "utf-8"
    )
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    words = ["--workers", "3", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-rA", *options, "."]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return ended, Counter(line.rpartition(" ")[0] for line in notes.read_text("utf-8").splitlines())


def test_files_are_shared_out_and_fixtures_are_those_of_a_file_and_a_worker(tmp_path: Path) -> None:
    ended, notes = run(tmp_path, {f"test_{number}.py": TESTS for number in range(8)})
    assert ended.returncode == 0, ended
    assert "32 passed" in ended.stdout
    assert notes["collected"] == 1
    assert notes["module begins"] == notes["module ends"] == 8
    assert notes["session begins"] == notes["session ends"]
    assert 1 <= notes["session begins"] <= 3
    assert ended.stdout.count("said by the test") == 32


def test_a_test_that_ends_its_process_has_failed_and_those_after_it_are_executed(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, {"test_0.py": TESTS, "test_1.py": KILLED, "test_2.py": TESTS})
    assert ended.returncode == 1, ended
    assert "FAILED test_1.py::test_one[1]" in ended.stdout
    assert "The process of the test ended with signal SIGKILL." in ended.stdout
    assert "1 failed, 11 passed" in ended.stdout


def test_a_failure_is_shown_with_what_its_test_said_and_may_end_the_others(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, {"test_0.py": FAILED})
    assert ended.returncode == 1
    assert "1 failed, 3 passed" in ended.stdout
    assert "assert 1 != 1" in ended.stdout
    ended, _ = run(tmp_path, {"test_0.py": FAILED}, "-x")
    assert ended.returncode == 1
    assert "stopping after 1 failures" in ended.stdout


def test_a_fixture_that_fails_after_the_last_test_is_a_failure(tmp_path: Path) -> None:
    fails = (
        TESTS
        + "\n@pytest.fixture(scope='session', autouse=True)\ndef torn():\n    yield\n    raise OSError('torn')\n"
    )
    ended, _ = run(tmp_path, {"test_0.py": fails})
    assert ended.returncode == 1, ended
    assert "FAILED the end of a test worker" in ended.stdout
    assert "OSError: torn" in ended.stderr


def test_a_file_that_cannot_be_collected_is_reported_and_nothing_is_executed(tmp_path: Path) -> None:
    ended, notes = run(tmp_path, {"test_0.py": TESTS, "test_1.py": "import nothing_of_that_name"})
    assert ended.returncode == 2
    assert "ModuleNotFoundError" in ended.stdout
    assert notes["module begins"] == 0
