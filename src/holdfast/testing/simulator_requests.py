"""The requests of simulated callers: all verbs, with and without ids, some of them senseless, at any time of a run.

`Requester` makes the requests of one caller and notes the replies. Every request has a reason of its own, its tag, which the
events that carry it out contain: so it can be seen in the log, without the code of the engine, what became of it. The checks at
the end are in `simulator_oracle`. Invariant: no request changes the result of the run, and every choice is drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.core.run_state import FINAL
from holdfast.errors import HoldfastError, RequestExists
from holdfast.reading import inbox
from holdfast.reading.previews import Preview
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Request, Row, Store
from holdfast.testing.simulator_faults import Ledger
from holdfast.testing.simulator_flows import Tale

REQUESTS_MAX = 5
NOWHERE = "nowhere"
"""The name of a node that no flow has."""
_PATIENCE_S = 4.5
"""A caller waits at least this many seconds for its request to be handled."""

Deed: TypeAlias = Callable[[Engine], Awaitable[Any]]
Log: TypeAlias = Sequence[tuple[Row, Any]]


class Ask(Protocol):
    """Calls a random engine, and waits a while for its reply, unless `waits` is false."""

    def __call__(self, deed: Deed, /, *, waits: bool = True) -> Awaitable[object]: ...


class Reply(NamedTuple):
    """What a caller got for a request."""

    turn: int
    """When the reply came (`Ledger.tick`)."""
    seconds: float
    error: str
    """The name of the exception, or an empty string if the call returned."""


class Made(msgspec.Struct):
    """A request that a caller has made, and the replies to it."""

    tag: str
    verb: str
    deed: Deed
    id: str | None = None
    confirm: tuple[str, ...] = ()
    """Nodes that the caller has confirmed may run again."""
    force: bool = False
    waits: bool = True
    """True if the caller waits until the request is handled."""
    began: int = 0
    """When the caller first made the request (`Ledger.tick`)."""
    replies: list[Reply] = []
    seen: list[Preview] = []
    """The preview that the caller acts on, if it has looked at one first."""


class _Posted(NamedTuple):
    """The reply to a request that was only put into the inbox."""

    repeated: bool


class Requested(Protocol):
    """The part of a schedule that a `Requester` uses."""

    seed: int
    disk: Store
    ledger: Ledger

    def now(self) -> float: ...


class Requester:
    """Makes the requests of one simulated caller."""

    def __init__(self, scene: Requested, run_id: str, tale: Tale | None, ask: Ask, *, rewinds: bool) -> None:
        self._scene = scene
        self._run_id = run_id
        self._tale = tale
        self._ask = ask
        self._luck = random.Random(f"requests {scene.seed} {run_id}")
        self._looks = random.Random(f"previews {scene.seed} {run_id}")
        self._hurry = random.Random(f"hurry {scene.seed} {run_id}")
        self.left = self._luck.randrange(REQUESTS_MAX + 1) if tale is not None else 0
        self._rewinds = rewinds
        self._is_patient = True
        self.made: list[Made] = []
        self.wrong: list[str] = []

    async def ask_something(self) -> None:
        """Make a request that is drawn from all verbs, and sometimes one or two more at once, while the first may still wait."""
        self.left -= 1
        await self._ask_one()
        drawn = self._hurry.random()
        if drawn < 0.15:
            await self._flurry()
        elif drawn < 0.4:
            await self._hurry.choice((self._retry, self._pause, self._edit))()
            await self._resume_here()
        for _ in range(self._hurry.choice((0, 0, 0, 0, 1, 1, 2))):
            await self._hurry.choice(
                (self._pause, self._pause, self._resume, self._resume_here, self._edit)
            )()

    async def _flurry(self) -> None:
        """Pause, resume and pause, without waiting for a reply: the last request that is made counts."""
        self._is_patient = False
        for ask in (self._pause, self._resume, self._pause):
            await ask()
        self._is_patient = True

    async def _ask_one(self) -> None:
        await self._luck.choice(
            (
                self._pause, self._edit, self._edit, self._edit_by_function, self._resume, self._resume, self._rewind,
                self._rewind, self._retry, self._retry, self._skip_nothing, self._again, self._again, self._differently,
                self._resume_with_many,
            )
        )()  # fmt: skip

    async def ask_in_vain(self) -> None:
        """Ask a run that is over for something: the request must be refused."""
        await self._luck.choice((self._pause, self._edit, self._retry, self._skip_nothing))()

    async def resume(self) -> None:
        """Ask to resume the run, in a worker."""
        await self._resume()

    async def skip(self, node: str, update: Any) -> None:
        """Ask to skip a node, in a worker."""
        await self._make("skip", lambda engine, said: engine.skip(self._run_id, node, update, **said))

    # --- the verbs ------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        await self._make(
            "pause", lambda engine, said: engine.pause(self._run_id, **_waiting(said)), waits=True
        )

    async def cancel(self) -> None:
        await self._make(
            "cancel", lambda engine, said: engine.cancel(self._run_id, **_waiting(said)), waits=True
        )

    async def _edit(self) -> None:
        def edit(engine: Engine, said: dict[str, Any]) -> Awaitable[Any]:
            return engine.edit(self._run_id, {"note": said["reason"]}, **_waiting(said))

        await self._make("edit", edit, waits=True)

    async def _edit_by_function(self) -> None:
        """Edit the state by a function, which is refused if the run moves meanwhile."""

        def edit(engine: Engine, said: dict[str, Any]) -> Awaitable[Any]:
            given = {"reason": said["reason"]}
            return engine.edit(
                self._run_id, lambda state: {"note": f"{state.note} {said['reason']}"}, **given
            )

        await self._make("edit", edit, named=False, waits=True)

    async def _resume(self) -> None:
        options: dict[str, Any] = {}
        if self._luck.random() < 0.3:
            options["edit"] = {"note": "by resume"}
        await self._make(
            "resume", lambda engine, said: engine.resume(self._run_id, **options, **said), options=options
        )

    async def _resume_here(self) -> None:
        """Resume the run in the engine that is asked, and do not wait until the run stops."""

        async def resume(engine: Engine, said: dict[str, Any]) -> Any:
            return await engine.resume(self._run_id, reason=said["reason"])

        await self._make("resume", resume, named=False)

    async def _resume_with_many(self) -> None:
        """Ask to resume the run as a command does that asks many runs at once, which uses the store and no engine."""

        async def post(engine: Engine, said: dict[str, Any]) -> Any:
            request = inbox.stored_form(inbox.Resume(id=f"request:{said['id']}", reason=said["reason"]))
            (posted,) = engine.store.queues.post_all([msgspec.structs.replace(request, run_id=self._run_id)])
            if isinstance(posted, HoldfastError):
                raise posted
            return _Posted(repeated=not posted)

        await self._make("resume", post, id=f"{self._run_id}-{len(self.made)}")

    async def _rewind(self) -> None:
        """Ask to go back, to a node or a checkpoint, with or without a confirmation of what must not run twice."""
        luck, tale = self._luck, self._tale
        rows = self._scene.ledger.rows.get(self._run_id, [])
        done = [row for row in rows if row.kind == "NodeCompleted"]
        if not self._rewinds or not done or tale is None:
            return await self._resume()
        self._rewinds = False
        place = luck.choice(done)
        options = luck.choice(
            ({"restart_at": place.node}, {"after": place.node}, {"checkpoint": place.seq}, {"replay": True})
        )
        begun = {row.node or "" for row in rows if row.kind == "NodeStarted" and row.seq > place.seq}
        careful = {name for name in {*begun, place.node or ""} if tale.is_careful(name)}
        drawn = luck.random()
        confirm = tuple(sorted(careful)) if drawn < 0.5 else ()
        force = 0.5 <= drawn < 0.6
        given: dict[str, Any] = {**options, "confirm": confirm, "force": force}
        await self._make(
            "resume",
            lambda engine, said: engine.resume(self._run_id, **given, **said),
            confirm=confirm,
            force=force,
            options=given,
        )
        return None

    async def _retry(self) -> None:
        luck = self._luck
        with suppress(HoldfastError):
            active = self._scene.disk.run(self._run_id).active
            node = luck.choice(active) if active and luck.random() < 0.5 else None
            await self._make(
                "retry", lambda engine, said: engine.retry(self._run_id, node, **said), options={"node": node}
            )

    async def _skip_nothing(self) -> None:
        """Ask to skip a node that does not exist: only the engine that carries this out can refuse it."""
        await self._make("skip", lambda engine, said: engine.skip(self._run_id, NOWHERE, **said))

    async def _again(self) -> None:
        """Make an earlier request once more, as a caller that got no reply does."""
        named = [made for made in self.made if made.id is not None]
        if named:
            await self._send(self._luck.choice(named))

    async def _differently(self) -> None:
        """Use the id of an earlier request for another one, which must be refused."""
        named = [made for made in self.made if made.id is not None]
        if not named:
            return
        first = self._luck.choice(named)
        tag = f"{first.tag} differently"
        given: dict[str, Any] = {"id": first.id, "reason": tag, "execute": False}

        def deed(engine: Engine) -> Awaitable[Any]:
            return engine.retry(self._run_id, f"{NOWHERE} else", **given)

        await self._send(Made(tag, "retry", deed, first.id))

    # --- sending --------------------------------------------------------------------------------------

    async def _make(
        self,
        verb: str,
        do: Callable[[Engine, dict[str, Any]], Awaitable[Any]],
        *,
        named: bool = True,
        id: str | None = None,
        waits: bool = False,
        options: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        """Make a request, often with an id. `waits`: the verb has no option `execute`. With `options`, the caller sometimes looks
        at a preview first, and acts on that.
        """
        number = len(self.made)
        tag = f"{self._run_id} request {number}"
        if id is None and named and self._luck.random() < 0.7:
            id = f"{self._run_id}-{number}"
        said = {"reason": tag, "id": id, "execute": False}
        made = Made(tag, verb, partial(_call, do, said), id, waits=waits, **given)
        if options is not None and self._looks.random() < 0.4:
            made.deed = partial(self._look_and_act, made, do, said, options)
        self.made.append(made)
        await self._send(made)

    async def _look_and_act(
        self,
        made: Made,
        do: Callable[[Engine, dict[str, Any]], Awaitable[Any]],
        said: dict[str, Any],
        options: dict[str, Any],
        engine: Engine,
    ) -> Any:
        """Make a request for a preview. If it is made once more, it is still for the preview that the caller saw first."""
        if not made.seen:
            made.seen.append(await engine.preview(self._run_id, made.verb, **options))
        return await do(engine, {**said, "expects": made.seen[0].digest})

    async def _send(self, made: Made) -> None:
        """Send a request, and check the reply."""
        scene, ledger, place = self._scene, self._scene.ledger, (self._run_id, f"request:{made.id}")

        async def deed(engine: Engine) -> None:
            made.began = made.began or ledger.tick()
            known, was_over, began = ledger.posted.get(place), self._is_over(), scene.now()
            try:
                run = await made.deed(engine)
            except HoldfastError as fault:
                self._note(made, began, fault)
                raise
            self._note(made, began, None)
            if known is not None and (known.reason != made.tag or not run.repeated):
                self._say(made, "returned as if it were new, but its id had been used")
            elif was_over and known is None and not self._is_returned(made):
                self._say(made, "returned, but the run was over")

        await self._ask(deed, waits=self._is_patient)

    def _is_over(self) -> bool:
        return self._scene.disk.run(self._run_id).status in FINAL

    def _is_returned(self, made: Made) -> bool:
        """Return whether the run itself is the answer: a completed run is not resumed."""
        return made.verb == "resume" and self._scene.disk.run(self._run_id).status == "completed"

    def _note(self, made: Made, began: float, fault: HoldfastError | None) -> None:
        error = type(fault).__name__ if fault is not None else ""
        made.replies.append(Reply(self._scene.ledger.tick(), self._scene.now() - began, error))
        first = self._scene.ledger.posted.get((self._run_id, f"request:{made.id}"))
        if isinstance(fault, RequestExists) and (first is None or first.reason == made.tag):
            self._say(made, f"was refused as another request: {fault}")

    def _say(self, made: Made, told: str) -> None:
        self.wrong.append(f"{self._run_id}: {made.verb} ({made.tag}) {told}")


def _call(
    do: Callable[[Engine, dict[str, Any]], Awaitable[Any]], said: dict[str, Any], engine: Engine
) -> Awaitable[Any]:
    return do(engine, said)


def _waiting(said: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a verb that never executes the run."""
    return {name: value for name, value in said.items() if name != "execute"}


