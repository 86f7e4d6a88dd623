"""The part of the second reading that concerns child runs (`replay`), by rules of its own: which children a visit has started,
which of their ends the log has, and what a run was told to leave behind when it was cancelled.

This module shares no code with the engine. Invariant: what a rewind undoes is in the `RewindableState`; what the log has said,
whatever became of it, is here.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeAlias

from holdfast.testing.standings import NODE, Body, ChildRecord, RewindableState, level_of, name_visit

Where: TypeAlias = tuple[str, int, int, int]


class Replayed(Protocol):
    """The part of a `Replay` that is used here."""

    now: RewindableState
    seq: int

    def report(self, invariant: str, text: str) -> None: ...

    def resolve(self, name: str, item: int | None, slot: str) -> None:
        """Fill the slot of a wait, and make the attempt due that waited for it."""


class Started(NamedTuple):
    """A `ChildStarted` of a log."""

    seq: int
    at: float
    run: str
    adopted: bool
    place: tuple[str, int, int | None, str]
    """The first name of the node, iteration, item and key."""


class Ended(NamedTuple):
    """A `ChildEnded` of a log: `end` is the seq of the child's own end."""

    seq: int
    run: str
    end: int
    status: str
    values: bytes | None
    """The digest of the result of a child that completed."""
    state_version: int | None
    """The version of that result; None if the log does not say it, as those of older versions."""


class ChildReplay:
    """The children of a run according to its log."""

    def __init__(self, replay: Replayed) -> None:
        self._replay = replay
        self.started: list[Started] = []
        self.ended: list[Ended] = []
        self.abandoned: list[str] = []
        """The children that end with this run and had not ended when it was cancelled."""
        self.own_ends: dict[int, str] = {}
        """Seq -> the status with which this run ended there."""
        self._known: set[tuple[str, int]] = set()
        """Child and seq of each end that is recorded, since the child was last started or adopted."""

    def start(self, where: Where, body: Body, at: float) -> None:
        now, run = self._replay.now, body.get("run", "")
        name, iteration, execution, _ = where
        known = now.children.get(run)
        if known is not None and (known.node, known.iteration, known.execution) == (
            name,
            iteration,
            execution,
        ):
            self._say(f"{name_visit(*where[:3])} starts the child {run!r} a second time")
        now.children[run] = ChildRecord(
            name, iteration, execution, body.get("item"), body.get("cancels", False)
        )
        adopted = body.get("adopted", False)
        if adopted:
            self._known = {end for end in self._known if end[0] != run}
        place = (now.first_name(name), iteration, body.get("item"), body.get("slot", ""))
        self.started.append(Started(self._replay.seq, at, run, adopted, place))

    def wait(self, where: Where, body: Body, at: float) -> None:
        now, name, run, slot = self._replay.now, where[0], body.get("run", ""), body.get("slot", "")
        child, level = now.children.get(run), level_of(body)
        now.visit(name).withdrawn.discard((level, slot))
        if child is None:
            self._say(f"{name_visit(*where[:3])} waits for {run!r}, which is not its child")
            return
        if body.get("anew"):
            child.has_end = False
        if not child.has_end:
            now.waits[name, body.get("item"), slot] = {"until": body.get("until"), "child": run}
            return
        now.visit(name).kept.setdefault(level, set()).add(slot)
        child.take(level, slot)

    def end(self, where: Where, body: Body, at: float) -> None:
        now, run, seq, status = (
            self._replay.now,
            body.get("run", ""),
            body.get("seq", 0),
            body.get("status", ""),
        )
        if (run, seq) in self._known:
            self._say(f"the end of the child {run!r} at its event {seq} is recorded a second time")
        self._known.add((run, seq))
        values = self.digest_of(body.get("values") or {}) if status == "completed" else None
        version = body.get("state_version")
        self.ended.append(Ended(self._replay.seq, run, seq, status, values, version))
        child = now.children.get(run)
        if child is None or seq < child.ended:  # reports may arrive in another order
            return
        child.ended, child.is_final, child.has_end = seq, status != "failed", True
        for place in [place for place, wait in now.waits.items() if wait.get("child") == run]:
            del now.waits[place]
            child.take(NODE if place[1] is None else place[1], place[2])
            self._replay.resolve(*place)
        if child.is_final and not now.is_open(child):
            del now.children[run]

    def end_run(self, status: str) -> None:
        """Note that the run itself has ended."""
        self.own_ends[self._replay.seq] = status
        if status == "cancelled":
            children = self._replay.now.children.items()
            self.abandoned = [run for run, child in children if child.cancels and not child.is_final]

    @staticmethod
    def digest_of(values: Body) -> bytes:
        """Return a digest of a final state."""
        return sha256(json.dumps(values, sort_keys=True).encode()).digest()

    def _say(self, text: str) -> None:
        self._replay.report("I16", text)
