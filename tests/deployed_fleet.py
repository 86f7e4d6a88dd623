"""Workers and commands of a fleet as processes, for tests of deploys."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
from command_line import Cli
from holdfast.cli.exits import Exit
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store

PATIENCE_S = 60
NEWER = str(Path(__file__).parent / "acceptance" / "programs" / "newer_holdfast.py")


class Fleet:
    """Workers and commands as processes, in one folder, on one store."""

    def __init__(self, folder: Path, url: str, cli: Cli) -> None:
        self.folder = folder
        self.cli = cli
        self.url = url
        self.store = open_store(url)
        self.workers: list[subprocess.Popen[str]] = []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = os.path.dirname(sys.executable) + os.pathsep + environment["PATH"]
        python_path = os.pathsep.join(path for path in sys.path if path)
        self.environment = environment | {"PATH": path, "PYTHONPATH": python_path, "HOLDFAST_LEASE_TTL": "2"}

    def work(self, file: str, *program: str) -> subprocess.Popen[str]:
        """Start a worker, and wait until it is ready."""
        words = [*(program or (sys.executable, "-m", "holdfast.cli")), "worker", file, "--store", self.url]
        with (self.folder / f"worker-{len(self.workers)}").open("w") as errors:
            worker = forked.Popen(
                words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.workers.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("worker")
        return worker

    def said(self, worker: subprocess.Popen[str]) -> str:
        """Return what a worker has written to stderr."""
        return (self.folder / f"worker-{self.workers.index(worker)}").read_text("utf-8")

    def stop(self, worker: subprocess.Popen[str]) -> int:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE_S)
        return worker.returncode

    def __call__(self, *words: str, code: int = 0) -> str:
        """Call a command in this process, which is faster than a new one, and return what it prints."""
        ended = self.cli(*words, "--store", self.url)
        assert ended.code == code, (words, ended)
        return ended.out

    def paste(self, command: str) -> None:
        """Execute a command as it was printed."""
        name, *words = shlex.split(command)
        assert name == "holdfast"
        ended = self.cli(*words)
        assert ended.code in (Exit.OK, Exit.WAITS), (command, ended)

    def by_newer(self, *words: str) -> str:
        """Call a command of the newer version."""
        program = [sys.executable, NEWER, *words, "--store", self.url]
        return forked.run(
            program, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def findings(self) -> list[dict[str, Any]]:
        """Return the problems of runs that the doctor reports."""
        found: list[dict[str, Any]] = self.cli("doctor", "--json", "--store", self.url).json["findings"]
        return [one for one in found if one["run_id"] and not one["waits"]]

    def statuses(self) -> dict[str, str]:
        return {row.run_id: row.status for row in self.store.runs(Query())}

    def refused(self) -> set[tuple[str, str]]:
        """Return the refusals in the store: run and worker."""
        return {(one.run_id, one.holder) for one in self.store.queues.refusals()}

    def until(self, is_so: Callable[[], Any]) -> None:
        begun = time.monotonic()
        while not is_so():
            self.store.queues.hear(0.1)
            late = time.monotonic() - begun > PATIENCE_S
            assert not late, (self.statuses(), [self.said(worker) for worker in self.workers])

    def settle(self) -> None:
        """Wait until no run is held, and every request was carried out."""
        self.until(self._has_settled)

    def _has_settled(self) -> bool:
        rows = self.store.runs(Query())
        return not any(row.held for row in rows) and not self.store.queues.waiting(
            [row.run_id for row in rows]
        )

    def close(self) -> None:
        self.store.close()
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