# --- what became of them -----------------------------------------------------------------------------

_SHOWN_BY = {
    "pause": ("RunPaused",),
    "cancel": ("RunCancelled",),
    "answer": ("QuestionAnswered",),
    "signal": ("SignalReceived",),
    "retry": ("NodeScheduled",),
    "skip": ("NodeSkipped",),
    "edit": ("StateEdited",),
    "resume": ("RunResumed", "RunRewound"),
}
"""Verb -> the kinds of events of which one shows that a request was carried out."""
_UNMOVED = frozenset({"RunClaimed", "RequestRefused", "NodeStreamed", "NodeWaiting"})
"""Events that do not change the state from which an edit was computed."""


def check_requests(run_id: str, log: Log, disk: Store, ledger: Ledger) -> list[str]:
    """Check that every request that was put into the inbox of a run which is over is still there, and was carried out once, was
    refused once, or is unmet.
    """
    wrong: list[str] = []
    inbox = {one.id: one for one in disk.inbox(run_id=run_id)}
    refused = [event for row, event in log if row.kind == "RequestRefused"]
    for (whose, id), request in ledger.posted.items():
        if whose != run_id:
            continue
        named = f"{run_id}: the request {id} ({request.verb})"
        found = inbox.get(id)
        refusals = sum(event.request == id for event in refused)
        shown = _count_shown(log, request.verb, request.reason) if request.reason else None
        if found is None:
            wrong.append(f"{named} was put into the inbox, but is not there any more")
        elif not found.taken and not found.unmet:
            wrong.append(f"{named} still waits, but the run is over")
        elif found.unmet and (refusals or shown):
            wrong.append(f"{named} is unmet, but was also carried out or refused")
        elif refusals > 1 or (refusals and shown):
            wrong.append(f"{named} was refused {refusals} times, and carried out {shown or 0} times")
        elif not found.unmet and not refusals and shown == 0 and request.verb != "cancel":
            wrong.append(f"{named} is marked as handled, but was neither carried out nor refused")
        if moved := _find_moved(log, request):
            wrong.append(f"{named} was carried out, but the run had moved since it was made: {moved}")
    return wrong


