"""The durable operations about requests and forks: leave requests, carry them out or refuse them, end a run while they wait, and
fork what must not run twice. They are rows of the table in `operations`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from hands import AUTHOR, ORDERED, Hands, Operation, begun, story, text_of

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.reading import inbox
from holdfast.storage.contract import Holder

_RUNS = tuple(f"b{number}" for number in range(5))
_CHECKED = {"pages": [text_of(text_of("about r1", 3_000), 500)]}
"""What the node `check` of the run `r1` returns."""


def _post(store: Any, *requests: inbox.AnyRequest) -> None:
    for request in requests:
        store.post("r1", inbox.stored_form(request))


# --- what the disk holds before ----------------------------------------------------------------------


def to_carry_out(hands: Hands) -> None:
    """Prepare a run that was interrupted in `check`, with requests that a worker carries out or refuses."""
    _post(
        begun(hands),
        inbox.Skip(id="refused", node="nowhere"),
        inbox.Edit(id="edited", fields={"approved": False}),
        inbox.Retry(id="retried", node="check"),
        inbox.Resume(id="late"),
        inbox.Edit(id="running", fields={"approved": False}),
    )


def to_skip(hands: Hands) -> None:
    _post(begun(hands), inbox.Skip(id="skipped", node="check", update=_CHECKED))


def to_resume(hands: Hands) -> None:
    _post(begun(hands), inbox.Resume(id="resumed", edit={"approved": False}))


def almost_over(hands: Hands) -> None:
    """Prepare a run without its last append, and requests that wait."""
    store = begun(hands, length=len(story("r1")) - 1)
    _post(store, inbox.Signal(id="one", name="news"), inbox.Skip(id="two", node="nowhere"))


def ordered(hands: Hands) -> None:
    """Prepare a run in which a node that must not run twice is completed."""
    begun(hands, ORDERED, length=2, close=True)


def several_begun(hands: Hands) -> None:
    store = hands.open()
    store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    assert store.append([story(run_id)[0] for run_id in _RUNS]) == [None] * len(_RUNS)
    store.close()


# --- what is done ------------------------------------------------------------------------------------


def leave(hands: Hands) -> None:
    """Leave requests for a worker, one of them twice."""

    async def ask(engine: hf.Engine) -> None:
        for _ in range(2):
            with suppress(HoldfastError):
                await engine.resume("r1", id="resume", execute=False, by="ann")
        with suppress(HoldfastError):
            await engine.retry("r1", "check", id="retry", execute=False)
        with suppress(HoldfastError):
            await engine.skip("r1", "nowhere", id="skip", execute=False)

    hands.use(ask)


def carry_out(hands: Hands) -> None:
    """Work as a worker until the run is completed, or for some minutes on a disk that fails."""
    ended: list[str] = []

    async def work(engine: hf.Engine) -> None:
        await engine.work(
            until=lambda: "completed" in ended or engine.store.now() > hands.now + 300,
            on_end=lambda run: ended.append(run.status),
        )

    hands.use(work)


def end_it(hands: Hands) -> None:
    """Complete a run while requests wait, and leave another one, which is too late."""
    store = hands.open()
    with suppress(HoldfastError):
        store.append([story("r1")[-1]])
    with suppress(HoldfastError):
        _post(store, inbox.Signal(id="three", name="more news"))
    store.close()


def fork_begun(hands: Hands) -> None:
    """Fork a run from before what must not run twice: once to skip it, and once to run it again."""

    async def fork(engine: hf.Engine) -> None:
        with suppress(HoldfastError):
            await engine.fork(f"{ORDERED}@1", run_id="g1", repeat="skip")
        with suppress(HoldfastError):
            await engine.fork(f"{ORDERED}@1", run_id="h1", repeat={"charge": "run"}, fresh=True)

    hands.use(fork)


def ask_many(hands: Hands) -> None:
    """Leave one request for each of many runs, in one transaction; repeated after a crash, this leaves no second one."""
    store = hands.open()
    wanted = inbox.stored_form(inbox.Resume(id="request:bulk"))
    with suppress(HoldfastError):
        store.queues.post_all([msgspec.structs.replace(wanted, run_id=run_id) for run_id in _RUNS])
    store.close()


ASKED: dict[str, Operation] = {
    "leave requests": Operation(begun, leave, asks=True),
    "carry out requests": Operation(to_carry_out, carry_out, asks=True),
    "skip by request": Operation(to_skip, carry_out, asks=True),
    "resume by request": Operation(to_resume, carry_out, asks=True),
    "complete while requests wait": Operation(almost_over, end_it, asks=True),
    "fork what had begun": Operation(ordered, fork_begun),
    "ask many": Operation(several_begun, ask_many, again=True, asks=True),
}
