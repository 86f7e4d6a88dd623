"""An engine that is open in the main thread, and executes something, handles SIGINT and SIGTERM as the blocking functions do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import holdfast as hf
from service_process import Start

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
    def stop(self, *args, **options):
        stopping = super().stop(*args, **options)
        print("stopping", flush=True)
        return stopping

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
        self._process = forked.Popen(
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


# --- a service in which the engine is one part --------------------------------------------------------

BY_SIGNAL = [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
"""Signals, and the exit codes of a program that leaves them to the system and to asyncio."""
PASSED_ON = [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)]
"""The exit codes after an engine has stopped gracefully."""
IN_TIME = ["RunCreated", "NodeStarted", "NodeCompleted", "RunInterrupted"]


@pytest.mark.parametrize(("number", "code"), BY_SIGNAL)
def test_an_idle_engine_leaves_signals_alone(start_service: Start, number: int, code: int) -> None:
    service = start_service("idle")
    service.until("ready")
    service.signal(number)
    assert service.ended()[:2] == (code, [])


@pytest.mark.parametrize(("number", "code"), BY_SIGNAL)
def test_an_engine_whose_runs_are_over_leaves_signals_alone(
    start_service: Start, number: int, code: int
) -> None:
    service = start_service("idle_after_a_run")
    service.until("begun")
    service.let_first_end()
    service.until("completed")
    service.signal(number)
    assert service.ended()[:2] == (code, [])


@pytest.mark.parametrize(("number", "code"), PASSED_ON)
def test_an_engine_that_executes_drains_and_then_interrupts_a_main_task_that_waits_for_something_else(
    start_service: Start, number: int, code: int
) -> None:
    service = start_service("works_aside")
    service.until("begun")
    service.signal(number)
    service.until("stopping")
    service.let_first_end()
    *ended, complaints = service.ended()
    assert ended == [code, ["main leaves"]]
    assert "A second signal stops them at once." in complaints
    assert service.kinds() == ["RunCreated", "RunClaimed", *IN_TIME[1:]]


@pytest.mark.parametrize(("number", "code"), PASSED_ON)
def test_a_signal_is_passed_on_although_the_task_that_opened_the_engine_has_ended(
    start_service: Start, number: int, code: int
) -> None:
    service = start_service("opened_elsewhere")
    service.until("begun")
    service.signal(number)
    service.until("stopping")
    service.let_first_end()
    assert service.ended()[:2] == (code, ["main leaves"])
    assert service.kinds() == IN_TIME


@pytest.mark.parametrize(("number", "code"), PASSED_ON)
def test_an_engine_that_was_opened_second_handles_signals_when_the_first_is_closed(
    start_service: Start, number: int, code: int
) -> None:
    service = start_service("two_engines")
    service.until("begun")
    service.signal(number)
    service.until("stopping")
    service.let_first_end()
    assert service.ended()[:2] == (code, ["interrupted"])
    assert service.kinds() == IN_TIME


@pytest.mark.parametrize(("number", "code"), PASSED_ON)
def test_a_second_signal_ends_the_grace_period_of_an_engine(
    start_service: Start, number: int, code: int
) -> None:
    service = start_service("works_aside")
    service.until("begun")
    service.signal(number)
    service.until("stopping")
    service.signal(number)
    assert service.ended()[0] == code
    assert service.kinds()[-2:] == ["NodeInterrupted", "RunInterrupted"]


@pytest.mark.parametrize(("number", "code"), PASSED_ON)
def test_a_blocking_function_that_executes_nothing_leaves_at_the_first_signal(
    start_service: Start, number: int, code: int
) -> None:
    holder = start_service("works_aside")
    holder.until("begun")
    service = start_service("waits_and_blocks")
    service.until("waits")
    service.signal(number)
    assert service.ended()[:2] == (code, [])
    assert hf.get("r1", store=holder.store).status == "running"