def _find_moved(log: Log, request: Request) -> list[str]:
    """Return the events between the state from which an edit was computed, and the edit."""
    seen, kinds = request.body.get("seen"), _SHOWN_BY.get(request.verb, ())
    if seen is None or not request.reason:
        return []
    done = [row.seq for row, event in log if row.kind in kinds and event.reason == request.reason]
    return [row.kind for row, _ in log if done and seen < row.seq < done[0] and row.kind not in _UNMOVED]


def check_made(run_id: str, log: Log, made: Sequence[Made], ledger: Ledger) -> list[str]:
    """Check that no request was carried out twice, and that the sender of a request that was refused got the exception."""
    wrong = []
    for one in made:
        shown = _count_shown(log, one.verb, one.tag)
        if shown > 1:
            wrong.append(f"{run_id}: {one.verb} ({one.tag}) was carried out {shown} times")
        if one.waits:
            wrong += _check_replies(run_id, log, one, ledger)
        wrong += [f"{run_id}: {one.verb} ({one.tag}) {told}" for told in _not_as_seen(log, one)]
    return wrong + _check_order(run_id, log, made)


def _check_order(run_id: str, log: Log, made: Sequence[Made]) -> list[str]:
    """Check that requests took effect in the order in which they were acknowledged. An edit and a pause may change places,
    because neither depends on the other: the edit may have to wait for nodes that unwind.
    """
    wrong = []
    for first in made:
        known = min((reply.turn for reply in first.replies if not reply.error), default=None)
        done = _first_shown(log, first)
        if known is None or done is None:
            continue
        for later in made:
            done_later = _first_shown(log, later)
            commute = (first.verb, later.verb) == ("edit", "pause")
            if later.began > known and done_later is not None and done_later < done and not commute:
                wrong.append(
                    f"{run_id}@{done}: {first.verb} ({first.tag}) was carried out after {later.verb} ({later.tag}), which was "
                    "made when it had been acknowledged"
                )
    return wrong


