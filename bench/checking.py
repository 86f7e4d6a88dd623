"""Measure the speed of `holdfast.testing.check`: write a store with a million events in large batches, then check it.

    python -m bench.checking            # 1,000,000 events in 100 runs
    python -m bench.checking 200000 1   # in one run

The log is that of a loop over four nodes: each visit has a start and a completion, and some visits add a kilobyte of text.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec

from holdfast import END, START, Flow, Graph
from holdfast.core import event_encoding, events
from holdfast.core.events import Changes, Event
from holdfast.storage.contract import Append, Holder, NewRun, View
from holdfast.storage.rows import SALT_BYTES, seal
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.checker import check

NODES = ("plan", "write", "read", "judge")
PIECE = 20_000
AT = 1_700_000_000.0
HOLDER = Holder(id="bench")


def looped() -> Flow[dict]:
    graph = Graph("looped", dict)
    for name in NODES:
        graph.node(name=name)(lambda state: None)
    graph.chain(START, *NODES)
    graph.branch(NODES[-1], lambda state: NODES[0], to=[NODES[0], END])
    return graph.compile()


def make_events(flow: Flow[dict], luck: random.Random) -> Iterator[Event]:
    """Yield the events of a run that loops forever."""
    yield events.RunCreated(
        flow=flow.name, fingerprint=flow.fingerprint, state_version=1, input={}, starts=[NODES[0]],
        options={"durability": "sync"},
    )  # fmt: skip
    iteration = 0
    while True:
        iteration += 1
        for place, name in enumerate(NODES):
            text = luck.randbytes(500).hex() if luck.random() < 0.02 else "short"
            changes = Changes(set={"text": text, "round": iteration})
            routes = [NODES[(place + 1) % len(NODES)]]
            yield events.NodeStarted(node=name, iteration=iteration)
            yield events.NodeCompleted(node=name, iteration=iteration, changes=changes, routes=routes)


def write(store: SqliteStore, flow: Flow[dict], run_id: str, count: int) -> None:
    """Write a run with this number of events."""
    luck = random.Random(7)
    seq, digest, story = 0, b"", make_events(flow, luck)
    while seq < count:
        piece = list(islice(story, min(PIECE, count - seq)))
        encoded = [event_encoding.encode(event) for event in piece]
        rows = seal(digest, run_id, seq, AT + seq, encoded, luck.randbytes(SALT_BYTES * len(piece)))
        last = piece[-1]
        active = (last.node,) if isinstance(last, events.NodeStarted) else ()
        new = NewRun(flow=flow.name, input_digest=sha256(b"").digest(), created_at=AT) if not seq else None
        (verdict,) = store.append(
            [
                Append(
                    run_id=run_id, expected_seq=seq, rows=rows, create=new, definition=msgspec.json.encode(flow.definition),
                    view=View(status="running", fingerprint=flow.fingerprint, state_version=1, active=active),
                    holder=HOLDER.id, fence=1, release=rows[-1].seq == count,
                )
            ]
        )  # fmt: skip
        assert verdict is None, verdict
        seq, digest = rows[-1].seq, rows[-1].digest


def main(count: int = 1_000_000, runs: int = 100) -> None:
    flow = looped()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        store = SqliteStore(path)
        store.renew(HOLDER)
        for number in range(runs):
            write(store, flow, f"r{number}", count // runs)
        store.close()
        began, worked = time.perf_counter(), time.process_time()
        violations = check(path)
        took, worked = time.perf_counter() - began, time.process_time() - worked
    assert not violations, violations[0]
    print(f"{count:,} events in {runs} runs: checked in {took:.1f} s ({worked:.1f} s of processor time)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
