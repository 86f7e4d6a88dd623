"""The part of the second reading that concerns the steps of nodes (`replay`), by rules of its own: a step has one outcome, and is
not called after it.

This module shares no code with the engine. Invariant: what a rewind undoes is in the `RewindableState`; what the log has said,
whatever became of it, is here.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from holdfast.testing.standings import Body, RewindableState, level_of, name_visit

Where: TypeAlias = tuple[str, int, int, int]


class Replayed(Protocol):
    """The part of a `Replay` that is used here."""

    now: RewindableState

    def report(self, invariant: str, text: str) -> None: ...

    def keep(self, name: str, item: int, slot: str) -> None:
        """Note that a visit has a result in this slot."""


class StepReplay:
    """The steps that have an outcome, according to the log."""

    def __init__(self, replay: Replayed) -> None:
        self._replay = replay
        self._ended: set[tuple[str, int, int, int, str]] = set()

    def complete(self, where: Where, body: Body, at: float) -> None:
        self._end(where, body)
        self._replay.keep(where[0], level_of(body), f"step:{body.get('step', '')}")

    def state(self, where: Where, body: Body, by: str | None, reason: str | None) -> None:
        """Note that a step has happened, according to an answer. Only a step that was about to be called can have happened."""
        step = body.get("step", "")
        if f"begun:{step}" not in self._replay.now.visit(where[0]).kept.get(level_of(body), ()):
            named = name_visit(*where[:3], level_of(body), where[3])
            self._replay.report(
                "I5", f"the step {step!r} of {named} has happened, says an answer, but was not called"
            )
        if not by or not reason:
            self._replay.report(
                "I5", f"the log does not say who states that the step {step!r} has happened, or why"
            )
        self.complete(where, body, 0.0)

    def start(self, where: Where, body: Body, at: float) -> None:
        self._require_no_outcome(where, body, "is called although its outcome is in the log")
        self._replay.now.end_try(where[0], body.get("item"), body.get("step", ""))
        self._replay.keep(where[0], level_of(body), f"begun:{body.get('step', '')}")

    def fail(self, where: Where, body: Body, at: float) -> None:
        now, name, step, retry_at = self._replay.now, where[0], body.get("step", ""), body.get("retry_at")
        if retry_at is None:
            self._end(where, body)
            self._replay.keep(name, level_of(body), f"raised:{step}")
            return
        self._require_no_outcome(where, body, "is called although its outcome is in the log")
        now.end_try(name, body.get("item"), step)
        now.visit(name).kept.setdefault(level_of(body), set()).discard(f"begun:{step}")
        slot = now.next_try(name, body.get("item"), step)
        if retry_at <= at:
            self._replay.keep(name, level_of(body), slot)
        else:
            now.waits[name, body.get("item"), slot] = {"until": retry_at}

    def _end(self, where: Where, body: Body) -> None:
        """Note that a step has an outcome: its result, or an exception."""
        self._require_no_outcome(where, body, "is recorded a second time")
        self._ended.add((*where[:3], level_of(body), body.get("step", "")))
        self._replay.now.end_try(where[0], body.get("item"), body.get("step", ""))

    def _require_no_outcome(self, where: Where, body: Body, told: str) -> None:
        """Report a call of a step whose outcome is in the log."""
        item, step = level_of(body), body.get("step", "")
        if (*where[:3], item, step) in self._ended:
            named = name_visit(*where[:3], item, where[3])
            self._replay.report("I5", f"the step {step!r} of {named} {told}")
