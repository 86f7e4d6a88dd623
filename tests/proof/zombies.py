"""Zombie rounds: a process that executes a run is stopped beyond its lease, another takes the run over, and the first continues.

Two processes share a store. In each round the first executes a run and is stopped (SIGSTOP) at a failpoint: before, inside or
after an append, a claim or a node's body. When its lease has expired by the clock of the store, the second process

- resumes the run to its end before the first continues (`overtaken`),
- or has just claimed the lease and written nothing (`claimed`): then only the fence keeps the first process out,
- or waits for the lock of the first process, which was stopped inside a transaction (`locked`).

Then the first process continues as if it had not been stopped. The log must not change between that moment and the moment it
gives up. At the end of all rounds every run has the right state, every effect happened once, every request that came with an
append belongs to one in the log and none is missing, and `holdfast.testing.check` finds no violation. Invariant: no round relies
on an engine's own report of success.

    python tests/proof/zombies.py [rounds]        # prints the figures
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked

sys.path.append(str(Path(__file__).parent.parent))

import apsw
import zombie_engine
from zombie_engine import LEDGER

import holdfast as hf
from holdfast.storage.urls import open_store
from holdfast.testing import check
from postgres_server import PostgresServer

PROGRAM = Path(zombie_engine.__file__)
POINTS = ("append.before", "append.written", "append.committed", "claim.before", "claim.committed",
          "node.enter", "node.exit")  # fmt: skip
INSIDE = ("append.written",)
"""Failpoints that are inside a transaction."""
TTL_S = 1.0  # the shortest lease that an engine accepts
LONG_S = 60.0
SHOWN = 20
_LOOK_S = 0.02
_DEFECTS = ("Traceback (most recent call last)", "defect in Holdfast")


@dataclass(frozen=True)
class Round:
    """One round: the first process is stopped at the n-th failpoint of this name, and continues in the situation `way`."""

    point: str
    count: int
    way: str

    def __str__(self) -> str:
        return f"{self.way} at {self.point} {self.count}"


@dataclass
class Result:
    """How many rounds were tried, and the problems found."""

    rounds: Counter[str] = field(default_factory=Counter)
    """Way -> how many rounds were tried."""
    points: set[tuple[str, int]] = field(default_factory=set)
    missed: int = 0
    """The number of rounds in which the first process did not reach its failpoint; they do not count."""
    refused: Counter[str] = field(default_factory=Counter)
    """Name of the error with which a stale append was refused -> how often."""
    ended: Counter[str] = field(default_factory=Counter)
    """How the first process ended -> how often."""
    requests: int = 0
    """How many requests were posted with appends."""
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Hand:
    """One of the two processes of a pair, and the pipes to it."""

    def __init__(self, store: str, folder: Path, name: str, *, fenced: bool) -> None:
        self._log = (folder / f"{name}.log").open("wb")
        asked = json.dumps({"store": store, "folder": str(folder), "fenced": fenced})
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self._process = forked.Popen(
            [sys.executable, str(PROGRAM), asked],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment, cwd=folder,
        )  # fmt: skip
        self.hear()

    def ask(
        self, do: str, run_id: str, *, ttl_s: float, patience_s: float, at: tuple[str, int] = ("", 0)
    ) -> None:
        request = {
            "do": do,
            "run": run_id,
            "ttl_s": ttl_s,
            "patience_s": patience_s,
            "point": at[0],
            "count": at[1],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next answer of the process. If the answer is that it stops itself, it has stopped when this returns."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process died: {Path(self._log.name).read_text(errors='replace')[-2000:]}")
        told: dict[str, Any] = json.loads(line)
        if "stops_at" in told:
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
        return told

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


class Pair:
    """Two processes on one store, round after round; each round has a run of its own."""

    def __init__(self, store: str, folder: Path, *, fenced: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "receiver").mkdir()
        self.result = Result()
        self._url = store
        self._folder = folder
        self._store = open_store(store)
        asyncio.run(self._open_ledger())
        self._runs = 0
        self._first = Hand(store, folder, "first", fenced=fenced)
        self._second = Hand(store, folder, "second", fenced=fenced)

    def points(self) -> list[tuple[str, int]]:
        """Return every failpoint that an undisturbed run reaches, as name and number."""
        self._first.ask("start", self._run(), ttl_s=LONG_S, patience_s=0.0)
        reached = self._first.hear()["reached"]
        return [(name, number + 1) for name in POINTS for number in range(reached.get(name, 0))]

    def play(self, wanted: Round) -> bool:
        """Execute one round. Return False if the failpoint was not reached."""
        run_id = self._run()
        self._first.ask("start", run_id, ttl_s=TTL_S, patience_s=0.0, at=(wanted.point, wanted.count))
        if "ended" in self._first.hear():
            self.result.missed += 1
            self._carry_on(run_id)
            return False
        before = len(self.result.problems)
        way = "locked" if self._is_locked() else wanted.way
        took_over = {"overtaken": self._overtaken, "claimed": self._claimed, "locked": self._locked}[way]
        came_back, changed = took_over(run_id)
        self.result.rounds[way] += 1
        self.result.points.add((wanted.point, wanted.count))
        self.result.refused.update(came_back["refused"])
        self.result.ended[came_back["ended"]] += 1
        if changed:
            self.result.problems.append(f"run {run_id}: a stale write was accepted ({changed})")
        self.result.problems[before:] = [f"{wanted}, {problem}" for problem in self.result.problems[before:]]
        return True

    def _run(self) -> str:
        self._runs += 1
        return f"r{self._runs}"

    def _is_locked(self) -> bool:
        """Return whether no other process can write while the first is stopped: it was stopped inside a transaction, perhaps of
        another thread. SQLite then locks the whole file; PostgreSQL only locks rows.
        """
        if self._url.startswith("postgresql:"):
            return False
        connection = apsw.Connection(self._url)
        try:
            connection.execute("begin immediate; rollback")
        except apsw.BusyError:
            return True
        finally:
            connection.close()
        return False

    # --- the ways of coming back ------------------------------------------------------------------------

    def _overtaken(self, run_id: str) -> tuple[dict[str, Any], str]:
        self._carry_on(run_id)
        return self._come_back(run_id)

    def _claimed(self, run_id: str) -> tuple[dict[str, Any], str]:
        self._second.ask("carry", run_id, ttl_s=LONG_S, patience_s=LONG_S, at=("claim.committed", 1))
        told = self._second.hear()
        came_back = self._come_back(run_id)
        if "stops_at" in told:  # otherwise the run had ended, and there was nothing to claim
            self._second.go_on()
            told = self._second.hear()
        self._has_ended(run_id, told)
        return came_back

    def _locked(self, run_id: str) -> tuple[dict[str, Any], str]:
        """Let the second process wait for the lock of the first. No process can claim the lease before the first continues, so
        the write of the first is not stale.
        """
        self._second.ask("carry", run_id, ttl_s=LONG_S, patience_s=LONG_S)
        while self._store.run(run_id).held:
            time.sleep(_LOOK_S)
        self._first.go_on()
        came_back = self._first.hear()
        self._has_ended(run_id, self._second.hear())
        return came_back, ""

    def _carry_on(self, run_id: str) -> None:
        self._second.ask("carry", run_id, ttl_s=LONG_S, patience_s=LONG_S)
        self._has_ended(run_id, self._second.hear())

    def _has_ended(self, run_id: str, told: dict[str, Any]) -> None:
        if told["ended"] != "completed":
            problem = f"run {run_id}: the process that took it over ended with {told['ended']}: {told['why']}"
            self.result.problems.append(problem)

    def _come_back(self, run_id: str) -> tuple[dict[str, Any], str]:
        """Let the first process continue. Return its answer when it has given up, and a text if it changed the log."""
        before = self._store.run(run_id)
        self._first.go_on()
        came_back = self._first.hear()
        after = self._store.run(run_id)
        same = (before.seq, before.digest) == (after.seq, after.digest)
        return came_back, "" if same else f"the log ended at event {before.seq}, then at event {after.seq}"

    # --- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        self._first.close()
        self._second.close()
        self._store.close()

    def look(self) -> None:
        """Check the final states and effects of all runs, and the store against the witness."""
        self.result.problems += self._unfounded()
        self.result.problems += asyncio.run(self._wrong())
        self.result.problems += map(str, check(self._store, self._folder / "witness.jsonl", at_end=True))
        for log in ("first.log", "second.log"):
            said = (self._folder / log).read_text(errors="replace").splitlines()
            self.result.problems += [line for line in said if any(word in line for word in _DEFECTS)]

    async def _open_ledger(self) -> None:
        async with hf.Engine(self._store, flows=[zombie_engine.flow]) as engine:
            await engine.start(zombie_engine.flow, zombie_engine.Errand(), run_id=LEDGER)

    def _unfounded(self) -> list[str]:
        """Return a message for every request that was posted with an append which is not in the log, or if there are none."""
        requests = self._store.inbox(run_id=LEDGER)
        self.result.requests = len(requests)
        found = [] if requests else ["no request was posted with an append"]
        for request in requests:
            run_id, seq, salt = request.id.split(":")
            if not self._store.appended(run_id, int(seq), bytes.fromhex(salt)):
                found.append(f"run {run_id}: the request of a refused append was posted (event {seq})")
        return found

    async def _wrong(self) -> list[str]:
        """Return a message for every run whose state or effects differ from those of an undisturbed run, and end the ledger."""
        found = []
        done = Counter(effect.name.split()[0] for effect in (self._folder / "receiver").iterdir())
        async with hf.Engine(self._store, flows=[zombie_engine.flow]) as engine:
            for number in range(self._runs):
                run = await engine.get(f"r{number + 1}")
                if run.status != "completed" or run.state != zombie_engine.EXPECTED:
                    found.append(f"run {run.id} is {run.status} with {run.state}")
                if done[run.id] != zombie_engine.EFFECTS:
                    found.append(f"run {run.id} had {done[run.id]} effects, not {zombie_engine.EFFECTS}")
            await engine.cancel(LEDGER)
        return found


# --- all of it ---------------------------------------------------------------------------------------


def rounds_of(points: Sequence[tuple[str, int]], part: int = 0, parts: int = 1) -> Iterator[Round]:
    """Yield rounds without end: all points in all their ways, shuffled. With several parts, only those of this part."""
    cases = [
        Round(*point, way)
        for point in points
        for way in (("locked",) if point[0] in INSIDE else ("overtaken", "claimed"))
    ]
    random.Random(len(cases)).shuffle(cases)
    return itertools.cycle(cases[part::parts])


def play(pair: Pair, rounds: int, part: int = 0, parts: int = 1) -> Result:
    """Execute this many rounds with a pair, and check what they left."""
    began = time.monotonic()
    try:
        for wanted in rounds_of(pair.points(), part, parts):
            if pair.result.rounds.total() >= rounds or pair.result.missed > rounds:
                break
            pair.play(wanted)
        pair.look()
    finally:
        pair.close()
    pair.result.seconds = time.monotonic() - began
    return pair.result


@contextmanager
def grounds(sqlite: int, postgres: int) -> Iterator[list[tuple[str, Path]]]:
    """Make this many stores of each kind. Yield the URL and a folder for each."""
    with tempfile.TemporaryDirectory(prefix="hf-zombies-") as name:
        folder = Path(name)
        server = PostgresServer() if postgres else None
        found = [(str(folder / f"{number}.db"), folder / f"sqlite-{number}") for number in range(sqlite)]
        for number in range(postgres):
            assert server is not None
            url = server.url(schema=f"zombies_{number}")
            found.append((url, folder / f"postgres-{number}"))
        try:
            yield found
        finally:
            if server is not None:
                server.remove()


def prove(rounds: int, *, sqlite: int = 5, postgres: int = 3) -> dict[str, Result]:
    """Execute this many rounds, in pairs on both databases in parallel: most of the time is waiting for leases to expire."""
    with grounds(sqlite, postgres) as places:
        each = -(-rounds // len(places))

        def one(number: int) -> Result:
            mine = (number, sqlite) if number < sqlite else (number - sqlite, postgres)
            return play(Pair(*places[number]), each, *mine)

        with ThreadPoolExecutor(len(places)) as hands:
            results = list(hands.map(one, range(len(places))))
    return {folder.name: result for (_, folder), result in zip(places, results, strict=True)}


def control(rounds: int = 4) -> Result:
    """Execute rounds without the check of fences: the stale writes found here are those that fences prevent."""
    with grounds(1, 0) as ((url, folder),):
        pair = Pair(url, folder, fenced=False)
        try:
            points = [point for point in pair.points() if point[0] == "append.before"]
            for point in points[1 : rounds + 1]:
                pair.play(Round(*point, "claimed"))
            pair.look()
        finally:
            pair.close()
    return pair.result


def figures(results: dict[str, Result], found: Result) -> dict[str, Any]:
    """Return the figures of all rounds and of the control, for a table."""

    def total(part: str) -> Counter[str]:
        return sum((getattr(result, part) for result in results.values()), Counter())

    on = Counter(
        name.partition("-")[0] for name, result in results.items() for _ in range(result.rounds.total())
    )
    stale = [problem for problem in found.problems if "stale write was accepted" in problem]
    return {
        "zombie rounds": total("rounds").total(),
        "by store": dict(on),
        "by situation": dict(total("rounds")),
        "failpoints": len(set().union(*(result.points for result in results.values()))),
        "stale appends refused": dict(total("refused")),
        "how the stopped process ended": dict(total("ended")),
        "requests posted with appends": sum(result.requests for result in results.values()),
        "rounds that missed their failpoint": sum(result.missed for result in results.values()),
        "seconds": round(max(result.seconds for result in results.values()), 1),
        "stale writes in the control": len(stale),
        "violations": sum(len(result.problems) for result in results.values()),
    }


def main(rounds: float = 200) -> dict[str, Any]:
    """Execute this many rounds, and the control. Print the figures and the problems."""
    results = prove(int(rounds))
    told = figures(results, control())
    print("zombies: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    for problem in [problem for result in results.values() for problem in result.problems][:SHOWN]:
        print(f"  VIOLATION {problem}", flush=True)
    return told


if __name__ == "__main__":
    told = main(*map(float, sys.argv[1:2]))
    sys.exit(bool(told["violations"]) or not told["stale writes in the control"])
