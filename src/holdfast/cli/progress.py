"""Shows the progress of a run on stderr: a live list of nodes on a terminal, one line per event otherwise.

Output must never disturb the run. The event loop only puts events into a queue; a separate thread folds them into a `Story` and
prints. A terminal that blocks stops that thread, not the run; if the reader closes the pipe, nothing more is printed.
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
from holdfast.core.graph import Flow
from holdfast.core.run_state import VISIT_DONE
from holdfast.errors import RunNotFound, StoreError
from holdfast.reading import words
from holdfast.reading.chunks import Chunk
from holdfast.reading.known_flows import find_flow
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
    """A signal (SIGINT, SIGTERM) that asked this process to stop."""

    by: str
    grace_s: float


class Display:
    """Prints the events of a run, from a separate thread. If `quiet` is true, it prints nothing."""

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
        """Start the display, with the definition of the flow and the run as it was before this command."""
        if self._thread is not None:
            self._story = Story(definition, before)
            self._thread.start()

    def tell(self, event: EventView | Chunk) -> None:
        if self._thread is not None:
            self._events.put(event)

    def stop(self, asked: Stop) -> None:
        """Show that the run is being stopped. Safe to call from a signal handler, because the queue is reentrant."""
        if self._thread is not None:
            self._events.put(asked)

    def close(self) -> None:
        """Print the remaining events and stop the display. Called when the run no longer depends on this process."""
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
                    self._story.stream(event)  # printed only as a count, when the node ends
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
        """Pass all queued events to the story; wait for the first one until the next redraw is due. Returns False after the
        last event.
        """
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
        """Return lines that say what the process waits for before it stops, and what a second signal does."""
        asked = self._stops[0]
        if len(self._stops) > 1:
            return [f"stopping at once ({self._stops[1].by})"]
        going = [name for name, seen in self._story.nodes.items() if seen.status == "running"]
        waits = [f"waiting up to {screen.duration(asked.grace_s)} for {' and '.join(going)}"] if going else []
        return [f"stopping ({asked.by}): no new node starts", *waits, f"{asked.by} again stops at once"]

    def _frame(self, story: Story, now: float, began_at: float) -> Text:
        done = sum(seen.status in VISIT_DONE for seen in story.nodes.values())
        status = _status(story)
        spent = f"  {words.cost(story.cost)}" if words.cost(story.cost) else ""
        if words.cost(story.children_cost):
            spent += f"  children {words.cost(story.children_cost)}"
        counted = f"{done} of {screen.count(len(story.nodes), 'node')}"
        mark = MARKS.get("paused" if status == "pausing" else status, " ")
        frame = screen.text(
            (f"{mark} {status}", screen.STYLES.get(status, "")),
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
    """Return the status of a run by its nodes: it is waiting if a node waits and none runs, and pausing if one still runs."""
    statuses = {seen.status for seen in story.nodes.values()}
    waits = story.status == "running" and "waiting" in statuses and "running" not in statuses
    if story.status == "paused" and "running" in statuses:
        return "pausing"
    return "waiting" if waits else story.status


def _worth_showing(story: Story) -> list[tuple[str, NodeSeen]]:
    """Return all nodes of a small flow; for a large flow, the nodes that failed, wait or are active."""
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
    """Return a line of a story as styled parts, with its mark and colours."""
    style = screen.STYLES.get(line.status, "")
    note: list[screen.Part] = (
        [("  " + line.note, "red" if line.status == "failed" else "dim")] if line.note else []
    )
    return [(MARKS.get(line.status, " "), style), f" {screen.one_line(line.name)}", *note]


# --- following ---------------------------------------------------------------------------------------


async def shown(
    engine: Engine,
    run_id: str,
    display: Display,
    verb: Callable[[], Awaitable[T]],
    *,
    joined_at: int | None = None,
) -> T:
    """Call `verb`, which executes a run, and pass every event of the run to the display as it becomes durable. If another
    process executes it already, its events after number `joined_at` are passed.
    """
    after, before, flow = 0, None, next(iter(engine.flows.values()), None)
    with suppress(RunNotFound):
        row, before = engine.store.run(run_id), await engine.get(run_id)
        after, flow = row.seq, find_flow(engine.store, engine.flows, row)
    after = after if joined_at is None else joined_at  # the run may have ended since
    display.open(flow.definition if isinstance(flow, Flow) else None, before)
    going = asyncio.ensure_future(verb())
    watch = _Watch(engine, run_id, after, display, joins=joined_at is not None)
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
    """During the block, show signals that stop the engine on the display. All signals are handled as usual."""
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
            # If it is another handler, the engine installed it at the second signal; leave it there.
            if signal.getsignal(known) is handle:
                signal.signal(known, before)


class _Watch:
    """Passes the events of a run to a display, each once."""

    def __init__(
        self, engine: Engine, run_id: str, after: int, display: Display, *, joins: bool = False
    ) -> None:
        self.engine, self.run_id, self.after, self.display = engine, run_id, after, display
        self._mine = this_process().describe()
        self._taken_up = joins

    def _tell(self, event: EventView | Chunk) -> None:
        """Show an event if this process wrote it. Until this process has claimed the run, another process may still write
        events.
        """
        if isinstance(event, EventView):
            self.after = event.seq
            self._taken_up = self._taken_up or self._takes_up(event)
        if self._taken_up:
            self.display.tell(event)

    def _takes_up(self, event: EventView) -> bool:
        match event.kind:
            case "RunResumed" | "RunClaimed":
                return event.body.get("holder") == self._mine
            # These events do not name the process that wrote them; the lease does.
            case "RunCreated" | "RunRewound" | "RequestRefused" | "ResumeRefused":
                row = self.engine.store.run(self.run_id)
                return not row.held or row.holder is None or row.holder.describe() == self._mine
            case _:
                return False

    async def follow(self, going: asyncio.Future[Any]) -> None:
        """Show events until `going` is done. `Engine.follow` returns at once if no process has claimed the run yet, so it is
        called in a loop.
        """
        while not going.done():
            with suppress(RunNotFound, StoreError):
                async for event in self.engine.follow(self.run_id, self.after, chunks=True):
                    self._tell(event)
            await asyncio.wait({going}, timeout=_LOOK_AGAIN_S)

    async def rest(self) -> None:
        """Show the events that became durable since the last one shown."""
        with suppress(RunNotFound, StoreError):
            for event in await self.engine.events(self.run_id, self.after):
                self._tell(event)
