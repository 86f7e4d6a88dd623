"""Write the stores in `old_stores/`: `python tests/histories/record_old_stores.py`, with the Python of a checkout of commit
f01fb3e (`git worktree add ../old f01fb3e`, then `make` a .venv there). The stores are written once: later versions must read
what that version wrote. So this script does not replace existing stores, and its imports fit only that commit.

There are two stores with the same runs. `sqlite.tar.xz` has the SQLite file and its folder of blobs; `postgres.sql.xz` is the
schema as `pg_dump` writes it, with inserts, so that any client can load it. `expected.json` says how each run was read, how it
ended when it was resumed, forked, and executed by a worker; both stores must agree on that before anything is written.

Runs whose process dies are executed in processes that are really killed. To leave a request that no process has read, the process
that holds the lease is first stopped, then the request is posted, and then the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import old_store_flows as flows
import old_store_runs as runs

import holdfast as hf
import postgres_server
from holdfast.runtime import failures
from holdfast.runtime.clock import SystemClock, Timer
from holdfast.storage import holder

HERE = Path(__file__).resolve()
OTTERS = {"topic": "otters"}
PARCELS = {"number": "T-1", "parcels": ["a", "bcd", "ef"]}
BLOB_OVER = 1000
BEGAN_AT = 1_700_000_000.0
AGO_S = float(os.environ.setdefault("RECORDED_AGO_S", str(time.time() - BEGAN_AT)))
"""How far the clock of this program, and of the processes that it starts, is behind the real time."""

BEGINNINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "timer": (flows.waits, {"on": "rest", "seconds": 10}),
    "signal": (flows.waits, {"on": "listen"}),
    "told": (flows.waits, {"on": "listen"}),
    "paused": (flows.waits, {"on": "listen"}),
    "asked-to-signal": (flows.waits, {"on": "listen"}),
    "confirm": (flows.waits, {"on": "confirm"}),
    "price": (flows.order, PARCELS),
    "approval": (flows.order, PARCELS),
    "rejection": (flows.order, PARCELS),
    "cancelled": (flows.order, PARCELS),
    "steps": (flows.order, PARCELS),
    "layered": (flows.layers, {}),
    "streamed": (flows.tale, {}),
    "streaming": (flows.tale, {}),
    "large": (flows.scan, {}),
    "asked-to-answer": (flows.parcel, {}),
    "asked-to-retry": (flows.parcel, {}),
    "asked-to-skip": (flows.parcel, {}),
}
"""Run -> its flow and its input; all other runs are reports about otters."""


class Then(SystemClock):
    """A clock that is years behind: whenever the stores are read, their timers are due and their leases have expired."""

    def now(self) -> float:
        return super().now() - AGO_S

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        return super().call_at(at + AGO_S, call)


class Writer:
    """Writes the runs into one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options: dict[str, Any] = {"store": url, "clock": Then()}

    def do(
        self, verb: str, run_id: str, /, *args: Any, mishaps: dict[str, str] | None = None, **options: Any
    ) -> None:
        """Call a method on a run, with these mishaps planted. A run that fails, waits or is cancelled is not an error."""
        flows.MISHAPS.clear()
        flows.MISHAPS.update(mishaps or {})
        with suppress(hf.RunFailed, hf.RunCancelled):
            getattr(hf, verb)(run_id, *args, flows=flows.FLOWS, **self.options, **options)
        flows.MISHAPS.clear()

    def begin(self, run_id: str, mishaps: dict[str, str] | None = None, **options: Any) -> None:
        self._new("run", run_id, mishaps, **options)

    def start(self, run_id: str, **options: Any) -> None:
        self._new("start", run_id, None, **options)

    def _new(self, verb: str, run_id: str, mishaps: dict[str, str] | None, **options: Any) -> None:
        flow, given = BEGINNINGS.get(run_id, (flows.report, OTTERS))
        flows.MISHAPS.clear()
        flows.MISHAPS.update(mishaps or {})
        with suppress(hf.RunFailed):
            getattr(hf, verb)(flow, given, run_id=run_id, by="ann", park_after=0, **self.options, **options)
        flows.MISHAPS.clear()

    def work(self, run_id: str, mishaps: dict[str, str] | None = None) -> None:
        """Let a worker execute the run; the worker releases it when it waits."""
        self.start(run_id)
        flows.MISHAPS.update(mishaps or {})

        async def main() -> None:
            async with hf.Engine(flows=flows.FLOWS, **self.options) as engine:
                await engine.work(until="idle")

        asyncio.run(main())
        flows.MISHAPS.clear()

    def in_a_process(self, run_id: str, **mishaps: str) -> subprocess.Popen[bytes]:
        told = json.dumps({name.replace("_", " "): what for name, what in mishaps.items()})
        return subprocess.Popen([sys.executable, str(HERE), "begin", self.url, run_id, told])

    def die(self, run_id: str, **mishaps: str) -> None:
        assert self.in_a_process(run_id, **mishaps).wait() == -signal.SIGKILL, run_id

    def leave_request(self, run_id: str, request: runs.Do, **mishaps: str) -> None:
        """Stop the process that executes the run, post a request to its inbox, and kill the process."""
        child = self.in_a_process(run_id, **mishaps)
        _, how = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(how), run_id
        self.do(request.verb, run_id, *request.args, **request.options)
        child.kill()
        child.wait()

    def stream_and_die(self, run_id: str) -> None:
        """Execute a run that streams, and kill its process when the chunks are visible to other processes."""
        child = self.in_a_process(run_id, tell="wait")

        async def main() -> None:
            async with hf.Engine(**self.options) as engine:
                while run_id not in [row.id for row in await engine.runs()]:  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.05)
                async for told in engine.follow(run_id, chunks=True):
                    if isinstance(told, hf.Chunk) and told.number == 3:
                        return

        asyncio.run(main())
        child.kill()
        child.wait()


