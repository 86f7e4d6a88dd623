"""Flows that a test holds up and lets go by files, and the file of them that servers and workers load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked

SOURCE = '''
"""Orders whose charge fails once, texts that are streamed, and an agent that streams what it thinks."""
import os
import time

import holdfast as hf


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def build_order():
    graph = hf.Graph("order")

    @graph.node
    def reserve(state):
        return {"reserved": True}

    @graph.node(retry=hf.Retry(backoff=1.5, jitter=0))
    def charge(state, ctx):
        wait_for(state["until"])
        if ctx.attempt < 3 and not state.get("pays"):
            raise ConnectionError("the gateway is down")
        return {"charged": True}

    graph.chain(hf.START, reserve, charge, hf.END)
    return graph.compile()


def build_text(name):
    graph = hf.Graph(name)

    @graph.node
    def write(state, ctx):
        ctx.emit("It begins <b>here</b>.\\\\n")
        wait_for(state["until"])
        for number in range(state["lines"]):
            ctx.emit(f"{number} at {time.time()} " + "x" * state.get("width", 0) + "\\\\n")
            time.sleep(state.get("pause", 0))
        wait_for(state["until"] + ".end")
        ctx.emit("the end")
        return {"text": "done"}

    graph.chain(hf.START, write, hf.END)
    return graph.compile()


def build_agent():
    graph = hf.Graph("agent")

    @graph.node
    def think(state, ctx):
        turn = f"{state['until']}.{ctx.iteration}"
        wait_for(turn)
        ctx.emit(f"thought {ctx.iteration}\\n")
        wait_for(turn + ".said")
        return {"turn": turn}

    @graph.node
    def act(state):
        wait_for(state["turn"] + ".done")
        return {"acted": True}

    graph.chain(hf.START, think, act)
    graph.branch("act", lambda state: hf.END if state["turn"].endswith(".3") else "think", ["think", hf.END])
    return graph.compile(max_iterations=5)


order, text, story, agent = build_order(), build_text("text"), build_text("story"), build_agent()
'''


class Hands:
    """Starts runs and workers over the store of a folder, in processes of their own."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store
        self.workers: list[subprocess.Popen[str]] = []
        paths = os.pathsep.join(path for path in sys.path if path)
        self._environment = {**os.environ, "PYTHONPATH": paths, "HOME": str(folder)}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "holdfast.cli", *words, "--store", str(self.store)]

    def call(self, *words: str) -> str:
        """Run a command to its end."""
        return forked.run(
            self.command(*words), check=True, cwd=self.folder, env=self._environment, capture_output=True, text=True
        ).stdout  # fmt: skip

    def work(self, *flows: str) -> subprocess.Popen[str]:
        """Start a worker that takes these flows."""
        self.workers.append(
            forked.Popen(
                self.command("worker", *flows),
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        return self.workers[-1]

    def file(self, name: str) -> Path:
        """The file that lets a run go."""
        return self.folder / f"{name}.go"

    def let_end(self, name: str) -> None:
        """Let a text end."""
        (self.folder / f"{name}.go.end").touch()

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def write_live(folder: Path) -> None:
    """Write the flows into a folder as `live.py`."""
    (folder / "live.py").write_text(SOURCE.replace("\\\\", "\\"))
