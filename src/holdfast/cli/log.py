"""Commands that read the log of a run: events, state, checkpoints, verify. They change nothing and need no flow file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import options, screen, stores
from holdfast.cli.app import CHECK, LOOK, command
from holdfast.cli.exits import Exit
from holdfast.cli.gauge import gauge
from holdfast.cli.suggestions import command_line, line, say_commands, say_remedies, status_words
from holdfast.core.events import KINDS
from holdfast.core.run_state import FINAL
from holdfast.errors import (
    RunNotFound,
    SchemaTooNew,
    SettingError,
    StoreCorrupt,
    StoreError,
    did_you_mean,
)
from holdfast.reading import history, text, words
from holdfast.reading.chunks import Chunk
from holdfast.reading.following import Cursor
from holdfast.reading.history import Checkpoint
from holdfast.reading.reader import Reader, rows_of
from holdfast.reading.story import visit
from holdfast.reading.verification import LogVerdict
from holdfast.reading.verification import verify as verify_run
from holdfast.reading.views import EventView
from holdfast.runtime.engine import Engine
from holdfast.runtime.followers import Following
from holdfast.storage.contract import Query

_PAGE = 500
_SAID_ELSEWHERE = frozenset({"fingerprint", "node", "took"})
"""Fields of events that are printed only with --json."""


@command(LOOK)
def events(
    run_id: options.RunId,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Print only events of this node.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Print only events of this kind, e.g. NodeFailed."),
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            "--after",
            metavar="SEQ",
            help="Print only events after the event with this number, or after a cursor that --follow printed.",
        ),
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing events as they happen, until the run stops.")
    ] = False,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="With --follow: also print the chunks that nodes stream.")
    ] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Print the events of a run, oldest first.

    With --follow and --json, each event is one JSON document on a line.
    """
    if chunks and not follow:
        recorded = line("events", run_id, "--kind", "NodeStreamed", store=store)
        raise SettingError(f"--chunks needs --follow. To print the chunks recorded so far: {recorded} --json")
    if kind is not None and kind not in KINDS:
        raise SettingError(
            f"{kind!r} is not a kind of event; the kinds are {', '.join(sorted(KINDS))}{did_you_mean(kind, KINDS)}"
        )

    def listed(reader: Reader) -> tuple[list[EventView], list[str]]:
        _require_node(reader, run_id, node)
        return reader.events(run_id, Cursor.parse(after).seq, node, kind), _rest(reader, run_id)

    async def followed(engine: Engine) -> None:
        _require_node(engine.reader, run_id, node)
        following: Following[EventView | Chunk] = (
            engine.follow(run_id, after, chunks=True) if chunks else engine.follow(run_id, after)
        )
        async for found in following:
            if node in (None, found.node) and (isinstance(found, Chunk) or kind in (None, found.kind)):
                _say_news(found, following.cursor if chunks else None, as_json=as_json)
        if not as_json:
            _say_end(engine.reader, run_id, store)

    if follow:
        stores.watch(store, followed)
        return
    found, rest = stores.read(store, listed)
    if as_json:
        screen.say_json(found)
        return
    _say_rest(rest)
    for event in found:
        _say_event(event)
    if not found:
        screen.say(
            "No event matches these options. Leave out --node, --kind or --after to see more.", err=True
        )


def _rest(reader: Reader, run_id: str) -> list[str]:
    """Return sentences that say where compacted events are, and which checkpoints were retired."""
    trimmed = reader.store.upkeep.trimmed(run_id)
    rest = history.beginning(reader.store, reader.store.run(run_id)) if trimmed.base else ""
    return [sentence for sentence in (rest, history.retirement(trimmed)) if sentence]


def _say_rest(rest: list[str]) -> None:
    for sentence in rest:
        screen.say((sentence, "dim"), err=True)


def _require_node(reader: Reader, run_id: str, node: str | None) -> None:
    """Raise `SettingError` for a name that no node of the run has or had."""
    if node is None:
        return
    row = reader.store.run(run_id)
    nodes = reader.definition(row).nodes
    if node not in nodes and not reader.store.events(run_id, node=node, limit=1):
        near = did_you_mean(node, nodes) or f"; its nodes are {', '.join(nodes)}"
        raise SettingError(f"flow {row.flow!r} of run {run_id!r} has no node {node!r}{near}")


def _say_end(reader: Reader, run_id: str, store: str | None) -> None:
    """Print why the run produces no more events, and the commands that change that."""
    row = reader.store.run(run_id)
    if row.status in FINAL or row.held:
        return
    found = reader.diagnose(run_id, command_line(store=store))
    status = status_words(row.status, found)
    screen.say((status, f"bold {screen.STYLES[row.status]}"), f"  {run_id}  {found.reason}", err=True)
    say_remedies(found.remedies, err=True)


