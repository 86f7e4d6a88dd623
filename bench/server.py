"""The server under load: filters and questions in a store with very many runs, requests per second, memory, and slow reads.

The server is `holdfast serve` in a process of its own, called over HTTP on loopback by a client in this process. Requests per
second are compared with a bare route of starlette on the same HTTP server in the same round, which does nothing but answer.
"""

import asyncio
import itertools
import random
import statistics
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import holdfast as hf
from bench import http_load
from bench.http_load import Load
from bench.parts import Bench
from bench.report import Figure, Target, at_least, at_most
from bench.server_process import TOKEN, ServerProcess, bare_server, holdfast_server
from bench.stores import Place
from holdfast.core.event_encoding import Encoded
from holdfast.storage.contract import Append, NewRun, Store, View
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import SALT_BYTES, seal

API = "/api/v1"
PAGE_MS = 20.0
_BATCH = 500
_WHOLE = 1000
_AT_ONCE = 16
_STATUSES = {"completed": 80, "failed": 8, "waiting": 6, "running": 3, "pending": 2, "cancelled": 1}
"""How many of a hundred runs have each status."""


@dataclass(frozen=True)
class Size:
    """The sizes of the workloads."""

    runs: int
    requests: int
    """Requests of one round of requests per second."""
    flat: int
    """Requests over which the memory of the server must not grow."""


SIZES = {
    "quick": Size(2_000, 400, 2_000),
    "normal": Size(100_000, 6_000, 100_000),
    "full": Size(100_000, 20_000, 100_000),
}


def server(bench: Bench) -> list[Figure]:
    """Measure everything about the server, on SQLite."""
    size = SIZES[bench.effort.name]
    figures: list[Figure] = []
    for nodes in (10, 1000):
        with bench.fresh() as place:
            bench.progress.say(f"the server with {size.runs:,} runs of {nodes:,} nodes")
            began_at = fill(place, size.runs, nodes)
            with holdfast_server(_url(place)) as serving:
                figures += [_filters(serving, size, nodes, began_at), _questions(serving, size, nodes)]
                if nodes == 10:
                    figures.append(_slow_read(serving, size))
    with bench.fresh() as place:
        asyncio.run(_few_runs(place))
        with holdfast_server(_url(place)) as serving:
            figures += _rates(bench, serving, size)
            figures.append(_memory(bench, serving, size))
    return figures


def _url(place: Place) -> str:
    return str(place.folder / "store.db")


# --- very many runs ------------------------------------------------------------------------------------


@dataclass
class Order:
    """The state of the runs."""

    ends: str = "completed"
    done: list[str] = field(default_factory=list)


def order_flow(nodes: int) -> hf.Flow[Order]:
    """Return a chain of nodes, of which the last ends as the input says: it fails, asks, or never ends."""
    graph = hf.Graph(f"order{nodes}", Order)

    async def step(state: Order) -> None:
        return None

    async def last(state: Order, ctx: hf.Context) -> None:
        if state.ends == "failed":
            raise hf.Fatal("the card was declined")
        if state.ends == "waiting":
            await ctx.ask("Charge the card again?", options=["yes", "no"])
        if state.ends == "running":
            await asyncio.sleep(3600)

    names = [f"n{number}" for number in range(nodes - 1)]
    for name in names:
        graph.node(name=name)(step)
    graph.node(name="charge")(last)
    return graph.chain(hf.START, *names, "charge", hf.END).compile()


class Template(NamedTuple):
    """A real run, whose row is written again for many others."""

    view: View
    log: list[Encoded]
    definition: bytes


async def templates(nodes: int) -> dict[str, Template]:
    """Execute one run for each status, and return what the store says of it at that moment."""
    store, flow = MemoryStore(), order_flow(nodes)
    found: dict[str, Template] = {}

    def keep(run_id: str) -> None:
        row = store.run(run_id)
        definition = store.definition(row.fingerprint)
        assert definition is not None
        view = View(**{name: getattr(row, name) for name in View.__struct_fields__})
        log = [
            Encoded(one.kind, one.node, one.iteration, one.execution, one.attempt, one.body)
            for one in store.events(run_id)
        ]
        found[row.status] = Template(view, log, definition)

    async with hf.Engine(store, flows=[flow], grace=0, park_after=0) as engine:
        await engine.start(flow, {}, run_id="pending")
        keep("pending")
        for ends in ("completed", "failed", "waiting"):
            with suppress(hf.RunFailed):
                await engine.run(flow, {"ends": ends}, run_id=ends)
            keep(ends)
        running = asyncio.ensure_future(engine.run(flow, {"ends": "running"}, run_id="running"))
        while not running.done() and "charge" not in _active(store):  # noqa: ASYNC110 - seen in the store
            await asyncio.sleep(0.01)
        keep("running")
        await engine.cancel("running")
        await asyncio.gather(running, return_exceptions=True)
        keep("running")
    assert set(found) == set(_STATUSES), found.keys()
    return found


