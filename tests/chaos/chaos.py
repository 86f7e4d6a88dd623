"""Chaos: a fleet of real processes on one store, which are killed, paused beyond their leases and disconnected from it.

    summary = endure(SqliteGround(folder), folder, Plan(seed=7, runs=150))

A seed decides when each fault happens, and which process it hits. Some runs are started after each fault. When all
runs have ended, the store is compared with three independent witnesses: the receiver of the effects, the witness lines of nodes
and workers (`holdfast.testing.check` reads them), and the audit, a trigger inside the database that records with every event the
fence that its run had at that moment. Invariant: nothing here relies on an engine's own report of success.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg
from orders import Receiver, expected, flow, is_right, order

import forked
import holdfast as hf
from holdfast.errors import StoreError
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store
from holdfast.testing import check
from holdfast.testing.witness import Testimony
from postgres_server import PostgresServer

PROGRAM = Path(__file__).with_name("chaos_worker.py")
_UNENDED = ("pending", "running", "waiting", "paused", "interrupted")
_LOOK_S = 0.5
_AT_REST_S = 0.5
"""A worker that writes nothing for this many seconds has nothing to do."""
_LINES = 40
_DEFECTS = ("Traceback (most recent call last)", "defect in Holdfast")


@dataclass(frozen=True)
class Plan:
    """The settings of a chaos test: how many runs and workers, and how often each fault happens."""

    seed: int
    runs: int
    workers: int = 4
    ttl_s: float = 2.0
    kill_every_s: tuple[float, float] | None = (1.0, 3.0)
    pause_every_s: tuple[float, float] = (2.0, 4.0)
    pause_beyond_s: tuple[float, float] = (0.1, 2.0)
    """How long a worker is paused after its lease has expired, at least and at most."""
    before_a_write: float = 0.5
    """The share of pauses that happen between a worker's decision to write and the write."""
    linger: float = 0.5
    """The probability that a worker waits between taking over runs and its first write to them."""
    restart_every_s: tuple[float, float] | None = (3.0, 6.0)
    batches: int = 10
    """How many batches the runs are started in, one batch after each fault, so that there is work whenever a fault happens."""
    least: int = 1
    """How many faults of each kind must have happened before the last batch is started."""
    to_the_end: bool = True
    """Whether faults happen until the last run has ended, and not only until the last run was started."""
    fenced: bool = True
    patience_s: float = 600.0


# --- the databases -----------------------------------------------------------------------------------


class Ground(Protocol):
    """The database of a chaos test."""

    name: str
    url: str
    restarts: bool
    """Whether the database can be restarted."""

    def audit(self) -> None:
        """Install a trigger that records, with every event from now on, the fence that its run has."""

    def audited(self) -> list[tuple[bytes, int]]:
        """Return the salt of every event, and the fence that its run had when the event was written."""

    def restart(self) -> None:
        """Restart the database without a warning."""

    def stands_still(self) -> bool:
        """Return whether other processes can write although a process was just stopped."""

    def close(self) -> None: ...


class SqliteGround:
    """A SQLite file. A process that is stopped inside a write locks out all others, as SQLite must; such a pause is avoided."""

    name = "SQLite"
    restarts = False

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "runs.db")
        open_store(self.url).close()

    def audit(self) -> None:
        self._execute(
            "create table audit (salt blob, fence integer);"
            "create trigger audited after insert on events begin "
            "insert into audit select new.salt, fence from runs where runs.key = new.key >> 32; end"
        )

    def audited(self) -> list[tuple[bytes, int]]:
        return self._execute("select salt, fence from audit")

    def restart(self) -> None: ...

    def stands_still(self) -> bool:
        try:
            self._execute("begin immediate; rollback")
        except apsw.BusyError:
            return False
        return True

    def _execute(self, sql: str) -> list[Any]:
        connection = apsw.Connection(self.url)
        try:
            connection.set_busy_timeout(500)
            return list(connection.execute(sql))
        finally:
            connection.close()

    def close(self) -> None: ...


