"""Power loss: the states that a disk may have after it, computed from a record of all calls that changed the disk.

An operation is performed once with the shim, which records every call. After a power loss, a disk has the content of each file
at its last sync, and any part of the later calls: none, all, the first few, any sectors of any of them in any order, a torn
sector. A new, renamed or removed name is kept if its folder was synced; otherwise any first part of the calls on the folder is
kept, or any part at all. Shared memory (-shm) is lost.

At each moment of the record such states are drawn, each is written as a disk, and a process opens it: every acknowledged fact
must be there, none may be there in part, and everything must be sound; in some of them, runs are resumed to their end. The first
round draws at every moment; further rounds draw other states, until the requested number is reached.

The control does the same with `synchronous=NORMAL`, where SQLite commits without a sync: there losses must be found.

    python tests/proof/power_loss.py [cpu seconds] [states] [seed]        # prints the figures
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shim
from operations import OPERATIONS
from processes import AT_ONCE, Contents, Pair, digest, lay, workshop
from shim import Call

SECTORS = (512, 4096)
WAYS = ("nothing", "everything", "first calls", "torn", "some calls", "some sectors", "sizes only")
STATES = 21_000
SHOWN = 20
CARELESS = {"synchronous": "normal"}
CARELESS_OPERATIONS = ("append", "append batch", "snapshot", "lease", "post", "checkpoint", "run", "resume")
CARELESS_STATES = 400


# --- a disk that remembers ---------------------------------------------------------------------------


class File:
    """The content of a file at its last sync, and every write and truncation since."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = content
        self.pending: list[Call] = []

    def sync(self) -> None:
        self.synced = self.content(self.pending)
        self.pending = []

    def content(self, done: Iterable[Call]) -> bytes:
        """Return the content of the file if only these calls have reached the disk."""
        content = bytearray(self.synced)
        for call in done:
            _apply(content, call)
        return bytes(content)


