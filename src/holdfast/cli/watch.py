"""`holdfast watch`: shows a list of runs, or one run, as they change; a screen on a terminal, otherwise a line for each change.

It only reads. It looks soon after a change, later if nothing changes, and never spends more than a small part of the time on
looks. If the store does not answer any more, it says so, keeps what it shows, and tries again. Ctrl-C ends it at once, also then,
and the terminal is restored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import options, screen, stores
from holdfast.cli.app import LOOK, command
from holdfast.cli.exits import OF_STATUSES, Exit
from holdfast.cli.faults import say_where
from holdfast.cli.listing import RunInList, row_as_json
from holdfast.cli.looks import look_of_run, shown
from holdfast.cli.progress import parts_of
from holdfast.cli.suggestions import command_line, say_remedies
from holdfast.cli.watch_frames import Line, Viewport, list_frame, list_rows, node_lines, run_frame, run_head
from holdfast.cli.watch_outputs import ScreenOutput, Watched, as_shown, choose_output
from holdfast.cli.watch_session import WatchSession
from holdfast.errors import SettingError
from holdfast.reading.diagnosis import Diagnosis, diagnosis_as_json
from holdfast.reading.pages import ListedRun
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.story import Story
from holdfast.reading.views import held_by
from holdfast.reading.watched import RunSeen, RunsSeen, RunWatch, look_at_runs
from holdfast.runtime.clock import SystemClock
from holdfast.storage.contract import Query, RunRow

LIST_S = 1.0
"""How often a list of runs is read at most: as often as for the web page."""
LIMIT = 50
"""How many runs are watched if the output is not a terminal."""
_NODES_AT_END = 40


@command(LOOK)
def watch(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            callback=options.check_run_id,
            help="The id of the run to watch, until it is over. Default: a list of runs.",
        ),
    ] = None,
    status: options.OnlyStatus = None,
    flow: options.OnlyFlow = None,
    label: options.OnlyLabel = None,
    parent: options.OnlyParent = None,
    origin: options.OnlyOrigin = None,
    queue: options.OnlyQueue = None,
    attention: options.Attention = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help=f"How many runs to watch at most, newest first. Default: as many as fit on the terminal, otherwise {LIMIT}.",
        ),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Watch runs, or one run, live in the terminal.

    With RUN, the command ends when the run is over, with the exit code of a command that executes it. Ctrl-C ends it at any time;
    runs are not affected.
    """
    query = options.read_query(status, flow, label, parent, origin, queue, limit=limit or LIMIT)
    if run_id is not None and (attention or limit or query != Query(limit=LIMIT)):
        raise SettingError(
            f"the options that choose runs are for a list of runs. Watch run {run_id!r} without them, or leave the run out."
        )
    commands = command_line(store=store)
    with _terminable(), stores.reading(store) as reader:
        output = choose_output(as_json=as_json)
        watched: Watched
        if run_id is None:
            watched = WatchedList(reader, query, commands, attention=attention, is_limited=limit is not None)
        else:
            watched = WatchedRun(
                reader, run_id, commands, streams=isinstance(output, ScreenOutput), debug=debug
            )
        try:
            return WatchSession(watched, output, SystemClock()).run()
        except (KeyboardInterrupt, _Terminated) as left:
            if isinstance(output, ScreenOutput):
                watched.say_farewell()
            if isinstance(left, _Terminated):
                return Exit.TERMINATED
            raise


class _Terminated(BaseException):
    """SIGTERM."""


@contextmanager
def _terminable() -> Iterator[None]:
    """During the block, let SIGTERM raise `_Terminated`, so that the terminal is restored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what is watched ---------------------------------------------------------------------------------


def _key(row: RunRow, found: Diagnosis, requested: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Return what must differ for a run to have changed. Nodes that follow each other, and durations, do not count."""
    return look_of_run(found).word, found.kind, held_by(row), found.expects, row.error, requested


def _news_of(row: RunRow, found: Diagnosis, at: float) -> Line:
    return [
        (screen.time_of_day(at)[:8] + "  ", "dim"),
        *shown(look_of_run(found)),
        f"  {row.run_id}  {row.flow}  {screen.one_line(found.reason)}",
    ]


def _document(row: RunRow, found: Diagnosis, requested: tuple[str, ...] = ()) -> dict[str, Any]:
    asks = [question.key for question in found.questions]
    return row_as_json(RunInList(row, found, asks, list(requested))) | diagnosis_as_json(found)


