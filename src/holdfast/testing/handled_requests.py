"""Check, for the checker, that every request to a run ends in one way: it is carried out, refused, or its run ends first. Until
then it waits in the inbox; it is never gone. And no request undoes a later pause (invariant I9 in docs/testing.md).

The inbox says at which event a request was handled, but not what it asked for: its body is dropped then. So the log must have an
event that shows each request which was carried out, and one event shows one request. Nothing here reads a store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from holdfast.testing.checked import RunFacts, StoredRequest
from holdfast.testing.replay import FINAL
from holdfast.testing.standings import Body

Say: TypeAlias = Callable[[str, str | None, int | None, str], None]

_SHOWN_BY: Mapping[str, tuple[str, ...]] = {
    "pause": ("RunPaused",),
    "cancel": ("RunCancelled",),
    "answer": ("QuestionAnswered",),
    "signal": ("SignalReceived",),
    "retry": ("NodeScheduled",),
    "skip": ("NodeSkipped",),
    "edit": ("StateEdited",),
    "resume": ("RunResumed", "RunRewound"),
    "child-ended": ("ChildEnded",),
}
"""Verb of a request -> the kinds of events of which one shows that the request was carried out."""
_CONTINUE = frozenset({"resume", "retry", "skip"})
"""Verbs that let a paused run continue."""
_SHARED = frozenset({"cancel"})
"""Verbs of which one event shows all requests: a run is cancelled once, for all callers that asked for it."""


class Refusals:
    """What the log of one run shows of its requests. Call `note` with each event whose kind is in `KINDS`."""

    KINDS = frozenset({"RequestRefused", *(kind for kinds in _SHOWN_BY.values() for kind in kinds)})

    def __init__(self) -> None:
        self.refused: dict[str, list[tuple[int, str]]] = {}
        """Id of a request -> the seq and the verb of each event that refuses it."""
        self._seqs: dict[str, list[int]] = {}
        """Kind of event -> the seqs of all events of that kind."""

    def note(self, seq: int, kind: str, body: Body) -> None:
        if kind != "RequestRefused":
            self._seqs.setdefault(kind, []).append(seq)
        elif body.get("request"):  # a caller that asked the engine itself left nothing in the inbox
            self.refused.setdefault(body["request"], []).append((seq, body.get("verb", "")))

    def count(self, verb: str, upto: int) -> int:
        """Return how many events up to this seq may show requests with this verb."""
        return sum(bisect_right(self._seqs.get(kind, []), upto) for kind in _SHOWN_BY.get(verb, ()))


def check_requests(
    run: RunFacts, inbox: Sequence[StoredRequest], log: Refusals, say: Say, *, is_compacted: bool
) -> None:
    """Check all requests of one run. A log that was compacted does not show all requests any more."""
    for asked in inbox:
        _check_ending(run, asked, log.refused.get(asked.id, []), say)
    if not is_compacted:
        _check_carried_out(run, inbox, log, say)
    _check_order(run, inbox, log, say)
    there = {asked.id for asked in inbox}
    if not there and run.status in FINAL:
        return  # the inbox does not come back with a run that was put back from an archive
    for request, told in log.refused.items():
        if request not in there:
            text = f"the request {request!r} is refused, but the inbox does not have it"
            say("I9", run.run_id, told[0][0], text)


def _check_ending(run: RunFacts, asked: StoredRequest, refused: list[tuple[int, str]], say: Say) -> None:
    """Check that a request is handled once: not both refused and left waiting, or both refused and unmet."""
    named = f"the request {asked.id!r} ({asked.verb})"

    def wrong(text: str, seq: int | None = None) -> None:
        say("I9", run.run_id, seq if seq is not None else asked.taken or None, f"{named} {text}")

    if asked.unmet and run.status not in FINAL:
        wrong(f"is marked as unmet, as at the end of its run, but the run is {run.status}")
    elif asked.unmet and asked.taken != run.seq:
        wrong(f"is marked as unmet at event {asked.taken}, but the run ended at event {run.seq}")
    elif not asked.taken and run.status in FINAL:
        wrong(f"still waits, but the run is {run.status}: nothing can come of it any more")
    if len(refused) > 1:
        wrong(f"is refused {len(refused)} times", refused[-1][0])
    for seq, verb in refused:
        if verb != asked.verb:
            wrong(f"is refused as a request with the verb {verb!r}", seq)
        if asked.unmet:
            wrong("is refused, and marked as unmet too", seq)
        elif not asked.taken:
            wrong("is refused, but still waits in the inbox", seq)
        elif asked.taken < seq:
            wrong(f"is refused after event {asked.taken}, at which it had been handled", seq)


def _check_order(run: RunFacts, inbox: Sequence[StoredRequest], log: Refusals, say: Say) -> None:
    """Check that no request which lets the run continue was carried out after a pause that was asked for later. The inbox has its
    requests in the order in which they were made.
    """
    first_pause: StoredRequest | None = None
    for asked in reversed(inbox):
        if not asked.taken or asked.unmet or asked.id in log.refused or not asked.is_complete:
            continue
        if asked.verb == "pause" and (first_pause is None or asked.taken < first_pause.taken):
            first_pause = asked
        elif asked.verb in _CONTINUE and first_pause is not None and first_pause.taken < asked.taken:
            text = f"the request {asked.id!r} ({asked.verb}) was carried out after the later pause {first_pause.id!r}"
            say("I9", run.run_id, asked.taken, text)


def _check_carried_out(run: RunFacts, inbox: Sequence[StoredRequest], log: Refusals, say: Say) -> None:
    """Check that the log has an event for every request that was handled and not refused, each event for one request."""
    done: dict[str, list[StoredRequest]] = {}
    for asked in inbox:
        if asked.taken and not asked.unmet and asked.id not in log.refused and asked.is_complete:
            done.setdefault(asked.verb, []).append(asked)
    for verb, requests in done.items():
        for number, asked in enumerate(sorted(requests, key=lambda one: one.taken), 1):
            if log.count(verb, asked.taken) < (1 if verb in _SHARED else number):
                text = f"the request {asked.id!r} ({verb}) is marked as handled, but no event shows it"
                say("I9", run.run_id, asked.taken, text)
