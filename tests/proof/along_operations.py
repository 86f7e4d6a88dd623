"""The durable operations that change several runs in one append: it starts runs and leaves requests in the inboxes of others, or
is refused. They are rows of the table in `operations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
from hands import Hands, Operation, begun, story, text_of

from holdfast.errors import HoldfastError, RunNotFound, RunOver
from holdfast.reading import inbox
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Along, Append, Request, Verdict
from holdfast.storage.sqlite.store import SqliteStore

_OTHERS = tuple(f"b{number}" for number in range(5))
_STARTED = tuple(f"n{number}" for number in range(5))
_INPUT = Blob.of(text_of("a large input", 4_000).encode())


def _start(run_id: str) -> Append:
    """Return the first append of a run that another run starts."""
    return msgspec.structs.replace(story(run_id)[0], holder=None)


def _note(run_id: str, name: str) -> tuple[str, Request]:
    return run_id, inbox.stored_form(inbox.Signal(id=name, name=name))


def _along(part: Append, *starts: Append, posts: tuple[tuple[str, Request], ...] = ()) -> Append:
    return msgspec.structs.replace(part, along=Along(starts=starts, posts=posts))


def with_others(hands: Hands) -> None:
    """Prepare a run that has begun, and others with their first events."""
    store = begun(hands)
    assert store.append([story(run_id)[0] for run_id in _OTHERS]) == [None] * len(_OTHERS)


def nearly_over(hands: Hands) -> None:
    """Prepare the same, but the run lacks only its last append."""
    store = begun(hands, length=len(story("r1")) - 1)
    assert store.append([story(run_id)[0] for run_id in _OTHERS]) == [None] * len(_OTHERS)


def start_runs(hands: Hands) -> None:
    """Start two runs, one of which has a blob, and leave requests; one of them is for a run that does not exist. Then start a run
    whose id is taken, together with another one: both are refused.
    """
    store = hands.open()
    part, following = story("r1")[2:4]
    large = msgspec.structs.replace(_start("n1"), blobs=(_INPUT,))
    posts = (_note("b0", "one"), _note("missing", "two"), _note("b1", "three"), _note("n0", "four"))
    with suppress(HoldfastError):
        store.append([_along(part, _start("n0"), large, posts=posts)])
    taken = msgspec.structs.replace(_start("n3"), run_id="b0")
    with suppress(HoldfastError):
        store.append([_along(following, _start("n2"), taken, posts=(_note("b0", "five"),))])
    store.close()


def start_many(hands: Hands) -> None:
    """Let several runs start a run each, in one batch, and leave requests for each other."""
    store = hands.open()
    with suppress(HoldfastError):
        store.append(
            [
                _along(
                    story(other)[1], _start(started), posts=(_note("r1", f"of {other}"), _note("b0", other))
                )
                for other, started in zip(_OTHERS, _STARTED, strict=True)
            ]
        )
    store.close()


def report_the_end(hands: Hands) -> None:
    """Complete a run, and leave its end in the inbox of another one; then complete that too late for a request."""
    store = hands.open()
    *_, last = story("r1")
    with suppress(HoldfastError):
        store.append([_along(last, posts=(_note("b0", "end of r1"), _note("r1", "too late")))])
    for part in story("b0")[1:]:
        with suppress(HoldfastError):
            store.append([part])
    with suppress(HoldfastError):
        store.append([_along(story("b1")[1], posts=(_note("b0", "later"),))])
    store.close()


# --- a store that breaks its promise -----------------------------------------------------------------


def post_apart() -> None:
    """Let a SQLite store post the requests of an append after its commit; the harness must find that out."""
    append = SqliteStore.append

    def apart(store: SqliteStore, batch: Sequence[Append]) -> list[Verdict]:
        found = append(store, [_along(one, *one.along.starts) if one.along else one for one in batch])
        for one, verdict in zip(batch, found, strict=True):
            for run_id, request in one.along.posts if one.along and verdict is None else ():
                with suppress(RunNotFound, RunOver):
                    store.post(run_id, request)
        return found

    SqliteStore.append = apart  # type: ignore[method-assign]


ALONG: dict[str, Operation] = {
    "start runs": Operation(with_others, start_runs, asks=True),
    "start many": Operation(with_others, start_many, asks=True),
    "report an end": Operation(nearly_over, report_the_end, asks=True),
}
