"""`holdfast serve` and `holdfast worker` as processes in a folder, for tests of the clients of a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked

PATIENCE_S = 60
TOKEN = "t1.0123456789abcdef0123456789abcdef"

FLOW = """
import os
import time
import holdfast as hf

graph = hf.Graph("review")

@graph.node
def draft(state):
    while not os.path.exists("go"):
        time.sleep(0.01)
    return {"text": "a draft"}

@graph.node(approve="Publish it?")
def publish(state):
    return {"published": state["text"]}

flow = graph.chain(hf.START, draft, publish, hf.END).compile()
"""


class Installation:
    """A folder with a flow, in which programs of Holdfast run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "flow.py").write_text(FLOW)
        (folder / "pyproject.toml").write_text("")
        self._begun: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))
        }
        paths = os.pathsep.join(path for path in sys.path if path)
        return clean | {"PYTHONPATH": paths, "HOME": str(self.folder), "HOLDFAST_TOKEN": TOKEN} | more

    def begin(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command that goes on until it is stopped; returns when it has printed its first line."""
        process = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=self.folder,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._begun.append(process)
        return process

    def serve(self, *words: str, port: int = 0) -> str:
        """Start a server, and return its URL."""
        process = self.begin("serve", *words, "--port", str(port))
        assert process.stdout is not None
        self.server = process
        return process.stdout.readline().strip().rstrip("/")

    def work(self) -> subprocess.Popen[str]:
        """Start a worker."""
        process = self.begin("worker", "flow.py")
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def let_drafts_end(self) -> None:
        (self.folder / "go").touch()

    def call(
        self, *words: str, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Call a command, and wait for it."""
        return forked.run(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=folder or self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def close(self) -> None:
        for process in self._begun:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process as `kill -9` does."""
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
