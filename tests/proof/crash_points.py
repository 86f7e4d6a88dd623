"""Crash points: at every call that changes the disk, in every durable operation, the process dies or the call fails.

For each point and each of the seven modes, a child process performs the operation and dies or fails there; a new process then
inspects the disk and resumes its runs to the end. Two cases that leave the same bytes and report the same are inspected once,
because everything is deterministic.

The same is then done while a process recovers from the disk of such a case: at every call that changes the disk, in all modes
for one state of each operation, and at one call for every other state. `make prove-night` adds further rounds, until all calls
have been tried. In this part a kill is simulated, to save a child process: the process continues, but from that point on
none of its calls changes the disk, and its reports are dropped. (A test compares this with real kills.)

    python tests/proof/crash_points.py [cpu seconds] [seed] [rounds]        # prints the figures
"""

from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import queue
import random
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import shim
from inspection import Account
from operations import OPERATIONS
from processes import AT_ONCE, Contents, Pair, contents, digest, lay, workshop

KILLED = -9
SHOWN = 20
WHOLE = 1
"""For how many states of each operation the recovery is made to fail at every point, before the other states follow."""


@dataclass(frozen=True)
class Case:
    """One test case: perform an operation, or recover from a crash in it, and fail at this point in this mode."""

    operation: str
    point: int
    mode: str
    after: str = ""
    """The case whose crash is recovered from; empty if the operation itself is performed."""

    def __str__(self) -> str:
        where = f"recovery from ({self.after})" if self.after else self.operation
        return f"{where}: {self.mode} at point {self.point}"


class State:
    """The disk after a crash, and the cases of recovery from it that were not tried yet."""

    def __init__(self, case: Case, what: Contents, accounts: list[list[str]]) -> None:
        self.case = case
        self.accounts = accounts
        self.digest = digest(what)
        self._packed = zlib.compress(pickle.dumps(what), 1)
        self._left: list[tuple[int, str]] | None = None

    def contents(self) -> Contents:
        return _unpack(self._packed)

    def left(self, harness: Harness, seed: int) -> list[tuple[int, str]]:
        """Return the points and modes that are left to try, shuffled by the seed; the last one is the next to try."""
        if self._left is None:
            points = harness.recovery_points(self)
            self._left = [(point, mode) for point in range(1, points + 1) for mode in shim.MODES]
            random.Random(f"{seed} {self.digest}").shuffle(self._left)
        return self._left


@lru_cache(maxsize=2 * AT_ONCE)
def _unpack(packed: bytes) -> Contents:
    """Return the contents of a disk. Most cases of recovery begin with the same disk as the case before."""
    what: Contents = pickle.loads(zlib.decompress(packed))
    return what


@dataclass
class Result:
    """How many crash points and recoveries were tried, and the problems found."""

    points: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    """Mode -> how many cases were tried."""
    recoveries: int = 0
    """How many recoveries were made to fail."""
    recovery_cases: int = 0
    """How many cases of recovery exist for the states that were visited."""
    recovered: set[str] = field(default_factory=set)
    """The cases with different disks whose recovery was made to fail."""
    whole: Counter[str] = field(default_factory=Counter)
    """Operation -> for how many states the recovery was made to fail at every point."""
    is_complete: bool = False
    """Whether the whole plan was carried out."""
    looked: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


