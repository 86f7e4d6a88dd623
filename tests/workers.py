"""Runs tests in several processes (`--workers 4`), which are forked when all tests have been collected.

To import and collect all test files takes many seconds, and each process that does it for itself takes them again. A forked
worker has everything already, in memory that it shares with the others. Workers take one file at a time, in our order, so the
fixtures of a module are made once. The fixtures of a session are made once for each worker.

This process executes no test: it hands out files and reports what the workers send. If a worker ends in the middle of a test,
that test has failed, and another worker continues with the tests after it.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections import deque
from multiprocessing import connection
from typing import Any, NamedTuple

import pytest

CRASHED = "The process of the test ended with {}. What it wrote last is above."
AT_ITS_END = "the end of a test worker"


class Stretch(NamedTuple):
    """Tests of one file that a worker executes: the items from `first` up to, but not including, `last`."""

    first: int
    last: int


class Worker(NamedTuple):
    pid: int
    pipe: connection.Connection


def add_options(parser: pytest.Parser) -> None:
    parser.getgroup("selection of tests").addoption(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="run the tests in N forked processes (default: in this one)",
    )


def files_of(items: list[pytest.Item]) -> deque[Stretch]:
    """Return the stretches of items that are of one file, in the order of the items."""
    stretches: deque[Stretch] = deque()
    for number, item in enumerate(items):
        if stretches and items[number - 1].path == item.path:
            stretches.append(Stretch(stretches.pop().first, number + 1))
        else:
            stretches.append(Stretch(number, number + 1))
    return stretches


class Workers:
    """Forks workers, hands files to them and reports what they send."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._forked = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed or not session.items:
            return None  # as pytest does it
        self._session = session
        self._todo = files_of(session.items)
        self._begun: dict[connection.Connection, Stretch] = {}
        """Worker -> the test that it executes, and the tests of its file that follow."""
        self._workers: dict[connection.Connection, Worker] = {}
        # Each worker has a folder of its own in that of this process.
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        try:
            for _ in range(min(self._count, len(self._todo))):
                self._fork()
            while self._workers:
                for pipe in connection.wait(list(self._workers)):
                    self._hear(self._workers[pipe])  # type: ignore[index]
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        return True

    def _fork(self) -> None:
        here, there = connection.Pipe()
        number, self._forked = self._forked, self._forked + 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            here.close()
            for pipe in self._workers:
                pipe.close()
            os._exit(work(self._session, there, self._folder / f"worker-{number}"))
        there.close()
        self._workers[here] = Worker(pid, here)

    def _hear(self, worker: Worker) -> None:
        """Do what the next message of a worker asks for."""
        hook, config = self._session.config.hook, self._session.config
        try:
            kind, told = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._bury(worker)
            return
        match kind:
            case "wants":
                stretch = self._todo.popleft() if self._todo else None
                self._begun.pop(worker.pipe, None)
                worker.pipe.send(stretch)
            case "begins":
                self._begun[worker.pipe] = told
            case "reports":
                report = hook.pytest_report_from_serializable(config=config, data=told)
                hook.pytest_runtest_logreport(report=report)

    def _bury(self, worker: Worker) -> None:
        """Report the test in which a worker has ended, if it was not over, and let another worker execute those that follow."""
        _, status = os.waitpid(worker.pid, 0)
        del self._workers[worker.pipe]
        stretch = self._begun.pop(worker.pipe, None)
        worker.pipe.close()
        code = os.waitstatus_to_exitcode(status)
        if stretch is None and code == 0:
            return
        how = CRASHED.format(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        name, location = AT_ITS_END, ("", None, AT_ITS_END)
        if stretch is not None:
            item = self._session.items[stretch.first]
            name, location = item.nodeid, item.location
            if stretch.first + 1 < stretch.last:
                self._todo.appendleft(Stretch(stretch.first + 1, stretch.last))
        report = pytest.TestReport(name, location, {}, "failed", how, "call", duration=0.0)
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if self._todo:
            self._fork()


# --- in a worker -------------------------------------------------------------------------------------


class Reports:
    """Sends the reports of a worker to the process that prints them."""

    def __init__(self, config: pytest.Config, pipe: connection.Connection) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("reports", told))


def work(session: pytest.Session, pipe: connection.Connection, folder: Any) -> int:
    """Execute the files that the other process hands out, until there is none. Returns the exit code of this process."""
    config = session.config
    manager: Any = config.pluginmanager
    for name in ("terminalreporter", "progress", "workers"):
        manager.unregister(name=name)
    manager.register(Reports(config, pipe))
    capture = manager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of the process that has forked this one
    capture.start_global_capturing()
    config._tmp_path_factory._given_basetemp, config._tmp_path_factory._basetemp = folder, None  # type: ignore[attr-defined]
    try:
        while True:
            pipe.send(("wants", None))
            stretch = pipe.recv()
            if stretch is None:
                break
            for number in range(*stretch):
                pipe.send(("begins", Stretch(number, stretch.last)))
                # The session follows the last test of a file: its fixtures stay, and those of the file end.
                following = session.items[number + 1] if number + 1 < stretch.last else session
                config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=following)
        session._setupstate.teardown_exact(None)
        end()
    except KeyboardInterrupt:
        return 2  # the other process reports it
    except BaseException as fault:
        capture.stop_global_capturing()
        sys.excepthook(type(fault), fault, fault.__traceback__)
        return 1
    return 0


def end() -> None:
    """End this process as the interpreter does, without taking apart what was imported before it was forked."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