def write_all(writer: Writer) -> None:
    for write in (
        begin_and_end,
        wait_for_somebody,
        die_in_nodes,
        go_other_ways,
        be_kept_small,
        leave_requests,
    ):
        write(writer)


def begin_and_end(writer: Writer) -> None:
    writer.work("timer")
    writer.work("next-try", {"write": "pass"})
    writer.begin("completed")
    writer.begin("failed", {"check 2": "fail"})
    writer.begin("fatal", {"check 1": "fatal"})
    writer.begin("cancelled")
    writer.do("cancel", "cancelled", "too dear", by="ann")
    assert writer.in_a_process("interrupted", write="terminate").wait() == 143
    writer.start("pending")
    writer.start("queued", queue="slow", priority=5, labels={"team": "red", "city": "Köln"})

    async def limit() -> None:
        async with hf.Engine(**writer.options) as engine:
            engine.store.queues.limit("slow", 3)

    asyncio.run(limit())


def wait_for_somebody(writer: Writer) -> None:
    for run_id in ("signal", "told", "paused", "confirm", "price", "approval", "rejection"):
        writer.begin(run_id)
    writer.do("signal", "told", "paid", {"eur": 7}, id="bank-1", by="bank")
    writer.do("signal", "told", "paid", {"eur": 8}, by="bank")
    writer.do("pause", "paused", "lunch", by="ann")
    for run_id in ("approval", "rejection"):
        writer.do("answer", run_id, "price", 11, by="agent:clerk", confidence=0.5, reason="a guess")
        writer.do("resume", run_id)


def die_in_nodes(writer: Writer) -> None:
    writer.die("running", write="kill")
    writer.die("fan-out", read_2="kill")
    writer.die("steps", charge="kill")
    writer.die("publish-cut", publish="kill")
    for run_id in ("asks-retry", "asks-skip", "asks-abort"):
        writer.die(run_id, publish="kill")
        writer.do("resume", run_id)
    writer.stream_and_die("streaming")


def go_other_ways(writer: Writer) -> None:
    torn = {"check 1": "fail", "check 2": "fail"}
    writer.begin("layered", {"three": "fail"})
    writer.begin("rewound", torn)
    writer.do("resume", "rewound", restart_at="read", by="ann", reason="the pages have changed", mishaps=torn)
    writer.begin("replayed", torn)
    writer.do("resume", "replayed", replay=True, mishaps=torn)
    writer.begin("edited", torn)
    writer.do(
        "resume", "edited", edit={"topic": "sea otters"}, by="ann", reason="a better word", mishaps=torn
    )
    place = next(point for point in hf.checkpoints("completed", **writer.options) if point.node == "write")
    writer.do("fork", place.id, run_id="forked", edit={"topic": "minks"}, labels={"copy": "1"}, by="ann")
    writer.begin("streamed")


def be_kept_small(writer: Writer) -> None:
    writer.begin("large", blob_over=BLOB_OVER)
    writer.begin("compacted", {"check 2": "fail"})
    writer.do("prune", "compacted", 2, compact=True)
    writer.begin("trimmed", {"check 2": "fail"}, keep_checkpoints=2)


def leave_requests(writer: Writer) -> None:
    writer.leave_request("asked-to-pause", runs.do("pause", "lunch", by="bob"), write="stop")
    writer.leave_request("asked-to-cancel", runs.do("cancel", "too late", by="bob"), write="stop")
    writer.leave_request("asked-to-signal", runs.do("signal", "paid", {"eur": 9}, id="bank-2"), listen="stop")
    call = {"call": "pass", "pack": "stop"}
    writer.leave_request("asked-to-answer", runs.do("answer", "worth", 20, by="bob"), pack="stop")
    writer.leave_request("asked-to-retry", runs.do("retry", "call", by="bob"), **call)
    writer.leave_request("asked-to-skip", runs.do("skip", "call", {"called": "by hand"}, by="bob"), **call)


# --- what is expected -------------------------------------------------------------------------------------