class Harness:
    """Runs crash cases on several pairs of zygotes in parallel, and collects the result."""

    def __init__(self, folder: Path) -> None:
        self.result = Result()
        self.states: list[State] = []
        self._pairs: queue.SimpleQueue[Pair] = queue.SimpleQueue()
        self._seen: set[tuple[str, str]] = set()
        self._finished: set[str] = set()
        self._lock = threading.Lock()
        library = shim.build(folder)
        self._all = [Pair(library, folder / f"pair-{number}") for number in range(AT_ONCE)]
        for pair in self._all:
            self._pairs.put(pair)

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        pair = self._pairs.get()
        try:
            yield pair
        finally:
            self._pairs.put(pair)

    def close(self) -> None:
        for pair in self._all:
            pair.close()

    def cpu_s(self) -> float:
        """Return the processor time that this process and all zygotes have used."""
        return time.process_time() + sum(pair.cpu_s for pair in self._all)

    # --- counting -------------------------------------------------------------------------------------

    def points(self, operation: str) -> int:
        """Perform an operation without a fault, inspect the result, and return its number of points."""
        with self.pair() as pair:
            base, told = pair.base(operation)
            lay(base, pair.disk)
            done = pair.fail("perform", operation, day=1)
            assert done["status"] == 0, done
            self._look(pair, Case(operation, 0, shim.COUNT), [told, done["said"]])
        self.result.points[operation] = int(done["points"])
        return int(done["points"])

    def recovery_points(self, state: State) -> int:
        """Recover from a state without a fault, and return the number of points of the recovery."""
        with self.pair() as pair:
            lay(state.contents(), pair.disk)
            done = pair.fail("finish", state.case.operation, day=2)
            assert done["status"] == 0, done
        points = int(done["points"])
        self.result.recovery_cases += points * len(shim.MODES)
        return points

    # --- failing --------------------------------------------------------------------------------------

    def perform(self, case: Case, **careless: Any) -> None:
        """Run a case. `careless`: options that make the child violate a promise, to test that the harness finds it."""
        with self.pair() as pair:
            base, told = pair.base(case.operation)
            lay(base, pair.disk)
            done = pair.fail("perform", case.operation, day=1, point=case.point, mode=case.mode, **careless)
            self._judge(pair, case, [told], done)
        with self._lock:
            self.result.cases[case.mode] += 1

    def recover(self, state: State, point: int, mode: str, **careless: Any) -> None:
        """Make the recovery from a crash fail at this point."""
        case = Case(state.case.operation, point, mode, after=str(state.case))
        with self.pair() as pair:
            lay(state.contents(), pair.disk)
            done = pair.fail("finish", case.operation, day=2, point=point, mode=mode, played=True, **careless)
            self._judge(pair, case, state.accounts, done)
        with self._lock:
            self.result.recoveries += 1
            self.result.recovered.add(case.after)

    def _judge(self, pair: Pair, case: Case, before: list[list[str]], done: dict[str, Any]) -> None:
        """Inspect the disk that a case left, unless an equal disk with equal reports was inspected before."""
        expected = KILLED if case.mode in shim.KILLS else 0
        if done["status"] != expected:
            self.result.problems.append(f"{case}: the process ended with {done['status']}, not {expected}")
        what = contents(pair.disk)
        left = digest(what)
        accounts = [*before, done["said"]]
        told = hashlib.sha256(repr(accounts).encode()).hexdigest()
        with self._lock:
            known, fresh = (left, told) in self._seen, left not in self._finished
            self._seen.add((left, told))
            self._finished.add(left)
            if fresh and not case.after:
                self.states.append(State(case, what, accounts))
        if not known:
            self._look(pair, case, accounts, finish=fresh)

    def _look(self, pair: Pair, case: Case, accounts: list[list[str]], *, finish: bool = True) -> None:
        problems = pair.look(case.operation, accounts, carry_on=finish)
        with self._lock:
            self.result.looked += 1
            self.result.problems += [f"{case}: {problem}" for problem in problems]
            for verb in Account.of(accounts[-1]).verbs:
                if verb.ended not in ("", "done"):
                    self.result.refusals[verb.ended] += 1