def _first_shown(log: Log, made: Made) -> int | None:
    """Return the first event that shows that a request was carried out; None if it was not."""
    kinds = _SHOWN_BY.get(made.verb, ())
    return next((row.seq for row, event in log if row.kind in kinds and event.reason == made.tag), None)


def _not_as_seen(log: Log, made: Made) -> list[str]:
    """Return in which way a request that was carried out differs from the preview that it was made for."""
    done = [event for row, event in log if row.kind in _SHOWN_BY[made.verb] and event.reason == made.tag]
    if not made.seen or not done:
        return []
    seen = made.seen[0]
    if seen.refused and not (made.verb == "resume" and seen.confirm):
        return [f"was carried out, although its preview said that it is refused: {seen.refused}"]
    went_to = getattr(done[0], "to", None)
    return [f"went back to {went_to}, and its preview said {seen.at}"] if went_to != seen.at else []


def _check_replies(run_id: str, log: Log, made: Made, ledger: Ledger) -> list[str]:
    ids = {id for (whose, id), one in ledger.posted.items() if whose == run_id and one.reason == made.tag}
    for row, event in log:
        if row.kind != "RequestRefused" or event.request not in ids:
            continue
        for reply in made.replies:
            is_late = ledger.when[run_id, row.seq] < reply.turn
            if not reply.error and is_late and reply.seconds < _PATIENCE_S:
                return [f"{run_id}: {made.verb} ({made.tag}) was refused, but its sender was told nothing"]
            if reply.error in ("ResumeRefused", "StateError") and reply.error != event.error:
                return [
                    f"{run_id}: {made.verb} ({made.tag}) was refused with {event.error}, but its sender got {reply.error}"
                ]
    return []


def _count_shown(log: Log, verb: str, tag: str) -> int:
    """Return how often a request with this reason was carried out. One retry schedules several nodes, each once."""
    kinds = _SHOWN_BY.get(verb, ())
    found = [event for row, event in log if row.kind in kinds and event.reason == tag]
    if verb != "retry":
        return len(found)
    visits = [(event.node, event.iteration, event.execution) for event in found]
    return max((visits.count(visit) for visit in visits), default=0)
