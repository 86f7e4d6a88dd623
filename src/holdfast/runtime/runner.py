"""`Runner` drives one run: ask `decide`, record the events it leads to, save, call the nodes, record how they ended, and again.

Order is the promise. The end of a node and the starts that follow from it are recorded together and saved in one append; only
when that is durable are the nodes called (`durability="sync"`, the default). `"async"` calls them while the append is under way
and waits for it before the next one; `"exit"` saves when the run stops. A node that is not idempotent is always called after
its start is durable.

The runner stops when the run has ended, or cannot continue without an answer, a signal or an operator: then it gives the lease
back. A `Halt` (shutdown, cancel, timeout) stops the nodes first, and records which were interrupted.

There is no coroutine for a run, only calls of `_advance`, whenever a node has ended, a request has come, or it is time. A step
then costs one pass of the event loop, not three. The phases:

    RESTING ── look ──▶ DECIDING ── save ──▶ HANDING_OVER ── the look ends ──▶ SAVING
       ▲                  │    ▲                  │                               │
       ├── the look ends ─┘    └───── saved ──────┘                               │
       └──────────────────────────────── saved ───────────────────────────────────┘

A look in any phase but RESTING is only noted (`_again`): the loop in `_advance`, or the end of the save, makes up for it. So
there is never more than one append under way, and no look inside another. In every phase `done` ends the runner: after it,
nothing more is decided, recorded or called.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from typing import Any

from holdfast.core import commands, events
from holdfast.core.decide import decide
from holdfast.core.events import Failure
from holdfast.core.graph import Flow, Node
from holdfast.core.run_state import FINAL, HALTED, STOPPED
from holdfast.errors import AnswerRefused, FenceLost, LogBudget, ResumeRefused, SettingError
from holdfast.reading import inbox
from holdfast.reading.inbox import AnyRequest
from holdfast.runtime import failures, operator, outcomes
from holdfast.runtime.calls.attempt import Attempt
from holdfast.runtime.calls.body import UNWIND_S, Body, Parked, Stopped
from holdfast.runtime.calls.context import BlockingContext, Context
from holdfast.runtime.calls.executors import Call
from holdfast.runtime.calls.streams import Stream
from holdfast.runtime.clock import Timer
from holdfast.runtime.holdings import Halt
from holdfast.runtime.journal import Journal
from holdfast.runtime.listeners import NodeCall
from holdfast.runtime.operator import VERBS
from holdfast.runtime.perform import give_up, perform
from holdfast.runtime.services import AbandonedCall

_EXIT_EVENTS_MAX = 1000
_PATIENCE_S = 30.0
"""How long the thread of an attempt that was given up may still run before the next attempt fails (or the node's timeout)."""


class Phase(IntEnum):
    """What a runner is doing; see the picture at the top of this file."""

    RESTING = 0
    """It waits for a node, a timer or a request."""
    DECIDING = 1
    """`_advance` is on the stack."""
    HANDING_OVER = 2
    """The same, and an append is under way. It may be durable before `_advance` returns."""
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
    """Keep it in memory."""
    SLEEP = 1
    """Stop, and keep the lease: the run is loaded again when it is due (`asleep_until`)."""
    LEAVE = 2
    """Stop, and give the lease back: another engine may claim the run when it is due."""


class Runner:
    """Drives one run that this engine holds."""

    on_long_wait = LongWait.STAY
    patience_s = 0.0
    asleep_until: float | None = None
    """The run has not ended, it only waits until then: load it again."""
    _phase = _RESTING
    _again = False
    """A look is due."""
    _look_is_scheduled = False
    """A look follows in this pass of the event loop."""
    _owes = False
    """A node that is not idempotent has ended since the last save: that must be durable before anything else starts."""
    _halt: Halt | None = None
    _grace: Timer | None = None
    _unwinding: Timer | None = None
    _over_at: float | None = None
    _timer: Timer | None = None

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.services = journal.services
        self.flow: Flow[Any] = journal.flow
        self.state = journal.state
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._around = contextvars.copy_context()
        """The context variables of the caller. Each node gets a copy, so that the next one never sees what a node has set."""
        self._bodies: dict[tuple[str, int | None], Body] = {}
        self._haunted = self.services.haunted.get(self.state.run_id, {})
        """Threads that were given up and still run."""
        self._ended: list[Body] = []
        self._streams: list[Stream] = []
        """Of attempts that ended: their spills are dropped when the log is saved."""
        self._requests: list[AnyRequest] = []
        self._known_requests: set[str] = set()
        self._durability = self.state.options.get("durability", "sync")
        self._calls: list[Body] | None = []
        """The nodes to call when the append under way is durable. None: it is the last append of this runner."""
        self.park_after_s = self.services.park_after
        """How long a coroutine that waits is kept before it is unwound."""

    # --- from outside ---------------------------------------------------------------------------------

    @property
    def fence(self) -> int:
        return self.journal.fence

    @property
    def has_requests(self) -> bool:
        """Whether there are requests that it has not carried out."""
        return bool(self._requests)

    def request(self, request: AnyRequest) -> None:
        """Carry out a request, once, as soon as possible."""
        if request.id not in self._known_requests:
            self._known_requests.add(request.id)
            self._requests.append(request)
            self._advance()

    def is_current(self, body: Body) -> bool:
        """Whether an attempt may still record anything."""
        return self._bodies.get(body.key) is body and not body.cancelled and not self.done.done()

    def look_again(self) -> None:
        """An event was recorded: save it, together with others that come in this pass of the event loop."""
        if not self._look_is_scheduled:
            self._look_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_is_scheduled = False
        self._advance()

    def wake(self) -> None:
        """Look again: something that the run waited for may have changed."""
        self._advance()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start nothing new; stop the nodes that run after `grace_s` seconds, or at once at a second call."""
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

    def _park_all(self) -> None:
        """Unwind the nodes that only wait."""
        for body in list(self._bodies.values()):
            if body.work is not None:
                body.work.park()

    def _stop_bodies(self) -> None:
        """Stop the nodes that run. A coroutine that does not unwind is given up after a while, or at a second call."""
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
        """Drive the run until it has ended, or cannot continue by itself. `requests` were left before it was claimed."""
        deadline = self._arm_timeout()
        self._requests.extend(request for request in requests if request.id not in self._known_requests)
        self._known_requests.update(request.id for request in self._requests)
        try:
            self._advance()
            await self.done
        finally:
            self._abandon()
            for timer in (deadline, self._grace, self._unwinding, self._timer):
                if timer is not None:
                    timer.cancel()

    def _advance(self) -> None:
        """Look, and continue as far as possible."""
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
        """Record how nodes ended and what was requested, decide, save, and then call."""
        journal, state = self.journal, self.state
        journal.tick()
        if self._ended:
            self._take_ends()
        if self._requests:
            self._take_requests()
        starts, wake_at, due_at = self._decide()
        # A fan-out whose items wait for their next try counts as running: without its runner it would look interrupted.
        if wake_at is not None and self.on_long_wait and not state.running:
            until = wake_at if self._over_at is None else min(wake_at, self._over_at)
            if until > journal.at + self.patience_s and self.on_long_wait is LongWait.LEAVE:
                wake_at, due_at = None, until
            elif until > journal.at + self.patience_s and not self._stays(starts):
                self.asleep_until = until
        journal.due_at = wake_at if due_at is None else due_at
        busy = starts or self._bodies or self._haunted or wake_at is not None
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
        """Whether a part of the run is only in memory, although it waits."""
        return bool(starts or self._bodies or self._haunted or self._halt or self.journal.taken)

    def _more_requests(self) -> bool:
        """Before the lease is given back: requests that have come meanwhile are still this runner's to carry out."""
        if not self.journal.saved_seq or self._halt is not None or self.state.status in FINAL:
            return False
        services = self.services
        for request in inbox.requests_to(self.state.run_id, services.store.inbox(services.holder.id)):
            if request.id not in self._known_requests:
                self._known_requests.add(request.id)
                self._requests.append(request)
                self._again = True
        return bool(self._requests)

    def _must_save(self, calls: list[Body]) -> bool:
        """Whether a run with `durability="exit"` must save now, because a node in it or about to start needs that."""
        # Checkpoint 0 is durable before anything runs, whatever the durability.
        first = not self.journal.saved_seq
        if first or self.journal.awaited or self.journal.urgent:
            return True
        return self._careful(calls) or self.state.seq - self.journal.saved_seq >= _EXIT_EVENTS_MAX

    def _careful(self, calls: list[Body]) -> bool:
        nodes = self.flow.nodes
        for body in calls:
            if not nodes[body.key[0]].options.idempotent:
                return True
        return self._owes

    def _save(self, calls: list[Body], *, idle: bool) -> None:
        """Save, and call the nodes when that is durable; with `durability="async"` right away. The last save
        gives the lease back.
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
        except BaseException as fault:  # noqa: BLE001 - passed on to the caller of `drive`
            self._finish(fault)

    def _deliver(self) -> None:
        """Wake the attempts that waited for what is durable now, and drop spills that the log holds."""
        for body in list(self._bodies.values()):
            if body.work is not None:
                body.work.deliver()
        if self.journal.spills:
            spills, self.journal.spills = self.journal.spills, []
            blobs, run_id = self.services.store.blobs, self.state.run_id
            self.services.aside(lambda: blobs.unspill(run_id, spills), lambda error: None)
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.drop()

    def _go_on(self, calls: list[Body]) -> None:
        """The starts are durable: call the nodes, unless a halt has come meanwhile."""
        if self._requests:
            self._take_requests()
        if calls and self._halt is None:
            self._call_all(calls)
        if self._again or self.journal.unsaved:
            self._advance()

    def _call_all(self, calls: list[Body]) -> None:
        """Call nodes, unless the lease is lost: after this process stood still, another engine may be executing the run."""
        if calls and not self.services.holdings.stands(self.state.run_id, self.journal.fence):
            raise FenceLost(
                f"run {self.state.run_id!r} was taken over while this process stood still; nothing more of it is started here"
            )
        for body in calls:
            self._call(body)

    def _finish(self, error: BaseException | None = None) -> None:
        """Stop: the run goes no further here, or the lease or the store is lost. The caller of `drive` gets the error."""
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
        """The lease is lost, or soon will be: stop the nodes and record nothing more."""
        self._finish(error)

    def _abandon(self) -> None:
        """The run is not driven any more: stop the nodes that still run, and record nothing."""
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
                continue  # the halt records it
            if not self.flow.nodes[body.key[0]].options.idempotent:
                self._owes = True
            try:
                for event in self._events_of(body):
                    self.journal.record(event)
            except LogBudget as refused:
                self.journal.record(self._failed(body, refused))

    def _take_stream(self, body: Body) -> None:
        """Record what an attempt streamed, together with its end."""
        stream = body.work.stream
        stream.close()
        if stream.chunks:
            name, item = body.key
            header = outcomes.visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
            self.journal.record(events.NodeStreamed(**header, item=item, chunks=stream.chunks))
        self._streams.append(stream)

    def _events_of(self, body: Body) -> list[events.Event]:
        """The events that the end of a body leads to. A result that comes after the timeout is too late."""
        name, item = body.key
        error = body.error
        if isinstance(error, Parked) and not body.timed_out:
            header = outcomes.visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
            return [events.NodeWaiting(**header, on=error.slots, item=item)]
        if error is None and not body.timed_out:
            made = body.work.artifacts_made if body.work is not None else {}
            try:
                if item is None:
                    return outcomes.complete_node(
                        self.flow,
                        self.state,
                        self.journal.writers,
                        self.journal.faults,
                        name,
                        body.given,
                        body.value,
                        made,
                    )
                header = outcomes.visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
                return [outcomes.complete_item(self.flow, name, header, item, body.value, made)]
            except Exception as raised:  # noqa: BLE001 - the result does not fit, or a reducer raised
                error = raised
        return [self._failed(body, error or TimeoutError())]

    def _failed(self, body: Body, error: BaseException) -> events.Event:
        """A body raised, took too long, or returned a result that does not fit."""
        name, item = body.key
        node, visit = self.flow.nodes[name], self.state.nodes[name]
        header = outcomes.visit_of(name, visit)
        if body.timed_out and item is None and not node.options.idempotent:
            # Its effect may or may not have happened, as after a crash: the same question is asked.
            return events.NodeInterrupted(**header, reason=f"took longer than {node.options.timeout_s:g} s")
        now, luck = self.journal.at, self.services.luck
        if item is None and outcomes.is_uncertain(node, visit, error, now, luck):
            told = f"{type(error).__name__}: {failures.message(error)}"[:500]
            return events.NodeInterrupted(**header, reason=told)
        failed: events.NodeFailed | events.ItemFailed
        if item is None:
            failed = outcomes.fail_node(node, visit, error, now=now, luck=luck, timed_out=body.timed_out)
        else:
            header["attempt"] = body.attempt
            failed = outcomes.fail_item(
                node, visit, header, item, error, now=now, luck=luck, timed_out=body.timed_out
            )
        if failed.retry_at is None and not body.timed_out and not isinstance(error, failures.RemoteError):
            self.journal.faults[name] = error
        return failed

    # --- what is next ---------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[events.NodeEvent], float | None, float | None]:
        """Perform the commands of `decide` until there are no more. Returns the starts whose nodes are to be called, when to look
        again, and when the run is due although this runner does not wait for that.
        """
        starts: list[events.NodeEvent] = []
        if self._halt is not None:
            if not self._bodies:
                self._finish_halt(self._halt)
            return [], None, None
        while True:
            wake_at: float | None = None
            due_at: float | None = None
            again = False
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
                        give_up(self.journal, command)
                        again = True
                else:
                    again = perform(self.journal, command, starts) or again
            if not again:
                return starts, wake_at, due_at

    def _ghost(self, command: commands.AnyCommand) -> AbandonedCall | None:
        """The thread of an older attempt that still runs: no new one starts beside it."""
        if isinstance(command, commands.StartNode):
            return next((body for (name, _), body in self._haunted.items() if name == command.node), None)
        if isinstance(command, commands.StartItem):
            return self._haunted.get((command.node, command.item))
        return None

    # --- calling --------------------------------------------------------------------------------------

    def _body_of(self, start: events.NodeEvent) -> Body:
        """The call that follows from a start, with its input."""
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
        if body.error is not None:
            body.has_gone = True
            self.body_ended(body)
            return
        node = self.flow.nodes[start.node]
        self._bodies[body.key] = body
        if self.services.listeners.hear_calls:
            self.services.listeners.called(self._node_call(body))
        if node.options.timeout_s is not None:
            body.limit(self.services.clock, node.options.timeout_s)
        if node.is_plain and node.options.executor not in self.services.elsewhere:
            body.call(node.fn, (body.given,), self._around.copy(), self.services.stage)
        else:
            self._call_with_means(node, body)

    def _call_with_means(self, node: Node, body: Body) -> None:
        """Call a node that needs more than the state: a context, a stream, or an executor."""
        start, item = body.start, body.key[1]
        executor = self.services.executors.get(node.options.executor)
        here = node.options.executor not in self.services.elsewhere
        arguments: tuple[Any, ...] = (body.given,)
        if node.takes_context or node.streams:
            blocks = not here or not (node.is_async or node.streams)
            context = self._context(start, body, blocks=blocks)
            arguments = (body.given, context) if node.takes_context else arguments
            if node.streams:
                body.call(
                    lambda *given: _streamed(context, node.fn, given),
                    arguments,
                    self._around.copy(),
                    self.services.stage,
                )
                return
        if node.is_async and here:
            body.call(node.fn, arguments, self._around.copy(), self.services.stage)
        elif executor is not None:
            self._around.copy().run(body.call_on, executor, self._call_of(node, body, item, arguments))
        else:
            self._around.copy().run(body.call_inline, node.fn, arguments)

    def _call_of(self, node: Node, body: Body, item: int | None, arguments: tuple[Any, ...]) -> Call:
        visit, work = self.state.nodes[node.name], body.work
        return Call(
            flow=self.flow,
            node=node,
            item=item,
            plain=(visit.input or {}) if item is None or visit.items is None else visit.items.values[item],
            given=body.given,
            context=arguments[1] if len(arguments) > 1 else None,
            work=work,
            returned=None if work is None else work.collect,
        )

    def _context(self, start: events.NodeEvent, body: Body, *, blocks: bool) -> Any:
        context = Context(
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
        return BlockingContext(context, asyncio.get_running_loop()) if blocks else context

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
        """The node's own copy of its input, typed."""
        visit = self.state.nodes[start.node]
        if item is None:
            return self.flow.state.load(visit.input or {})
        assert visit.items is not None
        return self.flow.item_codecs[start.node].decode(
            visit.items.values[item], path=f"item {item}", node=start.node
        )

    # --- halts and requests ---------------------------------------------------------------------------

    def _finish_halt(self, halt: Halt) -> None:
        """All nodes have ended: record which were interrupted, and the status of the run."""
        if self.state.status in STOPPED:
            return
        operator.cut_all(self.journal, halt.reason or halt.kind)
        if halt.kind == "cancel":
            self.journal.record(events.RunCancelled(by=halt.by, reason=halt.reason))
        elif halt.kind == "timeout":
            told = f"{halt.reason}; resume it to give it as long again"
            self.journal.record(events.RunFailed(failure=Failure("partial", "RunTimeout", told)))
        else:
            self._finish_interrupt(halt)

    def _finish_interrupt(self, halt: Halt) -> None:
        """A run whose last node ended in time has ended; any other is interrupted."""
        for command in decide(self.flow, self.state, self.journal.at, self.journal.ready):
            if isinstance(command, (commands.CompleteRun, commands.FailRun)):
                perform(self.journal, command, [])
                return
        if self.state.status != "paused":
            self.journal.record(events.RunInterrupted(reason=halt.reason))

    def _take_requests(self) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            if self.state.status in HALTED and not isinstance(request, inbox.Cancel):
                continue  # it stays in the inbox, for the engine that resumes the run
            # Refused: it came too late, and the run has moved on.
            with suppress(ResumeRefused, AnswerRefused, SettingError):
                self.obey(request)

    def obey(self, request: AnyRequest) -> None:
        """Carry out a request, once. Raises `ResumeRefused` or `AnswerRefused` where the run does not allow it."""
        self._known_requests.add(request.id)
        self.journal.taken.append(request.id)
        if self.state.status in HALTED:
            operator.cancel(self.journal, by=request.by, reason=request.reason)
        elif self.state.status not in FINAL:
            verb = VERBS[request.verb]
            if verb.record(self.journal, request, True):
                self.halt(Halt("cancel", request.by, request.reason or verb.cancels_because))
            if verb.parks:
                self._park_all()


async def _streamed(context: Context, fn: Any, given: tuple[Any, ...]) -> Any:
    """Run an async generator: what it yields are chunks; the last thing is its result, if it can be one."""
    last: Any = None
    held = False
    state_type = type(given[0])
    async for value in fn(*given):
        if held:
            context.emit(last)
        last, held = value, isinstance(value, (dict, state_type)) and not isinstance(value, str)
        if not held:
            context.emit(value)
    return last if held else None