def prove(
    harness: Harness,
    operations: Iterable[str] = tuple(OPERATIONS),
    *,
    share: tuple[float, float] = (0.0, 1.0),
    recoveries: float = math.inf,
    whole: int = WHOLE,
    rounds: float = 1,
    cpu_s: float = math.inf,
    seed: int = 0,
) -> Result:
    """Try all points of these operations in all modes, or a share of them: each case has a number from 0 to 1, which is always
    the same, and those from the first to the second number of `share` are tried. Then make recoveries from the resulting states
    fail, in the order of `plan`: at most `recoveries` times, and until `cpu_s` of processor time is used.
    """
    cases = [
        Case(name, point, mode)
        for name in operations
        for point in range(1, harness.points(name) + 1)
        for mode in shim.MODES
    ]
    cases = [case for case in cases if share[0] <= random.Random(str(case)).random() < share[1]]
    with ThreadPoolExecutor(AT_ONCE) as hands:
        list(hands.map(harness.perform, cases))
        planned = plan(harness, whole, rounds, seed)
        one_at_a_time = threading.Lock()
        begun = itertools.count()

        def go_on() -> None:
            while harness.cpu_s() < cpu_s:
                with one_at_a_time:
                    found = next(planned, None) if next(begun) < recoveries else None
                if found is None:
                    return
                harness.recover(*found)

        for hand in [hands.submit(go_on) for _ in range(AT_ONCE)]:
            hand.result()
    harness.result.cpu_s = harness.cpu_s()
    return harness.result


def plan(harness: Harness, whole: int, rounds: float, seed: int) -> Iterator[tuple[State, int, str]]:
    """Yield the recoveries to try, as state, point and mode: at every point for `whole` states of each operation, which the seed
    chooses; then at one point for each other state, and at one more in each further round, until nothing is left.
    """
    luck = random.Random(f"{seed} recoveries")
    states = sorted(
        harness.states, key=lambda state: state.digest
    )  # sorted, because the order in which threads added the states is random
    luck.shuffle(states)
    chosen = harness.result.whole
    others: deque[tuple[int, State]] = deque()
    for state in states:
        if chosen[state.case.operation] >= whole:
            others.append((1, state))
            continue
        left = state.left(harness, seed)
        while left:
            yield (state, *left.pop())
        chosen[state.case.operation] += 1
    while others:
        number, state = others.popleft()
        left = state.left(harness, seed)
        if left:
            yield (state, *left.pop())
        if left and number < rounds:
            others.append((number + 1, state))
    harness.result.is_complete = True


def figures(result: Result, harness: Harness) -> dict[str, Any]:
    """Return the figures of a result, for a table."""
    points, cases = sum(result.points.values()), sum(result.cases.values())
    states = len(harness.states)
    return {
        "operations": len(result.points),
        "crash points": points,
        "fault modes": len(shim.MODES),
        "cases": cases,
        "share of all cases": f"{cases / max(1, points * len(shim.MODES)):.0%}",
        "different states after a fault": states,
        "faults during recovery": result.recoveries,
        "states with a fault during recovery": len(result.recovered),
        "operations with faults at every point of one recovery": sum(
            many > 0 for many in result.whole.values()
        ),
        "the whole plan was carried out": result.is_complete,
        "possible cases during recovery": result.recovery_cases,
        "processor seconds": round(result.cpu_s),
        "violations": len(result.problems),
    }


def main(cpu_s: float = math.inf, seed: float = 0, rounds: float = 1) -> dict[str, Any]:
    """Try all crash points, and `rounds` rounds of crashes during recovery, if the processor time allows them. Print the figures
    and the problems.
    """
    missing = shim.why_not()
    if missing is not None:
        print(f"crash points: SKIPPED: {missing}", flush=True)
        return {"skipped": missing}
    with workshop() as folder:
        harness = Harness(folder)
        try:
            result = prove(harness, cpu_s=cpu_s, seed=int(seed), rounds=rounds)
        finally:
            harness.close()
    told = figures(result, harness)
    print("crash points: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    print("  points: " + ", ".join(f"{name} {count}" for name, count in result.points.items()), flush=True)
    for problem in result.problems[:SHOWN]:
        print(f"  VIOLATION {problem}", flush=True)
    return told


if __name__ == "__main__":
    sys.exit(bool(main(*map(float, sys.argv[1:4])).get("violations")))
