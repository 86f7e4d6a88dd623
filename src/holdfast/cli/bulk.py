"""Asks every run that matches `--where`: leaves one request in the inbox of each (resume, retry, cancel).

The command may be killed at any instruction and called again (`upkeep.mass_requests`). Workers carry the requests out. Only a
cancellation executes nothing, so it needs no worker: it is recorded here.
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
from holdfast.errors import (
    RunNotFound,
    RunOver,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    did_you_mean,
)
from holdfast.reading import inbox
from holdfast.reading.reader import Reader
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import Query, Store
from holdfast.upkeep import mass_requests
from holdfast.upkeep.mass_requests import DONE, Match, Tally

_SHOWN_MAX = 10
_PAGE = 1000


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a command asks, and how it was called."""

    where: Sequence[str]
    dry_run: bool
    store: str | None
    as_json: bool


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
    query = mass_requests.meant(options.read_where(matching.where), request.verb, "--where ")
    with stores.reading(matching.store) as reader:
        found = mass_requests.find(reader.store, query)
        if found and matching.dry_run:
            _say_matches(request.verb, found, matching)
            return Exit.OK
        if found:
            return _ask(reader, request, found, matching)
        missing = _no_match(reader.store, query, matching)
    raise missing


def _ask(reader: Reader, request: inbox.AnyRequest, found: Sequence[Match], matching: Matching) -> int:
    if not matching.as_json:
        screen.say(f"{screen.count(len(found), 'run')} {'matches' if len(found) == 1 else 'match'}", err=True)
    tally = Tally(matched=len(found))
    with _told_at_least(request.verb, tally, matching), gauge(quiet=matching.as_json) as tell:
        asked = mass_requests.leave_all(reader.store, request, found, tally, tell)
        if request.verb == "cancel" and not stores.is_server(reader.store):
            _cancel_all(reader.store, request, asked, tally, tell)
    _say_asked(reader, request.verb, found, tally, matching)
    return Exit.REFUSED if tally.refused else Exit.OK


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


def _cancel_all(
    store: Store, request: inbox.AnyRequest, asked: Sequence[Match], tally: Tally, tell: Gauge
) -> None:
    """Record the cancellations of the runs that no process executes. The others are cancelled by their processes."""
    idle = [one for one in asked if not one.held]
    stored = inbox.stored_form(request)

    async def use(engine: Engine) -> None:
        for done, one in enumerate(idle, 1):
            try:
                id = mass_requests.id_for(stored, one)
                said = inbox.own_fields(request)
                await engine.cancel(one.run_id, request.reason, **said, by=request.by, id=id)
            except (RunOver, RunNotFound):  # it ended, or was deleted, in this moment
                pass
            except (SchemaTooNew, StoreCorrupt, StoreBusy) as fault:
                tally.refused[one.run_id] = str(fault)
            tell("cancelled", done, len(idle))

    stores.execute(store, use, {})


# --- printing ----------------------------------------------------------------------------------------


@contextmanager
def _told_at_least(verb: str, tally: Tally, matching: Matching) -> Iterator[None]:
    """Print how many runs were asked even if an error or a signal ends the command."""
    try:
        yield
    except BaseException as fault:
        if matching.as_json:
            screen.say_json(_as_json(verb, tally, matching) | {"error": str(fault) or type(fault).__name__})
        else:
            asked = f"{tally.asked + tally.repeated} of {screen.count(tally.matched, 'run')} asked to be {DONE[verb]}."
            screen.say(
                ("stopped  ", "yellow"),
                f"{asked} To ask the others, and none twice: {typed_again()}",
                err=True,
            )
        raise


def _say_matches(verb: str, found: Sequence[Match], matching: Matching) -> None:
    if matching.as_json:
        listed = {"runs": [one.run_id for one in found]}
        screen.say_json(_as_json(verb, Tally(matched=len(found)), matching) | listed)
        return
    screen.say(f"{screen.count(len(found), 'run')} would be {DONE[verb]}")
    for one in found[:_SHOWN_MAX]:
        held = ", executed by a process" if one.held else ""
        screen.say(f"  {one.run_id}  {one.flow} ", (one.status, screen.STYLES.get(one.status, "")), held)
    if len(found) > _SHOWN_MAX:
        screen.say((f"  … and {len(found) - _SHOWN_MAX} more; --json lists them all", "dim"))


def _as_json(verb: str, tally: Tally, matching: Matching) -> dict[str, Any]:
    counts = msgspec.structs.asdict(tally)
    return {"requested": verb, "where": list(matching.where), "dry_run": matching.dry_run, **counts}


def _say_asked(reader: Reader, verb: str, found: Sequence[Match], tally: Tally, matching: Matching) -> None:
    if matching.as_json:
        screen.say_json(_as_json(verb, tally, matching))
        return
    screen.say(("asked  ", "bold green"), f"{screen.count(tally.asked, 'run')} to be {DONE[verb]}")
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