def _active(store: Store) -> tuple[str, ...]:
    with suppress(hf.RunNotFound):
        return store.run("running").active
    return ()


def fill(place: Place, count: int, nodes: int) -> float:
    """Write `count` runs. Their rows and definitions are those of real runs of `nodes` nodes. Only the oldest and the newest
    runs that ask have their whole logs, which the list of questions reads; of all others only the first event is written, because
    no page of a listing reads a log. Returns when the first of them was created; the others follow every half second.
    """
    luck, made, store = random.Random(1), asyncio.run(templates(nodes)), place.open()
    began_at, batch = store.now() - count * 0.5, list[Append]()
    try:
        for number in range(count):
            one = made[luck.choices(list(_STATUSES), list(_STATUSES.values()))[0]]
            is_whole = one.view.asks and not _WHOLE < number < count - _WHOLE
            batch.append(_copy(one, number, began_at + number * 0.5, one.log if is_whole else one.log[:1]))
            if len(batch) == _BATCH or number == count - 1:
                assert not any(store.append(batch))
                batch = []
    finally:
        store.close()
    return began_at


def _copy(one: Template, number: int, at: float, log: list[Encoded]) -> Append:
    run_id = f"run-{number:06d}"
    salts = number.to_bytes(SALT_BYTES, "big") * len(log)
    new = NewRun(
        flow="rare" if number % 20 == 0 else "order",
        input_digest=b"input",
        created_at=at,
        labels={"team": "ab"[number % 2], "customer": str(number % 500)},
        queue="rare" if number % 1000 == 0 else "default",
        parent="run-000001" if number % 20 == 5 else None,
    )
    return Append(
        run_id=run_id,
        expected_seq=0,
        rows=seal(b"", run_id, 0, at, log, salts),
        view=one.view,
        create=new,
        definition=one.definition if number < 100 else None,
    )


