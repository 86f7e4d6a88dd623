"""Execute a plan that decides by guards and policies, and kill this process at one of its appends.

    python planned.py VERB STORE WITNESS [MOMENT NUMBER]

VERB is `run`, `resume` or `work` (as a worker, until it is killed). MOMENT is `before` or `after`: the process kills itself right
before, or right after, its append with this NUMBER, counted from 1. Only `run` has the plan; every other process has the
capabilities, and reads the plan from the store. `run` and `resume` print how many appends the process made.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import holdfast as hf
from holdfast import plan
from holdfast.storage import failpoints
from holdfast.testing import Witness

RUN_ID = "planned"
PLACES = {"before": "append.before", "after": "append.committed"}
counted: list[str] = []

depot = plan.Capabilities("depot")


@depot.capability("note@1")
async def note(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    with Witness(ctx.resources["witness"]).visit(ctx):
        return dict(given)


@depot.capability("pay@1", idempotent=False)
async def pay(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    with Witness(ctx.resources["witness"]).visit(ctx):
        return {"paid": given["cents"]}


@depot.policy("large", stage="pre", capability="pay@1")
def large(asked: plan.Asked) -> plan.Verdict:
    return plan.ask("Pay?", reads={"cents": asked.input["cents"]})


@depot.policy("again", stage="post", capability="pay@1")
def again(asked: plan.Asked) -> plan.Verdict:
    return plan.ask("Was this right?", reads={"paid": asked.output["paid"]})


DOCUMENT = {
    "holdfast": "plan/1",
    "context": {"facts": {"country": "DE", "cents": 900}},
    "tasks": [
        {"id": "look", "capability": "note@1", "input": {"country": {"$ref": "context.facts.country"}}},
        {"id": "ship", "capability": "note@1"},
        {"id": "hold", "capability": "note@1"},
        {"id": "keep", "capability": "note@1"},
        {"id": "pay", "capability": "pay@1", "input": {"cents": {"$ref": "context.facts.cents"}}},
        {"id": "tell", "capability": "note@1", "join": "some"},
    ],
    "edges": [
        {"from": "look", "to": "ship", "guard": "outputs.look.country == 'DE'"},
        {"from": "look", "to": "hold", "guard": "outputs.look.country != 'DE'"},
        {"from": "hold", "to": "keep"},
        {"from": "ship", "to": "pay"},
        {"from": "pay", "to": "tell", "guard": "outputs.pay.paid > 100"},
        {"from": "keep", "to": "tell"},
    ],
}


async def main(verb: str, store: str, witness: str) -> None:
    async with hf.Engine(store, flows=[depot], resources={"witness": witness}) as engine:
        if verb == "run":
            await engine.run(depot.plan(DOCUMENT), run_id=RUN_ID)
        elif verb == "resume":
            await engine.resume(RUN_ID)
        else:
            await engine.work()
    print(len(counted))


def die_at(moment: str, number: int) -> None:
    """Kill this process at its append with this number."""

    def reach(name: str) -> None:
        if name == PLACES["before"]:
            counted.append(name)
        if len(counted) == number and name == PLACES.get(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.install(reach)


if __name__ == "__main__":
    verb, store, witness, *when = sys.argv[1:]
    die_at(when[0] if when else "", int(when[1]) if when else 0)
    asyncio.run(main(verb, store, witness))
