"""Drive one run: ask `decide`, record what it says, save, call the nodes, take up how they ended, and again.

Order is the promise. What ended and what starts because of it are recorded together and saved in one append;
only when that is durable are the nodes called (`durability="sync"`, the default). `"async"` calls them while
the append is under way and waits for it before the next one; `"exit"` saves when the run stops. A node that
is not idempotent is always called after its start is durable.

The runner stops when the run is over, or cannot go on without somebody: then it gives the lease back. A
`Halt` (shutdown, cancel, timeout) stops the bodies first, and records what they were cut in.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from holdfast.core import commands, events
from holdfast.core.decide import decide
from holdfast.core.events import Failure
from holdfast.core.graph import Flow, Node
from holdfast.core.run_state import FINAL, HALTED, STOPPED
from holdfast.errors import AnswerRefused, FenceLost, LogBudget, ResumeRefused, SettingError
from holdfast.runtime import failures, operator, outcomes, questions
from holdfast.runtime.calls.attempt import Work
from holdfast.runtime.calls.body import UNWIND_S, Body, Parked, Stopped
from holdfast.runtime.calls.context import BlockingContext, Context
from holdfast.runtime.calls.executors import Call
from holdfast.runtime.calls.streams import Stream
from holdfast.runtime.clock import Timer
from holdfast.runtime.journal import Journal
from holdfast.runtime.perform import give_up, perform
from holdfast.storage.contract import Request

_EXIT_EVENTS_MAX = 1000
_PATIENCE_S = 30.0
"""How long the thread of an attempt that was given up may still live before the next one fails for it (or the node's timeout)."""


class Halt(msgspec.Struct, frozen=True):
    """Why the bodies are being stopped, and what is recorded when they have."""

    kind: Literal["interrupt", "cancel", "timeout"]
    by: str | None = None
    reason: str | None = None


class Runner:
    """One run in this engine's hands."""

    patience_s: float | None = None
    """A run that only waits, and longer than this, need not stay in memory. None: it stays."""
    leaves = False
    """Such a run is left to whoever is there when its time comes; otherwise it is kept, asleep."""
    asleep_until: float | None = None
    """It only waits, until then, and is not over: load it again."""
    _owes = False
    """A node that is not idempotent has ended since the last save: that must be durable before anything else starts."""
    _halt: Halt | None = None
    _grace: Timer | None = None
    _unwinding: Timer | None = None
    _idle = False
    """Whether the save that is under way is the last one."""
    _over_at: float | None = None
    _advancing = False
    _saving = False
    _again = False
    _looking = False
    _timer: Timer | None = None

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.services = journal.services
        self.flow: Flow[Any] = journal.flow
        self.state = journal.state
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._around = contextvars.copy_context()
        """Whoever drives the run: each node gets a copy, so that what one sets is not there for the next, also not by chance."""
        self._bodies: dict[tuple[str, int | None], Body] = {}
        self._haunted = self.services.haunted.get(self.state.run_id, {})
        """Threads that were given up and still live."""
        self._ended: list[Body] = []
        self._streams: list[Stream] = []
        """Of attempts that ended: what they spilled is done with when the log is saved."""
        self._requests: list[Request] = []
        self._known_requests: set[str] = set()
        self._durability = self.state.options.get("durability", "sync")
        self._calls: list[Body] = []
        """What is called as soon as the save that is under way is done."""
        self.park_after_s = self.services.park_after
        """How long a coroutine that waits is kept before it is unwound."""

    # --- from outside ---------------------------------------------------------------------------------

    @property
    def fence(self) -> int:
        return self.journal.fence

    @property
    def spoken_to(self) -> bool:
        """Whether somebody wants something that has not been taken up."""
        return bool(self._requests)

    def request(self, request: Request) -> None:
        """Take up what somebody wants of this run."""
        if request.id not in self._known_requests:
            self._known_requests.add(request.id)
            self._requests.append(request)
            self._advance()

    def is_current(self, body: Body) -> bool:
        """Whether an attempt may still record anything."""
        return self._bodies.get(body.key) is body and not body.cancelled and not self.done.done()

    def look_again(self) -> None:
        """Something was recorded: save it, together with what else comes in this pass of the event loop."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        self._advance()

    def wake(self) -> None:
        """Look again: something that the run waited for has changed."""
        self._advance()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start nothing new; stop what runs after `grace_s` seconds, at once if asked a second time."""
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
        """What only waits need not be waited for."""
        for body in list(self._bodies.values()):
            if body.work is not None:
                body.work.park()

    def _stop_bodies(self) -> None:
        """Stop what runs. A coroutine that does not unwind, or whoever asks a second time, is not waited for."""
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

    async def drive(self, requests: Iterable[Request] = ()) -> None:
        """Carry the run on until it is over or needs somebody. `requests` were left before it was taken up."""
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
        """Go on as far as possible: called whenever something ended, somebody spoke, or it is time.

        There is no coroutine behind a run, only these calls: a step costs one pass of the event loop, not
        three.
        """
        self._again = True
        if self._advancing or self._saving:
            return
        self._advancing = True
        try:
            while self._again and not self._saving and not self.done.done():
                self._again = False
                self._round()
        except BaseException as fault:  # noqa: BLE001 - whoever drives the run is told
            self._finish(fault)
        finally:
            self._advancing = False

    def _round(self) -> None:
        """Take up, decide, save, and then call."""
        journal, state = self.journal, self.state
        journal.tick()
        if self._ended:
            self._take_ends()
        if self._requests:
            self._take_requests()
        starts, wake_at, due_at = self._decide()
        # A fan-out whose items wait for their next try counts as running: left behind, it would be taken for cut.
        if wake_at is not None and self.patience_s is not None and not state.running:
            until = wake_at if self._over_at is None else min(wake_at, self._over_at)
            if until > journal.at + self.patience_s and self.leaves:
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
        # What a node is given is made now, while the run is at hand; it is called when all of this is durable.
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
        """Whether something of it is only in memory, although it waits."""
        return bool(starts or self._bodies or self._haunted or self._halt or self.journal.taken)

    def _more_requests(self) -> bool:
        """Before the lease is given back: what was left in the inbox and has not been seen, is still ours to answer."""
        if not self.journal.saved_seq or self._halt is not None or self.state.status in FINAL:
            return False
        for request in self.services.store.inbox(self.services.holder.id):
            if request.run_id == self.state.run_id and request.id not in self._known_requests:
                self._known_requests.add(request.id)
                self._requests.append(request)
                self._again = True
        return bool(self._requests)

    def _must_save(self, calls: list[Body]) -> bool:
        """A run that saves when it stops saves now if anything in it or about to start wants something to be durable."""
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
        self._saving = True
        ahead = not idle and self._durability == "async" and not self._careful(calls)
        self._owes = False
        self._calls, self._idle = [] if ahead else calls, idle
        self.journal.save(self._saved, release=idle and self.asleep_until is None)
        if ahead:
            self._call_all(calls)

    def _saved(self, error: BaseException | None) -> None:
        self._saving = False
        try:
            if error is None and (self._bodies or self._streams or self.journal.spills):
                self._deliver()
            if error is not None or self._idle:
                self._finish(error)
            elif not self.done.done():
                calls, self._calls = self._calls, []
                self._go_on(calls)
        except BaseException as fault:  # noqa: BLE001 - whoever drives the run is told
            self._finish(fault)

    def _deliver(self) -> None:
        """What is durable now may be what somebody inside a node waits for."""
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
        """What starts is durable: call it, unless a halt has come in the meantime; what has not begun then does not begin."""
        if self._requests:
            self._take_requests()
        if calls and self._halt is None:
            self._call_all(calls)
        if self._again or self.journal.unsaved:
            self._advance()

    def _call_all(self, calls: list[Body]) -> None:
        """The one door to `_call`: a process that stood still behind its lease must not start what is another's by now."""
        if calls and not self.services.stands(self.state.run_id, self.journal.fence):
            raise FenceLost(
                f"run {self.state.run_id!r} was taken over while this process stood still; nothing more of it is started here"
            )
        for body in calls:
            self._call(body)

    def _finish(self, error: BaseException | None = None) -> None:
        """Nothing is left to do here, or the lease or the store is lost: whoever drives the run is told."""
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
        """The lease is lost, or will be: stop what runs and record nothing more. Whoever drives the run is told."""
        self._finish(error)

    def _abandon(self) -> None:
        """Nobody drives the run any more: stop what still runs, record nothing."""
        for body in list(self._bodies.values()):
            body.stop()

    # --- what ended -----------------------------------------------------------------------------------

    def body_ended(self, body: Body) -> None:
        bodies = self._bodies
        bodies.pop(body.key, None)
        if not body.has_gone:
            body.given_up_at = self.services.store.now()
            self._haunted[body.key] = body
            self.services.haunted[self.state.run_id] = self._haunted
        self._ended.append(body)
        if bodies:  # others may end in the same pass of the loop: they share an append
            asyncio.get_running_loop().call_soon(self._advance)
        else:
            self._advance()

    def body_gone(self, body: Body) -> None:
        if self._haunted.get(body.key) is body:
            del self._haunted[body.key]
            if not self._haunted:
                self.services.haunted.pop(self.state.run_id, None)
            self.services.wake(self.state.run_id)

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
        """What an attempt streamed goes into the log with its end."""
        stream = body.work.stream
        stream.close()
        if stream.chunks:
            name, item = body.key
            header = outcomes.visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
            self.journal.record(events.NodeStreamed(**header, item=item, chunks=stream.chunks))
        self._streams.append(stream)

    def _events_of(self, body: Body) -> list[events.Event]:
        """What the end of a body means for the run. What comes after the timeout is too late, also if it comes."""
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
                        name,
                        body.given,
                        body.value,
                        made,
                    )
                header = outcomes.visit_of(name, self.state.nodes[name]) | {"attempt": body.attempt}
                return [outcomes.complete_item(self.flow, name, header, item, body.value, made)]
            except Exception as raised:  # noqa: BLE001 - what it returned does not fit, or a reducer raised
                error = raised
        return [self._failed(body, error or TimeoutError())]

    def _failed(self, body: Body, error: BaseException) -> events.Event:
        """A body raised, took too long, or returned what does not fit."""
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
        if item is None:
            return outcomes.fail_node(node, visit, error, now=now, luck=luck, timed_out=body.timed_out)
        header["attempt"] = body.attempt
        return outcomes.fail_item(
            node, visit, header, item, error, now=now, luck=luck, timed_out=body.timed_out
        )

    # --- what is next ---------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[events.NodeEvent], float | None, float | None]:
        """Record what `decide` says until it has no more to say. Returns what is to be called, when to look again,
        and when the run wants attention although nobody waits for that.
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

    def _ghost(self, command: commands.AnyCommand) -> Body | None:
        """The thread of an older attempt that still lives: no new one starts beside it."""
        if isinstance(command, commands.StartNode):
            return next((body for (name, _), body in self._haunted.items() if name == command.node), None)
        if isinstance(command, commands.StartItem):
            return self._haunted.get((command.node, command.item))
        return None

    # --- calling --------------------------------------------------------------------------------------

    def _body_of(self, start: events.NodeEvent) -> Body:
        """The call that a start stands for, with what it is given."""
        item = start.item if type(start) is events.ItemStarted else None
        body = Body(start, item, self)
        try:
            body.given = self._given(start, item)
        except Exception as raised:  # noqa: BLE001 - the state does not fit its type any more
            body.error = raised
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
        if node.options.timeout_s is not None:
            body.limit(self.services.clock, node.options.timeout_s)
        if node.is_plain and node.options.executor not in self.services.elsewhere:
            body.call(node.fn, (body.given,), self._around.copy(), self.services.stage)
        else:
            self._call_with_means(node, body)

    def _call_with_means(self, node: Node, body: Body) -> None:
        """Call a node that wants more than the state: a context, a stream, or somebody else to run it."""
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
            Work(self, body, start, blocks=blocks),
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

    def _given(self, start: events.NodeEvent, item: int | None) -> Any:
        """The node's own copy of what it is given: typed, and shared with nobody."""
        visit = self.state.nodes[start.node]
        if item is None:
            return self.flow.state.load(visit.input or {})
        assert visit.items is not None
        return self.flow.item_codecs[start.node].decode(
            visit.items.values[item], path=f"item {item}", node=start.node
        )

    # --- halts and requests ---------------------------------------------------------------------------

    def _finish_halt(self, halt: Halt) -> None:
        """All bodies have ended: record what was cut, and how the run stands."""
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
        """A run whose last node ended in time is over; any other is interrupted."""
        for command in decide(self.flow, self.state, self.journal.at, self.journal.ready):
            if isinstance(command, (commands.CompleteRun, commands.FailRun)):
                perform(self.journal, command, [])
                return
        if self.state.status != "paused":
            self.journal.record(events.RunInterrupted(reason=halt.reason))

    def _take_requests(self) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            if self.state.status in HALTED and request.verb != "cancel":
                continue  # it stays where it is, for whoever takes the run up again
            with suppress(
                ResumeRefused, AnswerRefused, SettingError
            ):  # it came too late: the run has moved on
                self.answer(request)

    def answer(self, request: Request) -> None:
        """Do what a request asks, once. Raises `ResumeRefused` where the run does not allow it."""
        self._known_requests.add(request.id)
        self.journal.taken.append(request.id)
        if self.state.status in HALTED:
            operator.cancel(self.journal, by=request.by, reason=request.reason)
        elif self.state.status not in FINAL:
            self._perform_request(request)

    def _perform_request(self, request: Request) -> None:
        match request.verb:
            case "cancel":
                self.halt(Halt("cancel", request.by, request.reason))
            case "pause":
                operator.pause(self.journal, by=request.by, reason=request.reason)
                self._park_all()
            case "answer" | "signal":
                if questions.tell(self.journal, request):
                    self.halt(Halt("cancel", request.by, request.reason or "aborted by the answer"))
            case "retry":
                operator.retry(
                    self.journal,
                    request.body.get("node"),
                    fresh=bool(request.body.get("fresh")),
                    by=request.by,
                    reason=request.reason,
                )
            case "skip":
                operator.skip(
                    self.journal,
                    request.body["node"],
                    request.body.get("update"),
                    by=request.by,
                    reason=request.reason,
                )
            case _:
                raise ResumeRefused(
                    self.state.run_id, f"this version does not know the request {request.verb!r}"
                )


class Asleep:
    """In place of the runner of a run that only waits, and long. The run is in the store; it is loaded when its time comes or
    somebody speaks.
    """

    def __init__(self, fence: int) -> None:
        self.fence = fence
        self.error: BaseException | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def request(self, request: Request) -> None:
        """It is in the inbox, where whoever wakes finds it."""
        self.wake()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        self.wake()

    def lose(self, error: BaseException) -> None:
        self.error = error
        self.wake()


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
