"""An engine in its own process that stops itself at a given failpoint: one of the two processes of `zombies`.

Reads one request per line, `{"do": "start" | "carry", "run": ID, "ttl_s": S, "point": NAME, "count": N}`, and answers each with
one line. At the n-th failpoint of that name it reports that and stops itself with SIGSTOP, all its threads at once; after SIGCONT
it continues as if it had not been stopped. Every append is noted for the witness before the store is called, and after it has
returned. An append with which a node completes also posts a request to the run `LEDGER`, in the same transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.errors import RunHeld, StoreBusy
from holdfast.reading import inbox
from holdfast.storage import failpoints, verdicts
from holdfast.storage.contract import Along, Append, Store, Verdict
from holdfast.storage.urls import open_store
from holdfast.testing import Witness

LEDGER = "ledger"
"""The run whose inbox has a request for each append with which a node has completed."""
ROUNDS, PAGES = 2, 2
_AGAIN_S = 0.01


# --- what is executed --------------------------------------------------------------------------------


@dataclass
class Errand:
    """The state of a flow with a loop that has a step, a fan-out, and a plain function in a thread."""

    rounds: int = 0
    seen: Annotated[list[str], append] = field(default_factory=list)
    done: bool = False


EXPECTED = Errand(
    ROUNDS, [*(f"walk {n + 1}" for n in range(ROUNDS)), *(f"page {n}" for n in range(PAGES))], True
)
EFFECTS = ROUNDS + PAGES + 1


def _do(ctx: Any) -> None:
    """Cause the effect of this visit at a receiver: a file named by the idempotency key, which is created only once."""
    witness, key = ctx.resources["witness"], ctx.idempotency_key()
    witness.effect(ctx, key)
    with suppress(FileExistsError):
        os.close(os.open(ctx.resources["receiver"] / f"{ctx.run_id} {key}", os.O_CREAT | os.O_EXCL))
        witness.receipt(key)


graph = Graph("errands", Errand)


@graph.node
async def walk(state: Errand, ctx: hf.Context) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        told = await ctx.step("look", lambda: f"walk {ctx.iteration}")
        _do(ctx)
    return {"rounds": state.rounds + 1, "seen": [told]}


@graph.node(each=lambda state: range(PAGES))
async def fetch(page: int, ctx: hf.Context) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
    return {"seen": [f"page {page}"]}


@graph.node
def write(state: Errand, ctx: hf.BlockingContext) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
    return {"done": True}


graph.edge(START, "walk").chain("fetch", "write", END)
graph.branch("walk", lambda state: "walk" if state.rounds < ROUNDS else "fetch", to=["walk", "fetch"])
flow = graph.compile()


# --- standing still ----------------------------------------------------------------------------------


class StandStill:
    """A failpoint hook that stops this process (SIGSTOP) at the n-th failpoint of a given name."""

    def __init__(self, point: str, count: int) -> None:
        self.reached: Counter[str] = Counter()
        self._point = point
        self._count = count
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.reached[name] += 1
            here = name == self._point and self.reached[name] == self._count
        if here:
            say(stops_at=name)
            # Sent to this thread, not to the process: otherwise another thread might receive the signal while this one goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def note_appends(store: Store, witness: Witness, refused: list[str]) -> None:
    """Note every append in the witness file, and collect the reasons of refused appends in `refused`."""
    asked = store.append

    def noted(batch: Sequence[Append]) -> list[Verdict]:
        batch = [_reported(one) for one in batch]
        for one in batch:
            _note(witness, one, known=False)
        found = asked(batch)
        for one, verdict in zip(batch, found, strict=True):
            if verdict is None:
                _note(witness, one, known=True)
            else:
                refused.append(type(verdict).__name__)
        return found

    store.append = noted  # type: ignore[method-assign]


def _note(witness: Witness, one: Append, *, known: bool) -> None:
    first = one.rows[0]
    witness.ack(one.run_id, first.seq, first.salt, holder=one.holder, fence=one.fence, known=known)
    for run_id, request in one.along.posts if one.along is not None and known else ():
        witness.asked(run_id, request.id)


def _reported(one: Append) -> Append:
    """Return an append that also posts its run, seq and id to the ledger, if a node completes with it."""
    if not any(row.kind == "NodeCompleted" for row in one.rows):
        return one
    first = one.rows[0]
    request = inbox.stored_form(
        inbox.Signal(id=f"{one.run_id}:{first.seq}:{first.salt.hex()}", name="completed")
    )
    return msgspec.structs.replace(one, along=Along(posts=((LEDGER, request),)))


def judge_no_fences() -> None:
    """Disable the check of fences, for the control: an append is judged only by its place in the log."""
    judge = verdicts.judge

    def unfenced(append: Append, *, seq: int, fence: int, holder: str | None) -> Verdict:
        return judge(append, seq=seq, fence=append.fence, holder=append.holder)

    verdicts.judge = unfenced


# --- being asked -------------------------------------------------------------------------------------


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Hand:
    """Carries out the requests of the test, each with a new engine."""

    def __init__(self, store: str, folder: str, *, fenced: bool) -> None:
        if not fenced:
            judge_no_fences()
        witness = Witness(Path(folder) / "witness.jsonl")
        self._resources = {"witness": witness, "receiver": Path(folder) / "receiver"}
        self._refused: list[str] = []
        self._store = open_store(store)
        note_appends(self._store, witness, self._refused)

    async def serve(self, request: dict[str, Any]) -> None:
        self._refused.clear()
        still = StandStill(request.get("point", ""), request.get("count", 0))
        options = {"lease_ttl": request["ttl_s"], "grace": 1.0}
        ended = why = ""
        async with hf.Engine(self._store, flows=[flow], resources=self._resources, **options) as engine:
            if request["do"] == "start":
                await engine.start(flow, Errand(), run_id=request["run"])
            failpoints.install(still)
            try:
                ended = await self._carried(engine, request["run"], request["patience_s"])
            except BaseException as raised:
                ended, why = type(raised).__name__, str(raised)
            finally:
                failpoints.install(None)
        say(ended=ended, why=why, refused=self._refused, reached=still.reached)

    async def _carried(self, engine: hf.Engine, run_id: str, patience_s: float) -> str:
        """Resume a run as soon as its lease is free, and again until it is over."""
        until = time.monotonic() + patience_s
        while True:
            try:
                run = await engine.resume(run_id)
            except (RunHeld, StoreBusy):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return run.status


def main(asked: dict[str, Any]) -> None:
    hand = Hand(asked["store"], asked["folder"], fenced=asked["fenced"])
    say(ready=os.getpid())
    for line in sys.stdin:
        asyncio.run(hand.serve(json.loads(line)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