async def look(kept: str, fresh: Callable[[], str]) -> dict[str, Any]:
    """Read every run of a store; then resume, fork and execute it in copies of the store. Return the results."""
    told: dict[str, Any] = {}
    async with runs.reading(kept) as engine:
        for run_id in runs.WAYS_ON:
            told[run_id] = await runs.read(engine, run_id)
    async with runs.with_flows(fresh()) as engine:
        for run_id in runs.WAYS_ON:
            told[run_id]["fork"] = await runs.fork_in_the_middle(engine, run_id)
    async with runs.with_flows(fresh()) as engine:
        for run_id in runs.WAYS_ON:
            told[run_id]["end"] = await runs.bring_to_its_end(engine, run_id)
    async with runs.with_flows(fresh()) as engine:
        for run_id, status in (await runs.let_a_worker_work(engine)).items():
            told[run_id]["worked"] = status
    return told


def lines(told: dict[str, Any]) -> str:
    """Format the results as JSON with one line for every part of a run: easy to compare, and small."""
    parts = {
        run_id: ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in run.items()
        )
        for run_id, run in told.items()
    }
    return (
        "{\n" + ",\n".join(f" {json.dumps(name)}: {{\n{part}\n }}" for name, part in parts.items()) + "\n}\n"
    )


# --- the two stores ---------------------------------------------------------------------------------------


def write_sqlite(folder: Path) -> dict[str, Any]:
    store = folder / "sqlite" / "runs.db"
    store.parent.mkdir()
    writer = Writer(str(store))
    write_all(writer)
    hf.runs(**writer.options)  # closing the store folds the write-ahead log into the file
    assert not [file.name for file in store.parent.iterdir() if file.name.endswith("-wal")]
    with tarfile.open(folder / "sqlite.tar.xz", "w:xz") as tar:
        for file in sorted(store.parent.rglob("*")):
            tar.add(file, file.relative_to(store.parent), recursive=False, filter=_nobodys)
    copies = iter(range(9))

    def fresh() -> str:
        return str(shutil.copytree(store.parent, folder / f"copy {next(copies)}") / "runs.db")

    return asyncio.run(look(fresh(), fresh))


def _nobodys(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = file.mtime = 0
    file.uname = file.gname = ""
    return file


def write_postgres(folder: Path) -> dict[str, Any]:
    server = postgres_server.PostgresServer()
    server.execute("create database kept")
    write_all(Writer(server.url(database="kept")))
    dump = [str(postgres_server._binaries() / "pg_dump"), "--inserts", "--no-owner", "--no-privileges"]
    said = subprocess.run(
        [*dump, server.url(database="kept")], check=True, capture_output=True
    ).stdout.decode()
    head, create, rest = said.partition("CREATE SCHEMA")
    # The head has settings that only servers of this version know, and lines with a backslash that only psql knows.
    head = "\n".join(line for line in head.splitlines() if line.startswith("SELECT"))
    lines_kept = [line for line in (head + "\n" + create + rest).splitlines() if not line.startswith("\\")]
    (folder / "postgres.sql.xz").write_bytes(lzma.compress(("\n".join(lines_kept) + "\n").encode()))
    copies = iter(range(9))

    def fresh() -> str:
        name = f"copy_{next(copies)}"
        server.execute(f"create database {name} template kept")
        return server.url(database=name)

    return asyncio.run(look(fresh(), fresh))


def tell_nothing_of_this_machine() -> None:
    """Replace what would identify this machine: host name and boot id of holders, and file paths in tracebacks."""
    socket.gethostname = lambda: "old-host"
    holder._boot = lambda: "00000000-0000-0000-0000-000000000000"
    failures._trace = lambda error: (
        f'Traceback (most recent call last):\n  File "flow.py", line 1, in node\n{type(error).__name__}: {error}\n'
    )


def main() -> None:
    if runs.EXPECTED.exists():
        sys.exit(f"{runs.FOLDER} exists already, and was not changed")
    with (
        tempfile.TemporaryDirectory() as place
    ):  # not a git checkout: an interrupted node would record its state
        folder = Path(place)
        os.chdir(folder)
        sqlite, postgres = write_sqlite(folder), write_postgres(folder)
        for run_id in runs.WAYS_ON:
            for part, told in sqlite[run_id].items():
                assert told == postgres[run_id][part], (run_id, part, told, postgres[run_id][part])
        runs.FOLDER.mkdir(exist_ok=True)
        for name in ("sqlite.tar.xz", "postgres.sql.xz"):
            shutil.copyfile(folder / name, runs.FOLDER / name)
        runs.EXPECTED.write_text(lines(sqlite), encoding="utf-8")


def begin(url: str, run_id: str, mishaps: str) -> None:
    Writer(url).begin(run_id, json.loads(mishaps), grace=0.0)


if __name__ == "__main__":
    tell_nothing_of_this_machine()
    begin(*sys.argv[2:]) if sys.argv[1:2] == ["begin"] else main()
