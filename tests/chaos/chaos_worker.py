"""A worker for chaos: `holdfast worker`, with a wrapper around its store that notes every append for the witness.

    python chaos_worker.py '{"store": URL, "folder": PATH, "ttl_s": 2, "seed": 7, "linger": 0.5, "host": "", "fenced": true}'

Every append is noted before it is given to the store, and when it is acknowledged or refused. A file `stop-PID` in the folder
makes the worker stop itself right before the next append: no check of a lease or a clock can warn it there. A worker that has
taken a run over waits, with the probability `linger`, before it writes: until then only the fence protects its claim. `host`
makes it a process of another machine, whose death is not visible here. `fenced: false` is the control: the store of this process
does not check fences.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orders import Receiver, flow

import holdfast as hf
from holdfast.errors import StoreError
from holdfast.storage import verdicts
from holdfast.storage.contract import Append, Store, Verdict
from holdfast.storage.postgres import append as postgres_append
from holdfast.storage.queues import Taken
from holdfast.storage.urls import open_store
from holdfast.testing import Witness

CONCURRENCY = 6
LINGER_S = 1.2


def note_appends(store: Store, witness: Witness, stop: Path) -> None:
    """Note every append in the witness file; stop this process before an append if the file `stop` exists."""
    append = store.append

    def noted(batch: Sequence[Append]) -> list[Verdict]:
        for one in batch:
            _note(witness, one, known=False)
        if batch[0].create is None and stop.exists():
            stop.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        found = append(batch)
        for one, verdict in zip(batch, found, strict=True):
            if verdict is None:
                _note(witness, one, known=True)
            else:
                witness.note("refused", run=one.run_id, fence=one.fence, why=type(verdict).__name__)
        return found

    store.append = noted  # type: ignore[method-assign]


def _note(witness: Witness, append: Append, *, known: bool) -> None:
    first = append.rows[0]
    witness.ack(append.run_id, first.seq, first.salt, holder=append.holder, fence=append.fence, known=known)


def linger(store: Store, luck: random.Random, chance: float) -> None:
    """With this probability, wait between taking over runs and the first write to them."""
    take = store.queues.take

    def taken(*asked: Any) -> list[Taken]:
        found = take(*asked)
        if any(one.lease.fence > 1 for one in found) and luck.random() < chance:
            time.sleep(luck.uniform(0.0, LINGER_S))
        return found

    store.queues.take = taken  # type: ignore[method-assign]


def judge_no_fences() -> None:
    """Disable the check of fences, for the control: an append is judged only by its place in the log."""
    judge: Callable[..., Verdict] = verdicts.judge

    def unfenced(append: Append, *, seq: int, fence: int, holder: str | None) -> Verdict:
        return judge(append, seq=seq, fence=append.fence, holder=append.holder)

    verdicts.judge = unfenced
    postgres_append._is_plain = lambda append: False  # a plain append would be judged inside the database


def opened(url: str) -> Store:
    """Open the store as soon as it is reachable. (In production, a supervisor would restart a worker that finds no store.)"""
    while True:
        try:
            return open_store(url)
        except StoreError as away:
            print(f"away: {away}", flush=True)
            time.sleep(0.2)


def main(asked: dict[str, Any]) -> int:
    luck = random.Random(asked["seed"])
    if asked["host"]:
        socket.gethostname = lambda: asked["host"]
    if not asked["fenced"]:
        judge_no_fences()
    folder = Path(asked["folder"])
    witness = Witness(folder / "witness.jsonl")
    store = opened(asked["store"])
    note_appends(store, witness, folder / f"stop-{os.getpid()}")
    linger(store, luck, asked["linger"])
    drained = False

    def report(trouble: Any) -> None:
        print(f"trouble: {trouble.run_id}: {trouble.message}", flush=True)

    async def work() -> None:
        nonlocal drained
        resources = {"witness": witness, "receiver": Receiver(folder / "receiver")}
        options = {"lease_ttl": asked["ttl_s"], "park_after": 0.1, "grace": 2.0}
        async with hf.Engine(store, flows=[flow], resources=resources, **options) as engine:
            await engine.work(concurrency=CONCURRENCY, on_report=report)
        drained = True

    try:
        asyncio.run(work())
    except SystemExit:
        drained = True  # the engine raises the signal again after it has drained
    store.close()
    return 0 if drained else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
