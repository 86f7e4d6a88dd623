"""Asks every run that matches `--where`: leaves one request in the inbox of each (resume, retry, cancel).

The command may be killed at any instruction and called again: the id of a request follows from what it asks for and from the
last event of its run, so a run that was asked before is not asked twice, and a run that has failed again since may be asked
again. Workers carry the requests out. Only a cancellation executes nothing, so it needs no worker: it is recorded here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.cli import options, screen, stores
from holdfast.cli.exits import Exit
from holdfast.cli.gauge import Gauge, gauge
from holdfast.cli.suggestions import line, say_missing_workers, typed_again
from holdfast.core.run_state import FINAL, HALTED, OPEN
from holdfast.errors import (
    HoldfastError,
    RunNotFound,
    RunOver,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    did_you_mean,
)
from holdfast.reading import inbox
from holdfast.reading.reader import Reader, rows_of
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Query, Request, RunRow, RunStatus, Store, in_order
from holdfast.storage.verdicts import digest_request

_AT_ONCE = 200
"""How many requests are left in one transaction."""
_SHOWN_MAX = 10
_PAGE = 1000

_MEANT: dict[str, frozenset[str]] = {
    "resume": HALTED | {"paused"},
    "retry": HALTED,
    "cancel": OPEN,
}
"""Verb -> the statuses of the runs that it asks if `--where` names no status."""
_DONE = {"resume": "resumed", "retry": "retried", "cancel": "cancelled"}


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a command asks, and how it was called."""

    where: Sequence[str]
    dry_run: bool
    store: str | None
    as_json: bool


class _Match(msgspec.Struct, frozen=True, gc=False):
    """A run that matches: the columns of its row that are needed, because there may be a million of them."""

    run_id: str
    seq: int
    flow: str
    queue: str
    status: RunStatus
    held: bool


class _Tally(msgspec.Struct, kw_only=True):
    """How many of the matching runs were asked, and what became of the others."""

    matched: int = 0
    asked: int = 0
    repeated: int = 0
    """Runs that had been asked before."""
    executing: int = 0
    """Runs that are not asked to continue, because a process executes them."""
    over: int = 0
    """Runs that were completed or cancelled meanwhile."""
    gone: int = 0
    """Runs that were deleted meanwhile."""
    refused: dict[str, str] = {}
    """Runs that refused the request -> why."""

    def add(self, run_id: str, posted: bool | HoldfastError) -> None:
        match posted:
            case True:
                self.asked += 1
            case False:
                self.repeated += 1
            case RunOver():
                self.over += 1
            case RunNotFound():
                self.gone += 1
            case _:
                self.refused[run_id] = str(posted)


def chooses(run: str | None, matching: Matching, others: Mapping[str, Any]) -> bool:
    """Return whether `--where` chooses the runs of this command. Raises `SettingError` unless exactly one of RUN and `--where` is
    given; `others` are options that have no meaning together with `--where`, with their values.
    """
    if not matching.where:
        if run is None:
            raise SettingError("name a run, or choose runs with --where, as in --where status=failed")
        return False
    if run is not None:
        raise SettingError(
            f"{run!r} and --where cannot be combined. To ask one run, leave --where out; to ask every run that matches, leave "
            f"{run!r} out (no file is needed: workers carry the requests out)."
        )
    given = [name for name, value in others.items() if value not in (None, False)]
    if given:
        raise SettingError(
            f"{' and '.join(given)} cannot be combined with --where; leave {'them' if given[1:] else 'it'} out"
        )
    return True


def ask_all(request: inbox.AnyRequest, matching: Matching) -> int:
    """Leave a request in each run that matches, and print how many there were. Returns the exit code."""
    query = _meant(options.read_where(matching.where), request.verb)
    with stores.reading(matching.store) as reader:
        found = [_match(row) for row in rows_of(reader.store, msgspec.structs.replace(query, limit=_PAGE))]
        if found and matching.dry_run:
            _say_matches(request.verb, found, matching)
            return Exit.OK
        if found:
            return _ask(reader, request, found, matching)
        missing = _no_match(reader.store, query, matching)
    raise missing


