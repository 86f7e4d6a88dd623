"""What it costs the server to send live events to very many clients, and how late the events come.

A server process, a writer that appends events like a worker in another process, and a process with the clients:

    python -m bench.live PORT SECONDS RUN_ID...     follows each of these runs on a connection of its own

An event has the time of its append, and a client compares it with the time at which it has read the event. CPU time and memory
are those of the server process alone.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.fleet import execute, server_log
from bench.parts import Bench
from bench.raw import percentile
from bench.report import Figure, at_most
from bench.server_process import TOKEN, holdfast_server
from bench.stores import Place, StoreKind
from holdfast.storage.contract import Store
from holdfast.storage.leases import Holder
from holdfast.testing.appends import Log

ROOT = Path(__file__).parent.parent
HOLDER = Holder(id="bench", ttl_s=3600.0)
_AT = re.compile(rb'"at":([0-9.]+)')
_EVENT = b'{"note":"%s"}' % (b"x" * 100)
_LARGE = b'{"chunks":["%s"]}' % (b"x" * 20_000)


@dataclass(frozen=True)
class Scene:
    """How many clients follow how many runs, and how often these runs move."""

    name: str
    clients: int
    runs: int
    events_per_s: int
    seconds: float


def scenes(effort: str) -> tuple[Scene, ...]:
    many, seconds = {"quick": (50, 3.0), "full": (1000, 20.0)}.get(effort, (1000, 6.0))
    return (
        Scene(f"{many:,} followers of one run", many, 1, 10, seconds),
        Scene(f"{many:,} followers of {many:,} runs", many, many, 100, seconds),
    )


def live(bench: Bench) -> list[Figure]:
    """Live events to many clients."""
    kinds: tuple[StoreKind, ...] = ("sqlite", "postgres") if bench.server else ("sqlite",)
    figures: list[Figure] = []
    for kind in kinds:
        for scene in scenes(bench.effort.name):
            with bench.fresh(kind) as place:
                bench.progress.say(f"live events, {scene.name}, {kind}")
                figures += measure(place, scene)
    with bench.fresh("sqlite") as place:
        bench.progress.say("live events, clients that do not read")
        figures.append(stuck(place, 10 if bench.effort.name == "quick" else 100))
    return figures


def measure(place: Place, scene: Scene) -> list[Figure]:
    """Let clients follow runs, and return how late their events came, and what they cost."""
    store = place.open()
    logs = create(store, scene.runs)
    url, log = f"sqlite:///{place.folder / 'store.db'}", None
    if place.kind == "postgres":
        url, log = _logged(place)
    try:
        with holdfast_server(url) as server:
            ids = [logs[number % scene.runs].run_id for number in range(scene.clients)]
            command = [sys.executable, "-m", "bench.live", str(server.port), str(scene.seconds), *ids]
            clients = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert clients.stdout is not None
            clients.stdout.readline()  # all clients follow
            size = log.stat().st_size if log else 0
            cpu_s, began = server.cpu_s(), time.perf_counter()
            appends = write(store, logs, scene, scene.seconds)
            took = time.perf_counter() - began
            share = 100 * (server.cpu_s() - cpu_s) / took
            queries = _statements(log, size) / took if log else 0.0
            memory = server.resident_mb()
            told = json.loads(clients.communicate(timeout=60)[0])
    finally:
        store.close()
    where = f"{scene.name}, {place.kind}"
    sent = int(scene.seconds * scene.events_per_s) * scene.clients // scene.runs
    note = f"{scene.events_per_s} events/s; clients read {told['events']:,} of {sent:,}; median {told['p50_s']:.2f} s"
    note += f"; of that, the append itself took {percentile(appends, 0.99):.2f} s (p99)"
    figures = [
        Figure(f"live: delay of an event, p99; {where}", "s", [told["p99_s"]], at_most(1.0), note=note),
        Figure(f"live: CPU of the server; {where}", "% of a core", [share], at_most(40.0)),
        Figure(f"live: memory of the server; {where}", "MB", [memory], at_most(150.0)),
    ]
    if log is not None:
        figures.append(Figure(f"live: queries; {where}", "per second", [queries], at_most(10.0)))
    return figures


def stuck(place: Place, clients: int) -> Figure:
    """Return what clients cost that never read, although megabytes wait for them."""
    store = place.open()
    log = create(store, 1)[0]
    append = log.next(*[_LARGE] * 500, kind="NodeStreamed")  # 10 MB
    assert store.append([append]) == [None]
    log.wrote(append)
    try:
        with holdfast_server(f"sqlite:///{place.folder / 'store.db'}") as server:
            asyncio.run(
                _open_stuck(server.port, 1, log.run_id, 2.0)
            )  # what a first client needs, others share
            before = server.resident_mb()
            after = asyncio.run(_open_stuck(server.port, clients, log.run_id, 5.0, server.resident_mb))
    finally:
        store.close()
    each = 1024 * (after - before) / clients
    return Figure("live: memory for a client that does not read", "KB", [each], at_most(1024.0))


async def _open_stuck(
    port: int, clients: int, run_id: str, seconds: float, then: Callable[[], float] = lambda: 0.0
) -> float:
    opened = [await asyncio.open_connection("127.0.0.1", port, limit=1024) for _ in range(clients)]
    for _, writer in opened:
        writer.write(request(port, run_id))
    await asyncio.sleep(seconds)
    found = then()
    for _, writer in opened:
        writer.close()
    return found


# --- the runs ----------------------------------------------------------------------------------------


def create(store: Store, runs: int) -> list[Log]:
    """Create runs that are held by this process."""
    store.renew(HOLDER)
    logs = [Log(f"run-{number}", holder=HOLDER.id, fence=1) for number in range(runs)]
    for first in range(0, runs, 200):
        some = logs[first : first + 200]
        appends = [log.create(*[b"{}"] * 5, kind="NodeStarted") for log in some]
        assert set(store.append(appends)) == {None}
        for log, append in zip(some, appends, strict=True):
            log.wrote(append)
    return logs


def write(store: Store, logs: list[Log], scene: Scene, seconds: float) -> list[float]:
    """Append events at an even rate, to one run after the other. Returns how long each append took: a delay includes that."""
    began, took = time.perf_counter(), []
    for number in range(int(seconds * scene.events_per_s)):
        time.sleep(max(0.0, began + number / scene.events_per_s - time.perf_counter()))
        log = logs[number % len(logs)]
        log.at = time.time()
        append = log.next(_EVENT, kind="NodeStarted")
        assert store.append([append]) == [None]
        took.append(time.time() - log.at)
        log.wrote(append)
    return sorted(took)


def _logged(place: Place) -> tuple[str, Path | None]:
    """Return the URL of a database for a user whose statements are logged, and the log of the server if it can be read."""
    execute(
        place.url,
        "drop role if exists follower",
        "create role follower superuser login",
        "alter role follower set log_statement = 'all'",
        "alter role follower set log_min_messages = 'log'",
    )
    return re.sub(r"//[^@]*@", "//follower@", place.url), server_log(place.url)


def _statements(log: Path, after: int) -> int:
    """Return how many statements were logged after a position, with `begin` and `commit`."""
    with log.open("rb") as file:
        file.seek(after)
        return len(re.findall(rb"LOG:\s+(?:statement|execute [^:]*): ", file.read()))


# --- the clients -------------------------------------------------------------------------------------


def request(port: int, run_id: str) -> bytes:
    head = f"GET /api/v1/live?run={run_id} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    return head.encode()


class Follower(asyncio.Protocol):
    """A client that notes how late each event comes."""

    def __init__(self, port: int, run_id: str, began: float, delays: list[float]) -> None:
        self._request, self._began, self._delays = request(port, run_id), began, delays
        self.has_answer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.has_answer = True
        now = time.time()
        self._delays += [now - at for at in map(float, _AT.findall(data)) if at > self._began]


async def follow(port: int, seconds: float, run_ids: list[str]) -> None:
    """Follow runs, and print how late their events came."""
    loop, began = asyncio.get_running_loop(), time.time() + 3600
    delays: list[float] = []
    made = []
    for run_id in run_ids:
        _, client = await loop.create_connection(
            lambda run_id=run_id: Follower(port, run_id, began, delays), "127.0.0.1", port
        )
        made.append(client)
    while not all(client.has_answer for client in made):  # noqa: ASYNC110 - a thousand clients
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    began = time.time()
    for client in made:
        client._began = began
    print("ready", flush=True)
    await asyncio.sleep(seconds + 4.0)
    delays.sort()
    print(
        json.dumps(
            {"events": len(delays), "p99_s": percentile(delays, 0.99), "p50_s": percentile(delays, 0.5)}
        )
    )


if __name__ == "__main__":
    asyncio.run(follow(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
