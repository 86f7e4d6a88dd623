"""A saga whose third effect is refused: hotel and flight are booked, the card is declined, and both bookings are undone.

    python saga.py VERB STORE RECEIVER KILL_AT [naive]

The receiver is a file: each effect that arrives is a line. A line that is there already is not written again: the receiver
de-duplicates by key. The card is declined as long as no booking is cancelled, so a second call of `charge` during the undo
succeeds. KILL_AT is the number of the moment at which the process kills itself: each effect has one before it and one after it,
counted from 1; 0 is never. `naive` is the saga without `raises=`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import holdfast as hf

VERB, STORE, RECEIVER, KILL_AT = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
moments: list[int] = []
"""The moments that were reached."""


class CardDeclined(Exception):
    """The bank has decided."""


def reach_moment() -> None:
    moments.append(len(moments) + 1)
    if len(moments) == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def send(effect: str, key: str) -> str:
    """Have an effect outside, once per key."""
    reach_moment()
    there = [json.loads(line) for line in RECEIVER.read_text().splitlines()] if RECEIVER.exists() else []
    if [effect, key] not in there:
        with RECEIVER.open("a") as receiver:
            receiver.write(json.dumps([effect, key]) + "\n")
    reach_moment()
    return effect


def charge(key: str) -> str:
    """Is declined until a booking is cancelled, because the card has no cover before."""
    reach_moment()
    is_covered = RECEIVER.exists() and "cancel" in RECEIVER.read_text()
    reach_moment()
    if not is_covered:
        raise CardDeclined("no cover", 51)
    return send("charge", key)


@dataclass
class Trip:
    booked: Annotated[list[str], hf.append] = field(default_factory=list)
    undone: Annotated[list[str], hf.append] = field(default_factory=list)
    declined: str = ""


graph = hf.Graph("saga", Trip)
CHARGE = "charge" if "naive" in sys.argv else hf.Step("charge", raises=(CardDeclined,))


@graph.node(crash_limit=100)
async def travel(state: Trip, ctx: hf.Context) -> dict[str, object]:
    done: list[str] = []
    try:
        done.append(await ctx.step("hotel", send, "book hotel", ctx.idempotency_key("hotel")))
        done.append(await ctx.step("flight", send, "book flight", ctx.idempotency_key("flight")))
        done.append(await ctx.step(CHARGE, charge, ctx.idempotency_key("charge")))
    except CardDeclined as declined:
        flight = await ctx.step("undo flight", send, "cancel flight", ctx.idempotency_key("undo flight"))
        hotel = await ctx.step("undo hotel", send, "cancel hotel", ctx.idempotency_key("undo hotel"))
        return {"booked": done, "undone": [flight, hotel], "declined": f"{declined.args}"}
    return {"booked": done}


graph.chain(hf.START, travel, hf.END)
flow = graph.compile()

if __name__ == "__main__":
    if VERB == "run":
        run = hf.run(flow, Trip(), run_id="trip", store=STORE, lease_ttl=1)
    else:
        run = hf.resume("trip", flows=[flow], store=STORE, lease_ttl=1)
    print(json.dumps({"status": run.status, "state": vars(run.state), "moments": len(moments)}))
