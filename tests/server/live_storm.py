"""A storm over live events: clients follow runs through a proxy that cuts their connections at random places, while the server
and the worker are killed again and again. Every client must get every event of its run exactly once.

    python tests/server/live_storm.py SECONDS SEED
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from live_client import Cut, LiveClient

import forked
import holdfast as hf
from holdfast.storage.sqlite.store import SqliteStore

SECRET = "storm0000000.0123456789abcdef0123456789abcdef"
FLOW = """
import asyncio
from pathlib import Path
import holdfast as hf

graph = hf.Graph("storm")

@graph.node(crash_limit=1000)
async def turn(state, ctx: hf.Context):
    for number in range(3):
        ctx.emit(f"{state.get('turns', 0)}.{number}")
        await asyncio.sleep(state["pause"] / 3)
    while state.get("turns", 0) + 1 >= state["until"] and not Path("a_chunk_was_read").exists():
        await asyncio.sleep(0.01)  # the last turn lasts until a client has got a chunk
    return {"turns": state.get("turns", 0) + 1}

graph.edge(hf.START, "turn")
graph.branch("turn", lambda state: hf.END if state["turns"] >= state["until"] else "turn", ["turn", hf.END])
flow = graph.compile(max_iterations=1_000_000)
"""


@dataclass
class Outcome:
    """What a storm has done, and what went wrong."""

    clients: int = 0
    events: int = 0
    chunks: int = 0
    cuts: int = 0
    kills: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.clients} clients, {self.events:,} events and {self.chunks:,} chunks read, connections cut: {self.cuts}, "
            f"processes killed: {self.kills}, violations: {len(self.violations)}"
        )


class RandomProxy:
    """Forwards connections to a port, and ends each after a random number of bytes."""

    def __init__(self, port: int, luck: random.Random, bytes_max: int) -> None:
        self._port, self._luck, self._bytes_max = port, luck, bytes_max
        self.cuts = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for one in self._open:
            one.cancel()
        await asyncio.gather(*self._open)

    async def _forward(self, client: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        left, this = self._luck.randrange(1, self._bytes_max), asyncio.current_task()
        assert this is not None
        self._open.add(this)
        this.add_done_callback(self._open.discard)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except (OSError, asyncio.CancelledError):  # it was killed, or the storm is over
            out.transport.abort()
            return
        sending = asyncio.ensure_future(_copy(client, to_server))
        try:
            while data := await server.read(4096):
                out.write(data[:left])
                left -= len(data)
                if left <= 0:
                    self.cuts += 1
                    return
                await out.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            sending.cancel()
            out.transport.abort()
            to_server.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(4096):
            writer.write(data)


class Victim:
    """A process of the command line that is started again whenever it was killed."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder, self._words = folder, words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", *self._words],
            cwd=self._folder,
            env=clean | {"PYTHONPATH": paths, "HOLDFAST_TOKEN": SECRET, "HOLDFAST_STORE": "runs.db"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


async def follow(port: int, server_port: int, run_id: str, outcome: Outcome) -> list[int]:
    """Follow a run until it is over, however often the connection is cut, and return the seqs of all events."""
    got: list[int] = []
    outcome.clients += 1
    while True:
        with suppress(Cut, OSError):
            last = got[-1] if got else None
            client = await LiveClient.open(
                port, f"?run={run_id}", SECRET, name=f"127.0.0.1:{server_port}", last_id=last
            )
            async with client:
                if client.status != 200:
                    outcome.violations.append(f"{run_id}: {client.status} {client.body!r}")
                    return got
                async for found in client.frames():
                    if found.event == "event":
                        got.append(found.data["seq"])
                        outcome.events += 1
                        if found.id != found.data["seq"]:
                            outcome.violations.append(
                                f"{run_id}: event {found.data['seq']} has the id {found.id}"
                            )
                    elif found.event == "chunk":
                        outcome.chunks += 1
                        if found.id is not None:
                            outcome.violations.append(f"{run_id}: a chunk has an id")
                    elif found.event == "over":
                        return got
                    elif found.event:
                        outcome.violations.append(f"{run_id}: {found}")
        await asyncio.sleep(0.02)


async def rage(
    folder: Path, seed: int, *, seconds: float, runs: int, clients: int, pause_s: float, kill_every_s: float
) -> Outcome:
    """Let a storm rage for about so many seconds."""
    luck, outcome = random.Random(seed), Outcome()
    (folder / "flow.py").write_text(FLOW)
    port = _free_port()
    server = Victim(folder, "serve", "--no-work", "--port", str(port))
    worker = Victim(folder, "worker", "flow.py", "--concurrency", str(runs))
    ids = [f"r{number}" for number in range(runs)]
    turns = max(2, int(seconds / pause_s / 2))
    _start_runs(folder, ids, {"pause": pause_s, "until": turns})
    proxy = RandomProxy(port, luck, bytes_max=8_000)
    through = await proxy.open()
    server.start()
    worker.start()
    following = [
        asyncio.ensure_future(follow(through, port, ids[number % runs], outcome)) for number in range(clients)
    ]
    try:
        deadline = time.monotonic() + 5 * seconds + 30
        while not all(one.done() for one in following):
            await asyncio.wait(following, timeout=kill_every_s * luck.uniform(0.5, 1.5))
            if outcome.chunks:
                (folder / "a_chunk_was_read").touch()
            if time.monotonic() > deadline:
                outcome.violations.append("a run did not come to its end")
                break
            if outcome.kills < seconds / kill_every_s:
                victim = luck.choice((server, worker))
                victim.kill()
                victim.start()
                outcome.kills += 1
        for one in following:
            one.cancel()
        found = await asyncio.gather(*following, return_exceptions=True)
    finally:
        await proxy.close()
        server.kill()
        worker.kill()
    outcome.cuts = proxy.cuts
    _check(folder, ids, found, outcome)
    return outcome


def _free_port() -> int:
    """Return a port that is free now: a server that is killed must come back at the same port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start_runs(folder: Path, ids: list[str], given: dict[str, Any]) -> None:
    names: dict[str, Any] = {}
    exec(compile(FLOW, "flow.py", "exec"), names)
    for run_id in ids:
        hf.start(names["flow"], given, run_id=run_id, store=folder / "runs.db")


def _check(folder: Path, ids: list[str], found: list[Any], outcome: Outcome) -> None:
    store = SqliteStore(folder / "runs.db")
    try:
        ends = {run_id: store.run(run_id).seq for run_id in ids}
        statuses = {store.run(run_id).status for run_id in ids}
    finally:
        store.close()
    if statuses != {"completed"}:
        outcome.violations.append(f"the runs are {statuses}")
    for number, got in enumerate(found):
        run_id = ids[number % len(ids)]
        if got != list(range(1, ends[run_id] + 1)):
            said = got if isinstance(got, BaseException) else f"{len(got)} events, {got[-5:]}"
            outcome.violations.append(f"client {number} of {run_id} with {ends[run_id]} events got {said}")


async def end_by_signal(folder: Path, streams: int) -> tuple[float, int]:
    """Stop a server with so many open streams by SIGTERM. Returns how many seconds it took to end, and its exit code."""
    (folder / "flow.py").write_text(FLOW)
    _start_runs(folder, ["r0"], {"pause": 0.0, "until": 1})
    port = _free_port()
    server = Victim(folder, "serve", "flow.py", "--no-work", "--port", str(port))
    server.start()
    clients: list[LiveClient] = []
    try:
        while len(clients) < streams:
            with suppress(Cut, OSError):
                for number in range(len(clients), streams):
                    query = "" if number % 10 == 0 else "?run=r0"
                    clients.append(await LiveClient.open(port, query, SECRET))
            await asyncio.sleep(0.02)
        for client in clients:
            await client.next()
        began = time.monotonic()
        code = await asyncio.to_thread(server.end)
        return time.monotonic() - began, code
    finally:
        for client in clients:
            client.close()
        server.kill()


def end_full_server(streams: int = 1000) -> tuple[float, int]:
    """Stop a server with a thousand streams by SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="hf-storm-") as folder:
        return asyncio.run(end_by_signal(Path(folder), streams))


def storm(seconds: float, seed: int) -> Outcome:
    """A storm at full size."""
    with tempfile.TemporaryDirectory(prefix="hf-storm-") as folder:
        return asyncio.run(
            rage(Path(folder), seed, seconds=seconds, runs=4, clients=100, pause_s=0.03, kill_every_s=0.7)
        )


if __name__ == "__main__":
    result = storm(float(sys.argv[1]), int(sys.argv[2]))
    print(result, *result.violations[:20], sep="\n  ")
    print("SIGTERM with 1,000 streams: seconds and exit code:", *end_full_server())
    sys.exit(bool(result.violations))
