"""Progress of a run while it executes: a live list of nodes on a terminal, one line per event otherwise. Always on stderr.

Output must never disturb the run. The event loop only puts events into a queue; one thread of its own folds them into a story
and writes. A terminal that blocks stops that thread, not the run; after its reader has closed the pipe it prints nothing.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.cli import screen
from holdfast.core.definition import Definition
from holdfast.core.drawing import MARKS
from holdfast.core.run_state import VISIT_DONE
from holdfast.errors import RunNotFound, StoreError
from holdfast.reading import words
from holdfast.reading.chunks import Chunk
from holdfast.reading.story import Line, NodeSeen, Story
from holdfast.reading.views import EventView, Run
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.engine import Engine
from holdfast.storage.leases import this_process

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")

_FRAME_S = 0.1
_NODES_SHOWN_MAX = 24
_LOOK_AGAIN_S = 0.02


class Stop(msgspec.Struct, frozen=True):
    """A signal that asked this process to stop."""

    by: str
    grace_s: float


class Display:
    """Tells events to a person, from a thread of its own. `quiet` tells nothing."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title = title
        self._story = Story()
        self._events: queue.SimpleQueue[EventView | Chunk | Stop | None] = queue.SimpleQueue()
        self._stops: list[Stop] = []
        self._thread: threading.Thread | None = None
        if not quiet:
            live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
            self._thread = threading.Thread(
                target=self._live if live else self._lines, name="holdfast-progress", daemon=True
            )

    def open(self, definition: Definition | None, before: Run[Any] | None) -> None:
        """Begin, with the flow and with the run as it was."""
        if self._thread is not None:
            self._story = Story(definition, before)
            self._thread.start()

    def tell(self, event: EventView | Chunk) -> None:
        if self._thread is not None:
            self._events.put(event)

    def stop(self, asked: Stop) -> None:
        """Tell that the run is being stopped. May be called by a signal handler: the queue can be entered twice."""
        if self._thread is not None:
            self._events.put(asked)

    def close(self) -> None:
        """Tell what is left, and stop. Called when the run no longer depends on this process."""
        if self._thread is not None and self._thread.is_alive():
            self._events.put(None)
            self._thread.join()

    # --- on the display's own thread ------------------------------------------------------------------

    def _lines(self) -> None:
        with suppress(OSError, ValueError):
            while (event := self._events.get()) is not None:
                if isinstance(event, Stop):
                    self._stops.append(event)
                    screen.say(("; ".join(self._stopping()), "yellow"), err=True)
                elif isinstance(event, Chunk):
                    self._story.stream(event)  # the end of the node says how many there were
                elif line := self._story.tell(event):
                    screen.say((screen.time_of_day(event.at) + "  ", "dim"), *parts_of(line), err=True)

    def _live(self) -> None:
        from rich.live import Live

        story, clock = self._story, SystemClock()
        began_at = clock.now()
        with (
            suppress(OSError, ValueError),
            Live(console=screen.console(err=True), auto_refresh=False) as live,
        ):
            while True:
                more = self._take()
                live.update(self._frame(story, clock.now(), began_at), refresh=True)
                if not more:
                    return

    def _take(self) -> bool:
        """Tell the story all events there are, waiting a frame's time for the first. False: there will be no more."""
        with suppress(queue.Empty):
            event = self._events.get(timeout=_FRAME_S)
            while event is not None:
                if isinstance(event, Stop):
                    self._stops.append(event)
                elif isinstance(event, Chunk):
                    self._story.stream(event)
                else:
                    self._story.tell(event)
                event = self._events.get_nowait()
            return False
        return True

    def _stopping(self) -> list[str]:
        """What happens since this process was asked to stop, and what a second signal does."""
        asked = self._stops[0]
        if len(self._stops) > 1:
            return [f"leaving at once ({self._stops[1].by})"]
        going = [name for name, seen in self._story.nodes.items() if seen.status == "running"]
        waits = [f"waits up to {screen.duration(asked.grace_s)} for {' and '.join(going)}"] if going else []
        return [f"stopping ({asked.by}): nothing new starts", *waits, f"{asked.by} again leaves at once"]

    def _frame(self, story: Story, now: float, began_at: float) -> Text:
        done = sum(seen.status in VISIT_DONE for seen in story.nodes.values())
        status = _status(story)
        spent = f"  {words.cost(story.cost)}" if words.cost(story.cost) else ""
        counted = f"{done} of {screen.count(len(story.nodes), 'node')}"
        frame = screen.text(
            (f"{MARKS.get(status, ' ')} {status}", screen.STYLES.get(status, "")),
            ("  " + self.title, "bold"),
            (f"  {counted} done  {screen.duration(now - began_at)}{spent}", "dim"),
        )
        if self._stops and story.status == "running":
            frame.append_text(screen.text(("\n" + "\n  ".join(self._stopping()), "bold yellow")))
        shown = _worth_showing(story)
        width = max((len(name) for name, _ in shown), default=0)
        for name, seen in shown:
            frame.append("\n")
            frame.append_text(_row(name, seen, width, now))
        if len(shown) < len(story.nodes):
            frame.append(f"\n  … and {len(story.nodes) - len(shown)} more nodes", "dim")
        frame.no_wrap = True
        frame.overflow = "ellipsis"
        return frame


def _status(story: Story) -> str:
    """The run as its nodes make it: one of which nothing runs and something waits, waits."""
    statuses = {seen.status for seen in story.nodes.values()}
    waits = story.status == "running" and "waiting" in statuses and "running" not in statuses
    return "waiting" if waits else story.status