class PostgresGround:
    """A PostgreSQL server that only this test uses."""

    name = "PostgreSQL"
    restarts = True

    def __init__(self) -> None:
        self._server = PostgresServer()
        self.url = self._server.url()
        open_store(self.url).close()

    def audit(self) -> None:
        self._server.execute(
            "create table holdfast.audit (salt bytea, fence bigint)",
            "create function holdfast.audited() returns trigger language plpgsql as $$ begin "
            "insert into holdfast.audit select new.salt, fence from holdfast.runs where key = new.run; return new; end $$",
            "create trigger audited after insert on holdfast.events for each row execute function holdfast.audited()",
        )

    def audited(self) -> list[tuple[bytes, int]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute("select salt, fence from holdfast.audit").fetchall()

    def restart(self) -> None:
        self._server.restart("immediate")

    def stands_still(self) -> bool:
        return True  # the server ends a transaction that is idle for too long, and frees its locks

    def close(self) -> None:
        self._server.remove()


# --- the fleet ---------------------------------------------------------------------------------------


class Fleet:
    """The worker processes, in numbered places. Workers in every second place pretend to be on another machine."""

    def __init__(self, ground: Ground, folder: Path, plan: Plan) -> None:
        self._ground = ground
        self._folder = folder
        self._plan = plan
        self._begun = 0
        self._log = (folder / "workers.log").open("ab")
        self.places = [self._begin(place) for place in range(plan.workers)]

    def _begin(self, place: int) -> subprocess.Popen[bytes]:
        self._begun += 1
        asked = {
            "store": self._ground.url,
            "folder": str(self._folder),
            "ttl_s": self._plan.ttl_s,
            "seed": self._plan.seed * 1000 + self._begun,
            "linger": self._plan.linger,
            "host": f"machine-{place}" if place % 2 else "",
            "fenced": self._plan.fenced,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return forked.Popen(
            [sys.executable, str(PROGRAM), json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            cwd=self._folder,
        )

    def kill(self, place: int) -> None:
        """Kill the worker in this place, and start another one in its place."""
        self.places[place].kill()
        self.places[place].wait()
        self.places[place] = self._begin(place)

    def pause(self, place: int, *, before_a_write: bool) -> Callable[[], None] | None:
        """Pause a worker, wherever it is or right before a write. Return a function that lets it continue; None if the worker
        could not be paused.
        """
        process = self.places[place]
        if before_a_write:
            return self._pause_before_a_write(process)
        for _ in range(20):
            process.send_signal(signal.SIGSTOP)
            if self._ground.stands_still():
                return lambda: process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGCONT)
        return None

    def _pause_before_a_write(self, process: subprocess.Popen[bytes]) -> Callable[[], None] | None:
        flag = self._folder / f"stop-{process.pid}"
        flag.touch()
        until = time.monotonic() + _AT_REST_S
        while process.poll() is None and time.monotonic() < until:
            if _state(process.pid) == "T":
                return lambda: process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        flag.unlink(missing_ok=True)
        process.send_signal(signal.SIGCONT)  # the worker may have seen the flag just before it was removed
        return None

    def left_by_themselves(self) -> list[str]:
        """Return a message for every worker that has exited although it was not asked to."""
        codes = [process.poll() for process in self.places]
        return [f"a worker exited unasked with code {code}" for code in codes if code is not None]

    def drain(self) -> list[str]:
        """Let all workers continue, and ask them to stop. Return a message for every worker that did not stop gracefully."""
        for process in self.places:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes = [process.wait(60) for process in self.places]
        in_order = (
            0,
            -signal.SIGTERM,
        )  # the latter: a new worker that had not installed its signal handler yet
        return [f"a worker exited with code {code} after SIGTERM" for code in codes if code not in in_order]

    def close(self) -> None:
        for process in self.places:
            process.kill()
            process.wait()
        self._log.close()

    def defects(self) -> list[str]:
        """Return what workers have printed and must never print: tracebacks, and reports of a defect in Holdfast."""
        lines = (self._folder / "workers.log").read_text(errors="replace").splitlines()
        found = [number for number, line in enumerate(lines) if any(word in line for word in _DEFECTS)]
        return ["\n".join(lines[number : number + _LINES]) for number in found]


def _state(pid: int) -> str:
    """Return the state of a process as in /proc (R, S, T, …); empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


# --- what comes over them ----------------------------------------------------------------------------


@dataclass
class Summary:
    """The result of a chaos test: how many faults happened, and the violations."""

    plan: Plan
    ground: str
    ended: int = 0
    kills: int = 0
    pauses: int = 0
    restarts: int = 0
    appends: int = 0
    stale_refused: int = 0
    stale_accepted: int = 0
    effects: int = 0
    asked_again: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"chaos on {self.ground}, seed {self.plan.seed}: {self.ended} of {self.plan.runs} runs ended, "
            f"{self.plan.workers} workers; workers killed: {self.kills}, suspended for longer than their lease: "
            f"{self.pauses}; restarts of the database: {self.restarts}; appends: {self.appends}; stale writes refused: "
            f"{self.stale_refused}, accepted: {self.stale_accepted}; effects: {self.effects}; repeated requests for an "
            f"effect: {self.asked_again}; violations: {len(self.violations)}; seconds: {self.seconds:.0f}"
        )


class Storm:
    """Causes the faults of one plan, and starts runs meanwhile."""

    def __init__(self, ground: Ground, fleet: Fleet, summary: Summary) -> None:
        self._ground = ground
        self._fleet = fleet
        self._summary = summary
        self._plan = summary.plan
        self._restarts = ground.restarts and self._plan.restart_every_s is not None
        self._faults = 0
        self._came = asyncio.Condition()
        self._lucks = random.Random(self._plan.seed)

    async def blow(self, is_over: Callable[[bool], bool]) -> None:
        """Start all runs, and cause faults until `is_over(all runs were started)` returns true."""
        faults = [self._pausing(self._luck())]
        if self._restarts:
            faults.append(self._restarting(self._luck()))
        if self._plan.kill_every_s is not None:
            faults.append(self._killing(self._luck()))
        going = [asyncio.create_task(fault) for fault in faults]
        starting = asyncio.create_task(self._start_all())
        until = time.monotonic() + self._plan.patience_s
        try:
            while time.monotonic() < until and not await asyncio.to_thread(is_over, starting.done()):
                for one in (*going, starting):
                    if one.done() and not one.cancelled():
                        one.result()
                if starting.done() and not self._plan.to_the_end:
                    await _ended(going)
                await asyncio.sleep(_LOOK_S)
        finally:
            await _ended([*going, starting])

    def _luck(self) -> random.Random:
        return random.Random(self._lucks.random())

    async def _start_all(self) -> None:
        size = -(-self._plan.runs // self._plan.batches)
        async with hf.Engine(self._ground.url) as engine:
            for number in range(self._plan.runs):
                if number % size == 0:
                    await self._until(lambda batch=number // size: self._is_time_for(batch))
                await _insisted(lambda number=number: engine.start(flow, order(number), run_id=f"r{number}"))

    def _is_time_for(self, batch: int) -> bool:
        found, plan = self._summary, self._plan
        if batch + 1 < plan.batches:
            return self._faults >= batch
        kinds = [found.pauses]
        kinds += [found.kills] if plan.kill_every_s is not None else []
        kinds += [found.restarts] if self._restarts else []
        return min(kinds) >= plan.least

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._came:
            await self._came.wait_for(condition)

    async def _count(self, fault: str) -> None:
        setattr(self._summary, fault, getattr(self._summary, fault) + 1)
        self._faults += 1
        async with self._came:
            self._came.notify_all()

    async def _killing(self, luck: random.Random) -> None:
        while True:
            await asyncio.sleep(luck.uniform(*self._plan.kill_every_s))
            await asyncio.to_thread(self._fleet.kill, luck.randrange(self._plan.workers))
            await self._count("kills")

    async def _pausing(self, luck: random.Random) -> None:
        while True:
            await asyncio.sleep(luck.uniform(*self._plan.pause_every_s))
            place, beyond_s = luck.randrange(self._plan.workers), luck.uniform(*self._plan.pause_beyond_s)
            before_a_write = luck.random() < self._plan.before_a_write
            go_on = await asyncio.to_thread(self._fleet.pause, place, before_a_write=before_a_write)
            if go_on is None:
                continue
            try:
                await asyncio.sleep(self._plan.ttl_s + beyond_s)
            finally:
                go_on()
            await self._count("pauses")

    async def _restarting(self, luck: random.Random) -> None:
        while True:
            await asyncio.sleep(luck.uniform(*self._plan.restart_every_s))
            await asyncio.to_thread(self._ground.restart)
            await self._count("restarts")


async def _ended(several: list[asyncio.Task[None]]) -> None:
    for one in several:
        one.cancel()
    await asyncio.gather(*several, return_exceptions=True)


async def _insisted(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat the call while the store is unreachable. Starting the same run twice is the same as starting it once."""
    while True:
        try:
            return await call()
        except StoreError:
            await asyncio.sleep(0.1)


# --- the whole of it ---------------------------------------------------------------------------------


def endure(ground: Ground, folder: Path, plan: Plan) -> Summary:
    """Run a chaos test: start a fleet and all runs, cause the faults of the plan, and check the store at the end."""
    summary = Summary(plan, ground.name)
    began = time.monotonic()
    ground.audit()
    fleet = Fleet(ground, folder, plan)
    try:
        storm = Storm(ground, fleet, summary)
        asyncio.run(storm.blow(lambda started: _is_over(ground, plan, folder, started=started)))
        if plan.fenced:
            summary.violations += fleet.left_by_themselves()
            summary.violations += fleet.drain()
            summary.violations += fleet.defects()
    finally:
        fleet.close()
    _look(ground, folder, summary)
    summary.seconds = time.monotonic() - began
    return summary


def _is_over(ground: Ground, plan: Plan, folder: Path, *, started: bool) -> bool:
    """Return whether all runs were started and have ended; for a control, whether a stale write was found."""
    try:
        if not plan.fenced and _stale(ground, Testimony(folder / "witness.jsonl")):
            return True
        if not started:
            return False
        store = open_store(ground.url)
        try:
            return not store.runs(Query(status=_UNENDED, limit=1))
        finally:
            store.close()
    except (StoreError, psycopg.OperationalError):
        return False


def _look(ground: Ground, folder: Path, summary: Summary) -> None:
    """Compare the store with the witness, the receiver and the audit."""
    seen = Testimony(folder / "witness.jsonl")
    done = Receiver(folder / "receiver").done()
    summary.stale_accepted = _stale(ground, seen)
    summary.appends = len(_writers(seen))
    refused = Counter(line["why"] for run in seen.runs.values() for line in run.get("refused", ()))
    summary.stale_refused = refused["FenceLost"] + refused["SeqConflict"]
    summary.effects = len(done)
    summary.asked_again = sum(len(run.get("effect", ())) for run in seen.runs.values()) - len(done)
    if summary.stale_accepted:
        summary.violations.append(f"{summary.stale_accepted} stale writes were accepted")
    if not summary.plan.fenced:
        return
    store = open_store(ground.url)
    try:
        summary.violations += map(str, check(store, folder / "witness.jsonl", at_end=True))
    finally:
        store.close()
    summary.violations += asyncio.run(_outcomes(ground, summary, done))


async def _outcomes(ground: Ground, summary: Summary, done: list[str]) -> list[str]:
    """Return a message for every run and effect that differs from those of an undisturbed fleet."""
    wrong = []
    wanted: Counter[str] = Counter()
    async with hf.Engine(ground.url) as engine:
        for number in range(summary.plan.runs):
            run_id, given = f"r{number}", order(number)
            wanted.update(expected(run_id, given))
            try:
                run = await engine.get(run_id)
            except hf.RunNotFound:
                wrong.append(f"run {run_id} is lost")
                continue
            summary.ended += run.status == "completed"
            if run.status != "completed" or not is_right(run.state, given):
                wrong.append(f"run {run_id} is {run.status} with {run.state}")
    found = Counter(done)
    return wrong + [
        f"done {found[what]} times instead of {wanted[what]}: {what}"
        for what in wanted | found
        if wanted[what] != found[what]
    ]


def _writers(seen: Testimony) -> dict[bytes, int]:
    """Return the id of every append that a worker passed to a store -> the fence that the worker had."""
    return {
        bytes.fromhex(line["id"]): line["fence"] for run in seen.runs.values() for line in run.get("ack", ())
    }


def _stale(ground: Ground, seen: Testimony) -> int:
    """Count the stale writes that were accepted: at the time of the write, the run had another fence than the writer."""
    writers = _writers(seen)
    return sum(writers.get(salt, fence) != fence for salt, fence in ground.audited())
