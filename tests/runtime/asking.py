"""Shared by the tests of requests: a flow that can be made to fail, and functions that leave requests and let a worker work."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading import inbox
from holdfast.reading.inbox import AnyRequest
from holdfast.storage.contract import Request

_SEEDS = itertools.count()


class Order:
    """The flow `charge -> send`. `charge` is not idempotent; `send` raises while `broken` is true."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = True
        graph = Graph("order", Work)
        graph.node(name="charge", idempotent=False)(self.charge)
        graph.node(name="send")(self.send)
        self.flow: Flow[Work] = graph.chain(START, "charge", "send", END).compile()

    def charge(self, state: Work) -> dict[str, Any]:
        self.ran.append("charge")
        return {"log": [f"charged for {state.plain}"]}

    def send(self, state: Work) -> dict[str, Any]:
        self.ran.append("send")
        if self.broken:
            raise ValueError("no stamps")
        return {"log": [f"sent {state.plain}"]}

    def fail(self, stage: Stage) -> Order:
        """Execute the run `r` until `send` fails; it fails no more."""
        stage.fails(self.flow, {"plain": "tea"})
        self.broken = False
        self.ran.clear()
        return self


def leave(
    stage: Stage, verb: str, *args: Any, flows: tuple[Flow[Any], ...] = (), **named: Any
) -> hf.Run[Any]:
    """Make a request from an engine that has only these flows, by default none: nothing can be executed there."""
    luck = random.Random(next(_SEEDS))  # the random ids of two requests must differ
    run: hf.Run[Any] = stage.do(lambda engine: getattr(engine, verb)("r", *args, **named), *flows, luck=luck)
    return run


def works(stage: Stage, *flows: Flow[Any]) -> list[hf.Run[Any]]:
    """Let a worker work until nothing is left to do. Returns the runs that it executed."""
    ended: list[hf.Run[Any]] = []
    stage.do(lambda engine: engine.work(until="idle", on_end=ended.append), *flows)
    return ended


def requests(stage: Stage) -> list[hf.RequestView]:
    found: list[hf.RequestView] = stage.do(lambda engine: engine.requests("r"))
    return found


def waiting(stage: Stage) -> list[Request]:
    return [one for one in stage.store.inbox(run_id="r") if not one.taken and not one.unmet]


def refused(stage: Stage) -> list[tuple[str, str, str]]:
    """Return verb, error and reason of each refusal in the log."""
    return [(one.verb, one.error, one.reason) for one in stage.told("RequestRefused")]


def post(stage: Stage, *sent: AnyRequest) -> None:
    """Put requests into the inbox, as a process does that does nothing else."""
    for one in sent:
        stage.store.post("r", inbox.stored_form(one))


def error_of(stage: Stage, verb: str, *args: Any, **named: Any) -> hf.HoldfastError:
    with pytest.raises(hf.HoldfastError) as raised:
        leave(stage, verb, *args, **named)
    return raised.value
