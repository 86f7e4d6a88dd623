"""`Runner` drives one run in a loop: ask `decide`, record the events, save them, call the nodes, and record how they ended.

The order of these steps is the promise. The end of a node and the starts that follow from it are recorded together and saved
in one append; only when that is durable are the nodes called (`durability="sync"`, the default). `"async"` calls them while the
append is under way and waits for it before the next one; `"exit"` saves when the run stops. A node that is not idempotent,
or that a policy or a verification judges, is always called after its start is durable.

The runner stops when the run has ended, or cannot continue without an answer, a signal or an edit. It then releases the
lease. A `Halt` (shutdown, cancel, timeout) stops the nodes first, and records which were interrupted.

A run has no coroutine. Instead, `_advance` is called (a look) whenever a node has ended, a request has arrived, or a timer is
due: a step then costs one pass of the event loop, not three. The phases:

    RESTING ── look ──▶ DECIDING ── save ──▶ HANDING_OVER ── the look ends ──▶ SAVING
       ▲                  │    ▲                  │                               │
       ├── the look ends ─┘    └───── saved ──────┘                               │
       └──────────────────────────────── saved ───────────────────────────────────┘

A look in any other phase than RESTING is only noted (`_again`), and follows later: in the loop of `_advance`, or at the end of
the save. So there is never more than one append under way, and no look inside another. The future `done` ends the runner in
every phase: when it is set, nothing more is decided, recorded or called.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any, TypeVar

from holdfast.core import commands, events
from holdfast.core.cleanup import Unfinished
from holdfast.core.decide import decide
from holdfast.core.graph import Flow, Node
from holdfast.core.run_state import FINAL, HALTED, STOPPED, visit_of
from holdfast.errors import LogLimit, RunHeld
from holdfast.reading import inbox
from holdfast.reading.chunks import Chunk
from holdfast.reading.inbox import AnyRequest
from holdfast.runtime import failures, judging, nesting, outcomes, recorders
from holdfast.runtime.calls import task_family
from holdfast.runtime.calls.attempt import Attempt
from holdfast.runtime.calls.body import UNWIND_S, Body, Parked, Stopped
from holdfast.runtime.calls.call_places import CallPlace
from holdfast.runtime.calls.context import BlockingContext, Context, function_of, run_generator, running_loop
from holdfast.runtime.calls.executors import Call
from holdfast.runtime.calls.streams import Segment, drop_saved
from holdfast.runtime.clock import Timer
from holdfast.runtime.holdings import Halt, HeldRun, lease_lost
from holdfast.runtime.journal import Journal
from holdfast.runtime.listeners import NodeCall
from holdfast.runtime.perform import give_up, perform
from holdfast.runtime.received_requests import ReceivedRequests
from holdfast.runtime.recorders import REFUSALS
from holdfast.runtime.rehearsals import refuse_stale
from holdfast.runtime.services import AbandonedCall

T = TypeVar("T")
SOON_S = 1.0
"""Seconds for which a waiting coroutine stays in memory, at most, in a worker and in an engine whose caller blocks until the
run returns.
"""
_EXIT_EVENTS_MAX = 1000
_CALLS = (commands.StartNode, commands.StartItem)
_PATIENCE_S = 30.0
"""Seconds for which the thread of an abandoned attempt may still run before the next attempt fails, if the node has no timeout.
"""


class Phase(IntEnum):
    """What a runner is doing; see the picture at the top of this file."""

    RESTING = 0
    """The runner waits for a node, a timer or a request."""
    DECIDING = 1
    """The runner decides what is next: `_advance` is on the stack."""
    HANDING_OVER = 2
    """`_advance` is on the stack, and an append is under way, which may be durable before `_advance` returns."""
    SAVING = 3
    """An append is under way, and `_advance` has returned."""


_RESTING, _DECIDING, _HANDING_OVER, _SAVING = Phase
_AFTER_LOOK = (_RESTING, _RESTING, _SAVING, _SAVING)
"""Phase -> the phase when `_advance` returns."""
_AFTER_SAVE = (_RESTING, _DECIDING, _DECIDING, _RESTING)
"""Phase -> the phase when an append is durable, or has failed."""


class LongWait(IntEnum):
    """What a runner does with a run that only waits, and for longer than `patience_s`."""

    STAY = 0
    """Keep the run in memory."""
    SLEEP = 1
    """Stop, and keep the lease: the run is loaded again when it is due (`asleep_until`)."""
    LEAVE = 2
    """Stop, and release the lease: another engine may claim the run when it is due."""


class Runner:
    """Drives one run that this engine holds."""

    on_long_wait = LongWait.STAY
    patience_s = 0.0
    is_of_worker = False
    """True if a worker drives the run: then workers execute its children too."""
    is_crowded: Callable[[], bool] = staticmethod(lambda: False)
    """Returns whether the children of waiting runs need the slot that this run has."""
    _phase = _RESTING
    _again = False
    """True if `_advance` must look at the run again."""
    _look_is_scheduled = False
    """True if a call of `_advance` is scheduled on the event loop."""
    _owes = False
    """True if a node that is not idempotent has ended since the last save: its end must be durable before another node starts."""
    _grace: Timer | None = None
    _unwinding: Timer | None = None
    _over_at: float | None = None
    _timer: Timer | None = None

    def __init__(self, journal: Journal) -> None:
        journal.begin_execution()
        self.journal = journal
        self.services = journal.services
        self.flow: Flow[Any] = journal.flow
        self.state = journal.state
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asleep_until: float | None = None
        """When to load the run again, if the runner has stopped because the run only waits, and for long; otherwise None."""
        self._halt: Halt | None = None
        self._around = contextvars.copy_context()
        """The context variables of the caller. Each node gets a copy, so that no node sees what another one has set."""
        self._around.run(
            nesting.enter, self.services.holdings, self.services.store.generation, self.state.run_id
        )
        self._bodies: dict[tuple[str, int | None], Body] = {}
        self._haunted = self.services.haunted.get(self.state.run_id, {})
        """The abandoned calls of this run whose threads still run, by node and item."""
        self._unfinished: dict[tuple[str, int | None], Unfinished] = {}
        """Node and item of each call that was stopped before its code had ended, although its thread may have ended since."""
        self._ended: list[Body] = []
        self._streams: list[tuple[int, Segment]] = []
        """Recorded segments of streams, each with the seq of its event: when that event is saved, the spill of the segment is
        deleted.
        """
        self._asked: dict[tuple[str, int | None], CallPlace] | None = None
        """Node and item -> the place that a call waits for, or has got since the last look: its start is not recorded yet. None
        until a call needs a place, as in most runs, of which very many may wait."""
        self._placed: dict[tuple[str, int | None], CallPlace] | None = None
        """Node and item -> the place of a call whose start is recorded, until it is called."""
        self._requests = ReceivedRequests(journal)
        self._cancels: list[str] = []
        """Ids of the requests to cancel the run. They stay in the inbox until the cancellation is recorded, because this process
        may die while the nodes are being stopped.
        """
        self._durability = self.state.options.get("durability", "sync")
        self._calls: list[Body] | None = []
        """The nodes to call when the append under way is durable; None if that is the last append of this runner."""
        self.park_after_s = self.services.park_soon
        """Seconds for which a waiting coroutine stays in memory before it is unwound."""

    # --- from outside ---------------------------------------------------------------------------------

    @property
    def fence(self) -> int:
        return self.journal.fence

    @property
    def has_requests(self) -> bool:
        """True if this runner has requests that it has not carried out yet."""
        return bool(self._requests)

    def request(self, request: AnyRequest) -> None:
        """Carry out a request, once, as soon as possible."""
        if self._requests.add([request]):
            self._advance()

    def leave_long_waits(self, is_crowded: Callable[[], bool] = lambda: False) -> None:
        """Release the run when it only waits: in a worker, it has a slot and a place in its queue that other runs could use. If
        `is_crowded` returns true, its children need that slot: then the run leaves as soon as it only waits.
        """
        self.is_crowded, self.is_of_worker = is_crowded, True
        self.park_after_s = self.patience_s = min(self.services.park_after, SOON_S)
        self.on_long_wait = LongWait.LEAVE

    @property
    def only_waits(self) -> bool:
        """True if every node that is called now only waits, and no call waits for a place."""
        bodies = self._bodies.values()
        return (
            bool(bodies)
            and not self._asked
            and all(body.work is not None and body.work.only_waits for body in bodies)
        )

    def awaits_child(self) -> None:
        """Note that a node waits for a child now. All nodes are unwound if the child may need the slot of this run; otherwise
        those that wait for children, if these can only wait themselves.
        """
        if self.is_crowded():
            self._park_all()
        elif (families := self.services.made_families) is not None and families.is_at_rest(self.state.run_id):
            self.leave_children()

    def leave_children(self) -> None:
        """Unwind the nodes that only wait for children, because these can only wait themselves."""
        if not self.has_requests:  # such as the end of a child
            for body in list(self._bodies.values()):
                if body.work is not None:
                    body.work.leave_children()

    def is_room_wanted(self, body: Body) -> bool:
        """Return whether other calls begin only when this one has ended or unwound: further items of its fan-out, other nodes of
        the run if `max_parallel` are running, or calls that wait for its place.
        """
        name, item = body.key
        if body.place is not None and body.place.is_wanted:
            return True
        if item is None:
            return self.state.running >= self.flow.definition.max_parallel and bool(self.journal.ready.due)
        items, options = self.state.nodes[name].items, self.flow.nodes[name].options
        if (
            items is None or options.calls is not None
        ):  # items that wait for a child run count, in memory or not
            return False
        return items.begun < len(items.values) and len(items.running) >= options.limit

    def is_current(self, body: Body) -> bool:
        """Return whether an attempt may still record events, because it was not abandoned."""
        return self._bodies.get(body.key) is body and not body.cancelled and not self.done.done()

    def cleans_up(self, body: Body) -> bool:
        """Return whether a stopped attempt may still record steps, because the run is being cancelled and the attempt unwinds."""
        is_cancel = self._halt is not None and self._halt.kind == "cancel" and not body.timed_out
        return is_cancel and self._bodies.get(body.key) is body and not self.done.done()

    def look_again(self) -> None:
        """Save an event that was just recorded, together with others that are recorded in this pass of the event loop."""
        if not self._look_is_scheduled:
            self._look_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_is_scheduled = False
        self._advance()

    def wake(self) -> None:
        """Look at the run again: something that it waited for may have changed."""
        self._advance()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start no more nodes, and stop the running ones after `grace_s` seconds; at once if that is 0."""
        if self._halt is None:
            self._halt = halt
        if self._grace is not None:
            self._grace.cancel()
        if halt.kind == "interrupt":
            self._park_all()
        if grace_s > 0 and self._bodies:
            clock = self.services.clock
            self._grace = clock.call_at(clock.now() + grace_s, self._stop_bodies)
        else:
            self._stop_bodies()

    def _park_all(self) -> bool:
        """Unwind the nodes that are waiting. Returns whether all nodes that are called now unwind, or may do so at once."""
        bodies = list(self._bodies.values())
        for body in bodies:
            if body.work is not None and body.parking is None:
                body.work.park()
        return all(
            body.parking is not None or (body.work is not None and body.work.is_settling) for body in bodies
        )

    def _stop_bodies(self) -> None:
        """Stop the running nodes. A coroutine that does not end is abandoned after `UNWIND_S` seconds, or when this method is
        called again.
        """
        if self._unwinding is None:
            clock = self.services.clock
            for body in list(self._bodies.values()):
                body.stop()
            self._unwinding = clock.call_at(clock.now() + UNWIND_S, self._give_up_bodies)
        else:
            self._give_up_bodies()
        self._advance()

    def _give_up_bodies(self) -> None:
        for body in list(self._bodies.values()):
            body.give_up()

    # --- the loop -------------------------------------------------------------------------------------

    async def drive(self, requests: Iterable[AnyRequest] = ()) -> None:
        """Drive the run until it has ended, or cannot continue by itself. `requests` arrived before the run was claimed."""
        deadline = self._arm_timeout()
        self._requests.add(requests)
        try:
            self._advance()
            await self.done
        finally:
            self._abandon()
            for timer in (deadline, self._grace, self._unwinding, self._timer):
                if timer is not None:
                    timer.cancel()

    def _advance(self) -> None:
        """Repeat `_round` until nothing more is due in the run, or until an append must become durable first."""
        self._again = True
        if self._phase is not _RESTING:
            return
        self._phase = _DECIDING
        try:
            while self._again and self._phase is _DECIDING and not self.done.done():
                self._again = False
                self._round()
        except BaseException as fault:  # noqa: BLE001 - passed on to the caller of `drive`
            self._finish(fault)
        finally:
            self._phase = _AFTER_LOOK[self._phase]

    def _round(self) -> None:
        """Record the ends of nodes and the requests, ask `decide` what follows, save, and then call the nodes that start."""
        journal, state = self.journal, self.state
        journal.tick()
        if self._ended:
            self._take_ends()
        if self._requests:
            self._take_requests()
        starts, wake_at, due_at = self._decide()
        # A fan-out whose items wait for their next attempt counts as running: without its runner it would look interrupted.
        if wake_at is not None and self.on_long_wait and not (state.running or self._asked):
            until = wake_at if self._over_at is None else min(wake_at, self._over_at)
            if until > journal.at + self.patience_s and self.on_long_wait is LongWait.LEAVE:
                wake_at, due_at = None, until
            elif until > journal.at + self.patience_s and not self._stays(starts):
                self.asleep_until = until
        journal.due_at = wake_at if due_at is None else due_at
        busy = starts or self._bodies or self._haunted or self._asked or wake_at is not None
        idle = state.status in STOPPED or not busy or (self._halt is not None and not self._bodies)
        idle = idle or self.asleep_until is not None
        if idle and self._more_requests():
            idle, self.asleep_until = False, None
        if journal.due_at is not None and not idle:
            self._wake_later(journal.due_at)
        # The input of a node is made now, from the state of this round; the node is called when all of this is durable.
        calls = [self._body_of(start) for start in starts]
        if journal.unsaved and (idle or self._durability != "exit" or self._must_save(calls)):
            self._save(calls, idle=idle)
        elif idle:
            if self.asleep_until is None:
                self.services.store.release(state.run_id, self.services.holder.id, journal.fence)
            self._finish()
        else:
            self._call_all(calls)

    def _stays(self, starts: list[events.NodeEvent]) -> bool:
        """Return whether a waiting run must stay in memory, because the store does not have all of it."""
        return bool(starts or self._bodies or self._haunted or self._halt or self.journal.taken)

    def _more_requests(self) -> bool:
        """Take requests that have arrived meanwhile: this runner must carry them out before it releases the lease. Returns
        whether there are any.
        """
        if not self.journal.saved_seq or self._halt is not None or self.state.status in FINAL:
            return False
        self._again = self._requests.read_inbox() or self._again
        return bool(self._requests)

    def _must_save(self, calls: list[Body]) -> bool:
        """Return whether a run with `durability="exit"` must save its events now, although it has not stopped."""
        # Checkpoint 0 is durable before anything runs, whatever the durability.
        first = not self.journal.saved_seq
        if first or self.journal.awaited or self.journal.urgent or self.journal.taken:
            return True
        return self._careful(calls) or self.state.seq - self.journal.saved_seq >= _EXIT_EVENTS_MAX

    def _careful(self, calls: list[Body]) -> bool:
        nodes = self.flow.nodes
        for body in calls:
            if nodes[body.key[0]].is_careful:
                return True
        return self._owes

    def _save(self, calls: list[Body], *, idle: bool) -> None:
        """Save, and call the nodes when the append is durable (with `durability="async"`: right away). The last save also
        releases the lease, unless the run only sleeps.
        """
        self._phase = _HANDING_OVER
        ahead = not idle and self._durability == "async" and not self._careful(calls)
        self._owes = False
        self._calls = None if idle else [] if ahead else calls
        self.journal.save(self._on_saved, release=idle and self.asleep_until is None)
        if ahead:
            self._call_all(calls)

    def _on_saved(self, error: BaseException | None) -> None:
        self._phase = _AFTER_SAVE[self._phase]
        try:
            if error is None and (self._bodies or self._streams or self.journal.spills):
                self._deliver()
            calls = self._calls
            if error is not None or calls is None:
                self._finish(error)
            elif not self.done.done():
                self._calls = []
                self._go_on(calls)
            else:  # cancelled meanwhile: the lease was released before this append, which may have created the run
                self.services.holdings.release(self.state.run_id, self.journal.fence)
        except BaseException as fault:  # noqa: BLE001 - passed on to the caller of `drive`
            self._finish(fault)

    def _deliver(self) -> None:
        """Wake the attempts that waited for events which are durable now, and delete spills whose chunks are in the log."""
        for body in list(self._bodies.values()):
            if body.work is not None:
                body.work.deliver()
        if self.journal.spills:
            spills, self.journal.spills = self.journal.spills, []
            blobs, run_id = self.services.store.blobs, self.state.run_id
            self.services.aside(lambda: blobs.unspill(run_id, spills), lambda error: None)
        self._streams = drop_saved(self._streams, self.journal.saved_seq)

    def _go_on(self, calls: list[Body]) -> None:
        """Call the nodes whose starts are durable now, unless a halt has arrived meanwhile."""
        if self._requests:
            self._take_requests()
        if calls and self._halt is None:
            self._call_all(calls)
        if self._again or self.journal.unsaved:
            self._advance()

    def _call_all(self, calls: list[Body]) -> None:
        """Call nodes. Raises `FenceLost` if another engine has claimed the run, because the lease of this one had ended."""
        if calls and not self.services.holdings.stands(self.state.run_id, self.journal.fence):
            raise lease_lost(self.services.store, self.state.run_id, self.services.holder)
        for body in calls:
            self._call(body)

    def _finish(self, error: BaseException | None = None) -> None:
        """Stop this runner. The caller of `drive` gets the error, if there is one, such as a lost lease or a broken store."""
        if self.done.done():
            return
        self.journal.give_up(error or Stopped())
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def _wake_later(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        clock, store = self.services.clock, self.services.store
        self._timer = clock.call_at(clock.now() + max(0.0, at - store.now()), self._advance)

    def _arm_timeout(self) -> Timer | None:
        seconds = self.state.options.get("timeout_s")
        if seconds is None:
            return None
        reason = f"the run took longer than {seconds:g} s"
        clock, store = self.services.clock, self.services.store
        left = max(0.0, self.state.asked_at + seconds - store.now()) if self.state.asked_at else seconds
        self._over_at = store.now() + left
        return clock.call_at(clock.now() + left, lambda: self.halt(Halt("timeout", reason=reason)))

    def lose(self, error: BaseException) -> None:
        """Stop the nodes and record nothing more, because the lease is lost or soon will be."""
        self._finish(error)

    def _abandon(self) -> None:
        """Stop the nodes that still run, without recording it: the run is not driven any more."""
        self._give_back_places()
        for body in list(self._bodies.values()):
            body.stop()

    # --- what ended -----------------------------------------------------------------------------------

    def body_ended(self, body: Body) -> None:
        bodies, listeners = self._bodies, self.services.listeners
        if bodies.pop(body.key, None) is not None and listeners.hear_calls:
            listeners.returned(self._node_call(body), body.error)
        if not body.has_gone:
            body.given_up_at = self.services.store.now()
            self._haunted[body.key] = body
            self.services.haunted[self.state.run_id] = self._haunted
        self._ended.append(body)
        if bodies:  # other nodes may end in the same pass of the loop: they share an append
            asyncio.get_running_loop().call_soon(self._advance)
        else:
            self._advance()

    def body_gone(self, body: Body) -> None:
        if self._haunted.get(body.key) is body:
            del self._haunted[body.key]
            if not self._haunted:
                self.services.haunted.pop(self.state.run_id, None)
            self.services.holdings.wake(self.state.run_id)

    def _take_ends(self) -> None:
        ended, self._ended = self._ended, []
        for body in ended:
            if body.work is not None:
                self._take_stream(body)
            if isinstance(body.error, Stopped) and not body.timed_out:
                if body.unfinished is not None:
                    self._unfinished[body.key] = body.unfinished
                continue  # the halt records it
            if self.flow.nodes[body.key[0]].is_careful:
                self._owes = True
            try:
                for event in self._events_of(body):
                    self.journal.record(event)
            except LogLimit as refused:
                self.journal.record(self._failed(body, refused))

    def _take_stream(self, body: Body) -> None:
        """Record the chunks that an attempt streamed, together with its end."""
        stream = body.work.stream
        if body.error is not None or body.timed_out:
            stream.end_without_result()
        self.record_stream(body)
        if isinstance(body.error, Parked):
            self.journal.streamed[stream.streamer] = stream.count

    def record_stream(self, body: Body) -> None:
        """Record the chunks that an attempt has streamed and that are not recorded yet."""
        segment = body.work.stream.cut()
        if segment.chunks:
            self.journal.record(segment.as_event())
        self._streams.append((self.state.seq, segment))

    def unsaved_chunks(self) -> list[Chunk]:
        """Return the chunks that nodes have streamed and that are not durable in the log yet."""
        segments = [segment for _, segment in self._streams]
        segments += [
            body.work.stream.segment
            for body in (*self._ended, *self._bodies.values())
            if body.work is not None
        ]
        return [chunk for segment in segments for chunk in segment.as_chunks()]

    def _events_of(self, body: Body) -> list[events.Event]:
        """Return the events for a call that has ended. A result that arrives after the timeout is not used."""
        name, item = body.key
        error = body.error
        if isinstance(error, Parked) and not body.timed_out:
            header = visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
            return [events.NodeWaiting(**header, on=error.slots, item=item)]
        if error is None and not body.timed_out:
            made = body.work.artifacts_made if body.work is not None else {}
            try:
                if item is None:
                    returned = self._take_result(body)
                    if self.flow.nodes[name].is_ruled:
                        return judging.complete(self.journal, name, returned, made)
                    return outcomes.complete_node(
                        self.flow,
                        self.state,
                        self.journal.writers,
                        self.journal.faults,
                        name,
                        returned,
                        self.journal.load,
                        made,
                    )
                header = visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
                return [outcomes.complete_item(self.flow, name, header, item, body.value, made)]
            except Exception as raised:  # noqa: BLE001 - the result does not fit, or a reducer raised
                error = raised
        return [self._failed(body, error or TimeoutError())]

    def _take_result(self, body: Body) -> Any:
        """Return the changes that a node has made, or the output of a node of a plan. Its input is let go of: what no other code
        refers to may be handed on.
        """
        given, body.given = body.given, None
        returned, body.value = body.value, None
        name = body.key[0]
        if type(returned) is events.Changes or self.flow.nodes[name].wiring is not None:
            return returned
        values = self.state.nodes[name].input or {}
        return outcomes.find_changes(self.flow, name, values, given, returned, self.journal.inputs)

    def _failed(self, body: Body, error: BaseException) -> events.Event:
        """Return the event for a call that raised, took too long, or returned a result that does not fit the state."""
        name, item = body.key
        node, visit = self.flow.nodes[name], self.state.nodes[name]
        header = visit_of(name, visit)
        now, luck = self.journal.at, self.services.luck
        if item is None and outcomes.is_uncertain(node, visit, error, now, luck, timed_out=body.timed_out):
            # Its effect may or may not have happened, as after a crash: the same question is asked.
            late = f"took longer than {node.options.timeout_s:g} s" if body.timed_out else ""
            told = late or f"{type(error).__name__}: {failures.message(error)}"[:500]
            return events.NodeInterrupted(**header, reason=told)
        failed: events.NodeFailed | events.ItemFailed
        if item is None:
            failed = outcomes.fail_node(node, visit, error, now=now, luck=luck, timed_out=body.timed_out)
        else:
            header["attempt"] = body.attempt
            failed = outcomes.fail_item(
                node, visit, header, item, error, now=now, luck=luck, timed_out=body.timed_out
            )
        failed = outcomes.name_remedy(failed, error, self.state)
        if failed.retry_at is None and body.timed_out and self.state.children:
            self.journal.cancel_children(name, item, f"{name!r} of its caller took too long")
        if failed.retry_at is None and not body.timed_out and not isinstance(error, failures.RemoteError):
            self.journal.faults[name] = error
        return failed

    # --- what is next ---------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[events.NodeEvent], float | None, float | None]:
        """Perform the commands of `decide` until there are no more. Returns the start events of the nodes to call, the time at
        which this runner must look at the run again, and the time at which the run is due if the runner does not wait for it.
        """
        starts: list[events.NodeEvent] = []
        if self._halt is not None:
            self._drop_asked()
            if not self._bodies:
                ghosts: dict[tuple[str, int | None], Unfinished] = dict.fromkeys(self._haunted, "abandoned")
                recorders.record_halt(self.journal, self._halt, self._cancels, ghosts | self._unfinished)
            return [], None, None
        while True:
            wake_at: float | None = None
            due_at: float | None = None
            again = False
            wanted: list[tuple[str, int | None]] = []
            for command in decide(self.flow, self.state, self.journal.at, self.journal.ready):
                kind = type(command)
                if kind is commands.WakeAt:
                    wake_at = command.at  # type: ignore[union-attr]
                elif kind is commands.DueAt:
                    due_at = command.at  # type: ignore[union-attr]
                elif self._haunted and (ghost := self._ghost(command)) is not None:
                    until = ghost.given_up_at + (
                        self.flow.nodes[ghost.key[0]].options.timeout_s or _PATIENCE_S
                    )
                    if self.journal.at < until:
                        wake_at = min(wake_at or until, until)
                    else:
                        give_up(self.journal, command, ghost)
                        again = True
                elif (
                    isinstance(command, _CALLS)
                    # most nodes need no place, and this is asked in every step
                    and not (
                        (node := self.flow.nodes[command.node]).is_plain
                        and node.options.executor not in self.services.elsewhere
                    )
                    and not self._has_place(command, wanted)
                ):
                    continue  # looked at again when the place has come
                else:
                    again = perform(self.journal, command, starts) or again
            if not again:
                if self._asked:
                    self._drop_asked(set(wanted))
                return starts, wake_at, due_at

    def _has_place(
        self, command: commands.StartNode | commands.StartItem, wanted: list[tuple[str, int | None]]
    ) -> bool:
        """Return whether a call that starts may begin now: it needs no place, or has one. Otherwise it waits for one."""
        node, item = self.flow.nodes[command.node], None
        if isinstance(command, commands.StartItem):
            item = command.item
        elif node.options.each or node.options.question is not None:  # it is not called itself
            return True
        places = self.services.places_of(node)
        if places is None:
            return True
        key = (command.node, item)
        if self._asked is None or self._placed is None:
            self._asked, self._placed = {}, {}
        place = self._asked.get(key)
        if place is None:
            place = self._asked[key] = places.ask(self.look_again)
        if not place.is_taken:
            wanted.append(key)
            return False
        self._placed[key] = self._asked.pop(key)
        return True

    def _drop_asked(self, wanted: Collection[tuple[str, int | None]] = ()) -> None:
        """Give back the places of calls that do not begin, except these: the run was paused, for example."""
        asked = self._asked or {}
        for key in [key for key in asked if key not in wanted]:
            asked.pop(key).give_back()

    def _give_back_places(self) -> None:
        """Give back the places of all calls that have not begun."""
        self._drop_asked()
        placed, self._asked, self._placed = self._placed or {}, None, None
        for place in placed.values():
            place.give_back()

    def _ghost(self, command: commands.AnyCommand) -> AbandonedCall | None:
        """Return the abandoned call of an older attempt whose thread still runs, if there is one: no new attempt starts beside
        it.
        """
        if isinstance(command, commands.StartNode):
            return next((body for (name, _), body in self._haunted.items() if name == command.node), None)
        if isinstance(command, commands.StartItem):
            return self._haunted.get((command.node, command.item))
        return None

    # --- calling --------------------------------------------------------------------------------------

    def _body_of(self, start: events.NodeEvent) -> Body:
        """Prepare the call for a start event, with the input of the node."""
        item = start.item if type(start) is events.ItemStarted else None
        given, error = None, None
        try:
            given = self._given(start, item)
        except Exception as raised:  # noqa: BLE001 - the state does not fit its type any more
            error = raised
        body = Body(start, item, self)
        body.given, body.error = given, error
        return body

    def _call(self, body: Body) -> None:
        """Call a node whose start is durable now."""
        start = body.start
        if self._placed:
            body.place = self._placed.pop(body.key, None)
        if body.error is not None:
            if body.place is not None:
                body.place.give_back()
            body.has_gone = True
            self.body_ended(body)
            return
        node = self.flow.nodes[start.node]
        self._bodies[body.key] = body
        if self.services.listeners.hear_calls:
            self.services.listeners.called(self._node_call(body))
        if node.options.timeout_s is not None and node.calls is None:  # a node that calls a flow only waits
            body.limit(self.services.clock, node.options.timeout_s)
        if node.is_plain and node.options.executor not in self.services.elsewhere:
            body.call(node.fn, (body.given,), self._around.copy(), self.services.stage)
        else:
            self._call_with_means(node, body)

    def _call_with_means(self, node: Node, body: Body) -> None:
        """Call a node that needs more than the state: a context, a stream, or an executor."""
        item = body.key[1]
        executor = self.services.executors.get(node.options.executor)
        here = node.options.executor not in self.services.elsewhere
        arguments: tuple[Any, ...] = (body.given,)
        if node.takes_context or node.streams or not here:
            context = self._make_context(body)
            if node.takes_context:
                blocks = body.work.blocks
                arguments = (
                    body.given,
                    BlockingContext(context, self.done.get_loop()) if blocks else context,
                )
            if node.streams:
                body.call(
                    lambda *given: run_generator(context, body.work, node.fn, given),
                    arguments,
                    self._around.copy(),
                    self.services.stage,
                )
                return
        if node.is_async and here:
            body.call(function_of(node), arguments, self._around.copy(), self.services.stage)
        elif executor is not None:
            self._around.copy().run(body.call_on, executor, self._call_of(node, body, item, arguments))
        else:
            self._around.copy().run(body.call_inline, node.fn, arguments)

    def _call_of(self, node: Node, body: Body, item: int | None, arguments: tuple[Any, ...]) -> Call:
        return Call(
            flow=self.flow,
            node=node,
            item=item,
            plain=judging.plain_input(node, self.state, item, self.journal.at),
            given=body.given,
            context=arguments[1] if len(arguments) > 1 else None,
            work=body.work,
            returned=body.collect,
        )

    def context_of(self, body: Body) -> Context | BlockingContext:
        loop = self.done.get_loop()
        on_loop = running_loop() is loop
        if body.context is None:
            if on_loop:
                self._make_context(body)
                task_family.join(loop, body.work.family)
            else:
                asyncio.run_coroutine_threadsafe(_as_coroutine(self._make_context, body), loop).result()
        return body.context if on_loop and not body.is_inline else BlockingContext(body.context, loop)

    def _make_context(self, body: Body) -> Context:
        """Make the context of a call, on the event loop."""
        start, node = body.start, self.flow.nodes[body.start.node]
        here = node.options.executor not in self.services.elsewhere
        blocks = not here or not (node.is_async or node.streams)
        body.context = context = Context(
            Attempt(self, body, start, blocks=blocks),
            run_id=self.state.run_id,
            flow=self.flow.name,
            node=start.node,
            iteration=start.iteration,
            execution=start.execution,
            attempt=start.attempt,
            item=body.key[1],
            resources=self.services.resources,
        )
        return context

    def _node_call(self, body: Body) -> NodeCall:
        start = body.start
        return NodeCall(
            run_id=self.state.run_id,
            flow=self.flow.name,
            node=start.node,
            iteration=start.iteration,
            execution=start.execution,
            attempt=start.attempt,
            item=body.key[1],
        )

    def _given(self, start: events.NodeEvent, item: int | None) -> Any:
        """Return the typed input of a node or item, which only this call can change."""
        visit = self.state.nodes[start.node]
        if self.flow.guards is not None:  # in a plan, a node gets what the plan refers to
            node = self.flow.nodes[start.node]
            assert node.wiring is not None
            return node.wiring.decode(judging.plain_input(node, self.state, None, self.journal.at))
        if item is None:
            return self.journal.load(visit.input or {})
        assert visit.items is not None
        return self.flow.item_codecs[start.node].decode(
            visit.items.values[item], path=f"item {item}", node=start.node
        )

    # --- halts and requests ---------------------------------------------------------------------------

    def _take_requests(self) -> None:
        """Carry out the requests, each once and in the order of the inbox, and record those that the run does not allow as
        refused.
        """
        for request in self._requests.take():
            if self._requests.is_left(request):
                continue
            if self._requests.waits_for_edit(request):
                self._requests.defer(request)
            else:
                self._carry_out_or_refuse(request)

    def _carry_out_or_refuse(self, request: AnyRequest) -> None:
        before = self.state.seq
        try:
            if isinstance(request, inbox.Edit) and self._is_unwinding_for(request):
                self._requests.defer(request)
                return
            self.carry_out(request)
        except (*REFUSALS, RunHeld) as refused:
            if self.state.seq != before:  # never save a part of what a refused request recorded
                raise
            recorders.refuse(self.journal, request, refused)
            return
        if recorders.supersedes(request):
            self._requests.settle_left(request)
            self._again = True

    def _is_unwinding_for(self, request: inbox.Edit) -> bool:
        """Unwind all nodes that are called now, if they only wait. Returns whether an edit must wait for nodes that unwind."""
        if self._ended:
            return True
        recorders.check_edit(self.journal, request)
        waiting = self.state.waiting_in_memory()
        return bool(self._bodies) and self.state.running == len(waiting) and self._park_all()

    def carry_out(self, request: AnyRequest) -> None:
        """Carry out a request, once. Raises one of `REFUSALS`, or `RunHeld`, if the run does not allow it."""
        self._requests.know(request)
        verb, before = request.traits, self.state.seq
        refuse_stale(self.services, self.flow, None, self.state, request, executed=True)
        if self.state.status in HALTED and isinstance(request, inbox.Cancel):
            recorders.record_unexecuted(self.journal, request)
            return
        cancels = recorders.RECORDERS[request.verb](self.journal, request, True)
        if cancels and self.state.seq == before:
            self._cancels.append(request.id)
        else:
            self.journal.taken.append(request.id)
        if cancels:
            self.halt(Halt("cancel", request.by, request.reason or verb.cancels_because))
        if verb.parks:
            self._park_all()


async def _as_coroutine(call: Callable[..., T], *args: Any) -> T:
    return call(*args)


def only_waits(held: HeldRun | None) -> bool:
    """Return whether a run that this engine holds only waits."""
    return isinstance(held, Runner) and held.only_waits