def filters(count: int, began_at: float) -> dict[str, str]:
    """Return a query for each filter of the route, and for the usual pairs of filters, for runs of `fill`."""
    ids = "&".join(f"id=run-{number:06d}" for number in range(0, count, max(1, count // 50)))
    return {
        "everything": "",
        "one status": "status=completed",
        "three statuses": "status=failed&status=waiting&status=running",
        "flow": "flow=order",
        "rare flow": "flow=rare",
        "flow and status": "flow=rare&status=failed",
        "label": "label=team%3Da",
        "rare label": "label=customer%3D7",
        "two labels": "label=team%3Db&label=customer%3D7",
        "label and status": "label=team%3Da&status=cancelled",
        "parent": "parent=run-000001",
        "origin": "origin=run-000001",
        "queue": "queue=default",
        "rare queue": "queue=rare",
        "ids": ids,
        "prefix": f"prefix=run-{count // 200:05d}",
        "questions": "asks=true",
        "attention": "attention=true",
        "time of creation": f"since={began_at + count * 0.2:.0f}&until={began_at + count * 0.3:.0f}",
    }


def _filters(serving: ServerProcess, size: Size, nodes: int, began_at: float) -> Figure:
    took: dict[str, float] = {}
    for name, query in filters(size.runs, began_at).items():
        load = _ask(serving, f"{API}/runs?limit=50{'&' if query else ''}{query}", count=15, connections=1)
        took[name] = load.ms_at(0.5)
    worst = max(took, key=lambda name: took[name])
    return Figure(
        f"the slowest filter, a page of 50 of {size.runs:,} runs of {nodes:,} nodes",
        "ms",
        [took[worst]],
        at_most(PAGE_MS),
        beside={f"ms by {name}": [ms] for name, ms in took.items()},
        note=f"filter: {worst}; the median of 15 requests, with reason and remedy of every run",
    )


def _questions(serving: ServerProcess, size: Size, nodes: int) -> Figure:
    load = _ask(serving, f"{API}/questions", count=15, connections=1)
    name = f"open questions of {size.runs:,} runs of {nodes:,} nodes"
    return Figure(name, "ms", [load.ms_at(0.5)], at_most(PAGE_MS), note=f"{load.size:,} bytes")


def _slow_read(serving: ServerProcess, size: Size) -> Figure:
    """Requests for one run while another client has the whole store examined, again and again."""
    path = f"{API}/runs/run-000000/checkpoints"
    alone = _ask(serving, path, count=200, connections=2)
    stop, slow = threading.Event(), Load()

    def examine() -> None:
        while not stop.is_set():
            slow.took_ms += _ask(serving, f"{API}/doctor?again=true", count=1, connections=1).took_ms

    thread = threading.Thread(target=examine)
    thread.start()
    try:
        beside = _ask(serving, path, count=200, connections=2)
    finally:
        stop.set()
        thread.join()
    return Figure(
        "the slowest of 200 requests while another client has the store examined",
        "of the time of that examination",
        [beside.took_ms[-1] / statistics.median(slow.took_ms)],
        at_most(0.5) if size.runs > 10_000 else None,
        beside={
            "ms, median": [beside.ms_at(0.5)],
            "ms, median alone": [alone.ms_at(0.5)],
            "ms of an examination": [statistics.median(slow.took_ms)],
        },
    )


# --- requests per second -------------------------------------------------------------------------------


async def _few_runs(place: Place, large_nodes: int = 1000) -> None:
    """Execute a small and a large run, and leave a request to a third."""
    small, large = order_flow(10), order_flow(large_nodes)
    async with hf.Engine(_url(place)) as engine:
        await engine.run(small, {}, run_id="r10")
        await engine.run(large, {}, run_id="r1000")
        with suppress(hf.RunFailed):
            await engine.run(large, {"ends": "failed"}, run_id="asked")
        await engine.resume("asked", execute=False, id="waits")


def _rates(bench: Bench, serving: ServerProcess, size: Size) -> list[Figure]:
    cases: list[tuple[str, str, list[str], int, Target | None]] = [
        ("a run of 10 nodes", "r10", [], 1, at_least(2000)),
        ("a run of 10 nodes that the client knows (304)", "r10", [_known(serving, "r10")], 1, at_least(4000)),
        ("a run of 1,000 nodes", "r1000", [], 5, at_least(200)),
        ("a run of 1,000 nodes, encoded again for every request", "asked", [], 60, None),
    ]
    figures = []
    for name, run_id, headers, slower, target in cases:
        path, count = f"{API}/runs/{run_id}", max(50, size.requests // slower)
        first = _ask(serving, path, *headers, count=max(_AT_ONCE, count // 10))
        rates, ratios, cpu = [], [], []
        with bare_server(first.size) as bare:
            plain = http_load.get(bare.port, "/bare")
            http_load.send(bare.port, [plain], count=count, connections=_AT_ONCE)
            for _ in bench.each_round(f"requests/s, {name}"):
                before = serving.cpu_s()
                ours = _ask(serving, path, *headers, count=count)
                cpu.append((serving.cpu_s() - before) / count * 1e6)
                theirs = http_load.send(bare.port, [plain], count=count, connections=_AT_ONCE)
                rates.append(ours.rate)
                ratios.append(ours.rate / theirs.rate)
        figures.append(
            Figure(
                f"GET {name}",
                "requests/s",
                rates,
                target if bench.effort.name != "quick" else None,
                beside={"of a bare route": ratios, "µs of CPU time": cpu, "bytes": [float(first.size)]},
            )
        )
    return figures


def _known(serving: ServerProcess, run_id: str) -> str:
    """Return the header of a client that knows a run as it is."""
    found = _ask(serving, f"{API}/runs/{run_id}", count=1, connections=1)
    return f"If-None-Match: {found.etag}"


def _memory(bench: Bench, serving: ServerProcess, size: Size) -> Figure:
    """The memory that the server gains over very many requests of all kinds."""
    bench.progress.say(f"memory over {size.flat:,} requests")
    paths = [
        "/runs/r10", "/runs/r10", "/runs/r1000", "/runs", "/runs?status=failed", "/runs/none", "/runs/r10/events?limit=20",
        "/meta", "/runs/r10/state", "/questions", "/runs?sort=up", "/queues",
    ]  # fmt: skip
    asked = [http_load.get(serving.port, API + path, token=TOKEN) for path in paths]
    # No two of these have the same path, so that nothing may be kept for each path.
    fresh = (
        http_load.get(serving.port, f"{API}/runs/r{number}", token=TOKEN) for number in itertools.count()
    )
    several = [*asked, *itertools.islice(fresh, 4000)]
    http_load.send(serving.port, several, count=max(len(several), size.flat // 10), connections=_AT_ONCE)
    before = serving.resident_mb()
    load = http_load.send(serving.port, several, count=size.flat, connections=_AT_ONCE)
    grown = serving.resident_mb() - before
    assert set(load.statuses) <= {200, 400, 404}, load.statuses
    return Figure(
        f"memory that the server gains over {size.flat:,} requests",
        "MB",
        [grown],
        at_most(5.0),
        beside={"MB before": [before], "requests/s": [load.rate]},
    )


def _ask(serving: ServerProcess, path: str, *headers: str, count: int, connections: int = _AT_ONCE) -> Load:
    """Send the same request many times, and require that all of them succeed."""
    asked = http_load.get(serving.port, path, *headers, token=TOKEN)
    load = http_load.send(serving.port, [asked], count=count, connections=min(count, connections))
    assert set(load.statuses) <= {200, 304}, (path, load.statuses)
    return load