class Disk:
    """Files and their names, as a program sees them, and as they are after a power loss."""

    def __init__(self, root: str, what: Contents) -> None:
        self._root = root
        self._synced: dict[str, File | None] = {
            name: None if content is None else File(content)
            for name, content in what.items()
            if not name.endswith("-shm")
        }
        self._names = dict(self._synced)
        self._renamings: list[Call] = []
        """The calls that changed names and are not known to be durable, in order."""
        self._files: dict[int, File] = {}

    def do(self, call: Call) -> None:
        """Apply a recorded call."""
        name = self._name(call.path)
        if name.endswith(("-shm", " (deleted)")):
            return
        if call.kind in ("write", "truncate"):
            file = self._names.get(name)
            if file is not None:
                file.pending.append(call)
        elif call.kind == "sync":
            file = self._names.get(name)
            if file is not None:
                file.sync()
            else:
                self._sync_folder(name)
        else:
            if call.kind == "create":
                self._files[id(call)] = File()
            self._renamings.append(call)
            self._rename(self._names, call)

    def _sync_folder(self, folder: str) -> None:
        """Make the changes of names in this folder durable, also renamings from another folder into this one."""
        left = []
        for call in self._renamings:
            if folder in self._folders(call):
                self._rename(self._synced, call)
            else:
                left.append(call)
        self._renamings = left

    def _folders(self, call: Call) -> set[str]:
        names = [self._name(path) for path in (call.path, call.other) if path]
        return {name.rpartition("/")[0] for name in names}

    def _rename(self, names: dict[str, File | None], call: Call) -> None:
        name, other = self._name(call.path), self._name(call.other)
        if call.kind == "create":
            names[name] = self._files[id(call)]
        elif call.kind == "mkdir":
            names[name] = None
        elif call.kind in ("unlink", "rmdir"):
            names.pop(name, None)
        elif name in names:
            names[other] = names[name] if call.kind == "link" else names.pop(name)
            inside = f"{name}/"
            for below in [one for one in names if one.startswith(inside)] if call.kind == "rename" else []:
                names[f"{other}/{below[len(inside) :]}"] = names.pop(below)

    def _name(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    # --- what is left ---------------------------------------------------------------------------------

    def after(self, way: str, luck: random.Random) -> Contents:
        """Return a possible content of the disk if the power is lost now."""
        names = dict(self._synced)
        for call in _drawn(self._renamings, way, luck):
            self._rename(names, call)
        left: Contents = {}
        for name, file in names.items():
            if all(parent in names for parent in _parents(name)):
                left[name] = None if file is None else _survived(file, way, luck)
        return left

    @property
    def is_settled(self) -> bool:
        """Whether a power loss at this moment can leave only one state of the disk."""
        return not self._renamings and not any(
            file.pending for file in self._names.values() if file is not None
        )


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _apply(content: bytearray, call: Call) -> None:
    if call.kind == "truncate":
        del content[call.offset :]
        content.extend(bytes(call.offset - len(content)))
        return
    if len(content) < call.offset:
        content.extend(bytes(call.offset - len(content)))
    content[call.offset : call.offset + len(call.data)] = call.data


def _drawn(calls: list[Call], way: str, luck: random.Random) -> list[Call]:
    """Choose which of these calls have reached the disk."""
    if way == "nothing":
        return []
    if way == "everything":
        return list(calls)
    if way in ("first calls", "torn"):
        return calls[: luck.randint(0, len(calls))]
    return [call for call in calls if luck.random() < 0.5]


def _survived(file: File, way: str, luck: random.Random) -> bytes:
    if way in ("nothing", "everything") or not file.pending:
        return file.content(_drawn(file.pending, way, luck))
    if way == "torn":
        count = luck.randrange(len(file.pending))
        cut = file.pending[count]
        part = cut._replace(data=cut.data[: luck.randint(0, len(cut.data))])
        return file.content([*file.pending[:count], part])
    if way == "some sectors":
        return file.content(_sectors(file.pending, luck))
    if way == "sizes only":
        # The size of a file is stored separately from its content: bytes that were never written read as zeros.
        content = file.content(_sectors(file.pending, luck, 0.2))
        return content + bytes(max(0, len(file.content(file.pending)) - len(content)))
    return file.content(_drawn(file.pending, way, luck))


def _sectors(calls: list[Call], luck: random.Random, share: float = 0.5) -> list[Call]:
    """Choose parts of calls that have reached the disk: a disk writes sectors, in any order, and may not get to all of them."""
    size = luck.choice(SECTORS)
    kept = []
    for call in calls:
        if call.kind == "truncate":
            if luck.random() < 0.5:
                kept.append(call)
            continue
        at = 0
        while at < len(call.data):
            end = min(len(call.data), at + size - (call.offset + at) % size)
            if luck.random() < share:
                kept.append(call._replace(offset=call.offset + at, data=call.data[at:end]))
            at = end
    return kept


# --- drawing states ----------------------------------------------------------------------------------


@dataclass
class Recording:
    """The record of one operation: the disk before it, and every call and report."""

    operation: str
    base: Contents
    told_before: list[str]
    calls: list[Call]
    root: str

    @property
    def moments(self) -> int:
        return sum(call.kind != "mark" for call in self.calls) + 1


@dataclass
class Loss:
    """A state of the disk after a power loss, and what the process had reported before."""

    operation: str
    moment: int
    way: str
    contents: Contents
    accounts: list[list[str]]

    def __str__(self) -> str:
        return f"{self.operation}: power lost after call {self.moment}, {self.way} of what was not synced is left"


def record(pair: Pair, operation: str, **careless: Any) -> Recording:
    """Perform an operation with the shim, and return the record of its calls. `careless` options make it unsafe."""
    base, told = pair.base(operation)
    lay(base, pair.disk)
    file = pair.folder / "record"
    done = pair.fail("perform", operation, day=1, record=file, **careless)
    assert done["status"] == 0, done
    return Recording(operation, base, told, list(shim.calls(file.read_bytes())), str(pair.disk))


def losses(
    recording: Recording, luck: random.Random, draws: int, wanted: Collection[tuple[int, str]] | None = None
) -> Iterator[Loss]:
    """Yield states after a power loss at every moment: `draws` states for each way. The same state may be drawn twice. With
    `wanted`, only at these moments and in these ways.
    """
    for moment, way, disk, told in _power_losses(recording):
        if wanted is None or (moment, way) in wanted:
            for _ in range(1 if way in WAYS[:2] else draws):
                contents = disk.after(way, luck)
                yield Loss(recording.operation, moment, way, contents, [recording.told_before, list(told)])


def _power_losses(recording: Recording) -> Iterator[tuple[int, str, Disk, list[str]]]:
    """Yield every moment and way of a power loss, with the disk and what was reported at that moment."""
    disk = Disk(recording.root, recording.base)
    told: list[str] = []
    moment = 0
    for call in [*recording.calls, None]:
        if call is not None and call.kind == "mark":
            told.append(call.data.decode())
            continue
        # Reports since the last call were made before the power loss; reports after it were not.
        for way in WAYS if not disk.is_settled else WAYS[:1]:
            yield moment, way, disk, told
        if call is not None:
            disk.do(call)
            moment += 1


def spread(recordings: list[Recording], at_once: int) -> Iterator[Loss]:
    """Yield states spread over all moments of the recordings, `at_once` in the order of the recordings and then as many others.
    Each state is a disk, so none is kept here.
    """
    places = [
        (number, moment, way)
        for number, recording in enumerate(recordings)
        for moment, way, *_ in _power_losses(recording)
    ]
    random.Random(2).shuffle(places)
    for first in range(0, len(places), at_once):
        drawn = places[first : first + at_once]
        for number, recording in enumerate(recordings):
            wanted = {(moment, way) for of, moment, way in drawn if of == number}
            if wanted:
                yield from losses(recording, random.Random(1), 1, wanted)


# --- looking at them ---------------------------------------------------------------------------------


@dataclass
class Result:
    """How many different states were inspected, and the problems found."""

    states: Counter[str] = field(default_factory=Counter)
    """Operation -> how many states were inspected."""
    ways: Counter[str] = field(default_factory=Counter)
    disks: set[str] = field(default_factory=set)
    """The digests of the disks that were inspected, whatever had been reported before."""
    moments: set[tuple[str, int]] = field(default_factory=set)
    """(operation, moment) of every power loss that was tried."""
    moments_in_all: int = 0
    carried_on: int = 0
    acknowledged: int = 0
    """The number of verbs that were acknowledged before the power loss, over all states."""
    lost: int = 0
    """The number of states in which something acknowledged is missing."""
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


class Harness:
    """Inspects states after power loss, several in parallel."""

    def __init__(self, folder: Path, at_once: int) -> None:
        self.result = Result()
        self._seen: set[tuple[str, int]] = set()
        library = shim.build(folder)
        self.pairs = [Pair(library, folder / f"pair-{number}") for number in range(at_once)]
        self._lock = threading.Lock()

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()

    def cpu_s(self) -> float:
        """Return the processor time that this process and all zygotes have used."""
        return time.process_time() + sum(pair.cpu_s for pair in self.pairs)

    def look(
        self, drawn: Iterable[Loss], *, most: float, cpu_s: float = math.inf, carry_on_each: int = 5
    ) -> None:
        """Inspect at most `most` different states. In one of `carry_on_each` states, also resume the runs to their end."""
        fresh = self._fresh(drawn, most, cpu_s)

        def go_on(pair: Pair) -> None:
            while True:
                with self._lock:
                    found = next(fresh, None)
                if found is None:
                    return
                number, loss = found
                self._look(pair, loss, carry_on=number % carry_on_each == 0)

        with ThreadPoolExecutor(len(self.pairs)) as hands:
            list(hands.map(go_on, self.pairs))

    def _fresh(self, drawn: Iterable[Loss], most: float, cpu_s: float) -> Iterator[tuple[int, Loss]]:
        number = 0
        for loss in drawn:
            if number >= most or self.cpu_s() > cpu_s:
                return
            self.result.moments.add((loss.operation, loss.moment))
            left = digest(loss.contents)
            key = (left, len(loss.accounts[-1]))
            if key not in self._seen:
                self._seen.add(key)
                self.result.disks.add(left)
                number += 1
                yield number, loss

    def _look(self, pair: Pair, loss: Loss, *, carry_on: bool) -> None:
        lay(loss.contents, pair.disk)
        problems = pair.look(loss.operation, loss.accounts, carry_on=carry_on)
        with self._lock:
            result = self.result
            result.states[loss.operation] += 1
            result.ways[loss.way] += 1
            result.carried_on += carry_on
            result.acknowledged += sum(line.startswith('{"done"') for line in loss.accounts[-1])
            result.lost += any("was acknowledged, but not" in problem for problem in problems)
            result.problems += [f"{loss}: {problem}" for problem in problems]


def drawings(recordings: list[Recording], seed: str) -> Iterator[Loss]:
    """Yield states of all recordings, round after round, without end; the first round draws at every moment."""
    for number in itertools.count():
        for recording in recordings:
            yield from losses(recording, random.Random(f"{seed} {number} {recording.operation}"), 1)


def prove(
    harness: Harness,
    operations: Iterable[str] = tuple(OPERATIONS),
    *,
    most: float,
    cpu_s: float = math.inf,
    seed: int = 0,
) -> Result:
    """Inspect this many different states after power loss in these operations."""
    harness.result = Result()
    recordings = [record(harness.pairs[0], name) for name in operations]
    harness.result.moments_in_all = sum(recording.moments for recording in recordings)
    harness.look(drawings(recordings, f"power {seed}"), most=most, cpu_s=cpu_s)
    harness.result.cpu_s = harness.cpu_s()
    return harness.result


def control(harness: Harness, operations: Iterable[str], most: int, **careless: Any) -> Result:
    """Inspect states that unsafe programs leave, spread over all moments of these operations: something must be lost."""
    harness.result = Result()
    recordings = [record(harness.pairs[0], name, **careless) for name in operations]
    harness.look(spread(recordings, most), most=most)
    harness.result.cpu_s = harness.cpu_s()
    return harness.result


def figures(result: Result, careless: Result) -> dict[str, Any]:
    """Return the figures of a result and its control, for a table."""
    return {
        "power-loss states": sum(result.states.values()),
        "different contents of the disk": len(result.disks),
        "operations": len(result.states),
        "moments": len(result.moments),
        "possible moments": result.moments_in_all,
        "states from which all runs were resumed": result.carried_on,
        "states that lost acknowledged data": result.lost,
        "states of the control": sum(careless.states.values()),
        "of these, lost acknowledged data": careless.lost,
        "processor seconds": round(careless.cpu_s),
        "violations": len(result.problems),
    }


def main(cpu_s: float = 150.0, states: float = STATES, seed: float = 0) -> dict[str, Any]:
    """Inspect this many different states, or as many as the processor time allows. Print the figures and the problems."""
    missing = shim.why_not()
    if missing is not None:
        print(f"power loss: SKIPPED: {missing}", flush=True)
        return {"skipped": missing}
    with workshop() as folder:
        harness = Harness(folder, AT_ONCE)
        try:
            result = prove(harness, most=states, cpu_s=cpu_s, seed=int(seed))
            careless = control(harness, CARELESS_OPERATIONS, CARELESS_STATES, pragmas=CARELESS)
        finally:
            harness.close()
    told = figures(result, careless)
    print("power loss: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    print(
        "  " + ", ".join(f"{name} {count}" for name, count in [*result.states.items(), *result.ways.items()]),
        flush=True,
    )
    for problem in result.problems[:SHOWN]:
        print(f"  VIOLATION {problem}", flush=True)
    return told


if __name__ == "__main__":
    sys.exit(bool(main(*map(float, sys.argv[1:4])).get("violations")))
