"""The time to read the ledger of a long run, and to verify its log: as `holdfast ledger` and the server read it.

The log is built event by event, without executing nodes. Each is read several times, and the fastest counts: other work on the
machine only makes it slower.
"""

import time
from collections.abc import Callable
from typing import Any

from bench.parts import Bench
from bench.report import Figure, at_most
from holdfast.documents.ledger_file import LedgerFile, export
from holdfast.reading.ledger import Ledger, read_ledger
from holdfast.storage.contract import Store
from holdfast.testing.builders import History, outline

TARGET_MS = 300.0
_TIMES = 7


def ledgers(bench: Bench) -> list[Figure]:
    """The ledger of a run with a long log, of which a quarter are decisions."""
    count = 1_000 if bench.effort.name == "quick" else 10_000
    bench.progress.say(f"ledger of {count:,} events")
    with bench.fresh() as place:
        store = place.open()
        try:
            write(store, count)
            return measure(store, place.folder / "ledger.jsonl")
        finally:
            store.close()


def write(store: Store, count: int) -> None:
    """Write a run with this many events: a loop with a router and an approval in each round."""
    flow = outline(
        "START a b", branches={"b": "a END"}, nodes={"b": {"approve": "Go on?"}}, max_iterations=count
    )
    history = History("r1", flow).created()
    while len(history.log) < count:
        history.stepped("a", "look", {"n": len(history.log)}).completed("a", {"n": len(history.log)})
        history.settled().answered("b", "approve", by="ada").completed("b", routes=["a"])
    history.write(store)


def measure(store: Store, file: Any) -> list[Figure]:
    """Time reading, verifying and exporting the ledger, and verifying the export."""
    read_ms, found = _fastest(lambda: read_ledger(store, "r1"))
    verified_ms, verified = _fastest(lambda: read_ledger(store, "r1", check=True))
    assert verified.verified
    began = time.perf_counter()
    export(store, "r1", file)
    export_ms = (time.perf_counter() - began) * 1000
    file_ms, _ = _fastest(lambda: LedgerFile(file).ledger)
    of = f"{found.seq:,} events, {len(found.entries):,} decisions"
    return [
        Figure(f"the ledger of {of}", "ms", [read_ms], at_most(TARGET_MS)),
        Figure(f"the ledger with verification of {of}", "ms", [verified_ms], at_most(TARGET_MS)),
        Figure(f"the export of {of}", "ms", [export_ms], beside={"KB": [file.stat().st_size / 1000]}),
        Figure(f"verification of the export of {of}", "ms", [file_ms]),
    ]


def _fastest(read: Callable[[], Ledger]) -> tuple[float, Ledger]:
    took, found = [], None
    for _ in range(_TIMES):
        began = time.perf_counter()
        found = read()
        took.append((time.perf_counter() - began) * 1000)
    assert found is not None
    return min(took), found