def _say_news(news: EventView | Chunk, cursor: str | None, *, as_json: bool) -> None:
    """Print an event or a chunk of a run that is followed; its JSON has the cursor, if there are chunks."""
    if as_json and cursor is not None:
        kind = {"kind": "Chunk"} if isinstance(news, Chunk) else {}
        screen.say_json(kind | msgspec.structs.asdict(news) | {"cursor": cursor}, indent=None)
    elif as_json:
        screen.say_json(news, indent=None)
    elif isinstance(news, Chunk):
        _say_chunk(news)
    else:
        _say_event(news)
    sys.stdout.flush()  # a reader of a pipe sees it now


def _say_chunk(chunk: Chunk) -> None:
    item = f" (item {chunk.item})" if chunk.item is not None else ""
    item += f" {chunk.step}" if chunk.step is not None else ""
    shown = chunk.value if isinstance(chunk.value, str) else screen.json_text(chunk.value, indent=None)
    screen.say(
        (" " * 22 + f"chunk {chunk.number}".ljust(16), "dim"),
        f"  {chunk.node}{item}  {screen.one_line(shown)}",
    )


def _say_event(event: EventView) -> None:
    where = f"  {event.node}" if event.node else ""
    which = f" ({visited})" if (visited := visit(event)) else ""
    shown = words.words(event)
    if shown is None:
        shown = _body(event)
    screen.say(
        (f"{event.seq:>6}  {screen.time_of_day(event.at)}  ", "dim"),
        (event.kind.ljust(16), _style(event.kind)),
        where + which,
        (f"  {screen.one_line(shown, 400)}", "dim"),
    )


def _body(event: EventView) -> str:
    body = {
        name: value
        for name, value in event.body.items()
        if name not in _SAID_ELSEWHERE and value is not False
    }
    if failure := body.get("failure"):
        body["failure"] = f"{failure.get('kind')} {_named(failure)}"
    if warning := body.get("warning"):
        body["warning"] = _named(warning)
    if retry_at := body.get("retry_at"):
        body["retry_at"] = screen.when(retry_at)
    return screen.json_text(body, indent=None) if body else ""


def _named(failure: dict[str, Any]) -> str:
    return text.describe_fault(failure)


def _style(kind: str) -> str:
    for ending, style in (
        ("Failed", "red"),
        ("Completed", "green"),
        ("Refused", "red"),
        ("Interrupted", "yellow"),
    ):
        if kind.endswith(ending):
            return style
    return "cyan" if kind.startswith("Run") else ""


@command(LOOK)
def state(
    target: options.RunAt,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Print only what changed in the state since the previous checkpoint."),
    ] = False,
    against: Annotated[
        int | None,
        typer.Option(
            "--against",
            metavar="SEQ",
            min=1,
            help="Print only what changed in the state since the event with this number; implies --diff.",
        ),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Print the state of a run, or what changed in it.

    RUN@SEQ prints the state as it was at that event; RUN alone prints the current state.
    """

    def use(reader: Reader) -> tuple[Any, Any, int | None, int]:
        run_id, seq = history.split(target, None)
        here = seq if seq is not None else reader.store.run(run_id).seq
        now = reader.state(run_id, here)
        if not diff and against is None:
            return now, None, None, here
        earlier = against if against is not None else _checkpoint_before(reader, run_id, here)
        return now, reader.state(run_id, earlier) if earlier else {}, earlier, here

    now, then, earlier, here = stores.read(store, use)
    if not diff and against is None:
        screen.say_json(now)
        return
    found = list(changes(then, now))
    if as_json:
        listed = [
            {"change": sign, "path": path, "was": was, "now": is_now} for sign, path, was, is_now in found
        ]
        screen.say_json({"from": earlier, "to": here, "changes": listed})
        return
    screen.say(
        (
            f"changes from event {earlier} to event {here}"
            if earlier
            else f"changes up to event {here}; there is no earlier checkpoint to compare with",
            "dim",
        )
    )
    for change in found:
        _say_change(*change)
    if not found:
        screen.say("nothing changed")


def _checkpoint_before(reader: Reader, run_id: str, here: int) -> int | None:
    """Return the checkpoint before the one that this place of the log belongs to; None if there is none."""
    places = [point.seq for point in reader.checkpoints(run_id) if point.current and point.seq <= here]
    earlier = [seq for seq in places if seq < here]
    if here not in places and len(earlier) > 1:
        return earlier[-2]  # the end of a log is after its last checkpoint, which made the latest change
    return earlier[-1] if earlier else None


_ABSENT = object()


def changes(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, str, Any, Any]]:
    """Yield each difference of two values: `+` (added), `-` (removed) or `~` (changed), its path, the old and the new value."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            yield from changes(
                then.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}" if path else str(key)
            )
    elif isinstance(then, list) and isinstance(now, list):
        for number in range(max(len(then), len(now))):
            was = then[number] if number < len(then) else _ABSENT
            is_now = now[number] if number < len(now) else _ABSENT
            yield from changes(was, is_now, f"{path}[{number}]")
    elif then is _ABSENT:
        yield "+", path, None, now
    elif now is _ABSENT:
        yield "-", path, then, None
    elif then != now or type(then) is not type(now):
        yield "~", path, then, now


