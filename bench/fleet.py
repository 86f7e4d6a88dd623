"""Measure a fleet of worker processes from another process, with the monotonic clock that all processes of a machine share.

It measures how soon a recorded run is executed, how soon a run is taken over after its worker was killed, how much longer a claim
takes with many pending runs, how many statements an idle worker sends to the database, and whether any run is lost or executed
twice; and on PostgreSQL, many small runs at once, compared with the peers that support it.
"""

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec

import holdfast as hf
from bench import workloads
from bench.contest import ON_POSTGRES, ROOT, Absent, Environment
from bench.fleet_worker import STEPS, claimed_flow, counted_flow, stuck_flow
from bench.parts import Bench
from bench.raw import percentile
from bench.report import Figure, at_least, at_most
from bench.stores import Place, StoreKind
from bench.workloads import FLEET_NODES
from holdfast.core import event_encoding, events
from holdfast.storage.contract import Append, NewRun, Store, View
from holdfast.storage.leases import this_process
from holdfast.storage.queues import Wanted
from holdfast.storage.rows import SALT_BYTES, seal

WORKERS = 4
TTL_S = 3.0
"""The time to live of leases in the takeover measurements; a lease is renewed after a third of it."""
_PIECE = 1000
_FEW = 300


@dataclass(frozen=True)
class Size:
    """The sizes of the workloads."""

    claims: int
    takeovers: int
    runs: int
    pending: int
    idle_s: float


SIZES = {
    "quick": Size(20, 1, 200, 5_000, 12.0),
    "normal": Size(100, 3, 1_000, 100_000, 30.0),
    "full": Size(300, 5, 10_000, 100_000, 90.0),
}


def fleet(bench: Bench) -> list[Figure]:
    """Measure everything about a fleet, on SQLite and, if a server is there, on PostgreSQL."""
    size = SIZES[bench.effort.name]
    kinds: list[StoreKind] = ["sqlite", "postgres"] if bench.server else ["sqlite"]
    figures: list[Figure] = []
    for kind in kinds:
        figures.append(_claims(bench, kind, size))
        figures += _takeovers(bench, kind, size)
        figures.append(_many_runs(bench, kind, size))
        figures.append(_many_pending(bench, kind, size))
    figures.append(_idle_on_sqlite(bench, size))
    if bench.server:
        figures.append(_idle_on_postgres(bench, size))
        figures += _beside_peers(bench)
    return figures


# --- workers -------------------------------------------------------------------------------------------


def _url(place: Place) -> str:
    return place.url or str(place.folder / "store.db")


