"""A client with old code, and a server with old code, meet a run whose state newer code has upgraded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hosted import ADMIN, hosting

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.memory.store import MemoryStore


@dataclass
class Bill:
    amount: float = 0.0


def make_flow(**given: Any) -> hf.Flow[Bill]:
    graph = Graph("bill", Bill, **given)

    @graph.node
    async def pay(state: Bill) -> None:
        pass

    return graph.chain(START, pay, END).compile()


@pytest.fixture(scope="module")
def host():
    with hosting() as made:
        yield made


def test_a_client_with_old_code_is_refused_the_state_also_if_the_fields_would_fit(host):
    store, old = MemoryStore(), make_flow()
    new = make_flow(version=2, upgrades={1: lambda values: {"amount": values["amount"] / 100}})
    hf.run(new, {"amount": 4.2}, run_id="r", store=store)
    for flow in (old, new):  # the server sends plain data, whatever it knows
        with host.serving(store, flows=[flow]) as url:
            run = hf.BlockingClient(url, ADMIN, flows=[old]).get("r")
            assert (run.status, run.state_version) == ("completed", 2)
            with pytest.raises(hf.StateError, match=r"run 'r' has a state of version 2.*version 1 here"):
                _ = run.state
            ended = hf.BlockingClient(url, ADMIN, flows=[old]).wait("r")
            with pytest.raises(hf.StateError, match="newer code"):
                _ = ended.state
            assert hf.BlockingClient(url, ADMIN, flows=[new]).get("r").state == Bill(4.2)
            assert hf.BlockingClient(url, ADMIN).get("r").state == {"amount": 4.2}
            assert hf.BlockingClient(url, ADMIN, flows=[old]).state("r") == {"amount": 4.2}
