"""What `make test` prints while it runs: a line now and then, with how many tests are done, and each failure at once. At its end
it prints how long it took and the folders that took longest, and a whole run that takes too long fails.

Thousands of dots say little to a person. These lines come with several test processes and the usual verbosity; `-q` (as in
`make check`) and `-v` print what pytest always prints.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

EVERY_PERCENT = 5
EVERY_S = 20.0
WHOLE = 10_000
"""A run with this many tests is a whole one, and must end in time."""
MINUTES_WANTED, MINUTES_MAX = 6, 8
FOLDERS_SHOWN = 8


def begin(config: pytest.Config) -> None:
    """Print such lines, if this process reports the tests of several others to a person."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if config.option.workers and terminal is not None and config.getoption("verbose") == 0:
        progress = Progress(terminal.write_line, is_ci=bool(os.environ.get("CI")))
        config.pluginmanager.register(progress, "progress")


def describe(done: int, total: int, failed: int, seconds: float) -> str:
    """`  1,360 of 6,841 tests (19 %), 2:05`, with the failures if there are any."""
    percent = 100 * done // total if total else 100
    failures = f", {failed} failed" if failed else ""
    return (
        f"{done:>7,} of {total:,} tests ({percent} %), {int(seconds) // 60}:{int(seconds) % 60:02d}{failures}"
    )


class Progress:
    """Counts the tests that other processes report, and prints a line every few percent, or when some time has passed."""

    def __init__(
        self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic, *, is_ci: bool = False
    ) -> None:
        self._say = say
        self._is_ci = is_ci
        self._folders: Counter[str] = Counter()
        self._now = now
        self._began = self._said_at = now()
        self._total = self._done = self._failed = self._said_percent = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print no dots and letters: the lines say it."""
        if hasattr(report, "wasxfail") or (report.passed and report.when != "call"):
            return None
        category = "error" if report.failed and report.when != "call" else report.outcome
        return category, "", category.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._folders[report.nodeid.partition("::")[0].rpartition("/")[0]] += report.duration
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a whole run that took too long. A machine that runs CI may be busy with other work: there it is a warning."""
        seconds = self._now() - self._began
        if self._done >= WHOLE and seconds > MINUTES_MAX * 60 and not self._is_ci and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self) -> None:
        for line in describe_time(
            self._now() - self._began, self._folders, is_whole=self._done >= WHOLE, is_ci=self._is_ci
        ):
            self._say(line)


def describe_time(seconds: float, folders: Counter[str], *, is_whole: bool, is_ci: bool) -> list[str]:
    """The time of the run, the folders whose tests took longest, and what a whole run should have taken."""
    lines = [
        f"{int(seconds) // 60}:{int(seconds) % 60:02d}, of which the tests of several workers took, by folder:"
    ]
    lines += [f"{took:>7.0f} s  {folder}" for folder, took in folders.most_common(FOLDERS_SHOWN)]
    if is_whole and seconds > MINUTES_MAX * 60:
        verdict = "WARNING" if is_ci else "TOO SLOW"
        lines.append(
            f"{verdict}: all tests should take {MINUTES_WANTED} minutes on 2 cores, and {MINUTES_MAX} at most."
        )
    return lines
