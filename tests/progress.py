"""What `make test` prints while it runs: a line now and then, with how many tests are done, and each failure at once.

Thousands of dots say little to a person. These lines come with several test processes and the usual verbosity; `-q` (as in
`make check`) and `-v` print what pytest always prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

EVERY_PERCENT = 5
EVERY_S = 20.0


def begin(config: pytest.Config) -> None:
    """Print such lines, if this process reports the tests of several others to a person."""
    is_controller = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if is_controller and terminal is not None and config.getoption("verbose") == 0:
        config.pluginmanager.register(Progress(terminal.write_line))


def describe(done: int, total: int, failed: int, seconds: float) -> str:
    """`  1,360 of 6,841 tests (19 %), 2:05`, with the failures if there are any."""
    percent = 100 * done // total if total else 100
    failures = f", {failed} failed" if failed else ""
    return (
        f"{done:>7,} of {total:,} tests ({percent} %), {int(seconds) // 60}:{int(seconds) % 60:02d}{failures}"
    )


class Progress:
    """Counts the tests that other processes report, and prints a line every few percent, or when some time has passed."""

    def __init__(self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._now = now
        self._began = self._said_at = now()
        self._total = self._done = self._failed = self._said_percent = 0

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print no dots and letters: the lines say it."""
        if hasattr(report, "wasxfail") or (report.passed and report.when != "call"):
            return None
        category = "error" if report.failed and report.when != "call" else report.outcome
        return category, "", category.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._say(f"FAILED {report.nodeid} ({report.when})")
        if report.when != "teardown":
            return
        self._done += 1
        percent, now = 100 * self._done // max(self._total, 1), self._now()
        if percent >= self._said_percent + EVERY_PERCENT or now - self._said_at >= EVERY_S:
            self._said_percent, self._said_at = percent - percent % EVERY_PERCENT, now
            self._say(describe(self._done, self._total, self._failed, now - self._began))