@contextmanager
def _worker(place: Place, *, ttl_s: float = 30.0, host: str = "", concurrency: int = 10) -> Iterator[Any]:
    """Start a worker in its own process, and wait until it is ready."""
    asked = {
        "store": _url(place),
        "ttl_s": ttl_s,
        "concurrency": concurrency,
        "host": host,
        "told": str(place.folder / "told"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fleet_worker", json.dumps(asked)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the worker did not start"
            yield process
        finally:
            process.kill()


# --- how soon a run is executed ------------------------------------------------------------------------


def _claims(bench: Bench, kind: StoreKind, size: Size) -> Figure:
    """The time from `start` in one process to the first line of the node in an idle worker."""
    bench.progress.say(f"claims, {kind}")
    flow = claimed_flow()

    async def measure(place: Place) -> list[float]:
        took = []
        async with hf.Engine(_url(place), flows=[flow]) as engine:
            for number in range(size.claims + 5):
                began = time.monotonic()
                run_id = await engine.start(flow, {}, run_id=f"r{number}")
                run = await engine.wait(run_id)
                took.append((run.state["at"] - began) * 1e3)
        return sorted(took[5:])

    with bench.fresh(kind) as place, _worker(place):
        took = asyncio.run(measure(place))
    beside = {"ms at p50": [percentile(took, 0.5)], "ms for the slowest": [took[-1]]}
    # SQLite has no notifications: a worker checks the file 20 times a second, so there is no target.
    target = at_most(50.0) if kind == "postgres" else None
    name = f"time until a pending run is claimed, p95 of {len(took)} runs, {kind}"
    return Figure(name, "ms", [percentile(took, 0.95)], target, beside=beside)


def _takeovers(bench: Bench, kind: StoreKind, size: Size) -> list[Figure]:
    """The time from `kill -9` of a worker to the first line of the node in another worker."""
    away, here, resumed = [], [], []
    for _ in bench.each_round(f"takeover, {kind}", size.takeovers):
        with bench.fresh(kind) as place:
            away.append(asyncio.run(_takeover(place, host="elsewhere")))
        with bench.fresh(kind) as place:
            here.append(asyncio.run(_takeover(place, host="")))
        with bench.fresh(kind) as place:
            resumed.append(asyncio.run(_takeover(place, host="", by_resume=True)) * 1e3)
    renewal_s = TTL_S / 3
    note = f"lease TTL {TTL_S:g} s; the ratio is that of the slowest of {size.takeovers} takeovers"
    return [
        Figure(
            f"takeover after kill -9 on another machine, {kind}",
            "of the lease TTL plus one renewal interval",
            [max(away) / (TTL_S + renewal_s)],
            at_most(1.0),
            beside={"s at the median": away},
            note=note,
        ),
        Figure(
            f"takeover after kill -9 on the same machine, {kind}",
            "of one renewal interval",
            [max(here) / renewal_s],
            at_most(1.0),
            beside={"s at the median": here},
            note=note,
        ),
        Figure(
            f"resume after kill -9 on the same machine, {kind}",
            "ms",
            resumed,
            note="without waiting for the lease to expire",
        ),
    ]


async def _takeover(place: Place, *, host: str, by_resume: bool = False) -> float:
    """Seconds during which no living worker executes the run."""
    flow, other = stuck_flow(), claimed_flow()
    async with hf.Engine(_url(place), flows=[flow, other], lease_ttl=TTL_S) as engine:
        with ExitStack() as opened:
            killed = opened.enter_context(_worker(place, ttl_s=TTL_S, host=host, concurrency=1))
            await engine.start(flow, {}, run_id="r")
            while not await engine.events("r", kind="NodeStarted"):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
            if not by_resume:
                opened.enter_context(_worker(place, ttl_s=TTL_S))
                await engine.wait(
                    await engine.start(other, {})
                )  # executed by the second worker: the first has no free slot
                await asyncio.sleep(TTL_S / 2)  # until the second worker is idle
            killed.kill()
            killed.wait()
            at = time.monotonic()
            run = await (engine.resume("r") if by_resume else engine.wait("r"))
            taken_at: float = run.state["at"]
            return taken_at - at


# --- many runs -----------------------------------------------------------------------------------------


def _many_runs(bench: Bench, kind: StoreKind, size: Size) -> Figure:
    """Count the nodes that are lost or executed twice when several workers execute many runs."""
    bench.progress.say(f"{size.runs:,} runs, {WORKERS} workers, {kind}")

    async def execute(place: Place) -> float:
        flow = counted_flow("")
        async with hf.Engine(_url(place), flows=[flow]) as engine:
            began = time.perf_counter()
            for first in range(0, size.runs, _PIECE):
                ids = [f"r{number}" for number in range(first, min(first + _PIECE, size.runs))]
                await asyncio.gather(*(engine.start(flow, {}, run_id=run_id) for run_id in ids))
            for number in range(size.runs):
                await engine.wait(f"r{number}")
            return time.perf_counter() - began

    with bench.fresh(kind) as place, ExitStack() as opened:
        place.open().close()  # create the schema before the workers start
        for _ in range(WORKERS):
            opened.enter_context(_worker(place))
        wall_s = asyncio.run(execute(place))
        lines = (place.folder / "told").read_text(encoding="utf-8").splitlines()
    executed = Counter(lines)
    wanted = {f"r{number} n{step}" for number in range(size.runs) for step in range(STEPS)}
    lost, again = len(wanted - executed.keys()), sum(executed.values()) - len(executed)
    return Figure(
        f"nodes lost or executed twice by {WORKERS} workers in {size.runs:,} runs, {kind}",
        "nodes",
        [float(lost + again)],
        at_most(0),
        beside={"runs/s": [size.runs / wall_s]},
    )


def _many_pending(bench: Bench, kind: StoreKind, size: Size) -> Figure:
    """The time of a claim with very many pending runs, compared with a claim with few."""
    bench.progress.say(f"claims among {size.pending:,} pending runs, {kind}")
    with bench.fresh(kind) as place:
        store = place.open()
        try:
            _record(store, 0, _FEW)
            few = _claim_us(store)
            _record(store, _FEW, size.pending)
            many = _claim_us(store)
            if kind == "postgres":
                execute(
                    place.url, "analyze"
                )  # the server does this by itself at some point, and query plans may change
                many = max(many, _claim_us(store))
        finally:
            store.close()
    return Figure(
        f"time of a claim among {size.pending:,} pending runs, {kind}",
        f"times that of a claim among {_FEW}",
        [many / few],
        at_most(2.0),
        beside={f"µs among {size.pending:,}": [many], f"µs among {_FEW}": [few]},
    )


def _record(store: Store, first: int, last: int) -> None:
    """Write pending runs in large batches, as `start` would, without an engine."""
    flow = claimed_flow()
    created = events.RunCreated(
        flow=flow.name, fingerprint=flow.fingerprint, state_version=1, input={}, starts=["began"],
        options={"durability": "sync"},
    )  # fmt: skip
    encoded = [event_encoding.encode(created)]
    view = View(status="pending", fingerprint=flow.fingerprint, state_version=1)
    definition = msgspec.json.encode(flow.definition)
    at = 1_700_000_000.0
    for start in range(first, last, _PIECE):
        batch = []
        for number in range(start, min(start + _PIECE, last)):
            run_id = f"r{number:07}"
            rows = seal(b"", run_id, 0, at + number, encoded, number.to_bytes(SALT_BYTES, "big"))
            new = NewRun(flow=flow.name, input_digest=sha256(b"").digest(), created_at=at + number)
            batch.append(
                Append(
                    run_id=run_id,
                    expected_seq=0,
                    rows=rows,
                    view=view,
                    create=new,
                    definition=definition if number == first else None,
                )
            )
        assert not any(store.append(batch))


def _claim_us(store: Store, count: int = 100) -> float:
    """Return the median time of a claim in microseconds. The claimed runs stay claimed."""
    holder, wanted = this_process(), Wanted(flows=("claimed",))
    took = []
    for _ in range(count):
        began = time.perf_counter()
        (taken,) = store.queues.take(holder, wanted)
        took.append(time.perf_counter() - began)
        assert taken.why == "pending"
    return statistics.median(took) * 1e6


# --- idle workers --------------------------------------------------------------------------------------


def _idle_on_sqlite(bench: Bench, size: Size) -> Figure:
    """Count the statements that an idle worker executes on all SQLite connections."""
    bench.progress.say("an idle worker, sqlite")
    seen: Counter[str] = Counter()

    def look(statement: dict[str, Any]) -> None:
        seen["statements"] += 1

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, look)

    async def idle(place: Place) -> float:
        async with hf.Engine(_url(place), flows=[claimed_flow()]) as engine:
            working = asyncio.ensure_future(engine.work())
            await asyncio.sleep(1.0)
            before = seen["statements"]
            await asyncio.sleep(size.idle_s)
            statements = seen["statements"] - before
            engine.stop()
            await working
            return statements / size.idle_s

    apsw.connection_hooks.append(hook)
    try:
        with bench.fresh() as place:
            rate = asyncio.run(idle(place))
    finally:
        apsw.connection_hooks.remove(hook)
    return Figure("an idle worker, sqlite", "SQL statements/s", [rate], at_most(1.0))


def _idle_on_postgres(bench: Bench, size: Size) -> Figure:
    """Count the statements of an idle worker in the log of the PostgreSQL server, with `begin` and `commit`."""
    bench.progress.say("an idle worker, postgres")
    name = "an idle worker, postgres"
    with bench.fresh("postgres") as place:
        log = server_log(place.url)
        if log is None:
            return Figure(
                name, "SQL statements/s", [], at_most(1.0), note="the log of the server cannot be read here"
            )
        database = place.url.partition("?")[0].rpartition("/")[2]
        execute(
            place.url,
            f"alter database {database} set log_statement = 'all'",
            f"alter database {database} set log_min_messages = 'log'",
        )
        with _worker(place):
            time.sleep(2.0)
            before = log.stat().st_size
            time.sleep(size.idle_s)
            with log.open("rb") as file:
                file.seek(before)
                said = file.read().decode(errors="replace")
    found = re.findall(r"LOG:\s+(?:statement|execute [^:]*): (.*)", said)
    return Figure(name, "SQL statements/s", [len(found) / size.idle_s], at_most(1.0))


def server_log(url: str) -> Path | None:
    ((folder,),) = execute(url, "show data_directory")
    path = Path(folder) / "log"
    try:
        path.stat()
    except OSError:
        return None
    return path if path.is_file() else None


def execute(url: str, *statements: str) -> list[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


# --- the peers -----------------------------------------------------------------------------------------


def _beside_peers(bench: Bench) -> list[Figure]:
    """A thousand runs of ten steps at once on PostgreSQL, compared with the peers that support it."""
    name = "fleet on PostgreSQL"
    target = at_least(10)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {peer.name: [] for peer in ON_POSTGRES}
    notes = dict.fromkeys(theirs, "")
    runs = bench.effort.peer_fleet
    with Environment() as environment:
        try:
            environment.install()
        except Absent as absent:
            return [
                Figure(
                    f"{name}, compared with the fastest other library",
                    "times its rate",
                    [],
                    target,
                    note=str(absent),
                )
            ]
        for _ in bench.each_round(f"{name} beside the peers", bench.effort.few):
            with bench.fresh("postgres") as place:
                ours.append(1000 * FLEET_NODES / workloads.fleet(place, 1000).wall_s)
            for peer in ON_POSTGRES:
                if notes[peer.name] and not theirs[peer.name]:
                    continue
                with bench.fresh("postgres") as place:
                    try:
                        found = environment.ask(
                            peer, place.folder, "fleet", steps=FLEET_NODES, runs=runs, url=place.url
                        )
                    except Absent as absent:
                        notes[peer.name] = str(absent)
                        continue
                theirs[peer.name].append(found["steps"] / found["wall_s"])
                notes[peer.name] = f"{runs} runs of {FLEET_NODES} steps; {found['settings']}"
    whole = [rates for rates in theirs.values() if len(rates) == len(ours)]
    ratios = [rate / max(rates[number] for rates in whole) for number, rate in enumerate(ours) if whole]
    return [
        Figure(
            f"{name}, compared with the fastest other library",
            "times its rate",
            ratios,
            target,
            note="" if whole else "no peer gave a result",
        ),
        Figure(f"{name}, Holdfast", "steps/s", ours),
        *(Figure(f"{name}, {peer}", "steps/s", rates, note=notes[peer]) for peer, rates in theirs.items()),
    ]
