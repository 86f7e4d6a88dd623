"""Crash points: at every call that changes the disk, of every durable operation, the process dies or the call fails.

For each point and each of the seven modes a child performs the operation and fails there; a fresh process then looks at the disk
and carries its runs on to the end. Then the same again while a process recovers from that. Two cases that leave the same bytes
behind, after having told the same, are looked at once: all of it is deterministic.

    python tests/proof/crash_points.py [seconds]        everything, and the figures
"""

from __future__ import annotations

import hashlib
import itertools
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
from pathlib import Path
from typing import Any

import shim
from inspection import Account
from operations import OPERATIONS
from processes import AT_ONCE, Contents, Pair, contents, digest, lay, workshop

KILLED = -9
LAST_DAY = 9
SHOWN = 20


@dataclass(frozen=True)
class Case:
    """Perform an operation, or recover from a crash in it, and fail there."""

    operation: str
    point: int
    mode: str
    after: str = ""
    """The case that is recovered from."""

    def __str__(self) -> str:
        where = f"recovery from ({self.after})" if self.after else self.operation
        return f"{where}: {self.mode} at point {self.point}"


class State:
    """What a crash left behind, and the cases of recovering from it that were not tried yet."""

    def __init__(self, case: Case, what: Contents, accounts: list[list[str]]) -> None:
        self.case = case
        self.accounts = accounts
        self._packed = zlib.compress(pickle.dumps(what), 1)
        self._cases: list[tuple[int, str]] | None = None

    def contents(self) -> Contents:
        what: Contents = pickle.loads(zlib.decompress(self._packed))
        return what

    def next_case(self, harness: Harness) -> tuple[int, str] | None:
        """A point and a mode, in an order that looks random and is always the same; None: all were tried."""
        if self._cases is None:
            points = harness.recovery_points(self)
            self._cases = [(point, mode) for point in range(1, points + 1) for mode in shim.MODES]
            random.Random(str(self.case)).shuffle(self._cases)
        return self._cases.pop() if self._cases else None


@dataclass
class Result:
    """What was tried and what was wrong."""

    points: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    """By mode."""
    recoveries: int = 0
    """Cases that failed while recovering from another."""
    recovered: set[str] = field(default_factory=set)
    """Cases, different in what they left behind, that were recovered from under fire."""
    looked: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Harness:
    """Pairs of zygotes, and what they have seen."""

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

    # --- counting -------------------------------------------------------------------------------------

    def points(self, operation: str) -> int:
        """How many points an operation has that nobody disturbs; what it does must be well."""
        with self.pair() as pair:
            base, told = pair.base(operation)
            lay(base, pair.disk)
            done = pair.fail("perform", operation, day=1)
            assert done["status"] == 0, done
            self._look(pair, Case(operation, 0, shim.COUNT), [told, done["said"]])
        self.result.points[operation] = int(done["points"])
        return int(done["points"])

    def recovery_points(self, state: State) -> int:
        with self.pair() as pair:
            lay(state.contents(), pair.disk)
            done = pair.fail("finish", state.case.operation, day=2)
            assert done["status"] == 0, done
        return int(done["points"])

    # --- failing --------------------------------------------------------------------------------------

    def perform(self, case: Case, **careless: Any) -> None:
        """Fail there. `careless`: what the child is to do badly, so that this can be found out."""
        with self.pair() as pair:
            base, told = pair.base(case.operation)
            lay(base, pair.disk)
            done = pair.fail("perform", case.operation, day=1, point=case.point, mode=case.mode, **careless)
            self._judge(pair, case, [told], done)
        self.result.cases[case.mode] += 1

    def recover(self, state: State) -> bool:
        """Fail once more, while recovering from a crash. False: everywhere was tried."""
        found = state.next_case(self)
        if found is None:
            return False
        case = Case(state.case.operation, *found, after=str(state.case))
        with self.pair() as pair:
            lay(state.contents(), pair.disk)
            done = pair.fail("finish", case.operation, day=2, point=case.point, mode=case.mode)
            self._judge(pair, case, state.accounts, done)
        self.result.recoveries += 1
        self.result.recovered.add(case.after)
        return True

    def _judge(self, pair: Pair, case: Case, before: list[list[str]], done: dict[str, Any]) -> None:
        """Look at what a case left, unless an equal one was looked at."""
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
        seen = pair.looking.call(
            do="inspect",
            operation=case.operation,
            disk=pair.disk,
            day=LAST_DAY,
            accounts=accounts,
            finish=finish,
        )
        problems = seen.get("problems", ["whoever looked died"]) + [
            line for line in seen["said"] if '"defect"' in line
        ]
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
    share: float = 1.0,
    recoveries: int | None = None,
    until: float | None = None,
) -> Result:
    """All points of these operations in all modes, or a share of them, always the same. Then failures while recovering from each
    different state that these have left, in turn: so many, or until that time, or all.
    """
    began = time.monotonic()
    cases = [
        Case(name, point, mode)
        for name in operations
        for point in range(1, harness.points(name) + 1)
        for mode in shim.MODES
    ]
    cases = [case for case in cases if share >= 1.0 or random.Random(str(case)).random() < share]
    with ThreadPoolExecutor(AT_ONCE) as hands:
        list(hands.map(harness.perform, cases))
        waiting = deque(harness.states)
        left = itertools.count(recoveries or 0, -1)

        def go_on() -> None:
            while (until is None or time.monotonic() < until) and (recoveries is None or next(left) > 0):
                try:
                    state = waiting.popleft()
                except IndexError:
                    return
                if harness.recover(state):
                    waiting.append(state)

        for hand in [hands.submit(go_on) for _ in range(AT_ONCE)]:
            hand.result()
    harness.result.seconds = time.monotonic() - began
    return harness.result


def figures(result: Result, harness: Harness) -> dict[str, Any]:
    """What was proved, for a table."""
    points = sum(result.points.values())
    return {
        "operations": len(result.points),
        "crash points": points,
        "fault modes": len(shim.MODES),
        "cases": sum(result.cases.values()),
        "covered": f"{sum(result.cases.values()) / max(1, points * len(shim.MODES)):.0%}",
        "different states": len(harness.states),
        "crashes in recovery": result.recoveries,
        "states recovered from under fire": len(result.recovered),
        "cases a minute": round(
            (sum(result.cases.values()) + result.recoveries) / max(result.seconds, 0.001) * 60
        ),
        "violations": len(result.problems),
    }


def main(budget_s: float = 150.0) -> dict[str, Any]:
    """The whole of it: all points, and as many crashes in recoveries as the time allows. Prints the figures and what is wrong."""
    missing = shim.why_not()
    if missing is not None:
        print(f"crash points: SKIPPED: {missing}", flush=True)
        return {"skipped": missing}
    until = time.monotonic() + budget_s
    with workshop() as folder:
        harness = Harness(folder)
        try:
            result = prove(harness, until=until)
        finally:
            harness.close()
    told = figures(result, harness)
    print("crash points: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    print("  points: " + ", ".join(f"{name} {count}" for name, count in result.points.items()), flush=True)
    for problem in result.problems[:SHOWN]:
        print(f"  VIOLATION {problem}", flush=True)
    return told


if __name__ == "__main__":
    sys.exit(bool(main(*map(float, sys.argv[1:2])).get("violations")))
