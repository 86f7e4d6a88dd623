"""Processes that call `run` for a run which another process executes: they wait for it, and leave it alone when they leave."""

from __future__ import annotations

import signal

import pytest

from service_process import Start

WHOLE = ["RunCreated", "NodeStarted", "NodeCompleted", "NodeStarted", "NodeCompleted", "RunCompleted"]


@pytest.mark.parametrize("form", ["joins", "joins_and_blocks"])
def test_a_process_waits_for_the_run_of_another_and_returns_it(start_service: Start, form: str) -> None:
    holder = start_service("runs")
    holder.until("begun")
    joiner = start_service(form)
    joiner.until("joined")
    holder.let_first_end()
    assert joiner.ended()[:2] == (0, ["completed"])
    assert holder.ended()[:2] == (0, ["completed"])
    assert holder.kinds() == WHOLE


@pytest.mark.parametrize("form", ["joins", "joins_and_blocks"])
def test_a_process_takes_over_when_the_holder_is_killed(start_service: Start, form: str) -> None:
    holder = start_service("runs")
    holder.until("begun")
    joiner = start_service(form)
    joiner.until("joined")
    holder.process.kill()
    joiner.until("begun")
    joiner.let_first_end()
    assert joiner.ended()[:2] == (0, ["completed"])
    assert holder.kinds().count("NodeCompleted") == 2


@pytest.mark.parametrize("form", ["joins", "joins_and_blocks"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_joining_process_leaves_the_run_alone(
    start_service: Start, form: str, number: int
) -> None:
    holder = start_service("runs")
    holder.until("begun")
    joiner = start_service(form)
    joiner.until("joined")
    joiner.signal(number)
    code, said, _ = joiner.ended()
    assert (code in (-number, 128 + number), said) == (True, [])
    holder.let_first_end()
    assert holder.ended()[:2] == (0, ["completed"])
    assert holder.kinds() == WHOLE
