"""A member that was added to a closed union, and that the code does not treat yet, raises at once where it is met."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import commands, events
from holdfast.core import decide as decides
from holdfast.core.events import Stored
from holdfast.core.fold import fold
from holdfast.core.run_state import RunState
from holdfast.errors import IllegalEvent
from holdfast.runtime import runner
from holdfast.runtime.perform import perform
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline


class SendMail(commands.Command, frozen=True):
    """A command that no code performs."""

    node: str = "a"


class MailSent(events.NodeEvent, frozen=True, kw_only=True):
    """An event that the fold does not know."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunState]:
    """What `decide` was asked. It returns the new command as soon as a node has started, each time it is asked."""
    states: list[RunState] = []

    def decide(flow: Any, state: RunState, *more: Any) -> list[Any]:
        if not state.nodes:
            return decides.decide(flow, state, *more)
        states.append(state)
        assert len(states) < 100, "the runner asks decide for ever, and the event loop stands still"
        return [SendMail()]

    monkeypatch.setattr(runner, "decide", decide)
    return states


def test_a_command_that_no_code_performs_ends_the_run_with_an_error(asked: list[RunState]) -> None:
    async def main() -> None:
        async with hf.Engine(MemoryStore()) as engine:
            await engine.run(outline("START a END"), run_id="r")

    with pytest.raises(AssertionError, match="SendMail"):
        asyncio.run(main())
    assert len(asked) == 1


@pytest.mark.parametrize("command", [SendMail(), commands.WakeAt(1.0), commands.DueAt(1.0)])
def test_a_command_that_records_nothing_is_not_performed(command: commands.Command) -> None:
    history = History("r", outline("START a END")).created().started("a")
    before = list(history.log)
    with pytest.raises(AssertionError, match=type(command).__name__):
        perform(history._journal, command, [])
    assert history.log == before


def test_an_event_that_the_fold_does_not_know_is_refused() -> None:
    state = RunState("r")
    with pytest.raises(IllegalEvent, match="MailSent"):
        fold(state, Stored(1, 0.0, MailSent(node="a", iteration=1)))
    assert state == RunState("r")