def _ask(reader: Reader, request: inbox.AnyRequest, found: Sequence[_Match], matching: Matching) -> int:
    if not matching.as_json:
        screen.say(f"{screen.count(len(found), 'run')} {'matches' if len(found) == 1 else 'match'}", err=True)
    tally = _Tally(matched=len(found))
    with _told_at_least(request.verb, tally, matching), gauge(quiet=matching.as_json) as tell:
        asked = _leave_all(reader.store, request, found, tally, tell)
        if request.verb == "cancel":
            _cancel_all(reader.store, request, asked, tally, tell)
    _say_asked(reader, request.verb, found, tally, matching)
    return Exit.REFUSED if tally.refused else Exit.OK


def _meant(query: Query, verb: str) -> Query:
    """Return the query with the statuses that a verb means if none is given. Raises `SettingError` for runs that are over."""
    final = [status for status in query.status if status in FINAL]
    if final:
        raise SettingError(
            f"--where status={final[0]}: a run that is {final[0]} cannot be {_DONE[verb]}. `holdfast fork RUN` makes a new run "
            "from one of its checkpoints."
        )
    return query if query.status else msgspec.structs.replace(query, status=in_order(_MEANT[verb]))


def _match(row: RunRow) -> _Match:
    return _Match(row.run_id, row.seq, row.flow, row.queue, row.status, row.held)


def _no_match(store: Store, query: Query, matching: Matching) -> RunNotFound:
    """Return the error that no run matches, with the name of a flow or queue that was probably meant."""
    near = ""
    if query.flow is not None or query.queue is not None:
        some = store.runs(Query(limit=_PAGE))
        near = _near(query.flow, {row.flow for row in some}) or _near(
            query.queue, {row.queue for row in some}
        )
    error = RunNotFound("")
    where = " ".join(f"--where {condition}" for condition in matching.where)
    statuses = (
        ""
        if any(one.startswith("status=") for one in matching.where)
        else f" and is {' or '.join(query.status)}"
    )
    error.args = (
        f"no run matches {where}{statuses}{near or '.'} `holdfast runs` lists the runs of the store.",
    )
    return error


def _near(given: str | None, known: Collection[str]) -> str:
    """Return the name that was probably meant; an empty text if none was given, or if it is one of those that are known."""
    return "" if given is None or given in known else did_you_mean(given, known)


# --- asking ------------------------------------------------------------------------------------------


def _leave_all(
    store: Store, request: inbox.AnyRequest, found: Sequence[_Match], tally: _Tally, tell: Gauge
) -> list[_Match]:
    """Leave the request in each run. Returns the runs that have it now, also those that had it before."""
    asked: list[_Match] = []
    done = 0
    for some in _in_batches(found):
        ready = [one for one in some if not one.held or request.verb == "cancel"]
        left = [_for_run(request, one) for one in ready]
        for one, posted in zip(ready, store.queues.post_all(left), strict=True):
            tally.add(one.run_id, posted)
            asked += [one] if isinstance(posted, bool) else []
        tally.executing += len(some) - len(ready)
        done += len(some)
        tell("requests", done, len(found))
    return asked


def _in_batches(found: Sequence[_Match]) -> Iterator[Sequence[_Match]]:
    return (found[start : start + _AT_ONCE] for start in range(0, len(found), _AT_ONCE))


def _for_run(request: inbox.AnyRequest, one: _Match) -> Request:
    """Return the stored form of the request for one run. The same request to a run that has not moved has the same id."""
    stored = inbox.stored_form(request)
    return msgspec.structs.replace(stored, id=f"request:{_id(stored, one.seq)}", run_id=one.run_id)


def _id(stored: Request, seq: int) -> str:
    return f"where:{digest_request(stored).hex()[:16]}:{seq}"


