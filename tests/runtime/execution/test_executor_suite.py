"""Whoever calls the functions of nodes passes the suite of executors."""

from __future__ import annotations

from holdfast.runtime.calls.executors import ThreadExecutor, Threads
from holdfast.runtime.calls.process.executor import ProcessExecutor
from holdfast.testing.executors import ExecutorConformance


class TestThreads(ExecutorConformance):
    kills = False
    isolates = False

    def open(self) -> ThreadExecutor:
        return ThreadExecutor(Threads())


class TestProcesses(ExecutorConformance):
    def open(self) -> ProcessExecutor:
        return ProcessExecutor()
