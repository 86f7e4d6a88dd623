"""An engine that somebody opened with `async with` in the main thread answers SIGINT and SIGTERM like the blocking door."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf

PROGRAM = """
import asyncio, signal, sys
import holdfast as hf
from holdfast import END, START, Graph

graph = Graph("slow", dict)

@graph.node
async def first(state):
    print("begun", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return {"first": 1}

@graph.node
async def second(state):
    return {"second": 1}

flow = graph.chain(START, "first", "second", END).compile()

class Engine(hf.Engine):
    def stop(self, reason="stopped"):
        super().stop(reason)
        print("stopping", flush=True)

async def main():
    if sys.argv[2] == "own":
        signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
    async with Engine(sys.argv[1], grace=float(sys.argv[3])) as engine:
        run = await engine.run(flow, {}, run_id="r1")
        print(run.status, flush=True)

asyncio.run(main())
"""


class Program:
    """The program, waiting inside its first node."""

    def __init__(self, folder: Path, *, handler: str = "none", grace: float = 30) -> None:
        self.store = str(folder / "runs.db")
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.store, handler, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self.line() == "begun"

    def line(self) -> str:
        assert self._process.stdout is not None
        told = self._process.stdout.readline().strip()
        return told if told != "stopping" else self.line()

    def until_it_stops(self) -> None:
        """Until the signal has reached the engine: it arrives in the main thread, the next line of input in another one."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "stopping\n"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def let_first_end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ended(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        code = self._process.wait(60)
        self._process.stdin.close()
        self._process.stdout.close()
        return code

    def kinds(self) -> list[str]:
        return [event.kind for event in hf.events("r1", store=self.store)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_nodes_get_grace_and_the_signal_is_passed_on(tmp_path, number, code):
    program = Program(tmp_path, grace=0.2)
    program.signal(number)
    assert program.line() == "interrupted"
    program.let_first_end()
    assert program.ended() == code
    assert program.kinds()[-2:] == ["NodeInterrupted", "RunInterrupted"]


def test_a_node_that_ends_within_grace_is_recorded_and_nothing_new_starts(tmp_path):
    program = Program(tmp_path)
    program.signal(signal.SIGTERM)
    program.until_it_stops()
    program.let_first_end()
    assert program.line() == "interrupted"
    assert program.ended() == 143
    assert program.kinds() == ["RunCreated", "NodeStarted", "NodeCompleted", "RunInterrupted"]


def test_a_handler_of_somebody_else_is_left_alone(tmp_path):
    program = Program(tmp_path, handler="own")
    program.signal(signal.SIGTERM)
    assert program.line() == "heard"
    program.let_first_end()
    assert program.line() == "completed"
    assert program.ended() == 0