def _worth_showing(story: Story) -> list[tuple[str, NodeSeen]]:
    """All nodes of a small flow; of a large one those where something happens."""
    if len(story.nodes) <= _NODES_SHOWN_MAX:
        return list(story.nodes.items())
    order = {"failed": 0, "waiting": 1, "running": 2, "interrupted": 3, "pending": 4}
    busy = [(name, seen) for name, seen in story.nodes.items() if seen.status in order]
    return sorted(busy, key=lambda pair: order[pair[1].status])[:_NODES_SHOWN_MAX]


def _row(name: str, seen: NodeSeen, width: int, now: float) -> Text:
    status = seen.status
    notes = []
    if seen.items_all is not None:
        notes.append(f"{seen.items_done}/{seen.items_all} items")
    if seen.iteration > 1:
        notes.append(f"iteration {seen.iteration}")
    if seen.attempt > 1:
        notes.append(f"attempt {seen.attempt}")
    if seen.steps:
        notes.append(screen.count(seen.steps, "step"))
    if seen.chunks and status == "running":
        notes.append(f"{screen.count(seen.chunks, 'chunk')}: {screen.one_line(seen.last_line)}")
    if seen.note:
        notes.append(screen.one_line(seen.note, 100))
    seconds = now - seen.started_at if status == "running" and seen.started_at else seen.seconds
    taken = screen.duration(seconds) if status else ""
    return screen.text(
        "  ",
        (MARKS.get(status, "·"), screen.STYLES.get(status, "dim")),
        (f" {screen.one_line(name).ljust(width)}", "" if status else "dim"),
        (f"  {taken.rjust(8)}", "dim"),
        (f"  {', '.join(notes)}" if notes else "", "red" if status == "failed" else "dim"),
    )


def parts_of(line: Line) -> list[screen.Part]:
    """A line of a story, with its mark and its colours."""
    style = screen.STYLES.get(line.status, "")
    note: list[screen.Part] = (
        [("  " + line.note, "red" if line.status == "failed" else "dim")] if line.note else []
    )
    return [(MARKS.get(line.status, " "), style), f" {screen.one_line(line.name)}", *note]


# --- following ---------------------------------------------------------------------------------------


async def shown(
    engine: Engine, run_id: str, display: Display, verb: Callable[[], Awaitable[T]], *, joins: bool = False
) -> T:
    """Call a verb that executes a run, and pass every event of the run to the display as it becomes durable. `joins`: also those
    of the process that executes the run already.
    """
    after, before, flow = 0, None, next(iter(engine.flows.values()), None)
    with suppress(RunNotFound):
        row, before = engine.store.run(run_id), await engine.get(run_id)
        after, flow = row.seq, engine.flows.get(row.flow)
    display.open(flow.definition if flow is not None else None, before)
    going = asyncio.ensure_future(verb())
    watch = _Watch(engine, run_id, after, display, joins=joins)
    watcher = asyncio.ensure_future(watch.follow(going))
    try:
        with _signals_told(display, engine):
            await asyncio.wait({going})
    except asyncio.CancelledError:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        raise
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await watch.rest()
    return going.result()


@contextmanager
def _signals_told(display: Display, engine: Engine) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM that stop the engine are shown on the display, and then handled as before."""
    heard: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if engine.is_executing:
            by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            display.stop(Stop(by, engine.settings.grace))
        heard[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            listener = signal.getsignal(number)
            if callable(listener):
                heard[number] = listener
                signal.signal(number, handle)
    try:
        yield
    finally:
        for known, before in heard.items():
            # Otherwise the engine put another there, at the second signal.
            if signal.getsignal(known) is handle:
                signal.signal(known, before)


class _Watch:
    """How far the events of a run have been shown."""

    def __init__(
        self, engine: Engine, run_id: str, after: int, display: Display, *, joins: bool = False
    ) -> None:
        self.engine, self.run_id, self.after, self.display = engine, run_id, after, display
        self._mine = this_process().describe()
        self._taken_up = joins

    def _tell(self, event: EventView | Chunk) -> None:
        """Tell an event, if it is of what this process executes: until it has taken the run up, another may write."""
        if isinstance(event, EventView):
            self.after = event.seq
            self._taken_up = self._taken_up or self._takes_up(event)
        if self._taken_up:
            self.display.tell(event)

    def _takes_up(self, event: EventView) -> bool:
        match event.kind:
            case "RunResumed" | "RunClaimed":
                return event.body.get("holder") == self._mine
            # These do not say who wrote them: the lease does.
            case "RunCreated" | "RunRewound" | "ResumeRefused":
                row = self.engine.store.run(self.run_id)
                return not row.held or row.holder is None or row.holder.describe() == self._mine
            case _:
                return False

    async def follow(self, going: asyncio.Future[Any]) -> None:
        """Show events until the verb is done. `follow` ends at once for a run that has not been claimed yet: call it again."""
        while not going.done():
            with suppress(RunNotFound, StoreError):
                async for event in self.engine.follow(self.run_id, self.after, chunks=True):
                    self._tell(event)
            await asyncio.wait({going}, timeout=_LOOK_AGAIN_S)

    async def rest(self) -> None:
        """Tell what became durable since."""
        with suppress(RunNotFound, StoreError):
            for event in await self.engine.events(self.run_id, self.after):
                self._tell(event)
