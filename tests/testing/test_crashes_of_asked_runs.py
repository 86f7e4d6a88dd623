"""`crash_everywhere` for a run that is a fork and gets requests: at every write of its parent, the fork and the requests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.testing import Receiver, crash_everywhere, crashing
from holdfast.testing.fakes import Audience, PatientEngine, attend_run

Store = Literal["memory", "sqlite"]


@dataclass
class Order:
    amount: int
    note: str = ""
    charged: int = 0
    sent: int = 0


def order_flow() -> hf.Flow[Order]:
    graph = Graph("order", Order)

    @graph.node(idempotent=False)
    async def charge(state: Order, ctx: hf.Context) -> dict[str, int]:
        ctx.resources["bank"].send(f"charge {state.amount}", key=ctx.idempotency_key())
        return {"charged": state.amount}

    @graph.node
    async def send(state: Order, ctx: hf.Context) -> dict[str, int]:
        ctx.resources["post"].send(f"parcel {state.note}", key=ctx.idempotency_key())
        return {"sent": state.charged}

    return graph.chain(START, "charge", "send", END).compile()


class AskedLife(crashing._Life):
    """Makes a run, forks it before its first node, and leaves requests for a worker. Everything can be done twice."""

    repeat: Any = "ask"
    answer = "skip"

    async def _work(self) -> None:
        stage = self._stage
        luck = random.Random(f"{stage.plan.seed} {len(stage.dead)}")
        self._engine = PatientEngine(stage.store, self._clock, luck, **stage.options)
        async with self._engine as engine:
            audience = Audience({"charge": "retry"})
            parent = await attend_run(
                engine, stage.flow, stage.plan.input, run_id="parent", audience=audience, clock=self._clock
            )
            assert parent.status == "completed"
            fork = await engine.fork("parent@1", run_id=crashing.RUN_ID, repeat=self.repeat)
            await engine.edit(fork, {"note": "fragile"}, id="edit")
            await engine.skip(fork, "nowhere", id="refused", execute=False)
            await engine.resume(fork, id="go", execute=False)
            await engine.work(until="idle")
            while (run := await engine.get(fork)).status != "completed":
                for question in run.questions:
                    await engine.answer(
                        fork, question.key, self.answer if question.about == "repeat" else "retry"
                    )
                await engine.work(until="idle")
            assert [one.status for one in await engine.requests(fork)] == ["refused"]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("repeat", "answer", "charges", "store"),
    [
        ("ask", "skip", 1, "memory"),
        ("ask", "run", 2, "memory"),
        ("ask", "run", 2, "sqlite"),
        ("skip", "", 1, "memory"),
        ({"charge": "run"}, "", 2, "memory"),
    ],
)
def test_no_crash_changes_what_a_fork_repeats_or_what_becomes_of_its_requests(
    monkeypatch: pytest.MonkeyPatch, repeat: Any, answer: str, charges: int, store: Store
) -> None:
    monkeypatch.setattr(AskedLife, "repeat", repeat)
    monkeypatch.setattr(AskedLife, "answer", answer)
    monkeypatch.setattr(crashing, "_Life", AskedLife)
    bank, post = Receiver("bank"), Receiver("post")
    report = crash_everywhere(order_flow(), Order(12), resources={"bank": bank, "post": post}, store=store)
    assert report.ok, report
    assert not report.parked
    assert {"append", "claim", "post"} <= {write.verb for write in report.writes}
    assert bank.done == ["charge 12"] * charges
    assert len(report.writes) > 15