def _cancel_all(
    store: Store, request: inbox.AnyRequest, asked: Sequence[_Match], tally: _Tally, tell: Gauge
) -> None:
    """Record the cancellations of the runs that no process executes. The others are cancelled by their processes."""
    idle = [one for one in asked if not one.held]
    stored = inbox.stored_form(request)

    async def use(engine: Engine) -> None:
        for done, one in enumerate(idle, 1):
            try:
                await engine.cancel(one.run_id, request.reason, by=request.by, id=_id(stored, one.seq))
            except (RunOver, RunNotFound):  # it ended, or was deleted, in this moment
                pass
            except (SchemaTooNew, StoreCorrupt, StoreBusy) as fault:
                tally.refused[one.run_id] = str(fault)
            tell("cancelled", done, len(idle))

    stores.execute(store, use, {})


# --- printing ----------------------------------------------------------------------------------------


@contextmanager
def _told_at_least(verb: str, tally: _Tally, matching: Matching) -> Iterator[None]:
    """Print how many runs were asked even if an error or a signal ends the command."""
    try:
        yield
    except BaseException as fault:
        if matching.as_json:
            screen.say_json(_as_json(verb, tally, matching) | {"error": str(fault) or type(fault).__name__})
        else:
            asked = f"{tally.asked + tally.repeated} of {screen.count(tally.matched, 'run')} asked to be {_DONE[verb]}."
            screen.say(
                ("stopped  ", "yellow"),
                f"{asked} To ask the others, and none twice: {typed_again()}",
                err=True,
            )
        raise


def _say_matches(verb: str, found: Sequence[_Match], matching: Matching) -> None:
    if matching.as_json:
        listed = {"runs": [one.run_id for one in found]}
        screen.say_json(_as_json(verb, _Tally(matched=len(found)), matching) | listed)
        return
    screen.say(f"{screen.count(len(found), 'run')} would be {_DONE[verb]}")
    for one in found[:_SHOWN_MAX]:
        held = ", executed by a process" if one.held else ""
        screen.say(f"  {one.run_id}  {one.flow} ", (one.status, screen.STYLES.get(one.status, "")), held)
    if len(found) > _SHOWN_MAX:
        screen.say((f"  … and {len(found) - _SHOWN_MAX} more; --json lists them all", "dim"))


def _as_json(verb: str, tally: _Tally, matching: Matching) -> dict[str, Any]:
    counts = msgspec.structs.asdict(tally)
    return {"requested": verb, "where": list(matching.where), "dry_run": matching.dry_run, **counts}


def _say_asked(reader: Reader, verb: str, found: Sequence[_Match], tally: _Tally, matching: Matching) -> None:
    if matching.as_json:
        screen.say_json(_as_json(verb, tally, matching))
        return
    screen.say(("asked  ", "bold green"), f"{screen.count(tally.asked, 'run')} to be {_DONE[verb]}")
    for count, words in (
        (tally.repeated, "asked before, and not again"),
        (tally.executing, "not asked: executed by a process"),
        (tally.over, "not asked: ended meanwhile"),
        (tally.gone, "not asked: deleted meanwhile"),
    ):
        if count:
            screen.say(f"  {screen.count(count, 'run')} {words}")
    for run_id, why in list(tally.refused.items())[:_SHOWN_MAX]:
        screen.say(("  refused  ", "yellow"), f"{run_id}: {screen.one_line(why, 300)}")
    if len(tally.refused) > _SHOWN_MAX:
        screen.say((f"  … and {len(tally.refused) - _SHOWN_MAX} more; --json lists them all", "dim"))
    if tally.asked + tally.repeated and verb != "cancel":
        screen.say(
            "  workers carry the requests out; see what became of one: "
            + line("requests", "RUN", store=matching.store)
        )
        say_missing_workers(reader, [(one.run_id, one.flow, one.queue) for one in found], matching.store)
