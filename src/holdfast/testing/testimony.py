"""Compare the lines of a witness file with the content of a store, for the invariants that a log alone cannot show. (A witness
file lists what nodes, callers and readers saw, independently of the store.)

The lines are about: calls of node functions (invariant I5 in docs/testing.md), appends that were acknowledged, and to which
engine (I3, I4, I10), effects and receipts (I8), signals sent to a run (I9), events seen by readers (I11), the deaths of engines
(L2), requests that workers served (L4), and the trace that a seed gave (D1). `witness` writes the lines and `checker` reads the
log; nothing here reads a store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.testing.checked import RunFacts
from holdfast.testing.replay import Replay
from holdfast.testing.standings import NODE, name_visit
from holdfast.testing.witness import Line

Seen: TypeAlias = dict[str, list[Line]]
Say: TypeAlias = Callable[..., None]
SayOf: TypeAlias = Callable[[str, str | None, int | None, str], None]

_LAST_SERVED = 5


class Notes:
    """Facts about events that are collected while a log is read, to be compared with lines of the witness file."""

    def __init__(self, seen: Seen) -> None:
        self._seqs = {line["seq"] for what in ("ack", "read") for line in seen.get(what, ())}
        self._ids = {line["id"] for line in seen.get("ack", ())}
        self._signals = bool(seen.get("told"))
        self.marks = bool(self._seqs or self._signals)
        """True if the witness file has lines for which facts must be collected."""
        self.salts: dict[int, str] = {}
        self.digests: dict[int, str] = {}
        self.places: dict[str, list[int]] = {}
        """Id of an acknowledged append -> the seqs of its first event; more than one if it was written twice."""
        self.signals: Counter[tuple[str, str]] = Counter()

    def mark(self, seq: int, kind: str, salt: bytes, digest: bytes, body: Line) -> None:
        """Collect the facts of one event that are compared with lines of the witness file."""
        if seq in self._seqs:
            self.salts[seq], self.digests[seq] = salt.hex(), digest.hex()
        if self._ids and (name := salt.hex()) in self._ids:
            self.places.setdefault(name, []).append(seq)
        if self._signals and kind == "SignalReceived":
            self.signals[body.get("name", ""), _canonical(body.get("payload"))] += 1


def check_run(
    seen: Seen,
    notes: Notes,
    run: RunFacts,
    replay: Replay,
    say: Say,
    killed: list[Line],
    takeover_s: float | None,
) -> None:
    """Compare all lines of the witness file about one run with the log of the run."""
    if not seen:
        return
    _check_bodies(seen, replay, say)
    _check_acks(seen.get("ack", []), notes, run, say)
    _check_reads(seen.get("read", []), notes, say)
    _check_effects(seen.get("effect", []), replay, say)
    _check_signals(seen.get("told", []), notes, run, say)
    if takeover_s is not None:
        _check_takeovers(seen.get("ack", []), killed, replay, takeover_s, say)


def check_missing_run(run_id: str, seen: Seen, say: SayOf) -> None:
    """Report a run that the witness file mentions, but the store does not have."""
    if any(line.get("known", True) for line in seen.get("ack", ())):
        say("I4", run_id, None, "an append was acknowledged, but the store does not have the run")
    if seen.get("enter"):
        say("I5", run_id, None, f"node {seen['enter'][0]['node']!r} ran, but the store does not have the run")


def check_others(
    others: Seen, runs: dict[str, Seen], lineages: dict[str, str], say: SayOf, *, at_end: bool
) -> None:
    """Check the lines of the witness file that belong to no run. `lineages`: fork -> the run whose keys it shares."""
    _check_receipts(others, runs, lineages, say)
    served: dict[str, list[bool]] = {}
    for line in others.get("served", ()):
        served.setdefault(line["worker"], []).append(line["ok"])
    for worker, answers in served.items():
        failed = answers[-_LAST_SERVED:].count(False)
        if at_end and failed:
            say("L4", None, None, f"{failed} of the last {_LAST_SERVED} requests to worker {worker!r} failed")
    traces: dict[Any, str] = {}
    for line in others.get("trace", ()):
        first = traces.setdefault(line["seed"], line["digest"])
        if first != line["digest"]:
            text = f"seed {line['seed']} gave the trace {first[:12]} and then {line['digest'][:12]}"
            say("D1", None, None, text)


# --- nodes -------------------------------------------------------------------------------------------


def _check_bodies(seen: Seen, replay: Replay, say: Say) -> None:
    """Check that the function of a node is called only after its start is durable, and never after its completion is durable
    (invariant I5 in docs/testing.md).
    """
    entered: Counter[tuple[Any, ...]] = Counter()
    for line in seen.get("enter", ()):
        node, iteration, execution, attempt = (
            line[name] for name in ("node", "iteration", "execution", "attempt")
        )
        item = line.get("item")
        entered[node, iteration, execution, attempt, item] += 1
        done = replay.done.get((node, iteration, execution, NODE if item is None else item))
        if done is not None and attempt > done:
            say("I5", f"{_visit(line)} ran, although attempt {done} of it was recorded as completed", None)
    if replay.base:
        return
    shape = replay.rules.shape
    for (node, iteration, execution, attempt, item), times in entered.items():
        judged = shape is not None and bool(shape.judged.get(node)) and not replay.was_renamed
        if replay.durability != "sync" and not judged:
            continue
        where = (node, iteration, execution, attempt)
        starts = replay.starts.get(where, 0) if item is None else replay.item_starts.get((*where, item), 0)
        if times > starts:
            ran = name_visit(node, iteration, execution, item, attempt)
            say("I5", f"{ran} ran {times} times, but the log has {starts} starts of it", None)


def _check_effects(effects: list[Line], replay: Replay, say: Say) -> None:
    """Check that all attempts of a visit use the same idempotency keys, unless an operator asked to repeat the visit from
    scratch (invariant I8 in docs/testing.md).
    """
    keys: dict[tuple[Any, ...], str] = {}
    for line in effects:
        visit = (line["node"], line["iteration"], line.get("item"), line.get("name", ""))
        first = keys.setdefault(visit, line["key"])
        if first != line["key"] and not replay.asked_fresh:
            say(
                "I8",
                f"{_visit(line)} used the key {line['key']!r}, but an earlier attempt used {first!r}",
                None,
            )


def _check_receipts(others: Seen, runs: dict[str, Seen], lineages: dict[str, str], say: SayOf) -> None:
    """Check that a receiver acts once on each idempotency key, and that each key belongs to one visit (invariant I8 in
    docs/testing.md), which a run and its forks share.
    """
    owners: dict[str, tuple[Any, ...]] = {}
    for run_id, seen in runs.items():
        for line in seen.get("effect", ()):
            mine = (
                lineages.get(run_id, run_id),
                line["node"],
                line["iteration"],
                line.get("item"),
                line.get("name", ""),
            )
            first = owners.setdefault(line["key"], mine)
            if first != mine:
                text = f"the key {line['key']!r} of {_visit(line)} is also the key of {first[1]!r} in run {first[0]!r}"
                say("I8", run_id, None, text)
    counted = Counter(line["key"] for line in others.get("receipt", ()))
    for key, times in counted.items():
        owner = owners.get(key)
        if times > 1:
            say(
                "I8",
                owner[0] if owner else None,
                None,
                f"a receiver acted {times} times on the key {key!r}",
            )
        if owners and owner is None:
            say("I8", None, None, f"a receiver acted on the key {key!r}, which no node used")


# --- writers, callers and readers ---------------------------------------------------------------------


def _check_acks(acks: list[Line], notes: Notes, run: RunFacts, say: Say) -> None:
    """Check that acknowledged appends are stored, that fences only grow, and that each fence belongs to one engine (invariants
    I4, I3 and I10 in docs/testing.md).
    """
    owners: dict[int, str | None] = {}
    highest = 0
    for line in sorted(acks, key=lambda line: line["seq"]):
        seq, found = line["seq"], notes.places.get(line["id"], [])
        if line.get("known", True) and notes.salts.get(seq) != line["id"]:
            say("I4", "the append that begins here was acknowledged, but the log does not have it", seq)
            continue
        if len(found) > 1:
            say("I4", f"the log has the same append {len(found)} times, at events {found}", found[-1])
        if seq not in found:
            continue
        fence, holder = line["fence"], line["holder"]
        if fence < highest:
            say(
                "I3",
                f"the append that begins here has fence {fence}, after an append with fence {highest}",
                seq,
            )
        highest = max(highest, fence)
        if fence and owners.setdefault(fence, holder) != holder:
            say("I10", f"fence {fence} was used by engine {owners[fence]!r} and by engine {holder!r}", seq)
    if highest > run.fence:
        say("I3", f"the run row has fence {run.fence}, but an append used fence {highest}", None)


def _check_reads(reads: list[Line], notes: Notes, say: Say) -> None:
    """Check that an event that a reader has seen does not change or disappear, and that no reader sees fewer events than before
    (invariant I11 in docs/testing.md).
    """
    seen: dict[tuple[Any, str], int] = {}
    for line in reads:
        seq, reader = line["seq"], (line.get("pid"), line.get("reader", ""))
        if seq < seen.get(reader, 0):
            say(
                "I11",
                f"a reader saw the log up to event {seen[reader]}, but later only up to event {seq}",
                seq,
            )
        seen[reader] = max(seq, seen.get(reader, 0))
        if notes.digests.get(seq) != line["digest"]:
            say("I11", "a reader saw a different event here than the one that is now in the log", seq)


def _check_signals(told: list[Line], notes: Notes, run: RunFacts, say: Say) -> None:
    """Check that a signal that was acknowledged is recorded once (invariant I9 in docs/testing.md)."""
    for signal, payload in {(line["signal"], _canonical(line.get("payload"))) for line in told}:
        times = notes.signals[signal, payload]
        if times > 1:
            say("I9", f"the signal {signal!r} with {payload} was sent once, but recorded {times} times", None)
        elif not times and run.status not in ("completed", "cancelled"):
            say(
                "I9",
                f"the signal {signal!r} with {payload} was acknowledged, but the log does not have it",
                None,
            )


def _check_takeovers(
    acks: list[Line], killed: list[Line], replay: Replay, takeover_s: float, say: Say
) -> None:
    """Check that another engine claims a run at most `takeover_s` seconds after the engine that held it died (invariant L2 in
    docs/testing.md).
    """
    died = {line["holder"]: line["at"] for line in killed}
    for seq, at, status in replay.take_ups:
        before = [line for line in acks if line["seq"] < seq]
        last = max(before, key=lambda line: line["seq"], default=None)
        if last is None or status not in ("pending", "running") or last["holder"] not in died:
            continue
        late = at - died[last["holder"]] - takeover_s
        if late > 0:
            say("L2", f"the run was taken over {late:g} s later than the {takeover_s:g} s allowed", seq)


def _visit(line: Line) -> str:
    return name_visit(line["node"], line["iteration"], line["execution"], line.get("item"), line["attempt"])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
