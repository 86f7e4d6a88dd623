"""The pytest plugin, used by a pytest of its own as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from inner_pytest import pytest_on

ROOT = Path(__file__).parent.parent.parent


def test_the_plugin_is_there_without_being_named() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert declared == {"pytest11": {"holdfast": "holdfast.testing.plugin"}}


def test_the_plugin_is_light() -> None:
    asked = "import sys, pytest, holdfast.testing.plugin; print([n for n in sys.modules if n.startswith('holdfast.runtime')])"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_the_fixtures_run_a_flow_on_a_clock_of_their_own(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("kind", [
    pytest.param("MemoryStore"), pytest.param("SqliteStore", marks=pytest.mark.holdfast(store="sqlite")),
])
def test_an_hour_passes_at_once(holdfast_engine, holdfast_store, manual_clock, kind):
    async def main():
        before = manual_clock.now()
        async with holdfast_engine(flow()) as engine:
            run = await engine.run(engine.flows["flow"], {}, run_id="r")
        assert run.state == {"mailed": True}
        assert manual_clock.now() - before >= 3600
    asyncio.run(main())
    assert type(holdfast_store).__name__ == kind

@pytest.mark.holdfast(auto=False)
def test_the_clock_stands_still(manual_clock):
    async def main():
        at = manual_clock.now()
        manual_clock.call_at(at + 1, lambda: None)
        await asyncio.sleep(0.01)
        assert manual_clock.now() == at
    asyncio.run(main())
"""
    code, said = pytest_on(tests, tmp_path)
    assert code == 0, said
    assert "3 passed" in said


def test_a_flow_that_minds_a_crash_fails_its_test_with_the_report(tmp_path: Path) -> None:
    tests = """
def test_a_careful_flow(crash_everywhere):
    report = crash_everywhere(flow(), {})
    assert report.crashes > 4

def test_a_careless_flow(crash_everywhere):
    crash_everywhere(flow(lambda: sent.append("mail")), {}, observe=lambda: sent, reset=sent.clear)

def test_a_careless_flow_that_is_only_looked_at(crash_everywhere):
    assert not crash_everywhere(flow(lambda: sent.append("mail")), {}, observe=lambda: sent, reset=sent.clear, check=False)
"""
    code, said = pytest_on(tests, tmp_path)
    assert code == 1, said
    assert "1 failed, 2 passed" in said
    assert re.search(r"effect: 'mail' happened \d times \(without a crash: 2\)", said)
    assert "Traceback" not in said


def test_a_store_that_is_damaged_at_the_end_fails_its_test(tmp_path: Path) -> None:
    tests = """
def damage(holdfast_engine, holdfast_store):
    async def main():
        found = flow()
        async with holdfast_engine(found) as engine:
            await engine.run(found, {}, run_id="r")
    asyncio.run(main())
    rows = holdfast_store._data.runs["r"].rows
    del rows[1]

def test_damaged(holdfast_engine, holdfast_store):
    damage(holdfast_engine, holdfast_store)

@pytest.mark.holdfast(check=False)
def test_damaged_on_purpose(holdfast_engine, holdfast_store):
    damage(holdfast_engine, holdfast_store)
"""
    code, said = pytest_on(tests, tmp_path)
    assert code == 1, said
    assert "2 passed, 1 error" in said
    assert "I1 run 'r' event 3: the log has event 3 right after event 1" in said


@pytest.mark.parametrize("given", ["speed=2", "store='postgres'", "'sqlite'"])
def test_a_marker_that_says_something_else_is_refused(given: str, tmp_path: Path) -> None:
    tests = f"""
@pytest.mark.holdfast({given})
def test_it(manual_clock): ...
"""
    code, said = pytest_on(tests, tmp_path)
    assert code == 1, said
    assert "@pytest.mark.holdfast does not accept" in said


def test_the_marker_is_documented(tmp_path: Path) -> None:
    code, said = pytest_on("", tmp_path, "--markers")
    assert code == 0
    assert "@pytest.mark.holdfast(store='memory', auto=True, check=True):" in said