class WatchedRun(Watched):
    """One run. It is over when the run was completed, failed or cancelled."""

    def __init__(
        self, reader: Reader, run_id: str, commands: CommandLine, *, streams: bool, debug: bool
    ) -> None:
        self._watch = RunWatch(reader, run_id, commands, streams=streams)
        self._story = None if streams else Story(self._watch.seen.definition, reader.get(run_id))
        self._debug = debug
        self._key: tuple[Any, ...] | None = None
        self._lines: list[Line] = []

    @property
    def _seen(self) -> RunSeen:
        return self._watch.seen

    def look(self, now: float, size: tuple[int, int]) -> bool:
        has_changed = self._watch.look(now)
        self.is_behind, self.at = self._watch.is_behind, self._seen.at
        if self._seen.is_over and not self.is_behind:
            self.code = int(OF_STATUSES[self._seen.row.status])
        if self._story is not None:
            for event in self._watch.take_events():
                if line := self._story.tell(event):
                    time_of = (screen.time_of_day(event.at)[:8] + "  ", "dim")
                    self._lines.append([time_of, *parts_of(line)])
        return has_changed

    def frame(self, view: Viewport) -> list[Line]:
        return run_frame(self._seen, view)

    def news(self) -> list[Line]:
        lines, self._lines = self._lines, []
        seen = self._seen
        return [*lines, _news_of(seen.row, seen.found, seen.at)] if self._is_new(()) else lines

    def documents(self) -> list[dict[str, Any]]:
        seen, self._lines = self._seen, []
        if not self._is_new(seen.nodes):
            return []
        return [_document(seen.row, seen.found) | {"nodes": seen.nodes}]

    def _is_new(self, more: Any) -> bool:
        before, self._key = self._key, (*_key(self._seen.row, self._seen.found), more)
        return before != self._key

    def say_end(self, *, whole: bool) -> None:
        seen = self._seen
        if whole:
            view = Viewport(width=screen.picture_width(), height=0, now=seen.at)
            for line in [*run_head(seen, view), [], *node_lines(seen, view, _NODES_AT_END)]:
                screen.say(*as_shown(line))
            screen.say("")
        if seen.row.status == "failed":
            say_where(seen.failure, debug=self._debug)
            say_remedies(seen.found.remedies)
        ended = {"completed": "it was completed", "cancelled": "it was cancelled"}
        screen.say(f"The run is over: {ended.get(seen.row.status, 'it failed')}.")

    def say_farewell(self) -> None:
        seen = self._seen
        screen.say(*as_shown(_news_of(seen.row, seen.found, seen.at)))
        screen.say((f"You stopped watching; run {seen.row.run_id} is not affected.", "dim"))


class WatchedList(Watched):
    """The runs that meet some conditions, newest first. It is never over."""

    shortest_s = LIST_S

    def __init__(
        self, reader: Reader, query: Query, commands: CommandLine, *, attention: bool, is_limited: bool
    ) -> None:
        self._reader, self._query, self._commands = reader, query, commands
        self._attention, self._is_limited = attention, is_limited
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._changed: list[ListedRun] = []
        self._seen: RunsSeen | None = None

    def _fitted(self, size: tuple[int, int]) -> Query:
        """Return which runs to read: as many as a screen shows, unless the caller has said how many, or there is no screen."""
        if self._is_limited or not all(size):
            return self._query
        return msgspec.structs.replace(self._query, limit=list_rows(size[1], size[0]))

    def look(self, now: float, size: tuple[int, int]) -> bool:
        query = self._fitted(size)
        self._seen = seen = look_at_runs(self._reader, query, self._commands, attention=self._attention)
        self.at = seen.at
        if not all(size):
            self._changed += self._changes(seen.runs)
        return True

    def frame(self, view: Viewport) -> list[Line]:
        assert self._seen is not None
        return list_frame(self._seen, self._query, view, attention=self._attention)

    def news(self) -> list[Line]:
        return [_news_of(one.row, one.found, self.at) for one in self._take_changed()]

    def documents(self) -> list[dict[str, Any]]:
        return [_document(one.row, one.found, one.requested) for one in self._take_changed()]

    def _take_changed(self) -> list[ListedRun]:
        changed, self._changed = self._changed, []
        return changed

    def _changes(self, runs: Iterable[ListedRun]) -> list[ListedRun]:
        """Return the runs that are new or have changed, oldest first, with those that do not meet the conditions any more."""
        listed = {one.row.run_id: one for one in runs}
        gone = tuple(run_id for run_id in self._keys if run_id not in listed)
        left, _ = self._reader.list_runs(Query(ids=gone), self._commands) if gone else ([], False)
        before, found = self._keys, [*left, *listed.values()]
        keys = {one.row.run_id: _key(one.row, one.found, one.requested) for one in found}
        self._keys = {run_id: keys[run_id] for run_id in listed}
        return [one for one in reversed(found) if keys[one.row.run_id] != before.get(one.row.run_id)]

    def say_end(self, *, whole: bool) -> None:
        """Do nothing: a list is never over."""

    def say_farewell(self) -> None:
        """Print nothing: the runs were not affected, and the shell shows that the command has ended."""