def _say_change(sign: str, path: str, was: Any, is_now: Any) -> None:
    old, new = (screen.one_line(screen.json_text(value, indent=None), 200) for value in (was, is_now))
    change = {"+": new, "-": old, "~": f"{old} → {new}"}[sign]
    screen.say(
        (f"{sign} ", {"+": "green", "-": "red", "~": "yellow"}[sign]), f"{screen.one_line(path)}: {change}"
    )


@command(LOOK)
def checkpoints(
    run_id: options.RunId,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List the checkpoints that a run can be resumed or forked from.

    SIZE is the stored size of the checkpoint's event, without large values that are stored as blobs.
    """
    commands = command_line(store=store)

    def use(reader: Reader) -> tuple[list[Checkpoint], bool, list[str]]:
        nonlocal commands
        final = reader.store.run(run_id).status in FINAL
        with suppress(StoreError):  # a damaged log has checkpoints all the same
            commands = commands.for_flow_of(history.flow_file(reader.store, run_id))
        return reader.checkpoints(run_id), final, _rest(reader, run_id)

    found, final, rest = stores.read(store, use)
    if as_json:
        screen.say_json(found)
        return
    _say_rest(rest)
    screen.say_table(["CHECKPOINT", "TIME", "AFTER", "NODE", "VISIT", "SIZE", ""], [
        [
            (point.id, "" if point.current else "dim"),
            (screen.time_of_day(point.at), "dim"),
            point.kind if point.layer is None else f"{point.kind} {point.layer}",
            point.node or "",
            f"{point.iteration}.{point.execution}" if point.node else "",
            screen.size(point.size),
            ("" if point.current else "not current since a rewind", "dim"),
        ]
        for point in found
    ])  # fmt: skip
    screen.say("")
    resume = commands.line("resume", f"{run_id}@SEQ", *commands.file_words())
    rewind = (resume, "go back to a checkpoint and continue from there")
    fork = (commands.line("fork", f"{run_id}@SEQ"), "continue from a checkpoint in a new run")
    say_commands([fork] if final else [rewind, fork])


@command(CHECK)
def verify(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            callback=options.check_run_id,
            help="Check only this run. Default: all runs and the database of the store.",
        ),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Check that stored runs are exactly what was written.

    Checks the sequence of events, their hash chain, the blobs they refer to, and that the run's row agrees with its log.
    """

    def use(reader: Reader) -> tuple[list[LogVerdict], list[str]]:
        if run_id is not None:
            return [_verdict(reader, run_id)], []
        verdicts: list[LogVerdict] = []
        definitions: dict[str, list[str]] = {}
        with gauge(quiet=as_json) as tell:
            tell("the database", 0, 0)
            damage = reader.store.check()
            for row in rows_of(reader.store, Query(limit=_PAGE)):
                with suppress(RunNotFound):  # deleted meanwhile
                    verdicts.append(_verdict(reader, row.run_id, row=row, definitions=definitions))
                tell(row.run_id, len(verdicts), 0)
        return verdicts, damage

    verdicts, damage = stores.read(store, use)
    with screen.unread():
        _say_verdicts(verdicts, damage, as_json=as_json)
    if damage or any(verdict.problems and not verdict.too_new for verdict in verdicts):
        return Exit.DAMAGED
    return Exit.STORE if any(verdict.too_new for verdict in verdicts) else Exit.OK


def _say_verdicts(verdicts: list[LogVerdict], damage: list[str], *, as_json: bool) -> None:
    broken = [verdict for verdict in verdicts if verdict.problems]
    well = not (broken or damage)
    if as_json:
        screen.say_json({"ok": well, "store": damage, "runs": verdicts})
        return
    for problem in damage:
        screen.say(("✗ store  ", "red"), problem)
    for verdict in broken:
        screen.say((f"✗ {verdict.run_id}  ", "red"), "; ".join(verdict.problems))
    read = sum(verdict.events for verdict in verdicts)
    for verdict in verdicts:
        if verdict.rest:
            screen.say(("  ", "dim"), f"{verdict.run_id}  {verdict.rest}")
    if well:
        screen.say(
            ("✓ ", "green"),
            f"{screen.count(len(verdicts), 'run')}, {screen.count(read, 'event')}: all exactly as written",
        )
    elif damage or any(not verdict.too_new for verdict in broken):
        screen.say(
            "Restore the store from a backup, or continue with the undamaged runs; a run with damaged events is not resumed."
        )


def _verdict(reader: Reader, run_id: str, **known: Any) -> LogVerdict:
    """Verify one run. A run that cannot be read is reported as damaged, so that the check of the others continues."""
    try:
        return verify_run(reader.store, run_id, **known)
    except (StoreCorrupt, SchemaTooNew) as fault:
        too_new = isinstance(fault, SchemaTooNew)
        return LogVerdict(run_id=run_id, events=0, problems=[str(fault)], too_new=too_new)
