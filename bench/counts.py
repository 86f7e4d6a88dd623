"""The cost of a step, counted instead of timed: the counts are the same on every machine and under any load.

Each count is taken for a short and for a longer chain, and the difference is divided by the difference in steps, so the fixed
cost of a run is not included. The engine runs inline, so that no thread or clock changes the counts.
"""

import asyncio
import sys
from collections import Counter as Counted
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import holdfast
from bench.workloads import chain_flow, count_async
from holdfast import Engine, Flow
from holdfast.storage.contract import Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore

SOURCE = str(Path(holdfast.__file__).parent)


class Calls(NamedTuple):
    """Function calls of one step on the memory store."""

    ours: float
    """Functions of Holdfast."""
    all: float
    """Functions of Holdfast and all functions that they call: the standard library, and functions written in C."""


class Writes(NamedTuple):
    """Writes of one step on SQLite."""

    statements: float
    commits: float
    pages: float
    """Pages written to the write-ahead log of SQLite."""
    stored_bytes: float
    """Bytes in the file after close."""


def calls(short: int = 20, long: int = 120) -> Calls:
    """Count function calls per step."""
    few, many = (_calls(chain_flow("counted", nodes, count_async)) for nodes in (short, long))
    return Calls(*((after - before) / (long - short) for before, after in zip(few, many, strict=True)))


def _calls(flow: Flow[Any]) -> tuple[int, int]:
    seen: Counted[str] = Counted()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen["all"] += 1
            seen["ours"] += frame.f_code.co_filename.startswith(SOURCE)
        elif event == "c_call":
            seen["all"] += 1

    def profiled(run: Callable[[], Any]) -> Any:
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            return run()
        finally:
            sys.setprofile(before)

    _run(MemoryStore(), flow, profiled)
    return seen["ours"], seen["all"]


def writes(folder: Path, short: int = 50, long: int = 450) -> Writes:
    """Count statements, commits, pages and bytes per step."""
    few, many = (_writes(folder / f"{nodes}.db", nodes) for nodes in (short, long))
    return Writes(*((after - before) / (long - short) for before, after in zip(few, many, strict=True)))


def _writes(path: Path, nodes: int) -> tuple[int, int, int, int]:
    seen: Counted[str] = Counted()
    store = SqliteStore(
        path, clock=lambda: 0.0
    )  # with a real clock, the store would also read its version ten times a second
    writer = store._database._writer
    # An automatic checkpoint restarts SQLite's log, and a long run then writes some pages again; only writes of commits count.
    writer.wal_autocheckpoint(0)

    def look(statement: dict[str, Any]) -> None:
        seen["statements"] += 1
        seen["commits"] += statement["sql"].strip().lower().startswith("commit")

    writer.trace_v2(apsw.SQLITE_TRACE_STMT, look)
    _run(store, chain_flow("counted", nodes, count_async))
    writer.trace_v2(0, None)
    pages = writer.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
    store.close()
    return seen["statements"], seen["commits"], pages, path.stat().st_size


def _run(
    store: Store, flow: Flow[Any], around: Callable[[Callable[[], Any]], Any] = lambda run: run()
) -> None:
    async def main() -> None:
        async with Engine(store, inline=True) as engine:
            run = await engine.run(flow, run_id="counted")
        assert (run.status, run.state.step) == ("completed", len(flow.nodes)), run

    around(lambda: asyncio.run(main()))
