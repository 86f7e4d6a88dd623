"""Check the invariants of a simulated schedule when it is over, whatever faults it had.

The oracle (this module) reads the rows of the store, the ledger (a record of what the store did) and the witness (a record of
the calls of node functions). It uses plain dictionaries while it walks through a log: it shares no code with `fold` and
`decide`. It checks that acknowledged rows are stored; that a run has one writer at a time; that a completed visit never runs
again; that the body (the function of a node) is called once per start, after the start is durable, and continues only after its
steps are durable; that the numbers of attempts grow; that timers, signals and answers are recorded once; that every attempt of
a visit sees the same state; that the final state is the expected one; that no base is in the middle of a visit whose events are
still read; and that the run row and the snapshots agree with the fold of the log (`reading.verification`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core import events
from holdfast.errors import HoldfastError
from holdfast.reading.cases import case_of, case_of_row
from holdfast.reading.diagnosis import diagnose
from holdfast.reading.verification import verify
from holdfast.storage.contract import Row, RunRow, Store
from holdfast.storage.rows import open_row
from holdfast.testing.simulator_faults import Ledger
from holdfast.testing.simulator_flows import (
    SPEAK,
    STEPS,
    TRIES,
    BodyCall,
    BodyWitness,
    Tale,
    root_of,
    signal_manner,
)
from holdfast.testing.simulator_requests import Made
from holdfast.testing.standings import name_visit

Visit = tuple[str, int, int]
_OVER = frozenset({"RunCompleted", "RunCancelled"})
_READ = frozenset(
    {
        "StepCompleted",
        "StepStarted",
        "StepFailed",
        "NodeCheckpointed",
        "NodeStreamed",
        "ItemsListed",
        "NodeWaiting",
    }
)
"""Events of a visit that the engine may read from the log while the visit is open."""


def check_acknowledged(logs: Mapping[str, list[Row]], bases: Mapping[str, int], ledger: Ledger) -> list[str]:
    """Check that acknowledged rows are stored, or replaced by a base, and that every stored row was written by an engine."""
    wrong = list(ledger.wrong)
    there = {(run_id, row.seq): row.salt for run_id, rows in logs.items() for row in rows}
    for place, salt in ledger.acknowledged.items():
        if there.get(place) != salt and place[1] > bases.get(place[0], 0):
            wrong.append(f"{place[0]}@{place[1]}: the event was acknowledged, but is not stored")
    for place, salt in there.items():
        if ledger.accepted.get(place) != salt:
            wrong.append(f"{place[0]}@{place[1]}: the event is stored, but no engine wrote it")
    return wrong


def check_base(run_id: str, rows: list[Row], base: int) -> list[str]:
    """Check that the base of a compacted log is not in the middle of a visit whose events (steps, chunks, items, waits) are
    still read by the engine.
    """
    visits: dict[str | None, tuple[int, int]] = {}
    read: set[str | None] = set()
    for row in rows:
        if row.seq > base:
            break
        if row.kind == "RunRewound":  # open visits are repeated
            visits.clear()
            read.clear()
        elif row.kind == "NodeStarted" and visits.get(row.node) != (row.iteration, row.execution):
            visits[row.node] = (row.iteration, row.execution)
            read.discard(row.node)
        elif row.kind in _READ and row.node in visits:
            read.add(row.node)
        elif row.kind in ("NodeCompleted", "NodeSkipped"):
            visits.pop(row.node, None)
            read.discard(row.node)
    return [f"{run_id}@{base}: a base is in the middle of a visit of {node}" for node in read]


def verify_runs(disk: Store, run_ids: Iterable[str]) -> list[str]:
    """Check that the run row and the snapshots of each run agree with the fold of its log, and that a listing says the same about
    the run as its log.
    """
    wrong: list[str] = []
    for run_id in run_ids:
        try:
            wrong += [f"{run_id}: {problem}" for problem in verify(disk, run_id).problems]
            wrong += compare_diagnoses(disk, run_id)
        except HoldfastError as fault:
            wrong.append(f"{run_id}: {fault}")
    return wrong


def compare_diagnoses(disk: Store, run_id: str) -> list[str]:
    """Check that the diagnosis of a run from its row is the one from its log."""
    row, now = disk.run(run_id), disk.now()
    case = case_of_row(disk, row)
    if case is None:
        return []
    short, whole = diagnose(case, now), diagnose(case_of(disk, row), now)
    names = ("kind", "reason", "remedies", "since", "crashed", "answered", "expects", "asks_before")
    return [
        f"{run_id}: a listing says {name} {getattr(short, name)!r}, but the log {getattr(whole, name)!r}"
        for name in names
        if getattr(short, name) != getattr(whole, name)
    ]


class Walk:
    """Reads one log from its first row to its last, and collects what the checks compare; `wrong` lists the violations."""

    def __init__(self, run_id: str, tale: Tale | None, tries: int) -> None:
        self.run_id = run_id
        self.tale = tale
        self.wrong: list[str] = []
        self.log: list[tuple[Row, Any]] = []
        """The rows that were read, with their events."""
        self.starts: dict[tuple[str, int, int, int, int | None], list[int]] = {}
        """Attempt of a node or item -> the seqs at which it started; more than one if it continued after a wait."""
        self.ends: dict[tuple[str, int, int, int | None], int] = {}
        self.steps: dict[tuple[str, int, int, int | None, str], int] = {}
        self.given: dict[Visit, str] = {}
        self.streamed: dict[tuple[str, int, int, int], list[Any]] = {}
        self._streaming: dict[tuple[str, int, int, int], set[str]] = {}
        """Attempt -> the steps that streamed in it, as far as recorded."""
        self.answered: set[str] = set()
        self.loose = False
        """True if the durability of the run is not `sync`. A process that dies may then lose the start of a node, but no
        acknowledged event.
        """
        self._tries = tries
        self._at = 0.0
        self._over = ""
        self._rewound = False
        self._stage = ""
        self._total = 0
        self._attempts: dict[tuple[str, int, int, int | None], int] = {}
        self._not_before: dict[tuple[str, int, int, int | None], float] = {}
        self._failures: Counter[tuple[str, int, int, int | None]] = Counter()
        self._visits: dict[str, int] = {}
        self._timers: dict[tuple[str, int, int, int | None, str], float] = {}
        self._asked: set[str] = set()
        self._half_answered: set[str] = set()
        """Keys of questions that an answer about one of several steps has left open."""
        self._signals: Counter[tuple[str, str]] = Counter()
        self._aside: Counter[str] = Counter()
        self._begun: set[tuple[str, int, int, int | None, str]] = set()
        """The steps that must not be called twice, were about to be called, and have no outcome."""
        self._failed_tries: Counter[tuple[str, int, int, int | None, str]] = Counter()
        """Step -> how many tries of it have failed since its node or item failed last."""
        self._waits: set[tuple[str, int, int, int | None, str]] = set()
        """The waits that nodes have begun and not withdrawn."""
        self._open: dict[str, str] = {}
        """Node with an open visit -> the state that the visit was given. A repeated visit is given the same state."""
        self._places: dict[int, tuple[str, int, dict[str, int], dict[str, str]]] = {}
        """Seq of an event that a rewind goes back to -> the state fields `stage` and `total`, the visits and the open nodes
        after that event.
        """
        self._returns: frozenset[int] = frozenset()
        self._retried: set[Visit] = set()
        """Visits that a caller asked to retry."""
        self._layered = tale is not None and tale.flow.definition.schedule == "layered"

    def is_careful(self, node: str) -> bool:
        """Return whether the node must not run twice."""
        return self.tale is not None and self.tale.is_careful(node)

    def say(self, seq: int, told: str) -> None:
        self.wrong.append(f"{self.run_id}@{seq}: {told}")

    def step(self, row: Row, event: Any) -> None:
        if row.at < self._at:
            self.say(row.seq, "the time of the event is before the time of the event before it")
        self._at = row.at
        if self._over:
            self.say(row.seq, f"{row.kind} follows {self._over}")
        if row.kind in _OVER:
            self._over = row.kind
        if row.kind == "RunRewound":
            self._rewound = True
            self._stage, self._total, visits, given = self._places[event.to]
            self._visits, self._open = dict(visits), dict(given)
        handler = _HANDLERS.get(row.kind)
        if handler is not None:
            handler(self, row, event)
        if row.seq in self._returns:
            self._places[row.seq] = (self._stage, self._total, dict(self._visits), dict(self._open))

    def through(self, log: list[tuple[Row, Any]]) -> None:
        """Read the log from the first row to the last."""
        self.log = log
        self._returns = frozenset(event.to for row, event in log if row.kind == "RunRewound")
        for row, event in log:
            self.step(row, event)

    # --- visits ---------------------------------------------------------------------------------------

    def created(self, row: Row, event: Any) -> None:
        self.loose = event.options.get("durability", "sync") != "sync"

    def started(self, row: Row, event: Any) -> None:
        item = getattr(event, "item", None)
        visit = (event.node, event.iteration, event.execution, item)
        if visit in self.ends:
            self.say(row.seq, f"{name_visit(*visit)} starts, but its end is recorded")
        before = self._attempts.get(visit, 0)
        woken = getattr(event, "woken", False) or (item is not None and event.attempt == before)
        if event.attempt != before + (not woken):
            self.say(row.seq, f"attempt {event.attempt} of {name_visit(*visit)} follows attempt {before}")
        self._attempts[visit] = event.attempt
        if row.at < self._not_before.pop(visit, 0.0):
            self.say(row.seq, f"{name_visit(*visit)} is retried too early")
        self.starts.setdefault((*visit[:3], event.attempt, item), []).append(row.seq)
        if item is None:
            if event.iteration != self._visits.get(event.node, 0) + 1:
                done = self._visits.get(event.node, 0)
                self.say(
                    row.seq, f"{event.node} starts its visit {event.iteration}, but {done} visits have ended"
                )
            given = self._open.setdefault(event.node, f"{self._stage}/{self._total}")
            self.given.setdefault(visit[:3], given)
            self._careful(row, event, before)
            self._doubtful(row, event, before)

    def completed(self, row: Row, event: Any) -> None:
        item = getattr(event, "item", None)
        visit = (event.node, event.iteration, event.execution, item)
        if visit in self.ends:
            self.say(row.seq, f"{name_visit(*visit)} ends a second time")
        self.ends[visit] = row.seq
        tale = self.tale
        if item is None:
            self._visits[event.node] = event.iteration
            self._open.pop(event.node, None)
        if tale is None or tale.habits.get(event.node) == "question":
            return
        if item is None:
            self._total += tale.sketch.items.get(event.node, 1)
        if item is not None or event.node not in tale.sketch.items:
            self._compare(row, event, item)

    def _careful(self, row: Row, event: Any, before: int) -> None:
        """Check that a node that must not run twice is retried only if the operator chose to retry it."""
        if not self.is_careful(event.node) or event.attempt == 1:
            return
        if (event.node, event.iteration, event.execution) in self._retried:
            return
        if f"{event.node}.{event.iteration}.{event.execution}.{before}" not in self.answered:
            self.say(row.seq, f"{event.node} is retried, but the operator was not asked")

    def _doubtful(self, row: Row, event: Any, before: int) -> None:
        """Check that a visit which has begun a step that must not be called twice runs again only if the operator chose so."""
        visit = (event.node, event.iteration, event.execution)
        begun = {step for step in self._begun if step[:3] == visit}
        if not begun or event.woken:
            return
        self._begun -= begun
        if visit not in self._retried and ".".join(map(str, (*visit, before))) not in self.answered:
            self.say(
                row.seq, f"{event.node} is retried, but the operator was not asked about a step in doubt"
            )

    def _compare(self, row: Row, event: Any, item: int | None) -> None:
        """Check that the changes that a node recorded are those that the random flow should make."""
        assert self.tale is not None
        given = self.given.get((event.node, event.iteration, event.execution), self._stage)
        told = self.tale.update(event.node, event.iteration, item, given.partition("/")[0])
        changes = event.changes
        found = {
            "total": changes.add.get("total"),
            "visits": changes.merge.get("visits"),
            "trail": changes.append.get("trail"),
        }
        if found != {name: told[name] for name in found}:
            self.say(row.seq, f"{event.node} changed {found}, but should change {told}")
        if "stage" in told and not self._layered:
            if changes.set.get("stage") != told["stage"]:
                self.say(
                    row.seq, f"{event.node} set the stage {changes.set.get('stage')!r}, not {told['stage']!r}"
                )
            self._stage = told["stage"]

    def scheduled(self, row: Row, event: Any) -> None:
        """A caller asked to retry a visit: it need not wait any longer, its waits begin again, and it may run twice."""
        if event.why != "retry":
            return
        visit = (event.node, event.iteration, event.execution)
        self._retried.add(visit)
        self._not_before = {place: at for place, at in self._not_before.items() if place[:3] != visit}
        self._timers = {place: until for place, until in self._timers.items() if place[:3] != visit}
        self._waits = {place for place in self._waits if place[:3] != visit}
        key = ".".join(map(str, visit))
        self._asked = {
            asked for asked in self._asked if not asked.startswith((f"{key}:", f"{key}[", f"{key}."))
        }

    def renamed(self, row: Row, event: Any) -> None:
        """Nodes have other names from here on: what is known about their visits counts for the new names."""

        def moved(place: Any) -> Any:
            if isinstance(place, tuple):
                return (event.rename.get(place[0], place[0]), *place[1:])
            return event.rename.get(place, place)

        for part in ("_attempts", "_not_before", "_failures", "_visits", "_timers", "_failed_tries", "_open"):
            known = getattr(self, part)
            setattr(self, part, type(known)({moved(place): what for place, what in known.items()}))
        for part in ("_begun", "_waits", "_retried"):
            setattr(self, part, {moved(place) for place in getattr(self, part)})

    def skipped(self, row: Row, event: Any) -> None:
        visit = (event.node, event.iteration, event.execution, None)
        if visit in self.ends:
            self.say(row.seq, f"{name_visit(*visit)} is skipped, but its end is recorded")
        self.ends[visit] = row.seq
        self._visits[event.node] = event.iteration
        self._open.pop(event.node, None)
        self._stage = event.changes.set.get("stage", self._stage)
        self._total += event.changes.add.get("total", 0)

    def failed(self, row: Row, event: Any) -> None:
        visit = (event.node, event.iteration, event.execution, getattr(event, "item", None))
        self._failures[visit] += 1
        self._failed_tries = Counter(
            {step: tries for step, tries in self._failed_tries.items() if step[:4] != visit}
        )
        if event.retry_at is not None:
            self._not_before[visit] = event.retry_at
        if self.tale is None or (self.tale.sketch.items.get(event.node) is not None and visit[3] is None):
            return
        times = self._failures[visit]
        # A resume retries a node that failed for good, and does not reset the number of its failures.
        if (event.retry_at is None) != (times >= self._tries):
            self.say(
                row.seq,
                f"{name_visit(*visit)} failed {times} times and gets {self._tries} attempts, but retry_at is {event.retry_at}",
            )
        if event.retry_at is None and self.tale.habits.get(event.node) != "doomed":
            self.say(row.seq, f"{name_visit(*visit)} failed for good: {event.failure.message}")

    # --- inside a visit -------------------------------------------------------------------------------

    def kept_step(self, row: Row, event: Any) -> None:
        step = (event.node, event.iteration, event.execution, event.item, event.step)
        if step in self.steps:
            self.say(row.seq, f"the step {step[4]!r} of {name_visit(*step[:4])} is recorded a second time")
        self.steps[step] = row.seq
        self._begun.discard(step)
        streamed = self._streaming.get((event.node, event.iteration, event.execution, event.attempt), ())
        if self.tale is not None and event.step == SPEAK and SPEAK not in streamed:
            self.say(
                row.seq, f"the step {SPEAK!r} of {name_visit(*step[:4])} is recorded, but its chunks are not"
            )

    def began_step(self, row: Row, event: Any) -> None:
        step = (event.node, event.iteration, event.execution, event.item, event.step)
        if step in self.steps:
            self.say(
                row.seq, f"the step {step[4]!r} of {name_visit(*step[:4])} is called, but has an outcome"
            )
        self._begun.add(step)

    def failed_step(self, row: Row, event: Any) -> None:
        if event.retry_at is None:
            self.kept_step(row, event)
            return
        step = (event.node, event.iteration, event.execution, event.item, event.step)
        self._begun.discard(step)
        self._failed_tries[step] += 1
        if step in self.steps:
            self.say(
                row.seq, f"the step {step[4]!r} of {name_visit(*step[:4])} is called, but has an outcome"
            )
        if self.tale is not None and self._failed_tries[step] >= TRIES:
            tries = self._failed_tries[step]
            self.say(
                row.seq,
                f"the step {step[4]!r} of {name_visit(*step[:4])} gets a try after {tries} failed ones",
            )
        if event.retry_at > row.at:
            self._timers[(*step[:4], f"try:{step[4]}:{self._failed_tries[step] + 1}")] = event.retry_at

    def timer_set(self, row: Row, event: Any) -> None:
        timer = (event.node, event.iteration, event.execution, event.item, event.slot)
        if timer in self._timers:
            self.say(row.seq, f"the timer {timer[4]!r} of {name_visit(*timer[:4])} is set a second time")
        self._timers[timer] = event.until

    def child_awaited(self, row: Row, event: Any) -> None:
        if event.until is not None:  # after a failure the same wait may begin again
            self._timers[event.node, event.iteration, event.execution, event.item, event.slot] = event.until

    def timer_fired(self, row: Row, event: Any) -> None:
        timer = (event.node, event.iteration, event.execution, event.item, event.slot)
        until = self._timers.get(timer)
        if until is None or until < 0:
            self.say(row.seq, f"the timer {timer[4]!r} of {name_visit(*timer[:4])} fires, but is not set")
        elif row.at < until:
            self.say(
                row.seq,
                f"the timer {timer[4]!r} of {name_visit(*timer[:4])} fires {until - row.at:.3f} s early",
            )
        self._timers[timer] = -1.0

    def asked(self, row: Row, event: Any) -> None:
        if event.key in self._asked:
            self.say(row.seq, f"the question {event.key} is asked a second time")
        self._asked.add(event.key)

    def heard(self, row: Row, event: Any) -> None:
        if event.key in self.answered - self._half_answered or event.key not in self._asked:
            self.say(row.seq, f"the question {event.key} is answered twice, or was never asked")
        self.answered.add(event.key)
        self._half_answered.discard(event.key)
        if event.stated is not None:
            self._state_step(row, event)

    def _state_step(self, row: Row, event: Any) -> None:
        """Note that a step has happened, according to an answer: it must not be called from here on. The question stays open as
        long as other steps of the visit are in doubt.
        """
        visit, stated = (event.node, event.iteration, event.execution), event.stated
        step = (*visit, stated.item, stated.step)
        if step not in self._begun:
            self.say(
                row.seq, f"the step {stated.step!r} of {name_visit(*step[:4])} is stated, but is not in doubt"
            )
        if step in self.steps:
            self.say(
                row.seq, f"the step {stated.step!r} of {name_visit(*step[:4])} is stated, but has an outcome"
            )
        self.steps[step] = row.seq
        self._begun.discard(step)
        if any(begun[:3] == visit for begun in self._begun):
            self._half_answered.add(event.key)

    def signalled(self, row: Row, event: Any) -> None:
        signal = (event.name, repr(event.payload))
        self._signals[signal] += 1
        if self._signals[signal] > 1:
            self.say(
                row.seq,
                f"the signal {event.name} was sent once, but recorded {self._signals[signal]} times",
            )

    def awaited(self, row: Row, event: Any) -> None:
        wait = (event.node, event.iteration, event.execution, event.item, event.slot)
        if wait in self._waits and not self._rewound:
            # After a failure the same wait may begin again; nodes that wait for signals do not fail here.
            self.say(row.seq, f"the wait {wait[4]!r} of {name_visit(*wait[:4])} begins a second time")
        self._waits.add(wait)

    def withdrew(self, row: Row, event: Any) -> None:
        wait = (event.node, event.iteration, event.execution, event.item, event.slot)
        self._waits.discard(wait)
        self._timers.pop(wait, None)
        place = "" if event.item is None else f"[{event.item}]"
        self._asked.discard(f"{event.node}.{event.iteration}.{event.execution}{place}:{event.slot}")

    def put_aside(self, row: Row, event: Any) -> None:
        self._aside[event.name] += 1
        sent = sum(times for (name, _), times in self._signals.items() if name == event.name)
        fits = self.tale is not None and signal_manner(event.node) != "pickily"
        if fits or (self._aside[event.name] > sent and not self._rewound):
            self.say(row.seq, f"the signal {event.name} is set aside, but it fits, or was not sent so often")

    def streamed_(self, row: Row, event: Any) -> None:
        attempt = (event.node, event.iteration, event.execution, event.attempt)
        self.streamed.setdefault(attempt, []).extend(event.chunks)
        self._streaming.setdefault(attempt, set()).update(span.step for span in event.spans)

    @property
    def stage(self) -> str:
        return self._stage

    @property
    def rewound(self) -> bool:
        return self._rewound


_HANDLERS = {
    "RunCreated": Walk.created,
    "NodeScheduled": Walk.scheduled,
    "NodeStarted": Walk.started,
    "ItemStarted": Walk.started,
    "NodeCompleted": Walk.completed,
    "ItemCompleted": Walk.completed,
    "NodeSkipped": Walk.skipped,
    "NodeFailed": Walk.failed,
    "ItemFailed": Walk.failed,
    "FlowChanged": Walk.renamed,
    "StepCompleted": Walk.kept_step,
    "StepStarted": Walk.began_step,
    "StepFailed": Walk.failed_step,
    "TimerSet": Walk.timer_set,
    "TimerFired": Walk.timer_fired,
    "QuestionAsked": Walk.asked,
    "QuestionAnswered": Walk.heard,
    "SignalAwaited": Walk.awaited,
    "ChildAwaited": Walk.child_awaited,
    "SignalReceived": Walk.signalled,
    "SignalSetAside": Walk.put_aside,
    "WaitWithdrawn": Walk.withdrew,
    "NodeStreamed": Walk.streamed_,
}
assert _HANDLERS.keys() <= events.KINDS.keys()


def walk_log(disk: Store, run_id: str, rows: list[Row], tale: Tale | None, tries: int) -> Walk:
    """Read a log to its end, or to the first row that cannot be read, and collect what the checks compare."""
    walk = Walk(run_id, tale, tries)
    log: list[tuple[Row, Any]] = []
    for row in rows:
        try:
            log.append((row, open_row(row, disk.blobs).event))
        except HoldfastError as fault:
            walk.say(row.seq, f"the event cannot be read: {fault}")
            break
    walk.through(log)
    return walk


def check_bodies(walk: Walk, witness: BodyWitness, ledger: Ledger) -> list[str]:
    """Check that the calls of node functions, as the witness noted them, agree with the log."""
    wrong: list[str] = []
    entered: Counter[tuple[str, int, int, int, int | None]] = Counter()
    left: set[tuple[str, int, int, int | None]] = set()
    for entry in witness.entries:
        if entry.run_id != walk.run_id:
            continue
        attempt = (entry.node, entry.iteration, entry.execution, entry.attempt, entry.item)
        if entry.what == "enter":
            wrong += _check_call(walk, ledger, entry, attempt, entered)
        elif entry.what == "exit":
            left.add((entry.node, entry.iteration, entry.execution, entry.item))
        elif entry.what.startswith("kept "):
            wrong += _check_step_result(walk, ledger, entry)
        else:
            wrong += _check_step(walk, ledger, entry)
    for visit in walk.ends:
        wrong += _check_end(walk, visit, left)
    return wrong


def _check_call(
    walk: Walk,
    ledger: Ledger,
    entry: BodyCall,
    attempt: tuple[str, int, int, int, int | None],
    entered: Counter[tuple[str, int, int, int, int | None]],
) -> list[str]:
    starts = walk.starts.get(attempt, [])
    number = entered[attempt]
    entered[attempt] += 1
    if walk.loose and not walk.is_careful(entry.node):
        return _check_loose_call(walk, ledger, entry, starts)
    if number >= len(starts):
        named = name_visit(*entry.visit[1:], entry.attempt)
        return [f"{walk.run_id}: {named} was called {number + 1} times, but started {len(starts)} times"]
    if entry.turn < ledger.when[walk.run_id, starts[number]]:
        named = name_visit(*entry.visit[1:], entry.attempt)
        return [f"{walk.run_id}: {named} was called before its start was durable"]
    return _check_given_state(walk, entry)


def _check_loose_call(walk: Walk, ledger: Ledger, entry: BodyCall, starts: list[int]) -> list[str]:
    """Check a call of a node in a run whose durability is not `sync`. The call may be repeated until the end of the node is
    durable, but not after that.
    """
    end = walk.ends.get((entry.node, entry.iteration, entry.execution, entry.item))
    holds = entry.fence[0] == entry.process
    if end is not None and holds and ledger.when[walk.run_id, end] < entry.turn:
        return [f"{walk.run_id}: {name_visit(*entry.visit[1:])} was called after its end was durable"]
    if any(ledger.writers[walk.run_id, seq] == entry.process for seq in starts):
        return _check_given_state(walk, entry)
    return []


def _check_given_state(walk: Walk, entry: BodyCall) -> list[str]:
    """Check that a repeated visit was given the same state as at its first start."""
    tale = walk.tale
    if tale is None or entry.item is not None or tale.flow.definition.schedule == "layered":
        return []
    given = walk.given.get((entry.node, entry.iteration, entry.execution))
    if entry.seen == given:
        return []
    return [
        f"{walk.run_id}: {name_visit(*entry.visit[1:])} was given the state {entry.seen!r}, but should get {given!r}"
    ]


def _check_step(walk: Walk, ledger: Ledger, entry: BodyCall) -> list[str]:
    """Check that a recorded step is not done again. A process that has lost its lease may repeat the step, because it may not
    know that the step was recorded.
    """
    step = (entry.node, entry.iteration, entry.execution, entry.item, entry.what.removeprefix("step "))
    seq = walk.steps.get(step)
    holds = entry.fence[0] == entry.process
    if seq is not None and holds and ledger.when[walk.run_id, seq] < entry.turn:
        return [
            f"{walk.run_id}: the step {step[4]!r} of {name_visit(*step[:4])} was recorded, but done again"
        ]
    return []


def _check_step_result(walk: Walk, ledger: Ledger, entry: BodyCall) -> list[str]:
    """Check that a node continues after a step only when the step is durable."""
    if walk.loose and not walk.is_careful(entry.node):
        return []
    step = (entry.node, entry.iteration, entry.execution, entry.item, entry.what.removeprefix("kept "))
    seq = walk.steps.get(step)
    if seq is None or ledger.when[walk.run_id, seq] > entry.turn:
        named = name_visit(*entry.visit[1:])
        return [f"{walk.run_id}: {named} continued after the step {step[-1]!r} before the step was durable"]
    return []


def _check_end(
    walk: Walk,
    visit: tuple[str, int, int, int | None],
    left: set[tuple[str, int, int, int | None]],
) -> list[str]:
    """Check that a visit with a recorded end has recorded all its steps, and that its function has returned."""
    tale = walk.tale
    node, item = visit[0], visit[3]
    if tale is None or tale.habits.get(node) in ("question", "doomed"):
        return []
    if node in tale.sketch.items and item is None:
        count = sum(1 for end in walk.ends if end[:3] == visit[:3] and end[3] is not None)
        return (
            []
            if count == tale.sketch.items[node]
            else [f"{walk.run_id}: {name_visit(*visit)} ended with {count} items"]
        )
    wrong = []
    if visit not in left:
        wrong.append(f"{walk.run_id}: {name_visit(*visit)} ended, but its function has not returned")
    steps = STEPS.get(tale.habits.get(node, "plain"), ())
    wrong += [
        f"{walk.run_id}: {name_visit(*visit)} ended, but its step {step!r} is not recorded"
        for step in steps
        if (*visit, step) not in walk.steps
    ]
    return wrong


def check_routes(walk: Walk, witness: BodyWitness, ledger: Ledger) -> list[str]:
    """Check that the branch of a visit is not called again after its choice is recorded, together with the end of the visit. (A
    visit that a rewind repeats is another execution, even if the process died before the rewind was durable.)
    """
    if walk.tale is None or walk.tale.flow.definition.schedule == "layered" or walk.rewound:
        return []
    executed = {visit[:3] for visit in walk.ends}
    lost = {
        (seen.node, seen.iteration)
        for seen in (witness.entries if walk.loose else ())
        if seen.run_id == walk.run_id and (seen.node, seen.iteration, seen.execution) not in executed
    }
    ends = {
        visit[:2]: ledger.when[walk.run_id, seq]
        for visit, seq in walk.ends.items()
        if visit[3] is None and visit[:2] not in lost
    }
    return [
        f"{walk.run_id}: the branch of {node}.{iteration} was called again after its choice was recorded"
        for turn, flow, node, iteration, held in witness.routed
        if flow == walk.tale.flow.name
        # A branch gets only the state, so it is not known which of a run and its forks it was called for.
        and [one for one in held if root_of(one) == root_of(walk.run_id)] == [walk.run_id]
        and (node, iteration) in ends
        and turn > ends[node, iteration]
    ]


def check_streams(walk: Walk, witness: BodyWitness) -> list[str]:
    """Check that the log has every chunk that a completed attempt streamed, in order."""
    wrong: list[str] = []
    for (run_id, node, iteration, execution, attempt), said in witness.chunks.items():
        if run_id != walk.run_id or (node, iteration, execution, None) not in walk.ends:
            continue
        last = max(key[3] for key in walk.starts if key[:3] == (node, iteration, execution))
        found = walk.streamed.get((node, iteration, execution, attempt), [])
        if attempt == last and found not in said.values():
            wrong.append(f"{run_id}: {node}.{iteration} streamed {said}, but the log has {found}")
    return wrong


def check_result(
    row: RunRow, walk: Walk, values: dict[str, Any], *, cancelled: bool, fork: bool = False
) -> list[str]:
    """Check that the run is over, and that its final state is the expected one."""
    tale, run_id = walk.tale, walk.run_id
    if row.status == "cancelled" and cancelled:
        return []
    if row.status != "completed":
        return [f"{run_id}: the run is {row.status} at the end, but should be completed"]
    if tale is None:
        return []
    found = {**{name: values.get(name) for name in tale.expected}, "trail": sorted(values.get("trail", ()))}
    wrong = []
    if found != tale.expected:
        differing = {name: (found[name], told) for name, told in tale.expected.items() if found[name] != told}
        wrong.append(f"{run_id}: the final state differs: {differing} (found, expected)")
    if tale.flow.definition.schedule == "eager" and not fork and values.get("stage") != walk.stage:
        wrong.append(f"{run_id}: the final stage is {values.get('stage')!r}, but should be {walk.stage!r}")
    return wrong


def check_confirmed(walk: Walk, made: Sequence[Made]) -> list[str]:
    """Check that a rewind repeats a visit of a node that must not run twice only if a caller has confirmed that."""
    forced = {one.tag for one in made if one.force}
    confirmed: dict[str, int] = {}
    """Node -> the seq of the latest rewind that its repetition was confirmed for."""
    started: dict[tuple[str, int], tuple[int, int]] = {}
    """(node, iteration) -> the execution that was started last, and the seq of the start."""
    wrong = []
    for row, event in walk.log:
        if row.kind == "RunRewound":
            every = walk.tale.habits if walk.tale is not None and event.reason in forced else ()
            confirmed.update(dict.fromkeys([*event.confirmed, *every], row.seq))
        if row.kind not in ("NodeStarted", "ItemStarted") or not walk.is_careful(event.node):
            continue
        execution, seq = started.get((event.node, event.iteration), (event.execution, 0))
        if execution != event.execution and confirmed.get(event.node, 0) < seq:
            wrong.append(
                f"{walk.run_id}@{row.seq}: {event.node} runs again, but no caller has confirmed that"
            )
        if row.kind == "NodeStarted":
            started[event.node, event.iteration] = event.execution, row.seq
    return wrong


def check_answers(row: RunRow, walk: Walk, acknowledged: Iterable[str]) -> list[str]:
    """Check that every acknowledged answer is in the log, whatever the durability."""
    if row.status != "completed" or walk.rewound:
        return []
    return [
        f"{walk.run_id}: the answer to {key} was acknowledged, but is not in the log"
        for key in sorted(set(acknowledged) - walk.answered)
    ]
